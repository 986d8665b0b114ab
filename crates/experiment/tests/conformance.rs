//! One body, two backends: what every backend must do with a plan. Simulated always; on real vCPUs
//! where there are some; those tests are skipped where not.
//!
//! What a backend's pages hold word by word is not in a recording: that is what `vcoop-policy`'s
//! conformance test holds against the protocol, with the same machines that both backends drive.

use std::collections::BTreeSet;

use vcoop_experiment::backend::{Backend, Kvm, Sim};
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;
use vcoop_testing::rig::{BUSY, latency, plan, scalar};
use vcoop_testing::{Outcome, main, need_kvm, test, twice};

const PERIODS: u64 = 1_000;

/// Registers a body as a test of each backend. What a live host does to a run is not ours to say, so there
/// it may hold the second time.
macro_rules! on_each {
    ($body:ident) => {
        test!("sim", $body, || $body(&Sim).unwrap_or_else(|wrong| panic!("{wrong}")));
        test!("kvm", $body, || {
            need_kvm(vcoop_lab::available())?;
            twice(|| $body(&Kvm))
        });
    };
}

fn run(backend: &dyn Backend, policy: &str, sets: &[&str]) -> Result<Recording, String> {
    let (recording, failure) = backend.run(Run::new(&plan(BUSY, policy, sets), 1))?;
    failure.map_or(Ok(recording), Err)
}

fn require(holds: bool, said: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(said()) }
}

on_each!(boosts_come_with_the_policies_that_boost_and_only_with_them);
fn boosts_come_with_the_policies_that_boost_and_only_with_them(
    backend: &dyn Backend,
) -> Result<(), String> {
    // `static` has no boosts that begin and end: all time awake is boosted.
    for (policy, boosting, boosted) in [
        ("vanilla", false, false),
        ("static", false, true),
        ("dynamic", true, true),
        ("wake-boost", true, true),
    ] {
        // So that wake-boost has something to see: a vCPU that halts.
        let sets: &[&str] = match policy {
            "wake-boost" => &["vm.guest.task.background.enabled=false"],
            _ => &[],
        };
        let r = run(backend, policy, sets)?;
        // wake-boost may stay boosted from the warm-up on: a vCPU that halts in time keeps it.
        let boosts = (policy != "wake-boost").then_some(("boosts", boosting));
        for (metric, expected) in boosts.into_iter().chain([("boosted", boosted)]) {
            let n = scalar(&r, "guest", metric);
            require((n > 0.0) == expected, || format!("{policy}: {metric} {n}"))?;
        }
        let (throttles, denied) = (scalar(&r, "guest", "throttles"), scalar(&r, "guest", "denied"));
        require(boosting || throttles + denied == 0.0, || {
            format!("{policy}: {throttles} throttles, {denied} denied")
        })?;
    }
    Ok(())
}

on_each!(the_boost_is_worth_it);
fn the_boost_is_worth_it(backend: &dyn Backend) -> Result<(), String> {
    let p90 = |policy| -> Result<u64, String> {
        let r = run(backend, policy, &[])?;
        Ok(latency(&r, "guest.cyclictest").hist.value_at_quantile(0.9))
    };
    let (vanilla, dynamic) = (p90("vanilla")?, p90("dynamic")?);
    require(vanilla > 4 * dynamic, || format!("p90 {vanilla} ns, boosted {dynamic} ns"))
}

on_each!(the_budget_holds_whatever_the_guest_asks);
fn the_budget_holds_whatever_the_guest_asks(backend: &dyn Backend) -> Result<(), String> {
    for mode in ["forever", "toggle", "scribble", "msr-flood", "hostile-gpa"] {
        let sets = [
            "vm.guest.task.background.kind=rogue",
            &format!("vm.guest.task.background.mode={mode}"),
            "vm.guest.task.cyclictest.enabled=false",
            "policy.dynamic.vcpu_refill=10%",
        ];
        let r = run(backend, "dynamic", &sets)?;
        let boosted = scalar(&r, "guest", "boosted");
        // A tenth of a second's time, a burst of 3 ms, and a timer that may be late.
        require(boosted <= 10.0 + 0.3 + 1.5, || format!("{mode}: boosted {boosted} %"))?;
        // CPU time that it got by false words would be missing here.
        let hogs = scalar(&r, "host.hog", "throughput");
        require(hogs > 0.2, || format!("{mode}: the hogs got {hogs} CPUs"))?;
        if mode == "forever" {
            let throttles = scalar(&r, "guest", "throttles");
            require(throttles > 0.0, || format!("{mode}: never throttled"))?;
        }
    }
    Ok(())
}

on_each!(counts_are_complete_and_parts_add_up);
fn counts_are_complete_and_parts_add_up(backend: &dyn Backend) -> Result<(), String> {
    for policy in ["vanilla", "dynamic"] {
        let r = run(backend, policy, &[])?;
        for probe in ["guest.cyclictest", "host.cyclictest"] {
            let l = latency(&r, probe);
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
}

test!("kvm", both_speak_of_the_same_things, || -> Outcome {
    need_kvm(vcoop_lab::available())?;
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
    Ok(())
});
