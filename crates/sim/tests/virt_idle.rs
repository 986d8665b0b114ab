//! Known answers of idle vCPUs: who polls, for how long, who is woken how, and who pays for it.

use crate::support::*;
use vcoop_model::plan::virt::{GuestIdle, GuestTimer, Virt};
use vcoop_model::plan::{Act, Dist, HostSched, IpiTo, Mode, Phase, Plan, Program, Target};
use vcoop_model::profile::Costs;
use vcoop_model::recording::Recording;
use vcoop_policy::config::HostPollConfig;
use vcoop_sched::config::{Fair, Policy};

/// One vCPU alone on its pCPU, a task at this interval, no ticks in sight.
fn alone(interval: u64, virt: Virt) -> Plan {
    let mut p = plan(tickless(eevdf(2)), dear());
    let mut vm = vm(
        "g",
        tickless(eevdf(1)),
        vec![task("t", cyclictest(interval, 0), Policy::Fifo(50), &[])],
    );
    vm.vcpu_cpus = vec![vec![0]];
    vm.virt = virt;
    p.vms.push(vm);
    p.warmup_ns = 100 * MS;
    probe_all(&mut p);
    p
}

fn host_polls() -> Virt {
    let mut virt = Virt::default();
    virt.idle.host_poll = Some(HostPollConfig::KVM);
    virt
}

/// The host polls for as long as it ever does, at each halt.
fn fixed_poll() -> Virt {
    let mut virt = host_polls();
    virt.idle.host_poll = Some(HostPollConfig { fixed: true, ..HostPollConfig::KVM });
    virt
}

fn guest(idle: GuestIdle) -> Virt {
    let mut virt = Virt::default();
    virt.idle.guest = idle;
    virt
}

#[test]
fn the_way_out_of_an_idle_state_is_idle_time() {
    // A thread that takes no CPU time wakes every millisecond, each time from a state that takes 60 us to leave.
    let mut p = plan(eevdf(1), Costs { cstates: dear().cstates, ..free() });
    p.host_tasks.push(task("t", cyclictest(MS, 0), Policy::NORMAL, &[0]));
    probe_all(&mut p);
    let r = run(&p);
    assert!(mean(&r, "host.t") > 59_000.0, "{}", mean(&r, "host.t"));
    assert_eq!(scalar(&r, "host", "cpu"), 0.0);
    // The run may end on the way out.
    p.duration_ns = 100 * MS + 30 * US;
    assert_eq!(scalar(&run(&p), "host", "cpu"), 0.0);
}

#[test]
fn what_goes_on_at_the_ends_of_the_measured_time_counts_within_it_only() {
    // The guest does next to nothing: it halts, rests or polls all the time, for longer or shorter than is measured.
    let share = |virt: Virt, metric: &str, interval: u64| {
        let mut p = alone(interval * MS, virt);
        p.duration_ns = S;
        scalar(&run(&p), "g", metric)
    };
    let mut rests = guest(GuestIdle::Hlt);
    rests.exits_off.hlt = true;
    for interval in [30, 70, 700, 1_400, 5_000] {
        for (virt, metric) in [
            (host_polls(), "exit_time.hlt"),
            (host_polls(), "halt_time"),
            (rests.clone(), "guest_rest"),
            (guest(GuestIdle::Poll), "guest_poll"),
        ] {
            let share = share(virt, metric, interval);
            assert!((99.0..=100.0).contains(&share), "{metric} {interval} ms: {share} %");
        }
    }
}

#[test]
fn a_fixed_poll_burns_its_time_at_every_halt() {
    // Halts of almost a millisecond: the adaptive poll never begins, the fixed one is lost each time.
    let adaptive = run(&alone(MS, host_polls()));
    assert_eq!(scalar(&adaptive, "g", "halt_poll"), 0.0);
    let virt = fixed_poll();
    let fixed = run(&alone(MS, virt.clone()));
    assert!((scalar(&fixed, "g", "halt_polls.lost") - 1_000.0).abs() < 2.0);
    let polled = scalar(&fixed, "g", "halt_poll");
    assert!((polled - 20.0).abs() < 0.1, "200 us of each millisecond: {polled}");
    // Short ones it catches from the first on.
    let caught = run(&alone(150 * US, virt));
    assert_eq!(scalar(&caught, "g", "halt_polls.lost"), 0.0);
}

