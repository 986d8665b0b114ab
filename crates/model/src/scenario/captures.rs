//! Captured threads on their way into a plan: loaded once, then limited and scaled.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::capture::{CaptureLoader, CapturedThread};
use crate::plan::{Ns, Step};

/// Millionths in one.
const MILLION: u64 = 1_000_000;

type Threads = Arc<Vec<CapturedThread>>;

/// The captures of a scenario. Every cell of a matrix and every plan shares the loaded steps.
pub(crate) struct Captures<'l> {
    loader: &'l dyn CaptureLoader,
    /// Directory of the scenario file, which relative names start from.
    directory: String,
    loaded: BTreeMap<String, Result<Threads, String>>,
    shaped: BTreeMap<(String, u64, usize), Threads>,
}

impl std::fmt::Debug for Captures<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captures").field("loaded", &self.loaded.keys()).finish_non_exhaustive()
    }
}

impl<'l> Captures<'l> {
    /// None loaded yet. `scenario` is the path of the scenario file.
    pub(crate) fn new(loader: &'l dyn CaptureLoader, scenario: &str) -> Self {
        let parent = Path::new(scenario).parent().map(|p| p.to_string_lossy().into_owned());
        Self {
            loader,
            directory: parent.unwrap_or_default(),
            loaded: BTreeMap::new(),
            shaped: BTreeMap::new(),
        }
    }

    /// Where a file named in the scenario is. Names from the command line are relative to the
    /// working directory, as any other argument.
    pub(crate) fn locate(&self, file: &str, from_command_line: bool) -> String {
        if from_command_line || file.starts_with("builtin:") || self.directory.is_empty() {
            return file.to_owned();
        }
        Path::new(&self.directory).join(file).to_string_lossy().into_owned()
    }

    /// The threads of a capture, the `limit` with the most demand, their demand times
    /// `scale_ppm` / 1e6.
    pub(crate) fn get(
        &mut self,
        file: &str,
        from_command_line: bool,
        scale_ppm: u64,
        limit: usize,
    ) -> Result<Threads, String> {
        let path = self.locate(file, from_command_line);
        let loader = self.loader;
        let all = self
            .loaded
            .entry(path.clone())
            .or_insert_with(|| loader.load(&path).map(Arc::new))
            .clone()?;
        if all.is_empty() {
            return Err("the capture has no threads".to_owned());
        }
        if scale_ppm == MILLION && limit >= all.len() {
            return Ok(all);
        }
        let shaped = self.shaped.entry((path, scale_ppm, limit));
        Ok(shaped.or_insert_with(|| Arc::new(shape(&all, scale_ppm, limit))).clone())
    }
}

/// The busiest `limit` threads, in their order, with their demand scaled. Wake-ups of threads left
/// out are left out; those of the others name the new places.
fn shape(all: &[CapturedThread], scale_ppm: u64, limit: usize) -> Vec<CapturedThread> {
    let mut by_demand: Vec<usize> = (0..all.len()).collect();
    by_demand.sort_by_key(|i| (std::cmp::Reverse(demand(&all[*i].steps)), *i));
    by_demand.truncate(limit);
    by_demand.sort_unstable();
    let place: BTreeMap<u32, u32> = by_demand
        .iter()
        .zip(0..)
        .filter_map(|(old, new)| Some((u32::try_from(*old).ok()?, new)))
        .collect();
    let rewrite = |step: &Step| match *step {
        Step::Run(ns) => Some(Step::Run(scaled(ns, scale_ppm))),
        Step::Wake(peer) => place.get(&peer).map(|peer| Step::Wake(*peer)),
        other => Some(other),
    };
    by_demand
        .iter()
        .map(|i| CapturedThread {
            steps: Arc::new(all[*i].steps.iter().filter_map(rewrite).collect()),
            ..all[*i].clone()
        })
        .collect()
}

/// CPU time of a script.
pub(crate) fn demand(steps: &[Step]) -> Ns {
    steps.iter().fold(0, |sum, step| match step {
        Step::Run(ns) => sum.saturating_add(*ns),
        _ => sum,
    })
}

/// Shortest time in which a script can come round again; a wait may be over at once.
pub(crate) fn least_length(steps: &[Step]) -> Ns {
    steps.iter().fold(0, |sum, step| match step {
        Step::Run(ns) | Step::Sleep(ns) => sum.saturating_add(*ns),
        _ => sum,
    })
}

fn scaled(ns: Ns, ppm: u64) -> Ns {
    let scaled = u128::from(ns) * u128::from(ppm) / u128::from(MILLION);
    Ns::try_from(scaled).unwrap_or(Ns::MAX)
}

#[cfg(test)]
mod tests {
    use vcoop_sched::config::Policy;

    use super::*;

    fn thread(steps: Vec<Step>) -> CapturedThread {
        let (name, policy) = (String::new(), Policy::NORMAL);
        CapturedThread { name, policy, cpus: Vec::new(), steps: Arc::new(steps), repeat: true }
    }

    #[test]
    fn limiting_keeps_the_busiest_and_renames_wakes() {
        let all = [
            thread(vec![Step::Run(10), Step::Wake(2), Step::Wake(1)]),
            thread(vec![Step::Run(1)]),
            thread(vec![Step::Run(30), Step::Wake(0)]),
        ];
        let kept = shape(&all, 2 * MILLION, 2);
        assert_eq!(kept.len(), 2);
        assert_eq!(*kept[0].steps, [Step::Run(20), Step::Wake(1)]);
        assert_eq!(*kept[1].steps, [Step::Run(60), Step::Wake(0)]);
    }
}
