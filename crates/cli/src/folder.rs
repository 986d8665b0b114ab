//! `--out DIR`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vcoop_experiment::result::Document;
use vcoop_experiment::runner::Measurements;
use vcoop_model::file;
use vcoop_model::plan::Plan;
use vcoop_report::data::{self, Spools};
use vcoop_report::{Style, render, render_html};

use crate::failure::Failure;
use crate::output::{note, shown};

/// Name of the page.
pub(crate) const REPORT: &str = "report.html";
/// Name of the file that identifies the owner of the folder.
pub(crate) const RESULT: &str = "result.json";
/// Main file of `validate --out`.
pub(crate) const VALIDATION: &str = "validation.json";
/// Main file of `reproduce --out`.
pub(crate) const REPRODUCTION: &str = "reproduce.json";
/// Name of the page as text.
pub(crate) const TEXT: &str = "report.txt";
/// Name of the trace in a folder of `observe --out`.
pub(crate) const TRACE: &str = "trace.perfetto";
const PLAN: &str = "plan.json";
const SCENARIO: &str = "scenario.toml";

/// A folder for results, locked while this exists: two runs in one folder would overwrite each other's files.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    _lock: File,
}

/// The identity of a result.
#[derive(Deserialize)]
struct Head {
    schema: String,
    scenario: String,
}

impl Folder {
    /// Creates the folder before the run, so that a run is not wasted if it cannot be written. A folder with another
    /// scenario's result, or with files of other programs, is refused unless `force`.
    pub(crate) fn new(dir: &Path, scenario: &str, force: bool) -> Result<Self, Failure> {
        let this = Self::take(dir)?;
        if force {
            return Ok(this);
        }
        match file::open(&dir.join(RESULT)) {
            Ok(found) => {
                let found = BufReader::new(found.take(file::MOST_DOCUMENT));
                match serde_json::from_reader::<_, Head>(found) {
                    Ok(head) if !head.schema.starts_with("vcoop.result/") => {
                        Err(this.refuse("has a result.json that vcoop did not write"))
                    }
                    Ok(head) if head.scenario != scenario => {
                        let other = shown(&head.scenario);
                        Err(this.refuse(&format!("holds a result of scenario {other}")))
                    }
                    Ok(_) => Ok(this),
                    Err(_) => Err(this.refuse("has a result.json that vcoop did not write")),
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => this.empty(RESULT),
            Err(e) => Err(this.refuse(&format!("has a {RESULT} that cannot be read: {e}"))),
        }
    }

    /// Creates the folder for files of a command other than a report; `mark` is its main file. A folder with other
    /// files and without `mark` is refused unless `force`.
    pub(crate) fn of(dir: &Path, mark: &str, force: bool) -> Result<Self, Failure> {
        let this = Self::take(dir)?;
        if force || dir.join(mark).is_file() { Ok(this) } else { this.empty(mark) }
    }

    /// Creates and locks a folder, and removes files that a killed run left incomplete.
    fn take(dir: &Path) -> Result<Self, Failure> {
        let failed = |what: &str, e: &io::Error| {
            Failure::run(format!("--out {}: cannot {what} it: {e}", dir.display()))
        };
        make("--out ", dir)?;
        let lock = file::lock_folder(dir).map_err(|e| failed("lock", &e))?;
        let Some(lock) = lock else {
            return Err(Failure::usage(format!(
                "--out {}: it is being written by another process; nothing was overwritten\n  \
                 remedy: wait for its end, or name another folder",
                dir.display()
            )));
        };
        let this = Self { dir: dir.to_owned(), _lock: lock };
        for name in this.names()? {
            if is_half(&name) {
                fs::remove_file(dir.join(&name)).map_err(|e| failed("clear", &e))?;
            }
        }
        Ok(this)
    }

    /// Names of its entries, sorted.
    fn names(&self) -> Result<Vec<String>, Failure> {
        let failed = |e| Failure::run(format!("--out {}: cannot read it: {e}", self.dir.display()));
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Without a mark the folder must be empty.
    fn empty(self, mark: &str) -> Result<Self, Failure> {
        match self.names()?.first() {
            None => Ok(self),
            Some(name) => {
                let name = shown(name);
                let why =
                    format!("has `{name}` and no {mark}, so that files may be somebody else's");
                Err(self.refuse(&why))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    fn refuse(&self, why: &str) -> Failure {
        let dir = self.dir.display();
        Failure::usage(format!(
            "--out {dir}: it {why}; nothing was overwritten\n  remedy: name another folder, or \
             add --force to write into this one"
        ))
    }

    /// Writes all files, with the data files if there are samples. `result.json` is last: if it exists, the others do.
    pub(crate) fn write(
        &self,
        result: &Document,
        samples: Option<(&Spools, &Measurements)>,
        plans: &[Plan],
        scenario: &str,
    ) -> Result<(), Failure> {
        if let Some((spools, measured)) = samples {
            data::write(&self.dir, spools, result, measured, plans).map_err(Failure::run)?;
        }
        self.put(SCENARIO, scenario)?;
        self.put(PLAN, &plans_json(plans).map_err(Failure::run)?)?;
        self.put(TEXT, &shown(&render(result, Style::default())))?;
        self.put(REPORT, &render_html(result))?;
        self.put(RESULT, &result.to_json())
    }

    /// Prints that the folder was written.
    pub(crate) fn note_written(&self, quiet: bool) {
        if !quiet {
            note(&format!("wrote {}", self.dir.display()));
        }
    }

    /// Writes a file, and replaces an existing one.
    pub(crate) fn put(&self, name: &str, text: &str) -> Result<(), Failure> {
        put(&self.dir, name, text)
    }
}

/// Refuses `-`, which users of other tools mean as stdout: outputs have names, and stdout has the command's words.
pub(crate) fn named(option: &str, path: &Path) -> Result<(), Failure> {
    if path != "-" {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{option}-: give the output a name; for a file called -, write ./-"
    )))
}

/// Creates a folder that the user named with `option`.
pub(crate) fn make(option: &str, dir: &Path) -> Result<(), Failure> {
    named(option, dir)?;
    let dir_is = |what: &str| format!("{option}{}: {what}", dir.display());
    fs::create_dir_all(dir).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            Failure::usage(dir_is("it is not a folder; name a folder"))
        }
        _ => Failure::run(dir_is(&format!("cannot make it: {e}"))),
    })?;
    // Checked before time is spent on the content.
    let probe = dir.join(format!(".vcoop-{}.part", std::process::id()));
    fs::write(&probe, "")
        .and_then(|()| fs::remove_file(&probe))
        .map_err(|e| Failure::run(dir_is(&format!("cannot write there: {e}"))))
}

/// Whether a file named with `option` can be written: checked before time is spent on its content.
pub(crate) fn check_writable(option: &str, path: &Path) -> Result<(), Failure> {
    named(option, path)?;
    let refuse = |why: &str| Err(Failure::usage(format!("{option}{}: {why}", path.display())));
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        refuse("it is a folder; name a file")
    } else if parent.is_some_and(|p| !p.is_dir()) {
        refuse("there is no such folder")
    } else {
        file::can_write_whole(path).map_err(|e| cannot_write(path, &e))
    }
}

