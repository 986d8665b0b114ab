//! Runs a sweep on all cores of this machine.
//!
//! Threads take points in order and hand results to one writer. A thread waits while the next point is too far ahead of
//! the first part that is not complete: so memory is bounded, however many points there are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::thread;

use vcoop_capture::Loader;

use crate::dataset::{Dataset, DatasetError};
use crate::job::Job;
use crate::point;
use crate::row::PointRows;

/// Progress of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Points in the dataset.
    pub done: u32,
    /// Of these, points that existed before this run.
    pub before: u32,
    /// All points.
    pub total: u32,
    /// Points of this run that failed.
    pub failed: u32,
}

/// Control of a sweep: if it is ended early, running points are dropped. `progress` is called after each point.
pub type Control<'a> = vcoop_experiment::runner::Control<'a, Progress>;

/// Result of a run of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Its progress.
    pub progress: Progress,
    /// Whether it was ended early.
    pub interrupted: bool,
    /// First point of this run that failed, and why.
    pub failure: Option<(u32, String)>,
}

/// Parts that may be incomplete at a time, on machines with fewer cores than points in them.
const AHEAD: u32 = 2;

/// State shared by the threads.
#[derive(Debug)]
struct Shared {
    /// Points to run, ascending, from this index.
    next: Mutex<(usize, u32)>,
    /// Notified when the frontier moves, or all is over.
    moved: Condvar,
    over: AtomicBool,
}

/// Runs the missing points of a sweep, on so many threads.
///
/// # Errors
///
/// The folder cannot be written, or a file of a point cannot be read; what was written is kept.
pub fn run(
    job: &Job,
    dataset: &mut Dataset,
    jobs: usize,
    control: Control<'_>,
) -> Result<Outcome, DatasetError> {
    let missing = dataset.missing();
    let total = job.points();
    let before = total - missing.len() as u32;
    let mut outcome = Outcome {
        progress: Progress { done: before, before, total, failed: 0 },
        ..Outcome::default()
    };
    let jobs = jobs.clamp(1, missing.len().max(1));
    let ahead = (dataset.manifest().part_points * AHEAD).max(jobs as u32 * 4);
    let limit = |dataset: &Dataset| dataset.frontier().saturating_add(ahead);
    let shared = Shared {
        next: Mutex::new((0, limit(dataset))),
        moved: Condvar::new(),
        over: AtomicBool::new(false),
    };
    let (sender, receiver) = mpsc::sync_channel::<Result<PointRows, DatasetError>>(jobs);
    let written = thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, shared, missing) = (sender.clone(), &shared, &missing);
            scope.spawn(move || work(job, shared, missing, control.stop, &sender));
        }
        drop(sender);
        let mut written = Ok(());
        for rows in receiver {
            let rows = match rows {
                Ok(rows) => rows,
                Err(error) => {
                    written = Err(error);
                    break;
                }
            };
            outcome.progress.done += 1;
            if let Some(error) = rows.error() {
                outcome.progress.failed += 1;
                let first = outcome.failure.as_ref().is_none_or(|(point, _)| rows.point < *point);
                if first {
                    outcome.failure = Some((rows.point, error.to_owned()));
                }
            }
            written = dataset.add(rows, job);
            if written.is_err() {
                break;
            }
            let mut next = shared.next.lock().unwrap_or_else(PoisonError::into_inner);
            next.1 = limit(dataset);
            drop(next);
            shared.moved.notify_all();
            (control.progress)(outcome.progress);
        }
        // Threads that wait or run notice it; those that send find no receiver.
        shared.over.store(true, Ordering::Relaxed);
        shared.moved.notify_all();
        written
    });
    written?;
    outcome.interrupted = outcome.progress.done < total;
    Ok(outcome)
}

/// A thread's work: one point after the other.
fn work(
    job: &Job,
    shared: &Shared,
    missing: &[u32],
    stop: &AtomicBool,
    sender: &mpsc::SyncSender<Result<PointRows, DatasetError>>,
) {
    let loader = Loader::default();
    while let Some(point) = take(shared, missing, stop) {
        let Some(rows) = point::run(job, point, &loader, stop).transpose() else { return };
        if sender.send(rows).is_err() {
            return;
        }
    }
    // Others may wait for a frontier that will not move any more.
    shared.moved.notify_all();
}

/// The next point, once it is not too far ahead.
fn take(shared: &Shared, missing: &[u32], stop: &AtomicBool) -> Option<u32> {
    let mut next = shared.next.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if stop.load(Ordering::Relaxed) || shared.over.load(Ordering::Relaxed) {
            return None;
        }
        let point = *missing.get(next.0)?;
        if point < next.1 {
            next.0 += 1;
            return Some(point);
        }
        // A signal handler that sets the stop flag wakes no thread: look at it from time to time.
        let wait = std::time::Duration::from_millis(50);
        let found = shared.moved.wait_timeout(next, wait);
        next = found.unwrap_or_else(PoisonError::into_inner).0;
    }
}
