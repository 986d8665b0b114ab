//! What is said of results that are known.

use crate::common::{Fake, Ran, Stub, plans, record, run};
use vcoop_experiment::backend::Backend;
use vcoop_experiment::result::{Document, Series, Verdict};
use vcoop_experiment::verdict::{judgement, verdicts};
use vcoop_model::recording::LatencyRecord;
use vcoop_model::run::Run;

/// A thousand and more samples around a level, which shifts a little from repeat to repeat.
fn around(level: u64, seed: u64) -> Vec<u64> {
    let drift = seed % 7;
    (0..2000).map(|i| level + level * (i % 10) / 100 + level * drift / 100).collect()
}

/// `dynamic` helps the guest; `static` helps it more, but hurts the host.
fn usual(policy: &str, probe: &str, seed: u64) -> Vec<u64> {
    let level = match (policy, probe.starts_with("host.")) {
        ("vanilla", false) => 1_000_000,
        ("dynamic", false) => 20_000,
        ("static", false) => 18_000,
        ("static", true) => 50_000,
        (_, true) => 5_000,
        _ => 1_000_000,
    };
    around(level, seed)
}

/// A machine on which no task misses a period, and the load of the host is done whatever the policy.
const USUAL: Fake = Fake { law: usual, missed: |_| 0, load: |_| 1.5 };

/// What so many repeats on a machine come to.
fn of(backend: impl Backend + 'static, repeats: u32) -> Document {
    let repeats = format!("repeats={repeats}");
    let sets = ["duration=100ms", "warmup=0s", repeats.as_str()];
    let plans = plans("busy-host-1", &sets, &["vanilla", "dynamic", "static"]);
    run(&plans, Box::leak(Box::new(backend)), 2)
}

/// What is said of ten repeats.
fn verdict(backend: impl Backend + 'static) -> Verdict {
    of(backend, 10).verdicts.remove(0)
}

#[test]
fn the_best_is_the_one_the_host_can_pay() {
    let verdict = verdict(USUAL);
    assert_eq!(verdict.best.as_deref(), Some("dynamic"), "{}", verdict.text);
    assert!(verdict.text.contains("guest.cyclictest p99"), "{}", verdict.text);
    assert!(verdict.text.contains(
        "Under static the guest waits 0.90x as long as under dynamic, but host.cyclictest mean"
    ));
}

#[test]
fn few_repeats_carry_no_verdict() {
    let mut document = of(USUAL, 3);
    let verdict = document.verdicts.remove(0);
    assert_eq!(verdict.best, None);
    let said = "no verdict from 3 repeats: a verdict takes 5 (--repeats), 10 are better";
    assert_eq!(verdict.text, said);
    // `vcoop compare` has another name for them.
    document.backends = vec!["vm".to_owned()];
    for series in &mut document.series {
        match series {
            Series::Latency(one) => one.key.backend = "vm".to_owned(),
            Series::Scalar(one) => one.key.backend = "vm".to_owned(),
        }
    }
    let of_vm = &verdicts(&document)[0].text;
    assert!(of_vm.contains("takes 5 (--rounds)"), "{of_vm}");
    (document.repeats, document.interrupted) = (20, true);
    let said = "no verdict: a verdict takes 5 rounds, and the run ended after 3 of 20";
    assert_eq!(verdicts(&document)[0].text, said, "enough were planned");
}

#[test]
fn equal_policies_do_not_differ() {
    let verdict = verdict(Fake { law: |_, _, seed| around(30_000, seed), ..USUAL });
    assert_eq!(verdict.best, None);
    assert_eq!(verdict.text, "no policy differs from vanilla beyond noise");
}

#[test]
fn a_load_that_loses_a_tenth_or_all_is_too_much() {
    let tenth: fn(&str) -> f64 = |policy| if policy == "dynamic" { 1.35 } else { 1.5 };
    let all: fn(&str) -> f64 = |policy| if policy == "vanilla" { 1.5 } else { 0.0 };
    for (load, says) in
        [(tenth, "(--may-cost): a host probe's mean 1.10x"), (all, "1.50 CPU -> 0 CPU (0x)")]
    {
        let Verdict { best, text, .. } = verdict(Fake { load, ..USUAL });
        assert_eq!(best, None);
        assert!(
            text.starts_with("none within the limits: static") && text.contains(says),
            "{text}"
        );
    }
}

