//! Overview of a matrix: ratios to the baseline as a heat map, a row for each policy, a column for each cell.

use vcoop_experiment::format;
use vcoop_experiment::params;
use vcoop_experiment::result::{Document, LatencySeries};

use super::{heads, row, scrolling};
use crate::chart::build::probes;
use crate::chart::escape::text as esc;
use crate::compare::{LatencyComparison, judged};

/// A heat map for each probe and backend; nothing without a matrix, or with only one policy.
pub(super) fn heat_maps(document: &Document) -> String {
    let mut out = String::new();
    let cells = document.cells();
    if cells.len() <= document.backends.len() || document.policies.len() < 2 {
        return out;
    }
    out.push_str(
        "<p>Ratios to the baseline of p99, or of means (marked *) where samples are too few. Green is \
         better, orange worse, stronger where further from 1x; <b>+</b> and <b>\u{2212}</b> stand where the \
         95 % interval excludes 1x, <b>~</b> where it does not.</p>",
    );
    for backend in &document.backends {
        let own: Vec<_> = cells.iter().filter(|(b, _)| b == backend).collect();
        for probe in &probes(document) {
            let title = match document.backends.len() {
                1 => probe.to_string(),
                _ => format!("{probe} on {backend}"),
            };
            let cells = own.iter().map(|(_, params)| params::words(params));
            let heads = heads([String::new()].into_iter().chain(cells));
            let policies = document.policies.iter().filter(|p| **p != document.baseline);
            let rows = policies.map(|policy| {
                let series = own.iter().map(|cell| document.latency(cell, probe, policy));
                let none = || "<td></td>".to_owned();
                row(&esc(policy), series.map(|s| s.map_or_else(none, |s| one(document, s))))
            });
            out += &format!("<h3>{}</h3>{}", esc(&title), scrolling(&title, &heads, rows));
        }
    }
    out
}

fn one(document: &Document, series: &LatencySeries) -> String {
    let Some(LatencyComparison { ratio: Some(ratio), of_means, sign, .. }) =
        judged(document, series)
    else {
        return "<td>n/a</td>".to_owned();
    };
    let star = if of_means { "*" } else { "" };
    let class = heat(ratio);
    format!(
        "<td class=\"{class}\">{}{star} <b>{}</b></td>",
        format::ratio(ratio),
        sign.replace('-', "\u{2212}")
    )
}

/// The CSS class of a ratio: a step for each factor of four.
fn heat(ratio: f64) -> String {
    let steps = (libm::log2(ratio.max(1e-6)) / 2.0).abs().ceil().min(4.0);
    match ratio {
        _ if (0.9..1.1).contains(&ratio) => String::new(),
        _ if ratio < 1.0 => format!("better{steps}"),
        _ => format!("worse{steps}"),
    }
}

#[cfg(test)]
mod tests {
    use super::heat;

    #[test]
    fn heat_grows_with_the_distance_from_one() {
        let classes = [0.001, 0.1, 0.5, 1.05, 2.0, 20.0].map(heat);
        assert_eq!(classes, ["better4", "better2", "better1", "", "worse1", "worse3"]);
    }
}
