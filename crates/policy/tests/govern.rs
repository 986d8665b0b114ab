//! Governors: known answers, and what holds for every load. A tiny host divides its pCPUs by fluid
//! shares; a guest runs its demand on the vCPUs it uses.

mod proportional;

use proptest::prelude::*;
use vcoop_policy::config::Ns;
use vcoop_policy::govern::{
    Claim, CpuTime, Governor, GovernorConfig, GovernorInput, Grant, Kind, Member, grant, share,
};

const S: Ns = 1_000_000_000;

/// vCPUs of cores that have as many each.
fn every(cpus: &[CpuTime]) -> Vec<Option<CpuTime>> {
    cpus.iter().copied().map(Some).collect()
}

/// What they did in a second, exactly.
fn seen(cpus: &[Option<CpuTime>]) -> GovernorInput<'_> {
    GovernorInput { elapsed_ns: S, cpus, grain_ns: 0, grant: None }
}

/// How the host divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// By VM: weights (cgroups, PowerVM's shared pool).
    Weighted,
    /// By thread: every vCPU alike.
    Threads,
}

#[derive(Clone, Debug)]
struct Guest {
    governor: Option<Governor>,
    vcpus: u32,
    /// CPUs' worth of work, in thousandths.
    demand: u64,
    weight: u64,
    got: u64,
    changes: u32,
}

impl Guest {
    fn new(kind: Option<Kind>, vcpus: u32, demand: u64) -> Self {
        Self::with(kind.map(GovernorConfig::new), vcpus, demand)
    }

    fn with(config: Option<GovernorConfig>, vcpus: u32, demand: u64) -> Self {
        let governor = config.map(|c| Governor::new(&c, vcpus, 1));
        Self { governor, vcpus, demand, weight: 1, got: 0, changes: 0 }
    }

    fn width(&self) -> u32 {
        self.governor.as_ref().map_or(self.vcpus, Governor::width)
    }

    fn wants(&self) -> u64 {
        self.demand.min(1000 * u64::from(self.width()))
    }
}

/// One interval of a second on `pcpus`, then every governor looks.
fn interval(host: Host, pcpus: u32, guests: &mut [Guest]) {
    let claim = |g: &Guest| Claim {
        wanted_ns: g.wants() * (S / 1000),
        weight: match host {
            Host::Weighted => g.weight,
            Host::Threads => g.wants(),
        },
        ..Claim::default()
    };
    let mut claims: Vec<Claim> = guests.iter().map(claim).collect();
    share(u64::from(pcpus) * S, &mut claims);
    // The host's hint goes by the time that a VM could use.
    let mut hints: Vec<Claim> = guests
        .iter()
        .map(|g| {
            let used = CpuTime { busy_ns: g.wants() * (S / 1000), steal_ns: 0 };
            let wanted_ns = Claim::wanting(used, S, g.width(), g.vcpus);
            Claim { wanted_ns, weight: g.weight, ..Claim::default() }
        })
        .collect();
    share(u64::from(pcpus) * S, &mut hints);
    for ((g, claim), hint) in guests.iter_mut().zip(&claims).zip(&hints) {
        g.got = claim.given_ns / (S / 1000);
        let width = u64::from(g.width());
        let cpu = CpuTime {
            busy_ns: claim.given_ns / width,
            steal_ns: (claim.wanted_ns - claim.given_ns) / width,
        };
        let mut cpus = vec![cpu; width as usize];
        cpus.resize(g.vcpus as usize, CpuTime::default());
        let cpus = every(&cpus);
        let seen = GovernorInput { grant: Some(hint.grant()), ..seen(&cpus) };
        let Some(governor) = &mut g.governor else { continue };
        let before = governor.width();
        let answer = governor.on(&seen);
        assert_eq!(answer, (governor.width() != before).then_some(governor.width()));
        g.changes += u32::from(answer.is_some());
        assert!(governor.width() >= 1 && governor.width() <= g.vcpus);
    }
}

fn widths(host: Host, pcpus: u32, guests: &mut [Guest], n: usize) -> Vec<u32> {
    (0..n)
        .map(|_| {
            interval(host, pcpus, guests);
            guests[0].width()
        })
        .collect()
}

