//! Control groups of the CPU controller: the weights and quotas of VMs and other threads.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::text;

/// Among whom a thread competes for the CPU time of the fair class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FairGroup {
    /// Those of the innermost of these control groups, the outermost first.
    Control(Vec<Level>),
    /// Those of a session of `sched_autogroup`.
    Session(Level),
    /// All that are in no group; or it is not known.
    Top,
}

impl FairGroup {
    /// That of a thread, with `proc` and `sys` below `root`. A control group with the CPU controller takes a thread out
    /// of its session.
    pub fn of(root: &Path, tid: u32) -> Self {
        let levels = Groups::under(root, [tid]).levels();
        if !levels.is_empty() {
            return Self::Control(levels);
        }
        let read = |file: &str| fs::read_to_string(root.join("proc").join(file)).ok();
        let on = read("sys/kernel/sched_autogroup_enabled").is_some_and(|on| on.trim() == "1");
        let session = || session(&read(&format!("{tid}/autogroup"))?);
        on.then(session).flatten().map_or(Self::Top, Self::Session)
    }
}

/// From `/proc/TID/autogroup`: `/autogroup-79 nice 0`.
fn session(text: &str) -> Option<Level> {
    let mut words = text.split_whitespace();
    let name = words.next()?.trim_start_matches('/').to_owned();
    let nice: i32 = words.nth(1)?.parse().ok()?;
    let weight = (Level::WEIGHT as f64 * 1.25_f64.powi(-nice)) as u64;
    Some(Level { name, weight, quota: None })
}

/// The control groups of the CPU controller that contain all of some threads, for example the vCPUs of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    root: PathBuf,
    /// The innermost such group, relative to the root of its mount. `None`: no group contains all threads, or it is not
    /// known.
    inner: Option<PathBuf>,
}

impl Groups {
    /// The groups of these threads at this time.
    pub fn of(tids: impl IntoIterator<Item = u32>) -> Self {
        Self::under(Path::new("/"), tids)
    }

    /// As [`of`](Self::of), with `proc` and `sys` below another root.
    pub fn under(root: &Path, tids: impl IntoIterator<Item = u32>) -> Self {
        let groups: Option<Vec<_>> = tids.into_iter().map(|tid| group(root, tid)).collect();
        let inner = groups.and_then(|groups| Some(shared(&groups)?.to_owned()));
        Self { root: root.to_owned(), inner }
    }

    /// Each of these groups that competes for CPU time as one entity, the outermost first.
    pub fn levels(&self) -> Vec<Level> {
        let mut paths: Vec<&Path> = self.inner.iter().flat_map(|inner| inner.ancestors()).collect();
        paths.reverse();
        paths.into_iter().skip(1).map_while(|path| self.level(path)).collect()
    }

    /// CPU time in nanoseconds that the vCPUs may use together per second, by the quotas of these groups. `None`: no
    /// limit.
    ///
    /// Quotas of groups with a single vCPU, as libvirt's `<quota>` sets them, do not count: they do not limit the VM as
    /// a whole.
    pub fn quota(&self) -> Option<u64> {
        // In a container the root of the mount is a group, too.
        let root = self.level(Path::new(""));
        let limits = self.levels().into_iter().chain(root).filter_map(|level| level.quota);
        limits.filter_map(CpuMax::each_second).min()
    }

