//! How early to fire a guest's timer, so that the guest has its interrupt just when it is due.
//!
//! Between the expiry of the host's timer and the VM entry that delivers the interrupt, the host has work to do. A
//! timer that fires earlier by this time hides this work. KVM spins until the deadline before the entry, so that the
//! interrupt never arrives early. The advance is learned from how early or late the entries were, as KVM's
//! `lapic_timer_advance` does (`arch/x86/kvm/lapic.c`, `adjust_lapic_timer_advance`): it moves by an eighth of the
//! difference, ignores differences that are noise or have another cause, and returns to its start value where the
//! result is implausible. A thread in user space that fires the timer needs a larger advance than KVM, and learns by
//! the same rule within its own bounds.

use crate::config::{AdvanceConfig, Ns};

/// Differences below this are noise: 100 cycles.
const LEAST_CYCLES: u64 = 100;
/// Differences above this have another cause, such as a wait for the CPU: 10 000 cycles.
const MOST_CYCLES: u64 = 10_000;
/// Advance before anything is learned, and after an implausible result.
const FIRST_NS: Ns = 1_000;
/// An advance above this is implausible for KVM.
const MOST_NS: Ns = 5_000;
/// One `STEP`th of a difference is added to the advance.
const STEP: u64 = 8;

/// The advance of one timer. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerAdvance {
    now: Ns,
    /// Advance before anything is learned, and after an implausible result.
    first: Ns,
    /// An advance above this is implausible.
    cap: Ns,
    /// Only differences from `least` to `most` are learned from; with an empty range, none.
    least: Ns,
    most: Ns,
}

impl TimerAdvance {
    /// An advance by its configuration, on a machine whose TSC runs at `tsc_khz`: KVM's bounds are in cycles.
    pub fn new(config: AdvanceConfig, tsc_khz: u32) -> Self {
        let ns = |cycles: u64| cycles * 1_000_000 / u64::from(tsc_khz.max(1));
        match config {
            AdvanceConfig::None => Self::fixed(0),
            AdvanceConfig::Fixed(ns) => Self::fixed(ns),
            AdvanceConfig::Adaptive => {
                let (least, most) = (ns(LEAST_CYCLES), ns(MOST_CYCLES));
                Self { now: FIRST_NS, first: FIRST_NS, cap: MOST_NS, least, most }
            }
            AdvanceConfig::Within { first_ns, noise_ns, most_ns } => {
                Self::learning(first_ns, noise_ns, most_ns)
            }
        }
    }

    /// An advance that is always `ns`.
    pub const fn fixed(ns: Ns) -> Self {
        Self { now: ns, first: ns, cap: ns, least: 1, most: 0 }
    }

    /// An advance that begins with `first`, learns from differences between `least` and `cap`, and never exceeds `cap`.
    pub const fn learning(first: Ns, least: Ns, cap: Ns) -> Self {
        let first = if first < cap { first } else { cap };
        Self { now: first, first, cap, least, most: cap }
    }

    /// The largest advance that can be learned.
    pub const fn cap(&self) -> Ns {
        self.cap
    }

    /// How early to fire the next timer.
    pub const fn ns(&self) -> Ns {
        self.now
    }

    /// A delivery is ready to enter the guest, `late` nanoseconds after the deadline (negative: before it). The caller
    /// spins until the deadline, however long, so that no interrupt comes early. (KVM spins for the advance at most.
    /// Just after the advance has shrunk, that is too short, and the interrupt comes early.)
    pub fn delivered(&mut self, late: i64) {
        let off = late.unsigned_abs();
        if !(self.least..=self.most).contains(&off) {
            return;
        }
        let step = off / STEP;
        let next = if late < 0 { self.now.checked_sub(step) } else { self.now.checked_add(step) };
        self.now = next.filter(|ns| *ns <= self.cap).unwrap_or(self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KHZ: u32 = 2_000_000;

    fn adaptive() -> TimerAdvance {
        TimerAdvance::new(AdvanceConfig::Adaptive, KHZ)
    }

    /// Deliveries that take `takes`: late by what the advance does not cover.
    fn after(mut advance: TimerAdvance, takes: impl Fn(u64) -> u64, n: u64) -> TimerAdvance {
        for i in 0..n {
            advance.delivered(takes(i) as i64 - advance.ns() as i64);
        }
        advance
    }

    #[test]
    fn it_learns_an_eighth_at_a_time() {
        let mut a = adaptive();
        assert_eq!(a.ns(), 1_000);
        a.delivered(800);
        assert_eq!(a.ns(), 1_100);
        a.delivered(-400);
        assert_eq!(a.ns(), 1_050);
    }

    #[test]
    fn noise_and_waits_teach_nothing() {
        let mut a = adaptive();
        for late in [49, -49, 5_001, -5_001, i64::MAX, i64::MIN] {
            a.delivered(late);
            assert_eq!(a.ns(), 1_000, "{late}");
        }
        a.delivered(50);
        assert_eq!(a.ns(), 1_006, "100 cycles at 2 GHz");
        a.delivered(5_000);
        assert_eq!(a.ns(), 1_631, "10 000 cycles");
    }

    #[test]
    fn an_implausible_advance_starts_again() {
        let far = after(adaptive(), |_| 4_800, 200);
        assert!((4_750..=5_000).contains(&far.ns()), "{far:?}");
        let mut a = far;
        a.delivered(4_000);
        assert_eq!(a.ns(), 1_000, "above 5 us");
        let mut a = adaptive();
        for _ in 0..7 {
            a.delivered(-1_000);
        }
        assert_eq!(a.ns(), 125);
        a.delivered(-1_008);
        assert_eq!(a.ns(), 1_000, "below nothing");
    }

    #[test]
    fn one_with_bounds_of_its_own_comes_to_what_delivery_takes() {
        for first in [0, 20_000, 190_000, 900_000] {
            let learned = after(TimerAdvance::learning(first, 500, 200_000), |_| 90_000, 200).ns();
            assert!(learned.abs_diff(90_000) <= 500, "from {first}: {learned}");
        }
        let steady = after(TimerAdvance::learning(20_000, 500, 200_000), |_| 90_000, 200);
        let stalls = |i: u64| if i.is_multiple_of(3) { 4_000_000 } else { 90_000 };
        assert_eq!(after(steady, stalls, 300), steady, "a wait for the CPU teaches nothing");
    }

    #[test]
    fn no_delivery_brings_it_above_its_cap() {
        let mut a = TimerAdvance::learning(20_000, 500, 200_000);
        for i in 0..10_000_i64 {
            a.delivered(i * 7_919 % 200_000 - 20_000);
            assert!(a.ns() <= a.cap(), "{a:?}");
        }
        assert_eq!(TimerAdvance::fixed(7).cap(), 7);
    }

    #[test]
    fn a_fixed_one_stays() {
        for (config, ns) in [(AdvanceConfig::None, 0), (AdvanceConfig::Fixed(7_000), 7_000)] {
            assert_eq!(after(TimerAdvance::new(config, KHZ), |_| 3_000, 100).ns(), ns);
        }
    }
}
