//! Directed yield.

use crate::driver::{HOG, MS, Machine, US, Work, cfs, eevdf};
use vcoop_sched::config::Policy;
use vcoop_sched::{CpuId, DirectedYield, LeaveReason};

#[test]
fn the_target_is_next_if_that_is_fair() {
    for config in [cfs(1), eevdf(1)] {
        let build = || {
            let mut m = Machine::new(&config);
            let all: Vec<_> = (0..5).map(|_| m.spawn(Policy::NORMAL, HOG)).collect();
            m.run_for(200 * MS);
            (m, all)
        };
        let (mut m, all) = build();
        let current = m.current(0).expect("there is work");
        m.schedule(0, LeaveReason::Yield);
        assert_ne!(m.current(0), Some(current), "who yields stands back");
        let mut served = 0;
        for &target in all.iter().filter(|&&e| e != current) {
            let (mut m, _) = build();
            assert_eq!(m.level.yield_to(m.now, CpuId(0), target), DirectedYield::Done);
            m.schedule(0, LeaveReason::Yield);
            served += u32::from(m.current(0) == Some(target));
        }
        // Without a favour it would be one and the same.
        assert!(served >= 2, "{served} of 4 targets");
    }
}

#[test]
fn nothing_is_gained_by_those_who_are_alone_and_nothing_given_to_those_who_sleep() {
    let mut m = Machine::new(&eevdf(2));
    let a = m.spawn(Policy::NORMAL, HOG);
    let b = m.spawn(Policy::NORMAL, HOG);
    m.run_for(10 * MS);
    let (here, there) = (m.level.cpu_of(a), m.level.cpu_of(b));
    assert_ne!(here, there);
    assert_eq!(m.level.yield_to(m.now, here, b), DirectedYield::Alone);
    let sleeper = m.spawn(Policy::NORMAL, Work { run: 1, sleep: 1_000_000 * MS });
    let rt = m.spawn(Policy::Fifo(1), Work { run: 1, sleep: 1_000_000 * MS });
    let _third = m.spawn(Policy::NORMAL, HOG);
    m.run_for(20 * MS);
    let busy = (0..2).map(CpuId).find(|&c| m.level.nr_running(c) > 1).expect("three on two");
    for target in [sleeper, rt] {
        assert_eq!(m.level.yield_to(m.now, busy, target), DirectedYield::Refused);
    }
    let current = m.level.current(busy).expect("it is busy");
    assert_eq!(m.level.yield_to(m.now, busy, current), DirectedYield::Refused);
}

#[test]
fn who_sleeps_in_debt_is_company() {
    for (config, stays) in [(cfs(2), false), (eevdf(2), true)] {
        let mut m = Machine::new(&config);
        let (here, there) = (CpuId(0), CpuId(1));
        m.pinned(Policy::NORMAL, 0, Work { run: 500 * US, sleep: 1_000 * MS });
        m.pinned(Policy::NORMAL, 0, HOG);
        let other = m.pinned(Policy::NORMAL, 1, HOG);
        let (mut alone, mut beside) = (0, 0);
        for _ in 0..400 {
            m.run_for(50 * US);
            if m.level.nr_running(here) > 1 {
                continue;
            }
            let single = m.level.has_single(here);
            let want = if single { DirectedYield::Alone } else { DirectedYield::Refused };
            assert_eq!(m.level.yield_to(m.now, here, other), want);
            assert!(m.level.has_single(there));
            *(if single { &mut alone } else { &mut beside }) += 1;
        }
        assert!(alone > 100, "it has left in the end");
        assert_eq!(beside > 0, stays);
    }
}
