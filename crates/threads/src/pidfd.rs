//! File descriptors of threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A descriptor of a thread of any process. It becomes readable when the thread ends. Needs Linux 6.9.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// `PIDFD_THREAD` of `linux/pidfd.h`.
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

    /// Opens a thread's descriptor.
    ///
    /// # Errors
    ///
    /// There is no such thread (`ESRCH`), or this kernel has only descriptors of processes (`EINVAL`).
    pub fn of(tid: i32) -> io::Result<Self> {
        let tid = Pid::from_raw(tid).ok_or(Errno::SRCH)?;
        Ok(Self(pidfd_open(tid, Self::THREAD)?))
    }

    /// Whether the thread has not ended. A process has ended even if its parent has not waited for it yet.
    pub fn is_alive(&self) -> bool {
        let mut ended = [PollFd::new(&self.0, PollFlags::IN)];
        // If the call fails, the thread counts as alive: a thread that has ended is not restored.
        !poll(&mut ended, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
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
    use vcoop_testing::{WaitingThread, until};

    #[test]
    fn a_thread_lives_until_it_has_ended() {
        let other = WaitingThread::start();
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
