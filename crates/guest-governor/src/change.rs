//! Changes of a guest's files, and how they are undone.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::fs::CWD;

use crate::cpus;
use crate::files::{Roots, hold, read, write};

/// A file that is changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// `cgroup.subtree_control` of the root cgroup.
    Controllers,
    /// `cpuset.cpus` of a cgroup below the root.
    Cgroup {
        /// Its name.
        name: String,
        /// Inode of its folder: another cgroup of the same name has another inode.
        inode: u64,
    },
    /// `online` of a CPU.
    Cpu(u32),
}

/// A change of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub target: Target,
    /// Its content now.
    pub from: String,
    /// What is written.
    pub to: String,
    /// Its content before our first change; it is restored when `to` is that.
    pub(crate) before: String,
    /// Content with the same effect, for a kernel that refuses an empty list: Linux 6.1 and 6.12 do, for a cgroup with
    /// tasks in it.
    pub(crate) instead: Option<String>,
}

/// How a change was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangedTo {
    /// With `to`.
    So,
    /// With `instead`.
    Instead,
}

/// Changes to make, and files that are left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// In the order in which to make them.
    pub changes: Vec<Change>,
    /// Files that are left alone, and why.
    pub left: Vec<(Target, String)>,
    /// Files of ours that were changed from outside since, and their content.
    pub foreign: Vec<(Target, String)>,
    /// Files of ours that no longer exist.
    pub gone: Vec<Target>,
}

/// Result of undoing changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoReport {
    /// Files that have their old content again.
    pub restored: Vec<String>,
    /// Files that have a content with the same effect as the old one, and why.
    pub nearly: Vec<String>,
    /// Files that were changed from outside meanwhile: they stay as they are.
    pub foreign: Vec<String>,
    /// Files that no longer exist.
    pub gone: Vec<String>,
    /// Why a file was not restored; it remains in the journal.
    pub failed: Vec<String>,
}

impl Target {
    pub(crate) fn path(&self, roots: &Roots) -> PathBuf {
        match self {
            Self::Controllers => roots.cgroup.join("cgroup.subtree_control"),
            Self::Cgroup { name, .. } => roots.cgroup.join(name).join("cpuset.cpus"),
            Self::Cpu(cpu) => roots.online(*cpu),
        }
    }

    /// Writes the file. A cgroup that has replaced this one is left alone: the next look would take what was written
    /// for the cgroup's own CPUs.
    pub(crate) fn write(&self, roots: &Roots, text: &str) -> io::Result<()> {
        match self {
            Self::Cgroup { name, inode } => {
                write(hold(&roots.cgroup.join(name), *inode)?, "cpuset.cpus", text)
            }
            Self::Controllers | Self::Cpu(_) => write(CWD, self.path(roots), text),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controllers => write!(f, "cgroup.subtree_control"),
            Self::Cgroup { name, .. } => write!(f, "{}/cpuset.cpus", name.escape_debug()),
            Self::Cpu(cpu) => write!(f, "cpu{cpu}/online"),
        }
    }
}

impl Change {
    pub(crate) fn make(&self, roots: &Roots) -> io::Result<ChangedTo> {
        match (self.target.write(roots, &self.to), &self.instead) {
            (Err(e), Some(instead)) if e.raw_os_error() == Some(libc::ENOSPC) => {
                self.target.write(roots, instead).map(|()| ChangedTo::Instead)
            }
            (written, _) => written.map(|()| ChangedTo::So),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| if text.is_empty() { "empty".to_owned() } else { text.to_owned() };
        match &self.target {
            // A request, not what is in it then.
            Target::Controllers => write!(f, "{}: {}", self.target, self.to),
            target => write!(f, "{target}: {} -> {}", shown(&self.from), shown(&self.to)),
        }
    }
}

/// Whether two lists name the same CPUs; text that is no list is compared as text.
pub(crate) fn same(a: &str, b: &str) -> bool {
    match (cpus::parse(a), cpus::parse(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Restores a file if its content is ours. False: it can be tried again.
pub(crate) fn give_back(
    roots: &Roots,
    target: &Target,
    is_ours: impl Fn(&str) -> bool,
    before: &str,
    instead: Option<String>,
    undone: &mut UndoReport,
) -> bool {
    let now = read(&target.path(roots)).and_then(|from| {
        if same(&from, before) || !is_ours(&from) {
            return Ok((from, None));
        }
        let (target, to) = (target.clone(), before.to_owned());
        let change = Change { target, from: from.clone(), before: to.clone(), to, instead };
        Ok((from, Some((change.make(roots)?, change))))
    });
    match now {
        Ok((_, Some((ChangedTo::So, _)))) => undone.restored.push(target.to_string()),
        Ok((_, Some((ChangedTo::Instead, change)))) => {
            let cpus = change.instead.unwrap_or_default();
            undone.nearly.push(format!(
                "{target} has {cpus}, which is all CPUs but those of partitions, where it was empty: \
                 this kernel does not empty it while tasks are in it"
            ));
        }
        Ok((now, None)) if same(&now, before) => {}
        Ok((now, None)) => {
            undone.foreign.push(format!("{target} has {now:?}, which is not ours"));
        }
        Err(e) if is_gone(&e) => undone.gone.push(target.to_string()),
        Err(e) => {
            undone.failed.push(format!("{target}: {e}"));
            return false;
        }
    }
    true
}

/// Whether a file's cgroup no longer exists: no such file, or no such device if it was open.
pub(crate) fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use vcoop_testing::Tree;

    use super::{Change, ChangedTo, Target, is_gone};
    use crate::files::Roots;

    #[test]
    fn a_cgroup_that_has_come_since_the_look_is_not_written_to() {
        let tree = Tree::default();
        tree.put("sys/fs/cgroup/user.slice/cpuset.cpus", "");
        let there = fs::metadata(tree.path("sys/fs/cgroup/user.slice")).unwrap().ino();
        let make = |inode| {
            let target = Target::Cgroup { name: "user.slice".to_owned(), inode };
            let [from, before] = [String::new(), String::new()];
            let change = Change { target, from, to: "0-1".to_owned(), before, instead: None };
            change.make(&Roots::in_tree(tree.root()))
        };
        assert!(is_gone(&make(there + 1).unwrap_err()));
        assert_eq!(tree.get("sys/fs/cgroup/user.slice/cpuset.cpus").trim(), "");
        assert_eq!(make(there).unwrap(), ChangedTo::So);
        assert_eq!(tree.get("sys/fs/cgroup/user.slice/cpuset.cpus"), "0-1\n");
    }
}
