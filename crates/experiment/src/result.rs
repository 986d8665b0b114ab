//! The result document: the output of `--json`, and the input of all views.

mod detail;
mod statistic;
mod views;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vcoop_model::distinct;
use vcoop_model::recording::{LatencyRecord, Part};

use crate::deploy::Deployment;

pub use detail::{
    Detail, Distribution, InUseSeries, OverTime, PolicyEventSeries, SizeBand, Switch,
};
pub use statistic::Bounded;
pub use vcoop_model::Note;
pub use vcoop_model::sweep::Statistic;
pub use views::{Curve, CurvePoint, IntervalView, Place, ScatterView, SpanView, ViewMark};

/// Name and version of the format.
pub const SCHEMA: &str = "vcoop.result/1";

/// The backend of results about a VM that another program runs.
pub const VM: &str = "vm";

/// Name of the backend that simulates.
pub const SIM: &str = "sim";

/// Prefix of probes whose values a command has printed.
pub const EXEC: &str = "exec.";
/// Metric of such a value.
pub const EXEC_METRIC: &str = "value";

/// Share of periods without a sample from which a series counts as starved.
const STARVED: f64 = 0.9;

/// Cell coordinates: short name with its unit, and value (`{"interval_us": 500}`).
pub type Params = BTreeMap<String, Value>;

/// A 95 % interval: lower and upper bound.
pub type Interval = [f64; 2];

/// Whether a series with this share of missed periods counts as starved: its samples represent only the rest.
pub fn is_starved(missed: f64) -> bool {
    missed >= STARVED
}

/// One experiment's result. The same scenario, seed and version give the same bytes on any machine and with any number
/// of jobs, except for [`Engine::cpu_s`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of vcoop.
    pub version: String,
    /// Scenario name.
    pub scenario: String,
    /// One line about the scenario.
    pub title: String,
    /// Seed of repeat 0.
    pub seed: u64,
    /// Backends, in order.
    pub backends: Vec<String>,
    /// The command that reproduces this result.
    pub command: String,
    /// Policy that ratios are taken to.
    pub baseline: String,
    /// Policies, in the order of the report.
    pub policies: Vec<String>,
    /// Repeats planned.
    pub repeats: u32,
    /// Measured time of a repeat, in seconds; as planned, if there is a `measured_s`.
    pub duration_s: f64,
    /// The shortest and the longest measured time of a turn on a running VM, in seconds; left out if turns were as long
    /// as planned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub measured_s: Option<[f64; 2]>,
    /// Time at the start that is not measured, in seconds.
    pub warmup_s: f64,
    /// Ended early: some series have fewer repeats than planned, or none.
    pub interrupted: bool,
    /// Simulated hosts; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub hosts: Vec<String>,
    /// CPUs of this host that others used while the lab measured on it; left out without such a measurement.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub others_cpu: Option<f64>,
    /// All measured series.
    pub series: Vec<Series>,
    /// When the VMs of storms started and logged in; left out without storms.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub curves: Vec<Curve>,
    /// Single samples of the first repeat; left out unless a view asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub scatters: Vec<ScatterView>,
    /// Threads on a pCPU in the first repeat; left out unless a view asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub intervals: Vec<IntervalView>,
    /// Policy events over time; left out unless the plans have slices.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub policy_events: Vec<PolicyEventSeries>,
    /// vCPUs in use over time; left out unless the plans have slices, and if no VM avoids any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub in_use: Vec<InUseSeries>,
    /// Changes at set times of the scenario; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub switches: Vec<Switch>,
    /// What policies may cost others, in the verdicts.
    #[serde(default)]
    pub limits: Limits,
    /// Verdicts, for each backend and cell.
    pub verdicts: Vec<Verdict>,
    /// How to apply each policy to running VMs.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub deployments: Vec<Deployment>,
    /// Rows of the table that a backend cannot run here, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub missing: Vec<Missing>,
    /// Notes about what could not be seen, and the cost of observing; only for VMs that other programs run.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<Note>,
    /// The host of the measurement; live backends only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub environment: BTreeMap<String, String>,
    /// Engine accounting; simulator only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub engine: Option<Engine>,
}

