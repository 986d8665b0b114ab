//! Calls between tasks on this host's `/dev/kvm`. Without one, every test says so and passes. As in
//! `live.rs`, no test asserts a time: ratios have wide margins and get a second chance.

mod support;

use support::{lab, latency, plan, run, scalar, twice};
use vcoop_kvm::Error;
use vcoop_model::builtin::builtin_scenario;
use vcoop_model::recording::{LatencyRecord, Part, Recording};

/// Everybody calls somebody: host and guest, on one vCPU and on two, with and without a measure.
const MESH: &str = r#"
name = "mesh"
title = "mesh"
duration = "600ms"
warmup = "100ms"

[host]
profile = "xeon-server"
pcpus = 2
topology = { cores_per_llc = 2 }

[host.sched]
fair = "eevdf"

[[load]]
name = "backend"
kind = "server"
work = "5us"

[[load]]
name = "thread"
kind = "ping"
server = "host.backend"
interval = "2ms"

[[load]]
name = "outside"
kind = "ping"
server = "guest.pong"
interval = "2ms"

[[load]]
name = "batch"
kind = "bursty"
burst = "50us"
idle = "1ms"
server = "guest.pong"

[[vm]]
name = "guest"
vcpus = 2
pin = ["0", "1"]

[[vm.task]]
name = "pong"
kind = "server"
work = "3us"
policy = "fifo 80"
irq_vcpu = 1
cpus = "0"

[[vm.task]]
name = "near"
kind = "ping"
server = "guest.pong"
interval = "2ms"
policy = "fifo 60"
cpus = "0"

[[vm.task]]
name = "far"
kind = "ping"
server = "guest.pong"
interval = "2ms"
policy = "fifo 60"
cpus = "1"

[[vm.task]]
name = "up"
kind = "ping"
server = "host.backend"
interval = "2ms"
policy = "fifo 50"
irq_vcpu = 1
cpus = "0"

[[vm.task]]
name = "boot"
kind = "bursty"
burst = "10us"
idle = "1ms"
server = "host.backend"
cpus = "1"
"#;

/// Every period has a round trip or is missed, and the parts add up. An error where there are none:
/// but a host that is busy with other things may not run a fair vCPU for most of a run, which is said
/// and gives `None`.
fn complete<'r>(
    r: &'r Recording,
    probe: &str,
    periods: u64,
) -> Result<Option<&'r LatencyRecord>, String> {
    let l = latency(r, probe);
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns, "{}", l.probe);
    let seen = l.hist.len() + l.missed;
    assert!(seen <= periods + periods / 5 + 2, "{}: {seen} of {periods} periods", l.probe);
    // A guest that a busy host starts late has fewer.
    if l.hist.is_empty() || seen < periods / 2 {
        let told = format!("{}: {} of {periods}, {} missed", l.probe, l.hist.len(), l.missed);
        let steal = scalar(r, "guest", "steal");
        if steal > 10.0 {
            eprintln!("not judged: {told}; the guest waited for the host {steal} % of the time");
            return Ok(None);
        }
        return Err(told);
    }
    assert!(l.min_ns > 0 && l.min_ns <= l.max_ns, "{}: {} to {}", l.probe, l.min_ns, l.max_ns);
    Ok(Some(l))
}

#[test]
fn everybody_reaches_everybody() {
    let Some(_lab) = lab() else { return };
    for policy in ["vanilla", "dynamic", "wake-boost"] {
        twice(|| {
            let r = run(&plan(MESH, policy, &[]));
            for probe in ["guest.near", "guest.far", "guest.up", "host.thread", "host.outside"] {
                let Some(l) = complete(&r, probe, 300)? else { return Ok(()) };
                let service = l.parts_sum[Part::Service as usize] / u128::from(l.hist.len());
                assert!(service > 1_000, "{policy}: {probe} served in {service} ns");
            }
            // With or without a trace, a round trip has the parts of its own times.
            let measured: u64 = r.latencies.iter().map(|l| l.hist.len()).sum();
            assert_eq!(scalar(&r, "lab", "samples_coarse"), measured as f64);
            // Also those whose round trips nobody measures get their answers.
            let served = scalar(&r, "host.backend", "served") * 0.6;
            let measured = ["guest.up", "host.thread"].map(|p| latency(&r, p).hist.len());
            let others = served - measured.iter().sum::<u64>() as f64;
            let batch = scalar(&r, "host.batch", "calls");
            assert_eq!(scalar(&r, "lab", "samples_invalid"), 0.0);
            let told = format!("{policy}: {others} other calls served, {batch} made");
            if others > 5.0 && batch > 5.0 { Ok(()) } else { Err(told) }
        });
    }
}

#[test]
fn a_boost_answers_the_ping_of_a_busy_guest() {
    let Some(_lab) = lab() else { return };
    let text = builtin_scenario("vmping").unwrap();
    twice(|| {
        let sets = ["duration=1500ms", "warmup=200ms"];
        let vanilla = run(&plan(text, "vanilla", &sets));
        let dynamic = run(&plan(text, "dynamic", &sets));
        let (Some(a), Some(b)) =
            (complete(&vanilla, "host.ping", 1_500)?, complete(&dynamic, "host.ping", 1_500)?)
        else {
            return Ok(());
        };
        // What makes a round trip from the host one about a guest, for verdicts and tables.
        assert!(a.parts_sum[Part::GuestSwitch as usize] > 0);
        let p99 = |l: &LatencyRecord| l.hist.value_at_quantile(0.99);
        let (a, b) = (p99(a), p99(b));
        let boosts = scalar(&dynamic, "guest", "boosts");
        let told = format!("p99 {a} ns, then {b} ns, {boosts} boosts a second");
        if b <= a && boosts > 100.0 { Ok(()) } else { Err(told) }
    });
}

#[test]
fn vcpus_ping_each_other() {
    let Some(_lab) = lab() else { return };
    let text = builtin_scenario("ipi-ping").unwrap();
    for policy in ["vanilla", "dynamic", "static"] {
        twice(|| {
            let r = run(&plan(text, policy, &["duration=500ms", "warmup=100ms"]));
            complete(&r, "guest.ping", 500).map(|_| ())
        });
    }
}

#[test]
fn calls_between_vms_are_refused_with_a_reason() {
    let Some(_lab) = lab() else { return };
    let other = "[[vm]]\nname = \"other\"\nvcpus = 1\n[[vm.task]]\nname = \"p\"\nkind = \"ping\"\n\
                 server = \"guest.pong\"\n";
    let plan = plan(&format!("{MESH}{other}"), "vanilla", &[]);
    match vcoop_kvm::check(&plan) {
        Err(Error::Unsupported { what, why }) => {
            assert!(what.contains("other.p") && why.contains("from one VM to another"), "{why}");
        }
        found => panic!("{found:?}"),
    }
}
