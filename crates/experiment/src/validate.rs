//! Prediction errors of the simulation of this host, over a set of scenarios.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vcoop_statistics::median;

use crate::result::Document;
use crate::rounding;
use crate::sim_vs_kvm::{SeriesPair, StatisticPair, beside};

/// Name and version of the format.
pub const SCHEMA: &str = "vcoop.validation/1";

/// Default scenarios of `vcoop validate`: all built-in ones that two CPUs can run.
pub const SCENARIOS: [&str; 10] = [
    "threads-1",
    "idle-host-1",
    "busy-host-1",
    "duty-host-1",
    "bursty-host-1",
    "two-guests-1",
    "audio-host-1",
    "timer-ablation",
    "vmping",
    "ipi-ping",
];

/// Number of errors shown singly.
const LARGEST: usize = 3;

/// The prediction errors of several scenarios.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of vcoop.
    pub version: String,
    /// The host.
    pub environment: BTreeMap<String, String>,
    /// Scenarios in the order of their runs.
    pub scenarios: Vec<ScenarioValidation>,
    /// By statistic.
    pub summary: Vec<Summary>,
    /// The largest errors, the largest first, at most one for each series.
    pub largest: Vec<Error>,
    /// Ended early.
    pub interrupted: bool,
}

/// One scenario's series on both backends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioValidation {
    /// Scenario.
    pub scenario: String,
    /// One line about it.
    pub title: String,
    /// Repeats of so many measured seconds.
    pub repeats: u32,
    /// Measured seconds of a repeat.
    pub duration_s: f64,
    /// Series.
    pub series: Vec<SeriesPair>,
}

/// Prediction errors of one statistic over all series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// `guest latency`, `host latency` or `throughput`.
    pub of: String,
    /// `mean`, `p50`, `p90` or `p99`.
    pub statistic: String,
    /// Series that have it on both backends.
    pub count: usize,
    /// Geometric mean of simulated over measured: 1 is no bias.
    pub bias: f64,
    /// Median of the factor by which the two differ, whichever is larger: 1 is exact.
    pub median_factor: f64,
    /// Share of series within a factor of two.
    pub within_2x: f64,
}

/// One prediction error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Error {
    /// Scenario.
    pub scenario: String,
    /// Series.
    pub series: String,
    /// Statistic.
    pub statistic: String,
    /// The values.
    pub pair: StatisticPair,
    /// Unit.
    pub unit: String,
}

impl SeriesPair {
    /// Statistics by name.
    pub fn statistics(&self) -> [(&'static str, &StatisticPair); 4] {
        [("mean", &self.mean), ("p50", &self.p50), ("p90", &self.p90), ("p99", &self.p99)]
    }

    fn kind(&self) -> &'static str {
        match (self.metric.as_str(), self.probe.starts_with("host.")) {
            ("latency", true) => "host latency",
            ("latency", false) => "guest latency",
            _ => "throughput",
        }
    }

    /// `guest.cyclictest under dynamic`, with the cell.
    fn name(&self) -> String {
        let cell = crate::params::words(&self.params);
        let metric = if self.metric == "latency" { "" } else { " throughput" };
        let place = if cell.is_empty() { String::new() } else { format!(" ({cell})") };
        format!("{}{metric} under {}{place}", self.probe, self.policy)
    }
}

/// Compares the columns of documents that have both.
pub fn validation(documents: &[Document]) -> Validation {
    let scenarios: Vec<ScenarioValidation> = documents
        .iter()
        .map(|document| ScenarioValidation {
            scenario: document.scenario.clone(),
            title: document.title.clone(),
            repeats: document.repeats,
            duration_s: document.duration_s,
            series: beside(document),
        })
        .collect();
    let environment = documents.first().map(|d| d.environment.clone()).unwrap_or_default();
    Validation {
        schema: SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        environment,
        summary: summary(&scenarios),
        largest: largest(&scenarios),
        scenarios,
        interrupted: documents.iter().any(|document| document.interrupted),
    }
}

