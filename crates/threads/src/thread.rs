//! Operations on the calling thread.
#![allow(unsafe_code, reason = "gettid and prctl have no safe wrapper")]

use crate::Ns;

/// Its number.
pub fn gettid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() }
}

/// Sets its timer slack, at least 1 ns (0 would mean the default).
pub fn set_timer_slack(ns: Ns) {
    // SAFETY: a plain number; failure leaves the default, which only makes sleeps later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns.max(1)) };
}
