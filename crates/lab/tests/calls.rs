//! Calls between tasks on this host's `/dev/kvm`. Without one, every test is skipped. As in
//! `live.rs`, no test asserts a time: ratios have wide margins and get a second chance.

use crate::support::{
    CheckFailure, Outcome, Skip, assert_refused, latency, plan, run, scalar, scenario, twice,
};
use vcoop_model::builtin::builtin_scenario;
use vcoop_model::recording::{LatencyRecord, Part, Recording};

/// All directions of calls: host and guest, on one vCPU and on two, with and without a measure.
const MESH: &str = scenario!(
    "duration = '600ms'\nwarmup = '100ms'",
    r#"
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
"#
);

/// Every period has a round trip or is missed, and the parts add up. It is wrong if there are none. A
/// host that is busy with other things may not run a fair vCPU for most of a run: then the test is skipped.
fn complete<'r>(
    r: &'r Recording,
    probe: &str,
    periods: u64,
) -> Result<&'r LatencyRecord, CheckFailure> {
    let l = latency(r, probe);
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns, "{}", l.probe);
    let seen = l.hist.len() + l.missed;
    assert!(seen <= periods + periods / 5 + 2, "{}: {seen} of {periods} periods", l.probe);
    // A guest that a busy host starts late has fewer.
    if l.hist.is_empty() || seen < periods / 2 {
        let told = format!("{}: {} of {periods}, {} missed", l.probe, l.hist.len(), l.missed);
        let steal = scalar(r, "guest", "steal");
        if steal > 10.0 {
            let waited = format!("{told}; the guest waited for the host {steal} % of the time");
            return Err(Skip::because(waited).into());
        }
        return Err(told.into());
    }
    assert!(l.min_ns > 0 && l.min_ns <= l.max_ns, "{}: {} to {}", l.probe, l.min_ns, l.max_ns);
    Ok(l)
}

live!(everybody_reaches_everybody, || -> Outcome {
    for policy in ["vanilla", "dynamic", "wake-boost"] {
        twice(|| {
            let r = run(&plan(MESH, policy, &[]));
            for probe in ["guest.near", "guest.far", "guest.up", "host.thread", "host.outside"] {
                let l = complete(&r, probe, 300)?;
                let service = l.parts_sum[Part::Service as usize] / u128::from(l.hist.len());
                assert!(service > 1_000, "{policy}: {probe} served in {service} ns");
            }
            // With or without a trace, a round trip has the parts of its own times.
            let measured: u64 = r.latencies.iter().map(|l| l.hist.len()).sum();
            assert_eq!(scalar(&r, "lab", "samples_coarse"), measured as f64);
            // Calls whose round trips are not measured get their answers as well.
            let served = scalar(&r, "host.backend", "served") * 0.6;
            let measured = ["guest.up", "host.thread"].map(|p| latency(&r, p).hist.len());
            let others = served - measured.iter().sum::<u64>() as f64;
            let batch = scalar(&r, "host.batch", "calls");
            assert_eq!(scalar(&r, "lab", "samples_invalid"), 0.0);
            let told = format!("{policy}: {others} other calls served, {batch} made");
            if others > 5.0 && batch > 5.0 { Ok(()) } else { Err(CheckFailure::Wrong(told)) }
        })?;
    }
    Ok(())
});

live!(a_boost_answers_the_ping_of_a_busy_guest, || -> Outcome {
    let text = builtin_scenario("vmping").unwrap();
    twice(|| {
        let sets = ["duration=1500ms", "warmup=200ms"];
        let vanilla = run(&plan(text, "vanilla", &sets));
        let dynamic = run(&plan(text, "dynamic", &sets));
        let a = complete(&vanilla, "host.ping", 1_500)?;
        let b = complete(&dynamic, "host.ping", 1_500)?;
        // This part makes a round trip from the host a latency of a guest, for verdicts and tables.
        assert!(a.parts_sum[Part::GuestSwitch as usize] > 0);
        let p99 = |l: &LatencyRecord| l.hist.value_at_quantile(0.99);
        let (a, b) = (p99(a), p99(b));
        let boosts = scalar(&dynamic, "guest", "boosts");
        let told = format!("p99 {a} ns, then {b} ns, {boosts} boosts a second");
        if b <= a && boosts > 100.0 { Ok(()) } else { Err(CheckFailure::Wrong(told)) }
    })
});

live!(vcpus_ping_each_other, || -> Outcome {
    let text = builtin_scenario("ipi-ping").unwrap();
    for policy in ["vanilla", "dynamic", "static"] {
        twice(|| {
            let r = run(&plan(text, policy, &["duration=500ms", "warmup=100ms"]));
            complete(&r, "guest.ping", 500).map(|_| ())
        })?;
    }
    Ok(())
});

live!(calls_between_vms_are_refused_with_a_reason, || {
    let other = "[[vm]]\nname = \"other\"\nvcpus = 1\n[[vm.task]]\nname = \"p\"\nkind = \"ping\"\n\
                 server = \"guest.pong\"\n";
    let plan = plan(&format!("{MESH}{other}"), "vanilla", &[]);
    assert_refused(&plan, "other.p", "from one VM to another");
});
