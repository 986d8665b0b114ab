//! The folder that shows who owns this host's vCPU threads, and what they had before.
//!
//! ```text
//! /run/vcoop/           0700, root's
//!   lock                held (flock) by the owner and its keeper; its pages are the keeper's slots
//!   threads.journal     what changed threads had before
//!   control.sock        the owner listens here
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};

use vcoop_service::FolderError;
use vcoop_threads::Restored;
use vcoop_threads::journal::{Journal, JournalError};

/// Why the folder is not available.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    /// The folder or its lock; [`FolderError::Busy`]: another process owns the vCPU threads.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Result of restoring threads that another process had left changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Threads that were restored.
    pub restored: Vec<i32>,
    /// Threads that have ended.
    pub gone: Vec<i32>,
    /// Why a thread was not restored; it remains in the journal.
    pub failed: Vec<String>,
    /// Lines of the journal that could not be read.
    pub damaged: usize,
}

/// The folder, with its lock held.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    lock: File,
}

impl RunFolder {
    /// Path of the folder: `VCOOP_RUN_DIR`, or `/run/vcoop`.
    pub fn usual() -> PathBuf {
        vcoop_service::usual()
    }

    /// Makes the folder, and takes the lock.
    ///
    /// # Errors
    ///
    /// [`RunFolderError`].
    pub fn take(dir: &Path) -> Result<Self, RunFolderError> {
        let remedy = "stop it, or let it do it: vcoop attach, vcoop detach";
        let lock = vcoop_service::lock(dir, "lock", remedy)?;
        Ok(Self { dir: dir.to_owned(), lock })
    }

    /// The lock's file.
    pub(crate) fn lock(&self) -> &File {
        &self.lock
    }

    /// Where the journal is.
    pub(crate) fn journal_path(&self) -> PathBuf {
        Journal::path_in(&self.dir)
    }

    /// Restores what a previous owner has left changed, and opens the journal.
    ///
    /// # Errors
    ///
    /// [`RunFolderError`].
    pub(crate) fn journal(&self) -> Result<(Journal, RestoreReport), RunFolderError> {
        let (left, old) = self.restore()?;
        let journal = old.map_or_else(|| Journal::create(&self.dir), Ok)?;
        Ok((journal, left))
    }

    /// Restores the threads in the journal, and removes it unless some remain in it.
    fn restore(&self) -> Result<(RestoreReport, Option<Journal>), RunFolderError> {
        let path = self.journal_path();
        let mut left = RestoreReport::default();
        if !path.exists() {
            return Ok((left, None));
        }
        let mut journal = Journal::read(&path)?;
        left.damaged = journal.contents().damaged;
        let (outcomes, written) = journal.restore_all();
        for (tid, outcome) in outcomes {
            match outcome {
                Ok(Restored::Done) => left.restored.push(tid),
                Ok(Restored::Gone) => left.gone.push(tid),
                Err(why) => left.failed.push(why.to_string()),
            }
        }
        written?;
        if journal.contents().threads.is_empty() {
            journal.remove()?;
            return Ok((left, None));
        }
        Ok((left, Some(journal)))
    }
}

/// Restores what owners that have died left changed. A second call does nothing.
///
/// # Errors
///
/// [`RunFolderError`]; [`FolderError::Busy`] if an owner is at work.
pub fn restore(dir: &Path) -> Result<RestoreReport, RunFolderError> {
    if !dir.exists() {
        return Ok(RestoreReport::default());
    }
    RunFolder::take(dir)?.restore().map(|(left, _)| left)
}

#[cfg(test)]
mod tests {
    use super::{FolderError, RestoreReport, RunFolder, RunFolderError, restore};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use vcoop_testing::{Tree, WaitingThread};
    use vcoop_threads::Captured;

    #[test]
    fn one_owner_at_a_time_and_the_second_is_told_who() {
        let tree = Tree::default();
        let dir = tree.path("run");
        let first = RunFolder::take(&dir).unwrap();
        let second = RunFolder::take(&dir);
        let why = second.unwrap_err();
        let me = std::process::id().to_string();
        assert!(
            matches!(&why, RunFolderError::Folder(FolderError::Busy(pid, _)) if *pid == me),
            "{why}"
        );
        assert!(matches!(restore(&dir), Err(RunFolderError::Folder(FolderError::Busy(..)))));
        drop(first);
        assert!(RunFolder::take(&dir).is_ok());
    }

    #[test]
    fn a_folder_that_others_can_write_in_is_refused() {
        let tree = Tree::default();
        let dir = tree.path("run");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            RunFolder::take(&dir),
            Err(RunFolderError::Folder(FolderError::Untrusted(_)))
        ));
    }

    #[test]
    fn without_room_for_another_journal_the_old_one_is_removed() {
        let tree = Tree::default();
        let dir = tree.path("run");
        let (vcpu, place) = (WaitingThread::start(), RunFolder::take(&dir).unwrap());
        let (mut journal, _) = place.journal().unwrap();
        journal.record([&Captured::of(vcpu.tid).unwrap()]).unwrap();
        drop((journal, place));
        // As on a full file system: no file can be made in its place.
        fs::create_dir(dir.join("threads.journal.new")).unwrap();
        assert_eq!(restore(&dir).unwrap().restored, [vcpu.tid]);
        assert_eq!(restore(&dir).unwrap(), RestoreReport::default());
        vcpu.end();
    }

    #[test]
    fn where_nothing_is_left_nothing_is_restored() {
        let tree = Tree::default();
        let dir = tree.path("run");
        assert_eq!(restore(&dir).unwrap(), RestoreReport::default());
        assert!(!dir.exists());
        drop(RunFolder::take(&dir).unwrap());
        assert_eq!(restore(&dir).unwrap(), RestoreReport::default());
    }
}
