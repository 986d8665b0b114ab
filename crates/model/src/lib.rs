//! The data types that all of vcoop shares: scenario, plan, profile, recording. They only validate. Also what every
//! backend does alike: policy machines of a plan, random draws.

pub mod builtin;
pub mod capture;
pub mod diagnostic;
mod dist;
mod distinct;
pub mod file;
pub mod kind;
pub mod limits;
mod named;
mod note;
pub mod plan;
pub mod profile;
pub mod quantiles;
pub mod recording;
pub mod rng;
pub mod rt_app;
pub mod run;
pub mod running_vm;
pub mod scenario;
pub mod sweep;
mod toml_read;
mod topology;
pub mod trace_event;

pub use distinct::distinct;
pub use note::{Missing, Note};
