//! When a point has enough repeats.
//!
//! A sequential rule of fixed relative width (Y. Chow and H. Robbins, Annals of Mathematical Statistics 36(2), 1965):
//! repeats are added until the 95 % interval of every comparison is narrow enough. Only the interval's width counts,
//! not whether it excludes 1, so the rule does not favour finding a difference.

use vcoop_experiment::result::{Document, LatencySeries};
use vcoop_model::sweep::Stop;

/// Whether every comparison is precise enough: each policy but the baseline, each probe that counts. A comparison
/// without an interval is not. True if there is nothing to compare.
pub fn settled(document: &Document, rule: &Stop) -> bool {
    let most = f64::from(rule.width_ppm) / 1e6;
    let counts = |s: &&LatencySeries| {
        if rule.probes.is_empty() { s.is_of_a_guest() } else { rule.probes.contains(&s.key.probe) }
    };
    let others = document.latencies().filter(|s| s.key.policy != document.baseline).filter(counts);
    others.into_iter().all(|s| match s.ratio(rule.statistic) {
        (Some(ratio), Some([lo, hi])) => (hi - lo) <= most * ratio,
        _ => false,
    })
}

/// The next number of repeats: half as many more, at least two.
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