#[test]
fn a_latency_of_which_nothing_is_left_is_better() {
    fn law(policy: &str, probe: &str, seed: u64) -> Vec<u64> {
        let gone = policy == "dynamic" && !probe.starts_with("host.");
        if gone { vec![0; 2000] } else { usual("vanilla", probe, seed) }
    }
    let verdict = verdict(Fake { law, ..USUAL });
    assert_eq!(verdict.best.as_deref(), Some("dynamic"), "{}", verdict.text);
}

#[test]
fn policies_that_are_worse_are_told() {
    fn law(policy: &str, probe: &str, seed: u64) -> Vec<u64> {
        let law = usual("vanilla", probe, seed);
        let times = if policy == "static" { 3 } else { 1 };
        law.into_iter().map(|ns| ns * times).collect()
    }
    let text = verdict(Fake { law, ..USUAL }).text;
    let told = "no policy helps the guest beyond noise; static makes it worse: guest.";
    assert!(text.starts_with(told) && !text.contains("dynamic"), "{text}");
}

#[test]
fn missing_more_periods_is_not_better() {
    let verdict =
        verdict(Fake { missed: |policy| if policy == "vanilla" { 1 } else { 500 }, ..USUAL });
    assert_eq!(verdict.text, "no policy differs from vanilla beyond noise");
}

#[test]
fn statistics_of_a_known_law() {
    fn law(policy: &str, _: &str, seed: u64) -> Vec<u64> {
        // Repeats differ much, and in the same way for both policies.
        let factor = if policy == "vanilla" { 2 } else { 1 };
        (1..=1000).map(|i| i * 1000 * factor * (1 + seed % 5)).collect()
    }
    let document = of(Fake { law, ..USUAL }, 10);
    let find = |policy: &str| {
        document.latencies().find(|s| s.key.policy == policy && s.key.probe == "guest.cyclictest")
    };
    let (base, dynamic) = (find("vanilla").unwrap(), find("dynamic").unwrap());
    assert_eq!(base.count, 10_000);
    assert!(base.p99.is_some() && base.p999.is_some(), "10 000 samples carry a p99.9");
    assert!(base.p9999.is_none(), "but no p99.99");
    assert_eq!(base.ratio_to_baseline, None);
    let (ratios, intervals) = (dynamic.ratio_to_baseline.unwrap(), dynamic.ratio_ci95.unwrap());
    assert_eq!(ratios.mean, Some(0.5));
    let [lo, hi] = intervals.mean.unwrap();
    assert!((0.4999..=0.5).contains(&lo) && (0.5..=0.5001).contains(&hi), "{lo} {hi}");
    let [lo, hi] = base.mean_ci95.unwrap();
    assert!(lo < base.mean.unwrap() && base.mean.unwrap() < hi && hi / lo > 1.2);
    let wait = base.parts_mean["wake_to_run"] + base.parts_mean["preempted_to_run"];
    assert!((base.parts_mean["host_wait"] - wait).abs() < 0.002);
    assert!((base.parts_mean["host_wait"] - base.mean.unwrap()).abs() < 0.002);
    assert_eq!(Some(base.ran_instead_mean["hog"]), base.mean);
}

/// Runs beside which a command has printed times: of the guest's own benchmark.
fn with_command(run: Run<'_>, p99_us: f64) -> Ran {
    let drift = (run.seed % 7) as f64 / 100.0;
    let (mut recording, _) = USUAL.run(run)?;
    let mut put = |name: &str, unit, value: f64| {
        recording.put(&format!("exec.{name}"), "value", unit, value * (1.0 + drift));
    };
    put("p99_us", "us", p99_us);
    put("max_us", "us", 1e6);
    put("rounds", "count", 3.0);
    Ok((recording, None))
}

const SAME_TIMES: Stub = Stub("vm", |run| with_command(run, 700.0));