/// One vCPU's steal of an interval of a second, for all vCPUs alike; how wide it is afterwards.
fn feed(governor: &mut Governor, vcpus: u32, steal_ns: Ns) -> u32 {
    let cpus = vec![CpuTime { busy_ns: S - steal_ns, steal_ns }; vcpus as usize];
    governor.on(&seen(&every(&cpus)));
    governor.width()
}

#[test]
fn step_takes_one_core_a_second_by_its_thresholds() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Step), 4, 1);
    // 5.00 % is not above 5 %: hold. 5.01 % is.
    assert_eq!(feed(&mut g, 4, 50_000_000), 4);
    assert_eq!(feed(&mut g, 4, 50_100_000), 3);
    // However great the overload.
    assert_eq!(feed(&mut g, 4, S), 2);
    // Between: hold. The ratio is cut to hundredths of a percent: 2.009 % counts as 2 %, and unfolds.
    assert_eq!(feed(&mut g, 4, 30_000_000), 2);
    assert_eq!(feed(&mut g, 4, 20_100_000), 2);
    assert_eq!(feed(&mut g, 4, 20_090_000), 3);
    assert_eq!(feed(&mut g, 4, 0), 4);
    assert_eq!(feed(&mut g, 4, 0), 4);
    // The first core stays whatever happens.
    for _ in 0..10 {
        feed(&mut g, 4, S);
    }
    assert_eq!(g.width(), 1);
}

#[test]
fn step_needs_16_s_to_halve_32_vcpus_and_counts_cores_with_smt() {
    let mut g = Governor::new(&GovernorConfig::new(Kind::Step), 32, 1);
    let at = (1..).find(|_| feed(&mut g, 32, S / 2) == 16);
    assert_eq!(at, Some(16));
    let mut smt = Governor::new(&GovernorConfig::new(Kind::Step), 64, 8);
    assert_eq!(feed(&mut smt, 64, S / 2), 56, "an SMT8 core at once");
    assert_eq!(feed(&mut smt, 64, 0), 64);
}

#[test]
fn a_folded_step_sees_its_pressure_diluted() {
    // A quarter of 16 in use. They lose 8 %, which is 2 % of all: it unfolds. And it folds on only when
    // they lose more than 20 %.
    let look = |percent: u64| {
        let mut g = Governor::new(&GovernorConfig::new(Kind::Step), 16, 1);
        while feed(&mut g, 16, S) > 4 {}
        let lost = CpuTime { busy_ns: 0, steal_ns: S / 100 * percent };
        let mut cpus = [CpuTime::default(); 16];
        cpus[..4].fill(lost);
        g.on(&seen(&every(&cpus)));
        g.width()
    };
    assert_eq!([8, 9, 20, 21].map(look), [5, 4, 4, 3]);
}

#[test]
fn proportional_folds_to_what_it_gets_in_one_interval_and_opens_in_two() {
    // 16 vCPUs, all busy, beside a VM of the same weight on 16 pCPUs: half is what there is.
    let other = Guest::new(None, 16, 16_000);
    let mut all = [Guest::new(Some(Kind::Proportional), 16, 16_000), other];
    assert_eq!(widths(Host::Weighted, 16, &mut all, 1), [8]);
    assert_eq!(widths(Host::Weighted, 16, &mut all, 2), [8, 9], "after its first hold it tries");
    assert_eq!(widths(Host::Weighted, 16, &mut all, 1), [8], "which failed");
    assert_eq!(all[0].got, 8_000, "it has lost nothing");
    // The other goes: one try, and all are in use again.
    all[1].demand = 0;
    let back = widths(Host::Weighted, 16, &mut all, 6);
    assert!(back.ends_with(&[9, 16]) || back.ends_with(&[16, 16]), "{back:?}");
    // It comes back, for 10 intervals, and so on: folded in one each time.
    for _ in 0..4 {
        all[1].demand = 16_000;
        assert_eq!(widths(Host::Weighted, 16, &mut all, 1), [8]);
        widths(Host::Weighted, 16, &mut all, 9);
        all[1].demand = 0;
        widths(Host::Weighted, 16, &mut all, 40);
        assert_eq!(all[0].width(), 16);
    }
}

