//! `ratelimit-auto` on a simulated Xen host.

use crate::support::*;
use vcoop_credit1::Credit1Config;
use vcoop_model::plan::{HostSched, Plan, PolicyPlan, VmPlan};
use vcoop_model::recording::Recording;
use vcoop_policy::config::RatelimitConfig;
use vcoop_sched::config::Policy;

const AUTO: RatelimitConfig = RatelimitConfig {
    interval_ns: 30 * MS,
    min_ns: 100 * US,
    max_ns: 5 * MS,
    brief_ns: 200 * US,
    busy_ns: MS,
    pressed_per_s: 50,
    calm_per_s: 10,
    confirm: 2,
};

fn xen(pcpus: u32, vms: Vec<VmPlan>) -> Plan {
    let cfg = Credit1Config { short_run_ns: AUTO.brief_ns, ..credit1(pcpus, vms.len()) };
    let mut p = hosted(HostSched::Credit1(cfg), vms);
    (p.warmup_ns, p.duration_ns) = (S, 5 * S);
    p
}

/// Wakes every 700 us, while a ratelimit of 1 ms still protects whoever ran in between, for 20 us.
fn io() -> VmPlan {
    vm("io", eevdf(1), vec![task("io", cyclictest(700 * US, 20 * US), Policy::Fifo(1), &[])])
}

fn under(mut p: Plan, policy: PolicyPlan) -> Recording {
    p.policy = policy;
    run(&p)
}

fn auto() -> PolicyPlan {
    PolicyPlan::RatelimitAuto(AUTO)
}

#[test]
fn a_loop_beside_io_yields_and_a_loop_beside_loops_does_not() {
    let r = under(xen(1, vec![cpu_loop("a"), io()]), auto());
    assert_eq!((scalar(&r, "a", "ratelimit"), scalar(&r, "io", "ratelimit")), (100.0, 100.0));
    let r = under(xen(1, vec![cpu_loop("a"), cpu_loop("b")]), auto());
    assert_eq!((scalar(&r, "a", "ratelimit"), scalar(&r, "b", "ratelimit")), (5000.0, 5000.0));
    assert_eq!(scalar(&r, "host", "ratelimits_set"), 0.0, "settled within the warm-up");
}

/// Only those who share a pCPU with the I/O are in its way.
#[test]
fn each_domain_is_judged_by_itself() {
    let mut p = xen(2, vec![cpu_loop("near"), cpu_loop("far"), cpu_loop("too"), io()]);
    for (vm, cpu) in p.vms.iter_mut().zip([0, 1, 1, 0]) {
        vm.vcpu_cpus = vec![vec![cpu]];
    }
    let r = under(p, auto());
    assert_eq!(scalar(&r, "near", "ratelimit"), 100.0);
    assert_eq!((scalar(&r, "far", "ratelimit"), scalar(&r, "too", "ratelimit")), (5000.0, 5000.0));
}

#[test]
fn io_waits_less_and_the_loop_loses_nothing_but_switches() {
    let of = |policy| {
        let mut p = xen(1, vec![cpu_loop("a"), io()]);
        p.host.costs = dear();
        under(p, policy)
    };
    let (vanilla, tuned) = (of(PolicyPlan::Vanilla), of(auto()));
    let [p99, p99_tuned] =
        [&vanilla, &tuned].map(|r| latency(r, "io.io").hist.value_at_quantile(0.99));
    assert!(p99 > 250 * US, "{p99}: held by a ratelimit of 1 ms");
    assert!(p99_tuned < p99 / 2, "{p99_tuned} of {p99}");
    let [a, b] = [&vanilla, &tuned].map(|r| scalar(r, "a", "cpu"));
    assert!(b > 0.97 * a, "the loop has {b} of {a}");
    // Two switches a wake-up, and no more: vanilla serves some of them together, or late.
    let [a, b] = [&vanilla, &tuned].map(|r| scalar(r, "host", "switches"));
    assert!(b < 1.01 * 2.0 * 1e6 / 700.0 && a < b, "{b} switches for {a}");
}

/// A phase of I/O and then one of computing, as a VM that boots and then loops.
#[test]
fn the_ratelimit_follows_the_phase() {
    let (mut early, mut late) = (xen(1, vec![io(), cpu_loop("a")]), Vec::new());
    early.vms[0].tasks.push(task("later", hog(), Policy::NORMAL, &[]));
    early.vms[0].tasks[1].start_ns = 3 * S;
    for (duration, want) in [(S, 100.0), (4 * S, 5000.0)] {
        early.duration_ns = duration;
        let r = under(early.clone(), auto());
        late.push((scalar(&r, "io", "ratelimit"), want));
    }
    assert!(late.iter().all(|(got, want)| got == want), "{late:?}");
}

/// The work is paid for, on one pCPU; and the same seed gives the same bytes.
#[test]
fn looking_costs_and_is_repeatable() {
    let of = |interval_ns| {
        let mut p = xen(1, vec![cpu_loop("a"), cpu_loop("b")]);
        p.host.costs.timer_irq_ns = 100 * US;
        under(p, PolicyPlan::RatelimitAuto(RatelimitConfig { interval_ns, ..AUTO }))
    };
    let work =
        |r: &Recording| scalar(r, "a.loop", "throughput") + scalar(r, "b.loop", "throughput");
    let (often, seldom) = (of(MS), of(S));
    let lost = work(&seldom) - work(&often);
    assert!((lost - 0.1).abs() < 0.01, "a tenth of the time, not {lost}");
    assert_eq!(of(MS).scalars, often.scalars);
}

/// VMs that always run are entitled to equal shares, and pinning two to one pCPU of three is unfair.
#[test]
fn unfairness_is_seen() {
    let error = |p| scalar(&under(p, PolicyPlan::Vanilla), "host", "fairness_error");
    let mut p = xen(1, vec![cpu_loop("a"), cpu_loop("b")]);
    p.duration_ns = 20 * S;
    assert!(error(p) < 2.0);
    let mut p = xen(2, vec![cpu_loop("a"), cpu_loop("b"), cpu_loop("c")]);
    for (vm, cpu) in p.vms.iter_mut().zip([0, 0, 1]) {
        vm.vcpu_cpus = vec![vec![cpu]];
    }
    p.duration_ns = 20 * S;
    // 1/2, 1/2 and 1 of 2/3 each: off by a quarter, a quarter and a half.
    let got = error(p);
    assert!((got - 100.0 / 3.0).abs() < 2.0, "{got}");
}
