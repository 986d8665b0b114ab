//! Policies on the VMs that run on this host.
//!
//! ```text
//!                  commands                          Port           sched_setattr
//! Client --socket--> Service --channel--> Engine --> VcpuDriver --> vCPU's thread
//!                                          ^   |
//!              wake-ups, sleeps: Source ---+   +--> Journal (file), Keeper (process)
//!        rings, words of guests: Window ---+
//! ```
//!
//! One process of a host owns its vCPU threads: the one that holds the lock in the [`RunFolder`]. It writes down what each
//! thread had before the first change, and starts a [`keeper`] that restores everything should the owner die or stall.
//! One real-time thread, the engine, drives all threads, by the same driver core as the simulator and the micro-VM lab
//! ([`vcoop_policy::driver`]).
//!
//! The daemon trusts nothing that a VMM says: VMs are found by [`vcoop_vmm`], and their threads are held by file
//! descriptors and compared by start time.

mod client;
pub mod config;
mod engine;
mod follow;
pub mod keeper;
mod metrics;
mod notes;
mod policy;
mod port;
mod protocol;
mod run_folder;
mod service;

pub use client::Client;
pub use config::Config;
pub use follow::{Follower, left_alone};
pub use notes::notes;
pub use policy::{could_be, fits, living, needs_driver, no_driver, setting_of};
pub use protocol::{Refusal, Request, Response, Status, VcpuStatus, VmId, VmStatus};
pub use run_folder::{RestoreReport, RunFolder, RunFolderError, restore};
pub use service::Service;
