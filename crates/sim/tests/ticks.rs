//! Known answers of full-nohz CPUs and of the host's own interrupts.

use crate::support::*;
use vcoop_model::plan::virt::{GuestTimer, Virt};
use vcoop_model::plan::{Act, Dist, InterruptPlan, Plan, Preemption};
use vcoop_model::recording::{Part, Recording};
use vcoop_sched::config::{GroupConfig, Policy, Quota};

/// Two pCPUs with 1000 ticks a second, and a vCPU on each that computes, with as many.
fn busy(host: &[u32], guest: &[u32]) -> Plan {
    let mut p = plan(unguarded(eevdf(2)), dear());
    p.host.nohz_full = host.to_vec();
    let mut virt = Virt { nohz_full: guest.to_vec(), ..Virt::default() };
    virt.timer.source = Some(GuestTimer::Hrtimer);
    let hogs = (0..2).map(|c| task(&format!("hog{c}"), hog(), Policy::NORMAL, &[c])).collect();
    let mut vm = vm("g", unguarded(eevdf(2)), hogs);
    vm.vcpu_cpus = vec![vec![0], vec![1]];
    vm.virt = virt;
    p.vms.push(vm);
    p.warmup_ns = 100 * MS;
    p
}

fn exits(r: &Recording, why: &str) -> f64 {
    scalar(r, "g", &format!("exits.{why}"))
}

fn is_near(value: f64, wanted: f64) {
    assert!((value - wanted).abs() <= 4.0, "{value}, not {wanted}");
}

#[test]
fn work_that_no_tick_interrupts_counts_in_the_time_in_which_it_was_done() {
    // The clock interrupts neither for 1 s: the measurement begins and ends in the middle.
    let mut p = busy(&[1], &[]);
    p.vms.clear();
    p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[1]));
    (p.warmup_ns, p.duration_ns) = (1_237 * MS, 200 * MS);
    let work = scalar(&run(&p), "host.hog", "throughput");
    assert!((0.99..=1.0).contains(&work), "{work}");

    // A guest without ticks on a host with 1000 a second.
    let mut p = busy(&[], &[0, 1]);
    (p.warmup_ns, p.duration_ns) = (300 * MS + 500 * US, MS);
    let r = run(&p);
    let work = scalar(&r, "g.hog0", "throughput") + scalar(&r, "g.hog1", "throughput");
    assert!(work <= scalar(&r, "g", "cpu"), "{work}");
}

#[test]
fn guests_clocks_drift_apart_as_far_as_they_may() {
    let samples = |skew_ppm| {
        let mut p = plan(eevdf(8), free());
        (p.duration_ns, p.warmup_ns) = (40 * S, 0);
        p.vms = (0..8)
            .map(|i| {
                let tasks = vec![task("c", cyclictest(MS, 0), Policy::Fifo(1), &[])];
                let mut vm = vm(&format!("g{i}"), eevdf(1), tasks);
                vm.virt.timer.skew_ppm = skew_ppm;
                vm
            })
            .collect();
        probe_all(&mut p);
        let r = run(&p);
        let of = |i| {
            let l = latency(&r, &format!("g{i}.c"));
            assert_eq!((l.missed, l.max_ns), (0, 0), "by its own clock it is in time");
            l.hist.len()
        };
        (0..8).map(of).collect::<Vec<u64>>()
    };
    let same = samples(0);
    assert!(same.iter().all(|n| *n == same[0]), "{same:?}");
    // 500 millionths of 40 s are 20 periods.
    let apart = samples(500);
    assert!(apart.iter().all(|n| n.abs_diff(same[0]) <= 20), "{apart:?}");
    let (least, most) = (apart.iter().min().unwrap(), apart.iter().max().unwrap());
    assert!(most - least > 10, "{apart:?}");
}

#[test]
fn a_lone_vcpu_on_a_full_nohz_cpu_has_no_ticks_of_the_host() {
    // Of each vCPU: a tick of the host, one of its own that the host fires, and a write for that.
    let r = run(&busy(&[], &[]));
    is_near(exits(&r, "interrupt"), 4_000.0);
    is_near(exits(&r, "msr_timer"), 2_000.0);
    // pCPU 1 has no ticks; its timer fires on pCPU 0, which sends an IPI.
    let r = run(&busy(&[1], &[]));
    is_near(exits(&r, "interrupt"), 4_000.0);
    // So it does where interrupts are posted: KVM does not post those of its timers.
    let mut p = busy(&[1], &[]);
    p.vms[0].virt.apic.posted = true;
    is_near(exits(&run(&p), "interrupt"), 4_000.0);
    // Without the guest's tick there, nothing is left on pCPU 1, but what pCPU 0 has.
    let r = run(&busy(&[1], &[1]));
    is_near(exits(&r, "interrupt"), 2_000.0);
    is_near(exits(&r, "msr_timer"), 1_000.0);
    let cpu = scalar(&r, "g.hog1", "throughput");
    assert!(cpu > 0.9999, "nobody takes anything from it: {cpu}");
}