fn summary(scenarios: &[ScenarioValidation]) -> Vec<Summary> {
    let mut by: BTreeMap<(&str, usize), (&str, Vec<f64>)> = BTreeMap::new();
    for series in scenarios.iter().flat_map(|s| &s.series) {
        for (i, (name, pair)) in series.statistics().into_iter().enumerate() {
            if let Some(ratio) = pair.ratio.filter(|r| *r > 0.0) {
                let logs = &mut by.entry((series.kind(), i)).or_insert((name, Vec::new())).1;
                logs.push(libm::log2(ratio));
            }
        }
    }
    by.into_iter()
        .map(|((of, _), (statistic, mut logs))| {
            let n = logs.len();
            let bias = libm::exp2(logs.iter().sum::<f64>() / n as f64);
            logs.iter_mut().for_each(|log| *log = log.abs());
            let middle = median(&mut logs).unwrap_or(0.0);
            let within = logs.iter().filter(|log| **log <= 1.0).count();
            Summary {
                of: of.to_owned(),
                statistic: statistic.to_owned(),
                count: n,
                bias: rounding::ratio(bias),
                median_factor: rounding::ratio(libm::exp2(middle)),
                within_2x: rounding::ratio(within as f64 / n as f64),
            }
        })
        .collect()
}

fn largest(scenarios: &[ScenarioValidation]) -> Vec<Error> {
    let mut all: Vec<(f64, Error)> = Vec::new();
    for scenario in scenarios {
        for series in &scenario.series {
            let errors = series.statistics().into_iter().filter_map(|(statistic, pair)| {
                let log = libm::log2(pair.ratio.filter(|r| *r > 0.0)?).abs();
                Some((log, statistic, pair))
            });
            let Some((log, statistic, pair)) = errors.max_by(|a, b| a.0.total_cmp(&b.0)) else {
                continue;
            };
            let error = Error {
                scenario: scenario.scenario.clone(),
                series: series.name(),
                statistic: statistic.to_owned(),
                pair: *pair,
                unit: series.unit.clone(),
            };
            all.push((log, error));
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().take(LARGEST).map(|(_, error)| error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(probe: &str, ratios: [Option<f64>; 4]) -> SeriesPair {
        let pair =
            |ratio: Option<f64>| StatisticPair { sim: ratio, kvm: ratio.map(|_| 1.0), ratio };
        let [mean, p50, p90, p99] = ratios.map(pair);
        SeriesPair {
            policy: "vanilla".to_owned(),
            params: BTreeMap::new(),
            probe: probe.to_owned(),
            metric: "latency".to_owned(),
            unit: "us".to_owned(),
            mean,
            p50,
            p90,
            p99,
        }
    }

    fn scenarios() -> Vec<ScenarioValidation> {
        let one = |series| ScenarioValidation {
            scenario: "s".to_owned(),
            title: String::new(),
            repeats: 5,
            duration_s: 1.0,
            series,
        };
        vec![
            one(vec![
                series("guest.a", [Some(2.0), Some(0.5), None, Some(1.0)]),
                series("guest.b", [Some(0.5), Some(8.0), None, None]),
            ]),
            one(vec![series("host.c", [Some(0.25), None, None, None])]),
        ]
    }

    #[test]
    fn errors_in_both_directions_cancel_in_the_bias_only() {
        let all = summary(&scenarios());
        let of =
            |of, statistic| all.iter().find(|s| s.of == of && s.statistic == statistic).unwrap();
        let mean = of("guest latency", "mean");
        assert_eq!((mean.count, mean.bias, mean.median_factor, mean.within_2x), (2, 1.0, 2.0, 1.0));
        let p50 = of("guest latency", "p50");
        assert_eq!((p50.bias, p50.median_factor, p50.within_2x), (2.0, 4.0, 0.5));
        assert_eq!(of("host latency", "mean").median_factor, 4.0);
        assert!(!all.iter().any(|s| s.statistic == "p90"));
    }

    #[test]
    fn the_largest_error_of_a_series_stands_for_it() {
        let largest = largest(&scenarios());
        let names: Vec<_> =
            largest.iter().map(|e| (e.series.as_str(), e.statistic.as_str())).collect();
        let want = [
            ("guest.b under vanilla", "p50"),
            ("host.c under vanilla", "mean"),
            ("guest.a under vanilla", "p50"),
        ];
        assert_eq!(names[..2], want[..2]);
        assert_eq!(names[2].0, want[2].0);
    }
}
