//! A guest that folds, on trees of its files.
#![cfg(target_os = "linux")]

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vcoop_guest_governor::{
    By, Decision, Fold, FoldError, Journal, Layout, Look, Mode, Roots, cpus, pinned, restore,
};
use vcoop_policy::govern::{GovernorConfig, Kind};
use vcoop_service::FolderError;
use vcoop_testing::Tree as Files;

/// A guest's files, and the folder of its journal.
struct Tree {
    files: Files,
    now: Instant,
    busy: Vec<u64>,
    steal: Vec<u64>,
}

impl Deref for Tree {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.files
    }
}

const SECOND: Duration = Duration::from_secs(1);

impl Tree {
    /// A guest with so many CPUs, with two slices.
    fn new(cpus: usize, threads: usize) -> Self {
        let (files, counters) = (Files::default(), vec![0; cpus]);
        let tree = Self { files, now: Instant::now(), busy: counters.clone(), steal: counters };
        let list = format!("0-{}", cpus - 1);
        tree.put("sys/devices/system/cpu/online", &list);
        tree.put("sys/devices/system/cpu/isolated", "");
        tree.put("proc/sys/kernel/osrelease", "6.12.1-cloud");
        tree.put("proc/sys/kernel/random/boot_id", "boot");
        tree.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io");
        tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu");
        tree.put("sys/fs/cgroup/cpuset.cpus.effective", &list);
        for cpu in 0..cpus {
            let core = cpu - cpu % threads;
            let siblings = format!("{core}-{}", core + threads - 1);
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            tree.put(&format!("{topology}/thread_siblings_list"), &siblings);
            if cpu > 0 {
                tree.put(&format!("sys/devices/system/cpu/cpu{cpu}/online"), "1");
            }
        }
        tree.cgroup("system.slice", "");
        tree.cgroup("user.slice", "");
        tree.stat();
        tree
    }

    fn cgroup(&self, name: &str, cpus: &str) {
        self.put(&format!("sys/fs/cgroup/{name}/cpuset.cpus"), cpus);
        self.put(&format!("sys/fs/cgroup/{name}/cpuset.cpus.partition"), "member");
    }

    fn cpus_of(&self, name: &str) -> String {
        self.get(&format!("sys/fs/cgroup/{name}/cpuset.cpus"))
    }

    #[track_caller]
    fn assert_cpus(&self, of: [(&str, &str); 2]) {
        for (name, cpus) in of {
            assert_eq!(self.cpus_of(name), format!("{cpus}\n"), "{name}");
        }
    }

    fn stat(&self) {
        let online = cpus::parse(&self.get("sys/devices/system/cpu/online")).unwrap();
        let line = |cpu: u32| {
            let (busy, steal) = (self.busy[cpu as usize], self.steal[cpu as usize]);
            format!("cpu{cpu} {busy} 0 0 0 0 0 0 {steal} 0 0\n")
        };
        let lines: String = online.into_iter().map(line).collect();
        self.put("proc/stat", &format!("cpu  1 1 1 1 1 1 1 1 1 1\n{lines}intr 1"));
    }

    fn roots(&self) -> Roots {
        Roots::in_tree(self.root())
    }

    fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    fn journal(&self) -> Result<Journal, FoldError> {
        Journal::open(&self.run_dir(), &self.roots()).map(|(journal, _)| journal)
    }

    fn fold(&self, by: By, config: GovernorConfig) -> Fold {
        let mode = Mode::Apply(self.journal().unwrap());
        Fold::new(self.roots(), by, config, mode, || self.now).unwrap()
    }

    /// A second later, in which every CPU ran and was kept from running for so many ticks.
    fn look(&mut self, fold: &mut Fold, busy: u64, steal: u64) -> Look {
        self.now += SECOND;
        self.busy.iter_mut().for_each(|ticks| *ticks += busy);
        self.steal.iter_mut().for_each(|ticks| *ticks += steal);
        self.stat();
        fold.look(|| self.now).unwrap()
    }

    fn decide(&mut self, fold: &mut Fold, busy: u64, steal: u64) -> Decision {
        let look = self.look(fold, busy, steal);
        look.decision.expect("there is something to go by")
    }

    /// Every file but the journal's, with its content.
    fn files(&self) -> Vec<(PathBuf, String)> {
        let mut folders = vec![self.path("sys"), self.path("proc/sys")];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push((path.clone(), fs::read_to_string(path).unwrap()));
                }
            }
        }
        files.sort();
        files
    }
}

