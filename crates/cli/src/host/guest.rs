//! `vcoop guest`: changes how many of its vCPUs this guest uses.

use std::io::{self, Stdout};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::Serialize;
use vcoop_experiment::format;
use vcoop_guest_governor::{
    Decision, Evaluation, Fold, FoldError, Journal, Layout, Mechanism, Mode, Numbers, Pinned, Plan,
    Roots, UndoReport, cpus, pinned, restore, settings,
};
use vcoop_service::metrics::{self, Listen, MetricsServer};
use vcoop_service::{WholeLineWriter, usual};

use crate::args::host::{ByArg, GuestArgs};
use crate::failure::Failure;
use crate::interrupt::end_flag;
use crate::output::{log, print, print_at_end, print_at_once};
use crate::scenario::time;

/// Longest delay until a signal is handled.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two checks for threads with their own affinity.
const AGAIN: Duration = Duration::from_secs(1);

/// A line of `vcoop guest --json`.
#[derive(Debug, Serialize)]
struct Line<'d> {
    schema: &'static str,
    version: &'static str,
    dry_run: bool,
    elapsed_s: f64,
    busy_s: f64,
    steal_s: f64,
    steal_pct: f64,
    width_before: usize,
    width: usize,
    cpus: String,
    why: &'d str,
    /// Changes that a dry run does not make.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<FileChange>>,
}

#[derive(Debug, Serialize)]
struct FileChange {
    file: String,
    from: String,
    to: String,
}

/// Summary of steal over all evaluations.
#[derive(Clone, Copy, Debug, Default)]
struct Steal {
    sum_bp: u64,
    most_bp: u32,
}

pub(crate) fn run(args: &GuestArgs) -> Result<(), Failure> {
    let roots = args.tree.as_deref().map_or_else(Roots::usual, Roots::in_tree);
    if args.restore {
        return undo(args, &roots);
    }
    let stop = end_flag();
    let length = args.time.as_ref().map(|text| time("--for", text)).transpose()?;
    let governor = args.governor.to_possible_value();
    let governor = governor.as_ref().map_or("", PossibleValue::get_name);
    let by = match args.by {
        ByArg::Cpuset => Mechanism::Cpuset,
        ByArg::Hotplug => Mechanism::Hotplug,
    };
    let tell = |text: &str| {
        if !args.quiet {
            log(&format!("vcoop: {text}"));
        }
    };
    // First: leftovers of a killed process are undone even if something below is refused, and only then are this
    // guest's CPUs and affinities its own again.
    let mode = if args.dry_run {
        Mode::Dry
    } else {
        let (journal, undone) = Journal::open(&usual(), &roots).map_err(failure)?;
        undo_messages(&undone).iter().for_each(|line| tell(line));
        Mode::Apply(journal)
    };
    let layout = Layout::read(&roots).map_err(failure)?;
    let config =
        settings::config(governor, layout.all().len() as u32, &args.sets).map_err(failure)?;
    let began = Instant::now();
    // Nothing is changed yet. Impossible settings are refused first.
    let mut fold = Fold::new(roots.clone(), by, config, mode, Instant::now).map_err(failure)?;
    if !args.lose_affinities {
        let look = || pinned(&roots, by, &layout);
        let mut threads = look();
        if !threads.is_empty() {
            // A child created while a cpuset is restored keeps the old CPUs. Mostly it ends soon.
            thread::sleep(AGAIN);
            let again = look();
            threads.retain(|thread| again.contains(thread));
        }
        check_affinities(&threads, args.dry_run, &tell)?;
    }
    let page = Arc::new(Mutex::new(fold.numbers()));
    let _metrics = args.metrics.as_ref().map(|path| serve(path, &page)).transpose()?;
    let every = Duration::from_nanos(config.interval_ns);
    let head = heading(&fold, governor, every);
    if args.dry_run && !args.json {
        print(&(head + &narrowest(&fold)?))?;
    } else {
        tell(head.trim_end());
    }
    fold.warnings().iter().for_each(|line| tell(line));

    let until = length.map(|ns| began + Duration::from_nanos(ns));
    let mut next = began + every;
    let mut steal = Steal::default();
    let mut decisions = WholeLineWriter::new(io::stdout());
    while wait(next, until, stop) {
        let Evaluation { decision, notes } = fold.look(Instant::now).map_err(failure)?;
        notes.iter().for_each(|line| tell(line));
        *page.lock().unwrap_or_else(PoisonError::into_inner) = fold.numbers();
        if let Some(decision) = decision {
            steal.sum_bp += u64::from(decision.steal_bp);
            steal.most_bp = steal.most_bp.max(decision.steal_bp);
            if args.verbose || decision.is_change() {
                show(&fold, &decision, args, &mut decisions)?;
            }
        }
        next = fold.next_look(next, Instant::now());
    }
    let undone = fold.undo().map_err(failure)?;
    tell(&summary(fold.numbers(), steal));
    let odd = [&undone.nearly, &undone.foreign, &undone.failed];
    odd.into_iter().flatten().for_each(|line| tell(line));
    if !args.dry_run && odd.into_iter().all(Vec::is_empty) {
        tell("every file has what it had before");
    }
    ended(&undone)
}

