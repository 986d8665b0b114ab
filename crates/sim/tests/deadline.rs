//! Boosting by reservation: what it gives, what it costs, and what a host refuses.

use crate::support::*;
use vcoop_model::plan::{Plan, PolicyPlan};
use vcoop_model::recording::Part;
use vcoop_model::run::Run;
use vcoop_policy::config::{Budget, DynamicConfig, Means};
use vcoop_sched::config::{DlConfig, Policy};

const QUARTER: Means = Means::Deadline { runtime_ns: MS, deadline_ns: 4 * MS, period_ns: 4 * MS };

fn dynamic(means: Means) -> PolicyPlan {
    let budget = Budget { burst_ns: 3 * MS, refill_ppm: 250_000 };
    PolicyPlan::Dynamic(DynamicConfig::new(means, budget, budget))
}

/// A vCPU with an RT task beside fair work of its own, sharing its pCPU with two hogs.
fn busy(cpus: u32, pin: &[u32], dl: DlConfig, policy: PolicyPlan) -> Plan {
    let mut p = plan(eevdf(cpus), free());
    p.duration_ns = 4 * S;
    p.host.sched.linux_mut().unwrap().dl = dl;
    for i in 0..2 * cpus {
        p.host_tasks.push(task(&format!("hog/{i}"), hog(), Policy::NORMAL, &[]));
    }
    let rt = task("rt", cyclictest(2 * MS, 20 * US), Policy::Fifo(80), &[]);
    let work = task("work", hog(), Policy::NORMAL, &[]);
    let mut guest = vm("g", eevdf(1), vec![rt, work]);
    guest.vcpu_cpus = vec![pin.to_vec()];
    p.vms = vec![guest];
    p.policy = policy;
    probe_all(&mut p);
    p
}

const ON: DlConfig = DlConfig { admission: true, hrtick: false };
const OFF: DlConfig = DlConfig { admission: false, hrtick: false };

#[test]
fn a_reservation_boosts_as_a_priority_does() {
    let mean = |policy| {
        let r = run(&busy(2, &[], ON, policy));
        latency(&r, "g.rt").hist.mean()
    };
    let (vanilla, rr, deadline) =
        (mean(PolicyPlan::Vanilla), mean(dynamic(Means::Rr(8))), mean(dynamic(QUARTER)));
    assert!(rr * 10.0 < vanilla, "rr {rr} ns, vanilla {vanilla} ns");
    assert!(deadline < rr * 3.0 + 5e3, "deadline {deadline} ns, rr {rr} ns");
}

#[test]
fn a_pinned_vcpu_is_refused_every_boost_under_admission_control() {
    // Two hogs on each pCPU, whatever the balancer would do with them.
    let busy = |dl, policy| {
        let mut p = busy(2, &[0], dl, policy);
        p.host_tasks.iter_mut().enumerate().for_each(|(i, t)| t.cpus = vec![i as u32 % 2]);
        p
    };
    let boosts = |dl| {
        let r = run(&busy(dl, dynamic(QUARTER)));
        let g = |metric| scalar(&r, "g", metric);
        (g("boosts"), g("denied"), latency(&r, "g.rt").hist.mean())
    };
    let (refused, denied, slow) = boosts(ON);
    assert_eq!(refused, 0.0);
    assert!(denied > 100.0, "{denied} a second");
    let (given, _, fast) = boosts(OFF);
    assert!(given > 100.0, "{given} a second");
    assert!(fast * 5.0 < slow, "{fast} and {slow} ns");
    let vanilla = run(&busy(ON, PolicyPlan::Vanilla));
    let vanilla = latency(&vanilla, "g.rt").hist.mean();
    assert!((slow / vanilla - 1.0).abs() < 0.5, "refused {slow} ns, vanilla {vanilla} ns");
}

#[test]
fn a_static_reservation_throttles_what_exceeds_it() {
    // The vCPU wants a whole CPU and has a quarter: when that is used up nothing of it runs, RT task
    // or not, and the samples say so.
    let r = run(&busy(1, &[], ON, PolicyPlan::Static { means: QUARTER }));
    let cpu = scalar(&r, "g", "cpu");
    assert!((cpu - 0.25).abs() < 0.01, "{cpu} CPUs");
    let l = latency(&r, "g.rt");
    assert!(l.parts_sum[Part::Throttled as usize] > 0, "{:?}", l.parts_sum);
    assert!(l.max_ns > MS, "{}", l.max_ns);
    // The host's threads have all the rest.
    let hogs: f64 = (0..2).map(|i| scalar(&r, &format!("host.hog/{i}"), "throughput")).sum();
    assert!((hogs - 0.75).abs() < 0.01, "{hogs} CPUs");
}

#[test]
fn a_plan_that_reserves_too_much_is_refused() {
    let mut p = plan(eevdf(1), free());
    p.host.sched.linux_mut().unwrap().dl = ON;
    let half = Policy::Deadline { runtime_ns: MS, deadline_ns: 2 * MS, period_ns: 2 * MS };
    p.host_tasks = vec![task("a", hog(), half, &[]), task("b", hog(), half, &[])];
    let refused = vcoop_sim::run(Run::new(&p, 1)).unwrap_err();
    assert_eq!(refused, vcoop_sched::Refusal::Bandwidth.into());
    let p = busy(2, &[0], ON, PolicyPlan::Static { means: QUARTER });
    let refused = vcoop_sim::run(Run::new(&p, 1)).unwrap_err();
    assert_eq!(refused, vcoop_sched::Refusal::Affinity.into());
}
