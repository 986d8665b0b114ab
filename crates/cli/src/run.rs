//! `vcoop run`.

use std::io::Write as _;
use std::iter;
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use vcoop_capture::Loader;
use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Choice, Column, Request, Selection, Sim, select};
use vcoop_experiment::repeat_summary::RepeatSummary;
use vcoop_experiment::result::{Document, Engine};
use vcoop_experiment::runner::{Control, Experiment, Measurements, RunError, RunId, Watch};
use vcoop_experiment::{format, params};
use vcoop_model::distinct;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::scenario::Scenario;
use vcoop_model::trace_event::{Observer, SampleEvent};
use vcoop_report::data::{Spool, Spools};
use vcoop_report::{SLICES, open_metrics, render};
use vcoop_sweep::job::fnv;
use vcoop_sweep::slo::quantities;
use vcoop_text::quoted;

use crate::fail_if::{conditions, fail_if};
use crate::failure::{Failure, ended};
use crate::folder::{self, Folder};
use crate::interrupt::stop_flag;
use crate::options::{BackendArg, Common, MayCost, SIMULATE, fit, unmeasured};
use crate::output::{note, print, style};
use crate::progress::Progress;
use crate::scenario::{Overrides, choose, cpus, jobs, note_losses, parse, refuse, source};
use crate::watch::Dashboard;

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// A scenario file, or the name of a built-in scenario (see `vcoop list scenarios`)
    pub(crate) scenario: String,
    /// Where to run
    #[arg(long, value_enum, env = "VCOOP_BACKEND", hide_env_values = true, default_value_t = BackendArg::Sim)]
    pub(crate) backend: BackendArg,
    /// If the scenario needs more CPUs than this host has, scale it down in proportion
    #[arg(long)]
    pub(crate) fit: bool,
    /// Policies to compare instead of the scenario's, with commas between
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,
    /// Change a field: host.pcpus=8, vm.guest.vcpus=2, load.build.file=my.txt.gz
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Run only cells of the matrix with this value: interval=1ms, vcpus=4; several: all must match
    #[arg(long = "cell", value_name = "NAME=VALUE")]
    pub(crate) cells: Vec<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write report.html, report.txt, result.json, plan.json, scenario.toml and the data files into
    /// this folder: samples.parquet, latency.hlog, histograms, compare.txt
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files or a result of another scenario. A result of the
    /// same scenario is replaced without it
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// With --json: also what charts are drawn from (distributions, latency by time), as --out has it
    #[arg(long, requires = "json")]
    pub(crate) detail: bool,
    /// Write the result as OpenMetrics text
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
    /// End with exit code 4 if this holds for any policy that was run: 'guest.cyclictest.p99 > 1ms'.
    /// A number that is n/a counts as true
    #[arg(long, value_name = "NAME > LIMIT")]
    pub(crate) fail_if: Vec<String>,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Check everything, say what would run, where, and for how long
    #[arg(long, conflicts_with_all = ["json", "watch", "out"])]
    pub(crate) dry_run: bool,
    /// Show a dashboard on the terminal while it runs
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) watch: bool,
    /// Run twice, with different numbers of jobs, and compare the results byte by byte
    #[arg(long)]
    pub(crate) check_determinism: bool,
}

pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    // From here on Ctrl-C ends the run, not the process.
    stop_flag();
    let jobs = jobs(args.common.jobs);
    let source = source(&args.scenario)?;
    let overrides = Overrides::new(&args.sets, &args.common)?;
    let loader = Loader::default();
    let scenario = parse(&source, &overrides, &loader)?;
    let policies = (!args.policy.is_empty()).then_some(args.policy.as_slice());
    refuse_twice(&args.policy)?;
    let mut plans = choose(scenario.plans(policies).map_err(refuse)?, &args.cells)?;
    if args.out.is_some() || args.detail {
        plans.iter_mut().for_each(|plan| plan.slices = SLICES);
    }
    let folder = args.out.as_deref();
    let folder = folder.map(|dir| Folder::new(dir, &scenario.name, args.force)).transpose()?;
    let selection = selected(args, plans)?;
    if selection.is_live() && args.check_determinism {
        let help = "--check-determinism is for the simulator (--backend sim): live runs differ";
        return Err(Failure::usage(help));
    }
    if args.dry_run || !args.fail_if.is_empty() {
        let (look, rate) = look(&selection)?;
        // Names that only the lab has are known after its run.
        if !selection.is_live() {
            conditions(&args.fail_if, &quantities(&look))?;
        }
        if args.dry_run {
            return print(&outline(&scenario, &selection, jobs.min(cpus()), rate));
        }
    }
    if !args.common.quiet {
        announced(&selection).for_each(|what| note(&what));
    }
    note_losses(&loader, &args.common);
    let (plans, columns) = (&selection.plans, selection.columns());
    let about = metadata(args, &scenario, &selection);
    if let Some(path) = &args.metrics {
        folder::check_writable("--metrics ", path)?;
    }
    let spools = folder.as_ref().map(|folder| Spools::new(folder.path()));
    let once = |jobs, eyes: &RunObservers<'_>| {
        let experiment = Experiment { plans, columns: &columns, jobs };
        let (measured, failure) = measured(&experiment, eyes, args.common.quiet)?;
        Ok((document(plans, &measured, about.clone()), measured, failure))
    };
    let (result, measured, failure) = {
        let all = columns.iter().flat_map(|c| &c.plans);
        let runs = all.map(|&plan| plans[plan].repeats as usize).sum();
        let dashboard = args.watch.then(|| Dashboard::show(&about.title, plans, runs));
        let dashboard = dashboard.and_then(|shown| shown.map_err(|why| note(&why)).ok());
        let eyes = RunObservers { plans, spools: spools.as_ref(), dashboard: dashboard.as_ref() };
        once(if args.check_determinism { 1 } else { jobs }, &eyes)?
    };
    if args.common.verbose
        && let Some(engine) = &result.engine
    {
        note(&speed(engine));
    }
    let text = if args.common.json { result.to_json() } else { render(&result, style()) };
    // Files are written also if stdout has no reader.
    let printed = print(&text);
    if let Some(path) = &args.metrics {
        folder::write(path, |mut file| file.write_all(open_metrics(&result).as_bytes()))?;
    }
    if let Some(folder) = folder {
        let samples = spools.as_ref().map(|spools| (spools, &measured));
        folder.write(&result, samples, plans, &source.text)?;
        folder.note_written(args.common.quiet);
    }
    ended(failure, result.interrupted)?;
    if args.check_determinism {
        let jobs = jobs.max(2);
        compare(&result, &once(jobs, &RunObservers::default())?.0, jobs)?;
    }
    fail_if(&args.fail_if, &result).and(printed)
}

/// Facts about a selection before it runs.
fn announced(selection: &Selection) -> impl Iterator<Item = String> {
    let Selection { note, fitted, cautions, .. } = selection;
    let notes = note.iter().chain(fitted).chain(cautions).cloned();
    notes.chain(selection.announcement())
}

/// The metadata of a document.
fn metadata(args: &RunArgs, scenario: &Scenario, selection: &Selection) -> Metadata {
    let title = match &selection.fitted {
        Some(how) => format!("{} ({how})", scenario.title),
        None => scenario.title.clone(),
    };
    let columns = selection.columns();
    Metadata {
        title,
        command: command(args, selection.plans.first()),
        baseline: scenario.baseline.clone(),
        environment: columns.iter().flat_map(|c| c.backend.environment()).collect(),
        missing: selection.missing.clone(),
        notes: columns.iter().flat_map(|c| c.backend.caveats()).collect(),
        limits: args.may_cost.limits(),
        ..Metadata::default()
    }
}

/// A short simulation: the names in its result, and the real time per simulated second.
fn look(selection: &Selection) -> Result<(Document, f64), Failure> {
    let mut plans: Vec<Plan> = selection.plans.iter().take(LOOKED_AT).cloned().collect();
    for plan in &mut plans {
        plan.repeats = 1;
        plan.slices = 0;
        plan.warmup_ns = plan.warmup_ns.min(LOOK_NS / 2);
        plan.duration_ns = plan.duration_ns.min(LOOK_NS);
    }
    let columns = [Column::all(&Sim, plans.len())];
    let experiment = Experiment { plans: &plans, columns: &columns, jobs: 1 };
    let began = Instant::now();
    let (measured, failure) = measured(&experiment, &RunObservers::default(), true)?;
    let took = began.elapsed().as_secs_f64();
    ended(failure, false)?;
    let simulated: u64 = plans.iter().map(|plan| plan.warmup_ns + plan.duration_ns).sum();
    let document = document(&plans, &measured, Metadata::default());
    Ok((document, took / (simulated as f64 / 1e9).max(1e-9)))
}

