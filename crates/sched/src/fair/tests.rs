//! Known answers: numbers worked out by hand.

use super::FairClass;
use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{
    Balance, CfsTunables, DlConfig, EevdfRelease, EevdfTunables, Fair, GroupConfig, LevelConfig,
    Ns, Policy, RtGuard, Topology,
};
use crate::heap::NONE;
use crate::{CpuId, EntId};
use alloc::vec;
use alloc::vec::Vec;

pub(super) const CPU: CpuId = CpuId(0);
const MS: Ns = 1_000_000;
/// Tunables of a machine with 8 CPUs or more: everything times four.
const BIG: u32 = 8;

fn class(fair: Fair, policies: &[Policy]) -> FairClass {
    class_with_tick(fair, MS, policies)
}

/// A class without entities, on one CPU with these groups.
fn empty(fair: Fair, tick_ns: Ns, groups: Vec<u64>) -> FairClass {
    FairClass::new(&level(fair, tick_ns, 1, groups))
}

pub(crate) fn level(fair: Fair, tick_ns: Ns, cpus: u32, groups: Vec<u64>) -> LevelConfig {
    LevelConfig {
        topology: Topology::flat(cpus),
        tick_ns,
        fair,
        rr_slice_ns: 100 * MS,
        rt_guard: RtGuard::Off,
        dl: DlConfig::default(),
        balance: Balance::default(),
        groups: groups.into_iter().map(GroupConfig::new).collect(),
    }
}

pub(super) fn class_with_tick(fair: Fair, tick_ns: Ns, policies: &[Policy]) -> FairClass {
    let mut c = empty(fair, tick_ns, Vec::new());
    for (i, &p) in policies.iter().enumerate() {
        c.add(EntId(i as u32), p, None);
    }
    c
}

fn cfs(policies: &[Policy]) -> (FairClass, CfsTunables) {
    let t = CfsTunables::for_cpus(BIG);
    (class(Fair::Cfs(t), policies), t)
}

pub(super) fn eevdf(t: EevdfTunables, policies: &[Policy]) -> FairClass {
    class(Fair::Eevdf(t), policies)
}

fn nice(nice: i8) -> Policy {
    Policy::Normal { nice, slice_ns: None }
}

pub(super) fn slice(us: Ns) -> Policy {
    Policy::Normal { nice: 0, slice_ns: Some(us * 1000) }
}

pub(super) fn start(c: &mut FairClass, e: u32) {
    c.enqueue(CPU, EntId(e), Enqueue::Wakeup);
}

fn run(c: &mut FairClass, e: u32) {
    assert_eq!(c.pick(CPU), Some(EntId(e)));
    c.set_next(CPU, EntId(e));
}

/// Puts an entity on the queue with a state of our choosing.
pub(super) fn put(c: &mut FairClass, e: u32, vruntime: i64, deadline: i64) {
    let s = e as usize;
    let se = &mut c.ses[s];
    (se.vruntime, se.deadline, se.on_rq, se.rq) = (vruntime, deadline, true, 0);
    let w = se.weight;
    c.rqs[0].nr += 1;
    c.rqs[0].tasks += 1;
    c.rqs[0].customs += u32::from(c.ses[s].custom);
    c.change_load(0, 0, w);
    c.heap_in(0, s);
}

#[test]
fn cfs_slices_of_a_large_machine() {
    // 24 ms of latency, 3 ms of granularity.
    let (mut c, t) = cfs(&[Policy::NORMAL; 9]);
    start(&mut c, 0);
    assert_eq!(c.slice_cfs(0, 0, &t), 24 * MS);
    start(&mut c, 1);
    assert_eq!(c.slice_cfs(0, 0, &t), 12 * MS);
    for e in 2..8 {
        start(&mut c, e);
    }
    assert_eq!(c.slice_cfs(0, 0, &t), 3 * MS);
    // The ninth stretches the period to 27 ms rather than cut the slices.
    start(&mut c, 8);
    assert_eq!(c.slice_cfs(0, 0, &t), 3 * MS);

    let (mut c, t) = cfs(&[nice(0), nice(5), nice(19)]);
    start(&mut c, 0);
    start(&mut c, 1);
    assert_eq!(c.slice_cfs(0, 0, &t), 24 * MS * 1024 / 1359);
    assert_eq!(c.slice_cfs(0, 1, &t), 24 * MS * 335 / 1359);
    start(&mut c, 2);
    assert_eq!(c.slice_cfs(0, 2, &t), 3 * MS, "never below the granularity");
}

