//! The engine with VMs that are threads of the test, and with other programs as its keeper.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify;
use rustix::time::Timespec;
use vcoop_model::running_vm::RunningVm;
use vcoop_policy::thread::Policy;
use vcoop_testing::{Skip, Waiting, until, without_files};
use vcoop_threads::clock::monotonic;
use vcoop_threads::journal::Journal;
use vcoop_threads::{
    Attributes, Captured, allowed_cpus, default_slice, gettid, real_time_limit, run_time,
};
use vcoop_vmm::{Accel, Source, Thread, VcpuThread};

use super::Inside;
use super::attach::SPARE_FILES;
use crate::engine::link::tests::shares;
use crate::engine::{self, Engine, KEEPER, Shares, Target};
use crate::keeper::{Keeper, Program};
use crate::place::Place;
use crate::policy::policy;
use crate::port::Due;
use crate::protocol::{Request, VmId, VmStatus};

/// A keeper that does nothing until its owner ends.
pub(crate) fn idle(_: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec cat >/dev/null"]);
    command
}

/// An engine in a folder of its own. Its keeper ends with it.
struct Rig {
    /// `None` once it is dropped.
    inside: Option<Inside>,
    dir: tempfile::TempDir,
    commands: mpsc::Sender<engine::Command>,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (inside, commands) = engine(&dir, idle);
        Self { inside: Some(inside), dir, commands }
    }

    /// Attaches a VM; `None`: this host lacks something, and the test is skipped.
    fn attached(&mut self, target: Target) -> Option<VmStatus> {
        match self.attach(target) {
            Err(why) if why.missing => {
                Skip::because(why).tell();
                None
            }
            attached => Some(attached.unwrap()),
        }
    }

    /// The number of the first VM.
    fn number(&self) -> u64 {
        *self.vms.first_key_value().unwrap().0
    }
}

impl Deref for Rig {
    type Target = Inside;

