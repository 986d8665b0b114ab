//! Operations on the calling thread.
#![allow(unsafe_code, reason = "pthread_sigmask has no safe wrapper")]

use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ptr;

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

/// Lets it, and threads that it starts from now on, get these signals. A program inherits the signals that its parent
/// has blocked, and these wait for ever.
pub fn unblock(signals: &[i32]) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call makes a set of it, and the others are given that set. They fail only for signals that do
    // not exist.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
}
