//! A VM that runs on this host, as a scenario: so its policies have the same keys and checks as those of an experiment.
//!
//! The scenario has the VM, its vCPUs and the policies, but no tasks: the guest has its own.

use std::fmt::Write as _;

/// Longest name that a scenario accepts.
const MOST_NAME: usize = 48;

/// A VM on this host, as far as a scenario says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningVm {
    /// Its name, as its VMM has it.
    pub name: String,
    /// Number of its vCPUs, at least 1.
    pub vcpus: usize,
    /// CPUs of this host.
    pub pcpus: usize,
}

/// A VM's name with only the characters that a scenario and a probe accept: letters, digits, `-` and `_`.
pub fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    let name: String = name.chars().take(MOST_NAME).map(plain).collect();
    // `host` is the host's own, in the names of probes.
    if name.is_empty() || name == "host" { format!("vm-{name}") } else { name }
}

impl RunningVm {
    /// The scenario that compares `policies` on the VM.
    pub fn scenario(&self, policies: &[String]) -> String {
        let name = plain_name(&self.name);
        let list: Vec<String> = policies.iter().map(|policy| format!("{policy:?}")).collect();
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "name = \"{name}\"\ntitle = \"{name}, as it runs on this host\"\nduration = \"5s\"\n\
             warmup = \"0s\"\nrepeats = 1\n\n[compare]\npolicy = [{}]\n\n\
             [host]\nprofile = \"xeon-server\"\npcpus = {}\n\n[[vm]]\nname = \"{name}\"\nvcpus = {}\n",
            list.join(", "),
            self.pcpus,
            self.vcpus,
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::RunningVm;
    use crate::capture::NoCaptures;
    use crate::scenario::{Scenario, Set};

    #[test]
    fn any_name_makes_a_scenario_and_sets_apply() {
        for name in ["web", "host", "", "a.b/c \"\n", "ü", &"x".repeat(300)] {
            let vm = RunningVm { name: name.to_owned(), vcpus: 2, pcpus: 4 };
            let policies = ["vanilla".to_owned(), "wake-boost".to_owned()];
            let set = Set::parse("policy.wake-boost.run=1ms").unwrap();
            let text = vm.scenario(&policies);
            let scenario = Scenario::parse("--", &text, &[set], &NoCaptures).unwrap();
            let plans = scenario.plans(None).unwrap();
            assert_eq!(plans.len(), 2, "{text}");
            assert_eq!((plans[1].policy_name.as_str(), plans[1].vms.len()), ("wake-boost", 1));
        }
    }
}
