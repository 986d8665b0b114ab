//! A mutex with priority inheritance.
//!
//! A vCPU thread that ends its own boost holds its policy's lock while the kernel makes it fair
//! again; it can be preempted right there, for as long as the host's load likes. An injector that
//! then needed the lock would be late by that. With priority inheritance the holder runs at the
//! injector's priority until it lets go.
#![allow(unsafe_code, reason = "wraps pthread_mutex_t: std has no mutex with priority inheritance")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// The mutex. Not poisoned by a panic: what it guards is replaced whole or not at all.
pub struct PiMutex<T> {
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, and there is one guard at a time.
unsafe impl<T: Send> Sync for PiMutex<T> {}
// SAFETY: the raw mutex is boxed, so it stays at its address; it is not locked when it moves,
// because a guard borrows it.
unsafe impl<T: Send> Send for PiMutex<T> {}

impl<T> std::fmt::Debug for PiMutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PiMutex(..)")
    }
}

impl<T> PiMutex<T> {
    /// Unlocked. Without the kernel's support for priority inheritance it is an ordinary mutex.
    pub fn new(value: T) -> Self {
        let raw = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        // SAFETY: the attribute lives from its init to its destroy; the mutex is initialised once,
        // before anybody can lock it, at its final address.
        unsafe {
            let mut attr = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            libc::pthread_mutexattr_init(&raw mut attr);
            libc::pthread_mutexattr_setprotocol(&raw mut attr, libc::PTHREAD_PRIO_INHERIT);
            libc::pthread_mutex_init(raw.get(), &raw const attr);
            libc::pthread_mutexattr_destroy(&raw mut attr);
        }
        Self { raw, value: UnsafeCell::new(value) }
    }

    /// Locks.
    pub fn lock(&self) -> PiGuard<'_, T> {
        // SAFETY: initialised in `new`, destroyed in `drop`.
        unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        PiGuard(self)
    }
}

impl<T> Drop for PiMutex<T> {
    fn drop(&mut self) {
        // SAFETY: nobody holds it: a guard would borrow it.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

/// Unlocks on drop.
#[derive(Debug)]
pub struct PiGuard<'a, T>(&'a PiMutex<T>);

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for PiGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: locked by this guard, on this thread: a guard is not Send (it holds a raw borrow
        // of a mutex that is unlocked where it was locked; the run never moves one).
        unsafe { libc::pthread_mutex_unlock(self.0.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::PiMutex;

    #[test]
    fn excludes() {
        let m = PiMutex::new(0_u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..20_000).for_each(|_| *m.lock() += 1));
            }
        });
        assert_eq!(*m.lock(), 80_000);
    }
}
