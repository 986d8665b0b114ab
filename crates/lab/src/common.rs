//! What all threads of a run share: its clock, the injector's kick, and its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use vcoop_abi::GuestArea;
use vcoop_model::plan::Ns;
use vcoop_threads::Kick;
use vcoop_threads::tsc::Clock;

use crate::error::Error;

/// A time that never comes.
pub(crate) const NEVER: Ns = Ns::MAX;

/// State shared by all threads of a run.
#[derive(Debug)]
pub(crate) struct Common {
    /// The run's clock.
    pub(crate) clock: Clock,
    /// Ends the injector's sleep.
    pub(crate) kick: Kick,
    /// When the injector wakes up without a kick.
    pub(crate) horizon: AtomicU64,
    /// Whether the injector ends boosts, instead of the vCPU's own thread.
    pub(crate) attend: bool,
    /// All threads are to end.
    pub(crate) stop: AtomicBool,
    /// The first error.
    failure: Mutex<Option<Error>>,
}

impl Common {
    pub(crate) fn new(clock: Clock, attend: bool) -> Self {
        Self {
            clock,
            kick: Kick::default(),
            horizon: AtomicU64::new(0),
            attend,
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Ends the run with an error; only the first one is kept.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.end();
    }

    /// Wakes the injector for a timer that was just stored, unless it wakes up in time anyway. Pairs with the fence in
    /// the injector's `publish`.
    pub(crate) fn announce(&self, at: Ns) {
        GuestArea::fence();
        if at < self.horizon.load(Ordering::Acquire) {
            self.kick.kick();
        }
    }

    /// Ends the run.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.kick.kick();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The first error, if there was one.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
