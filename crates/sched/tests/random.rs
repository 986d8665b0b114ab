//! Random lives: whatever happens, nothing gets lost and the invariants hold.

use crate::driver::{HOG, MS, Machine, US, Work, cfs, eevdf, fairs, nice};
use proptest::prelude::*;
use vcoop_sched::config::{
    Bandwidth, DlConfig, Fair, GroupConfig, LevelConfig, Policy, Quota, RtGuard, Topology,
};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId, LeaveReason};

#[derive(Clone, Debug)]
enum Op {
    Run(u64),
    Wake(usize, Option<u32>),
    Leave(u32, LeaveReason),
    SetPolicy(usize, Policy),
    SetCpus(usize, u64),
    SetWeight(u16, u64),
    Steal(u32, u64),
    Avoid(u64),
    Offline(u64),
    Cookie(usize, u32),
    /// Whether interrupts about wake lists are late.
    Late(bool),
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        4 => (-20i8..=19).prop_map(nice),
        2 => (-20i8..=19, 100u64..100_000).prop_map(|(nice, us)| Policy::Normal {
            nice,
            slice_ns: Some(us * US)
        }),
        1 => Just(Policy::Idle),
        1 => (1u8..=99).prop_map(Policy::Fifo),
        1 => (1u8..=4).prop_map(Policy::Rr),
        1 => (1u64..5_000, 0u64..2, 0u64..5_000).prop_map(|(run, constrained, more)| {
            let deadline_ns = (run + more).max(100) * US;
            let period_ns = deadline_ns * (1 + constrained);
            Policy::Deadline { runtime_ns: run * US, deadline_ns, period_ns }
        }),
    ]
}

fn op(ents: usize, cpus: u32) -> impl Strategy<Value = Op> {
    let leave = prop_oneof![
        6 => Just(LeaveReason::Blocked),
        6 => Just(LeaveReason::Preempted),
        6 => Just(LeaveReason::Yield),
        1 => Just(LeaveReason::Exit),
    ];
    prop_oneof![
        8 => (1u64..20_000).prop_map(|us| Op::Run(us * US)),
        6 => (0..ents, proptest::option::of(0..cpus)).prop_map(|(e, w)| Op::Wake(e, w)),
        6 => (0..cpus, leave).prop_map(|(c, l)| Op::Leave(c, l)),
        3 => (0..ents, policy()).prop_map(|(e, p)| Op::SetPolicy(e, p)),
        2 => (0..ents, any::<u64>()).prop_map(|(e, m)| Op::SetCpus(e, m)),
        1 => (0..GROUPS, 2u64..10_000).prop_map(|(g, w)| Op::SetWeight(g, w)),
        1 => (0..cpus, 1u64..500).prop_map(|(c, us)| Op::Steal(c, us * US)),
        2 => any::<u64>().prop_map(Op::Avoid),
        1 => any::<u64>().prop_map(Op::Offline),
        1 => any::<bool>().prop_map(Op::Late),
        2 => (0..ents, 0u32..4).prop_map(|(e, cookie)| Op::Cookie(e, cookie)),
    ]
}

/// Which of [`fairs`].
const FAIR: std::ops::Range<usize> = 0..6;

fn fair_of(which: usize, cpus: u32) -> LevelConfig {
    fairs(cpus).nth(which).expect("as many as `FAIR` says")
}

fn base() -> impl Strategy<Value = LevelConfig> {
    let topology = prop_oneof![
        Just(Topology::flat(1)),
        Just(Topology::flat(3)),
        Just(Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 2 }),
    ];
    let guard = prop_oneof![
        Just(RtGuard::Off),
        Just(RtGuard::Throttle(Bandwidth { runtime_ns: 9 * MS, period_ns: 10 * MS })),
        Just(RtGuard::FairServer(Bandwidth { runtime_ns: MS, period_ns: 10 * MS })),
        Just(RtGuard::Both(Bandwidth { runtime_ns: 9 * MS, period_ns: 10 * MS })),
    ];
    let dl = (any::<bool>(), any::<bool>())
        .prop_map(|(admission, hrtick)| DlConfig { admission, hrtick });
    let quota = (MS..20 * MS, MS..10 * MS, 0..MS, 0..9 * MS);
    let quota = quota.prop_map(|(runtime_ns, period_ns, burst_ns, phase_ns)| Quota {
        runtime_ns,
        period_ns,
        burst_ns,
        phase_ns,
    });
    let group = (proptest::option::of(quota), proptest::option::of(0u16..GROUPS), 2u64..3000);
    let groups = proptest::collection::vec(group, usize::from(GROUPS));
    let all = (FAIR, topology, guard, any::<bool>(), dl, groups);
    all.prop_map(|(fair, topology, guard, bal, dl, groups)| {
        let mut cfg = fair_of(fair, topology.cpus());
        cfg.topology = topology;
        cfg.rt_guard = guard;
        let groups = (0..).zip(groups).map(|(i, (quota, parent, weight))| GroupConfig {
            weight,
            quota,
            parent: parent.filter(|parent| *parent < i),
        });
        cfg.groups = groups.collect();
        cfg.balance.newidle = bal;
        cfg.balance.periodic = bal;
        cfg.dl = dl;
        cfg
    })
}

