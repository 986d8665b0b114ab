//! What is refused, and what is read without a panic.

use std::fs;

use vcoop_guest_governor::{Evaluation, Fold, FoldError, Layout, Mechanism, Mode, cpus, pinned};

use crate::{SECOND, Tree, step};

#[track_caller]
fn assert_refused(tree: &Tree, by: Mechanism, says: &[&str]) {
    let why = Fold::new(tree.roots(), by, step(), Mode::Dry, || tree.now).unwrap_err();
    assert!(matches!(why, FoldError::Missing { .. }), "{why}");
    let why = why.to_string();
    assert!(says.iter().all(|text| why.contains(text)), "{why}");
}

/// Tasks keep off CPUs under `isolcpus` by what they have inherited only, and lose that with a change of their
/// cpuset.
#[test]
fn no_task_is_moved_onto_isolated_cpus() {
    let mut tree = Tree::new(8, 1);
    tree.put("sys/devices/system/cpu/isolated", "6-7");
    let says = ["CPUs 6-7 are isolated", "remedy: isolate them by a partition"];
    assert_refused(&tree, Mechanism::Cpuset, &says);
    assert_refused(&tree, Mechanism::Hotplug, &says);
    // No cgroup has cpusets, so hotplug changes the CPUs of none.
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    assert_refused(&tree, Mechanism::Cpuset, &says);
    let mut fold = tree.fold(Mechanism::Hotplug, step());
    let decision = tree.decide(&mut fold, 50, 20);
    assert_eq!([&decision.before, &decision.after].map(cpus::show), ["0-5", "0-4"]);
}

/// As on Linux 6.1 and, with Docker's cpusets, on many later systems.
#[test]
fn cpus_that_legacy_cpusets_would_lose_stay_online() {
    let tree = Tree::new(8, 1);
    let cgroups = |line: &str| {
        let head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t70\t1\n";
        tree.put("proc/cgroups", &format!("{head}{line}\nmemory\t0\t80\t1"));
    };
    cgroups("cpuset\t4\t3\t1");
    assert_refused(&tree, Mechanism::Hotplug, &["cgroup v1", "remedy: boot with cgroup v2"]);
    // Neither is it the remedy where cgroup v2 has no cpusets.
    fs::remove_file(tree.path("sys/fs/cgroup/cgroup.controllers")).unwrap();
    let why =
        Fold::new(tree.roots(), Mechanism::Cpuset, step(), Mode::Dry, || tree.now).unwrap_err();
    assert!(!why.to_string().contains("hotplug"), "{why}");
    // That of the root gets its CPUs back, and cgroup v2 gives them back.
    for line in ["cpuset\t4\t1\t1", "cpuset\t0\t80\t1", "cpuset", ""] {
        cgroups(line);
        assert!(
            Fold::new(tree.roots(), Mechanism::Hotplug, step(), Mode::Dry, || tree.now).is_ok()
        );
        assert_refused(&tree, Mechanism::Cpuset, &["or --by hotplug"]);
    }
}

/// Docker starts later than the service, and units that ask for cpusets come at any time.
#[test]
fn what_could_not_be_undone_ends_it_also_when_it_comes_later() {
    let ends = |tree: &mut Tree, mut fold: Fold, says: &str| {
        tree.now += SECOND;
        let why = fold.look(|| tree.now).unwrap_err();
        assert!(
            matches!(why, FoldError::Missing { .. }) && why.to_string().contains(says),
            "{why}"
        );
    };
    let mut tree = Tree::new(4, 1);
    let before = tree.files();
    let mut fold = tree.fold(Mechanism::Hotplug, step());
    tree.decide(&mut fold, 50, 20);
    tree.put("sys/devices/system/cpu/online", "0-2");
    tree.put("proc/cgroups", "cpuset\t4\t3\t1");
    ends(&mut tree, fold, "cgroup v1");
    tree.put("sys/devices/system/cpu/online", "0-3");
    assert_eq!(tree.files(), before);

    let mut tree = Tree::new(4, 1);
    tree.put("sys/devices/system/cpu/isolated", "1");
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    let fold = tree.fold(Mechanism::Hotplug, step());
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu");
    ends(&mut tree, fold, "CPUs 1 are isolated");
}

#[test]
fn the_root_of_a_cgroup_namespace_is_not_taken_for_the_guests() {
    for file in ["cgroup.type", "cpuset.cpus"] {
        let tree = Tree::new(4, 1);
        tree.put(&format!("sys/fs/cgroup/{file}"), "");
        assert_refused(
            &tree,
            Mechanism::Cpuset,
            &[file, "container", "remedy: run it in the guest"],
        );
    }
}