/// Counters of the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Model events executed, over all runs.
    pub events: u64,
    /// CPU seconds (user and system) they took: the only number that differs between two runs.
    pub cpu_s: f64,
    /// Simulated seconds, warm-up included.
    pub sim_s: f64,
}

/// A series: latencies, or a single number.
///
/// A series with a count is a distribution. (Trying one form after the other would read a distribution with a damaged
/// field as a number.)
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, try_from = "Value")]
pub enum Series {
    /// A distribution.
    Latency(Box<LatencySeries>),
    /// A number.
    Scalar(Box<ScalarSeries>),
}

impl TryFrom<Value> for Series {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        if value.get("count").is_some() {
            let latencies: Box<LatencySeries> = serde_json::from_value(value)?;
            let l = &latencies;
            let all =
                [l.min, l.mean, l.p50, l.p90, l.p99, l.p999, l.p9999, l.max, l.max_per_repeat];
            if all.into_iter().flatten().any(|us| us < 0.0) {
                return Err(serde::de::Error::custom("a latency below zero"));
            }
            Ok(Self::Latency(latencies))
        } else {
            serde_json::from_value(value).map(Self::Scalar)
        }
    }
}

/// Identity of a series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// Backend.
    pub backend: String,
    /// Policy.
    pub policy: String,
    /// Cell of the matrix.
    pub params: Params,
    /// The same with the matrix's paths (for paths that change together, the first). Left out without a matrix.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub cell: BTreeMap<String, String>,
    /// Probe.
    pub probe: String,
    /// What was measured.
    pub metric: String,
    /// Unit of all values except counts.
    pub unit: String,
    /// Repeats that are in it.
    pub repeats: u32,
}

/// Latencies of one probe under one policy, all repeats pooled, in microseconds.
///
/// A quantile is null if fewer than 10 samples lie beyond it. Intervals are over repeats ([`vcoop_statistics`]) and
/// null where none is valid. A series without samples stays: mean and extremes are null, and `missed` has the number of
/// periods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySeries {
    /// Its identity.
    #[serde(flatten)]
    pub key: Key,
    /// Samples.
    pub count: u64,
    /// Periods that passed without a sample.
    pub missed: u64,
    /// Smallest sample; null without samples, like mean and largest.
    pub min: Option<f64>,
    /// Mean, exact except for rounding to whole nanoseconds.
    pub mean: Option<f64>,
    /// Its interval.
    pub mean_ci95: Option<Interval>,
    /// Median.
    pub p50: Option<f64>,
    /// 90 % quantile.
    pub p90: Option<f64>,
    /// 99 % quantile.
    pub p99: Option<f64>,
    /// 99.9 % quantile.
    pub p999: Option<f64>,
    /// 99.99 % quantile.
    pub p9999: Option<f64>,
    /// Largest observed sample, which is not a bound.
    pub max: Option<f64>,
    /// Median over repeats of each repeat's largest sample: the typical maximum of one run of this length.
    pub max_per_repeat: Option<f64>,
    /// Interval of the median; likewise the following.
    pub p50_ci95: Option<Interval>,
    /// Of the 90 % quantile.
    pub p90_ci95: Option<Interval>,
    /// Of the 99 % quantile.
    pub p99_ci95: Option<Interval>,
    /// Of the 99.9 % quantile.
    pub p999_ci95: Option<Interval>,
    /// Of the 99.99 % quantile.
    pub p9999_ci95: Option<Interval>,
    /// Statistics over the baseline policy's, paired by repeat; null for the baseline.
    pub ratio_to_baseline: Option<Ratios>,
    /// Intervals of these ratios. A policy differs only if 1 is outside.
    pub ratio_ci95: Option<RatioIntervals>,
    /// Mean time of a sample in each part. Parts add up to the mean, except for rounding. In addition, `host_wait` is
    /// `wake_to_run` plus `preempted_to_run`, the steal.
    pub parts_mean: BTreeMap<String, f64>,
    /// Threads on the pCPU while samples waited for it: mean time for each sample, by label.
    pub ran_instead_mean: BTreeMap<String, f64>,
    /// The worst samples, largest first.
    pub worst: Vec<Worst>,
    /// Data for charts; left out unless the plans have slices.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<Box<Detail>>,
}

