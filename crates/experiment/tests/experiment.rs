//! Running: determinism, interruption, failure, and the shape of the document.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Ran, Stub, measured, plans, record, run};
use serde_json::Value;
use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Column, Sim};
use vcoop_experiment::runner::{Control, Experiment, repeat_seed};
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;

const SHORT: [&str; 3] = ["duration=500ms", "warmup=20ms", "repeats=6"];

/// The contract other programs rely on: names and types of everything in it.
#[test]
fn the_document_has_the_promised_shape() {
    let text = run(&plans("busy-host-1", &SHORT, &["vanilla", "dynamic"]), &Sim, 2).to_json();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], "vcoop.result/1");
    assert!(json["version"].is_string());
    assert_eq!(json["scenario"], "busy-host-1");
    assert_eq!(json["seed"], 1);
    assert_eq!(json["backends"], serde_json::json!(["sim"]));
    assert_eq!(json["interrupted"], false);
    for number in ["events", "cpu_s", "sim_s"] {
        assert!(json["engine"][number].is_number(), "{number}");
    }
    assert_eq!(json["engine"].as_object().unwrap().len(), 3);
    let series = json["series"].as_array().unwrap();
    let find = |probe: &str, metric: &str, policy: &str| {
        let is = |s: &&Value| s["probe"] == probe && s["metric"] == metric && s["policy"] == policy;
        series.iter().find(is).unwrap_or_else(|| panic!("{probe} {metric}"))
    };
    for policy in ["vanilla", "dynamic"] {
        let s = find("guest.cyclictest", "latency", policy);
        assert_eq!((&s["backend"], &s["unit"]), (&Value::from("sim"), &Value::from("us")));
        assert!(s["params"].is_object() && s["parts_mean"]["host_wait"].is_number());
        for key in ["count", "missed", "min", "mean", "p50", "p90", "max"] {
            assert!(s[key].is_number(), "{key} of {policy}");
        }
        assert!(["p99", "p999"].iter().all(|key| s.get(key).is_some()), "null, but there");
        assert_eq!(s["mean_ci95"].as_array().map(Vec::len), Some(2));
        assert!(s["p9999"].is_null(), "3000 samples carry no p99.99");
        let scalar = find("host.hog", "throughput", policy);
        assert!(scalar["value"].is_number() && scalar["unit"].is_string());
        assert_eq!(scalar["value_ci95"].as_array().map(Vec::len), Some(2));
    }
    let ratio = &find("guest.cyclictest", "latency", "dynamic")["ratio_ci95"]["mean"];
    assert_eq!(ratio.as_array().map(Vec::len), Some(2));
}

#[test]
fn one_repeat_has_values_but_no_intervals() {
    let sets = ["duration=200ms", "warmup=0s", "repeats=1"];
    let document = run(&plans("busy-host-1", &sets, &["vanilla", "dynamic"]), &Sim, 1);
    let latency = document.latencies().find(|s| s.key.policy == "dynamic").unwrap();
    assert!(latency.mean.unwrap() > 0.0 && latency.mean_ci95.is_none());
    assert!(latency.ratio_to_baseline.unwrap().mean.is_some());
    assert!(latency.ratio_ci95.unwrap().mean.is_none());
    assert!(document.scalars().all(|s| s.value_ci95.is_none() && s.ratio_ci95.is_none()));
}

#[test]
fn the_interval_of_a_share_ends_at_all_of_it() {
    let sets = ["duration=400ms", "repeats=2"];
    let document = run(&plans("busy-host", &sets, &["wake-boost"]), &Sim, 2);
    let cpu = document.scalars().find(|s| (&*s.key.probe, &*s.key.metric) == ("host", "cpu"));
    let [lo, hi] = cpu.unwrap().value_ci95.unwrap();
    assert!(lo < 100.0 && hi == 100.0, "{lo} {hi}");
}

#[test]
fn matrix_cells_are_compared_with_their_own_baseline() {
    let sets = ["duration=100ms", "warmup=0s", "repeats=2"];
    let document = run(&plans("pvsched-idle", &sets, &["vanilla", "static"]), &Sim, 2);
    let cells = document.cells();
    assert_eq!(cells.len(), 2);
    assert_eq!(cells[0].1["interval_us"], 500);
    assert_eq!(cells[1].1["interval_us"], 1000);
    for series in document.latencies().filter(|s| s.key.policy == "static") {
        let base = document.latencies().find(|s| {
            s.key.policy == "vanilla"
                && s.key.probe == series.key.probe
                && s.key.params == series.key.params
        });
        let expected = series.mean.unwrap() / base.unwrap().mean.unwrap();
        let ratio = series.ratio_to_baseline.unwrap().mean.unwrap();
        assert!((ratio / expected - 1.0).abs() < 1e-3, "{ratio} {expected}");
    }
    assert_eq!(document.verdicts.len(), 3);
}

/// Measures something.
fn seeded(Run { plan, seed, .. }: Run<'_>) -> Ran {
    let latencies = plan.probes.iter().map(|p| record(&p.probe, &[seed % 100 + 1], 0));
    Ok((Recording { latencies: latencies.collect(), ..Recording::default() }, None))
}

