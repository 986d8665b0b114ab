//! `vcoop trace`.

use std::fs::File;
use std::io::BufWriter;
use std::sync::atomic::Ordering;

use vcoop_kvm::Missing;
use vcoop_lab::backend::{Backend, Kvm, Sim, Unavailable};
use vcoop_lab::human;
use vcoop_model::plan::{Ns, Plan};
use vcoop_report::perfetto::Trace;

use crate::args::{BackendArg, TraceArgs};
use crate::failure::Failure;
use crate::interrupt::stop_flag;
use crate::output::{note, print};
use crate::scenario::{self, Overrides};
use crate::single::plan;

pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    let stop = stop_flag();
    let times = [("--duration", &args.duration), ("--warmup", &args.warmup)];
    let overrides =
        Overrides::of(&args.single.sets, &args.calibration, &times, &[("--seed", &args.seed)])?;
    let (_, plan) = plan(&args.single, &overrides, args.quiet)?;
    let window = window(args, &plan)?;
    let backend: &dyn Backend = match args.backend {
        BackendArg::Auto | BackendArg::Sim => &Sim,
        BackendArg::Kvm => &Kvm,
    };
    let missing = |why: &dyn std::fmt::Display| Failure::Missing(why.to_string());
    backend.check(&plan).map_err(|e| missing(&e))?;
    if backend.is_live() {
        vcoop_kvm::can_trace()
            .map_err(|Missing { what, remedy }| missing(&Unavailable { what, remedy }))?;
    }
    let path = args.output.display();
    let file = File::create(&args.output)
        .map_err(|e| Failure::run(format!("cannot write {path}: {e}")))?;
    let mut trace = Trace::new(BufWriter::new(file), plan.warmup_ns, window);
    if let (Some(host), false) = (backend.host(&plan), args.quiet) {
        note(&format!("simulating {host}"));
    }
    let stopped = || stop.load(Ordering::Relaxed);
    let ran = backend.observe(&plan, plan.seed, &stopped, &mut trace);
    // What there is of it is a trace, too.
    let (written, _) =
        trace.finish().map_err(|e| Failure::run(format!("cannot write {path}: {e}")))?;
    let (_, failure) = ran.map_err(Failure::run)?;
    let time = |ns: Ns| human::time(ns as f64 / 1e3);
    print(&format!(
        "{path}: {} to {} of {} on {}, policy {}, seed {}: {} packets, {} bytes\n\
         open it at https://ui.perfetto.dev (the file stays on this machine)\n",
        time(window.0),
        time(window.1),
        plan.scenario,
        backend.name(),
        plan.policy_name,
        plan.seed,
        written.packets,
        written.bytes
    ))?;
    if let Some(failure) = failure {
        return Err(Failure::run(failure));
    }
    if stopped() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// The window asked for, from the start of the measurement.
fn window(args: &TraceArgs, plan: &Plan) -> Result<(Ns, Ns), Failure> {
    let read = |option: &str, text: &Option<String>| {
        text.as_ref().map(|text| scenario::time(option, text)).transpose()
    };
    let time = |ns: Ns| human::time(ns as f64 / 1e3);
    let (from, to) = (read("--from", &args.from)?.unwrap_or(0), read("--to", &args.to)?);
    let end = plan.duration_ns;
    let outside = [("--from", Some(from)), ("--to", to)];
    if let Some((option, Some(at))) =
        outside.into_iter().find(|(_, at)| at.is_some_and(|at| at > end))
    {
        let (at, end) = (time(at), time(end));
        return Err(Failure::usage(format!("{option} {at}: the run measures {end} (--duration)")));
    }
    let to = to.unwrap_or(end);
    if from >= to {
        let (from, to) = (time(from), time(to));
        return Err(Failure::usage(format!("--from {from} --to {to}: the window is empty")));
    }
    Ok((from, to))
}
