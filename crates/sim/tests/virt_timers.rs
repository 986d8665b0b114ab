//! Known answers of a guest's timers: who fires them, in which mode, how early, and what that costs.

use crate::support::*;
use vcoop_model::plan::virt::{GuestIdle, GuestTimer, TimerMode, Virt};
use vcoop_model::plan::{Act, Dist, Mode, Phase, Plan, PolicyPlan, Program};
use vcoop_model::profile::Cpu;
use vcoop_model::recording::{Part, Recording};
use vcoop_policy::config::{AdvanceConfig, Budget, DynamicConfig, Means};
use vcoop_sched::config::{Policy, RtGuard};

/// One vCPU alone on its pCPU, a task every millisecond, no ticks in sight.
fn alone(virt: Virt) -> Plan {
    let mut p = plan(eevdf(2), dear());
    p.host.costs.cstates.clear();
    let mut guest = eevdf(1);
    // In the range of the preemption timer, which is 17 s here.
    guest.tick_ns = 16 * S;
    guest.rt_guard = RtGuard::Off;
    let mut vm = vm("g", guest, vec![task("t", cyclictest(MS, 0), Policy::Fifo(50), &[])]);
    vm.vcpu_cpus = vec![vec![0]];
    vm.virt = virt;
    p.vms.push(vm);
    if let Some(host) = p.host.sched.linux_mut() {
        host.tick_ns = 100 * S;
        host.rt_guard = RtGuard::Off;
    }
    probe_all(&mut p);
    p
}

fn timer(source: GuestTimer, idle: GuestIdle) -> Virt {
    let mut virt = Virt::default();
    virt.timer.source = Some(source);
    virt.idle.guest = idle;
    virt
}

fn span(r: &Recording) -> (u64, u64) {
    let l = latency(r, "g.t");
    assert!(l.hist.len() > 900, "every period is seen: {} of them, {}", l.hist.len(), l.max_ns);
    (l.min_ns, l.max_ns)
}

/// Injection, guest interrupt, wake-up and switch.
const GUEST: u64 = 150 + 1_000 + 700 + 1_000;
/// A posted interrupt is sent, and flies.
const POST: u64 = 300 + 800;
/// The guest's handler writes its next deadline, the tick's, before the switch.
const WRITE: u64 = 700 + 400 + 600;
/// ... which is cheaper with the preemption timer, but that is loaded at each entry.
const HV_WRITE: u64 = 700 + 150 + 600 + 50;
/// Exit, handler and entry, and the guest.
const HRTIMER: u64 = 700 + 700 + 600 + GUEST + WRITE;
/// The same without a host interrupt, but with the handling of the exit.
const HV_TIMER: u64 = 700 + 350 + 600 + GUEST + HV_WRITE;

#[test]
fn a_polling_guests_timer_costs_what_its_path_costs() {
    let r = run(&alone(timer(GuestTimer::Hrtimer, GuestIdle::Poll)));
    assert_eq!(span(&r), (HRTIMER, HRTIMER));
    assert!((998.0..=1_000.0).contains(&scalar(&r, "g", "exits.interrupt")), "one a period");
    let r = run(&alone(timer(GuestTimer::HvTimer, GuestIdle::Poll)));
    let (min, max) = span(&r);
    assert!(min >= HV_TIMER && max < HV_TIMER + 4, "a count is 4 cycles: {min} to {max}");
    assert_eq!(scalar(&r, "g", "exits.interrupt"), 0.0, "no timer interrupt on the host");
    assert!((998.0..=1_000.0).contains(&scalar(&r, "g", "exits.preemption_timer")));
    assert_eq!(scalar(&r, "g", "timer.hv_to_sw"), 0.0, "it never halts");
}