#[test]
fn the_tick_comes_back_with_company_and_goes_with_it() {
    // A load that runs for 20 ms every 100 ms shares pCPU 1.
    let mut p = busy(&[1], &[1]);
    p.host_tasks.push(task(
        "guest",
        cycle(Dist::Const(20 * MS), Dist::Const(80 * MS)),
        Policy::NORMAL,
        &[1],
    ));
    // Both begin at once: what each has depends on which came first.
    (p.warmup_ns, p.duration_ns) = (0, 10 * S);
    let shared = run(&p);
    let done = |r: &Recording| scalar(r, "host.guest", "throughput");
    p.host.nohz_full.clear();
    let ticking = run(&p);
    let (a, b) = (done(&shared), done(&ticking));
    // A tick of 4 ms in a cycle of about 120 ms.
    assert!((a / b - 1.0).abs() < 0.035, "it has its share to the tick: {a} and {b}");
    // While it is there: 40 ms of each 120 ms.
    let with = exits(&shared, "interrupt");
    assert!((2_150.0..2_600.0).contains(&with), "{with}");
}

/// A queue that gets its quota again has company just as if a thread had joined.
#[test]
fn the_tick_comes_back_with_who_was_throttled() {
    let quota = Quota { runtime_ns: 30 * MS, period_ns: 100 * MS, burst_ns: 0, phase_ns: 0 };
    for level in [cfs(2), eevdf(2)] {
        let mut p = plan(level, free());
        p.host.nohz_full = vec![1];
        if let Some(host) = p.host.sched.linux_mut() {
            host.groups = vec![GroupConfig { quota: Some(quota), ..GroupConfig::new(1024) }];
        }
        let mut tasks = ["limited", "other"].map(|name| task(name, hog(), Policy::NORMAL, &[1]));
        tasks[0].group = Some(0);
        p.host_tasks.extend(tasks);
        p.duration_ns = 5 * S;
        let r = run(&p);
        let limited = scalar(&r, "host.limited", "throughput");
        assert!((limited - 0.3).abs() < 0.01, "{limited}");
    }
}

#[test]
fn a_task_that_joins_a_guests_full_nohz_cpu_is_scheduled() {
    let mut p = busy(&[], &[1]);
    let late =
        task("late", cycle(Dist::Const(30 * MS), Dist::Const(30 * MS)), Policy::NORMAL, &[1]);
    p.vms[0].tasks.push(late);
    p.duration_ns = 10 * S;
    let full = run(&p);
    p.vms[0].virt.nohz_full.clear();
    let ticking = run(&p);
    for label in ["g.late", "g.hog1"] {
        let of = |r: &Recording| scalar(r, label, "throughput");
        let (a, b) = (of(&full), of(&ticking));
        // EEVDF places a waking entity by the other's time as of its last charge, which is longer ago.
        assert!((a / b - 1.0).abs() < 0.1, "{label}: {a} and {b}");
    }
}

#[test]
fn a_fifo_thread_needs_no_tick_and_leaves_the_rest_waiting() {
    let mut p = busy(&[1], &[1]);
    p.vms[0].vcpu_policy[1] = Policy::Fifo(1);
    p.host_tasks.push(task("fair", hog(), Policy::NORMAL, &[1]));
    let r = run(&p);
    is_near(exits(&r, "interrupt"), 2_000.0);
    assert_eq!(scalar(&r, "host.fair", "throughput"), 0.0, "nothing guards it here");
    p.vms[0].vcpu_policy[1] = Policy::Rr(1);
    is_near(exits(&run(&p), "interrupt"), 2_000.0);
}

#[test]
fn a_timer_set_on_a_full_nohz_cpu_is_fired_by_housekeeping() {
    let latency_of = |nohz: &[u32]| {
        let mut p = plan(eevdf(2), dear());
        p.host.nohz_full = nohz.to_vec();
        p.host.costs.cstates.clear();
        p.host_tasks.push(task("t", cyclictest(MS, 0), Policy::Fifo(50), &[1]));
        probe_all(&mut p);
        let r = run(&p);
        latency(&r, "host.t").min_ns
    };
    let (own, away) = (latency_of(&[]), latency_of(&[1]));
    // Interrupt, wake-up and switch; with an IPI, from its sending to its end, between them.
    assert_eq!(own, 700 + 600 + 1_100);
    assert_eq!(away, 700 + 600 + 300 + 800 + 500 + 1_100);
}

