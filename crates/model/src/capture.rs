//! How captured workloads come in: the seam between scenario files and the capture reader.
//!
//! The reader of trace formats lives above this crate, so a scenario takes it as a trait object.

use std::sync::Arc;

use vcoop_sched::config::Policy;

use crate::plan::Step;

/// A thread rebuilt from a capture, ready to become a [`Program::Script`](crate::plan::Program).
#[derive(Clone, Debug, PartialEq)]
pub struct CapturedThread {
    /// Name as captured (`cc1plus`); need not be unique.
    pub name: String,
    /// Scheduling policy at its start.
    pub policy: Policy,
    /// CPUs of the *captured* machine it was allowed on; empty = all.
    pub cpus: Vec<u32>,
    /// What it does from the start of the capture. `Step::Wake(i)` names the thread at index `i`
    /// of the loaded list.
    pub steps: Arc<Vec<Step>>,
    /// Whether the script may start again at its end (a thread that lived through the whole
    /// capture, or one that the reader closed into a loop).
    pub repeat: bool,
}

/// Reads captures for [`Scenario::parse`](crate::scenario::Scenario::parse).
pub trait CaptureLoader {
    /// The threads of a capture.
    ///
    /// `path_or_builtin` is a path, already resolved against the directory of the scenario file,
    /// or `builtin:NAME` for a capture that ships with the program.
    ///
    /// # Errors
    ///
    /// One sentence for the user, without the file name: the scenario reader adds file, line and
    /// column of the `file = ...` field that asked for it.
    fn load(&self, path_or_builtin: &str) -> Result<Vec<CapturedThread>, String>;
}

/// Knows no captures: for tests, and for programs that read scenarios but do not run them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCaptures;

impl CaptureLoader for NoCaptures {
    fn load(&self, _: &str) -> Result<Vec<CapturedThread>, String> {
        Err("captures are not available here".to_owned())
    }
}
