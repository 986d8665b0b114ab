//! What threads get back, and who tries to keep a boost.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use vcoop_model::running_vm::RunningVm;
use vcoop_policy::thread::Policy;
use vcoop_testing::{WaitingThread, until};
use vcoop_threads::journal::Journal;
use vcoop_threads::{Attributes, Captured, gettid};

use super::{Rig, target, under, with_vcpus, writes};
use crate::engine::Target;
use crate::policy::policy;

/// In a process of its own, whose threads are those of tests: not its first one executes another program.
#[test]
fn a_boost_does_not_outlive_the_execution_of_another_program() {
    const HERE: &str = "VCOOP_TEST_EXECUTES";
    const NAME: &str = "engine::engine_thread::tests::given_back::a_boost_does_not_outlive_the_execution_of_another_program";
    if std::env::var_os(HERE).is_some() {
        eprintln!("thread {}", gettid());
        io::stdin().read_line(&mut String::new()).unwrap();
        panic!("{}", Command::new("sleep").arg("60").exec());
    }
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", NAME, "--nocapture", "--test-threads=2"]).env(HERE, "");
    program.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut vmm = program.spawn().unwrap();
    let mut lines = BufReader::new(vmm.stderr.take().unwrap()).lines().map_while(Result::ok);
    let tid = lines.find_map(|line| line.strip_prefix("thread ")?.parse().ok()).unwrap();
    let (pid, vcpu) = (vmm.id().cast_signed(), Captured::of(tid).unwrap());
    assert_ne!(tid, pid);
    let mut target = under(tid, "static", &[]);
    target.vm.pid = vmm.id();
    target.vm.start_ticks = Captured::of(pid).unwrap().baseline().start;
    let is_rt = || Attributes::get(pid).unwrap().to_policy().is_rt();
    let mut rig = Rig::new();
    if rig.attached(target).is_some() {
        assert!(!is_rt());
        vmm.stdin.take().unwrap().write_all(b"\n").unwrap();
        until("the thread has executed it", || !vcpu.is_alive());
        assert!(is_rt(), "it keeps the boost, as the first thread");
        rig.ended(tid);
        assert!(!is_rt() && rig.vms.is_empty() && rig.journal.contents().threads.is_empty());
    }
    vmm.kill().unwrap();
    vmm.wait().unwrap();
}

#[test]
fn the_first_thread_keeps_its_own_boost_when_another_one_ends() {
    let (pid, other) = (std::process::id().cast_signed(), WaitingThread::start());
    let first = Captured::of(pid).unwrap();
    let running = RunningVm { name: "web".to_owned(), vcpus: 2, pcpus: 1 };
    let plan = Box::new(policy(&running, "static", &[]).unwrap());
    let mut target = Target { plan, ..with_vcpus(&[pid, other.tid]) };
    target.vm.start_ticks = first.baseline().start;
    let mut rig = Rig::new();
    let Some(_) = rig.attached(target) else { return };
    let (tid, ended) = (other.tid, Captured::of(other.tid).unwrap());
    other.end();
    until("it is gone", || !ended.is_alive());
    rig.ended(tid);
    assert!(Attributes::get(pid).unwrap().to_policy().is_rt());
    rig.detach_all();
    assert_eq!(Attributes::get(pid).unwrap(), first.baseline().attributes);
}

/// Without the capability that it had when it boosted, the engine cannot clear the flag that a boost sets.
#[test]
fn what_cannot_be_given_back_is_said_and_stays_in_the_journal() {
    // A thread of its own: the capability does not come back.
    std::thread::spawn(without_the_capability).join().unwrap();
}

fn without_the_capability() {
    let mut rig = Rig::new();
    let vcpu = WaitingThread::start();
    let Some(_) = rig.attached(under(vcpu.tid, "static", &[])) else { return };
    let number = rig.number();
    vcoop_testing::drop_cap_sys_nice();
    let last = rig.detach(number).unwrap();
    let [why] = last.not_given_back.as_slice() else { panic!("{:?}", last.not_given_back) };
    assert!(why.starts_with(&format!("thread {}: ", vcpu.tid)), "{why}");
    assert_eq!(rig.journal.contents().threads.len(), 1);
    vcpu.end();
}

