//! What all tests on this host's `/dev/kvm` need.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use vcoop_kvm::Options;
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{LatencyRecord, Recording};
use vcoop_model::scenario::{Scenario, Set};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// `None`, said aloud, if the lab cannot run here. Held for the whole test: tests that measure
/// must not run beside each other.
pub(crate) fn lab() -> Option<MutexGuard<'static, ()>> {
    match vcoop_kvm::available() {
        Ok(()) => Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(missing) => {
            eprintln!("skipped: {missing}");
            None
        }
    }
}

/// One busy vCPU, two hogs on its CPU, and the host's probe there too.
pub(crate) const BUSY: &str = r#"
name = "busy"
title = "busy"
duration = "1s"
warmup = "200ms"

[host]
profile = "xeon-server"
pcpus = 2
topology = { cores_per_llc = 2 }

[host.sched]
fair = "eevdf"

[[load]]
name = "hog"
kind = "hog"
count = 2
cpus = "0"

[[load]]
name = "cyclictest"
kind = "cyclictest"
interval = "1ms"
policy = "other"
cpus = "0"

[[vm]]
name = "guest"
vcpus = 1
pin = "0"

[[vm.task]]
name = "cyclictest"
kind = "cyclictest"
interval = "1ms"
policy = "fifo 80"
work = "5us"

[[vm.task]]
name = "background"
kind = "hog"
"#;

/// The plan of a scenario under a policy.
pub(crate) fn plan(text: &str, policy: &str, sets: &[&str]) -> Plan {
    let sets: Vec<Set> = sets.iter().map(|s| Set::parse(s).unwrap()).collect();
    let scenario = Scenario::parse("test", text, &sets, &NoCaptures);
    let scenario = scenario.unwrap_or_else(|errors| panic!("{errors}"));
    scenario.plans(Some(&[policy.to_owned()])).unwrap().remove(0)
}

pub(crate) fn run(plan: &Plan) -> Recording {
    run_with(plan, Options::default())
}

pub(crate) fn run_with(plan: &Plan, options: Options) -> Recording {
    vcoop_kvm::run_with(plan, 1, &|| false, &options).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn latency<'a>(r: &'a Recording, probe: &str) -> &'a LatencyRecord {
    r.latencies.iter().find(|l| l.probe == probe).unwrap_or_else(|| panic!("no probe {probe}"))
}

/// A scalar that need not be there.
pub(crate) fn scalar_if(r: &Recording, probe: &str, metric: &str) -> Option<f64> {
    r.scalars.get(&(probe.to_owned(), metric.to_owned())).map(|s| s.value)
}

pub(crate) fn scalar(r: &Recording, probe: &str, metric: &str) -> f64 {
    scalar_if(r, probe, metric).unwrap_or_else(|| panic!("no scalar {probe} {metric}"))
}

/// Holds at once, or the second time. On a host that others used meanwhile a failure says nothing about
/// the lab, and is said aloud.
pub(crate) fn twice(mut holds: impl FnMut() -> Result<(), String>) {
    let before = Used::now();
    let Err(first) = holds() else { return };
    eprintln!("once more: {first}");
    let Err(second) = holds() else { return };
    let others = Used::now().others_since(&before);
    if others > MOST_BY_OTHERS {
        let percent = 100.0 * others;
        eprintln!("skipped: others used {percent:.0} % of this host: {first}; then {second}");
        return;
    }
    panic!("{first}; then {second}");
}

/// Largest part of the host's CPU time that others may have used for a failure to count: half a CPU of four.
const MOST_BY_OTHERS: f64 = 0.125;

/// CPU time, in clock ticks.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Of all CPUs, idle or not.
    all: f64,
    /// Not idle; stolen time is somebody's, too.
    busy: f64,
    /// By this process and the children it has waited for.
    own: f64,
}

impl Used {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpus = ticks(stat.lines().next().unwrap_or_default().trim_start_matches("cpu"));
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in the first two.
        let all: f64 = cpus.iter().take(8).sum();
        let idle: f64 = cpus.iter().skip(3).take(2).sum();
        let own = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // utime, stime, cutime, cstime: fields 14 to 17, of which two end with the name.
        let own = ticks(own.rsplit(')').next().unwrap_or_default());
        Self { all, busy: all - idle, own: own.iter().skip(11).take(4).sum() }
    }

    /// The part of the host's CPU time that others used.
    fn others_since(&self, then: &Self) -> f64 {
        let others = (self.busy - then.busy) - (self.own - then.own);
        others / (self.all - then.all).max(1.0)
    }
}

/// The numbers of a line; what is none is 0.
fn ticks(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect()
}
