//! Known answers of siblings: whose work is slowed, and for how long.

mod support;

use support::*;
use vcoop_model::plan::{Dist, Mode, Phase, Plan, Program};
use vcoop_sched::config::{Policy, RtGuard, Topology};

/// Two cores of two threads, where work beside a busy sibling runs at 60 %.
fn machine() -> Plan {
    let mut p = plan(eevdf(4), free());
    *p.host.sched.topology_mut() = Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 1 };
    p.host.smt_ppm = Some(600_000);
    if let Some(host) = p.host.sched.linux_mut() {
        host.rt_guard = RtGuard::Off;
    }
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
fn a_guests_work_is_slowed_and_one_that_rests_slows_nobody() {
    let of = |rests: bool| {
        let mut p = machine();
        p.host_tasks.push(task("a", hog(), Policy::NORMAL, &[0]));
        let work = Program::Cycle {
            phases: vec![
                Phase::Run { time: Dist::Const(6 * MS), mode: Mode::User },
                Phase::Sleep { time: Dist::Const(10 * MS) },
            ],
        };
        let mut guest = eevdf(1);
        (guest.tick_ns, guest.rt_guard) = (100 * S, RtGuard::Off);
        let mut vm = vm("g", guest, vec![task("t", work, Policy::NORMAL, &[])]);
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
