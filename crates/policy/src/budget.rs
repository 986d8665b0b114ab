//! The token bucket that bounds boosted time.
#![allow(unexpected_cfgs, reason = "`cfg(kani)` is set by the prover, not by cargo")]

use crate::config::{Budget, Ns};

/// Parts per million in one.
const MILLION: i128 = 1_000_000;

/// A token bucket; one token is one nanosecond of boosted time.
///
/// The bucket starts full, gains `refill_ppm` tokens in each million nanoseconds up to `burst_ns`,
/// and loses what is charged. A charge beyond the level becomes *debt*, which refill pays off
/// before there is a level again: a timer that fires late lengthens one boost and shortens the
/// next, and the long-run bound holds.
///
/// The balance is kept in millionths of a token, so a refill is one exact multiplication and no
/// remainder is ever dropped: refilling in many small steps gives what one large step gives. The
/// width is chosen so that no pair of 64-bit times can overflow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    budget: Budget,
    /// Tokens times a million; negative: debt.
    /// invariant: `<= burst_ns * MILLION`.
    balance: i128,
    /// Time up to which refill is accounted. invariant: never goes back.
    at: Ns,
}

impl Bucket {
    /// A full bucket at time `now`.
    pub fn new(budget: Budget, now: Ns) -> Self {
        Self { budget, balance: i128::from(budget.burst_ns) * MILLION, at: now }
    }

    /// Capacity, in nanoseconds.
    pub fn burst(&self) -> Ns {
        self.budget.burst_ns
    }

    /// Accounts refill up to `now`. An earlier time than the latest seen changes nothing.
    pub fn refill(&mut self, now: Ns) {
        let elapsed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let gained = i128::from(elapsed) * i128::from(self.budget.refill_ppm);
        self.balance = (self.balance + gained).min(self.full());
    }

    /// Takes `ns` tokens, into debt if there are fewer.
    ///
    /// Time that was both boosted and elapsed is charged first and refilled then: with the other
    /// order a full bucket would drop refill that the charge had made room for.
    pub fn charge(&mut self, ns: Ns) {
        self.balance = self.balance.saturating_sub(i128::from(ns) * MILLION);
    }

    /// Whether there are at least `ns` tokens. Cheaper than asking for the level: no division.
    pub fn has(&self, ns: Ns) -> bool {
        self.balance >= i128::from(ns) * MILLION
    }

    /// Takes up to `ns` tokens, never into debt, and returns how many.
    pub fn take(&mut self, ns: Ns) -> Ns {
        let taken = if self.has(ns) { ns } else { self.level() };
        self.charge(taken);
        taken
    }

    /// Returns tokens that were taken and not used. What exceeds the burst is lost, as refill is.
    pub fn give_back(&mut self, ns: Ns) {
        self.balance = (self.balance + i128::from(ns) * MILLION).min(self.full());
    }

    /// Whole tokens in the bucket; 0 while in debt.
    pub fn level(&self) -> Ns {
        // At most burst_ns, which is a u64.
        Ns::try_from(self.balance.max(0) / MILLION).unwrap_or(Ns::MAX)
    }

    /// Whole tokens owed, rounded up; 0 while there is a level.
    pub fn debt(&self) -> Ns {
        let owed = (-self.balance).max(0);
        Ns::try_from((owed + MILLION - 1) / MILLION).unwrap_or(Ns::MAX)
    }

    /// How long from the last [`refill`](Self::refill) a boost can last without debt, counting the refill during the
    /// boost. `None`: for ever (refill at or above one token a nanosecond). Exact: charged and refilled after that
    /// time, the level is 0; one nanosecond later there is debt.
    pub fn time_to_empty(&self) -> Option<Ns> {
        if self.balance <= 0 {
            return Some(0);
        }
        let net = MILLION - i128::from(self.budget.refill_ppm);
        if net <= 0 {
            return None;
        }
        Some(Ns::try_from(self.balance / net).unwrap_or(Ns::MAX))
    }

    /// How long from the last [`refill`](Self::refill), with nothing charged, until the level is
    /// at least `level`. `None`: never (no refill, or above capacity).
    pub fn time_until(&self, level: Ns) -> Option<Ns> {
        let missing = i128::from(level) * MILLION - self.balance;
        if missing <= 0 {
            return Some(0);
        }
        let rate = i128::from(self.budget.refill_ppm);
        if rate == 0 || level > self.budget.burst_ns {
            return None;
        }
        Some(Ns::try_from((missing + rate - 1) / rate).unwrap_or(Ns::MAX))
    }

    fn full(&self) -> i128 {
        i128::from(self.budget.burst_ns) * MILLION
    }
}

#[cfg(kani)]
mod verification {
    use super::{Bucket, Budget, MILLION};

    /// Any bucket that the public functions can lead to within 2^40 ns (18 minutes).
    fn any_bucket() -> Bucket {
        let budget = Budget { burst_ns: u64::from(kani::any::<u32>()), refill_ppm: kani::any() };
        kani::assume(budget.refill_ppm <= 1_000_000);
        let mut bucket = Bucket::new(budget, 0);
        bucket.charge(u64::from(kani::any::<u32>()));
        bucket
    }

    #[kani::proof]
    fn balance_never_exceeds_the_burst() {
        let mut bucket = any_bucket();
        let now: u64 = kani::any();
        bucket.refill(now);
        bucket.give_back(u64::from(kani::any::<u32>()));
        assert!(bucket.balance <= i128::from(bucket.budget.burst_ns) * MILLION);
    }

