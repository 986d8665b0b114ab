//! `vcoop explain`.

use std::sync::atomic::Ordering;

use clap::value_parser;

use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Backend, Choice, Request, Sim, select};
use vcoop_experiment::runner::{Experiment, repeat_seed};
use vcoop_model::diagnostic::closest;
use vcoop_model::recording::LatencyRecord;
use vcoop_model::run::Run;
use vcoop_report::explain::explain;

use crate::failure::{Failure, ended};
use crate::interrupt::stop_flag;
use crate::options::{BackendArg, Common, SIMULATE, SingleRun, unmeasured};
use crate::output::{json, note, print_at_end, style};
use crate::run::{RunObservers, measured};
use crate::scenario::{Overrides, jobs};
use crate::single_run::plan;

/// Most samples of a probe: as many as are recorded.
const MOST: i64 = LatencyRecord::WORST as i64;

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) single: SingleRun,
    /// Where to run; auto is the simulator, because only it can show what happened around a sample
    #[arg(long, value_enum, default_value_t = BackendArg::Sim)]
    pub(crate) backend: BackendArg,
    /// Samples of each probe, at most 16
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u8).range(1..=MOST))]
    pub(crate) worst: u8,
    /// Only this probe
    #[arg(long, value_name = "NAME")]
    pub(crate) probe: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
}

pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let stop = stop_flag();
    let jobs = jobs(args.common.jobs);
    let overrides = Overrides::new(&args.single.sets, &args.common)?;
    let (scenario, plan) = plan(&args.single, &overrides, args.common.quiet)?;
    let probe = args.probe.as_deref();
    let probes: Vec<&str> = plan.probes.iter().map(|p| p.probe.as_str()).collect();
    if probes.is_empty() {
        let why = "no task measures a latency, so there is nothing to explain";
        return Err(Failure::usage(format!("{}: {why}", scenario.name)));
    }
    if let Some(probe) = probe.filter(|probe| !probes.contains(probe)) {
        let guess = closest(probe, &probes).map(|p| format!("did you mean {p}? "));
        let guess = guess.unwrap_or_default();
        let mut known = probes.clone();
        known.dedup();
        return Err(Failure::usage(format!(
            "--probe: {} has no probe `{probe}`; {guess}probes: {}",
            scenario.name,
            known.join(", ")
        )));
    }
    let choice = match args.backend {
        BackendArg::Auto | BackendArg::Sim => Choice::Sim,
        BackendArg::Kvm => Choice::Kvm,
    };
    let request = Request { choice, fit: false };
    let selection =
        select(request, vec![plan.clone()]).map_err(|why| unmeasured(why, [SIMULATE]))?;
    let columns = selection.columns();
    if !args.common.quiet {
        let hosts = columns.iter().filter_map(|column| column.backend.host(&plan));
        let hosts = hosts.map(|host| format!("simulating {host}"));
        hosts.chain(selection.announcement()).for_each(|what| note(&what));
    }
    let about = Metadata {
        title: scenario.title.clone(),
        baseline: plan.policy_name.clone(),
        missing: selection.missing.clone(),
        ..Metadata::default()
    };
    let plans = &selection.plans;
    let experiment = Experiment { plans, columns: &columns, jobs };
    let (measured, failure) = measured(&experiment, &RunObservers::default(), args.common.quiet)?;
    let result = document(plans, &measured, about);
    let stopped = || stop.load(Ordering::Relaxed);
    let mut look = |repeat: u32, log: &mut vcoop_report::explain::Log| {
        let run = Run::new(&plan, repeat_seed(plan.seed, repeat)).until(&stopped);
        Sim.run(run.watched(log)).map(drop)
    };
    let live = selection.is_live();
    if live && !args.common.quiet {
        note("a live run cannot be run again to look at it: causes, but no timelines");
    }
    let look: Option<vcoop_report::explain::Rerun<'_>> = if live { None } else { Some(&mut look) };
    let found = explain(&result, &measured.runs[0], &plan, probe, args.worst.into(), look)
        .map_err(Failure::run)?;
    let text = if args.common.json { json(&found)? } else { found.render(style()) };
    print_at_end(&text, ended(failure, stopped()))
}
