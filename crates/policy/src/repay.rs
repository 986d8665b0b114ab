//! Boosted time as a loan: a vCPU gives back as fair time what it got by its boosts.
//!
//! A fair scheduler does not count real-time running against a thread. So a vCPU that is boosted for a tenth of the
//! time has that tenth *and* its fair share of the rest, at the expense of the others on its pCPU. A boost should
//! change when a vCPU runs, not how much. So once every [`ACCOUNT_NS`] [`Repay`] is told how long the thread ran and
//! waited, computes what it would have had without boosts, and returns the number of nice levels by which to lower the
//! thread while it is not boosted.
//!
//! # What it would have had
//!
//! Against others of weight `W` a thread of weight `w` gets `w / (w + W)` of the time in which it wants to run.
//! What it ran and waited *unboosted*, at a weight that is known, gives `W`: waiting is `W / w` times running.
//! Nothing has to be known of the others.
//!
//! That holds without boosts. Each time that a thread comes back from another class while another thread wakes up,
//! EEVDF forgives a part of the CPU time that it owes. So a thread that is boosted often has more CPU time than its
//! weight entitles it to, and seems to have fewer competitors. So `W` is learned while there are few boosts, first of
//! all in the [`LEARNING_NS`] at the begin in which a policy does not boost. What is seen between boosts is a lower
//! bound of `W`, and a quarter of an upper one.
//!
//! # Bounds
//!
//! * A thread that nobody waits for owes nothing: in an interval in which it ran unboosted and did not wait it had no
//!   competitors, whatever the estimate still remembers. A debt from before is forgotten at the pace of the estimate,
//!   because those it was owed to are gone; also while the thread is idle.
//! * A lowered thread waits longer than any other, so levels are at most [`MOST_LEVELS`]. If a vCPU's boosts cost more
//!   than these levels repay, it stays in debt. The debt is bounded, so that the vCPU does not pay for long after its
//!   boosts.
//! * Most of a fixed-length boost of a vCPU that is awake goes to work that is not urgent. So such a boost gets shorter
//!   as the debt grows ([`halvings`](Repay::halvings)), and is never refused for it.
//! * A nice value counts within a cgroup. If a VM has a cgroup of its own, the group's weight decides what the VM gets,
//!   and a vCPU's levels move time between the VM's own threads.
//! * An EEVDF slice takes nothing from others that its weight does not give it: such boosts are not counted.

use crate::config::Ns;
use crate::govern::CpuTime;

/// Interval between two accounts of what a thread ran: some ten scheduling rounds of a fair scheduler with a few
/// threads, and seldom enough to cost nothing.
pub const ACCOUNT_NS: Ns = 100_000_000;

/// How long a policy that repays does not boost in the beginning: three intervals.
pub const LEARNING_NS: Ns = 3 * ACCOUNT_NS;

/// Most levels that a thread is lowered by. A level is a factor of 1.25 in weight (`sched_prio_to_weight` in
/// kernel/sched/core.c). At a quarter of its weight, beside two others, a thread can pay for boosts for a quarter of
/// the time, which is the default budget.
pub const MOST_LEVELS: u8 = 6;

/// Largest debt kept.
const MOST_DEBT_NS: i64 = 100_000_000;

/// Debt for which a boost of fixed length is halved three times; at half of it twice, at a quarter once.
const LARGE_DEBT_NS: i64 = 40_000_000;

/// Largest credit kept. It evens out the rounding to whole levels; a thread is never raised for it.
const MOST_CREDIT_NS: i64 = 25_000_000;

/// A debt below this is not worth a level.
const FORGOTTEN_NS: i64 = 1_000_000;

/// Weight at the baseline, in units of the estimate.
const UNIT: u64 = 1 << 20;

/// Between boosts the competitors can seem fewer than they are by at most this factor.
const MOST_FORGIVEN: u64 = 4;

/// Boosts are few up to one part in this many of the time that a thread wants.
const FEW: u64 = 32;

/// Unboosted waiting, and unboosted running by weight; `W` is their ratio. An eighth is forgotten in each interval.
#[derive(Clone, Copy, Debug, Default)]
struct UnboostedTime {
    waited: u64,
    ran: u64,
}

impl UnboostedTime {
    fn add(&mut self, waited: u64, ran: u64) {
        self.waited = self.waited - self.waited / 8 + waited;
        self.ran = self.ran - self.ran / 8 + ran;
    }

