//! Old contents of a guest's files, in a file for a later process.
//!
//! The file is JSON, and is replaced as a whole before each change. It is not synced to disk: it has to survive its
//! writer, not the kernel, with which everything in it ends as well.
//!
//! ```text
//! {"schema":"vcoop.guest-journal/1","boot":"2ca0…c1","controllers":true,
//!  "cgroups":{"system.slice":{"inode":42,"before":"","mine":["0-1"]}},"cpus":[]}
//! ```
//!
//! For a cgroup it has the content of `cpuset.cpus` before, and all contents that may be ours: the last one written,
//! and the one about to be written. Any other content is from outside.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::change::{Change, ChangedTo, Target, UndoReport};
use crate::contents::Contents;
use crate::error::{FoldError, ROOT};
use crate::files::{Roots, replace};
use crate::mechanism::undo;

/// Name of the file, and of its lock.
const NAME: &str = "guest.journal";
const LOCK: &str = "guest.lock";
/// Remedy if another process folds.
const REMEDY: &str = "stop it first (systemctl stop vcoop-guest, or Ctrl-C)";
/// Most bytes that are read.
const MOST_BYTES: u64 = 16 << 20;

/// The journal of a process that folds. The locks of its folder and of the guest are held as long as it lives.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    pub(crate) contents: Contents,
    _locks: [File; 2],
}

impl Journal {
    /// Takes the lock in a folder and that of the guest, and undoes what an earlier process has left
    /// changed.
    ///
    /// # Errors
    ///
    /// [`FoldError::Folder`], [`FoldError::Busy`], [`FoldError::Journal`], [`FoldError::Io`].
    pub fn open(dir: &Path, roots: &Roots) -> Result<(Self, UndoReport), FoldError> {
        let lock = vcoop_service::lock(dir, LOCK, REMEDY)?;
        let locks = [lock, lock_guest(roots)?];
        let path = dir.join(NAME);
        let contents = read(&path, roots.boot())?;
        let mut journal = Self { path, contents, _locks: locks };
        let undone = journal.undo(roots)?;
        Ok((journal, undone))
    }

    /// Makes changes: writes down the old contents of all, then makes one after the other. Returns a refusal for each
    /// that was not made.
    ///
    /// # Errors
    ///
    /// [`FoldError::Io`]: the journal cannot be written. Nothing was changed.
    pub(crate) fn make<E>(
        &mut self,
        changes: &[Change],
        make: impl Fn(&Change) -> Result<ChangedTo, E>,
    ) -> Result<Vec<(Target, E)>, FoldError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let contents = self.contents.clone();
        changes.iter().for_each(|change| self.contents.expect(change));
        if let Err(e) = self.write() {
            self.contents = contents;
            return Err(e);
        }
        let mut refused = Vec::new();
        for change in changes {
            let made = make(change);
            self.contents.settle(change, made.as_ref().ok().copied());
            refused.extend(made.err().map(|e| (change.target.clone(), e)));
        }
        // Further entries in the file do no harm: each is examined before it is undone.
        let _ = self.write();
        Ok(refused)
    }

    /// Drops files that were changed from outside or no longer exist.
    pub(crate) fn forget<'t>(&mut self, targets: impl IntoIterator<Item = &'t Target>) {
        let before = self.contents.clone();
        targets.into_iter().for_each(|target| self.contents.forget(target));
        if self.contents != before {
            // Further entries in the file do no harm.
            let _ = self.write();
        }
    }

    /// Undoes everything. What fails remains in the file; without failures the file is removed.
    ///
    /// # Errors
    ///
    /// [`FoldError::Io`]: the file was not updated. All files were tried all the same.
    pub(crate) fn undo(&mut self, roots: &Roots) -> Result<UndoReport, FoldError> {
        let undone = undo(roots, &mut self.contents);
        self.write()?;
        Ok(undone)
    }

    fn write(&self) -> Result<(), FoldError> {
        let written = if self.contents.is_empty() {
            match fs::remove_file(&self.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            }
        } else {
            let text = serde_json::to_string(&self.contents).map_err(io::Error::other);
            text.and_then(|text| replace(&self.path, &(text + "\n")))
        };
        written.map_err(FoldError::io(&self.path))
    }
}