#[test]
fn a_process_cannot_keep_a_part_of_a_boost() {
    let mut rig = Rig::new();
    let vcpu = WaitingThread::start();
    let tid = vcpu.tid;
    let normal = |nice| Policy::Normal { nice, slice_ns: None };
    let has = || Attributes::get(tid).unwrap().to_policy();
    let kept = |rig: &mut Rig, means: &str, kept: Policy| {
        let settings = [format!("policy.static.means={means:?}")];
        Attributes::from_policy(&normal(3)).set(tid).unwrap();
        rig.attached(under(tid, "static", &settings))?;
        assert_ne!(has(), normal(3), "boosted");
        Attributes::from_policy(&kept).set(tid).unwrap();
        let number = rig.number();
        rig.check(number, 0);
        let left = rig.vms[&number].vcpus[0].as_ref().err().cloned();
        let has = has();
        rig.detach(number);
        Some((left.map(|status| status.left_alone.unwrap_or_default()), has))
    };
    let Some(rt) = kept(&mut rig, "rr 8", Policy::Rr(7)) else { return };
    assert_eq!(rt, (Some("its process has made SCHED_RR 7 of its boost".to_owned()), normal(3)));
    let with_slice = Policy::Normal { nice: -7, slice_ns: Some(1_000_000) };
    for (means, now) in [
        ("nice -7", normal(-6)),
        ("nice -7", with_slice),
        // With RLIMIT_RTPRIO.
        ("rr 8", Policy::Fifo(8)),
    ] {
        let left = kept(&mut rig, means, now).unwrap();
        assert!(left.0.is_some() && left.1 == normal(3), "{means}: {left:?}");
    }
    // A policy that needs privileges was set by another program.
    for theirs in [Policy::Fifo(9), Policy::Rr(9)] {
        let left = kept(&mut rig, "rr 8", theirs).unwrap();
        assert!(left.0.is_some_and(|why| why.starts_with("somebody else")) && left.1 == theirs);
    }
    assert_eq!(kept(&mut rig, "rr 8", normal(9)).unwrap(), (None, normal(9)));
}

#[test]
fn who_has_lent_its_boosts_gets_no_more() {
    let mut rig = Rig::new();
    let vcpu = WaitingThread::start();
    let tid = vcpu.tid;
    let before = Attributes::get(tid).unwrap();
    let Some(attached) = rig.attached(under(tid, "static", &[])) else { return };
    assert!(attached.vcpus[0].boosted);
    let (&number, vm) = rig.vms.first_key_value().unwrap();
    let slot = vm.vcpus[0].as_ref().unwrap().slot;
    rig.keeper.slot(slot).lent();
    rig.check(number, 0);
    let alone = rig.vms[&number].vcpus[0].as_ref().unwrap_err();
    assert!(alone.left_alone.as_ref().is_some_and(|why| why.contains("lends")), "{alone:?}");
    assert_eq!(Attributes::get(tid).unwrap(), before);
    // Another thread with this slot gets boosts of its own.
    rig.detach(number);
    let next = rig.attach(target(tid)).unwrap();
    assert_eq!(next.driven().count(), 1);
    assert!(!rig.keeper.slot(slot).lends());
}

/// Gives a thread a nice value, as `renice` does.
fn renice(tid: i32, nice: i32) {
    rustix::process::setpriority_process(rustix::process::Pid::from_raw(tid), nice).unwrap();
}

#[test]
fn a_nice_value_that_somebody_sets_during_a_boost_is_what_the_thread_gets_back() {
    let mut rig = Rig::new();
    let vcpu = WaitingThread::start();
    let tid = vcpu.tid;
    renice(tid, 9);
    let wanted = Attributes::get(tid).unwrap();
    for (means, looks) in [("rr 8", true), ("rr 8", false), ("nice -7", true)] {
        renice(tid, 3);
        let settings = [format!("policy.static.means={means:?}")];
        let Some(attached) = rig.attached(under(tid, "static", &settings)) else { return };
        assert_eq!(attached.driven().count(), 1);
        renice(tid, 9);
        let number = rig.number();
        if looks {
            rig.check(number, 0);
            // The nice value that a later process would restore.
            let noted = rig.journal.contents().threads[&tid].nice;
            assert_eq!(noted, 9, "{means}");
        }
        rig.detach(number);
        assert_eq!(Attributes::get(tid).unwrap(), wanted, "{means}");
    }
}

#[test]
fn nice_values_that_somebody_sets_for_a_whole_vm_are_written_at_once_or_end_its_boosts() {
    let mut rig = Rig::new();
    let vcpus: Vec<WaitingThread> = (0..8).map(|_| WaitingThread::start()).collect();
    let tids: Vec<i32> = vcpus.iter().map(|vcpu| vcpu.tid).collect();
    rig.attach(with_vcpus(&tids)).unwrap();
    let (number, written) = (rig.number(), writes(&rig));
    let journal = rig.place.journal_path();
    let mut look = |nice| {
        tids.iter().for_each(|tid| renice(*tid, nice));
        (0..tids.len()).for_each(|place| rig.check(number, place));
        rig.settle();
        rig.status(None).vms[0].driven().count()
    };
    assert_eq!((look(9), written()), (8, 1));
    let noted = || Journal::read(&journal).unwrap().contents().threads.clone();
    assert!(tids.iter().all(|tid| noted()[tid].nice == 9));
    let new = journal.with_extension("journal.new");
    std::fs::create_dir(&new).unwrap();
    assert_eq!((look(11), written()), (0, 0));
    assert!(tids.iter().all(|tid| noted()[tid].nice == 9));
    std::fs::remove_dir(&new).unwrap();
    rig.detach(number);
    let nice = |tid: &i32| Attributes::get(*tid).unwrap().to_policy();
    assert!(tids.iter().map(nice).all(|it| it == Policy::Normal { nice: 11, slice_ns: None }));
}
