//! The simulator: of the plan's host, or of this one.

use std::collections::BTreeMap;

use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;

use super::Backend;
use crate::result::SIM;
use crate::this_host::ThisHost;

/// The simulator of the plan's host.
#[derive(Clone, Copy, Debug)]
pub struct Sim;

impl Backend for Sim {
    fn name(&self) -> &'static str {
        SIM
    }

    fn host(&self, plan: &Plan) -> Option<String> {
        Some(plan.host.words())
    }

    /// A guest that ends its VM fails the run, as it does a live one.
    fn run(&self, run: Run<'_>) -> Result<(Recording, Option<String>), String> {
        let mut recording = vcoop_sim::run(run).map_err(|e| e.to_string())?;
        let fault = recording.fault.take();
        Ok((recording, fault))
    }
}

/// The simulator of this host, whatever host the plan has: for the column beside a live one.
#[derive(Clone, Debug)]
pub struct SimOfThisHost(pub ThisHost);

impl Backend for SimOfThisHost {
    fn name(&self) -> &'static str {
        SIM
    }

    fn host(&self, plan: &Plan) -> Option<String> {
        let host = self.0.plan(plan).host.words();
        Some(format!("this host ({}), {host}", self.0.describe()))
    }

    fn environment(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("simulated_host".to_owned(), self.0.describe())])
    }

    fn run(&self, run: Run<'_>) -> Result<(Recording, Option<String>), String> {
        let plan = self.0.plan(run.plan);
        let here = Run::new(&plan, run.seed).until(run.stop);
        Sim.run(match run.observer {
            Some(observer) => here.watched(observer),
            None => here,
        })
    }
}
