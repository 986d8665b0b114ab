//! `vcoop validate`.

use std::path::PathBuf;

use vcoop_capture::Loader;
use vcoop_experiment::analysis::{Metadata, document};
use vcoop_experiment::backend::{Choice, Request, select};
use vcoop_experiment::result::Document;
use vcoop_experiment::runner::Experiment;
use vcoop_experiment::validate::{SCENARIOS, validation};
use vcoop_report::{Style, render_validation, render_validation_html};

use crate::failure::Failure;
use crate::folder::{Folder, REPORT, TEXT, VALIDATION};
use crate::interrupt::stop_flag;
use crate::options::{Common, fit, unmeasured};
use crate::output::{json, note, print, style};
use crate::run::{RunObservers, measured};
use crate::scenario::{Overrides, jobs, parse, source};

#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    /// Scenarios. Default: those that two CPUs can run
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenarios: Vec<String>,
    /// If a scenario needs more CPUs than this host has, scale it down in proportion
    #[arg(long)]
    pub(crate) fit: bool,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write report.html, report.txt and validation.json into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files. An earlier validation is replaced without it
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

pub(crate) fn run(args: &ValidateArgs) -> Result<(), Failure> {
    stop_flag();
    let folder = args.out.as_deref();
    let folder = folder.map(|dir| Folder::of(dir, VALIDATION, args.force)).transpose()?;
    let jobs = jobs(args.common.jobs);
    let overrides = Overrides::new(&[], &args.common)?;
    let loader = Loader::default();
    let builtin: Vec<String> = SCENARIOS.iter().map(|name| (*name).to_owned()).collect();
    let names = if args.scenarios.is_empty() { &builtin } else { &args.scenarios };
    // All of them first: an error in the last must not cost the time of the others.
    let mut scenarios = Vec::new();
    for name in names {
        let source = source(name)?;
        scenarios.push(parse(&source, &overrides, &loader)?);
    }
    let mut documents: Vec<Document> = Vec::new();
    for (i, scenario) in scenarios.iter().enumerate() {
        let plans = scenario.plans(None).map_err(crate::scenario::refuse)?;
        let on = |choice| {
            let request = Request { choice, fit: args.fit };
            select(request, plans.clone()).map_err(|why| {
                let why = format!("{} cannot be measured here: {why}", scenario.name);
                unmeasured(why, fit(plans.clone()))
            })
        };
        let selection = on(Choice::Auto)?;
        if !selection.is_live() {
            // The alternative is of no use here; the note says what is missing, and the remedy.
            on(Choice::Kvm)?;
        }
        if !args.common.quiet {
            note(&format!("{} of {}: {}", i + 1, scenarios.len(), scenario.name));
            let said = selection.announcement();
            selection.cautions.iter().chain(&said).for_each(|why| note(why));
        }
        let (plans, columns) = (&selection.plans, selection.columns());
        let experiment = Experiment { plans, columns: &columns, jobs };
        let (measured, _) = measured(&experiment, &RunObservers::default(), args.common.quiet)?;
        let about = Metadata {
            title: scenario.title.clone(),
            baseline: scenario.baseline.clone(),
            environment: columns.iter().flat_map(|c| c.backend.environment()).collect(),
            missing: selection.missing.clone(),
            ..Metadata::default()
        };
        documents.push(document(plans, &measured, about));
        if documents.last().is_some_and(|d| d.interrupted) {
            break;
        }
    }
    let result = validation(&documents);
    let json = json(&result)?;
    let text = if args.common.json { json.clone() } else { render_validation(&result, style()) };
    let printed = print(&text);
    if let Some(folder) = &folder {
        folder.put(TEXT, &render_validation(&result, Style::default()))?;
        folder.put(REPORT, &render_validation_html(&result))?;
        folder.put(VALIDATION, &json)?;
        folder.note_written(args.common.quiet);
    }
    if result.interrupted { Err(Failure::Interrupted) } else { printed }
}