/// Restores what a killed process left changed.
fn undo(args: &GuestArgs, roots: &Roots) -> Result<(), Failure> {
    let undone = restore(&usual(), roots).map_err(failure)?;
    let mut text: String = undo_messages(&undone).iter().map(|line| format!("{line}\n")).collect();
    if text.is_empty() && !args.quiet {
        text = "nothing was left changed\n".to_owned();
    }
    print_at_end(&text, ended(&undone))
}

/// Waits for the next evaluation; `false` if the command ends before.
fn wait(next: Instant, until: Option<Instant>, stop: &AtomicBool) -> bool {
    loop {
        let now = Instant::now();
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        if now >= next {
            return true;
        }
        if until.is_some_and(|until| now >= until) {
            return false;
        }
        let until = until.unwrap_or(next).min(next);
        thread::sleep(until.saturating_duration_since(now).min(LOOK));
    }
}

/// Refuses to make threads lose affinities; a dry run only reports it.
fn check_affinities(threads: &[Pinned], dry_run: bool, tell: &dyn Fn(&str)) -> Result<(), Failure> {
    if threads.is_empty() {
        return Ok(());
    }
    let why = affinities(threads);
    if !dry_run {
        let remedy = "a kernel from 6.2 on, or --lose-affinities";
        return Err(Failure::Missing(format!("{why}\n  remedy: {remedy}")));
    }
    tell(&why);
    Ok(())
}

/// Threads that would lose an affinity.
fn affinities(threads: &[Pinned]) -> String {
    let shown = threads
        .iter()
        .take(5)
        .map(|Pinned { tid, name, cpus }| format!("{name} ({tid}, CPUs {})", cpus::show(cpus)));
    let (n, list) = (threads.len(), shown.collect::<Vec<_>>().join(", "));
    let more = if n > 5 { ", ..." } else { "" };
    let have = if n == 1 {
        "thread has a CPU affinity of its"
    } else {
        "threads have CPU affinities of their"
    };
    format!(
        "{n} {have} own, which this kernel forgets when cpusets or the \
         CPUs online change, and nobody gives back: {list}{more}"
    )
}

fn serve(path: &Path, page: &Arc<Mutex<Numbers>>) -> Result<MetricsServer, Failure> {
    let page = page.clone();
    let text = move || -> io::Result<String> {
        Ok(metrics::text(*page.lock().unwrap_or_else(PoisonError::into_inner)))
    };
    let listen = Listen::Unix(path.to_owned());
    metrics::serve(&listen, text).map_err(|e| Failure::Run(format!("{}: {e}", path.display())))
}

fn heading(fold: &Fold, governor: &str, every: Duration) -> String {
    let layout = fold.layout();
    let all = layout.all();
    let (n, cores, cpus) = (all.len(), layout.cores(), cpus::show(&all));
    let every = format::time(every.as_nanos() as f64 / 1e3);
    let time = fold.since_boot();
    let wanted = time.busy_ns.saturating_add(time.steal_ns).max(1);
    let steal = time.steal_ns as f64 * 100.0 / wanted as f64;
    format!(
        "{governor} on {n} CPUs ({cpus}) in {cores} cores, a look every {every}; since boot \
         {steal:.1} % of the time they wanted was stolen\n"
    )
}

/// Changes of the largest possible folding.
fn narrowest(fold: &Fold) -> Result<String, Failure> {
    let used = fold.layout().used(fold.narrowest());
    let plan = fold.plan(&used).map_err(failure)?;
    let (n, list) = (used.len(), cpus::show(&used));
    let mut text = format!("at its narrowest, {n} of the CPUs ({list}), it would change\n");
    text += &changes(&plan);
    for (target, why) in &plan.left {
        text += &format!("  {target} is left alone: {why}\n");
    }
    Ok(text)
}

