//! The interface between scenario files and the reader of captures.
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
    /// Its steps from the start of the capture. `Step::Wake(i)` is about the thread at index `i` of the loaded list.
    pub steps: Arc<Vec<Step>>,
    /// Whether the script may start again at its end: the thread lived through the whole capture, or the reader made it
    /// a loop.
    pub repeat: bool,
}

/// How a capture is replayed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// CPU demand in parts per million of the recorded one; sleeps do not change.
    pub demand_ppm: u64,
    /// Keep at most so many threads, those with the largest demand.
    pub max_threads: Option<usize>,
    /// Keep threads of these names only: whole names, or beginnings followed by `*`. Empty: all.
    pub comms: Vec<String>,
}

impl Default for Shape {
    /// Everything, as recorded.
    fn default() -> Self {
        Self { demand_ppm: 1_000_000, max_threads: None, comms: Vec::new() }
    }
}

/// Reads captures for [`Scenario::parse`](crate::scenario::Scenario::parse).
pub trait CaptureLoader {
    /// The threads of a capture, cut and scaled.
    ///
    /// `path_or_builtin` is a path, already resolved against the directory of the scenario file,
    /// or `builtin:NAME` for a capture that ships with the program.
    ///
    /// # Errors
    ///
    /// One sentence for the user, without the file name: the scenario reader adds file, line and
    /// column of the `file = ...` field that asked for it.
    fn load(&self, path_or_builtin: &str, shape: &Shape) -> Result<Vec<CapturedThread>, String>;

    /// The text of a file that a scenario names: an rt-app workload, a profile.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    fn text(&self, path_or_builtin: &str) -> Result<String, String> {
        let _ = path_or_builtin;
        Err("files are not available here".to_owned())
    }
}

/// Has no captures: for tests, and for programs that read scenarios but do not run them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCaptures;

impl CaptureLoader for NoCaptures {
    fn load(&self, _: &str, _: &Shape) -> Result<Vec<CapturedThread>, String> {
        Err("captures are not available here".to_owned())
    }
}