#[test]
fn the_host_does_not_poll_beside_one_who_sleeps_in_debt() {
    // A thread of the host runs for half a millisecond, and the vCPU, which is much lighter, wakes meanwhile and waits.
    // The thread goes to sleep ahead of it, and is still on the queue when the vCPU halts: that halt is not polled for.
    let lost = |delay_dequeue: bool| {
        let mut p = alone(150 * US, fixed_poll());
        let HostSched::Linux(host) = &mut p.host.sched else { unreachable!("it is Linux") };
        let Fair::Eevdf(fair) = &mut host.fair else { unreachable!("it is EEVDF") };
        fair.delay_dequeue = delay_dequeue;
        p.vms[0].vcpu_policy = vec![Policy::Normal { nice: 19, slice_ns: None }];
        p.host_tasks.push(task("other", cyclictest(2 * MS, 500 * US), Policy::NORMAL, &[0]));
        scalar(&run(&p), "g", "halt_polls.lost")
    };
    let (leaves, stays) = (lost(false), lost(true));
    assert!(stays > leaves + 200.0, "{stays} polls/s lost, {leaves}/s where it leaves at once");
}

#[test]
fn the_host_polls_only_once_it_has_handled_what_came_during_the_exit() {
    // The timer of one task fires soon after that of the other: now and then while the host handles the HLT of a vCPU
    // whose next timer that is. It would be seen at the end of the poll only, 200 us later.
    let mut p = alone(150 * US, fixed_poll());
    p.duration_ns = 10 * S;
    p.vms[0].tasks.push(task("u", cyclictest(997 * US, 0), Policy::Fifo(40), &[]));
    let worst = latency(&run(&p), "g.t").max_ns;
    assert!(worst < 30 * US, "{worst} ns");
}

#[test]
fn the_host_polls_only_once_the_preemption_timer_has_been_changed_for_an_hrtimer() {
    // So it takes time that the guest waits anyway. The timer that fires needs no way back.
    let of = |timer| {
        let mut virt = host_polls();
        virt.timer.source = Some(timer);
        mean(&run(&alone(150 * US, virt)), "g.t")
    };
    let (sw, hv) = (of(GuestTimer::Hrtimer), of(GuestTimer::HvTimer));
    assert!(hv <= sw, "{hv} ns, {sw} ns by an hrtimer");
}

#[test]
fn a_guest_that_polls_by_haltpoll_has_its_host_not_poll() {
    let mut virt = host_polls();
    virt.idle.guest = GuestIdle::Haltpoll;
    let (both, own) =
        (run(&alone(150 * US, virt)), run(&alone(150 * US, guest(GuestIdle::Haltpoll))));
    assert_eq!(scalar_or_zero(&both, "g", "halt_poll"), 0.0);
    assert_eq!(mean(&both, "g.t"), mean(&own, "g.t"));
}

#[test]
fn halts_and_polls_have_their_quantiles() {
    let mut p = alone(150 * US, fixed_poll());
    p.duration_ns = 10 * S;
    // A second task with a longer period: some halts end early.
    p.vms[0].tasks.push(task("u", cyclictest(997 * US, 0), Policy::Fifo(40), &[]));
    let r = run(&p);
    let of = |metric: &str| scalar(&r, "g", metric);
    let (halts, won) = (of("halts"), of("halt_polls.won"));
    assert!((halts - won).abs() < 1.0 && halts > 6_666.0, "{halts} halts, {won} polls won");
    // The time between two timers is mostly one period, less the exits, the guest and the write.
    let p50 = of("halts.p50");
    assert!((120.0..150.0).contains(&p50), "{p50}");
    assert!((of("halt_polls.won.p50") / p50 - 1.0).abs() < 0.06);
    assert!(!r.scalars.contains_key(&("g".into(), "halt_polls.lost.p50".into())), "there is none");
    let time = of("halt_time");
    assert!((90.0..97.0).contains(&time), "all but what exits and the guest take: {time} %");
    assert!(!run(&alone(MS, Virt::default())).scalars.contains_key(&("g".into(), "halts".into())));
}

