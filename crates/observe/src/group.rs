//! The group by which the fair class shares CPUs between threads.

use std::fs;
use std::path::Path;

use vcoop_sources::trace::Tid;

/// What a thread of nice 0 weighs, and a control group with the default weight.
const WEIGHT: f64 = 1024.0;

/// A group of threads: a control group at the top of the hierarchy, or a session of sched_autogroup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// As `cpu.shares` has it: 1024 is as much as a thread of nice 0.
    pub(crate) weight: u64,
}

impl Group {
    /// That of a thread; `None`: it is in none, or it is gone.
    pub(crate) fn of(root: &Path, tid: Tid) -> Option<Self> {
        let of_thread = |file: &str| fs::read_to_string(root.join(format!("proc/{tid}/{file}")));
        // A control group with the CPU controller takes a thread out of its session.
        let group = of_thread("cgroup").ok().and_then(|groups| Self::control(root, &groups));
        let sessions = || fs::read_to_string(root.join("proc/sys/kernel/sched_autogroup_enabled"));
        group.or_else(|| {
            let on = sessions().is_ok_and(|on| on.trim() == "1");
            on.then(|| Self::session(&of_thread("autogroup").ok()?)).flatten()
        })
    }

    /// From `/proc/TID/cgroup`: lines of `ID:CONTROLLERS:PATH`, without controllers for version 2.
    fn control(root: &Path, groups: &str) -> Option<Self> {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let name = path.trim_start_matches('/').split('/').next().filter(|n| !n.is_empty())?;
            let read = |mount: &str, file: &str| -> Option<f64> {
                let path = root.join("sys/fs/cgroup").join(mount).join(name).join(file);
                fs::read_to_string(path).ok()?.trim().parse().ok()
            };
            let weight = if controllers.is_empty() {
                // The file is there where the controller is in force.
                read("", "cpu.weight")? / 100.0 * WEIGHT
            } else if controllers.split(',').any(|controller| controller == "cpu") {
                read(controllers, "cpu.shares").or_else(|| read("cpu", "cpu.shares"))?
            } else {
                return None;
            };
            Some(Self { name: name.to_owned(), weight: weight as u64 })
        })
    }

    /// From `/proc/TID/autogroup`: `/autogroup-79 nice 0`.
    fn session(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let name = words.next()?.trim_start_matches('/').to_owned();
        let nice: i32 = words.nth(1)?.parse().ok()?;
        Some(Self { name, weight: (WEIGHT * 1.25_f64.powi(-nice)) as u64 })
    }
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::Group;

    fn of(files: &[(&str, &str)]) -> Option<(String, u64)> {
        Group::of(Tree::with(files).root(), 7).map(|group| (group.name, group.weight))
    }

    #[test]
    fn a_control_group_is_the_top_one_where_the_controller_is() {
        let v2 = ("proc/7/cgroup", "0::/machine.slice/qemu.scope/vcpu0\n");
        let weight = ("sys/fs/cgroup/machine.slice/cpu.weight", "200\n");
        assert_eq!(of(&[v2, weight]), Some(("machine.slice".to_owned(), 2048)));
        assert_eq!(of(&[v2]), None, "without the controller");
        assert_eq!(of(&[("proc/7/cgroup", "0::/\n"), weight]), None, "the root");
        let v1 = ("proc/7/cgroup", "9:memory:/a\n4:cpu,cpuacct:/vms/web\n0::/b\n");
        let shares = ("sys/fs/cgroup/cpu,cpuacct/vms/cpu.shares", "512\n");
        assert_eq!(of(&[v1, shares]), Some(("vms".to_owned(), 512)));
        let shares = ("sys/fs/cgroup/cpu/vms/cpu.shares", "256\n");
        assert_eq!(of(&[v1, shares]), Some(("vms".to_owned(), 256)));
    }

    #[test]
    fn sessions_count_for_threads_without_a_control_group() {
        let on = ("proc/sys/kernel/sched_autogroup_enabled", "1\n");
        let session = ("proc/7/autogroup", "/autogroup-79 nice 0\n");
        let root = ("proc/7/cgroup", "0::/\n");
        assert_eq!(of(&[on, session, root]), Some(("autogroup-79".to_owned(), 1024)));
        assert_eq!(of(&[session, root]), None, "switched off");
        let nice = ("proc/7/autogroup", "/autogroup-79 nice 5\n");
        assert_eq!(of(&[on, nice]).map(|g| g.1), Some(335));
        let v2 = ("proc/7/cgroup", "0::/machine.slice\n");
        let weight = ("sys/fs/cgroup/machine.slice/cpu.weight", "100\n");
        let group = Some(("machine.slice".to_owned(), 1024));
        assert_eq!(of(&[on, session, v2, weight]), group);
    }
}
