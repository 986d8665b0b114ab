//! How often the 95 % intervals hold the truth, over many experiments on a host where chance decides.
//!
//! `UPDATE_DOCS=1 cargo test -p vcoop-experiment --test all coverage` writes the table of `docs/src/statistics.md`
//! anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::common::measured;
use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::Sim;
use vcoop_experiment::result::{Document, Interval, Series};
use vcoop_experiment::runner::{Measurements, PlanRuns};
use vcoop_model::plan::Plan;
use vcoop_testing::rig;

/// Two busy CPUs. No period is a multiple of another, nor of a tick: else a few repeats would meet a phase
/// that the others never see, and no sample of them would tell.
const SCENARIO: &str = r#"
name = "coverage"
title = "A small busy host"
duration = "400ms"
warmup = "50ms"
repeats = 1000
seed = 1

[host]
profile = "xeon-server"
pcpus = 2
tick_hz = 250
preemption = "voluntary"

[host.sched]
fair = "eevdf"
rt_guard = "fair-server"

[[load]]
name = "work"
kind = "bursty"
count = 3
burst = "exp 3ms"
idle = "exp 4ms"

[[load]]
name = "cyclictest"
kind = "cyclictest"
interval = "1091us"
policy = "other"

[[vm]]
name = "guest"
vcpus = 2
tick_hz = 250

[[vm.task]]
name = "cyclictest"
kind = "cyclictest"
interval = "1037us"
policy = "fifo 80"
work = "5us"

[[vm.task]]
name = "audio"
kind = "audio"
policy = "fifo 60"
period = "101 frames"
buffer = "202 frames"
work = "20us..50us"

[[vm.task]]
name = "patient"
kind = "audio"
policy = "fifo 50"
period = "101 frames"
buffer = "260 frames"
work = "20us..50us"

[[vm.task]]
name = "background"
kind = "bursty"
burst = "exp 4ms"
idle = "exp 6ms"
"#;

/// Repeats of an experiment.
const SIZES: [usize; 3] = [5, 10, 20];

/// Experiments of so many repeats are the more precise, the fewer repeats they have; 200 of five.
const ALL: usize = 1000;

/// Fewest intervals that a percentage is taken of.
const LEAST: u32 = 100;

/// Kinds of numbers, as the table names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Mean,
    P99,
    RatioOfMeans,
    RatioOfP99,
    Throughput,
    RatioOfThroughputs,
    Share,
    Rate,
    RatioOfRates,
    RareRate,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Self::Mean => "means of latencies",
            Self::P99 => "p99",
            Self::RatioOfMeans => "ratios of means",
            Self::RatioOfP99 => "ratios of p99",
            Self::Throughput => "throughputs",
            Self::RatioOfThroughputs => "ratios of throughputs",
            Self::Share => "shares of time",
            Self::Rate => "rates",
            Self::RatioOfRates => "ratios of rates",
            Self::RareRate => "rates of fewer than 40 events",
        }
    }
}

/// A number of a document.
struct Number {
    kind: Kind,
    name: String,
    /// Events an experiment of one repeat has, where it counts them.
    events: Option<f64>,
    value: Option<f64>,
    interval: Option<Interval>,
}

fn numbers(document: &Document) -> Vec<Number> {
    let mut all = Vec::new();
    for series in &document.series {
        let key = series.key();
        let mut put = |kind, value, interval, events| {
            let name = format!("{} {} {}", key.policy, key.probe, key.metric);
            all.push(Number { kind, name, events, value, interval });
        };
        match series {
            Series::Latency(s) => {
                let (ratio, ci) =
                    (s.ratio_to_baseline.unwrap_or_default(), s.ratio_ci95.unwrap_or_default());
                put(Kind::Mean, s.mean, s.mean_ci95, None);
                put(Kind::P99, s.p99, s.p99_ci95, None);
                put(Kind::RatioOfMeans, ratio.mean, ci.mean, None);
                put(Kind::RatioOfP99, ratio.p99, ci.p99, None);
            }
            Series::Scalar(s) => {
                let per = match key.unit.as_str() {
                    "1/s" => Some(document.duration_s),
                    "1/min" => Some(document.duration_s / 60.0),
                    _ => None,
                };
                let events = s.value.zip(per).map(|(value, per)| value * per);
                let (one, ratio) = match key.unit.as_str() {
                    "cpu" => (Kind::Throughput, Some(Kind::RatioOfThroughputs)),
                    "%" => (Kind::Share, None),
                    _ => (Kind::Rate, Some(Kind::RatioOfRates)),
                };
                put(one, s.value, s.value_ci95, events);
                if let Some(kind) = ratio {
                    put(kind, s.ratio_to_baseline, s.ratio_ci95, events);
                }
            }
        }
    }
    all
}

