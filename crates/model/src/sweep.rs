//! Sweep files: a base scenario, the fields that vary, and when enough has been run.
//!
//! Read by the same means as scenario files, so mistakes are shown in the same way. A sweep does
//! not know its scenario: whether an axis names a field of it is told by whoever reads that, through
//! [`Sweep::place`], which puts the scenario's own message at the axis that caused it.

mod axes;
mod cases;
mod keys;
mod range;

use crate::diagnostic::{Collector, Diagnostic, Diagnostics, Sources, Span};
use crate::kind::Kind;
use crate::scenario::Set;
use crate::toml_read::node::parse_document;
use crate::toml_read::table::read_table;

pub use axes::{Axis, AxisValue, RATIO, Values, Vary};
pub use keys::{DesignKind, Statistic, reference};
pub use range::{Range, RangeKind};

use keys::SweepKeys;

/// A sweep, as its file says it.
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
    /// Changes to the base scenario that hold at every point.
    pub sets: Vec<Set>,
    /// What varies, in the order of the file.
    pub axes: Vec<Axis>,
    /// How points are chosen.
    pub design: DesignKind,
    /// Number of points, where the design does not say it.
    pub points: Option<u32>,
    /// Policies instead of the scenario's; empty: the scenario's.
    pub policies: Vec<String>,
    /// Seed of the design. The seed of the workload is the scenario's own.
    pub seed: u64,
    /// Repeats that every point has.
    pub repeats_min: u32,
    /// Repeats that a point has at most.
    pub repeats_max: u32,
    /// When a point has enough repeats before that; `None`: it always takes `repeats_min`.
    pub stop: Option<Stop>,
    /// What the dataset keeps; `None`: everything.
    pub keep: Option<Keep>,
    /// Most simulated runs (a policy's repeat each) of the whole sweep, shared evenly by its
    /// points.
    pub runs: Option<u64>,
    sources: Sources,
    scenario_span: Span,
    policies_span: Span,
    axis_spans: Vec<Span>,
    stop_spans: Vec<Span>,
    keep_spans: [Vec<Span>; 2],
}

/// When a point's comparisons are sharp enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Widest interval of a ratio to the baseline, relative to the ratio, in millionths.
    pub width_ppm: u32,
    /// Whose ratio.
    pub statistic: Statistic,
    /// Latency probes that count; empty: those of guests.
    pub probes: Vec<String>,
}

/// What a dataset keeps of its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Probes whose rows it has; empty: all.
    pub probes: Vec<String>,
    /// Columns of numbers that it has, the others being null; empty: all.
    pub columns: Vec<String>,
}

/// A place in a sweep file that a later error can be about.
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
    /// Reads a sweep file. `file` is what diagnostics call it.
    ///
    /// # Errors
    ///
    /// Everything wrong with the text that can be told without the scenario.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let mut sources = Sources::default();
        let source = sources.add(file, text);
        let tree = parse_document(&sources, source, text)?;
        Kind::Sweep.expect(file, tree.keys())?;
        let mut errors = Collector::new(&sources);
        let keys: Option<SweepKeys> = read_table(&tree, &mut errors);
        let keys = errors.finish(keys)?;
        let mut errors = Collector::new(&sources);
        let found = keys.resolve(file, text, &mut errors);
        let mut sweep = errors.finish(found)?;
        sweep.sources = sources;
        Ok(sweep)
    }

    /// The diagnostic for something wrong at a place of the file.
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
