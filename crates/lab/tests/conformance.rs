//! One body, two backends: what every backend must do with a plan. Simulated always; on real vCPUs
//! where there are some, and said aloud where not.
//!
//! What a backend's pages hold word by word is not in a recording: that is what `vcoop-policy`'s
//! conformance test holds against the protocol, with the same machines that both backends drive.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use vcoop_lab::backend::{Backend, Kvm, Sim};
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{LatencyRecord, Recording};
use vcoop_model::scenario::{Scenario, Set};

/// One vCPU with fair and urgent work, two hogs on its pCPU, and a probe of the host.
const BUSY: &str = r#"
name = "conformance"
title = "One busy vCPU beside two hogs"
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

const PERIODS: u64 = 1_000;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a test's body on every backend that works here. What a live host does to a run is not ours
/// to say, so there it may hold the second time.
fn on_each(body: impl Fn(&'static dyn Backend) -> Result<(), String>) {
    body(&Sim).unwrap_or_else(|e| panic!("sim: {e}"));
    if let Err(why) = Kvm.available() {
        eprintln!("kvm skipped: {why}");
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(first) = body(&Kvm) {
        eprintln!("once more: {first}");
        body(&Kvm).unwrap_or_else(|e| panic!("kvm: {first}; then {e}"));
    }
}

fn plan(policy: &str, sets: &[&str]) -> Plan {
    let sets: Vec<Set> = sets.iter().map(|s| Set::parse(s).unwrap()).collect();
    let scenario = match Scenario::parse("test", BUSY, &sets, &NoCaptures) {
        Ok(scenario) => scenario,
        Err(errors) => panic!("{errors}"),
    };
    scenario.plans(Some(&[policy.to_owned()])).unwrap().remove(0)
}

fn run(backend: &dyn Backend, policy: &str, sets: &[&str]) -> Result<Recording, String> {
    backend.run(&plan(policy, sets), 1, &|| false)
}

fn latency<'a>(r: &'a Recording, probe: &str) -> Result<&'a LatencyRecord, String> {
    r.latencies.iter().find(|l| l.probe == probe).ok_or(format!("no probe {probe}"))
}

fn scalar(r: &Recording, probe: &str, metric: &str) -> Result<f64, String> {
    let key = (probe.to_owned(), metric.to_owned());
    r.scalars.get(&key).map(|s| s.value).ok_or(format!("no scalar {probe} {metric}"))
}

fn require(holds: bool, said: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(said()) }
}

#[test]
fn boosts_come_with_the_policies_that_boost_and_only_with_them() {
    on_each(|backend| {
        for (policy, boosting) in
            [("vanilla", false), ("static", false), ("dynamic", true), ("wake-boost", true)]
        {
            // So that wake-boost has something to see: a vCPU that halts.
            let sets: &[&str] = match policy {
                "wake-boost" => &["vm.guest.task.background.enabled=false"],
                _ => &[],
            };
            let r = run(backend, policy, sets)?;
            // wake-boost may stay boosted from the warm-up on: a vCPU that halts in time keeps it.
            let metrics: &[&str] =
                if policy == "wake-boost" { &["boosted"] } else { &["boosts", "boosted"] };
            for metric in metrics {
                let n = scalar(&r, "guest", metric)?;
                require((n > 0.0) == boosting, || format!("{policy}: {metric} {n}"))?;
            }
            let (throttles, denied) =
                (scalar(&r, "guest", "throttles")?, scalar(&r, "guest", "denied")?);
            require(boosting || throttles + denied == 0.0, || {
                format!("{policy}: {throttles} throttles, {denied} denied")
            })?;
        }
        Ok(())
    });
}

#[test]
fn the_boost_is_worth_it() {
    on_each(|backend| {
        let p90 = |policy| -> Result<u64, String> {
            let r = run(backend, policy, &[])?;
            Ok(latency(&r, "guest.cyclictest")?.hist.value_at_quantile(0.9))
        };
        let (vanilla, dynamic) = (p90("vanilla")?, p90("dynamic")?);
        require(vanilla > 4 * dynamic, || format!("p90 {vanilla} ns, boosted {dynamic} ns"))
    });
}

#[test]
fn the_budget_holds_whatever_the_guest_asks() {
    on_each(|backend| {
        for mode in ["forever", "toggle", "scribble", "msr-flood", "hostile-gpa"] {
            let sets = [
                "vm.guest.task.background.kind=rogue",
                &format!("vm.guest.task.background.mode={mode}"),
                "vm.guest.task.cyclictest.enabled=false",
                "policy.dynamic.vcpu_refill=10%",
            ];
            let r = run(backend, "dynamic", &sets)?;
            let boosted = scalar(&r, "guest", "boosted")?;
            // A tenth of a second's time, a burst of 3 ms, and a timer that may be late.
            require(boosted <= 10.0 + 0.3 + 1.5, || format!("{mode}: boosted {boosted} %"))?;
            // What it took by lies would be missing here.
            let hogs = scalar(&r, "host.hog", "throughput")?;
            require(hogs > 0.2, || format!("{mode}: the hogs got {hogs} CPUs"))?;
            if mode == "forever" {
                let throttles = scalar(&r, "guest", "throttles")?;
                require(throttles > 0.0, || format!("{mode}: never throttled"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn counts_are_complete_and_parts_add_up() {
    on_each(|backend| {
        for policy in ["vanilla", "dynamic"] {
            let r = run(backend, policy, &[])?;
            for probe in ["guest.cyclictest", "host.cyclictest"] {
                let l = latency(&r, probe)?;
                let (count, missed) = (l.hist.len(), l.missed);
                // One more or less at each end of the measured time.
                require((count + missed).abs_diff(PERIODS) <= 2, || {
                    format!("{policy} {probe}: {count} and {missed} of {PERIODS} periods")
                })?;
                require(count > 0 && l.min_ns > 0 && l.max_ns < 1_200_000_000, || {
                    format!("{policy} {probe}: {count} samples, {} to {} ns", l.min_ns, l.max_ns)
                })?;
                let parts: u128 = l.parts_sum.iter().sum();
                require(parts == l.sum_ns, || {
                    format!("{policy} {probe}: parts {parts} ns of {} ns", l.sum_ns)
                })?;
                require(l.worst.first().is_some_and(|w| w.latency_ns == l.max_ns), || {
                    format!("{policy} {probe}: the worst sample is not the largest")
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn both_speak_of_the_same_things() {
    if let Err(why) = Kvm.available() {
        eprintln!("kvm skipped: {why}");
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let said = |backend: &dyn Backend| {
        let r = run(backend, "dynamic", &["duration=300ms"]).unwrap();
        let probes: Vec<String> = r.latencies.iter().map(|l| l.probe.clone()).collect();
        // Exits are of other kinds on either; the lab's own facts and the engine's exist once.
        let own = |(probe, metric): &(String, String)| {
            metric.starts_with("exits") || ["lab", "host"].contains(&probe.as_str())
        };
        let keys: BTreeSet<_> = r.scalars.into_keys().filter(|k| !own(k)).collect();
        (probes, keys)
    };
    let ((sim_probes, sim), (kvm_probes, kvm)) = (said(&Sim), said(&Kvm));
    assert_eq!(sim_probes, kvm_probes);
    // Interrupts into the guest, and how long exits take, are KVM's to count, not a VMM's.
    let of_kvm = |metric: &str| metric == "injections" || metric.starts_with("exit_time.");
    let missing: Vec<_> = sim.difference(&kvm).filter(|(_, m)| !of_kvm(m)).collect();
    assert!(missing.is_empty(), "only simulated: {missing:?}");
}
