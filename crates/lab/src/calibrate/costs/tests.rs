use std::path::Path;

use vcoop_model::profile::NoiseBy;

use super::*;

fn measure(name: &'static str, ns: Ns) -> Measure {
    let distribution = Distribution {
        n: 100,
        min_ns: ns,
        p10_ns: ns,
        median_ns: ns,
        p90_ns: ns + 1,
        p99_ns: ns + 2,
        p999_ns: ns + 3,
        p9999_ns: ns + 4,
        max_ns: ns * 20,
        mean_ns: ns,
        interrupted: 0,
    };
    Measure { name, about: "", distribution, blocks: 4, stable: true }
}

const CPU: Cpu = Cpu { tsc_khz: 2_000_000, signature: 0x606a6, preemption_timer_shift: Some(5) };

/// A hardware KVM: an exit of 1 us behind a gate of 200 ns.
const MEASURES: [(&str, Ns); 34] = [
    ("syscall", 100),
    ("pause-loop", 150_000),
    ("cache-line", 40),
    ("cache-line-far", 130),
    ("tick", 2_000),
    ("timer-interrupt", 1_000),
    ("timer-program", 400),
    ("futex-wake-nobody", 150),
    ("wake-here", 950),
    ("switch-pair", 2_200),
    ("sleep-cycle-cpu", 3_000),
    ("sleep-cycle-cpu-busy", 2_500),
    ("setattr-own", 1_100),
    ("ipi-travel", 600),
    ("ipi-receive", 700),
    ("wake-idle", 5_000),
    ("wake-polling", 3_000),
    ("guest-gate", 200),
    ("exit-cpuid", 1_200),
    ("exit-interrupt", 1_900),
    ("sleep-late-busy", 3_000),
    ("sleep-late-guest", 4_500),
    ("guest-wake-switch", 900),
    ("exit-timer-msr", 1_700),
    ("exit-icr", 1_500),
    ("exit-eoi", 1_150),
    ("exit-user-msr", 3_200),
    ("self-interrupt", 2_400),
    ("self-wake", 2_900),
    ("guest-sleep-switch", 700),
    ("msi-call-running", 1_000),
    ("msi-running", 4_000),
    ("msi-halted", 4_500),
    ("halt-cycle-cpu", 9_000),
];

