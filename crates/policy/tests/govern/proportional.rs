//! `proportional`: how it measures, folds and opens again.

use vcoop_policy::govern::{CpuTime, Governor, GovernorConfig, GovernorInput, Kind, State};

use super::{Guest, Host, S, every, interval, seen, widths};

/// A governor's look at an interval in which each vCPU in use was busy, and was kept waiting, for so many percent of
/// the time.
fn look(g: &mut Governor, busy_pct: u64, steal_pct: u64) -> (u32, State) {
    let time = CpuTime { busy_ns: S / 100 * busy_pct, steal_ns: S / 100 * steal_pct };
    g.on(&seen(&vec![Some(time); g.width() as usize]));
    let width = g.width();
    match g {
        Governor::Proportional(p) => (width, p.state()),
        _ => unreachable!("it is proportional"),
    }
}

#[test]
fn states_are_as_the_table_says() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 8, 1);
    let mut look = |busy_pct, steal_pct| look(&mut g, busy_pct, steal_pct);
    assert_eq!(look(95, 5), (8, State::Open), "not above the threshold");
    assert_eq!(look(50, 50), (4, State::Folded));
    assert_eq!(look(97, 3), (4, State::Folded), "between the thresholds: hold");
    assert_eq!(look(98, 2), (5, State::Trying), "not above the lower one");
    assert_eq!(look(80, 20), (4, State::Folded), "still contended");
    assert_eq!(look(70, 30), (4, State::Folded), "partly the CPU time of another width");
    assert_eq!(look(70, 30), (6, State::Folded), "it loses: 2.8 of 4 CPUs");
    assert_eq!(look(50, 50), (6, State::Folded), "another width again");
    assert_eq!(look(66, 34), (6, State::Folded), "3.96 of 4");
}

#[test]
fn a_guest_that_had_room_and_is_saturated_since_is_measured_again() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 8, 1);
    let mut look = |busy_pct, steal_pct| look(&mut g, busy_pct, steal_pct).0;
    assert_eq!(look(45, 15), 6, "3.6 CPUs with room");
    assert_eq!(look(66, 34), 6, "the first look at this width");
    assert_eq!(look(66, 34), 8, "4 CPUs, and it wants more than it did");
    assert_eq!([look(50, 50), look(50, 50)], [8, 6], "it saturates all of them");
    assert_eq!([look(66, 34), look(66, 34)], [6, 4], "so four do, at once");
}

/// 1.6 CPUs of 16, of which three leave room.
#[test]
fn a_guest_that_is_crowded_gets_room_and_keeps_it() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 16, 1);
    let mut look = |busy_pct, steal_pct| look(&mut g, busy_pct, steal_pct);
    assert_eq!([look(10, 30).0, look(40, 30).0, look(40, 30).0], [4, 4, 3]);
    assert_eq!(
        [look(53, 30).0, look(53, 30).0],
        [3, 3],
        "two are enough for it, and leave no room"
    );
    assert_eq!(look(81, 0), (5, State::Folded), "2.43 CPUs want 4.05");
    assert_eq!([look(60, 40).0, look(60, 40).0], [5, 5], "all are not tried at once");
    for _ in 0..9 {
        // Enough for its tasks, and nothing that it could do without.
        assert_eq!(look(50, 10), (5, State::Folded));
    }
}

/// 2.4 CPUs of eight, of which four leave room.
#[test]
fn a_guest_that_does_less_than_it_did_has_lost_nothing() {
    let folded = || {
        let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 8, 1);
        assert_eq!(look(&mut g, 30, 10), (6, State::Folded));
        assert_eq!(look(&mut g, 40, 1), (6, State::Folded));
        g
    };
    let mut g = folded();
    assert_eq!(look(&mut g, 30, 1), (6, State::Folded), "1.8 CPUs, and not saturated");
    // Steal that is too little to fold for begins the hold anew.
    let mut g = folded();
    assert_eq!([look(&mut g, 40, 6), look(&mut g, 40, 0)], [(6, State::Folded); 2]);
    assert_eq!(look(&mut g, 40, 0), (7, State::Trying));
    // Had it been held back, 3.6 CPUs at full width would show a loss.
    let mut g = folded();
    for _ in 0..30 {
        assert_eq!(look(&mut g, 40, 1), (6, State::Folded));
    }
    assert_eq!([look(&mut g, 40, 0), look(&mut g, 45, 15)], [(8, State::Measuring); 2]);
    assert_eq!(look(&mut g, 45, 15), (6, State::Folded));
}

