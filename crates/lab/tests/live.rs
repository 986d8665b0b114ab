//! The lab on this host's `/dev/kvm`. Without one, every test is skipped.
//!
//! The host may be busy with anything: no test asserts a time. Ratios have wide margins, are taken
//! from runs next to each other, and get a second chance.

use std::sync::Arc;
use std::time::Instant;

use crate::support::{
    BUSY, Outcome, Skip, assert_refused, latency, need, plan, run, run_with, scalar, scenario,
    twice, whole,
};
use vcoop_lab::{Error, Options};
use vcoop_model::plan::{GuestTimer, Program, RogueStep};
use vcoop_model::recording::{LatencyRecord, Part, Recording};
use vcoop_model::run::Run;

/// A guest that sleeps between its periods, on a host that does nothing else.
const IDLE: &str = scenario!(
    "duration = '600ms'\nwarmup = '100ms'",
    r#"
[[vm]]
name = "guest"
vcpus = 2

[[vm.task]]
name = "timer"
kind = "cyclictest"
interval = "2ms"
policy = "fifo 80"
cpus = "0"

[[vm.task]]
name = "sound"
kind = "audio"
policy = "fifo 60"
period = "2ms"
buffer = "4ms"
work = "20us..40us"
irq_vcpu = 1
cpus = "0"

[[vm.task]]
name = "other"
kind = "cyclictest"
interval = "3ms"
policy = "fifo 10"
cpus = "1"

[[vm.device]]
name = "alarm"
period = "20ms"
vcpu = 1
nmi = true
"#
);

/// Every period has a sample or is counted as missed, and the parts of the samples add up.
fn assert_complete(l: &LatencyRecord, periods: u64) {
    let seen = l.hist.len() + l.missed;
    let near = periods - periods / 10 - 2..=periods + periods / 10 + 2;
    assert!(near.contains(&seen), "{}: {seen} of {periods} periods", l.probe);
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns, "{}", l.probe);
    assert!(!l.hist.is_empty() && l.min_ns <= l.max_ns, "{}", l.probe);
}

live!(dynamic_beats_vanilla_on_a_busy_cpu, || -> Outcome {
    twice(|| {
        let vanilla = run(&plan(BUSY, "vanilla", &[]));
        let dynamic = run(&plan(BUSY, "dynamic", &[]));
        for r in [&vanilla, &dynamic] {
            assert_complete(latency(r, "guest.cyclictest"), 1_000);
            assert_complete(latency(r, "host.cyclictest"), 1_000);
            assert_eq!(scalar(r, "lab", "samples_invalid"), 0.0);
        }
        assert_eq!(scalar(&vanilla, "guest", "boosts"), 0.0);
        let boosts = scalar(&dynamic, "guest", "boosts");
        let boosted = scalar(&dynamic, "guest", "boosted");
        let p90 = |r| latency(r, "guest.cyclictest").hist.value_at_quantile(0.9);
        let (a, b) = (p90(&vanilla), p90(&dynamic));
        let load = |r| scalar(r, "host.hog", "throughput");
        let ok = a > 5 * b && boosts > 500.0 && load(&dynamic) > 0.5 * load(&vanilla);
        // The default budget: 3 ms at once, a quarter of the time, in a second.
        let bounded = boosted <= 25.0 + 0.3 + 2.0;
        let told = format!("p90 {a} and {b} ns, {boosts} boosts/s, boosted {boosted} %");
        if ok && bounded { Ok(()) } else { Err(told) }
    })
});

live!(boosted_time_is_given_back, || -> Outcome {
    twice(|| {
        let vanilla = run(&plan(BUSY, "vanilla", &[]));
        let dynamic = run(&plan(BUSY, "dynamic", &["policy.dynamic.repay=true"]));
        let p90 = |r: &Recording| latency(r, "guest.cyclictest").hist.value_at_quantile(0.9);
        let load = |r: &Recording| scalar(r, "host.hog", "throughput");
        let lowered = scalar(&dynamic, "guest", "lowered");
        let ok = p90(&vanilla) > 3 * p90(&dynamic)
            && load(&dynamic) > 0.75 * load(&vanilla)
            && lowered > 0.1;
        let of = |r: &Recording| {
            let [cpu, steal, boosted] = ["cpu", "steal", "boosted"].map(|m| scalar(r, "guest", m));
            let (p90, load) = (p90(r), load(r));
            format!("p90 {p90} ns, load {load}, guest {cpu}, steal {steal}, boosted {boosted}")
        };
        let told = || format!("{}; {}; {lowered} levels", of(&vanilla), of(&dynamic));
        if ok { Ok(()) } else { Err(told()) }
    })
});

