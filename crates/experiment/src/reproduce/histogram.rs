//! Published histograms against simulated ones, bucket by bucket.
//!
//! Their distance is Wasserstein's: how far a sample has to be moved, on average, to make one of the other. Different
//! histograms can have the same mean, but not distance 0.

use std::collections::BTreeMap;

use vcoop_model::plan::Plan;
use vcoop_statistics::bins::Bins;

use super::compare::fits;
use super::document::{Bucket, HistogramResult};
use crate::published::{Histogram, HistogramColumn, MOST_US};
use crate::rounding::scalar;
use crate::runner::PlanRuns;

/// Compares a histogram with the runs of its scenario.
pub(super) fn compare(
    histogram: &Histogram,
    plans: &[Plan],
    runs: &[PlanRuns],
) -> Vec<HistogramResult> {
    histogram.columns.iter().map(|column| one(histogram, column, plans, runs)).collect()
}

fn one(
    histogram: &Histogram,
    column: &HistogramColumn,
    plans: &[Plan],
    runs: &[PlanRuns],
) -> HistogramResult {
    let simulated = simulated(histogram, column, plans, runs);
    let published: Bins = column.buckets.iter().map(|&(us, n)| (us.min(MOST_US), n)).collect();
    let share = |n: u64, of: &Bins| scalar(n as f64 / of.count().max(1) as f64);
    let bucket = |(us, (theirs, ours))| Bucket {
        us,
        published: theirs,
        published_share: share(theirs, &published),
        simulated: ours,
        simulated_share: share(ours, &simulated),
    };
    let both = side_by_side(&published, &simulated).into_iter();
    let buckets = both.filter(|(_, (theirs, ours))| theirs + ours > 0).map(bucket).collect();
    HistogramResult {
        histogram: histogram.id.clone(),
        column: column.name.clone(),
        unit: "us".to_owned(),
        published_samples: column.samples,
        published_listed: published.count(),
        simulated_samples: simulated.count(),
        published_mean: mean(&published).map(scalar),
        simulated_mean: mean(&simulated).map(scalar),
        wasserstein_us: distance(&published, &simulated).map(scalar),
        buckets,
    }
}

fn mean(bins: &Bins) -> Option<f64> {
    let sum: u128 = bins.iter().map(|(us, n)| u128::from(us) * u128::from(n)).sum();
    (!bins.is_empty()).then(|| sum as f64 / bins.count() as f64)
}

/// Whole microseconds of both, and how many samples each has there.
fn side_by_side<'a>(a: &'a Bins, b: &'a Bins) -> BTreeMap<u64, (u64, u64)> {
    let mut both: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    a.iter().for_each(|(us, n)| both.entry(us).or_default().0 = n);
    b.iter().for_each(|(us, n)| both.entry(us).or_default().1 = n);
    both
}

/// Wasserstein distance of two histograms, in buckets; `None` if one is empty. It is the area between their
/// distribution functions, in integers: the same on every machine.
fn distance(a: &Bins, b: &Bins) -> Option<f64> {
    let (na, nb) = (u128::from(a.count()), u128::from(b.count()));
    if na == 0 || nb == 0 {
        return None;
    }
    let (mut fa, mut fb, mut area, mut from) = (0u128, 0u128, 0u128, 0);
    for (us, (theirs, ours)) in side_by_side(a, b) {
        area += (fa * nb).abs_diff(fb * na) * u128::from(us - from);
        fa += u128::from(theirs);
        fb += u128::from(ours);
        from = us;
    }
    Some(area as f64 / (na * nb) as f64)
}

fn simulated(
    histogram: &Histogram,
    column: &HistogramColumn,
    plans: &[Plan],
    runs: &[PlanRuns],
) -> Bins {
    let mut bins = Bins::default();
    for run in runs {
        let plan = &plans[run.plan];
        if plan.policy_name != column.policy || !fits(&plan.params, &column.cell) {
            continue;
        }
        let latencies = run.repeats.iter().flatten().flat_map(|digest| &digest.latencies);
        for latency in latencies.filter(|l| l.probe == histogram.probe) {
            latency.bins.iter().for_each(|(ns, n)| bins.add((ns / 1_000).min(MOST_US), n));
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bins(of: &[(u64, u64)]) -> Bins {
        of.iter().copied().collect()
    }

    #[test]
    fn the_distance_is_how_far_samples_have_to_move() {
        let d = |a: &[(u64, u64)], b: &[(u64, u64)]| distance(&bins(a), &bins(b));
        assert_eq!(d(&[(5, 7)], &[(5, 900)]), Some(0.0), "shares count, not numbers");
        assert_eq!(d(&[(5, 7)], &[(9, 3)]), Some(4.0));
        assert_eq!(d(&[(4, 1), (6, 1)], &[(5, 1)]), Some(1.0), "equal means hide it");
        assert_eq!(d(&[(0, 3), (10, 1)], &[(0, 1)]), Some(2.5));
        assert_eq!(d(&[], &[(0, 1)]), None);
    }

    #[test]
    fn means_are_of_whole_microseconds() {
        assert_eq!(mean(&bins(&[(5, 1), (6, 3)])), Some(5.75));
        assert_eq!(mean(&bins(&[])), None);
    }
}
