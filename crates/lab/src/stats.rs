//! Statistics over repeats: quantiles of pooled samples, and bootstrap intervals.
//!
//! **What is resampled.** Samples of one run hang together (a late one is followed by late ones),
//! so an interval from single samples would be far too narrow. Whole repeats are resampled: they
//! are independent by construction.
//!
//! **Which interval.** The expanded percentile bootstrap (T. Hesterberg, "What Teachers Should Know
//! About the Bootstrap", The American Statistician 69(4), 2015, section 3.3): the plain percentile
//! interval of a mean is too narrow by about `sqrt((n-1)/n) * z/t` for `n` repeats; taking its tails
//! at `Phi(-sqrt(n/(n-1)) * t(0.975, n-1))` instead of 2.5 % mends that. With few repeats (below
//! about five) the ends of the bootstrap distribution are reached and the interval cannot be as
//! wide as it ought to be.
//!
//! **Ratios** are paired: repeat `r` saw the same workload under both policies, so both are
//! resampled with the same repeats, and what they share cancels.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::OnceLock;

use rand::Rng;
use rand_pcg::Pcg64Mcg;

/// Resamples drawn.
pub const RESAMPLES: usize = 2000;

/// More repeats than this are put into so many blocks, and blocks are resampled: the interval
/// hardly changes, memory stays bounded.
pub const MAX_BLOCKS: usize = 128;

/// Samples that must lie beyond a quantile for it to be shown.
pub const BEYOND: u64 = 10;

/// Millionths in one.
const MILLION: u64 = 1_000_000;

/// Seed of the resampling. It is no parameter: it has nothing to do with the workload.
const SEED: u128 = 0x7663_6f6f_7062_6f6f_7473_7472_6170_0001;

/// Draws of `n` out of `n` blocks with replacement, as how often each was drawn.
#[derive(Clone, Debug)]
pub struct Resamples {
    blocks: usize,
    /// Rows of `blocks` numbers, each once: with few blocks most of the draws are alike.
    weights: Vec<u16>,
    /// How often each row was drawn; [`RESAMPLES`] in all.
    times: Vec<u16>,
    /// Resamples cut off on either side.
    tail: usize,
}

impl Resamples {
    /// Draws for a number of blocks; `None` below two, which say nothing about their spread.
    pub fn new(blocks: usize) -> Option<Self> {
        if blocks < 2 {
            return None;
        }
        let mut rng = Pcg64Mcg::new(SEED);
        let mut known: BTreeMap<Vec<u16>, usize> = BTreeMap::new();
        let (mut weights, mut times) = (Vec::new(), Vec::new());
        for _ in 0..RESAMPLES {
            let mut row = vec![0u16; blocks];
            for _ in 0..blocks {
                // Multiply-shift: evenly in 0..blocks, but for a bias of 2^-57.
                let drawn = (u128::from(rng.next_u64()) * blocks as u128) >> 64;
                row[drawn as usize] += 1;
            }
            match known.entry(row) {
                Entry::Occupied(place) => times[*place.get()] += 1,
                Entry::Vacant(place) => {
                    weights.extend_from_slice(place.key());
                    place.insert(times.len());
                    times.push(1u16);
                }
            }
        }
        let tail = (tail_probability(blocks) * RESAMPLES as f64) as usize;
        Some(Self { blocks, weights, times, tail })
    }

    /// The same, drawn once for all who ask: the draws depend on nothing but the number of blocks,
    /// of which there are [`MAX_BLOCKS`] at most.
    pub fn shared(blocks: usize) -> Option<&'static Self> {
        static DRAWN: [OnceLock<Option<Resamples>>; MAX_BLOCKS + 1] =
            [const { OnceLock::new() }; MAX_BLOCKS + 1];
        DRAWN[blocks.min(MAX_BLOCKS)].get_or_init(|| Self::new(blocks.min(MAX_BLOCKS))).as_ref()
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// 95 % interval of a statistic of the weights (how often each block was drawn). `None` if
    /// the statistic is undefined (NaN) for a resample or a bound is not finite: a ratio to
    /// something that was often zero has no interval worth showing.
    pub fn interval(&self, mut statistic: impl FnMut(&[u16]) -> f64) -> Option<[f64; 2]> {
        let mut values: Vec<f64> = Vec::with_capacity(RESAMPLES);
        for (row, times) in self.weights.chunks_exact(self.blocks).zip(&self.times) {
            let value = statistic(row);
            // The first one that is undefined decides.
            if value.is_nan() {
                return None;
            }
            values.extend(std::iter::repeat_n(value, usize::from(*times)));
        }
        // Two of them are wanted, and not the order of all.
        let order = f64::total_cmp;
        let lo = *values.select_nth_unstable_by(self.tail, order).1;
        let hi = *values.select_nth_unstable_by(RESAMPLES - 1 - self.tail, order).1;
        (lo.is_finite() && hi.is_finite()).then_some([lo, hi])
    }
}

