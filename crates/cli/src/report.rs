//! `vcoop report`.

use std::fs;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use vcoop_lab::reproduce::{self, Reproduction};
use vcoop_lab::result::{self, Document};
use vcoop_report::{pictures, render_html, render_reproduction_html};

use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::folder::{REPORT, RESULT, put};
use crate::output::note;

/// What `reproduce --out` leaves.
pub(crate) const REPRODUCTION: &str = "reproduce.json";

pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let dir = &args.dir;
    let mut charts = Vec::new();
    let page = match read(dir, RESULT)? {
        Some(value) => {
            let document: Document = known(value, result::SCHEMA, &dir.join(RESULT))?;
            if args.svg.is_some() {
                charts = pictures(&document);
            }
            render_html(&document)
        }
        None => match read(dir, REPRODUCTION)? {
            Some(value) if args.svg.is_none() => {
                let path = dir.join(REPRODUCTION);
                let done: Reproduction = known(value, reproduce::SCHEMA, &path)?;
                render_reproduction_html(&done)
            }
            Some(_) => return Err(Failure::usage("--svg is for results of `vcoop run`")),
            None => {
                let dir = dir.display();
                return Err(Failure::usage(format!(
                    "{dir} has neither {RESULT} nor {REPRODUCTION}: name a folder that --out wrote"
                )));
            }
        },
    };
    put(dir, REPORT, &page)?;
    if let Some(pictures) = &args.svg {
        fs::create_dir_all(pictures)
            .map_err(|e| Failure::run(format!("cannot make {}: {e}", pictures.display())))?;
        for (name, picture) in &charts {
            put(pictures, name, picture)?;
        }
    }
    note(&format!("wrote {}", dir.join(REPORT).display()));
    Ok(())
}

/// A JSON file of a folder; `None` if there is none.
fn read(dir: &Path, name: &str) -> Result<Option<Value>, Failure> {
    let path = dir.join(name);
    match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|e| Failure::usage(format!("{} is no JSON: {e}", path.display()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::run(format!("cannot read {}: {e}", path.display()))),
    }
}

/// The document, if it is of the version that this program knows.
fn known<T: DeserializeOwned>(value: Value, schema: &str, path: &Path) -> Result<T, Failure> {
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