fn known<R>(
    software: bool,
    measures: &[(&'static str, Ns)],
    with: impl FnOnce(RuleInput<'_>) -> R,
) -> R {
    let measures: Vec<Measure> = measures.iter().map(|(name, ns)| measure(name, *ns)).collect();
    let facts = HostFacts::read(Path::new("/nowhere"), &[0, 1], None);
    let base = Profile::load(BASE_PROFILE).unwrap();
    let place = "a test, Linux 0, 2026-01-01";
    let cpu = (CPU, "assumed: a test's".to_owned());
    let constant = false;
    let noise = &[MeasuredNoise {
        by: NoiseBy::Threads,
        took: Distribution { mean_ns: 30_020, ..measure("", 30_000).distribution },
        watched_ns: 1_000_000_000,
        cpus: vec![1],
    }];
    let (measures, facts, base, cpu) = (&*measures, &facts, &base, &cpu);
    with(RuleInput { measures, facts, software, place, base, cpu, noise, constant })
}

fn cost(costs: &[Cost], key: &str) -> Ns {
    costs.iter().find(|c| c.key == key).unwrap_or_else(|| panic!("{key}")).ns
}

#[test]
fn a_hardware_kvm_charges_exit_and_entry_once() {
    known(false, &MEASURES, |known| {
        let (costs, _) = known.profile();
        let of = |key: &str| cost(&costs, key);
        assert_eq!(of("exit") + of("entry"), 1_000);
        assert_eq!(of("exit") + of("vcpu_put"), 1_500, "what a vCPU takes more than a thread");
        assert_eq!(of("handle_timer_msr"), 500);
        assert_eq!((of("pv_spin"), of("handle_eoi")), (150_000, 0), "the latter never below zero");
        assert_eq!((of("cache_line"), of("llc_crossing")), (40, 90));
        assert_eq!(of("context_switch"), 1_000);
        assert_eq!(of("sleep"), 2_500 - 1_000 - 300);
        assert_eq!(of("sleep_idle"), 500);
        assert_eq!(of("guest_sleep"), of("sleep") + of("sleep_idle"));
        assert_eq!(of("lab_sleep") + of("guest_switch"), 700);
        assert_eq!(of("wakeup"), 800);
        assert_eq!(of("ipi_send") + of("ipi_flight"), 550);
        // A whole delivery is charged what it took.
        let way = 950 + of("ipi_flight") + of("ipi_receive") + 1_000 + of("inject");
        assert!(way <= 4_000 && of("inject") <= 900, "{way}");
        // And so is a whole halt.
        let keys = ["context_switch", "vcpu_load", "entry", "inject", "guest_irq"];
        let more = ["guest_wakeup", "guest_switch", "lab_sleep", "exit", "handle_hlt"];
        let sum: Ns = keys.iter().chain(&more).map(|key| of(key)).sum();
        assert_eq!(sum, 9_000);
    });
}

#[test]
fn a_software_kvm_exits_at_the_gate() {
    known(true, &MEASURES, |known| {
        let (costs, _) = known.profile();
        assert_eq!(cost(&costs, "exit") + cost(&costs, "entry"), 200);
        assert_eq!(cost(&costs, "handle_timer_msr"), 1_500);
    });
}

#[test]
fn the_profile_reads_back_as_it_was_written() {
    for (software, n) in [(false, MEASURES.len()), (true, MEASURES.len()), (false, 12), (false, 0)]
    {
        known(software, &MEASURES[..n], |known| {
            let (costs, profile) = known.profile();
            let again =
                Profile::parse("again", &profile.to_toml()).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(again, profile);
            assert!(profile.sources.contains_key("cpu"));
            assert_eq!(costs.len() + 1 + profile.noise.len(), profile.sources.len());
            for (key, ns) in profile.costs.entries() {
                assert_eq!(cost(&costs, key), ns, "{key}");
            }
        });
    }
}

#[test]
fn what_was_not_measured_is_the_base_profiles_and_says_so() {
    known(false, &MEASURES[..12], |known| {
        let (costs, profile) = known.profile();
        let base = Profile::load(BASE_PROFILE).unwrap();
        for key in ["exit", "handle_hlt", "guest_tick", "voluntary_point", "migration_refill"] {
            let cost = costs.iter().find(|c| c.key == key).unwrap();
            assert_eq!(cost.origin, Origin::Assumed, "{key}");
            let said = "assumed: as xeon-server; vcoop calibrate could not measure it on a test, Linux 0, 2026-01-01";
            assert_eq!(cost.source, said);
        }
        assert_eq!(profile.costs.exit_ns, base.costs.exit_ns);
        let tick = costs.iter().find(|c| c.key == "tick").unwrap();
        assert_eq!((tick.ns, tick.origin), (2_000, Origin::Measured));
        let said = "measured by vcoop calibrate on a test, Linux 0, 2026-01-01: tick: \
                    n=100, median 2000 ns, p10..p90 2000..2001 ns, mean 2000 ns";
        assert_eq!(tick.source, said);
    });
}

#[test]
fn the_way_out_of_idle_is_what_waking_takes_more() {
    known(false, &MEASURES, |known| {
        let (costs, profile) = known.profile();
        assert_eq!(profile.costs.cstates[0].name, "HLT", "this machine names none");
        // 5000 less the call and 800 + 550 + 700 + 1000.
        assert_eq!(cost(&costs, "cstate.HLT"), 1_850);
        // A CPU that waits by MWAIT gets no IPI: less the call and 800 + 100 + 1000.
        let mut facts = known.facts.clone();
        facts.idle.states.push(IdleState {
            name: "C1".to_owned(),
            description: "MWAIT 0x00".to_owned(),
            exit_ns: 1_000,
            residency_ns: 1_000,
            disabled: false,
        });
        let (costs, profile) = RuleInput { facts: &facts, ..known }.profile();
        assert!(profile.costs.cstates[0].monitor);
        assert_eq!(cost(&costs, "cstate.C1"), 3_000);
    });
}

#[test]
fn every_quantile_is_the_formula_of_that_quantile() {
    known(false, &MEASURES, |known| {
        let (_, profile) = known.profile();
        let of = |key: &str| profile.costs.spread[key].values();
        // ns, ns + 1 from 90 %, ..., 20 times as much at most.
        assert_eq!(of("timer_irq"), [1_000, 1_000, 1_000, 1_001, 1_002, 1_003, 1_004, 20_000]);
        // All less the same of `syscall`, whose largest is 2000.
        assert_eq!(of("timer_program"), [300, 300, 300, 300, 300, 300, 300, 6_000]);
        // Exit and entry are one measure: what that is longer at times is the exit's.
        assert_eq!(of("exit")[7] + profile.costs.entry_ns, 20 * 1_000);
        assert!(!profile.costs.spread.contains_key("entry"));
        assert!(!profile.costs.spread.contains_key("migration_refill"), "assumed");
        assert_eq!(of("cstate.HLT")[2], profile.costs.cstates[0].exit_ns);
        for (key, ns) in profile.costs.entries() {
            let median = profile.costs.spread.get(key).map_or(ns, |spread| spread.values()[2]);
            assert_eq!(median, ns, "{key}");
        }
    });
}

#[test]
fn noise_has_its_rate_and_its_source() {
    known(false, &MEASURES, |known| {
        let (_, profile) = known.profile();
        let [noise] = &profile.noise[..] else { panic!("{:?}", profile.noise) };
        assert_eq!((noise.by, noise.period_ns), (NoiseBy::Threads, 10_000_000), "100 in a second");
        assert_eq!((noise.takes.values()[7], noise.mean_ns), (600_000, 30_020));
        let seen = &known.noise[0];
        assert_eq!(seen.permille(), 3, "100 times 30 us in a second");
        let odd = MeasuredNoise { took: Distribution { mean_ns: 1, ..seen.took }, ..seen.clone() };
        assert_eq!(odd.noise().mean_ns, noise.takes.mean(), "no such mean is possible");
        let crowded = MeasuredNoise { watched_ns: 2_000_000, ..seen.clone() };
        assert!(seen.leaves_time() && !crowded.leaves_time());
        let source = &profile.sources["noise.threads"];
        assert!(source.starts_with("measured by vcoop calibrate on a test"), "{source}");
    });
}

#[test]
fn constants_vary_in_nothing() {
    known(false, &MEASURES, |known| {
        let (_, profile) = RuleInput { constant: true, ..known }.profile();
        assert!(profile.costs.spread.is_empty() && profile.noise.is_empty());
        assert_eq!(profile.costs.timer_irq_ns, 1_000);
    });
}