/// Groups of a level, some in others.
const GROUPS: u16 = 4;

fn set(mask: u64, cpus: u32) -> CpuSet {
    (0..cpus).filter(|c| mask >> c & 1 != 0).collect()
}

/// Policy, affinity, group.
type Spec = (Policy, u64, Option<u16>);

/// Entities in the order of their ids.
fn entities() -> impl Strategy<Value = Vec<Spec>> {
    let one = (policy(), prop_oneof![3 => Just(0u64), 1 => any::<u64>()]);
    let group = prop_oneof![2 => Just(None), 1 => (0..GROUPS).prop_map(Some)];
    proptest::collection::vec((one, group).prop_map(|((p, m), g)| (p, m, g)), 2..12)
}

fn scenario() -> impl Strategy<Value = (LevelConfig, Vec<Spec>, Vec<Op>)> {
    (base(), entities()).prop_flat_map(|(cfg, ents)| {
        let ops = proptest::collection::vec(op(ents.len(), cfg.topology.cpus()), 1..150);
        (Just(cfg), Just(ents), ops)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// `Level::check` after every call (the driver does that), affinity at every switch, and the
    /// books: what entities executed is what CPUs were busy, less what was stolen.
    #[test]
    fn nothing_is_lost((cfg, ents, ops) in scenario()) {
        let cpus = cfg.topology.cpus();
        let mut m = Machine::new(&cfg);
        let mut stolen = 0;
        let ids: Vec<EntId> = ents
            .iter()
            .map(|&(policy, mask, group)| {
                let attr = Attr { policy: Policy::NORMAL, cpus: set(mask, cpus), group };
                let e = m.add(attr, 0, HOG);
                // A reservation may be refused; then it stays what it was.
                m.set_policy(e, policy);
                e
            })
            .collect();
        let mut cookies = vec![0; ids.len()];
        let mut awake = vec![false; ids.len()];
        let mut dead = vec![false; ids.len()];
        for op in ops {
            match op {
                Op::Run(ns) => m.run_for(ns),
                Op::Wake(i, waker) => {
                    m.wake(ids[i], waker);
                    awake[i] = !dead[i];
                }
                Op::Leave(c, leave) => {
                    if matches!(leave, LeaveReason::Blocked | LeaveReason::Exit) && let Some(e) = m.current(c) {
                        awake[e.0 as usize] = false;
                        dead[e.0 as usize] = leave == LeaveReason::Exit;
                    }
                    m.schedule(c, leave);
                }
                Op::SetPolicy(i, p) => m.set_policy(ids[i], p),
                Op::SetCpus(i, mask) => m.set_cpus(ids[i], set(mask, cpus)),
                Op::Avoid(mask) => {
                    let left = !set(!mask, cpus).without(m.level.offline()).is_empty();
                    let before = *m.level.avoided();
                    prop_assert_eq!(m.level.set_avoided(set(mask, cpus)).is_ok(), left);
                    prop_assert!(left || *m.level.avoided() == before);
                    m.serve();
                }
                Op::Offline(mask) => {
                    let left = !set(!mask, cpus).is_empty();
                    prop_assert_eq!(m.level.set_offline(m.now, set(mask, cpus)).is_ok(), left);
                    m.serve();
                }
                Op::Cookie(i, cookie) => {
                    cookies[i] = cookie;
                    m.set_cookie(ids[i], cookie);
                }
                Op::Late(late) => m.delays_wake_lists(late),
                Op::SetWeight(g, w) => m.level.set_group_weight(m.now, g, w),
                Op::Steal(c, ns) => {
                    m.level.set_away(CpuId(c), ns % 2 == 0);
                    // Due events come first: one that an earlier jump left behind may take the
                    // entity away.
                    m.run_for(0);
                    if let Some(e) = m.current(c) {
                        m.exec(e);
                    }
                    let c = CpuId(c);
                    if let Some(e) = m.level.current(c) {
                        let before = m.level.stats(e).exec_ns;
                        // Stolen just now: the CPU stood still for that long, and nothing else may
                        // happen in between.
                        let t = m.now + ns;
                        m.level.stolen(c, ns);
                        m.jump(t);
                        m.level.charge(t, c);
                        prop_assert_eq!(m.level.stats(e).exec_ns, before);
                        stolen += ns;
                        m.serve();
                    }
                }
            }
            for (i, &e) in ids.iter().enumerate() {
                let on_queue = m.level.is_queued(e) || m.level.is_running(e);
                prop_assert_eq!(on_queue || m.level.is_waking(e), awake[i]);
                if m.level.is_running(e) {
                    let (own, cpu) = (m.level.cpus(e), m.level.cpu_of(e));
                    prop_assert!(!m.level.offline().contains(cpu));
                    let lost = own.without(m.level.offline()).is_empty();
                    prop_assert!(own.contains(cpu) || lost);
                }
            }
            for c in 0..cpus {
                let nr = m.level.nr_running(CpuId(c));
                // Entities that a quota holds back are not counted.
                let held = |e: &EntId| {
                    m.level.cpu_of(*e).0 == c && m.level.is_throttled(*e) && m.level.is_urgent(*e)
                };
                let nr = nr - ids.iter().filter(|e| held(e)).count() as u32;
                let idle = m.current(c).is_none() && !m.level.is_forced_idle(CpuId(c));
                prop_assert!(!idle || nr == 0, "cpu {} idles beside {}", c, nr);
            }
            let threads = cfg.topology.threads_per_core;
            for first in (0..cpus).step_by(threads as usize) {
                let run: Vec<u32> = (first..first + threads)
                    .filter_map(|c| m.current(c))
                    .map(|e| cookies[e.0 as usize])
                    .collect();
                prop_assert!(run.iter().all(|c| *c == run[0]), "{:?} on one core", run);
            }
        }
        let exec: u64 = ids.iter().map(|&e| m.exec(e)).sum();
        prop_assert_eq!(exec + stolen, m.tasks.busy.iter().sum::<u64>());
    }

    /// With newidle balancing, no affinity, nothing cache-hot, and wake-ups that look at all CPUs because
    /// none has found the LLC busy, no entity waits while a CPU idles.
    #[test]
    fn work_is_conserved(
        fair in FAIR,
        loads in proptest::collection::vec((200u64..3000, 0u64..3000), 1..14)
    ) {
        let mut cfg = fair_of(fair, 4);
        cfg.balance.migration_cost_ns = 0;
        cfg.balance.periodic = false;
        // A delayed sleeper wakes where it is, beside idle CPUs or not.
        if let Fair::Eevdf(t) = &mut cfg.fair {
            t.delay_dequeue = false;
        }
        let mut m = Machine::new(&cfg);
        for (run, sleep) in loads {
            m.spawn(nice(0), Work { run: run * US, sleep: sleep * US });
        }
        for _ in 0..1000 {
            m.run_for(97 * US);
            let idle = (0..4).any(|c| m.current(c).is_none());
            let waiting = (0..4).any(|c| m.level.nr_running(CpuId(c)) > 1);
            prop_assert!(!idle || !waiting);
        }
    }

    /// With all defaults, waiting beside an idle CPU is what it is in the kernel: an exception,
    /// and gone at the next ticks.
    #[test]
    fn work_is_nearly_conserved(
        fair in FAIR,
        loads in proptest::collection::vec((1000u64..3000, 500u64..3000), 1..14)
    ) {
        let mut m = Machine::new(&fair_of(fair, 4));
        for (run, sleep) in loads {
            m.spawn(nice(0), Work { run: run * US, sleep: sleep * US });
        }
        let mut waited = 0;
        for _ in 0..1000 {
            m.run_for(97 * US);
            let idle = (0..4).any(|c| m.current(c).is_none());
            let waiting = (0..4).any(|c| m.level.nr_running(CpuId(c)) > 1);
            waited += u32::from(idle && waiting);
        }
        prop_assert!(waited <= 200, "{} of 1000 samples", waited);
    }

    /// Under either guard a fair entity gets its runtime, whatever RT does. The server begins a new
    /// period when fair ran by itself after a service, so that two services can be nearly two
    /// periods apart.
    #[test]
    fn fair_never_starves_under_a_guard(
        server in any::<bool>(),
        rts in proptest::collection::vec((1u8..=99, 1u64..200, 0u64..5), 1..5)
    ) {
        let mut cfg = eevdf(1);
        let (runtime_ns, period_ns) = (50 * MS, 1000 * MS);
        cfg.rt_guard = if server {
            RtGuard::FairServer(Bandwidth { runtime_ns, period_ns })
        } else {
            RtGuard::Throttle(Bandwidth { runtime_ns: period_ns - runtime_ns, period_ns })
        };
        let mut m = Machine::new(&cfg);
        let fair = m.spawn(nice(19), HOG);
        for (prio, run, sleep) in rts {
            m.spawn(Policy::Rr(prio), Work { run: run * MS, sleep: sleep * MS });
        }
        m.run_for(10_000 * MS);
        let least = if server { 240 } else { 440 };
        prop_assert!(m.exec(fair) >= least * MS, "{} ns", m.exec(fair));
    }

    /// Equal round-robin entities get equal time.
    #[test]
    fn round_robin_is_fair(n in 2u64..7) {
        let mut m = Machine::new(&cfs(1));
        let all: Vec<_> = (0..n).map(|_| m.spawn(Policy::Rr(7), HOG)).collect();
        m.run_for(n * 1000 * MS);
        for e in all {
            prop_assert_eq!(m.exec(e), 1000 * MS);
        }
    }
}
