//! One run of a plan, as every backend takes it.

use std::fmt;

use crate::plan::Plan;
use crate::trace_event::Observer;

/// What to run, and who watches.
pub struct Run<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Seed of its random draws.
    pub seed: u64,
    /// Asked now and then; when it answers true the run ends early, and what was measured until then is in
    /// the recording.
    pub stop: &'a dyn Fn() -> bool,
    /// Is told what happens, as far as the backend knows it.
    pub observer: Option<&'a mut dyn Observer>,
}

impl<'a> Run<'a> {
    /// A whole run that nobody watches.
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
