//! Checks what works on this host: one finding for each facility that the lab, calibration or recording uses, or that
//! affects the meaning of their numbers.
//!
//! The checks change nothing: they close, unlock or remove whatever they open, lock or create (an instance of tracefs).

mod files;
mod kvm;
mod limits;

use std::path::Path;

use serde::Serialize;

use crate::facts::{HostFacts, Root};

/// How far something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It works.
    Ok,
    /// It works, but numbers mean less than elsewhere, or a part is missing.
    Limited,
    /// It does not work.
    Missing,
}

/// One facility.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name.
    pub facility: String,
    /// How far it works.
    pub state: State,
    /// What was seen.
    pub evidence: String,
    /// How to get it, or what to do without; `None` where there is nothing to do.
    pub remedy: Option<String>,
}

impl Finding {
    pub(crate) fn ok(facility: &str, evidence: impl Into<String>) -> Self {
        let (facility, evidence) = (facility.to_owned(), evidence.into());
        Self { facility, state: State::Ok, evidence, remedy: None }
    }

    pub(crate) fn limited(facility: &str, evidence: impl Into<String>, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned());
        Self { state: State::Limited, remedy, ..Self::ok(facility, evidence) }
    }

    pub(crate) fn missing(facility: &str, evidence: impl Into<String>, remedy: &str) -> Self {
        let remedy = Some(remedy.to_owned());
        Self { state: State::Missing, remedy, ..Self::ok(facility, evidence) }
    }
}

/// What limits the CPU time of this process's control group, if anything does.
pub fn cpu_limit() -> Option<Finding> {
    let found = files::cgroup(&Root::new(Path::new("/")));
    Some(found).filter(|found| found.state == State::Limited)
}

/// All findings about this host, the most important first. `facts`: those of this host.
pub fn survey(facts: &HostFacts) -> Vec<Finding> {
    let root = Root::new(Path::new("/"));
    let mut found = kvm::findings(&root);
    found.extend(limits::findings(&root, facts));
    found.extend(files::findings(&root, facts));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_does_not_work_has_a_remedy() {
        let found = survey(&crate::host_facts());
        for f in &found {
            assert!(!f.facility.is_empty() && !f.evidence.is_empty(), "{f:?}");
            assert_eq!(f.remedy.is_none(), f.state == State::Ok, "{f:?}");
            assert_eq!(found.iter().filter(|g| g.facility == f.facility).count(), 1, "{f:?}");
        }
    }
}
