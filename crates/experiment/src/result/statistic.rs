//! The statistics of a latency series, by name.

use vcoop_model::sweep::Statistic;

use super::{Interval, LatencySeries, PerStatistic};

/// A value and its interval.
pub type Bounded = (Option<f64>, Option<Interval>);

impl LatencySeries {
    /// A statistic.
    pub fn statistic(&self, of: Statistic) -> Bounded {
        match of {
            Statistic::Mean => (self.mean, self.mean_ci95),
            Statistic::P50 => (self.p50, self.p50_ci95),
            Statistic::P90 => (self.p90, self.p90_ci95),
            Statistic::P99 => (self.p99, self.p99_ci95),
            Statistic::P999 => (self.p999, self.p999_ci95),
            Statistic::P9999 => (self.p9999, self.p9999_ci95),
        }
    }

    /// Ratio of a statistic to the baseline's.
    pub fn ratio(&self, of: Statistic) -> Bounded {
        let ratio = self.ratio_to_baseline.and_then(|ratios| ratios.of(of));
        (ratio, self.ratio_ci95.and_then(|intervals| intervals.of(of)))
    }
}

impl<T: Copy> PerStatistic<T> {
    fn of(&self, of: Statistic) -> Option<T> {
        match of {
            Statistic::Mean => self.mean,
            Statistic::P50 => self.p50,
            Statistic::P90 => self.p90,
            Statistic::P99 => self.p99,
            Statistic::P999 => self.p999,
            Statistic::P9999 => self.p9999,
        }
    }
}
