//! The thread that drives the vCPUs of all VMs.
//!
//! It sleeps until a watched thread has slept or run, a policy timer is due, or somebody commands. It
//! alone has the drivers, the journal and the keeper, so there is nothing to lock.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use vcoop_model::plan::{Plan, PolicyPlan};
use vcoop_policy::VmShared;
use vcoop_policy::config::Ns;
use vcoop_policy::driver;
use vcoop_policy::govern::CpuTime;
use vcoop_policy::repay::ACCOUNT_NS;
use vcoop_policy::thread::Policy;
use vcoop_sources::{Happened, Perf, Source, What};
use vcoop_threads::clock::{kernel_clock, monotonic};
use vcoop_threads::journal::Journal;
use vcoop_threads::{Attributes, Captured, RunTimes, set_timer_slack};

use crate::keeper::Keeper;
use crate::place::Place;
use crate::policy::ENGINE_PRIORITY;
use crate::port::{Due, Dues, Stop, Vcpu, VcpuPort};
use crate::protocol::{Status, VcpuStatus, VmId, VmStatus};

/// Time between two looks at whether somebody else has changed a thread.
const CHECK_NS: Ns = 1_000_000_000;

/// What woke the engine, beside threads, whose tokens are their numbers.
const WAKE: u64 = 1 << 32;
const TIMER: u64 = WAKE + 1;
const KEEPER: u64 = WAKE + 2;
/// A thread has ended: its number is added.
const ENDS: u64 = 1 << 33;

/// A vCPU to apply a policy to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetVcpu {
    /// Its number.
    pub index: u32,
    /// Its thread.
    pub tid: i32,
    /// When that started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// A VM to apply a policy to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The VM.
    pub vm: VmId,
    /// Its vCPUs, at least one.
    pub vcpus: Vec<TargetVcpu>,
    /// Its policy: a plan with one VM of as many vCPUs.
    pub plan: Box<Plan>,
}

/// What the engine is told to do.
#[derive(Debug)]
enum Command {
    Attach(Target, Sender<Result<VmStatus, String>>),
    Detach(VmId, Sender<Option<VmStatus>>),
    Status(Sender<Status>),
    End,
}

/// The engine, from outside.
#[derive(Debug)]
pub struct Engine {
    commands: Sender<Command>,
    wake: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the thread. The place's journal and its keeper are the engine's from here on.
    ///
    /// # Errors
    ///
    /// The keeper, or the thread, does not start.
    pub(crate) fn start(place: Place, journal: Journal) -> io::Result<Self> {
        let keeper = Keeper::start(&place)?;
        let (commands, orders) = mpsc::channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        epoll::add(&poll, &wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&poll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&poll, keeper.ends(), EventData::new_u64(KEEPER), EventFlags::IN)?;
        let inside = Inside {
            orders,
            poll,
            timer,
            source: None,
            keeper,
            journal,
            place,
            vms: BTreeMap::new(),
            threads: BTreeMap::new(),
            dues: Dues::new(),
            next: 0,
            heard: Heard::default(),
        };
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || inside.live())?;
        Ok(Self { commands, wake, thread: Mutex::new(Some(thread)) })
    }

    /// Gives everything back, and ends the thread.
    pub(crate) fn end(&self) {
        self.order(Command::End);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // One that has panicked has left it to the keeper.
            let _ = thread.join();
        }
    }

    /// Whether the thread goes on.
    pub(crate) fn is_alive(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    fn order(&self, command: Command) -> bool {
        let told = self.commands.send(command).is_ok();
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        told
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (answer, answered) = mpsc::channel();
        if !self.order(command(answer)) {
            return None;
        }
        answered.recv().ok()
    }

    /// Applies a policy to a VM, in place of the one in force.
    ///
    /// # Errors
    ///
    /// Why not, for people. The VM has what it had before any policy.
    pub fn attach(&self, target: Target) -> Result<VmStatus, String> {
        self.ask(|answer| Command::Attach(target, answer)).unwrap_or_else(|| Err(dead()))
    }

    /// Takes a policy back; how it was until then. `None`: there was none.
    pub fn detach(&self, vm: VmId) -> Option<VmStatus> {
        self.ask(|answer| Command::Detach(vm, answer)).flatten()
    }

    /// What is in force.
    ///
    /// # Errors
    ///
    /// The engine has ended.
    pub fn status(&self) -> Result<Status, String> {
        self.ask(Command::Status).ok_or_else(dead)
    }
}