#[test]
fn policies_share_the_seeds_of_repeats() {
    static NOTES: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());
    const NOTES_THEM: Stub = Stub("notes", |run| {
        NOTES.lock().unwrap().push((run.plan.policy_name.clone(), run.seed));
        seeded(run)
    });
    run(&plans("busy-host-1", &["repeats=3"], &["vanilla", "static"]), &NOTES_THEM, 1);
    let notes = NOTES.lock().unwrap();
    let of = |policy: &str| -> Vec<u64> {
        notes.iter().filter(|(p, _)| p == policy).map(|(_, seed)| *seed).collect()
    };
    assert_eq!(of("vanilla"), of("static"));
    assert_eq!(of("static"), (0..3).map(|r| repeat_seed(1, r)).collect::<Vec<_>>());
    // Repeats before plans: an early end leaves all policies with as many. Every other one goes
    // backwards.
    let order: Vec<&str> = notes.iter().map(|(p, _)| p.as_str()).collect();
    assert_eq!(order, ["vanilla", "static", "static", "vanilla", "vanilla", "static"]);
}

#[test]
fn an_early_end_keeps_what_was_measured() {
    let plans = plans("busy-host-1", &["repeats=5"], &["vanilla", "static"]);
    let stop = AtomicBool::new(false);
    let progress = |p: vcoop_experiment::runner::Progress| {
        assert_eq!(p.total, 10);
        stop.store(p.done >= 5, Ordering::Relaxed);
    };
    let control = Control { stop: &stop, progress: &progress };
    let columns = [Column::all(&Stub("seeded", seeded), plans.len())];
    let measured = Experiment { plans: &plans, columns: &columns, jobs: 1 }.run(control).unwrap();
    assert!(measured.interrupted);
    let document = document(&plans, &measured, Metadata::default());
    assert!(document.interrupted);
    let repeats =
        |policy: &str| document.latencies().find(|s| s.key.policy == policy).unwrap().key.repeats;
    // Three and two finished; the last of vanilla has no partner, so ratios take two.
    assert!(repeats("vanilla") >= 2 && repeats("static") >= 2);
    assert_eq!(measured.runs.iter().flat_map(|r| r.repeats.iter().flatten()).count(), 5);
}

/// Cut short, the simulator's own run is left out where others came to their end.
#[test]
fn runs_cut_short_do_not_count_beside_whole_ones() {
    let sets = ["duration=100ms", "warmup=0s", "repeats=2"];
    let plans = plans("busy-host-1", &sets, &["vanilla"]);
    let mut measured = measured(&plans, &Sim, 1).unwrap();
    assert!(!measured.interrupted);
    let whole = document(&plans, &measured, Metadata::default());
    measured.runs[0].repeats[1].as_mut().unwrap().complete = false;
    let cut = document(&plans, &measured, Metadata::default());
    let repeats =
        |d: &vcoop_experiment::result::Document| d.latencies().next().unwrap().key.repeats;
    assert_eq!((repeats(&whole), repeats(&cut)), (2, 1));
}

/// Has some scalars in some repeats only, and the base policy has an event that the other has not.
fn seldom(run: Run<'_>) -> Ran {
    let repeat = (0..4).find(|r| repeat_seed(1, *r) == run.seed).unwrap();
    let vanilla = run.plan.policy_name == "vanilla";
    let mut recording = Recording::default();
    if repeat == 2 {
        recording.put("vm", "exits.pause", "1/s", 8.0);
        recording.put("vm", "exit_time.pause", "%", 0.4);
    }
    if vanilla && repeat == 3 {
        recording.put("vm", "yields.tried", "1/s", 100.0);
    }
    // Two repeats of each have it, of which they share one.
    if [1, 1 + u32::from(vanilla) * 2].contains(&repeat) || !vanilla && repeat == 2 {
        recording.put("vm", "halts.p99", "us", if repeat == 1 { 10.0 } else { 40.0 });
    }
    Ok((recording, None))
}

/// An event that did not happen in a repeat happened zero times there. A quantile that a repeat has too few values for
/// is unknown there.
#[test]
fn scalars_of_some_repeats_count_for_all_or_for_those() {
    let plans = plans("busy-host-1", &["repeats=4", "duration=1s"], &["vanilla", "static"]);
    let document = run(&plans, &Stub("seldom", seldom), 1);
    let of = |policy: &str, metric: &str| {
        let mut all = document.scalars();
        let one = all.find(|s| s.key.policy == policy && s.key.metric == metric);
        one.map(|one| (one.value.unwrap(), one.ratio_to_baseline))
    };
    assert_eq!(of("vanilla", "exits.pause"), Some((2.0, None)));
    assert_eq!(of("static", "exits.pause"), Some((2.0, Some(1.0))));
    assert_eq!(of("static", "exit_time.pause").unwrap().0, 0.1);
    assert_eq!(of("vanilla", "yields.tried"), Some((25.0, None)));
    assert_eq!(of("static", "yields.tried"), Some((0.0, Some(0.0))));
    assert_eq!(of("static", "halts.p99"), Some((25.0, Some(1.0))), "of the repeat that both have");
}

#[test]
fn failures_name_the_run_that_failed() {
    let broken = Stub("broken", |run| match run.plan.policy_name.as_str() {
        "static" => panic!("out of order"),
        _ => Err("no disk".to_owned()),
    });
    for (policy, cause) in [("vanilla", "no disk"), ("static", "out of order")] {
        let plans = plans("busy-host-1", &["repeats=1"], &[policy]);
        let text = measured(&plans, &broken, 1).unwrap_err().to_string();
        for part in ["busy-host-1", policy, "repeat 0", "seed 1", "broken", cause] {
            assert!(text.contains(part), "{text}");
        }
    }
}
