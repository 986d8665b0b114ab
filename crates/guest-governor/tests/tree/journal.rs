//! What is undone, and by whom.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use vcoop_guest_governor::{FoldError, Journal, Layout, Mechanism, cpus, restore};
use vcoop_service::FolderError;

use crate::looks::refuse;
use crate::{SECOND, Tree, step};

fn put_journal(tree: &Tree, text: &str, mode: u32) {
    tree.put("run/guest.journal", text.trim());
    fs::set_permissions(tree.path("run/guest.journal"), PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn what_a_killed_process_left_is_undone_once() {
    let mut tree = Tree::new(4, 1);
    ["back.slice", "gone.slice", "new.slice"].iter().for_each(|slice| tree.cgroup(slice, ""));
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    // As `kill -9`: nothing is dropped, and the kernel releases the lock.
    let journal = tree.get("run/guest.journal");
    drop(fold);
    put_journal(&tree, &journal, 0o600);
    tree.put("sys/fs/cgroup/system.slice/cpuset.cpus", "0-2");
    tree.put("sys/fs/cgroup/user.slice/cpuset.cpus", "0-1");
    fs::remove_dir_all(tree.path("sys/fs/cgroup/gone.slice")).unwrap();
    // One in place of another, and one that has its old content already.
    tree.cgroup("other.slice", "1");
    fs::remove_dir_all(tree.path("sys/fs/cgroup/new.slice")).unwrap();
    fs::rename(tree.path("sys/fs/cgroup/other.slice"), tree.path("sys/fs/cgroup/new.slice"))
        .unwrap();
    tree.cgroup("back.slice", "");
    let undone = restore(&tree.run_dir(), &tree.roots()).unwrap();
    assert_eq!(undone.restored, ["system.slice/cpuset.cpus"]);
    assert_eq!(undone.gone, ["gone.slice/cpuset.cpus", "new.slice/cpuset.cpus"]);
    assert_eq!(undone.foreign, ["user.slice/cpuset.cpus has \"0-1\", which is not ours"]);
    tree.assert_cpus([("system.slice", ""), ("user.slice", "0-1")]);
    assert_eq!(restore(&tree.run_dir(), &tree.roots()).unwrap(), Default::default());
    assert_eq!(restore(&tree.path("none"), &tree.roots()).unwrap(), Default::default());
}

#[test]
fn a_journal_of_an_earlier_boot_is_about_nothing_and_a_strange_one_is_refused() {
    let (tree, fold) = Tree::folded(4, Mechanism::Cpuset);
    let journal = tree.get("run/guest.journal");
    drop(fold);
    tree.put("sys/fs/cgroup/system.slice/cpuset.cpus", "0-2");
    let put = |text: &str| put_journal(&tree, text, 0o600);
    put(&journal.replace("\"boot\":\"boot\"", "\"boot\":\"other\""));
    assert_eq!(restore(&tree.run_dir(), &tree.roots()).unwrap(), Default::default());
    assert_eq!(tree.cpus_of("system.slice"), "0-2\n");
    for (strange, says) in [
        ("", "EOF"),
        ("{", "EOF"),
        (&journal.replace("system.slice", "../../x"), "no name of a cgroup"),
        (&journal.replace("\"cpus\":[]", "\"cpus\":[0]"), "CPU 0 is never taken offline"),
        (&journal.replace("\"cpus\":[]", "\"cpus\":[8192]"), "never taken offline"),
        (&journal.replace("journal/1", "journal/2"), "does not read"),
    ] {
        put(strange);
        let why = restore(&tree.run_dir(), &tree.roots()).unwrap_err().to_string();
        assert!(why.contains(says), "{strange}: {why}");
        assert_eq!(tree.cpus_of("system.slice"), "0-2\n");
    }
    put_journal(&tree, &journal, 0o622);
    let why = restore(&tree.run_dir(), &tree.roots()).unwrap_err().to_string();
    assert!(why.contains("others can write it"), "{why}");
    refuse(&tree, "run/guest.journal");
    assert!(matches!(restore(&tree.run_dir(), &tree.roots()), Err(FoldError::Io { .. })));
}

#[test]
fn two_refuse_each_other() {
    let tree = Tree::new(4, 1);
    let fold = tree.fold(Mechanism::Cpuset, step());
    let why = tree.journal().unwrap_err();
    assert!(matches!(&why, FoldError::Folder(FolderError::Busy(..))), "{why}");
    // Also with a journal elsewhere, and by other means.
    let elsewhere = || Journal::open(&tree.path("elsewhere"), &tree.roots());
    let why = elsewhere().unwrap_err();
    assert!(matches!(why, FoldError::Busy { .. }) && why.to_string().contains("remedy"), "{why}");
    drop(fold);
    assert!(elsewhere().is_ok());
}

/// A process that can open a file can hold a shared lock on it.
#[test]
fn who_is_not_root_cannot_hold_the_lock() {
    let tree = Tree::new(4, 1);
    let lock = |path: PathBuf, how| {
        let file = File::open(path).unwrap();
        flock(&file, how).unwrap();
        file
    };
    let everybodys =
        ["sys/fs/cgroup", "sys/devices/system/cpu", "sys/fs/cgroup/cgroup.controllers"];
    let held = everybodys.map(|path| lock(tree.path(path), FlockOperation::LockShared));
    assert!(tree.journal().is_ok());
    drop(held);
    let roots = fs::metadata("/sys/bus/cpu/uevent").unwrap();
    assert_eq!((roots.uid(), roots.mode() & 0o777), (0, 0o200));
    let _held = lock(tree.path("sys/bus/cpu/uevent"), FlockOperation::LockShared);
    assert!(matches!(tree.journal().unwrap_err(), FoldError::Busy { .. }));
}

#[test]
fn a_cgroup_that_comes_in_place_of_another_is_another() {
    let mut tree = Tree::new(4, 1);
    tree.cgroup("gone.slice", "");
    let mut fold = tree.fold(Mechanism::Cpuset, step());
    tree.decide(&mut fold, 50, 20);
    // Made before the one that goes, so that it has another number.
    tree.cgroup("new.slice", "1-3");
    let path = |name: &str| tree.path(&format!("sys/fs/cgroup/{name}"));
    fs::remove_dir_all(path("user.slice")).unwrap();
    fs::rename(path("new.slice"), path("user.slice")).unwrap();
    fs::remove_dir_all(path("gone.slice")).unwrap();
    tree.decide(&mut fold, 50, 3);
    assert_eq!(tree.cpus_of("user.slice"), "1-2\n");
    let undone = fold.undo().unwrap();
    assert_eq!((undone.restored.len(), undone.gone.len(), undone.foreign.len()), (2, 0, 0));
    tree.assert_cpus([("system.slice", ""), ("user.slice", "1-3")]);
}

#[test]
fn what_is_ours_stays_so_after_a_change_that_was_refused() {
    let file = "sys/fs/cgroup/user.slice/cpuset.cpus";
    let (mut tree, mut fold) = Tree::folded(4, Mechanism::Cpuset);
    refuse(&tree, file);
    tree.decide(&mut fold, 50, 20);
    assert_eq!(fold.numbers().refusals, 1);
    fs::remove_file(tree.path(file)).unwrap();
    tree.put(file, "0-2");
    assert_eq!(fold.undo().unwrap().foreign, Vec::<String>::new());
    tree.assert_cpus([("system.slice", ""), ("user.slice", "")]);
}

/// Before Linux 6.10 the root cgroup has a CPU a moment later than it is online.
#[test]
fn cpus_that_are_brought_back_are_waited_for() {
    let effective = "sys/fs/cgroup/cpuset.cpus.effective";
    let (mut tree, mut fold) = Tree::folded(4, Mechanism::Hotplug);
    // By a wider look, and by the end.
    for ends in [false, true] {
        tree.put("sys/devices/system/cpu/online", "0-2");
        tree.put(effective, "0-2");
        let path = tree.path(effective);
        let kernel = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            fs::write(path.with_extension("new"), "0-3\n").unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        });
        if ends {
            fold.undo().unwrap();
        } else {
            tree.decide(&mut fold, 50, 0);
        }
        tree.put("sys/devices/system/cpu/online", "0-3");
        assert_eq!(cpus::show(&Layout::read(&tree.roots()).unwrap().all()), "0-3");
        kernel.join().unwrap();
        tree.decide(&mut fold, 50, 20);
    }
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
    let mut tree = Tree::new(4, 1);
    let before = tree.files();
    let mut fold = tree.fold(Mechanism::Cpuset, step());
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
fn a_controller_that_others_use_by_the_end_stays_enabled() {
    let control = "sys/fs/cgroup/cgroup.subtree_control";
    for (file, content) in [
        ("cpuset.cpus", "1"),
        ("cpuset.cpus.partition", "isolated"),
        ("cpuset.mems", "0"),
        ("cgroup.subtree_control", "cpuset"),
    ] {
        let mut tree = Tree::new(4, 1);
        tree.put(control, "cpu");
        let mut fold = tree.fold(Mechanism::Cpuset, step());
        tree.decide(&mut fold, 50, 20);
        // The kernel's state after that.
        tree.put(control, "cpuset cpu");
        tree.put(&format!("sys/fs/cgroup/user.slice/{file}"), content);
        let foreign = fold.undo().unwrap().foreign;
        let keeps = "cgroup.subtree_control keeps cpuset, which others use by now";
        assert!(foreign.iter().any(|line| line == keeps), "{file}: {foreign:?}");
        assert_eq!(tree.get(control), "cpuset cpu\n");
    }
}
