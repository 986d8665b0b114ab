//! Samples on their way to a file: each run encodes its own into the folder as they come; at the end they are
//! concatenated in the order of plans and repeats.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use parquet::errors::ParquetError;
use vcoop_experiment::runner::RunId;
use vcoop_model::file::write_whole;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::trace_event::{Observer, SampleEvent};

use super::samples::{Writer, join};

/// The samples of all runs.
#[derive(Debug)]
pub struct Spools {
    folder: PathBuf,
    runs: Mutex<Vec<Spooled>>,
}

/// One run's samples.
#[derive(Debug)]
struct Spooled {
    run: RunId,
    path: PathBuf,
    /// Why the file is unusable, if it is.
    ended: Result<(), String>,
}

/// Encodes the samples of one run.
#[derive(Debug)]
pub struct Spool<'a> {
    all: &'a Spools,
    run: RunId,
    path: PathBuf,
    writer: Option<Writer>,
    failed: Option<String>,
}

impl Spools {
    /// Runs write into this existing folder.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), runs: Mutex::default() }
    }

    /// The spool of a run.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub fn begin(&self, run: RunId, plan: &Plan) -> Result<Spool<'_>, String> {
        let name = format!(".samples-{}-{}-{}.part", run.backend, run.plan, run.repeat);
        let path = self.folder.join(name);
        let writer = Writer::new(&path, run, plan)
            .map_err(|e| format!("cannot write {}: {}", path.display(), said(e)))?;
        Ok(Spool { all: self, run, path, writer: Some(writer), failed: None })
    }

    /// Concatenates all spools into one file, in the order of backends, plans and repeats.
    ///
    /// # Errors
    ///
    /// The first error, now or during the runs.
    pub(super) fn join(&self, path: &Path) -> Result<(), String> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.sort_by_key(|s| (s.run.column, s.run.plan, s.run.repeat));
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs.iter() {
            let no = |why| format!("cannot write {}: {why}", run.path.display());
            run.ended.as_ref().map_err(no)?;
            parts.push(run.path.as_path());
        }
        let joined = |file| join(file, parts.into_iter()).map_err(|e| io::Error::other(said(e)));
        write_whole(path, joined).map_err(|e| format!("cannot write {}: {e}", path.display()))
    }
}

/// The error without the name of its kind.
fn said(error: ParquetError) -> String {
    match error {
        ParquetError::External(cause) => cause.to_string(),
        other => other.to_string(),
    }
}

impl Drop for Spools {
    fn drop(&mut self) {
        for run in self.runs.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = std::fs::remove_file(&run.path);
        }
    }
}

impl Observer for Spool<'_> {
    fn sample(&mut self, _: Ns, sample: &SampleEvent<'_>) {
        if let Some(writer) = self.writer.as_mut().filter(|_| sample.counts)
            && let Err(error) = writer.push(sample)
        {
            // Later samples are dropped: the file is of no use.
            self.failed = Some(said(error));
            self.writer = None;
        }
    }

    fn ends(&mut self) {
        let ended = match (self.failed.take(), self.writer.take()) {
            (Some(why), _) => Err(why),
            (None, writer) => writer.map_or(Ok(()), Writer::close).map_err(said),
        };
        let spooled = Spooled { run: self.run, path: self.path.clone(), ended };
        self.all.runs.lock().unwrap_or_else(PoisonError::into_inner).push(spooled);
    }
}
