//! Tests of internal state.

use super::Level;
use crate::config::{
    Bandwidth, CfsTunables, EevdfRelease, EevdfTunables, Fair, GroupConfig, LevelConfig, Policy,
    RtGuard, Topology,
};
use crate::fair::tests::level;
use crate::{Attr, ConfigError, CpuId, CpuSet, EntId, EntStats, LeaveReason, Note};
use alloc::vec;
use alloc::vec::Vec;
use core::mem::{offset_of, size_of};
use proptest::prelude::*;

fn config(cpus: u32, eevdf: bool) -> LevelConfig {
    let fair = match eevdf {
        true => Fair::Eevdf(EevdfTunables::for_cpus(cpus)),
        false => Fair::Cfs(CfsTunables::for_cpus(cpus)),
    };
    level(fair, 1_000_000, cpus, vec![1024])
}

fn serve(level: &mut Level, now: u64) {
    while let Some(note) = level.pop_note() {
        if let Note::Kick { cpu, .. } = note {
            level.schedule(now, cpu, LeaveReason::Preempted);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn min_vruntime_never_goes_back(
        eevdf in any::<bool>(),
        ops in proptest::collection::vec((0u8..6, 0u32..8, 1u64..4_000_000), 1..200)
    ) {
        let mut level = Level::new(&config(2, eevdf)).unwrap();
        let ids: Vec<EntId> = (0..8)
            .map(|i| {
                let policy = Policy::Normal { nice: i as i8 * 4 - 16, slice_ns: None };
                let group = (i % 3 == 0).then_some(0);
                level.add(Attr { policy, cpus: CpuSet::EMPTY, group }, CpuId(i % 2))
            })
            .collect();
        let mut now = 0;
        let mut minima = level.fair.minima();
        for (op, i, ns) in ops {
            now += ns;
            let cpu = CpuId(i % 2);
            let e = ids[i as usize];
            match op {
                0 | 1 => {
                    level.wake(now, e, None);
                }
                2 => {
                    level.schedule(now, cpu, LeaveReason::Blocked);
                }
                3 => level.tick(now, cpu),
                4 => level.set_cpus(now, e, CpuSet::one(cpu)),
                _ => level.set_policy(now, e, Policy::Normal { nice: i as i8, slice_ns: None }),
            }
            serve(&mut level, now);
            level.check();
            let after = level.fair.minima();
            prop_assert!(minima.iter().zip(&after).all(|(a, b)| a <= b));
            minima = after;
        }
    }
}

#[test]
fn a_woken_entity_goes_to_an_idle_core() {
    let mut cfg = config(8, true);
    cfg.topology = Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 2 };
    let mut level = Level::new(&cfg).unwrap();
    let mut wake = |home| {
        let e = level.add(Attr::anywhere(Policy::NORMAL), CpuId(home));
        let cpu = level.wake(0, e, None).unwrap();
        serve(&mut level, 0);
        cpu.0
    };
    let first = [wake(0), wake(0), wake(0), wake(0)];
    let mut cores: Vec<u32> = first.iter().map(|c| c / 2).collect();
    cores.sort_unstable();
    assert_eq!(cores, [0, 1, 2, 3], "one a core before any core is shared: {first:?}");
    let mut rest = [wake(0), wake(0), wake(0), wake(0)];
    rest.sort_unstable();
    let mut all: Vec<u32> = first.iter().chain(&rest).copied().collect();
    all.sort_unstable();
    assert_eq!(all, (0..8).collect::<Vec<_>>());
}

#[test]
fn a_wakee_stays_near_its_cache() {
    let mut cfg = config(8, true);
    cfg.topology = Topology { threads_per_core: 1, cores_per_llc: 4, llcs: 2 };
    let mut level = Level::new(&cfg).unwrap();
    let sleeper = level.add(Attr::anywhere(Policy::NORMAL), CpuId(5));
    assert_eq!(level.wake(0, sleeper, None), Some(CpuId(5)));
    serve(&mut level, 0);
    level.schedule(1_000_000, CpuId(5), LeaveReason::Blocked);
    let other =
        level.add(Attr { cpus: CpuSet::one(CpuId(5)), ..Attr::anywhere(Policy::NORMAL) }, CpuId(5));
    level.wake(1_000_000, other, None);
    serve(&mut level, 1_000_000);
    // Its CPU is taken: the next idle one of the same LLC, not one of the other.
    assert_eq!(level.wake(2_000_000, sleeper, None), Some(CpuId(6)));
    // An idle CPU with something queued does not count as idle.
    let third =
        level.add(Attr { cpus: CpuSet::range(6, 8), ..Attr::anywhere(Policy::NORMAL) }, CpuId(6));
    assert_eq!(level.wake(2_000_000, third, None), Some(CpuId(7)));
}

#[test]
fn impossible_configs_are_refused() {
    let refused = |change: fn(&mut LevelConfig)| {
        let mut cfg = config(1, true);
        change(&mut cfg);
        Level::new(&cfg).unwrap_err()
    };
    assert_eq!(refused(|c| c.topology.llcs = 0), ConfigError::CpuCount { cpus: 0 });
    assert_eq!(refused(|c| c.topology.llcs = 1025), ConfigError::CpuCount { cpus: 1025 });
    assert_eq!(refused(|c| c.tick_ns = 0), ConfigError::Zero { field: "tick_ns" });
    assert_eq!(
        refused(|c| c.rt_guard = RtGuard::Throttle(Bandwidth { runtime_ns: 2, period_ns: 1 })),
        ConfigError::RuntimeOverPeriod { runtime_ns: 2, period_ns: 1 }
    );
    assert_eq!(
        refused(|c| c.groups = [9, 1].map(GroupConfig::new).to_vec()),
        ConfigError::GroupWeight { group: 1, weight: 1 }
    );
    assert_eq!(
        refused(|c| {
            let inside = GroupConfig { parent: Some(1), ..GroupConfig::new(1024) };
            c.groups = vec![GroupConfig::new(1024), inside];
        }),
        ConfigError::GroupParent { group: 1 }
    );
}

#[test]
fn an_entity_does_not_grow_with_its_policies() {
    // Every switch fetches an entity or two: what it needs is in their first cache line, and what a policy has for
    // parameters is not among it.
    assert_eq!(size_of::<super::Ent>(), 128);
    assert!(offset_of!(super::Ent, stats) + offset_of!(EntStats, preempted) <= 64);
}

#[test]
fn a_level_of_one_cpu_places_without_sets() {
    let mut level = Level::new(&config(1, true)).unwrap();
    let add = |level: &mut Level| level.add(Attr::anywhere(Policy::NORMAL), CpuId(0));
    let (a, b) = (add(&mut level), add(&mut level));
    assert_eq!(level.wake(0, a, None), Some(CpuId(0)));
    level.check();
    assert_eq!(level.schedule(0, CpuId(0), LeaveReason::Preempted), Some(a));
    assert_eq!(level.wake(10, b, Some(CpuId(0))), Some(CpuId(0)));
    assert_eq!(level.schedule(1000, CpuId(0), LeaveReason::Blocked), Some(b));
    level.check();
    assert_eq!(level.schedule(2000, CpuId(0), LeaveReason::Blocked), None, "nothing to pull from");
    level.check();
}

/// A level of 7.3 with one CPU, an entity that runs from 0 on, and one that waits from 100 us on. Both are new, so the
/// first request ends at 350 us, half of one.
fn beside_one_that_waits(group: Option<u16>) -> (Level, [EntId; 2]) {
    let fair = Fair::Eevdf(EevdfTunables::of(EevdfRelease::V7_3, 1));
    let mut level = Level::new(&LevelConfig { fair, ..config(1, true) }).unwrap();
    let both = [0, 100_000].map(|now| {
        let e = level.add(Attr { group, ..Attr::anywhere(Policy::NORMAL) }, CpuId(0));
        level.wake(now, e, None);
        serve(&mut level, now);
        e
    });
    assert!(level.is_running(both[0]));
    assert_eq!(level.deadline(CpuId(0)), Some(350_000));
    (level, both)
}

/// The time of a deadline has come on the only CPU.
fn deadline(level: &mut Level, now: u64) {
    level.on_deadline(now, CpuId(0));
    serve(level, now);
}

#[test]
fn the_timer_of_a_request_renews_the_weight_in_a_group() {
    let (mut level, [runs, waits]) = beside_one_that_waits(Some(0));
    let weights = |level: &Level| [runs, waits].map(|e| level.fair.competing_weight(e));
    assert_eq!(weights(&level), [1024, 512]);
    level.on_deadline(350_000, CpuId(0));
    assert_eq!(weights(&level), [512, 512]);
    serve(&mut level, 350_000);
    assert!(level.is_running(waits));
    level.check();
}

#[test]
fn the_timer_of_a_request_outlives_the_one_that_it_was_set_for() {
    let (mut level, [stays, sleeps]) = beside_one_that_waits(None);
    deadline(&mut level, 350_000);
    assert!(level.is_running(sleeps));
    assert_eq!(level.deadline(CpuId(0)), Some(700_000));
    level.schedule(400_000, CpuId(0), LeaveReason::Blocked);
    assert!(level.is_running(stays));
    assert_eq!(level.deadline(CpuId(0)), Some(700_000), "alone, it starts no other");
    deadline(&mut level, 700_000);
    assert_eq!(level.deadline(CpuId(0)), None);
    level.check();
}