live!(counters_of_a_run_without_length_have_a_length, || {
    let r = run(&plan(BUSY, "vanilla", &["duration=\"1ms\"", "warmup=\"50ms\""]));
    let cpus = scalar(&r, "host.hog", "throughput");
    assert!((0.01..100.0).contains(&cpus), "{cpus} CPUs");
});

live!(stress_ng_can_be_the_load, || -> Outcome {
    let plan = plan(BUSY, "vanilla", &["load.hog.stress_ng=\"loop\""]);
    need(&plan)?;
    twice(|| {
        let r = run(&plan);
        let (load, guest) = (scalar(&r, "host.hog", "throughput"), scalar(&r, "guest", "cpu"));
        // Two stressors and a vCPU share a CPU.
        let ok = (0.5..0.75).contains(&load) && (0.2..0.45).contains(&guest);
        if ok { Ok(()) } else { Err(format!("stressors {load}, guest {guest}")) }
    })
});

live!(both_timers_work_without_a_boost, || {
    for timer in [GuestTimer::Lapic, GuestTimer::Exitless] {
        let mut plan = plan(IDLE, "vanilla", &[]);
        plan.vms[0].virt.timer.source = Some(timer);
        // Without a trace the only one who can see a timer being late is the injector.
        let r = run_with(&plan, Options { trace: false, ..Options::default() });
        assert_complete(latency(&r, "guest.timer"), 300);
        assert_eq!(scalar(&r, "guest", "boosts"), 0.0);
        let slack = latency(&r, "guest.timer").parts_sum[Part::TimerSlack as usize];
        assert_eq!(slack > 0, timer == GuestTimer::Exitless, "who fired: {timer:?}");
    }
});

live!(an_interrupt_sent_early_is_not_taken_early, || -> Outcome {
    twice(|| {
        let run = |advance_ns| {
            // Real-time: what else this host does would hide the difference.
            let mut plan = plan(IDLE, "static", &["policy.static.means=\"fifo 20\""]);
            plan.vms[0].virt.timer.source = Some(GuestTimer::Exitless);
            run_with(&plan, Options { advance_ns: Some(advance_ns), ..Options::default() })
        };
        let (plain, early) = (run(0), run(100_000));
        assert_eq!(scalar(&early, "lab", "samples_invalid"), 0.0);
        let p50 = |r| latency(r, "guest.timer").hist.value_at_quantile(0.5);
        let (a, b) = (p50(&plain), p50(&early));
        if b < a { Ok(()) } else { Err(format!("p50 {a} ns, then {b} ns")) }
    })
});

live!(every_task_of_every_vcpu_runs_and_devices_reach_them, || {
    for policy in ["vanilla", "dynamic", "wake-boost"] {
        let r = run(&plan(IDLE, policy, &[]));
        assert_complete(latency(&r, "guest.timer"), 300);
        assert_complete(latency(&r, "guest.other"), 200);
        // Its device interrupts vCPU 1, which wakes it on vCPU 0.
        assert_complete(latency(&r, "guest.sound"), 300);
        // Boosted across idle: rarely begun, but charged while awake.
        let boosted = scalar(&r, "guest", "boosted");
        assert_eq!(boosted > 0.0, policy != "vanilla", "{policy}: {boosted}");
    }
});

live!(without_a_cpu_for_the_injector_vcpus_end_their_own_boosts, || {
    let r = run(&plan(BUSY, "dynamic", &["vm.guest.pin=\"0-1\""]));
    assert_complete(latency(&r, "guest.cyclictest"), 1_000);
    let (boosts, notified) = (scalar(&r, "guest", "boosts"), scalar(&r, "guest", "notified"));
    assert!(boosts > 100.0 && notified > 0.5 * boosts, "{boosts} boosts, {notified} notified");
});

live!(eight_vcpus_run, || {
    let text = IDLE.replace("cpus = \"1\"", "cpus = \"7\"").replace("vcpus = 2", "vcpus = 8");
    for policy in ["vanilla", "dynamic"] {
        let r = run(&plan(&text, policy, &["duration=300ms"]));
        assert_complete(latency(&r, "guest.timer"), 150);
        assert_complete(latency(&r, "guest.other"), 100);
    }
});

live!(static_keeps_its_means_and_nothing_else_is_changed, || -> Outcome {
    for means in ["nice -20", "fifo 8", "rr 8", "slice 1ms"] {
        let set = format!("policy.static.means=\"{means}\"");
        twice(|| {
            let r = run(&plan(BUSY, "static", &[&set, "duration=300ms"]));
            let kept = latency(&r, "guest.cyclictest").hist.len();
            if kept > 50 { Ok(()) } else { Err(format!("{means}: {kept} samples of some 300")) }
        })?;
    }
    // Other tests' threads come and go: only a run's own count.
    let ours = ["vcpu", "injector", "hog", "cyclictest"];
    vcoop_testing::assert_no_thread(|name| ours.iter().any(|own| name.starts_with(own)));
    Ok(())
});

