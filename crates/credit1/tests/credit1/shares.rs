//! Shares of CPU time: weights, caps, and the theft that sampled burning allowed.

use proptest::prelude::*;
use vcoop_credit1::Decision;
use vcoop_credit1::{Burn, Domain};
use vcoop_sched::EntId;

use crate::driver::{HOG, MS, Machine, US, Work, assert_ratio, config};

#[test]
fn a_cap_is_kept_with_parking_and_without_boost() {
    let mut cfg = config(1, 1);
    cfg.domains[1].cap_pct = 40;
    let mut m = Machine::new(&cfg);
    let e = m.start(1, &[0], HOG);
    m.run_for(12_000 * MS);
    assert_ratio(m.exec(e), 12_000 * MS, 0.40, 3.0);
    let parks = m.count(Decision::Park);
    assert!(parks > 50 && m.count(Decision::Unpark).abs_diff(parks) <= 1);
    assert_eq!(m.count(Decision::Boost), 1, "at the start only");
}

#[test]
fn a_parked_vcpu_that_wakes_up_stays_parked() {
    let mut cfg = config(1, 1);
    cfg.domains[1].cap_pct = 10;
    let mut m = Machine::new(&cfg);
    let e = m.start(1, &[0], HOG);
    m.run_for(61 * MS);
    assert!(m.credit.is_parked(e) && m.credit.is_queued(e) && m.current(0).is_none());
    let sleeps = m.add(1, &[0], HOG);
    m.wake(sleeps);
    assert!(!m.credit.is_parked(sleeps), "parking is a matter of each vCPU");
}

#[test]
fn a_cap_of_two_vcpus_is_the_domains() {
    let mut cfg = config(2, 1);
    cfg.domains[1].cap_pct = 100;
    let mut m = Machine::new(&cfg);
    let ids = [m.start(1, &[0], HOG), m.start(1, &[1], HOG)];
    m.run_for(12_000 * MS);
    assert_ratio(ids.map(|e| m.exec(e)).iter().sum(), 12_000 * MS, 1.0, 3.0);
}

#[test]
fn what_a_domain_cannot_use_goes_to_the_others() {
    // It has a high weight but one vCPU: it earns at most one CPU. The other two share the rest.
    let mut cfg = config(2, 3);
    cfg.domains[1].weight = 10_000;
    let mut m = Machine::new(&cfg);
    let ids = [1, 2, 3].map(|d| m.start(d, &[], HOG));
    m.run_for(30_000 * MS);
    let [heavy, a, b] = ids.map(|e| m.exec(e));
    assert_ratio(heavy, 30_000 * MS, 1.0, 3.0);
    assert_ratio(a, b, 1.0, 5.0);
}

/// Share of a vCPU that runs for 9.5 ms of 10 and sleeps when the tick comes, against a hog.
fn stolen_share(burn: Burn, caught_at_first: bool) -> f64 {
    let mut cfg = config(1, 2);
    // There was no ratelimit when burning was sampled.
    cfg.ratelimit_ns = 0;
    cfg.burn = burn;
    let mut m = Machine::new(&cfg);
    m.start(1, &[0], HOG);
    let thief: EntId = m.add(2, &[0], Work { run: 9_500 * US, sleep: 500 * US });
    // From 0.2 to 9.7 ms of every 10, or first from 5.2 to 14.7 and then, late once, in step.
    m.run_for(20_200 * US);
    if caught_at_first {
        m.run_for(5 * MS);
        m.wake(thief);
        m.run_for(9_800 * US);
        m.put_off(thief, 40_200 * US);
    } else {
        m.wake(thief);
    }
    let start = m.now;
    let before = m.exec(thief);
    m.run_for(10_000 * MS);
    (m.exec(thief) - before) as f64 / (m.now - start) as f64
}

#[test]
fn whoever_steps_aside_for_the_tick_steals_while_burning_is_sampled() {
    let sampled = stolen_share(Burn::TickSampled, true);
    assert!(sampled > 0.93, "{sampled}");
    let exact = stolen_share(Burn::Exact, true);
    assert!((0.40..0.60).contains(&exact), "{exact}");
}

/// The accounting's list is still sampled: a vCPU that no tick ever found running never loses its priority when its
/// credit is used up.
#[test]
fn whoever_was_never_sampled_is_not_stopped_by_exact_burning() {
    assert!(stolen_share(Burn::TickSampled, false) > 0.93);
    assert!(stolen_share(Burn::Exact, false) > 0.93);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// Hogs on one CPU get time by weight. Credit is distributed and burnt in slices of 30 ms, and balances are limited
    /// to a slice's worth: that favours low weights, of three by up to 8 percent of the CPU.
    #[test]
    fn time_goes_by_weight(weights in proptest::collection::vec(128u32..1024, 2..4)) {
        let mut cfg = config(1, 0);
        cfg.domains = weights.iter().map(|&weight| Domain { weight, ..Domain::default() }).collect();
        let mut m = Machine::new(&cfg);
        m.checking = false;
        let ids: Vec<EntId> = (0..weights.len() as u16).map(|d| m.start(d, &[0], HOG)).collect();
        m.run_for(40_000 * MS);
        let sum: u32 = weights.iter().sum();
        for (e, w) in ids.into_iter().zip(weights) {
            let (got, want) = (m.exec(e) as f64 / 40e9, f64::from(w) / f64::from(sum));
            prop_assert!((got - want).abs() < 0.1, "{} of {}", got, want);
        }
    }
}
