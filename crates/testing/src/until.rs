use std::fmt::Display;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Waits until `is` returns true.
///
/// # Panics
///
/// It does not within a minute.
#[track_caller]
pub fn until(what: impl Display, mut is: impl FnMut() -> bool) {
    found(what, || is().then_some(()));
}

/// Waits until `look` finds something, and returns it.
///
/// # Panics
///
/// It finds nothing within a minute.
#[track_caller]
pub fn found<T>(what: impl Display, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        sleep(Duration::from_millis(10));
    }
}
