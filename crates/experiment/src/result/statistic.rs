//! The statistics of a latency series, by name.

use vcoop_model::sweep::Statistic;

use super::{Interval, LatencySeries};

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
        let ratios = self.ratio_to_baseline.unwrap_or_default();
        let intervals = self.ratio_ci95.unwrap_or_default();
        match of {
            Statistic::Mean => (ratios.mean, intervals.mean),
            Statistic::P50 => (ratios.p50, intervals.p50),
            Statistic::P90 => (ratios.p90, intervals.p90),
            Statistic::P99 => (ratios.p99, intervals.p99),
            Statistic::P999 => (ratios.p999, intervals.p999),
            Statistic::P9999 => (ratios.p9999, intervals.p9999),
        }
    }
}