#[test]
fn a_device_of_the_host_disturbs_the_cpus_it_interrupts() {
    let mut p = busy(&[1], &[1]);
    p.host.interrupts.push(InterruptPlan {
        name: "nic".into(),
        period: Dist::Const(100 * US),
        work: Dist::Const(3 * US),
        cpus: vec![1],
    });
    let r = run(&p);
    is_near(exits(&r, "interrupt"), 12_000.0);
    is_near(scalar(&r, "host.nic", "interrupts"), 10_000.0);
    let time = scalar(&r, "host.nic", "interrupt_time");
    assert!((time - 3.0).abs() < 0.01, "{time} %");
    // Exit, handler and entry of each.
    let cpu = scalar(&r, "g.hog1", "throughput");
    let wanted = 1.0 - 10_000.0 * (700.0 + 3_000.0 + 600.0) / 1e9;
    assert!((cpu - wanted).abs() < 2e-4, "{cpu}, not {wanted}");
}

#[test]
fn what_a_device_takes_is_in_the_sample_that_it_delays() {
    let mut p = plan(eevdf(1), dear());
    p.host.costs.cstates.clear();
    p.host_tasks.push(task("t", cyclictest(MS, 0), Policy::Fifo(50), &[]));
    p.host.interrupts.push(InterruptPlan {
        name: "disk".into(),
        period: Dist::Exp { mean_ns: 200 * US, max_ns: 2 * MS },
        work: Dist::Const(50 * US),
        cpus: vec![0],
    });
    p.duration_ns = 10 * S;
    probe_all(&mut p);
    let r = run(&p);
    let l = latency(&r, "host.t");
    let of_irqs = l.parts_sum[Part::HostIrq as usize];
    assert!(l.max_ns > 40 * US && of_irqs * 10 > l.sum_ns * 6, "{} of {}", of_irqs, l.sum_ns);
}

#[test]
fn devices_interrupt_the_housekeeping_pcpu_for_vcpus_on_full_nohz_ones() {
    let exits_of = |nohz: &[u32]| {
        let mut p = busy(nohz, &[0]);
        p.vms[0].virt.apic.posted = true;
        p.vms[0].devices.push(device("net", MS, 0));
        let r = run(&p);
        assert!(scalar(&r, "g", "injections") > 900.0);
        exits(&r, "interrupt")
    };
    let (near, away) = (exits_of(&[]), exits_of(&[0]));
    assert!(near - away > 900.0, "{near} without, {away} with");
}

#[test]
fn a_lazy_flag_of_another_vcpu_waits_for_the_tick() {
    // vCPU 0 wakes a task of vCPU 1, where another one computes, and is woken by it. A tick comes each 4 ms.
    let latency_of = |preemption| {
        let there = [Act::Begin, Act::Resume { peer: 1 }, Act::Suspend, Act::Sample, Act::Done];
        let wakes = routine([vec![nap(7_130)], there.to_vec()].concat());
        let sleeps = routine(vec![Act::Suspend, user(1), Act::Resume { peer: 0 }]);
        let mut p = machine(2, &[0, 1], vec![wakes, sleeps]);
        p.duration_ns = 4 * S;
        p.vms[0].tasks.push(task("hog", hog(), Policy::NORMAL, &[1]));
        p.vms[0].preemption = preemption;
        p.vms[0].level.tick_ns = 4 * MS;
        let r = run(&p);
        let rounds = scalar(&r, "guest.t", "rate");
        let sent = scalar(&r, "guest", "exits.msr_icr") / rounds;
        (mean(&r, "guest.t0"), latency(&r, "guest.t0").hist.max(), sent)
    };
    let (full, _, sent) = latency_of(Preemption::Full);
    assert!(full < 10_000.0 && (sent - 2.0).abs() < 0.05, "{full} ns, {sent} IPIs a round");
    let (lazy, most, sent) = latency_of(Preemption::Lazy);
    // A round ends just after a tick, and the next one begins 7.13 ms later.
    assert!((lazy / 870e3 - 1.0).abs() < 0.01 && most < 871_000, "{lazy} ns, at most {most}");
    assert!((sent - 1.0).abs() < 0.05, "only the idle vCPU gets one: {sent} a round");
}
