//! The host that most live tests run, plans of it, and what they read from a recording.

use vcoop_capture::Loader;
use vcoop_model::builtin::builtin_scenario;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{LatencyRecord, Recording};
use vcoop_model::scenario::{Scenario, Set};

/// The text of a scenario on a host of two CPUs that share a cache, under EEVDF: `scenario!(keys, rest)`. `keys` are
/// put at its head (`duration = "1s"` and others), `rest` are its loads, VMs and other tables.
#[macro_export]
macro_rules! scenario {
    ($keys:literal, $rest:literal) => {
        concat!(
            "name = \"test\"\ntitle = \"test\"\n",
            $keys,
            "\n[host]\nprofile = \"xeon-server\"\npcpus = 2\n",
            "topology = { cores_per_llc = 2 }\n[host.sched]\nfair = \"eevdf\"\n",
            $rest
        )
    };
}

/// One busy vCPU with fair and urgent work, two hogs on its CPU, and the host's probe there too.
pub const BUSY: &str = scenario!(
    "duration = '1s'\nwarmup = '200ms'",
    r#"
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
"#
);

/// The plans of a scenario, for each cell of its matrix, under `policies`, or under its own if that is empty.
///
/// # Panics
///
/// There are none: the text or an override is wrong.
pub fn plans(text: &str, policies: &[&str], sets: &[&str]) -> Vec<Plan> {
    let sets: Vec<Set> = sets.iter().map(|s| Set::parse(s).unwrap()).collect();
    let scenario = Scenario::parse("test", text, &sets, &Loader::default());
    let scenario = scenario.unwrap_or_else(|errors| panic!("{errors}"));
    let policies: Vec<String> = policies.iter().map(|p| (*p).to_owned()).collect();
    let policies = (!policies.is_empty()).then_some(&policies[..]);
    scenario.plans(policies).unwrap_or_else(|e| panic!("{e}"))
}

/// As [`plans`], for a built-in scenario.
///
/// # Panics
///
/// No built-in scenario has this name, or an override is wrong.
pub fn builtin(name: &str, policies: &[&str], sets: &[&str]) -> Vec<Plan> {
    plans(builtin_scenario(name).expect("it is built in"), policies, sets)
}

/// A scenario: a guest with one busy vCPU, on a host with one CPU and without RT throttling. Small tasks of the host
/// disturb the guest, and a fair probe measures the cost to the host.
pub fn one_cpu() -> String {
    let mut text = r#"
name = "starving"
title = "One CPU"
duration = "300ms"
warmup = "50ms"
repeats = 5

[host]
profile = "celeron-n4500"
pcpus = 1
tick_hz = 1000
preemption = "voluntary"

[host.sched]
fair = "cfs"
rt_guard = "off"

[[load]]
name = "cyclictest"
kind = "cyclictest"
interval = "500us"
policy = "other"

[[vm]]
name = "guest"
vcpus = 1
tick_hz = 250

[[vm.task]]
name = "cyclictest"
kind = "cyclictest"
interval = "500us"
policy = "fifo 80"
work = "20us"

[[vm.task]]
name = "hog"
kind = "hog"
"#
    .to_owned();
    // Each is below what counts as a load.
    for i in 0..12 {
        text += &format!(
            "\n[[load]]\nname = \"small{i}\"\nkind = \"duty\"\nperiod = \"{}ms\"\nutil = \"0.8%\"\n",
            50 + 7 * i
        );
    }
    text
}

/// The first plan of a scenario under a policy.
///
/// # Panics
///
/// As [`plans`].
pub fn plan(text: &str, policy: &str, sets: &[&str]) -> Plan {
    plans(text, &[policy], sets).remove(0)
}

/// The record of a probe.
///
/// # Panics
///
/// There is no such probe.
pub fn latency<'a>(r: &'a Recording, probe: &str) -> &'a LatencyRecord {
    r.latencies.iter().find(|l| l.probe == probe).unwrap_or_else(|| panic!("no probe {probe}"))
}

/// A scalar, in its own unit.
///
/// # Panics
///
/// There is no such scalar.
pub fn scalar(r: &Recording, probe: &str, metric: &str) -> f64 {
    r.scalar(probe, metric)
        .unwrap_or_else(|| panic!("no {probe} {metric} in {:?}", r.scalars.keys()))
}

/// A scalar; zero if there is none, as for counters that never changed.
pub fn scalar_or_zero(r: &Recording, probe: &str, metric: &str) -> f64 {
    r.scalar(probe, metric).unwrap_or(0.0)
}
