//! One known answer for each rule.

use vcoop_powervm::Pool;
use vcoop_powervm::{Partition, PoolConfig};
use vcoop_sched::config::Topology;
use vcoop_sched::{ConfigError, EntId, LeaveReason};

use crate::driver::{HOG, MS, Machine, US, Work, config, smt};

/// CPU time of each.
fn times(m: &mut Machine, all: &[EntId]) -> Vec<u64> {
    all.iter().map(|&e| m.exec(e)).collect()
}

#[test]
fn an_entitlement_is_a_part_of_each_window() {
    // A quarter and three quarters of a core for each virtual processor.
    let mut m = Machine::new(&config(4, &[(4, 1, 128), (4, 3, 128)]));
    let (a, b) = (m.hogs(0, 4), m.hogs(1, 4));
    for window in 1..=20 {
        m.run_for(10 * MS);
        assert_eq!(times(&mut m, &a), [window * 2_500 * US; 4]);
        assert_eq!(times(&mut m, &b), [window * 7_500 * US; 4]);
    }
}

#[test]
fn promises_hold_though_nobody_can_use_two_cores_at_once() {
    // Three virtual processors with two thirds of a core each, on two cores: plain first come first served would leave
    // the third with one third.
    let mut m = Machine::new(&config(2, &[(3, 2, 128)]));
    let all = m.hogs(0, 3);
    let share = 20 * MS / 3;
    for window in 1..=30 {
        m.run_for(10 * MS);
        for ran in times(&mut m, &all) {
            assert!(ran >= window * share, "{ran} in {window} windows");
        }
    }
    assert!(m.pool.counters().rushes > 0);
}

#[test]
fn what_is_not_used_is_gone() {
    // Entitled to half of the core, it sleeps for three windows: it has no more than half afterwards.
    let mut m = Machine::new(&config(2, &[(2, 1, 0), (2, 1, 128)]));
    let others = m.hogs(1, 2);
    let late: Vec<EntId> = (0..2).map(|_| m.add(0, HOG)).collect();
    m.run_for(30 * MS);
    assert_eq!(times(&mut m, &others), [30 * MS; 2], "all that others leave");
    late.iter().for_each(|&e| m.wake(e));
    m.run_for(40 * MS);
    assert_eq!(times(&mut m, &late), [20 * MS; 2]);
}

#[test]
fn a_capped_partition_stops_at_its_entitlement() {
    let mut m = Machine::new(&config(2, &[(2, 1, 0)]));
    let all = m.hogs(0, 2);
    m.run_for(100 * MS);
    assert_eq!(times(&mut m, &all), [50 * MS; 2], "though the cores idle for the other half");
    assert_eq!(m.pool.counters().parks, 2 * 10);
    let own = m.parked.iter().filter(|p| p.1 == all[0]);
    let told: Vec<(u64, bool)> = own.map(|p| (p.0 / MS, p.2)).take(4).collect();
    assert_eq!(told, [(5, true), (10, false), (15, true), (20, false)]);
    assert!(!m.pool.is_parked(all[0]));
    m.run_for(7 * MS);
    assert!(m.pool.is_parked(all[0]) && m.pool.is_queued(all[0]));
}

#[test]
fn an_uncapped_one_takes_what_is_left() {
    let mut m = Machine::new(&config(2, &[(2, 1, 1)]));
    let all = m.hogs(0, 2);
    m.run_for(100 * MS);
    assert_eq!(times(&mut m, &all), [100 * MS; 2]);
    assert_eq!(m.pool.counters().preemptions, 0, "nobody else wants it");
}

/// Spare time of partitions with weights, on four cores of which a tenth is promised to each of them.
fn spare_time(weights: [u32; 2]) -> [u64; 2] {
    let each = |w| (8, 1, w);
    let mut m = Machine::new(&config(4, &[each(weights[0]), each(weights[1])]));
    let (a, b) = (m.hogs(0, 8), m.hogs(1, 8));
    m.run_for(4000 * MS);
    let own = 1000 * 4 * MS;
    [a, b].map(|all| times(&mut m, &all).iter().sum::<u64>() - own)
}