#[test]
fn step_folds_away_its_share_where_threads_are_alike_and_proportional_does_not() {
    let run = |kind| {
        let mut all = [Guest::new(Some(kind), 8, 8_000), Guest::new(None, 8, 8_000)];
        widths(Host::Threads, 8, &mut all, 120);
        let mut got = 0;
        for _ in 0..100 {
            interval(Host::Threads, 8, &mut all);
            got += all[0].got;
        }
        got / 100
    };
    // Its weight's worth is 4 CPUs.
    let (step, ours) = (run(Kind::Step), run(Kind::Proportional));
    assert!(step < 2_000, "{step}");
    assert!(ours >= 3_900, "{ours}");
}

#[test]
fn two_participants_settle_at_their_shares() {
    for host in [Host::Weighted, Host::Threads] {
        let guest = Guest::new(Some(Kind::Proportional), 8, 8_000);
        let mut all = [guest.clone(), guest];
        widths(host, 8, &mut all, 60);
        let (a, b) = (all[0].width(), all[1].width());
        assert!(a + b <= 10 && a.abs_diff(b) <= 1, "{a} and {b} of 8 on {host:?}");
        assert!(all[0].got.abs_diff(all[1].got) <= 400, "{all:?}");
    }
}

#[test]
fn the_hosts_word_is_followed_at_once() {
    let config = GovernorConfig { entitled: 6, ..GovernorConfig::new(Kind::Entitlement) };
    let mut entitled = Governor::new(&config, 16, 2);
    let mut hint = Governor::new(&GovernorConfig { kind: Kind::HostHint, ..config }, 16, 2);
    let cpus = [Some(CpuTime::default()); 16];
    let mut say = |contended, tenths: u64| {
        let grant = Some(Grant { contended, cpu_ns: S / 10 * tenths });
        let seen = GovernorInput { grant, ..seen(&cpus) };
        entitled.on(&seen);
        hint.on(&seen);
        (entitled.width(), hint.width())
    };
    assert_eq!(say(false, 0), (16, 16));
    assert_eq!(say(true, 95), (6, 10), "9.5 CPUs: five cores of two");
    assert_eq!(say(true, 79), (6, 10), "less by a core's part: kept");
    assert_eq!(say(true, 60), (6, 6));
    assert_eq!(say(true, 61), (6, 8), "more: at once");
    assert_eq!(say(false, 0), (16, 16));
    // Without a grant nothing happens.
    assert_eq!(hint.on(&seen(&cpus)), None);
}

#[test]
fn shares_go_by_entitlement_then_weight_and_leave_nothing() {
    let claim = |wanted_ns, weight, entitled_ns| Claim {
        wanted_ns,
        weight,
        entitled_ns,
        ..Claim::default()
    };
    let given = |capacity, mut claims: Vec<Claim>| {
        share(capacity, &mut claims);
        claims.iter().map(|c| c.given_ns).collect::<Vec<_>>()
    };
    // The machine of paravirt-cpus, in cores: 94, of which 60 and 32 are guaranteed; both want all they can.
    assert_eq!(given(94, vec![claim(90, 1, 60), claim(64, 1, 32)]), [61, 33]);
    assert_eq!(given(94, vec![claim(90, 1, 60), claim(0, 1, 32)]), [90, 0]);
    assert_eq!(given(100, vec![claim(90, 3, 0), claim(90, 1, 0)]), [75, 25]);
    assert_eq!(given(100, vec![claim(90, 3, 0), claim(10, 1, 0)]), [90, 10]);
    assert_eq!(given(50, vec![claim(90, 1, 60), claim(90, 1, 40)]), [30, 20]);
    // Time that a quota keeps from one VM goes to the others.
    let limited = Claim { quota_ns: Some(20), ..claim(90, 3, 0) };
    assert_eq!(given(100, vec![limited, claim(90, 1, 0)]), [20, 80]);
    // Time that one VM leaves goes to the others, and so does the time that the next one leaves.
    let wants = |wanted_ns| claim(wanted_ns, 1, 0);
    assert_eq!(given(150, vec![wants(10), wants(999), wants(60)]), [10, 80, 60]);
    // A VM without weight has its entitlement; the others leave it nothing.
    let all = vec![claim(90, 0, 20), claim(90, 1, 20), claim(10, 1, 0)];
    assert_eq!(given(100, all), [20, 70, 10]);
    assert_eq!(given(10, vec![claim(90, 0, 2)]), [2]);
}

