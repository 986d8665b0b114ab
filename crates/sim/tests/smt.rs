//! Known answers of siblings: whose work is slowed, and for how long.

use crate::support::*;
use vcoop_model::plan::{CoreScheduling, Dist, Plan};
use vcoop_sched::config::{Policy, Topology};

/// Two cores of two threads, where work beside a busy sibling runs at 60 %.
fn machine() -> Plan {
    let mut p = plan(unguarded(eevdf(4)), free());
    *p.host.sched.topology_mut() = Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 1 };
    p.host.smt_ppm = vec![600_000];
    p.warmup_ns = 10 * MS;
    p
}

fn is_near(value: f64, wanted: f64) {
    assert!((value - wanted).abs() < 0.002, "{value}, not {wanted}");
}

#[test]
fn siblings_share_a_core_and_cores_share_nothing() {
    let of = |a: u32, b: u32| {
        let mut p = machine();
        p.host_tasks.push(task("a", hog(), Policy::NORMAL, &[a]));
        p.host_tasks.push(task("b", hog(), Policy::NORMAL, &[b]));
        let r = run(&p);
        assert!((scalar(&r, "host", "cpu") - 50.0).abs() < 0.1, "CPU time is as it was");
        (scalar(&r, "host.a", "throughput"), scalar(&r, "host.b", "throughput"))
    };
    let (a, b) = of(0, 1);
    is_near(a, 0.6);
    is_near(b, 0.6);
    let (a, b) = of(0, 2);
    is_near(a, 1.0);
    is_near(b, 1.0);
}

#[test]
fn a_core_of_four_threads_slows_down_with_each_that_is_busy() {
    // Three of four threads compute all the time, the fourth for half of it.
    let mut p = machine();
    *p.host.sched.topology_mut() = Topology { threads_per_core: 4, cores_per_llc: 1, llcs: 1 };
    p.host.smt_ppm = vec![700_000, 500_000, 400_000];
    p.duration_ns = 2 * S;
    let of = |busy: u32| {
        let mut p = p.clone();
        for cpu in 0..busy {
            p.host_tasks.push(task(&format!("hog{cpu}"), hog(), Policy::NORMAL, &[cpu]));
        }
        p
    };
    for (busy, speed) in [(1, 1.0), (2, 0.7), (3, 0.5), (4, 0.4)] {
        let r = run(&of(busy));
        (0..busy)
            .for_each(|cpu| is_near(scalar(&r, &format!("host.hog{cpu}"), "throughput"), speed));
    }
    let mut p = of(3);
    // 4 ms of work take 10 ms beside three hogs.
    let work = cycle(Dist::Const(4 * MS), Dist::Const(10 * MS));
    p.host_tasks.push(task("half", work, Policy::NORMAL, &[3]));
    let r = run(&p);
    is_near(scalar(&r, "host.half", "throughput"), 0.2);
    is_near(scalar(&r, "host.hog0", "throughput"), (0.5 + 0.4) / 2.0);
}

#[test]
fn work_is_slow_for_as_long_as_the_sibling_is_busy() {
    let mut p = machine();
    p.host_tasks.push(task("a", hog(), Policy::NORMAL, &[0]));
    // 6 ms of work take 10 ms beside the hog: half of the time.
    let cycle = cycle(Dist::Const(6 * MS), Dist::Const(10 * MS));
    p.host_tasks.push(task("b", cycle, Policy::NORMAL, &[1]));
    p.duration_ns = 2 * S;
    let r = run(&p);
    is_near(scalar(&r, "host.b", "throughput"), 0.3);
    is_near(scalar(&r, "host.a", "throughput"), 0.8);
    is_near(scalar(&r, "host", "slowed") / 100.0, (0.5 + 0.5) / 4.0);
}

#[test]
fn slowed_work_counts_while_it_goes_on() {
    // No tick ends it: the measurement begins and ends in the middle.
    let mut p = machine();
    p.host.nohz_full = vec![2, 3];
    p.host_tasks.push(task("a", hog(), Policy::NORMAL, &[2]));
    p.host_tasks.push(task("b", hog(), Policy::NORMAL, &[3]));
    (p.warmup_ns, p.duration_ns) = (1_237 * MS, 200 * MS);
    let r = run(&p);
    is_near(scalar(&r, "host.a", "throughput"), 0.6);
    is_near(scalar(&r, "host.b", "throughput"), 0.6);
    is_near(scalar(&r, "host", "slowed") / 100.0, 0.5);
}

#[test]
fn a_core_is_in_no_deep_idle_state_while_one_of_its_threads_is_busy() {
    let longest = |cpu: u32| {
        let mut p = machine();
        p.host.costs.cstates = dear().cstates;
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[0]));
        p.host_tasks.push(task("probe", cyclictest(10 * MS, 0), Policy::Fifo(1), &[cpu]));
        probe_all(&mut p);
        latency(&run(&p), "host.probe").max_ns
    };
    assert_eq!((longest(1), longest(2)), (2 * US, 60 * US));
}