fn step() -> GovernorConfig {
    GovernorConfig::new(Kind::Step)
}

#[test]
fn a_guest_folds_by_steal_and_has_all_back_at_the_end() {
    let mut tree = Tree::new(8, 2);
    tree.cgroup("own.slice", "4-7");
    let before = tree.files();
    let mut fold = tree.fold(By::Cpuset, step());
    // No steal: nothing is touched.
    assert!(!tree.decide(&mut fold, 50, 0).is_change());
    assert_eq!(tree.files(), before);
    // One core less, of two CPUs.
    let decision = tree.decide(&mut fold, 50, 20);
    let shown = [&decision.before, &decision.after].map(cpus::show);
    assert_eq!(shown, ["0-7", "0-5"]);
    assert_eq!(
        (decision.steal_bp, decision.why.as_str()),
        (2000, "steal is above 5 %: one core less")
    );
    assert_eq!(decision.time.busy_ns, 8 * 500_000_000);
    tree.assert_cpus([("system.slice", "0-5"), ("own.slice", "4-5")]);
    // Between the thresholds all stays; a cgroup that is new follows.
    tree.cgroup("machine.slice", "");
    assert!(!tree.decide(&mut fold, 50, 3).is_change());
    assert_eq!(tree.cpus_of("machine.slice"), "0-5\n");
    // Nothing of what one had would be left: it has all of it back.
    let look = tree.look(&mut fold, 50, 20);
    assert!(
        look.notes
            .iter()
            .any(|n| n.contains("own.slice/cpuset.cpus is left alone: it was given CPUs 4-7")),
        "{look:?}"
    );
    tree.assert_cpus([("system.slice", "0-3"), ("own.slice", "4-7")]);
    // Wider again, to the full width: then nothing of ours is left, nor a journal.
    for _ in 0..2 {
        assert!(tree.decide(&mut fold, 50, 0).is_change());
    }
    fs::remove_dir_all(tree.path("sys/fs/cgroup/machine.slice")).unwrap();
    assert_eq!(tree.files(), before);
    assert!(!tree.path("run/guest.journal").exists());
    tree.decide(&mut fold, 50, 20);
    assert!(tree.path("run/guest.journal").exists());
    drop(fold);
    assert_eq!(tree.files(), before);
    assert!(!tree.path("run/guest.journal").exists());
}

#[test]
fn the_proportional_governor_folds_at_once() {
    let mut tree = Tree::new(8, 1);
    let mut fold = tree.fold(By::Cpuset, GovernorConfig::new(Kind::Proportional));
    let decision = tree.decide(&mut fold, 50, 50);
    assert_eq!((decision.after.len(), decision.steal_bp), (4, 5000));
    assert_eq!(decision.why, "steal is above 5 %");
    assert_eq!(tree.cpus_of("user.slice"), "0-3\n");
}

