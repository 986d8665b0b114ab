//! The sender of an IPI has its receiver boosted: what that is worth, when it asks, and who pays.

use std::sync::Arc;

use crate::support::*;
use vcoop_model::plan::virt::IpiPath;
use vcoop_model::plan::{Act, IpiTo, Mode, Ns, Plan, PolicyPlan, Program, RogueStep};
use vcoop_model::recording::{Part, Recording};
use vcoop_policy::config::{Budget, DynamicConfig, Means};
use vcoop_sched::config::Policy;

const REFILL_PPM: u32 = 100_000;

fn sender() -> PolicyPlan {
    let budget = Budget { burst_ns: 3 * MS, refill_ppm: REFILL_PPM };
    PolicyPlan::Dynamic(DynamicConfig {
        boost_on_injection: false,
        boost_receiver: true,
        boost_on_request: false,
        boost_across_idle: false,
        ..DynamicConfig::new(Means::Rr(8), budget, budget)
    })
}

fn caller(gap: Ns) -> Program {
    let ipi = Act::Ipi { to: IpiTo::Others, wait: true };
    routine(vec![run_for(gap, Mode::User), Act::Begin, ipi, Act::Sample, Act::Done])
}

/// vCPU 0 calls 1 and 2, which compute; 1 shares its pCPU with a hog.
fn plan_of(policy: PolicyPlan, path: IpiPath, gap: Ns) -> Plan {
    let mut p = plan(eevdf(3), dear());
    p.host.costs.cstates.clear();
    p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[1]));
    let tasks = [caller(gap), hog(), hog()].into_iter().enumerate();
    let tasks = tasks
        .map(|(i, program)| task(&format!("t{i}"), program, Policy::NORMAL, &[i as u32]))
        .collect();
    let mut vm = vm("guest", eevdf(3), tasks);
    vm.vcpu_cpus = vec![vec![0], vec![1], vec![2]];
    vm.virt.ipi.path = path;
    vm.virt.apic.posted = path == IpiPath::Posted;
    vm.virt.exits_off.pause = true;
    p.vms = vec![vm];
    p.policy = policy;
    probe_all(&mut p);
    p
}

fn measure(policy: PolicyPlan, path: IpiPath, gap: Ns) -> Recording {
    run(&plan_of(policy, path, gap))
}

fn count(r: &Recording, metric: &str) -> f64 {
    scalar_or_zero(r, "guest", metric)
}

#[test]
fn the_caller_does_not_wait_for_a_time_slice() {
    for path in [IpiPath::Icr, IpiPath::Cluster, IpiPath::Pv, IpiPath::Posted] {
        let (plain, asked) =
            (measure(PolicyPlan::Vanilla, path, 5 * MS), measure(sender(), path, 5 * MS));
        let (before, after) = (latency(&plain, "guest.t0"), latency(&asked, "guest.t0"));
        assert!(before.hist.max() > MS, "{path:?}: {}", before.hist.max());
        let waits = before.parts_sum[Part::CallWait as usize];
        assert!(waits > before.sum_ns * 9 / 10, "{path:?}");
        // Also where the receiver runs when it is sent, and loses its pCPU before it takes it.
        assert!(after.hist.max() < 40 * US, "{path:?}: {}", after.hist.max());
        assert!(after.hist.len() > 150, "{path:?}: {}", after.hist.len());
    }
}

#[test]
fn who_needs_no_request_makes_none() {
    let r = measure(sender(), IpiPath::Posted, 5 * MS);
    let (all, asked) = (count(&r, "ipis.posted"), count(&r, "ipis.asked"));
    // Two receivers, of which one is preempted half of the time.
    assert!((asked / all - 0.25).abs() < 0.08, "{asked} of {all}");
    assert!((count(&r, "exits.hypercall") - asked).abs() < 1.0);
    assert!((count(&r, "boosts") - asked).abs() < 1.0, "{} {asked}", count(&r, "boosts"));
    // No hypercall if the host sees each IPI anyway, or does not boost for them.
    assert_eq!(count(&measure(sender(), IpiPath::Icr, 5 * MS), "exits.hypercall"), 0.0);
    let PolicyPlan::Dynamic(config) = sender() else { unreachable!() };
    let deaf = PolicyPlan::Dynamic(DynamicConfig { boost_receiver: false, ..config });
    let r = measure(deaf, IpiPath::Posted, 5 * MS);
    assert_eq!((count(&r, "ipis.asked"), count(&r, "boosts")), (0.0, 0.0));
}

#[test]
fn a_caller_that_never_stops_takes_no_more_than_its_vms_budget() {
    for path in [IpiPath::Icr, IpiPath::Posted] {
        let mut boosts = 0.0;
        // How often it is boosted depends on where in a round the tick preempts it, which is the seed's.
        for seed in 1..=4 {
            let mut p = plan_of(sender(), path, US);
            p.seed = seed;
            let r = run(&p);
            boosts += count(&r, "boosts");
            let hog = scalar(&r, "host.hog", "throughput");
            // A half, but for the refill and the burst of one second.
            let bound = 0.5 - f64::from(REFILL_PPM) / 1e6 - 0.003;
            assert!(hog > bound, "{path:?}: {hog} of {bound}");
        }
        assert!(boosts > 80.0, "{path:?}: {boosts}");
    }
}

#[test]
fn a_receiver_that_never_answers_is_boosted_for_its_vms_budget_and_no_longer() {
    for path in [IpiPath::Icr, IpiPath::Posted] {
        let mut p = plan_of(sender(), path, US);
        p.vms[0].tasks[1].program =
            Program::Rogue { steps: Arc::new(vec![RogueStep::Ask, RogueStep::Work(MS)]) };
        // No task waits for an answer: one request after the other.
        let ipi = Act::Ipi { to: IpiTo::Others, wait: false };
        p.vms[0].tasks[0].program = routine(vec![user(50), ipi]);
        let r = run(&p);
        let boosted = count(&r, "boosted") * 3.0;
        // Percent of a CPU; the burst is 3 ms of a second.
        let bound = f64::from(REFILL_PPM) / 1e4 + 0.3;
        assert!(boosted > 0.3 && boosted <= bound + 0.1, "{path:?}: {boosted} of {bound}");
        assert!(count(&r, "denied") > 0.0 || count(&r, "throttles") > 0.0);
        let hog = scalar(&r, "host.hog", "throughput");
        assert!(hog > 0.4, "{path:?}: {hog}");
    }
}
