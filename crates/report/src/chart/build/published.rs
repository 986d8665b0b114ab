//! A published table beside the simulated one.

use vcoop_experiment::format;
use vcoop_experiment::reproduce::{Bucket, Cell, HistogramResult};
use vcoop_model::distinct;

use super::pairs::{self, Pair};
use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Key, LegendSymbol, Scale, Slot, Table, Unit};
use crate::reproduce::units;

/// Most pairs of dots in one chart.
const MOST: usize = 16;

/// Charts of a table: pairs of dots, published and simulated; a chart for each row of the table, several for a long
/// row.
pub(crate) fn charts(title: &str, table: &str, row_name: &str, cells: &[&Cell]) -> Vec<Chart> {
    let values = cells.iter().flat_map(|c| [Some(c.published), c.simulated]).flatten();
    // Room for a zero beside the least value.
    let values = values.filter(|v| *v > 0.0).map(|v| v * 0.8);
    let x = Axis::over(&units(cells), Unit::Count, Scale::Log, values);
    let mut charts = Vec::new();
    for row in distinct(cells.iter().map(|cell| cell.row.as_str())) {
        let own: Vec<&Cell> = cells.iter().copied().filter(|c| c.row == row).collect();
        for (part, own) in own.chunks(MOST).enumerate() {
            let mut chart = row_chart(own, x.clone());
            chart.id = format!("{}-{}-{part}", id(table), id(row));
            chart.title = format!("{title}, {row_name} {row}");
            charts.push(chart);
        }
    }
    charts
}

fn row_chart(cells: &[&Cell], x: Axis) -> Chart {
    let mut table = Table::new(&["", "published", "simulated", "ratio"]);
    let mut pairs = Vec::new();
    for (i, cell) in cells.iter().enumerate() {
        // Zero has no place on a logarithmic axis: a dot at its end.
        let values = [Some(cell.published), cell.simulated].map(|v| Some(v?.max(x.min)));
        pairs.push(Pair { label: cell.column.clone(), at: i as f64 + 0.5, values });
        table.rows.push(vec![
            cell.column.clone(),
            format!("{} {}", format::digits(cell.published), cell.unit),
            cell.simulated.map_or_else(
                || "not measured".to_owned(),
                |v| format!("{} {}", format::digits(v), cell.simulated_unit),
            ),
            format::maybe(cell.ratio, format::ratio),
        ]);
    }
    Chart {
        caption: "The longer the line between the two, the larger the error; the axis is \
                  logarithmic, and a dot at its left end is a zero."
            .to_owned(),
        height: cells.len() as f64 * 24.0,
        ..pairs::chart(["published", "simulated"], pairs, x, cells.len() as f64, table)
    }
}

/// A published histogram and the simulated one, each as shares of its total.
pub(crate) fn histogram(h: &HistogramResult) -> Chart {
    /// Position of the bucket from 0 on a logarithmic axis.
    const ZERO: f64 = 0.5;
    let place = |us: u64| if us == 0 { ZERO } else { us as f64 };
    let ends = h.buckets.iter().flat_map(|b| [place(b.us), (b.us + 1) as f64]);
    let x = Axis::over("latency", Unit::Us, Scale::Log, ends);
    let shares = h.buckets.iter().flat_map(|b| [b.published_share, b.simulated_share]);
    // Half of the smallest share: it has some height then.
    let shares = shares.filter(|s| *s > 0.0).map(|s| s / 2.0);
    let y = Axis {
        max: 1.0,
        ..Axis::over("share of samples", Unit::Share, Scale::Log, shares.chain([1.0]))
    };
    let line = |share: fn(&Bucket) -> f64| -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let mut until = None;
        for bucket in h.buckets.iter().filter(|b| share(b) > 0.0) {
            if until != Some(bucket.us) {
                points.extend(until.map(|end: u64| (end as f64, y.min)));
                points.push((place(bucket.us), y.min));
            }
            points.push((place(bucket.us), share(bucket)));
            until = Some(bucket.us + 1);
        }
        points.extend(until.map(|end| (end as f64, y.min)));
        points
    };
    let lines =
        [("published", line(|b| b.published_share)), ("simulated", line(|b| b.simulated_share))];
    let mut chart = Chart {
        id: format!("histogram-{}-{}", id(&h.histogram), id(&h.column)),
        title: h.column.clone(),
        caption: format!(
            "Means {} published, {} simulated; a sample has to be moved by {} on average to make one \
             of the other. {} of {} published samples are in buckets that were printed.",
            format::maybe_time(h.published_mean),
            format::maybe_time(h.simulated_mean),
            format::maybe_time(h.wasserstein_us),
            h.published_listed,
            h.published_samples
        ),
        table: Table::new(&[&h.unit, "published", "share", "simulated", "share"]),
        zoom: true,
        ..Chart::new(200.0, x, y)
    };
    for (slot, (label, points)) in lines.into_iter().enumerate() {
        let key =
            Key { slot: Slot::Series(slot), sign: LegendSymbol::Line, label: label.to_owned() };
        chart.line(key, points, true);
    }
    let percent = |share: f64| format!("{} %", format::digits(share * 100.0));
    chart.table.rows.extend(h.buckets.iter().map(|b| {
        vec![
            b.us.to_string(),
            b.published.to_string(),
            percent(b.published_share),
            b.simulated.to_string(),
            percent(b.simulated_share),
        ]
    }));
    chart
}
