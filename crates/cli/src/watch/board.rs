//! What the dashboard shows.

use std::collections::BTreeMap;

use vcoop_lab::digest::Digest;
use vcoop_lab::human;
use vcoop_lab::runner::{Progress, RunId};
use vcoop_model::plan::{Ns, Plan};

/// Repeats that a line of bars shows at most.
const MOST_BARS: usize = 200;

/// Everything measured so far.
#[derive(Clone, Debug)]
pub(super) struct Board {
    pub(super) title: String,
    pub(super) progress: Progress,
    /// By plan: policy and cell.
    names: Vec<String>,
    /// In the order of backends, plans and probes.
    pub(super) entries: Vec<Entry>,
}

/// One probe under one policy on one backend.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    key: (usize, usize, usize),
    pub(super) policy: String,
    pub(super) probe: String,
    /// Samples by latency.
    bins: BTreeMap<Ns, u64>,
    max: Ns,
    /// 99 % quantile of each repeat, in the order in which they ended.
    p99: Vec<Ns>,
    repeats: u32,
    /// Sums over repeats.
    boosted_pct: f64,
    throttles: f64,
    denied: f64,
}

impl Board {
    pub(super) fn new(title: &str, plans: &[Plan]) -> Self {
        let name = |plan: &Plan| {
            let cell: String = plan.params.iter().map(|(k, v)| format!(" {k}={v}")).collect();
            format!("{}{cell}", plan.policy_name)
        };
        Self {
            title: title.to_owned(),
            progress: Progress { done: 0, total: 0 },
            names: plans.iter().map(name).collect(),
            entries: Vec::new(),
        }
    }

    /// Takes a finished repeat in.
    pub(super) fn book(&mut self, run: RunId, digest: &Digest) {
        let scalar = |metric: &str| {
            let of = digest.scalars.iter().filter(|((_, m), _)| m == metric);
            of.map(|(_, s)| s.value).sum::<f64>()
        };
        let (boosted, throttles, denied) =
            (scalar("boosted"), scalar("throttles"), scalar("denied"));
        for (p, latency) in digest.latencies.iter().enumerate() {
            let key = (run.column, run.plan, p);
            let at = self.entries.partition_point(|e| e.key < key);
            if self.entries.get(at).is_none_or(|e| e.key != key) {
                let policy = format!("{} {}", run.backend, self.names[run.plan]);
                let probe = latency.probe.clone();
                self.entries.insert(at, Entry::new(key, policy, probe));
            }
            let entry = &mut self.entries[at];
            latency.bins.iter().for_each(|(ns, n)| *entry.bins.entry(*ns).or_default() += n);
            entry.max = entry.max.max(latency.max_ns);
            if latency.count > 0 && entry.p99.len() < MOST_BARS {
                entry.p99.push(quantile(latency.bins.iter().copied(), latency.count, 990));
            }
            entry.repeats += 1;
            entry.boosted_pct += boosted;
            entry.throttles += throttles;
            entry.denied += denied;
        }
    }

    /// How many lines of bars there are.
    pub(super) fn policies(&self) -> usize {
        self.sparks().len().clamp(1, 12)
    }

    /// Bars of each policy's first guest probe.
    pub(super) fn sparks(&self) -> Vec<(String, &[u64])> {
        let mut sparks: Vec<((usize, usize), String, &[u64])> = Vec::new();
        for entry in self.entries.iter().filter(|e| !e.probe.starts_with("host.")) {
            let plan = (entry.key.0, entry.key.1);
            if sparks.last().is_none_or(|s| s.0 != plan) {
                let name = format!("{} {}", entry.policy, entry.probe);
                sparks.push((plan, name, &entry.p99));
            }
        }
        sparks.into_iter().map(|(_, name, bars)| (name, bars)).collect()
    }
}

impl Entry {
    fn new(key: (usize, usize, usize), policy: String, probe: String) -> Self {
        Self {
            key,
            policy,
            probe,
            bins: BTreeMap::new(),
            max: 0,
            p99: Vec::new(),
            repeats: 0,
            boosted_pct: 0.0,
            throttles: 0.0,
            denied: 0.0,
        }
    }

    /// Samples, quantiles, largest, boosted time, budget: as text. A quantile needs 10 samples beyond
    /// it.
    pub(super) fn cells(&self) -> Vec<String> {
        let count: u64 = self.bins.values().sum();
        let time = |ns: Ns| human::time(ns as f64 / 1e3);
        let at = |permille: u64| {
            let beyond = count * (1000 - permille) / 1000;
            let bins = self.bins.iter().map(|(ns, n)| (*ns, *n));
            if beyond < 10 { "n/a".to_owned() } else { time(quantile(bins, count, permille)) }
        };
        let mean = |sum: f64| sum / f64::from(self.repeats.max(1));
        let budget = match (mean(self.throttles), mean(self.denied)) {
            (0.0, 0.0) => "not used up".to_owned(),
            (throttles, _) => format!("{} times/s", human::digits(throttles)),
        };
        let mut cells = vec![count.to_string(), at(500), at(990), at(999), time(self.max)];
        cells.push(format!("{} %", human::digits(mean(self.boosted_pct))));
        cells.push(budget);
        cells
    }
}

/// The value below which so many thousandths of the samples are.
fn quantile(bins: impl Iterator<Item = (Ns, u64)>, count: u64, permille: u64) -> Ns {
    let wanted = (count * permille).div_ceil(1000).max(1);
    let (mut sum, mut value) = (0, 0);
    for (ns, n) in bins {
        value = ns;
        sum += n;
        if sum >= wanted {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_of_bins() {
        let bins = [(10, 98), (20, 1), (30, 1)];
        let at = |permille| quantile(bins.into_iter(), 100, permille);
        assert_eq!((at(500), at(980), at(990), at(1000)), (10, 10, 20, 30));
    }
}
