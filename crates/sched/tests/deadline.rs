//! Deadline entities: order, bandwidth, moving between CPUs, admission, and who is ahead of whom.

use crate::driver::{HOG, MS, Machine, US, Work, assert_ratio, eevdf, nice};
use proptest::prelude::*;
use vcoop_sched::config::{DlConfig, LevelConfig, Policy, RtGuard};
use vcoop_sched::{Attr, CpuId, CpuSet, EntId, LeaveReason, Level, Refusal};

/// Never wakes by itself again.
const ASLEEP: u64 = 1 << 60;

fn dl(runtime_ns: u64, period_ns: u64) -> Policy {
    constrained(runtime_ns, period_ns, period_ns)
}

fn constrained(runtime_ns: u64, deadline_ns: u64, period_ns: u64) -> Policy {
    Policy::Deadline { runtime_ns, deadline_ns, period_ns }
}

fn config(cpus: u32, admission: bool, hrtick: bool) -> LevelConfig {
    LevelConfig { dl: DlConfig { admission, hrtick }, ..eevdf(cpus) }
}

fn machine(cpus: u32) -> Machine {
    Machine::new(&config(cpus, true, true))
}

fn switches(m: &Machine, unit: u64) -> Vec<(u64, Option<EntId>)> {
    m.log.iter().map(|l| (l.0 / unit, l.2)).collect()
}

#[test]
fn the_earliest_deadline_runs() {
    let mut m = machine(1);
    let once = Work { run: 5 * MS, sleep: ASLEEP };
    let late = m.spawn(dl(6 * MS, 100 * MS), once);
    m.run_until(2 * MS);
    let early = m.spawn(dl(6 * MS, 50 * MS), once);
    let same = m.spawn(dl(6 * MS, 50 * MS), once);
    m.run_until(60 * MS);
    // An equal deadline waits for the one that came first, and a later one for both.
    let expect = [(0, Some(late)), (2, Some(early)), (7, Some(same)), (12, Some(late)), (15, None)];
    assert_eq!(switches(&m, MS), expect);
}

#[test]
fn absolute_deadlines_count_not_periods() {
    let mut m = machine(1);
    let long = m.spawn(dl(20 * MS, 100 * MS), Work { run: 15 * MS, sleep: ASLEEP });
    m.run_until(10 * MS);
    // 10 + 95 is later than 100.
    let short = m.spawn(dl(20 * MS, 95 * MS), HOG);
    assert!(m.level.is_running(long) && m.level.is_queued(short));
    assert_eq!(m.level.reservation(short), Some((105 * MS, 20 * MS as i64)));
}

#[test]
fn a_greedy_entity_has_its_bandwidth_and_no_more() {
    for hrtick in [false, true] {
        let mut m = Machine::new(&config(1, true, hrtick));
        let greedy = m.spawn(dl(2500 * US, 10 * MS), HOG);
        let fair = m.spawn(nice(0), HOG);
        m.run_until(10_000 * MS);
        // Without a timer of its own the end is found at a tick: the overrun is paid back.
        assert_ratio(m.exec(greedy), 10_000 * MS, 0.25, 0.1);
        assert_ratio(m.exec(fair), 10_000 * MS, 0.75, 0.1);
    }
}

#[test]
fn who_wakes_up_does_not_end_the_runtime_of_another() {
    for (hrtick, end) in [(false, 3 * MS), (true, 2500 * US)] {
        let mut m = Machine::new(&config(1, true, hrtick));
        let greedy = m.spawn(dl(2500 * US, 10 * MS), HOG);
        m.run_until(2700 * US);
        let later = m.spawn(dl(MS, 90 * MS), HOG);
        assert_eq!(m.level.is_running(greedy), !hrtick);
        m.run_until(3010 * US);
        assert!(m.level.is_throttled(greedy) && m.level.is_running(later), "{hrtick}");
        assert_eq!(m.exec(greedy), end);
    }
}

#[test]
fn another_nice_value_does_not_end_the_runtime_of_another() {
    let mut m = Machine::new(&config(1, true, false));
    let fair = m.spawn(nice(0), HOG);
    let greedy = m.spawn(dl(2500 * US, 10 * MS), HOG);
    m.run_until(2700 * US);
    m.set_policy(fair, nice(5));
    assert!(!m.level.is_throttled(greedy));
    m.run_until(3010 * US);
    assert!(m.level.is_throttled(greedy) && m.level.is_running(fair));
    assert_eq!(m.exec(greedy), 3 * MS);
}

