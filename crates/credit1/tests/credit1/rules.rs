//! One known answer for each rule of `sched_credit.c`.

use vcoop_credit1::{Credit1Config, XenVersion};
use vcoop_credit1::{Decision, Pri};
use vcoop_sched::config::Topology;
use vcoop_sched::{CpuId, CpuSet, EntId, LeaveReason};

use crate::driver::{HOG, MS, Machine, US, Work, config};

/// Sleeps until it is woken, then runs for 50 us.
const SLEEPER: Work = Work { run: 50 * US, sleep: 3_600_000 * MS };

fn old(mut cfg: Credit1Config) -> Credit1Config {
    cfg.version = XenVersion::V4_2;
    cfg
}

fn no_ratelimit(mut cfg: Credit1Config) -> Credit1Config {
    cfg.ratelimit_ns = 0;
    cfg
}

/// A hog of domain 1 on CPU 0 that lost the boost of its first wake-up, was interrupted by a
/// sleeper, and runs again from now on.
fn hog_since_now(cfg: &Credit1Config) -> (Machine, EntId) {
    let mut m = Machine::new(cfg);
    let hog = m.start(1, &[0], HOG);
    m.run_for(12 * MS);
    assert_eq!(m.credit.pri(hog), Pri::Under);
    m.start(2, &[0], SLEEPER);
    m.run_for(50 * US);
    assert_eq!(m.log.last(), Some(&(m.now, CpuId(0), Some(hog))));
    (m, hog)
}

/// Waiting time of a sleeper that wakes 300 us after a hog began to run.
fn wait_behind_a_hog(cfg: &Credit1Config) -> Option<u64> {
    let (mut m, _) = hog_since_now(cfg);
    let start = m.now;
    let sleeper = m.add(2, &[0], SLEEPER);
    m.run_for(300 * US);
    m.wake(sleeper);
    m.run_for(5 * MS);
    m.ran_at(sleeper, 0).map(|at| at - start)
}

#[test]
fn a_slice_is_30_ms_and_equals_take_turns() {
    let mut m = Machine::new(&config(1, 2));
    let a = m.start(1, &[0], HOG);
    let b = m.start(2, &[0], HOG);
    m.run_for(65 * MS);
    let turns: Vec<_> = m.log.iter().map(|l| (l.0, l.2)).collect();
    // The entity whose slice ends still has credit (B is charged at 60 ms), and goes behind the other.
    assert_eq!(turns, [(0, Some(a)), (30 * MS, Some(b)), (60 * MS, Some(a))]);
}

#[test]
fn a_wakeup_with_credit_is_boosted_and_the_tick_ends_it() {
    let mut m = Machine::new(&no_ratelimit(config(1, 2)));
    m.start(1, &[0], HOG);
    let e = m.add(2, &[0], Work { run: 20 * MS, sleep: 1 });
    m.run_for(12 * MS);
    m.wake(e);
    assert_eq!((m.current(0), m.credit.pri(e)), (Some(e), Pri::Boost));
    m.run_for(8 * MS - 1);
    assert_eq!(m.credit.pri(e), Pri::Boost);
    m.run_for(1);
    assert_eq!(m.credit.pri(e), Pri::Under);
}

/// CPU 0: a vCPU whose weight is so low that it has no credit. CPU 1: two with high weight.
fn light_and_heavy() -> (Machine, EntId, EntId) {
    let mut cfg = config(2, 3);
    (cfg.domains[1].weight, cfg.domains[2].weight, cfg.domains[3].weight) = (1, 60_000, 60_000);
    let mut m = Machine::new(&cfg);
    let light = m.start(1, &[0], HOG);
    m.start(2, &[1], HOG);
    let heavy = m.start(3, &[1], HOG);
    m.run_for(300 * MS);
    assert_eq!((m.current(0), m.credit.pri(light)), (Some(light), Pri::Over));
    (m, light, heavy)
}

#[test]
fn who_is_out_of_credit_is_not_boosted() {
    let (mut m, light, _) = light_and_heavy();
    let boosts = m.count(Decision::Boost);
    m.schedule(0, LeaveReason::Blocked);
    m.wake(light);
    assert_eq!((m.credit.pri(light), m.count(Decision::Boost)), (Pri::Over, boosts));
}