#[test]
fn cfs_tick_ends_a_slice() {
    let (mut c, _) = cfs(&[Policy::NORMAL; 2]);
    start(&mut c, 0);
    start(&mut c, 1);
    run(&mut c, 0);
    for ms in 1..=12 {
        c.charge(CPU, EntId(0), MS);
        assert!(!c.tick(CPU, EntId(0)), "{ms} ms");
    }
    c.charge(CPU, EntId(0), MS);
    assert!(c.tick(CPU, EntId(0)), "13 ms exceed 12");
    assert_eq!(c.pick(CPU), Some(EntId(1)));
}

#[test]
fn cfs_wakeup_needs_a_lead() {
    // The sleeper comes in half a latency (12 ms) left of the minimum; the wake-up granularity is
    // 4 ms.
    let (mut c, _) = cfs(&[Policy::NORMAL, Policy::NORMAL, nice(5)]);
    start(&mut c, 0);
    run(&mut c, 0);
    c.charge(CPU, EntId(0), 100 * MS);
    start(&mut c, 1);
    assert_eq!(c.ses[1].vruntime, 88 * MS as i64);
    assert!(c.check_preempt(CPU, EntId(0), EntId(1)));
    // A light one needs three times the lead: 4 ms * 1024 / 335 = 12.2 ms.
    start(&mut c, 2);
    assert!(!c.check_preempt(CPU, EntId(0), EntId(2)));
    // A short sleep gains nothing: vruntime is never set back.
    c.ses[1].vruntime = 0;
    let (mut c, _) = cfs(&[Policy::NORMAL; 2]);
    start(&mut c, 0);
    start(&mut c, 1);
    run(&mut c, 0);
    c.charge(CPU, EntId(0), 5 * MS);
    c.dequeue(CPU, EntId(0), Dequeue::Sleep);
    start(&mut c, 0);
    assert_eq!(c.ses[0].vruntime, 5 * MS as i64);
}

#[test]
fn cfs_goes_back_to_who_was_preempted_where_many_wait() {
    // Eight entities fit into a latency of 24 ms at 3 ms each.
    for (others, back) in [(5, 2), (6, 0)] {
        let (mut c, _) = cfs(&[Policy::NORMAL; 9]);
        for e in (0..1).chain(2..2 + others) {
            start(&mut c, e);
        }
        run(&mut c, 0);
        // The others are 1 ms to the left of it, one more than 4 ms.
        c.charge(CPU, EntId(0), MS);
        put(&mut c, 1, -4 * MS as i64, 0);
        assert!(c.check_preempt(CPU, EntId(0), EntId(1)));
        assert_eq!(c.pick(CPU), Some(EntId(1)));
        c.put_prev(CPU, EntId(0), Some(EntId(1)));
        c.set_next(CPU, EntId(1));
        c.dequeue(CPU, EntId(1), Dequeue::Sleep);
        assert_eq!(c.pick(CPU), Some(EntId(back)), "{others} others");
        // Its favour ends with its slice.
        run(&mut c, back);
        c.charge(CPU, EntId(back), 13 * MS);
        c.tick(CPU, EntId(back));
        assert_ne!(c.pick(CPU), Some(EntId(back)));
    }
}

#[test]
fn cfs_keeps_another_ones_favour_at_the_end_of_a_slice() {
    let (mut c, _) = cfs(&[Policy::NORMAL; 3]);
    (0..3).for_each(|e| start(&mut c, e));
    run(&mut c, 0);
    c.favour(EntId(2));
    c.charge(CPU, EntId(0), 25 * MS);
    assert!(c.tick(CPU, EntId(0)));
    assert_eq!(c.pick(CPU), Some(EntId(2)), "somebody yielded to it");
}

#[test]
fn a_groups_turn_goes_on_when_one_of_it_sleeps() {
    // Unprotected, so that only the hint keeps it.
    let eevdf = |release| {
        Fair::Eevdf(EevdfTunables { run_to_parity: false, ..EevdfTunables::of(release, 8) })
    };
    for (fair, goes_on) in [
        (Fair::Cfs(CfsTunables::for_cpus(BIG)), true),
        (eevdf(EevdfRelease::V6_12), false),
        (eevdf(EevdfRelease::V6_15), true),
    ] {
        let mut c = empty(fair, MS, vec![1024]);
        for (e, group) in [(0, Some(0)), (1, Some(0)), (2, None), (3, None), (4, None)] {
            c.add(EntId(e), Policy::NORMAL, group);
            start(&mut c, e);
        }
        c.set_next(CPU, EntId(0));
        // All are eligible, and the group has the latest deadline; CFS has it a little to the right of the others.
        let group = c.root_se(0);
        let place = c.ses[3].vruntime;
        assert_eq!([2, 4].map(|e| c.ses[e].vruntime), [place; 2]);
        c.ses[group].vruntime = if c.is_eevdf() { place } else { place + MS as i64 };
        c.ses[group].deadline += 50 * MS as i64;
        c.dequeue(CPU, EntId(0), Dequeue::Sleep);
        assert_eq!(c.pick(CPU) == Some(EntId(1)), goes_on, "{fair:?}");
        if let Fair::Eevdf(t) = fair {
            assert_ne!(c.pick_eevdf(CPU.index(), &t, true), group, "a wake-up does not look at it");
        }
        // Its turn is over with its request.
        c.set_next(CPU, EntId(1));
        c.charge(CPU, EntId(1), 100 * MS);
        c.tick(CPU, EntId(1));
        assert_eq!(c.rqs[CPU.index()].next, NONE);
    }
}