fn document_of(plans: &[Plan], measured: &Measurements) -> Document {
    document(plans, measured, Metadata { baseline: "vanilla".to_owned(), ..Metadata::default() })
}

/// What all repeats together say of a number, and the events of one repeat. Numbers that hardly vary have
/// no coverage to speak of.
fn truths(plans: &[Plan], all: &Measurements) -> BTreeMap<(Kind, String), (f64, Option<f64>)> {
    let found = numbers(&document_of(plans, all)).into_iter();
    let varies = |n: &Number| {
        n.interval.zip(n.value).is_some_and(|([lo, hi], value)| hi - lo > 1e-3 * value)
    };
    found.filter(varies).filter_map(|n| Some(((n.kind, n.name), (n.value?, n.events)))).collect()
}

/// Intervals of a kind over all experiments: how many there are, and how many hold the truth.
type Tally = BTreeMap<Kind, (u32, u32)>;

fn tally(plans: &[Plan], all: &Measurements, size: usize) -> Tally {
    let truths = truths(plans, all);
    let mut tally = Tally::new();
    for at in (0..ALL / size).map(|g| g * size) {
        let runs = all.runs.iter().map(|run| PlanRuns {
            backend: run.backend,
            host: None,
            plan: run.plan,
            repeats: run.repeats[at..at + size].to_vec(),
        });
        let part =
            Measurements { runs: runs.collect(), interrupted: false, failure: None, others: None };
        for n in numbers(&document_of(plans, &part)) {
            let Some((truth, events)) = truths.get(&(n.kind, n.name)) else { continue };
            let Some([lo, hi]) = n.interval else { continue };
            let kind = match events.map(|events| events * size as f64) {
                // Nothing happens in most experiments.
                Some(..2.0) => continue,
                Some(..40.0) if n.kind == Kind::Rate => Kind::RareRate,
                _ => n.kind,
            };
            let (count, held) = tally.entry(kind).or_default();
            *count += 1;
            *held += u32::from(lo <= *truth && *truth <= hi);
        }
    }
    tally
}

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let plans = rig::plans(SCENARIO, &["vanilla", "dynamic"], &[]);
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let all = measured(&plans, &Sim, jobs).unwrap();
    let tallies = SIZES.map(|size| tally(&plans, &all, size));
    let mut table = String::from("| 95 % intervals of |");
    SIZES.iter().for_each(|size| _ = write!(table, " {size} repeats |"));
    table += "\n|---|---:|---:|---:|\n";
    let mut wrong = Vec::new();
    for kind in tallies[0].keys() {
        let _ = write!(table, "| {} |", kind.words());
        for (tally, size) in tallies.iter().zip(SIZES) {
            // Percents of fewer experiments say little.
            let found = tally.get(kind).filter(|(count, _)| *count >= LEAST);
            let Some((count, held)) = found else {
                table += " |";
                continue;
            };
            let percent = 100.0 * f64::from(*held) / f64::from(*count);
            let _ = write!(table, " {percent:.1} |");
            // Rare events come in bursts, and an experiment in which none came does not know that.
            let least = if *kind == Kind::RareRate { 90.0 } else { 92.0 };
            if !(least..=98.0).contains(&percent) {
                wrong.push(format!("{} of {size} repeats: {percent:.1} %", kind.words()));
            }
        }
        table.push('\n');
    }
    assert!(wrong.is_empty(), "{wrong:?}\n{table}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/statistics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (from, to) = ("--test all coverage -->\n", "<!-- /coverage -->");
    let start = page.find(from).unwrap() + from.len();
    let end = page.find(to).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        let new = format!("{}{table}{}", &page[..start], &page[end..]);
        std::fs::write(&path, new).unwrap();
        return;
    }
    assert_eq!(&page[start..end], table, "set UPDATE_DOCS=1");
}
