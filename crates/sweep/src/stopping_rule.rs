//! When a point has enough repeats.
//!
//! A sequential rule of fixed relative width (Y. Chow and H. Robbins, Annals of Mathematical
//! Statistics 36(2), 1965): repeats are added until the 95 % interval of every comparison is narrow
//! enough. It looks at the interval's width, never at whether it excludes 1, so it does not favour
//! finding a difference.

use vcoop_experiment::result::{Document, Interval, LatencySeries};
use vcoop_model::sweep::{Statistic, Stop};

/// Whether every comparison is sharp enough: each policy but the baseline, each probe that counts.
/// A comparison without an interval is not. True where there is nothing to compare.
pub fn settled(document: &Document, rule: &Stop) -> bool {
    let most = f64::from(rule.width_ppm) / 1e6;
    let counts = |s: &&LatencySeries| {
        if rule.probes.is_empty() { s.is_of_a_guest() } else { rule.probes.contains(&s.key.probe) }
    };
    let others = document.latencies().filter(|s| s.key.policy != document.baseline).filter(counts);
    others.into_iter().all(|s| match comparison(s, rule.statistic) {
        Some((ratio, [lo, hi])) => (hi - lo) <= most * ratio,
        None => false,
    })
}

/// The ratio to the baseline, and its interval.
fn comparison(s: &LatencySeries, statistic: Statistic) -> Option<(f64, Interval)> {
    let (ratio, ci) = (s.ratio_to_baseline?, s.ratio_ci95?);
    let (ratio, ci) = match statistic {
        Statistic::Mean => (ratio.mean, ci.mean),
        Statistic::P50 => (ratio.p50, ci.p50),
        Statistic::P90 => (ratio.p90, ci.p90),
        Statistic::P99 => (ratio.p99, ci.p99),
        Statistic::P999 => (ratio.p999, ci.p999),
        Statistic::P9999 => (ratio.p9999, ci.p9999),
    };
    Some((ratio?, ci?))
}

/// Repeats to have next: half as many again, at least two more.
pub fn next(repeats: u32, most: u32) -> u32 {
    (repeats + repeats / 2).max(repeats.saturating_add(2)).min(most)
}

#[cfg(test)]
mod tests {
    use super::next;

    #[test]
    fn repeats_grow_by_half_up_to_the_limit() {
        assert_eq!([next(2, 99), next(5, 99), next(10, 99), next(10, 12)], [4, 7, 15, 12]);
    }
}
