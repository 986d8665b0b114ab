//! Pairs of values, one in each row: two dots with a line between them.

use crate::chart::{Axis, Chart, Key, Layer, Sign, Slot, Table};

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
    let mut layers: Vec<Layer> = pairs.iter().filter_map(line).collect();
    let mut legend = Vec::new();
    for (n, name) in names.into_iter().enumerate() {
        let (slot, label) = (Slot::Series(n), name.to_owned());
        legend.push(Key { slot, sign: Sign::Dot, label: label.clone() });
        let points = pairs.iter().filter_map(|pair| Some((pair.values[n]?, pair.at))).collect();
        layers.push(Layer::Dots { slot, label, points, size: 7.0 });
    }
    let ticks = pairs.into_iter().map(|pair| (pair.at, pair.label)).collect();
    Chart {
        caption: "The longer the line between the two, the larger the error; the axis is \
                  logarithmic."
            .to_owned(),
        layers,
        legend,
        table,
        ..Chart::new(0.0, x, Axis::rows(depth, ticks))
    }
}
