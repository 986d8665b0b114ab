//! Random calls: nothing is lost, and the same calls have the same effects.

use proptest::prelude::*;
use vcoop_powervm::PoolConfig;
use vcoop_sched::{CpuId, EntId, LeaveReason};

use crate::driver::{HOG, MS, Machine};
use crate::promises::pool;

#[derive(Clone, Debug)]
enum Op {
    Run(u64),
    Wake(usize),
    Leave(u32, LeaveReason),
    Confer(usize, Option<usize>),
}

fn op() -> impl Strategy<Value = Op> {
    let leave = prop_oneof![
        6 => Just(LeaveReason::Blocked),
        2 => Just(LeaveReason::Preempted),
        2 => Just(LeaveReason::Yield),
        1 => Just(LeaveReason::Exit)
    ];
    prop_oneof![
        4 => (0u64..7 * MS).prop_map(Op::Run),
        8 => any::<u16>().prop_map(|e| Op::Wake(usize::from(e))),
        3 => (any::<u16>(), prop::option::weighted(0.9, any::<u16>()))
            .prop_map(|(e, to)| Op::Confer(usize::from(e), to.map(usize::from))),
        6 => (any::<u16>(), leave).prop_map(|(c, l)| Op::Leave(u32::from(c), l)),
    ]
}

fn play(cfg: &PoolConfig, ops: &[Op]) -> Result<Machine, TestCaseError> {
    let mut m = Machine::new(cfg);
    let mut ids: Vec<EntId> = Vec::new();
    for (i, p) in (0..).zip(&cfg.partitions) {
        ids.extend((0..p.vcpus).map(|_| m.add(i, HOG)));
    }
    let (mut awake, mut dead) = (vec![false; ids.len()], vec![false; ids.len()]);
    for op in ops {
        match *op {
            Op::Run(ns) => m.run_for(ns),
            Op::Wake(i) => {
                let i = i % ids.len();
                m.wake(ids[i]);
                awake[i] = !dead[i];
            }
            Op::Confer(e, to) => {
                let to = to.map(|to| ids[to % ids.len()]);
                m.confer(ids[e % ids.len()], to);
            }
            Op::Leave(c, leave) => {
                let cpu = c % cfg.topology.cpus();
                if matches!(leave, LeaveReason::Blocked | LeaveReason::Exit)
                    && let Some(e) = m.current(cpu)
                {
                    awake[e.index()] = false;
                    dead[e.index()] = leave == LeaveReason::Exit;
                }
                m.schedule(cpu, leave);
            }
        }
        for (i, &e) in ids.iter().enumerate() {
            prop_assert_eq!(m.pool.is_queued(e) || m.pool.is_running(e), awake[i]);
            if m.pool.is_running(e) {
                prop_assert_eq!(m.pool.current(m.pool.cpu_of(e)), Some(e));
            }
        }
    }
    let exec: u64 = ids.iter().map(|&e| m.exec(e)).sum();
    prop_assert_eq!(exec, m.tasks.busy.iter().sum::<u64>());
    prop_assert!((0..cfg.topology.cpus()).all(|c| !m.pool.is_kicked(CpuId(c))));
    Ok(m)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    /// `Pool::check` after every call (the driver does that), and the books.
    #[test]
    fn nothing_is_lost(cfg in pool(), ops in prop::collection::vec(op(), 1..150)) {
        play(&cfg, &ops)?;
    }

    /// The same calls, the same switches.
    #[test]
    fn it_is_deterministic(cfg in pool(), ops in prop::collection::vec(op(), 1..60)) {
        prop_assert_eq!(play(&cfg, &ops)?.log, play(&cfg, &ops)?.log);
    }
}
