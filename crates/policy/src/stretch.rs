//! How long a vCPU is boosted at once.
//!
//! A budget bounds boosted time in the long run. Within a burst of it a guest may be boosted for milliseconds
//! without a break, again and again, and give each boost back just in time: a fair thread of the host that wakes
//! up meanwhile waits for the rest of it. The tail of its latency is then as long as the burst.
//!
//! So boosted time is cut into *stretches*. Boosts belong to one stretch unless there is a gap between them that is
//! as long as the longest stretch may be. What a stretch has beyond that is taken from a bucket of its own, the
//! *excess*, which holds one burst and gains [`EXCESS_PPM`]. Once the excess is used up a boost ends when its stretch is
//! as long as it may be, and there is none until the gap is over. Whatever a guest does,
//!
//! * a fair thread finds more than the longest stretch before it in at most one wake-up of two hundred, which leaves
//!   its 99th percentile alone;
//! * a guest whose urgent work fits into a stretch never notices, and one that now and then needs more has it.

use crate::budget::Bucket;
use crate::config::{Budget, Ns};

/// Share of time that may be boosted beyond what stretches hold: half of what a 99th percentile looks at.
const EXCESS_PPM: u32 = 5_000;

/// The machine of one vCPU.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    longest: Ns,
    /// Boosted time of this stretch so far.
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

    /// Boosted for so long, until now.
    pub(crate) fn charge(&mut self, ran: Ns) {
        let beyond = |used: Ns| used.saturating_sub(self.longest);
        let used = self.used.saturating_add(ran);
        let excess = beyond(used) - beyond(self.used);
        self.used = used;
        self.excess.charge(excess);
    }

    pub(crate) fn refill(&mut self, now: Ns) {
        self.excess.refill(now);
    }

    /// A boost ends.
    pub(crate) fn end(&mut self, now: Ns) {
        self.ended = now;
    }

    /// A boost begins: another stretch, if the gap was long enough.
    pub(crate) fn begin(&mut self, now: Ns) {
        if self.gap_left(now) == 0 {
            self.used = 0;
        }
    }

    /// How long a boost that begins now could last, or one that goes on.
    pub(crate) fn left(&self) -> Ns {
        self.longest.saturating_sub(self.used).saturating_add(self.excess.level())
    }

    /// How long until a boost begins another stretch, if there is none until then.
    pub(crate) fn gap_left(&self, now: Ns) -> Ns {
        self.ended.saturating_add(self.longest).saturating_sub(now)
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
            s.refill(n * 200_000);
            s.begin(n * 200_000);
            assert_eq!(s.left(), LONGEST + BURST);
            s.charge(LONGEST);
            s.end(n * 200_000 + LONGEST);
        }
    }

    #[test]
    fn boosts_without_a_gap_are_one_stretch() {
        let mut s = Stretch::new(LONGEST, 0, 0);
        s.begin(1_000_000);
        s.charge(60_000);
        s.end(1_060_000);
        s.begin(1_100_000);
        assert_eq!(s.left(), 40_000);
        s.charge(40_000);
        s.end(1_140_000);
        assert_eq!((s.left(), s.gap_left(1_150_000)), (0, 90_000));
        s.begin(1_239_999);
        assert_eq!(s.left(), 0);
        s.begin(1_240_000);
        assert_eq!(s.left(), LONGEST);
    }

    proptest! {
        /// Time that is boosted beyond the longest stretch is bounded, whatever comes when.
        #[test]
        #[cfg_attr(miri, ignore = "random cases are for the processor, not its interpreter")]
        fn the_excess_is_bounded(steps in proptest::collection::vec((0u64..3_000_000, 1u64..4_000_000), 1..200)) {
            let mut s = Stretch::new(LONGEST, BURST, 0);
            let (mut now, mut stretch, mut beyond, mut last) = (0u64, 0u64, 0u64, 0u64);
            for (gap, wants) in steps {
                now += gap;
                s.refill(now);
                s.begin(now);
                if now - last >= LONGEST || last == 0 && stretch == 0 {
                    stretch = 0;
                }
                let ran = wants.min(s.left());
                s.charge(ran);
                now += ran;
                s.refill(now);
                s.end(now);
                beyond += (stretch + ran).saturating_sub(LONGEST) - stretch.saturating_sub(LONGEST);
                (stretch, last) = (stretch + ran, now);
            }
            prop_assert!(beyond <= BURST + now / 200 + 1, "{beyond} ns in {now}");
        }
    }
}
