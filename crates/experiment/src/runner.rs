//! Runs plans and their repeats, on all cores.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vcoop_model::plan::Plan;
use vcoop_model::run::Run;
use vcoop_model::trace_event::Observer;
use vcoop_threads::HostUse;

use crate::backend::Column;
use crate::repeat_summary::RepeatSummary;
use crate::result::VM;

/// What to run.
#[derive(Clone, Debug)]
pub struct Experiment<'a> {
    /// Plans: cells of the matrix times policies.
    pub plans: &'a [Plan],
    /// Backends, and the plans of each. Live backends come last, one run at a time: they need the host for themselves.
    pub columns: &'a [Column<'a>],
    /// Threads for the other backends; at most one for each run.
    pub jobs: usize,
}

/// Progress of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Repeats done, over all plans and backends.
    pub done: usize,
    /// All repeats.
    pub total: usize,
}

/// Control over a run, from another thread or a signal handler.
#[derive(Clone, Copy)]
pub struct Control<'a, P = Progress> {
    /// Set it to end early: current runs are cut short, and measurements are kept.
    pub stop: &'a AtomicBool,
    /// Called after each repeat, on the thread that ran it.
    pub progress: &'a (dyn Fn(P) + Sync),
}

impl<P> fmt::Debug for Control<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// Results of one plan on one backend.
#[derive(Clone, Debug)]
pub struct PlanRuns {
    /// Backend.
    pub backend: &'static str,
    /// The simulated host; none for a live backend.
    pub host: Option<String>,
    /// Index of the plan.
    pub plan: usize,
    /// By repeat; `None` if it was not run.
    pub repeats: Vec<Option<RepeatSummary>>,
}

/// A run of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId {
    /// Backend.
    pub backend: &'static str,
    /// Its place among the backends.
    pub column: usize,
    /// Index of the plan.
    pub plan: usize,
    /// Repeat, from 0.
    pub repeat: u32,
    /// Its seed.
    pub seed: u64,
}

/// An observer of every run.
pub trait Watch: Sync {
    /// A run is about to begin, on the calling thread. Returns its observer, if there is one.
    ///
    /// # Errors
    ///
    /// Why it cannot be observed: the run fails.
    fn begins(&self, run: RunId) -> Result<Option<Box<dyn Observer + '_>>, String>;

    /// A run is over, with this result.
    fn ended(&self, _run: RunId, _summary: &RepeatSummary) {}
}

/// All measurements.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// Backend by backend, plan by plan.
    pub runs: Vec<PlanRuns>,
    /// Whether it was ended early.
    pub interrupted: bool,
    /// The first failed run, if anything was measured.
    pub failure: Option<RunError>,
    /// CPUs of this host that others used while the lab measured on it.
    pub others: Option<f64>,
}

/// A run that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{scenario}, policy {policy}, {}: {cause}", self.turn())]
pub struct RunError {
    /// Scenario.
    pub scenario: String,
    /// Policy.
    pub policy: String,
    /// Repeat, from 0.
    pub repeat: u32,
    /// Its seed.
    pub seed: u64,
    /// Backend.
    pub backend: &'static str,
    /// Why.
    pub cause: String,
}

impl RunError {
    fn turn(&self) -> String {
        let Self { repeat, seed, backend, .. } = self;
        // A VM that vcoop does not run takes turns in rounds, and nothing is drawn.
        match *backend {
            VM => format!("round {}", repeat + 1),
            _ => format!("repeat {repeat} (seed {seed}) failed on {backend}"),
        }
    }
}

/// The backend whose guests, loads and probes are in this process: all other work of the host counts as others'.
const LAB: &str = "kvm";

/// 2^64 divided by the golden ratio: an odd number without a short pattern, so that multiples do not coincide.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The seed of a repeat. It depends on nothing else, so repeat `r` of every policy and every cell has the same
/// workload: common random numbers. Repeats of neighbouring first seeds differ, unlike with seeds that count up.
pub fn repeat_seed(seed: u64, repeat: u32) -> u64 {
    seed.wrapping_add(SEED_STEP.wrapping_mul(u64::from(repeat)))
}

