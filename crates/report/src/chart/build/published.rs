//! A published table beside the simulated one.

use vcoop_lab::human;
use vcoop_lab::reproduce::{Bucket, Cell, HistogramResult};

use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Key, Layer, Rect, Scale, Sign, Slot, Table, Unit};

/// Room between two pairs of bars.
const GAP: f64 = 0.3;
/// Most pairs of bars in one chart.
const MOST: usize = 16;

/// Charts of a table: pairs of bars, published and simulated, a chart a row of the table; a long row in
/// several.
pub(crate) fn charts(title: &str, table: &str, row_name: &str, cells: &[&Cell]) -> Vec<Chart> {
    let mut rows: Vec<&str> = Vec::new();
    for cell in cells {
        if !rows.contains(&cell.row.as_str()) {
            rows.push(&cell.row);
        }
    }
    let unit = cells.first().map_or("", |c| c.unit.as_str());
    let ours = cells.first().map_or("", |c| c.simulated_unit.as_str());
    let label = if ours == unit { unit.to_owned() } else { format!("{unit}; {ours} simulated") };
    let values = cells.iter().flat_map(|c| [Some(c.published), c.simulated]).flatten();
    // A bar needs some length.
    let values = values.filter(|v| *v > 0.0).map(|v| v * 0.8);
    let x = Axis::over(&label, Unit::Count, Scale::Log, values);
    let mut charts = Vec::new();
    for row in rows {
        let own: Vec<&Cell> = cells.iter().copied().filter(|c| c.row == row).collect();
        for (part, own) in own.chunks(MOST).enumerate() {
            let mut chart = pairs(own, x.clone());
            chart.id = format!("{}-{}-{part}", id(table), id(row));
            chart.title = format!("{title}, {row_name} {row}");
            charts.push(chart);
        }
    }
    charts
}

fn pairs(cells: &[&Cell], x: Axis) -> Chart {
    let (mut published, mut simulated, mut ticks) = (Vec::new(), Vec::new(), Vec::new());
    let mut table = Table::new(&["", "published", "simulated", "ratio"]);
    for (i, cell) in cells.iter().enumerate() {
        let (from, width) = (i as f64 + GAP / 2.0, (1.0 - GAP) / 2.0);
        ticks.push((i as f64 + 0.5, cell.column.clone()));
        let rect = |from: f64, value: f64, what: &str, unit: &str| Rect {
            // Zero has no place on a logarithmic axis: a line at its foot.
            x: (x.min, value.max(x.min * 1.03)),
            y: (from, from + width),
            hint: format!("{} {what}: {} {unit}", cell.column, human::digits(value)),
        };
        published.push(rect(from, cell.published, "published", &cell.unit));
        let ours = cell.simulated.map(|v| rect(from + width, v, "simulated", &cell.simulated_unit));
        simulated.extend(ours);
        table.rows.push(vec![
            cell.column.clone(),
            format!("{} {}", human::digits(cell.published), cell.unit),
            cell.simulated.map_or_else(
                || "not measured".to_owned(),
                |v| format!("{} {}", human::digits(v), cell.simulated_unit),
            ),
            cell.ratio.map_or_else(|| "n/a".to_owned(), human::ratio),
        ]);
    }
    let key =
        |n, label: &str| Key { slot: Slot::Series(n), sign: Sign::Box, label: label.to_owned() };
    Chart {
        id: String::new(),
        title: String::new(),
        caption: "On a logarithmic axis; a bar of no length is a zero.".to_owned(),
        wide: false,
        height: cells.len() as f64 * 28.0,
        x,
        y: Axis::rows(cells.len() as f64, ticks),
        layers: vec![
            Layer::Boxes { slot: Slot::Series(0), boxes: published },
            Layer::Boxes { slot: Slot::Series(1), boxes: simulated },
        ],
        legend: vec![key(0, "published"), key(1, "simulated")],
        table,
        zoom: false,
    }
}

/// A published histogram over ours, by shares of what each has.
pub(crate) fn histogram(h: &HistogramResult) -> Chart {
    /// Room of the bucket from 0 on a logarithmic axis.
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
    let (mut layers, mut legend) = (Vec::new(), Vec::new());
    for (slot, (label, points)) in lines.into_iter().enumerate() {
        let (slot, label) = (Slot::Series(slot), label.to_owned());
        legend.push(Key { slot, sign: Sign::Line, label: label.clone() });
        layers.push(Layer::Line { slot, label, points, step: true, faint: false });
    }
    let mut table = Table::new(&[&h.unit, "published", "share", "simulated", "share"]);
    let percent = |share: f64| format!("{} %", human::digits(share * 100.0));
    table.rows.extend(h.buckets.iter().map(|b| {
        vec![
            b.us.to_string(),
            b.published.to_string(),
            percent(b.published_share),
            b.simulated.to_string(),
            percent(b.simulated_share),
        ]
    }));
    let mean = |v: Option<f64>| v.map_or_else(|| "n/a".to_owned(), human::time);
    Chart {
        id: format!("histogram-{}-{}", id(&h.histogram), id(&h.column)),
        title: h.column.clone(),
        caption: format!(
            "Means {} published, {} simulated; a sample has to be moved by {} on average to make one \
             of the other. {} of {} published samples are in buckets that were printed.",
            mean(h.published_mean),
            mean(h.simulated_mean),
            mean(h.wasserstein_us),
            h.published_listed,
            h.published_samples
        ),
        wide: false,
        height: 200.0,
        x,
        y,
        layers,
        legend,
        table,
        zoom: true,
    }
}