#[test]
fn who_is_busy_wants_all_its_vcpus_and_who_is_not_has_room() {
    let wanting = |busy_ns, steal_ns| Claim::wanting(CpuTime { busy_ns, steal_ns }, 1_000, 2, 4);
    // Two vCPUs of four: full is nine tenths of two.
    assert_eq!((wanting(1_000, 800), wanting(2_000, 0)), (4_000, 4_000));
    let roomy = wanting(1_000, 799);
    assert_eq!(roomy, 1_000 * 100 / vcoop_policy::govern::ROOM_PCT);
    assert!(roomy > 1_000 && wanting(0, 0) == 0);
}

#[test]
fn times_of_vcpus_add_up() {
    let times = [(1, 20), (300, 4_000)].map(|(busy_ns, steal_ns)| CpuTime { busy_ns, steal_ns });
    let all: CpuTime = times.into_iter().sum();
    assert_eq!(all, CpuTime { busy_ns: 301, steal_ns: 4_020 });
}

#[test]
fn a_little_less_than_wanted_is_no_contention() {
    let grant = |given_ns| Claim { wanted_ns: 80, given_ns, ..Claim::default() }.grant();
    assert!(!grant(80).contended && !grant(70).contended && grant(69).contended);
    assert_eq!(grant(69).cpu_ns, 69);
}

#[test]
fn nonsense_is_bounded() {
    let wild = GovernorConfig {
        floor: 900,
        entitled: 0,
        patience: 0,
        keep_pct: 9000,
        high_bp: 0,
        low_bp: u32::MAX,
        ..GovernorConfig::new(Kind::Proportional)
    };
    for kind in [Kind::Step, Kind::Proportional, Kind::Entitlement, Kind::HostHint] {
        let mut g = Governor::new(&GovernorConfig { kind, ..wild }, 4, 0);
        let cpus = [Some(CpuTime { busy_ns: u64::MAX, steal_ns: u64::MAX }); 4];
        let grant = Some(Grant { contended: true, cpu_ns: u64::MAX });
        for elapsed_ns in [0, 1, S, u64::MAX] {
            assert_eq!(
                g.on(&GovernorInput { elapsed_ns, grant, ..seen(&cpus) }),
                None,
                "the floor is all"
            );
            g.on(&GovernorInput { elapsed_ns, grant, ..seen(&[]) });
            assert_eq!(g.width(), 4);
        }
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Step),
        Just(Kind::Proportional),
        Just(Kind::Entitlement),
        Just(Kind::HostHint)
    ]
}

