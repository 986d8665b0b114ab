//! The groups by which the fair class shares CPUs between threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use vcoop_sources::trace::Tid;
use vcoop_vmm::{CpuMax, Groups, Level};

/// What a thread of nice 0 weighs, and a control group with the default weight.
const WEIGHT: u64 = 1024;

/// The control groups that a thread is in, or all vCPUs of a VM, the outermost first; or a session of sched_autogroup.
/// None is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group(pub(crate) Vec<Level>);

impl Group {
    /// That of some threads together; `None`: they are in none, or gone.
    pub(crate) fn of(root: &Path, tids: &[Tid]) -> Option<Self> {
        let groups = Groups::under(root, tids.iter().map(|tid| tid.cast_unsigned()));
        // A control group with the CPU controller takes a thread out of its session.
        let levels = groups.levels();
        if !levels.is_empty() {
            return Some(Self(levels));
        }
        let sessions = fs::read_to_string(root.join("proc/sys/kernel/sched_autogroup_enabled"));
        let on = sessions.is_ok_and(|on| on.trim() == "1");
        let of = |tid: &Tid| {
            Self::session(&fs::read_to_string(root.join(format!("proc/{tid}/autogroup"))).ok()?)
        };
        on.then(|| of(tids.first()?))?
    }

    /// From `/proc/TID/autogroup`: `/autogroup-79 nice 0`.
    fn session(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let name = words.next()?.trim_start_matches('/');
        let nice: i32 = words.nth(1)?.parse().ok()?;
        let weight = (WEIGHT as f64 * 1.25_f64.powi(-nice)) as u64;
        Some(Self::one(name, weight))
    }

    /// A group in no other.
    pub(crate) fn one(name: &str, weight: u64) -> Self {
        Self(vec![Level { name: name.to_owned(), weight, quota: None }])
    }

    /// How many of the outermost groups two have in common.
    fn common(&self, other: &Self) -> usize {
        self.0.iter().zip(&other.0).take_while(|(one, other)| one.name == other.name).count()
    }
}

/// A group of a scenario, which has no groups in groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flat {
    /// Where it is in the hierarchy.
    path: Vec<String>,
    pub(crate) name: String,
    pub(crate) weight: u64,
    /// Of the VM's own group.
    pub(crate) quota: Option<CpuMax>,
}