impl Experiment<'_> {
    /// Runs everything. Results are ordered, independent of the order in which threads finish.
    ///
    /// Repeats are started before plans: first repeat 0 of every plan, so that after an early end all plans have about
    /// the same number of repeats. Odd repeats go through the plans backwards (ABBA), so that drift of a live host
    /// affects all alike.
    ///
    /// # Errors
    ///
    /// The first failed run (in order), if nothing was measured; else it is in [`Measurements::failure`]. Runs that have
    /// begun are finished, no others are begun.
    pub fn run(&self, control: Control<'_>) -> Result<Measurements, RunError> {
        self.watched(control, None)
    }

    /// [`run`](Self::run), with an observer.
    ///
    /// # Errors
    ///
    /// As there; a run that cannot be observed fails.
    pub fn watched(
        &self,
        control: Control<'_>,
        watch: Option<&dyn Watch>,
    ) -> Result<Measurements, RunError> {
        let nothing =
            Measurements { runs: self.empty(), interrupted: true, failure: None, others: None };
        self.go_on(nothing, control, watch)
    }

    /// Runs the repeats that the plans have beyond the existing ones, and adds them: the result equals that of
    /// [`run`](Self::run) for all repeats at once. `measured`: of the same experiment with fewer repeats.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn extend(
        &self,
        measured: Measurements,
        control: Control<'_>,
    ) -> Result<Measurements, RunError> {
        self.go_on(measured, control, None)
    }

    fn go_on(
        &self,
        measured: Measurements,
        control: Control<'_>,
        watch: Option<&dyn Watch>,
    ) -> Result<Measurements, RunError> {
        let quiet = |live: bool| -> Vec<usize> {
            let columns = self.columns.iter().enumerate();
            columns.filter(|(_, c)| c.backend.is_live() == live).map(|(i, _)| i).collect()
        };
        let Measurements { mut runs, mut failure, .. } = measured;
        let there = |place: usize, repeat: u32| -> bool {
            runs.get(place)
                .is_some_and(|run| matches!(run.repeats.get(repeat as usize), Some(Some(_))))
        };
        let missing = |live: bool| -> Vec<Job> {
            let mut order = self.order(&quiet(live));
            order.retain(|job| !there(job.place, job.repeat));
            order
        };
        let (simulated, live) = (missing(false), missing(true));
        let total = simulated.len() + live.len();
        let tally = Tally { done: AtomicUsize::new(0), total, failed: AtomicBool::new(false) };
        let mut slots = self.all(&simulated, self.jobs, &tally, control, watch);
        let before = self.columns.iter().any(|c| c.backend.name() == LAB).then(HostUse::now);
        slots.extend(self.all(&live, 1, &tally, control, watch));
        let others = before.filter(|_| !live.is_empty()).map(|before| before.by_others().1);
        let mut measured = false;
        for (run, empty) in runs.iter_mut().zip(self.empty()) {
            measured |= run.repeats.iter().any(Option::is_some);
            let most = run.repeats.len().max(empty.repeats.len());
            run.repeats.resize(most, None);
        }
        for (job, slot) in simulated.iter().chain(&live).zip(slots) {
            let Some((summary, error)) = slot else { continue };
            measured |= summary.is_some();
            runs[job.place].repeats[job.repeat as usize] = summary;
            failure = failure.or(error);
        }
        if let Some(error) = failure.take_if(|_| !measured) {
            return Err(error);
        }
        let complete =
            |run: &PlanRuns| run.repeats.iter().all(|d| matches!(d, Some(d) if d.complete));
        Ok(Measurements { interrupted: !runs.iter().all(complete), runs, failure, others })
    }

    /// Runs these, on so many threads; `None` for runs that were not begun.
    fn all(
        &self,
        order: &[Job],
        jobs: usize,
        tally: &Tally,
        control: Control<'_>,
        watch: Option<&dyn Watch>,
    ) -> Vec<Option<RunResult>> {
        let slots: Vec<Mutex<Option<RunResult>>> = order.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            // Relaxed: the counter hands out numbers, the slots carry the data.
            while !control.stop.load(Ordering::Relaxed) && !tally.failed.load(Ordering::Relaxed) {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = order.get(i) else { return };
                let result = self.one(job, control.stop, watch);
                tally.failed.fetch_or(result.1.is_some(), Ordering::Relaxed);
                *slots[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                let done = tally.done.fetch_add(1, Ordering::Relaxed) + 1;
                (control.progress)(Progress { done, total: tally.total });
            }
        };
        let jobs = jobs.clamp(1, order.len().max(1));
        if jobs == 1 {
            work();
        } else {
            match rayon::ThreadPoolBuilder::new().num_threads(jobs).build() {
                Ok(pool) => pool.scope(|scope| (0..jobs).for_each(|_| scope.spawn(|_| work()))),
                // No threads to be had: the calling one is left.
                Err(_) => work(),
            }
        }
        let taken = |slot: Mutex<_>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        slots.into_iter().map(taken).collect()
    }

    fn one(&self, job: &Job, stop: &AtomicBool, watch: Option<&dyn Watch>) -> RunResult {
        let (plan, backend) = (&self.plans[job.plan], self.columns[job.column].backend);
        let seed = repeat_seed(plan.seed, job.repeat);
        let stopped = || stop.load(Ordering::Relaxed);
        let (column, repeat) = (job.column, job.repeat);
        let run = RunId { backend: backend.name(), column, plan: job.plan, repeat, seed };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let alone = Run::new(plan, seed).until(&stopped);
            match watch.map_or(Ok(None), |watch| watch.begins(run))? {
                Some(mut observer) => {
                    let done = backend.run(alone.watched(&mut *observer));
                    observer.ends();
                    done
                }
                None => backend.run(alone),
            }
        }));
        let failed = |cause| RunError {
            scenario: plan.scenario.clone(),
            policy: plan.policy_name.clone(),
            repeat: job.repeat,
            seed,
            backend: backend.name(),
            cause,
        };
        match outcome.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
            Ok((recording, failure)) => {
                let planned = plan.warmup_ns.saturating_add(plan.duration_ns);
                let complete = match recording.engine {
                    Some(engine) => engine.sim_ns >= planned,
                    None => !stopped(),
                } && failure.is_none();
                let summary = RepeatSummary::new(recording, complete);
                if let Some(watch) = watch {
                    watch.ended(run, &summary);
                }
                // Views are those of the first repeat.
                let summary = if job.repeat == 0 { summary } else { summary.without_views() };
                (Some(summary), failure.map(failed))
            }
            Err(cause) => (None, Some(failed(cause))),
        }
    }

    fn order(&self, columns: &[usize]) -> Vec<Job> {
        let most = self.plans.iter().map(|plan| plan.repeats).max().unwrap_or(0);
        let mut order = Vec::new();
        for repeat in 0..most {
            for &column in columns {
                let before: usize = self.columns[..column].iter().map(|c| c.plans.len()).sum();
                let plans = self.columns[column].plans.iter().enumerate();
                let round = |(i, &plan): (usize, &usize)| {
                    let job = Job { column, plan, place: before + i, repeat };
                    (repeat < self.plans[plan].repeats).then_some(job)
                };
                if repeat % 2 == 0 {
                    order.extend(plans.filter_map(round));
                } else {
                    order.extend(plans.rev().filter_map(round));
                }
            }
        }
        order
    }

    fn empty(&self) -> Vec<PlanRuns> {
        let mut runs = Vec::new();
        for column in self.columns {
            for &plan in &column.plans {
                let repeats = vec![None; self.plans[plan].repeats as usize];
                let (backend, host) =
                    (column.backend.name(), column.backend.host(&self.plans[plan]));
                runs.push(PlanRuns { backend, host, plan, repeats });
            }
        }
        runs
    }
}