    fn others(self) -> u64 {
        scale(UNIT, self.waited, self.ran)
    }
}

/// The machine of one vCPU.
#[derive(Clone, Debug, Default)]
pub struct Repay {
    levels: u8,
    /// Over all intervals, and over those with few boosts.
    seen: UnboostedTime,
    free: UnboostedTime,
    /// What the thread had beyond its due, in nanoseconds.
    debt: i64,
}

impl Repay {
    /// Returns the levels below the baseline, from now on. `since`: what the vCPU's thread did since the last call,
    /// boosts included. `boosted_ns`: how much of its time on a pCPU was boosted. `lowered`: whether the thread was at
    /// its levels whenever it was not boosted; if not, the interval is no evidence about the competitors.
    pub fn on(&mut self, since: CpuTime, boosted_ns: Ns, lowered: bool) -> u8 {
        let CpuTime { busy_ns: ran_ns, steal_ns: waited_ns } = since;
        let wanted = ran_ns.saturating_add(waited_ns);
        let boosted = boosted_ns.min(ran_ns);
        let lowered = lowered || self.levels == 0;
        let at = if lowered { weight(self.levels) } else { UNIT };
        let unboosted = scale(ran_ns - boosted, UNIT, at);
        if lowered {
            self.seen.add(waited_ns, unboosted);
        }
        if lowered && boosted <= wanted / FEW {
            self.free.add(waited_ns, unboosted);
        }
        if wanted == 0 {
            return self.forgets();
        }
        if self.seen.ran == 0 {
            return self.levels;
        }
        let between_boosts = self.seen.others();
        let learned = self.free.others().min(between_boosts.saturating_mul(MOST_FORGIVEN));
        // The estimates lag if other threads have left. This interval's waits bound them.
        let now = if unboosted == 0 {
            u64::MAX
        } else {
            scale(MOST_FORGIVEN * UNIT, waited_ns, unboosted)
        };
        let others = learned.max(between_boosts).min(now);
        if others == 0 {
            return self.forgets();
        }
        let due = scale(wanted, UNIT, UNIT + others);
        let got = i64::try_from(ran_ns).unwrap_or(i64::MAX);
        let due = i64::try_from(due).unwrap_or(i64::MAX);
        self.debt =
            self.debt.saturating_add(got.saturating_sub(due)).clamp(-MOST_CREDIT_NS, MOST_DEBT_NS);
        // The next interval is taken to be as this one, and a quarter of the debt is worked off in it.
        let boosted = i64::try_from(boosted).unwrap_or(i64::MAX);
        let left = u64::try_from(due - boosted - self.debt / 4).unwrap_or(0);
        self.levels = match (wanted - boosted.unsigned_abs()).checked_sub(left) {
            // A thread that gets all that it wants needs no lowered weight.
            None | Some(0) => 0,
            Some(given) => level(scale(others, left, given)),
        };
        self.levels
    }

    /// No thread competed: a debt is forgotten bit by bit, because a lowered weight would help no thread.
    fn forgets(&mut self) -> u8 {
        self.debt -= self.debt / 8;
        if self.debt < FORGOTTEN_NS {
            self.levels = 0;
        }
        self.levels
    }

    /// How often to halve a boost of fixed length for a vCPU that is awake: up to three times, the more is owed.
    pub fn halvings(&self) -> u32 {
        (0..3).filter(|n| self.debt >= LARGE_DEBT_NS >> n).count() as u32
    }

    /// Levels below the baseline now.
    pub fn levels(&self) -> u8 {
        self.levels
    }
}