#[test]
fn times_that_a_command_printed_count_in_place_of_waits() {
    // By the waits of its vCPUs dynamic is best; by the guest's benchmark no policy is.
    let same = verdict(SAME_TIMES);
    assert_eq!(same.best, None, "{}", same.text);
    let verdict = verdict(Stub("vm", |run| {
        let p99_us = if run.plan.policy_name == "dynamic" { 70.0 } else { 700.0 };
        with_command(run, p99_us)
    }));
    assert_eq!(verdict.best.as_deref(), Some("dynamic"));
    assert!(verdict.text.contains("exec.p99_us 7"), "{}", verdict.text);
    assert!(verdict.text.contains("(0.10x)"), "{}", verdict.text);
    assert!(!verdict.text.contains("max_us"), "{}", verdict.text);
}

/// The load of the host runs in the first repeat only, except under `vanilla`.
fn starves(run: Run<'_>) -> Ran {
    let (vanilla, first) = (run.plan.policy_name == "vanilla", run.seed == 1);
    let (mut recording, failure) = USUAL.run(run)?;
    for load in recording.scalars.values_mut().filter(|_| !vanilla) {
        load.value = if first { 0.02 } else { 0.0 };
    }
    Ok((recording, failure))
}

#[test]
fn a_load_that_hardly_ever_runs_is_not_starved_by_chance() {
    let document = of(Stub("fake", starves), 10);
    let found = judgement(&document, &document.cells()[0], "dynamic");
    assert!(found.too_much().iter().any(|cost| cost.contains("host.hog")), "{found:?}");
    assert_eq!(document.verdicts[0].best, None, "{}", document.verdicts[0].text);
    let load = document.scalar(&document.cells()[0], "host.hog", "throughput", "dynamic").unwrap();
    let [lo, hi] = load.ratio_ci95.unwrap();
    assert!(lo == 0.0 && (0.001..0.01).contains(&hi), "{load:?}");
}

/// What a number without a unit is, only the command knows: a score of 3 does not spread like 3 events.
#[test]
fn a_number_that_a_command_printed_is_no_count_of_events() {
    let document = of(SAME_TIMES, 10);
    let rounds = document.scalar(&document.cells()[0], "exec.rounds", "value", "vanilla").unwrap();
    let ([lo, hi], value) = (rounds.value_ci95.unwrap(), rounds.value.unwrap());
    assert!(2.9 < lo && lo < value && value < hi && hi < 3.3, "{rounds:?}");
}

/// Waits of vCPUs, as on a running VM: since wake-ups, and since preemptions, of which `static` has none.
fn waits(run: Run<'_>) -> Ran {
    let (policy, seed) = (run.plan.policy_name.clone(), run.seed);
    let (mut recording, _) = USUAL.run(run)?;
    let level = if policy == "vanilla" { 1_000_000 } else { 900_000 };
    let preempted = if policy == "static" { Vec::new() } else { around(level, seed) };
    let [woken, preempted] = [around(level, seed), preempted].map(|v| record("web", &v, 0));
    recording.latencies = vec![
        LatencyRecord { metric: LatencyRecord::WAIT, ..woken },
        LatencyRecord { metric: LatencyRecord::PREEMPTED, ..preempted },
    ];
    Ok((recording, None))
}

#[test]
fn a_vcpu_that_is_never_preempted_is_not_starved() {
    let document = of(Stub("vm", waits), 10);
    let found = judgement(&document, &document.cells()[0], "static");
    assert_eq!(found.worse, Vec::<String>::new());
    assert!(found.improves && (found.gain.unwrap() - 0.9).abs() < 0.01, "{found:?}");
}

