//! Content of a result besides series: curves of boot storms, and views of single runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Interval, Params};

/// Backend, policy and cell, as in [`Key`](super::Key).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Backend.
    pub backend: String,
    /// Policy.
    pub policy: String,
    /// Cell of the matrix.
    pub params: Params,
    /// The same with the matrix's paths.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub cell: BTreeMap<String, String>,
}

/// Accumulated start or login times of a storm: when its first, second, ... VM had reached the event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Backend, policy and cell.
    #[serde(flatten)]
    pub place: Place,
    /// The VMs' common name.
    pub vm: String,
    /// `start` or `login`.
    pub event: String,
    /// When the storm begins, in seconds from the start of the measurement.
    #[serde(default)]
    pub begin_s: f64,
    /// VMs of the storm.
    pub planned: u32,
    /// How many had reached it at the end of the run, by repeat.
    pub reached: Vec<u32>,
    /// A point for each number of VMs that all repeats reached.
    pub points: Vec<CurvePoint>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// How many VMs.
    pub vm: u32,
    /// Seconds from the storm's begin, as the mean over repeats.
    pub mean_s: f64,
    /// Its interval; null with one repeat.
    pub mean_s_ci95: Option<Interval>,
}

/// Every sample of a probe in the first repeat, in two columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScatterView {
    /// Backend, policy and cell.
    #[serde(flatten)]
    pub place: Place,
    /// Probe.
    pub probe: String,
    /// When each was due, from the start of the measurement.
    pub due_us: Vec<f64>,
    /// Its latency.
    pub latency_us: Vec<f64>,
    /// Samples after the last one kept.
    pub dropped: u64,
    /// VMs that started or logged in meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub marks: Vec<ViewMark>,
}

/// A VM of a storm in the first repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewMark {
    /// When, from the start of the measurement.
    pub at_us: f64,
    /// The VMs' common name.
    pub vm: String,
    /// Its number in the storm, from 1.
    pub number: u32,
    /// `start` or `login`.
    pub event: String,
}

/// Threads on one pCPU over time, in the first repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalView {
    /// Backend, policy and cell.
    #[serde(flatten)]
    pub place: Place,
    /// Requested begin: `start 20`, `login 20`, or a time.
    pub at: String,
    /// The pCPU; null if the view never began.
    pub pcpu: Option<u32>,
    /// When it began, from the start of the measurement.
    pub from_us: f64,
    /// When it ended.
    pub until_us: f64,
    /// In order; the pCPU is idle between two that are not adjacent.
    pub spans: Vec<SpanView>,
}

/// A thread had the pCPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpanView {
    /// From when, from the view's begin.
    pub from_us: f64,
    /// Until when.
    pub until_us: f64,
    /// Who: `host.NAME` or `VM/vcpuN`.
    pub who: String,
}
