//! CPUs to keep off: who goes, when, and who stays. And CPU hotplug beside it.

use crate::driver::{HOG, MS, Machine, US, Work, eevdf, fairs, nice};
use proptest::prelude::*;
use vcoop_sched::config::Policy;
use vcoop_sched::{Attr, CpuId, CpuSet, EntId, LeaveReason, MaskError};

fn cpus(list: &[u32]) -> CpuSet {
    list.iter().copied().collect()
}

fn on(m: &Machine, cpu: u32) -> u32 {
    m.level.nr_running(CpuId(cpu))
}

/// A hog a CPU of four.
fn hogs() -> (Machine, Vec<EntId>) {
    let mut m = Machine::new(&eevdf(4));
    let all = (0..4).map(|_| m.spawn(nice(0), HOG)).collect();
    (m, all)
}

#[test]
fn the_running_entity_leaves_at_the_next_tick_and_not_before() {
    let (mut m, all) = hogs();
    m.run_until(10 * MS + 500 * US);
    let away = all.iter().find(|&&e| m.level.cpu_of(e) == CpuId(3)).copied().unwrap();
    m.avoid(cpus(&[3]));
    assert!(m.level.is_running(away) && m.level.cpu_of(away) == CpuId(3), "nothing moves at once");
    m.run_until(11 * MS - 1);
    assert_eq!(m.level.cpu_of(away), CpuId(3));
    m.run_until(11 * MS);
    assert_ne!(m.level.cpu_of(away), CpuId(3));
    assert_eq!((on(&m, 3), m.level.pushed_off()), (0, 1));
    // From then on three CPUs share four hogs, and the fourth idles.
    let busy = m.tasks.busy[3];
    m.run_for(200 * MS);
    assert_eq!(m.tasks.busy[3], busy);
}

#[test]
fn who_waits_leaves_one_a_tick() {
    let mut m = Machine::new(&eevdf(2));
    // Six on CPU 1 that may run on either; CPU 0 is busy with a pinned one.
    m.pinned(nice(0), 0, HOG);
    let six: Vec<_> = (0..6).map(|_| m.pinned(nice(0), 1, HOG)).collect();
    m.run_until(5 * MS + 1);
    m.avoid(cpus(&[1]));
    assert_eq!(on(&m, 1), 6);
    m.unpin(&six);
    assert_eq!(on(&m, 1), 6, "a wider affinity moves nobody");
    for left in (0..6).rev() {
        m.run_for(MS);
        assert_eq!(on(&m, 1), left);
    }
    m.run_for(50 * MS);
    assert_eq!((on(&m, 0), on(&m, 1), m.level.pushed_off()), (7, 0, 6));
}

#[test]
fn an_entity_pinned_to_avoided_cpus_stays_and_runs() {
    let mut m = Machine::new(&eevdf(4));
    let pinned = m.pinned(nice(0), 3, HOG);
    let pair = m.start(
        Attr { policy: nice(0), cpus: cpus(&[2, 3]), group: None },
        2,
        Work { run: MS, sleep: MS },
    );
    m.run_until(20 * MS);
    m.avoid(cpus(&[2, 3]));
    let before = m.exec(pinned);
    m.run_for(100 * MS);
    assert_eq!(m.level.cpu_of(pinned), CpuId(3));
    assert!(m.level.cpu_of(pair).0 >= 2);
    assert_eq!(m.exec(pinned) - before, 100 * MS, "CPU 2 is free for the other");
    assert_eq!(m.level.pushed_off(), 0);
}

#[test]
fn no_wake_up_and_no_start_lands_on_an_avoided_cpu() {
    for cfg in fairs(4) {
        let mut m = Machine::new(&cfg);
        m.avoid(cpus(&[1, 3]));
        let all: Vec<_> = (0..5)
            .map(|i| {
                let work = Work { run: (300 + 100 * i) * US, sleep: 400 * US };
                m.start(Attr::anywhere(nice(0)), i as u32 % 4, work)
            })
            .collect();
        let rt = m.spawn(Policy::Fifo(5), Work { run: 100 * US, sleep: 700 * US });
        m.run_for(500 * MS);
        assert_eq!((m.tasks.busy[1], m.tasks.busy[3]), (0, 0));
        assert!(all.iter().chain([&rt]).all(|&e| m.exec(e) > 0));
    }
}

