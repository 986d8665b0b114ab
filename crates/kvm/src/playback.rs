//! Captured threads, played back on the host: their CPU demand, sleeps and wake-ups.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use vcoop_model::plan::{Ns, Step};
use vcoop_threads::Attributes;
use vcoop_threads::clock::monotonic;

use crate::driver::Common;
use crate::error::{Error, Whom};
use crate::host_task::HostTask;

/// Wake-ups a thread has been sent: one that it does not wait for stays until it does, and no more
/// than one, as with a task that is woken while it runs.
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

    /// Sleeps until it is woken, at most this long.
    fn wait(&self, at_most: Duration) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.bell.wait_timeout_while(woken, at_most, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl HostTask<'_> {
    /// Plays steps until the run is over or the thread leaves.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: a policy that the captured thread had is refused here.
    pub(crate) fn play(
        &mut self,
        common: &Common,
        steps: &[Step],
        repeat: bool,
    ) -> Result<(), Error> {
        /// Longest wait without a look at whether the run is over.
        const LOOK: Ns = 20_000_000;
        loop {
            for step in steps {
                if common.is_over() {
                    return Ok(());
                }
                match *step {
                    Step::Run(ns) => self.work(common, self.rates.iterations(ns)),
                    Step::Sleep(ns) => self.sleep(common, monotonic() + ns),
                    Step::Wait(timeout) => {
                        let until = monotonic() + timeout;
                        while monotonic() < until && !common.is_over() {
                            let left = until.saturating_sub(monotonic()).min(LOOK);
                            let before = monotonic();
                            self.progress.inbox.wait(Duration::from_nanos(left));
                            if monotonic() < before + left {
                                break;
                            }
                        }
                    }
                    Step::Wake(peer) => {
                        if let Some(peer) = self.capture.get(peer as usize) {
                            peer.inbox.wake();
                        }
                    }
                    Step::SetPolicy(policy) => {
                        let whom = Whom::Thread(self.plan.name.clone());
                        Attributes::from_policy(&policy).set(0).map_err(Error::refused(&whom))?;
                    }
                    Step::Exit => return Ok(()),
                }
            }
            if !repeat || steps.is_empty() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Inbox;
    use std::time::{Duration, Instant};

    #[test]
    fn a_wake_up_waits_for_its_thread_and_counts_once() {
        let inbox = Inbox::default();
        inbox.wake();
        inbox.wake();
        let start = Instant::now();
        inbox.wait(Duration::from_secs(10));
        assert!(start.elapsed() < Duration::from_secs(5), "it was there already");
        let start = Instant::now();
        inbox.wait(Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20), "two were one");
    }

    #[test]
    fn a_sleeper_is_woken() {
        let inbox = Inbox::default();
        std::thread::scope(|scope| {
            let start = Instant::now();
            let sleeper = scope.spawn(|| inbox.wait(Duration::from_secs(20)));
            std::thread::sleep(Duration::from_millis(10));
            inbox.wake();
            sleeper.join().unwrap();
            assert!(start.elapsed() < Duration::from_secs(10));
        });
    }
}
