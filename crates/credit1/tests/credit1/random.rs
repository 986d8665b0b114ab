//! Random calls: no time is lost, and no CPU idles beside work.

use proptest::prelude::*;
use vcoop_credit1::{BoostPreempts, Burn, Credit1Config, Domain, Patch, Patches, XenVersion};
use vcoop_sched::config::Topology;
use vcoop_sched::{CpuId, CpuSet, EntId, LeaveReason, Waker};

use crate::driver::{HOG, MS, Machine, US, Work, config};

#[derive(Clone, Debug)]
enum Op {
    Run(u64),
    Wake(usize, bool, Option<u32>),
    Leave(u32, LeaveReason),
    SetCpus(usize, u64),
    SetRatelimit(u16, Option<u64>),
}

fn op(ents: usize, cpus: u32) -> impl Strategy<Value = Op> {
    let leave = prop_oneof![
        3 => Just(LeaveReason::Blocked),
        1 => Just(LeaveReason::Preempted),
        1 => Just(LeaveReason::Yield),
        1 => Just(LeaveReason::Exit)
    ];
    prop_oneof![
        4 => (0u64..40 * MS).prop_map(Op::Run),
        8 => (0..ents, any::<bool>(), proptest::option::of(0..ents as u32))
            .prop_map(|(e, io, by)| Op::Wake(e, io, by)),
        4 => (0..cpus, leave).prop_map(|(c, l)| Op::Leave(c, l)),
        1 => (0..ents, any::<u64>()).prop_map(|(e, m)| Op::SetCpus(e, m)),
        1 => (0u16..3, proptest::option::of(0u64..2 * MS))
            .prop_map(|(d, r)| Op::SetRatelimit(d, r)),
    ]
}

fn patch() -> impl Strategy<Value = Patch> {
    prop_oneof![Just(Patch::Off), Just(Patch::AsPosted), Just(Patch::AsMeant)]
}

fn patches() -> impl Strategy<Value = Patches> {
    let boost =
        prop_oneof![Just(BoostPreempts::Off), Just(BoostPreempts::V1), Just(BoostPreempts::V2)];
    let five = (patch(), patch(), patch(), patch(), patch());
    let bools = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let some = (five, boost, bools).prop_map(|((a, b, c, d, e), boost, (f, g, h, i))| Patches {
        dom0_preempts_ratelimit: a,
        migrate_if_blocked: b,
        io_wake_ignores_ratelimit: c,
        keep_dom0_boost: d,
        long_slice_alone: e,
        boost_preempts_ratelimit: boost,
        waker_local: f,
        spread_dom0: g,
        dom0_front: h,
        dom0_always_boosted: i,
        ..Patches::default()
    });
    prop_oneof![Just(Patches::default()), Just(Patches::xpin_like()), some]
}

fn base() -> impl Strategy<Value = Credit1Config> {
    let topology = prop_oneof![
        (1u32..6).prop_map(Topology::flat),
        Just(Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 2 }),
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let times = (prop_oneof![Just(0u64), Just(MS)], prop_oneof![Just(0u64), Just(MS)]);
    (topology, flags, times, patches(), 0u32..150).prop_map(|(topology, f, times, patches, cap)| {
        let mut cfg = config(1, 2);
        cfg.topology = topology;
        cfg.version = if f.0 { XenVersion::V4_2 } else { XenVersion::Current };
        cfg.tickle_one_idle = f.1;
        cfg.smt_power_savings = f.2;
        cfg.burn = if f.3 { Burn::Exact } else { Burn::TickSampled };
        (cfg.ratelimit_ns, cfg.migration_delay_ns) = times;
        cfg.domains[2] = Domain { weight: 512, cap_pct: cap, privileged: false };
        cfg.patches = patches;
        cfg
    })
}

fn set(mask: u64, cpus: u32) -> CpuSet {
    (0..cpus).filter(|c| mask >> c & 1 != 0).collect()
}

fn scenario() -> impl Strategy<Value = (Credit1Config, Vec<(u16, u64)>, Vec<Op>)> {
    let ents = proptest::collection::vec(
        (0u16..3, prop_oneof![3 => Just(0u64), 1 => any::<u64>()]),
        2..12,
    );
    (base(), ents).prop_flat_map(|(cfg, ents)| {
        let ops = proptest::collection::vec(op(ents.len(), cfg.topology.cpus()), 1..150);
        (Just(cfg), Just(ents), ops)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    /// `Credit1::check` after every call (the driver does that). The CPU time of entities equals the busy time of CPUs;
    /// runnable entities are queued, parked or running.
    #[test]
    fn nothing_is_lost((cfg, ents, ops) in scenario()) {
        let cpus = cfg.topology.cpus();
        let mut m = Machine::new(&cfg);
        let ids: Vec<EntId> = ents
            .iter()
            .map(|&(domain, mask)| {
                let list: Vec<u32> = set(mask, cpus).iter().map(|c| c.0).collect();
                m.add(domain, &list, HOG)
            })
            .collect();
        let mut awake = vec![false; ids.len()];
        let mut dead = vec![false; ids.len()];
        for op in ops {
            match op {
                Op::Run(ns) => m.run_for(ns),
                Op::Wake(i, io, by) => {
                    m.wake_by(ids[i], Waker { ent: by.map(EntId), io, ..Waker::default() });
                    awake[i] = !dead[i];
                }
                Op::Leave(c, leave) => {
                    if matches!(leave, LeaveReason::Blocked | LeaveReason::Exit) && let Some(e) = m.current(c) {
                        awake[e.index()] = false;
                        dead[e.index()] = leave == LeaveReason::Exit;
                    }
                    m.schedule(c, leave);
                }
                Op::SetCpus(i, mask) => {
                    m.run_for(0);
                    m.credit.set_cpus(m.now, ids[i], set(mask, cpus));
                    m.serve();
                }
                Op::SetRatelimit(d, r) => m.credit.set_ratelimit(d, r),
            }
            for (i, &e) in ids.iter().enumerate() {
                prop_assert_eq!(m.credit.is_queued(e) || m.credit.is_running(e), awake[i]);
                if m.credit.is_running(e) {
                    prop_assert!(m.credit.cpus(e).contains(m.credit.cpu_of(e)));
                }
            }
        }
        let exec: u64 = ids.iter().map(|&e| m.exec(e)).sum();
        prop_assert_eq!(exec, m.tasks.busy.iter().sum::<u64>());
    }

    /// Without affinity, caps and cache-hot delay no entity waits while a CPU idles: a waking entity finds an idle CPU,
    /// a CPU that becomes idle steals.
    #[test]
    fn work_is_conserved(
        old in any::<bool>(),
        loads in proptest::collection::vec((20u64..3000, 1u64..3000), 1..14)
    ) {
        let mut cfg = config(4, 1);
        cfg.version = if old { XenVersion::V4_2 } else { XenVersion::Current };
        let mut m = Machine::new(&cfg);
        for (run, sleep) in loads {
            m.start(1, &[], Work { run: run * US, sleep: sleep * US });
        }
        for _ in 0..1000 {
            m.run_for(97 * US);
            let idle = (0..4).any(|c| m.current(c).is_none());
            let waiting = (0..4).any(|c| m.credit.nr_running(CpuId(c)) > 1);
            prop_assert!(!idle || !waiting);
        }
    }
}
