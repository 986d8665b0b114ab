//! A sleep that another thread can end early.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::futex::{Flags, wait_bitset, wake};

use crate::Ns;
use crate::clock::timespec;

/// Wakes one thread early from a timed wait, or ends its spinning.
#[derive(Debug, Default)]
pub struct Kick {
    count: AtomicU32,
    /// The thread sleeps or is about to, so that a kick must wake it. A spinning thread sees the count, which saves the
    /// system call.
    asleep: AtomicBool,
}

impl Kick {
    /// State to pass to [`wait_until`](Self::wait_until): a kick after this call ends the wait.
    pub fn arm(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until CLOCK_MONOTONIC shows `at`, or for a kick after `armed` was taken.
    pub fn wait_until(&self, armed: u32, at: Ns) {
        let t = timespec(at);
        // Before the kernel compares the count: a kick either sees this or is seen there.
        self.asleep.store(true, Ordering::SeqCst);
        // Of all waits on a futex, those by bits have a timeout that is a time of CLOCK_MONOTONIC.
        let _ = wait_bitset(&self.count, Flags::PRIVATE, armed, Some(&t), NonZeroU32::MAX);
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends the wait of the other thread. Does not block.
    pub fn kick(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.is_waiting() {
            self.wake_syscall();
        }
    }

    /// Whether a thread sleeps here, or is about to.
    pub fn is_waiting(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    /// Only the system call of a kick, without counting it.
    pub fn wake_syscall(&self) {
        let _ = wake(&self.count, Flags::PRIVATE, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::Kick;
    use crate::clock::{monotonic, sleep_until};
    use crate::stats::Stat;
    use vcoop_testing::until;

    #[test]
    fn a_kick_before_the_wait_is_not_lost() {
        let kick = Kick::default();
        let armed = kick.arm();
        kick.kick();
        let start = monotonic();
        kick.wait_until(armed, start + 60_000_000_000);
        assert!(monotonic() - start < 30_000_000_000);
    }

    #[test]
    fn a_kick_wakes_who_sleeps() {
        let kick = Kick::default();
        let (armed, start) = (kick.arm(), monotonic());
        std::thread::scope(|scope| {
            let (send, tid) = std::sync::mpsc::channel();
            let kick = &kick;
            let sleeper = scope.spawn(move || {
                send.send(crate::gettid()).unwrap();
                kick.wait_until(armed, start + 60_000_000_000);
            });
            let stat = Stat::open(tid.recv().unwrap()).unwrap();
            until("it sleeps", || kick.is_waiting() && stat.is_asleep());
            kick.kick();
            sleeper.join().unwrap();
        });
        assert!(monotonic() - start < 30_000_000_000 && !kick.is_waiting());
        let at = monotonic() + 2_000_000;
        sleep_until(at);
        assert!(monotonic() >= at);
    }
}
