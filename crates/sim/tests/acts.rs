//! Other acts of tasks than those on locks: known answers.

use crate::support::*;
use vcoop_model::plan::{Act, Dist, QueueRoom};
use vcoop_model::recording::Part;
use vcoop_sched::config::Policy;

#[test]
fn a_full_box_holds_its_poster_up_until_enough_is_free() {
    for (room, wakes) in [(QueueRoom::Socket(80), 1.0 / 60.0), (QueueRoom::Pipe(320), 1.0 / 20.0)] {
        let post = routine(vec![user(10), Act::Post { peer: 1, room }, Act::Done]);
        let take = routine(vec![Act::Receive { sample: false }, user(100), Act::Done]);
        let mut p = machine(2, &[0, 1], vec![post, take]);
        p.vms[0].tasks[0].label = "t".into();
        let r = run(&p);
        // The receiver never waits, and the poster is as fast as the receiver.
        let rate = scalar(&r, "guest.t", "rate");
        assert!((rate - 20_000.0).abs() < 400.0, "{rate}: some lie in the box");
        assert!((scalar(&r, "guest.t", "throughput") - 1.1).abs() < 0.01);
        // It sleeps once for what is freed at once.
        let sleeps = scalar(&r, "guest", "exits.hlt") / (rate / 2.0);
        assert!((sleeps - wakes).abs() < 0.1 * wakes, "{room:?}: {sleeps} sleeps a message");
    }
}

#[test]
fn a_busy_wait_keeps_the_vcpu_and_costs_no_wake_up() {
    let busy = |busy| {
        let timer = Act::Timer { period_ns: 100 * US, busy, interrupt: true };
        let mut p = machine(1, &[0], vec![routine(vec![timer, Act::Done])]);
        p.host.costs = dear();
        run(&p)
    };
    let (halts, spins) = (busy(false), busy(true));
    for r in [&halts, &spins] {
        let l = latency(r, "guest.t0");
        assert!((9_990..10_001).contains(&l.hist.len()), "{} of 10000", l.hist.len());
    }
    assert!(scalar(&halts, "guest", "exits.hlt") > 9_000.0);
    assert!(scalar(&spins, "guest", "exits.hlt") < 1.0);
    assert!(scalar(&spins, "guest", "cpu") > 0.99);
    assert!(mean(&spins, "guest.t0") < 0.7 * mean(&halts, "guest.t0"));
}

#[test]
fn an_interrupt_is_there_before_its_task() {
    for busy in [false, true] {
        let timer = Act::Timer { period_ns: 100 * US, busy, interrupt: true };
        let mut p = machine(1, &[0], vec![routine(vec![timer, Act::Done])]);
        p.host.costs = dear();
        // A second timer of the guest's, which is armed in the handler of the first one.
        p.vms[0].level.tick_ns = 4 * MS;
        let r = run(&p);
        let (interrupt, task) = (latency(&r, "guest.t0.interrupt"), latency(&r, "guest.t0"));
        assert_eq!(interrupt.hist.len(), task.hist.len());
        assert_eq!(interrupt.parts_sum.iter().sum::<u128>(), interrupt.sum_ns);
        assert_eq!(interrupt.parts_sum[Part::GuestSwitch as usize], 0);
        // With the smallest of both nothing else interferes. After the entry of the handler, of 1000 ns:
        // who slept is woken in 700 and switched to in 1000; and there is the exit that arms the tick.
        let exit = 700 + 400 + 600;
        let then = if busy { 1_000 } else { 1_000 + 700 + 1_000 };
        assert_eq!(task.min_ns - interrupt.min_ns, then + exit, "busy: {busy}");
        assert!(interrupt.min_ns >= 700, "the host's handler: {}", interrupt.min_ns);
    }
}

#[test]
fn another_machine_answers_after_its_delay() {
    let delay = Dist::Const(200 * US);
    let call = Act::Remote { delay, irq_vcpu: 0 };
    let acts = vec![user(10), call, Act::Sample, Act::Done];
    let mut p = machine(1, &[0], vec![routine(acts.clone())]);
    let r = run(&p);
    let l = latency(&r, "guest.t0");
    assert_eq!((l.min_ns, l.max_ns), (200 * US, 200 * US));
    assert_eq!(l.parts_sum[Part::Service as usize], l.sum_ns);
    assert!((scalar(&r, "guest.t", "rate") - 1e6 / 210.0).abs() < 2.0);
    p.host_tasks = vec![task("c", routine(acts), Policy::NORMAL, &[])];
    p.vms.clear();
    probe_all(&mut p);
    let r = run(&p);
    assert_eq!(latency(&r, "host.c").max_ns, 200 * US);
}

#[test]
fn reads_of_cstate_counters_exit_unless_they_need_not() {
    let look = Act::ReadCstates { counters: 4 };
    let acts = vec![nap(1_000), Act::Begin, look, Act::Sample, Act::Done];
    let run_with = |off: bool| {
        let mut p = machine(1, &[0], vec![routine(acts.clone())]);
        p.host.costs = dear();
        p.host.costs.cstates.clear();
        p.vms[0].virt.exits_off.cstate = off;
        run(&p)
    };
    let (on, off) = (run_with(false), run_with(true));
    let rounds = scalar(&on, "guest.t", "rate");
    assert!((scalar(&on, "guest", "exits.msr_cstate") / rounds - 4.0).abs() < 0.01);
    let round_trip = 700 + 450 + 600;
    assert_eq!(latency(&on, "guest.t0").min_ns, 4 * round_trip);
    assert_eq!(latency(&off, "guest.t0").max_ns, 0);
    assert!(!off.scalars.contains_key(&("guest".into(), "exits.msr_cstate".into())));
}