#[test]
fn the_hosts_poll_catches_short_halts_and_burns_the_cpu() {
    let interval = 150 * US;
    let sleeps = run(&alone(interval, Virt::default()));
    let polls = run(&alone(interval, host_polls()));
    let n = 1e9 / interval as f64;
    assert!((scalar(&polls, "g", "halt_polls.won") - n).abs() < 2.0, "every one");
    assert_eq!(scalar(&polls, "g", "halt_polls.lost"), 0.0);
    // No C-state, no wake-up, no switch, no loading: 2000 + 600 + 1100 + 900.
    let saved = mean(&sleeps, "g.t") - mean(&polls, "g.t");
    assert!((saved - 4_600.0).abs() < 1.0, "{saved}");
    assert!(scalar(&sleeps, "host", "cpu") < 10.0);
    // All of its pCPU, of two.
    assert!((49.9..=50.1).contains(&scalar(&polls, "host", "cpu")));
    let (polling, switches) =
        (scalar(&polls, "host", "polling"), scalar(&polls, "host", "switches"));
    assert!((44.0..50.0).contains(&polling) && switches < 1.0, "{polling} % {switches}");
}

#[test]
fn adaptive_polling_costs_an_idle_guest_almost_nothing() {
    let plain = run(&alone(10 * MS, Virt::default()));
    let polls = run(&alone(10 * MS, host_polls()));
    assert_eq!(scalar(&polls, "g", "halt_polls.won"), 0.0);
    let cost = scalar(&polls, "host", "cpu") - scalar(&plain, "host", "cpu");
    assert!(cost.abs() < 0.01, "{cost} %");
}

#[test]
fn polling_ends_when_somebody_else_wants_the_pcpu() {
    let mut p = alone(150 * US, host_polls());
    p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[0]));
    let r = run(&p);
    let (won, lost) = (scalar(&r, "g", "halt_polls.won"), scalar(&r, "g", "halt_polls.lost"));
    assert!(won < 1.0, "{won} won, {lost} lost");
    assert_eq!(scalar(&r, "host", "polling"), 0.0, "not for a moment");
    // One that comes while it polls ends it at once, on whatever class it is.
    let mut p = alone(150 * US, host_polls());
    let seldom = cycle(Dist::Const(500 * US), Dist::Const(700 * US));
    p.host_tasks.push(task("seldom", seldom, Policy::Idle, &[0]));
    let r = run(&p);
    assert!(scalar(&r, "g", "halt_polls.won") > 500.0, "it polls in between");
    assert!(scalar(&r, "g", "halt_polls.lost") > 500.0);
    let had = scalar(&r, "host.seldom", "throughput");
    assert!(had > 0.35, "the pCPU is its own while it runs: {had}");
}

/// A task on vCPU 0 wakes one on vCPU 1, again and again.
fn pair(virt: Virt) -> Recording {
    let mut p = alone(S, virt);
    let ping = ping(40 * US, Target::Guest { vm: 0, task: 1 });
    p.vms[0].level = tickless(eevdf(2));
    p.vms[0].vcpu_cpus = vec![vec![0], vec![1]];
    p.vms[0].vcpu_policy = vec![Policy::NORMAL; 2];
    p.vms[0].vcpu_means = vec![None; 2];
    p.vms[0].tasks = vec![
        task("ping", ping, Policy::Fifo(50), &[0]),
        task("pong", serve(0), Policy::Fifo(50), &[1]),
    ];
    p.probes.clear();
    probe_all(&mut p);
    run(&p)
}

#[test]
fn a_polling_guest_is_woken_without_an_ipi() {
    let halts = pair(guest(GuestIdle::Hlt));
    assert!(scalar(&halts, "g", "exits.msr_icr") > 49_000.0, "one each way");
    for idle in [GuestIdle::Poll, GuestIdle::Haltpoll] {
        let polls = pair(guest(idle));
        assert!(scalar(&polls, "g", "exits.msr_icr") < 1.0, "{idle:?}");
        assert!(scalar(&polls, "g", "exits.hlt") < 1.0, "{idle:?}");
        // The answer catches the caller on its way to sleep, after it has woken the server.
        let round = mean(&polls, "g.ping");
        assert!(round < mean(&halts, "g.ping") / 2.0, "{round}");
        assert!(round >= 700.0 + 1_600.0, "{round}");
        assert!(scalar(&polls, "g", "guest_polls.won") > 49_000.0);
    }
    let mut polled = guest(GuestIdle::Hlt);
    polled.idle.host_poll = Some(HostPollConfig::KVM);
    let (host, plain) = (mean(&pair(polled), "g.ping"), mean(&halts, "g.ping"));
    let in_guest = mean(&pair(guest(GuestIdle::Haltpoll)), "g.ping");
    assert!(in_guest < host && host < plain, "{in_guest} {host} {plain}");
}