/// Whether a name is one of the temporary names of incomplete files.
fn is_half(name: &str) -> bool {
    let ours = [
        RESULT,
        PLAN,
        SCENARIO,
        TEXT,
        REPORT,
        REPRODUCTION,
        VALIDATION,
        TRACE,
        "compare.txt",
        "latency.hlog",
    ];
    let whole = name.strip_prefix('.').and_then(|n| n.strip_suffix(".part"));
    whole.is_some_and(|whole| ours.contains(&whole) || whole.starts_with("samples"))
}

/// Writes a file of a folder as a whole, and replaces an existing one.
pub(crate) fn put(dir: &Path, name: &str, text: &str) -> Result<(), Failure> {
    write(&dir.join(name), |mut file| file.write_all(text.as_bytes()))
}

/// Writes a file as [`file::write_whole`] does.
pub(crate) fn write<T>(
    path: &Path,
    content: impl FnOnce(File) -> io::Result<T>,
) -> Result<T, Failure> {
    file::write_whole(path, content).map_err(|e| cannot_write(path, &e))
}

pub(crate) fn cannot_write(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::run(format!("cannot write {}: {error}", path.display()))
}

/// The plans: policies by name, and one plan for each cell of the matrix (plans of a cell differ only in the policy,
/// and a captured load is long).
fn plans_json(plans: &[Plan]) -> serde_json::Result<String> {
    let policies: BTreeMap<&str, &vcoop_model::plan::PolicyPlan> =
        plans.iter().map(|plan| (plan.policy_name.as_str(), &plan.policy)).collect();
    let mut cells: Vec<&Plan> = Vec::new();
    for plan in plans {
        if !cells.iter().any(|cell| cell.params == plan.params) {
            cells.push(plan);
        }
    }
    let policies = serde_json::to_string(&policies)?;
    let cells = serde_json::to_string(&cells)?;
    Ok(format!("{{\"schema\":\"vcoop.plan/1\",\"policies\":{policies},\"cells\":{cells}}}\n"))
}
