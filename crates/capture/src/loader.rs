//! The door through which scenario files get their captures.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vcoop_model::capture::{CaptureLoader, CapturedThread};

use crate::{Capture, CaptureError, Limits, Shape};

/// Workloads that ship with the program.
const TEXTS: [(&str, &str); 1] =
    [("rt-app-mixed", include_str!("../../../captures/rt-app-mixed.json"))];
/// Longest text that is read.
const MAX_TEXT: u64 = 1 << 20;

/// Loads captures by path or as `builtin:NAME`, each once.
#[derive(Debug, Default)]
pub struct Loader {
    limits: Limits,
    loaded: Mutex<BTreeMap<String, Arc<Capture>>>,
}

impl Loader {
    /// A loader that refuses captures beyond these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, loaded: Mutex::default() }
    }

    /// The capture itself, with its losses.
    ///
    /// # Errors
    ///
    /// As [`Capture::open`] and [`Capture::builtin`].
    pub fn capture(&self, path_or_builtin: &str) -> Result<Arc<Capture>, CaptureError> {
        // A poisoned lock means that a reader panicked; what is in the map was put in whole.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(capture) = loaded.get(path_or_builtin) {
            return Ok(Arc::clone(capture));
        }
        let capture = Arc::new(match path_or_builtin.strip_prefix("builtin:") {
            Some(name) => Capture::builtin(name)?,
            None => Capture::open(Path::new(path_or_builtin), &self.limits)?,
        });
        loaded.insert(path_or_builtin.to_owned(), Arc::clone(&capture));
        Ok(capture)
    }

    /// Everything loaded so far, by the name it was asked for: for reports of what was lost.
    pub fn loaded(&self) -> Vec<(String, Arc<Capture>)> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.iter().map(|(name, capture)| (name.clone(), Arc::clone(capture))).collect()
    }
}

impl CaptureLoader for Loader {
    fn load(&self, path_or_builtin: &str, shape: &Shape) -> Result<Vec<CapturedThread>, String> {
        let capture = self.capture(path_or_builtin).map_err(|e| e.to_string())?;
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
        let file = File::open(path_or_builtin).map_err(|e| e.to_string())?;
        let mut text = String::new();
        file.take(MAX_TEXT + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
        if text.len() as u64 > MAX_TEXT {
            return Err(format!("it is longer than {MAX_TEXT} bytes"));
        }
        Ok(text)
    }
}
