//! A kernel timer without a waiter.
#![allow(unsafe_code, reason = "timerfd has no safe wrapper")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use vcoop_model::plan::Ns;

use crate::error::{Error, Whom};

/// It expires on the CPU that set it last and wakes no thread, so that only its interrupt is measured.
#[derive(Debug)]
pub(crate) struct TimerFd(OwnedFd);

impl TimerFd {
    /// Disarmed.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn new() -> Result<Self, Error> {
        // SAFETY: creates a descriptor.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os("timerfd_create", Whom::Host));
        }
        // SAFETY: a descriptor of our own, owned from here on.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Lets it expire after `ns` nanoseconds; 0 disarms it.
    pub(crate) fn set(&self, ns: Ns) {
        let mut t = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec { tv_sec: 0, tv_nsec: 0 },
        };
        t.it_value.tv_sec = (ns / 1_000_000_000) as i64;
        t.it_value.tv_nsec = (ns % 1_000_000_000) as i64;
        // SAFETY: reads `t`; the old value is not asked for.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const t, std::ptr::null_mut()) };
    }
}
