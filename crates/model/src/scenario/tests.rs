mod builtins;
mod credit1;
mod govern;
mod overrides;
mod pinning;
mod plans;
mod powervm;
mod refusals;
mod routines;
mod storms;
mod virt;

use std::sync::Arc;

use vcoop_sched::config::Policy;

use super::*;
use crate::capture::{CapturedThread, Shape};
use crate::plan::{CoreScheduling, Step};
use crate::profile::Profile;
use crate::quantiles::Quantiles;

/// A loader of one small capture, under any name but `missing`.
struct Stub;

impl CaptureLoader for Stub {
    fn load(&self, path: &str, shape: &Shape) -> Result<Vec<CapturedThread>, String> {
        if path.contains("missing") {
            return Err("no such capture".to_owned());
        }
        let thread = |name: &str, steps: Vec<Step>, cpu| CapturedThread {
            name: name.to_owned(),
            policy: Policy::Normal { nice: 5, slice_ns: None },
            cpus: vec![cpu],
            steps: Arc::new(steps),
            repeat: true,
        };
        let run = |ns: u64| Step::Run(ns * shape.demand_ppm / 1_000_000);
        let mut threads = vec![
            thread("cc1", vec![run(1_000_000), Step::Wake(1), Step::Sleep(500_000)], 0),
            thread("nginx", vec![Step::Wait(9_000_000), run(200_000)], 5),
            thread("kworker", vec![Step::Sleep(4_000_000), run(10_000)], 1),
        ];
        threads.truncate(shape.max_threads.unwrap_or(usize::MAX));
        Ok(threads)
    }

    fn text(&self, path: &str) -> Result<String, String> {
        let a = r#"{"lock": "m", "run": 9, "unlock": "m", "policy": "SCHED_FIFO", "priority": 9}"#;
        let b = r#"{"run": 9, "sleep": 9, "cpus": [3], "delay": 5}"#;
        match path.rsplit('/').next() {
            Some("app.json") => Ok(format!(r#"{{"tasks": {{"a": {a}, "b": {b}}}}}"#)),
            Some("bad.json") => Ok(r#"{"tasks": {"a": {"iorun": 4096}}}"#.to_owned()),
            Some("varying.toml") => Ok(varying().to_toml()),
            _ => Err("no such file".to_owned()),
        }
    }
}

/// A profile in which an exit varies.
fn varying() -> Profile {
    let mut profile = Profile::load("zero").unwrap();
    let spread = Quantiles::ascending([1, 2, 3, 4, 5, 6, 7, 8]);
    profile.costs.spread.insert("exit".to_owned(), spread);
    profile
}

/// A small scenario that uses every kind of table.
const SMALL: &str = r#"name = "small"
title = "For tests"
duration = "2s"
warmup = "100ms"
repeats = 3

[host]
profile = "celeron-n4500"

[[load]]
name = "build"
kind = "capture"
file = "a.txt"

[[load]]
name = "probe"
kind = "cyclictest"
interval = "500us"

[[vm]]
name = "guest"
vcpus = 2
pin = ["0", "1-2"]
weight = 2048

[[vm.task]]
name = "cyclictest"
kind = "cyclictest"
policy = "fifo 80"
count = 2

[[vm.task]]
name = "background"
kind = "bursty"

[[vm.device]]
name = "net"
period = "exp 1ms"
wakes = "background"

[policy.dynamic-nice]
base = "dynamic"
means = "nice -20"

[[at]]
time = "1s"
boost = "off"
vm = "guest"
"#;

fn parse(text: &str) -> Result<Scenario, Diagnostics> {
    Scenario::parse("dir/small.toml", text, &[], &Stub)
}

fn parse_set(text: &str, sets: &[&str]) -> Result<Scenario, Diagnostics> {
    let sets: Vec<Set> = sets.iter().map(|s| Set::parse(s).unwrap()).collect();
    Scenario::parse("dir/small.toml", text, &sets, &Stub)
}

/// The plans of a scenario that is right.
fn plans_of(scenario: Result<Scenario, Diagnostics>) -> Vec<Plan> {
    let scenario = scenario.unwrap_or_else(|e| panic!("{e}"));
    scenario.plans(None).unwrap_or_else(|e| panic!("{e}"))
}

fn plan_of(text: &str) -> Plan {
    plans_of(parse(text)).swap_remove(0)
}

fn small_plans(sets: &[&str]) -> Vec<Plan> {
    plans_of(parse_set(SMALL, sets))
}

/// Expects all of this in what is said of a text that is refused.
#[track_caller]
fn says(text: &str, expected: &[&str]) {
    let error = match parse(text) {
        Ok(_) => panic!("this should be refused: {text}"),
        Err(error) => error.to_string(),
    };
    expected.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
}

/// The small scenario with these keys of its VM and these tables.
fn small_with(vm: &str, rest: &str) -> String {
    format!("{}{rest}", SMALL.replace("weight = 2048\n", vm))
}

fn with(vm: &str, rest: &str) -> Result<Scenario, Diagnostics> {
    parse(&small_with(vm, rest))
}

/// Expects the message, and the line that is wrong.
#[track_caller]
fn refused(vm: &str, rest: &str, line: &str, message: &str) {
    says(&small_with(vm, rest), &[message, line]);
}
