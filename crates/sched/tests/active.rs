//! Who runs alone and would be better off elsewhere.

use crate::driver::{HOG, MS, Machine, eevdf, fairs, nice};
use vcoop_sched::config::{LevelConfig, Topology};
use vcoop_sched::{CpuId, EntId};

/// Two cores of two threads.
fn cores() -> LevelConfig {
    let topology = Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 1 };
    LevelConfig { topology, ..eevdf(4) }
}

/// Runs on, with this part of each CPU's busy time stolen.
fn run_stolen(m: &mut Machine, ms: u64, percent: &[u64]) {
    for _ in 0..ms {
        m.run_for(MS);
        for (cpu, &part) in percent.iter().enumerate() {
            m.level.stolen(CpuId(cpu as u32), MS * part / 100);
        }
    }
}

fn cpu(m: &Machine, e: EntId) -> u32 {
    m.level.cpu_of(e).0
}

#[test]
fn two_of_one_core_go_apart_once_a_core_has_idled_a_while() {
    let mut m = Machine::new(&cores());
    let two = [0, 1].map(|cpu| m.pinned(nice(0), cpu, HOG));
    m.run_for(50 * MS);
    m.unpin(&two);
    // The fourth attempt, at an interval of a millisecond a CPU.
    m.run_for(12 * MS);
    assert_eq!(two.map(|e| cpu(&m, e) / 2), [0, 0]);
    m.run_for(5 * MS);
    let at = two.map(|e| cpu(&m, e) / 2);
    assert_ne!(at[0], at[1], "a core each");
    let moves = two.map(|e| m.level.stats(e).migrations);
    assert_eq!(moves[0] + moves[1], 1, "one of them moved");
    m.run_for(200 * MS);
    assert_eq!(two.map(|e| cpu(&m, e) / 2), at, "and both stay");
}

#[test]
fn nobody_leaves_a_core_that_is_shared_for_want_of_another() {
    let mut m = Machine::new(&cores());
    let two = [0, 1].map(|cpu| m.pinned(nice(0), cpu, HOG));
    let third = m.pinned(nice(0), 2, HOG);
    m.unpin(&two);
    m.run_for(200 * MS);
    assert_eq!(two.map(|e| cpu(&m, e)), [0, 1]);
    assert_eq!(cpu(&m, third), 2);
}

#[test]
fn who_runs_leaves_a_cpu_that_steal_takes_for_an_idle_one() {
    for cfg in fairs(2) {
        let mut m = Machine::new(&cfg);
        let e = m.spawn(nice(0), HOG);
        let first = cpu(&m, e) as usize;
        let mut part = [0, 0];
        part[first] = 10;
        run_stolen(&mut m, 200, &part);
        assert_eq!(cpu(&m, e) as usize, first, "a tenth is less than the imbalance that is borne");
        part[first] = 50;
        run_stolen(&mut m, 100, &part);
        assert_eq!(cpu(&m, e) as usize, 1 - first);
        let moved = m.level.stats(e).migrations;
        run_stolen(&mut m, 400, &part);
        assert_eq!(m.level.stats(e).migrations, moved, "it stays where nothing is taken");
    }
}

#[test]
fn a_pinned_entity_bears_the_steal() {
    let mut m = Machine::new(&eevdf(2));
    let e = m.pinned(nice(0), 0, HOG);
    run_stolen(&mut m, 200, &[90, 0]);
    assert_eq!(cpu(&m, e), 0);
}

#[test]
fn more_load_goes_where_less_is_stolen() {
    // Half of CPU 0 is stolen: of six equal hogs it gets two, not three.
    let mut m = Machine::new(&eevdf(2));
    let six: Vec<_> = (0..6).map(|_| m.spawn(nice(0), HOG)).collect();
    run_stolen(&mut m, 2000, &[50, 0]);
    let before: Vec<_> = six.iter().map(|&e| m.level.stats(e).exec_ns).collect();
    run_stolen(&mut m, 4000, &[50, 0]);
    let ran: u64 = six.iter().zip(before).map(|(&e, b)| m.level.stats(e).exec_ns - b).sum();
    assert!(m.level.nr_running(CpuId(0)) <= 2, "{}", m.level.nr_running(CpuId(0)));
    assert!(ran > 5900 * MS && ran <= 6010 * MS, "{ran}");
}

#[test]
fn who_runs_goes_to_an_llc_where_fewer_do() {
    // Two LLCs of two cores of two threads; four run in the first.
    let topology = Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 2 };
    for cfg in fairs(8) {
        let mut m = Machine::new(&LevelConfig { topology, ..cfg });
        let four = [0, 1, 2, 3].map(|cpu| m.pinned(nice(0), cpu, HOG));
        m.run_for(50 * MS);
        m.unpin(&four);
        // Each takes four attempts, at an interval of a millisecond a CPU.
        m.run_for(20 * MS);
        let near = |m: &Machine| four.iter().filter(|&&e| cpu(m, e) < 4).count();
        assert_eq!(near(&m), 4);
        m.run_for(60 * MS);
        assert_eq!(near(&m), 2);
        m.run_for(500 * MS);
        let moves: u64 = four.iter().map(|&e| m.level.stats(e).migrations).sum();
        assert!(near(&m) == 2 && moves <= 4, "{moves}: two to the other LLC, and each to a core");
    }
}

#[test]
fn a_difference_of_one_between_llcs_is_borne() {
    let topology = Topology { threads_per_core: 1, cores_per_llc: 4, llcs: 2 };
    let mut m = Machine::new(&LevelConfig { topology, ..eevdf(8) });
    let all = [0, 1, 4].map(|cpu| m.pinned(nice(0), cpu, HOG));
    m.run_for(50 * MS);
    m.unpin(&all);
    m.run_for(500 * MS);
    assert_eq!(all.map(|e| m.level.stats(e).migrations), [0; 3]);
}
