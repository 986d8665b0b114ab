//! What a pool promises, on random pools.

use std::collections::BTreeSet;

use proptest::prelude::*;
use vcoop_powervm::{Partition, PoolConfig};
use vcoop_sched::EntId;
use vcoop_sched::config::Topology;

use crate::driver::{HOG, MS, Machine, US, Work};

/// A pool whose entitlements do not exceed its cores: partitions of whole virtual processors.
pub(crate) fn pool() -> impl Strategy<Value = PoolConfig> {
    let topology = (prop_oneof![Just(1u32), Just(1), Just(2), Just(4)], 1u32..5, 1u32..3).prop_map(
        |(threads_per_core, cores_per_llc, llcs)| Topology {
            threads_per_core,
            cores_per_llc,
            llcs,
        },
    );
    let part = (1u32..6, 0u32..=100, prop_oneof![Just(0u32), Just(128), 1u32..=255]);
    (topology, prop::collection::vec(part, 1..5)).prop_map(|(topology, parts)| {
        let mut left = topology.cpus();
        let threads = topology.threads_per_core;
        let mut partitions = Vec::new();
        for (vps, pct, weight) in parts {
            let vcpus = vps * threads;
            let entitled = (left * pct / 100).clamp(1, vcpus);
            if entitled <= left && entitled * 20 >= vcpus {
                partitions.push(Partition { vcpus, entitled, weight });
                left -= entitled;
            }
        }
        if partitions.is_empty() {
            partitions.push(Partition { vcpus: threads, entitled: 1, weight: 128 });
        }
        PoolConfig::new(topology, partitions)
    })
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        1 => Just(HOG),
        1 => (50u64..8_000, 50u64..20_000)
            .prop_map(|(run, sleep)| Work { run: run * US, sleep: sleep * US }),
    ]
}

/// At least one vCPU of each virtual processor has work.
fn busy(cfg: &PoolConfig, works: &[Work]) -> (Machine, Vec<(EntId, Work, usize)>) {
    let mut m = Machine::new(cfg);
    let mut all = Vec::new();
    let mut next = works.iter().cycle();
    for (i, p) in cfg.partitions.iter().enumerate() {
        for _ in 0..p.vcpus {
            let work = *next.next().unwrap_or(&HOG);
            all.push((m.start(i as u16, work), work, i));
        }
    }
    (m, all)
}

/// Entitlements and caps hold in 30 windows, in which vCPUs of the first partition confer to each other by turns. Virtual
/// processors that do so are not owed their entitlement.
fn entitlements_are_kept(
    cfg: &PoolConfig,
    works: &[Work],
    confers: &[(u16, u16)],
) -> Result<(), TestCaseError> {
    let (mut m, all) = busy(cfg, works);
    let first = cfg.partitions[0].vcpus;
    let confers =
        confers.iter().map(|&(e, to)| [e, to].map(|i| all[i as usize % first as usize].0));
    let give: BTreeSet<u32> = confers.clone().map(|[e, _]| m.pool.vp_of(e)).collect();
    let mut next = confers.cycle();
    for _ in 0..30 {
        let before: Vec<u64> = all.iter().map(|&(e, ..)| m.exec(e)).collect();
        for _ in 0..4 {
            next.by_ref().take(4).for_each(|[e, to]| m.confer(e, Some(to)));
            m.run_for(cfg.window_ns / 4);
        }
        for (&(e, work, part), before) in all.iter().zip(before) {
            let share = cfg.share_ns(&cfg.partitions[part]);
            let ran = m.exec(e) - before;
            if work.sleep == 0 && !give.contains(&m.pool.vp_of(e)) {
                prop_assert!(ran >= share, "{} ran {} of {}", e, ran, share);
            }
            if cfg.partitions[part].weight == 0 {
                prop_assert!(ran <= share, "{} is capped at {}, ran {}", e, share, ran);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// A virtual processor that can run during a whole window gets its entitlement in it, whatever others do.
    #[test]
    fn entitlements_are_kept_in_every_window(
        cfg in pool(),
        works in prop::collection::vec(work(), 1..12)
    ) {
        entitlements_are_kept(&cfg, &works, &[])?;
    }

    /// What some confer to each other takes nothing from others.
    #[test]
    fn who_does_not_confer_keeps_its_entitlement(
        cfg in pool(),
        works in prop::collection::vec(work(), 1..12),
        confers in prop::collection::vec(any::<(u16, u16)>(), 1..40)
    ) {
        entitlements_are_kept(&cfg, &works, &confers)?;
    }

    /// No core idles while a virtual processor waits that may run, and times add up. `Pool::check` tests this after
    /// every call from inside; this test does so from outside.
    #[test]
    fn no_core_idles_beside_uncapped_work(
        cfg in pool(),
        works in prop::collection::vec(work(), 1..12)
    ) {
        let (mut m, all) = busy(&cfg, &works);
        let threads = cfg.topology.threads_per_core;
        for _ in 0..200 {
            m.run_for(331 * US);
            let idle = (0..cfg.topology.cpus() / threads)
                .any(|c| (c * threads..(c + 1) * threads).all(|cpu| m.current(cpu).is_none()));
            let waits = |&&(e, ..): &&(EntId, Work, usize)| m.pool.is_queued(e) && !m.pool.is_parked(e);
            prop_assert!(!idle || all.iter().find(waits).is_none());
        }
        let exec: u64 = all.iter().map(|&(e, ..)| m.exec(e)).sum();
        prop_assert_eq!(exec, m.tasks.busy.iter().sum::<u64>());
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..Default::default() })]

    /// Uncapped partitions that always want more share what is left by weight.
    #[test]
    fn spare_time_goes_by_weight(weights in prop::collection::vec(1u32..=255, 2..4)) {
        let vcpus = 8;
        let parts = weights.iter().map(|&weight| Partition { vcpus, entitled: 1, weight }).collect();
        let cfg = PoolConfig::new(Topology::flat(6), parts);
        let (mut m, all) = busy(&cfg, &[HOG]);
        m.run_for(4_000 * MS);
        let spare: Vec<f64> = (0..weights.len())
            .map(|i| {
                let own = all.iter().filter(|a| a.2 == i).map(|a| a.0);
                let ran: u64 = own.map(|e| m.exec(e)).sum();
                (ran - 4_000 * MS) as f64
            })
            .collect();
        // It gets less than its part only if its weight is far above the others and it could not use more.
        let (whole, heavy) = (spare.iter().sum::<f64>(), weights.iter().sum::<u32>());
        prop_assert_eq!(whole as u64, (6 - weights.len() as u64) * 4_000 * MS);
        for (spare, weight) in spare.iter().zip(&weights) {
            let want = whole * f64::from(*weight) / f64::from(heavy);
            prop_assert!((spare - want).abs() <= 0.01 * whole, "{} of {}, not {}", spare, whole, want);
        }
    }
}