#[test]
fn burning_is_exact_and_carries_what_is_less_than_a_credit() {
    for (cfg, after_50us) in [(config(1, 1), 0), (old(config(1, 1)), -1)] {
        let mut m = Machine::new(&cfg);
        let e = m.start(1, &[0], HOG);
        for credit in [after_50us, -1] {
            m.run_for(50 * US);
            m.schedule(0, LeaveReason::Blocked);
            assert_eq!(m.credit.credit(e), credit);
            m.run_for(20 * US);
            m.wake(e);
        }
        m.run_for(5 * MS);
        m.schedule(0, LeaveReason::Blocked);
        assert_eq!(m.credit.credit(e), -51);
    }
}

#[test]
fn only_a_tick_makes_a_vcpu_take_part_in_the_accounting() {
    let mut m = Machine::new(&config(1, 1));
    m.run_for(MS);
    // Runs from 1 to 9 ms of every 10.
    let e = m.start(1, &[0], Work { run: 8 * MS, sleep: 2 * MS });
    m.run_for(300 * MS);
    assert_eq!(m.credit.credit(e), -2400);
    assert!(m.credit.pri(e) >= Pri::Under, "never told that it has no credit");
}

#[test]
fn a_full_account_leaves_the_list_with_half_of_it() {
    let mut m = Machine::new(&config(1, 1));
    let e = m.start(1, &[0], HOG);
    m.run_for(35 * MS);
    m.schedule(0, LeaveReason::Blocked);
    // 0 at 30 ms, 50 burnt; 300 earned at 60 and at 90 ms: 550 is full.
    m.run_for(30 * MS);
    assert_eq!(m.credit.credit(e), 250);
    m.run_for(30 * MS);
    assert_eq!(m.credit.credit(e), 275);
    m.run_for(300 * MS);
    assert_eq!(m.credit.credit(e), 275);
}

#[test]
fn debt_is_cut_at_a_timeslice() {
    let mut m = Machine::new(&config(1, 2));
    let e = m.start(1, &[0], HOG);
    m.run_for(15 * MS);
    m.start(2, &[0], HOG);
    for _ in 0..100 {
        m.run_for(30 * MS);
        assert!(m.credit.credit(e) >= -600, "at most a slice more than the floor");
    }
}

#[test]
fn a_queue_is_sorted_by_the_tick_after_an_accounting() {
    let mut cfg = config(1, 5);
    (1..6).for_each(|d| cfg.domains[d].weight = 32 << d);
    let mut m = Machine::new(&cfg);
    (1..6).for_each(|d| {
        m.start(d, &[0], HOG);
    });
    let mut unsorted = 0;
    for _ in 0..20_000 {
        m.run_for(MS);
        let pris: Vec<Pri> = m.queue(0).iter().map(|&e| m.credit.pri(e)).collect();
        if pris.windows(2).any(|w| w[0] < w[1]) {
            unsorted += 1;
            assert!(m.now % (30 * MS) < 10 * MS, "unsorted at {} ns", m.now);
        }
    }
    assert!(unsorted > 0, "priorities change while others wait");
}

#[test]
fn the_ratelimit_protects_for_the_rest_of_a_millisecond() {
    assert_eq!(wait_behind_a_hog(&config(1, 2)), Some(MS));
    assert_eq!(wait_behind_a_hog(&no_ratelimit(config(1, 2))), Some(300 * US));
}

#[test]
fn in_4_2_the_ratelimit_starts_again_with_every_tickle() {
    assert_eq!(wait_behind_a_hog(&old(config(1, 2))), Some(1300 * US));
    // A second one that wakes at 900 us makes the first wait until 1900 us; today until 1000 us.
    for (cfg, ran) in [(old(config(1, 3)), 1900 * US), (config(1, 3), 1000 * US)] {
        let (mut m, _) = hog_since_now(&cfg);
        let start = m.now;
        let first = m.add(2, &[0], SLEEPER);
        let second = m.add(3, &[0], SLEEPER);
        m.run_for(300 * US);
        m.wake(first);
        m.run_for(600 * US);
        m.wake(second);
        m.run_for(5 * MS);
        assert_eq!(m.ran_at(first, 0), Some(start + ran));
    }
}

