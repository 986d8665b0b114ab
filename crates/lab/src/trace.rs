//! The host's scheduler in a run: events for observers, and the parts of samples.

pub(crate) mod attribute;
pub(crate) mod live;