#[test]
fn a_guests_poll_that_finds_nothing_halts() {
    let r = run(&alone(10 * MS, guest(GuestIdle::Haltpoll)));
    // Long blocks: the limit goes to nothing, and it does not poll at all.
    assert_eq!(scalar(&r, "g", "guest_polls.won"), 0.0);
    assert!(scalar(&r, "g", "guest_poll") < 0.1);
    assert!(scalar(&r, "g", "exits.hlt") > 99.0);
    // Waits shorter than what its limit begins with: it polls for them.
    let r = run(&alone(45 * US, guest(GuestIdle::Haltpoll)));
    assert!(scalar(&r, "g", "guest_polls.won") > 20_000.0);
    assert!(scalar(&r, "g", "exits.hlt") < 10.0);
    assert!(scalar(&r, "g", "guest_poll") > 80.0);
    // Waits of 170 us, in vain: the governor counts the halt alone. It polls for 100 us and halts for
    // 70, which is not longer than its limit.
    let r = run(&alone(180 * US, guest(GuestIdle::Haltpoll)));
    assert_eq!(scalar(&r, "g", "guest_polls.won"), 0.0);
    assert!(scalar(&r, "g", "guest_polls.lost") > 5_500.0);
    assert!((54.0..57.0).contains(&scalar(&r, "g", "guest_poll")));
}

#[test]
fn hlt_without_exits_keeps_the_pcpu() {
    let mut virt = Virt::default();
    virt.exits_off.hlt = true;
    virt.timer.source = Some(GuestTimer::HvTimer);
    let r = run(&alone(MS, virt));
    assert_eq!(scalar(&r, "g", "exits.hlt"), 0.0);
    assert!(scalar(&r, "host", "cpu") > 49.9, "the host sees it busy");
    assert!(scalar(&r, "g", "guest_rest") > 98.0, "it is not");
    // C1 is left, then exit, entry, guest, and the next deadline's write.
    let l = latency(&r, "g.t");
    // (The next deadline is the tick's, out of the preemption timer's range.)
    let path = 2_000 + 700 + 350 + 600 + 150 + 1_000 + 700 + 1_000 + (700 + 400 + 600);
    assert!(l.min_ns >= path && l.max_ns < path + 4, "{} to {}, {path}", l.min_ns, l.max_ns);
    // Another thread on the pCPU gets its share of it; with an exiting HLT it would have had all.
    let mut rests = Virt::default();
    rests.exits_off.hlt = true;
    let mut shared = alone(MS, rests);
    shared.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[0]));
    if let Some(host) = shared.host.sched.linux_mut() {
        host.tick_ns = MS;
    }
    let had = scalar(&run(&shared), "host.hog", "throughput");
    assert!((0.4..0.6).contains(&had), "{had}");
}

#[test]
fn mwait_goes_deeper_than_hlt_and_is_woken_without_an_ipi() {
    let mut virt = guest(GuestIdle::Mwait);
    virt.exits_off.mwait = true;
    // Idle for 10 ms it uses C6, whose 60 us the next interrupt pays.
    let r = run(&alone(10 * MS, virt.clone()));
    assert!(latency(&r, "g.t").min_ns > 60_000, "deep");
    let mut hlt = Virt::default();
    hlt.exits_off.hlt = true;
    assert!(latency(&run(&alone(10 * MS, hlt)), "g.t").max_ns < 20_000, "C1 only");
    let r = pair(virt);
    assert!(scalar(&r, "g", "exits.msr_icr") < 1.0, "it watches its flag");
}

