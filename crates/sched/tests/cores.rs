//! Core scheduling: who runs on the hardware threads of a core.

use crate::driver::{HOG, MS, Machine, eevdf};
use vcoop_sched::Attr;
use vcoop_sched::config::{LevelConfig, Policy, Topology};

/// A core of two hardware threads.
fn core() -> Machine {
    let topology = Topology { threads_per_core: 2, cores_per_llc: 1, llcs: 1 };
    Machine::new(&LevelConfig { topology, ..eevdf(2) })
}

fn due(deadline_ns: u64) -> Policy {
    Policy::Deadline { runtime_ns: MS, deadline_ns, period_ns: 100 * MS }
}

/// The most urgent decides the core's cookie. On the sibling an entity of that cookie runs though a better one waits
/// there, which may move but can go nowhere. The sibling is not asked to choose again and again.
#[test]
fn a_better_one_with_another_cookie_waits() {
    for [first, better, worse] in [
        [Policy::Fifo(50), Policy::Fifo(40), Policy::Fifo(30)],
        [due(10 * MS), due(20 * MS), due(30 * MS)],
    ] {
        let mut m = core();
        let [first, better, worse] = [(first, 0), (better, 1), (worse, 1)]
            .map(|(policy, home)| m.start(Attr::anywhere(policy), home, HOG));
        m.set_cookie(worse, 1);
        m.set_cookie(better, 2);
        m.set_cookie(first, 1);
        m.run_for(MS / 2);
        assert_eq!([m.current(0), m.current(1)], [Some(first), Some(worse)]);
        assert!(m.level.is_queued(better));
    }
}

/// Of equals a CPU chooses its own, for itself and its sibling: the two do not take turns in undoing that.
#[test]
fn who_chose_first_among_equals_keeps_the_core() {
    let mut m = core();
    let [one, other, beside_other, beside_one] =
        [10, 10, 30, 30].map(|ms| m.start(Attr::anywhere(due(ms * MS)), 0, HOG));
    m.set_cookie(beside_one, 1);
    m.set_cookie(beside_other, 2);
    m.set_cookie(other, 2);
    m.set_cookie(one, 1);
    m.run_for(MS / 2);
    let mut run = [m.current(0), m.current(1)].map(|e| e.expect("the core is full"));
    run.sort();
    assert!(run == [one, beside_one] || run == [other, beside_other], "{run:?}");
}