    #[kani::proof]
    fn take_never_makes_debt() {
        let mut bucket = any_bucket();
        let before = bucket.debt();
        bucket.take(kani::any());
        assert!(bucket.debt() == before);
    }

    #[kani::proof]
    fn time_to_empty_is_exact() {
        let mut bucket = any_bucket();
        if let Some(t) = bucket.time_to_empty() {
            let in_debt = bucket.debt() > 0;
            bucket.charge(t);
            bucket.refill(t);
            assert!(in_debt || bucket.debt() == 0);
            assert!(bucket.time_to_empty() == Some(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Bucket, Budget};

    const SEED0: Budget = Budget { burst_ns: 3_000_000, refill_ppm: 250_000 };

    #[test]
    fn starts_full_and_stays_within_the_burst() {
        let mut b = Bucket::new(SEED0, 100);
        assert_eq!(b.level(), 3_000_000);
        b.refill(1_000_000_000);
        assert_eq!(b.level(), 3_000_000);
    }

    #[test]
    fn a_boosted_millisecond_costs_three_quarters_of_one() {
        let mut b = Bucket::new(SEED0, 0);
        b.charge(1_000_000);
        b.refill(1_000_000);
        assert_eq!(b.level(), 2_250_000);
        assert_eq!(b.time_to_empty(), Some(3_000_000));
    }

    #[test]
    fn late_timer_is_paid_back() {
        let mut b = Bucket::new(SEED0, 0);
        b.charge(10_000_000);
        b.refill(10_000_000);
        assert_eq!((b.level(), b.debt()), (0, 4_500_000));
        // 4.5 ms of debt and 1.5 ms of level at a quarter of a token a nanosecond.
        assert_eq!(b.time_until(1_500_000), Some(24_000_000));
        b.refill(34_000_000);
        assert_eq!(b.level(), 1_500_000);
    }

    #[test]
    fn no_refill_never_recovers_and_full_refill_never_empties() {
        let mut b = Bucket::new(Budget { burst_ns: 10, refill_ppm: 0 }, 0);
        assert_eq!((b.has(10), b.has(11)), (true, false));
        assert_eq!(b.take(100), 10);
        assert_eq!((b.time_until(5), b.time_until(0)), (None, Some(0)));
        let mut b = Bucket::new(Budget { burst_ns: 10, refill_ppm: 1_000_000 }, 0);
        assert_eq!(b.time_to_empty(), None);
        b.charge(10);
        assert_eq!(b.time_to_empty(), Some(0), "it has nothing to begin with");
    }

    #[test]
    fn time_backwards_changes_nothing() {
        let mut b = Bucket::new(SEED0, 1_000);
        b.charge(500);
        let before = b;
        b.refill(10);
        assert_eq!(b, before);
    }

    proptest! {
        /// No token is lost to rounding: however elapsed time is cut up, the balance is the same.
        #[test]
        #[cfg_attr(miri, ignore = "random cases are for the processor, not its interpreter")]
        fn refill_does_not_depend_on_the_steps(
            ppm in 0u32..=1_000_000,
            charge in 0u64..10_000_000,
            steps in proptest::collection::vec(0u64..50_000, 1..60),
        ) {
            let budget = Budget { burst_ns: 3_000_000, refill_ppm: ppm };
            let (mut many, mut one) = (Bucket::new(budget, 0), Bucket::new(budget, 0));
            many.charge(charge);
            one.charge(charge);
            let mut now = 0;
            for s in steps {
                now += s;
                many.refill(now);
            }
            one.refill(now);
            prop_assert_eq!(many, one);
        }

        /// What was spent and what is left is what there was and what came in.
        #[test]
        #[cfg_attr(miri, ignore = "random cases are for the processor, not its interpreter")]
        fn tokens_are_conserved(
            ppm in 1u32..1_000_000,
            burst in 1u64..10_000_000,
            steps in proptest::collection::vec((1u64..3_000_000, any::<bool>()), 1..80),
        ) {
            let mut b = Bucket::new(Budget { burst_ns: burst, refill_ppm: ppm }, 0);
            let (mut now, mut spent) = (0u64, 0u64);
            for (len, boosted) in steps {
                // Boost only as long as the bucket says, as the machines do.
                let len = if boosted { len.min(b.time_to_empty().unwrap()) } else { len };
                if boosted {
                    b.charge(len);
                    spent += len;
                }
                now += len;
                b.refill(now);
                prop_assert_eq!(b.debt(), 0);
                let income = u128::from(burst) * 1_000_000 + u128::from(now) * u128::from(ppm);
                prop_assert!(u128::from(spent + b.level()) * 1_000_000 <= income);
            }
        }

        #[test]
        #[cfg_attr(miri, ignore = "random cases are for the processor, not its interpreter")]
        fn times_are_exact(ppm in 1u32..1_000_000, level in 0u64..3_000_000, waited in 0u64..999) {
            let mut b = Bucket::new(Budget { burst_ns: 3_000_000, refill_ppm: ppm }, 0);
            b.charge(3_000_000 - level);
            b.refill(waited);
            let t = b.time_to_empty().unwrap();
            let mut at = b;
            at.charge(t);
            at.refill(waited + t);
            prop_assert_eq!((at.debt(), at.time_to_empty()), (0, Some(0)));
            let mut over = b;
            over.charge(t + 1);
            over.refill(waited + t + 1);
            prop_assert!(over.debt() > 0);

            let t = b.time_until(3_000_000).unwrap();
            if t > 0 {
                let mut early = b;
                early.refill(waited + t - 1);
                prop_assert!(early.level() < 3_000_000);
            }
            b.refill(waited + t);
            prop_assert_eq!(b.level(), 3_000_000);
        }
    }
}
