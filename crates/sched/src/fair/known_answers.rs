//! Known answers of EEVDF on a host of two CPUs and 250 Hz: base slice 1400 us, tick 4 ms. They were derived by hand
//! from the rules of each release; those of Linux 6.18.44 were compared with records of a running kernel. Times are in
//! microseconds, relative to a base that is far from 0.

use super::tests::{CPU, class_with_tick, slice, start};
use super::{Dequeue, Enqueue, FairClass};
use crate::EntId;
use crate::class::Class;
use crate::config::EevdfRelease::{self, V6_6, V6_12, V6_15, V6_18, V6_18_0, V7_3};
use crate::config::{EevdfTunables, Fair, Ns, Policy};

const US: i64 = 1000;
const BASE: i64 = 1_000_000_000_000_000;
const N: Policy = Policy::NORMAL;

const A: u32 = 0;
const B: u32 = 1;
const C: u32 = 2;
const P: u32 = 3;

fn of(release: EevdfRelease, last: Policy) -> FairClass {
    let t = EevdfTunables { base_slice_ns: 1_400_000, ..EevdfTunables::of(release, 2) };
    class_with_tick(Fair::Eevdf(t), 4_000_000, &[N, N, N, last])
}

/// Puts an entity on the queue at a virtual time of our choosing.
fn waits(c: &mut FairClass, e: u32, v: i64, deadline: i64) {
    super::tests::put(c, e, BASE + v * US, BASE + deadline * US);
}

/// The same for the running entity.
fn runs(c: &mut FairClass, e: u32, v: i64, deadline: i64, protect: i64) {
    waits(c, e, v, deadline);
    c.set_next(CPU, EntId(e));
    c.ses[e as usize].protect = BASE + protect * US;
}

fn wakes(c: &mut FairClass, e: u32, lag: i64) {
    c.ses[e as usize].vlag = lag * US;
    start(c, e);
    c.check();
}

fn sleeps(c: &mut FairClass, e: u32) {
    assert!(!c.dequeue(CPU, EntId(e), Dequeue::Sleep), "it owes something");
}

fn ran(c: &mut FairClass, e: u32, us: Ns) -> bool {
    c.charge(CPU, EntId(e), us * 1000)
}

fn switch(c: &mut FairClass, from: u32, to: u32) {
    assert_eq!(c.pick(CPU), Some(EntId(to)));
    c.put_prev(CPU, EntId(from), Some(EntId(to)));
    c.set_next(CPU, EntId(to));
}

fn preempts(c: &mut FairClass, curr: u32, woken: u32) -> bool {
    let yes = c.check_preempt(CPU, EntId(curr), EntId(woken));
    c.check();
    yes
}

/// Virtual time and deadline.
fn at(c: &FairClass, e: u32) -> (i64, i64) {
    let se = &c.ses[e as usize];
    ((se.vruntime - BASE) / US, (se.deadline - BASE) / US)
}

fn protect(c: &FairClass, e: u32) -> i64 {
    (c.ses[e as usize].protect - BASE) / US
}

#[test]
fn a_protected_one_goes_on_beside_an_earlier_deadline() {
    for release in EevdfRelease::ALL {
        let mut c = of(release, N);
        runs(&mut c, A, 900, 2300, 2300);
        waits(&mut c, B, 2000, 3000);
        wakes(&mut c, P, 400);
        assert_eq!(at(&c, P), (850, 2250));
        assert_eq!(c.avg_vruntime(0), BASE + 1250 * US);
        assert!(!preempts(&mut c, A, P), "{release:?}");
        // The protected time is used up.
        c.ses[A as usize].protect = BASE + 900 * US;
        assert_eq!(ran(&mut c, A, 0), release >= V6_18_0, "{release:?}");
        assert!(preempts(&mut c, A, P), "{release:?}");
    }
}

#[test]
fn protection_ends_with_eligibility() {
    for release in EevdfRelease::ALL {
        let mut c = of(release, N);
        runs(&mut c, A, 1000, 2300, 2300);
        waits(&mut c, B, 2000, 3000);
        wakes(&mut c, P, 1500);
        assert_eq!(at(&c, P), (-750, 650));
        assert!(preempts(&mut c, A, P), "{release:?}");
    }
}