#[test]
fn what_others_set_meanwhile_stays() {
    let mut tree = Tree::new(4, 1);
    let mut fold = tree.fold(By::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    assert_eq!(tree.cpus_of("system.slice"), "0-2\n");
    tree.put("sys/fs/cgroup/system.slice/cpuset.cpus", "1");
    tree.put("sys/fs/cgroup/user.slice/cpuset.cpus.partition", "root");
    let look = tree.look(&mut fold, 50, 20);
    let said = |text: &str| look.notes.iter().any(|note| note.contains(text));
    assert!(said("system.slice/cpuset.cpus was set by somebody else to 1: left alone"), "{look:?}");
    assert!(said("user.slice/cpuset.cpus was set by somebody else"), "{look:?}");
    assert_eq!(tree.look(&mut fold, 50, 20).notes, Vec::<String>::new(), "it is said once");
    assert_eq!(tree.cpus_of("user.slice"), "0-2\n");
    let undone = fold.undo().unwrap();
    assert_eq!((undone.restored.len(), undone.failed.len()), (0, 0));
    tree.assert_cpus([("system.slice", "1"), ("user.slice", "0-2")]);
}

#[test]
fn partitions_are_not_touched() {
    let mut tree = Tree::new(8, 1);
    tree.cgroup("rt.slice", "7");
    tree.put("sys/fs/cgroup/rt.slice/cpuset.cpus.partition", "isolated");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0-6");
    // As kernels list it that count such partitions among the isolated CPUs.
    tree.put("sys/devices/system/cpu/isolated", "7");
    let mut fold = tree.fold(By::Cpuset, step());
    let look = tree.look(&mut fold, 50, 20);
    let decision = look.decision.unwrap();
    let shown = [&decision.before, &decision.after].map(cpus::show);
    assert_eq!(shown, ["0-6", "0-5"]);
    assert!(look.notes.contains(
        &"rt.slice/cpuset.cpus is left alone: it is a partition with CPUs of its own".to_owned()
    ));
    tree.assert_cpus([("rt.slice", "7"), ("user.slice", "0-5")]);
}

#[track_caller]
fn assert_refused(tree: &Tree, by: By, says: &[&str]) {
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
    assert_refused(&tree, By::Cpuset, &says);
    assert_refused(&tree, By::Hotplug, &says);
    // No cgroup has cpusets: hotplug is no change of anybody's.
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    assert_refused(&tree, By::Cpuset, &says);
    let mut fold = tree.fold(By::Hotplug, step());
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
    assert_refused(&tree, By::Hotplug, &["cgroup v1", "remedy: boot with cgroup v2"]);
    // Neither is it the remedy where cgroup v2 has no cpusets.
    fs::remove_file(tree.path("sys/fs/cgroup/cgroup.controllers")).unwrap();
    let why = Fold::new(tree.roots(), By::Cpuset, step(), Mode::Dry, || tree.now).unwrap_err();
    assert!(!why.to_string().contains("hotplug"), "{why}");
    // That of the root gets its CPUs back, and cgroup v2 gives them back.
    for line in ["cpuset\t4\t1\t1", "cpuset\t0\t80\t1", "cpuset", ""] {
        cgroups(line);
        assert!(Fold::new(tree.roots(), By::Hotplug, step(), Mode::Dry, || tree.now).is_ok());
        assert_refused(&tree, By::Cpuset, &["or --by hotplug"]);
    }
}

#[test]
fn the_root_of_a_cgroup_namespace_is_not_taken_for_the_guests() {
    for file in ["cgroup.type", "cpuset.cpus"] {
        let tree = Tree::new(4, 1);
        tree.put(&format!("sys/fs/cgroup/{file}"), "");
        assert_refused(&tree, By::Cpuset, &[file, "container", "remedy: run it in the guest"]);
    }
}

#[test]
fn hotplug_takes_the_highest_cores_and_leaves_what_others_bring_back() {
    let mut tree = Tree::new(8, 2);
    let before = tree.files();
    let online = |tree: &Tree| {
        let state = |cpu| tree.get(&format!("sys/devices/system/cpu/cpu{cpu}/online"));
        (1..8).map(state).map(|text| text.trim().to_owned()).collect::<String>()
    };
    let mut fold = tree.fold(By::Hotplug, step());
    tree.decide(&mut fold, 50, 20);
    assert_eq!(online(&tree), "1111100");
    tree.put("sys/devices/system/cpu/online", "0-5");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0-5");
    tree.decide(&mut fold, 50, 40);
    assert_eq!(online(&tree), "1110000");
    // Somebody brings one back.
    tree.put("sys/devices/system/cpu/cpu6/online", "1");
    tree.put("sys/devices/system/cpu/online", "0-3,6");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0-3,6");
    let look = tree.look(&mut fold, 50, 40);
    assert!(
        look.notes.contains(&"cpu6/online was set by somebody else to 1: left alone".to_owned())
    );
    assert_eq!(online(&tree), "1000010");
    drop(fold);
    assert_eq!(tree.get("sys/devices/system/cpu/cpu3/online"), "1\n");
    tree.put("sys/devices/system/cpu/online", "0-7");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0-7");
    assert_eq!(tree.files(), before);
}

#[test]
fn what_a_killed_process_left_is_undone_once() {
    let mut tree = Tree::new(4, 1);
    tree.cgroup("gone.slice", "");
    let mut fold = tree.fold(By::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    // As `kill -9`: nothing is dropped, and the kernel releases the lock.
    let journal = tree.get("run/guest.journal");
    drop(fold);
    tree.put("run/guest.journal", journal.trim());
    fs::set_permissions(
        tree.path("run/guest.journal"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    tree.put("sys/fs/cgroup/system.slice/cpuset.cpus", "0-2");
    tree.put("sys/fs/cgroup/user.slice/cpuset.cpus", "0-1");
    fs::remove_dir_all(tree.path("sys/fs/cgroup/gone.slice")).unwrap();
    let undone = restore(&tree.run_dir(), &tree.roots()).unwrap();
    assert_eq!(undone.restored, ["system.slice/cpuset.cpus"]);
    assert_eq!(undone.gone, ["gone.slice/cpuset.cpus"]);
    assert_eq!(undone.foreign, ["user.slice/cpuset.cpus has \"0-1\", which is not ours"]);
    tree.assert_cpus([("system.slice", ""), ("user.slice", "0-1")]);
    assert_eq!(restore(&tree.run_dir(), &tree.roots()).unwrap(), Default::default());
    assert_eq!(restore(&tree.path("none"), &tree.roots()).unwrap(), Default::default());
}

#[test]
fn a_journal_of_an_earlier_boot_is_about_nothing_and_a_strange_one_is_refused() {
    let mut tree = Tree::new(4, 1);
    let mut fold = tree.fold(By::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    let journal = tree.get("run/guest.journal");
    drop(fold);
    tree.put("sys/fs/cgroup/system.slice/cpuset.cpus", "0-2");
    let put = |text: &str| {
        tree.put("run/guest.journal", text);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(tree.path("run/guest.journal"), mode).unwrap();
    };
    put(&journal.replace("\"boot\":\"boot\"", "\"boot\":\"other\""));
    assert_eq!(restore(&tree.run_dir(), &tree.roots()).unwrap(), Default::default());
    assert_eq!(tree.cpus_of("system.slice"), "0-2\n");
    for (strange, says) in [
        ("", "EOF"),
        ("{", "EOF"),
        (&journal.replace("system.slice", "../../x"), "no name of a cgroup"),
        (&journal.replace("\"cpus\":[]", "\"cpus\":[0]"), "CPU 0 is never taken offline"),
        (&journal.replace("journal/1", "journal/2"), "does not read"),
    ] {
        put(strange);
        let why = restore(&tree.run_dir(), &tree.roots()).unwrap_err().to_string();
        assert!(why.contains(says), "{strange}: {why}");
        assert_eq!(tree.cpus_of("system.slice"), "0-2\n");
    }
}

#[test]
fn two_refuse_each_other() {
    let tree = Tree::new(4, 1);
    let fold = tree.fold(By::Cpuset, step());
    let why = tree.journal().unwrap_err();
    assert!(matches!(&why, FoldError::Folder(FolderError::Busy(..))), "{why}");
    // Also with a journal elsewhere, and by other means.
    let elsewhere = || Journal::open(&tree.path("elsewhere"), &tree.roots());
    let why = elsewhere().unwrap_err();
    assert!(matches!(why, FoldError::Busy { .. }) && why.to_string().contains("remedy"), "{why}");
    drop(fold);
    assert!(tree.journal().is_ok());
    fs::remove_dir_all(tree.path("sys/fs/cgroup")).unwrap();
    let held = tree.journal().unwrap();
    assert!(matches!(elsewhere().unwrap_err(), FoldError::Busy { .. }));
    drop(held);
    assert!(elsewhere().is_ok());
}

/// Before Linux 6.10 the root cgroup has a CPU a moment later than it is online.
#[test]
fn cpus_that_are_brought_back_are_waited_for() {
    let mut tree = Tree::new(4, 1);
    let effective = "sys/fs/cgroup/cpuset.cpus.effective";
    let mut fold = tree.fold(By::Hotplug, step());
    tree.decide(&mut fold, 50, 20);
    tree.put(effective, "0-2");
    let path = tree.path(effective);
    let kernel = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60));
        fs::write(path.with_extension("new"), "0-3\n").unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    });
    fold.undo().unwrap();
    assert_eq!(cpus::show(&Layout::read(&tree.roots()).unwrap().all()), "0-3");
    kernel.join().unwrap();
    // Not for ever.
    tree.put(effective, "0-2");
    let began = Instant::now();
    tree.decide(&mut fold, 50, 20);
    tree.decide(&mut fold, 50, 20);
    fold.undo().unwrap();
    assert!(began.elapsed() < 5 * SECOND);
}

#[test]
fn a_panic_undoes_everything() {
    let tree = Tree::new(4, 1);
    let before = tree.files();
    let mut tree = tree;
    let mut fold = tree.fold(By::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    assert_ne!(tree.files(), before);
    let died = std::thread::spawn(move || {
        let _fold = fold;
        panic!("on purpose");
    });
    assert!(died.join().is_err());
    assert_eq!(tree.files(), before);
}

#[test]
fn other_cpus_start_it_anew() {
    let mut tree = Tree::new(8, 1);
    let before = tree.files();
    let mut fold = tree.fold(By::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    tree.put("sys/devices/system/cpu/online", "0-3");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0-3");
    let decision = tree.decide(&mut fold, 50, 20);
    assert_eq!(
        (cpus::show(&decision.after), decision.why.as_str()),
        ("0-3".into(), "the guest's CPUs have changed")
    );
    tree.put("sys/devices/system/cpu/online", "0-7");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0-7");
    assert_eq!(tree.files(), before);
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_it_would_do_first() {
    let mut tree = Tree::new(8, 1);
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    fs::remove_file(tree.path("sys/fs/cgroup/user.slice/cpuset.cpus")).unwrap();
    let before = tree.files();
    let config = GovernorConfig::new(Kind::Proportional);
    let mut fold = Fold::new(tree.roots(), By::Cpuset, config, Mode::Dry, || tree.now).unwrap();
    let decision = tree.decide(&mut fold, 50, 50);
    assert_eq!((decision.before.len(), decision.after.len()), (8, 4));
    // The same again is no decision: nothing has changed, so it starts from all CPUs each time.
    assert!(!tree.decide(&mut fold, 50, 50).is_change());
    assert_eq!(tree.decide(&mut fold, 50, 0).after.len(), 8);
    let changes = fold.plan(&decision.after).unwrap().changes;
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let expected = [
        "cgroup.subtree_control: +cpuset",
        "system.slice/cpuset.cpus: empty -> 0-3",
        "user.slice/cpuset.cpus: empty -> 0-3",
    ];
    assert_eq!(changes, expected);
    drop(fold);
    assert_eq!(tree.files(), before);
    assert!(!tree.run_dir().exists());
}

#[test]
fn the_controller_is_enabled_only_where_it_is_not() {
    let mut tree = Tree::new(4, 1);
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    let mut fold = tree.fold(By::Cpuset, step());
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "cpu\n");
    tree.decide(&mut fold, 50, 20);
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "+cpuset\n");
    // As the kernel has it then; and somebody uses it by the end.
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu");
    tree.put("sys/fs/cgroup/user.slice/cpuset.mems", "0");
    let undone = fold.undo().unwrap();
    assert_eq!(undone.foreign, ["cgroup.subtree_control keeps cpuset, which others use by now"]);
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "cpuset cpu\n");
}

#[test]
fn a_controller_that_somebody_disables_is_enabled_again() {
    let mut tree = Tree::new(4, 1);
    tree.cgroup("own.slice", "0-2");
    let mut fold = tree.fold(By::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    tree.assert_cpus([("user.slice", "0-2"), ("own.slice", "0-2")]);
    // No file is left; those of the tree are what is there once it is enabled again.
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    for slice in ["own.slice", "system.slice", "user.slice"] {
        tree.cgroup(slice, "");
    }
    let said = |look: Look| look.notes.iter().filter(|n| n.contains("enabled again")).count();
    assert_eq!(said(tree.look(&mut fold, 50, 3)), 1);
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "+cpuset\n");
    tree.assert_cpus([("user.slice", "0-2"), ("own.slice", "0-2")]);
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu");
    assert_eq!(said(tree.look(&mut fold, 50, 3)), 0);
    // Nothing of what was there before is believed any more: the controller is ours now.
    assert_eq!(fold.undo().unwrap().foreign, Vec::<String>::new());
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "-cpuset\n");
}

