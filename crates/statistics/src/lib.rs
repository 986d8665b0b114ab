//! Statistics over repeats: quantiles of pooled samples, and 95 % intervals.
//!
//! **What is resampled.** Samples of one run are correlated (a late one is followed by late ones), so an interval from
//! single samples would be far too narrow. Whole repeats, which are independent by construction, are left out in turn.
//!
//! **Which interval.** One rule for each kind of number:
//!
//! - *Means, throughputs, and their ratios*: Student's t around the estimate, on the logarithm,
//!   with the standard error of the delete-one jackknife over repeats (B. Efron and C. Stein, "The
//!   Jackknife Estimate of Variance", Annals of Statistics 9(3), 1981). Latencies are skewed and their
//!   ratios are factors, so that the logarithm is nearer to normal; t is what a variance takes that is
//!   itself an estimate from few repeats.
//! - *Quantiles* ([`Pool::interval`]): R. Woodruff's interval ("Confidence Intervals for Medians and
//!   Other Position Measures", JASA 47(260), 1952). The share of samples up to the quantile has an interval
//!   over repeats, on its logit and by t; the quantiles at its ends are the interval's ends. Values that
//!   many samples have can hide what lies below them, so the lower end goes on to values whose own share
//!   may reach it. A jackknife
//!   of a quantile looks at the few samples next to it only. *Ratios of quantiles*
//!   ([`interval_of_quantiles`]): both intervals together, on the logarithm and with the correlation of the
//!   repeats' shares (G. Zou and A. Donner, "Construction of Confidence Limits about Effect Measures",
//!   Statistics in Medicine 27(10), 2008): they are not symmetric, and neither is what comes of them.
//! - *Counts of few events* ([`interval_of_counts`]): the square root of a count has a known variance (F.
//!   Anscombe, "The Transformation of Poisson, Binomial and Negative-Binomial Data", Biometrika 35, 1948).
//!   Repeats that differ more than chance would have them widen it.
//!
//! No interval is given if none would be valid: for one repeat; for a statistic that is undefined without one of the
//! repeats; for a number that was zero in some repeats, if the number of events that it stands for is not known; for a
//! quantile whose upper end lies beyond the samples.
//!
//! **Ratios** are paired: repeat `r` had the same workload under both policies. So both leave out the same repeat, and
//! common variation cancels.

pub mod bins;

use bins::Bins;

/// With more repeats than this, they are grouped into so many blocks, and blocks are left out: the interval hardly
/// changes, and memory is bounded.
pub const MAX_BLOCKS: usize = 128;

/// Samples that must lie beyond a quantile for it to be shown.
pub const BEYOND: u64 = 10;

/// Millionths in one.
const MILLION: u64 = 1_000_000;

/// With fewer events than this over all repeats, the spread between repeats does not estimate the error.
const FEW: f64 = 40.0;

/// Relative resolution of histograms.
const RESOLUTION: f64 = 1e-3;

/// A statistic of the repeats without one: each block's weight.
fn without(blocks: usize, one: usize) -> Vec<u16> {
    (0..blocks).map(|b| u16::from(b != one)).collect()
}

/// 95 % interval of a statistic of weights (how often each block counts). `None` below two blocks, which have no
/// spread, and if the statistic is undefined for all of them or without one, like a ratio to zero.
pub fn interval(blocks: usize, statistic: &dyn Fn(&[u16]) -> f64) -> Option<[f64; 2]> {
    if blocks < 2 {
        return None;
    }
    let whole = statistic(&vec![1; blocks]);
    let mut parts: Vec<f64> = (0..blocks).map(|b| statistic(&without(blocks, b))).collect();
    parts.push(whole);
    if parts.iter().any(|x| !x.is_finite()) {
        return None;
    }
    // Equal except for the rounding of sums.
    if parts.iter().all(|x| (x - whole).abs() <= 1e-12 * whole.abs()) {
        return Some([whole; 2]);
    }
    let log = parts.iter().all(|x| *x > 0.0);
    if log {
        parts.iter_mut().for_each(|x| *x = libm::log(*x));
    }
    let centre = parts.pop()?;
    let n = blocks as f64;
    let mean = parts.iter().sum::<f64>() / n;
    let sum: f64 = parts.iter().map(|x| (x - mean) * (x - mean)).sum();
    let reach = student_975(n - 1.0) * (sum * (n - 1.0) / n).sqrt();
    let ends = [centre - reach, centre + reach];
    let ends = if log { ends.map(libm::exp) } else { ends };
    ends.iter().all(|end| end.is_finite()).then_some(ends)
}

/// Dispersion of counts of repeats: variance over mean, at least 1.
fn dispersion(counts: &[f64]) -> f64 {
    let n = counts.len() as f64;
    let mean = counts.iter().sum::<f64>() / n;
    let sum: f64 = counts.iter().map(|k| (k - mean) * (k - mean)).sum();
    if mean > 0.0 { (sum / (n - 1.0) / mean).max(1.0) } else { 1.0 }
}

