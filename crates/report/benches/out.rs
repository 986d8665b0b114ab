//! Cost of `--out`: the flagship scenario without it, with what charts need, and with every file, by turns in one
//! process. The first line of the table is the run without, which has no other code in its way.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Column, Sim};
use vcoop_experiment::runner::{Control, Experiment, RunId, Watch};
use vcoop_model::plan::Plan;
use vcoop_model::trace_event::{Observer, SampleEvent};
use vcoop_report::data::{self, Spools};
use vcoop_report::{Style, render, render_html};
use vcoop_testing::rig::builtin;

/// An observer that does nothing.
#[derive(Debug)]
struct Idle;

impl Observer for Idle {
    fn sample(&mut self, _: u64, sample: &SampleEvent<'_>) {
        std::hint::black_box(sample);
    }
}

/// Kind of observer.
enum ObserverKind<'a> {
    Nobody,
    Idle,
    Files(&'a Spools, &'a [Plan]),
}

impl Watch for ObserverKind<'_> {
    fn begins(&self, run: RunId) -> Result<Option<Box<dyn Observer + '_>>, String> {
        Ok(match self {
            Self::Nobody => None,
            Self::Idle => Some(Box::new(Idle)),
            Self::Files(spools, plans) => Some(Box::new(spools.begin(run, &plans[run.plan])?)),
        })
    }
}

fn once(plans: &[Plan], eyes: &ObserverKind<'_>, folder: Option<&Path>) {
    let stop = AtomicBool::new(false);
    let columns = [Column::all(&Sim, plans.len())];
    let experiment = Experiment { plans, columns: &columns, jobs: 1 };
    let control = Control { stop: &stop, progress: &|_| () };
    let measured = experiment.watched(control, Some(eyes)).expect("the flagship runs");
    let result = document(plans, &measured, Metadata::default());
    let text = render(&result, Style::default());
    if let (Some(folder), ObserverKind::Files(spools, plans)) = (folder, eyes) {
        data::write(folder, spools, &result, &measured, plans).expect("the folder is there");
        for (name, text) in
            [("report.html", render_html(&result)), ("result.json", result.to_json())]
        {
            fs::write(folder.join(name), text).expect("the folder is there");
        }
    }
    std::hint::black_box(text);
}

fn main() {
    let rounds = if std::env::args().any(|a| a == "--bench") { 5 } else { 1 };
    let mut plans = builtin("busy-host", &[], &[]);
    // As many repeats as the flagship has: the report is written once, whatever their number.
    if rounds == 1 {
        plans.iter_mut().for_each(|plan| plan.repeats = 1);
    }
    let mut sliced = plans.clone();
    sliced.iter_mut().for_each(|plan| plan.slices = 60);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-out");
    fs::create_dir_all(&folder).expect("a folder of our own");
    let names = ["without", "watched by nobody who minds", "with charts' detail", "with all files"];
    let mut times = vec![Vec::new(); names.len()];
    for _ in 0..rounds {
        for (case, times) in times.iter_mut().enumerate() {
            let spools = Spools::new(&folder);
            let began = Instant::now();
            match case {
                0 => once(&plans, &ObserverKind::Nobody, None),
                1 => once(&plans, &ObserverKind::Idle, None),
                2 => once(&sliced, &ObserverKind::Nobody, None),
                _ => once(&sliced, &ObserverKind::Files(&spools, &sliced), Some(&folder)),
            }
            times.push(began.elapsed().as_secs_f64());
        }
    }
    let _ = fs::remove_dir_all(&folder);
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|v| {
            v.sort_by(f64::total_cmp);
            v[v.len() / 2]
        })
        .collect();
    for (name, seconds) in names.iter().zip(&medians) {
        println!("{name:28} {seconds:7.3} s  {:5.2}x", seconds / medians[0]);
    }
}