#[test]
fn odd_trees_are_refused_or_read_without_a_panic() {
    let new = |tree: &Tree, by| Fold::new(tree.roots(), by, step(), Mode::Dry, || tree.now);
    let tree = Tree::new(4, 1);
    tree.put("sys/fs/cgroup/cgroup.controllers", "cpu");
    let why = new(&tree, By::Cpuset).unwrap_err();
    assert!(
        matches!(&why, FoldError::Missing { .. }) && why.to_string().contains("remedy"),
        "{why}"
    );
    tree.put("sys/devices/system/cpu/isolated", "0-3");
    assert!(matches!(new(&tree, By::Hotplug).unwrap_err(), FoldError::Missing { .. }));
    tree.put("sys/devices/system/cpu/online", "nonsense");
    assert!(matches!(new(&tree, By::Hotplug).unwrap_err(), FoldError::Missing { .. }));
    fs::remove_dir_all(tree.path("proc")).unwrap();
    assert!(new(&tree, By::Hotplug).is_err());

    // Counters that go back, CPUs without a line, an empty file, siblings that contradict each other.
    let mut tree = Tree::new(4, 2);
    tree.put("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-99");
    tree.put("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "x");
    let mut fold = tree.fold(By::Cpuset, step());
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
    assert_eq!(fold.look(|| tree.now).unwrap(), Look::default());
}

#[test]
fn a_guest_of_4096_cpus_folds() {
    let mut tree = Tree::new(4096, 2);
    let mut fold = tree.fold(By::Cpuset, GovernorConfig::new(Kind::Proportional));
    let decision = tree.decide(&mut fold, 75, 25);
    assert_eq!((decision.before.len(), cpus::show(&decision.after)), (4096, "0-3071".to_owned()));
    assert_eq!(tree.cpus_of("user.slice"), "0-3071\n");
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
    assert_eq!(tids(By::Cpuset), Vec::<u32>::new(), "6.12 keeps them");
    tree.put("proc/sys/kernel/osrelease", "6.1.0-56-cloud-amd64");
    assert_eq!((tids(By::Cpuset), tids(By::Hotplug)), (vec![11], vec![11, 15]));
}

#[test]
fn a_guest_uses_what_its_host_asks_for_in_whole_cores() {
    let mut tree = Tree::new(8, 2);
    let config = GovernorConfig { floor: 3, ..GovernorConfig::new(Kind::HostHint) };
    let refused = Fold::new(tree.roots(), By::Cpuset, config, Mode::Dry, || tree.now).unwrap_err();
    assert!(matches!(refused, FoldError::Missing { .. }), "{refused}");

    let preferred = "sys/module/vcoop/parameters/preferred";
    tree.put(preferred, "");
    let mut fold = tree.fold(By::Cpuset, config);
    for (asked, used, why) in [
        ("", "0-7", "the host does not say"),
        ("0-4", "0-5", "the host asks for 5"),
        ("0-3", "0-3", "the host asks for 4"),
        // Its own floor counts, in whole cores, and what is no list asks for nothing.
        ("0", "0-3", "the host asks for 1"),
        ("nonsense", "0-7", "the host does not say"),
        ("64-127", "0-7", "the host does not say"),
        ("0-63", "0-7", "the host asks for 8"),
        ("0-1", "0-3", "the host asks for 2"),
    ] {
        tree.put(preferred, asked);
        let decision = tree.decide(&mut fold, 1, 0);
        assert_eq!((cpus::show(&decision.after).as_str(), &*decision.why), (used, why), "{asked}");
    }
    assert_eq!(tree.cpus_of("system.slice"), "0-3\n");
    // The driver is unloaded.
    fs::remove_file(tree.path(preferred)).unwrap();
    let decision = tree.decide(&mut fold, 1, 0);
    assert_eq!(decision.why, "the host does not say");
    assert_eq!(decision.after.len(), 8);
}

#[test]
fn a_late_look_is_followed_by_a_whole_interval() {
    let mut tree = Tree::new(8, 1);
    let config = GovernorConfig::new(Kind::Proportional);
    let mut fold = tree.fold(By::Cpuset, config);
    let every = Duration::from_nanos(config.interval_ns);
    let (last, ms) = (tree.now, Duration::from_millis);
    let next = |late: u64| fold.next_look(last, last + ms(late)) - last;
    assert_eq!([0, 10, 125].map(next), [every; 3]);
    assert_eq!([126, 400].map(next), [every + ms(126), every + ms(400)]);

    // A look that comes at once all the same: one tick of steal of one CPU is all it would see.
    tree.now += SECOND;
    tree.steal[3] += 1;
    tree.stat();
    assert!(!fold.look(|| tree.now).unwrap().decision.unwrap().is_change());
    tree.now += ms(1);
    tree.steal.iter_mut().for_each(|ticks| *ticks += 1);
    tree.stat();
    assert_eq!(fold.look(|| tree.now).unwrap(), Look::default());
    // What it did not look at counts by the next one.
    tree.now += ms(249);
    tree.busy.iter_mut().for_each(|ticks| *ticks += 20);
    tree.stat();
    let decision = fold.look(|| tree.now).unwrap().decision.unwrap();
    let steal_ns = decision.time.steal_ns;
    assert_eq!((decision.elapsed_ns, steal_ns), (250_000_000, 8 * 10_000_000));
    assert_eq!(decision.after.len(), 8);
}

#[test]
fn the_time_of_a_look_is_that_of_the_counters() {
    let mut tree = Tree::new(2, 1);
    let mut fold = tree.fold(By::Cpuset, step());
    tree.now += SECOND;
    // It is preempted for 100 ms as it reads them, and then not again.
    let calls = std::cell::Cell::new(0);
    let clock = || {
        calls.set(calls.get() + 1);
        tree.now + Duration::from_millis(if calls.get() > 1 { 100 } else { 0 })
    };
    let decision = fold.look(clock).unwrap().decision.unwrap();
    assert_eq!((decision.elapsed_ns, calls.get()), (1_100_000_000, 4));
    // Whenever it reads them.
    let calls = std::cell::Cell::new(0);
    let clock = || {
        calls.set(calls.get() + 1);
        tree.now + SECOND + Duration::from_millis(100 * calls.get())
    };
    let decision = fold.look(clock).unwrap().decision.unwrap();
    assert_eq!((decision.elapsed_ns, calls.get()), (1_450_000_000, 6));
}

/// A file that the kernel does not let be written.
fn refuse(tree: &Tree, file: &str) {
    let path = tree.path(file);
    let kept = format!("{file}.kept");
    tree.put(&kept, tree.get(file).trim());
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(tree.path(&kept), &path).unwrap();
}

#[test]
fn the_width_is_what_the_kernel_has_let_be_done() {
    let mut tree = Tree::new(4, 1);
    let slices = ["sys/fs/cgroup/system.slice/cpuset.cpus", "sys/fs/cgroup/user.slice/cpuset.cpus"];
    // It has none of the CPUs that are used, and is left alone: it is not what keeps the guest wide.
    tree.cgroup("own.slice", "3");
    slices.iter().for_each(|file| refuse(&tree, file));
    let mut fold = tree.fold(By::Cpuset, step());
    for looks in 1..=2 {
        let look = tree.look(&mut fold, 50, 20);
        let decision = look.decision.unwrap();
        assert_eq!([&decision.before, &decision.after].map(cpus::show), ["0-3", "0-3"]);
        assert_eq!(decision.why, "steal is above 5 %");
        let numbers = fold.numbers();
        assert_eq!((numbers.width, numbers.decisions, numbers.refusals), (4, 0, 2 * looks));
        assert_eq!(look.notes.len(), if looks == 1 { 3 } else { 0 }, "{:?}", look.notes);
    }
    // One of them can be written: the other one's tasks use all CPUs still.
    fs::remove_file(tree.path(slices[0])).unwrap();
    tree.put(slices[0], "");
    assert!(!tree.decide(&mut fold, 50, 20).is_change());
    assert_eq!((tree.cpus_of("system.slice").as_str(), fold.numbers().width), ("0-2\n", 4));
    // Both: it goes on from there.
    fs::remove_file(tree.path(slices[1])).unwrap();
    tree.put(slices[1], "");
    let decision = tree.decide(&mut fold, 50, 20);
    assert_eq!((cpus::show(&decision.after), fold.numbers().width), ("0-2".to_owned(), 3));
    assert_eq!(fold.numbers().decisions, 1);

    // Without the controller nothing can be done at all.
    drop(fold);
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    let mut fold = tree.fold(By::Cpuset, step());
    refuse(&tree, "sys/fs/cgroup/cgroup.subtree_control");
    assert!(!tree.decide(&mut fold, 50, 20).is_change());
    assert_eq!((fold.numbers().width, fold.numbers().refusals), (4, 1));
}

#[test]
fn a_cpu_that_does_not_go_offline_is_in_use() {
    let mut tree = Tree::new(4, 2);
    let file = "sys/devices/system/cpu/cpu2/online";
    refuse(&tree, file);
    let mut fold = tree.fold(By::Hotplug, step());
    let decision = tree.decide(&mut fold, 50, 20);
    assert_eq!([&decision.before, &decision.after].map(cpus::show), ["0-3", "0-2"]);
    assert_eq!((fold.numbers().width, fold.numbers().refusals), (3, 1));
}