#[test]
fn the_preemption_timer_is_switched_on_hlt_and_back() {
    let sw = run(&alone(timer(GuestTimer::Hrtimer, GuestIdle::Hlt)));
    let hv = run(&alone(timer(GuestTimer::HvTimer, GuestIdle::Hlt)));
    let hv_span = span(&hv);
    assert_eq!(span(&sw), (hv_span.0 + WRITE - HV_WRITE, hv_span.1 + WRITE - HV_WRITE));
    assert_eq!(scalar(&hv, "g", "timer.hv_to_sw"), 1_000.0);
    assert_eq!(scalar(&hv, "g", "timer.sw_to_hv"), 0.0, "that one has fired when it wakes");
    // Woken by something else it goes back, and at the next halt away again.
    let mut p = alone(timer(GuestTimer::HvTimer, GuestIdle::Hlt));
    p.vms[0].devices.push(device("d", MS + 7 * US, 0));
    let r = run(&p);
    assert!(scalar(&r, "g", "timer.sw_to_hv") > 900.0);
    assert!(scalar(&r, "g", "timer.hv_to_sw") > 1_900.0);
    assert_eq!(latency(&r, "g.t").missed, 0);
}

#[test]
fn where_kvm_cannot_use_it_it_is_an_hrtimer() {
    let plain = run(&alone(timer(GuestTimer::Hrtimer, GuestIdle::Poll)));
    let cases: [&dyn Fn(&mut Plan); 4] = [
        &|p| p.host.cpu = Some(Cpu { signature: 0x306a8, ..CPU }),
        &|p| p.host.cpu = None,
        &|p| p.vms[0].virt.exits_off.mwait = true,
        // Its 32 bits last 4 s.
        &|p| p.host.cpu = Some(Cpu { preemption_timer_shift: Some(0), ..CPU }),
    ];
    for (i, change) in cases.iter().enumerate() {
        let mut p = alone(timer(GuestTimer::HvTimer, GuestIdle::Poll));
        change(&mut p);
        let r = run(&p);
        assert_eq!(span(&r), span(&plain), "case {i}");
    }
    // Out of range: a period of 20 s at 4 cycles a count and 1 GHz, 2^32 counts being 17 s.
    let mut p = alone(timer(GuestTimer::HvTimer, GuestIdle::Poll));
    p.vms[0].tasks[0].program = cyclictest(20 * S, 0);
    p.vms[0].level.tick_ns = 100 * S;
    p.duration_ns = 50 * S;
    let r = run(&p);
    assert!(scalar(&r, "g", "timer.hv_refused") > 0.0);
    assert!(latency(&r, "g.t").max_ns <= HRTIMER);
}

/// A second thread wants the pCPU all the time, and the guest never sleeps.
fn contended(virt: Virt, policy: PolicyPlan) -> Recording {
    let mut p = alone(virt);
    p.duration_ns = 5 * S;
    p.policy = policy;
    if let Some(host) = p.host.sched.linux_mut() {
        host.tick_ns = MS;
    }
    p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[0]));
    p.vms[0].tasks.push(task("work", hog(), Policy::NORMAL, &[]));
    p.probes.clear();
    probe_all(&mut p);
    run(&p)
}

#[test]
fn it_is_blind_while_the_vcpu_is_preempted() {
    let hv = timer(GuestTimer::HvTimer, GuestIdle::Poll);
    let r = contended(hv.clone(), PolicyPlan::Vanilla);
    assert!(scalar(&r, "g", "timer.blind") > 100.0, "deadlines pass unseen");
    let l = latency(&r, "g.t");
    let waits = l.parts_sum[Part::PreemptedToRun as usize];
    assert!(waits * 10 > l.sum_ns * 9, "and that is a wait for the pCPU: {waits} of {}", l.sum_ns);
    let mut remedy = hv;
    remedy.timer.arm_sw_on_preempt = true;
    let r = contended(remedy, PolicyPlan::Vanilla);
    assert_eq!(scalar(&r, "g", "timer.blind"), 0.0);
    let (away, back) = (scalar(&r, "g", "timer.hv_to_sw"), scalar(&r, "g", "timer.sw_to_hv"));
    assert!(away > 100.0 && back <= away, "{away} {back}");
}

#[test]
fn boosting_needs_somebody_who_sees_the_deadline() {
    let budget = Budget { burst_ns: 100 * MS, refill_ppm: 900_000 };
    let boost = PolicyPlan::Dynamic(DynamicConfig::new(Means::Rr(8), budget, budget));
    let mean = |virt| {
        let r = contended(virt, boost.clone());
        let l = latency(&r, "g.t");
        l.sum_ns / u128::from(l.hist.len())
    };
    let sw = mean(timer(GuestTimer::Hrtimer, GuestIdle::Hlt));
    let hv = mean(timer(GuestTimer::HvTimer, GuestIdle::Hlt));
    let mut remedy = timer(GuestTimer::HvTimer, GuestIdle::Hlt);
    remedy.timer.arm_sw_on_preempt = true;
    let remedied = mean(remedy);
    assert!(hv > 10 * sw, "blind to each other: {hv} against {sw}");
    assert!(remedied < 2 * sw, "the remedy: {remedied} against {sw}");
}

