//! A guest that folds, on trees of its files.

mod journal;
mod looks;
mod refusals;

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vcoop_guest_governor::{
    Decision, Evaluation, Fold, FoldError, Journal, Mechanism, Mode, Roots, cpus,
};
use vcoop_policy::govern::{GovernorConfig, Kind};
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
        tree.online(&list);
        tree.put("sys/devices/system/cpu/isolated", "");
        tree.put("sys/bus/cpu/uevent", "");
        tree.put("proc/sys/kernel/osrelease", "6.12.1-cloud");
        tree.put("proc/sys/kernel/random/boot_id", "boot");
        tree.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io");
        tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu");
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

    /// One that has folded by a step.
    fn folded(cpus: usize, by: Mechanism) -> (Self, Fold) {
        let mut tree = Self::new(cpus, 1);
        let mut fold = tree.fold(by, step());
        tree.decide(&mut fold, 50, 20);
        (tree, fold)
    }

    fn online(&self, cpus: &str) {
        self.put("sys/devices/system/cpu/online", cpus);
        self.put("sys/fs/cgroup/cpuset.cpus.effective", cpus);
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

    fn fold(&self, by: Mechanism, config: GovernorConfig) -> Fold {
        let mode = Mode::Apply(self.journal().unwrap());
        Fold::new(self.roots(), by, config, mode, || self.now).unwrap()
    }

    /// A second later, in which every CPU ran and was kept from running for so many ticks.
    fn look(&mut self, fold: &mut Fold, busy: u64, steal: u64) -> Evaluation {
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
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    assert_eq!((fold.numbers().width, fold.numbers().cpus), (8, 8));
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
    assert_eq!((fold.numbers().steal_ratio, fold.numbers().width), (0.2, 6));
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
    let mut fold = tree.fold(Mechanism::Cpuset, GovernorConfig::new(Kind::Proportional));
    let decision = tree.decide(&mut fold, 50, 50);
    assert_eq!((decision.after.len(), decision.steal_bp), (4, 5000));
    assert_eq!(decision.why, "steal is above 5 %");
    assert_eq!(tree.cpus_of("user.slice"), "0-3\n");
    for (busy, steal, used, why) in [
        (100, 0, "0-3", "steal is not above 2 %"),
        (100, 0, "0-4", "steal is not above 2 %: tries one core more"),
        (80, 20, "0-3", "steal came back with one core more"),
        (100, 0, "0-3", "steal is not above 2 %"),
        (100, 0, "0-3", "steal is not above 2 %"),
        (100, 0, "0-3", "steal is not above 2 %"),
        (100, 0, "0-4", "steal is not above 2 %: tries one core more"),
        (100, 0, "0-7", "steal is not above 2 % with one core more: uses all"),
    ] {
        let decision = tree.decide(&mut fold, busy, steal);
        assert_eq!((cpus::show(&decision.after).as_str(), &*decision.why), (used, why));
    }
}

#[test]
fn what_others_set_meanwhile_stays() {
    let (mut tree, mut fold) = Tree::folded(4, Mechanism::Cpuset);
    assert_eq!(tree.cpus_of("system.slice"), "0-2\n");
    tree.put("sys/fs/cgroup/system.slice/cpuset.cpus", "1");
    tree.put("sys/fs/cgroup/user.slice/cpuset.cpus.partition", "root");
    // They are left alone, so their CPUs are not what keeps the guest wide.
    tree.cgroup("own.slice", "3");
    tree.cgroup("odd.slice", "nonsense");
    let look = tree.look(&mut fold, 50, 20);
    assert_eq!(cpus::show(&look.decision.as_ref().unwrap().after), "1");
    assert_eq!((fold.numbers().refusals, tree.cpus_of("odd.slice").as_str()), (0, "nonsense\n"));
    // A later process must not take for its own what others may set from now on.
    assert!(!tree.path("run/guest.journal").exists());
    let said = |text: &str| look.notes.iter().any(|note| note.contains(text));
    assert!(said("system.slice/cpuset.cpus was set by somebody else to 1: left alone"), "{look:?}");
    assert!(said("user.slice/cpuset.cpus was set by somebody else"), "{look:?}");
    assert_eq!(tree.look(&mut fold, 50, 20).notes, Vec::<String>::new(), "it is said once");
    assert_eq!(tree.cpus_of("user.slice"), "0-2\n");
    let undone = fold.undo().unwrap();
    assert_eq!((undone.restored.len(), undone.failed.len()), (0, 0));
    tree.assert_cpus([("system.slice", "1"), ("user.slice", "0-2")]);
}

/// As systemd does where a unit asks for cpusets for the first time.
#[test]
fn a_cgroup_that_somebody_widens_counts_as_it_is() {
    let (mut tree, mut fold) = Tree::folded(4, Mechanism::Cpuset);
    tree.decide(&mut fold, 50, 20);
    assert_eq!(fold.numbers().width, 2);
    tree.put("sys/fs/cgroup/user.slice/cpuset.cpus", "");
    assert_eq!(cpus::show(&tree.decide(&mut fold, 50, 3).after), "0-3");
    assert_eq!((tree.cpus_of("system.slice").as_str(), fold.numbers().width), ("0-1\n", 4));
    // It goes on with the others, and lets them go.
    tree.decide(&mut fold, 50, 20);
    assert_eq!(tree.cpus_of("system.slice"), "0\n");
    tree.decide(&mut fold, 50, 3);
    assert_eq!(tree.cpus_of("system.slice"), "0\n");
    tree.decide(&mut fold, 50, 0);
    tree.decide(&mut fold, 50, 0);
    assert_eq!(tree.cpus_of("system.slice"), "0-2\n");
    tree.decide(&mut fold, 50, 0);
    tree.assert_cpus([("system.slice", ""), ("user.slice", "")]);
}

#[test]
fn who_sets_what_was_ours_before_is_somebody_else() {
    let (mut tree, mut fold) = Tree::folded(4, Mechanism::Cpuset);
    tree.decide(&mut fold, 50, 20);
    tree.put("sys/fs/cgroup/user.slice/cpuset.cpus", "0-2");
    let notes = tree.look(&mut fold, 50, 3).notes;
    assert_eq!(notes, ["user.slice/cpuset.cpus was set by somebody else to 0-2: left alone"]);
}

#[test]
fn partitions_are_not_touched() {
    let mut tree = Tree::new(8, 1);
    tree.cgroup("rt.slice", "7");
    tree.put("sys/fs/cgroup/rt.slice/cpuset.cpus.partition", "isolated");
    tree.put("sys/fs/cgroup/cpuset.cpus.effective", "0-6");
    // As kernels list it that count such partitions among the isolated CPUs.
    tree.put("sys/devices/system/cpu/isolated", "7");
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    let look = tree.look(&mut fold, 50, 20);
    let decision = look.decision.unwrap();
    let shown = [&decision.before, &decision.after].map(cpus::show);
    assert_eq!(shown, ["0-6", "0-5"]);
    assert!(look.notes.contains(
        &"rt.slice/cpuset.cpus is left alone: it is a partition with CPUs of its own".to_owned()
    ));
    tree.assert_cpus([("rt.slice", "7"), ("user.slice", "0-5")]);
}

#[test]
fn hotplug_takes_the_highest_cores_and_leaves_what_others_bring_back() {
    let mut tree = Tree::new(8, 2);
    let before = tree.files();
    let online = |tree: &Tree| {
        let state = |cpu| tree.get(&format!("sys/devices/system/cpu/cpu{cpu}/online"));
        (1..8).map(state).map(|text| text.trim().to_owned()).collect::<String>()
    };
    let mut fold = tree.fold(Mechanism::Hotplug, step());
    tree.decide(&mut fold, 50, 20);
    assert_eq!(online(&tree), "1111100");
    tree.online("0-5");
    tree.decide(&mut fold, 50, 40);
    assert_eq!(online(&tree), "1110000");
    // Another program brings one back.
    tree.put("sys/devices/system/cpu/cpu6/online", "1");
    tree.online("0-3,6");
    let look = tree.look(&mut fold, 50, 40);
    assert!(
        look.notes.contains(&"cpu6/online was set by somebody else to 1: left alone".to_owned())
    );
    assert_eq!(online(&tree), "1000010");
    assert_eq!(cpus::show(&look.decision.unwrap().after), "0-1,6");
    // Wider again, by a core.
    tree.online("0-1,6");
    tree.decide(&mut fold, 50, 0);
    assert_eq!(online(&tree), "1110010");
    drop(fold);
    assert_eq!(tree.get("sys/devices/system/cpu/cpu5/online"), "1\n");
    tree.online("0-7");
    assert_eq!(tree.files(), before);
}

#[test]
fn other_cpus_start_it_anew() {
    let mut tree = Tree::new(8, 1);
    let before = tree.files();
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    tree.online("0-3");
    let decision = tree.decide(&mut fold, 50, 20);
    assert_eq!(
        (cpus::show(&decision.after), decision.why.as_str()),
        ("0-3".into(), "the guest's CPUs have changed")
    );
    tree.assert_cpus([("system.slice", ""), ("user.slice", "")]);
    assert_eq!((fold.numbers().width, fold.numbers().cpus), (4, 4));
    let decision = tree.decide(&mut fold, 50, 20);
    assert_eq!(cpus::show(&decision.after), "0-2");
    assert_eq!((decision.elapsed_ns, decision.time.busy_ns), (1_000_000_000, 4 * 500_000_000));
    drop(fold);
    tree.online("0-7");
    assert_eq!(tree.files(), before);
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_it_would_do_first() {
    let mut tree = Tree::new(8, 1);
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    fs::remove_file(tree.path("sys/fs/cgroup/user.slice/cpuset.cpus")).unwrap();
    let before = tree.files();
    let config = GovernorConfig::new(Kind::Proportional);
    let mut fold =
        Fold::new(tree.roots(), Mechanism::Cpuset, config, Mode::Dry, || tree.now).unwrap();
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
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "cpu\n");
    assert_eq!(fold.plan(&fold.layout().all()).unwrap().changes, []);
    // A cgroup that goes as it is written to is no refusal.
    fs::create_dir(tree.path("sys/fs/cgroup/gone.slice")).unwrap();
    assert_eq!(tree.look(&mut fold, 50, 20).notes, Vec::<String>::new());
    assert_eq!(fold.numbers().refusals, 0);
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "+cpuset\n");
}