#[test]
fn waits_behind_a_hog_are_up_to_one_millisecond_today_and_one_to_two_in_4_2() {
    // Today no hold is shorter than 100 us, not even the one that the second tickle begins.
    for (cfg, least, most) in [(config(1, 3), 0, MS + 100 * US), (old(config(1, 3)), MS, 2 * MS)] {
        let mut waits = Vec::new();
        for wakes in (1..999).step_by(37) {
            let (mut m, _) = hog_since_now(&cfg);
            let start = m.now;
            let (other, e) = (m.add(2, &[0], SLEEPER), m.add(3, &[0], SLEEPER));
            m.run_for(wakes * US);
            m.wake(e);
            // Just before the hog's millisecond is over, it is tickled again.
            m.run_for((999 - wakes) * US);
            m.wake(other);
            m.run_for(5 * MS);
            waits.push(m.ran_at(e, 0).unwrap() - start - wakes * US);
        }
        assert!(waits.iter().all(|w| (least..=most).contains(w)), "{waits:?}");
    }
}

#[test]
fn a_yield_ends_the_ratelimit_today_and_not_in_4_2() {
    for (cfg, stays) in [(config(1, 2), false), (old(config(1, 2)), true)] {
        let mut m = Machine::new(&cfg);
        let a = m.start(1, &[0], HOG);
        m.start(2, &[0], HOG);
        m.run_for(300 * US);
        m.schedule(0, LeaveReason::Yield);
        assert_eq!(m.current(0) == Some(a), stays);
    }
}

#[test]
fn a_yielder_lets_one_less_urgent_go_first() {
    let mut m = Machine::new(&config(1, 3));
    let [a, b, c] = [1, 2, 3].map(|d| m.start(d, &[0], HOG));
    // Each had a turn; at 90 ms only A has credit again.
    m.run_for(92 * MS);
    assert_eq!((m.current(0), m.queue(0)), (Some(a), vec![b, c]));
    assert_eq!([a, b, c].map(|e| m.credit.pri(e)), [Pri::Under, Pri::Over, Pri::Over]);
    m.schedule(0, LeaveReason::Yield);
    assert_eq!((m.current(0), m.queue(0)), (Some(b), vec![a, c]));
}

/// Two CPUs: a sleeper that ran on CPU 0 last, a hog pinned there now, CPU 1 idle.
fn sleeper_beside_an_idler(cfg: &Credit1Config) -> (Machine, EntId) {
    let mut m = Machine::new(&no_ratelimit(cfg.clone()));
    let e = m.add(2, &[], SLEEPER);
    m.wake(e);
    m.run_for(MS);
    assert_eq!(m.credit.cpu_of(e), CpuId(0));
    m.start(1, &[0], HOG);
    m.run_for(12 * MS);
    m.decisions.clear();
    m.wake(e);
    (m, e)
}

#[test]
fn today_an_idler_is_tickled_and_who_runs_is_left_alone() {
    let (m, e) = sleeper_beside_an_idler(&config(2, 2));
    assert_eq!((m.count(Decision::Tickle), m.count(Decision::TickleIdler)), (0, 1));
    assert_eq!((m.current(1), m.count(Decision::Steal)), (Some(e), 1));
}

#[test]
fn in_4_2_a_boosted_wakeup_preempts_and_tickles_an_idler_as_well() {
    let (m, e) = sleeper_beside_an_idler(&old(config(2, 2)));
    assert_eq!((m.count(Decision::Tickle), m.count(Decision::TickleIdler)), (1, 1));
    assert_eq!(m.current(0), Some(e));
}

#[test]
fn all_idlers_are_tickled_if_asked_for() {
    for (one, tickled) in [(true, 1), (false, 3)] {
        let mut cfg = config(4, 2);
        cfg.tickle_one_idle = one;
        let (m, _) = sleeper_beside_an_idler(&cfg);
        assert_eq!(m.count(Decision::TickleIdler), tickled);
    }
}

#[test]
fn who_is_preempted_by_a_pinned_vcpu_stays_though_another_cpu_is_idle() {
    let mut m = Machine::new(&config(2, 2));
    let hog = m.start(1, &[], HOG);
    let pinned = m.add(2, &[0], HOG);
    m.run_for(12 * MS);
    m.decisions.clear();
    m.wake(pinned);
    // Until Xen 4.12 it went to the idle CPU. Since the introduction of units the line tests the affinity of the waking
    // entity.
    assert_eq!((m.current(0), m.current(1)), (Some(pinned), None));
    assert_eq!((m.count(Decision::Migrate), m.queue(0)), (0, vec![hog]));
}

