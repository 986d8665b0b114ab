//! Captured threads of a scenario.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::capture::{CaptureLoader, CapturedThread, Shape};
use crate::diagnostic::Diagnostics;
use crate::plan::{Ns, Step};
use crate::profile::Profile;

type Threads = Arc<Vec<CapturedThread>>;

/// The captures of a scenario. All cells of a matrix and all plans share the loaded steps.
pub(crate) struct Captures<'l> {
    loader: &'l dyn CaptureLoader,
    /// Directory of the scenario file, which relative names start from.
    directory: String,
    loaded: BTreeMap<(String, Shape), Result<Threads, String>>,
}

impl std::fmt::Debug for Captures<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captures").field("loaded", &self.loaded.keys()).finish_non_exhaustive()
    }
}

impl<'l> Captures<'l> {
    /// Without captures yet. `scenario` is the path of the scenario file.
    pub(crate) fn new(loader: &'l dyn CaptureLoader, scenario: &str) -> Self {
        let parent = Path::new(scenario).parent().map(|p| p.to_string_lossy().into_owned());
        Self { loader, directory: parent.unwrap_or_default(), loaded: BTreeMap::new() }
    }

    /// Path of a file named in the scenario. Names from the command line are relative to the working directory, like
    /// any other argument.
    pub(crate) fn locate(&self, file: &str, from_command_line: bool) -> String {
        if from_command_line || file.starts_with("builtin:") || self.directory.is_empty() {
            return file.to_owned();
        }
        Path::new(&self.directory).join(file).to_string_lossy().into_owned()
    }

    /// The threads of a capture: the `limit` with the largest demand, with their demand times `scale_ppm` / 1e6.
    pub(crate) fn get(
        &mut self,
        file: &str,
        from_command_line: bool,
        scale_ppm: u64,
        limit: usize,
    ) -> Result<Threads, String> {
        let path = self.locate(file, from_command_line);
        let shape = Shape { demand_ppm: scale_ppm, max_threads: Some(limit), ..Shape::default() };
        let loader = self.loader;
        let threads = self
            .loaded
            .entry((path.clone(), shape.clone()))
            .or_insert_with(|| loader.load(&path, &shape).map(Arc::new))
            .clone()?;
        if threads.is_empty() {
            return Err("the capture has no threads".to_owned());
        }
        Ok(threads)
    }
}

impl Captures<'_> {
    /// The threads of an rt-app file.
    pub(crate) fn rt_app(
        &self,
        file: &str,
        from_command_line: bool,
    ) -> Result<Vec<crate::rt_app::AppThread>, String> {
        crate::rt_app::parse(&self.loader.text(&self.locate(file, from_command_line))?)
    }

    /// A profile from a file that was located.
    pub(crate) fn profile(&self, path: &str) -> Result<Profile, Diagnostics> {
        Profile::of_file(path, self.loader.text(path))
    }
}

/// Shortest time of one round of a script; a wait may be over at once.
pub(crate) fn least_length(steps: &[Step]) -> Ns {
    steps.iter().fold(0, |sum, step| match step {
        Step::Run(ns) | Step::Sleep(ns) => sum.saturating_add(*ns),
        _ => sum,
    })
}
