//! Data of a series for charts, besides its statistics: distribution, parts by size, and series over time.
//!
//! [`LatencySeries`](super::LatencySeries) has it where [`Plan::slices`] is set (`--out` sets it).
//!
//! [`Plan::slices`]: vcoop_model::plan::Plan::slices

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Place;

/// Detail of a latency series, all repeats pooled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// Distribution of latencies.
    pub distribution: Distribution,
    /// Parts by size of the sample; ascending, without empty ones.
    pub by_size: Vec<SizeBand>,
    /// Latencies over time; left out unless asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub over_time: Option<OverTime>,
}

/// A histogram in two columns: buckets that have samples, ascending. An octave has 16 buckets, so a value is known to
/// one part in sixteen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Largest latency of each bucket.
    pub le_us: Vec<f64>,
    /// Samples in it.
    pub count: Vec<u64>,
}

/// Samples of one octave of latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeBand {
    /// Smallest latency of the band.
    pub from_us: f64,
    /// End of the band: twice that, excluded.
    pub until_us: f64,
    /// Samples.
    pub count: u64,
    /// Mean time of its samples in each part, if not zero. They add up to the mean of these samples, except for
    /// rounding.
    pub parts_mean: BTreeMap<String, f64>,
}

/// A series in slices of the measured time, by when samples were due. Columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverTime {
    /// Length of a slice.
    pub width_us: f64,
    /// Samples.
    pub count: Vec<u64>,
    /// Medians; null with fewer than 20 samples, as 10 must lie beyond. Quantiles here are known to one part in eight.
    pub p50: Vec<Option<f64>>,
    /// 99 % quantiles; null with fewer than 1000 samples.
    pub p99: Vec<Option<f64>>,
    /// Largest samples; null without one.
    pub max: Vec<Option<f64>>,
}

/// Rate of a policy's event over time: means over repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyEventSeries {
    /// Backend, policy and cell.
    #[serde(flatten)]
    pub place: Place,
    /// The VMs' common name.
    pub vm: String,
    /// `boost`, `throttle` or `denied`.
    pub event: String,
    /// Length of a slice.
    pub width_us: f64,
    /// Events a second in each slice.
    pub per_s: Vec<f64>,
}

/// vCPUs in use of a VM over time: means over repeats. Only for VMs that can avoid some.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InUseSeries {
    /// Backend, policy and cell.
    #[serde(flatten)]
    pub place: Place,
    /// The VMs' common name.
    pub vm: String,
    /// vCPUs that they have together.
    pub vcpus: u32,
    /// Length of a slice.
    pub width_us: f64,
    /// vCPUs in use in each slice.
    pub used: Vec<f64>,
    /// Changes of that number in each slice, of masks or by hotplug.
    pub changes: Vec<f64>,
}

/// A change at a set time of the scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Switch {
    /// When, from the start of the measurement; negative within the warm-up.
    pub at_us: f64,
    /// What, in words.
    pub what: String,
}
