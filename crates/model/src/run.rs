//! Input of one run of a plan, for every backend.

use std::fmt;

use crate::plan::Plan;
use crate::trace_event::Observer;

/// A plan, and its observer.
pub struct Run<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Seed of its random draws.
    pub seed: u64,
    /// Called now and then; if it returns true, the run ends early, and the recording has what was measured until then.
    pub stop: &'a dyn Fn() -> bool,
    /// Gets the events of the run, as far as the backend knows them.
    pub observer: Option<&'a mut dyn Observer>,
}

impl<'a> Run<'a> {
    /// A whole run without an observer.
    pub fn new(plan: &'a Plan, seed: u64) -> Self {
        Self { plan, seed, stop: &|| false, observer: None }
    }

    /// The same, until this answers true.
    #[must_use]
    pub fn until(self, stop: &'a dyn Fn() -> bool) -> Self {
        Self { stop, ..self }
    }

    /// The same, watched.
    #[must_use]
    pub fn watched(self, observer: &'a mut dyn Observer) -> Self {
        Self { observer: Some(observer), ..self }
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("plan", &self.plan)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
