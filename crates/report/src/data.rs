//! Data files beside a result, for users' own tools. docs/src/data.md has their schema.
//!
//! ```text
//! samples.parquet        one row a sample
//! latency.hlog           HdrHistogram log, one line a series and repeat
//! hgrm/NAME.hgrm         percentile distribution of a series
//! histograms/NAME.txt    as cyclictest -h prints them, a column a policy
//! compare.txt            A/B tables as mmtests prints them
//! ```

mod histograms;
mod samples;
mod spool;
mod table;

use std::borrow::Cow;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use vcoop_experiment::repeat_summary::Latency;
use vcoop_experiment::result::Document;
use vcoop_experiment::runner::{Measurements, PlanRuns};
use vcoop_model::file::write_whole;
use vcoop_model::plan::Plan;

use histograms::{Column, Interval};
pub use samples::SCHEMA as SAMPLES_SCHEMA;
pub use spool::{Spool, Spools};

/// Writes all of them into an existing folder.
///
/// # Errors
///
/// What could not be written, and why.
pub fn write(
    folder: &Path,
    spools: &Spools,
    document: &Document,
    measured: &Measurements,
    plans: &[Plan],
) -> Result<(), String> {
    spools.join(&folder.join("samples.parquet"))?;
    file(&folder.join("compare.txt"), &table::table(document))?;
    let intervals: Vec<Interval<'_>> =
        measured.runs.iter().flat_map(|run| of_run(run, plans)).collect();
    file(&folder.join("latency.hlog"), &histograms::log(&intervals)?)?;
    for sub in ["hgrm", "histograms"] {
        let sub = folder.join(sub);
        fs::create_dir_all(&sub).map_err(|e| format!("cannot make {}: {e}", sub.display()))?;
        // Those of a run that is replaced may have other names.
        for old in fs::read_dir(&sub).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if old
                .extension()
                .is_some_and(|e| ["hgrm", "svg", "txt", "part"].iter().any(|own| e == *own))
            {
                fs::remove_file(&old)
                    .map_err(|e| format!("cannot remove {}: {e}", old.display()))?;
            }
        }
    }
    for run in &measured.runs {
        let plan = &plans[run.plan];
        for (series, repeats) in all_series(run) {
            let name = format!("{}.{}.{series}{}", run.backend, plan.policy_name, cell(plan));
            let text = histograms::hgrm(&repeats);
            file(&folder.join("hgrm").join(plain(&name) + ".hgrm"), &text)?;
        }
    }
    // One a backend, cell and series, all policies in it.
    let mut done: Vec<String> = Vec::new();
    for run in &measured.runs {
        for (series, _) in all_series(run) {
            let name = format!("{}.{series}{}", run.backend, cell(&plans[run.plan]));
            if done.contains(&name) {
                continue;
            }
            let same = |other: &&PlanRuns| {
                other.backend == run.backend && plans[other.plan].params == plans[run.plan].params
            };
            let columns: Vec<Column<'_>> = measured
                .runs
                .iter()
                .filter(same)
                .filter_map(|other| {
                    let repeats = all_series(other).into_iter().find(|(s, _)| *s == series)?.1;
                    Some(Column { policy: &plans[other.plan].policy_name, repeats })
                })
                .collect();
            let text = histograms::cyclictest(&columns);
            file(&folder.join("histograms").join(plain(&name) + ".txt"), &text)?;
            done.push(name);
        }
    }
    Ok(())
}

fn of_run<'a>(run: &'a PlanRuns, plans: &'a [Plan]) -> Vec<Interval<'a>> {
    let (backend, plan) = (run.backend, &plans[run.plan]);
    let digests = (0..).zip(&run.repeats).filter_map(|(i, d)| Some((i, d.as_ref()?)));
    let of = |(repeat, digest): (u32, &'a vcoop_experiment::repeat_summary::RepeatSummary)| {
        let latencies = digest.latencies.iter().filter(|l| l.count > 0);
        latencies.map(move |latency| Interval { backend, plan, repeat, latency })
    };
    digests.flat_map(of).collect()
}

/// The latency series of a run with samples by name, and their repeats.
fn all_series(run: &PlanRuns) -> Vec<(Cow<'_, str>, Vec<&Latency>)> {
    let mut all: Vec<(Cow<'_, str>, Vec<&Latency>)> = Vec::new();
    for latency in run.repeats.iter().flatten().flat_map(|d| &d.latencies) {
        if latency.count == 0 {
            continue;
        }
        let name = latency.name();
        match all.iter_mut().find(|(other, _)| *other == name) {
            Some((_, repeats)) => repeats.push(latency),
            None => all.push((name, vec![latency])),
        }
    }
    all
}

/// The cell of the matrix, as part of a file's name.
fn cell(plan: &Plan) -> String {
    plan.params.iter().map(|(k, v)| format!(".{k}={v}")).collect()
}

/// A file's name without characters that are special to file systems and shells.
fn plain(name: &str) -> String {
    let ok = |c: char| c.is_ascii_alphanumeric() || "._-=+".contains(c);
    name.chars().map(|c| if ok(c) { c } else { '_' }).collect()
}

/// Writes a file, so that a reader never sees a part of it.
fn file(path: &Path, text: &str) -> Result<(), String> {
    write_whole(path, |mut file| file.write_all(text.as_bytes()))
        .map_err(|e| format!("cannot write {}: {e}", path.display()))
}
