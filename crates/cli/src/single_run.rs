//! A single run of a scenario, for commands that inspect a run instead of comparing policies.

use vcoop_capture::Loader;
use vcoop_model::plan::Plan;
use vcoop_model::scenario::Scenario;

use crate::failure::Failure;
use crate::options::SingleRun;
use crate::output::note;
use crate::scenario::{Overrides, choose, parse, refuse, source};

/// The plan of the run; for a matrix the first cell, with a note.
pub(crate) fn plan(
    single: &SingleRun,
    overrides: &Overrides,
    quiet: bool,
) -> Result<(Scenario, Plan), Failure> {
    let source = source(&single.scenario)?;
    let scenario = parse(&source, overrides, &Loader::default())?;
    let policy = single.policy.clone().unwrap_or_else(|| scenario.baseline.clone());
    let plans = scenario.plans(Some(&[policy])).map_err(refuse)?;
    let mut plans = choose(plans, &single.cells)?;
    if plans.is_empty() {
        return Err(Failure::usage(format!("{} has nothing to run", scenario.name)));
    }
    let (cells, plan) = (plans.len(), plans.remove(0));
    if cells > 1 && !quiet {
        let of = plan.params.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        note(&format!(
            "the matrix has {cells} such cells, this is the first: {} (--cell chooses another)",
            of.join(", ")
        ));
    }
    Ok((scenario, plan))
}
