//! The groups between which the fair class shares CPUs.

use std::collections::BTreeMap;
use std::iter;
use std::path::Path;

use vcoop_sources::trace::Tid;
use vcoop_vmm::{FairGroup, Level};

/// The control groups that a thread is in, the outermost first; or a session of sched_autogroup.
/// None is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group(pub(crate) Vec<Level>);

impl Group {
    /// Groups of a thread; `None`: it is in no group, or has ended.
    pub(crate) fn of(root: &Path, tid: Tid) -> Option<Self> {
        match FairGroup::of(root, tid.cast_unsigned()) {
            FairGroup::Control(levels) => Some(Self(levels)),
            FairGroup::Session(level) => Some(Self(vec![level])),
            FairGroup::Top => None,
        }
    }

    /// A group in no other.
    #[cfg(test)]
    pub(crate) fn one(name: &str, weight: u64) -> Self {
        Self(vec![Level { name: name.to_owned(), weight, quota: None }])
    }

    /// The groups that contain all of some threads; `None`: none does.
    pub(crate) fn shared<'g>(all: impl IntoIterator<Item = Option<&'g Self>>) -> Option<Self> {
        let levels = |group: Option<&'g Self>| group.map_or(&[][..], |group| &group.0);
        let both = |one: &'g [Level], other: &'g [Level]| {
            let alike = one.iter().zip(other).take_while(|(one, other)| one.name == other.name);
            &one[..alike.count()]
        };
        let shared = all.into_iter().map(levels).reduce(both)?;
        (!shared.is_empty()).then(|| Self(shared.to_vec()))
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|level| &*level.name).collect()
    }
}

/// A group of the hierarchy.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) level: Level,
    /// The group that it is in, by its number.
    pub(crate) parent: Option<usize>,
    /// Threads directly in it, and groups directly in it.
    inside: usize,
    /// It is left out: its members count as members of the group above.
    left_out: bool,
}

/// The groups of some threads. A group without a quota and without siblings, in the group above or on the host, is left
/// out, as it changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Hierarchy<'g> {
    nodes: Vec<Node>,
    /// Number of each group, by its name and those of the groups around it.
    numbers: BTreeMap<Vec<&'g str>, usize>,
}

impl<'g> Hierarchy<'g> {
    /// The hierarchy of threads in these groups. `None`: a thread in no group.
    pub(crate) fn of(threads: impl IntoIterator<Item = Option<&'g Group>>) -> Self {
        let mut hierarchy = Self::default();
        let mut at_root = 0;
        for group in threads {
            let Some(group) = group else {
                at_root += 1;
                continue;
            };
            let (names, mut parent) = (group.names(), None::<usize>);
            for (depth, level) in group.0.iter().enumerate() {
                let number = hierarchy.numbers.get(&names[..=depth]).copied();
                let number = number.unwrap_or_else(|| {
                    match parent {
                        Some(parent) => hierarchy.nodes[parent].inside += 1,
                        None => at_root += 1,
                    }
                    let level = level.clone();
                    hierarchy.nodes.push(Node { level, parent, inside: 0, left_out: false });
                    hierarchy.numbers.insert(names[..=depth].to_vec(), hierarchy.nodes.len() - 1);
                    hierarchy.nodes.len() - 1
                });
                parent = Some(number);
            }
            if let Some(own) = parent {
                hierarchy.nodes[own].inside += 1;
            }
        }
        // From the inside out: what is in a group that is left out counts for the one above.
        for i in (0..hierarchy.nodes.len()).rev() {
            let node = &hierarchy.nodes[i];
            let (parent, inside) = (node.parent, node.inside);
            let unlimited = node.level.quota.is_none();
            let beside = match parent {
                Some(parent) => &mut hierarchy.nodes[parent].inside,
                None => &mut at_root,
            };
            if *beside == 1 && unlimited {
                *beside = inside;
                hierarchy.nodes[i].left_out = true;
            }
        }
        hierarchy
    }