    fn deref(&self) -> &Inside {
        self.inside.as_ref().unwrap()
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Inside {
        self.inside.as_mut().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.inside.take().into_iter().for_each(|inside| inside.keeper.end());
    }
}

/// What an engine owns in a folder, with this program as its keeper.
pub(crate) fn owned(dir: &tempfile::TempDir, keeper: Program) -> (Keeper, Place, Journal) {
    let place = Place::take(&dir.path().join("run")).unwrap();
    let (journal, _) = place.journal().unwrap();
    (Keeper::start_as(keeper, &place).unwrap(), place, journal)
}

/// An engine in a folder, with a sender for commands.
fn engine(dir: &tempfile::TempDir, keeper: Program) -> (Inside, mpsc::Sender<engine::Command>) {
    let (keeper, place, journal) = owned(dir, keeper);
    let (commands, orders) = mpsc::channel();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let token = EventData::new_u64(KEEPER);
    epoll::add(&poll, keeper.ends(), token, EventFlags::IN).unwrap();
    (Inside::new(orders, poll, keeper, journal, place, Arc::default()), commands)
}

/// A VM with one vCPU: this thread. Its policy does nothing.
pub(crate) fn target(tid: i32) -> Target {
    under(tid, "vanilla", &[])
}

/// A VM with one vCPU, this thread, under a policy with these settings.
fn under(tid: i32, name: &str, settings: &[String]) -> Target {
    let running = RunningVm { name: "web".to_owned(), vcpus: 1, pcpus: 1 };
    let start_time = Captured::of(tid).unwrap().baseline().start;
    let thread = Thread { tid: tid.cast_unsigned(), start_time, comm: String::new() };
    let vcpu = VcpuThread { index: 0, kvm_id: None, thread, source: Source::ThreadName };
    Target {
        vm: VmId { pid: std::process::id(), start_ticks: 1, name: running.name.clone() },
        accel: Accel::Kvm,
        vcpus: vec![vcpu],
        plan: Box::new(policy(&running, name, settings).unwrap()),
        timers: None,
        shares: None,
        notes: Vec::new(),
    }
}

/// A VM with these threads as its vCPUs. Its policy does nothing.
fn with_vcpus(tids: &[i32]) -> Target {
    let running = RunningVm { name: "web".to_owned(), vcpus: tids.len(), pcpus: 1 };
    let vcpus = (0..).zip(tids).map(|(index, tid)| {
        let vcpu = target(*tid).vcpus.remove(0);
        VcpuThread { index, ..vcpu }
    });
    let plan = Box::new(policy(&running, "vanilla", &[]).unwrap());
    Target { vcpus: vcpus.collect(), plan, ..target(tids[0]) }
}

/// Counts how often an engine's journal was written since the last call.
fn writes(rig: &Rig) -> impl Fn() -> usize + use<> {
    let notes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
    let notes = notes.unwrap();
    // Both ends of a move: the kernel reports equal events that follow each other as one.
    let moved = inotify::WatchFlags::MOVE;
    inotify::add_watch(&notes, rig.dir.path().join("run"), moved).unwrap();
    move || {
        let mut room = [std::mem::MaybeUninit::uninit(); 8192];
        let mut reader = inotify::Reader::new(&notes, &mut room);
        let moves = std::iter::from_fn(|| Some(reader.next().ok()?.events()));
        moves.filter(|end| end.contains(inotify::ReadFlags::MOVED_TO)).count()
    }
}

#[test]
fn the_journal_is_written_once_for_all_vcpus_of_a_vm() {
    let mut rig = Rig::new();
    let written = writes(&rig);
    let vcpus: Vec<Waiting> = (0..8).map(|_| Waiting::start()).collect();
    let tids: Vec<i32> = vcpus.iter().map(|vcpu| vcpu.tid).collect();
    let (answer, answered) = mpsc::channel();
    for detached in [true, false] {
        let attach = Box::new(with_vcpus(&tids));
        rig.commands.send(engine::Command::Attach(attach, None, answer.clone())).unwrap();
        rig.obey();
        answered.recv().unwrap().unwrap();
        assert_eq!((rig.journal.contents().threads.len(), written()), (8, 1));
        if detached {
            let (vm, answer) = (target(tids[0]).vm, mpsc::channel().0);
            rig.commands.send(engine::Command::Detach(vm, answer)).unwrap();
            rig.obey();
            assert_eq!((rig.journal.contents().threads.len(), written()), (0, 1));
        }
    }
    let captured: Vec<Captured> = tids.iter().map(|tid| Captured::of(*tid).unwrap()).collect();
    vcpus.into_iter().for_each(Waiting::end);
    until("they are gone", || captured.iter().all(|captured| !captured.is_alive()));
    tids.iter().for_each(|tid| rig.ended(*tid));
    rig.settle();
    assert!(rig.vms.is_empty() && rig.journal.contents().threads.is_empty());
    assert_eq!(written(), 1);
}

#[test]
fn who_asks_for_one_vm_is_not_told_of_all() {
    let mut rig = Rig::new();
    let vcpus: Vec<Waiting> = (0..3).map(|_| Waiting::start()).collect();
    for (n, vcpu) in vcpus.iter().enumerate() {
        let mut target = target(vcpu.tid);
        target.vm.name = format!("web-{n}");
        rig.attach(target).unwrap();
    }
    let names = |request: &str| -> Vec<String> {
        let Ok(Request::Status { vm }) = serde_json::from_str(request) else { panic!("{request}") };
        rig.status(vm.as_ref()).vms.into_iter().map(|vm| vm.vm.name).collect()
    };
    assert_eq!(names(r#"{"do":"status"}"#), ["web-0", "web-1", "web-2"]);
    let id = format!(r#"{{"pid":{},"start_ticks":1,"name":"web-1"}}"#, std::process::id());
    assert_eq!(names(&format!(r#"{{"do":"status","vm":{id}}}"#)), ["web-1"]);
    rig.detach_all();
    vcpus.into_iter().for_each(Waiting::end);
}

#[test]
fn for_a_vm_that_ends_within_a_check_nothing_is_due() {
    let mut rig = Rig::new();
    let vcpu = Waiting::start();
    rig.attach(target(vcpu.tid)).unwrap();
    let (&number, vm) = rig.vms.first_key_value().unwrap();
    let captured = Captured::of(vm.vcpus[0].as_ref().unwrap().tid()).unwrap();
    vcpu.end();
    until("it is gone", || !captured.is_alive());
    rig.dues.clear();
    rig.dues.extend([(1, Due::Check(number)), (2, Due::Account(number))]);
    rig.act();
    assert!(rig.vms.is_empty(), "it has ended");
    assert!(rig.dues.is_empty(), "{:?}", rig.dues);
}

#[test]
fn a_vcpu_that_a_boost_would_not_raise_is_not_said_to_be_boosted() {
    let mut rig = Rig::new();
    let vcpu = Waiting::start();
    let nicer = ["policy.static.means=\"nice 19\"".to_owned()];
    let Some(status) = rig.attached(under(vcpu.tid, "static", &nicer)) else { return };
    let why = status.vcpus[0].left_alone.as_deref().unwrap_or_default();
    assert!(why.contains("a boost would not raise it") && status.driven().count() == 0, "{why}");
    let number = rig.number();
    assert_eq!(rig.detach(number).unwrap().vcpus, status.vcpus);
    vcpu.end();
}

/// In a process of its own, whose threads are those of tests: not its first one executes another program.
#[test]
fn a_boost_does_not_outlive_the_execution_of_another_program() {
    const HERE: &str = "VCOOP_TEST_EXECUTES";
    const NAME: &str =
        "engine::inside::tests::a_boost_does_not_outlive_the_execution_of_another_program";
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
    let (pid, other) = (std::process::id().cast_signed(), Waiting::start());
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

#[test]
fn under_static_all_time_awake_is_boosted() {
    const LONG: Duration = Duration::from_millis(20);
    let mut rig = Rig::new();
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let vcpu = thread::spawn(move || {
        let spin = || {
            let began = run_time(gettid()).ran_ns;
            while run_time(gettid()).ran_ns < began + LONG.as_nanos() as u64 {}
        };
        // Before its policy begins, too: this time does not count.
        spin();
        tell.send(gettid()).unwrap();
        gone.recv().unwrap();
        spin();
        tell.send(0).unwrap();
        let _ = gone.recv();
    });
    let Some(_) = rig.attached(under(told.recv().unwrap(), "static", &[])) else { return };
    go.send(()).unwrap();
    told.recv().unwrap();
    let number = rig.number();
    let last = rig.detach(number).unwrap();
    let (boosted, most) = (last.vcpus[0].boosted_ns, last.for_ns.min(2 * LONG.as_nanos() as u64));
    assert!((LONG.as_nanos() as u64..most).contains(&boosted), "{boosted} of {most} ns");
    drop(go);
    vcpu.join().unwrap();
}

/// Without the capability that it had when it boosted, the engine cannot clear the flag that a boost sets.
#[test]
fn what_cannot_be_given_back_is_said_and_stays_in_the_journal() {
    // A thread of its own: the capability does not come back.
    std::thread::spawn(without_the_capability).join().unwrap();
}

fn without_the_capability() {
    let mut rig = Rig::new();
    let vcpu = Waiting::start();
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
fn a_vmm_that_the_kernel_would_end_for_a_boost_is_not_boosted() {
    let Ok(mut vmm) = Command::new("prlimit").args(["--rttime=200000:", "sleep", "60"]).spawn()
    else {
        return Skip::because("no prlimit").tell();
    };
    let tid = vmm.id().cast_signed();
    let limit = |limit: &str| {
        let of = [format!("--pid={tid}"), format!("--rttime={limit}:")];
        assert!(Command::new("prlimit").args(of).status().unwrap().success());
    };
    until("it is limited", || real_time_limit(tid).is_some());
    let before = Attributes::get(tid).unwrap();
    let mut rig = Rig::new();
    let why = rig.attach(under(tid, "static", &[])).unwrap_err().to_string();
    assert!(why.contains(&format!("remedy: prlimit --rttime=unlimited --pid {tid}")), "{why}");
    assert!(rig.journal.contents().threads.is_empty(), "nothing was changed");
    // The limit is of real-time only.
    let nice = ["policy.static.means=\"nice -5\"".to_owned()];
    let taken = rig.attached(under(tid, "static", &nice));
    limit("unlimited");
    if taken.is_some() {
        let number = rig.number();
        rig.detach(number);
        rig.attach(under(tid, "static", &[])).unwrap();
        let number = rig.number();
        rig.check_limit(number);
        assert!(Attributes::get(tid).unwrap().to_policy().is_rt());
        limit("200000");
        rig.check_limit(number);
        let status = rig.status(None).vms.remove(0);
        let why = status.vcpus[0].left_alone.clone();
        assert!(why.is_some_and(|why| why.contains("RLIMIT_RTTIME")), "{status:?}");
        assert_eq!(Attributes::get(tid).unwrap(), before);
    }
    vmm.kill().unwrap();
    vmm.wait().unwrap();
}

#[test]
fn who_has_ended_is_left_whether_or_not_its_end_would_have_been_told() {
    for told in [0, u64::MAX] {
        let mut rig = Rig::new();
        let vcpu = Waiting::start();
        let Some(_) = rig.attached(under(vcpu.tid, "static", &[])) else { return };
        let number = rig.number();
        let captured = Captured::of(vcpu.tid).unwrap();
        vcpu.end();
        until("it is gone", || !captured.is_alive());
        rig.last_look = told;
        rig.run(number, 0, |port| port.try_means());
        assert!(rig.vms.is_empty(), "{told}");
    }
}

/// A process that starts a second VM renames its first one, and another thread can get a number as soon as it is free.
#[test]
fn a_thread_has_one_policy_and_only_its_own_end_ends_that() {
    let mut rig = Rig::new();
    let vcpu = Waiting::start();
    let tid = vcpu.tid;
    rig.attach(target(tid)).unwrap();
    let mut other = target(tid);
    other.vm.name += "#5";
    let why = rig.attach(other.clone()).unwrap_err().why;
    assert!(why.contains(&format!("thread {tid}, as one of web\n")), "{why}");
    rig.ended(tid);
    assert!(rig.vms.len() == 1 && rig.journal.contents().threads.contains_key(&tid));
    // As if the thread had ended and its number belonged to another one.
    let (&number, vm) = rig.vms.first_key_value().unwrap();
    let gone = Waiting::start();
    let captured = Captured::of(gone.tid).unwrap();
    gone.end();
    until("it is gone", || !captured.is_alive());
    assert_eq!(vm.vcpus.len(), 1);
    rig.vcpu_mut(number, 0).unwrap().captured = captured;
    rig.attach(other).unwrap();
    assert_eq!(rig.threads[&tid].0, number + 2);
    rig.detach_all();
}

#[test]
fn an_engine_that_polls_does_so_for_a_while_after_an_event() {
    if allowed_cpus().is_ok_and(|cpus| cpus.len() < 2) {
        return Skip::because("it polls where it has two CPUs").tell();
    }
    let dir = tempfile::tempdir().unwrap();
    let (keeper, place, journal) = owned(&dir, idle);
    let engine = Engine::with(keeper, place, journal).unwrap();
    let vcpu = Waiting::start();
    let cpu = || engine.status(None).unwrap().engine_cpu_ns;
    let [asleep, polling] = [0, 10_000_000].map(|time| {
        engine.busy_poll(time);
        let before = cpu();
        for _ in 0..10 {
            engine.attach(target(vcpu.tid)).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        cpu() - before
    });
    assert!(polling > 3 * asleep, "{asleep} {polling}");
    assert!(polling < 180_000_000, "{polling}: it sleeps when nothing happens");
}

#[test]
fn who_is_detached_is_said_to_be_boosted_no_longer() {
    let mut rig = Rig::new();
    let (vcpu, main) = (Waiting::start(), Waiting::start());
    let of = |tid| under(tid, "static", &[]);
    let Target { mut vcpus, plan, .. } = of(main.tid);
    let timers = vcpus.pop().map(|thread| (thread, plan));
    let Some(attached) = rig.attached(Target { timers, ..of(vcpu.tid) }) else { return };
    let boosted = |status: &VmStatus| {
        let all = status.vcpus.iter().chain(&status.timers);
        all.map(|vcpu| vcpu.boosted).collect::<Vec<_>>()
    };
    assert_eq!(boosted(&attached), [true, true]);
    let (&number, _) = rig.vms.iter().find(|(_, vm)| !vm.is_timers).unwrap();
    let last = rig.detach(number).unwrap();
    assert_eq!(boosted(&last), [false, false]);
    assert!(rig.vms.is_empty());
}

#[test]
fn a_process_cannot_keep_a_part_of_a_boost() {
    let mut rig = Rig::new();
    let vcpu = Waiting::start();
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
    let vcpu = Waiting::start();
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
    let vcpu = Waiting::start();
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
    let vcpus: Vec<Waiting> = (0..8).map(|_| Waiting::start()).collect();
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

#[test]
fn a_policy_leaves_files_for_clients_and_metrics() {
    let attached = without_files(Rig::new, |mut rig, mut all| {
        let vcpu = Waiting::start();
        [8, SPARE_FILES].map(|close| {
            all.truncate(all.len() - close);
            let attached = rig.attach(target(vcpu.tid));
            attached.map(|vm| vm.driven().count()).map_err(|why| (why.why, rig.vms.len()))
        })
    });
    if let Some([few, many]) = attached {
        let (why, vms) = few.unwrap_err();
        assert!(why.contains("os error 24") && why.contains("ulimit -Hn") && vms == 0, "{why}");
        assert_eq!(many, Ok(1));
    }
}

#[test]
fn a_slice_between_boosts_that_is_the_default_keeps_nobody_from_a_boost() {
    let mut rig = Rig::new();
    let vcpu = Waiting::start();
    let tid = vcpu.tid;
    let Some(default @ 1..) = default_slice() else {
        return Skip::because("this kernel has no slices").tell();
    };
    let settings = [format!("policy.wake-boost.rest_slice=\"{default}ns\"")];
    let before = Attributes::get(tid).unwrap();
    let Some(_) = rig.attached(under(tid, "wake-boost", &settings)) else { return };
    assert!(Attributes::get(tid).unwrap().to_policy().is_rt(), "it sleeps boosted");
    let number = rig.number();
    rig.detach(number);
    assert_eq!(Attributes::get(tid).unwrap(), before);
}

#[test]
fn the_host_is_looked_at_once_for_all_governors() {
    let mut rig = Rig::new();
    let vcpus = [Waiting::start(), Waiting::start()];
    for (pid, vcpu) in (1..).zip(&vcpus) {
        let mut target = under(vcpu.tid, "host-hint", &[]);
        target.vm.pid = pid;
        rig.attach(target).unwrap();
    }
    let looks: Vec<(u64, u64)> = rig
        .dues
        .iter()
        .filter_map(|(at, due)| match due {
            Due::Govern(number) => Some((*at, *number)),
            _ => None,
        })
        .collect();
    let [(first, web), (second, db)] = looks[..] else { panic!("{looks:?}") };
    // The second began a moment later.
    assert_eq!((second - first) % 250_000_000, 0, "{looks:?}");
    let mut shared = || {
        rig.govern(web);
        let at = rig.usage.at;
        rig.govern(db);
        at == rig.usage.at
    };
    assert!((0..100).any(|_| shared()));
    // Not for one that has come since.
    rig.detach(db);
    rig.govern(web);
    assert_eq!(rig.usage.vms.keys().collect::<Vec<_>>(), [&web]);
}

#[test]
fn a_guest_is_looked_at_where_the_policy_goes_by_it_and_heard_while_it_has_a_driver() {
    let mut rig = Rig::new();
    let (vcpu, (file, shares)) = (Waiting::start(), shares());
    let mut attach = |name, shares| {
        let attached = rig.attached(Target { shares, ..under(vcpu.tid, name, &[]) })?;
        let number = rig.number();
        let is_looked_at = rig.dues.iter().any(|(_, due)| *due == Due::Look(number));
        file.write_all_at(&[0; 8], 64).unwrap();
        rig.meet(number);
        let now = rig.detach(number).unwrap();
        Some((is_looked_at, [attached, now].map(|status| status.vcpus[0].heard)))
    };
    if let Some(found) = attach("dynamic", Some(shares)) {
        assert_eq!(found, (true, [Some(true), Some(false)]));
    }
    if let Some(found) = attach("wake-boost", None) {
        assert_eq!(found, (false, [None, None]));
    }
}

#[test]
fn a_guest_that_has_another_window_is_asked_there_what_it_was_asked_before() {
    let mut rig = Rig::new();
    let (vcpu, [before, now]) = (Waiting::start(), [(); 2].map(|()| shares().1));
    let hints = |shares: &Shares| shares.window.host(0).unwrap().hints();
    let target = under(vcpu.tid, "host-hint", &[]);
    rig.attach(Target { shares: Some(before.clone()), ..target }).unwrap();
    let (&number, vm) = rig.vms.iter_mut().next().unwrap();
    assert!(hints(&before).preferred_valid && !hints(&now).preferred_valid);
    vm.link.as_mut().unwrap().searched(Some((now.window.clone(), None)), 1);
    rig.meet(number);
    assert!(hints(&now).preferred_valid && hints(&now).steal_valid);
    rig.detach(number);
    assert!(!hints(&now).preferred_valid);
}

/// A keeper that ends at once.
fn gone(_: &Path) -> Command {
    Command::new("true")
}

/// A keeper that can be started once.
fn once(journal: &Path) -> Command {
    Command::new(journal.with_file_name("../once"))
}

#[test]
fn without_a_keeper_the_engine_gives_everything_back_and_ends() {
    for program in [gone as Program, once] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("once");
        std::os::unix::fs::symlink("/bin/true", &file).unwrap();
        let (mut inside, _commands) = engine(&dir, program);
        std::fs::remove_file(&file).unwrap();
        let vcpu = Waiting::start();
        // Whether it is attached depends on when the keeper ends.
        let _ = inside.attach(target(vcpu.tid));
        let why = inside.why.clone();
        let (tell, ended) = mpsc::channel();
        thread::spawn(move || {
            inside.live();
            let _ = tell.send(());
        });
        ended.recv_timeout(Duration::from_secs(10)).expect("it ends");
        assert!(why.get().is_some_and(|why| why.contains("cannot be started again")), "{why:?}");
        assert!(!dir.path().join("run/threads.journal").exists(), "all was given back");
    }
}

#[test]
fn the_words_of_all_threads_have_room_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, place, _journal) = owned(&dir, idle);
    let file = place.lock().metadata().unwrap();
    assert!(file.blocks() * 512 >= file.len(), "{file:?}");
    keeper.end();
}

#[test]
fn a_keeper_that_has_lived_is_replaced() {
    let mut rig = Rig::new();
    // As the new one's process has it until its program has begun.
    let copy = rig.keeper.ends().try_clone().unwrap();
    rig.keeper.kill();
    assert!(!rig.keeper_ended());
    assert!(rig.why.get().is_none());
    let mut events = Vec::with_capacity(8);
    let room = rustix::buffer::spare_capacity(&mut events);
    epoll::wait(&rig.poll, room, Some(&Timespec::default())).unwrap();
    assert!(events.iter().all(|event| event.data.u64() != KEEPER), "the new one lives");
    drop(copy);
}

#[test]
fn a_keeper_that_somebody_has_stopped_is_replaced() {
    let mut rig = Rig::new();
    let vcpu = Waiting::start();
    rig.attached(target(vcpu.tid)).unwrap();
    let baseline = Captured::of(vcpu.tid).unwrap().baseline().clone();
    rig.keeper.stop();
    let (tell, told) = mpsc::channel();
    let engine = thread::spawn(move || {
        // More than there is room for.
        let why = (0..100_000).find_map(|_| rig.keeper.hold_anew(0, &baseline).err());
        let _ = tell.send(());
        (rig, why)
    });
    told.recv_timeout(Duration::from_secs(30)).expect("it does not wait for who does not read");
    let (mut rig, why) = engine.join().unwrap();
    assert!(why.is_some());
    assert!(!rig.keeper_ended() && rig.why.get().is_none());
    let number = rig.number();
    assert!(rig.detach(number).is_some_and(|status| status.not_given_back.is_empty()));
}

#[test]
fn waits_are_not_rounded_to_milliseconds() {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut events = Vec::with_capacity(1);
    let mut wait = |ns| {
        let began = monotonic();
        let timeout = Timespec::try_from(Duration::from_nanos(ns)).unwrap();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).unwrap();
        monotonic() - began
    };
    let mut least = |ns| (0..50).map(|_| wait(ns)).min().unwrap();
    let (short, long) = (least(100_000), least(1_000_000));
    assert!(short >= 100_000 && 2 * short < long, "{short} ns, and {long} ns");
}
