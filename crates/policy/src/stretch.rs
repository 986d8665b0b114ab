//! How long a vCPU is boosted at once.
//!
//! A budget bounds boosted time in the long run. Within a burst a guest may be boosted for milliseconds without a
//! break, again and again, and end each boost just before the budget would: a fair thread of the host that wakes up
//! meanwhile waits until then. The tail of its latency is then as long as the burst.
//!
//! So there is a second account of boosted time, with a short memory: each nanosecond boosted adds one, and each
//! nanosecond not boosted takes one back. When the account reaches the longest boost allowed, further time is taken
//! from the *excess*, a bucket that holds one burst and gains [`EXCESS_PPM`]. Once that is used up the boost ends, and
//! there is none until half of the account is worked off. Whatever a guest does,
//!
//! * a fair thread finds more than the longest boost ahead of it in at most one wake-up of two hundred, which does not
//!   affect its 99th percentile;
//! * a guest whose urgent work fits into the longest boost is not affected, and one that needs more now and then has
//!   it.

use crate::budget::Bucket;
use crate::config::{Budget, Ns};

/// Share of time that may be boosted beyond the longest boost: half of what a 99th percentile leaves out.
const EXCESS_PPM: u32 = 5_000;

/// The machine of one vCPU.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    longest: Ns,
    /// The account, as of `ended` if nothing is boosted. invariant: at most `longest`.
    used: Ns,
    /// When the last boost ended; 0 before the first.
    ended: Ns,
    excess: Bucket,
}

impl Stretch {
    pub(crate) fn new(longest: Ns, burst_ns: Ns, now: Ns) -> Self {
        let excess = Bucket::new(Budget { burst_ns, refill_ppm: EXCESS_PPM }, now);
        Self { longest, used: 0, ended: 0, excess }
    }

    /// The vCPU was boosted for `ran`, until `now`.
    pub(crate) fn charge(&mut self, now: Ns, ran: Ns) {
        let fits = ran.min(self.longest - self.used);
        self.used += fits;
        self.excess.charge(ran - fits);
        self.excess.refill(now);
    }

    /// A boost ends.
    pub(crate) fn end(&mut self, now: Ns) {
        self.ended = now;
    }

    /// How long a boost that begins now could last.
    pub(crate) fn begin(&mut self, now: Ns) -> Ns {
        let gap = now.saturating_sub(self.ended);
        self.used = self.used.saturating_sub(gap);
        self.ended = now;
        self.excess.refill(now);
        self.left()
    }

    /// How long a boost can go on.
    pub(crate) fn left(&self) -> Ns {
        (self.longest - self.used).saturating_add(self.excess.level())
    }

    /// How long, if nothing is boosted until then, until half of the account is worked off and a boost of `least` fits.
    pub(crate) fn recovery(&self, now: Ns, least: Ns) -> Ns {
        let gap = now.saturating_sub(self.ended);
        let used = (self.longest / 2).min(self.longest.saturating_sub(least));
        self.used.saturating_sub(gap).saturating_sub(used)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Ns, Stretch};

    const LONGEST: Ns = 100_000;
    const BURST: Ns = 3_000_000;

    #[test]
    fn short_boosts_never_touch_the_excess() {
        let mut s = Stretch::new(LONGEST, BURST, 0);
        for n in 1..1_000 {
            assert_eq!(s.begin(n * 200_000), LONGEST + BURST);
            s.charge(n * 200_000 + LONGEST, LONGEST);
            s.end(n * 200_000 + LONGEST);
        }
    }

    #[test]
    fn gaps_work_off_what_boosts_took() {
        let mut s = Stretch::new(LONGEST, 0, 0);
        assert_eq!(s.begin(1_000_000), LONGEST);
        s.charge(1_060_000, 60_000);
        s.end(1_060_000);
        assert_eq!(s.begin(1_070_000), 50_000);
        s.charge(1_120_000, 50_000);
        s.end(1_120_000);
        assert_eq!((s.left(), s.recovery(1_130_000, 20_000)), (0, 40_000));
        assert_eq!(s.recovery(1_130_000, 80_000), 70_000, "as much as a boost needs");
        assert_eq!(s.begin(1_170_000), 50_000);
        assert_eq!(s.begin(1_220_000), LONGEST);
    }

    proptest! {
        /// Half of the time and the excess is the most that a guest gets, whatever it asks for when.
        #[test]
        #[cfg_attr(miri, ignore = "random cases are for the processor, not its interpreter")]
        fn boosts_are_bounded(steps in proptest::collection::vec((0u64..300_000, 1u64..4_000_000), 1..200)) {
            let mut s = Stretch::new(LONGEST, BURST, 0);
            let (mut now, mut boosted) = (0u64, 0u64);
            for (gap, wants) in steps {
                now += gap;
                let ran = wants.min(s.begin(now));
                now += ran;
                s.charge(now, ran);
                s.end(now);
                boosted += ran;
            }
            let excess = BURST + now / 200 + 1;
            prop_assert!(boosted <= (now + LONGEST) / 2 + LONGEST + excess, "{boosted} ns in {now}");
        }
    }
}