impl LatencySeries {
    /// Share of its periods that passed without a sample.
    pub fn missed_share(&self) -> f64 {
        let due = self.count + self.missed;
        if due == 0 { 0.0 } else { self.missed as f64 / due as f64 }
    }

    /// Whether its task hardly ran: nine of ten periods passed without a sample. Its samples represent only the rest.
    pub fn is_starved(&self) -> bool {
        is_starved(self.missed_share())
    }

    /// Whether it is about guests: a probe in one, or a round trip from the host through one. Other probes of the host
    /// show its costs.
    pub fn is_of_a_guest(&self) -> bool {
        let guests = [Part::GuestIrq, Part::GuestWait, Part::GuestSwitch];
        let inside = |part: &Part| self.parts_mean.get(part.name()).is_some_and(|us| *us > 0.0);
        !self.key.probe.starts_with("host.") || guests.iter().any(inside)
    }
}

/// Ratios of a series' statistics to the baseline's; null if either is.
pub type Ratios = PerStatistic<f64>;

/// Their intervals.
pub type RatioIntervals = PerStatistic<Interval>;

/// A value for each statistic of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerStatistic<T> {
    /// Of means.
    pub mean: Option<T>,
    /// Of medians.
    pub p50: Option<T>,
    /// Of 90 % quantiles.
    pub p90: Option<T>,
    /// Of 99 % quantiles.
    pub p99: Option<T>,
    /// Of 99.9 % quantiles.
    pub p999: Option<T>,
    /// Of 99.99 % quantiles.
    pub p9999: Option<T>,
}

/// One of the worst samples, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Repeat it is from.
    pub repeat: u32,
    /// When it was due, from the start of that repeat's measurement.
    pub due_us: f64,
    /// How late it was.
    pub latency_us: f64,
    /// Its parts, those that are not zero; they add up to it exactly.
    pub parts: BTreeMap<String, f64>,
    /// Threads on the pCPU meanwhile.
    pub ran_instead: BTreeMap<String, f64>,
}

/// A number, as the mean over repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalarSeries {
    /// What it is about.
    #[serde(flatten)]
    pub key: Key,
    /// Mean over repeats; null if all were interrupted during their warm-up. Always present.
    #[serde(deserialize_with = "Option::deserialize")]
    pub value: Option<f64>,
    /// Its interval over repeats.
    pub value_ci95: Option<Interval>,
    /// Ratio to the baseline's, paired by repeat; null for the baseline and if that is zero.
    pub ratio_to_baseline: Option<f64>,
    /// Its interval.
    pub ratio_ci95: Option<Interval>,
}

/// A plan that a backend cannot run on this host, though it runs the rest of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// Backend.
    pub backend: String,
    /// Policy.
    pub policy: String,
    /// Cell.
    pub params: Params,
    /// Why not.
    pub why: String,
    /// The remedy.
    pub remedy: String,
}

/// Limits on the cost of a policy for the host and others, relative to the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Largest ratio of a host probe's means.
    pub mean: f64,
    /// Largest ratio of a host probe's p99s.
    pub p99: f64,
    /// Largest share of periods that a host probe may miss beyond the baseline's share. A probe that misses more than
    /// one period in a hundred has a p99 that does not represent all of its periods.
    pub missed: f64,
    /// Smallest ratio of a load's throughputs.
    pub work: f64,
}