#[test]
fn a_controller_that_somebody_disables_is_enabled_again() {
    let mut tree = Tree::new(4, 1);
    tree.cgroup("own.slice", "0-2");
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    tree.assert_cpus([("user.slice", "0-2"), ("own.slice", "0-2")]);
    // No file is left; those of the tree are what is there once it is enabled again.
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpu");
    for slice in ["own.slice", "system.slice", "user.slice"] {
        tree.cgroup(slice, "");
    }
    let said = |look: Evaluation| look.notes.iter().filter(|n| n.contains("enabled again")).count();
    assert_eq!(said(tree.look(&mut fold, 50, 3)), 1);
    assert_eq!(tree.get("sys/fs/cgroup/cgroup.subtree_control"), "+cpuset\n");
    tree.assert_cpus([("user.slice", "0-2"), ("own.slice", "0-2")]);
    tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu");
    assert_eq!(said(tree.look(&mut fold, 50, 3)), 0);
    // Nothing of what was there before is believed any more: the controller is ours now.
    let control = "sys/fs/cgroup/cgroup.subtree_control";
    looks::refuse(&tree, control);
    let undone = fold.undo().unwrap();
    assert_eq!((undone.failed.len(), undone.foreign.len()), (1, 0), "{undone:?}");
    fs::remove_file(tree.path(control)).unwrap();
    tree.put(control, "cpuset cpu");
    assert_eq!(fold.undo().unwrap().restored, ["cgroup.subtree_control"]);
    assert_eq!(tree.get(control), "-cpuset\n");
}