#[test]
fn cfs_sleep_in_another_class_earns_no_more() {
    // Asleep for 100 ms, of which it was real-time for the last 10: it comes back half a latency (12 ms) left of where
    // the minimum was when it left the class, as the minimum has moved on since.
    let (mut c, _) = cfs(&[Policy::NORMAL; 2]);
    start(&mut c, 1);
    run(&mut c, 1);
    start(&mut c, 0);
    c.charge(CPU, EntId(1), MS);
    c.dequeue(CPU, EntId(1), Dequeue::Sleep);
    run(&mut c, 0);
    c.charge(CPU, EntId(0), 90 * MS);
    c.leave_asleep(EntId(1));
    assert_eq!((c.ses[1].vruntime, c.ses[1].relative), (-12 * MS as i64, true));
    c.charge(CPU, EntId(0), 10 * MS);
    // Whether it is still asleep then, or real-time and runnable.
    let mut asleep = c.clone();
    asleep.join_asleep(EntId(1), CPU);
    c.enqueue(CPU, EntId(1), Enqueue::Restore);
    assert_eq!((asleep.ses[1].vruntime, c.ses[1].vruntime), (88 * MS as i64, 88 * MS as i64));
}

#[test]
fn cfs_yield_lets_a_close_second_go_first() {
    let (mut c, _) = cfs(&[Policy::NORMAL; 2]);
    start(&mut c, 0);
    start(&mut c, 1);
    run(&mut c, 0);
    assert_eq!(c.pick(CPU), Some(EntId(1)), "equal: the waiting one goes first");
    c.ses[0].vruntime -= 2 * MS as i64;
    assert_eq!(c.pick(CPU), Some(EntId(0)));
    c.yield_current(CPU, EntId(0));
    assert_eq!(c.pick(CPU), Some(EntId(1)));
    c.ses[0].vruntime -= 3 * MS as i64;
    assert_eq!(c.pick(CPU), Some(EntId(0)), "5 ms behind: too unfair to skip");
}

#[test]
fn cfs_yield_passes_over_the_group_too_unless_it_is_to_a_task_of_that_group() {
    let mut c = empty(Fair::Cfs(CfsTunables::for_cpus(BIG)), MS, vec![1024, 1024]);
    for (e, group) in [(0, 0), (1, 0), (2, 1)] {
        c.add(EntId(e), Policy::NORMAL, Some(group));
        start(&mut c, e);
    }
    run(&mut c, 0);
    // Its group is ahead, so that only a yield gives the CPU away.
    let group = c.root_se(0);
    c.ses[group].vruntime -= MS as i64;
    c.ses[0].vruntime -= MS as i64;
    assert_eq!(c.pick(CPU), Some(EntId(0)));
    let mut given = c.clone();
    c.yield_current(CPU, EntId(0));
    assert_eq!(c.pick(CPU), Some(EntId(2)));
    given.favour(EntId(1));
    given.yield_current(CPU, EntId(0));
    assert_eq!(given.pick(CPU), Some(EntId(1)));
}

#[test]
fn eevdf_looks_at_who_was_yielded_to_since_6_14() {
    for (release, picked) in [(EevdfRelease::V6_12, 0), (EevdfRelease::V6_15, 2)] {
        let mut c = eevdf(EevdfTunables::of(release, 8), &[Policy::NORMAL; 3]);
        (0..3).for_each(|e| put(&mut c, e, 0, 10 + i64::from(e)));
        c.favour(EntId(2));
        assert_eq!(c.pick(CPU), Some(EntId(picked)), "{release:?}");
    }
}