/// Maximum number of plans for it, and their length: enough for a rate, and short.
const LOOKED_AT: usize = 4;
const LOOK_NS: Ns = 200_000_000;

/// Prints what would run, where, and for how long. `jobs`: runs that are computed at the same time.
fn outline(scenario: &Scenario, selection: &Selection, jobs: usize, rate: f64) -> String {
    let (plans, columns) = (&selection.plans, selection.columns());
    let mut text = style().wrap(&format!("{}: {}", scenario.name, scenario.title), 2);
    let policies = distinct(plans.iter().map(|plan| plan.policy_name.as_str()));
    let policies = format!("policies: {} (ratios to {})", policies.join(", "), scenario.baseline);
    text += &style().wrap(&policies, 2);
    let cells = distinct(plans.iter().map(|plan| params::words(&params::short(&plan.params))));
    if cells.len() > 1 {
        text += &style().wrap(&format!("{} cells: {}", cells.len(), cells.join("; ")), 2);
    }
    for column in &columns {
        let own = || column.plans.iter().filter_map(|&plan| plans.get(plan));
        let runs: u32 = own().map(|plan| plan.repeats).sum();
        let time = |plan: &Plan| (plan.warmup_ns + plan.duration_ns) * u64::from(plan.repeats);
        let seconds = own().map(time).sum::<u64>() as f64 / 1e9;
        let needs = match column.backend.is_live() {
            true => seconds,
            false => seconds * rate / jobs.clamp(1, runs.max(1) as usize) as f64,
        };
        let (needs, of) = (format::time(needs * 1e6), format::time(seconds * 1e6));
        let hosts = distinct(own().filter_map(|plan| column.backend.host(plan)));
        let takes = match column.backend.is_live() {
            true => format!("{of} of measured time in all, which take {needs} or longer"),
            false => format!("{of} of simulated time in all, which take about {needs} to compute"),
        };
        let (name, runs) = (column.backend.name(), format::count(runs.into(), "run"));
        let line = format!("{name}: {runs}, {takes}. {}", hosts.join("; "));
        text += &style().wrap(line.trim_end_matches([' ', '.']), 2);
    }
    let said = selection.announcement().into_iter().chain(selection.note.clone());
    for line in said.chain(selection.fitted.clone()).chain(selection.cautions.clone()) {
        text += &style().wrap(&line, 2);
    }
    for missing in &selection.missing {
        let line = format!("not on {}: {}: {}", missing.backend, missing.policy, missing.why);
        text += &style().wrap(&line, 2);
    }
    text
}

/// Assigns the plans to backends.
fn selected(args: &RunArgs, plans: Vec<Plan>) -> Result<Selection, Failure> {
    let choice = match args.backend {
        BackendArg::Auto => Choice::Auto,
        BackendArg::Sim => Choice::Sim,
        BackendArg::Kvm => Choice::Kvm,
    };
    let request = Request { choice, fit: args.fit };
    let remedies = || iter::once(SIMULATE).chain(fit(plans.clone()));
    select(request, plans.clone()).map_err(|why| unmeasured(why, remedies()))
}

/// The measurements, and the error of a failed run beside them.
pub(crate) fn measured(
    experiment: &Experiment<'_>,
    eyes: &RunObservers<'_>,
    quiet: bool,
) -> Result<(Measurements, Option<RunError>), Failure> {
    let progress = Progress::new(quiet || eyes.dashboard.is_some());
    let tell = |p| {
        progress.tell(p);
        eyes.dashboard.iter().for_each(|dashboard| dashboard.tell(p));
    };
    let control = Control { stop: stop_flag(), progress: &tell };
    let watch: Option<&dyn Watch> = if eyes.are_open() { Some(eyes) } else { None };
    let measured = experiment.watched(control, watch);
    progress.finish();
    let mut measured = measured.map_err(Failure::run)?;
    let failure = measured.failure.take();
    Ok((measured, failure))
}

/// The observers of runs in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunObservers<'a> {
    plans: &'a [Plan],
    /// Keeps every sample.
    spools: Option<&'a Spools>,
    dashboard: Option<&'a Dashboard>,
}

impl<'a> RunObservers<'a> {
    /// Samples are kept in `spools`, if requested.
    pub(crate) fn new(plans: &'a [Plan], spools: Option<&'a Spools>) -> Self {
        Self { plans, spools, dashboard: None }
    }