#[test]
fn used_up_runtime_waits_for_the_next_period() {
    let mut m = machine(1);
    let e = m.spawn(dl(2 * MS, 10 * MS), HOG);
    m.run_until(5 * MS);
    assert!(m.level.is_throttled(e) && m.level.nr_running(CpuId(0)) == 1);
    assert_eq!(m.level.deadline(CpuId(0)), Some(10 * MS));
    m.run_until(25 * MS);
    let all = [0, 2, 10, 12, 20, 22];
    let expect: Vec<_> = all.iter().map(|&t| (t, (t % 10 == 0).then_some(e))).collect();
    assert_eq!(switches(&m, MS), expect);
    // Found at ticks instead: 2 ms runs to the tick at 2 ms, and 2.5 ms to the one at 3 ms; half
    // a millisecond less in the next period, which then ends at a tick.
    let mut m = Machine::new(&config(1, true, false));
    m.spawn(dl(2500 * US, 10 * MS), HOG);
    m.run_until(25 * MS);
    let ends: Vec<_> = m.log.iter().filter(|l| l.2.is_none()).map(|l| l.0 / (100 * US)).collect();
    assert_eq!(ends, [30, 120, 230]);
}

#[test]
fn a_yield_gives_up_the_rest_of_the_period() {
    let mut m = machine(1);
    let e = m.spawn(dl(4 * MS, 10 * MS), HOG);
    let other = m.spawn(nice(0), HOG);
    m.run_until(MS);
    m.schedule(0, LeaveReason::Yield);
    assert!(m.level.is_throttled(e) && m.level.is_running(other));
    m.run_until(20 * MS - 1);
    assert_eq!(m.exec(e), 5 * MS);
}

#[test]
fn waking_within_a_period_earns_no_second_runtime() {
    let mut m = machine(1);
    // Runs 2 of 4 ms and sleeps: on waking at 3 ms 2 ms are left for 7 ms, which fits.
    let e = m.spawn(dl(4 * MS, 10 * MS), Work { run: 2 * MS, sleep: MS });
    m.run_until(4 * MS);
    assert_eq!(m.level.reservation(e).unwrap().0, 10 * MS);
    // At 5 ms it is used up, though it sleeps then; at 6 ms it wakes, and waits.
    m.run_until(7 * MS);
    assert!(m.level.is_throttled(e));
    m.run_until(10_000 * MS);
    let exec = m.exec(e);
    assert!((3500 * MS..=4004 * MS).contains(&exec), "{exec}");
}

#[test]
fn deadline_goes_before_rt_and_rt_goes_elsewhere() {
    let mut m = machine(2);
    let rt = m.spawn(Policy::Fifo(99), HOG);
    let fair = m.start(Attr::anywhere(nice(0)), 1, HOG);
    m.run_until(MS);
    let at = m.level.cpu_of(rt);
    let e = m.add(Attr::anywhere(dl(5 * MS, 100 * MS)), at.0, Work { run: 2 * MS, sleep: ASLEEP });
    m.wake(e, None);
    assert!(m.level.is_running(e) && m.level.cpu_of(e) == at, "it preempts FIFO 99 where it woke");
    // A second RT entity finds the other CPU, not the one with the deadline.
    let second = m.start(Attr::anywhere(Policy::Fifo(1)), at.0, HOG);
    assert_eq!(m.level.current(CpuId(1 - at.0)), Some(second));
    assert!(m.level.is_queued(fair) && m.level.is_queued(rt));
    m.run_until(4 * MS);
    assert!(m.level.is_running(rt));
}

#[test]
fn the_latest_deadline_makes_room() {
    let mut m = machine(2);
    let work = Work { run: 30 * MS, sleep: ASLEEP };
    let a = m.start(Attr::anywhere(dl(40 * MS, 100 * MS)), 0, work);
    let b = m.start(Attr::anywhere(dl(40 * MS, 200 * MS)), 0, work);
    assert_eq!((m.level.cpu_of(a).0, m.level.cpu_of(b).0), (0, 1), "one on each CPU");
    // Later than both: it waits.
    let c = m.start(Attr::anywhere(dl(40 * MS, 300 * MS)), 0, work);
    assert!(m.level.is_queued(c));
    // Later than `a`, where it wakes, earlier than `b`: it goes to `b`'s CPU.
    let d = m.start(Attr::anywhere(dl(40 * MS, 150 * MS)), 0, work);
    assert!(m.level.is_running(a) && m.level.is_running(d));
    assert_eq!((m.level.cpu_of(d).0, m.level.is_queued(b)), (1, true));
    // When `a` is done its CPU pulls `b`, the earliest that waits, wherever `b` waits.
    m.run_until(31 * MS);
    assert!(m.level.is_running(b) && m.level.is_queued(c) || m.level.is_running(c));
    m.schedule(m.level.cpu_of(d).0, LeaveReason::Preempted);
    assert!(!m.level.is_queued(b), "`b` is earlier than `c`");
    assert!(m.level.stats(b).migrations <= 2);
}