#[test]
fn what_is_left_goes_by_weight() {
    for (weights, want) in [([128, 128], 1.0), ([200, 100], 2.0), ([30, 240], 0.125)] {
        let [a, b] = spare_time(weights);
        assert_eq!(a + b, 8000 * MS, "all of it");
        let ratio = a as f64 / b as f64;
        assert!((ratio / want - 1.0).abs() < 0.02, "{weights:?}: {ratio}");
    }
    let [a, b] = spare_time([0, 1]);
    assert_eq!((a, b), (0, 8000 * MS), "weight 0 is capped");
}

#[test]
fn time_without_wanting_earns_no_spare_time() {
    // B sleeps for a second. Afterwards both have half of what is left, at once.
    let mut m = Machine::new(&config(1, &[(2, 1, 128)]));
    let all = m.hogs(0, 1);
    m.run_for(100 * MS);
    assert_eq!(m.exec(all[0]), 100 * MS);
    let mut m = Machine::new(&config(2, &[(4, 1, 128), (4, 1, 128)]));
    let a = m.hogs(0, 4);
    m.run_for(1000 * MS);
    let b = m.hogs(1, 4);
    let before: u64 = times(&mut m, &a).iter().sum();
    m.run_for(1000 * MS);
    let (a, b) = (times(&mut m, &a).iter().sum::<u64>() - before, times(&mut m, &b));
    let b: u64 = b.iter().sum();
    assert!(a.abs_diff(b) <= 40 * MS, "{a} and {b}");
}

#[test]
fn a_wake_up_takes_spare_time_but_no_entitlement() {
    // A hog with half of the core, and one that wakes up now and then.
    let mut m = Machine::new(&config(2, &[(2, 1, 128), (2, 1, 128)]));
    let hogs = m.hogs(0, 2);
    let late = m.add(1, Work { run: MS, sleep: 1000 * MS });
    m.run_for(3 * MS);
    m.wake(late);
    m.run_for(4 * MS);
    // The hogs are entitled until 5 ms; then the first that has used up its half gives way.
    assert_eq!(m.starts(late), [5 * MS]);
    let mut m = Machine::new(&config(2, &[(2, 1, 128), (2, 1, 128)]));
    m.hogs(0, 2);
    let late = m.add(1, Work { run: MS, sleep: 1000 * MS });
    m.run_for(7 * MS);
    m.wake(late);
    assert_eq!(m.starts(late), [7 * MS], "at once");
    m.run_for(2 * MS);
    assert_eq!(m.exec(late), MS);
    assert_eq!(m.exec(hogs[0]) + m.exec(hogs[1]), 17 * MS, "the core is the hogs' again");
}

#[test]
fn who_sleeps_cedes_its_core_at_once() {
    let mut m = Machine::new(&config(1, &[(1, 1, 128)]));
    let one = m.start(0, Work { run: 2 * MS, sleep: 3 * MS });
    m.run_for(3 * MS);
    assert_eq!((m.current(0), m.exec(one)), (None, 2 * MS));
    m.run_for(3 * MS);
    assert_eq!(m.starts(one), [0, 5 * MS]);
    assert_eq!(m.pool.counters().cedes, 1);
}

#[test]
fn the_longest_wait_of_who_can_always_run_is_twice_what_is_not_its_own() {
    // Entitled to a fifth: it gets that at the start of one window, and at the end of the next.
    let mut m = Machine::new(&config(5, &[(5, 1, 128), (5, 4, 128)]));
    let few = m.hogs(0, 5);
    m.hogs(1, 5);
    m.run_for(1000 * MS);
    for e in few {
        let longest = m.waits(e).into_iter().max();
        assert!(longest.is_some_and(|ns| ns > 6 * MS && ns <= 2 * 8 * MS), "{longest:?}");
    }
}

const SMT: Topology = Topology { threads_per_core: 4, cores_per_llc: 2, llcs: 1 };