#[test]
fn no_cpu_balances_with_an_avoided_one() {
    let mut m = Machine::new(&eevdf(4));
    // Pinned to 2 and 3: they stay although avoided, and two wait there while 0 and 1 idle.
    let attr = Attr { policy: nice(0), cpus: cpus(&[2, 3]), group: None };
    m.avoid(cpus(&[2, 3]));
    let all: Vec<_> = (0..4).map(|_| m.start(attr.clone(), 2, HOG)).collect();
    m.run_for(10 * MS);
    m.unpin(&all);
    let first = m.now;
    m.run_until(first + MS - 1);
    // Idle CPUs pull at once elsewhere; from here they do not.
    assert_eq!(on(&m, 0) + on(&m, 1), 0);
    m.run_for(4 * MS);
    assert_eq!(on(&m, 2) + on(&m, 3), 0);
    // Nor do idle avoided CPUs take what waits on the others.
    let busy = m.tasks.busy[2] + m.tasks.busy[3];
    m.run_for(200 * MS);
    assert_eq!(m.tasks.busy[2] + m.tasks.busy[3], busy);
    assert_eq!(on(&m, 0) + on(&m, 1), 4);
}

#[test]
fn a_cleared_mask_spreads_the_load_again() {
    let (mut m, all) = hogs();
    m.run_for(5 * MS);
    m.avoid(cpus(&[1, 2, 3]));
    m.run_for(10 * MS);
    assert_eq!(on(&m, 0), 4);
    m.avoid(CpuSet::EMPTY);
    let before: Vec<_> = all.iter().map(|&e| m.exec(e)).collect();
    m.run_for(200 * MS);
    for (&e, before) in all.iter().zip(before) {
        assert!(m.exec(e) - before > 180 * MS, "{e} has a CPU of its own again");
    }
}

#[test]
fn rt_goes_too_and_nobody_pushes_or_pulls_it_back() {
    let mut m = Machine::new(&eevdf(3));
    let high = m.start(Attr::anywhere(Policy::Fifo(30)), 2, HOG);
    m.run_until(3 * MS + 1);
    assert_eq!(m.level.cpu_of(high), CpuId(2));
    m.avoid(cpus(&[2]));
    m.run_for(MS);
    assert_ne!(m.level.cpu_of(high), CpuId(2));
    // Two more: the least urgent waits rather than being pushed to the free CPU.
    let mid = m.spawn(Policy::Fifo(20), HOG);
    let low = m.spawn(Policy::Fifo(10), HOG);
    m.run_for(20 * MS);
    assert!(m.level.is_running(high) && m.level.is_running(mid) && m.level.is_queued(low));
    assert_eq!(m.tasks.busy[2], 4 * MS);
    // A CPU that gets less urgent pulls; the avoided one, kicked for nothing, does not.
    m.schedule(2, LeaveReason::Preempted);
    assert!(m.level.is_queued(low));
    m.schedule(m.level.cpu_of(mid).0, LeaveReason::Blocked);
    assert!(m.level.is_running(low));
}

#[test]
fn deadline_entities_ignore_the_mask() {
    let mut m = Machine::new(&eevdf(2));
    let dl = Policy::Deadline { runtime_ns: 4 * MS, deadline_ns: 10 * MS, period_ns: 10 * MS };
    let work = Work { run: 3 * MS, sleep: 7 * MS };
    let a = m.start(Attr::anywhere(dl), 1, work);
    m.run_until(MS);
    m.avoid(cpus(&[1]));
    m.run_until(100 * MS);
    assert_eq!((m.level.cpu_of(a), m.exec(a)), (CpuId(1), 30 * MS));
    assert_eq!(m.level.pushed_off(), 0);
}

#[test]
fn a_lone_entity_leaves_an_avoided_full_nohz_cpu() {
    let mut m = Machine::new(&eevdf(2));
    m.level.set_nohz_full(&cpus(&[1]));
    let lone = m.start(Attr::anywhere(nice(0)), 1, HOG);
    m.run_until(10 * MS + 1);
    assert!(!m.level.tick_needed(CpuId(1)));
    m.avoid(cpus(&[1]));
    m.run_for(1000 * MS);
    assert_eq!(m.level.cpu_of(lone), CpuId(0));
}

#[test]
fn a_full_nohz_cpu_has_ticks_where_they_can_change_who_runs() {
    let ticks = |policies: &[Policy]| {
        let mut m = Machine::new(&eevdf(2));
        m.level.set_nohz_full(&cpus(&[1]));
        for policy in policies {
            m.pinned(*policy, 1, HOG);
        }
        m.run_until(MS);
        m.level.tick_needed(CpuId(1))
    };
    assert!(!ticks(&[nice(0)]));
    assert!(ticks(&[nice(0), nice(0)]));
    assert!(!ticks(&[Policy::Fifo(1), Policy::Fifo(1), nice(0)]));
    assert!(!ticks(&[Policy::Rr(1), nice(0)]));
    assert!(ticks(&[Policy::Rr(1), Policy::Rr(1)]));
}