/// Takes the lock of this guest, so that only one process changes its CPUs, wherever its journal is.
///
/// It is a kernel file that only root may open: any process that may read a file can hold a shared lock on it, and so
/// prevent an exclusive lock.
fn lock_guest(roots: &Roots) -> Result<File, FoldError> {
    let path = roots.lock();
    let lock = OpenOptions::new().write(true).open(&path).map_err(|e| FoldError::Missing {
        what: format!("{}: {e}", path.display()),
        remedy: ROOT,
    })?;
    match vcoop_service::lock_soon(&lock) {
        Ok(true) => Ok(lock),
        Ok(false) => Err(FoldError::Busy { path, remedy: REMEDY }),
        Err(e) => Err(FoldError::io(path)(e)),
    }
}

/// Undoes the changes of processes that have ended. A second call does nothing.
///
/// # Errors
///
/// Those of [`Journal::open`].
pub fn restore(dir: &Path, roots: &Roots) -> Result<UndoReport, FoldError> {
    if !dir.exists() {
        return Ok(UndoReport::default());
    }
    Journal::open(dir, roots).map(|(_, undone)| undone)
}

/// Reads a journal. A journal of an earlier boot counts as empty: its changes ended then.
fn read(path: &Path, boot: String) -> Result<Contents, FoldError> {
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let file = match open {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Contents::new(boot)),
        open => open.map_err(FoldError::io(path))?,
    };
    let fault = |why: String| FoldError::Journal { path: path.to_owned(), why };
    let meta = file.metadata().map_err(FoldError::io(path))?;
    if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        return Err(fault("it belongs to somebody else, or others can write it".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(FoldError::io(path))?;
    let contents: Contents = serde_json::from_slice(&bytes).map_err(|e| fault(e.to_string()))?;
    if let Some(why) = contents.fault() {
        return Err(fault(why));
    }
    Ok(if contents.boot == boot { contents } else { Contents::new(boot) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use vcoop_testing::Tree;

    use super::Journal;
    use crate::change::{Change, ChangedTo, Target};
    use crate::files::Roots;

    fn journal(tree: &Tree) -> Journal {
        tree.put("sys/bus/cpu/uevent", "");
        Journal::open(&tree.path("run"), &Roots::in_tree(tree.root())).unwrap().0
    }

    /// A list that is to be empty again.
    fn emptied() -> Change {
        Change {
            target: Target::Cgroup { name: "user.slice".to_owned(), inode: 7 },
            from: "0-1".to_owned(),
            to: String::new(),
            before: String::new(),
            instead: Some("0-3".to_owned()),
        }
    }

    /// As on Linux 6.1, where a cgroup has tasks.
    #[test]
    fn what_does_the_same_as_an_empty_list_is_ours_until_the_list_is_empty() {
        let tree = Tree::default();
        let mut journal = journal(&tree);
        journal.make(&[emptied()], |_| Ok::<_, io::Error>(ChangedTo::Instead)).unwrap();
        let (_, ours) = journal.contents.targets().pop().unwrap();
        assert_eq!(["0-3", "", "0-1"].map(|now| ours.is_mine(now)), [true, false, false]);
        // A refusal leaves it at that.
        journal.make(&[emptied()], |_| Err(io::ErrorKind::PermissionDenied)).unwrap();
        assert_eq!(journal.contents.targets().pop().unwrap().1, ours);
        journal.make(&[emptied()], |_| Ok::<_, io::Error>(ChangedTo::So)).unwrap();
        assert!(journal.contents.is_empty());
    }

    #[test]
    fn nothing_is_changed_that_cannot_be_written_down() {
        let tree = Tree::default();
        let mut journal = journal(&tree);
        fs::create_dir(tree.path("run/guest.journal.new")).unwrap();
        let made = journal.make::<io::Error>(&[emptied()], |_| unreachable!());
        assert!(made.is_err() && journal.contents.is_empty());
    }
}
