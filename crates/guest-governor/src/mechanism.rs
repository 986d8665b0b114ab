//! The ways in which a guest avoids CPUs.

use crate::change::{Change, Changes, Target, UndoReport};
use crate::contents::Contents;
use crate::cpus::{self, Cpus};
use crate::error::FoldError;
use crate::files::{Roots, read};
use crate::layout::Layout;

mod cpuset;
mod hotplug;

/// How a guest avoids CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// `cpuset.cpus` of every cgroup below the root (cgroup v2).
    Cpuset,
    /// CPUs go offline.
    Hotplug,
}

impl Mechanism {
    /// Checks whether this way works here; with `write` also whether this process has the permission.
    pub(crate) fn check(
        self,
        roots: &Roots,
        layout: &Layout,
        write: bool,
    ) -> Result<(), FoldError> {
        match self {
            Self::Cpuset => cpuset::check(roots, write)?,
            Self::Hotplug => hotplug::check(roots, write)?,
        }
        // Without cpusets below the root, hotplug changes the affinity of no task that keeps a CPU.
        if self == Self::Cpuset || cpuset::is_enabled(roots) {
            isolated(layout)?;
        }
        Ok(())
    }

    /// A change to make first, once.
    pub(crate) fn prepare(self, roots: &Roots) -> Option<Change> {
        (self == Self::Cpuset && !cpuset::is_enabled(roots)).then(|| Change {
            target: Target::Controllers,
            from: read(&Target::Controllers.path(roots)).unwrap_or_default(),
            to: "+cpuset".to_owned(),
            before: "-cpuset".to_owned(),
            instead: None,
        })
    }

    /// The changes after which the guest uses `used` and avoids `avoided`.
    pub(crate) fn changes(
        self,
        roots: &Roots,
        contents: &Contents,
        used: &Cpus,
        avoided: &Cpus,
    ) -> Result<Changes, FoldError> {
        match self {
            Self::Cpuset => cpuset::changes(roots, contents, used, avoided),
            Self::Hotplug => Ok(hotplug::changes(roots, contents, avoided)),
        }
    }

    /// Waits until the kernel has carried out what follows from these changes.
    pub(crate) fn settle(self, roots: &Roots, changes: &[Change]) {
        let online = changes.iter().filter_map(|change| match change.target {
            Target::Cpu(cpu) if change.to == "1" => Some(cpu),
            _ => None,
        });
        if self == Self::Hotplug {
            hotplug::await_cpusets(roots, &online.collect());
        }
    }

    /// Which of `all` are in use if `used` was asked for and changes were refused.
    pub(crate) fn in_use(
        self,
        roots: &Roots,
        contents: &Contents,
        used: &Cpus,
        all: &Cpus,
    ) -> Result<Cpus, FoldError> {
        match self {
            Self::Cpuset => cpuset::in_use(roots, contents, used, all),
            Self::Hotplug => Ok(all - &contents.cpus),
        }
    }
}

/// Refuses isolated CPUs that are in no partition. Tasks avoid them only because they inherit the affinity of the first
/// process. A change of a task's cpuset replaces that affinity by all CPUs of the cpuset, for good.
fn isolated(layout: &Layout) -> Result<(), FoldError> {
    let isolated = layout.isolated();
    if isolated.is_empty() {
        return Ok(());
    }
    let list = cpus::show(&isolated);
    Err(FoldError::Missing {
        what: format!(
            "CPUs {list} are isolated by isolcpus=: tasks would be moved onto them when their cpuset \
             changes, and stay there"
        ),
        remedy: "isolate them by a partition (cpuset.cpus.partition of a cgroup), not by isolcpus=; \
                 or --by hotplug while no cgroup has cpusets (cpuset is not in the root's \
                 cgroup.subtree_control)",
    })
}

/// Restores all files in a journal. Files that were not restored remain in it.
pub(crate) fn undo(roots: &Roots, contents: &mut Contents) -> UndoReport {
    let mut undone = UndoReport::default();
    cpuset::undo(roots, contents, &mut undone);
    hotplug::undo(roots, contents, &mut undone);
    undone
}
