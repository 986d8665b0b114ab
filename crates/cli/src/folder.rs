//! `--out DIR`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vcoop_lab::result::Document;
use vcoop_model::plan::Plan;
use vcoop_report::{open_metrics, render_html};

use crate::failure::Failure;

/// Name of the page.
pub(crate) const REPORT: &str = "report.html";
/// Name of the file that says whose folder it is.
pub(crate) const RESULT: &str = "result.json";

/// A folder for the results of one scenario.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes the folder before the run, so that a run is not wasted on one that cannot be written.
    /// A folder that holds another scenario's result, or files that are not ours, is refused.
    pub(crate) fn new(dir: &Path, scenario: &str) -> Result<Self, Failure> {
        let this = Self(dir.to_owned());
        match fs::read_to_string(dir.join(RESULT)) {
            Ok(text) => {
                let found: Option<Value> = serde_json::from_str(&text).ok();
                let field = |key: &str| Some(found.as_ref()?.get(key)?.as_str()?.to_owned());
                let ours = field("schema").is_some_and(|s| s.starts_with("vcoop.result/"));
                match field("scenario") {
                    Some(other) if ours && other == scenario => {}
                    Some(other) if ours => {
                        return Err(this.refuse(&format!("holds a result of scenario {other}")));
                    }
                    _ => return Err(this.refuse("has a result.json that vcoop did not write")),
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                for name in ["plan.json", "scenario.toml", "report.txt", REPORT] {
                    if dir.join(name).exists() {
                        return Err(this.refuse(&format!("has a {name} that vcoop did not write")));
                    }
                }
            }
            Err(e) => return Err(Failure::run(format!("cannot read {}: {e}", dir.display()))),
        }
        fs::create_dir_all(dir)
            .map_err(|e| Failure::run(format!("cannot make {}: {e}", dir.display())))?;
        Ok(this)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn refuse(&self, why: &str) -> Failure {
        let dir = self.0.display();
        Failure::usage(format!(
            "--out {dir}: it {why}; nothing was overwritten. Name another folder"
        ))
    }

    /// Writes everything. `result.json` comes last: where it is, the rest is.
    pub(crate) fn write(
        &self,
        result: &Document,
        report: &str,
        plans: &[Plan],
        scenario: &str,
    ) -> Result<(), Failure> {
        self.file("scenario.toml", scenario)?;
        self.file("plan.json", &plans_json(plans).map_err(Failure::run)?)?;
        self.file("report.txt", report)?;
        self.file(REPORT, &render_html(result))?;
        self.file(RESULT, &result.to_json())
    }

    fn file(&self, name: &str, text: &str) -> Result<(), Failure> {
        put(&self.0, name, text)
    }
}

/// Makes a folder for a report before the runs, so that they are not wasted on one that cannot be
/// written. One with files of the same names, but without the one that `command` writes besides, is
/// refused.
pub(crate) fn prepare(dir: &Path, mark: &str, command: &str) -> Result<(), Failure> {
    let files = [REPORT, "report.txt"];
    if !dir.join(mark).exists()
        && let Some(name) = files.iter().find(|name| dir.join(name).exists())
    {
        return Err(Failure::usage(format!(
            "--out {}: it has a {name} that `{command}` did not write; nothing was overwritten. \
             Name another folder",
            dir.display()
        )));
    }
    fs::create_dir_all(dir).map_err(|e| Failure::run(format!("cannot make {}: {e}", dir.display())))
}

/// Writes a file of a folder, which [`replace`]s what was there.
pub(crate) fn put(dir: &Path, name: &str, text: &str) -> Result<(), Failure> {
    replace(&dir.join(name), text)
}

/// Writes a file under another name first, so that a reader never sees half of it.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.part"));
    fs::write(&part, text)
        .and_then(|()| fs::rename(&part, path))
        .map_err(|e| cannot_write(path, &e))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::run(format!("cannot write {}: {error}", path.display()))
}

/// `--metrics FILE`.
#[derive(Debug)]
pub(crate) struct MetricsFile(PathBuf);

impl MetricsFile {
    /// Sees before the run that the file can be written. What is in it stays until there is more.
    pub(crate) fn new(path: &Path) -> Result<Self, Failure> {
        let opened = fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|e| cannot_write(path, &e))?;
        Ok(Self(path.to_owned()))
    }

    /// Writes the metrics; a collector never sees half of a file. What is no file (a pipe, a device, a
    /// link to one) is written as it is: it must not be replaced by one.
    pub(crate) fn write(&self, result: &Document) -> Result<(), Failure> {
        let (path, text) = (&self.0, open_metrics(result));
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
            return replace(path, &text);
        }
        fs::write(path, text).map_err(|e| cannot_write(path, &e))
    }
}

/// The plans: policies by name, and one plan a cell of the matrix (they differ in the policy
/// only, and a captured load is long).
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
