//! `vcoop reproduce`.

use std::path::{Path, PathBuf};

use vcoop_capture::Loader;
use vcoop_experiment::published::Publication;
use vcoop_experiment::reproduce::{ReproduceError, Reproduction, Selection, Setup};
use vcoop_experiment::runner::Control;
use vcoop_model::builtin::is_path;
use vcoop_model::diagnostic::closest;
use vcoop_report::{Style, render_reproduction, render_reproduction_html};

use crate::failure::Failure;
use crate::folder::{Folder, REPORT, REPRODUCTION, TEXT};
use crate::interrupt::stop_flag;
use crate::options::Common;
use crate::output::{json, print, style};
use crate::progress::Progress;
use crate::scenario::{Overrides, jobs, named_text, note_losses, refuse};

/// Disagreement is a result, not a failure.
const EXIT: &str = "\
The exit code is 0 also where values differ or claims do not hold. With --json, summary.claims and
summary.claims_held say how many claims there are, and how many hold.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXIT)]
pub(crate) struct ReproduceArgs {
    /// Publications, tables or claims (see `vcoop list published`), or files of the same form: a path
    /// contains a / or ends in .toml. Default: all that is listed
    #[arg(value_name = "ID|FILE")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write report.html, report.txt and reproduce.json into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files. An earlier reproduction is replaced without it
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

pub(crate) fn run(args: &ReproduceArgs) -> Result<(), Failure> {
    let folder = args.out.as_deref();
    let folder = folder.map(|dir| Folder::of(dir, REPRODUCTION, args.force)).transpose()?;
    let stop = stop_flag();
    let jobs = jobs(args.common.jobs);
    let selection = selection(&args.ids)?;
    let loader = Loader::default();
    let overrides = Overrides::new(&[], &args.common)?;
    let setup = Setup::new(&selection, &overrides.sets, &loader);
    let setup = setup.map_err(|e| failure(e, &overrides))?;
    note_losses(&loader, &args.common);
    let progress = Progress::new(args.common.quiet);
    let control = Control { stop, progress: &|p| progress.tell(p) };
    let result = setup.run(&selection, jobs, control);
    progress.finish();
    let result = result.map_err(|e| failure(e, &overrides))?;
    let text =
        if args.common.json { json(&result)? } else { render_reproduction(&result, style()) };
    let printed = print(&text);
    if let Some(folder) = &folder {
        write(folder, &result)?;
        folder.note_written(args.common.quiet);
    }
    if result.interrupted { Err(Failure::Interrupted) } else { printed }
}

/// The publications of ids and files.
fn selection(ids: &[String]) -> Result<Selection, Failure> {
    let (files, ids): (Vec<String>, Vec<String>) = ids.iter().cloned().partition(|id| is_path(id));
    let mut selection = Selection::default();
    if files.is_empty() || !ids.is_empty() {
        let publications = Publication::builtin();
        selection =
            Selection::new(&publications, &ids).map_err(|name| unknown(&name, &publications))?;
    }
    for file in &files {
        let text = named_text("publication", Path::new(file))?;
        let publication = Publication::parse(file, &text);
        publication.and_then(|publication| selection.add(publication)).map_err(refuse)?;
    }
    Ok(selection)
}

fn write(folder: &Folder, result: &Reproduction) -> Result<(), Failure> {
    folder.put(TEXT, &render_reproduction(result, Style::default()))?;
    folder.put(REPORT, &render_reproduction_html(result))?;
    folder.put(REPRODUCTION, &json(result)?)
}

fn failure(error: ReproduceError, overrides: &Overrides) -> Failure {
    match error {
        ReproduceError::Scenario(diagnostics) => overrides.refuse(diagnostics),
        other => Failure::run(other),
    }
}

fn unknown(name: &str, publications: &[Publication]) -> Failure {
    let mut ids: Vec<&str> = Vec::new();
    for publication in publications {
        ids.push(&publication.name);
        ids.extend(publication.tables.iter().map(|t| t.id.as_str()));
        ids.extend(publication.histograms.iter().map(|h| h.id.as_str()));
        ids.extend(publication.claims.iter().map(|c| c.id.as_str()));
    }
    let guess = closest(name, &ids).map(|n| format!("did you mean {n}? ")).unwrap_or_default();
    let known = style().wrap(&format!("  {guess}there are: {}", ids.join(", ")), 4);
    Failure::usage(format!("nothing published is called `{name}`\n{}", known.trim_end()))
}
