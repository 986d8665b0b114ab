//! Time: the TSC for everything that guests see, CLOCK_MONOTONIC for sleeping.
#![allow(unsafe_code, reason = "reads the TSC, and calls clock_gettime, clock_nanosleep, futex")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vcoop_model::plan::Ns;

/// The TSC.
pub(crate) fn tsc() -> u64 {
    // SAFETY: reads registers.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// The TSC as a clock in nanoseconds from the time it was made.
///
/// Policies and plans count nanoseconds; deadlines and samples come in cycles. One origin and one
/// rate for both keeps them comparable, and leaves out the slewing of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: u64,
    khz: u64,
}

impl Clock {
    /// With `origin` as zero. `khz`: cycles a millisecond.
    pub(crate) fn new(origin: u64, khz: u32) -> Self {
        Self { origin, khz: u64::from(khz).max(1) }
    }

    /// Now.
    pub(crate) fn now(&self) -> Ns {
        self.ns_at(tsc())
    }

    /// A TSC as time since the origin; earlier ones are 0.
    pub(crate) fn ns_at(&self, tsc: u64) -> Ns {
        self.to_ns(tsc.saturating_sub(self.origin))
    }

    /// A time since the origin as TSC.
    pub(crate) fn tsc_at(&self, ns: Ns) -> u64 {
        self.origin.saturating_add(self.to_cycles(ns))
    }

    /// Cycles as nanoseconds.
    pub(crate) fn to_ns(self, cycles: u64) -> Ns {
        let ns = u128::from(cycles) * 1_000_000 / u128::from(self.khz);
        Ns::try_from(ns).unwrap_or(Ns::MAX)
    }

    /// Nanoseconds as cycles.
    pub(crate) fn to_cycles(self, ns: Ns) -> u64 {
        let cycles = u128::from(ns) * u128::from(self.khz) / 1_000_000;
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }
}

/// A clock of the kernel, in nanoseconds.
pub(crate) fn kernel_clock(id: libc::clockid_t) -> Ns {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `t` only. An unknown clock leaves it at zero.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    t.tv_sec as Ns * 1_000_000_000 + t.tv_nsec as Ns
}

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> Ns {
    kernel_clock(libc::CLOCK_MONOTONIC)
}

/// The tick's period: the coarse clocks move once a tick.
pub(crate) fn tick_ns() -> Option<Ns> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `t` only.
    let rc = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut t) };
    (rc == 0).then_some(t.tv_sec as Ns * 1_000_000_000 + t.tv_nsec as Ns)
}

/// The TSC at a time of CLOCK_MONOTONIC shortly ago.
pub(crate) fn tsc_of(clock: &Clock, at: Ns) -> u64 {
    /// An interruption between the two clocks makes their readings a bad pair.
    const CLOSE_NS: Ns = 2_000;
    let mut pair = (0, 0);
    for _ in 0..3 {
        let before = tsc();
        let ns = monotonic();
        let width = tsc() - before;
        pair = (before + width / 2, ns);
        if width <= clock.to_cycles(CLOSE_NS) {
            break;
        }
    }
    pair.0.saturating_sub(clock.to_cycles(pair.1.saturating_sub(at)))
}

fn timespec(ns: Ns) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Sleeps until CLOCK_MONOTONIC shows `at`; a signal may end it early.
pub(crate) fn sleep_until(at: Ns) {
    let t = timespec(at);
    // SAFETY: reads `t`; the remaining time is not asked for.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const t,
            std::ptr::null_mut(),
        );
    }
}

/// Wakes one thread early from a timed wait, or ends its spinning.
#[derive(Debug, Default)]
pub(crate) struct Kick {
    count: AtomicU32,
    /// The thread sleeps or is about to: a kick must wake it. A spinning one sees the count, and
    /// the kicker is spared the system call.
    asleep: AtomicBool,
}

impl Kick {
    /// The state to wait on: a kick after this call ends the wait.
    pub(crate) fn arm(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until CLOCK_MONOTONIC shows `at`, or for a kick after `armed` was taken.
    pub(crate) fn wait_until(&self, armed: u32, at: Ns) {
        let t = timespec(at);
        // Before the kernel compares the count: a kick either sees this or is seen there.
        self.asleep.store(true, Ordering::SeqCst);
        // SAFETY: the futex word lives as long as the call; the timeout is absolute and read only.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.count.as_ptr(),
                libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
                armed,
                &raw const t,
                std::ptr::null::<u32>(),
                libc::FUTEX_BITSET_MATCH_ANY,
            );
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends the wait. Does not block.
    pub(crate) fn kick(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.is_waiting() {
            self.wake_syscall();
        }
    }

    /// Whether a thread sleeps here, or is about to.
    pub(crate) fn is_waiting(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    /// The system call of a kick, without its count.
    pub(crate) fn wake_syscall(&self) {
        // SAFETY: the futex word lives as long as the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.count.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
        }
    }
}

/// Iterations a millisecond of the guest's unit of work: the same counting loop, timed here. The
/// best of several tries: anything that interrupts one makes it slower, never faster.
pub(crate) fn iterations_per_ms(clock: &Clock) -> u64 {
    const N: u64 = 400_000;
    let best = (0..12).map(|_| {
        let start = tsc();
        spin(N);
        clock.to_ns(tsc() - start).max(1)
    });
    N * 1_000_000 / best.min().unwrap_or(1)
}

/// The unit of work, so many times.
pub(crate) fn spin(iterations: u64) {
    if iterations > 0 {
        // SAFETY: touches one register.
        unsafe {
            core::arch::asm!("2: dec {0}", "jnz 2b", inout(reg) iterations => _,
                options(nomem, nostack));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Kick, monotonic, tsc, tsc_of};

    #[test]
    fn conversions_are_inverse_to_a_nanosecond() {
        let clock = Clock::new(1_000, 2_596_119);
        for ns in [0, 1_000, 1_000_000, 3_600_000_000_000] {
            assert!(clock.ns_at(clock.tsc_at(ns)).abs_diff(ns) <= 1);
        }
        assert_eq!(clock.ns_at(0), 0, "before the origin");
    }

    #[test]
    fn times_of_one_clock_are_found_in_the_other() {
        // Any rate will do for a time just now.
        let clock = Clock::new(0, 3_000_000);
        let (before, at) = (tsc(), monotonic());
        let found = tsc_of(&clock, at);
        assert!(found <= tsc() && before.abs_diff(found) < clock.to_cycles(1_000_000_000));
    }

    #[test]
    fn a_kick_before_the_wait_is_not_lost() {
        let kick = Kick::default();
        let armed = kick.arm();
        kick.kick();
        let start = monotonic();
        kick.wait_until(armed, start + 2_000_000_000);
        assert!(monotonic() - start < 1_000_000_000);
    }
}
