//! BPF programs of vcoop in the kernel (feature `bpf`).
//!
//! - [`Events`] reports threads that go to sleep, and interrupts for vCPUs before these take them.
//! - [`Scheduler`] is `scx_vcoop`: a sched_ext scheduler in which `wake-boost` and `dynamic` are decided where it
//!   happens.
//!
//! Without the feature both types exist and return that this build has no BPF.

/// Methods of a type of which this build has no values. The word that begins them is their receiver's.
#[cfg(not(feature = "bpf"))]
macro_rules! absent {
    ($this:ident: $( $(#[doc = $doc:literal])+ fn $name:ident($($input:tt)*) $(-> $output:ty)?; )+) => {
        $( $(#[doc = $doc])+ pub fn $name($($input)*) $(-> $output)? { match *$this {} } )+
    };
}

mod events;
#[cfg(feature = "bpf")]
mod object;
mod scheduler;

pub use events::{Event, EventKind, Events, WatchedVcpu};
pub use scheduler::{Admission, Rules, Scheduler, SchedulerTotals, VcpuState};

/// Why a program cannot run in this kernel.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}\n  remedy: {remedy}")]
pub struct Unsupported {
    /// What is missing.
    pub what: String,
    /// How to get it.
    pub remedy: &'static str,
}

impl Unsupported {
    /// The error that this build has no BPF.
    #[cfg(not(feature = "bpf"))]
    fn feature(what: &str) -> Self {
        Self {
            what: format!("this vcoop was built without BPF, and {what}"),
            remedy: "cargo install --path crates/cli --features bpf",
        }
    }
}
