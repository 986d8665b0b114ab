//! `vcoop capture`: shows the threads made from a capture.

use vcoop_capture::{Capture, Limits, Replay, Shape};
use vcoop_experiment::format;

use crate::failure::Failure;
use crate::output::{print, style};

#[derive(Debug, clap::Args)]
pub(crate) struct CaptureArgs {
    /// A capture file (`perf script`, `trace-cmd report` or ftrace text, plain or compressed), or
    /// builtin:NAME
    pub(crate) file: String,
}

/// Number of threads shown, those with the most demand.
const SHOWN: usize = 10;

pub(crate) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let capture = match args.file.strip_prefix("builtin:") {
        Some(name) => Capture::builtin(name),
        None => Capture::open(args.file.as_ref(), &Limits::default()),
    };
    let capture = capture.map_err(|e| Failure::usage(format!("{}: {e}", args.file)))?;
    let replay = capture.replay(&Shape::default());
    print(&describe(&args.file, &capture, &replay))
}

fn describe(name: &str, capture: &Capture, replay: &Replay) -> String {
    let time = |ns: u64| format::time(ns as f64 / 1e3);
    let demand = replay.demand_ns as f64 / replay.span_ns.max(1) as f64;
    let (threads, span) = (replay.threads.len(), time(replay.span_ns));
    let mut out = format!("{name}: {threads} threads, a loop of {span}, ");
    out +=
        &format!("CPU demand {} ({} CPUs' worth)", time(replay.demand_ns), format::digits(demand));
    out = style().wrap(&out, 2);
    for line in capture.losses.to_string().lines() {
        out += &style().wrap(&format!("  {line}"), 4);
    }
    let mut busiest: Vec<_> = capture.threads.iter().collect();
    busiest.sort_by_key(|thread| std::cmp::Reverse(thread.demand_ns));
    out += "busiest threads\n";
    for thread in busiest.iter().take(SHOWN) {
        out += &format!("  {:16} {:>8}\n", thread.name, time(thread.demand_ns));
    }
    if busiest.len() > SHOWN {
        let rest: u64 = busiest[SHOWN..].iter().map(|thread| thread.demand_ns).sum();
        out += &format!("  {:16} {:>8}\n", format!("{} more", busiest.len() - SHOWN), time(rest));
    }
    out
}
