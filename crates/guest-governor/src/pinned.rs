//! Threads with an affinity of their own, which old kernels forget.

use std::fs;
use std::path::Path;

use crate::cpus::{self, Cpus};
use crate::files::{Roots, effective, read};
use crate::layout::Layout;
use crate::mechanism::Mechanism;

/// Most threads that are looked at.
const MOST_THREADS: usize = 100_000;
/// First version of Linux that keeps affinities.
const KEPT_SINCE: (u32, u32) = (6, 2);

/// A thread with an affinity of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// The CPUs that it may use.
    pub cpus: Cpus,
}

/// The kernel's version, if it forgets affinities. Before 6.2 a change of a cpuset overwrites the affinities of its
/// tasks. A CPU that goes offline does so, too, but without cpusets only for tasks that have no CPU left.
pub(crate) fn forgets(roots: &Roots) -> Option<(u32, u32)> {
    roots.kernel().filter(|kernel| *kernel < KEPT_SINCE)
}

/// Threads whose affinity this kernel would forget: those that may use only a part of their cgroup's CPUs. Without
/// kernel threads.
pub fn pinned(roots: &Roots, by: Mechanism, layout: &Layout) -> Vec<Pinned> {
    if forgets(roots).is_none() {
        return Vec::new();
    }
    let numbers = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
    };
    let processes = numbers(&roots.proc).map(|pid| roots.proc.join(format!("{pid}/task")));
    let threads = processes.flat_map(|tasks| {
        numbers(&tasks).map(move |tid| (tid, tasks.join(tid.to_string()))).collect::<Vec<_>>()
    });
    let mut pinned: Vec<Pinned> = threads
        .take(MOST_THREADS)
        .filter_map(|(tid, task)| look(roots, by, layout, tid, &task))
        .collect();
    pinned.sort_by_key(|thread| thread.tid);
    pinned
}

fn look(roots: &Roots, by: Mechanism, layout: &Layout, tid: u32, task: &Path) -> Option<Pinned> {
    let status = read(&task.join("status")).ok()?;
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    // kthreadd is 2, and the parent of all others.
    if tid == 2 || field("PPid:") == Some("2") {
        return None;
    }
    let cgroup = read(&task.join("cgroup")).unwrap_or_default();
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    if by == Mechanism::Cpuset && cgroup.is_empty() {
        return None;
    }
    let mut folder = roots.cgroup.join(cgroup);
    // Threads that have chosen nothing lack the isolated CPUs, too.
    let mut may = layout.all();
    // The nearest one with a cpuset; the root's is what all share.
    while folder != roots.cgroup && folder.starts_with(&roots.cgroup) {
        if let Some(effective) = effective(&folder) {
            may = effective;
            break;
        }
        folder.pop();
    }
    let cpus = cpus::parse(field("Cpus_allowed_list:")?)?;
    let own = !may.is_subset(&cpus);
    let name = field("Name:").unwrap_or_default().escape_debug().to_string();
    own.then_some(Pinned { tid, name, cpus })
}