#[test]
fn a_third_one_that_would_be_picked_preempts_nobody() {
    let (l, h) = (A, B);
    for release in EevdfRelease::ALL {
        let mut c = of(release, N);
        runs(&mut c, C, 771, 1149, 1149);
        waits(&mut c, l, -29, 358);
        waits(&mut c, h, 34, 800);
        wakes(&mut c, P, 776);
        assert_eq!(at(&c, P), (-776, 624));
        assert!(!preempts(&mut c, C, P) && !ran(&mut c, C, 0), "{release:?}");
        // A tick 2 ms later, and the next one.
        assert!(ran(&mut c, C, 2000));
        assert_eq!(at(&c, C), (2771, 4171));
        switch(&mut c, C, l);
        assert!(ran(&mut c, l, 4000));
        assert_eq!(at(&c, l), (3971, 5371));
        switch(&mut c, l, P);
    }
}

/// Entity B, with this deadline, becomes a real-time one; another may wake meanwhile. Then it is fair again.
fn comes_back(release: EevdfRelease, deadline: i64, wake: bool) -> FairClass {
    let mut c = of(release, N);
    runs(&mut c, B, 0, deadline, deadline);
    waits(&mut c, A, 300, 1700);
    waits(&mut c, C, 600, 2000);
    c.put_prev(CPU, EntId(B), None);
    c.dequeue(CPU, EntId(B), Dequeue::Save);
    assert_eq!(c.ses[B as usize].vlag, 300 * US);
    if wake {
        wakes(&mut c, P, 600);
        assert_eq!(at(&c, P), (-450, 950));
    }
    c.enqueue(CPU, EntId(B), Enqueue::Restore);
    c.resume(CPU, EntId(B));
    c.check();
    c
}

#[test]
fn a_boost_moves_nothing_while_the_others_wait() {
    assert_eq!(at(&comes_back(V6_18, 1300, false), B), (0, 1300));
    // Before deadlines travelled, a new request began.
    assert_eq!(at(&comes_back(V6_6, 1300, false), B), (0, 1400));
}

#[test]
fn who_comes_back_from_a_boost_is_not_protected() {
    let mut c = comes_back(V6_18, 1300, true);
    assert_eq!(at(&c, B), (-250, 1050));
    assert!(ran(&mut c, B, 0));
    assert_eq!(c.pick(CPU), Some(EntId(P)));
    // At equal deadlines the waiting one goes first.
    assert_eq!(comes_back(V6_18, 1200, true).pick(CPU), Some(EntId(P)));
    assert_eq!(comes_back(V6_18, 1199, true).pick(CPU), Some(EntId(B)));
    for release in [V6_12, V6_15, V6_18_0] {
        let mut c = comes_back(release, 1300, true);
        assert!(!ran(&mut c, B, 0));
        assert_eq!(c.pick(CPU), Some(EntId(B)), "{release:?}");
    }
}

#[test]
fn a_delayed_sleeper_that_still_owes_keeps_its_place() {
    for release in [V6_12, V6_15, V6_18_0, V6_18] {
        let mut c = of(release, N);
        waits(&mut c, A, 0, 1400);
        waits(&mut c, B, 0, 1400);
        runs(&mut c, P, 90, 1400, 1400);
        sleeps(&mut c, P);
        c.set_next(CPU, EntId(A));
        c.wake_delayed(EntId(P));
        ran(&mut c, A, 100);
        assert_eq!(at(&c, P), (90, 1400));
        assert!(!preempts(&mut c, A, P));
    }
}

/// P sleeps and owes 45 us to A, which runs.
fn asleep_beside_one_hog(release: EevdfRelease) -> FairClass {
    let mut c = of(release, N);
    waits(&mut c, A, 0, 1400);
    runs(&mut c, P, 90, 1400, 1400);
    sleeps(&mut c, P);
    c.set_next(CPU, EntId(A));
    c
}

#[test]
fn a_sleep_pays_back_in_the_fair_class_only() {
    for release in [V6_12, V6_15, V6_18_0, V6_18] {
        let mut c = asleep_beside_one_hog(release);
        ran(&mut c, A, 600);
        c.wake_delayed(EntId(P));
        assert_eq!(at(&c, P), (600, 2000), "{release:?}: level with the hog");
        // It becomes a real-time one in its sleep, and comes back much later.
        let mut c = asleep_beside_one_hog(release);
        c.forget_delayed(EntId(P));
        assert_eq!(c.ses[P as usize].vlag, -45 * US);
        ran(&mut c, A, 600);
        c.enqueue(CPU, EntId(P), Enqueue::Restore);
        assert_eq!(at(&c, P), (690, 2090), "{release:?}: behind it, as if it had not slept");
    }
}