/// One vCPU pinned to `busy`, another that starts on CPU `at` and may then go anywhere: returns its CPU after its
/// second tick.
fn after_the_tick(topology: Topology, busy: &[u32], at: u32, savings: bool) -> u32 {
    let mut cfg = config(1, 2);
    cfg.topology = topology;
    cfg.smt_power_savings = savings;
    let mut m = Machine::new(&cfg);
    for &cpu in busy {
        m.start(1, &[cpu], HOG);
    }
    let e = m.start(2, &[at], HOG);
    m.credit.set_cpus(m.now, e, CpuSet::EMPTY);
    m.run_for(20 * MS - 1);
    assert_eq!(m.credit.cpu_of(e), CpuId(at), "one tick to join, one to look");
    m.run_for(1);
    assert!(m.credit.is_running(e));
    m.credit.cpu_of(e).0
}

#[test]
fn the_tick_sends_a_running_vcpu_to_an_idle_core() {
    let smt = Topology { threads_per_core: 2, cores_per_llc: 2, llcs: 1 };
    assert_eq!(after_the_tick(smt, &[0], 1, false) / 2, 1);
    assert_eq!(after_the_tick(smt, &[2], 0, false), 0, "a core of its own is good enough");
    assert_eq!(after_the_tick(smt, &[2], 0, true), 3, "unless cores are to be filled");
}

#[test]
fn another_socket_has_to_be_twice_as_idle() {
    let sockets = |cores_per_llc| Topology { threads_per_core: 1, cores_per_llc, llcs: 2 };
    assert_eq!(after_the_tick(sockets(2), &[0], 1, false), 1);
    assert_eq!(after_the_tick(sockets(3), &[0, 2], 1, false) / 3, 1);
}

#[test]
fn an_idle_cpu_takes_who_waits_and_respects_affinity() {
    for (cpus, taken) in [(&[][..], true), (&[0], false)] {
        let mut m = Machine::new(&config(2, 2));
        let blocks = m.start(1, &[1], HOG);
        m.start(1, &[0], HOG);
        let waits = m.start(2, &[0], HOG);
        m.credit.set_cpus(m.now, waits, cpus.iter().copied().collect());
        m.run_for(2 * MS);
        assert_eq!((m.current(1), m.queue(0)), (Some(blocks), vec![waits]));
        m.schedule(1, LeaveReason::Blocked);
        assert_eq!(m.current(1) == Some(waits), taken);
    }
}

#[test]
fn who_is_out_of_credit_gives_way_to_credit_from_elsewhere() {
    let (mut m, _, heavy) = light_and_heavy();
    m.credit.set_cpus(m.now, heavy, CpuSet::EMPTY);
    m.run_for(65 * MS);
    assert!(
        m.decisions
            .iter()
            .any(|d| d.1 == Decision::Steal.name() && d.2 == heavy && d.3 == CpuId(0))
    );
}

#[test]
fn a_cache_hot_vcpu_is_not_stolen() {
    for (delay, stolen) in [(0, true), (50 * MS, false)] {
        let mut cfg = config(2, 2);
        cfg.migration_delay_ns = delay;
        let (m, e) = sleeper_beside_an_idler(&cfg);
        assert_eq!(m.current(1) == Some(e), stolen);
    }
}

#[test]
fn load_balancing_can_be_limited_to_once_in_a_while() {
    for (limit, stolen) in [(0, true), (10 * MS, false)] {
        let mut cfg = config(2, 2);
        cfg.load_balance_ratelimit_ns = limit;
        let mut m = Machine::new(&cfg);
        m.run_for(20 * MS);
        // CPU 1 looks for work as it goes idle, and finds none.
        m.start(1, &[1], Work { run: 100 * US, sleep: 1000 * MS });
        m.run_for(MS);
        let (m, e) = {
            let e = m.add(2, &[0], SLEEPER);
            m.wake(e);
            m.run_for(MS);
            m.credit.set_cpus(m.now, e, CpuSet::EMPTY);
            m.start(1, &[0], HOG);
            m.wake(e);
            (m, e)
        };
        assert_eq!(m.current(1) == Some(e), stolen);
    }
}

