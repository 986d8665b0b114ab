use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use proptest::prelude::*;
use vcoop_policy::thread::Policy;
use vcoop_testing::{Tree, WaitingThread};

use super::{Contents, Journal, JournalError, MOST_THREADS, Origin, Restored};
use crate::Attributes;
use crate::affinity::{MOST_CPUS, affinity, set_affinity};
use crate::captured::{Baseline, Captured};

/// Runs `body` while that many other threads wait, and gives it their numbers.
fn beside(threads: usize, body: impl FnOnce(&[i32])) {
    let waiting: Vec<WaitingThread> = (0..threads).map(|_| WaitingThread::start()).collect();
    let tids: Vec<i32> = waiting.iter().map(|thread| thread.tid).collect();
    body(&tids);
}

fn read(dir: &Path) -> Result<Journal, JournalError> {
    Journal::read(&Journal::path_in(dir))
}

#[test]
fn a_later_process_gives_back_what_the_first_has_changed() {
    let dir = Tree::default();
    beside(3, |tids| {
        let before: Vec<_> = tids.iter().map(|tid| Attributes::get(*tid).unwrap()).collect();
        let mut journal = Journal::create(dir.root()).unwrap();
        for tid in tids {
            let captured = Captured::of(*tid).unwrap();
            journal.record([&captured]).unwrap();
            Attributes::from_policy(&Policy::Fifo(1)).set(*tid).unwrap();
            // Its attributes now are not those from before.
            journal.record([&Captured::of(*tid).unwrap()]).unwrap();
        }
        journal.forget(tids[0]);
        journal.settle().unwrap();
        // The writer dies here, without a word.
        drop(journal);
        let already = Journal::create(dir.root()).unwrap_err();
        assert!(already.to_string().contains("exists"), "{already}");
        let mut journal = read(dir.root()).unwrap();
        assert_eq!((journal.contents().threads.len(), journal.contents().damaged), (2, 0));
        let (outcomes, written) = journal.restore_all();
        written.unwrap();
        assert_eq!(outcomes.len(), 2);
        assert!(outcomes.iter().all(|(_, o)| matches!(o, Ok(Restored::Done))), "{outcomes:?}");
        for (tid, before) in tids.iter().zip(&before).skip(1) {
            assert_eq!(Attributes::get(*tid).unwrap(), *before);
        }
        assert_ne!(Attributes::get(tids[0]).unwrap(), before[0], "it was forgotten");
        assert!(journal.contents().threads.is_empty() && journal.restore_all().0.is_empty());
        journal.remove().unwrap();
        Journal::create(dir.root()).unwrap();
    });
}

#[test]
fn cpus_that_were_not_written_down_stay_as_somebody_has_set_them() {
    let dir = Tree::default();
    beside(1, |tids| {
        let tid = tids[0];
        let before = Attributes::get(tid).unwrap();
        let mut journal = Journal::create(dir.root()).unwrap();
        journal.record([&Captured::of(tid).unwrap().without_cpus()]).unwrap();
        Attributes::from_policy(&Policy::Fifo(1)).set(tid).unwrap();
        let one = &affinity(tid).unwrap()[..1];
        set_affinity(tid, one).unwrap();
        let (outcomes, _) = read(dir.root()).unwrap().restore_all();
        assert!(matches!(outcomes[..], [(_, Ok(Restored::Done))]), "{outcomes:?}");
        assert_eq!((Attributes::get(tid).unwrap(), affinity(tid).unwrap()), (before, one.to_vec()));
    });
}

#[test]
fn a_baseline_that_has_changed_is_written_again() {
    let dir = Tree::default();
    beside(1, |tids| {
        let captured = Captured::of(tids[0]).unwrap();
        let mut journal = Journal::create(dir.root()).unwrap();
        journal.record([&captured]).unwrap();
        let other = Baseline { nice: 7, ..captured.baseline().clone() };
        journal.replace(&other);
        journal.settle().unwrap();
        assert_eq!(journal.contents().threads[&tids[0]].nice, 7);
        let read_nice = || read(dir.root()).unwrap().contents().threads[&tids[0]].nice;
        assert_eq!(read_nice(), 7);
        // Also if that fails at first.
        journal.replace(&Baseline { nice: 9, ..other });
        fs::remove_dir_all(dir.root()).unwrap();
        assert!(matches!(journal.settle(), Err(JournalError::Io { .. })));
        fs::create_dir(dir.root()).unwrap();
        journal.settle().unwrap();
        assert_eq!(read_nice(), 9);
        // What has not changed is not written.
        fs::remove_dir_all(dir.root()).unwrap();
        journal.record([&captured]).unwrap();
        journal.settle().unwrap();
    });
}

