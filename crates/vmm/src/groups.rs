//! Control groups of VMs: their quotas of CPU time, and their weights.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::text;

/// The control groups of the CPU controller that all vCPUs of a VM are in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    root: PathBuf,
    /// The innermost, from the root of its mount. `None`: no group has all of them, or it is not known.
    inner: Option<PathBuf>,
}

impl Groups {
    /// Those of these threads, as of now.
    pub fn of(tids: impl IntoIterator<Item = u32>) -> Self {
        Self::under(Path::new("/"), tids)
    }

    fn under(root: &Path, tids: impl IntoIterator<Item = u32>) -> Self {
        let groups: Option<Vec<_>> = tids.into_iter().map(|tid| group(root, tid)).collect();
        let inner = groups.and_then(|groups| Some(shared(&groups)?.to_owned()));
        Self { root: root.to_owned(), inner }
    }

    /// CPU time in nanoseconds that the vCPUs may have together in each second, by the quotas (`cpu.max`, or
    /// `cpu.cfs_quota_us` of version 1) of these groups. `None`: as much as there is.
    ///
    /// A quota of a group for a single vCPU, as libvirt's `<quota>` makes them, is not one of the VM: other vCPUs have
    /// nothing of it.
    pub fn quota(&self) -> Option<u64> {
        let groups = self.inner.iter().flat_map(|inner| inner.ancestors());
        groups.flat_map(|group| self.folders(group)).filter_map(|folder| limit(&folder)).min()
    }

    /// The weights (`cpu.weight`, or `cpu.shares` of version 1) by which the host divides its CPUs between these VMs, one
    /// for each: those of the groups directly below the innermost one that has all of the VMs. `None`: a VM has no such
    /// group or shares it with another, so that threads compete, or groups of several VMs.
    pub fn weights<'a>(vms: impl IntoIterator<Item = &'a Self>) -> Option<Vec<u64>> {
        let vms: Vec<(&Self, &PathBuf)> =
            vms.into_iter().map(|vm| Some((vm, vm.inner.as_ref()?))).collect::<Option<_>>()?;
        let inner: Vec<&PathBuf> = vms.iter().map(|(_, inner)| *inner).collect();
        let above = shared(&inner)?;
        let own = |inner: &Path| Some(above.join(inner.strip_prefix(above).ok()?.iter().next()?));
        let own: Vec<PathBuf> = inner.iter().map(|inner| own(inner)).collect::<Option<_>>()?;
        let distinct = own.iter().collect::<BTreeSet<_>>().len() == own.len();
        let weight = |((vm, _), group): (&(&Self, _), &PathBuf)| {
            vm.folders(group).find_map(|folder| weight(&folder))
        };
        distinct.then(|| vms.iter().zip(&own).map(weight).collect())?
    }

    /// Where a group may be.
    fn folders(&self, group: &Path) -> impl Iterator<Item = PathBuf> {
        MOUNTS.map(|mount| self.root.join(mount).join(group)).into_iter()
    }
}

/// The innermost group that has all of these.
fn shared(groups: &[impl AsRef<Path>]) -> Option<&Path> {
    let mut above = groups.first()?.as_ref().ancestors();
    above.find(|above| groups.iter().all(|group| group.as_ref().starts_with(above)))
}

/// Where the CPU controller may be mounted: that of version 1, alone or with the accounting, or version 2.
const MOUNTS: [&str; 3] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup"];

/// The control group whose CPU controller a thread is in, from the root of its mount.
fn group(root: &Path, tid: u32) -> Option<PathBuf> {
    let groups = fs::read(root.join(format!("proc/{tid}/cgroup"))).ok()?;
    let path = Path::new(OsStr::from_bytes(text::cgroup(&groups)?));
    path.strip_prefix("/").ok().map(Path::to_owned)
}

