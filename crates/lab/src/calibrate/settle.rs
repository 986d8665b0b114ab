//! How long to measure: until the median is stable.
//!
//! A measurement comes in blocks. The first is dropped (cold caches, first faults). It has settled
//! when the medians of the last three blocks lie within 3 % of the middle one, or within 20 ns,
//! which is about what reading the clock costs. If the time is up before, the result is kept and
//! marked as not stable.

use serde::Serialize;
use vcoop_model::plan::Ns;
use vcoop_model::quantiles::LEVELS;

/// Blocks whose medians must agree.
pub(crate) const AGREE: usize = 3;

/// How far they may lie apart, in percent of the middle one.
pub const TOLERANCE_PERCENT: u64 = 3;

/// How far they may always lie apart.
const RESOLUTION_NS: Ns = 20;

/// What was seen of one measurement, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Distribution {
    /// Samples.
    pub n: u64,
    /// Smallest.
    pub min_ns: Ns,
    /// 10 % are at most this.
    pub p10_ns: Ns,
    /// Half are at most this.
    pub median_ns: Ns,
    /// 90 % are at most this.
    pub p90_ns: Ns,
    /// 99 % are at most this. This quantile and the higher ones may rest on few samples.
    pub p99_ns: Ns,
    /// 99.9 % are at most this.
    pub p999_ns: Ns,
    /// 99.99 % are at most this.
    pub p9999_ns: Ns,
    /// Largest seen: an observation, not a bound.
    pub max_ns: Ns,
    /// The mean.
    pub mean_ns: Ns,
    /// Number of samples that were left out: the longest ones, taken to be interrupted.
    pub interrupted: u64,
}

impl Distribution {
    /// From samples, which it sorts; `None` without samples.
    pub(crate) fn of(samples: &mut [Ns]) -> Option<Self> {
        Self::uninterrupted(samples, &Interruptions::default())
    }

    /// From samples that were timed on a CPU with these interruptions, which the simulator has separately (ticks,
    /// noise). The longest samples are left out while they are no more than the interruptions expected in the time of
    /// all samples. An interruption counts if it takes at least a quarter of the sample's distance from the median:
    /// in a guest it also costs an exit and an entry, twice or three times its own time.
    pub(crate) fn uninterrupted(samples: &mut [Ns], by: &Interruptions) -> Option<Self> {
        samples.sort_unstable();
        let sum: Ns = samples.iter().sum();
        let median = *samples.get(samples.len().saturating_sub(1) / 2)?;
        let longest = samples[samples.len() / 2..].iter().rev().zip(1..);
        let hit = longest
            .take_while(|(ns, k)| f64::from(*k) <= by.expected(sum, (**ns - median.min(**ns)) / 4))
            .count();
        let samples = &samples[..samples.len() - hit];
        let (first, last) = (*samples.first()?, *samples.last()?);
        let quantile = |per_10_000: usize| samples[(samples.len() - 1) * per_10_000 / 10_000];
        Some(Self {
            n: samples.len() as u64,
            min_ns: first,
            p10_ns: quantile(1_000),
            median_ns: quantile(5_000),
            p90_ns: quantile(9_000),
            p99_ns: quantile(9_900),
            p999_ns: quantile(9_990),
            p9999_ns: quantile(9_999),
            max_ns: last,
            mean_ns: samples.iter().sum::<Ns>() / samples.len() as Ns,
            interrupted: hit as u64,
        })
    }

    /// The quantiles that profiles have, in their order.
    pub(crate) fn quantiles(&self) -> [Ns; LEVELS] {
        let Self { min_ns, p10_ns, median_ns, p90_ns, p99_ns, p999_ns, p9999_ns, max_ns, .. } =
            *self;
        [min_ns, p10_ns, median_ns, p90_ns, p99_ns, p999_ns, p9999_ns, max_ns]
    }
}

/// Interruptions of a CPU that is measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interruptions {
    /// Length of each, ascending.
    took: Vec<Ns>,
    /// Time in which they were seen.
    watched_ns: Ns,
}

impl Interruptions {
    pub(crate) fn new(mut took: Vec<Ns>, watched_ns: Ns) -> Self {
        took.sort_unstable();
        Self { took, watched_ns }
    }

    /// Expected number of interruptions of at least this length in time `ns`.
    fn expected(&self, ns: Ns, at_least: Ns) -> f64 {
        let n = self.took.len() - self.took.partition_point(|took| *took < at_least);
        n as f64 * ns as f64 / self.watched_ns.max(1) as f64
    }
}

