//! `vcoop sweep`.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use serde::Serialize;
use vcoop_build_id::BUILD;
use vcoop_capture::Loader;
use vcoop_experiment::format::count;
use vcoop_experiment::judge::LEAST_REPEATS;
use vcoop_experiment::runner;
use vcoop_model::scenario::Set;
use vcoop_model::sweep::Sweep;
use vcoop_sweep::dataset::{Dataset, DatasetError};
use vcoop_sweep::engine::{Control, Outcome, run as run_here};
use vcoop_sweep::job::Job;
use vcoop_sweep::manifest::Manifest;
use vcoop_sweep::tally::Tally;

use crate::failure::Failure;
use crate::folder::named;
use crate::interrupt::stop_flag;
use crate::options::{Calibration, least};
use crate::output::{self, note, print_at_end};
use crate::progress::Progress;
use crate::scenario::{jobs, named_text, refuse};

/// Where a sweep's points run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EngineArg {
    /// All cores of this machine
    Local,
    /// An existing Ray cluster, by way of the Python package
    Ray,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// A sweep file
    #[arg(value_name = "SWEEP.toml")]
    pub(crate) file: PathBuf,
    /// Folder of the results. A sweep that was stopped resumes in its folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Points at the same time; results do not depend on it. Default: one for each CPU
    #[arg(long, value_name = "N", value_parser = least::<1>)]
    pub(crate) jobs: Option<u32>,
    /// Where points run; results do not depend on it
    #[arg(long, value_enum, default_value_t = EngineArg::Local)]
    pub(crate) engine: EngineArg,
    /// Address of the Ray cluster. Default: what Ray finds
    #[arg(long, value_name = "ADDRESS", env = "RAY_ADDRESS", hide_env_values = true)]
    pub(crate) ray_address: Option<String>,
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    /// Check everything and say what would run
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a summary as one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    schema: &'static str,
    version: &'static str,
    name: &'a str,
    out: String,
    points: u32,
    done: u32,
    failed: u32,
    unsettled: u32,
    /// Number of points with too few repeats to decide which policy is best.
    few: u32,
    /// Number of other points at which each policy is best; the empty name stands for none.
    best: std::collections::BTreeMap<String, u32>,
    interrupted: bool,
}

pub(crate) fn run(args: &SweepArgs) -> Result<(), Failure> {
    let stop = stop_flag();
    let jobs = jobs(args.jobs);
    let text = named_text("sweep", &args.file)?;
    let mut sweep = Sweep::parse(&args.file.display().to_string(), &text).map_err(refuse)?;
    if let Some(set) = args.calibration.set()? {
        if args.engine == EngineArg::Ray {
            let help = "--calibration is for --engine local; workers read it from the sweep: write \
                        \"host.profile\" = \"FILE\" under [set]";
            return Err(Failure::usage(help));
        }
        sweep.sets.insert(0, set);
    }
    let job = Job::new(sweep).map_err(refuse)?;
    if args.dry_run {
        return print_at_end(&outline(&job), would_fail(&job));
    }
    let Some(out) = &args.out else {
        return Err(Failure::usage("--out DIR is missing: a sweep's result is a folder"));
    };
    named("--out ", out)?;
    if args.engine == EngineArg::Ray {
        on_ray(args, out)?;
        let tally = Tally::of(out).map_err(Failure::run)?;
        let (done, total) = (tally.points, job.points());
        let progress = vcoop_sweep::engine::Progress { done, total, ..Default::default() };
        let outcome = Outcome { progress, interrupted: done < total, ..Outcome::default() };
        return report(args, &job, out, &outcome, tally);
    }
    let mut dataset = Dataset::open(out, &job, BUILD).map_err(failure)?;
    let progress = Progress::points(args.quiet);
    let (began, before) = (Instant::now(), dataset.missing().len());
    let tell = |p: vcoop_sweep::engine::Progress| {
        progress.tell(runner::Progress { done: p.done as usize, total: p.total as usize });
    };
    let outcome = run_here(&job, &mut dataset, jobs, Control { stop, progress: &tell });
    progress.finish();
    let outcome = outcome.map_err(failure)?;
    drop(dataset);
    let tally = Tally::of(out).map_err(Failure::run)?;
    if !args.quiet {
        let ran = before - (outcome.progress.total - outcome.progress.done) as usize;
        let seconds = began.elapsed().as_secs_f64();
        let kept = outcome.progress.before;
        note(&format!("{ran} points in {seconds:.1} s; {kept} were there already"));
        if let Some((point, why)) = &outcome.failure {
            note(&format!("point {point} failed, and is recorded so: {}", first_line(why)));
        }
    }
    report(args, &job, out, &outcome, tally)
}

