//! Where woken fair entities go, and who fetches those that wait.

use crate::driver::{HOG, MS, Machine, US, Work, config, fairs, nice};
use vcoop_sched::config::{CfsRelease, CfsTunables, Fair, LevelConfig, Ns, Policy, Topology};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId, Note};

/// It runs for 50 us whenever it is woken.
const BRIEF: Work = Work { run: 50 * US, sleep: 1_000_000 * MS };

/// Eight CPUs with an LLC, `hogs` of them busy for long enough to be known as that, and an entity that sleeps on the
/// first.
fn beside(hogs: u32, cfg: &LevelConfig) -> (Machine, EntId) {
    let mut m = Machine::new(cfg);
    for cpu in 0..hogs {
        m.pinned(nice(0), cpu, HOG);
    }
    m.run_for(1000 * MS);
    let e = m.pinned(nice(0), 0, BRIEF);
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
        let long = m.pinned(nice(0), 0, HOG);
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
    for mut cfg in fairs(8) {
        // Who has just run is fetched as well, so that only the interval counts.
        cfg.balance.migration_cost_ns = 0;
        let mut m = Machine::new(&cfg);
        let pinned = m.pinned(nice(0), 0, HOG);
        let mut moved = Vec::new();
        for _ in 0..20 {
            // A second hog comes to CPU 0, which only idle CPUs can change.
            let hog = m.pinned(nice(0), 0, HOG);
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

/// Four CPUs in two LLCs, and interrupts about wake lists that are late.
fn two_llcs(cfg: &LevelConfig) -> Machine {
    let topology = Topology { threads_per_core: 1, cores_per_llc: 2, llcs: 2 };
    let mut m = Machine::new(&LevelConfig { topology, ..cfg.clone() });
    m.delays_wake_lists(true);
    m
}

#[test]
fn nobody_pulls_who_was_woken_for_a_cpu_that_is_not_up_yet() {
    for cfg in fairs(4) {
        let mut m = two_llcs(&cfg);
        let waker = m.pinned(nice(0), 0, HOG);
        let other = m.pinned(nice(0), 2, HOG);
        let woken = m.start(Attr::anywhere(nice(0)), 1, BRIEF);
        m.run_for(MS);
        m.wake(woken, Some(0));
        assert_eq!((m.level.cpu_of(woken), m.level.is_waking(woken)), (CpuId(1), true));
        assert_eq!(m.level.nr_running(CpuId(1)), 0);
        // A CPU that goes idle would take a thread that waits on a queue.
        m.run_for(MS);
        m.set_cpus(other, CpuSet::one(CpuId(3)));
        m.run_for(10 * MS);
        assert!(m.level.is_waking(woken) && m.current(2).is_none());
        // A wake-up does not go to a CPU that has an entity on its list, either. Both CPUs of the LLC have one.
        let second = m.add(Attr::anywhere(nice(0)), 1, BRIEF);
        m.wake(second, None);
        assert_eq!(m.level.cpu_of(second), CpuId(2));
        // It begins to wait when the CPU has taken it.
        assert_eq!(m.level.waits_for(m.now, woken), 0);
        m.delays_wake_lists(false);
        assert_eq!(m.current(1), Some(woken));
        assert_eq!(m.level.stats(woken).wait_ns, 0);
        assert!(m.level.is_running(waker));
    }
}

#[test]
fn a_cpu_of_another_llc_queues_the_woken_itself() {
    for cfg in fairs(4) {
        let mut m = two_llcs(&cfg);
        m.pinned(nice(0), 0, HOG);
        let busy = m.pinned(nice(0), 3, HOG);
        let attr = |policy| Attr { policy, cpus: CpuSet::one(CpuId(3)), group: None };
        let woken = [m.start(attr(nice(0)), 3, BRIEF), m.start(attr(nice(0)), 3, BRIEF)];
        m.run_for(50 * MS);
        assert!(m.level.is_running(busy));
        let notes = |m: &mut Machine, e, by| {
            m.level.wake(m.now, e, Some(CpuId(by)));
            core::iter::from_fn(|| m.level.pop_note()).collect::<Vec<_>>()
        };
        // The first on the list has the CPU interrupted, the second does not.
        assert_eq!(notes(&mut m, woken[0], 0), [Note::Woken { cpu: CpuId(3) }]);
        assert_eq!(notes(&mut m, woken[1], 0), []);
        assert!(woken.iter().all(|e| m.level.is_waking(*e)));
        assert_eq!(m.level.wake(m.now, woken[0], Some(CpuId(0))), None, "it has been woken");
        // In their order.
        assert_eq!(m.level.take_woken(m.now, CpuId(3)), Some(woken[0]));
        assert_eq!(m.level.take_woken(m.now, CpuId(3)), Some(woken[1]));
        assert_eq!(m.level.take_woken(m.now, CpuId(3)), None);
        m.serve();
        assert!(woken.iter().all(|e| !m.level.is_waking(*e)));
        assert_eq!(m.level.nr_running(CpuId(3)), 3);
    }
}

#[test]
fn a_busy_cpu_of_the_same_llc_needs_no_wake_list() {
    for cfg in fairs(4) {
        let mut m = two_llcs(&cfg);
        m.pinned(nice(0), 2, HOG);
        m.pinned(nice(0), 3, HOG);
        let cpus = CpuSet::one(CpuId(3));
        let woken = m.start(Attr { policy: nice(0), cpus, group: None }, 3, BRIEF);
        m.run_for(50 * MS);
        m.wake(woken, Some(2));
        assert!(!m.level.is_waking(woken));
        assert_eq!(m.level.nr_running(CpuId(3)), 2);
    }
}

#[test]
fn what_is_changed_of_one_on_a_wake_list_holds_when_it_is_taken() {
    for cfg in fairs(4) {
        let mut m = two_llcs(&cfg);
        m.pinned(nice(0), 0, HOG);
        m.pinned(nice(0), 3, HOG);
        let woken = m.start(Attr::anywhere(nice(0)), 2, BRIEF);
        m.run_for(MS);
        m.wake(woken, Some(0));
        m.set_policy(woken, Policy::Fifo(1));
        assert!(m.level.is_waking(woken));
        // It may not stay, and is on a queue at once.
        m.set_cpus(woken, CpuSet::one(CpuId(3)));
        assert!(!m.level.is_waking(woken) && !m.level.has_woken(CpuId(2)));
        assert_eq!(m.current(3), Some(woken));
    }
}

/// Until Linux 5.15.
#[test]
fn a_cpu_that_is_never_idle_for_long_fetches_nothing_before_it_goes_idle() {
    let fetched = |release: CfsRelease, sleep: Ns| {
        let fair = Fair::Cfs(CfsTunables::of(release, 2));
        let mut cfg = config(2, fair);
        cfg.balance.periodic = false;
        let mut m = Machine::new(&cfg);
        m.pinned(nice(0), 1, Work { run: 50 * US, sleep });
        m.pinned(nice(0), 0, HOG);
        m.run_for(50 * MS);
        let hog = m.pinned(nice(0), 0, HOG);
        m.run_for(MS);
        m.set_cpus(hog, CpuSet::first_n(2));
        m.run_for(50 * MS);
        m.level.cpu_of(hog) == CpuId(1)
    };
    assert!(!fetched(CfsRelease::V5_15, 400 * US));
    assert!(fetched(CfsRelease::V5_15, 600 * US));
    assert!(fetched(CfsRelease::V6_5, 400 * US));
}
