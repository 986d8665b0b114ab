//! Events of threads on this host. This crate knows only threads: no VM and no plan.
//!
//! - [`trace`] records the host's scheduler, for analysis afterwards.
//! - A [`Source`] reports that threads run and sleep as it happens, to a program that reacts.
//! - [`Pressure`] reports that threads wait for CPUs at all.

mod event;
mod perf;
mod pressure;
mod source;
pub mod trace;
mod tracefs;

pub use event::{Error, ThreadEvent, ThreadEventKind};
pub use pressure::Pressure;
pub use source::Source;
