//! Sweep files: a base scenario, the fields that vary, and the stopping rule.
//!
//! Read like scenario files, so errors look the same. A sweep does not know its scenario: the reader of the scenario
//! finds out whether an axis names one of its fields, and reports that by [`Sweep::place`], which shows the scenario's
//! message at the axis that caused it.

mod axes;
mod cases;
mod keys;
mod values;

use crate::diagnostic::{Collector, Diagnostic, Diagnostics, Sources, Span};
use crate::kind::Kind;
use crate::scenario::Set;
use crate::toml_read::node::parse_document;
use crate::toml_read::table::read_table;

pub use axes::{Axis, RATIO, Vary};
pub use keys::{DesignKind, Statistic, reference};
pub use values::{AxisValue, Range, RangeKind, Values};

use keys::SweepKeys;

/// A sweep, as in its file.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Name of the file, for diagnostics and for finding the scenario.
    pub file: String,
    /// The file.
    pub text: String,
    /// Name, as the dataset shows it.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// The base scenario: a built-in name, or a path relative to the file.
    pub scenario: String,
    /// Changes to the base scenario at every point.
    pub sets: Vec<Set>,
    /// What varies, in the order of the file.
    pub axes: Vec<Axis>,
    /// How points are chosen.
    pub design: DesignKind,
    /// Number of points, if the design does not determine it.
    pub points: Option<u32>,
    /// Policies instead of the scenario's; empty: the scenario's.
    pub policies: Vec<String>,
    /// Seed of the design. The seed of the workload is the scenario's own.
    pub seed: u64,
    /// Least repeats of a point.
    pub repeats_min: u32,
    /// Most repeats of a point.
    pub repeats_max: u32,
    /// When a point has enough repeats before that; `None`: always `repeats_min`.
    pub stop: Option<Stop>,
    /// What the dataset keeps; `None`: everything.
    pub keep: Option<Keep>,
    /// Most simulated runs (one repeat of one policy each) of the whole sweep, shared evenly by its points.
    pub runs: Option<u64>,
    sources: Sources,
    scenario_span: Span,
    policies_span: Span,
    axis_spans: Vec<Span>,
    stop_spans: Vec<Span>,
    keep_spans: [Vec<Span>; 2],
}

/// When a point's comparisons are precise enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Widest interval of a ratio to the baseline, relative to the ratio, in millionths.
    pub width_ppm: u32,
    /// Statistic of the ratio.
    pub statistic: Statistic,
    /// Latency probes that count; empty: those of guests.
    pub probes: Vec<String>,
}

/// Rows and columns that a dataset keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Probes whose rows it has; empty: all.
    pub probes: Vec<String>,
    /// Columns of numbers that it has, while the others are null; empty: all.
    pub columns: Vec<String>,
}

/// A place in a sweep file, for errors found later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The name of the base scenario.
    Scenario,
    /// The list of policies.
    Policies,
    /// An axis, by index.
    Axis(usize),
    /// A probe of the stopping rule, by index.
    StopProbe(usize),
    /// A probe that is kept, by index.
    KeepProbe(usize),
    /// A column that is kept, by index.
    KeepColumn(usize),
}

impl Sweep {
    /// Reads a sweep file. `file` is its name in diagnostics.
    ///
    /// # Errors
    ///
    /// All errors in the text that can be found without the scenario.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let mut sources = Sources::default();
        let source = sources.add(file, text);
        let tree = parse_document(&sources, source, text)?;
        Kind::Sweep.expect(file, tree.keys())?;
        let errors = Collector::new(&sources);
        let keys: Option<SweepKeys> = read_table(&tree, &errors);
        let keys = errors.finish(keys)?;
        let errors = Collector::new(&sources);
        let found = keys.resolve(file, text, &errors);
        let mut sweep = errors.finish(found)?;
        sweep.sources = sources;
        Ok(sweep)
    }

    /// The diagnostic for an error at a place of the file.
    pub fn place(&self, place: Place, message: String, help: Option<String>) -> Diagnostic {
        let span = match place {
            Place::Scenario => self.scenario_span,
            Place::Policies => self.policies_span,
            Place::Axis(i) => self.axis_spans.get(i).copied().unwrap_or_default(),
            Place::StopProbe(i) => self.stop_spans.get(i).copied().unwrap_or_default(),
            Place::KeepProbe(i) => self.keep_spans[0].get(i).copied().unwrap_or_default(),
            Place::KeepColumn(i) => self.keep_spans[1].get(i).copied().unwrap_or_default(),
        };
        self.sources.diagnose(span, message, help)
    }
}

#[cfg(test)]
mod tests;
