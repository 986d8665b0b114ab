//! `ratelimit-auto`: known answers, what holds for every history, and that it comes to rest.

use proptest::prelude::*;
use vcoop_policy::config::{Ns, RATELIMIT_FLOOR_NS, RatelimitConfig};
use vcoop_policy::ratelimit::{DomainCounters, Phase, Ratelimit};

const US: Ns = 1_000;
const MS: Ns = 1_000_000;

const CONFIG: RatelimitConfig = RatelimitConfig {
    interval_ns: 30 * MS,
    min_ns: 100 * US,
    max_ns: 5 * MS,
    brief_ns: 200 * US,
    busy_ns: 1000 * US,
    pressed_per_s: 50,
    calm_per_s: 10,
    confirm: 2,
};

/// What one interval adds: blocks, mean run, short challenges.
#[derive(Clone, Copy, Debug)]
struct Interval {
    blocks: u64,
    run_ns: Ns,
    short: u64,
}

const BOOTING: Interval = Interval { blocks: 300, run_ns: 300 * 10 * US, short: 0 };
const COMPUTING: Interval = Interval { blocks: 0, run_ns: 30 * MS, short: 0 };
/// A thousand challenges a second.
const CHALLENGED: Interval = Interval { short: 30, ..COMPUTING };
/// 33 of them: between calm and pressed.
const TEASED: Interval = Interval { short: 1, ..COMPUTING };
const ASLEEP: Interval = Interval { blocks: 2, run_ns: 20 * US, short: 0 };

struct Rig {
    policy: Ratelimit,
    now: Ns,
    seen: DomainCounters,
}

impl Rig {
    fn new(config: RatelimitConfig, own_ns: Ns) -> Self {
        Self { policy: Ratelimit::new(config, own_ns, 0), now: 0, seen: DomainCounters::default() }
    }

    fn feed(&mut self, i: Interval) -> Option<Ns> {
        self.now += CONFIG.interval_ns;
        self.seen.blocks += i.blocks;
        self.seen.run_ns += i.run_ns;
        self.seen.short_challenges += i.short;
        self.policy.on(self.now, self.seen)
    }

    /// The ratelimits after each of `n` such intervals, in us.
    fn feed_all(&mut self, i: Interval, n: usize) -> Vec<Ns> {
        (0..n)
            .map(|_| {
                self.feed(i);
                self.policy.limit_ns() / US
            })
            .collect()
    }
}

#[test]
fn a_booting_domain_is_protected_for_its_runs_and_a_computing_one_for_long() {
    let mut boots = Rig::new(CONFIG, MS);
    assert_eq!(boots.feed_all(BOOTING, 5), [1000, 250, 100, 100, 100]);
    assert_eq!(boots.policy.phase(), Phase::Brief);
    let mut computes = Rig::new(CONFIG, MS);
    assert_eq!(computes.feed_all(COMPUTING, 6), [1000, 2000, 4000, 5000, 5000, 5000]);
    assert_eq!(computes.policy.phase(), Phase::Free);
}

#[test]
fn bounds_that_contradict_each_other_are_brought_in_order() {
    let config = RatelimitConfig { min_ns: 1, max_ns: 2, ..CONFIG };
    for i in [COMPUTING, CHALLENGED, BOOTING] {
        let mut rig = Rig::new(config, MS);
        rig.feed_all(i, 80);
        assert_eq!(rig.policy.limit_ns(), RATELIMIT_FLOOR_NS, "{i:?}");
    }
    // A run that is brief does not end a brief phase.
    let mut rig = Rig::new(RatelimitConfig { busy_ns: 50 * US, ..CONFIG }, MS);
    for _ in 0..20 {
        rig.feed(Interval { blocks: 20, run_ns: 20 * 100 * US, short: 0 });
    }
    assert_eq!((rig.policy.phase(), rig.policy.changes()), (Phase::Brief, 2));
    // The least gives way to the most, and a rate that is not calm is not pressed either.
    let config = RatelimitConfig { min_ns: 9 * MS, calm_per_s: 900, ..CONFIG };
    let mut rig = Rig::new(config, MS);
    rig.feed_all(CHALLENGED, 80);
    assert_eq!((rig.policy.phase(), rig.policy.limit_ns()), (Phase::Pressed, CONFIG.max_ns));
    rig.feed_all(TEASED, 80);
    assert_eq!(rig.policy.phase(), Phase::Free);
}

