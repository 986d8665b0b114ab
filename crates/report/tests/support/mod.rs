//! A small result with everything in it.
#![allow(dead_code, reason = "each test binary uses its part")]

use vcoop_experiment::analysis::Metadata;
use vcoop_experiment::result::Document;
use vcoop_experiment::simulate;
use vcoop_model::capture::NoCaptures;
use vcoop_model::scenario::Scenario;

/// All that a report can draw, in little time.
const SCENARIO: &str = r#"
name = "small"
title = "Everything that a report can draw"
duration = "120ms"
warmup = "5ms"
repeats = 5
[host]
profile = "xeon-server"
pcpus = 2
[host.sched]
fair = "eevdf"
[[load]]
name = "hog"
kind = "hog"
count = 2
[[load]]
name = "probe"
kind = "cyclictest"
[[vm]]
name = "guest"
vcpus = 1
[[vm.task]]
name = "rt"
kind = "cyclictest"
interval = "100us"
policy = "fifo 80"
[[vm]]
name = "desktop"
count = 4
vcpus = 1
[[vm.task]]
name = "boot"
kind = "boot"
rounds = 5
[[storm]]
name = "boots"
vm = "desktop"
next = "start"
gap = "300us"
[[view]]
kind = "scatter"
probe = "guest.rt"
[[view]]
kind = "intervals"
at = "10ms"
pcpu = 0
length = "5ms"
[compare]
policy = ["vanilla", "dynamic"]
"#;

/// Its result, with more lines at its end.
pub(crate) fn measured(extra: &str) -> Document {
    simulated("small", &format!("{SCENARIO}{extra}"), 10)
}

/// The result of a scenario, with so many slices.
pub(crate) fn simulated(name: &str, text: &str, slices: u32) -> Document {
    let scenario = Scenario::parse(name, text, &[], &NoCaptures).unwrap();
    let mut plans = scenario.plans(None).unwrap();
    plans.iter_mut().for_each(|plan| plan.slices = slices);
    let about = Metadata {
        title: scenario.title,
        command: format!("vcoop run {name}"),
        baseline: scenario.baseline,
        ..Metadata::default()
    };
    simulate(&plans, 2, about).unwrap()
}
