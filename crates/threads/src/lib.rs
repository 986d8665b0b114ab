//! Operations on Linux threads: scheduling attributes and affinity, sleeping, and the kernel's counters. This crate
//! knows only threads: no VM and no plan. The micro-VM lab and the daemon, which drive vCPU threads, are built on it.
//!
//! Times are nanoseconds in [`Ns`], unless they are called cycles.

mod error;

#[cfg(target_os = "linux")]
mod affinity;
#[cfg(target_os = "linux")]
mod attributes;
#[cfg(target_os = "linux")]
mod captured;
#[cfg(target_os = "linux")]
pub mod clock;
#[cfg(target_os = "linux")]
mod host_use;
#[cfg(target_os = "linux")]
pub mod journal;
#[cfg(target_os = "linux")]
mod kick;
#[cfg(target_os = "linux")]
mod limit;
#[cfg(target_os = "linux")]
mod namespace;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod pi_mutex;
#[cfg(target_os = "linux")]
mod pidfd;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod sleep;
#[cfg(target_os = "linux")]
mod stats;
#[cfg(target_os = "linux")]
mod thread;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod tsc;

pub use error::{Error, MAY_BE_REALTIME, hint};
pub use vcoop_policy::config::Ns;

#[cfg(target_os = "linux")]
pub use affinity::{
    AffinityGuard, MOST_CPUS, affinity, allowed_cpus, apart_from, cpu_list, parse_cpu_list, pin,
    set_affinity,
};
#[cfg(target_os = "linux")]
pub use attributes::{Attributes, default_slice};
#[cfg(target_os = "linux")]
pub use captured::{Baseline, Captured, NotRestored, Restored, nice};
#[cfg(target_os = "linux")]
pub use host_use::{HostUse, USER_TICK_NS, host_busy_ns, idle_ns};
#[cfg(target_os = "linux")]
pub use kick::Kick;
#[cfg(target_os = "linux")]
pub use limit::{lift_real_time_limit, real_time_limit};
#[cfg(target_os = "linux")]
pub use namespace::numbers_of_events;
#[cfg(target_os = "linux")]
pub use peer::Peer;
#[cfg(target_os = "linux")]
pub use pi_mutex::{PiGuard, PiMutex};
#[cfg(target_os = "linux")]
pub use pidfd::PidFd;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use sleep::{Attention, Duty, MOST_SPIN_NS, PreciseSleep, WaitLimits};
#[cfg(target_os = "linux")]
pub use stats::{RunTime, RunTimes, Stat, SyscallFile, preemptions, run_time};
#[cfg(target_os = "linux")]
pub use thread::{gettid, set_timer_slack, unblock};
