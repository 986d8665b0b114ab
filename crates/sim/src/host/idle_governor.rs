//! Predicts idle times: the kernel's menu governor (`drivers/cpuidle/governors/menu.c`, Linux 6.15).

use crate::queue::Ns;

/// Idle times with at most this standard deviation are alike, however short they are.
const ALIKE_NS: Ns = 20_000;
/// If the typical idle time is at most this, the next timer is not looked up.
const SHORT_NS: Ns = 15_000;
/// An idle time this long counts as ended by the timer.
const LONG_NS: Ns = 50_000_000;
/// What an idle time counts as that the tick ended, if it was expected to be longer.
pub(crate) const TICKED_NS: Ns = LONG_NS / 10 * 9;
/// A new idle time's weight in the average of its bucket.
const WEIGHT: f64 = 1.0 / 8.0;
/// Upper bounds of the buckets, by time until the next timer; the last bucket has none.
const BUCKETS: [Ns; 5] = [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The bucket of idle times that begin this long before a timer.
fn bucket(until: Ns) -> usize {
    BUCKETS.partition_point(|&end| end <= until)
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleGovernor {
    /// The last idle times.
    times: [Ns; 8],
    /// How many idle times there have been.
    seen: usize,
    /// Average ratio of idle time to the time until the next timer, for each bucket of the latter.
    parts: [f64; BUCKETS.len() + 1],
}

impl Default for IdleGovernor {
    fn default() -> Self {
        Self { times: [0; 8], seen: 0, parts: [1.0; BUCKETS.len() + 1] }
    }
}

impl IdleGovernor {
    /// An idle time is over. `next_timer`: how long it was until the CPU's next timer when it began, if there was one.
    /// What had been expected.
    pub(crate) fn was_idle(&mut self, ns: Ns, next_timer: impl FnOnce() -> Option<Ns>) -> Ns {
        let (expected, until) = self.expects(next_timer);
        if let Some(until) = until {
            let part = &mut self.parts[bucket(until)];
            let lasted =
                if ns < LONG_NS { ns.min(until) as f64 / until.max(1) as f64 } else { 1.0 };
            *part += (lasted - *part) * WEIGHT;
        }
        self.times[self.seen % self.times.len()] = ns;
        self.seen += 1;
        expected
    }

    /// Whether an idle time that begins now is expected to be shorter than a tick, so that the tick goes on.
    pub(crate) fn keeps_tick(&self, tick: Ns, next_timer: Option<Ns>) -> bool {
        self.expects(|| next_timer).0 < tick
    }

    /// The expected idle time, and the time until the next timer if that was looked up.
    fn expects(&self, next_timer: impl FnOnce() -> Option<Ns>) -> (Ns, Option<Ns>) {
        let typical = self.typical();
        let until = if typical > SHORT_NS { next_timer() } else { None };
        let bound = until.map_or(Ns::MAX, |ns| (ns as f64 * self.parts[bucket(ns)]) as Ns);
        (typical.min(bound), until)
    }

    /// The typical idle time: the mean of the last eight, without the most deviant ones, as soon as the others are
    /// alike. If six or fewer are left and are not alike, the longest of these. Not known (`Ns::MAX`) before there were
    /// eight.
    fn typical(&self) -> Ns {
        let mut times = self.times;
        if self.seen < times.len() {
            return Ns::MAX;
        }
        times.sort_unstable();
        let mut times = &times[..];
        loop {
            let (n, min, max) = (times.len(), times[0], times[times.len() - 1]);
            let mean = times.iter().sum::<Ns>() / n as Ns;
            let square = |ns: Ns| (ns as f64).powi(2);
            let variance =
                times.iter().map(|&ns| square(ns.abs_diff(mean))).sum::<f64>() / n as f64;
            if variance <= square(ALIKE_NS) || n >= 6 && square(mean) > 36.0 * variance {
                return mean;
            }
            if n <= 6 {
                return max;
            }
            // All that are as far off as the farthest go at once: never more than half.
            times = if mean - min > max - mean {
                &times[times.partition_point(|&ns| ns == min)..]
            } else {
                &times[..times.partition_point(|&ns| ns < max)]
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::IdleGovernor;
    use crate::queue::Ns;

    /// After idle times in us that no timer ended.
    fn after(times: &[Ns]) -> IdleGovernor {
        let mut after = IdleGovernor::default();
        times.iter().for_each(|&us| _ = after.was_idle(us * 1_000, || None));
        after
    }

    #[test]
    fn the_next_timer_bounds_what_is_expected() {
        assert_eq!(after(&[]).was_idle(7, || None), Ns::MAX);
        assert_eq!(after(&[]).was_idle(7, || Some(7)), 7);
        assert_eq!(after(&[1_000; 8]).was_idle(7, || Some(7)), 7);
        assert_eq!(after(&[1_000; 8]).was_idle(7, || Some(2_000_000)), 1_000_000);
        let short = || unreachable!("nobody looks for it");
        assert_eq!(after(&[9; 8]).was_idle(7, short), 9_000);
    }

    #[test]
    fn a_timer_is_believed_as_far_as_those_like_it_were() {
        let mut governor = IdleGovernor::default();
        let mut idle = |us: Ns, until: Ns| governor.was_idle(us * 1_000, || Some(until * 1_000));
        // Idle times of all lengths, so that none is typical.
        let expected: Vec<Ns> = (0..80).map(|i| idle(50 + 97 * i % 300, 4_000)).collect();
        assert!(expected[0] == 4_000_000 && expected[79] < 400_000, "{expected:?}");
        // In another bucket it is believed, and the longest of the last times is shorter.
        assert!((200_000..400_000).contains(&idle(20_000, 20_000)));
    }

    #[test]
    fn times_that_are_alike_are_expected_again_without_those_that_are_far_off() {
        assert_eq!(after(&[1_000; 7]).typical(), Ns::MAX, "too few to know");
        assert_eq!(after(&[10, 20, 30, 40, 10, 20, 30, 40]).typical(), 25_000, "within 20 us");
        assert_eq!(after(&[100, 100, 100, 100, 100, 100, 100, 90_000]).typical(), 100_000);
        let one_short = [4_000, 4_000, 4_100, 4_000, 10, 4_000, 4_000, 3_900];
        assert_eq!(after(&one_short).typical(), 4_000_000);
        assert_eq!(after(&[5, 5, 5, 5, 9_000, 9_000, 9_000, 9_000]).typical(), 5_000);
    }

    #[test]
    fn times_that_are_not_alike_have_the_longest_of_most_as_a_bound() {
        let even = [100, 300, 500, 700, 900, 1_100, 1_300, 9_000];
        assert_eq!(after(&even).typical(), 1_100_000);
        assert_eq!(
            after(&[100, 100, 5_000, 5_000, 5_000, 9_000, 9_000, 9_000]).typical(),
            9_000_000
        );
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut governor = after(&[1; 8]);
        (0..8).for_each(|_| _ = governor.was_idle(5_000_000, || None));
        assert_eq!(governor.typical(), 5_000_000);
    }
}