#[test]
fn a_virtual_processor_has_a_whole_core() {
    // Two cores of four threads; three virtual processors, of which two have one busy thread only.
    let mut m = Machine::new(&smt(SMT, &[(4, 2, 128), (4, 3, 128), (4, 3, 128)]));
    let a = m.hogs(0, 4);
    let b = m.start(1, HOG);
    let c = m.start(2, HOG);
    m.run_for(1000 * MS);
    // 0.5, 0.75 and 0.75 of a core: a thread alone uses as much of it as four.
    let want = [500 * MS; 4];
    for (ran, want) in times(&mut m, &a).into_iter().zip(want) {
        assert!(ran.abs_diff(want) <= 10 * MS, "{ran}");
    }
    assert!(m.exec(b) >= 740 * MS && m.exec(c) >= 740 * MS);
}

#[test]
fn threads_start_and_leave_together() {
    let mut m = Machine::new(&smt(
        Topology { threads_per_core: 2, cores_per_llc: 1, llcs: 1 },
        &[(2, 1, 128), (2, 1, 128)],
    ));
    let (a, b) = (m.hogs(0, 2), m.hogs(1, 2));
    m.run_for(100 * MS);
    for pair in [a, b] {
        assert_eq!(m.starts(pair[0]), m.starts(pair[1]));
        assert_eq!(times(&mut m, &pair), [50 * MS; 2]);
    }
}

#[test]
fn a_thread_that_wakes_joins_its_siblings() {
    let mut m = Machine::new(&smt(SMT, &[(4, 4, 128), (4, 4, 128)]));
    let first = m.start(0, HOG);
    let other = m.start(1, HOG);
    let late: Vec<EntId> = (0..3).map(|_| m.add(0, HOG)).collect();
    m.run_for(3 * MS);
    m.wake(late[1]);
    let core = |m: &Machine, e| m.pool.cpu_of(e).0 / 4;
    assert_eq!(m.starts(late[1]), [3 * MS]);
    assert_eq!(core(&m, late[1]), core(&m, first));
    assert_ne!(core(&m, other), core(&m, first));
    // While one of its threads is awake the core is its own.
    let cpu = m.pool.cpu_of(first).0;
    m.schedule(cpu, LeaveReason::Blocked);
    assert_eq!(m.current(cpu), None);
    assert_eq!(core(&m, late[1]), cpu / 4);
    assert_eq!(m.pool.counters().cedes, 0);
    m.schedule(m.pool.cpu_of(late[1]).0, LeaveReason::Blocked);
    assert_eq!(m.pool.counters().cedes, 1);
}

#[test]
fn who_yields_goes_behind_the_others_but_keeps_its_threads_together() {
    let mut m = Machine::new(&config(1, &[(1, 1, 128)]));
    let e = m.start(0, HOG);
    m.run_for(MS);
    m.schedule(0, LeaveReason::Yield);
    assert_eq!(m.current(0), Some(e), "nobody else");
    let mut m = Machine::new(&config(2, &[(4, 2, 128)]));
    let all = m.hogs(0, 4);
    m.run_for(MS);
    let was = m.current(0);
    m.schedule(0, LeaveReason::Yield);
    assert_ne!(m.current(0), was);
    assert!(all.iter().any(|&e| Some(e) == m.current(0)));
    let mut m = Machine::new(&smt(SMT, &[(4, 2, 128); 3]));
    let first = m.hogs(0, 4)[0];
    m.hogs(1, 4);
    m.hogs(2, 4);
    m.run_for(MS);
    let cpu = m.pool.cpu_of(first).0;
    m.schedule(cpu, LeaveReason::Yield);
    assert_eq!(m.current(cpu), Some(first));
}

