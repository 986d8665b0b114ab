//! The latency table: a row a policy under each probe.

use vcoop_lab::human;
use vcoop_lab::result::{Document, LatencySeries, Params};

use crate::compare::{Better, mark, with_interval};
use crate::style::{Style, Tone, cut, finish};
use crate::vcpus;

/// Width of names: what the numbers leave.
const NAME: usize = 18;
/// The same where names say what was measured.
const LONG_NAME: usize = 26;

/// The ratio that stands for a series, whether it is that of means, and its sign.
fn judged(series: &LatencySeries) -> (String, bool, (&'static str, Tone)) {
    let Some(ratios) = series.ratio_to_baseline else {
        return (String::new(), false, ("", Tone::Plain));
    };
    let intervals = series.ratio_ci95.unwrap_or_default();
    let mean = ratios.p99.is_none();
    let (ratio, interval) =
        if mean { (ratios.mean, intervals.mean) } else { (ratios.p99, intervals.p99) };
    let star = if mean { "*" } else { "" };
    let text = format!("{star}{}", with_interval(ratio, interval));
    (text, mean, mark(interval, series.key.repeats, Better::Less))
}

/// The signs of a cell.
pub(crate) fn signs(document: &Document, cell: &(String, Params)) -> Vec<&'static str> {
    document.latencies().filter(|s| s.key.is_in(cell)).map(|s| judged(s).2.0).collect()
}

/// Guest and host probes of a cell, and what is not available in them and why.
pub(crate) fn render(document: &Document, cell: &(String, Params), style: Style) -> String {
    let in_cell: Vec<&LatencySeries> = document.latencies().filter(|s| s.key.is_in(cell)).collect();
    if in_cell.is_empty() {
        return String::new();
    }
    let ratio = format!("p99 / {}", cut(&document.baseline, NAME));
    let header = ["", "mean", "p50", "p99", "p99.9", "max", "missed", ratio.as_str(), ""];
    let mut table = style.table(header);
    let mut names: Vec<_> = Vec::new();
    for name in in_cell.iter().map(|series| series.key.name()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // The guest is what the policies are for: it comes first.
    names.sort_by_key(|name| name.starts_with("host."));
    let (mut by_mean, mut absent) = (false, false);
    let long = in_cell.iter().any(|s| vcpus::is_a_wait(&s.key));
    let most = if long { LONG_NAME } else { NAME };
    for name in names {
        table.add_row([style.cell(cut(&name, most), Tone::Plain)]);
        for series in in_cell.iter().filter(|s| s.key.is_named(&name)) {
            let time = |v: Option<f64>| v.map_or_else(|| "n/a".to_owned(), human::time);
            absent |= series.p999.is_none() || series.p99.is_none() || series.p50.is_none();
            let (text, mean, (sign, tone)) = judged(series);
            by_mean |= mean;
            // Few samples, and of the best times: a ratio of them would be read as one of all.
            let (text, (sign, tone)) = match series.is_starved() {
                true => ("starved".to_owned(), ("-", Tone::Bad)),
                false => (text, (sign, tone)),
            };
            let numbers = [
                time(series.mean),
                time(series.p50),
                time(series.p99),
                time(series.p999),
                time(series.max),
                series.missed.to_string(),
            ];
            let mut row =
                vec![style.cell(format!("  {}", cut(&series.key.policy, most - 2)), Tone::Plain)];
            row.extend(numbers.iter().map(|text| style.cell(text, Tone::Plain)));
            row.push(style.cell(text, tone));
            row.push(style.cell(sign, tone));
            table.add_row(row);
        }
    }
    let mut out = finish(table, 1);
    if absent {
        let most = in_cell.iter().map(|s| s.count).max().unwrap_or(0);
        let note = format!("n/a: fewer than 10 samples lie beyond it (n = {most} at most)");
        out.push_str(&style.wrap(&format!("  {note}"), 2));
    }
    if by_mean {
        out.push_str(&style.wrap("  *: ratio of means, for want of a p99", 2));
    }
    out
}
