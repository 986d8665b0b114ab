//! File descriptors of threads.
#![allow(unsafe_code, reason = "pidfd_open has no safe wrapper for threads; poll takes a pointer")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A descriptor of a thread of any process. It becomes readable when the thread ends. Needs Linux 6.9.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// `PIDFD_THREAD` of `linux/pidfd.h`; not in every libc.
    const THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;

    /// Opens a thread's descriptor.
    ///
    /// # Errors
    ///
    /// There is no such thread (`ESRCH`), or this kernel has only descriptors of processes (`EINVAL`).
    pub fn of(tid: i32) -> io::Result<Self> {
        // SAFETY: plain numbers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, Self::THREAD) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it for us; a descriptor fits an int.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Whether the thread has not ended. A process has ended even if its parent has not waited for it yet.
    pub fn is_alive(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives for the call; a timeout of 0 does not wait.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        // If the call fails, the thread counts as alive: a thread that has ended is not restored.
        ready <= 0
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::PidFd;
    use vcoop_testing::{Waiting, until};

    #[test]
    fn a_thread_lives_until_it_has_ended() {
        let other = Waiting::start();
        let fd = match PidFd::of(other.tid) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                eprintln!("skipped: this kernel has no file descriptors of threads");
                return;
            }
            fd => fd.unwrap(),
        };
        assert!(fd.is_alive());
        other.end();
        until("it is gone", || !fd.is_alive());
        // The process has not been waited for yet.
        let mut process = Command::new("true").spawn().unwrap();
        let fd = PidFd::of(process.id().cast_signed()).unwrap();
        until("it has ended", || !fd.is_alive());
        process.wait().unwrap();
    }
}
