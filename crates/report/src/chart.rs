//! Charts as data: what a picture shows, independent of how it is drawn.
//!
//! Titles, axes, units and captions come from the document (`build`), so a new workload gets a useful picture without
//! new drawing code. `svg` draws.

pub(crate) mod axis;
pub(crate) mod build;
pub(crate) mod escape;
pub(crate) mod svg;

pub use axis::{Axis, Scale, Unit};

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Name for links and files: lower-case letters, digits and dashes.
    pub id: String,
    /// Title.
    pub title: String,
    /// What it shows, and how to read it; a sentence or two.
    pub caption: String,
    /// Whether it should have the whole width of a page. Others are side by side.
    pub wide: bool,
    /// Height of the plot itself, in pixels.
    pub height: f64,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// What is drawn, in this order.
    pub layers: Vec<Layer>,
    /// What the colours mean.
    pub legend: Vec<Key>,
    /// The same in numbers: a header, and rows.
    pub table: Table,
    /// Whether zooming into it is useful.
    pub zoom: bool,
}

/// A colour and a stroke, distinguishable also without colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A policy, or another compared item, by its index; 0 is the baseline.
    Series(usize),
    /// Simulated values of the same, in a chart that also has the measured ones.
    Simulated(usize),
    /// A part of a latency, by its number.
    Part(usize),
    /// An event beside the data.
    Event,
}

/// An entry of a legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Colour.
    pub slot: Slot,
    /// Its symbol.
    pub sign: LegendSymbol,
    /// Meaning.
    pub label: String,
}

/// Symbol of an entry in a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegendSymbol {
    /// A line.
    Line,
    /// A dot.
    Dot,
    /// A filled box.
    Box,
}

/// Something drawn, in units of the axes.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// A line through points.
    Line {
        /// Colour.
        slot: Slot,
        /// Name, for zooming.
        label: String,
        /// Points, by x.
        points: Vec<(f64, f64)>,
        /// Whether a value holds until the next point.
        step: bool,
        /// Drawn thinner: less certain values, or a bound.
        faint: bool,
    },
    /// Dots.
    Dots {
        /// Colour.
        slot: Slot,
        /// Name, for zooming.
        label: String,
        /// Where.
        points: Vec<(f64, f64)>,
        /// Diameter in pixels.
        size: f64,
    },
    /// Boxes.
    Boxes {
        /// Colour.
        slot: Slot,
        /// Which.
        boxes: Vec<Rect>,
    },
    /// Intervals, with a mark where the value is.
    Whiskers {
        /// Colour.
        slot: Slot,
        /// Which.
        whiskers: Vec<Whisker>,
    },
    /// A line that stands on the x axis, with a word at its end.
    Rule {
        /// Where.
        at: f64,
        /// Word; may be empty.
        label: String,
    },
    /// Texts.
    Words {
        /// Centre of each, and text.
        words: Vec<(f64, f64, String)>,
    },
}

/// A box, and its tooltip.
#[derive(Clone, Debug, PartialEq)]
pub struct Rect {
    /// From, until.
    pub x: (f64, f64),
    /// From, until.
    pub y: (f64, f64),
    /// Tooltip.
    pub hint: String,
}

/// A value and its interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Whisker {
    /// Place on the other axis.
    pub at: f64,
    /// Value.
    pub value: f64,
    /// Interval, if there is one.
    pub interval: Option<[f64; 2]>,
    /// Whether values lie on the x axis.
    pub horizontal: bool,
    /// Tooltip.
    pub hint: String,
}

/// Colours of policies in reports, on a light background, as `#rrggbb`: one for each, in order.
pub fn colours(policies: &[String], baseline: &str) -> Vec<&'static str> {
    build::colours(policies, baseline).into_iter().map(svg::colour).collect()
}

/// Numbers as text, in rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub header: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|h| (*h).to_owned()).collect(), rows: Vec::new() }
    }
}

impl Chart {
    /// An empty chart without a name.
    pub(crate) fn new(height: f64, x: Axis, y: Axis) -> Self {
        let (id, title, caption) = Default::default();
        let (layers, legend, table) = (Vec::new(), Vec::new(), Table::new(&[]));
        Self { id, title, caption, wide: false, height, x, y, layers, legend, table, zoom: false }
    }

    /// Adds a line, and its key.
    pub(crate) fn line(&mut self, key: Key, points: Vec<(f64, f64)>, step: bool) {
        let (slot, label) = (key.slot, key.label.clone());
        self.layers.push(Layer::Line { slot, label, points, step, faint: false });
        self.legend.push(key);
    }

    /// Adds dots, and their key.
    pub(crate) fn dots(&mut self, key: Key, points: Vec<(f64, f64)>, size: f64) {
        let (slot, label) = (key.slot, key.label.clone());
        self.layers.push(Layer::Dots { slot, label, points, size });
        self.legend.push(key);
    }

    /// Whether the chart has nothing to show.
    pub fn is_empty(&self) -> bool {
        !self.layers.iter().any(|layer| match layer {
            Layer::Line { points, .. } | Layer::Dots { points, .. } => !points.is_empty(),
            Layer::Boxes { boxes, .. } => !boxes.is_empty(),
            Layer::Whiskers { whiskers, .. } => !whiskers.is_empty(),
            Layer::Rule { .. } | Layer::Words { .. } => false,
        })
    }
}
