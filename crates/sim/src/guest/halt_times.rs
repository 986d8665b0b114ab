//! Distributions of the lengths of halts and of polls for them, for VMs for which the host polls.
//!
//! KVM counts the same in powers of two (`halt_poll_success_hist`, `halt_poll_fail_hist`, `halt_wait_hist` of
//! `KVM_GET_STATS_FD`).

use hdrhistogram::Histogram;

use crate::queue::Ns;

/// A quantile is reported only with so many values beyond it.
const BEYOND: u64 = 10;

/// A distribution of times, to two digits.
#[derive(Clone, Debug)]
struct Times(Histogram<u32>);

impl Times {
    fn new() -> Self {
        Self(Histogram::new(2).expect("two digits are possible"))
    }

    fn add(&mut self, ns: Ns) {
        self.0.record(ns).expect("it grows as it has to");
    }

    /// The values added since `start`.
    fn since(&self, start: &Self) -> Self {
        let mut all = self.clone();
        all.0.subtract(&start.0).expect("what was added stays");
        all
    }

    /// The time that `percent` of the values do not exceed; `None` if too few values are beyond it.
    fn quantile(&self, percent: u64) -> Option<Ns> {
        let (count, quantile) = (self.0.len(), percent as f64 / 100.0);
        let enough = count * (100 - percent) / 100 >= BEYOND;
        enough.then(|| self.0.median_equivalent(self.0.value_at_quantile(quantile)))
    }
}

/// The halts of a VM.
#[derive(Clone, Debug)]
pub(crate) struct HaltTimes {
    /// Polls that caught the wake-up, and those that did not.
    won: Times,
    lost: Times,
    /// From HLT until the vCPU went on, polling included.
    halts: Times,
    /// Their sum.
    halted: Ns,
}

/// Reported quantiles.
const QUANTILES: [u64; 3] = [50, 90, 99];

impl HaltTimes {
    pub(crate) fn new() -> Self {
        Self { won: Times::new(), lost: Times::new(), halts: Times::new(), halted: 0 }
    }

    /// A poll of the host has ended.
    pub(crate) fn polled(&mut self, won: bool, ns: Ns) {
        if won { &mut self.won } else { &mut self.lost }.add(ns);
    }

    /// A halt has ended.
    pub(crate) fn halted(&mut self, ns: Ns) {
        self.halts.add(ns);
        self.goes_on(ns);
    }

    /// A halt that goes on has lasted this long.
    pub(crate) fn goes_on(&mut self, ns: Ns) {
        self.halted += ns;
    }

    /// The sum of these and those of another copy.
    pub(crate) fn plus(&mut self, other: &Self) {
        let lists = [
            (&mut self.won, &other.won),
            (&mut self.lost, &other.lost),
            (&mut self.halts, &other.halts),
        ];
        for (sum, other) in lists {
            sum.0.add(&other.0).expect("it grows as it has to");
        }
        self.halted += other.halted;
    }

    /// Scalars for a time of `ns`: counts and quantiles.
    pub(crate) fn scalars(
        &self,
        start: &Self,
        vcpus: f64,
        ns: f64,
    ) -> Vec<(String, &'static str, f64)> {
        let halts = self.halts.since(&start.halts);
        let halted = (self.halted - start.halted) as f64;
        let mut all = vec![
            ("halts".to_owned(), "1/s", halts.0.len() as f64 / (ns / 1e9)),
            ("halt_time".to_owned(), "%", 100.0 * halted / (ns * vcpus)),
        ];
        let lists = [
            ("halts", halts),
            ("halt_polls.won", self.won.since(&start.won)),
            ("halt_polls.lost", self.lost.since(&start.lost)),
        ];
        for (name, times) in lists {
            for percent in QUANTILES {
                if let Some(ns) = times.quantile(percent) {
                    all.push((format!("{name}.p{percent}"), "us", ns as f64 / 1e3));
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_two_digits() {
        let mut times = Times::new();
        (1..=10_000u64).for_each(|us| times.add(us * 1_000));
        for (percent, wanted) in [(50, 5_000_000.0), (90, 9_000_000.0), (99, 9_900_000.0)] {
            let found = times.quantile(percent).expect("enough values") as f64;
            assert!((found / wanted - 1.0).abs() < 0.01, "p{percent}: {found}");
        }
        assert_eq!(times.0.len(), 10_000);
    }

    #[test]
    fn a_quantile_needs_values_beyond_it() {
        let mut times = Times::new();
        (0..100).for_each(|_| times.add(7_000));
        assert!(times.quantile(90).is_some());
        assert_eq!(times.quantile(99), None);
    }
}
