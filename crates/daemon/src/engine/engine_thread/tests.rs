//! The engine with VMs that are threads of the test, and with other programs as its keeper.

mod given_back;

use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify;
use rustix::time::Timespec;
use vcoop_model::running_vm::RunningVm;
use vcoop_testing::{Skip, WaitingThread, until, without_files};
use vcoop_threads::clock::monotonic;
use vcoop_threads::journal::Journal;
use vcoop_threads::{
    Attributes, Captured, allowed_cpus, default_slice, gettid, real_time_limit, run_time,
};
use vcoop_vmm::{Accel, Source, Thread, VcpuThread};

use super::EngineThread;
use super::attach::SPARE_FILES;
use crate::engine::link::tests::shares;
use crate::engine::{self, Engine, KEEPER, Shares, Target};
use crate::keeper::{Keeper, Program};
use crate::policy::policy;
use crate::port::DueAction;
use crate::protocol::{Request, VmId, VmStatus};
use crate::run_folder::RunFolder;

/// A keeper that does nothing until its owner ends.
pub(crate) fn idle(_: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec cat >/dev/null"]);
    command
}

/// An engine in a folder of its own. Its keeper ends with it.
struct Rig {
    /// `None` once it is dropped.
    inside: Option<EngineThread>,
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
    type Target = EngineThread;

    fn deref(&self) -> &EngineThread {
        self.inside.as_ref().unwrap()
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut EngineThread {
        self.inside.as_mut().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.inside.take().into_iter().for_each(|inside| inside.keeper.end());
    }
}

/// What an engine owns in a folder, with this program as its keeper.
pub(crate) fn owned(dir: &tempfile::TempDir, keeper: Program) -> (Keeper, RunFolder, Journal) {
    let place = RunFolder::take(&dir.path().join("run")).unwrap();
    let (journal, _) = place.journal().unwrap();
    (Keeper::start_as(keeper, &place).unwrap(), place, journal)
}

/// An engine in a folder, with a sender for commands.
fn engine(
    dir: &tempfile::TempDir,
    keeper: Program,
) -> (EngineThread, mpsc::Sender<engine::Command>) {
    let (keeper, place, journal) = owned(dir, keeper);
    let (commands, orders) = mpsc::channel();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let token = EventData::new_u64(KEEPER);
    epoll::add(&poll, keeper.ends(), token, EventFlags::IN).unwrap();
    (EngineThread::new(orders, poll, keeper, journal, place, Arc::default()), commands)
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
    let vcpus: Vec<WaitingThread> = (0..8).map(|_| WaitingThread::start()).collect();
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
    vcpus.into_iter().for_each(WaitingThread::end);
    until("they are gone", || captured.iter().all(|captured| !captured.is_alive()));
    tids.iter().for_each(|tid| rig.ended(*tid));
    rig.settle();
    assert!(rig.vms.is_empty() && rig.journal.contents().threads.is_empty());
    assert_eq!(written(), 1);
}

#[test]
fn who_asks_for_one_vm_is_not_told_of_all() {
    let mut rig = Rig::new();
    let vcpus: Vec<WaitingThread> = (0..3).map(|_| WaitingThread::start()).collect();
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
    vcpus.into_iter().for_each(WaitingThread::end);
}

#[test]
fn for_a_vm_that_ends_within_a_check_nothing_is_due() {
    let mut rig = Rig::new();
    let vcpu = WaitingThread::start();
    rig.attach(target(vcpu.tid)).unwrap();
    let (&number, vm) = rig.vms.first_key_value().unwrap();
    let captured = Captured::of(vm.vcpus[0].as_ref().unwrap().tid()).unwrap();
    vcpu.end();
    until("it is gone", || !captured.is_alive());
    rig.dues.clear();
    rig.dues.extend([(1, DueAction::Check(number)), (2, DueAction::Account(number))]);
    rig.act();
    assert!(rig.vms.is_empty(), "it has ended");
    assert!(rig.dues.is_empty(), "{:?}", rig.dues);
}

#[test]
fn a_vcpu_that_a_boost_would_not_raise_is_not_said_to_be_boosted() {
    let mut rig = Rig::new();
    let vcpu = WaitingThread::start();
    let nicer = ["policy.static.means=\"nice 19\"".to_owned()];
    let Some(status) = rig.attached(under(vcpu.tid, "static", &nicer)) else { return };
    let why = status.vcpus[0].left_alone.as_deref().unwrap_or_default();
    assert!(why.contains("a boost would not raise it") && status.driven().count() == 0, "{why}");
    let number = rig.number();
    assert_eq!(rig.detach(number).unwrap().vcpus, status.vcpus);
    vcpu.end();
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
        let vcpu = WaitingThread::start();
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
    let vcpu = WaitingThread::start();
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
    let gone = WaitingThread::start();
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
    let vcpu = WaitingThread::start();
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
    let (vcpu, main) = (WaitingThread::start(), WaitingThread::start());
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
fn a_policy_leaves_files_for_clients_and_metrics() {
    let attached = without_files(Rig::new, |mut rig, mut all| {
        let vcpu = WaitingThread::start();
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
    let vcpu = WaitingThread::start();
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
    let vcpus = [WaitingThread::start(), WaitingThread::start()];
    for (pid, vcpu) in (1..).zip(&vcpus) {
        let mut target = under(vcpu.tid, "host-hint", &[]);
        target.vm.pid = pid;
        rig.attach(target).unwrap();
    }
    let looks: Vec<(u64, u64)> = rig
        .dues
        .iter()
        .filter_map(|(at, due)| match due {
            DueAction::Govern(number) => Some((*at, *number)),
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
    let (vcpu, (file, shares)) = (WaitingThread::start(), shares());
    let mut attach = |name, shares| {
        let attached = rig.attached(Target { shares, ..under(vcpu.tid, name, &[]) })?;
        let number = rig.number();
        let is_looked_at = rig.dues.iter().any(|(_, due)| *due == DueAction::Look(number));
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
    let (vcpu, [before, now]) = (WaitingThread::start(), [(); 2].map(|()| shares().1));
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
        let vcpu = WaitingThread::start();
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
    let vcpu = WaitingThread::start();
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
