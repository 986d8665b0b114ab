//! The nouns of vcoop: scenario, plan, profile, recording. No behaviour but validation.

pub mod plan;
pub mod profile;
pub mod recording;
