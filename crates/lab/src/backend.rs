//! Where a plan can run.

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

    /// Runs a plan once. `stop` is asked now and then; when it answers true the run ends early and
    /// gives back what it has.
    ///
    /// # Errors
    ///
    /// Why the run failed, in one sentence without the plan's name: the caller adds it.
    fn run(&self, plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Recording, String>;
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
        Err(Unavailable {
            what: "backend kvm is missing: this version has no micro-VM lab".to_owned(),
            remedy: "use --backend sim, which simulates the host the scenario describes".to_owned(),
        })
    }

    fn run(&self, _: &Plan, _: u64, _: &dyn Fn() -> bool) -> Result<Recording, String> {
        Err(self.available().map_or_else(|why| why.to_string(), |()| String::new()))
    }
}

/// What `--backend` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Every backend that works here.
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
        Choice::Auto => Ok(match Kvm.available() {
            Ok(()) => Selection { backends: vec![&Sim, &Kvm], note: None },
            Err(why) => {
                Selection { backends: vec![&Sim], note: Some(format!("simulating ({})", why.what)) }
            }
        }),
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
    fn kvm_by_name_is_refused_with_a_remedy() {
        let why = select(Choice::Kvm).unwrap_err();
        assert!(why.what.contains("kvm") && why.remedy.contains("--backend sim"));
    }
}