#[test]
fn a_controller_that_nobody_needs_stays_disabled() {
    let mut tree = Tree::new(4, 1);
    let control = "sys/fs/cgroup/cgroup.subtree_control";
    tree.put(control, "cpu");
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    tree.put(control, "cpu");
    ["system.slice", "user.slice"].iter().for_each(|slice| tree.cgroup(slice, ""));
    tree.decide(&mut fold, 50, 0);
    assert_eq!(tree.get(control), "cpu\n");
    // Another program enables it now, for a reason of its own.
    tree.put(control, "cpuset cpu");
    fold.undo().unwrap();
    assert_eq!(tree.get(control), "cpuset cpu\n");
}

#[test]
fn a_guest_of_4096_cpus_folds() {
    let mut tree = Tree::new(4096, 2);
    let mut fold = tree.fold(Mechanism::Cpuset, GovernorConfig::new(Kind::Proportional));
    let decision = tree.decide(&mut fold, 75, 25);
    assert_eq!((decision.before.len(), cpus::show(&decision.after)), (4096, "0-3071".to_owned()));
    assert_eq!(tree.cpus_of("user.slice"), "0-3071\n");
}

#[test]
fn a_guest_uses_what_its_host_asks_for_in_whole_cores() {
    let mut tree = Tree::new(8, 2);
    let config = GovernorConfig { floor: 3, ..GovernorConfig::new(Kind::HostHint) };
    let refused =
        Fold::new(tree.roots(), Mechanism::Cpuset, config, Mode::Dry, || tree.now).unwrap_err();
    assert!(matches!(refused, FoldError::Missing { .. }), "{refused}");

    let preferred = "sys/module/vcoop/parameters/preferred";
    tree.put(preferred, "");
    let mut fold = tree.fold(Mechanism::Cpuset, config);
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