#[test]
fn who_confers_gives_its_core_to_the_one_that_it_waits_for() {
    // One core; the third is next in line, and the fourth gets the core.
    let mut m = Machine::new(&config(1, &[(4, 1, 128)]));
    let all = m.hogs(0, 4);
    m.run_for(MS);
    let first = m.current(0).expect("all want it");
    assert_eq!(first, all[0]);
    m.confer(all[2], Some(all[3]));
    assert_eq!(m.current(0), Some(first), "one without a core has nothing to give");
    m.confer(first, Some(all[3]));
    assert_eq!(m.current(0), Some(all[3]));
    assert_eq!(m.pool.counters().confers, 1);
    // That one waits for the first, which has the rest of its share still.
    m.confer(all[3], Some(first));
    assert_eq!(m.current(0), Some(first));
    assert_eq!(m.exec(first), MS);
    m.confer(first, None);
    m.run_for(MS);
    assert_eq!(m.current(0), Some(first), "it has work again");
}

#[test]
fn who_has_no_entitlement_left_runs_on_that_of_who_confers() {
    let mut m = Machine::new(&config(1, &[(2, 1, 128)]));
    let all = m.hogs(0, 2);
    m.run_for(6 * MS);
    // The first has used up its half of the window.
    assert_eq!(m.current(0), Some(all[1]));
    m.confer(all[1], Some(all[0]));
    assert_eq!(m.current(0), Some(all[0]));
    m.run_for(2 * MS);
    // It gives the core back, and the other has what it has left: 2 of 5 ms.
    m.confer(all[0], Some(all[1]));
    assert_eq!(m.current(0), Some(all[1]));
    m.confer(all[1], Some(all[0]));
    m.run_for(2 * MS);
    assert_eq!(times(&mut m, &all), [9 * MS, MS]);
    // All have their shares again.
    m.run_for(10 * MS);
    assert_eq!(times(&mut m, &all), [14 * MS, 6 * MS]);
}

#[test]
fn a_core_is_given_up_when_all_of_its_threads_confer() {
    let mut m = Machine::new(&smt(SMT, &[(16, 8, 128)]));
    let all = m.hogs(0, 16);
    let (core, waits) = (&all[..4], all[12]);
    assert!(m.pool.is_running(core[0]) && !m.pool.is_running(waits));
    core[1..].iter().for_each(|&e| m.confer(e, Some(waits)));
    assert!(m.pool.is_running(core[1]), "a sibling works");
    m.schedule(m.pool.cpu_of(core[0]).0, LeaveReason::Blocked);
    assert!(m.pool.is_running(waits) && !m.pool.is_running(core[1]), "it sleeps");
    assert_eq!(m.pool.counters().confers, 1);
}

#[test]
fn what_cannot_be_is_refused() {
    let refuse = |cfg: PoolConfig| Pool::new(&cfg).expect_err("refused").to_string();
    let one = |p: Partition| PoolConfig::new(Topology::flat(4), vec![p]);
    let ok = Partition::new(4, 2);
    assert!(Pool::new(&one(ok)).is_ok());
    let cases = [
        (one(Partition { entitled: 5, ..ok }), "`entitled` is 5: it takes 1 to 4"),
        (
            one(Partition { vcpus: 100, entitled: 4, weight: 1 }),
            "`entitled` is 4: it takes 5 to 100",
        ),
        (one(Partition { weight: 256, ..ok }), "`weight` is 256: it takes 0 to 255"),
        (one(Partition { vcpus: 0, ..ok }), "`vcpus` is 0"),
        (PoolConfig { window_ns: US, ..one(ok) }, "`window_ns` is 1000: it takes 1000000"),
        (PoolConfig { partitions: vec![], ..one(ok) }, "`partitions` is 0"),
        (config(4, &[(4, 3, 1), (4, 2, 1)]), "`entitled, of all partitions` is 5: it takes 0 to 4"),
        (smt(SMT, &[(6, 2, 1)]), "`vcpus` is 6: it takes multiples of 4"),
    ];
    for (cfg, want) in cases {
        let said = refuse(cfg);
        assert!(said.contains(want), "{said}");
    }
    let promised = Pool::new(&config(4, &[(4, 3, 1), (4, 2, 1)])).err();
    assert_eq!(
        promised,
        Some(ConfigError::Range { field: "entitled, of all partitions", value: 5, min: 0, max: 4 })
    );
}
