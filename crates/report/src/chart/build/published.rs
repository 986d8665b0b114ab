//! A published table beside the simulated one.

use vcoop_lab::human;
use vcoop_lab::reproduce::Cell;

use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Key, Layer, Rect, Scale, Sign, Slot, Table, Unit};

/// Room beside two bars.
const GAP: f64 = 0.3;
/// Most pairs of bars in one chart.
const MOST: usize = 16;

/// Charts of a table: in pairs, published and simulated, row by row; a long one in several.
pub(crate) fn charts(title: &str, table: &str, cells: &[&Cell]) -> Vec<Chart> {
    let mut rows: Vec<&str> = Vec::new();
    for cell in cells {
        if !rows.contains(&cell.row.as_str()) {
            rows.push(&cell.row);
        }
    }
    let unit = cells.first().map_or("", |c| c.unit.as_str());
    let values = || {
        let positive = cells.iter().flat_map(|c| [Some(c.published), c.simulated]).flatten();
        positive.filter(|v| *v > 0.0)
    };
    let y = Axis::over(&format!("{title} ({unit})"), Unit::Count, Scale::Log, values());
    let mut charts = Vec::new();
    for row in rows {
        let own: Vec<&Cell> = cells.iter().copied().filter(|c| c.row == row).collect();
        for (part, own) in own.chunks(MOST).enumerate() {
            let mut chart = pairs(own, y.clone());
            chart.id = format!("{}-{}-{part}", id(table), id(row));
            chart.title = row.to_owned();
            charts.push(chart);
        }
    }
    charts
}

fn pairs(cells: &[&Cell], y: Axis) -> Chart {
    let (mut published, mut simulated, mut ticks) = (Vec::new(), Vec::new(), Vec::new());
    let mut table = Table::new(&["", "published", "simulated", "ratio"]);
    for (i, cell) in cells.iter().enumerate() {
        let (from, width) = (i as f64 + GAP / 2.0, (1.0 - GAP) / 2.0);
        ticks.push((i as f64 + 0.5, cell.column.clone()));
        let rect = |from: f64, value: f64, what: &str, unit: &str| Rect {
            x: (from, from + width),
            // Zero has no place on a logarithmic axis: a line at its foot.
            y: (y.min, value.max(y.min * 1.03)),
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
        caption: "Published beside simulated, on a logarithmic axis.".to_owned(),
        wide: false,
        height: 150.0,
        x: Axis {
            label: String::new(),
            scale: Scale::Linear,
            unit: Unit::Count,
            min: 0.0,
            max: cells.len().max(1) as f64,
            ticks: Some(ticks),
            grid: false,
        },
        y,
        layers: vec![
            Layer::Boxes { slot: Slot::Series(0), boxes: published },
            Layer::Boxes { slot: Slot::Series(1), boxes: simulated },
        ],
        legend: vec![key(0, "published"), key(1, "simulated")],
        table,
        zoom: false,
    }
}