#[test]
fn a_thread_that_could_not_be_written_down_is_not_in_it() {
    let dir = Tree::default();
    beside(1, |tids| {
        let captured = Captured::of(tids[0]).unwrap();
        let mut journal = Journal::create(dir.root()).unwrap();
        fs::remove_dir_all(dir.root()).unwrap();
        assert!(matches!(journal.record([&captured]), Err(JournalError::Io { .. })));
        assert!(journal.contents().threads.is_empty());
        fs::create_dir(dir.root()).unwrap();
        journal.record([&captured]).unwrap();
        assert_eq!(read(dir.root()).unwrap().contents().threads.len(), 1);
    });
}

#[test]
fn a_journal_has_room_for_so_many_threads() {
    let dir = Tree::default();
    beside(1, |tids| {
        let captured = Captured::of(tids[0]).unwrap();
        let mut journal = Journal::create(dir.root()).unwrap();
        let others = (1..).filter(|tid| *tid != tids[0]).take(MOST_THREADS);
        for tid in others {
            let thread = Baseline { tid, ..captured.baseline().clone() };
            journal.contents.threads.insert(tid, thread);
        }
        assert!(matches!(journal.record([&captured]), Err(JournalError::Full)));
        assert_eq!(journal.contents().threads.len(), MOST_THREADS);
        let text = format!("{}{}\n", journal.contents(), captured.baseline());
        let read = Contents::parse(text.as_bytes()).unwrap();
        assert_eq!((&read.threads, read.damaged), (&journal.contents().threads, 1));
    });
}

/// The writer may be killed at any moment, and an owner that finds a part of a journal does not start.
#[test]
fn a_journal_is_there_as_a_whole_or_not_at_all() {
    let dir = Tree::default();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            (0..2_000).for_each(|_| Journal::create(dir.root()).unwrap().remove().unwrap());
        });
        while !writer.is_finished() {
            let read = read(dir.root());
            assert!(!matches!(read, Err(JournalError::Unknown(_))), "a part of it");
        }
    });
}

#[test]
fn a_number_that_another_thread_has_now_is_left_alone() {
    let dir = Tree::default();
    beside(1, |tids| {
        let mut journal = Journal::create(dir.root()).unwrap();
        let captured = Captured::of(tids[0]).unwrap();
        journal.record([&captured]).unwrap();
        let path = Journal::path_in(dir.root());
        let start = format!(" {} policy", captured.baseline().start);
        let text = fs::read_to_string(&path).unwrap().replace(&start, " 7 policy=1 policy");
        fs::write(&path, text.replace("policy=1 policy=0", "policy=1")).unwrap();
        let mut journal = read(dir.root()).unwrap();
        assert_eq!(journal.contents().threads[&tids[0]].start, 7);
        let before = Attributes::get(tids[0]).unwrap();
        let (outcomes, _) = journal.restore_all();
        assert!(matches!(outcomes[..], [(tid, Ok(Restored::Gone))] if tid == tids[0]));
        assert_eq!(Attributes::get(tids[0]).unwrap(), before);
    });
}

#[test]
fn what_cannot_be_restored_stays_in_the_journal() {
    let dir = Tree::default();
    beside(1, |tids| {
        let mut journal = Journal::create(dir.root()).unwrap();
        journal.record([&Captured::of(tids[0]).unwrap()]).unwrap();
        let path = Journal::path_in(dir.root());
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("policy=0", "policy=42")).unwrap();
        let mut journal = read(dir.root()).unwrap();
        let (outcomes, written) = journal.restore_all();
        written.unwrap();
        assert!(outcomes[0].1.as_ref().unwrap_err().attributes.is_some());
        assert_eq!(read(dir.root()).unwrap().contents(), journal.contents());
        assert_eq!(journal.contents().threads.len(), 1);
    });
}

