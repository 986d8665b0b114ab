//! Makes a stock Linux guest use fewer of its vCPUs while the host has little time for them.
//!
//! ```text
//! /proc/stat --> Stat --+
//! sysfs -------> Layout +--> Governor (vcoop-policy) --> width --> cpusets, or CPU hotplug
//! vcoop's driver: what the host asks for -----------------^ |
//!                                     Journal (before the first change), undone at the end
//! ```
//!
//! It runs in the guest. A governor of the guest's own, of [`vcoop_policy::govern`], needs neither a module nor the
//! host's help. With `host-hint` the governor is the host's, and the guest's driver has its result. This crate reads
//! the input of governors, and carries out their decisions.
//!
//! The roots of procfs, sysfs and cgroupfs are paths ([`Roots`]), so that it works on recorded trees.

mod change;
mod contents;
pub mod cpus;
mod decider;
mod error;
mod files;
mod fold;
mod journal;
mod layout;
mod mechanism;
mod metrics;
mod pinned;
mod reason;
pub mod settings;
pub mod stat;

pub use change::{Change, Target, UndoReport};
pub use error::FoldError;
pub use files::Roots;
pub use fold::{Decision, Evaluation, Fold, Mode, Plan};
pub use journal::{Journal, restore};
pub use layout::Layout;
pub use mechanism::Mechanism;
pub use metrics::Numbers;
pub use pinned::{Pinned, pinned};
