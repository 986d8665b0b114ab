//! EEVDF as a level drives it: what depends on the order in which a call charges, queues and compares.

use crate::driver::{HOG, MS, Machine, US, Work, config, nice};
use vcoop_sched::config::EevdfRelease::{self, V6_6, V6_15, V6_18, V6_18_0, V7_3};
use vcoop_sched::config::{EevdfTunables, Fair, Policy};
use vcoop_sched::{CpuId, EntId, LeaveReason};

/// A CPU of a host of two, at 250 Hz.
fn machine(release: EevdfRelease) -> Machine {
    machine_with(EevdfTunables::of(release, 2))
}

fn machine_with(fair: EevdfTunables) -> Machine {
    let mut cfg = config(1, Fair::Eevdf(fair));
    cfg.tick_ns = 4 * MS;
    Machine::new(&cfg)
}

#[test]
fn a_debtor_that_wakes_beside_one_hog_preempts_it() {
    for release in EevdfRelease::ALL {
        let mut m = machine(release);
        let p = m.spawn(nice(0), HOG);
        let hog = m.spawn(nice(0), HOG);
        m.run_for(90 * US);
        m.schedule(0, LeaveReason::Blocked);
        assert_eq!(m.current(0), Some(hog));
        m.run_for(600 * US);
        m.wake(p, None);
        // Linux 6.6 has no delayed sleepers: the debt is kept, and the hog has run no longer than it should.
        let first = if release == V6_6 { hog } else { p };
        assert_eq!(m.current(0), Some(first), "{release:?}");
    }
}

#[test]
fn a_loop_of_yields_gets_next_to_nothing_since_2026() {
    // A yield costs a request of 1.4 ms, which the hog has first.
    let mut m = machine(V6_18);
    let hog = m.spawn(nice(0), HOG);
    let yielder = m.spawn(nice(0), HOG);
    let mut yields = 0;
    while m.now < 2000 * MS {
        if m.current(0) == Some(yielder) {
            m.run_for(US);
            m.schedule(0, LeaveReason::Yield);
            yields += 1;
        } else {
            m.run_for(10 * US);
        }
    }
    assert!((1350..1450).contains(&yields), "{yields} in 2 s");
    assert!(m.exec(yielder) < 2 * 10 * MS, "{}", m.exec(yielder));
    assert!(m.exec(hog) > 1950 * MS);
}

#[test]
fn who_yielded_often_keeps_others_waiting_until_its_deadline() {
    // One thread yields for 50 ms, and then runs on as the hog beside it does. How long does the hog wait at most?
    let longest = |release, yield_forfeits| {
        let fair = EevdfTunables { yield_forfeits, ..EevdfTunables::of(release, 2) };
        let mut m = machine_with(fair);
        let hog = m.spawn(nice(0), HOG);
        let yielder = m.spawn(nice(0), HOG);
        let (mut ran, mut longest) = (0, 0);
        while m.now < 2000 * MS {
            if m.current(0) == Some(hog) {
                ran = m.now;
            }
            longest = longest.max(m.now - ran);
            m.run_for(20 * US);
            if m.now < 50 * MS && m.current(0) == Some(yielder) {
                m.schedule(0, LeaveReason::Yield);
            }
        }
        longest
    };
    for release in EevdfRelease::ALL {
        let (moved, forfeited) = (longest(release, false), longest(release, true));
        assert!(forfeited < 8 * MS, "{release:?}: {forfeited}");
        assert_eq!(moved > 100 * MS, release < V6_18_0, "{release:?}: {moved}");
        assert!(release < V6_18_0 || moved < 8 * MS, "{release:?}: {moved}");
    }
}

#[test]
fn a_timer_ends_requests_since_7_1() {
    // Changes of the running one in 2 s, with ticks of 4 ms and requests of 1.4 ms.
    let changes = |hrtick, hogs| {
        let fair = EevdfTunables { hrtick, ..EevdfTunables::of(V6_18, 2) };
        let mut m = machine_with(fair);
        (0..hogs).for_each(|_| _ = m.spawn(nice(0), HOG));
        let (mut last, mut changes) = (m.current(0), 0);
        while m.now < 2000 * MS {
            m.run_for(100 * US);
            changes += u32::from(m.current(0) != last);
            last = m.current(0);
        }
        let armed = m.level.deadline(CpuId(0)).is_some();
        // The one that has just come stays queued for its debt, so that the other one is not alone when it comes.
        while hogs > 1 && m.current(0) == last {
            m.run_for(100 * US);
        }
        m.run_for(MS);
        (0..hogs).for_each(|_| m.schedule(0, LeaveReason::Blocked));
        assert_eq!((m.current(0), m.level.deadline(CpuId(0))), (None, None), "it is idle");
        (changes, armed)
    };
    assert_eq!(changes(true, 1), (0, false), "there is nobody to give way to");
    let (by_tick, armed) = changes(false, 2);
    assert!((480..=505).contains(&by_tick) && !armed, "{by_tick}");
    let (by_timer, armed) = changes(true, 2);
    assert!((1400..=1430).contains(&by_timer) && armed, "{by_timer}");
}

#[test]
fn who_is_picked_again_runs_to_the_next_tick() {
    // One of two hogs has the weight to be picked twice in a row: nothing starts the timer again.
    let mut m = machine(V7_3);
    let heavy = m.spawn(nice(-10), HOG);
    let light = m.spawn(nice(0), HOG);
    let (mut began, mut longest) = (m.now, 0);
    while m.now < 2000 * MS {
        m.run_for(100 * US);
        if m.current(0) == Some(light) {
            began = m.now;
        }
        longest = longest.max(m.now - began);
    }
    assert!(m.exec(heavy) > 8 * m.exec(light));
    assert!(longest > 4 * MS, "{longest}");
}

/// Share of two hogs beside a thread that is real-time for `on` of every millisecond and fair for the rest, and
/// beside a light one with a period of its own, if there is one.
fn hogs(release: EevdfRelease, on: u64, light: Option<u64>) -> f64 {
    let mut m = machine(release);
    let vcpu = m.spawn(nice(0), HOG);
    let hogs: Vec<EntId> = (0..2).map(|_| m.spawn(nice(0), HOG)).collect();
    if let Some(run) = light {
        m.spawn(nice(0), Work { run, sleep: 1037 * US - run });
    }
    let end = 20_000 * MS;
    for at in (0..end).step_by(MS as usize) {
        m.run_until(at);
        m.set_policy(vcpu, Policy::Fifo(1));
        m.run_for(on);
        m.set_policy(vcpu, nice(0));
    }
    m.run_until(end);
    hogs.iter().map(|&e| m.exec(e)).sum::<u64>() as f64 / end as f64
}

#[test]
fn a_boost_costs_the_hogs_their_part_of_it() {
    for on in [50 * US, 150 * US, 280 * US] {
        let left = 1.0 - on as f64 / MS as f64;
        let alone = hogs(V6_18, on, None);
        assert!((alone - left * 2.0 / 3.0).abs() < 0.01, "{on}: {alone}");
        // With one beside it that comes and goes, and pays 28 us for it, nearly so.
        let light = hogs(V6_18, on, Some(28 * US));
        assert!((light - (left - 0.027) * 2.0 / 3.0).abs() < 0.01, "{on}: {light}");
        // One that pays next to nothing always has lag: each return is placed too favourably, and before 2026 it was
        // protected besides.
        let of = |release| hogs(release, on, Some(4 * US));
        let (new, old) = (of(V6_18), of(V6_15));
        assert!(new > old + 0.025, "{on}: {new} and {old}");
    }
}
