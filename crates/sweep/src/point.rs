//! Runs one point: from its number to its rows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use vcoop_capture::Loader;
use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Column, Sim};
use vcoop_experiment::result::Document;
use vcoop_experiment::runner::{Control, Experiment, Measurements};
use vcoop_model::plan::Plan;
use vcoop_model::sweep::Stop;

use crate::columns_kept;
use crate::dataset::DatasetError;
use crate::job::Job;
use crate::row::PointRows;
use crate::stopping_rule::{next, settled};

/// Runs a point; `None` if it was interrupted. An error in the scenario becomes a row, and so does a panic: one point
/// does not end a sweep.
///
/// # Errors
///
/// A file of the point cannot be read. It may be there another time, so this is not recorded as a row.
pub fn run(
    job: &Job,
    point: u32,
    loader: &Loader,
    stop: &AtomicBool,
) -> Result<Option<PointRows>, DatasetError> {
    loader.take_asked();
    let found = catch_unwind(AssertUnwindSafe(|| attempt(job, point, loader, stop)));
    let error = match found {
        Ok(Ok(rows)) => return Ok(rows),
        Ok(Err(error)) => error,
        Err(_) => "internal error, please report it: panic".to_owned(),
    };
    match loader.take_asked().failed {
        Some((path, error)) => Err(DatasetError::Io { what: "read", path, error }),
        None => Ok(Some(PointRows::failed(point, error))),
    }
}

fn attempt(
    job: &Job,
    point: u32,
    loader: &Loader,
    stop: &AtomicBool,
) -> Result<Option<PointRows>, String> {
    let sets = job.sets(point, loader).map_err(|e| e.to_string())?;
    let scenario = job.scenario(&sets, loader).map_err(|e| e.to_string())?;
    let mut plans = scenario.plans(Some(&job.policies)).map_err(|e| e.to_string())?;
    let rule = job.sweep.stop.as_ref();
    let most = job.most_repeats;
    let Some((document, sharp)) = enough(&mut plans, &job.baseline, rule, most, 1, stop)? else {
        return Ok(None);
    };
    let mut rows = PointRows::new(point, sharp, &document);
    columns_kept::cut(job.sweep.keep.as_ref(), &mut rows);
    Ok(Some(rows))
}

/// Runs plans until the stopping rule is satisfied or there are `most` repeats. Returns the result, and whether the
/// rule is satisfied; `None` if interrupted.
///
/// # Errors
///
/// The run that failed, in a sentence.
pub fn enough(
    plans: &mut [Plan],
    baseline: &str,
    rule: Option<&Stop>,
    most: u32,
    jobs: usize,
    stop: &AtomicBool,
) -> Result<Option<(Document, bool)>, String> {
    for plan in plans.iter_mut() {
        // Views are of single runs: no row shows them.
        plan.views.clear();
    }
    let control = Control { stop, progress: &|_| () };
    let mut measured: Option<Measurements> = None;
    loop {
        let columns = [Column::all(&Sim, plans.len())];
        let experiment = Experiment { plans, columns: &columns, jobs };
        let now = match measured.take() {
            None => experiment.run(control),
            Some(before) => experiment.extend(before, control),
        };
        let now = now.map_err(|e| e.to_string())?;
        if let Some(failure) = now.failure {
            return Err(failure.to_string());
        }
        if now.interrupted || stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let about = Metadata { baseline: baseline.to_owned(), ..Metadata::default() };
        let document = document(plans, &now, about);
        let sharp = rule.is_none_or(|rule| settled(&document, rule));
        let repeats = plans.first().map_or(0, |plan| plan.repeats);
        if sharp || repeats >= most {
            return Ok(Some((document, sharp)));
        }
        let repeats = next(repeats, most);
        plans.iter_mut().for_each(|plan| plan.repeats = repeats);
        measured = Some(now);
    }
}