/// A verdict about the policies in a cell, by the rule of [`crate::judge`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Backend.
    pub backend: String,
    /// Cell; empty for a verdict over several.
    pub params: Params,
    /// Number of cells; left out if it is one.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub cells: usize,
    /// Best policy; null if none is better than the baseline at an acceptable cost.
    pub best: Option<String>,
    /// One or two sentences.
    pub text: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Series {
    /// Its identity.
    pub fn key(&self) -> &Key {
        match self {
            Self::Latency(series) => &series.key,
            Self::Scalar(series) => &series.key,
        }
    }
}

impl Document {
    /// Whether it is one observation of a VM, with nothing to compare. The turns of a comparison have a warm-up.
    pub fn is_observation(&self) -> bool {
        self.backends == [VM] && self.policies.len() < 2 && self.warmup_s == 0.0
    }

    /// Latency series, in order.
    pub fn latencies(&self) -> impl Iterator<Item = &LatencySeries> {
        self.series.iter().filter_map(|series| match series {
            Series::Latency(series) => Some(&**series),
            Series::Scalar(_) => None,
        })
    }

    /// Scalar series, in order.
    pub fn scalars(&self) -> impl Iterator<Item = &ScalarSeries> {
        self.series.iter().filter_map(|series| match series {
            Series::Scalar(series) => Some(&**series),
            Series::Latency(_) => None,
        })
    }

    /// The latency series with this name in a cell, under a policy.
    pub fn latency(
        &self,
        cell: &(String, Params),
        name: &str,
        policy: &str,
    ) -> Option<&LatencySeries> {
        let is = |key: &Key| key.policy == policy && key.is_named(name) && key.is_in(cell);
        self.latencies().find(|series| is(&series.key))
    }

    /// The scalar of a probe and metric in a cell, under a policy.
    pub fn scalar(
        &self,
        cell: &(String, Params),
        probe: &str,
        metric: &str,
        policy: &str,
    ) -> Option<&ScalarSeries> {
        // The parameters of a cell last: there are many, and most series differ by name.
        let is = |key: &Key| key.probe == probe && key.metric == metric && key.policy == policy;
        self.scalars().find(|series| is(&series.key) && series.key.is_in(cell))
    }

    /// Whether there is data for charts: [`LatencySeries::detail`] of at least one series.
    pub fn has_detail(&self) -> bool {
        let mut latencies = self.latencies().peekable();
        latencies.peek().is_none() || latencies.any(|series| series.detail.is_some())
    }

    /// Backends and cells that have series, in order: each is an experiment.
    pub fn cells(&self) -> Vec<(String, Params)> {
        let keys = self.series.iter().map(Series::key);
        distinct(keys.map(|key| (key.backend.clone(), key.params.clone())))
    }

    /// The document as pretty JSON with a newline at its end.
    pub fn to_json(&self) -> String {
        // Maps have string keys and numbers are finite: nothing here can fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The same without the values that differ between two runs: [`Engine::cpu_s`].
    pub fn without_timing(&self) -> Self {
        let mut same = self.clone();
        if let Some(engine) = &mut same.engine {
            engine.cpu_s = 0.0;
        }
        same
    }
}

impl Key {
    /// Its name, if it is a latency series.
    pub fn name(&self) -> Cow<'_, str> {
        LatencyRecord::name(&self.probe, &self.metric)
    }

    /// Whether a latency series has this name.
    pub fn is_named(&self, name: &str) -> bool {
        self.name() == name
    }

    /// Metrics of a vCPU's waits for a CPU: since a wake-up, and after a preemption.
    pub const WAITS: [&str; 2] = ["wait", "preempted"];

    /// Whether a series is a vCPU's waits for a CPU.
    pub fn is_a_wait(&self) -> bool {
        Self::WAITS.contains(&self.metric.as_str())
    }

    /// Whether it belongs to a cell of [`Document::cells`].
    pub fn is_in(&self, cell: &(String, Params)) -> bool {
        self.backend == cell.0 && self.params == cell.1
    }
}
