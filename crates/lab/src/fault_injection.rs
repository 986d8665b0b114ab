//! Makes threads fail, for tests.

/// The VM whose vCPU threads panic.
pub(crate) const PANICS: &str = "panics";

/// Notifications that such a thread answers before it panics.
const ANSWERED: u64 = 5_000;

/// Called at each notification of a vCPU.
pub(crate) fn notified(vm: &str, notifications: u64) {
    assert!(vm != PANICS || notifications < ANSWERED, "on purpose");
}