/// Prints how it ended.
fn report(
    args: &SweepArgs,
    job: &Job,
    out: &Path,
    outcome: &Outcome,
    tally: Tally,
) -> Result<(), Failure> {
    let failed = tally.failed;
    let text = if args.json {
        json(job, out, outcome, tally)?
    } else {
        describe(job, out, outcome, &tally)
    };
    let end = match (outcome.interrupted, failed) {
        (true, _) => Err(Failure::Interrupted),
        (false, 0) => Ok(()),
        (false, failed) => Err(Failure::Points(format!(
            "{failed} of {} points failed: their rows say why in the column `error`",
            job.points()
        ))),
    };
    print_at_end(&text, end)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// A folder with other content is bad usage; a full disk is not.
fn failure(error: DatasetError) -> Failure {
    match error {
        DatasetError::Refused { .. } | DatasetError::Part { .. } => {
            Failure::usage(format!("--out {error}"))
        }
        DatasetError::Io { .. } => Failure::run(error),
    }
}

/// Maximum number of points that a dry run checks, evenly spaced: each takes some milliseconds.
const LOOKED_AT: u32 = 1000;

/// Checks for impossible points.
fn would_fail(job: &Job) -> Result<(), Failure> {
    let loader = Loader::default();
    let points = job.points();
    let looked = points.min(LOOKED_AT);
    let nth = |i: u32| (u64::from(i) * u64::from(points) / u64::from(looked)) as u32;
    let why = |point: u32| Some((point, job.check(point, &loader).err()?));
    let failed: Vec<_> = (0..looked).map(nth).filter_map(why).collect();
    let Some((point, first)) = failed.first() else { return Ok(()) };
    Err(Failure::Points(format!(
        "{} of {looked} points looked at would fail; the first is point {point}:\n{first}",
        failed.len()
    )))
}

/// Prints what would run.
fn outline(job: &Job) -> String {
    let manifest = Manifest::new(job, BUILD);
    let (least, most) = (job.sweep.repeats_min, job.most_repeats);
    let loader = Loader::default();
    let runs =
        |repeats: u32| u64::from(job.points()) * job.policies.len() as u64 * u64::from(repeats);
    let points = count(job.points().into(), "point");
    let mut text = format!("{}: {points} of {}\n", job.sweep.name, job.base_name);
    for (axis, column) in job.sweep.axes.iter().zip(&manifest.axes) {
        text += &format!("  {:24} {}\n", column.name, axis.paths().join(", "));
    }
    text += &format!("policies: {} (ratios to {})\n", job.policies.join(", "), job.baseline);
    text += &match (least, most) {
        (least, most) if least == most => {
            let (repeats, runs) = (count(least.into(), "repeat"), count(runs(least), "run"));
            format!("{repeats}, {runs}\n")
        }
        _ => format!("{least} to {most} repeats, {} to {} runs\n", runs(least), runs(most)),
    };
    for point in [0, job.points() - 1] {
        let said = match job.sets(point, &loader) {
            Ok(sets) => sets.iter().map(Set::text).collect::<Vec<_>>().join("  "),
            Err(why) => format!("cannot be: {why}"),
        };
        text += &format!("point {point}: {said}\n");
    }
    text
}

fn describe(job: &Job, out: &Path, outcome: &Outcome, tally: &Tally) -> String {
    let p = outcome.progress;
    let mut text =
        format!("{}: {} of {} points in {}\n", job.sweep.name, p.done, p.total, out.display());
    if tally.failed > 0 {
        text += &format!("  {} of them failed: their rows say why\n", tally.failed);
    }
    if tally.unsettled > 0 {
        text += &format!(
            "  {} of them ended at {} with intervals wider than asked\n",
            tally.unsettled,
            count(job.most_repeats.into(), "repeat")
        );
    }
    if job.policies.len() > 1 {
        let few = format!("few (a verdict needs {LEAST_REPEATS} repeats)");
        let few = (tally.few > 0).then_some((few.as_str(), tally.few));
        let best = tally.best.iter().map(|(policy, n)| match policy.as_str() {
            "" => ("none", *n),
            policy => (policy, *n),
        });
        for (name, n) in few.into_iter().chain(best) {
            text += &format!("  best at {:>13}: {name}\n", count(n.into(), "point"));
        }
    }
    text
}

fn json(job: &Job, out: &Path, outcome: &Outcome, tally: Tally) -> Result<String, Failure> {
    let summary = Summary {
        schema: "vcoop.sweep-summary/1",
        version: env!("CARGO_PKG_VERSION"),
        name: &job.sweep.name,
        out: out.display().to_string(),
        points: outcome.progress.total,
        done: outcome.progress.done,
        failed: tally.failed,
        unsettled: tally.unsettled,
        few: tally.few,
        best: tally.best,
        interrupted: outcome.interrupted,
    };
    output::json(&summary)
}

/// The interpreter with the `vcoop` package, unless `VCOOP_PYTHON` names another.
const PYTHON: &str = "python3";

/// Runs the sweep in the Python package, which uses Ray.
fn on_ray(args: &SweepArgs, out: &Path) -> Result<(), Failure> {
    let python = std::env::var("VCOOP_PYTHON").unwrap_or_else(|_| PYTHON.to_owned());
    let has = |module: &str| -> io::Result<bool> {
        let mut probe = Command::new(&python);
        probe.args(["-c", &format!("import {module}")]).stdin(Stdio::null());
        probe.stdout(Stdio::null()).stderr(Stdio::null()).status().map(|s: ExitStatus| s.success())
    };
    for (module, package) in [("vcoop", "vcoop"), ("ray", "vcoop[ray]")] {
        match has(module) {
            Ok(true) => {}
            Ok(false) => {
                return Err(Failure::Missing(format!(
                    "--engine ray runs in Python, and {python} has no module `{module}`\n  remedy: \
                     {python} -m pip install '{package}', or name another interpreter in VCOOP_PYTHON"
                )));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Err(Failure::Missing(format!(
                    "--engine ray runs in Python, and there is no {python}\n  remedy: install Python \
                     3.11 or newer, or name an interpreter in VCOOP_PYTHON"
                )));
            }
            Err(e) => return Err(Failure::run(format!("cannot run {python}: {e}"))),
        }
    }
    let mut command = Command::new(&python);
    command.args(["-m", "vcoop", "sweep"]).arg(&args.file).arg("--out").arg(out);
    command.args(["--engine", "ray"]);
    if let Some(address) = &args.ray_address {
        command.args(["--ray-address", address]);
    }
    if args.quiet {
        command.arg("--quiet");
    }
    // This process prints its summary: the same for both engines.
    command.stdout(Stdio::null());
    // Ctrl-C reaches it too; it stores the finished points and reports the result.
    let status = command.status().map_err(|e| Failure::run(format!("cannot run {python}: {e}")))?;
    match status.code() {
        // 5: done, but some points failed; the tally says so.
        Some(0 | 5) => Ok(()),
        Some(2) => Err(Failure::usage("the sweep was refused; see above")),
        Some(3) => Err(Failure::Missing("Ray cannot be reached; see above".to_owned())),
        Some(130) | None => Err(Failure::Interrupted),
        Some(code) => Err(Failure::run(format!("{python} ended with {code}"))),
    }
}
