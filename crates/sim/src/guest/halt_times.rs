//! How long halts are, and what polling for them took: distributions, of VMs for which the host polls.
//!
//! KVM counts the same in powers of two (`halt_poll_success_hist`, `halt_poll_fail_hist`, `halt_wait_hist` of
//! `KVM_GET_STATS_FD`). Sixteen buckets an octave tell a quantile to 6 %.

use crate::queue::Ns;

/// Bits of a value after its first that choose its bucket.
const FINE: u32 = 4;
/// Longer times are in the last bucket: 2^40 ns are 18 minutes.
const OCTAVES: u32 = 40;
/// A quantile is told with so many values beyond it, as everywhere.
const BEYOND: u64 = 10;

/// A distribution of times.
#[derive(Clone, Debug)]
struct Times(Box<[u32]>);

impl Times {
    fn new() -> Self {
        Self(vec![0; (OCTAVES << FINE) as usize].into())
    }

    fn bucket(ns: Ns) -> usize {
        let ns = ns.clamp(1 << FINE, (1 << OCTAVES) - 1);
        let octave = ns.ilog2();
        (octave << FINE) as usize + (ns >> (octave - FINE)) as usize - (1 << FINE)
    }

    fn add(&mut self, ns: Ns) {
        self.0[Self::bucket(ns)] += 1;
    }

    /// What has been added since.
    fn since(&self, start: &Self) -> Self {
        Self(self.0.iter().zip(&start.0).map(|(end, start)| end - start).collect())
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|n| u64::from(*n)).sum()
    }

    /// The time that `percent` of the values are not above, to the middle of its bucket; `None` where too few are
    /// beyond it.
    fn quantile(&self, percent: u64) -> Option<Ns> {
        let count = self.count();
        let rank = (count * percent).div_ceil(100).max(1);
        if count - rank.min(count) < BEYOND {
            return None;
        }
        let mut seen = 0;
        let at = self.0.iter().position(|n| {
            seen += u64::from(*n);
            seen >= rank
        })? as u32;
        let (octave, fine) = (at >> FINE, u64::from(at & ((1 << FINE) - 1)));
        let width = 1u64 << (octave.max(FINE) - FINE);
        Some(((1 << FINE) + fine) * width + width / 2)
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

/// Quantiles that are told.
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
        self.halted += ns;
    }

    /// A halt that goes on has lasted this long.
    pub(crate) fn last(&mut self, ns: Ns) {
        self.halted += ns;
    }

    /// Together with those of another copy.
    pub(crate) fn plus(&mut self, other: &Self) {
        let lists = [
            (&mut self.won, &other.won),
            (&mut self.lost, &other.lost),
            (&mut self.halts, &other.halts),
        ];
        for (sum, other) in lists {
            sum.0.iter_mut().zip(&other.0).for_each(|(sum, n)| *sum += n);
        }
        self.halted += other.halted;
    }

    /// What it says of `ns`, to be put under the VM's name: counts and quantiles.
    pub(crate) fn scalars(
        &self,
        start: &Self,
        vcpus: f64,
        ns: f64,
    ) -> Vec<(String, &'static str, f64)> {
        let halts = self.halts.since(&start.halts);
        let halted = (self.halted - start.halted) as f64;
        let mut all = vec![
            ("halts".to_owned(), "1/s", halts.count() as f64 / (ns / 1e9)),
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
    fn quantiles_are_right_to_a_bucket() {
        let mut times = Times::new();
        (1..=10_000u64).for_each(|us| times.add(us * 1_000));
        for (percent, wanted) in [(50, 5_000_000.0), (90, 9_000_000.0), (99, 9_900_000.0)] {
            let found = times.quantile(percent).expect("enough values") as f64;
            assert!((found / wanted - 1.0).abs() < 0.04, "p{percent}: {found}");
        }
        assert_eq!(times.count(), 10_000);
    }

    #[test]
    fn a_quantile_needs_values_beyond_it() {
        let mut times = Times::new();
        (0..100).for_each(|_| times.add(7_000));
        assert!(times.quantile(90).is_some());
        assert_eq!(times.quantile(99), None);
    }

    #[test]
    fn every_time_has_a_bucket() {
        for ns in [0, 1, 15, 16, 17, 31, 32, 1 << 39, (1 << 40) - 1, 1 << 40, u64::MAX] {
            Times::new().add(ns);
        }
        assert!(Times::bucket(31) < Times::bucket(32));
        assert_eq!(Times::bucket(u64::MAX), (OCTAVES << FINE) as usize - 1);
    }
}