    /// The weights by which the host divides its CPUs between these VMs, one for each: those of the groups directly
    /// below the innermost group that contains all VMs. `None`: a VM has no such group or shares it with another one,
    /// so that not VMs compete but threads, or groups of several VMs.
    pub fn weights<'a>(vms: impl IntoIterator<Item = &'a Self>) -> Option<Vec<u64>> {
        let vms: Vec<(&Self, &PathBuf)> =
            vms.into_iter().map(|vm| Some((vm, vm.inner.as_ref()?))).collect::<Option<_>>()?;
        let inner: Vec<&PathBuf> = vms.iter().map(|(_, inner)| *inner).collect();
        let above = shared(&inner)?;
        let own = |inner: &Path| Some(above.join(inner.strip_prefix(above).ok()?.iter().next()?));
        let own: Vec<PathBuf> = inner.iter().map(|inner| own(inner)).collect::<Option<_>>()?;
        let distinct = own.iter().collect::<BTreeSet<_>>().len() == own.len();
        let weight = |((vm, _), group): (&(&Self, _), &PathBuf)| Some(vm.level(group)?.weight);
        distinct.then(|| vms.iter().zip(&own).map(weight).collect())?
    }

    /// For each of these groups, by its folder: the total time so far that its quota has held threads back, in
    /// nanoseconds, summed over CPUs.
    pub fn throttled(&self) -> BTreeMap<PathBuf, u64> {
        let read = |folder: PathBuf| {
            let stat = fs::read_to_string(folder.join("cpu.stat")).ok()?;
            let field = |key: &str| -> Option<u64> {
                stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
            };
            let us = field("throttled_usec ").map(|us| us.saturating_mul(1000));
            Some((folder, us.or_else(|| field("throttled_time "))?))
        };
        let groups = self.inner.iter().flat_map(|inner| inner.ancestors());
        let folders =
            groups.flat_map(|group| MOUNTS.map(|mount| self.root.join(mount).join(group)));
        folders.filter_map(read).collect()
    }

    fn level(&self, group: &Path) -> Option<Level> {
        MOUNTS.iter().find_map(|mount| Level::read(&self.root.join(mount).join(group)))
    }
}

/// A control group with the CPU controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level {
    /// Its name within its parent group.
    pub name: String,
    /// Its weight relative to threads and groups of the parent group: 1024 equals a thread of nice 0. From `cpu.weight`
    /// (where 100 equals that), or `cpu.shares` of version 1. A group with `cpu.idle` has 1.
    pub weight: u64,
    /// Its quota, if it has one.
    pub quota: Option<CpuMax>,
}

/// A CPU quota: `cpu.max`, or `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuMax {
    /// CPU time in each period, in microseconds.
    pub quota_us: u64,
    /// The period, in microseconds.
    pub period_us: u64,
}

impl CpuMax {
    /// CPU time per second, in nanoseconds.
    pub fn each_second(self) -> Option<u64> {
        self.quota_us.checked_mul(1_000_000_000)?.checked_div(self.period_us)
    }
}

impl Level {
    /// Weight of a thread of nice 0, and of a control group with the default weight.
    pub const WEIGHT: u64 = 1024;

    /// Whether a thread of nice 0 gets as much CPU time in the group as outside.
    pub fn is_like_a_thread(&self) -> bool {
        self.weight == Self::WEIGHT && self.quota.is_none()
    }

    fn read(folder: &Path) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let number = |text: &str| text.trim().parse::<u64>().ok();
        // The files exist where the controller is enabled.
        let (weight, quota) = match read("cpu.weight") {
            Some(weight) => {
                let max = read("cpu.max").unwrap_or_default();
                let quota = max.trim().split_once(' ').map(|(q, p)| (number(q), number(p)));
                (number(&weight)?.saturating_mul(Self::WEIGHT) / 100, quota)
            }
            None => {
                let number = |file: &str| number(&read(file)?);
                let quota = (number("cpu.cfs_quota_us"), number("cpu.cfs_period_us"));
                (number("cpu.shares")?, Some(quota))
            }
        };
        let quota = quota.and_then(|(quota_us, period_us)| {
            Some(CpuMax { quota_us: quota_us?, period_us: period_us? })
        });
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Some(Self { name, weight: weight.max(1), quota })
    }
}

/// The innermost group that contains all of these.
fn shared(groups: &[impl AsRef<Path>]) -> Option<&Path> {
    let mut above = groups.first()?.as_ref().ancestors();
    above.find(|above| groups.iter().all(|group| group.as_ref().starts_with(above)))
}

/// Possible mounts of the CPU controller: version 1, alone or with `cpuacct`, or version 2.
const MOUNTS: [&str; 3] = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup"];

/// Whether each control group of this host has to be given CPU time for real-time threads before it may have any: on
/// version 1 with RT group scheduling.
pub fn rations_real_time(root: &Path) -> bool {
    MOUNTS.iter().any(|mount| root.join(mount).join("cpu.rt_runtime_us").exists())
}