/// The groups of a scenario for those that a VM and others are in. `None`: whoever is in no group.
///
/// A group of the hierarchy becomes one where it parts from the VM's: those that hold the VM are opened, and others
/// are not. What is in an opened group has its part of that group's weight, by the weights of all that was seen there.
/// The VM's own group is the outermost that has nobody else.
pub(crate) fn flatten<'g>(
    vm: Option<&'g Group>,
    others: impl Iterator<Item = Option<&'g Group>>,
) -> BTreeMap<Option<&'g Group>, Option<Flat>> {
    let mut flat: BTreeMap<_, _> = others.map(|group| (group, None)).collect();
    flat.insert(vm, None);
    let groups: BTreeSet<&Group> = flat.keys().copied().flatten().collect();
    let none = Group(Vec::new());
    let own = vm.unwrap_or(&none);
    // Threads that are in the VM's innermost group, or in groups there, go with it.
    let parts = |group: &Group| {
        Some(own.common(group)).filter(|common| *common < own.0.len() || own.0.is_empty())
    };
    let opened = groups.iter().filter_map(|group| parts(group)).max().unwrap_or(0);

    // From the top down: what is left of the weight for those that are further in.
    let mut left = None;
    for depth in 0..=opened {
        let here: BTreeSet<(&[Level], &str, u64)> = groups
            .iter()
            .filter(|group| parts(group).unwrap_or(own.0.len()) >= depth)
            .map(|group| match group.0.get(depth) {
                Some(level) => (&group.0[..=depth], &*level.name, level.weight),
                // A thread beside groups.
                None => (&group.0[..], &*group.0[depth - 1].name, WEIGHT),
            })
            .collect();
        let sum: u64 = here.iter().map(|(.., weight)| weight).sum();
        let part =
            |weight: u64| left.map_or(weight, |left: u64| (left * weight / sum.max(1)).max(1));
        for (group, flat) in &mut flat {
            let Some(group) = *group else { continue };
            let is_vm = depth == opened && own.common(group) > depth;
            if !is_vm && parts(group) != Some(depth) {
                continue;
            }
            let path: Vec<String> =
                group.0.iter().take(depth + 1).map(|l| l.name.clone()).collect();
            let weight = part(group.0.get(depth).map_or(WEIGHT, |level| level.weight));
            let limits = own.0.iter().skip(depth).filter_map(|level| level.quota);
            let quota = limits.filter(|_| is_vm).min_by_key(|quota| quota.each_second());
            let name = path.last().cloned().unwrap_or_default();
            *flat = Some(Flat { path, name, weight, quota });
        }
        left = own.0.get(depth).map(|level| part(level.weight));
    }
    flat
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::{Group, flatten};

    fn of(files: &[(&str, &str)]) -> Option<Vec<(String, u64)>> {
        let levels = |group: Group| group.0.into_iter().map(|level| (level.name, level.weight));
        Group::of(Tree::with(files).root(), &[7]).map(|group| levels(group).collect())
    }

    fn one(name: &str, weight: u64) -> Option<Vec<(String, u64)>> {
        Some(vec![(name.to_owned(), weight)])
    }

    #[test]
    fn sessions_count_for_threads_without_a_control_group() {
        let on = ("proc/sys/kernel/sched_autogroup_enabled", "1\n");
        let session = ("proc/7/autogroup", "/autogroup-79 nice 0\n");
        let root = ("proc/7/cgroup", "0::/\n");
        assert_eq!(of(&[on, session, root]), one("autogroup-79", 1024));
        assert_eq!(of(&[session, root]), None, "switched off");
        let nice = ("proc/7/autogroup", "/autogroup-79 nice 5\n");
        assert_eq!(of(&[on, nice]), one("autogroup-79", 335));
        let v2 = ("proc/7/cgroup", "0::/machine.slice\n");
        let weight = ("sys/fs/cgroup/machine.slice/cpu.weight", "100\n");
        assert_eq!(of(&[on, session, v2, weight]), one("machine.slice", 1024));
    }

    /// Names, weights and quotas of the groups for a VM and for others, each at `path` with the weights of its levels.
    fn flat(vm: &str, others: &[&str]) -> Vec<String> {
        let group = |text: &str| {
            let level = |part: &str| {
                let mut words = part.split(' ');
                let name = words.next().unwrap().to_owned();
                let weight = words.next().unwrap().parse().unwrap();
                let quota = words.next().map(|quota| vcoop_vmm::CpuMax {
                    quota_us: quota.parse().unwrap(),
                    period_us: 100_000,
                });
                vcoop_vmm::Level { name, weight, quota }
            };
            (!text.is_empty()).then(|| Group(text.split('/').map(level).collect()))
        };
        let all: Vec<_> = [vm].iter().chain(others).map(|text| group(text)).collect();
        let flat = flatten(all[0].as_ref(), all[1..].iter().map(Option::as_ref));
        let text = |group: &Option<Group>| {
            flat[&group.as_ref()].as_ref().map_or_else(String::new, |flat| {
                let quota = flat.quota.map_or_else(String::new, |q| format!(" {}", q.quota_us));
                format!("{} {}{quota}", flat.name, flat.weight)
            })
        };
        all.iter().map(text).collect()
    }

    #[test]
    fn a_group_counts_where_it_parts_from_the_vms() {
        // Top groups, as long as nobody else is in the VM's.
        let web = "machine 1024/web 1024/libvirt 1024";
        assert_eq!(flat(web, &["system 512/ssh 1024"]), ["machine 1024", "system 512"]);
        // The slice is opened for another VM, and each has a part of its weight.
        let others = ["machine 1024/db 3072/libvirt 1024/vcpu0 1024", "system 512/ssh 1024", ""];
        assert_eq!(flat(web, &others), ["web 256", "db 768", "system 512", ""]);
        // Groups inside the VM's own go with it.
        let inside = ["machine 1024/web 1024/libvirt 1024/emulator 1024", others[0]];
        assert_eq!(flat(web, &inside), ["web 256", "web 256", "db 768"]);
        // Two in one group count once; a thread in the opened group itself beside both.
        let db = "machine 1024/db 1024/vcpu";
        let (vcpu0, vcpu1) = (format!("{db}0 1024"), format!("{db}1 1024"));
        assert_eq!(
            flat(web, &[&vcpu0, &vcpu1, "machine 1024"]),
            ["web 341", "db 341", "db 341", "machine 341"]
        );
        // Further in.
        assert_eq!(
            flat("a 1000/b 100/c 300", &["a 1000/b 100/d 100", "a 1000/e 300"]),
            ["c 187", "d 62", "e 750"]
        );
        assert_eq!(flat("", &["a 1000/b 100", "a 1000/c 100"]), ["", "a 1000", "a 1000"]);
    }

    #[test]
    fn the_quota_is_that_of_the_vms_own_groups() {
        let db = "machine 1024 900000/db 1024 300000";
        assert_eq!(
            flat("machine 1024 900000/web 1024 400000/libvirt 1024 200000", &[db]),
            ["web 512 200000", "db 512"]
        );
        assert_eq!(flat("machine 1024 900000/web 1024 400000", &[""]), ["machine 1024 400000", ""]);
    }
}
