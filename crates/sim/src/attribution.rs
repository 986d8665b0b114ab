//! Latency samples: collection, and attribution of their time.

pub(crate) mod probe;
pub(crate) mod track;
