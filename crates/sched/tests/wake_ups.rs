//! Where woken fair entities go, and who fetches those that wait.

use crate::driver::{HOG, MS, Machine, US, Work, fairs, nice};
use vcoop_sched::config::{LevelConfig, Topology};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId};

/// It runs for 50 us whenever it is woken.
const BRIEF: Work = Work { run: 50 * US, sleep: 1_000_000 * MS };

/// Eight CPUs with an LLC, `hogs` of them busy for long enough to be known as that, and an entity that sleeps on the first.
fn beside(hogs: u32, cfg: &LevelConfig) -> (Machine, EntId) {
    let mut m = Machine::new(cfg);
    for cpu in 0..hogs {
        m.pinned(nice(0), cpu, HOG);
    }
    m.run_for(1000 * MS);
    let e = m.add(Attr::anywhere(nice(0)), 0, BRIEF);
    m.set_cpus(e, CpuSet::one(CpuId(0)));
    m.wake(e, None);
    m.run_for(20 * MS);
    assert!(!m.level.is_queued(e) && !m.level.is_running(e), "it sleeps again");
    m.set_cpus(e, CpuSet::first_n(8));
    (m, e)
}

#[test]
fn in_a_busy_llc_nobody_looks_for_an_idle_cpu() {
    for cfg in fairs(8) {
        // 50 %: CPUs 1 to 5 are looked at.
        let (mut m, e) = beside(4, &cfg);
        m.wake(e, None);
        assert_eq!(m.level.cpu_of(e), CpuId(4), "half of the CPUs idle");
        // 75 %: one is looked at, and that is busy.
        let (mut m, e) = beside(6, &cfg);
        m.wake(e, None);
        assert_eq!(m.level.cpu_of(e), CpuId(0), "one of eight CPUs is looked at");
        // 87.5 %: none. It waits until CPU 7 balances, within 16 ms and the tick.
        let (mut m, e) = beside(7, &cfg);
        m.wake(e, None);
        assert_eq!(m.level.cpu_of(e), CpuId(0));
        // One with more work is fetched.
        let long = m.add(Attr::anywhere(nice(0)), 0, HOG);
        m.set_cpus(long, CpuSet::one(CpuId(0)));
        m.wake(long, None);
        m.run_for(MS);
        m.set_cpus(long, CpuSet::first_n(8));
        m.run_for(18 * MS);
        assert_eq!(m.level.cpu_of(long), CpuId(7), "nobody fetched it");
    }
}

#[test]
fn an_idle_cpu_that_has_no_cpu_below_is_not_idle_to_who_wakes_up() {
    for cfg in fairs(8) {
        let (mut m, e) = beside(4, &cfg);
        m.level.set_away(CpuId(4), true);
        m.wake(e, None);
        assert_eq!(m.level.cpu_of(e), CpuId(5));
        // Neither is the one where it ran.
        m.run_for(20 * MS);
        m.level.set_away(CpuId(4), false);
        m.level.set_away(CpuId(5), true);
        m.wake(e, None);
        assert_ne!(m.level.cpu_of(e), CpuId(5));
    }
}

#[test]
fn an_idle_cpu_fetches_at_its_own_interval() {
    for cfg in fairs(8) {
        let mut m = Machine::new(&cfg);
        let pinned = m.pinned(nice(0), 0, HOG);
        let mut moved = Vec::new();
        for _ in 0..20 {
            // A second hog comes to CPU 0, which only idle CPUs can change.
            let hog = m.add(Attr::anywhere(nice(0)), 0, HOG);
            m.set_cpus(hog, CpuSet::one(CpuId(0)));
            m.wake(hog, None);
            m.run_for(MS);
            m.set_cpus(hog, CpuSet::range(0, 2));
            let began = m.now;
            while m.level.cpu_of(hog) == CpuId(0) && m.now < began + 40 * MS {
                m.run_for(MS);
            }
            moved.push((m.now - began) / MS);
            m.set_cpus(hog, CpuSet::one(CpuId(7)));
            m.run_for(3 * MS);
        }
        assert!(m.exec(pinned) > 0);
        // Eight CPUs: 8 ms, one tick more, and the first time at once.
        assert!(moved.iter().all(|&ms| ms <= 10), "{moved:?}");
        assert!(moved.iter().any(|&ms| ms >= 3), "not at the next tick: {moved:?}");
    }
}

#[test]
fn who_is_about_to_sleep_brings_the_other_to_its_llc() {
    let topology = Topology { threads_per_core: 1, cores_per_llc: 4, llcs: 2 };
    for cfg in fairs(8) {
        let pulled = |sync: bool| {
            let mut m = Machine::new(&LevelConfig { topology, ..cfg.clone() });
            let writer = m.start(Attr::anywhere(nice(0)), 0, HOG);
            let reader = m.start(Attr::anywhere(nice(0)), 5, BRIEF);
            m.run_for(MS);
            assert_eq!((m.level.cpu_of(writer), m.level.cpu_of(reader)), (CpuId(0), CpuId(5)));
            match sync {
                true => m.level.wake_sync(m.now, reader, CpuId(0)),
                false => m.level.wake(m.now, reader, Some(CpuId(0))),
            }
        };
        // Both find an idle CPU in the LLC that was chosen.
        assert_eq!(pulled(false), Some(CpuId(5)));
        assert_eq!(pulled(true), Some(CpuId(1)));
    }
}
