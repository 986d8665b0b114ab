//! Drops slow things in threads, so that only callers who need the result wait.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::spawn_at_normal_priority;

/// Things that are being dropped, each by a thread of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Unloading(Arc<(Mutex<usize>, Condvar)>);

impl Unloading {
    /// Starts to drop something in a thread.
    pub(super) fn begin(&self, what: impl Send + 'static) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let own = self.clone();
        let drops = move || {
            drop(what);
            own.done();
        };
        // Without a thread it has been dropped here.
        if spawn_at_normal_priority("unload", drops).is_err() {
            self.done();
        }
    }

    fn done(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.1.notify_all();
    }

    /// Returns when all has been dropped.
    pub(super) fn wait(&self) {
        let count = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _none = self.0.1.wait_while(count, |count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::Unloading;

    /// Blocks in its drop until told to go on.
    struct Slow(Receiver<()>, Sender<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
            let _ = self.1.send(());
        }
    }

    #[test]
    fn who_unloads_goes_on_and_who_waits_finds_it_done() {
        let unloading = Unloading::default();
        unloading.wait();
        let (may, waits) = channel();
        let (done, is_done) = channel();
        unloading.begin(Slow(waits, done));
        assert!(is_done.try_recv().is_err(), "nobody has let it");
        may.send(()).unwrap();
        unloading.wait();
        assert!(is_done.try_recv().is_ok());
    }
}
