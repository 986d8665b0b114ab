//! A small result with everything in it.

use std::sync::atomic::AtomicBool;

use vcoop_experiment::analysis::{About, document};
use vcoop_experiment::backend::{Column, Sim};
use vcoop_experiment::result::Document;
use vcoop_experiment::runner::{Control, Experiment};
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
    let text = format!("{SCENARIO}{extra}");
    let scenario = Scenario::parse("small", &text, &[], &NoCaptures).unwrap();
    let mut plans = scenario.plans(None).unwrap();
    plans.iter_mut().for_each(|plan| plan.slices = 10);
    let stop = AtomicBool::new(false);
    let columns = [Column::all(&Sim, plans.len())];
    let experiment = Experiment { plans: &plans, columns: &columns, jobs: 2 };
    let runs = experiment.run(Control { stop: &stop, progress: &|_| () }).unwrap();
    let about = About {
        title: scenario.title,
        command: "vcoop run small".to_owned(),
        baseline: scenario.baseline,
        ..About::default()
    };
    document(&plans, &runs, about)
}