fn host() -> impl Strategy<Value = Host> {
    prop_oneof![Just(Host::Weighted), Just(Host::Threads)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// A VM that is never made to wait never folds, whatever it does.
    #[test]
    fn without_contention_nobody_folds(
        kind in kind(),
        loads in proptest::collection::vec((0u64..=16_000, 0u64..=16_000), 1..60)
    ) {
        let mut all = [Guest::new(Some(kind), 16, 0), Guest::new(Some(kind), 16, 0)];
        for (a, b) in loads {
            (all[0].demand, all[1].demand) = (a, b);
            interval(Host::Threads, 32, &mut all);
            prop_assert_eq!((all[0].width(), all[1].width()), (16, 16));
        }
        prop_assert_eq!(all[0].changes + all[1].changes, 0);
    }

    /// The floor is kept, in whole cores, whatever is seen.
    #[test]
    fn the_floor_is_kept(
        kind in kind(),
        floor in 1u32..20,
        threads in 1u32..5,
        looks in proptest::collection::vec((0u64..=S, 0u64..=S, any::<bool>(), 0u64..20 * S), 1..80)
    ) {
        let config = GovernorConfig { floor, ..GovernorConfig::new(kind) };
        let mut g = Governor::new(&config, 24, threads);
        let cores = 24 / threads;
        let least = floor.div_ceil(threads).min(cores) * threads;
        for (busy_ns, steal_ns, contended, cpu_ns) in looks {
            let cpus = [Some(CpuTime { busy_ns, steal_ns: steal_ns.min(S - busy_ns) }); 24];
            g.on(&GovernorInput { grant: Some(Grant { contended, cpu_ns }), ..seen(&cpus) });
            prop_assert!(g.width() >= least && g.width() <= 24);
            prop_assert_eq!(g.width() % threads, 0);
        }
    }

    /// Steady loads, whatever came before: `proportional` changes its mask at most twice for each
    /// `patience` intervals, and the kinds that go by the host's word come to rest. A try of another VM is no
    /// steady load: one that is open may answer it by a fold, a try and an opening.
    #[test]
    fn steady_loads_end_in_rest(
        kind in prop_oneof![Just(Kind::Proportional), Just(Kind::HostHint), Just(Kind::Entitlement)],
        host in host(),
        pcpus in 2u32..20,
        guests in proptest::collection::vec((1u32..17, 0u64..=17_000, 1u64..4, any::<bool>()), 1..5),
        before in proptest::collection::vec(0u64..=17_000, 0..20),
    ) {
        let mut all: Vec<Guest> = guests.iter().enumerate().map(|(i, &(vcpus, demand, weight, takes))| {
            // One takes part at least; two may.
            let takes = i == 0 || takes && i == 1;
            let demand = demand.min(1000 * u64::from(vcpus));
            Guest { weight, ..Guest::new(takes.then_some(kind), vcpus, demand) }
        }).collect();
        let governed = all.iter().filter(|g| g.governor.is_some()).count() as u32;
        let steady: Vec<u64> = all.iter().map(|g| g.demand).collect();
        for demand in before {
            for g in &mut all {
                g.demand = (demand * u64::from(g.vcpus) / 17).min(1000 * u64::from(g.vcpus));
            }
            interval(host, pcpus, &mut all);
        }
        for (g, demand) in all.iter_mut().zip(steady) {
            g.demand = demand;
        }
        widths(host, pcpus, &mut all, 400);
        let changes: Vec<u32> = all.iter().map(|g| g.changes).collect();
        widths(host, pcpus, &mut all, 320);
        for (g, before) in all.iter().zip(changes) {
            let tries = 320 / 33 + 2;
            let bound = if kind == Kind::Proportional { tries * (2 + 3 * (governed - 1)) } else { 0 };
            let now = g.changes - before;
            prop_assert!(now <= bound, "{now} changes in 320 intervals: {g:?}");
        }
    }

    /// Whatever the others did before, and however long: once they are steady `proportional` has nearly the CPU time
    /// of full width, where every thread it does not use is a loss, and comes to rest.
    #[test]
    fn what_was_had_once_is_no_measure_for_good(
        vcpus in 2u32..33,
        pcpus in 2u32..33,
        before in proptest::collection::vec((0u64..100, 1usize..50), 0..6),
        others in 0u32..40,
    ) {
        let full = 1000 * u64::from(vcpus);
        let mut all = [Guest::new(Some(Kind::Proportional), vcpus, full), Guest::new(None, 100, 0)];
        for (threads, looks) in before {
            all[1].demand = 1000 * threads;
            widths(Host::Threads, pcpus, &mut all, looks);
        }
        all[1].demand = 1000 * u64::from(others);
        // Twice `patience`, and what a try takes.
        widths(Host::Threads, pcpus, &mut all, 100);
        let changes = all[0].changes;
        let looks = 330;
        let got: u64 = (0..looks).map(|_| { interval(Host::Threads, pcpus, &mut all); all[0].got }).sum();
        let share = (1000 * u64::from(pcpus) * u64::from(vcpus) / u64::from(vcpus + others)).min(full);
        prop_assert!(got * 100 >= 95 * share * looks, "{} of {share}: {:?}", got / looks, all[0]);
        let changes = all[0].changes - changes;
        prop_assert!(u64::from(changes) <= 2 * (looks / 33 + 2), "{changes} changes");
    }

    /// Against VMs that do not fold, `proportional` keeps nearly what a VM without governor would have.
    #[test]
    fn proportional_keeps_its_share(
        host in host(), vcpus in 2u32..17, others in proptest::collection::vec(1u32..17, 1..4),
        pcpus in 2u32..24
    ) {
        let run = |kind| {
            let mut all = vec![Guest::new(kind, vcpus, 1000 * u64::from(vcpus))];
            all.extend(others.iter().map(|&n| Guest::new(None, n, 1000 * u64::from(n))));
            widths(host, pcpus, &mut all, 200);
            (0..100).map(|_| { interval(host, pcpus, &mut all); all[0].got }).sum::<u64>()
        };
        let (with, without) = (run(Some(Kind::Proportional)), run(None));
        prop_assert!(with * 100 >= without * 93, "{with} of {without}");
    }
}

/// A guest that saturates its vCPUs, on cores of different sizes, beside as many threads on as many pCPUs as it has
/// vCPUs.
#[test]
fn cores_that_have_fewer_vcpus_than_others_are_protected_as_well() {
    for cores in [vec![2u32, 2, 1, 1, 1, 1], vec![2, 1], vec![4, 1, 1, 1, 1, 1, 1, 1, 1]] {
        let (threads, all) = (cores.iter().max().copied().unwrap(), cores.iter().sum::<u32>());
        let counted = threads * cores.len() as u32;
        let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), counted, threads);
        let mut got = 0;
        for look in 0..500 {
            let used = (g.width() / threads) as usize;
            let vcpus: u32 = cores[..used].iter().sum();
            let busy_ns = S * u64::from(all) / u64::from(vcpus + all);
            let of = |core: usize, thread: u32| {
                let time = CpuTime { busy_ns, steal_ns: S - busy_ns };
                let time = if core < used { time } else { CpuTime::default() };
                (thread < cores[core]).then_some(time)
            };
            let cpus: Vec<_> =
                (0..cores.len()).flat_map(|c| (0..threads).map(move |t| of(c, t))).collect();
            got += if look < 100 { 0 } else { busy_ns * u64::from(vcpus) };
            g.on(&seen(&cpus));
        }
        let share = 400 * S * u64::from(all) / 2;
        assert!(got * 100 >= share * 95, "{cores:?}: {}", got as f64 / share as f64);
    }
}

