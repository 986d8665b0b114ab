//! Built-in scenarios about IPIs, locks and hints: what they are there to show.

use std::collections::BTreeMap;

use vcoop_model::recording::Recording;
use vcoop_model::run::Run;
use vcoop_testing::rig::{builtin, latency, scalar_or_zero as scalar};

use crate::support::mean;

/// One run under each policy of a scenario, cut short; by policy and cell.
fn runs(name: &str, sets: &[&str]) -> BTreeMap<String, Recording> {
    let mut all = BTreeMap::new();
    for plan in builtin(name, &[], sets) {
        let cell: Vec<&str> = plan.params.values().map(String::as_str).collect();
        let key = [&[plan.policy_name.as_str()], &cell[..]].concat().join(" ");
        let recording = vcoop_sim::run(Run::new(&plan, plan.seed)).expect("it can be built");
        for l in &recording.latencies {
            assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns, "{name} {key} {}", l.probe);
        }
        all.insert(key, recording);
    }
    all
}

fn mean_us(r: &Recording, probe: &str) -> f64 {
    assert!(!latency(r, probe).hist.is_empty(), "{probe} has no samples");
    mean(r, probe) / 1e3
}

/// What a failed assertion needs to be understood.
fn table(all: &BTreeMap<String, Recording>, shown: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (key, r) in all {
        text += &format!("\n{key:28}");
        for l in &r.latencies {
            let mean = l.sum_ns as f64 / l.hist.len().max(1) as f64 / 1e3;
            text += &format!(" {} {mean:.2}us", l.probe);
        }
        for (probe, metric) in shown {
            text += &format!(" {metric} {:.0}", scalar(r, probe, metric));
        }
    }
    text
}

#[test]
fn a_multicast_costs_one_exit_and_not_one_a_target() {
    let all = runs("ipi-80", &["duration=100ms", "warmup=10ms"]);
    let shown = [("guest.ipi", "rate"), ("guest", "exits.msr_icr"), ("guest", "exits.hypercall")];
    let text = table(&all, &shown);
    println!("{text}");
    let a_round = |policy: &str, metric: &str| {
        scalar(&all[policy], "guest", metric) / scalar(&all[policy], "guest.ipi", "rate")
    };
    assert!((a_round("icr", "exits.msr_icr") - 79.0).abs() < 1.0, "{text}");
    assert!((a_round("cluster", "exits.msr_icr") - 5.0).abs() < 0.2, "{text}");
    assert!((a_round("pv-ipi", "exits.hypercall") - 1.0).abs() < 0.1, "{text}");
    assert!(a_round("pv-ipi", "exits.msr_icr") < 0.1, "{text}");
    assert!(a_round("posted-ipi", "exits.msr_icr") < 0.1, "{text}");
    let mean = |policy: &str| mean_us(&all[policy], "guest.ipi");
    assert!(mean("pv-ipi") < 0.8 * mean("icr"), "{text}");
}

#[test]
fn polling_makes_a_ping_pong_faster() {
    let all = runs("tcp-rr", &["duration=500ms", "warmup=50ms"]);
    let text = table(&all, &[("client.here", "rate"), ("client", "cpu"), ("server", "cpu")]);
    println!("{text}");
    for probe in ["client.here", "client.away"] {
        let mean = |policy: &str| mean_us(&all[policy], probe);
        assert!(mean("halt-poll") < 0.95 * mean("hlt"), "{probe}{text}");
        assert!(mean("guest-poll") < 0.95 * mean("hlt"), "{probe}{text}");
    }
    // Nothing comes back before the other machine has answered.
    let away = all["idle-poll"].latencies.iter().find(|l| l.probe == "client.away");
    assert!(away.is_some_and(|l| l.min_ns >= 20_000), "{text}");
}

#[test]
fn what_a_guest_spins_for_decides_what_helps_it() {
    // Where a yield gives up a whole request, as since 2026, a spinning vCPU yields its VM's share away.
    let today = runs("spinlock-overcommit", &["duration=1s"]);
    let all = runs("spinlock-overcommit", &["duration=1s", "host.sched.fair=eevdf-6.15"]);
    let shown = [
        ("guest.workers", "rate"),
        ("guest", "lock_holder_preemptions"),
        ("guest", "exits.pause"),
        ("guest", "yields.won"),
        ("guest", "pv_kicks"),
        ("guest", "shootdowns.deferred"),
    ];
    let text = table(&all, &shown);
    println!("{text}");
    let rate = |policy: &str| scalar(&all[policy], "guest.workers", "rate");
    assert!(scalar(&all["native"], "guest", "lock_holder_preemptions") > 1.0, "{text}");
    assert!(scalar(&all["native"], "guest", "exits.pause") == 0.0, "{text}");
    assert!(scalar(&all["ple"], "guest", "yields.won") > 10.0, "{text}");
    assert!(scalar(&all["pv-lock"], "guest", "pv_kicks") > 10.0, "{text}");
    assert!(scalar(&all["pv-tlb"], "guest", "shootdowns.deferred") > 1.0, "{text}");
    assert!(rate("shared") > 1.2 * rate("native"), "{text}");
    let rate = |policy: &str| scalar(&today[policy], "guest.workers", "rate");
    assert!(rate("ple") < 0.5 * rate("native"), "{}", table(&today, &shown));
    assert!(rate("pv-lock") > 1.2 * rate("native"), "{}", table(&today, &shown));
}

#[test]
fn the_dedicated_hint_is_for_pcpus_of_ones_own() {
    let all = runs("dedicated", &["duration=4s"]);
    let text = table(&all, &[("guest.workers", "rate"), ("guest.client", "rate"), ("host", "cpu")]);
    println!("{text}");
    let mean = |key: &str| mean_us(&all[key], "guest.client");
    assert!(mean("dedicated false") < mean("shared false") * 1.02, "{text}");
    let rate = |key: &str| scalar(&all[key], "guest.workers", "rate");
    assert!(rate("dedicated true") < 0.95 * rate("shared true"), "{text}");
}

#[test]
fn each_mechanism_of_the_tax_cut_does_its_part() {
    let all = runs("tax-cut", &["duration=500ms", "warmup=50ms"]);
    let shown = [("guest", "exits"), ("guest.compute", "rate"), ("host", "cpu")];
    let text = table(&all, &shown);
    println!("{text}");
    let mean = |policy: &str, probe: &str| mean_us(&all[policy], probe);
    let exits = |policy: &str| scalar(&all[policy], "guest", "exits");
    assert!(mean("pv-ipi", "guest.ipi") < 0.9 * mean("plain", "guest.ipi"), "{text}");
    // A halted vCPU is woken all the same, from another pCPU: what is saved are exits.
    assert!(scalar(&all["exitless-timer"], "guest", "exits.msr_timer") < 1.0, "{text}");
    assert!(mean("halt-poll", "guest.client") < 0.95 * mean("plain", "guest.client"), "{text}");
    assert!(mean("dedicated", "guest.client") < mean("plain", "guest.client"), "{text}");
    assert!(scalar(&all["no-exits"], "guest", "exits.hlt") < 1.0, "{text}");
    for probe in ["guest.timer", "guest.ipi", "guest.client"] {
        assert!(mean("all", probe) < 0.8 * mean("plain", probe), "{probe}{text}");
    }
    assert!(exits("all") < 0.2 * exits("plain"), "{text}");
}