fn changes(plan: &Plan) -> String {
    if plan.changes.is_empty() {
        return "  nothing\n".to_owned();
    }
    plan.changes.iter().map(|change| format!("  {change}\n")).collect()
}

/// Prints a decision on stdout; it is lost if nobody reads there, so that the governing goes on.
fn show(
    fold: &Fold,
    decision: &Decision,
    args: &GuestArgs,
    to: &mut WholeLineWriter<Stdout>,
) -> Result<(), Failure> {
    let Decision { elapsed_ns, time, steal_bp, before, after, why } = decision;
    let steal_pct = f64::from(*steal_bp) / 100.0;
    let dry = args.dry_run && decision.is_change();
    let plan = if dry { Some(fold.plan(after).map_err(failure)?) } else { None };
    if args.json {
        let written = |plan: Plan| {
            let written = |c: vcoop_guest_governor::Change| FileChange {
                file: c.target.to_string(),
                from: c.from,
                to: c.to,
            };
            plan.changes.into_iter().map(written).collect()
        };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let line = Line {
            schema: "vcoop.guest/1",
            version: env!("CARGO_PKG_VERSION"),
            dry_run: args.dry_run,
            elapsed_s: seconds(*elapsed_ns),
            busy_s: seconds(time.busy_ns),
            steal_s: seconds(time.steal_ns),
            steal_pct,
            width_before: before.len(),
            width: after.len(),
            cpus: cpus::show(after),
            why,
            changes: plan.map(written),
        };
        let text = serde_json::to_string(&line).map_err(Failure::run)?;
        return print_at_once(&(text + "\n"), to);
    }
    let open = (*elapsed_ns as f64 * before.len() as f64).max(1.0);
    let busy = time.busy_ns as f64 * 100.0 / open;
    let width = match (decision.is_change(), args.dry_run) {
        (false, _) => format!("{} CPUs as before", after.len()),
        (true, true) => format!("would use {} CPUs ({})", after.len(), cpus::show(after)),
        (true, false) => {
            format!("{} -> {} CPUs ({})", before.len(), after.len(), cpus::show(after))
        }
    };
    let mut text = format!("steal {steal_pct:.1} %, busy {busy:.0} %: {width}; {why}\n");
    text += &plan.as_ref().map(changes).unwrap_or_default();
    print_at_once(&text, to)
}

fn summary(numbers: Numbers, steal: Steal) -> String {
    let Numbers { looks, decisions, refusals, .. } = numbers;
    let mean = steal.sum_bp as f64 / looks.max(1) as f64 / 100.0;
    let most = f64::from(steal.most_bp) / 100.0;
    format!(
        "{looks} looks, {decisions} changes of the width, {refusals} changes refused; steal {mean:.1} \
         % in the mean, {most:.1} % at most"
    )
}

/// A message about what was undone.
fn undo_messages(undone: &UndoReport) -> Vec<String> {
    let mut lines = Vec::new();
    if !undone.restored.is_empty() {
        let list = undone.restored.join(", ");
        lines.push(format!("gave back what an earlier vcoop had left changed: {list}"));
    }
    if !undone.gone.is_empty() {
        lines.push(format!("changed by an earlier vcoop, and gone: {}", undone.gone.join(", ")));
    }
    lines.extend(undone.nearly.iter().cloned());
    lines.extend(undone.foreign.iter().map(|line| format!("left as it is: {line}")));
    lines.extend(undone.failed.iter().map(|line| format!("not given back: {line}")));
    lines
}

fn ended(undone: &UndoReport) -> Result<(), Failure> {
    if undone.failed.is_empty() {
        return Ok(());
    }
    let why = "some files do not have what they had; they stay in the journal\n  remedy: vcoop guest \
               --restore, once they can be written";
    Err(Failure::run(why))
}

fn failure(why: FoldError) -> Failure {
    match &why {
        FoldError::Missing { .. } => Failure::Missing(why.to_string()),
        FoldError::Setting(_) => Failure::usage(why),
        FoldError::Folder(folder) if folder.is_denied() => Failure::Missing(why.to_string()),
        _ => Failure::run(why),
    }
}
