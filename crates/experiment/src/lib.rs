//! Runs plans on a backend, repeats, compares, reproduces.
//!
//! ```text
//! Plans --runner--> Measured --analysis--> Document --verdict--> Verdict
//!         |             |                     |
//!      backend       digest: one repeat    result: what `--json` prints,
//!                    of one plan, small    what the report draws from
//!
//! published --reproduce--> plans, Document --> Reproduction (published against simulated)
//! ```
//!
//! Everything after the runner is a function of what was measured: no clock, no thread count and
//! no platform float reaches a result, so the same plans and seed give the same document.

pub mod analysis;
pub mod backend;
pub mod bins;
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
pub mod stats;
pub mod this_host;
pub mod validate;
pub mod verdict;
pub mod vm;
pub mod xen_on_linux;