fn dead() -> String {
    "the engine has ended".to_owned()
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

/// What was heard of.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    events: u64,
    sum_ns: Ns,
    max_ns: Ns,
}

/// A VM with a policy.
#[derive(Debug)]
struct AttachedVm {
    id: VmId,
    policy: String,
    since: Ns,
    plan: Box<Plan>,
    /// Time of the last call of a policy.
    called: Ns,
    shared: VmShared,
    /// `None`: it has ended, or is left alone, and why is in `status`.
    vcpus: Vec<Result<Vcpu, VcpuStatus>>,
    /// CPU time of the vCPUs, where the policy wants to know.
    times: Vec<Option<RunTimes>>,
}

/// The engine's thread.
#[derive(Debug)]
struct Inside {
    orders: Receiver<Command>,
    poll: OwnedFd,
    timer: OwnedFd,
    /// From the first policy on that wants to hear of threads.
    source: Option<Box<dyn Source>>,
    keeper: Keeper,
    journal: Journal,
    place: Place,
    vms: BTreeMap<u64, AttachedVm>,
    /// Number of the VM, and place in it, by thread.
    threads: BTreeMap<i32, (u64, usize)>,
    dues: Dues,
    next: u64,
    heard: Heard,
}

impl Inside {
    fn live(mut self) {
        set_timer_slack(1);
        // Without it, it is late on a busy host, and the VM's status shows by how much.
        let _ = Attributes::from_policy(&Policy::Fifo(ENGINE_PRIORITY)).set(0);
        let mut events = Vec::with_capacity(64);
        loop {
            self.set_timer();
            events.clear();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // It cannot go on without: all is given back.
                Err(_) => break,
            }
            let mut ends = false;
            for event in &events {
                match event.data.u64() {
                    WAKE => ends |= self.obey(),
                    TIMER => {}
                    KEEPER => self.keeper_ended(),
                    token if token >= ENDS => self.ended((token - ENDS) as i32),
                    token => self.listen(token as i32),
                }
            }
            if ends {
                break;
            }
            self.act();
        }
        let all: Vec<u64> = self.vms.keys().copied().collect();
        for number in all {
            self.detach(number);
        }
        self.keeper.end();
        if self.journal.contents().threads.is_empty() {
            let _ = self.journal.remove();
        }
    }

    /// The timer rings when the first thing is due.
    fn set_timer(&self) {
        let at = self.dues.first().map_or(0, |(at, _)| (*at).max(1));
        let value =
            Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: none, it_value: value };
        // A time that has passed rings at once; zero is none. Nothing here can fail.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec);
    }

    /// Does what it is told; whether it is to end.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.orders.try_recv() {
            match command {
                Command::Attach(target, answer) => {
                    if let Some(number) = self.number(&target.vm) {
                        self.detach(number);
                    }
                    let _ = answer.send(self.attach(target));
                }
                Command::Detach(vm, answer) => {
                    let number = self.number(&vm);
                    let _ = answer.send(number.and_then(|number| self.detach(number)));
                }
                Command::Status(answer) => _ = answer.send(self.status()),
                Command::End => return true,
            }
        }
        false
    }

    fn number(&self, id: &VmId) -> Option<u64> {
        self.vms.iter().find(|(_, vm)| vm.id == *id).map(|(number, _)| *number)
    }

    fn attach(&mut self, target: Target) -> Result<VmStatus, String> {
        let Target { vm: id, vcpus, plan } = target;
        let now = monotonic();
        let number = self.next;
        self.next += 1;
        let vm = AttachedVm {
            policy: plan.policy_name.clone(),
            since: now,
            called: now,
            shared: plan.policy.shared(now),
            vcpus: Vec::new(),
            times: Vec::new(),
            id,
            plan,
        };
        self.vms.insert(number, vm);
        let mut refused = None;
        for (place, vcpu) in vcpus.iter().enumerate() {
            let one = self.attach_vcpu(number, place, vcpu);
            if let Err(why) = one {
                refused = Some(format!("vCPU {}: {why}", vcpu.index));
                break;
            }
        }
        if let Some(why) = refused {
            self.detach(number);
            return Err(why);
        }
        self.dues.insert((now + CHECK_NS, Due::Check(number)));
        let vm = &self.vms[&number];
        if vm.plan.policy.repays() {
            self.dues.insert((now + ACCOUNT_NS, Due::Account(number)));
        }
        Ok(status(&self.vms[&number], now))
    }

    fn attach_vcpu(&mut self, number: u64, place: usize, of: &TargetVcpu) -> Result<(), String> {
        let words = |e: &dyn std::fmt::Display| e.to_string();
        let captured = Captured::of(of.tid).map_err(|e| words(&e))?.without_cpus();
        let baseline = captured.baseline().clone();
        if baseline.start != of.start_ticks {
            return Err(format!("thread {} is another one now", of.tid));
        }
        let vm = self.vms.get_mut(&number).expect("it is being attached");
        let policy = baseline.attributes.to_policy();
        if policy.is_rt() || policy.is_deadline() {
            let why = format!("somebody else made it {}", baseline.attributes);
            let (index, left_alone) = (of.index, Some(why));
            let alone = VcpuStatus { index, tid: of.tid, left_alone, ..VcpuStatus::default() };
            vm.vcpus.push(Err(alone));
            vm.times.push(None);
            return Ok(());
        }
        // Who may change nothing is told before anything is written down.
        if matches!(vm.plan.policy, PolicyPlan::Vanilla) {
            let alone = VcpuStatus { index: of.index, tid: of.tid, ..VcpuStatus::default() };
            vm.vcpus.push(Err(alone));
            vm.times.push(None);
            return Ok(());
        }
        self.journal.record(&captured).map_err(|e| words(&e))?;
        let slot = self.keeper.hold(&baseline).map_err(|e| format!("the keeper: {e}"))?;
        let mut driver = vm.plan.vcpu_driver(0, place);
        // The plan's baseline is a guess; this is what the thread has.
        driver.set_baseline(policy);
        let vcpu = Vcpu {
            index: of.index,
            driver,
            has: baseline.attributes,
            captured,
            slot,
            for_life: !vm.plan.policy.boosts(),
            armed: None,
        };
        vm.vcpus.push(Ok(vcpu));
        let repays = vm.plan.policy.repays();
        vm.times.push(if repays { RunTimes::open(of.tid).ok() } else { None });
        self.threads.insert(of.tid, (number, place));
        let ends = vm.vcpus[place].as_ref().ok().and_then(|v| v.captured.ends());
        if let Some(ends) = ends {
            let token = EventData::new_u64(ENDS + of.tid as u64);
            epoll::add(&self.poll, ends, token, EventFlags::IN | EventFlags::ONESHOT)
                .map_err(|e| words(&e))?;
        }
        if vm.plan.policy.boosts() {
            let source = match &mut self.source {
                Some(source) => source,
                None => self.source.insert(Box::new(Perf::new().map_err(|e| words(&e))?)),
            };
            source
                .watch(of.tid, heard_after(&vm.plan.policy), self.poll.as_fd())
                .map_err(|e| words(&e))?;
        }
        let started = self.drive(number, place, |port| driver::start(port, false));
        match started {
            Some(Ok(())) | None => {}
            Some(Err(Stop::Gone)) => return Err("its thread has ended".to_owned()),
            Some(Err(Stop::Refused(why))) => return Err(words(&why)),
            Some(Err(Stop::Foreign)) => self.check(number, place),
        }
        self.settle(number, place);
        Ok(())
    }

    /// Whether a vCPU sleeps is found out anew.
    fn settle(&mut self, number: u64, place: usize) {
        let Some(Ok(vcpu)) = self.vms.get(&number).and_then(|vm| vm.vcpus.get(place)) else {
            return;
        };
        let asleep = vcpu.captured.is_asleep();
        if asleep != vcpu.driver.is_halted() {
            self.halt(number, place, monotonic(), asleep);
        }
    }

    /// Has something done with a vCPU; `None`: it is not driven.
    fn drive<R>(
        &mut self,
        number: u64,
        place: usize,
        what: impl FnOnce(&mut VcpuPort<'_>) -> R,
    ) -> Option<R> {
        self.drive_at(number, place, monotonic(), what)
    }

    /// The same about something that happened at a time. No policy's time goes back, so it may count
    /// from a later one.
    fn drive_at<R>(
        &mut self,
        number: u64,
        place: usize,
        at: Ns,
        what: impl FnOnce(&mut VcpuPort<'_>) -> R,
    ) -> Option<R> {
        let vm = self.vms.get_mut(&number)?;
        let vcpu = vm.vcpus.get_mut(place)?.as_mut().ok()?;
        let (shared, keeper, dues) = (&mut vm.shared, &self.keeper, &mut self.dues);
        vm.called = vm.called.max(at);
        let (due, since) = (Due::Policy(number, place), vm.called);
        let mut port = VcpuPort { vcpu, shared, keeper, dues, due, since };
        let result = what(&mut port);
        port.keeper.slot(port.vcpu.slot).acts();
        Some(result)
    }

    /// The same with what can go wrong: then the vCPU is driven no longer.
    fn run(
        &mut self,
        number: u64,
        place: usize,
        what: impl FnOnce(&mut VcpuPort<'_>) -> Result<(), Stop>,
    ) {
        self.run_at(number, place, monotonic(), what);
    }

    fn run_at(
        &mut self,
        number: u64,
        place: usize,
        at: Ns,
        what: impl FnOnce(&mut VcpuPort<'_>) -> Result<(), Stop>,
    ) {
        match self.drive_at(number, place, at, what) {
            Some(Ok(())) | None => {}
            Some(Err(Stop::Gone)) => self.leave(number, place, None),
            Some(Err(Stop::Refused(why))) => self.leave(number, place, Some(why.to_string())),
            Some(Err(Stop::Foreign)) => self.check(number, place),
        }
    }

    fn halt(&mut self, number: u64, place: usize, at: Ns, halted: bool) {
        self.run_at(number, place, at, |port| driver::halt(port, halted));
    }

    /// What a thread did.
    fn listen(&mut self, tid: i32) {
        let Some(&(number, place)) = self.threads.get(&tid) else { return };
        let now = monotonic();
        let (mut events, mut lost) = (Vec::new(), false);
        let heard = &mut self.heard;
        let Some(source) = &mut self.source else { return };
        source.take(tid, &mut |Happened { at, what }| {
            match what {
                What::Sleeps => {
                    let late = now.saturating_sub(at);
                    heard.events += 1;
                    heard.sum_ns += late;
                    heard.max_ns = heard.max_ns.max(late);
                    events.push((now, true));
                }
                // Its run began before it was heard of, and is charged from there.
                What::Runs => events.push((at, false)),
                What::Lost => lost = true,
            }
        });
        // A thread that has slept and run since is not told of each: only how it is now matters, and
        // that it has slept, which begins a new run.
        let slept = events.iter().rposition(|(_, asleep)| *asleep);
        let from = slept.unwrap_or(0);
        for &(at, asleep) in events[from..].iter().take(2) {
            if asleep || self.is_halted(number, place) {
                self.halt(number, place, at, asleep);
            }
        }
        if lost {
            self.settle(number, place);
        }
    }

    /// Whether a vCPU was last seen halted.
    fn is_halted(&self, number: u64, place: usize) -> bool {
        let vcpu = self.vms.get(&number).and_then(|vm| vm.vcpus.get(place));
        vcpu.is_some_and(|vcpu| vcpu.as_ref().is_ok_and(|vcpu| vcpu.driver.is_halted()))
    }

    /// Does what is due.
    fn act(&mut self) {
        let now = monotonic();
        while let Some(&(at, due)) = self.dues.first()
            && at <= now
        {
            self.dues.pop_first();
            match due {
                Due::Policy(number, place) => {
                    if let Some(Ok(vcpu)) =
                        self.vms.get_mut(&number).and_then(|vm| vm.vcpus.get_mut(place))
                    {
                        vcpu.armed = None;
                    }
                    self.run(number, place, |port| driver::timer(port));
                }
                Due::Account(number) => {
                    self.account(number);
                    self.dues.insert((now + ACCOUNT_NS, due));
                }
                Due::Check(number) => {
                    let places = self.vms.get(&number).map_or(0, |vm| vm.vcpus.len());
                    (0..places).for_each(|place| self.check(number, place));
                    self.dues.insert((now + CHECK_NS, due));
                }
            }
        }
    }

    fn account(&mut self, number: u64) {
        let Some(vm) = self.vms.get(&number) else { return };
        let totals: Vec<_> = vm
            .times
            .iter()
            .map(|file| {
                let time = file.as_ref()?.read();
                Some(CpuTime { busy_ns: time.ran_ns, steal_ns: time.waited_ns })
            })
            .collect();
        for (place, total) in totals.into_iter().enumerate() {
            if let Some(total) = total {
                self.run(number, place, |port| driver::account(port, total));
            }
        }
    }

    /// Somebody else may have changed what a vCPU's thread has.
    fn check(&mut self, number: u64, place: usize) {
        let Some(Ok(vcpu)) = self.vms.get(&number).and_then(|vm| vm.vcpus.get(place)) else {
            return;
        };
        let now = Attributes::get(vcpu.tid());
        let (true, Ok(now)) = (vcpu.captured.is_alive(), now) else {
            return self.leave(number, place, None);
        };
        let policy = now.to_policy();
        if policy == vcpu.has.to_policy() {
            return;
        }
        if policy.is_rt() || policy.is_deadline() {
            return self.leave(number, place, Some(format!("somebody else made it {now}")));
        }
        match Captured::of(vcpu.tid()) {
            Ok(captured) => self.rebase(number, place, captured.without_cpus()),
            Err(_) => self.leave(number, place, None),
        }
    }

    /// What somebody else has given a thread is what it gets back in the end.
    fn rebase(&mut self, number: u64, place: usize, captured: Captured) {
        let Some(Ok(vcpu)) = self.vms.get_mut(&number).and_then(|vm| vm.vcpus.get_mut(place))
        else {
            return;
        };
        let policy = captured.baseline().attributes.to_policy();
        let old = std::mem::replace(&mut vcpu.captured, captured);
        vcpu.has = vcpu.captured.baseline().attributes;
        let baseline = vcpu.captured.baseline().clone();
        let slot = vcpu.slot;
        // If it cannot be written down, nothing more is changed.
        let noted = self.journal.forget(&old).and_then(|()| self.journal.record(&vcpu.captured));
        self.keeper.drop(slot);
        let held = self.keeper.hold(&baseline);
        match (noted, held) {
            (Ok(()), Ok(slot)) => {
                if let Some(Ok(vcpu)) =
                    self.vms.get_mut(&number).and_then(|vm| vm.vcpus.get_mut(place))
                {
                    vcpu.slot = slot;
                }
                self.run(number, place, |port| driver::rebase(port, policy));
            }
            (Err(why), _) => self.leave(number, place, Some(why.to_string())),
            (_, Err(why)) => self.leave(number, place, Some(why.to_string())),
        }
    }

    /// A thread has ended.
    fn ended(&mut self, tid: i32) {
        if let Some(&(number, place)) = self.threads.get(&tid) {
            self.leave(number, place, None);
        }
    }

    /// A vCPU is driven no longer. `why`: it is left as it is; else its thread has ended. A VM without
    /// a thread is none.
    fn leave(&mut self, number: u64, place: usize, why: Option<String>) {
        let Some(vm) = self.vms.get_mut(&number) else { return };
        let Some(entry) = vm.vcpus.get_mut(place) else { return };
        let Ok(vcpu) = entry else { return };
        let alone = VcpuStatus {
            left_alone: Some(why.unwrap_or_else(|| "its thread has ended".to_owned())),
            boosted: false,
            ..vcpu_status(vcpu, monotonic())
        };
        if let Ok(vcpu) = std::mem::replace(entry, Err(alone)) {
            self.let_go(vcpu, Due::Policy(number, place));
        }
        let Some(vm) = self.vms.get(&number) else { return };
        let ended = |v: &Result<Vcpu, VcpuStatus>| match v {
            Ok(_) => false,
            Err(alone) => !Captured::of(alone.tid).is_ok_and(|c| c.is_alive()),
        };
        if vm.vcpus.iter().all(ended) {
            self.detach(number);
        }
    }

    /// Nothing is kept about a thread any more.
    fn let_go(&mut self, vcpu: Vcpu, due: Due) {
        self.source.iter_mut().for_each(|source| source.forget(vcpu.tid()));
        self.threads.remove(&vcpu.tid());
        if let Some(at) = vcpu.armed {
            self.dues.remove(&(at, due));
        }
        self.keeper.drop(vcpu.slot);
        // It stays in the file if that cannot be written, which does no harm.
        let _ = self.journal.forget(&vcpu.captured);
    }

    fn detach(&mut self, number: u64) -> Option<VmStatus> {
        let now = monotonic();
        let places = self.vms.get(&number)?.vcpus.len();
        for place in 0..places {
            // What it has from somebody else stays.
            let foreign = match &self.vms.get(&number)?.vcpus[place] {
                Ok(v) => {
                    Attributes::get(v.tid()).is_ok_and(|now| now.to_policy() != v.has.to_policy())
                }
                Err(_) => true,
            };
            if !foreign {
                // Refused or gone: there is nothing more that could be done.
                let _ = self.drive(number, place, |port| driver::stop(port));
                if let Some(Ok(v)) = self.vms.get(&number).and_then(|vm| vm.vcpus.get(place)) {
                    let _ = v.captured.restore();
                }
            }
        }
        let mut vm = self.vms.remove(&number)?;
        let last = status(&vm, now);
        for (place, vcpu) in vm.vcpus.drain(..).enumerate() {
            if let Ok(vcpu) = vcpu {
                self.let_go(vcpu, Due::Policy(number, place));
            }
        }
        self.dues
            .retain(|(_, due)| !matches!(due, Due::Account(n) | Due::Check(n) if *n == number));
        Some(last)
    }

    /// Somebody has ended the keeper. Without one nothing may be boosted.
    fn keeper_ended(&mut self) {
        let again = self.keeper.again(&self.place).is_ok();
        let added = again && {
            let token = EventData::new_u64(KEEPER);
            epoll::add(&self.poll, self.keeper.ends(), token, EventFlags::IN).is_ok()
        };
        if !added {
            let all: Vec<u64> = self.vms.keys().copied().collect();
            all.into_iter().for_each(|number| _ = self.detach(number));
        }
    }

    fn status(&self) -> Status {
        let now = monotonic();
        Status {
            pid: std::process::id(),
            engine_cpu_ns: kernel_clock(libc::CLOCK_THREAD_CPUTIME_ID),
            events: self.heard.events,
            reaction_sum_ns: self.heard.sum_ns,
            reaction_max_ns: self.heard.max_ns,
            vms: self.vms.values().map(|vm| status(vm, now)).collect(),
        }
    }
}

/// How long a vCPU has run before its policy has to know: what is shorter than its boost may be heard of
/// late, and is charged all the same.
fn heard_after(policy: &PolicyPlan) -> Ns {
    match policy {
        PolicyPlan::WakeBoost(config) => (config.run_ns / 2).min(250_000),
        _ => 0,
    }
}

fn status(vm: &AttachedVm, now: Ns) -> VmStatus {
    let vcpus = vm.vcpus.iter().map(|vcpu| match vcpu {
        Ok(vcpu) => vcpu_status(vcpu, now),
        Err(alone) => alone.clone(),
    });
    VmStatus {
        vm: vm.id.clone(),
        policy: vm.policy.clone(),
        for_ns: now.saturating_sub(vm.since),
        vcpus: vcpus.collect(),
    }
}

fn vcpu_status(vcpu: &Vcpu, now: Ns) -> VcpuStatus {
    let policy = vcpu.driver.policy();
    let stats = policy.stats();
    let budgeted = !vcpu.for_life;
    VcpuStatus {
        index: vcpu.index,
        tid: vcpu.tid(),
        boosted: policy.is_boosted(),
        left_alone: None,
        boosts: stats.boosts,
        denied: stats.denied,
        throttles: stats.throttles,
        boosted_ns: stats.boosted_ns,
        budget_left_ns: budgeted.then(|| policy.budget_left(now)),
    }
}