/// Probability to cut off on either side with `n` repeats.
fn tail_probability(n: usize) -> f64 {
    let n = n as f64;
    let x = (n / (n - 1.0)).sqrt() * student_975(n - 1.0);
    0.5 * libm::erfc(x / std::f64::consts::SQRT_2)
}

/// 97.5 % quantile of Student's t: a table for few degrees of freedom, then the Cornish-Fisher
/// expansion (Abramowitz and Stegun 26.7.5), which is right to four digits from there.
fn student_975(freedom: f64) -> f64 {
    const TABLE: [f64; 9] =
        [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622];
    if let Some(t) = TABLE.get(freedom as usize - 1) {
        return *t;
    }
    let z: f64 = 1.959_964;
    let (z3, z5, z7) = (z * z * z, z * z * z * z * z, z * z * z * z * z * z * z);
    z + (z3 + z) / (4.0 * freedom)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * freedom * freedom)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * freedom * freedom * freedom)
}

/// A block of repeats of one latency series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Samples.
    pub count: u64,
    /// Their sum, in nanoseconds.
    pub sum_ns: u128,
    /// Largest value of a histogram bucket in nanoseconds, samples; ascending.
    pub bins: Vec<(u64, u64)>,
}

/// Pooled samples, as a sum over blocks with weights.
#[derive(Clone, Debug)]
pub struct Pool {
    counts: Vec<u64>,
    sums: Vec<f64>,
    sum_ns: u128,
    /// Bucket values that occur in any block, ascending.
    values: Vec<u64>,
    /// For each of them, samples up to it in each block.
    cumulative: Vec<u64>,
}

impl Pool {
    /// Pools blocks.
    pub fn new(blocks: &[Block]) -> Self {
        let mut values: Vec<u64> =
            blocks.iter().flat_map(|b| b.bins.iter().map(|(value, _)| *value)).collect();
        values.sort_unstable();
        values.dedup();
        let mut cumulative = vec![0; values.len() * blocks.len()];
        for (b, block) in blocks.iter().enumerate() {
            let mut bins = block.bins.iter().peekable();
            let mut below = 0;
            for (v, value) in values.iter().enumerate() {
                while let Some((_, count)) = bins.next_if(|(bin, _)| bin <= value) {
                    below += count;
                }
                cumulative[v * blocks.len() + b] = below;
            }
        }
        Self {
            counts: blocks.iter().map(|b| b.count).collect(),
            sums: blocks.iter().map(|b| b.sum_ns as f64).collect(),
            sum_ns: blocks.iter().map(|b| b.sum_ns).sum(),
            values,
            cumulative,
        }
    }

    /// Each block once: the weights of the data itself.
    pub fn ones(&self) -> Vec<u16> {
        vec![1; self.counts.len()]
    }

    /// Samples, all blocks once.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all samples in nanoseconds, exactly.
    pub fn sum_ns(&self) -> u128 {
        self.sum_ns
    }

    /// Mean in nanoseconds under weights; NaN without samples.
    pub fn mean(&self, weights: &[u16]) -> f64 {
        let pairs = || weights.iter().zip(self.counts.iter().zip(&self.sums));
        let sum: f64 = pairs().map(|(w, (_, sum))| f64::from(*w) * sum).sum();
        let count: u64 = pairs().map(|(w, (count, _))| u64::from(*w) * count).sum();
        sum / count as f64
    }

    /// Quantile in nanoseconds under weights: the smallest bucket value that at least
    /// `ppm` millionths of the samples do not exceed; NaN without samples.
    pub fn quantile(&self, weights: &[u16], ppm: u64) -> f64 {
        let blocks = self.counts.len();
        let weighed = |counts: &[u64]| -> u64 {
            weights.iter().zip(counts).map(|(w, count)| u64::from(*w) * count).sum()
        };
        let total = weighed(&self.counts);
        let rank = (u128::from(total) * u128::from(ppm)).div_ceil(u128::from(MILLION)).max(1);
        let (mut lo, mut hi) = (0, self.values.len());
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let below = weighed(&self.cumulative[mid * blocks..(mid + 1) * blocks]);
            if u128::from(below) < rank { lo = mid + 1 } else { hi = mid }
        }
        self.values.get(lo).map_or(f64::NAN, |value| *value as f64)
    }
}

/// Whether `count` samples carry the quantile at `ppm`: [`BEYOND`] of them lie beyond it.
pub fn carries(count: u64, ppm: u64) -> bool {
    u128::from(count) * u128::from(MILLION - ppm) >= u128::from(BEYOND * MILLION)
}

/// Mean of a scalar under weights.
pub fn weighted_mean(weights: &[u16], values: &[f64]) -> f64 {
    let sum: f64 = weights.iter().zip(values).map(|(w, v)| f64::from(*w) * v).sum();
    let n: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    sum / n as f64
}

/// `a / b`, where nothing over nothing is undefined rather than infinite.
pub fn quotient(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { f64::NAN } else { a / b }
}

#[cfg(test)]
mod tests;