#[test]
fn odd_trees_are_refused_or_read_without_a_panic() {
    let new = |tree: &Tree, by| Fold::new(tree.roots(), by, step(), Mode::Dry, || tree.now);
    let tree = Tree::new(4, 1);
    tree.put("sys/fs/cgroup/cgroup.controllers", "cpu");
    let why = new(&tree, Mechanism::Cpuset).unwrap_err();
    assert!(
        matches!(&why, FoldError::Missing { .. }) && why.to_string().contains("remedy"),
        "{why}"
    );
    tree.put("sys/fs/cgroup/cgroup.controllers", "cpuset");
    fs::remove_file(tree.path("sys/fs/cgroup/cgroup.subtree_control")).unwrap();
    assert!(new(&tree, Mechanism::Cpuset).is_ok(), "a dry run writes nothing");
    let mode = Mode::Apply(tree.journal().unwrap());
    let applied = Fold::new(tree.roots(), Mechanism::Cpuset, step(), mode, || tree.now);
    assert!(matches!(applied.unwrap_err(), FoldError::Missing { .. }));
    tree.put("sys/devices/system/cpu/isolated", "0-3");
    assert!(matches!(new(&tree, Mechanism::Hotplug).unwrap_err(), FoldError::Missing { .. }));
    tree.put("sys/devices/system/cpu/online", "nonsense");
    assert!(matches!(new(&tree, Mechanism::Hotplug).unwrap_err(), FoldError::Missing { .. }));
    fs::remove_dir_all(tree.path("proc")).unwrap();
    assert!(new(&tree, Mechanism::Hotplug).is_err());

    // Counters that go back, CPUs without a line, an empty file, siblings that contradict each other.
    let mut tree = Tree::new(4, 2);
    tree.put("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-99");
    tree.put("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "x");
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    tree.busy = vec![1000; 4];
    tree.decide(&mut fold, 0, 0);
    tree.busy = vec![0; 4];
    assert_eq!(tree.decide(&mut fold, 0, 0).time.busy_ns, 0);
    (tree.busy, tree.steal) = (vec![u64::MAX / 2; 4], vec![u64::MAX / 2; 4]);
    tree.decide(&mut fold, 0, 0);
    tree.put("proc/stat", "cpu2 1 1 1 1 1 1 1 1");
    tree.now += SECOND;
    assert!(fold.look(|| tree.now).unwrap().decision.is_some());
    fs::write(tree.path("proc/stat"), "").unwrap();
    tree.now += SECOND;
    assert_eq!(fold.look(|| tree.now).unwrap(), Evaluation::default());
}

#[test]
fn the_cpus_are_those_that_tasks_may_use() {
    let tree = Tree::new(4, 2);
    let all = || cpus::show(&Layout::read(&tree.roots()).unwrap().all());
    tree.put("sys/devices/system/cpu/isolated", "1");
    assert_eq!(all(), "0,2-3");
    // A root cgroup that does not say is not one without CPUs.
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "");
    assert_eq!(all(), "0,2-3");
}

#[test]
fn threads_with_affinities_that_the_kernel_forgets_are_found() {
    let tree = Tree::new(4, 1);
    let thread = |pid: u32, tid: u32, parent: u32, cpus: &str, cgroup: &str| {
        let task = format!("proc/{pid}/task/{tid}");
        let status =
            format!("Name:\tt{tid}\nPPid:\t{parent}\nCpus_allowed_list:\t{cpus}\nMems:\t0");
        tree.put(&format!("{task}/status"), &status);
        tree.put(&format!("{task}/cgroup"), &format!("1:name=x:/\n0::/{cgroup}"));
    };
    tree.put("sys/fs/cgroup/user.slice/cpuset.cpus.effective", "0-1");
    thread(10, 10, 1, "0-3", "system.slice/a.service");
    thread(10, 11, 1, "1", "system.slice/a.service");
    thread(12, 12, 1, "0-1", "user.slice/deep/er");
    thread(13, 13, 1, "0-63", "system.slice");
    thread(14, 14, 2, "1", "");
    thread(15, 15, 1, "2", "");
    tree.put("proc/16/task/16/status", "nonsense");
    let layout = Layout::read(&tree.roots()).unwrap();
    let tids = |by| pinned(&tree.roots(), by, &layout).iter().map(|p| p.tid).collect::<Vec<_>>();
    assert_eq!(tids(Mechanism::Cpuset), Vec::<u32>::new(), "6.12 keeps them");
    tree.put("proc/sys/kernel/osrelease", "6.2.0");
    assert_eq!(tids(Mechanism::Cpuset), Vec::<u32>::new(), "it is the first that keeps them");
    tree.put("proc/sys/kernel/osrelease", "6.1.0-56-cloud-amd64");
    assert_eq!((tids(Mechanism::Cpuset), tids(Mechanism::Hotplug)), (vec![11], vec![11, 15]));
    // A CPU that all threads lack was not excluded by a thread.
    tree.put("sys/devices/system/cpu/isolated", "3");
    thread(17, 17, 1, "0-2", "system.slice");
    thread(18, 18, 1, "3", "system.slice");
    let layout = Layout::read(&tree.roots()).unwrap();
    let found = pinned(&tree.roots(), Mechanism::Hotplug, &layout);
    assert_eq!(found.iter().map(|p| p.tid).collect::<Vec<_>>(), [11, 15, 18]);
}
