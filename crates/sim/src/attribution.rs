//! Latency samples: where the time of each went, and how they are collected.

pub(crate) mod probe;
pub(crate) mod track;