#[test]
fn a_mask_without_a_cpu_is_refused() {
    let (mut m, _) = hogs();
    m.avoid(cpus(&[2, 3]));
    assert_eq!(m.level.set_avoided(CpuSet::first_n(4)), Err(MaskError));
    assert_eq!(m.level.set_avoided(CpuSet::first_n(900)), Err(MaskError));
    assert_eq!(*m.level.avoided(), cpus(&[2, 3]));
    assert_eq!(m.level.set_avoided(CpuSet::range(4, 900)), Ok(()), "none of these is here");
    assert!(m.level.avoided().is_empty());
    assert_eq!(m.level.set_offline(m.now, CpuSet::first_n(4)), Err(MaskError));
    // The last CPU that was not avoided goes offline: there is nothing left to prefer.
    m.avoid(cpus(&[2, 3]));
    m.offline(cpus(&[0, 1]));
    assert!(m.level.avoided().is_empty());
    assert_eq!((on(&m, 2), on(&m, 3)), (2, 2));
}

#[test]
fn an_offline_cpu_is_left_at_once_and_affinity_gives_way() {
    let mut m = Machine::new(&eevdf(4));
    let all: Vec<_> = (0..3).map(|_| m.pinned(nice(0), 3, HOG)).collect();
    let rt = m.pinned(Policy::Fifo(3), 3, Work { run: MS, sleep: MS });
    let asleep = m.pinned(nice(0), 3, Work { run: MS, sleep: 10_000 * MS });
    m.run_until(30 * MS + 500 * US);
    m.offline(cpus(&[3]));
    assert_eq!(on(&m, 3), 0);
    let busy = m.tasks.busy[3];
    m.wake(asleep, None);
    m.run_for(100 * MS);
    assert_eq!(m.tasks.busy[3], busy);
    for &e in all.iter().chain([&rt, &asleep]) {
        assert_ne!(m.level.cpu_of(e), CpuId(3));
    }
    // Affinity counts again once a CPU of it is back.
    m.offline(CpuSet::EMPTY);
    assert!(all.iter().all(|&e| m.level.cpu_of(e) == CpuId(3)));
    m.run_for(100 * MS);
    assert_eq!(m.level.cpu_of(rt), CpuId(3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// Whatever ran there, an avoided CPU is left within as many ticks as it had entities that may
    /// go, and stays empty but for those that may not.
    #[test]
    fn avoided_cpus_drain(
        fair in 0..6usize,
        loads in proptest::collection::vec((0u8..4, 0u64..3000, any::<u8>()), 1..16),
        mask in 1u64..15,
    ) {
        let mut m = Machine::new(&fairs(4).nth(fair).expect("six"));
        let avoided: CpuSet = (0..4).filter(|c| mask >> c & 1 != 0).collect();
        let all: Vec<_> = loads.iter().map(|&(kind, run, own)| {
            let policy = if kind == 0 { Policy::Fifo(1 + own % 3) } else { nice((own % 5) as i8) };
            let set = if kind == 1 { (0..4).filter(|c| own >> c & 1 != 0).collect() } else { CpuSet::EMPTY };
            let work = if run < 500 { HOG } else { Work { run: run * US, sleep: (500 + run / 2) * US } };
            m.start(Attr { policy, cpus: set, group: None }, u32::from(own % 4), work)
        }).collect();
        m.run_for(20 * MS);
        m.avoid(avoided);
        // RT hogs keep others from their turn: only running entities are pushed, and the hogs run to the end.
        m.run_for((all.len() as u64 + 2) * MS);
        for &e in &all {
            let own = *m.level.cpus(e);
            let may_go = !own.without(&avoided).is_empty();
            let waits = m.level.is_queued(e) || m.level.is_running(e);
            if may_go && waits {
                let cpu = m.level.cpu_of(e);
                let behind_pinned = all.iter().any(|&p| {
                    p != e && m.level.cpu_of(p) == cpu && m.level.cpus(p).without(&avoided).is_empty()
                });
                prop_assert!(!avoided.contains(cpu) || behind_pinned, "{} waits on {}", e, cpu);
            }
        }
    }
}
