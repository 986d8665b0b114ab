//! The document of a reproduction.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::published::Coordinates;
use crate::result::Interval;

/// Name and version of the format.
pub const SCHEMA: &str = "vcoop.reproduce/1";

/// The document of `vcoop reproduce --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reproduction {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of vcoop.
    pub version: String,
    /// Whether it was ended early: some cells have no simulated value.
    pub interrupted: bool,
    /// Captions of the tables, by name.
    #[serde(default)]
    pub tables: BTreeMap<String, Caption>,
    /// Cells of the tables.
    pub cells: Vec<Cell>,
    /// Histograms, one column at a time.
    #[serde(default)]
    pub histograms: Vec<HistogramResult>,
    /// Claims.
    pub claims: Vec<ClaimResult>,
    /// The sum of it.
    pub summary: Summary,
    /// Notes about the published numbers.
    pub notes: Vec<String>,
    /// Simulated hosts, by scenario.
    #[serde(default)]
    pub hosts: BTreeMap<String, Vec<String>>,
    /// Assumptions, by scenario.
    pub assumptions: BTreeMap<String, Vec<String>>,
}

/// Caption of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Caption {
    /// Its title.
    pub title: String,
    /// Meaning of its rows.
    pub row_name: String,
}

/// A published value and the simulated one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Table.
    pub table: String,
    /// Row, as printed.
    pub row: String,
    /// Column, as printed.
    pub column: String,
    /// Unit of the published value.
    pub unit: String,
    /// The published value.
    pub published: f64,
    /// The simulated value; null if it was not run.
    pub simulated: Option<f64>,
    /// Simulated over published; null if the published value is zero.
    pub ratio: Option<f64>,
    /// Unit of the simulated value.
    pub simulated_unit: String,
    /// Whether the two can be compared directly.
    pub comparable: bool,
    /// Within a factor of two (both zero counts).
    pub within_2x: bool,
}

/// A published histogram and the simulated one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistogramResult {
    /// Histogram.
    pub histogram: String,
    /// Column, as printed.
    pub column: String,
    /// Unit of the buckets and of the means.
    pub unit: String,
    /// Samples of the published histogram.
    pub published_samples: u64,
    /// Published samples in printed buckets.
    pub published_listed: u64,
    /// Simulated samples; 0 if it was not run.
    pub simulated_samples: u64,
    /// Mean of the printed buckets.
    pub published_mean: Option<f64>,
    /// Mean of the simulated samples, in whole microseconds as well.
    pub simulated_mean: Option<f64>,
    /// Wasserstein distance: how far a sample of one has to be moved, on average, to make the other.
    pub wasserstein_us: Option<f64>,
    /// Every bucket in which one of the two has samples.
    pub buckets: Vec<Bucket>,
}

/// A bucket of a histogram: latencies from `us` up to, but excluding, `us + 1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Where it begins.
    pub us: u64,
    /// Published samples.
    pub published: u64,
    /// As a share of the printed ones.
    pub published_share: f64,
    /// Simulated samples.
    pub simulated: u64,
    /// As a share of all simulated ones.
    pub simulated_share: f64,
}

/// A claim, and whether it holds in simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimResult {
    /// Name.
    pub id: String,
    /// The finding.
    pub statement: String,
    /// Whether every check holds.
    pub holds: bool,
    /// Evidence for the verdict.
    pub evidence: Evidence,
}

/// Evidence for a claim's verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was assumed in turning the finding into bounds.
    pub assumption: Option<String>,
    /// Why it is not reproduced, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the verdict depends on, with the result over the plausible range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends: Vec<String>,
    /// Commands that show the statements of `reason` and `depends`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown_by: Vec<String>,
    /// The checks, in each cell.
    pub checks: Vec<CheckResult>,
}

/// One check in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Scenario.
    pub scenario: String,
    /// Cell of its matrix.
    pub cell: Coordinates,
    /// The compared quantity, in words.
    pub what: String,
    /// Unit of value and bounds; left out if they have none.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub unit: String,
    /// Value; null if it was not measured.
    pub value: Option<f64>,
    /// Its 95 % interval, for ratios of means and quantiles to the baseline.
    pub ci95: Option<Interval>,
    /// Lower bound.
    pub at_least: Option<f64>,
    /// Upper bound.
    pub at_most: Option<f64>,
    /// Whether the value is within the bounds.
    pub holds: bool,
}

/// Summary of a reproduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Cells, none left out.
    pub cells: usize,
    /// Of them within a factor of two.
    pub within_2x: usize,
    /// Cells whose values can be compared one by one.
    pub cells_comparable: usize,
    /// Of them within a factor of two.
    pub within_2x_comparable: usize,
    /// Median of |log2(ratio)| over the comparable cells; a simulated zero counts as infinite. Null if that is the
    /// median.
    pub median_abs_log2: Option<f64>,
    /// Claims.
    pub claims: usize,
    /// Of them held.
    pub claims_held: usize,
}