    /// The groups, an outer one before those in it: the number of each, and what it is. Its parent is one of them.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (usize, Node)> {
        let kept = self.nodes.iter().enumerate().filter(|(_, node)| !node.left_out);
        kept.map(|(i, node)| {
            let parent = node.parent.and_then(|parent| self.kept(parent));
            (i, Node { level: node.level.clone(), parent, ..*node })
        })
    }

    /// The number of the group that a thread in these groups is in.
    pub(crate) fn number(&self, group: &Group) -> Option<usize> {
        self.kept(*self.numbers.get(&group.names())?)
    }

    /// The group itself, or the innermost above it that is not left out.
    fn kept(&self, number: usize) -> Option<usize> {
        let parent = |number: &usize| self.nodes[*number].parent;
        iter::successors(Some(number), parent).find(|number| !self.nodes[*number].left_out)
    }
}

#[cfg(test)]
mod tests {
    use vcoop_testing::Tree;

    use super::{Group, Hierarchy};

    fn of(files: &[(&str, &str)]) -> Option<Vec<(String, u64)>> {
        let levels = |group: Group| group.0.into_iter().map(|level| (level.name, level.weight));
        Group::of(Tree::with(files).root(), 7).map(|group| levels(group).collect())
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

    /// Groups of which each is its name, weight and quota: `machine 1024/web 512 200000`.
    fn group(text: &str) -> Option<Group> {
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
    }

    /// For each thread the groups that it is in, of those that are kept, each with its weight.
    fn kept(threads: &[&str]) -> Vec<String> {
        let all: Vec<_> = threads.iter().map(|text| group(text)).collect();
        let hierarchy = Hierarchy::of(all.iter().map(Option::as_ref));
        let groups: Vec<_> = hierarchy.groups().collect();
        let path = |group: &Option<Group>| {
            let (mut at, mut names) = (hierarchy.number(group.as_ref()?), Vec::new());
            while let Some((_, node)) = groups.iter().find(|(i, _)| Some(*i) == at) {
                names.insert(0, format!("{} {}", node.level.name, node.level.weight));
                at = node.parent;
            }
            Some(names.join("/"))
        };
        all.iter().map(|group| path(group).unwrap_or_default()).collect()
    }

    #[test]
    fn groups_that_change_nothing_are_left_out() {
        let (web, web_kept) = ("machine 512/web 100/libvirt 1024", "machine 512/web 100");
        // The one of all, and the only one in another.
        assert_eq!(kept(&[web, web]), ["", ""]);
        assert_eq!(kept(&[web, ""]), ["machine 512", ""]);
        assert_eq!(kept(&[web, "system 300/ssh 50"]), ["machine 512", "system 300"]);
        // Two beside each other.
        let db = "machine 512/db 300/libvirt 1024";
        assert_eq!(kept(&[web, db]), ["web 100", "db 300"]);
        assert_eq!(kept(&[web, db, ""]), [web_kept, "machine 512/db 300", ""]);
        // A thread beside a group.
        assert_eq!(
            kept(&[web, "machine 512/web 100", ""])[..2],
            ["machine 512/libvirt 1024", "machine 512"]
        );
        // A quota counts, and so does the group that it is in.
        let limited = "machine 512/web 100 70000/libvirt 1024";
        assert_eq!(kept(&[limited]), ["web 100"]);
        assert_eq!(kept(&[limited, ""]), [web_kept, ""]);
    }

    #[test]
    fn threads_share_the_groups_that_all_are_in() {
        let shared = |threads: &[&str]| {
            let all: Vec<_> = threads.iter().map(|text| group(text)).collect();
            Group::shared(all.iter().map(Option::as_ref)).map(|group| group.names().join("/"))
        };
        let (one, other) = ("m 1/web 1/vcpu0 1", "m 1/web 1/vcpu1 1");
        assert_eq!(shared(&[one, other]), Some("m/web".to_owned()));
        assert_eq!(shared(&[one, "m 1/web 1"]), Some("m/web".to_owned()));
        assert_eq!(shared(&[one, one]), Some("m/web/vcpu0".to_owned()));
        assert_eq!(shared(&[one, "s 1/web 1"]), None);
        assert_eq!(shared(&[one, ""]), None);
        assert_eq!(shared(&[]), None);
    }
}
