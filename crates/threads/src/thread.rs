//! Operations on the calling thread.

use std::num::NonZeroU64;

use crate::Ns;

/// Its number.
pub fn gettid() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Sets its timer slack, at least 1 ns (0 would mean the default).
pub fn set_timer_slack(ns: Ns) {
    // Failure leaves the default, which only makes sleeps later.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(ns.max(1)));
}
