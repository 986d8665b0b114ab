//! Backends: what runs a plan.

mod kvm;
mod select;
mod sim;
mod vm;

use std::collections::BTreeMap;
use std::fmt;

use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;

use crate::result::Note;

pub use kvm::Kvm;
pub use select::{Choice, Request, Selection, select};
pub use sim::{Sim, SimOfThisHost};
pub use vcoop_model::Missing as Unavailable;
pub use vm::{PolicyApplier, PolicyOutcome, Vm};

/// Something that runs a plan.
pub trait Backend: Sync + fmt::Debug {
    /// Name, as in `--backend` and in results.
    fn name(&self) -> &'static str;

    /// Whether a run takes real time and needs the host for itself.
    fn is_live(&self) -> bool {
        false
    }

    /// The host that it simulates for a plan; none for a live backend.
    fn host(&self, _plan: &Plan) -> Option<String> {
        None
    }

    /// Whether it can run here; by default everywhere.
    ///
    /// # Errors
    ///
    /// What is missing, and how to get it.
    fn available(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    /// Whether this plan can run here.
    ///
    /// # Errors
    ///
    /// What the plan needs and this host, or this backend, lacks.
    fn check(&self, _plan: &Plan) -> Result<(), Unavailable> {
        self.available()
    }

    /// Facts about the host that a reader of the result needs; none for a simulated one.
    fn environment(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// What a reader of a result should know about this host beside the numbers; nothing of a simulated one.
    fn caveats(&self) -> Vec<Note> {
        Vec::new()
    }

    /// Runs a plan once. A run that fails half way returns what it had measured beside the reason, if the backend
    /// supports that.
    ///
    /// # Errors
    ///
    /// Why the run failed with nothing measured, in one sentence without the plan's name, which the caller adds.
    fn run(&self, run: Run<'_>) -> Result<(Recording, Option<String>), String>;
}

/// A backend, and the plans that it runs.
#[derive(Clone, Debug)]
pub struct Column<'a> {
    /// The backend.
    pub backend: &'a dyn Backend,
    /// Indices of its plans, ascending.
    pub plans: Vec<usize>,
}

impl<'a> Column<'a> {
    /// A backend that runs all of `plans` plans.
    pub fn all(backend: &'a dyn Backend, plans: usize) -> Self {
        Self { backend, plans: (0..plans).collect() }
    }
}