#[test]
fn journals_of_others_are_refused() {
    let dir = Tree::default();
    let path = Journal::path_in(dir.root());
    assert!(matches!(read(dir.root()), Err(JournalError::Io { .. })));
    Journal::create(dir.root()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
    assert!(matches!(read(dir.root()), Err(JournalError::Untrusted(_))));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, text.replace("journal 1", "journal 2")).unwrap();
    assert!(matches!(read(dir.root()), Err(JournalError::Unknown(_))));
    fs::write(&path, text.replace("pidns=", "pidns=1")).unwrap();
    assert!(matches!(read(dir.root()), Err(JournalError::Elsewhere(_))));
    // In a time namespace, where the same threads have other start times.
    let offset = |to: &str| {
        let (origin, _) = text.rsplit_once(" boottime=").unwrap();
        fs::write(&path, format!("{origin}{to}\n")).unwrap();
        read(dir.root())
    };
    assert!(matches!(offset(" boottime=1000,0"), Err(JournalError::Elsewhere(_))));
    if text.ends_with(" boottime=0,0\n") {
        assert!(offset("").is_ok(), "an earlier version wrote none");
    }
    let line = "thread 1 1 policy=1 flags=0 priority=9 runtime=0 deadline=0 period=0 util=0-0 nice=0 \
                cpus=0 .\n";
    fs::write(&path, text.replace("boot=", "boot=1") + line).unwrap();
    assert!(read(dir.root()).unwrap().contents().threads.is_empty(), "its threads are gone");
    fs::write(&path, text + line).unwrap();
    assert_eq!(read(dir.root()).unwrap().contents().threads.len(), 1);
    let link = dir.path("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(Journal::read(&link), Err(JournalError::Io { .. })));
}

#[test]
fn damaged_lines_are_counted_and_the_others_are_read() {
    let head = "vcoop-journal 1 boot=b pidns=4\n";
    let line = "thread 5 6 policy=0 flags=1 priority=0 runtime=0 deadline=0 period=0 util=0-1024 \
                nice=-3 cpus=0-3,7 .";
    let good = Contents::parse(format!("{head}{line}\n").as_bytes()).unwrap();
    assert_eq!(
        (good.threads[&5].cpus.as_slice(), good.threads[&5].nice),
        (&[0, 1, 2, 3, 7][..], -3)
    );
    let damaged = [
        &line[..line.len() - 2],
        &line.replace("thread 5", "thread 0"),
        &line.replace("thread 5", "thread +5"),
        &line.replace("nice=-3", "nice=20"),
        &line.replace("0-3,7", ""),
        &line.replace("0-3,7", "3-0"),
        &line.replace("0-3,7", "0-3,3"),
        &line.replace("0-3,7", "0-8192"),
        &line.replace("0-3,7", "0-4294967295"),
        &line.replace(" .", " . ."),
    ];
    for line in damaged {
        let read = Contents::parse(format!("{head}{line}\n").as_bytes()).unwrap();
        assert_eq!((read.threads.len(), read.damaged), (0, 1), "{line}");
    }
    // A second word on a thread is not taken for the first.
    let damaged = [damaged[0], &line.replace("nice=-3", "nice=3")];
    let text = damaged.map(|d| format!("{d}\n")).concat();
    let read = Contents::parse(format!("{head}{line}\n{text}").as_bytes()).unwrap();
    assert_eq!((&read.threads, read.damaged), (&good.threads, damaged.len()));
    for head in ["", "vcoop-journal 1 ", "vcoop-journal 1 boot= pidns=4", "vcoop-journal 11 boot=b"]
    {
        assert_eq!(Contents::parse(head.as_bytes()), None);
    }
}

fn baseline() -> impl Strategy<Value = Baseline> {
    let thread = (1..i32::MAX, any::<u64>(), -20..=19_i32);
    let words =
        (0_u32..9, any::<u64>(), any::<u32>(), any::<u64>(), any::<[u64; 2]>(), any::<[u32; 2]>());
    let cpus = proptest::collection::btree_set(0..MOST_CPUS, 1..40);
    (thread, words, cpus).prop_map(|((tid, start, nice), words, cpus)| {
        let (policy, flags, priority, runtime, [deadline, period], [util_min, util_max]) = words;
        let mut attributes = Attributes::of(0, 0, 0, runtime);
        (attributes.policy, attributes.flags, attributes.priority) = (policy, flags, priority);
        (attributes.deadline, attributes.period) = (deadline, period);
        (attributes.util_min, attributes.util_max) = (util_min, util_max);
        attributes.nice = if attributes.is_fair() { nice } else { 0 };
        Baseline { tid, start, attributes, nice, cpus: cpus.into_iter().collect() }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(threads in proptest::collection::vec(baseline(), 0..6), pidns: u64) {
        let origin = Origin { boot: "some-boot".to_owned(), pidns, boottime: "7,8".to_owned() };
        let threads = threads.into_iter().map(|t| (t.tid, t)).collect();
        let contents = Contents { origin, threads, damaged: 0 };
        prop_assert_eq!(Contents::parse(contents.to_string().as_bytes()), Some(contents));
    }

    #[test]
    fn a_file_that_was_cut_off_has_whole_threads_only(
        threads in proptest::collection::vec(baseline(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let origin = Origin { boot: "b".to_owned(), pidns: 1, boottime: "0,0".to_owned() };
        let threads = threads.into_iter().map(|t| (t.tid, t)).collect();
        let contents = Contents { origin, threads, damaged: 0 };
        let text = contents.to_string();
        if let Some(read) = Contents::parse(&text.as_bytes()[..cut.index(text.len())]) {
            for (tid, thread) in &read.threads {
                prop_assert_eq!(contents.threads.get(tid), Some(thread));
            }
        }
    }

    #[test]
    fn a_foreign_file_is_read_or_refused(
        threads in proptest::collection::vec(baseline(), 0..3),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        rest in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let origin = Origin { boot: "b".to_owned(), pidns: 1, boottime: "0,0".to_owned() };
        let threads = threads.into_iter().map(|t| (t.tid, t)).collect();
        let mut bytes = Contents { origin, threads, damaged: 0 }.to_string().into_bytes();
        bytes.extend(rest);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(mut read) = Contents::parse(&bytes) {
            prop_assert!(read.threads.len() + read.damaged <= bytes.len());
            read.damaged = 0;
            prop_assert_eq!(Contents::parse(read.to_string().as_bytes()), Some(read));
        }
    }
}
