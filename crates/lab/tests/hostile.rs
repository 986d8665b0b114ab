//! Hostile guests on real vCPUs: what they ask for without end, what their neighbours keep. Without
//! KVM, every test is skipped. Times are compared within one run only, and once more.

use crate::support::{Outcome, latency, run, scalar, scenario, twice};
use vcoop_lab::Error;
use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;

/// A rogue on vCPU 0, an honest measuring task on vCPU 1, hogs beside both; a host probe where they
/// are, and one where the injector is, which a guest could keep busy.
const ROGUE: &str = scenario!(
    "duration = '1s'\nwarmup = '200ms'",
    r#"
[[load]]
name = "hog"
kind = "hog"
count = 2
cpus = "0"

[[load]]
name = "near"
kind = "cyclictest"
interval = "500us"
policy = "other"
cpus = "0"

[[load]]
name = "far"
kind = "cyclictest"
interval = "500us"
policy = "other"
cpus = "1"

[[vm]]
name = "guest"
vcpus = 2
pin = ["0", "0"]

[[vm.task]]
name = "rogue"
kind = "rogue"
cpus = "0"

[[vm.task]]
name = "victim"
kind = "cyclictest"
interval = "2ms"
policy = "fifo 80"
cpus = "1"
"#
);

fn plan(mode: &str, policy: &str, sets: &[&str]) -> Plan {
    let mode = format!("vm.guest.task.rogue.mode={mode}");
    let sets: Vec<&str> = sets.iter().copied().chain([mode.as_str()]).collect();
    crate::support::plan(ROGUE, policy, &sets)
}

fn guest(r: &Recording, metric: &str) -> f64 {
    scalar(r, "guest", metric)
}

/// Under `dynamic` a rogue takes what its budget grants, and no more of the host's latency than it
/// takes without any policy. `seen`: what shows that it did its worst, with `sets` of the dynamic policy.
fn is_contained(
    mode: &str,
    sets: &[&str],
    seen: impl Fn(&Recording) -> Result<(), String>,
) -> Outcome {
    twice(|| {
        let vanilla = run(&plan(mode, "vanilla", &[]));
        let dynamic = run(&plan(mode, "dynamic", sets));
        let told = |r: &Recording| {
            let of = |m| guest(r, m);
            let p99 = |p| latency(r, p).hist.value_at_quantile(0.99) / 1_000;
            format!(
                "boosted {:.2} %, {:.0} boosts/s, {:.0} throttles/s, exits/s {:.0} notify, {:.0} \
                 register, {:.0} refused, {:.0} doorbell, injector {:.1} %, p99 near {} far {} us",
                of("boosted"),
                of("boosts"),
                of("throttles"),
                of("exits.notify"),
                of("exits.register"),
                of("exits.refused"),
                of("exits.doorbell"),
                scalar(r, "lab", "injector_cpu"),
                p99("host.near"),
                p99("host.far"),
            )
        };
        let told = format!("{mode}: vanilla {}; dynamic {}", told(&vanilla), told(&dynamic));
        eprintln!("{told}");
        assert_eq!(guest(&vanilla, "boosts"), 0.0, "{told}");
        // A burst of 3 ms and a quarter of each vCPU's time, of a VM with one CPU's worth, and
        // timers that may be late.
        if guest(&dynamic, "boosted") > 25.0 + 0.3 + 2.0 {
            return Err(told);
        }
        for (probe, floor_ns) in [("host.near", 3_000_000), ("host.far", 1_000_000)] {
            let p99 = |r| latency(r, probe).hist.value_at_quantile(0.99);
            // A hog's slice where there are hogs, or a tick, harms neither: the host's own noise is most of it.
            if p99(&dynamic) > 2 * p99(&vanilla).max(floor_ns) {
                return Err(told);
            }
            let kept = |r| latency(r, probe).hist.len();
            if 2 * kept(&dynamic) < kept(&vanilla) {
                return Err(format!("{told}: {probe} was starved"));
            }
        }
        seen(&dynamic).map_err(|why| format!("{why}: {told}"))
    })
}

fn more(what: &str, n: f64, least: f64) -> Result<(), String> {
    if n > least { Ok(()) } else { Err(format!("{what}: {n}, at least {least} expected")) }
}

live!(asking_for_ever_is_throttled, || -> Outcome {
    is_contained("forever", &[], |r| more("throttles", guest(r, "throttles"), 0.0))
});

live!(toggling_is_contained, || -> Outcome { is_contained("toggle", &[], |_| Ok(())) });

live!(words_that_change_while_they_are_read_are_contained, || -> Outcome {
    is_contained("scribble", &[], |r| {
        more("boosts", guest(r, "boosts"), 10.0)?;
        // The page's words of the victim are nonsense, and the victim runs nevertheless.
        more("samples", latency(r, "guest.victim").hist.len() as f64, 20.0)
    })
});

live!(a_flood_of_exits_is_contained, || -> Outcome {
    // Exits take so much of its time that a quarter of it may be enough for what is left.
    is_contained("msr-flood", &["policy.dynamic.vcpu_refill=5%"], |r| {
        more("notifications", guest(r, "exits.notify"), 1_000.0)?;
        more("registrations", guest(r, "exits.register"), 10.0)?;
        more("doorbells", guest(r, "exits.doorbell"), 10.0)?;
        more("throttles", guest(r, "throttles"), 0.0)
    })
});

live!(hostile_registrations_are_refused_without_end, || -> Outcome {
    is_contained("hostile-gpa", &[], |r| {
        more("refusals", guest(r, "exits.refused"), 1_000.0)?;
        more("registrations", guest(r, "exits.register"), 100.0)?;
        more("boosts", guest(r, "boosts"), 10.0)
    })
});

live!(a_triple_fault_is_named_and_what_was_measured_is_kept, || {
    let plan = plan("triple-fault", "dynamic", &["vm.guest.task.rogue.period=500ms"]);
    let (recording, failure) = vcoop_lab::run(Run::new(&plan, 1), &vcoop_lab::Options::default())
        .unwrap_or_else(|e| panic!("{e}"));
    let failure = failure.expect("the guest has faulted");
    assert!(matches!(failure, Error::Guest { .. }), "{failure:?}");
    let said = failure.to_string();
    // The table of interrupts is the VM's: the victim may need it before the rogue does.
    let named = ["VM guest, vCPU 0: triple fault", "VM guest, vCPU 1: triple fault"];
    assert!(named.contains(&said.as_str()), "{said}");
    // 200 ms of warm-up, then some 300 ms.
    let kept = latency(&recording, "guest.victim").hist.len();
    assert!((10..400).contains(&kept), "{kept} samples");
});

live!(a_near_deadline_rings, || {
    // Shorter than the injector's time between two looks, so the guest must say so each time, and on
    // a port that reaches user space.
    let sets = ["vm.guest.task.victim.interval=120us", "load.hog.enabled=false"];
    let r = run(&plan("forever", "dynamic", &sets));
    more("doorbells", guest(&r, "exits.doorbell"), 100.0).unwrap();
});
