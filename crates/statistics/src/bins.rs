//! Samples by size.
//!
//! A recording counts in a dense histogram, which takes half a megabyte and needs no search. Storage, sums and views
//! use [`Bins`]: only the buckets that have samples.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use vcoop_model::plan::Ns;
use vcoop_model::recording::LatencyRecord;

/// The largest value that has the same leading `digits` binary digits.
pub fn bucket_top(ns: Ns, digits: u32) -> Ns {
    let dropped = (Ns::BITS - ns.leading_zeros()).saturating_sub(digits);
    ns | ((1 << dropped) - 1)
}

/// Number of samples of each bucket, by its largest value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins(BTreeMap<Ns, u64>);

impl Bins {
    /// Binary digits of buckets of a dense histogram.
    pub const DIGITS: u32 = 11;

    /// The bins of a dense histogram; the last bucket ends at the largest sample.
    pub fn of(histogram: &Histogram<u64>, max_ns: Ns) -> Self {
        let bins = histogram.iter_recorded();
        bins.map(|bin| (bin.value_iterated_to().min(max_ns), bin.count_at_value())).collect()
    }

    /// A dense histogram of them.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut histogram = LatencyRecord::histogram();
        self.iter().for_each(|(top, n)| histogram.saturating_record_n(top, n));
        histogram
    }

    /// Adds `n` samples to the bucket that ends at `top`.
    pub fn add(&mut self, top: Ns, n: u64) {
        *self.0.entry(top).or_default() += n;
    }

    /// Adds the samples of another one.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(top, n)| self.add(top, n));
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Samples.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Largest value and samples of each bucket, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Ns, u64)> + ExactSizeIterator {
        self.0.iter().map(|(top, n)| (*top, *n))
    }

    /// The smallest top that so many millionths of the samples do not exceed; 0 without samples.
    pub fn quantile(&self, ppm: u64) -> Ns {
        let rank = (u128::from(self.count()) * u128::from(ppm)).div_ceil(1_000_000).max(1);
        let mut seen = 0;
        for (top, n) in self.iter() {
            seen += u128::from(n);
            if seen >= rank {
                return top;
            }
        }
        self.0.last_key_value().map_or(0, |(top, _)| *top)
    }
}

impl FromIterator<(Ns, u64)> for Bins {
    fn from_iter<I: IntoIterator<Item = (Ns, u64)>>(bins: I) -> Self {
        let mut all = Self::default();
        bins.into_iter().for_each(|(top, n)| all.add(top, n));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for ns in [0, 1, 31, 32, 33, 1000, 123_456_789, u64::MAX] {
            let top = bucket_top(ns, 5);
            assert!(top >= ns && top - ns <= ns / 16, "{ns}: {top}");
            assert_eq!(bucket_top(top, 5), top);
            assert!(top == u64::MAX || bucket_top(top + 1, 5) > top);
        }
    }

    #[test]
    fn buckets_of_a_dense_histogram_come_back() {
        let mut histogram = LatencyRecord::histogram();
        let samples = [0, 1, 2047, 2048, 70_001, 1_000_000, 1_000_001, 59_999_999_999];
        samples.iter().for_each(|ns| histogram.record(*ns).unwrap());
        let bins = Bins::of(&histogram, Ns::MAX);
        let by_hand = samples.map(|ns| (bucket_top(ns, Bins::DIGITS), 1));
        assert_eq!(bins, by_hand.into_iter().collect());
        assert_eq!(bins.histogram(), histogram);
        assert_eq!(Bins::of(&histogram, 59_999_999_999).quantile(1_000_000), 59_999_999_999);
    }

    #[test]
    fn quantiles_count_samples() {
        let mut bins: Bins = [(10, 90), (20, 1)].into_iter().collect();
        bins.merge(&[(10, 8), (30, 1)].into_iter().collect());
        let at = [500_000, 980_000, 990_000, 999_000, 1_000_000].map(|ppm| bins.quantile(ppm));
        assert_eq!(at, [10, 10, 20, 30, 30]);
        assert_eq!((bins.count(), Bins::default().quantile(500_000)), (100, 0));
    }
}