/// The only vCPU in use is alone on its core: a core would be enough for what it does, and not this one.
#[test]
fn a_crowded_core_that_lacks_a_vcpu_is_widened_as_well() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 4, 2);
    let mut look = |busy_pct, steal_pct| {
        let time = Some(CpuTime { busy_ns: S / 100 * busy_pct, steal_ns: S / 100 * steal_pct });
        g.on(&seen(&[time, None, time, time]));
        g.width()
    };
    assert_eq!([look(10, 30), look(60, 0), look(85, 0)], [2, 2, 4]);
}

/// Folding costs CPU time at any width where each thread has its own share.
#[test]
fn what_lost_is_not_folded_again_until_nobody_competes() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 8, 1);
    let mut look = |busy_pct, steal_pct| look(&mut g, busy_pct, steal_pct);
    assert_eq!([look(50, 50).0, look(25, 75).0, look(25, 75).0], [4, 4, 8]);
    assert_eq!([look(50, 50), look(97, 3), look(50, 50)], [(8, State::Open); 3]);
    // The earlier result is forgotten.
    assert_eq!(look(100, 0), (8, State::Open));
    assert_eq!(look(50, 50), (4, State::Folded));
    assert_eq!([look(100, 0).0, look(100, 0).0], [4, 5], "after the first hold, not a longer one");
}

/// The neighbour was away only while it tried.
#[test]
fn an_opening_that_was_wrong_is_a_try_that_failed() {
    for (idle, widths) in [(false, [4, 4, 4, 5]), (true, [4, 5, 8, 8])] {
        let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 8, 1);
        let mut look = |busy_pct, steal_pct| look(&mut g, busy_pct, steal_pct).0;
        assert_eq!([look(50, 50), look(100, 0), look(100, 0)], [4, 4, 5]);
        assert_eq!([look(100, 0), look(100, 0)], [8, 8]);
        if idle {
            assert_eq!(look(100, 0), 8);
        }
        assert_eq!(look(50, 50), 4);
        assert_eq!([(); 4].map(|()| look(100, 0)), widths, "idle before: {idle}");
    }
}

/// Folding has lost, and then costs less and less.
#[test]
fn it_narrows_in_steps_and_takes_back_what_loses() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 16, 1);
    let mut look = |busy_pct, steal_pct| look(&mut g, busy_pct, steal_pct);
    // 8 of 16 CPUs; four of eight would be lost.
    assert_eq!([look(50, 50).0, look(50, 50).0, look(50, 50).0], [8, 8, 16]);
    let narrows = (0..9).map(|_| look(50, 50)).find(|(width, _)| *width < 16);
    assert_eq!(narrows, Some((15, State::Narrowing)));
    assert_eq!([look(54, 46), look(54, 46)], [(15, State::Narrowing), (15, State::Folded)]);
    assert_eq!(look(51, 49), (15, State::Folded), "7.65 CPUs: less than all that it had");
    assert_eq!(look(54, 46), (13, State::Narrowing), "two at once");
    assert_eq!([look(50, 50), look(50, 50)], [(13, State::Narrowing), (15, State::Folded)]);
    let narrows = (0..33).map(|_| look(54, 46)).find(|(width, _)| *width != 15);
    assert_eq!(narrows, Some((14, State::Narrowing)), "one again");
}

