//! How long CPUs were idle.

use crate::queue::Ns;

/// Recent idle times of a CPU, as its idle governor remembers them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdleTimes {
    times: [Ns; 8],
    /// How many there were, since the start.
    seen: usize,
}

impl IdleTimes {
    pub(crate) fn add(&mut self, ns: Ns) {
        self.times[self.seen % self.times.len()] = ns;
        self.seen += 1;
    }

    /// What the idle governor expects: the mean of the recent idle times, leaving out, one by one,
    /// the longest ones while they spread too far (the idea of the menu governor's typical
    /// interval). Before the first it is `this`, the idle time in question, as
    /// the governor knows the next timer.
    pub(crate) fn typical_or(mut self, this: Ns) -> Ns {
        if self.seen == 0 {
            return this;
        }
        let known = self.seen.min(self.times.len());
        let times = &mut self.times[..known];
        times.sort_unstable();
        let mut n = times.len();
        loop {
            let mean = times[..n].iter().sum::<Ns>() / n as Ns;
            let spread = times[n - 1] - times[0];
            if n <= times.len() / 2 || spread <= mean {
                return mean;
            }
            n -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::IdleTimes;

    #[test]
    fn long_times_are_expected_from_the_first_on() {
        let mut times = IdleTimes::default();
        assert_eq!(times.typical_or(7), 7);
        times.add(1_000);
        assert_eq!(times.typical_or(7), 1_000);
        times.add(2_000);
        assert_eq!(times.typical_or(7), 1_500);
    }

    #[test]
    fn what_is_far_longer_than_the_others_is_left_out_and_what_is_old_forgotten() {
        let mut times = IdleTimes::default();
        (0..7).for_each(|_| times.add(100));
        times.add(100_000);
        assert_eq!(times.typical_or(0), 100);
        (0..8).for_each(|_| times.add(5_000));
        assert_eq!(times.typical_or(0), 5_000);
    }
}
