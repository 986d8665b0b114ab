//! What the host's scheduler did in a run: told to those who watch, and as the parts of samples.

pub(crate) mod attribute;
pub(crate) mod live;
