//! Clocks of the kernel, and sleeping by them.
#![allow(unsafe_code, reason = "calls clock_gettime, clock_getres and clock_nanosleep")]

use std::sync::LazyLock;

use crate::Ns;
use crate::namespace::monotonic_offset;

/// A clock of the kernel, in nanoseconds.
pub fn kernel_clock(id: libc::clockid_t) -> Ns {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `t` only. An unknown clock leaves it at zero.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    t.tv_sec as Ns * 1_000_000_000 + t.tv_nsec as Ns
}

/// CLOCK_MONOTONIC.
pub fn monotonic() -> Ns {
    kernel_clock(libc::CLOCK_MONOTONIC)
}

/// By this process's CLOCK_MONOTONIC, a time of the kernel's own, as events have it. They differ in a time namespace.
pub fn of_event(at: Ns) -> Ns {
    static OFFSET: LazyLock<i64> = LazyLock::new(monotonic_offset);
    at.saturating_add_signed(*OFFSET)
}

/// The tick's period: the coarse clocks move once a tick.
pub fn tick_ns() -> Option<Ns> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `t` only.
    let rc = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut t) };
    (rc == 0).then_some(t.tv_sec as Ns * 1_000_000_000 + t.tv_nsec as Ns)
}

/// Nanoseconds as a `timespec`.
pub(crate) fn timespec(ns: Ns) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Sleeps until CLOCK_MONOTONIC shows `at`; a signal may end it early.
pub fn sleep_until(at: Ns) {
    let t = timespec(at);
    // SAFETY: reads `t`; the remaining time is not asked for.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const t,
            std::ptr::null_mut(),
        );
    }
}
