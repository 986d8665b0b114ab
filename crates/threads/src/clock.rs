//! Clocks of the kernel, and sleeping by them.

use std::sync::LazyLock;

use rustix::thread::clock_nanosleep_absolute;
pub use rustix::time::ClockId;
use rustix::time::{Timespec, clock_getres, clock_gettime};

use crate::Ns;
use crate::namespace::monotonic_offset;

/// A clock of the kernel, in nanoseconds.
pub fn kernel_clock(id: ClockId) -> Ns {
    ns(clock_gettime(id))
}

/// CLOCK_MONOTONIC.
pub fn monotonic() -> Ns {
    kernel_clock(ClockId::Monotonic)
}

/// By this process's CLOCK_MONOTONIC, a time of the kernel's own, as events have it. They differ in a time namespace.
pub fn of_event(at: Ns) -> Ns {
    static OFFSET: LazyLock<i64> = LazyLock::new(monotonic_offset);
    at.saturating_add_signed(*OFFSET)
}

/// The tick's period: the coarse clocks move once a tick.
pub fn tick_ns() -> Ns {
    ns(clock_getres(ClockId::MonotonicCoarse))
}

fn ns(t: Timespec) -> Ns {
    t.tv_sec as Ns * 1_000_000_000 + t.tv_nsec as Ns
}

/// Nanoseconds as a `timespec`.
pub fn timespec(ns: Ns) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Sleeps until CLOCK_MONOTONIC shows `at`; a signal may end it early.
pub fn sleep_until(at: Ns) {
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(at));
}
