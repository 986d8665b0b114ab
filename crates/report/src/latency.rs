//! The latency table: a row for each policy under each probe.

use vcoop_experiment::format::maybe_time;
use vcoop_experiment::result::{Document, LatencySeries, Params};
use vcoop_model::distinct;

use crate::compare::{Judged, judged, with_interval};
use crate::style::{MOST_NAME, Style, Tone, WIDTH, cut, finish, visible, with_names};

/// Least width of names, left by wide numbers.
const NAME: usize = 18;
/// The same for tables whose names include the quantity.
const LONG_NAME: usize = 26;

/// The marks of a cell.
pub(crate) fn signs(document: &Document, cell: &(String, Params)) -> Vec<&'static str> {
    let in_cell = document.latencies().filter(|series| series.key.is_in(cell));
    in_cell.filter_map(|series| Some(judged(document, series)?.sign)).collect()
}

/// Guest and host probes of a cell, and which values are not available and why. If the whole table is too wide, it
/// leaves out medians and intervals.
pub(crate) fn render(document: &Document, cell: &(String, Params), style: Style) -> String {
    let in_cell: Vec<&LatencySeries> = document.latencies().filter(|s| s.key.is_in(cell)).collect();
    if in_cell.is_empty() {
        return String::new();
    }
    let long = in_cell.iter().any(|s| s.key.is_a_wait());
    let names = [if long { LONG_NAME } else { NAME }, MOST_NAME];
    let of = |whole| with_names(style, names, |most| table(document, &in_cell, style, whole, most));
    let mut out = of(true);
    if style.width < WIDTH && out.lines().any(|line| visible(line).count() > style.width) {
        out = of(false);
        let note =
            format!("  p50 and intervals are shown on a terminal of {WIDTH} columns or more");
        out += &style.wrap(&note, 2);
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

/// `whole`: with medians and intervals. `most`: largest width of names.
fn table(
    document: &Document,
    in_cell: &[&LatencySeries],
    style: Style,
    whole: bool,
    most: usize,
) -> String {
    let ratio = format!("p99 / {}", cut(&document.baseline, NAME));
    let p50 = whole.then_some("p50");
    let header = ["", "mean"].into_iter().chain(p50);
    let header = header.chain(["p99", "p99.9", "max", "missed", ratio.as_str(), ""]);
    let mut table = style.table(header);
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
                Some(Judged { ratio, interval, of_means, sign, tone }) => {
                    let star = if of_means { "*" } else { "" };
                    (format!("{star}{}", with_interval(ratio, interval)), sign, tone)
                }
            };
            let text = match text.split_once(" [") {
                Some((ratio, _)) if !whole => ratio.to_owned(),
                _ => text,
            };
            let p50 = whole.then(|| maybe_time(series.p50));
            let numbers = [Some(maybe_time(series.mean)), p50, Some(maybe_time(series.p99))];
            let rest = [maybe_time(series.p999), maybe_time(series.max), series.missed.to_string()];
            let mut row =
                vec![style.cell(format!("  {}", cut(&series.key.policy, most - 2)), Tone::Plain)];
            let numbers = numbers.into_iter().flatten().chain(rest);
            row.extend(numbers.map(|text| style.cell(text, Tone::Plain)));
            row.push(style.cell(text, tone));
            row.push(style.cell(sign, tone));
            table.add_row(row);
        }
    }
    finish(table, 1)
}
