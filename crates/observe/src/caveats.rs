//! Notes about what an observation cannot see, and about what changes the meaning of its results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use vcoop_model::Note;
use vcoop_model::plan::Ns;
use vcoop_sources::trace::Tid;
use vcoop_threads::Stat;
use vcoop_vmm::Groups;

use crate::observed_vm::Vcpu;

/// A file's text, trimmed.
fn text(root: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(root.join(file)).ok()?.trim().to_owned())
}

/// Notes about settings of the host's scheduler beside its classes. `root`: parent of procfs and sysfs.
pub(crate) fn of_host(root: &Path) -> Vec<Note> {
    let mut notes = Vec::new();
    if text(root, "proc/sys/kernel/sched_autogroup_enabled").as_deref() == Some("1") {
        notes.push(Note::new(
            "sched_autogroup is on: sessions without a CPU control group get equal shares, and a \
             nice value counts within its session only",
            Some("sysctl kernel.sched_autogroup_enabled=0"),
        ));
    }
    if text(root, "sys/kernel/sched_ext/state").as_deref() == Some("enabled") {
        let ops = text(root, "sys/kernel/sched_ext/root/ops");
        let ops = ops.as_deref().unwrap_or("without a name");
        notes.push(Note::new(
            format!(
                "the sched_ext scheduler {ops} is loaded: nice values and slices do nothing unless \
                 it reads them"
            ),
            None,
        ));
    }
    notes
}

/// A note about a vCPU whose thread has ended or is stopped.
pub(crate) fn of_thread(vcpu: &Vcpu) -> Option<Note> {
    let what = match Stat::open(vcpu.tid) {
        Ok(stat) if stat.start() == Some(vcpu.start) => {
            stat.is_stopped().then_some("is stopped, by a signal or a debugger")?
        }
        _ => "has ended",
    };
    let evidence =
        format!("the thread of vCPU {} {what}; its time since then counts as halted", vcpu.index);
    Some(Note::new(evidence, None))
}

/// A note about a vCPU that was in an uninterruptible sleep for this part of the time, if that is enough for a note.
pub(crate) fn of_blocked(vcpu: u32, part: f64) -> Option<Note> {
    if part < WORTH_A_NOTE {
        return None;
    }
    let evidence = format!(
        "vCPU {vcpu} was in an uninterruptible sleep of the host for {:.2} % of the time: in a page \
         fault, for I/O or for a lock of the kernel. No scheduling policy shortens that",
        100.0 * part
    );
    let remedy = "for page faults: memory that is locked (-overcommit mem-lock=on) or prealloc=on";
    Some(Note::new(evidence, Some(remedy)))
}

/// A thousandth of the time.
const WORTH_A_NOTE: f64 = 0.001;

/// How long quotas throttled control groups, by the group's folder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttled(BTreeMap<PathBuf, Ns>);

impl Throttled {
    /// Throttled time so far, in the groups of these threads.
    pub(crate) fn of(root: &Path, tids: impl IntoIterator<Item = Tid>) -> Self {
        let of = |tid: Tid| Groups::under(root, [tid.cast_unsigned()]).throttled();
        Self(tids.into_iter().flat_map(of).collect())
    }

    /// A note about throttling since `before`.
    pub(crate) fn note(&self, before: &Self) -> Option<Note> {
        let grown = self.0.iter().filter_map(|(path, ns)| {
            let grown = ns.checked_sub(*before.0.get(path)?)?;
            (grown > 0).then_some((grown, path))
        });
        let (ns, path) = grown.max()?;
        let (ms, path) = (ns as f64 / 1e6, path.display());
        Some(Note {
            evidence: format!(
                "the CPU quota of {path} held threads back for {ms:.1} ms in all; as waits these \
                 are `preempted`"
            ),
            remedy: Some(format!("raise cpu.max, or cpu.cfs_quota_us, in {path}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vcoop_testing::Tree;

    use super::{Throttled, of_host};

    #[test]
    fn what_changes_the_meaning_of_nice_is_said() {
        let autogroup = ("proc/sys/kernel/sched_autogroup_enabled", "1\n");
        let tree = Tree::with(&[autogroup, ("sys/kernel/sched_ext/state", "enabled\n")]);
        let notes = of_host(tree.root());
        assert!(notes[0].evidence.starts_with("sched_autogroup is on"));
        assert!(notes[1].evidence.contains("without a name is loaded"));
        assert!(of_host(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn a_quota_of_a_group_above_is_found() {
        let (v2, v1) = ("sys/fs/cgroup/vms/cpu.stat", "sys/fs/cgroup/cpu/old/cpu.stat");
        let tree = Tree::with(&[
            ("proc/7/cgroup", "0::/vms/web/vcpu0\n"),
            ("proc/8/cgroup", "4:cpu,cpuacct:/old\n0::/\n"),
            (v2, "nr_throttled 3\nthrottled_usec 500\n"),
            (v1, ""),
        ]);
        let of = |tids: &[_]| Throttled::of(tree.root(), tids.iter().copied());
        let before = of(&[7]);
        assert!(before.note(&before).is_none());
        tree.write(v2, "nr_throttled 4\nthrottled_usec 2500\n");
        let note = of(&[7, 8]).note(&before).unwrap();
        assert!(note.evidence.contains("held threads back for 2.0 ms"), "{}", note.evidence);
        assert!(note.remedy.unwrap().ends_with("sys/fs/cgroup/vms"));

        let before = of(&[8]);
        tree.write(v1, "throttled_time 7000000\n");
        assert!(of(&[8]).note(&before).is_none(), "it was not counted before");
        let before = of(&[7, 8]);
        tree.write(v1, "throttled_time 8500000\n");
        assert!(of(&[7, 8]).note(&before).unwrap().evidence.contains("1.5 ms"));
    }
}
