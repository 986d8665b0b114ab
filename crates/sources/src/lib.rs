//! What happens to threads on this host. It knows threads only, no VM and no plan.
//!
//! - [`trace`] records the host's scheduler, to be looked at afterwards.
//! - A [`Source`] tells of threads that run and sleep as it happens, for who reacts to it.
//! - [`Pressure`] tells that threads wait for CPUs at all.

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
pub use pressure::Pressure;
#[cfg(target_os = "linux")]
pub use source::{Error, Happened, Source, What};
