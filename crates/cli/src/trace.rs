//! `vcoop trace`.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use vcoop_experiment::backend::{Backend, Kvm, Sim, Unavailable};
use vcoop_experiment::format;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::run::Run;
use vcoop_model::trace_event::Observer;
use vcoop_report::perfetto::Trace;
use vcoop_report::text_trace::TextTrace;

use crate::failure::{Failure, ended};
use crate::folder::{cannot_write, check_writable, write};
use crate::interrupt::stop_flag;
use crate::options::{BackendArg, Calibration, SIMULATE, SingleRun, unmeasured};
use crate::output::{note, print_at_end, style};
use crate::scenario::{self, Overrides};
use crate::single_run::plan;

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) single: SingleRun,
    /// Where to run; auto is the simulator. A live run shows what tracefs records of the host
    #[arg(long, value_enum, default_value_t = BackendArg::Sim)]
    pub(crate) backend: BackendArg,
    /// Where to write the trace; <https://ui.perfetto.dev> opens it
    #[arg(long, short, value_name = "FILE", required_unless_present = "text")]
    pub(crate) output: Option<PathBuf>,
    /// Write it as text, one line for each event; without --output to stdout
    #[arg(long)]
    pub(crate) text: bool,
    /// Begin of the window, from the start of the measurement, with a unit: 500ms
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    /// End of the window; default: that of the run
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    /// Measured time of the run, with a unit: 500ms, 10s
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// Time at the start that is not measured
    #[arg(long, value_name = "TIME")]
    pub(crate) warmup: Option<String>,
    /// Seed of the run
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<String>,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

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
    let missing = |why: Unavailable| unmeasured(why, [SIMULATE]);
    backend.check(&plan).map_err(missing)?;
    if backend.is_live() {
        vcoop_lab::can_trace().map_err(missing)?;
    }
    if let (Some(host), false) = (backend.host(&plan), args.quiet) {
        note(&format!("simulating {host}"));
    }
    if let Some(path) = &args.output {
        check_writable("-o ", path)?;
    }
    let stopped = || stop.load(Ordering::Relaxed);
    let traced =
        |by: &mut dyn Observer| backend.run(Run::new(&plan, plan.seed).until(&stopped).watched(by));
    // A trace of a run that was interrupted, or failed, is a trace, too.
    let binary = |file: File| {
        let mut trace = Trace::new(BufWriter::new(file), plan.warmup_ns, window);
        let ran = traced(&mut trace);
        let closed = trace.closed();
        let (written, _) = trace.finish()?;
        Ok((ran, closed, format!("{} packets, {} bytes", written.packets, written.bytes)))
    };
    let text = |out: &mut dyn Out| {
        let out = BufWriter::new(out);
        let mut trace = TextTrace::new(out, plan.warmup_ns, window, backend.is_live());
        let ran = traced(&mut trace);
        let closed = trace.closed();
        Ok((ran, closed, format!("{} lines", trace.finish()?)))
    };
    let (ran, closed, written) = match &args.output {
        Some(path) if args.text => write(path, |mut file| text(&mut file))?,
        Some(path) => write(path, binary)?,
        None => text(&mut io::stdout()).map_err(|e| match e.kind() {
            ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => cannot_write(Path::new("stdout"), &e),
        })?,
    };
    let (_, failure) = ran.map_err(Failure::run)?;
    let time = |ns: Ns| format::time(ns as f64 / 1e3);
    let end = ended(failure, stopped());
    if let Some(path) = &args.output {
        let (from, to) = (time(window.0), time(window.1));
        let traced = match closed {
            Some(end) if end >= window.1 => format!("{from} to {to}"),
            Some(end) => format!("{from} to {}, where the run ended, instead of {to},", time(end)),
            None => format!("nothing of {from} to {to}, before which the run ended,"),
        };
        let line = format!(
            "{}: {traced} of {} on {}, policy {}, seed {}: {written}",
            path.display(),
            plan.scenario,
            backend.name(),
            plan.policy_name,
            plan.seed,
        );
        let hint = "open it at https://ui.perfetto.dev (the file stays on this machine)";
        let hint = if args.text { String::new() } else { style().wrap(hint, 2) };
        return print_at_end(&(style().wrap(&line, 2) + &hint), end);
    }
    end
}

/// Destination of text.
trait Out: Write + Debug {}

impl<T: Write + Debug> Out for T {}

/// The requested window, from the start of the measurement.
fn window(args: &TraceArgs, plan: &Plan) -> Result<(Ns, Ns), Failure> {
    let read = |option: &str, text: &Option<String>| {
        text.as_ref().map(|text| scenario::time(option, text)).transpose()
    };
    let time = |ns: Ns| format::time(ns as f64 / 1e3);
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