/// Whether counts of repeats are few in total, or occur in so few repeats that their spread is unknown.
pub fn are_few(counts: &[f64]) -> bool {
    counts.iter().sum::<f64>() < FEW || counts.contains(&0.0)
}

/// 95 % interval of the mean of few counts; `None` below two repeats.
pub fn interval_of_counts(counts: &[f64]) -> Option<[f64; 2]> {
    if counts.len() < 2 {
        return None;
    }
    let (n, spread) = (counts.len() as f64, dispersion(counts));
    // Events that come together count once.
    let events = counts.iter().sum::<f64>() / spread;
    let (root, reach) = ((events + 0.375).sqrt(), 0.5 * NORMAL_975);
    let end = |root: f64| root * root * spread / n;
    Some([if events > 0.0 { end((root - reach).max(0.0)) } else { 0.0 }, end(root + reach)])
}

/// 95 % interval of the ratio of two means of counts, of which at least one is few: Gart's ("Alternative Analyses of
/// Contingency Tables", Journal of the Royal Statistical Society B 28, 1966), with half an event added to both. `None`
/// below two repeats, and if neither has any.
pub fn interval_of_count_ratio(mine: &[f64], base: &[f64]) -> Option<[f64; 2]> {
    let sum = |counts: &[f64]| counts.iter().sum::<f64>();
    let (a, b) = (sum(mine), sum(base));
    if mine.len() < 2 || a + b == 0.0 {
        return None;
    }
    let (a, b) = (a + 0.5, b + 0.5);
    let variance = dispersion(mine) / a + dispersion(base) / b;
    let reach = NORMAL_975 * variance.sqrt();
    let centre = libm::log(a / b);
    let lo = if sum(mine) > 0.0 { libm::exp(centre - reach) } else { 0.0 };
    (sum(base) > 0.0).then(|| [lo, libm::exp(centre + reach)])
}

/// 97.5 % quantile of the normal distribution.
const NORMAL_975: f64 = 1.959_964;

/// 97.5 % quantile of Student's t: a table for few degrees of freedom, then the Cornish-Fisher
/// expansion (Abramowitz and Stegun 26.7.5), which is right to four digits from there.
fn student_975(freedom: f64) -> f64 {
    const TABLE: [f64; 9] =
        [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622];
    if let Some(t) = TABLE.get(freedom as usize - 1) {
        return *t;
    }
    let z = NORMAL_975;
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
    /// Their sizes.
    pub bins: Bins,
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
            blocks.iter().flat_map(|b| b.bins.iter().map(|(value, _)| value)).collect();
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

    /// Blocks.
    pub fn blocks(&self) -> usize {
        self.counts.len()
    }

    /// Weights with each block once: those of the data itself.
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

    /// Weighted mean in nanoseconds; NaN without samples.
    pub fn mean(&self, weights: &[u16]) -> f64 {
        let pairs = || weights.iter().zip(self.counts.iter().zip(&self.sums));
        let sum: f64 = pairs().map(|(w, (_, sum))| f64::from(*w) * sum).sum();
        let count: u64 = pairs().map(|(w, (count, _))| u64::from(*w) * count).sum();
        sum / count as f64
    }

    /// 95 % interval of a quantile, in nanoseconds; `None` below two blocks, and where its upper end
    /// lies beyond the samples.
    pub fn interval(&self, ppm: u64) -> Option<[f64; 2]> {
        Some(self.spread(ppm)?.ends)
    }

    fn spread(&self, ppm: u64) -> Option<Spread> {
        let (blocks, ones) = (self.counts.len(), self.ones());
        let total = self.count() as f64;
        let at = self.place(&ones, ppm);
        if blocks < 2 || at >= self.values.len() {
            return None;
        }
        let share = ppm as f64 / MILLION as f64;
        let up_to = |at: usize| {
            let below = &self.cumulative[at * blocks..(at + 1) * blocks];
            let seen = below.iter().sum::<u64>() as f64 / total;
            let pairs = below.iter().zip(&self.counts);
            let off = pairs.map(|(below, n)| (*below as f64 - seen * *n as f64) / total);
            let off: Vec<f64> = off.collect();
            let reach = standard_error(&off) * student_975(blocks as f64 - 1.0);
            (seen, reach, off)
        };
        let (_, reach, off) = up_to(at);
        let odds = share / (1.0 - share);
        let end = |reach: f64| {
            let odds = odds * libm::exp(reach / (share * (1.0 - share)));
            // Infinite odds are certain.
            let share = if odds.is_finite() { odds / (1.0 + odds) } else { 1.0 };
            let rank = libm::ceil(share * total).max(1.0);
            // The largest sample bounds nothing.
            let bounds = reach == 0.0 || rank < total;
            self.values.get(self.place_of(&ones, rank as u64)).filter(|_| bounds).copied()
        };
        let (mut lo, hi) = (end(-reach)? as f64, end(reach)? as f64);
        // Of values that many samples have, the share up to the quantile says nothing of the one below: it may be all
        // samples in each repeat.
        let mut lowest = at;
        while lo == self.values[lowest] as f64 && lowest > 0 {
            let (seen, reach, _) = up_to(lowest - 1);
            if seen + reach < share {
                break;
            }
            lowest -= 1;
            lo = self.values[lowest] as f64;
        }
        // The histogram's resolution is what a quantile is known to at best.
        let ends = [lo * (1.0 - RESOLUTION), hi * (1.0 + RESOLUTION)];
        let at = self.values[at] as f64;
        Some(Spread { off, at, ends })
    }

    /// Weighted quantile in nanoseconds: the smallest bucket value that at least `ppm` millionths of the samples do not
    /// exceed; NaN without samples.
    pub fn quantile(&self, weights: &[u16], ppm: u64) -> f64 {
        self.values.get(self.place(weights, ppm)).map_or(f64::NAN, |value| *value as f64)
    }

    /// Index of a quantile among the values; behind them without samples.
    fn place(&self, weights: &[u16], ppm: u64) -> usize {
        let total: u64 = weights.iter().zip(&self.counts).map(|(w, n)| u64::from(*w) * n).sum();
        let rank = (u128::from(total) * u128::from(ppm)).div_ceil(u128::from(MILLION)).max(1);
        self.place_of(weights, rank as u64)
    }

    /// Index of the sample with this rank.
    fn place_of(&self, weights: &[u16], rank: u64) -> usize {
        let blocks = self.counts.len();
        let weighed = |counts: &[u64]| -> u64 {
            weights.iter().zip(counts).map(|(w, count)| u64::from(*w) * count).sum()
        };
        let (mut lo, mut hi) = (0, self.values.len());
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let below = weighed(&self.cumulative[mid * blocks..(mid + 1) * blocks]);
            if below < rank { lo = mid + 1 } else { hi = mid }
        }
        lo
    }
}

