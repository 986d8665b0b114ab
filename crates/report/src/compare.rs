//! A ratio and its interval, in words and as a mark.

use vcoop_experiment::result::{Document, Interval, LatencySeries, Statistic};
use vcoop_experiment::{format, judge};

use crate::style::Tone;

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Less,
    More,
    /// Neither: it is shown without judgement.
    Neutral,
}

/// The mark of a ratio by its interval, with so many repeats: `+` better, `-` worse, `~` no difference beyond noise;
/// empty without an interval, and with too few repeats.
pub(crate) fn mark(
    interval: Option<Interval>,
    repeats: u32,
    better: Direction,
) -> (&'static str, Tone) {
    if interval.is_none() || repeats < judge::LEAST_REPEATS {
        return ("", Tone::Plain);
    }
    let (below, above) = (judge::clearly_below(interval), judge::clearly_above(interval));
    match better {
        _ if !below && !above => ("~", Tone::Faint),
        Direction::Neutral => ("", Tone::Plain),
        Direction::Less if below => ("+", Tone::Good),
        Direction::More if above => ("+", Tone::Good),
        Direction::Less | Direction::More => ("-", Tone::Bad),
    }
}

/// Comparison of a latency with the baseline's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencyComparison {
    pub(crate) ratio: Option<f64>,
    pub(crate) interval: Option<Interval>,
    /// It is the ratio of means: the p99s have none.
    pub(crate) of_means: bool,
    pub(crate) sign: &'static str,
    pub(crate) tone: Tone,
}

/// Comparison of a latency with the baseline's; `None` for the baseline. A policy that misses a larger share of its
/// periods than the baseline is not better: the missing samples would have been the worst.
pub(crate) fn judged(document: &Document, series: &LatencySeries) -> Option<LatencyComparison> {
    let ratios = series.ratio_to_baseline?;
    let of_means = ratios.p99.is_none() && ratios.mean.is_some();
    let (ratio, interval) = series.ratio(if of_means { Statistic::Mean } else { Statistic::P99 });
    let (mut sign, mut tone) = mark(interval, series.key.repeats, Direction::Less);
    if sign == "+" && misses_more(document, series) {
        (sign, tone) = ("", Tone::Plain);
    }
    Some(LatencyComparison { ratio, interval, of_means, sign, tone })
}

/// Whether a series misses a larger share of its periods than under the baseline.
fn misses_more(document: &Document, series: &LatencySeries) -> bool {
    let cell = (series.key.backend.clone(), series.key.params.clone());
    let base = document.latency(&cell, &series.key.name(), &document.baseline);
    base.is_some_and(|base| series.missed_share() > base.missed_share())
}

/// `0.0122x [0.0101, 0.0147]`.
pub(crate) fn with_interval(ratio: Option<f64>, interval: Option<Interval>) -> String {
    let Some(ratio) = ratio else { return "n/a".to_owned() };
    match interval {
        Some([lo, hi]) => {
            format!("{} [{}, {}]", format::ratio(ratio), format::bound(lo), format::bound(hi))
        }
        None => format::ratio(ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_takes_an_interval_without_one_and_five_repeats() {
        let few = judge::LEAST_REPEATS - 1;
        assert_eq!(super::mark(Some([0.2, 0.9]), few, Direction::Less).0, "");
        let mark = |interval, better| super::mark(interval, few + 1, better);
        assert_eq!(mark(Some([0.2, 0.9]), Direction::Less).0, "+");
        assert_eq!(mark(Some([1.1, 1.9]), Direction::Less).0, "-");
        assert_eq!(mark(Some([0.9, 1.1]), Direction::Less).0, "~");
        assert_eq!(mark(Some([0.9, 1.0]), Direction::Less).0, "~");
        assert_eq!(mark(Some([1.001, 1.003]), Direction::Less).0, "~", "sharp, but nothing");
        assert_eq!(mark(Some([0.2, 0.9]), Direction::More).0, "-");
        assert_eq!(mark(None, Direction::Less).0, "");
    }

    #[test]
    fn ratios_show_their_interval() {
        assert_eq!(with_interval(Some(0.5), Some([0.4, 0.6])), "0.50x [0.40, 0.60]");
        assert_eq!(with_interval(Some(2.0), None), "2.00x");
        assert_eq!(with_interval(None, None), "n/a");
    }
}
