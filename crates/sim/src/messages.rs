//! Messages of tasks: calls between tasks of any level, messages within a level.

pub(crate) mod call;
mod delivery;
pub(crate) mod mailbox;
