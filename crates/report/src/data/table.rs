//! `compare.txt`: tables in the format of mmtests' `compare-kernels.sh`, for patch mails.

use std::fmt::Write;

use vcoop_experiment::judge::LEAST_REPEATS;
use vcoop_experiment::result::{Document, LatencySeries, Params, Statistic};
use vcoop_model::distinct;

/// One table for each backend, cell and probe: rows are statistics in microseconds, columns policies. In brackets how
/// much better (or worse, if negative) than the first column; in `* *` if the 95 % interval of the ratio excludes 1, as
/// mmtests marks significant values.
pub(super) fn table(document: &Document) -> String {
    let mut out = String::new();
    for cell in document.cells() {
        let series: Vec<&LatencySeries> =
            document.latencies().filter(|s| s.key.is_in(&cell)).collect();
        for name in distinct(series.iter().map(|s| s.key.name())) {
            let own: Vec<&LatencySeries> =
                series.iter().copied().filter(|s| s.key.is_named(&name)).collect();
            // `latency` is what a probe measures that does not say otherwise.
            let latency = if name == own[0].key.probe { " latency" } else { "" };
            one(&mut out, &cell, &format!("{name}{latency}"), &own);
        }
    }
    out
}

/// The statistics between minimum and maximum, with mmtests' names.
const STATISTICS: [(&str, Statistic); 5] = [
    ("Amean", Statistic::Mean),
    ("p50", Statistic::P50),
    ("p90", Statistic::P90),
    ("p99", Statistic::P99),
    ("p99.9", Statistic::P999),
];

/// A value, its ratio to the baseline, and whether the ratio's interval excludes 1, with enough repeats to say so.
type Value = (Option<f64>, Option<f64>, bool);

fn one(out: &mut String, cell: &(String, Params), what: &str, own: &[&LatencySeries]) {
    let params: String = cell.1.iter().map(|(k, v)| format!(" {k}={v}")).collect();
    let _ = writeln!(out, "{what} (us), {}{params}", cell.0);
    let _ = write!(out, "{:<10}", "");
    for s in own {
        let _ = write!(out, "{:>26}", s.key.policy);
    }
    out.push('\n');
    row(out, "Min", own, |s| (s.min, None, false));
    for (name, of) in STATISTICS {
        row(out, name, own, |s| {
            let (ratio, interval) = s.ratio(of);
            let enough = s.key.repeats >= LEAST_REPEATS;
            (s.statistic(of).0, ratio, enough && interval.is_some_and(|i| i[0] > 1.0 || i[1] < 1.0))
        });
    }
    row(out, "Max", own, |s| (s.max, None, false));
    out.push('\n');
}

fn row(out: &mut String, name: &str, own: &[&LatencySeries], of: impl Fn(&LatencySeries) -> Value) {
    let _ = write!(out, "{name:<10}");
    for s in own {
        let (value, ratio, sure) = of(s);
        let text = match (value, ratio) {
            (None, _) => "n/a".to_owned(),
            (Some(value), None) => format!("{value:.2} (        )"),
            (Some(value), Some(ratio)) => {
                let better = 100.0 * (1.0 - ratio);
                let (open, close) = if sure { ('*', '*') } else { ('(', ')') };
                format!("{value:.2} {open}{better:7.2}%{close}")
            }
        };
        let _ = write!(out, "{text:>26}");
    }
    out.push('\n');
}
