//! CPU quotas of the control groups that a VM is in.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::text;

/// CPU time in nanoseconds that the vCPUs of a VM may have together in each second, by the quotas (`cpu.max`, or
/// `cpu.cfs_quota_us` of version 1) of the control groups that all of these threads are in. `None`: as much as there is.
///
/// A quota of a group for a single vCPU, as libvirt's `<quota>` makes them, is not one of the VM: other vCPUs have nothing of
/// it.
pub fn quota(tids: impl IntoIterator<Item = u32>) -> Option<u64> {
    quota_under(Path::new("/"), tids)
}

fn quota_under(root: &Path, tids: impl IntoIterator<Item = u32>) -> Option<u64> {
    let mut groups = tids.into_iter().map(|tid| group(root, tid));
    // With every further thread fewer groups have all of them.
    let first = groups.next()??;
    let shared = groups.try_fold(first, |shared, group| {
        let group = group?;
        shared.ancestors().find(|above| group.starts_with(above)).map(Path::to_owned)
    })?;
    let folders =
        shared.ancestors().flat_map(|group| MOUNTS.map(|mount| root.join(mount).join(group)));
    folders.filter_map(|folder| limit(&folder)).min()
}

/// Where the CPU controller may be mounted: that of version 1, alone or with the accounting, or version 2.
const MOUNTS: [&str; 3] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup"];

/// The control group whose CPU controller a thread is in, from the root of its mount.
fn group(root: &Path, tid: u32) -> Option<PathBuf> {
    let groups = fs::read(root.join(format!("proc/{tid}/cgroup"))).ok()?;
    let path = Path::new(OsStr::from_bytes(text::cgroup(&groups)?));
    path.strip_prefix("/").ok().map(Path::to_owned)
}

/// The quota of one group, in nanoseconds for each second.
fn limit(group: &Path) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
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

    use super::quota_under;

    const SCOPE: &str = r"machine.slice/machine-qemu\x2d1.scope";

    fn of(tree: &Tree) -> Option<u64> {
        quota_under(tree.root(), [7, 8])
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
        assert_eq!(quota_under(tree.root(), [7, 9]), None, "gone");
        assert_eq!(quota_under(tree.root(), []), None);
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
}