#[test]
fn a_call_to_a_vcpu_that_watches_its_flag_needs_no_ipi() {
    let calls = |idle, to, vcpus| {
        let mut p = alone(S, guest(idle));
        p.host.sched = HostSched::Linux(eevdf(vcpus));
        p.vms[0].level = eevdf(vcpus);
        p.vms[0].vcpu_cpus = (0..vcpus).map(|cpu| vec![cpu]).collect();
        p.vms[0].vcpu_policy = vec![Policy::NORMAL; vcpus as usize];
        p.vms[0].vcpu_means = vec![None; vcpus as usize];
        let ipi = Act::Ipi { to, wait: true };
        let program = routine(vec![user(100), Act::Begin, ipi, Act::Sample, Act::Done]);
        p.vms[0].tasks = vec![task("t", program, Policy::NORMAL, &[0])];
        p.probes.clear();
        probe_all(&mut p);
        let r = run(&p);
        let rounds = scalar(&r, "g.t", "rate");
        assert!(rounds > 5_000.0, "all calls are answered: {rounds}");
        scalar_or_zero(&r, "g", "exits.msr_icr") / rounds
    };
    assert_eq!(calls(GuestIdle::Poll, IpiTo::Next, 2), 0.0);
    assert!((calls(GuestIdle::Hlt, IpiTo::Next, 2) - 1.0).abs() < 0.01, "it halts");
    let two = calls(GuestIdle::Poll, IpiTo::Others, 3);
    assert!((two - 2.0).abs() < 0.01, "a multicast is sent: {two}");
}

#[test]
fn a_guest_with_idle_states_stops_its_tick_for_long_idle_times_only() {
    let rests = |mwait: bool| {
        let mut virt = guest(if mwait { GuestIdle::Mwait } else { GuestIdle::Hlt });
        (virt.exits_off.mwait, virt.exits_off.hlt) = (mwait, !mwait);
        virt
    };
    // One vCPU wakes another each 40 us and waits for its answer. Its sleep and the end of that are two writes. Each of
    // three idle times (the sleep, the wait for the answer, the other's) stops the tick and has it back, which is two
    // more for each of the two waits.
    let writes = |mwait: bool| scalar(&pair(rests(mwait)), "g", "exits.msr_timer") * 40e-6;
    assert!((writes(false) - 6.0).abs() < 0.1, "{}", writes(false));
    assert!((writes(true) - 2.0).abs() < 0.1, "the tick goes on: {}", writes(true));
    let long = |mwait: bool| {
        let mut p = alone(20 * MS, rests(mwait));
        p.vms[0].level.tick_ns = 4 * MS;
        p.duration_ns = S;
        scalar(&run(&p), "g", "exits.msr_timer")
    };
    assert!((long(true) - 100.0).abs() < 3.0, "{}", long(true));
    assert!((long(true) - long(false)).abs() < 3.0);
}

#[test]
fn idle_poll_never_leaves_guest_mode() {
    let r = run(&alone(MS, guest(GuestIdle::Poll)));
    assert_eq!(scalar(&r, "g", "exits.hlt"), 0.0);
    assert!(scalar(&r, "host", "cpu") > 49.9);
    assert!(scalar(&r, "g", "guest_poll") > 98.0);
}

#[test]
fn an_idle_vcpus_work_is_not_lost() {
    // Everything at once, under a load that preempts it all the time.
    let mut virt = guest(GuestIdle::Haltpoll);
    virt.idle.host_poll = Some(HostPollConfig::KVM);
    virt.timer.source = Some(GuestTimer::HvTimer);
    virt.timer.arm_sw_on_preempt = true;
    let mut p = alone(200 * US, virt);
    let burst = Phase::Run { time: Dist::Exp { mean_ns: 90 * US, max_ns: MS }, mode: Mode::User };
    let nap = Phase::Sleep { time: Dist::Exp { mean_ns: 200 * US, max_ns: 2 * MS } };
    let load = Program::Cycle { phases: vec![burst, nap] };
    p.host_tasks.push(task("load", load, Policy::Fifo(10), &[0]));
    let r = run(&p);
    let l = latency(&r, "g.t");
    let periods = l.hist.len() + l.missed;
    assert!((4999..=5000).contains(&periods), "every period: {} {}", l.hist.len(), l.missed);
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns);
}

#[test]
fn an_idle_loop_that_keeps_its_pcpu_costs_one_also_without_a_task() {
    let cpu = |virt: Virt| {
        let mut p = plan(eevdf(4), free());
        let rt = task("t", cyclictest(MS, 0), Policy::Fifo(50), &[0]);
        let mut vm = vm("g", eevdf(4), vec![rt]);
        vm.virt = virt;
        p.vms.push(vm);
        scalar(&run(&p), "g", "cpu")
    };
    let mut stays = guest(GuestIdle::Hlt);
    stays.exits_off.hlt = true;
    for virt in [guest(GuestIdle::Poll), stays] {
        let cpu = cpu(virt);
        assert!((cpu - 4.0).abs() < 0.01, "{cpu}");
    }
    assert!(cpu(guest(GuestIdle::Hlt)) < 0.1);
}