#[test]
fn an_early_timer_hides_the_hosts_work_but_for_the_entry_and_is_never_early() {
    for source in [GuestTimer::Hrtimer, GuestTimer::HvTimer] {
        // KVM waits for the deadline, and enters the guest then.
        let guest = 600 + GUEST + if source == GuestTimer::Hrtimer { WRITE } else { HV_WRITE };
        let mut virt = timer(source, GuestIdle::Poll);
        virt.timer.advance = AdvanceConfig::Fixed(3_000);
        let r = run(&alone(virt.clone()));
        assert_eq!(span(&r), (guest, guest), "all of it is hidden, and nothing more");
        let takes = if source == GuestTimer::Hrtimer { 1_400.0 } else { 1_050.0 };
        let spun = scalar(&r, "g", "timer.advance_wait") * 1e7 / 1_000.0;
        assert!((spun - (3_000.0 - takes)).abs() < 4.0, "{spun} ns of each are left to spin");
        virt.timer.advance = AdvanceConfig::Adaptive;
        let mut p = alone(virt);
        p.warmup_ns = 200 * MS;
        let r = run(&p);
        let (min, max) = span(&r);
        assert!(min >= guest && max < guest + 105, "within KVM's 100 cycles: {min} to {max}");
        let advance = scalar(&r, "g", "timer.advance") * 1e3;
        assert!((advance - takes).abs() <= 105.0, "{advance} for {takes}");
    }
}

#[test]
fn a_posted_timer_is_waited_out_where_it_is_fired() {
    // The posting and its flight come after the deadline.
    let guest = POST + 1_000 + 700 + 1_000;
    let mut virt = timer(GuestTimer::Exitless, GuestIdle::Poll);
    virt.apic.posted = true;
    let plain = run(&alone(virt.clone()));
    assert_eq!(span(&plain), (700 + guest, 700 + guest), "the housekeeping's interrupt");
    assert_eq!(scalar(&plain, "g", "exits"), 0.0, "exitless");
    virt.timer.advance = AdvanceConfig::Fixed(1_000);
    assert_eq!(span(&run(&alone(virt))), (guest, guest));
}

#[test]
fn an_interrupt_is_not_held_back_for_a_deadline_that_was_written_after_it_had_fired() {
    // A guest whose tick stops when it goes idle, about when that fires: the tick's timer may fire while the write of a
    // later deadline is handled.
    for (source, work) in [GuestTimer::Hrtimer, GuestTimer::HvTimer, GuestTimer::Exitless]
        .into_iter()
        .flat_map(|source| (280..310).map(move |work| (source, work)))
    {
        let mut virt = timer(source, GuestIdle::Hlt);
        virt.timer.advance = AdvanceConfig::Adaptive;
        virt.apic.posted = true;
        let mut p = alone(virt);
        p.vms[0].level.tick_ns = MS;
        p.vms[0].tasks[0].program = cyclictest(5 * MS, work * US);
        p.duration_ns = 100 * MS;
        let r = run(&p);
        let l = latency(&r, "g.t");
        assert_eq!(l.missed, 0, "{source:?} {work}");
        assert!(l.max_ns < 30 * US, "{source:?} {work}: {} ns", l.max_ns);
        let waits = scalar(&r, "g", "timer.advance_wait");
        assert!(waits < 1.0, "{source:?} {work}: {waits} % of the time");
    }
}

#[test]
fn an_oneshot_hrtimer_is_not_advanced() {
    let of = |advance| {
        let mut virt = timer(GuestTimer::Hrtimer, GuestIdle::Hlt);
        virt.timer.mode = TimerMode::Oneshot;
        virt.timer.advance = advance;
        span(&run(&alone(virt)))
    };
    assert_eq!(of(AdvanceConfig::Fixed(1_000)), of(AdvanceConfig::None));
}

