//! Events of threads on this host. This crate knows only threads: no VM and no plan.
//!
//! - [`trace`] records the host's scheduler, for analysis afterwards.
//! - A [`Source`] reports that threads run and sleep as it happens, to a program that reacts.
//! - [`Pressure`] reports that threads wait for CPUs at all.

#[cfg(target_os = "linux")]
mod event;
#[cfg(target_os = "linux")]
mod perf;
#[cfg(target_os = "linux")]
mod pressure;
#[cfg(target_os = "linux")]
mod source;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod trace;
#[cfg(target_os = "linux")]
mod tracefs;

#[cfg(target_os = "linux")]
pub use event::{Error, Happened, What};
#[cfg(target_os = "linux")]
pub use pressure::Pressure;
#[cfg(target_os = "linux")]
pub use source::Source;
