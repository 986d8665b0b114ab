//! A recorder of the host's scheduler, through tracefs: its foreign bytes and texts.

pub mod format;
pub mod page;
