//! A backend whose answers are known, and plans to give it.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use hdrhistogram::Histogram;
use vcoop_experiment::analysis::{About, document};
use vcoop_experiment::backend::{Backend, Column, Unavailable};
use vcoop_experiment::result::Document;
use vcoop_experiment::runner::{Control, Experiment};
use vcoop_model::builtin::builtin_scenario;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{LatencyRecord, Part, Recording, Scalar};
use vcoop_model::run::Run;
use vcoop_testing::rig;

/// Plans of a built-in scenario, with overrides.
pub(crate) fn plans(name: &str, sets: &[&str], policies: &[&str]) -> Vec<Plan> {
    rig::plans(builtin_scenario(name).unwrap(), policies, sets)
}

/// Runs plans and makes the document.
pub(crate) fn run(plans: &[Plan], backend: &'static dyn Backend, jobs: usize) -> Document {
    let stop = AtomicBool::new(false);
    let control = Control { stop: &stop, progress: &|_| () };
    let columns = [Column::all(backend, plans.len())];
    let measured = Experiment { plans, columns: &columns, jobs }.run(control).unwrap();
    let about = About { baseline: "vanilla".to_owned(), ..About::default() };
    document(plans, &measured, about)
}

/// What the fake machine measures, by policy, probe and number of the repeat.
pub(crate) type Law = fn(policy: &str, probe: &str, seed: u64) -> Vec<u64>;

/// A backend that measures what its law says.
#[derive(Debug)]
pub(crate) struct Fake {
    /// Latencies in nanoseconds.
    pub(crate) law: Law,
    /// Periods missed, by policy.
    pub(crate) missed: fn(&str) -> u64,
    /// Throughput of the host load, by policy.
    pub(crate) load: fn(&str) -> f64,
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn available(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn run(&self, run: Run<'_>) -> Result<(Recording, Option<String>), String> {
        let Run { plan, seed, .. } = run;
        let policy = plan.policy_name.as_str();
        let probes = plan.probes.iter().map(|probe| {
            record(&probe.probe, &(self.law)(policy, &probe.probe, seed), (self.missed)(policy))
        });
        let key = ("host.hog".to_owned(), "throughput".to_owned());
        let load = Scalar { unit: "cpu", value: (self.load)(policy) };
        let scalars = BTreeMap::from([(key, load)]);
        let recording = Recording { latencies: probes.collect(), scalars, ..Recording::default() };
        Ok((recording, None))
    }
}

/// A record of given latencies; all of each is host wait.
pub(crate) fn record(probe: &str, values: &[u64], missed: u64) -> LatencyRecord {
    let mut hist = Histogram::new_with_max(60_000_000_000, 3).unwrap();
    values.iter().for_each(|v| hist.saturating_record(*v));
    let sum_ns: u128 = values.iter().map(|v| u128::from(*v)).sum();
    let mut parts_sum = [0; Part::COUNT];
    parts_sum[Part::WakeToRun as usize] = sum_ns / 4;
    parts_sum[Part::PreemptedToRun as usize] = sum_ns - sum_ns / 4;
    LatencyRecord {
        probe: probe.to_owned(),
        metric: "latency",
        hist,
        missed,
        sum_ns,
        min_ns: values.iter().copied().min().unwrap_or(u64::MAX),
        max_ns: values.iter().copied().max().unwrap_or(0),
        parts_sum,
        parts_by_log2: Box::new([[0; Part::COUNT]; 64]),
        count_by_log2: [0; 64],
        ran_instead: BTreeMap::from([("hog".to_owned(), sum_ns)]),
        worst: Vec::new(),
        slices: None,
    }
}