#[test]
fn a_replenished_entity_is_pushed_to_a_free_cpu() {
    let mut m = machine(2);
    let a = m.start(Attr::anywhere(dl(2 * MS, 20 * MS)), 0, HOG);
    m.run_until(3 * MS);
    assert!(m.level.is_throttled(a));
    // Takes the CPU on which `a` waits for its period, with an earlier deadline than it will have.
    let b = m.start(Attr::anywhere(dl(20 * MS, 30 * MS)), m.level.cpu_of(a).0, HOG);
    m.run_until(20 * MS);
    assert!(m.level.is_running(a) && m.level.is_running(b));
    assert_ne!(m.level.cpu_of(a), m.level.cpu_of(b));
}

#[test]
fn admission_is_that_of_the_kernel() {
    let mut level = Level::new(&config(2, true, false)).unwrap();
    let half = dl(50 * MS, 100 * MS);
    let all = Attr::anywhere(half);
    let one = Attr { cpus: CpuSet::one(CpuId(0)), ..Attr::anywhere(half) };
    assert_eq!(level.try_add(one.clone(), CpuId(0)), Err(Refusal::Affinity));
    let ids: Vec<_> = (0..3).map(|_| level.try_add(all.clone(), CpuId(0)).unwrap()).collect();
    assert_eq!(level.try_add(all.clone(), CpuId(0)), Err(Refusal::Bandwidth));
    let odd = Attr::anywhere(dl(1000, MS));
    assert_eq!(level.try_add(odd, CpuId(0)), Err(Refusal::Parameters));
    assert_eq!(level.try_set_cpus(0, ids[0], CpuSet::one(CpuId(1))), Err(Refusal::Affinity));
    assert_eq!(level.cpus(ids[0]).len(), 2);
    let fair = level.add(Attr::anywhere(nice(0)), CpuId(0));
    assert_eq!(level.try_set_policy(0, fair, half), Err(Refusal::Bandwidth));
    assert_eq!(level.policy(fair), nice(0));
    // One that never ran leaves nothing behind.
    level.set_policy(0, ids[2], nice(0));
    assert_eq!(level.try_set_policy(0, fair, half), Ok(()));
    level.check();
    let mut level = Level::new(&config(2, false, false)).unwrap();
    for _ in 0..9 {
        level.try_add(one.clone(), CpuId(0)).unwrap();
    }
    level.check();
}

#[test]
fn switching_to_and_fro_earns_nothing() {
    let mut m = machine(1);
    // The RT hog leaves the CPU only to deadline entities.
    m.spawn(Policy::Fifo(50), HOG);
    let e = m.spawn(nice(0), HOG);
    for _ in 0..2000 {
        m.set_policy(e, dl(2 * MS, 10 * MS));
        m.run_for(400 * US);
        m.set_policy(e, nice(0));
        m.run_for(100 * US);
    }
    let most = m.now / 5 + 2 * MS;
    assert!(m.exec(e) <= most, "{} of {most}", m.exec(e));
    assert!(m.exec(e) >= m.now / 10, "{}", m.exec(e));
}

#[test]
fn who_falls_out_of_the_class_makes_way_for_better_rt() {
    let mut m = machine(1);
    let falls = m.spawn(dl(50 * MS, 100 * MS), HOG);
    let better = m.spawn(Policy::Fifo(99), HOG);
    m.run_until(MS);
    assert!(m.level.is_running(falls));
    m.set_policy(falls, Policy::Rr(98));
    m.run_until(2 * MS);
    assert!(m.level.is_running(better));
}

#[test]
fn rt_throttling_counts_deadlines_and_spares_them() {
    let mut cfg = config(1, true, true);
    cfg.rt_guard = RtGuard::THROTTLE;
    let mut m = Machine::new(&cfg);
    let e = m.spawn(dl(50 * MS, 100 * MS), HOG);
    let rt = m.spawn(Policy::Fifo(1), HOG);
    let fair = m.spawn(nice(0), HOG);
    m.run_until(20_000 * MS);
    assert_ratio(m.exec(e), 20_000 * MS, 0.5, 0.1);
    assert_ratio(m.exec(rt), 20_000 * MS, 0.45, 1.0);
    assert!(m.exec(fair) > 0);
}