#[test]
fn a_guest_that_waits_for_its_deadline_has_its_interrupt_there() {
    // Entry and injection are over when it is due: what is left is the handler and the way to the task.
    let mut virt = timer(GuestTimer::Exitless, GuestIdle::Poll);
    virt.timer.advance =
        AdvanceConfig::Within { first_ns: 20_000, noise_ns: 100, most_ns: 200_000 };
    let mut p = alone(virt);
    p.warmup_ns = 200 * MS;
    let r = run(&p);
    let (min, max) = span(&r);
    let way = GUEST - 150;
    assert!(min >= way && max <= way + 200, "{min} to {max}");
}

#[test]
fn a_posted_timer_is_written_with_an_exit_and_fires_without() {
    // The exitless timer's path, and two exits in it: the guest writes its next deadline before the
    // switch, and after the task slept.
    let mut virt = timer(GuestTimer::Posted, GuestIdle::Hlt);
    virt.apic.posted = true;
    virt.exits_off.hlt = true;
    let r = run(&alone(virt.clone()));
    let takes = 700 + POST + 1_000 + 700 + 1_000 + WRITE;
    assert_eq!(span(&r), (takes, takes));
    assert_eq!(scalar(&r, "g", "exits.interrupt"), 0.0, "nothing disturbs the guest");
    let written = scalar(&r, "g", "exits.msr_timer");
    assert!((1_998.0..=2_000.0).contains(&written), "twice a period: {written}");
    assert_eq!(scalar(&r, "g", "exits"), written, "and these are all");
    virt.timer.source = Some(GuestTimer::Exitless);
    assert_eq!(scalar(&run(&alone(virt)), "g", "exits"), 0.0);
}

#[test]
fn a_posted_timers_advance_learns_from_late_interrupts_too() {
    let mut virt = timer(GuestTimer::Posted, GuestIdle::Hlt);
    (virt.apic.posted, virt.exits_off.hlt) = (true, true);
    virt.timer.advance = AdvanceConfig::Adaptive;
    let mut p = alone(virt);
    p.host.cpu = Some(Cpu { tsc_khz: 1_000_000, signature: 0x506e3, preemption_timer_shift: None });
    // Late by what the housekeeping's interrupt takes, however early that is sent.
    p.host.costs.timer_irq_ns = 4_000;
    p.warmup_ns = 100 * MS;
    let advance = scalar(&run(&p), "g", "timer.advance");
    assert!((3_500.0..4_500.0).contains(&(advance * 1_000.0)), "{advance} us");
}

#[test]
fn kvm_posts_the_timers_of_resting_guests_on_a_nohz_full_host() {
    let mut virt = timer(GuestTimer::HvTimer, GuestIdle::Hlt);
    (virt.apic.posted, virt.exits_off.hlt) = (true, true);
    let exits = |nohz: &[u32], name: &str| {
        let mut p = alone(virt.clone());
        p.host.nohz_full = nohz.to_vec();
        scalar_or_zero(&run(&p), "g", name)
    };
    assert!(exits(&[], "exits.preemption_timer") > 900.0);
    assert_eq!(exits(&[0], "exits.preemption_timer"), 0.0);
    assert_eq!(exits(&[0], "exits.interrupt"), 0.0);
}

#[test]
fn one_shot_counts_from_the_hosts_now() {
    let (deadline, _) = span(&run(&alone(timer(GuestTimer::Hrtimer, GuestIdle::Poll))));
    let mut virt = timer(GuestTimer::Hrtimer, GuestIdle::Poll);
    virt.timer.mode = TimerMode::Oneshot;
    let (min, max) = span(&run(&alone(virt)));
    let late = 700 + 400;
    assert!(min >= deadline + late && max < deadline + late + 16, "{min} to {max}");
}

#[test]
fn a_periodic_timer_is_never_written_and_has_no_other_times() {
    for source in [GuestTimer::Hrtimer, GuestTimer::HvTimer] {
        let mut virt = timer(source, GuestIdle::Hlt);
        virt.timer.mode = TimerMode::Periodic;
        let mut p = alone(virt);
        p.vms[0].level.tick_ns = MS;
        p.vms[0].tasks[0].program = cyclictest(4 * MS, 0);
        let r = run(&p);
        assert_eq!(scalar(&r, "g", "exits.msr_timer"), 0.0);
        // It runs just after a tick, is due whole ticks later, and so the next one wakes it.
        let l = latency(&r, "g.t");
        assert_eq!((l.min_ns, l.max_ns), (MS, MS));
        assert!(l.hist.len() > 245, "{}", l.hist.len());
        let woken = scalar(&r, "g", "injections");
        assert!((999.0..=1001.0).contains(&woken), "once a tick, idle or not: {woken}");
    }
}

