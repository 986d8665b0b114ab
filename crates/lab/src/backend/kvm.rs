//! Real vCPUs.

use std::collections::BTreeMap;

use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;

use super::{Backend, Unavailable};

/// Real vCPUs on `/dev/kvm`.
#[derive(Clone, Copy, Debug)]
pub struct Kvm;

impl Backend for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn is_live(&self) -> bool {
        true
    }

    fn available(&self) -> Result<(), Unavailable> {
        vcoop_kvm::available().map_err(|missing| Unavailable {
            what: format!("backend kvm: {}", missing.what),
            remedy: missing.remedy,
        })
    }

    fn check(&self, plan: &Plan) -> Result<(), Unavailable> {
        self.available()?;
        vcoop_kvm::check(plan).map_err(|error| {
            let (why, remedy) = match &error {
                vcoop_kvm::Error::Missing(missing) => {
                    (missing.what.clone(), missing.remedy.clone())
                }
                other => (
                    other.to_string(),
                    "use --backend sim, which simulates the host the scenario describes".to_owned(),
                ),
            };
            Unavailable { what: format!("backend kvm cannot run {}: {why}", plan.scenario), remedy }
        })
    }

    fn environment(&self) -> BTreeMap<String, String> {
        vcoop_kvm::environment()
    }

    fn run(&self, plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Recording, String> {
        vcoop_kvm::run(plan, seed, stop).map_err(|e| e.to_string())
    }

    fn run_partly(
        &self,
        plan: &Plan,
        seed: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Recording, Option<String>), String> {
        let (recording, failure) =
            vcoop_kvm::run_partly(plan, seed, stop, &vcoop_kvm::Options::default())
                .map_err(|e| e.to_string())?;
        Ok((recording, failure.map(|e| e.to_string())))
    }
}