/// `step`'s ratio is over the vCPUs that there are.
#[test]
fn step_counts_vcpus_that_there_are() {
    let cpus = |steal_ns| {
        let time = CpuTime { busy_ns: 0, steal_ns };
        [Some(time), Some(time), Some(time), None]
    };
    let width = |steal_ns| {
        let mut g = Governor::new(&GovernorConfig::new(Kind::Step), 4, 2);
        g.on(&seen(&cpus(steal_ns)));
        g.width()
    };
    assert_eq!([width(S / 20), width(S / 19)], [4, 2]);
}

/// A grain, and one for each whole root of the number of the other vCPUs.
#[test]
fn counts_that_may_be_off_are_no_pressure() {
    let pressure = |vcpus, steal_ns| {
        let cpus = vec![Some(CpuTime { busy_ns: 0, steal_ns }); vcpus];
        GovernorInput { grain_ns: 720, ..seen(&cpus) }.pressure_bp(vcpus as u32)
    };
    // 8 x 270 and 9 x 240 are three grains; half of twice as much is sure.
    for (vcpus, steal_ns) in [(1, 720), (8, 270), (9, 240)] {
        let of = [steal_ns, 2 * steal_ns].map(|ns| pressure(vcpus, ns));
        assert_eq!(of, [0, 5_000], "{vcpus}");
    }
}

