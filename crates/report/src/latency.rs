//! The latency table: a row for each policy under each probe.

use vcoop_experiment::format::maybe_time;
use vcoop_experiment::result::{Document, LatencySeries, Params};
use vcoop_model::distinct;

use crate::compare::{LatencyComparison, judged, with_interval};
use crate::style::{MOST_NAME, Style, Tone, WIDTH, cut, finish, visible, with_names};

/// Least width of names, left by wide numbers.
const NAME: usize = 18;
/// The same for tables whose names include the quantity.
const LONG_NAME: usize = 26;

/// The table's columns before the ratio and its sign.
const HEADER: [&str; 7] = ["", "mean", "p50", "p99", "p99.9", "max", "missed"];
/// Columns that a narrow terminal has no room for; the first is the first to go, with the intervals.
const LEAVE: [usize; 4] = [2, 4, 6, 5];

/// The marks of a cell.
pub(crate) fn signs(document: &Document, cell: &(String, Params)) -> Vec<&'static str> {
    let in_cell = document.latencies().filter(|series| series.key.is_in(cell));
    in_cell.filter_map(|series| Some(judged(document, series)?.sign)).collect()
}

/// Guest and host probes of a cell, and which values are not available and why. If the whole table is too wide, it
/// leaves out intervals and columns.
pub(crate) fn render(document: &Document, cell: &(String, Params), style: Style) -> String {
    let in_cell: Vec<&LatencySeries> = document.latencies().filter(|s| s.key.is_in(cell)).collect();
    if in_cell.is_empty() {
        return String::new();
    }
    let long = in_cell.iter().any(|s| s.key.is_a_wait());
    let names = [if long { LONG_NAME } else { NAME }, MOST_NAME];
    let with = |left_out: &'static [usize]| {
        let text =
            with_names(style, names, |most| table(document, &in_cell, style, left_out, most));
        (text, left_out)
    };
    let fits = |text: &str| text.lines().all(|line| visible(line).count() <= style.width);
    // A file has all columns.
    let most = if style.width < WIDTH { LEAVE.len() } else { 0 };
    let mut tables = (0..most).map(|n| with(&LEAVE[..n]));
    let found = tables.find(|(table, _)| fits(table));
    let (mut out, left_out) = found.unwrap_or_else(|| with(&LEAVE[..most]));
    if !left_out.is_empty() {
        let columns = left_out.iter().map(|column| HEADER[*column]);
        let intervals = is_compared(document).then_some("intervals");
        let names: Vec<&str> = intervals.into_iter().chain(columns).collect();
        out += &style.left_out(&names);
    }
    let absent = |s: &&LatencySeries| s.p999.is_none() || s.p99.is_none() || s.p50.is_none();
    if in_cell.iter().any(absent) {
        let most = in_cell.iter().map(|s| s.count).max().unwrap_or(0);
        let note = format!("n/a: fewer than 10 samples lie beyond it (n = {most} at most)");
        out.push_str(&style.wrap(&format!("  {note}"), 2));
    }
    if in_cell.iter().filter_map(|series| judged(document, series)).any(|judged| judged.of_means) {
        out.push_str(&style.wrap(
            "  *: ratio of means, because p99s have none (too few samples, or the baseline's is 0)",
            2,
        ));
    }
    out
}

/// Whether there are ratios.
fn is_compared(document: &Document) -> bool {
    document.policies.len() > 1
}

/// `left_out`: columns without room; with any of them intervals are left out, too. `most`: largest width of names.
fn table(
    document: &Document,
    in_cell: &[&LatencySeries],
    style: Style,
    left_out: &[usize],
    most: usize,
) -> String {
    let shown: Vec<usize> = (0..HEADER.len()).filter(|column| !left_out.contains(column)).collect();
    // The baseline is named below, too.
    let ratio = match left_out.len() {
        0 | 1 => format!("p99 / {}", cut(&document.baseline, NAME)),
        _ => "p99 ratio".to_owned(),
    };
    let ratio = is_compared(document).then_some([ratio.as_str(), ""]);
    let header = shown.iter().map(|column| HEADER[*column]);
    let mut table = style.table(header.chain(ratio.into_iter().flatten()));
    let mut names = distinct(in_cell.iter().map(|series| series.key.name()));
    // The guest is what the policies are for: it comes first.
    names.sort_by_key(|name| name.starts_with("host."));
    for name in names {
        table.add_row([style.cell(cut(&name, most), Tone::Plain)]);
        for series in in_cell.iter().filter(|s| s.key.is_named(&name)) {
            let (text, sign, tone) = match judged(document, series) {
                None => (String::new(), "", Tone::Plain),
                // It has few samples, from times when it ran: a ratio of them would look like one of all.
                Some(_) if series.is_starved() => ("starved".to_owned(), "-", Tone::Bad),
                Some(LatencyComparison { ratio, interval, of_means, sign, tone }) => {
                    let star = if of_means { "*" } else { "" };
                    (format!("{star}{}", with_interval(ratio, interval)), sign, tone)
                }
            };
            let text = match text.split_once(" [") {
                Some((ratio, _)) if !left_out.is_empty() => ratio.to_owned(),
                _ => text,
            };
            let cells = [
                format!("  {}", cut(&series.key.policy, most - 2)),
                maybe_time(series.mean),
                maybe_time(series.p50),
                maybe_time(series.p99),
                maybe_time(series.p999),
                maybe_time(series.max),
                series.missed.to_string(),
            ];
            let plain = |column: &usize| style.cell(&cells[*column], Tone::Plain);
            let mut row: Vec<_> = shown.iter().map(plain).collect();
            if ratio.is_some() {
                row.extend([text.as_str(), sign].map(|text| style.cell(text, tone)));
            }
            table.add_row(row);
        }
    }
    finish(table, 1)
}