#[test]
fn the_fast_path_replaces_exit_handling_and_entry() {
    let mut virt = timer(GuestTimer::Hrtimer, GuestIdle::Poll);
    let slow = run(&alone(virt.clone()));
    virt.apic.fastpath = true;
    let fast = run(&alone(virt));
    let share = |ns: f64| ns * 1_000.0 / 1e9 * 100.0;
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} {b}");
    close(scalar(&slow, "g", "exit_time.msr_timer"), 2.0 * share(700.0 + 400.0 + 600.0));
    close(scalar(&fast, "g", "exit_time.msr_timer"), 2.0 * share(800.0));
    assert_eq!(scalar(&fast, "g", "exits.msr_timer"), scalar(&slow, "g", "exits.msr_timer"));
}

#[test]
fn the_wait_for_the_deadline_ends_before_the_entry_on_the_fast_path_too() {
    // It fires 5 us early, so what the exit takes is over by then. Entry and injection come after the wait.
    let mut virt = timer(GuestTimer::HvTimer, GuestIdle::Poll);
    virt.timer.advance = AdvanceConfig::Fixed(5_000);
    virt.apic.posted = true;
    let slow = span(&run(&alone(virt.clone())));
    virt.apic.fastpath = true;
    let fast = span(&run(&alone(virt)));
    // The next deadline is written on the fast path before the woken task runs.
    let saved = HV_WRITE - 800;
    assert_eq!((fast.0 + saved, fast.1 + saved), slow);
}

#[test]
fn without_apicv_the_end_of_an_interrupt_exits() {
    let mut virt = timer(GuestTimer::Hrtimer, GuestIdle::Hlt);
    let r = run(&alone(virt.clone()));
    assert!(!r.scalars.contains_key(&("g".into(), "exits.eoi".into())), "a paravirtual EOI");
    virt.apic.eoi_exits = true;
    let with = run(&alone(virt));
    assert_eq!(scalar(&with, "g", "exits.eoi"), 1_000.0);
    let late = 700 + 300 + 600;
    assert_eq!(span(&with).0, span(&r).0 + late, "before the woken task runs");
}

#[test]
fn an_interrupt_that_waits_for_the_guest_costs_another_exit() {
    let mut virt = timer(GuestTimer::Hrtimer, GuestIdle::Poll);
    virt.apic.window_exits = true;
    let mut p = alone(virt);
    // Half of the time with interrupts off, on the same vCPU.
    let run_for = |us, mode| Phase::Run { time: Dist::Const(us * US), mode };
    let phases = vec![run_for(300, Mode::IrqOff), run_for(317, Mode::User)];
    let program = Program::Cycle { phases };
    p.vms[0].tasks.push(task("off", program, Policy::NORMAL, &[]));
    let r = run(&p);
    let windows = scalar(&r, "g", "exits.interrupt_window");
    assert!((300.0..700.0).contains(&windows), "about half of the interrupts: {windows}");
}

#[test]
fn a_deadline_that_has_passed_interrupts_at_the_end_of_its_own_exit() {
    let mut p = alone(timer(GuestTimer::HvTimer, GuestIdle::Poll));
    let wait = Act::Timer { period_ns: 0, busy: true, interrupt: true };
    let work = Act::Do(Phase::Run { time: Dist::Const(150_000), mode: Mode::User });
    p.vms[0].tasks[0].program = Program::Routine { acts: vec![wait, Act::Done, work] };
    probe_all(&mut p);
    let r = run(&p);
    let l = latency(&r, "g.t.interrupt");
    // Exit, handling, injection, entry: no second exit for the expiry.
    let once = 700 + 150 + 150 + 600;
    assert_eq!((l.missed, l.min_ns, l.max_ns), (0, once, once));
    assert!(l.hist.len() > 6_000, "{}", l.hist.len());
}