/// All it can see while folded is that its four vCPUs are busy. On eight it would have more.
#[test]
fn cpu_time_that_folding_costs_opens_for_good() {
    for folded in [(100, 0), (60, 20)] {
        let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 8, 1);
        let first = if folded == (60, 20) { (30, 10) } else { (50, 50) };
        look(&mut g, first.0, first.1);
        let mut widths = Vec::new();
        for _ in 0..70 {
            let (busy_pct, steal_pct) = match g.width() {
                8 => (80, 20),
                5 => (folded.0 * 4 / 5, 20),
                _ => folded,
            };
            widths.push(look(&mut g, busy_pct, steal_pct).0);
        }
        let opened = widths.iter().position(|width| *width == 8).unwrap();
        assert!(widths[..opened].contains(&4), "{widths:?}");
        assert!(widths[opened..opened + 30].iter().all(|width| *width == 8), "{widths:?}");
    }
}

/// A VM that has room beside one that has folded: each try of the other makes it fold for a moment.
#[test]
fn another_vms_try_is_answered_by_three_changes_at_most() {
    let guest = |vcpus| Guest::new(Some(Kind::Proportional), vcpus, 0);
    let mut all = [guest(14), guest(10)];
    for demands in [(5_539, 8_733), (826, 9_789)] {
        (all[0].demand, all[1].demand) = demands;
        interval(Host::Threads, 9, &mut all);
    }
    widths(Host::Threads, 9, &mut all, 400);
    let before = all.clone().map(|g| g.changes);
    widths(Host::Threads, 9, &mut all, 330);
    let [open, tries] = [0, 1].map(|i| all[i].changes - before[i]);
    assert_eq!(tries, 20, "a try each 33 intervals");
    assert_eq!(open, 30);
}

/// A guest of eight vCPUs that are all busy, under a CPU quota of four CPUs in each `period_ms`. Looks begin at a time
/// that is no multiple of the period. Widths after each of `looks`, and CPUs had on average.
fn under_quota(config: &GovernorConfig, period_ms: u64, looks: usize) -> (Vec<u32>, f64) {
    let mut g = Governor::new(config, 8, 1);
    let (period, mut at, mut had) = (period_ms * S / 1_000, S * 33 / 1_000, 0);
    // CPU time left in this period: all of it was unused until now.
    let mut left = 4 * period;
    let mut widths = Vec::new();
    for _ in 0..looks {
        let end = at + config.interval_ns;
        let used = u64::from(g.width());
        let (mut busy, begin) = (0, at);
        while at < end {
            let until = (at / period * period + period).min(end);
            let ran = (left / used).min(until - at);
            busy += ran;
            left -= ran * used;
            at = until;
            left = if at.is_multiple_of(period) { 4 * period } else { left };
        }
        had += busy * used;
        let mut cpus = [CpuTime::default(); 8];
        cpus[..used as usize].fill(CpuTime { busy_ns: busy, steal_ns: end - begin - busy });
        g.on(&GovernorInput { elapsed_ns: config.interval_ns, ..seen(&every(&cpus)) });
        widths.push(g.width());
    }
    (widths, had as f64 / (looks as u64 * config.interval_ns) as f64)
}

/// With eight vCPUs all of them wait for half of each period. With four none does, and the CPU time is the same.
#[test]
fn proportional_uses_as_many_vcpus_as_the_quota_has_cpus() {
    let config = GovernorConfig::new(Kind::Proportional);
    let slow = GovernorConfig { interval_ns: S, ..config };
    for (config, period_ms) in
        [(&config, 100), (&config, 50), (&config, 20), (&config, 10), (&slow, 100)]
    {
        let (widths, had) = under_quota(config, period_ms, 340);
        let wide = widths[24..].iter().filter(|width| **width != 4).count();
        // It has settled by then. Two looks in 34 measure, and the tries are few.
        assert!(wide <= 24, "{period_ms} ms: {wide} looks, {widths:?}");
        assert!(had > 3.97, "{period_ms} ms: {had}");
    }
}