#[test]
fn eevdf_picks_the_earliest_eligible_deadline() {
    let t = EevdfTunables::for_cpus(BIG);
    let mut c = eevdf(t, &[nice(0), nice(0), nice(0), nice(-5)]);
    put(&mut c, 0, 10, 20);
    put(&mut c, 1, 0, 50);
    put(&mut c, 2, 4, 30);
    // Mean 14/3: entity 0 has the earliest deadline but had more than its share already.
    assert_eq!(c.avg_vruntime(0), 4);
    assert!(!c.eligible(0, 10) && c.eligible(0, 4) && c.eligible(0, 0));
    assert_eq!(c.pick(CPU), Some(EntId(2)));
    // A heavy one at 14 lifts the mean to (10 + 0 + 4 + 14*3121/1024) / (3 + 3121/1024) = 9.3...
    put(&mut c, 3, 14, 15);
    assert_eq!(c.avg_vruntime(0), 9);
    assert_eq!(c.pick(CPU), Some(EntId(2)));
    // ... and at 30 to 17.4: now entity 0 is eligible, entity 3 is not.
    c.dequeue(CPU, EntId(3), Dequeue::Exit);
    put(&mut c, 3, 30, 15);
    assert_eq!(c.avg_vruntime(0), 17);
    assert_eq!(c.pick(CPU), Some(EntId(0)));
    c.check();
}

#[test]
fn eevdf_runs_to_parity() {
    // 2.8 ms slices: the current one keeps the CPU until it has used its own.
    let t = EevdfTunables::for_cpus(BIG);
    assert_eq!(t.base_slice_ns, 2_800_000);
    let mut c = eevdf(t, &[Policy::NORMAL; 3]);
    for e in 0..3 {
        start(&mut c, e);
    }
    run(&mut c, 0);
    assert!(!c.charge(CPU, EntId(0), 2 * MS));
    assert!(c.charge(CPU, EntId(0), MS), "3 ms exceed 2.8");
    assert_eq!(c.pick(CPU), Some(EntId(1)));
    c.put_prev(CPU, EntId(0), Some(EntId(1)));
    c.set_next(CPU, EntId(1));
    c.charge(CPU, EntId(1), 3 * MS);
    assert_eq!(c.pick(CPU), Some(EntId(2)));
    c.check();
}

/// Entity 1 runs and is still eligible, because entity 0 ran for 2 ms before it; then entity 2
/// wakes. Does it preempt?
fn wakes_beside(run_to_parity: bool, preempt_short: bool, woken: Policy) -> bool {
    let kernel = EevdfTunables::of(EevdfRelease::V6_15, BIG);
    let t = EevdfTunables { run_to_parity, preempt_short, ..kernel };
    let mut c = eevdf(t, &[Policy::NORMAL, Policy::NORMAL, woken]);
    start(&mut c, 0);
    start(&mut c, 1);
    run(&mut c, 0);
    c.charge(CPU, EntId(0), 2 * MS);
    c.put_prev(CPU, EntId(0), Some(EntId(1)));
    run(&mut c, 1);
    c.charge(CPU, EntId(1), 100_000);
    start(&mut c, 2);
    // It comes in at the mean, 1.05 ms; the deadline of entity 1 is at 2.8 ms.
    assert_eq!(c.ses[2].vruntime, 1_050_000);
    c.check();
    c.check_preempt(CPU, EntId(1), EntId(2))
}

#[test]
fn eevdf_short_slices_preempt() {
    assert!(wakes_beside(true, true, slice(500)), "PREEMPT_SHORT breaks the protection");
    assert!(!wakes_beside(true, false, slice(500)), "RUN_TO_PARITY protects the slice");
    assert!(wakes_beside(false, false, slice(500)), "unprotected, the earlier deadline wins");
    // 1.05 ms + 2 ms is after 2.8 ms.
    assert!(!wakes_beside(false, true, slice(2000)));
    assert!(!wakes_beside(true, true, Policy::NORMAL));
}

#[test]
fn eevdf_protection_ends_with_eligibility() {
    // The current one ran ahead of the mean: run-to-parity does not hold back a shorter slice.
    let t = EevdfTunables { preempt_short: false, ..EevdfTunables::for_cpus(BIG) };
    let mut c = eevdf(t, &[Policy::NORMAL, Policy::NORMAL, slice(500)]);
    start(&mut c, 0);
    start(&mut c, 1);
    run(&mut c, 0);
    c.charge(CPU, EntId(0), 100_000);
    start(&mut c, 2);
    assert!(c.check_preempt(CPU, EntId(0), EntId(2)));
}