#[test]
fn ticks_stop_while_a_cpu_idles() {
    let mut m = Machine::new(&config(2, 1));
    let e = m.start(1, &[1], HOG);
    assert_eq!(m.credit.deadline(CpuId(1)), Some(10 * MS));
    m.run_for(13 * MS);
    m.schedule(1, LeaveReason::Blocked);
    assert_eq!(m.credit.deadline(CpuId(1)), None);
    m.wake(e);
    assert_eq!(m.credit.deadline(CpuId(1)), Some(20 * MS), "on the grid that all CPUs share");
    assert_eq!(m.credit.deadline(CpuId(0)), Some(30 * MS), "the master accounts even when idle");
}

#[test]
fn a_ratelimit_can_be_set_for_one_domain() {
    let (mut m, hog) = hog_since_now(&config(1, 2));
    let start = m.now;
    m.credit.set_ratelimit(1, Some(400 * US));
    let sleeper = m.add(2, &[0], SLEEPER);
    m.run_for(300 * US);
    m.wake(sleeper);
    m.run_for(MS);
    assert_eq!(m.ran_at(sleeper, 0), Some(start + 400 * US));
    assert_eq!((m.credit.ratelimit_of(hog), m.credit.ratelimit_of(sleeper)), (400 * US, MS));
    m.credit.set_ratelimit(1, None);
    assert_eq!(m.credit.ratelimit_of(hog), MS);
}

#[test]
fn runs_are_observed() {
    let mut m = Machine::new(&config(1, 1));
    let short = m.start(1, &[0], Work { run: 50 * US, sleep: 450 * US });
    m.run_for(5 * MS - 1);
    let long = m.start(1, &[0], Work { run: 150 * US, sleep: 350 * US });
    m.run_for(5 * MS);
    let seen = m.credit.observed(short);
    assert_eq!((seen.wakes, seen.blocks, seen.short_runs), (20, 20, 20));
    assert_eq!(seen.run_ns, 1000 * US);
    assert_eq!(m.credit.observed(long).short_runs, 0);
    assert!(m.credit.observed(long).blocks >= 9);
}

/// A wake-up that a ratelimit delays counts for the protected entity, whatever the length of the ratelimit: a policy
/// that sets ratelimits by this count does not react to its own effect.
#[test]
fn challenges_count_whatever_the_ratelimit() {
    for version in [XenVersion::V4_2, XenVersion::Current] {
        for limit in [0, 100 * US, MS] {
            let (mut m, hog) = hog_since_now(&Credit1Config { version, ..config(1, 4) });
            m.credit.set_ratelimit(1, Some(limit));
            let before = m.credit.observed(hog);
            let short = m.add(3, &[0], SLEEPER);
            let long = m.add(4, &[0], Work { run: 3 * MS, ..SLEEPER });
            for e in [short, long] {
                // The first run of each shows how long its runs are.
                for _ in 0..2 {
                    m.run_for(20 * MS);
                    assert_eq!(m.current(0), Some(hog));
                    m.wake(e);
                }
            }
            m.run_for(20 * MS);
            let seen = m.credit.observed(hog);
            assert_eq!(seen.challenges - before.challenges, 4, "{version:?} {limit}");
            assert_eq!(seen.short_challenges - before.short_challenges, 1, "{version:?} {limit}");
        }
    }
}

/// An equal is no challenge, nor is work that an idle CPU takes.
#[test]
fn what_leaves_the_running_one_alone_is_no_challenge() {
    let (mut m, hog) = hog_since_now(&config(2, 2));
    let e = m.start(2, &[0], SLEEPER);
    m.run_for(20 * MS);
    let before = m.credit.observed(hog).challenges;
    m.credit.set_cpus(m.now, e, CpuSet::EMPTY);
    assert_eq!((m.current(0), m.credit.cpu_of(e)), (Some(hog), CpuId(0)));
    m.wake(e);
    m.run_for(MS);
    assert_eq!(m.credit.cpu_of(e), CpuId(1));
    assert_eq!(m.credit.observed(hog).challenges, before);
}
