//! A mutex with priority inheritance.
//!
//! A vCPU thread that ends its own boost holds its policy's lock while the kernel makes it fair again. It can be
//! preempted right there, for as long as the host's load takes, and an injector that needs the lock would be late by
//! that. With priority inheritance the holder runs at the injector's priority until it unlocks.
#![allow(unsafe_code, reason = "wraps pthread_mutex_t: std has no mutex with priority inheritance")]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// The mutex.
///
/// A panic of its holder unlocks it and does not poison it: the value may then be changed in part. After such a panic
/// the changes on the host must be undone, which needs the lock. So the value must stay safe to use after a panic in
/// the middle of a change, and parts that restoring needs, such as a thread's baseline, must be replaced as a whole.
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
        // before any thread can lock it, at its final address.
        unsafe {
            let mut attr = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            libc::pthread_mutexattr_init(&raw mut attr);
            // A thread that locks twice gets an error, not a wait for ever.
            libc::pthread_mutexattr_settype(&raw mut attr, libc::PTHREAD_MUTEX_ERRORCHECK);
            libc::pthread_mutexattr_setprotocol(&raw mut attr, libc::PTHREAD_PRIO_INHERIT);
            if libc::pthread_mutex_init(raw.get(), &raw const attr) != 0 {
                libc::pthread_mutexattr_setprotocol(&raw mut attr, libc::PTHREAD_PRIO_NONE);
                libc::pthread_mutex_init(raw.get(), &raw const attr);
            }
            libc::pthread_mutexattr_destroy(&raw mut attr);
        }
        Self { raw, value: UnsafeCell::new(value) }
    }

    /// Locks.
    ///
    /// # Panics
    ///
    /// If the calling thread holds the lock already.
    pub fn lock(&self) -> PiGuard<'_, T> {
        // SAFETY: initialised in `new`, destroyed in `drop`.
        let rc = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        // Without the lock there must be no guard.
        assert_eq!(rc, 0, "pthread_mutex_lock: {}", std::io::Error::from_raw_os_error(rc));
        PiGuard { mutex: self, stays: PhantomData }
    }
}

impl<T> Drop for PiMutex<T> {
    fn drop(&mut self) {
        // SAFETY: no thread holds it: a guard would borrow it.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

/// Unlocks on drop. It stays on the thread that locked, because only that thread may unlock:
///
/// ```compile_fail,E0277
/// fn sent<T: Send>(_: T) {}
/// sent(vcoop_threads::PiMutex::new(0).lock());
/// ```
///
/// and it lends its value to other threads only if that can be lent:
///
/// ```compile_fail,E0277
/// fn lent<T: Sync>(_: T) {}
/// lent(vcoop_threads::PiMutex::new(std::cell::Cell::new(0)).lock());
/// ```
#[derive(Debug)]
pub struct PiGuard<'a, T> {
    mutex: &'a PiMutex<T>,
    stays: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared access to the value, and no more.
unsafe impl<T: Sync> Sync for PiGuard<'_, T> {}

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for PiGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: locked by this guard, and on this thread: a guard is not `Send`.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::PiMutex;

    #[test]
    fn excludes() {
        let m = PiMutex::new(0_u64);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..20_000).for_each(|_| *m.lock() += 1));
            }
        });
        assert_eq!(*m.lock(), 80_000);
    }

    #[test]
    fn a_thread_that_locks_twice_is_told_and_others_go_on() {
        let m = PiMutex::new(0_u64);
        let held = m.lock();
        assert!(catch_unwind(AssertUnwindSafe(|| *m.lock())).is_err());
        drop(held);
        thread::scope(|s| s.spawn(|| *m.lock() += 1).join().unwrap());
        assert_eq!(*m.lock(), 1);
    }

    #[test]
    fn a_panic_of_the_holder_unlocks() {
        let m = PiMutex::new(0_u64);
        let died = catch_unwind(AssertUnwindSafe(|| {
            let mut held = m.lock();
            *held = 1;
            panic!("on purpose");
        }));
        assert!(died.is_err());
        assert_eq!(*m.lock(), 1);
    }
}