    fn are_open(&self) -> bool {
        self.spools.is_some() || self.dashboard.is_some()
    }
}

impl Watch for RunObservers<'_> {
    fn begins(&self, run: RunId) -> Result<Option<Box<dyn Observer + '_>>, String> {
        let plan = &self.plans[run.plan];
        let spool = self.spools.map(|spools| spools.begin(run, plan)).transpose()?;
        let eye = self.dashboard.map(|dashboard| dashboard.begins(run, plan));
        Ok(match (spool, eye) {
            (Some(spool), Some(eye)) => Some(Box::new(ObserverPair(spool, eye))),
            (Some(spool), None) => Some(Box::new(spool)),
            (None, eye) => eye,
        })
    }

    fn ended(&self, run: RunId, digest: &RepeatSummary) {
        self.dashboard.iter().for_each(|dashboard| dashboard.ended(run, digest));
    }
}

/// Two observers of a run, both only of its samples.
#[derive(Debug)]
struct ObserverPair<'a>(Spool<'a>, Box<dyn Observer + 'a>);

impl Observer for ObserverPair<'_> {
    fn sample(&mut self, at: Ns, sample: &SampleEvent<'_>) {
        self.0.sample(at, sample);
        self.1.sample(at, sample);
    }

    fn ends(&mut self) {
        self.0.ends();
        self.1.ends();
    }
}

pub(crate) fn refuse_twice(policies: &[String]) -> Result<(), Failure> {
    if policies.iter().any(String::is_empty) {
        return Err(Failure::usage(
            "--policy has an empty name; write names with one comma between",
        ));
    }
    let twice = policies.iter().enumerate().find(|(i, p)| policies[..*i].contains(p));
    twice.map_or(Ok(()), |(_, policy)| {
        Err(Failure::usage(format!("--policy names `{policy}` twice")))
    })
}

/// The command that gives the same result, without options that do not change it.
fn command(args: &RunArgs, first: Option<&Plan>) -> String {
    let mut words = vec!["vcoop".to_owned(), "run".to_owned(), args.scenario.clone()];
    let given = |option: &str, value: String| [option.to_owned(), value];
    // VCOOP_BACKEND may change the default.
    let backend = args.backend.to_possible_value();
    let backend = backend.map(|value| given("--backend", value.get_name().to_owned()));
    words.extend(backend.into_iter().flatten());
    if args.fit {
        words.push("--fit".to_owned());
    }
    words.extend(args.common.calibration.arguments());
    if !args.policy.is_empty() {
        words.extend(given("--policy", args.policy.join(",")));
    }
    words.extend(args.sets.iter().flat_map(|set| given("--set", set.clone())));
    words.extend(args.cells.iter().flat_map(|cell| given("--cell", cell.clone())));
    words.extend(args.may_cost.arguments());
    let common = &args.common;
    let options = [
        ("--duration", common.duration.clone()),
        ("--warmup", common.warmup.clone()),
        ("--repeats", common.repeats.clone()),
        ("--seed", first.map(|plan| plan.seed.to_string())),
    ];
    let options = options.into_iter().filter_map(|(option, value)| Some(given(option, value?)));
    words.extend(options.flatten());
    command_line(&words)
}

/// Quotes words for a shell.
pub(crate) fn command_line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn speed(engine: &Engine) -> String {
    let rate = engine.events as f64 / engine.cpu_s.max(1e-6) / 1e6;
    let (events, cpu, sim) = (engine.events, engine.cpu_s, engine.sim_s);
    format!("{events} events, {sim} simulated s in {cpu:.3} CPU s: {rate:.2} M events per CPU s")
}

fn compare(one: &Document, other: &Document, jobs: usize) -> Result<(), Failure> {
    let (a, b) = (one.without_timing().to_json(), other.without_timing().to_json());
    if a == b {
        let (bytes, hash) = (a.len(), fnv(a.as_bytes()));
        note(&format!(
            "deterministic: 1 job and {jobs} jobs gave the same {bytes} bytes (but for \
             engine.cpu_s), FNV-1a {hash}"
        ));
        return Ok(());
    }
    let differs = a.lines().zip(b.lines()).find(|(x, y)| x != y);
    let (x, y) = differs.unwrap_or(("the end", "more"));
    Err(Failure::run(format!(
        "not deterministic: first difference:\n  {}\n  {}",
        x.trim(),
        y.trim()
    )))
}
