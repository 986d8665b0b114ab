//! Published histograms against simulated ones, bucket by bucket.
//!
//! Their distance is Wasserstein's: how far a sample has to be moved, on average, to make one of the
//! other. A mean that agrees can hide two histograms that do not; this cannot.

use vcoop_model::plan::Plan;

use super::compare::fits;
use super::document::{Bucket, HistogramResult};
use crate::published::{Histogram, HistogramColumn};
use crate::rounding::scalar;
use crate::runner::PlanRuns;

/// Holds a histogram against the runs of its scenario.
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
    let mut published = Counts::default();
    column.buckets.iter().for_each(|&(us, n)| published.add(us, n));
    let total: u64 = simulated.0.iter().sum();
    let mut buckets = Vec::new();
    for us in 0..published.0.len().max(simulated.0.len()) {
        let (theirs, ours) = (published.at(us), simulated.at(us));
        if theirs > 0 || ours > 0 {
            let share = |n: u64, of: &Counts| scalar(n as f64 / of.total().max(1) as f64);
            buckets.push(Bucket {
                us: us as u64,
                published: theirs,
                published_share: share(theirs, &published),
                simulated: ours,
                simulated_share: share(ours, &simulated),
            });
        }
    }
    HistogramResult {
        histogram: histogram.id.clone(),
        column: column.name.clone(),
        unit: "us".to_owned(),
        published_samples: column.samples,
        published_listed: published.total(),
        simulated_samples: total,
        published_mean: published.mean().map(scalar),
        simulated_mean: simulated.mean().map(scalar),
        wasserstein_us: distance(&published, &simulated).map(scalar),
        buckets,
    }
}

/// Samples by whole microseconds, as cyclictest counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts(Vec<u64>);

/// Beyond this samples fall into the last bucket.
const MOST_US: u64 = 100_000;

impl Counts {
    fn add(&mut self, us: u64, n: u64) {
        let us = us.min(MOST_US) as usize;
        if self.0.len() <= us {
            self.0.resize(us + 1, 0);
        }
        self.0[us] += n;
    }

    fn at(&self, us: usize) -> u64 {
        self.0.get(us).copied().unwrap_or(0)
    }

    fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn mean(&self) -> Option<f64> {
        let sum: u128 = (0u128..).zip(&self.0).map(|(us, n)| us * u128::from(*n)).sum();
        let total = self.total();
        (total > 0).then(|| sum as f64 / total as f64)
    }
}

/// Wasserstein's distance of two histograms, in buckets; `None` if one is empty. The area between their
/// distribution functions, in integers: the same everywhere.
fn distance(a: &Counts, b: &Counts) -> Option<f64> {
    let (na, nb) = (u128::from(a.total()), u128::from(b.total()));
    if na == 0 || nb == 0 {
        return None;
    }
    let (mut fa, mut fb, mut area) = (0u128, 0u128, 0u128);
    for us in 0..a.0.len().max(b.0.len()) {
        fa += u128::from(a.at(us));
        fb += u128::from(b.at(us));
        area += (fa * nb).abs_diff(fb * na);
    }
    Some(area as f64 / (na * nb) as f64)
}

fn simulated(
    histogram: &Histogram,
    column: &HistogramColumn,
    plans: &[Plan],
    runs: &[PlanRuns],
) -> Counts {
    let mut counts = Counts::default();
    for run in runs {
        let plan = &plans[run.plan];
        if plan.policy_name != column.policy || !fits(&plan.params, &column.cell) {
            continue;
        }
        let latencies = run.repeats.iter().flatten().flat_map(|digest| &digest.latencies);
        for latency in latencies.filter(|l| l.probe == histogram.probe) {
            latency.bins.iter().for_each(|&(ns, n)| counts.add(ns / 1_000, n));
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(u64, u64)]) -> Counts {
        let mut counts = Counts::default();
        of.iter().for_each(|&(us, n)| counts.add(us, n));
        counts
    }

    #[test]
    fn the_distance_is_how_far_samples_have_to_move() {
        let d = |a: &[(u64, u64)], b: &[(u64, u64)]| distance(&counts(a), &counts(b));
        assert_eq!(d(&[(5, 7)], &[(5, 900)]), Some(0.0), "shares count, not numbers");
        assert_eq!(d(&[(5, 7)], &[(9, 3)]), Some(4.0));
        assert_eq!(d(&[(4, 1), (6, 1)], &[(5, 1)]), Some(1.0), "equal means hide it");
        assert_eq!(d(&[(0, 3), (10, 1)], &[(0, 1)]), Some(2.5));
        assert_eq!(d(&[], &[(0, 1)]), None);
    }

    #[test]
    fn means_are_of_whole_microseconds() {
        assert_eq!(counts(&[(5, 1), (6, 3)]).mean(), Some(5.75));
        assert_eq!(counts(&[]).mean(), None);
        assert_eq!(counts(&[(u64::MAX, 1)]).mean(), Some(MOST_US as f64), "bounded");
    }
}
