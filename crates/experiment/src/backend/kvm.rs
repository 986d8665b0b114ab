//! Real vCPUs.

use std::collections::BTreeMap;

use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;

use super::{Backend, Unavailable};
use crate::result::Note;

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
        vcoop_lab::available().map_err(|missing| Unavailable {
            what: format!("backend kvm: {}", missing.what),
            remedy: missing.remedy,
        })
    }

    fn check(&self, plan: &Plan) -> Result<(), Unavailable> {
        self.available()?;
        vcoop_lab::check(plan).map_err(|error| {
            let (why, remedy) = match &error {
                vcoop_lab::Error::Missing(missing) => {
                    (missing.what.clone(), missing.remedy.clone())
                }
                // Commands add the remedies that their options are.
                other => (other.to_string(), "change what it asks for".to_owned()),
            };
            Unavailable { what: format!("backend kvm cannot run {}: {why}", plan.scenario), remedy }
        })
    }

    fn environment(&self) -> BTreeMap<String, String> {
        vcoop_lab::environment()
    }

    fn caveats(&self) -> Vec<Note> {
        let limit = vcoop_lab::cpu_limit().map(|found| Note {
            evidence: format!(
                "the lab's threads are held back by a limit of their control group ({}), which \
                 counts as waits for a CPU",
                found.evidence
            ),
            remedy: found.remedy,
        });
        limit.into_iter().collect()
    }

    fn run(&self, run: Run<'_>) -> Result<(Recording, Option<String>), String> {
        let (recording, failure) =
            vcoop_lab::run(run, &vcoop_lab::Options::default()).map_err(|e| e.to_string())?;
        Ok((recording, failure.map(|e| e.to_string())))
    }
}
