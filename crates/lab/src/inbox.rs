//! Wake-ups between threads of a capture that is played back.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use vcoop_model::plan::Ns;

/// A thread's wake-ups. A wake-up before the thread waits is kept until it does, but no more than one, as for a task
/// that is woken while it runs.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Inbox {
    /// Wakes the thread, now or at its next wait.
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_one();
    }

    /// Sleeps until woken, at most this long. True: it was woken, and the wake-up is consumed.
    fn wait(&self, at_most: Duration) -> bool {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.bell.wait_timeout_while(woken, at_most, |woken| !*woken);
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Sleeps until woken, until a time of the clock, or until the run is over. True: it was woken. The clock cannot
    /// tell afterwards, because a thread that was woken in time may get a CPU late.
    pub(crate) fn wait_until(
        &self,
        until: Ns,
        clock: impl Fn() -> Ns,
        is_over: impl Fn() -> bool,
    ) -> bool {
        /// Longest wait without a check whether the run is over.
        const LOOK: Ns = 20_000_000;
        loop {
            let left = until.saturating_sub(clock());
            if left == 0 || is_over() {
                return false;
            }
            if self.wait(Duration::from_nanos(left.min(LOOK))) {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::Inbox;
    use std::time::{Duration, Instant};

    #[test]
    fn a_wake_up_waits_for_its_thread_and_counts_once() {
        let inbox = Inbox::default();
        inbox.wake();
        inbox.wake();
        let start = Instant::now();
        assert!(inbox.wait(Duration::from_secs(10)));
        assert!(start.elapsed() < Duration::from_secs(5), "it was there already");
        let start = Instant::now();
        assert!(!inbox.wait(Duration::from_millis(20)), "two were one");
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_thread_that_gets_its_cpu_late_was_woken_all_the_same() {
        let inbox = Inbox::default();
        inbox.wake();
        // Between any two looks at the clock more time passes than a sleep may take.
        let now = Cell::new(0);
        let late = || now.replace(now.get() + 50_000_000);
        assert!(inbox.wait_until(10_000_000_000, late, || false));
        assert_eq!(now.get(), 50_000_000, "the wait is over at once");
        assert!(!inbox.wait_until(200_000_000, late, || false), "nobody woke it again");
        assert!(!inbox.wait_until(u64::MAX, late, || true));
    }

    #[test]
    fn a_sleeper_is_woken() {
        let inbox = Inbox::default();
        std::thread::scope(|scope| {
            let start = Instant::now();
            let sleeper = scope.spawn(|| inbox.wait(Duration::from_secs(20)));
            std::thread::sleep(Duration::from_millis(10));
            inbox.wake();
            assert!(sleeper.join().unwrap());
            assert!(start.elapsed() < Duration::from_secs(10));
        });
    }
}
