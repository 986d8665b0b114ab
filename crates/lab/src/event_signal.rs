//! What a host thread sleeps on between messages: an eventfd, which KVM can signal.
#![allow(unsafe_code, reason = "polls a file descriptor")]

use std::os::fd::AsRawFd;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::{Error, RequestTarget};

/// Longest sleep, and so the longest delay until the end of a run is noticed.
const REST_MS: libc::c_int = 20;

/// A signal with one waiter.
#[derive(Debug)]
pub(crate) struct EventSignal(EventFd);

impl EventSignal {
    /// A new one, not signalled.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: no more file descriptors.
    pub(crate) fn new() -> Result<Self, Error> {
        let new = EventFd::new(EFD_NONBLOCK);
        new.map(Self).map_err(|source| Error::Kernel {
            asked: "eventfd",
            whom: RequestTarget::Host,
            source,
        })
    }

    /// For KVM.
    pub(crate) fn fd(&self) -> &EventFd {
        &self.0
    }

    /// Signals. Further signals before the next wait have no effect.
    pub(crate) fn ring(&self) {
        let _ = self.0.write(1);
    }

    /// Sleeps until it is signalled, or for a while; true if it was signalled.
    pub(crate) fn wait(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, alive during the call.
        unsafe { libc::poll(&raw mut poll, 1, REST_MS) };
        self.0.read().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::EventSignal;

    #[test]
    fn rings_before_and_during_the_wait_are_heard_once() {
        let bell = EventSignal::new().unwrap();
        assert!(!bell.wait());
        bell.ring();
        bell.ring();
        assert!(bell.wait() && !bell.wait());
        std::thread::scope(|s| {
            s.spawn(|| bell.ring());
            assert!((0..500).any(|_| bell.wait()));
        });
    }
}