live!(boosting_can_be_switched_off_while_running, || {
    use vcoop_model::plan::{TimelineAction, TimelineEvent};
    let mut plan = plan(BUSY, "dynamic", &[]);
    let boosts = |r: &Recording| scalar(r, "guest", "boosts");
    let on = boosts(&run(&plan));
    let at_ns = plan.warmup_ns + plan.duration_ns / 2;
    let action = TimelineAction::Boost { vm: None, on: false };
    plan.timeline.push(TimelineEvent { at_ns, action });
    let half = boosts(&run(&plan));
    assert!(half > 0.2 * on && half < 0.8 * on, "{on} per second, then {half}");
});

live!(ends_early_when_asked_and_keeps_what_it_has, || {
    let mut plan = plan(BUSY, "dynamic", &[]);
    plan.duration_ns = 60_000_000_000;
    let start = Instant::now();
    // Since it was asked first: what comes before takes as long as it takes.
    let began = std::cell::OnceCell::new();
    let stop = || began.get_or_init(Instant::now).elapsed().as_millis() > 700;
    let r = whole(vcoop_lab::run(Run::new(&plan, 1).until(&stop), &Options::default()))
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(start.elapsed().as_secs() < 30);
    let l = latency(&r, "guest.cyclictest");
    assert!((50..2_000).contains(&l.hist.len()), "{}", l.hist.len());
    assert!(l.missed < 2_000, "periods after the end are not missed: {}", l.missed);
});

live!(refuses_what_this_host_cannot_do, || {
    let mut large = plan(BUSY, "vanilla", &[]);
    large.host.sched.topology_mut().cores_per_llc = 4096;
    assert!(vcoop_lab::check(&plan(BUSY, "dynamic", &[])).is_ok());
    assert!(matches!(vcoop_lab::check(&large), Err(Error::Missing(_))));
    match vcoop_lab::run(Run::new(&large, 1), &Options::default()) {
        Err(Error::Missing(missing)) => assert!(missing.what.contains("4096 pCPUs"), "{missing}"),
        other => panic!("{other:?}"),
    }
    let mut misplaced = plan(BUSY, "vanilla", &[]);
    misplaced.host_tasks[0].program = Program::Rogue { steps: Arc::new(vec![RogueStep::Ask]) };
    assert_refused(&misplaced, "", "a rogue is a guest");
    assert!(matches!(
        vcoop_lab::run(Run::new(&misplaced, 1), &Options::default()),
        Err(Error::Unsupported { .. })
    ));
});

live!(a_panic_in_the_caller_ends_the_run, || {
    let plan = plan(BUSY, "static", &[]);
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        assert!(asked.get() < 5, "the caller's own trouble");
        false
    };
    let run = std::panic::AssertUnwindSafe(|| {
        vcoop_lab::run(Run::new(&plan, 1).until(&stop), &Options::default())
    });
    assert!(std::panic::catch_unwind(run).is_err());
    // And the next run finds the lab as it should be.
    assert!(!self::run(&self::plan(IDLE, "vanilla", &[])).latencies.is_empty());
});

/// A policy whose boost is a quarter of a CPU by reservation.
const RESERVED: &str = r#"
[policy.reserved]
base = "dynamic"
means = "deadline 1ms/4ms"
"#;

live!(a_reservation_runs_unpinned, || -> Outcome {
    let unpinned = plan(&format!("{IDLE}{RESERVED}"), "reserved", &[]);
    need(&unpinned)?;
    let r = run(&unpinned);
    // Boosted across idle: rarely begun, but charged while awake.
    assert!(scalar(&r, "guest", "boosted") > 0.0);
    assert_complete(latency(&r, "guest.timer"), 300);
    Ok(())
});

live!(a_reservation_is_refused_pinned, || -> Outcome {
    let text = format!("{BUSY}{RESERVED}");
    // The scenario's other policies are not concerned.
    let other = vcoop_lab::check(&plan(&text, "dynamic", &[]));
    assert!(!matches!(other, Err(Error::PolicyMissing { .. })));
    let admission = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us");
    if admission.is_ok_and(|us| us.trim() == "-1") {
        return Err(Skip::because("this kernel admits any reservation: sched_rt_runtime_us is -1"));
    }
    match vcoop_lab::check(&plan(&text, "reserved", &[])) {
        Err(Error::PolicyMissing { policy, missing }) => {
            assert_eq!(policy, "reserved");
            assert!(missing.what.contains("guest, vCPU 0"), "{}", missing.what);
            assert!(missing.remedy.contains("pinning"), "{}", missing.remedy);
        }
        // No second CPU, or no lab for such a host.
        Err(Error::Missing(missing)) => return Err(Skip::because(missing)),
        other => panic!("{other:?}"),
    }
    Ok(())
});