#[test]
fn a_computing_domain_yields_to_short_work_and_recovers_when_it_is_gone() {
    let mut rig = Rig::new(CONFIG, MS);
    rig.feed_all(COMPUTING, 6);
    // The average (25, 47, 66 a second) passes the threshold at the third, the fourth confirms.
    assert_eq!(rig.feed_all(CHALLENGED, 6), [5000, 5000, 5000, 1250, 312, 100]);
    assert_eq!(rig.policy.phase(), Phase::Pressed);
    assert_eq!(rig.feed_all(TEASED, 60), [100; 60], "not calm yet");
    // From 33 a second down to 10: ten intervals at seven eighths each, and one to confirm.
    assert_eq!(rig.feed_all(COMPUTING, 13)[9..], [100, 200, 400, 800]);
    // A free one is not moved by what a pressed one minds.
    rig.feed_all(COMPUTING, 60);
    assert_eq!(rig.feed_all(TEASED, 60), [5000; 60]);
}

/// What counts is how often others want the CPU, however many vCPUs the domain has.
#[test]
fn a_large_domain_is_challenged_like_a_small_one() {
    let large = Interval { run_ns: 100 * CHALLENGED.run_ns, ..CHALLENGED };
    let (mut a, mut b) = (Rig::new(CONFIG, MS), Rig::new(CONFIG, MS));
    assert_eq!(a.feed_all(large, 20), b.feed_all(CHALLENGED, 20));
    assert_eq!(a.policy.phase(), Phase::Pressed);
}

#[test]
fn one_odd_interval_changes_nothing() {
    let mut rig = Rig::new(CONFIG, MS);
    rig.feed_all(COMPUTING, 6);
    for odd in [CHALLENGED, BOOTING, CHALLENGED, BOOTING] {
        assert_eq!(rig.feed(odd), None);
        assert_eq!(rig.feed(COMPUTING), None);
    }
    // Two that differ do not confirm each other.
    assert_eq!((rig.feed(CHALLENGED), rig.feed(BOOTING)), (None, None));
    assert_eq!(rig.policy.phase(), Phase::Free);
}

#[test]
fn little_evidence_waits_for_more() {
    let mut rig = Rig::new(CONFIG, MS);
    assert_eq!(rig.feed_all(ASLEEP, 7), [1000; 7]);
    assert_eq!(rig.policy.phase(), Phase::Watching, "two times eight blocks are not there yet");
    rig.feed(ASLEEP);
    assert_eq!(rig.policy.phase(), Phase::Brief, "10 us a run");
}

#[test]
fn protection_covers_runs_and_does_not_follow_small_changes() {
    let brief = |mean: Ns| Interval { blocks: 20, run_ns: 20 * mean, short: 0 };
    for (mean, limit) in
        [(10 * US, 100), (51 * US, 200), (100 * US, 200), (101 * US, 400), (200 * US, 400)]
    {
        let mut rig = Rig::new(CONFIG, MS);
        rig.feed_all(brief(mean), 9);
        assert_eq!(rig.policy.limit_ns() / US, limit);
    }
    let mut rig = Rig::new(CONFIG, MS);
    rig.feed_all(brief(60 * US), 9);
    for mean in [40 * US, 190 * US, 60 * US] {
        assert_eq!(rig.feed(brief(mean)), None, "within a factor of two");
    }
    assert_eq!(rig.feed(COMPUTING), None, "one odd interval");
    // Brief until its mean run is `busy`, and covered: 2 x 900 us is 3.2 ms.
    assert_eq!(rig.feed_all(brief(900 * US), 5), [400, 800, 1600, 3200, 3200]);
    assert_eq!(rig.feed_all(brief(10 * US), 4), [800, 200, 100, 100]);
    rig.feed_all(brief(900 * US), 5);
    rig.feed_all(brief(1000 * US), 2);
    assert_eq!(rig.policy.phase(), Phase::Free);
}

#[test]
fn off_is_reached_and_left_by_way_of_the_floor() {
    let off = RatelimitConfig { min_ns: 0, ..CONFIG };
    let mut rig = Rig::new(off, MS);
    rig.feed_all(COMPUTING, 2);
    assert_eq!(rig.feed_all(CHALLENGED, 8)[3..], [1250, 312, 0, 0, 0]);
    let back = rig.feed_all(COMPUTING, 60);
    let rise = back.iter().position(|&us| us > 0).unwrap();
    assert_eq!(back[rise - 1..rise + 3], [0, 100, 200, 400]);
    // A domain that runs briefly keeps the floor: no domain gains if its runs are broken.
    rig.feed_all(BOOTING, 9);
    assert_eq!(rig.policy.limit_ns(), RATELIMIT_FLOOR_NS);
}

#[test]
fn early_calls_do_nothing() {
    let mut policy = Ratelimit::new(CONFIG, MS, 0);
    let seen = |n: u64| DomainCounters { run_ns: n * 30 * MS, ..DomainCounters::default() };
    for i in 1..30 {
        assert_eq!(policy.on(i * MS, seen(i)), None);
    }
    assert_eq!(policy.on(30 * MS, seen(30)), None);
    assert_eq!(policy.on(31 * MS, seen(31)), None);
    assert_eq!(policy.on(60 * MS, seen(60)), Some(2 * MS));
}

