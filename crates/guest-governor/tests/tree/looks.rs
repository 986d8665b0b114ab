//! When it looks, and what has come of a look.

use std::fs;
use std::time::Duration;

use vcoop_guest_governor::{Evaluation, Mechanism, cpus};
use vcoop_policy::govern::{GovernorConfig, Kind};

use crate::{SECOND, Tree, step};

#[test]
fn a_late_look_is_followed_by_a_whole_interval() {
    let mut tree = Tree::new(8, 1);
    let config = GovernorConfig::new(Kind::Proportional);
    let mut fold = tree.fold(Mechanism::Cpuset, config);
    let every = Duration::from_nanos(config.interval_ns);
    let (last, ms) = (tree.now, Duration::from_millis);
    let next = |late: u64| fold.next_look(last, last + ms(late)) - last;
    assert_eq!([0, 10, 100].map(next), [every; 3]);
    assert_eq!([101, 400].map(next), [every + ms(101), every + ms(400)]);

    // A look that comes at once all the same: one tick of steal of one CPU is all it would see.
    tree.now += SECOND;
    tree.steal[3] += 1;
    tree.stat();
    let decision = fold.look(|| tree.now).unwrap().decision.unwrap();
    assert!(!decision.is_change() && decision.why.ends_with("for certain"), "{}", decision.why);
    tree.now += ms(1);
    tree.steal.iter_mut().for_each(|ticks| *ticks += 1);
    tree.stat();
    assert_eq!(fold.look(|| tree.now).unwrap(), Evaluation::default());
    // Time in which it did not look counts at the next look.
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
    let mut fold = tree.fold(Mechanism::Cpuset, step());
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
pub(crate) fn refuse(tree: &Tree, file: &str) {
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
    let mut fold = tree.fold(Mechanism::Cpuset, step());
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
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    refuse(&tree, "sys/fs/cgroup/cgroup.subtree_control");
    assert!(!tree.decide(&mut fold, 50, 20).is_change());
    assert_eq!((fold.numbers().width, fold.numbers().refusals), (4, 1));
    // Another program enables it then.
    let control = "sys/fs/cgroup/cgroup.subtree_control";
    fs::remove_file(tree.path(control)).unwrap();
    tree.put(control, "cpuset cpu");
    fold.undo().unwrap();
    assert_eq!(tree.get(control), "cpuset cpu\n");
}

#[test]
fn a_refusal_that_lasts_does_not_keep_the_guest_folded() {
    let mut tree = Tree::new(4, 1);
    tree.cgroup("own.slice", "0-2");
    refuse(&tree, "sys/fs/cgroup/own.slice/cpuset.cpus");
    let mut fold = tree.fold(Mechanism::Cpuset, GovernorConfig::new(Kind::Proportional));
    assert_eq!(cpus::show(&tree.decide(&mut fold, 50, 50).after), "0-2");
    assert_eq!(tree.cpus_of("user.slice"), "0-1\n");
    let looks = (1..9).find(|_| tree.decide(&mut fold, 10, 0).after.len() == 4);
    assert!(looks.is_some() && tree.cpus_of("user.slice") == "\n");
}

#[test]
fn a_cpu_that_does_not_go_offline_is_in_use() {
    let mut tree = Tree::new(4, 2);
    let file = "sys/devices/system/cpu/cpu2/online";
    refuse(&tree, file);
    let mut fold = tree.fold(Mechanism::Hotplug, step());
    let decision = tree.decide(&mut fold, 50, 20);
    assert_eq!([&decision.before, &decision.after].map(cpus::show), ["0-3", "0-2"]);
    assert_eq!((fold.numbers().width, fold.numbers().refusals), (3, 1));
}

/// A file that cannot be read for now is no file that is gone.
#[test]
fn what_cannot_be_read_is_given_back_later() {
    let file = "sys/devices/system/cpu/cpu3/online";
    let (mut tree, mut fold) = Tree::folded(4, Mechanism::Hotplug);
    tree.put("sys/devices/system/cpu/online", "0-2");
    fs::remove_file(tree.path(file)).unwrap();
    fs::create_dir(tree.path(file)).unwrap();
    tree.decide(&mut fold, 50, 3);
    let undone = fold.undo().unwrap();
    assert_eq!((undone.failed.len(), undone.gone.len()), (1, 0), "{undone:?}");
    fs::remove_dir(tree.path(file)).unwrap();
    tree.put(file, "0");
    assert_eq!(fold.undo().unwrap().restored, ["cpu3/online"]);
}

#[test]
fn what_a_cpu_did_before_it_was_seen_is_not_of_this_look() {
    let mut tree = Tree::new(4, 1);
    let stat = |tree: &Tree, of: &dyn Fn(&str) -> bool| {
        let text = tree.get("proc/stat");
        let lines: Vec<&str> = text.lines().filter(|line| of(line)).collect();
        tree.put("proc/stat", &lines.join("\n"));
    };
    tree.steal[3] = 1000;
    tree.stat();
    stat(&tree, &|line| !line.starts_with("cpu3"));
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    assert_eq!(tree.decide(&mut fold, 50, 0).steal_bp, 0);
    // A line that lacks once is made up for by the next one.
    tree.now += SECOND;
    tree.steal[2] += 10;
    tree.stat();
    stat(&tree, &|line| !line.starts_with("cpu2"));
    assert_eq!(fold.look(|| tree.now).unwrap().decision.unwrap().steal_bp, 0);
    assert_eq!(tree.decide(&mut fold, 50, 0).steal_bp, 250);
    // More than half an interval is enough for a look.
    tree.now += SECOND * 6 / 10;
    tree.stat();
    assert!(fold.look(|| tree.now).unwrap().decision.is_some());
}

/// As after a live migration on some kernels.
#[test]
fn steal_that_cannot_be_does_not_fold_a_guest() {
    for kind in [Kind::Proportional, Kind::Step] {
        let mut tree = Tree::new(4, 1);
        tree.steal = vec![3000; 4];
        tree.stat();
        let mut fold = tree.fold(Mechanism::Cpuset, GovernorConfig::new(kind));
        tree.decide(&mut fold, 20, 0);
        // Two hours at once; as much back, as an unsigned counter has it; and forward again.
        for steal in [723_000, u64::MAX / 10_000_000, 0, 720_000] {
            tree.steal[3] = steal;
            let Evaluation { decision, notes } = tree.look(&mut fold, 20, 0);
            let decision = decision.unwrap();
            assert_eq!((decision.after.len(), decision.steal_bp), (4, 0), "{kind:?} {steal}");
            let says = |note: &String| note.contains("more steal than time has passed");
            assert_eq!(
                notes.iter().filter(|note| says(note)).count(),
                usize::from(steal == 723_000)
            );
        }
        // It goes on from there.
        assert!(tree.decide(&mut fold, 50, 50).is_change());
    }
}

#[test]
fn steal_of_a_vcpu_that_did_not_run_for_long_is_counted_late() {
    let mut tree = Tree::new(2, 1);
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    for _ in 0..10 {
        assert_eq!(tree.decide(&mut fold, 0, 0).steal_bp, 0);
    }
    tree.steal[1] += 1050;
    assert_eq!(tree.decide(&mut fold, 5, 0).steal_bp, 52_500);
    // A CPU that has idled meanwhile was not kept from running.
    let text = |idle: u64, steal: u64| {
        format!("cpu0 {idle} 0 0 0 0 0 0 1\ncpu1 1 0 0 {idle} 0 0 0 {steal}\n")
    };
    tree.put("proc/stat", &text(0, 0));
    let mut fold = {
        drop(fold);
        tree.fold(Mechanism::Cpuset, step())
    };
    for second in 1..=10 {
        tree.now += SECOND;
        tree.put("proc/stat", &text(100 * second, 0));
        fold.look(|| tree.now).unwrap();
    }
    tree.now += SECOND;
    tree.put("proc/stat", &text(1100, 1050));
    assert_eq!(fold.look(|| tree.now).unwrap().decision.unwrap().steal_bp, 0);
}

#[test]
fn the_floor_counts_cpus_where_a_core_lacks_some() {
    let mut tree = Tree::new(6, 2);
    tree.online("0,2-5");
    tree.stat();
    let mut fold = tree.fold(Mechanism::Cpuset, GovernorConfig { floor: 2, ..step() });
    let used = (0..4).map(|_| tree.decide(&mut fold, 50, 50).after).last().unwrap();
    assert_eq!(cpus::show(&used), "0,2-3");
}

#[test]
fn the_user_is_warned_before_it_begins() {
    let warned = |tree: &Tree, by| {
        let fold = tree.fold(by, step());
        let said = fold.warnings();
        ["one core", "no steal", "root cgroup", "forgets CPU affinities"]
            .map(|about| said.iter().filter(|warning| warning.contains(about)).count())
    };
    let alone = Tree::new(1, 1);
    assert_eq!(warned(&alone, Mechanism::Cpuset), [1, 1, 1, 0]);
    let mut tree = Tree::new(4, 2);
    tree.steal = vec![3; 4];
    tree.stat();
    assert_eq!(warned(&tree, Mechanism::Hotplug), [0, 0, 0, 0]);
    tree.put("proc/sys/kernel/osrelease", "6.1.0-56-cloud-amd64");
    assert_eq!(warned(&tree, Mechanism::Cpuset), [0, 0, 1, 1]);
    let fold = tree.fold(Mechanism::Cpuset, GovernorConfig { floor: 1, ..step() });
    // One core of two CPUs, and three ticks of a hundredth of a second on each CPU.
    assert_eq!((fold.narrowest(), fold.since_boot().steal_ns), (2, 120_000_000));
}
