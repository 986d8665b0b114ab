//! What commands share that stay and change something outside of themselves: a folder under `/run`
//! with a lock that one of them holds, and a page of metrics.
#![cfg(target_os = "linux")]

mod folder;
pub mod metrics;

pub use folder::{FolderError, lock, usual};