#[test]
fn the_fair_server_is_a_deadline_among_others() {
    let mut cfg = config(1, false, true);
    cfg.rt_guard = RtGuard::FAIR_SERVER;
    let mut m = Machine::new(&cfg);
    // More than admission would grant: with a deadline behind the server's, then one ahead of it.
    let e = m.spawn(dl(4000 * MS, 4000 * MS), HOG);
    let fair = m.spawn(nice(0), HOG);
    m.run_until(1000 * MS);
    assert_eq!(m.exec(fair), 50 * MS);
    m.set_policy(e, nice(0));
    m.run_until(10_000 * MS);
    m.set_policy(e, dl(10 * MS, 10 * MS));
    let before = m.exec(fair);
    m.run_until(20_000 * MS);
    assert!(m.exec(fair) - before <= 51 * MS, "{}", m.exec(fair) - before);
}

/// Parameters of a set: runtime and period in microseconds, whether it takes all it can get.
fn sets() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    proptest::collection::vec((1u64..100, 1u64..40, proptest::bool::weighted(0.3)), 1..7).prop_map(
        |raw| {
            // Shares that add up to one, less rounding.
            let sum: u64 = raw.iter().map(|r| r.0).sum();
            raw.iter()
                .map(|&(share, period, greedy)| (period * 500 * share / sum, period * 500, greedy))
                .filter(|&(runtime, ..)| runtime > 3)
                .collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    /// EDF is optimal on one CPU: sporadic entities that ask for no more than they reserved meet all
    /// deadlines at any utilisation up to 1, also beside others that take whatever they can get.
    #[test]
    fn nobody_misses_on_one_cpu(set in sets(), starts in proptest::collection::vec(0u64..5000, 7)) {
        prop_assert!(set.iter().map(|s| s.0 * 1_000_000 / s.1).sum::<u64>() <= 1_000_000);
        let mut m = Machine::new(&config(1, false, true));
        // FIFO work does not get in their way either.
        m.spawn(Policy::Fifo(99), HOG);
        let mut releases = Vec::new();
        let mut greedy_ones = Vec::new();
        for (&(runtime, period, greedy), &start) in set.iter().zip(&starts) {
            let attr = Attr::anywhere(dl(runtime * US, period * US));
            if greedy {
                let e = m.start(attr, 0, HOG);
                greedy_ones.push((e, runtime, period));
            } else {
                // A microsecond less than reserved: a run that ends exactly with its runtime may be
                // throttled before it blocks.
                let work = Work { run: (runtime - 1) * US, sleep: ASLEEP };
                releases.push((start * US, m.add(attr, 0, work), period * US));
            }
        }
        let mut first = vec![true; set.len() + 1];
        while let Some(next) = releases.iter_mut().min_by_key(|r| r.0)
            && next.0 < 200 * MS
        {
            let (at, e, period) = *next;
            next.0 += period;
            m.run_until(at);
            let done = !m.level.is_queued(e) && !m.level.is_running(e);
            prop_assert!(done, "{} is not done by {}: {:?}", e, at, m.level.reservation(e));
            prop_assert!(first[e.index()] || m.level.reservation(e).unwrap().0 <= at + period);
            first[e.index()] = false;
            m.wake(e, None);
        }
        m.run_until(200 * MS);
        for (e, runtime, period) in greedy_ones {
            let most = (200 * MS / (period * US) + 1) * runtime * US;
            prop_assert!(m.exec(e) <= most, "{} ran {} of {}", e, m.exec(e), most);
        }
    }

    /// A greedy set on several CPUs: each has its bandwidth, and all together no more than there is.
    #[test]
    fn bandwidth_holds_on_several_cpus(
        cpus in 2u32..4, shares in proptest::collection::vec(10u64..90, 1..6)
    ) {
        let mut m = Machine::new(&config(cpus, true, true));
        m.spawn(nice(0), HOG);
        let mut admitted = Vec::new();
        for share in shares {
            let attr = Attr::anywhere(nice(0));
            let e = m.start(attr, 0, HOG);
            if m.level.try_set_policy(m.now, e, dl(share * 100 * US, 10 * MS)).is_ok() {
                admitted.push((e, share));
            }
            m.serve();
        }
        m.run_until(2000 * MS);
        for (e, share) in admitted {
            let exec = m.exec(e);
            let most = share * 20 * MS + 10 * MS;
            prop_assert!(exec <= most, "{} ran {} of {}", e, exec, most);
            prop_assert!(exec + 200 * MS >= share * 20 * MS, "{} ran {} of {}", e, exec, share);
        }
    }
}
