//! A backend whose answers are known, and plans to give it.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Backend, Column};
use vcoop_experiment::result::{Document, Key};
use vcoop_experiment::runner::{Control, Experiment, Measurements, RunError};
use vcoop_experiment::simulate;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{LatencyRecord, Part, Parts, Recording};
use vcoop_model::run::Run;
use vcoop_testing::rig;

/// Plans of a built-in scenario, with overrides.
pub(crate) fn plans(name: &str, sets: &[&str], policies: &[&str]) -> Vec<Plan> {
    rig::builtin(name, policies, sets)
}

/// Simulates plans and makes the document.
pub(crate) fn simulated(plans: &[Plan], jobs: usize) -> Document {
    let about = Metadata { baseline: "vanilla".to_owned(), ..Metadata::default() };
    simulate(plans, jobs, about).unwrap()
}

/// Runs plans and makes the document.
pub(crate) fn run(plans: &[Plan], backend: &'static dyn Backend, jobs: usize) -> Document {
    let about = Metadata { baseline: "vanilla".to_owned(), ..Metadata::default() };
    document(plans, &measured(plans, backend, jobs).unwrap(), about)
}

/// Runs plans.
pub(crate) fn measured(
    plans: &[Plan],
    backend: &dyn Backend,
    jobs: usize,
) -> Result<Measurements, RunError> {
    let stop = AtomicBool::new(false);
    let control = Control { stop: &stop, progress: &|_| () };
    let columns = [Column::all(backend, plans.len())];
    Experiment { plans, columns: &columns, jobs }.run(control)
}

/// What a backend answers to a run.
pub(crate) type Ran = Result<(Recording, Option<String>), String>;

/// A backend of this name that is one function.
#[derive(Debug)]
pub(crate) struct Stub(pub(crate) &'static str, pub(crate) fn(Run<'_>) -> Ran);

impl Backend for Stub {
    fn name(&self) -> &'static str {
        self.0
    }

    fn run(&self, run: Run<'_>) -> Ran {
        (self.1)(run)
    }
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

    fn run(&self, run: Run<'_>) -> Ran {
        let Run { plan, seed, .. } = run;
        let policy = plan.policy_name.as_str();
        let probes = plan.probes.iter().map(|probe| {
            record(&probe.probe, &(self.law)(policy, &probe.probe, seed), (self.missed)(policy))
        });
        let mut recording = Recording { latencies: probes.collect(), ..Recording::default() };
        recording.put("host.hog", "throughput", "cpu", (self.load)(policy));
        Ok((recording, None))
    }
}

/// The value of the first scalar with this metric and such a key.
pub(crate) fn value(document: &Document, metric: &str, is: impl Fn(&Key) -> bool) -> f64 {
    let found = document.scalars().find(|s| s.key.metric == metric && is(&s.key));
    found.and_then(|s| s.value).unwrap_or_else(|| panic!("no {metric}"))
}

/// A record of given latencies; all of each is host wait.
pub(crate) fn record(probe: &str, values: &[u64], missed: u64) -> LatencyRecord {
    let mut record = LatencyRecord { missed, ..LatencyRecord::new(probe) };
    for &ns in values {
        let mut parts = Parts::default();
        parts[Part::WakeToRun as usize] = ns / 4;
        parts[Part::PreemptedToRun as usize] = ns - ns / 4;
        record.book(ns, &parts);
    }
    record.ran_instead = BTreeMap::from([("hog".to_owned(), record.sum_ns)]);
    record
}
