//! Events of watched threads, and why a thread cannot be watched.

use std::io;

use vcoop_policy::Injection;
use vcoop_threads::Ns;

/// An event of a watched thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadEvent {
    /// Time, by CLOCK_MONOTONIC.
    pub at: Ns,
    /// What.
    pub kind: ThreadEventKind,
}

/// Kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadEventKind {
    /// The thread runs, after a sleep.
    Runs,
    /// The thread sleeps.
    Sleeps,
    /// The thread is a vCPU's, and has an interrupt.
    Interrupt {
        /// Kind of interrupt.
        kind: Injection,
        /// Interrupts since the last one that was reported, which came too soon after it to be reported.
        coalesced: u64,
    },
    /// Events were lost: whether the thread sleeps is not known until the next event.
    Lost,
}

/// Why a thread cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}{}", hint(call, source))]
pub struct Error {
    /// The system call.
    pub call: &'static str,
    /// errno.
    pub source: io::Error,
}

impl Error {
    pub(crate) fn of(call: &'static str, source: io::Error) -> Self {
        Self { call, source }
    }
}

fn hint(call: &str, e: &io::Error) -> &'static str {
    match (call, e.raw_os_error()) {
        ("perf_event_open", Some(libc::EACCES | libc::EPERM)) => {
            " (needs CAP_PERFMON or CAP_SYS_ADMIN, and in a container also a seccomp profile that \
              allows it)"
        }
        ("tracefs", Some(libc::ENOENT)) => {
            " (it is not mounted)\n  remedy: mount -t tracefs nodev /sys/kernel/tracing; a kernel with \
             lockdown=confidentiality has none"
        }
        ("tracefs", _) => "\n  remedy: run it as root",
        ("perf_event_open", Some(libc::ESRCH)) => " (the thread has ended)",
        ("perf_event_open", Some(libc::EMFILE)) => " (raise the limit of open files: ulimit -n)",
        ("mmap", Some(libc::EPERM)) => {
            " (raise the limit of locked memory: ulimit -l, or kernel.perf_event_mlock_kb)"
        }
        _ => "",
    }
}