/// A kernel counts in ticks of 10 ms. Of a guest that is all but idle, one of them is most of what it wanted.
#[test]
fn a_tick_of_steal_is_no_contention() {
    const TICK: Ns = 10_000_000;
    let ticks = |ns: Ns| ns / TICK * TICK;
    // How many of 4000 looks, each of 250 ms, end folded: each of 8 vCPUs wants this much, of which that much is
    // stolen.
    let folded = |wanted_ns: Ns, stolen_pct: Ns| {
        let mut g = Governor::new(&GovernorConfig::new(Kind::Proportional), 8, 1);
        let mut now: Vec<CpuTime> = (0..8)
            .map(|cpu| CpuTime { busy_ns: cpu * 1_230_000, steal_ns: cpu * 870_000 })
            .collect();
        let mut folded = 0;
        for _ in 0..4000 {
            let used = u64::from(g.width());
            let before = now.clone();
            for cpu in now.iter_mut().take(used as usize) {
                let wanted_ns = (wanted_ns * 8 / used).min(S / 4);
                cpu.steal_ns += wanted_ns * stolen_pct / 100;
                cpu.busy_ns += wanted_ns - wanted_ns * stolen_pct / 100;
            }
            let since = |(now, before): (&CpuTime, &CpuTime)| {
                Some(CpuTime {
                    busy_ns: ticks(now.busy_ns) - ticks(before.busy_ns),
                    steal_ns: ticks(now.steal_ns) - ticks(before.steal_ns),
                })
            };
            let cpus: Vec<_> = now.iter().zip(&before).map(since).collect();
            g.on(&GovernorInput { elapsed_ns: S / 4, cpus: &cpus, grain_ns: TICK, grant: None });
            folded += u32::from(g.width() < 8);
        }
        folded
    };
    assert!(folded(5_000_000, 3) < 80, "2 % busy: {}", folded(5_000_000, 3));
    assert!(folded(75_000_000, 3) < 80, "30 % busy: {}", folded(75_000_000, 3));
    // Where the neighbour takes what a folded guest leaves: it folds now and then.
    assert!(folded(250_000_000, 30) > 80, "contended: {}", folded(250_000_000, 30));
}

#[test]
fn what_the_host_gives_goes_by_weights_and_by_who_folds() {
    let busy = Member {
        used: CpuTime { busy_ns: 4 * S, steal_ns: 4 * S },
        width: 8,
        vcpus: 8,
        weight: Some(1024),
        entitled: 0,
        quota_ns: None,
        folds: true,
    };
    let mut claims = [Claim::default(); 3];
    let mut all = |members: &[Member], capacity| {
        let grant = grant(members, 0, capacity, S, &mut claims);
        (grant.contended, grant.cpu_ns)
    };
    let few = Member { vcpus: 4, width: 4, weight: None, ..busy };
    let folds = [Member { weight: None, ..busy }, few, few];
    assert_eq!(all(&folds, 8 * S), (true, 4 * S), "as many as both of the others together");
    let idle = Member { used: CpuTime::default(), folds: false, ..few };
    assert_eq!(all(&[few, few, idle], 4 * S), (true, 2 * S), "who does nothing takes nothing");
    assert_eq!(all(&[few, few, Member { folds: false, ..few }], 4 * S), (false, 4 * S));
    let mut of = |members: [Member; 2], capacity| all(&members, capacity);
    assert_eq!(of([busy, busy], 8 * S), (true, 4 * S));
    assert_eq!(of([busy, Member { weight: Some(3072), ..busy }], 8 * S), (true, 2 * S));
    // Folded to four, which are busy: it still wants all of its eight.
    let folded = CpuTime { busy_ns: 4 * S, steal_ns: 0 };
    assert_eq!(of([Member { used: folded, width: 4, ..busy }, busy], 8 * S), (true, 4 * S));
    assert!(!of([busy, busy], 16 * S).0);
    let entitled = Member { entitled: 6, ..busy };
    assert_eq!(of([entitled, Member { entitled: 2, ..busy }], 8 * S), (true, 6 * S));
    // Threads are alike: by the number of vCPUs, and not at all beside one that does not fold.
    let alike = Member { weight: None, ..busy };
    assert_eq!(of([alike, alike], 8 * S), (true, 4 * S));
    assert_eq!(of([alike, Member { folds: false, ..alike }], 8 * S), (false, 8 * S));
    let weighs = Member { weight: Some(8 * 1024), folds: false, ..busy };
    assert_eq!(
        of([alike, weighs], 8 * S),
        (true, 4 * S),
        "a VM by its weight, whether it folds or not"
    );
    let idle = Member { used: CpuTime::default(), folds: false, ..alike };
    assert!(!of([alike, idle], 8 * S).0, "all of it is there");
    assert_eq!(of([Member { folds: false, ..alike }, alike], 8 * S), (true, 4 * S));
    // A quota of three CPUs holds wherever the other one is, and leaves it the rest.
    for other in [busy, idle, Member { folds: false, ..alike }] {
        let limited = Member { quota_ns: Some(3 * S), ..alike };
        assert_eq!(of([limited, other], 16 * S), (true, 3 * S));
    }
    assert_eq!(of([busy, Member { quota_ns: Some(3 * S), ..busy }], 8 * S), (true, 5 * S));
}
