//! What is said beside numbers, or instead of them, with a remedy.

use serde::{Deserialize, Serialize};

/// A note beside the measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The observation.
    pub evidence: String,
    /// The remedy, if there is one.
    pub remedy: Option<String>,
}

impl Note {
    /// A note of these words.
    pub fn new(evidence: impl Into<String>, remedy: Option<&str>) -> Self {
        Self { evidence: evidence.into(), remedy: remedy.map(str::to_owned) }
    }
}

/// A facility that is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}\n  remedy: {remedy}")]
pub struct Missing {
    /// What is missing.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}
