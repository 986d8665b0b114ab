//! Pairs of values, one in each row: two dots with a line between them.

use crate::chart::{Axis, Chart, Key, Layer, LegendSymbol, Slot, Table};

pub(super) struct Pair {
    pub(super) label: String,
    /// Its position on the axis of rows.
    pub(super) at: f64,
    pub(super) values: [Option<f64>; 2],
}

/// A chart of rows over this much of their axis, without name and height. `names`: of the first values, and of the
/// second.
pub(super) fn chart(
    names: [&str; 2],
    pairs: Vec<Pair>,
    x: Axis,
    depth: f64,
    table: Table,
) -> Chart {
    let line = |pair: &Pair| {
        let [Some(a), Some(b)] = pair.values else { return None };
        let (slot, label) = (Slot::Series(0), pair.label.clone());
        let points = vec![(a.min(b), pair.at), (a.max(b), pair.at)];
        Some(Layer::Line { slot, label, points, step: false, faint: true })
    };
    let ticks = pairs.iter().map(|pair| (pair.at, pair.label.clone())).collect();
    let mut chart = Chart {
        caption: "The longer the line between the two, the larger the error; the axis is \
                  logarithmic."
            .to_owned(),
        layers: pairs.iter().filter_map(line).collect(),
        table,
        ..Chart::new(0.0, x, Axis::rows(depth, ticks))
    };
    for (n, name) in names.into_iter().enumerate() {
        let key = Key { slot: Slot::Series(n), sign: LegendSymbol::Dot, label: name.to_owned() };
        let points = pairs.iter().filter_map(|pair| Some((pair.values[n]?, pair.at))).collect();
        chart.dots(key, points, 7.0);
    }
    chart
}