/// The loop closed: I/O of others that waits out the ratelimit each time comes back the sooner the
/// less it waits. From every start the ratelimit comes to rest.
#[test]
fn a_closed_loop_comes_to_rest() {
    for think_us in [10u64, 100, 1000, 5000, 15_000, 20_000, 25_000, 100_000, 1_000_000] {
        for own in [0, 100 * US, MS, 5 * MS] {
            let mut rig = Rig::new(CONFIG, own);
            let mut rest = 0;
            for _ in 0..200 {
                // Held for half of the ratelimit on average.
                let wait = rig.policy.limit_ns() / 2;
                let short = 30 * MS / (think_us * US + wait).max(1);
                let changed = rig.feed(Interval { short, ..COMPUTING }).is_some();
                rest = if changed { 0 } else { rest + 1 };
            }
            assert!(rest > 100, "think {think_us} us, own {own}: rest {rest}");
        }
    }
}

fn configs() -> impl Strategy<Value = RatelimitConfig> {
    let times = (prop_oneof![Just(0), 100 * US..=2 * MS], 100 * US..500 * MS);
    let runs = (10 * US..500 * US, 10 * US..5 * MS);
    (times, runs, (1u32..2000, 0u32..2000), 1u32..5).prop_map(|(t, r, rates, confirm)| {
        RatelimitConfig {
            interval_ns: CONFIG.interval_ns,
            min_ns: t.0,
            max_ns: t.1,
            brief_ns: r.0,
            busy_ns: r.1,
            pressed_per_s: rates.0,
            calm_per_s: rates.1,
            confirm,
        }
    })
}

fn intervals() -> impl Strategy<Value = Interval> {
    (0u64..5000, 0..30 * MS, 0u64..3000).prop_map(|(blocks, run_ns, short)| Interval {
        blocks,
        run_ns,
        short,
    })
}

proptest! {
    /// Whatever happens: what it sets lies within its bounds and what Xen accepts, moves by no more
    /// than its steps, and a second machine does the same.
    #[test]
    fn bounded_stepwise_and_deterministic(
        config in configs(),
        own in prop_oneof![Just(0), 100 * US..30 * MS],
        history in proptest::collection::vec(intervals(), 1..60),
    ) {
        let (mut a, mut b) = (Rig::new(config, own), Rig::new(config, own));
        let top = config.max_ns;
        let low = config.min_ns.min(top);
        let mut from = own.clamp(low, top);
        for i in history {
            let set = a.feed(i);
            prop_assert_eq!(set, b.feed(i));
            prop_assert_eq!(&a.policy, &b.policy);
            let Some(to) = set else { continue };
            prop_assert!((low..=top).contains(&to), "{} outside {}..{}", to, low, top);
            prop_assert!(to == 0 || to >= RATELIMIT_FLOOR_NS);
            prop_assert!(to <= (2 * from).max(RATELIMIT_FLOOR_NS));
            prop_assert!(to >= from / 4 || to == 0 && from < 4 * RATELIMIT_FLOOR_NS);
            from = to;
        }
    }

    /// From any state: the same interval over and over settles the ratelimit in a bounded number of
    /// steps, in one direction, for good.
    #[test]
    fn constant_input_comes_to_rest(
        config in configs(),
        history in proptest::collection::vec(intervals(), 0..20),
        same in intervals(),
    ) {
        prop_assume!(same.blocks >= 8 || same.run_ns >= MS);
        let mut rig = Rig::new(config, MS);
        for i in history {
            rig.feed(i);
        }
        // The remains of too little evidence from before.
        rig.feed(same);
        let mut seen = vec![rig.policy.limit_ns()];
        // A domain may come out of `Brief` into `Pressed`, or the other way: two changes of mind.
        let waits = rig.policy.most_averaged() + rig.policy.most_steps() + 2 * config.confirm;
        let settled = waits as usize;
        for _ in 0..settled {
            rig.feed(same);
            seen.push(rig.policy.limit_ns());
        }
        for _ in 0..20 {
            prop_assert_eq!(rig.feed(same), None);
        }
        // At most two turns: on the way to where it was going before, and where it goes until the
        // average has followed.
        let turns = seen.windows(2).map(|w| w[1].cmp(&w[0])).filter(|o| o.is_ne()).collect::<Vec<_>>();
        prop_assert!(turns.windows(2).filter(|w| w[0] != w[1]).count() <= 2, "{:?}", seen);
    }
}
