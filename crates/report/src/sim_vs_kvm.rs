//! Simulated beside measured.

use vcoop_experiment::format;
use vcoop_experiment::params;
use vcoop_experiment::result::{Document, Missing};
use vcoop_experiment::sim_vs_kvm::{Beside, Pair, beside};

use crate::style::{Style, Tone, cut, finish};

/// Width of the first column.
const NAME: usize = 30;

/// The series that both backends have, a row each: mean, median, p99 of both and their ratios;
/// nothing unless there are two backends.
pub(crate) fn render(document: &Document, style: Style) -> String {
    let rows = beside(document);
    if rows.is_empty() {
        return String::new();
    }
    let heading = "Simulated beside measured (sim, kvm, sim / kvm)";
    format!("\n{}", style.section(heading, &table(&rows, style)))
}

/// Rows of any documents.
pub(crate) fn table(rows: &[Beside], style: Style) -> String {
    let mut table = style.table([
        "", "mean sim", "kvm", "ratio", "p50 sim", "kvm", "ratio", "p99 sim", "kvm", "ratio",
    ]);
    let mut group = String::new();
    for row in rows {
        let words = params::words(&row.params);
        let what = if row.metric == "latency" { "" } else { " throughput" };
        let title = match words.is_empty() {
            true => format!("{}{what}", row.probe),
            false => format!("{}{what}, {words}", row.probe),
        };
        if title != group {
            table.add_row([style.cell(cut(&title, 40), Tone::Plain)]);
            group = title;
        }
        let mut cells = vec![style.cell(format!("  {}", cut(&row.policy, NAME - 2)), Tone::Plain)];
        for pair in [&row.mean, &row.p50, &row.p99] {
            cells.extend(three(pair, row.metric == "latency", style));
        }
        table.add_row(cells);
    }
    let far = |pair: &Pair| pair.is_far();
    let marked = rows.iter().any(|row| [&row.mean, &row.p50, &row.p99].into_iter().any(far));
    let legend = "!: simulated and measured are more than 3x apart. The simulation does not speak for \
                  this host there";
    let legend = if marked { style.wrap(legend, 2) } else { String::new() };
    finish(table, 1) + &legend
}

fn three(pair: &Pair, time: bool, style: Style) -> [comfy_table::Cell; 3] {
    let text = |v: Option<f64>| match v {
        Some(v) if time => format::time(v),
        Some(v) => format!("{v:.3}"),
        None => "n/a".to_owned(),
    };
    let tone = match pair.ratio {
        Some(ratio) if (0.5..=2.0).contains(&ratio) => Tone::Good,
        Some(_) => Tone::Bad,
        None => Tone::Faint,
    };
    let both_missing = pair.sim.is_none() && pair.kvm.is_none();
    let show = |s: String| if both_missing && !time { String::new() } else { s };
    let mark = if pair.is_far() { "!" } else { "" };
    let ratio = format::maybe(pair.ratio, format::ratio) + mark;
    [
        style.cell(show(text(pair.sim)), Tone::Plain),
        style.cell(show(text(pair.kvm)), Tone::Plain),
        style.cell(show(ratio), tone),
    ]
}

/// What could not be run here, and why.
pub(crate) fn missing(missing: &[Missing], style: Style) -> String {
    missing.iter().map(|row| style.wrap(&missing_words(row), 2)).collect()
}

/// The same in words.
pub(crate) fn missing_words(missing: &Missing) -> String {
    let Missing { backend, policy, params, why, remedy } = missing;
    let words = params::words(params);
    let cell = if words.is_empty() { String::new() } else { format!(" ({words})") };
    format!("Not run on {backend}: {policy}{cell}: {why}; {remedy}")
}