/// Progress of all runs.
#[derive(Debug)]
struct Tally {
    done: AtomicUsize,
    total: usize,
    failed: AtomicBool,
}

/// Result of one run: measurements, and why it failed.
type RunResult = (Option<RepeatSummary>, Option<RunError>);

#[derive(Clone, Copy, Debug)]
struct Job {
    column: usize,
    plan: usize,
    /// Index into the runs of the result.
    place: usize,
    repeat: u32,
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("internal error, please report it: {}", text.unwrap_or("panic without a message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_share_seeds_and_differ_from_each_other() {
        assert_eq!(repeat_seed(7, 0), 7);
        let mut seen: Vec<u64> =
            (1..50).flat_map(|seed| (0..50).map(move |r| repeat_seed(seed, r))).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 49 * 50);
    }

    #[test]
    fn a_failure_names_the_round_of_a_vm_that_vcoop_does_not_run() {
        let failed = |backend| {
            let [scenario, policy, cause] = ["web", "static", "it ended"].map(str::to_owned);
            RunError { scenario, policy, repeat: 0, seed: 7, backend, cause }.to_string()
        };
        assert_eq!(failed(VM), "web, policy static, round 1: it ended");
        assert_eq!(failed(LAB), "web, policy static, repeat 0 (seed 7) failed on kvm: it ended");
    }

    #[test]
    fn panics_become_sentences() {
        let panic = catch_unwind(|| panic!("boom {}", 1)).unwrap_err();
        assert!(panic_text(&*panic).ends_with("boom 1"));
    }
}
