//! Hearing of what threads do while they do it.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use vcoop_threads::Ns;

/// Something that a watched thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happened {
    /// When, by CLOCK_MONOTONIC.
    pub at: Ns,
    /// What.
    pub what: What,
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It runs, after a sleep.
    Runs,
    /// It sleeps.
    Sleeps,
    /// Events were lost: whether it sleeps is not known until the next one.
    Lost,
}

/// A way to hear of what threads do.
///
/// Each has its own cost and its own blind spots, which [`hears`](Self::hears) says.
pub trait Source: fmt::Debug + Send {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What it hears and what it misses, for people.
    fn hears(&self) -> &'static str;

    /// Watches a thread; what it does is heard from [`await_run`](Self::await_run) or
    /// [`await_sleep`](Self::await_sleep) on. Whoever waits on `epoll` is woken with the thread's number as
    /// the token when there is something to [`take`](Self::take). `after`: it need not be heard that the
    /// thread runs before it has run for so long since it was last heard of; the less is heard the less it
    /// costs.
    ///
    /// # Errors
    ///
    /// [`Error`]: the thread is not watched.
    fn watch(&mut self, tid: i32, after: Ns, epoll: BorrowedFd<'_>) -> Result<(), Error>;

    /// Watches it no longer. One that is not watched is passed over.
    fn forget(&mut self, tid: i32);

    /// The thread sleeps, or is about to: that it runs is heard, once, and no sleep is from now on.
    fn await_run(&mut self, tid: i32);

    /// The thread runs: that it sleeps is heard from now on. If it sleeps already, which is the result,
    /// nothing need be heard.
    fn await_sleep(&mut self, tid: i32) -> bool;

    /// No sleep is heard from now on. That it runs is, once, if it was awaited.
    fn await_nothing(&mut self, tid: i32);

    /// What a thread did since the last call, in order. It does not wait.
    fn take(&mut self, tid: i32, each: &mut dyn FnMut(Happened));
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
            " (it is not mounted)\n  remedy: mount -t tracefs nodev /sys/kernel/tracing"
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
