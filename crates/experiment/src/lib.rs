//! Runs plans on a backend, repeats, compares, reproduces.
//!
//! ```text
//! Plans --runner--> Measurements --analysis--> Document --verdict--> Verdict
//!         |             |                         |
//!      backend       repeat_summary: one       result: what `--json` prints,
//!                    repeat, small             what the report draws from
//!
//! published --reproduce--> plans, Document --> Reproduction (published against simulated)
//! ```
//!
//! Everything after the runner is a function of the measurements: results do not depend on clocks, numbers of threads
//! or platform floats, so the same plans and seed give the same document.

pub mod analysis;
pub mod backend;
pub mod deploy;
pub mod diff;
pub mod fit;
pub mod format;
pub mod judge;
pub mod params;
pub mod published;
pub mod repeat_summary;
pub mod reproduce;
pub mod result;
pub mod rounding;
pub mod runner;
pub mod sim_vs_kvm;
pub mod this_host;
pub mod validate;
pub mod verdict;
pub mod vm;
pub mod xen_on_linux;

use std::sync::atomic::AtomicBool;

use vcoop_model::plan::Plan;

use analysis::Metadata;
use backend::{Column, Sim};
use result::Document;
use runner::{Control, Experiment, RunError};

/// Simulates plans, and makes the document.
///
/// # Errors
///
/// Why a run failed.
pub fn simulate(plans: &[Plan], jobs: usize, about: Metadata) -> Result<Document, RunError> {
    let control = Control { stop: &AtomicBool::new(false), progress: &|_| () };
    let columns = [Column::all(&Sim, plans.len())];
    let measured = Experiment { plans, columns: &columns, jobs }.run(control)?;
    Ok(analysis::document(plans, &measured, about))
}