/// Whether the last block medians agree.
pub(crate) fn is_stable(medians: &[Ns]) -> bool {
    let Some(last) = medians.len().checked_sub(AGREE).map(|from| &medians[from..]) else {
        return false;
    };
    let mut sorted = <[Ns; AGREE]>::try_from(last).unwrap_or_default();
    sorted.sort_unstable();
    let [low, middle, high] = sorted;
    high - low <= (middle * TOLERANCE_PERCENT / 100).max(RESOLUTION_NS)
}

/// Collects the blocks of one measurement.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    samples: Vec<Ns>,
    medians: Vec<Ns>,
    seen: u64,
}

impl Blocks {
    /// Most samples kept; enough for any quantile shown.
    const MAX_SAMPLES: usize = 1 << 20;

    /// Adds a block. A block without samples does not count.
    pub(crate) fn push(&mut self, block: &mut [Ns]) {
        let Some(of) = Distribution::of(block) else { return };
        self.seen += 1;
        if self.seen == 1 {
            return;
        }
        self.medians.push(of.median_ns);
        let room = Self::MAX_SAMPLES.saturating_sub(self.samples.len());
        self.samples.extend_from_slice(&block[..block.len().min(room)]);
    }

    /// Whether it has settled.
    pub(crate) fn is_stable(&self) -> bool {
        is_stable(&self.medians)
    }

    /// Blocks that count.
    pub(crate) fn len(&self) -> usize {
        self.medians.len()
    }

    /// The distribution of all samples, on a CPU with these interruptions; `None` if there is no sample.
    pub(crate) fn distribution(mut self, by: &Interruptions) -> Option<Distribution> {
        Distribution::uninterrupted(&mut self.samples, by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_blocks_within_three_percent_are_stable() {
        assert!(!is_stable(&[1000, 1000]));
        assert!(is_stable(&[1000, 1000, 1000]));
        assert!(is_stable(&[9000, 1000, 1030, 1010]), "only the last three count");
        assert!(!is_stable(&[1000, 1000, 1031, 1010]), "1031 - 1000 > 3 % of 1010");
        assert!(!is_stable(&[1000, 1000, 1000, 1100]));
    }

    #[test]
    fn what_the_clock_cannot_tell_apart_is_stable() {
        assert!(is_stable(&[40, 60, 50]));
        assert!(!is_stable(&[40, 61, 50]));
    }

    #[test]
    fn the_first_block_is_dropped_and_empty_ones_do_not_count() {
        let mut blocks = Blocks::default();
        blocks.push(&mut []);
        blocks.push(&mut [1_000_000; 5]);
        for _ in 0..3 {
            assert!(!blocks.is_stable());
            blocks.push(&mut [100, 110, 90]);
        }
        assert!(blocks.is_stable());
        let d = blocks.distribution(&Interruptions::default()).unwrap();
        assert_eq!((d.n, d.min_ns, d.median_ns, d.max_ns), (9, 90, 100, 110));
    }

    #[test]
    fn interrupted_samples_are_left_out() {
        let mut samples = vec![1_000; 980];
        samples.extend([30_000; 10]);
        samples.extend([5_000; 10]);
        // In 12.9 ms there were 100 of 29 us and 400 of 1 us: in the 1.33 ms of all samples 10 and 41.
        let took = [vec![29_000; 100], vec![900; 400]].concat();
        let by = Interruptions::new(took, 12_900_000);
        let d = Distribution::uninterrupted(&mut samples, &by).unwrap();
        assert_eq!((d.n, d.max_ns, d.interrupted), (990, 5_000, 10), "5 us are a slow path");
        let d = Distribution::uninterrupted(&mut [5, 6, 7], &Interruptions::new(vec![9; 9], 1));
        assert_eq!(d.map(|d| d.n), Some(1), "never more than half and one");
    }

    #[test]
    fn quantiles_of_known_samples() {
        let mut samples: Vec<Ns> = (0..=100).rev().collect();
        let d = Distribution::of(&mut samples).unwrap();
        assert_eq!((d.p10_ns, d.median_ns, d.p90_ns), (10, 50, 90));
        assert_eq!(d.quantiles(), [0, 10, 50, 90, 99, 99, 99, 100]);
        assert_eq!(d.mean_ns, 50);
        assert_eq!(Distribution::of(&mut []), None);
    }
}