#[test]
fn a_delayed_sleeper_is_held_against_a_mean_that_is_not_up_to_date() {
    // `Level::wake` goes this way: the debt stands, and the hog has run ahead by the time they are compared.
    let mut c = asleep_beside_one_hog(V6_18);
    c.wake_delayed(EntId(P));
    ran(&mut c, A, 600);
    assert_eq!(at(&c, P), (90, 1400));
    assert!(preempts(&mut c, A, P));
    // The other way round the debt is forgiven, and the two are level.
    let mut c = asleep_beside_one_hog(V6_18);
    ran(&mut c, A, 600);
    c.wake_delayed(EntId(P));
    assert_eq!(at(&c, P), (600, 2000));
    assert!(!preempts(&mut c, A, P));
}

#[test]
fn lag_is_clamped() {
    for (release, own, other) in [(V6_15, 4000, 4000), (V6_18, 5400, 14_000)] {
        for (queued, limit) in [(N, own), (slice(10_000), other)] {
            let mut c = of(release, queued);
            waits(&mut c, A, 0, 1400);
            waits(&mut c, B, 30_000, 31_400);
            if queued != N {
                waits(&mut c, P, 15_000, 25_000);
            }
            let Fair::Eevdf(t) = c.kind else { unreachable!() };
            c.update_lag(0, A as usize, &t);
            c.update_lag(0, B as usize, &t);
            let lags = [A, B].map(|e| c.ses[e as usize].vlag);
            assert_eq!(lags, [limit * US, -limit * US], "{release:?}");
        }
    }
}

#[test]
fn a_short_slice_ends_protection_or_cuts_it() {
    for release in [V6_18_0, V6_18] {
        let mut c = of(release, slice(300));
        runs(&mut c, A, 900, 2300, 2300);
        waits(&mut c, B, 2000, 3000);
        wakes(&mut c, P, 100);
        assert_eq!(at(&c, P), (1300, 1600));
        assert!(preempts(&mut c, A, P));
        assert_eq!(protect(&c, A), 900);

        // It is not eligible: B would be picked, and does not preempt.
        let mut c = of(release, slice(300));
        runs(&mut c, A, 900, 2300, 2300);
        waits(&mut c, B, 1000, 1200);
        wakes(&mut c, P, -200);
        assert_eq!(at(&c, P), (1250, 1550));
        assert!(!preempts(&mut c, A, P) && !ran(&mut c, A, 0));
        assert_eq!(protect(&c, A), 1200);
        assert!(ran(&mut c, A, 300), "{release:?}");
    }
}

#[test]
fn a_slice_like_the_others_cuts_protection_since_2026() {
    for (release, want) in [(V6_15, 4000), (V6_18_0, 4000), (V6_18, 900 + 1400)] {
        let mut c = of(release, N);
        runs(&mut c, A, 900, 4000, 4000);
        waits(&mut c, B, 2000, 3000);
        wakes(&mut c, P, 400);
        assert!(!preempts(&mut c, A, P));
        assert_eq!(protect(&c, A), want, "{release:?}");
    }
}

#[test]
fn protection_lasts_for_the_shortest_slice_of_the_queue() {
    for (release, want) in [(V6_15, 1400), (V6_18_0, 300), (V6_18, 300)] {
        let mut c = of(release, slice(300));
        waits(&mut c, P, 100, 400);
        waits(&mut c, A, 0, 1400);
        c.set_next(CPU, EntId(A));
        assert_eq!(protect(&c, A), want, "{release:?}");
        c.dequeue(CPU, EntId(P), Dequeue::Exit);
        c.check();
    }
}

#[test]
fn beside_a_short_slice_protection_lasts_while_eligible_since_7_3() {
    let mut c = of(V7_3, slice(300));
    waits(&mut c, P, 100, 400);
    waits(&mut c, A, 0, 1400);
    c.set_next(CPU, EntId(A));
    // It is eligible up to the mean of the others.
    assert_eq!(protect(&c, A), 100);
    assert!(!ran(&mut c, A, 100) && ran(&mut c, A, 1));
}

