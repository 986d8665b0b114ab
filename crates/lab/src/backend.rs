//! Where a plan can run.

use std::collections::BTreeMap;
use std::fmt;

use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;

/// Something that runs a plan.
pub trait Backend: Sync + fmt::Debug {
    /// Name, as `--backend` and results have it.
    fn name(&self) -> &'static str;

    /// Whether it can run here.
    ///
    /// # Errors
    ///
    /// What is missing, and how to get it.
    fn available(&self) -> Result<(), Unavailable>;

    /// Whether this plan can run here.
    ///
    /// # Errors
    ///
    /// What the plan needs and this host, or this backend, does not have.
    fn check(&self, _plan: &Plan) -> Result<(), Unavailable> {
        self.available()
    }

    /// Facts about the host that a reader of the result needs; none for a simulated one.
    fn environment(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Runs a plan once. `stop` is asked now and then; when it answers true the run ends early and
    /// gives back what it has.
    ///
    /// # Errors
    ///
    /// Why the run failed, in one sentence without the plan's name: the caller adds it.
    fn run(&self, plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Recording, String>;

    /// [`run`](Self::run), but a run that failed half way gives what it had measured beside the
    /// reason, where the backend can.
    ///
    /// # Errors
    ///
    /// Why the run failed, with nothing measured.
    fn run_partly(
        &self,
        plan: &Plan,
        seed: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Recording, Option<String>), String> {
        self.run(plan, seed, stop).map(|recording| (recording, None))
    }
}

/// A facility that is not there: exit code 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What is missing.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  remedy: {}", self.what, self.remedy)
    }
}

impl std::error::Error for Unavailable {}

/// The simulator.
#[derive(Clone, Copy, Debug)]
pub struct Sim;

impl Backend for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn available(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn run(&self, plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Recording, String> {
        vcoop_sim::run(plan, seed, stop).map_err(|e| e.to_string())
    }
}

/// Real vCPUs on `/dev/kvm`.
#[derive(Clone, Copy, Debug)]
pub struct Kvm;

impl Backend for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn available(&self) -> Result<(), Unavailable> {
        vcoop_kvm::available().map_err(|missing| Unavailable {
            what: format!("backend kvm: {}", missing.what),
            remedy: missing.remedy,
        })
    }

    fn check(&self, plan: &Plan) -> Result<(), Unavailable> {
        self.available()?;
        vcoop_kvm::check(plan).map_err(|error| Unavailable {
            what: format!("backend kvm cannot run {}: {error}", plan.scenario),
            remedy: "use --backend sim, which simulates the host the scenario describes".to_owned(),
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

/// What `--backend` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The simulator; says how to measure on real vCPUs where that works. Live runs take their full time
    /// and load the host, so they are asked for by name.
    Auto,
    /// The simulator.
    Sim,
    /// The micro-VM lab; it must work.
    Kvm,
}

/// Backends to run on.
#[derive(Clone, Debug)]
pub struct Selection {
    /// In the order of the report.
    pub backends: Vec<&'static dyn Backend>,
    /// What `auto` left out and why: one line for stderr.
    pub note: Option<String>,
}

/// Turns a choice into backends.
///
/// # Errors
///
/// The backend that was asked for by name cannot run here.
pub fn select(choice: Choice) -> Result<Selection, Unavailable> {
    let only = |backend: &'static dyn Backend| {
        backend.available().map(|()| Selection { backends: vec![backend], note: None })
    };
    match choice {
        Choice::Sim => only(&Sim),
        Choice::Kvm => only(&Kvm),
        Choice::Auto => {
            let note = match Kvm.available() {
                Ok(()) => "simulating; --backend kvm measures on this host's real vCPUs".to_owned(),
                Err(why) => format!("simulating ({})", why.what),
            };
            Ok(Selection { backends: vec![&Sim], note: Some(note) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_simulates_and_says_why() {
        let selection = select(Choice::Auto).unwrap();
        assert_eq!(selection.backends.len(), 1);
        assert_eq!(selection.backends[0].name(), "sim");
        assert!(selection.note.unwrap().contains("kvm"));
    }

    #[test]
    fn kvm_by_name_works_or_is_refused_with_a_remedy() {
        match select(Choice::Kvm) {
            Ok(selection) => assert_eq!(selection.backends[0].name(), "kvm"),
            Err(why) => assert!(why.what.contains("kvm") && !why.remedy.is_empty()),
        }
    }
}
