//! Errors of the kernel, and remedies.

use std::io;

/// Remedy for a user who may not make threads real-time.
pub const MAY_BE_REALTIME: &str =
    "run with CAP_SYS_NICE; in a cgroup with RT group scheduling, give it cpu.rt_runtime_us";

/// A request about a thread that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}{}", hint(call, source))]
pub struct Error {
    /// The system call.
    pub call: &'static str,
    /// errno.
    pub source: io::Error,
}

impl Error {
    /// The kernel's refusal of this call.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self { call, source: errno.into() }
    }

    /// The kernel's refusal in errno.
    #[cfg(target_os = "linux")]
    pub(crate) fn last_os(call: &'static str) -> Self {
        Self { call, source: io::Error::last_os_error() }
    }
}

/// What an errno means for a system call of this crate, and the remedy, in parentheses after a space; empty if the
/// kernel's message says enough.
pub fn hint(call: &str, e: &io::Error) -> &'static str {
    match (call, e.raw_os_error()) {
        ("sched_setattr", Some(libc::EPERM)) => {
            " (needs CAP_SYS_NICE; in a cgroup with RT group scheduling also its cpu.rt_runtime_us; \
              a deadline has to be of a thread that may use all CPUs of its root domain)"
        }
        ("sched_setattr", Some(libc::EBUSY)) => " (deadline bandwidth is exhausted)",
        ("sched_setattr", Some(libc::EINVAL)) => {
            " (this kernel does not know the policy or the slice)"
        }
        ("sched_setaffinity", Some(libc::EINVAL)) => {
            " (none of these CPUs is online and in the thread's cpuset)"
        }
        ("sched_setaffinity", Some(libc::EBUSY)) => {
            " (a deadline thread cannot be confined to some CPUs)"
        }
        ("sched_setaffinity", Some(libc::EPERM)) => " (needs CAP_SYS_NICE)",
        (call, Some(libc::ESRCH)) if call.starts_with("sched_") => " (the thread has ended)",
        _ => "",
    }
}
