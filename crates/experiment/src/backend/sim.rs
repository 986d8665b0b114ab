//! The simulator: of the host that a plan describes, or of this one.

use std::collections::BTreeMap;

use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::trace_event::Observer;

use super::{Backend, Unavailable};
use crate::this_host::ThisHost;

/// The simulator of the host that the plan describes.
#[derive(Clone, Copy, Debug)]
pub struct Sim;

impl Backend for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn host(&self, plan: &Plan) -> Option<String> {
        Some(plan.host.words())
    }

    fn available(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn run_partly(
        &self,
        plan: &Plan,
        seed: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Recording, Option<String>), String> {
        vcoop_sim::run(plan, seed, stop).map(with_fault).map_err(|e| e.to_string())
    }

    fn observe(
        &self,
        plan: &Plan,
        seed: u64,
        stop: &dyn Fn() -> bool,
        observer: &mut dyn Observer,
    ) -> Result<(Recording, Option<String>), String> {
        vcoop_sim::observe(plan, seed, stop, observer).map(with_fault).map_err(|e| e.to_string())
    }
}

/// A guest that ends its VM fails the run, as it does a live one.
fn with_fault(mut recording: Recording) -> (Recording, Option<String>) {
    let fault = recording.fault.take();
    (recording, fault)
}

/// The simulator of this host, whatever host the plan describes: what stands beside a live column.
#[derive(Clone, Debug)]
pub struct SimHere(pub ThisHost);

impl Backend for SimHere {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn host(&self, plan: &Plan) -> Option<String> {
        let host = self.0.plan(plan).host.words();
        Some(format!("this host ({}), {host}", self.0.describe()))
    }

    fn available(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn environment(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("simulated_host".to_owned(), self.0.describe())])
    }

    fn run_partly(
        &self,
        plan: &Plan,
        seed: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Recording, Option<String>), String> {
        Sim.run_partly(&self.0.plan(plan), seed, stop)
    }

    fn observe(
        &self,
        plan: &Plan,
        seed: u64,
        stop: &dyn Fn() -> bool,
        observer: &mut dyn Observer,
    ) -> Result<(Recording, Option<String>), String> {
        Sim.observe(&self.0.plan(plan), seed, stop, observer)
    }
}