/// `a * b / c`, saturating; 0 for `c == 0`.
fn scale(a: u64, b: u64, c: u64) -> u64 {
    let wide = (u128::from(a) * u128::from(b)).checked_div(u128::from(c));
    u64::try_from(wide.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Weight at so many levels below the baseline.
fn weight(levels: u8) -> u64 {
    (0..levels).fold(UNIT, |w, _| w * 4 / 5)
}

/// The level whose weight is nearest to this one, by ratio.
fn level(wanted: u64) -> u8 {
    // A weight stands for those up to half a level above and below it: a factor of 1.118.
    (0..MOST_LEVELS).find(|&l| weight(l) * 9 / 10 <= wanted).unwrap_or(MOST_LEVELS)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::{ACCOUNT_NS, CpuTime, LEARNING_NS, MOST_LEVELS, Repay, level, weight};

    /// A fair pCPU: what a thread that always wants to run, and is boosted for `boosted` of each interval, gets of the
    /// rest against others of `others` times its weight.
    fn interval(repay: &mut Repay, others: f64, boosted: u64) -> u64 {
        let w = weight(repay.levels()) as f64 / weight(0) as f64;
        let ran = boosted + ((ACCOUNT_NS - boosted) as f64 * w / (w + others)) as u64;
        repay.on(CpuTime { busy_ns: ran, steal_ns: ACCOUNT_NS - ran }, boosted, true);
        ran
    }

    #[test]
    fn levels_are_factors_of_one_and_a_quarter() {
        for n in 0..=MOST_LEVELS {
            assert_eq!(level(weight(n)), n);
        }
        assert_eq!((level(u64::MAX), level(0)), (0, MOST_LEVELS));
        // nice 3 and 6 of the kernel's table: 526 and 272 of 1024.
        assert_eq!(((weight(3) * 1024) >> 20, (weight(6) * 1024) >> 20), (524, 268));
    }

    #[test]
    fn who_waits_for_nobody_owes_nothing() {
        let mut repay = Repay::default();
        for _ in 0..100 {
            assert_eq!(interval(&mut repay, 0.0, ACCOUNT_NS / 4), ACCOUNT_NS);
            assert_eq!(repay.levels(), 0);
        }
    }

    #[test]
    fn who_is_never_boosted_stays_where_it_is() {
        let mut repay = Repay::default();
        for _ in 0..100 {
            interval(&mut repay, 2.0, 0);
            assert_eq!(repay.levels(), 0);
        }
    }

    #[test]
    fn boosts_beyond_its_due_are_paid_with_all_it_has() {
        let mut repay = Repay::default();
        for _ in 0..100 {
            interval(&mut repay, 9.0, ACCOUNT_NS / 4);
        }
        assert_eq!(repay.levels(), MOST_LEVELS);
        // And not for long afterwards.
        let until = (0..100).find(|_| {
            interval(&mut repay, 9.0, 0);
            repay.levels() <= 1
        });
        assert!(until.is_some_and(|n| n < 80), "{until:?}");
    }

    /// As EEVDF is, between boosts, to a thread that often comes back: it gets twice what its weight gives.
    #[test]
    fn a_host_that_is_generous_between_boosts_is_seen_through() {
        let mut repay = Repay::default();
        (0..LEARNING_NS / ACCOUNT_NS).for_each(|_| _ = interval(&mut repay, 2.0, 0));
        let boosted = ACCOUNT_NS / 20;
        let generous = |repay: &mut Repay| {
            let w = 2.0 * weight(repay.levels()) as f64 / weight(0) as f64;
            let ran = boosted + ((ACCOUNT_NS - boosted) as f64 * w / (w + 2.0)) as u64;
            repay.on(CpuTime { busy_ns: ran, steal_ns: ACCOUNT_NS - ran }, boosted, true);
            ran
        };
        (0..50).for_each(|_| _ = generous(&mut repay));
        let ran: u64 = (0..100).map(|_| generous(&mut repay)).sum();
        let due = 100 * ACCOUNT_NS / 3;
        assert!(ran.abs_diff(due) < due / 20, "{ran} ns of {due}");
    }

    #[test]
    fn who_owes_more_is_boosted_for_a_shorter_time() {
        let mut repay = Repay::default();
        assert_eq!(repay.halvings(), 0);
        let mut last = 0;
        for _ in 0..20 {
            interval(&mut repay, 9.0, ACCOUNT_NS / 4);
            assert!(repay.halvings() >= last);
            last = repay.halvings();
        }
        assert_eq!(last, 3);
        (0..80).for_each(|_| _ = interval(&mut repay, 9.0, 0));
        assert_eq!(repay.halvings(), 0);
    }

    #[test]
    fn a_debt_is_forgotten_while_nobody_is_there() {
        let indebted = || {
            let mut repay = Repay::default();
            (0..100).for_each(|_| _ = interval(&mut repay, 9.0, ACCOUNT_NS / 4));
            assert_eq!(repay.levels(), MOST_LEVELS);
            repay
        };
        let mut idle = indebted();
        assert_eq!(idle.on(CpuTime::default(), 0, true), MOST_LEVELS, "not at once");
        (0..60).for_each(|_| _ = idle.on(CpuTime::default(), 0, true));
        assert_eq!(idle.levels(), 0);
    }

    #[test]
    fn a_throttled_thread_that_gets_its_share_keeps_its_debt() {
        let mut repay = Repay::default();
        (0..3).for_each(|_| _ = interval(&mut repay, 2.0, 0));
        let half = CpuTime { busy_ns: ACCOUNT_NS / 2, steal_ns: ACCOUNT_NS / 2 };
        (0..8).for_each(|_| _ = repay.on(half, ACCOUNT_NS / 4, true));
        assert_eq!((repay.debt, repay.levels()), (super::MOST_DEBT_NS, MOST_LEVELS));
        let (due, others) = (ACCOUNT_NS / 3, repay.free.others());
        for _ in 0..7 {
            repay.on(CpuTime { busy_ns: due, steal_ns: ACCOUNT_NS - due }, 0, false);
        }
        assert_eq!(repay.free.others(), others, "what it ran at its full weight is no lesson");
        let seen = repay.seen.others();
        repay.on(half, 0, false);
        assert_eq!((repay.seen.others(), repay.free.others()), (seen, others));
        // Nor is it one if it ran boosted only: others still wait.
        repay.on(half, ACCOUNT_NS / 2, true);
        assert_eq!(repay.debt, super::MOST_DEBT_NS);
        assert!(repay.debt > super::MOST_DEBT_NS * 9 / 10, "{}", repay.debt);
        // No other thread is left.
        (0..60).for_each(|_| _ = repay.on(CpuTime { busy_ns: ACCOUNT_NS, steal_ns: 0 }, 0, false));
        assert_eq!(repay.levels(), 0);
    }

    /// Contended, alone, contended: others who leave leave no debt behind, and one who comes later does not
    /// find the thread lowered.
    #[test]
    fn who_comes_later_gets_no_more_than_a_share() {
        let mut repay = Repay::default();
        for _ in 0..100 {
            interval(&mut repay, 2.0, ACCOUNT_NS / 10);
        }
        let debt = repay.debt;
        for n in 0..60 {
            interval(&mut repay, 0.0, ACCOUNT_NS / 10);
            assert!(repay.debt <= debt.max(0), "interval {n} alone: {} ns owed", repay.debt);
        }
        assert_eq!(repay.levels(), 0);
        let ran: u64 = (0..2).map(|_| interval(&mut repay, 1.0, ACCOUNT_NS / 10)).sum();
        let share = ran as f64 / (2 * ACCOUNT_NS) as f64;
        assert!((0.45..0.6).contains(&share), "{share} of the time beside an equal");
    }

    proptest! {
        /// In the long run it has what it would have without boosts, beside any other threads.
        #[test]
        #[cfg_attr(miri, ignore = "random cases are for the processor, not its interpreter")]
        fn it_gets_its_due(
            others in 0.3f64..12.0,
            boosted in 0u64..ACCOUNT_NS / 4,
            other_others in 0.3f64..12.0,
        ) {
            let mut repay = Repay::default();
            // Where the boosts leave something to pay with, at the most levels.
            let due = |others: f64| ACCOUNT_NS as f64 / (1.0 + others);
            let least = |others: f64| {
                let w = weight(MOST_LEVELS) as f64 / weight(0) as f64;
                boosted as f64 + (ACCOUNT_NS - boosted) as f64 * w / (w + others)
            };
            for others in [others, other_others] {
                prop_assume!(least(others) < 0.95 * due(others));
                for _ in 0..150 {
                    interval(&mut repay, others, boosted);
                }
                let ran: u64 = (0..200).map(|_| interval(&mut repay, others, boosted)).sum();
                let share = ran as f64 / 200.0 / due(others);
                prop_assert!((share - 1.0).abs() < 0.03, "{share} of its due at {}", repay.levels());
            }
        }

        /// Whatever it is told.
        #[test]
        #[cfg_attr(miri, ignore = "random cases are for the processor, not its interpreter")]
        fn nothing_upsets_it(accounts in proptest::collection::vec(any::<(u64, u64, u64)>(), 1..50)) {
            let mut repay = Repay::default();
            for (ran, waited, boosted) in accounts {
                let since = CpuTime { busy_ns: ran >> 20, steal_ns: waited >> 20 };
                prop_assert!(repay.on(since, boosted, ran % 3 == 0) <= MOST_LEVELS);
            }
        }
    }
}
