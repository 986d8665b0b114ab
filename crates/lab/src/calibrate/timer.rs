//! A kernel timer without a waiter.

use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use vcoop_model::plan::Ns;
use vcoop_threads::clock::timespec;

use crate::error::{Error, RequestTarget};

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
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
        fd.map(Self).map_err(|e| Error::io("timerfd_create", RequestTarget::Host, e.into()))
    }

    /// Lets it expire after `ns` nanoseconds; 0 disarms it.
    pub(crate) fn set(&self, ns: Ns) {
        let t = Itimerspec { it_interval: timespec(0), it_value: timespec(ns) };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &t);
    }
}
