//! Why a guest cannot fold.

use std::io;
use std::path::PathBuf;

use vcoop_service::FolderError;

/// Remedy for a kernel file that may not be written.
pub(crate) const ROOT: &str = "run it as root in the guest, outside of containers";

/// Why a guest cannot fold.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// This system lacks something.
    #[error("{what}\n  remedy: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to get it, or what to use instead.
        remedy: &'static str,
    },
    /// A file could not be read or written.
    #[error("{}: {why}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// A setting is not known, or has an impossible value.
    #[error("{0}")]
    Setting(String),
    /// The folder of the journal is not available; [`FolderError::Busy`]: another process folds.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another process folds this guest, with a journal in another folder.
    #[error("vcoop guest already runs: it has the lock of {}\n  remedy: {remedy}", .path.display())]
    Busy {
        /// What is locked.
        path: PathBuf,
        /// What to do.
        remedy: &'static str,
    },
    /// The journal is not one of ours: it is not used.
    #[error("{}: {why}\n  remedy: {}", .path.display(), "see what it says, and remove it")]
    Journal {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl FoldError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |why| Self::Io { path, why }
    }
}