/// Spread of a quantile.
#[derive(Clone, Debug)]
struct Spread {
    /// For each block: its samples up to the quantile beyond the number it would have if all blocks were alike, as a
    /// share of all samples.
    off: Vec<f64>,
    /// The quantile.
    at: f64,
    /// Ends of its interval.
    ends: [f64; 2],
}

impl Spread {
    /// Logarithm of the quantile, and the distances to the interval's ends.
    fn reaches(&self) -> Option<(f64, [f64; 2])> {
        let at = libm::log(self.at);
        let [lo, hi] = self.ends.map(libm::log);
        (at.is_finite() && lo.is_finite()).then_some((at, [at - lo, hi - at]))
    }
}

/// 95 % interval of the ratio of two quantiles of paired pools; `None` where either has none.
pub fn interval_of_quantiles(mine: &Pool, base: &Pool, ppm: u64) -> Option<[f64; 2]> {
    let (mine, base) = (mine.spread(ppm)?, base.spread(ppm)?);
    let ((a, [a_down, a_up]), (b, [b_down, b_up])) = (mine.reaches()?, base.reaches()?);
    let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let spread = (sum(&mine.off, &mine.off) * sum(&base.off, &base.off)).sqrt();
    let alike = if spread > 0.0 { sum(&mine.off, &base.off) / spread } else { 0.0 };
    let both = |x: f64, y: f64| (x * x + y * y - 2.0 * alike * x * y).max(0.0).sqrt();
    let ends = [a - b - both(a_down, b_up), a - b + both(a_up, b_down)].map(libm::exp);
    ends.iter().all(|end| end.is_finite()).then_some(ends)
}

/// Standard error of a sum of contributions of blocks, which add up to zero.
fn standard_error(parts: &[f64]) -> f64 {
    let n = parts.len() as f64;
    (parts.iter().map(|part| part * part).sum::<f64>() * n / (n - 1.0)).sqrt()
}

/// The median; sorts the values. `None` without values.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => values.get(n / 2).copied(),
        _ => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

/// Whether `count` samples are enough for the quantile at `ppm`: [`BEYOND`] of them lie beyond it.
pub fn carries(count: u64, ppm: u64) -> bool {
    u128::from(count) * u128::from(MILLION - ppm) >= u128::from(BEYOND * MILLION)
}

/// Weighted mean of a scalar.
pub fn weighted_mean(weights: &[u16], values: &[f64]) -> f64 {
    let sum: f64 = weights.iter().zip(values).map(|(w, v)| f64::from(*w) * v).sum();
    let n: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    sum / n as f64
}

/// `a / b`; zero over zero is undefined (NaN) rather than infinite.
pub fn quotient(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { f64::NAN } else { a / b }
}

#[cfg(test)]
mod tests;