#[test]
fn eevdf_keeps_lag_across_sleep() {
    let t = EevdfTunables { delay_dequeue: false, ..EevdfTunables::for_cpus(BIG) };
    for place_lag in [true, false] {
        let mut c = eevdf(EevdfTunables { place_lag, ..t }, &[nice(0), nice(-3), nice(2)]);
        for e in 0..3 {
            start(&mut c, e);
        }
        c.set_next(CPU, EntId(0));
        c.charge(CPU, EntId(0), 2 * MS);
        c.put_prev(CPU, EntId(0), None);
        // Entity 2 waited all the time: it is owed something.
        let lag = c.avg_vruntime(0) - c.ses[2].vruntime;
        assert!(lag > 100_000);
        c.dequeue(CPU, EntId(2), Dequeue::Sleep);
        assert_eq!(c.ses[2].vlag, lag);
        start(&mut c, 2);
        let after = c.avg_vruntime(0) - c.ses[2].vruntime;
        let want = if place_lag { lag } else { 0 };
        assert!((after - want).abs() <= 2, "{after} for {want}");
        c.check();
    }
}

#[test]
fn eevdf_clamps_lag_to_two_slices() {
    let t = EevdfTunables::of(EevdfRelease::V6_6, BIG);
    let mut c = eevdf(t, &[Policy::NORMAL; 2]);
    start(&mut c, 0);
    start(&mut c, 1);
    run(&mut c, 0);
    c.charge(CPU, EntId(0), 100 * MS);
    c.dequeue(CPU, EntId(0), Dequeue::Sleep);
    assert_eq!(c.ses[0].vlag, -2 * 3_000_000);
}

#[test]
fn eevdf_delays_the_dequeue_of_debtors() {
    let mut c = eevdf(EevdfTunables::for_cpus(BIG), &[Policy::NORMAL; 3]);
    for e in 0..3 {
        start(&mut c, e);
    }
    run(&mut c, 0);
    c.charge(CPU, EntId(0), MS);
    assert!(!c.dequeue(CPU, EntId(0), Dequeue::Sleep), "it ran ahead: it stays");
    assert!(c.is_delayed(EntId(0)));
    assert_eq!((c.tasks(CPU), c.rqs[0].nr), (2, 3));
    c.check();
    // Woken before its debt is paid, it competes where it was.
    c.wake_delayed(EntId(0));
    assert!(!c.is_delayed(EntId(0)));
    assert_eq!(c.ses[0].vruntime, MS as i64);
    run(&mut c, 1);
    c.charge(CPU, EntId(1), 2 * MS);
    c.dequeue(CPU, EntId(1), Dequeue::Sleep);
    assert!(c.is_delayed(EntId(1)));
    // The others catch up; at its turn it leaves instead of running, and owes nothing.
    for _ in 0..20 {
        let e = c.pick(CPU).unwrap();
        assert_ne!(e, EntId(1));
        c.set_next(CPU, e);
        c.charge(CPU, e, 3 * MS);
        c.put_prev(CPU, e, None);
    }
    assert!(!c.is_delayed(EntId(1)));
    assert_eq!((c.ses[1].vlag, c.rqs[0].nr), (0, 2));
    c.check();
}

#[test]
fn eevdf_reweight_keeps_what_is_owed() {
    let mut c = eevdf(EevdfTunables::for_cpus(BIG), &[Policy::NORMAL; 3]);
    for e in 0..3 {
        start(&mut c, e);
    }
    run(&mut c, 0);
    c.charge(CPU, EntId(0), 2 * MS);
    let owed = |c: &FairClass, s: usize| {
        (c.avg_vruntime(0) - c.ses[s].vruntime) as i128 * i128::from(c.ses[s].weight)
    };
    for s in [0, 1] {
        for n in [-5, 7, 0] {
            let before = owed(&c, s);
            c.set_policy(EntId(s as u32), nice(n));
            let after = owed(&c, s);
            let off = (after - before).abs() * 1000 / before.abs();
            assert!(off <= 1, "entity {s} to nice {n}: {before} became {after}");
            c.check();
        }
    }
}

#[test]
fn idle_policy_never_preempts_and_always_yields() {
    for fair in [Fair::Cfs(CfsTunables::for_cpus(BIG)), Fair::Eevdf(EevdfTunables::for_cpus(BIG))] {
        let mut c = class(fair, &[Policy::Idle, Policy::NORMAL, Policy::Idle]);
        start(&mut c, 0);
        run(&mut c, 0);
        c.charge(CPU, EntId(0), MS);
        start(&mut c, 2);
        assert!(!c.check_preempt(CPU, EntId(0), EntId(2)));
        start(&mut c, 1);
        assert!(c.check_preempt(CPU, EntId(0), EntId(1)));
    }
}
