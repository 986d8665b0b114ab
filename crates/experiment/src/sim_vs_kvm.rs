//! Simulated beside measured: how far the simulation of this host is off.

use serde::{Deserialize, Serialize};
use vcoop_model::distinct;

use crate::result::{Document, Key, LatencySeries, Params, SIM};
use crate::verdict::is_probe;

/// Ratio of simulated to measured, or its inverse, from which they count as far apart.
const FAR: f64 = 3.0;

/// A statistic on both backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatisticPair {
    /// Simulated.
    pub sim: Option<f64>,
    /// Measured.
    pub kvm: Option<f64>,
    /// Simulated over measured; null where either is missing or zero.
    pub ratio: Option<f64>,
}

impl StatisticPair {
    fn new(sim: Option<f64>, kvm: Option<f64>) -> Self {
        let ratio = match (sim, kvm) {
            (Some(sim), Some(kvm)) if sim > 0.0 && kvm > 0.0 => {
                Some(crate::rounding::ratio(sim / kvm))
            }
            _ => None,
        };
        Self { sim, kvm, ratio }
    }

    /// Whether they are so far apart that the simulation does not represent the host.
    pub fn is_far(&self) -> bool {
        self.ratio.is_some_and(|ratio| !(1.0 / FAR..=FAR).contains(&ratio))
    }
}

/// One series on both backends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesPair {
    /// Policy.
    pub policy: String,
    /// Cell.
    pub params: Params,
    /// Probe.
    pub probe: String,
    /// `latency`, or `throughput` of a load or task.
    pub metric: String,
    /// Unit of all values.
    pub unit: String,
    /// Means; of a throughput, the value.
    pub mean: StatisticPair,
    /// Medians.
    pub p50: StatisticPair,
    /// 90 % quantiles.
    pub p90: StatisticPair,
    /// 99 % quantiles.
    pub p99: StatisticPair,
}

/// Every latency series and every throughput that both backends have, series by series
/// and policy by policy.
pub fn beside(document: &Document) -> Vec<SeriesPair> {
    let same = |a: &Key, b: &Key| {
        a.policy == b.policy && a.params == b.params && a.probe == b.probe && a.metric == b.metric
    };
    let mut rows = Vec::new();
    for sim in document.latencies().filter(|s| s.key.backend == SIM) {
        let live = document.latencies().find(|s| s.key.backend == "kvm" && same(&s.key, &sim.key));
        let Some(kvm) = live else { continue };
        let pair = |f: fn(&LatencySeries) -> Option<f64>| StatisticPair::new(f(sim), f(kvm));
        rows.push(SeriesPair {
            mean: pair(|s| s.mean),
            p50: pair(|s| s.p50),
            p90: pair(|s| s.p90),
            p99: pair(|s| s.p99),
            ..row(&sim.key)
        });
    }
    for sim in document.scalars().filter(|s| s.key.backend == SIM) {
        // On a live host a probe's is all CPU time that it takes, in the simulator only its work.
        if sim.key.metric != "throughput" || is_probe(document, &sim.key.probe) {
            continue;
        }
        let live = document.scalars().find(|s| s.key.backend == "kvm" && same(&s.key, &sim.key));
        if let Some(kvm) = live {
            let mean = StatisticPair::new(sim.value, kvm.value);
            rows.push(SeriesPair { mean, ..row(&sim.key) });
        }
    }
    // Policies of one series side by side, series in the order of the document.
    let order = distinct(rows.iter().map(SeriesPair::series));
    rows.sort_by_key(|row| order.iter().position(|id| *id == row.series()));
    rows
}

impl SeriesPair {
    fn series(&self) -> (Params, String, String) {
        (self.params.clone(), self.probe.clone(), self.metric.clone())
    }
}

fn row(key: &Key) -> SeriesPair {
    SeriesPair {
        policy: key.policy.clone(),
        params: key.params.clone(),
        probe: key.probe.clone(),
        metric: key.metric.clone(),
        unit: key.unit.clone(),
        ..SeriesPair::default()
    }
}