#[test]
fn a_guests_work_is_slowed_and_one_that_rests_slows_nobody() {
    let of = |rests: bool| {
        let mut p = machine();
        p.host_tasks.push(task("a", hog(), Policy::NORMAL, &[0]));
        let work = cycle(Dist::Const(6 * MS), Dist::Const(10 * MS));
        let mut vm = vm("g", tickless(eevdf(1)), vec![task("t", work, Policy::NORMAL, &[])]);
        vm.vcpu_cpus = vec![vec![1]];
        vm.virt.exits_off.hlt = rests;
        p.vms.push(vm);
        p.duration_ns = 2 * S;
        let r = run(&p);
        (scalar(&r, "g.t", "throughput"), scalar(&r, "host.a", "throughput"))
    };
    for rests in [false, true] {
        let (guest, hog) = of(rests);
        is_near(guest, 0.3);
        is_near(hog, 0.8);
    }
}

/// A VM whose vCPUs compute for ever, each on a pCPU of its own.
fn computes(name: &str, pcpus: &[u32], p: &mut Plan) {
    let n = pcpus.len() as u32;
    let hogs = (0..n).map(|c| task(&format!("hog{c}"), hog(), Policy::NORMAL, &[c])).collect();
    let mut vm = vm(name, tickless(eevdf(n)), hogs);
    vm.vcpu_cpus = pcpus.iter().map(|c| vec![*c]).collect();
    p.vms.push(vm);
}

fn shares(core: CoreScheduling, fill: impl Fn(&mut Plan)) -> Plan {
    let mut p = machine();
    p.host.core_scheduling = core;
    p.duration_ns = 2 * S;
    fill(&mut p);
    p
}

#[test]
fn vms_on_a_core_take_turns_and_a_vm_has_it_whole() {
    for (core, alone, forced) in
        [(CoreScheduling::Off, 0.6, None), (CoreScheduling::Vm, 0.5, Some(0.25))]
    {
        let r = run(&shares(core, |p| {
            computes("a", &[0], p);
            computes("b", &[1], p);
        }));
        // Half of the time at full speed instead of all of it at 60 %; two of four pCPUs.
        is_near(scalar(&r, "a.hog0", "throughput"), alone);
        is_near(scalar(&r, "b.hog0", "throughput"), alone);
        if let Some(forced) = forced {
            is_near(scalar(&r, "host", "forced_idle") / 100.0, forced);
            let slowed = scalar(&r, "host", "slowed");
            assert!(slowed < 0.1, "both ran at once for {slowed} % of the time");
        }
    }
    for (core, each) in [(CoreScheduling::Vm, 0.6), (CoreScheduling::Vcpu, 0.5)] {
        let r = run(&shares(core, |p| computes("a", &[0, 1], p)));
        is_near(scalar(&r, "a.hog0", "throughput"), each);
        is_near(scalar(&r, "a.hog1", "throughput"), each);
        let forced = if core == CoreScheduling::Vm { 0.0 } else { 0.25 };
        is_near(scalar(&r, "host", "forced_idle") / 100.0, forced);
    }
}

#[test]
fn threads_without_a_cookie_share_a_core_with_each_other_only() {
    let r = run(&shares(CoreScheduling::Vm, |p| {
        computes("a", &[0], p);
        p.host_tasks.push(task("beside", hog(), Policy::NORMAL, &[1]));
        p.host_tasks.push(task("one", hog(), Policy::NORMAL, &[2]));
        p.host_tasks.push(task("two", hog(), Policy::NORMAL, &[3]));
    }));
    is_near(scalar(&r, "a.hog0", "throughput"), 0.5);
    is_near(scalar(&r, "host.beside", "throughput"), 0.5);
    is_near(scalar(&r, "host.one", "throughput"), 0.6);
    is_near(scalar(&r, "host.two", "throughput"), 0.6);
}

#[test]
fn who_waits_for_the_sibling_is_found_a_core_where_its_vm_runs() {
    // Two VMs of two vCPUs each, on two cores, anywhere: a core each.
    let r = run(&shares(CoreScheduling::Vm, |p| {
        for name in ["a", "b"] {
            computes(name, &[0, 1], p);
            p.vms.last_mut().unwrap().vcpu_cpus = vec![vec![], vec![]];
        }
    }));
    let forced = scalar(&r, "host", "forced_idle");
    assert!(forced < 1.0, "{forced} %");
    for hog in ["a.hog0", "a.hog1", "b.hog0", "b.hog1"] {
        is_near(scalar(&r, hog, "throughput"), 0.6);
    }
}
