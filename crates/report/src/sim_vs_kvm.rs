//! Simulated beside measured.

use vcoop_experiment::format;
use vcoop_experiment::params;
use vcoop_experiment::result::{Document, Missing};
use vcoop_experiment::sim_vs_kvm::{SeriesPair, StatisticPair, beside};

use crate::style::{MOST_NAME, Style, Tone, cut, finish, with_names};

/// Least width of names, left by wide numbers.
const NAME: usize = 14;

/// The series that both backends have, in rows: mean, median, p99 of both and their ratios; nothing unless there are
/// two backends.
pub(crate) fn render(document: &Document, style: Style) -> String {
    let rows = beside(document);
    if rows.is_empty() {
        return String::new();
    }
    let heading = "Simulated beside measured (sim, kvm, sim / kvm)";
    format!("\n{}", style.section(heading, &table(&rows, style)))
}

/// The same for rows of any documents.
pub(crate) fn table(rows: &[SeriesPair], style: Style) -> String {
    let text = with_names(style, [NAME, MOST_NAME], |most| named(rows, style, most));
    let far =
        |row: &SeriesPair| [&row.mean, &row.p50, &row.p99].into_iter().any(StatisticPair::is_far);
    let legend = "!: simulated and measured are more than 3x apart. The simulation does not speak for \
                  this host there";
    if rows.iter().any(far) { text + &style.wrap(legend, 2) } else { text }
}

/// `most`: largest width of names.
fn named(rows: &[SeriesPair], style: Style, most: usize) -> String {
    let mut table = style.table([
        "", "mean sim", "kvm", "ratio", "p50 sim", "kvm", "ratio", "p99 sim", "kvm", "ratio",
    ]);
    let (mut group, mut titles) = (String::new(), Vec::new());
    for row in rows {
        let words = params::words(&row.params);
        let what = if row.metric == "latency" { "" } else { " throughput" };
        let title = match words.is_empty() {
            true => format!("{}{what}", row.probe),
            false => format!("{}{what}, {words}", row.probe),
        };
        if title != group {
            titles.push((table.row_count(), cut(&title, style.width - 2)));
            table.add_row([""]);
            group = title;
        }
        let mut cells = vec![style.cell(format!("  {}", cut(&row.policy, most - 2)), Tone::Plain)];
        for pair in [&row.mean, &row.p50, &row.p99] {
            cells.extend(three(pair, &row.unit, row.metric == "latency", style));
        }
        table.add_row(cells);
    }
    // Nothing stands beside a title: it may be as wide as all columns.
    let text = finish(table, 1);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (row, title) in titles {
        // The first line is the header.
        lines[row + 1] = format!("  {title}");
    }
    lines.join("\n") + "\n"
}

fn three(
    pair: &StatisticPair,
    unit: &str,
    is_latency: bool,
    style: Style,
) -> [comfy_table::Cell; 3] {
    let text = |v: Option<f64>| format::maybe(v, |v| format::with_unit(v, unit));
    let tone = match pair.ratio {
        Some(ratio) if (0.5..=2.0).contains(&ratio) => Tone::Good,
        Some(_) => Tone::Bad,
        None => Tone::Faint,
    };
    let both_missing = pair.sim.is_none() && pair.kvm.is_none();
    let show = |s: String| if both_missing && !is_latency { String::new() } else { s };
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

#[cfg(test)]
mod tests {
    use super::{SeriesPair, StatisticPair, Style, table};

    #[test]
    fn throughput_has_its_unit_and_lines_fit() {
        let pair = |sim: f64, kvm: f64| StatisticPair {
            sim: Some(sim),
            kvm: Some(kvm),
            ratio: Some(sim / kvm),
        };
        let latency = SeriesPair {
            policy: "dynamic-with-a-longer-name".to_owned(),
            probe: "guest-with-a-name.cyclictest".to_owned(),
            metric: "latency".to_owned(),
            unit: "us".to_owned(),
            mean: pair(1234.5, 123.4),
            p50: pair(123.4, 123.4),
            p99: pair(123_456.0, 123.4),
            ..SeriesPair::default()
        };
        let throughput = SeriesPair {
            metric: "throughput".to_owned(),
            unit: "cpu".to_owned(),
            mean: pair(0.003_12, 0.995),
            p50: StatisticPair::default(),
            p99: StatisticPair::default(),
            ..latency.clone()
        };
        let text = table(&[latency, throughput], Style::default());
        assert!(text.contains("0.00312 CPU") && text.contains("0.995 CPU"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("\n  guest-with-a-name.cyclictest throughput\n"), "{text}");
    }
}