fn read(group: &Path, file: &str) -> Option<String> {
    fs::read_to_string(group.join(file)).ok()
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The weight of one group among its siblings; a group of `cpu.idle` says 0, and has next to nothing.
fn weight(group: &Path) -> Option<u64> {
    let weight = read(group, "cpu.weight").or_else(|| read(group, "cpu.shares"))?;
    Some(number(&weight)?.max(1))
}

/// The quota of one group, in nanoseconds for each second.
fn limit(group: &Path) -> Option<u64> {
    let read = |file| read(group, file);
    let (quota, period) = match read("cpu.max") {
        Some(both) => {
            let (quota, period) = both.trim().split_once(' ')?;
            (number(quota)?, number(period)?)
        }
        None => (number(&read("cpu.cfs_quota_us")?)?, number(&read("cpu.cfs_period_us")?)?),
    };
    quota.checked_mul(1_000_000_000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::Groups;

    const SCOPE: &str = r"machine.slice/machine-qemu\x2d1.scope";

    fn of(tree: &Tree) -> Option<u64> {
        Groups::under(tree.root(), [7, 8]).quota()
    }

    #[test]
    fn the_least_of_those_of_all_vcpus_counts() {
        let tree = Tree::default();
        for (tid, vcpu) in [(7, 0), (8, 1)] {
            tree.put(&format!("proc/{tid}/cgroup"), &format!("0::/{SCOPE}/libvirt/vcpu{vcpu}"));
            tree.put(&format!("sys/fs/cgroup/{SCOPE}/libvirt/vcpu{vcpu}/cpu.max"), "5000 100000");
        }
        assert_eq!(of(&tree), None, "each vCPU has one of its own");
        tree.put(&format!("sys/fs/cgroup/{SCOPE}/cpu.max"), "max 100000");
        assert_eq!(of(&tree), None);
        tree.put("sys/fs/cgroup/machine.slice/cpu.max", "300000 100000");
        assert_eq!(of(&tree), Some(3_000_000_000));
        tree.put(&format!("sys/fs/cgroup/{SCOPE}/cpu.max"), "75000 50000");
        assert_eq!(of(&tree), Some(1_500_000_000));
        tree.put("proc/8/cgroup", "0::/other");
        assert_eq!(of(&tree), None, "nothing is shared");
        assert_eq!(Groups::under(tree.root(), [7, 9]), Groups::under(tree.root(), []), "gone");
        assert_eq!(Groups::under(tree.root(), []).quota(), None);
    }

    #[test]
    fn version_1_has_files_of_its_own() {
        let tree = Tree::default();
        for tid in [7, 8] {
            tree.put(&format!("proc/{tid}/cgroup"), "9:memory:/a\n4:cpu,cpuacct:/vms/web\n0::/b");
        }
        let group = "sys/fs/cgroup/cpu,cpuacct/vms/web";
        tree.put(&format!("{group}/cpu.cfs_period_us"), "100000");
        tree.put(&format!("{group}/cpu.cfs_quota_us"), "-1");
        assert_eq!(of(&tree), None);
        tree.put(&format!("{group}/cpu.cfs_quota_us"), "250000");
        assert_eq!(of(&tree), Some(2_500_000_000));
    }
    /// Weights of VMs that each have one vCPU, in these groups.
    fn weights(tree: &Tree, groups: &[&str]) -> Option<Vec<u64>> {
        let of = |(tid, group): (u32, &&str)| {
            tree.put(&format!("proc/{tid}/cgroup"), group);
            Groups::under(tree.root(), [tid])
        };
        Groups::weights(&(20..).zip(groups).map(of).collect::<Vec<_>>())
    }

    #[test]
    fn weights_are_those_of_the_groups_that_compete() {
        let tree = Tree::default();
        for (group, weight) in [("machine.slice", "300"), ("user.slice", "50")] {
            tree.put(&format!("sys/fs/cgroup/{group}/cpu.weight"), weight);
        }
        for (vm, weight) in [("a", "100"), ("b", "200"), ("idle", "0")] {
            tree.put(&format!("sys/fs/cgroup/machine.slice/{vm}.scope/cpu.weight"), weight);
        }
        let [a, b] = ["a", "b"].map(|vm| format!("0::/machine.slice/{vm}.scope/libvirt/vcpu0"));
        let (idle, other) = ("0::/machine.slice/idle.scope", "0::/user.slice/session.scope");
        assert_eq!(weights(&tree, &[&a, &b]), Some(vec![100, 200]));
        assert_eq!(weights(&tree, &[&b, idle, &a]), Some(vec![200, 1, 100]));
        assert_eq!(weights(&tree, &[other, &a]), Some(vec![50, 300]));
        // The slice of two of them competes with a third.
        assert_eq!(weights(&tree, &[&a, &b, other]), None);
        for alone in [&[&*a][..], &[&a, &a], &[&a, "0::/machine.slice"], &[&a, "0::/"], &[]] {
            assert_eq!(weights(&tree, alone), None, "{alone:?}");
        }
        // Without the controller the group's threads compete one by one.
        assert_eq!(weights(&tree, &[&a, "0::/machine.slice/c.scope"]), None);
    }

    #[test]
    fn version_1_has_shares() {
        let tree = Tree::default();
        tree.put("sys/fs/cgroup/cpu/a/cpu.shares", "1024");
        tree.put("sys/fs/cgroup/cpu/b/cpu.shares", "512");
        let groups = ["4:cpu,cpuacct:/a\n0::/x", "4:cpu,cpuacct:/b\n0::/x"];
        assert_eq!(weights(&tree, &groups), Some(vec![1024, 512]));
    }
}