/// A vCPU at a fixed real-time priority that never sleeps leaves its CPU to nobody: the probe, that was
/// to say so, never runs.
#[test]
fn a_probe_that_is_starved_to_nothing_is_a_cost() {
    let plans =
        vcoop_testing::rig::plans(&vcoop_testing::rig::one_cpu(), &["vanilla", "static"], &[]);
    let document = run(&plans, &vcoop_experiment::backend::Sim, 2);
    let of = |policy: &str, probe: &str| {
        document.latencies().find(|s| s.key.policy == policy && s.key.probe == probe).unwrap()
    };
    let (base, starved) = (of("vanilla", "host.cyclictest"), of("static", "host.cyclictest"));
    assert!(base.missed_share() < 0.5 && !base.is_starved(), "{}", base.missed_share());
    // 600 periods of each of five repeats; the sample is nearly as old as the run, which it has begun with.
    assert_eq!((starved.count, starved.missed), (5, 3000));
    assert!(starved.is_starved() && starved.mean.unwrap() > 300_000.0, "{:?}", starved.mean);
    let guest = of("static", "guest.cyclictest").ratio_to_baseline.unwrap();
    assert!(guest.p99.unwrap() < 0.5, "the guest is much better off: {guest:?}");
    let verdict = &document.verdicts[0];
    assert_eq!(verdict.best, None, "{}", verdict.text);
    assert!(
        verdict.text.contains("host.cyclictest is starved: it misses 99.8 % of its periods"),
        "{}",
        verdict.text
    );
}

#[test]
fn a_series_without_samples_stays_and_is_a_cost() {
    fn law(policy: &str, probe: &str, seed: u64) -> Vec<u64> {
        match (policy, probe.starts_with("host.")) {
            ("dynamic", true) => Vec::new(),
            _ => usual(policy, probe, seed),
        }
    }
    let missed: fn(&str) -> u64 = |policy| u64::from(policy == "dynamic");
    let document = of(Fake { law, missed, ..USUAL }, 10);
    let host = |s: &&vcoop_experiment::result::LatencySeries| {
        s.key.policy == "dynamic" && s.key.probe.starts_with("host.")
    };
    let series = document.latencies().find(host).unwrap();
    assert_eq!((series.count, series.missed, series.mean, series.max), (0, 10, None, None));
    assert!(series.is_starved() && series.mean_ci95.is_none());
    assert_eq!(series.ratio_to_baseline.unwrap().mean, None);
    let text = &document.verdicts[0].text;
    assert_eq!(document.verdicts[0].best, None, "{text}");
    let json = serde_json::to_value(&document).unwrap();
    let again: Document = serde_json::from_value(json).unwrap();
    assert_eq!(again, document);
}

/// Two cells in which `dynamic` helps, and one number that says so of both.
#[test]
fn a_matrix_has_a_verdict_over_its_cells() {
    static FAKE: Fake = USUAL;
    let mut plans = plans(
        "busy-host-1",
        &["duration=100ms", "warmup=0s", "repeats=10"],
        &["vanilla", "dynamic", "static"],
    );
    let mut other = plans.clone();
    for (hogs, plans) in [("1", &mut plans), ("2", &mut other)] {
        for plan in plans {
            plan.params.insert("load.hog.count".to_owned(), hogs.to_owned());
        }
    }
    plans.extend(other);
    let verdicts = run(&plans, &FAKE, 2).verdicts;
    assert_eq!(verdicts.iter().map(|v| v.cells).collect::<Vec<_>>(), [2, 0, 0]);
    assert_eq!(verdicts[0].best.as_deref(), Some("dynamic"), "{}", verdicts[0].text);
    assert!(verdicts[0].text.contains("guest.cyclictest p99 0.020"), "{}", verdicts[0].text);
    assert!(verdicts[0].text.contains("best in 2 of 2 cells"), "{}", verdicts[0].text);
    assert!(vcoop_experiment::verdict::line(&verdicts[0], false).contains("over all 2 cells"));
}

/// What others did to a live measurement stands in its verdict, and in no other.
#[test]
fn a_live_verdict_says_what_others_used() {
    let text = serde_json::to_string(&of(USUAL, 10)).unwrap();
    let said = |backend: &str, cpus| {
        let text = text.replace("\"fake\"", &format!("{backend:?}"));
        let document: Document = serde_json::from_str(&text).unwrap();
        let document = Document { others_cpu: cpus, ..document };
        vcoop_experiment::verdict::verdicts(&document)[0].text.contains("Others used 0.830 CPUs")
    };
    assert!(said("kvm", Some(0.83)));
    assert!(!said("kvm", Some(0.02)) && !said("kvm", None) && !said("sim", Some(0.83)));
}
