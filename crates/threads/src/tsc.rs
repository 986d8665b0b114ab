//! The time stamp counter as a clock: what guests see, and what is cheap to read.
#![allow(unsafe_code, reason = "reads the TSC")]

use crate::Ns;
use crate::clock::{ClockId, kernel_clock, monotonic, sleep_until};

/// Reads the TSC.
pub fn tsc() -> u64 {
    // SAFETY: reads registers.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// The TSC as a clock, in nanoseconds since an origin.
///
/// Policies and plans count nanoseconds; deadlines and samples come in cycles. One origin and one
/// rate for both keeps them comparable, and leaves out the slewing of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: u64,
    khz: u64,
}

impl Clock {
    /// A clock with `origin` as zero. `khz`: cycles in a millisecond.
    pub fn new(origin: u64, khz: u32) -> Self {
        Self { origin, khz: u64::from(khz).max(1) }
    }

    /// Now.
    pub fn now(&self) -> Ns {
        self.ns_at(tsc())
    }

    /// Time of a TSC value since the origin; 0 for earlier values.
    pub fn ns_at(&self, tsc: u64) -> Ns {
        self.to_ns(tsc.saturating_sub(self.origin))
    }

    /// TSC value at a time since the origin.
    pub fn tsc_at(&self, ns: Ns) -> u64 {
        self.origin.saturating_add(self.to_cycles(ns))
    }

    /// Cycles as nanoseconds.
    pub fn to_ns(self, cycles: u64) -> Ns {
        let ns = u128::from(cycles) * 1_000_000 / u128::from(self.khz);
        Ns::try_from(ns).unwrap_or(Ns::MAX)
    }

    /// Nanoseconds as cycles.
    pub fn to_cycles(self, ns: Ns) -> u64 {
        let cycles = u128::from(ns) * u128::from(self.khz) / 1_000_000;
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }
}

/// Measures the TSC's rate, in cycles a millisecond, against CLOCK_MONOTONIC_RAW, for callers without KVM. Takes a
/// tenth of a second.
pub fn measured_khz() -> u32 {
    const NS: Ns = 100_000_000;
    let raw = || kernel_clock(ClockId::MonotonicRaw);
    // Both clocks, close together: the closest of some tries.
    let both = || {
        let tries = (0..16).map(|_| {
            let before = tsc();
            let ns = raw();
            (tsc() - before, before, ns)
        });
        tries.min().map_or((0, 0), |(_, cycles, ns)| (cycles, ns))
    };
    let (from_cycles, from) = both();
    sleep_until(monotonic() + NS);
    let (to_cycles, to) = both();
    let khz = u128::from(to_cycles - from_cycles) * 1_000_000 / u128::from((to - from).max(1));
    u32::try_from(khz).unwrap_or(u32::MAX)
}

/// The TSC at a recent time of CLOCK_MONOTONIC.
pub fn tsc_of(clock: &Clock, at: Ns) -> u64 {
    /// Readings of the two clocks further apart than this were interrupted, and are discarded.
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

#[cfg(test)]
mod tests {
    use super::{Clock, measured_khz, tsc, tsc_of};
    use crate::clock::monotonic;

    #[test]
    fn conversions_are_inverse_to_a_nanosecond() {
        let clock = Clock::new(1_000, 2_596_119);
        for ns in [0, 1_000, 1_000_000, 3_600_000_000_000] {
            assert!(clock.ns_at(clock.tsc_at(ns)).abs_diff(ns) <= 1);
        }
        assert_eq!(clock.ns_at(0), 0, "before the origin");
    }

    #[test]
    fn by_the_measured_rate_a_time_ago_is_found() {
        let (before, at, after) = (tsc(), monotonic(), tsc());
        let clock = Clock::new(0, measured_khz());
        let found = tsc_of(&clock, at);
        // Whatever the rate is: the way back is as long as what has passed.
        let off = found.abs_diff(before.midpoint(after));
        assert!(off < (tsc() - after) / 50 + (after - before), "{off}");
    }

    #[test]
    fn times_of_one_clock_are_found_in_the_other() {
        // Any rate will do for a time just now.
        let clock = Clock::new(0, 3_000_000);
        let (before, at) = (tsc(), monotonic());
        let found = tsc_of(&clock, at);
        assert!(found <= tsc() && before.abs_diff(found) < clock.to_cycles(1_000_000_000));
    }
}
