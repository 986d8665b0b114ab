//! How long to measure: until the median stands still.
//!
//! A measurement comes in blocks. The first is dropped (cold caches, first faults). It has settled
//! when the medians of the last three blocks lie within 3 % of the middle one, or within 20 ns,
//! which is about what reading the clock costs. If the time is up before, the result is kept and
//! marked as not stable.

use serde::Serialize;
use vcoop_model::plan::Ns;

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
    /// Largest seen: an observation, not a bound.
    pub max_ns: Ns,
}

impl Distribution {
    /// Of these samples, which it sorts; `None` of none.
    pub(crate) fn of(samples: &mut [Ns]) -> Option<Self> {
        samples.sort_unstable();
        let (first, last) = (*samples.first()?, *samples.last()?);
        let quantile = |percent: usize| samples[(samples.len() - 1) * percent / 100];
        Some(Self {
            n: samples.len() as u64,
            min_ns: first,
            p10_ns: quantile(10),
            median_ns: quantile(50),
            p90_ns: quantile(90),
            max_ns: last,
        })
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

    /// Takes a block in. One without samples does not count.
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

    /// All of it; `None` if there is no sample.
    pub(crate) fn distribution(mut self) -> Option<Distribution> {
        Distribution::of(&mut self.samples)
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
        let d = blocks.distribution().unwrap();
        assert_eq!((d.n, d.min_ns, d.median_ns, d.max_ns), (9, 90, 100, 110));
    }

    #[test]
    fn quantiles_of_known_samples() {
        let mut samples: Vec<Ns> = (0..=100).rev().collect();
        let d = Distribution::of(&mut samples).unwrap();
        assert_eq!((d.p10_ns, d.median_ns, d.p90_ns), (10, 50, 90));
        assert_eq!(Distribution::of(&mut []), None);
    }
}
