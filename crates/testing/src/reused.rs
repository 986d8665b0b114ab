//! Resources that are expensive to create, reused by one test after the other.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// A resource while no test uses it. A test that panics does not return it, and the next test creates another.
#[derive(Debug)]
pub struct Reused<T>(Mutex<Option<T>>);

impl<T> Reused<T> {
    /// Without a resource.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The kept resource, or a new one.
    ///
    /// # Errors
    ///
    /// There was none, and creating one failed.
    pub fn take_or<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let kept = self.lock().take();
        kept.map_or_else(make, Ok)
    }

    /// Keeps the resource for the next test, unless this one panics.
    pub fn keep(&self, it: T) {
        if !thread::panicking() {
            *self.lock() = Some(it);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Reused<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Reused;

    #[test]
    fn a_panic_keeps_nothing() {
        let kept = Reused::new();
        let next = |with| kept.take_or(|| Ok::<_, ()>(with)).unwrap();
        kept.keep(next(1));
        assert_eq!(next(2), 1);
        struct Test<'a>(&'a Reused<i32>);
        impl Drop for Test<'_> {
            fn drop(&mut self) {
                self.0.keep(3);
            }
        }
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _test = Test(&kept);
            panic!("on purpose");
        }));
        assert!(failed.is_err());
        assert_eq!(next(4), 4);
    }
}
