//! `vcoop report`.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;
use vcoop_experiment::format;
use vcoop_experiment::reproduce::{self, Reproduction};
use vcoop_experiment::result::{self, Document};
use vcoop_experiment::validate::{self, Validation};
use vcoop_model::file;
use vcoop_report::{pictures, render_html, render_reproduction_html, render_validation_html};
use vcoop_sweep::manifest::MANIFEST;

use crate::failure::Failure;
use crate::folder::{REPORT, REPRODUCTION, RESULT, VALIDATION, make, put};
use crate::output::note;

#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// A folder that --out of `vcoop run`, `vcoop compare`, `vcoop observe`, `vcoop reproduce` or
    /// `vcoop validate` wrote, or one with a result.json that `vcoop run --json --detail` printed
    pub(crate) dir: PathBuf,
    /// Write every chart as a picture of its own into this folder, too
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
}

pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let dir = &args.dir;
    if !dir.is_dir() {
        let what = if dir.exists() { "it is not a folder" } else { "there is no such folder" };
        let dir = dir.display();
        return Err(Failure::usage(format!("{dir}: {what}; name a folder that --out wrote")));
    }
    if let Some(pictures) = &args.svg {
        make("--svg ", pictures)?;
    }
    let mut charts = Vec::new();
    let page = match read(dir, RESULT)? {
        Some(value) => {
            let document: Document = known(value, result::SCHEMA, &dir.join(RESULT))?;
            if !document.has_detail() {
                note(&format!(
                    "{} has no distributions and nothing by time: most charts are left out. \
                     `vcoop run --out DIR` keeps them, and so does --json with --detail",
                    dir.join(RESULT).display()
                ));
            }
            if args.svg.is_some() {
                charts = pictures(&document);
            }
            render_html(&document)
        }
        None => other_page(args)?,
    };
    put(dir, REPORT, &page)?;
    if let Some(pictures) = &args.svg {
        for (name, picture) in &charts {
            put(pictures, name, picture)?;
        }
    }
    let beside = args.svg.as_ref().map_or_else(String::new, |pictures| {
        let count = format::count(charts.len() as u64, "picture");
        format!(", and {count} into {}", pictures.display())
    });
    note(&format!("wrote {}{beside}", dir.join(REPORT).display()));
    Ok(())
}

/// Makes the page of a document that was read from this path.
type Page = fn(Value, &Path) -> Result<String, Failure>;

/// The page of a reproduction or a validation.
fn other_page(args: &ReportArgs) -> Result<String, Failure> {
    let dir = &args.dir;
    let pages: [(&str, Page); 2] = [
        (REPRODUCTION, |value, path| {
            known::<Reproduction>(value, reproduce::SCHEMA, path)
                .map(|r| render_reproduction_html(&r))
        }),
        (VALIDATION, |value, path| {
            known::<Validation>(value, validate::SCHEMA, path).map(|v| render_validation_html(&v))
        }),
    ];
    for (name, page) in pages {
        match read(dir, name)? {
            Some(_) if args.svg.is_some() => {
                let no = format!("--svg: {name} is drawn as one page; --svg is for a {RESULT}");
                return Err(Failure::usage(no));
            }
            Some(value) => return page(value, &dir.join(name)),
            None => {}
        }
    }
    if dir.join(MANIFEST).exists() {
        let dir = dir.display();
        let map = format!("vcoop map {dir} --rows AXIS --columns AXIS");
        return Err(Failure::usage(format!("{dir} is of a sweep\n  remedy: {map}")));
    }
    Err(Failure::usage(format!(
        "{} has neither {RESULT} nor {REPRODUCTION} nor {VALIDATION}: name a folder that --out wrote",
        dir.display()
    )))
}

/// A JSON file of a folder; `None` if there is none.
pub(crate) fn read(dir: &Path, name: &str) -> Result<Option<Value>, Failure> {
    let path = dir.join(name);
    match file::bytes(&path, file::MOST_DOCUMENT) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| Failure::usage(format!("{} is not JSON: {e}", path.display()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => {
            Err(Failure::usage(format!("cannot read {}: {}", path.display(), file::error_text(&e))))
        }
    }
}

/// The document, if this program knows its version.
pub(crate) fn known<T: DeserializeOwned>(
    value: Value,
    schema: &str,
    path: &Path,
) -> Result<T, Failure> {
    let path = path.display();
    let found = value.get("schema").and_then(Value::as_str).unwrap_or("none");
    if found != schema {
        return Err(Failure::usage(format!(
            "{path} has schema {found}; this vcoop ({}) reads {schema} only",
            env!("CARGO_PKG_VERSION")
        )));
    }
    serde_json::from_value(value)
        .map_err(|e| Failure::usage(format!("{path} is not as {schema} says: {e}")))
}
