//! Results about a VM that another program runs.

use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;

use crate::analysis::{Metadata, document};
use crate::repeat_summary::RepeatSummary;
use crate::result::{Document, VM};
use crate::runner::{Measurements, PlanRuns};

/// The document of one observation. `plan`: that of the VM; `complete`: it was not interrupted.
pub fn observed(plan: &Plan, recording: Recording, complete: bool, about: Metadata) -> Document {
    let repeats = vec![Some(RepeatSummary::new(recording, complete))];
    let runs = vec![PlanRuns { backend: VM, host: None, plan: 0, repeats }];
    let measured = Measurements { runs, interrupted: !complete, failure: None, others: None };
    document(std::slice::from_ref(plan), &measured, about)
}
