//! The nouns of vcoop: scenario, plan, profile, recording. No behaviour but validation.

pub mod builtin;
pub mod capture;
pub mod diagnostic;
pub mod plan;
pub mod profile;
pub mod recording;
pub mod rt_app;
pub mod scenario;
pub mod span;
pub mod sweep;
mod toml_read;
mod topology;