#[test]
fn a_short_slice_runs_next_whatever_its_deadline_since_7_3() {
    for release in [V6_18, V7_3] {
        let mut c = of(release, slice(300));
        runs(&mut c, A, 100, 350, 350);
        wakes(&mut c, P, 0);
        assert_eq!(at(&c, P), (100, 400));
        assert_eq!(preempts(&mut c, A, P), release == V7_3);
        let next = if release == V7_3 { P } else { A };
        assert_eq!(c.pick(CPU), Some(EntId(next)));
        // It has to be eligible.
        let mut c = of(release, slice(300));
        runs(&mut c, A, 100, 350, 350);
        wakes(&mut c, P, -10);
        assert!(!preempts(&mut c, A, P));
        assert_eq!(c.pick(CPU), Some(EntId(A)));
    }
}

#[test]
fn protection_is_cut_from_the_mean_since_7_3() {
    for (release, want) in [(V6_18, 2000 + 1400), (V7_3, 1450 + 1400)] {
        let mut c = of(release, N);
        runs(&mut c, A, 2000, 4000, 4000);
        waits(&mut c, B, 900, 2000);
        wakes(&mut c, P, 0);
        assert_eq!(at(&c, P).0, 1450);
        assert!(!preempts(&mut c, A, P), "it would be the turn of another one");
        assert_eq!(protect(&c, A), want, "{release:?}");
    }
}

#[test]
fn a_delayed_sleeper_stands_in_the_way_until_2026() {
    let (d, h) = (B, C);
    for release in [V6_12, V6_15, V6_18_0, V6_18] {
        let mut c = of(release, N);
        waits(&mut c, d, 100, 700);
        c.ses[d as usize].delayed = true;
        c.rqs[0].tasks -= 1;
        waits(&mut c, h, 1200, 2200);
        runs(&mut c, A, 1500, 2600, 2600);
        wakes(&mut c, P, 300);
        assert_eq!(at(&c, P).0, 533);
        assert_eq!(preempts(&mut c, A, P), release == V6_18, "{release:?}");
        assert_eq!(c.is_delayed(EntId(d)), release != V6_18);
        if release == V6_18 {
            assert_eq!(c.ses[d as usize].vlag, 0);
        }
    }
}

#[test]
fn a_yield_gives_up_the_request_since_2026() {
    for (release, want) in [(V6_15, (500, 2900)), (V6_18_0, (500, 2900)), (V6_18, (1500, 2900))] {
        let mut c = of(release, N);
        runs(&mut c, A, 500, 1500, 1500);
        waits(&mut c, B, 500, 2000);
        c.yield_current(CPU, EntId(A));
        assert_eq!(at(&c, A), want, "{release:?}");
        assert_eq!(c.pick(CPU), Some(EntId(B)));
    }
    // An entity that ran ahead has nothing to give up; one that is alone has no other to give it to.
    for b in [Some(400), None] {
        let mut c = of(V6_18, N);
        runs(&mut c, A, 500, 1500, 1500);
        if let Some(v) = b {
            waits(&mut c, B, v, 2000);
        }
        c.yield_current(CPU, EntId(A));
        assert_eq!(at(&c, A), (500, 1500));
    }
}

#[test]
fn a_second_request_runs_unprotected() {
    for release in [V6_15, V6_18_0, V6_18] {
        let mut c = of(release, N);
        waits(&mut c, A, 0, 1400);
        waits(&mut c, B, 6000, 7400);
        c.set_next(CPU, EntId(A));
        assert!(ran(&mut c, A, 4000));
        assert_eq!((at(&c, A), protect(&c, A)), ((4000, 5400), 1400));
        // Still the only eligible one: no entity is switched in, so none is protected.
        assert_eq!(c.pick(CPU), Some(EntId(A)));
        assert_eq!(ran(&mut c, A, 100), release >= V6_18_0, "{release:?}");
    }
}

#[test]
fn another_nice_value_ends_protection_since_2026() {
    for release in EevdfRelease::ALL {
        let mut c = of(release, N);
        assert_eq!(c.requeues(), release >= V6_18);
        runs(&mut c, A, 0, 1400, 1400);
        waits(&mut c, B, 300, 1700);
        c.set_policy(EntId(A), Policy::Normal { nice: -1, slice_ns: None });
        c.check();
        assert!(c.ses[A as usize].is_protected(), "a group's weight changes like that");
    }
}