/// The control group of a thread's CPU controller, relative to the root of its mount.
fn group(root: &Path, tid: u32) -> Option<PathBuf> {
    let groups = fs::read(root.join(format!("proc/{tid}/cgroup"))).ok()?;
    let path = Path::new(OsStr::from_bytes(text::cgroup(&groups)?));
    path.strip_prefix("/").ok().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::{CpuMax, Groups, Level};

    const SCOPE: &str = r"machine.slice/machine-qemu\x2d1.scope";

    fn of(tree: &Tree) -> Option<u64> {
        Groups::under(tree.root(), [7, 8]).quota()
    }

    /// A group of version 2 with the CPU controller.
    fn group(tree: &Tree, path: &str, weight: &str, max: &str) {
        tree.put(&format!("sys/fs/cgroup/{path}/cpu.weight"), weight);
        tree.put(&format!("sys/fs/cgroup/{path}/cpu.max"), max);
    }

    #[test]
    fn the_least_of_those_of_all_vcpus_counts() {
        let tree = Tree::default();
        let limit = |path: &str, max: &str| group(&tree, path, "100", max);
        for above in ["machine.slice", SCOPE, &format!("{SCOPE}/libvirt")] {
            limit(above, "max 100000");
        }
        for (tid, vcpu) in [(7, 0), (8, 1)] {
            tree.put(&format!("proc/{tid}/cgroup"), &format!("0::/{SCOPE}/libvirt/vcpu{vcpu}"));
            limit(&format!("{SCOPE}/libvirt/vcpu{vcpu}"), "5000 100000");
        }
        assert_eq!(of(&tree), None, "each vCPU has one of its own");
        limit("machine.slice", "300000 100000");
        assert_eq!(of(&tree), Some(3_000_000_000));
        limit(SCOPE, "75000 50000");
        assert_eq!(of(&tree), Some(1_500_000_000));
        limit("", "100000 100000");
        assert_eq!(of(&tree), Some(1_000_000_000), "of a container");
        tree.put("proc/8/cgroup", "0::/other");
        assert_eq!(of(&tree), Some(1_000_000_000), "which has all");
        let gone = Groups::under(tree.root(), [7, 9]);
        assert_eq!((gone.levels(), gone.quota()), (Vec::new(), Some(1_000_000_000)));
    }

    #[test]
    fn levels_are_where_the_controller_is() {
        let tree = Tree::default();
        let levels = || Groups::under(tree.root(), [7]).levels();
        tree.put("proc/7/cgroup", "0::/machine.slice/web.scope/vcpu0");
        assert_eq!(levels(), []);
        group(&tree, "machine.slice", "200", "max 100000");
        group(&tree, "machine.slice/web.scope", "50", "400000 100000");
        let web = CpuMax { quota_us: 400_000, period_us: 100_000 };
        let level = |name: &str, weight, quota| Level { name: name.to_owned(), weight, quota };
        assert_eq!(
            levels(),
            [level("machine.slice", 2048, None), level("web.scope", 512, Some(web))]
        );
        tree.put("proc/7/cgroup", "0::/");
        assert_eq!(levels(), []);
    }

    #[test]
    fn version_1_has_files_of_its_own() {
        let tree = Tree::default();
        for tid in [7, 8] {
            tree.put(&format!("proc/{tid}/cgroup"), "9:memory:/a\n4:cpu,cpuacct:/vms/web\n0::/b");
        }
        let put = |path: &str, file: &str, value: &str| {
            tree.put(&format!("sys/fs/cgroup/cpu,cpuacct/{path}{file}"), value);
        };
        for path in ["vms/", "vms/web/"] {
            put(path, "cpu.shares", "512");
            put(path, "cpu.cfs_period_us", "100000");
            put(path, "cpu.cfs_quota_us", "-1");
        }
        assert_eq!(of(&tree), None);
        put("vms/web/", "cpu.cfs_quota_us", "250000");
        assert_eq!(of(&tree), Some(2_500_000_000));
        let levels = Groups::under(tree.root(), [7]).levels();
        assert!(levels.iter().map(|l| (&*l.name, l.weight)).eq([("vms", 512), ("web", 512)]));
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
        assert_eq!(weights(&tree, &[&a, &b]), Some(vec![1024, 2048]));
        assert_eq!(weights(&tree, &[&b, idle, &a]), Some(vec![2048, 1, 1024]));
        assert_eq!(weights(&tree, &[other, &a]), Some(vec![512, 3072]));
        // The slice with two of them competes with the third.
        assert_eq!(weights(&tree, &[&a, &b, other]), None);
        for alone in [&[&*a][..], &[&a, &a], &[&a, "0::/machine.slice"], &[&a, "0::/"], &[]] {
            assert_eq!(weights(&tree, alone), None, "{alone:?}");
        }
        // Without the controller the threads of the group compete one by one.
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
