//! The interface through which scenario files load captures, and any other file that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vcoop_model::capture::{CaptureLoader, CapturedThread};
use vcoop_model::file;

use crate::{Capture, CaptureError, Limits, Shape};

/// Built-in captures.
const TEXTS: [(&str, &str); 1] =
    [("rt-app-mixed", include_str!("../../../captures/rt-app-mixed.json"))];

/// Loads captures by path or as `builtin:NAME`, each once, and the text of other files.
#[derive(Debug, Default)]
pub struct Loader {
    limits: Limits,
    loaded: Mutex<BTreeMap<String, Arc<Capture>>>,
    asked: Mutex<RequestedFiles>,
}

/// Files that were requested from a loader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedFiles {
    /// Files, by path, without built-in ones.
    pub files: BTreeSet<String>,
    /// The last of them that the system could not read, with its error. Errors in a file's contents do not count.
    pub failed: Option<(String, String)>,
}

impl Loader {
    /// A loader that refuses captures beyond these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The capture, with its losses.
    ///
    /// # Errors
    ///
    /// As [`Capture::open`] and [`Capture::builtin`].
    pub fn capture(&self, path_or_builtin: &str) -> Result<Arc<Capture>, CaptureError> {
        let builtin = path_or_builtin.strip_prefix("builtin:");
        if builtin.is_none() {
            self.asked().files.insert(path_or_builtin.to_owned());
        }
        // A poisoned lock means that a reader panicked; entries of the map are always complete.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(capture) = loaded.get(path_or_builtin) {
            return Ok(Arc::clone(capture));
        }
        let capture = match builtin {
            Some(name) => Capture::builtin(name),
            None => Capture::open(Path::new(path_or_builtin), &self.limits),
        };
        let capture = Arc::new(capture.inspect_err(|e| match e {
            CaptureError::Open(e) | CaptureError::Read { source: e, .. } => {
                self.failed(path_or_builtin, e);
            }
            _ => {}
        })?);
        loaded.insert(path_or_builtin.to_owned(), Arc::clone(&capture));
        Ok(capture)
    }

    /// The requests since the last call.
    pub fn take_asked(&self) -> RequestedFiles {
        std::mem::take(&mut self.asked())
    }

    fn asked(&self) -> MutexGuard<'_, RequestedFiles> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an error of the system; errors of decompressors have no error number.
    fn failed(&self, path: &str, error: &io::Error) {
        if error.raw_os_error().is_some() {
            self.asked().failed = Some((path.to_owned(), error.to_string()));
        }
    }

    /// All captures loaded so far, by the requested name: for reports of losses.
    pub fn loaded(&self) -> Vec<(String, Arc<Capture>)> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.iter().map(|(name, capture)| (name.clone(), Arc::clone(capture))).collect()
    }
}

impl CaptureLoader for Loader {
    fn load(&self, path_or_builtin: &str, shape: &Shape) -> Result<Vec<CapturedThread>, String> {
        // One sentence: the caller wraps it again.
        let capture = self.capture(path_or_builtin);
        let capture = capture.map_err(|e| e.to_string().replace("\n  remedy: ", "; "))?;
        Ok(capture.replay(shape).threads)
    }

    fn text(&self, path_or_builtin: &str) -> Result<String, String> {
        if let Some(name) = path_or_builtin.strip_prefix("builtin:") {
            let known = TEXTS.iter().find(|(known, _)| *known == name);
            return known.map(|(_, text)| (*text).to_owned()).ok_or_else(|| {
                let names: Vec<&str> = TEXTS.iter().map(|(name, _)| *name).collect();
                format!("there is no such file built in; there is {}", names.join(", "))
            });
        }
        self.asked().files.insert(path_or_builtin.to_owned());
        let text = file::text(Path::new(path_or_builtin), file::MOST_NAMED);
        text.inspect_err(|e| self.failed(path_or_builtin, e)).map_err(|e| file::sentence(&e))
    }
}
