//! State and actions of the engine's thread.

mod attach;
mod ext;
mod govern;
mod guest;
mod interrupts;
mod listen;
mod rest;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use vcoop_bpf::{Scheduler, VcpuState};
use vcoop_model::plan::Plan;
use vcoop_policy::VmShared;
use vcoop_policy::config::Ns;
use vcoop_policy::driver::{self, Port as _};
use vcoop_policy::govern::{CpuTime, GovernorDriver};
use vcoop_policy::repay::ACCOUNT_NS;
use vcoop_policy::thread::Policy;
use vcoop_sources::{Pressure, Source};
use vcoop_threads::clock::{ClockId, kernel_clock, monotonic};
use vcoop_threads::journal::Journal;
use vcoop_threads::{
    Attributes, RunTime, RunTimes, affinity, apart_from, pin, run_time, set_timer_slack,
};
use vcoop_vmm::{Accel, VcpuThread};

use super::link::Link;
use super::unload::Unloading;
use super::{BELL, Command, ENDS, KEEPER, PRESSURE, WAKE, WindowFound};
use crate::keeper::Keeper;
use crate::policy::{ENGINE_PRIORITY, kernel_rules, listens};
use crate::port::{DueAction, DueActions, Stop, Vcpu, VcpuPort};
use crate::protocol::{Status, VcpuStatus, VmId, VmStatus};
use crate::run_folder::RunFolder;
use govern::Usage;
use interrupts::InterruptCounts;

/// Time between two checks whether a thread was changed from outside.
const CHECK_NS: Ns = 1_000_000_000;

/// Number of events that are taken at once.
const ROOM: usize = 64;

/// Looks for events of several threads before an engine that polls looks for others.
const LOOKS: usize = 32;

/// The result of a search for the window of a VM, with the VM's number.
type SearchResult = (u64, Option<WindowFound>);

/// Counts and delays of thread events.
#[derive(Clone, Copy, Debug, Default)]
struct EventDelays {
    events: u64,
    sum_ns: Ns,
    max_ns: Ns,
}

/// A VM with a policy.
#[derive(Debug)]
struct AttachedVm {
    id: VmId,
    accel: Accel,
    policy: String,
    since: Ns,
    plan: Box<Plan>,
    shared: VmShared,
    /// Its vCPUs. `Err`: one that is not driven, with its last status and the reason.
    vcpus: Vec<Result<Vcpu, VcpuStatus>>,
    /// CPU time of the vCPUs, if the policy repays or may rest.
    times: Vec<Option<RunTimes>>,
    /// Its vCPU threads as they were found.
    threads: Vec<VcpuThread>,
    /// Number under which the thread that delivers its timers is attached.
    timers: Option<u64>,
    /// Whether this is such a thread.
    is_timers: bool,
    /// The window shared with its guest, if the policy needs that.
    link: Option<Link>,
    /// Decides how many of its vCPUs its guest is asked to use.
    governor: Option<GovernorDriver>,
    /// Sources of events of its threads and its interrupts.
    hears: Vec<&'static str>,
    /// Counts of its interrupts, if they are watched.
    interrupted: Option<InterruptCounts>,
    /// Its number in `scx_vcoop`, if that decides about its boosts.
    ext: Option<u32>,
    /// Its vCPUs have what they had before the policy: no thread waits for a CPU, so a boost would change nothing.
    rests: bool,
    /// Total time that its vCPUs had waited at the last check.
    waited: Ns,
    /// Notes about the policy on this host.
    notes: Vec<String>,
}

impl AttachedVm {
    /// Whether the policy uses the guest's words, and the engine (not `scx_vcoop`) reads them.
    fn listens(&self) -> bool {
        listens(&self.plan) && kernel_rules(&self.plan.policy).is_none()
    }

    /// Whether its guest's driver reports on a vCPU.
    fn hears(&self, place: usize) -> bool {
        self.link.as_ref().is_some_and(|link| link.pages(place).is_some())
    }
}

/// State of the engine's thread.
#[derive(Debug)]
pub(super) struct EngineThread {
    orders: Receiver<Command>,
    poll: OwnedFd,
    /// Source of thread events; set from the first policy on that needs it.
    source: Option<Source>,
    /// Token with more events to read, for which epoll reports nothing.
    unread: Option<i32>,
    /// Set from the first policy on that may rest; `None` also if the kernel has no pressure information: then none
    /// rests.
    pressure: Option<Pressure>,
    /// When policies begin to rest, unless a thread waits for a CPU before; 0: they rest now.
    rests_at: Ns,
    /// `scx_vcoop`, as long as a policy needs it.
    scheduler: Option<Box<Scheduler>>,
    /// Schedulers that are being unloaded, which takes the kernel a while.
    pub(super) unloading: Unloading,
    keeper: Keeper,
    journal: Journal,
    place: RunFolder,
    /// Numbers of VMs, and vCPUs in them, whose new baseline the journal's file does not have yet.
    rebased: Vec<(u64, usize)>,
    /// How long it polls for the next event before it sleeps.
    busy_poll: Ns,
    /// Time of the last event that a policy was told of.
    last_event: Ns,
    /// When all threads that had ended were last reported.
    last_look: Ns,
    /// CPUs that the engine's thread may use.
    cpus: Vec<u32>,
    vms: BTreeMap<u64, AttachedVm>,
    /// Number of the VM, and index of the vCPU in it, by thread.
    threads: BTreeMap<i32, (u64, usize)>,
    dues: DueActions,
    next: u64,
    heard: EventDelays,
    /// Usage that governors decide by.
    usage: Usage,
    /// Results of searches for windows.
    found: (Sender<SearchResult>, Receiver<SearchResult>),
    /// Why the engine ended, if it failed.
    why: Arc<OnceLock<String>>,
}

impl EngineThread {
    /// An engine without VMs.
    pub(super) fn new(
        orders: Receiver<Command>,
        poll: OwnedFd,
        keeper: Keeper,
        journal: Journal,
        place: RunFolder,
        why: Arc<OnceLock<String>>,
    ) -> Self {
        Self {
            orders,
            poll,
            source: None,
            unread: None,
            pressure: None,
            rests_at: 0,
            scheduler: None,
            unloading: Unloading::default(),
            keeper,
            journal,
            place,
            rebased: Vec::new(),
            busy_poll: 0,
            last_event: 0,
            last_look: 0,
            cpus: Vec::new(),
            vms: BTreeMap::new(),
            threads: BTreeMap::new(),
            dues: DueActions::new(),
            next: 0,
            heard: EventDelays::default(),
            usage: Usage::default(),
            found: mpsc::channel(),
            why,
        }
    }

    /// Runs until told to end, or until it cannot go on.
    pub(super) fn live(mut self) {
        set_timer_slack(1);
        self.cpus = affinity(0).unwrap_or_default();
        // Without it, it is late on a busy host, and the VM's status shows by how much.
        let _ = Attributes::from_policy(&Policy::Fifo(ENGINE_PRIORITY)).set(0);
        let mut events = Vec::with_capacity(ROOM);
        loop {
            let polls = self.polls();
            let at_once = polls || self.unread.is_some();
            let timeout = if at_once { Some(Duration::ZERO) } else { self.until_due() };
            let timeout = timeout.map(|left| Timespec::try_from(left).unwrap_or_default());
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poll, room, timeout.as_ref()) {
                Ok(count) if count < ROOM => self.last_look = monotonic(),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // It cannot go on without events: it gives everything back.
                Err(e) => {
                    self.fails(format!("epoll_pwait2: {e}"));
                    break;
                }
            }
            let mut ends = false;
            for event in &events {
                match event.data.u64() {
                    WAKE => ends |= self.obey(),
                    KEEPER => ends |= self.keeper_ended(),
                    PRESSURE => self.pressed(),
                    token if token >= BELL => self.rung(token - BELL),
                    token if token >= ENDS => self.ended((token - ENDS) as i32),
                    token => _ = self.listen(token as i32),
                }
            }
            if polls {
                // No system call, and sooner than the kernel would wake a reader.
                let _ = (0..LOOKS).any(|_| self.listen(Source::SEVERAL));
            }
            if let Some(token) = self.unread.take() {
                self.listen(token);
            }
            if ends {
                break;
            }
            self.act();
            self.settle();
        }
        self.detach_all();
        self.settle();
        self.unloading.wait();
        self.keeper.end();
        if self.journal.contents().threads.is_empty() {
            let _ = self.journal.remove();
        }
    }

    /// Writes the journal's file, if it is to change: once for all threads that have what they had by now, or have
    /// another baseline.
    fn settle(&mut self) {
        let rebased = std::mem::take(&mut self.rebased);
        // An owner that reads what is in the file would give these a baseline that they no longer have.
        if let Err(why) = self.journal.settle() {
            for (number, place) in rebased {
                self.leave(number, place, Some(why.to_string()));
            }
        }
    }

    /// Whether it polls for the next event. Not on the only CPU, where vCPUs are to run.
    fn polls(&self) -> bool {
        self.busy_poll > 0
            && self.cpus.len() > 1
            && monotonic().saturating_sub(self.last_event) < self.busy_poll
    }

    /// Whether the engine has to wake up for something that is due. A policy that is neither boosted nor throttled
    /// waits for nothing; it leaves its timer set, because the next boost needs it again.
    fn matters(&self, due: DueAction) -> bool {
        let DueAction::Policy(number, place) = due else { return true };
        self.vcpu(number, place).is_some_and(|vcpu| {
            let policy = vcpu.driver.policy();
            policy.is_boosted() || policy.is_throttled()
        })
    }

    /// Time until the first thing that is due; `None`: nothing is.
    ///
    /// The wait itself has this limit, instead of a timerfd in the epoll. On a kernel with PREEMPT_RT a timerfd expires
    /// in a thread with priority 1, which boosted vCPUs keep from their CPU, and the timeout of a real-time thread's
    /// wait expires in the interrupt.
    fn until_due(&self) -> Option<Duration> {
        let &(at, _) = self.dues.iter().find(|(_, due)| self.matters(*due))?;
        Some(Duration::from_nanos(at.saturating_sub(monotonic())))
    }

    /// Carries out pending commands. Returns whether to end.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.orders.try_recv() {
            match command {
                Command::Schedules(answer) => _ = answer.send(self.scheduler.is_some()),
                Command::Attach(target, scheduler, answer) => {
                    self.scheduler = self.scheduler.take().or(scheduler);
                    if let Some(number) = self.number(&target.vm) {
                        self.detach(number);
                    }
                    let attached = self.attach(*target);
                    self.stay_apart();
                    self.settle();
                    let _ = answer.send(attached);
                }
                Command::Detach(vm, answer) => {
                    let number = self.number(&vm);
                    let detached = number.and_then(|number| self.detach(number));
                    self.stay_apart();
                    self.settle();
                    let _ = answer.send(detached);
                }
                Command::BusyPoll(time) => {
                    self.busy_poll = time;
                    if time > 0 && self.cpus.len() < 2 {
                        tracing::warn!("busy_poll is ignored: vcoop may use one CPU only");
                    }
                }
                Command::Status(of, answer) => _ = answer.send(self.status(of.as_ref())),
                Command::End => return true,
            }
        }
        false
    }

    /// The engine preempts what runs on its CPU, so it avoids the CPUs of vCPUs that it drives while there are others.
    /// The thread that delivers an emulated guest's timers is no vCPU.
    fn stay_apart(&self) {
        let vcpus = self.vms.values().filter(|vm| !vm.is_timers).flat_map(|vm| &vm.threads);
        let taken = vcpus.flat_map(|v| affinity(v.thread.tid.cast_signed()).unwrap_or_default());
        let _ = pin(&apart_from(&self.cpus, taken));
    }

    fn number(&self, id: &VmId) -> Option<u64> {
        let is = |vm: &AttachedVm| vm.id == *id && !vm.is_timers;
        self.vms.iter().find(|(_, vm)| is(vm)).map(|(number, _)| *number)
    }

    /// Numbers of the VMs that match.
    fn those(&self, which: impl Fn(&AttachedVm) -> bool) -> Vec<u64> {
        self.vms.iter().filter(|(_, vm)| which(vm)).map(|(number, _)| *number).collect()
    }

    /// Calls `f` with a vCPU's port; `None`: the vCPU is not driven.
    fn drive<R>(
        &mut self,
        number: u64,
        place: usize,
        what: impl FnOnce(&mut VcpuPort<'_>) -> R,
    ) -> Option<R> {
        self.drive_at(number, place, monotonic(), what)
    }

    /// As [`drive`](Self::drive), for an event at a past time. A vCPU's time never goes back, so the event may count
    /// from a later time. The VM's time may: several vCPUs run at once, and each is charged from where its run began.
    fn drive_at<R>(
        &mut self,
        number: u64,
        place: usize,
        at: Ns,
        what: impl FnOnce(&mut VcpuPort<'_>) -> R,
    ) -> Option<R> {
        self.heed_nice(number, place);
        self.last_event = self.last_event.max(at);
        let vm = self.vms.get_mut(&number)?;
        let due = DueAction::Policy(number, place);
        let pages = vm.link.as_ref().and_then(|link| link.pages(place));
        let vcpu = vm.vcpus.get_mut(place)?.as_mut().ok()?;
        vcpu.called = vcpu.called.max(at);
        let since = vcpu.called;
        let (shared, keeper, dues) = (&mut vm.shared, &self.keeper, &mut self.dues);
        let ends_told = self.last_look;
        let mut port = VcpuPort { vcpu, shared, keeper, dues, due, page: pages, since, ends_told };
        let result = what(&mut port);
        port.keeper.slot(port.vcpu.slot).acts();
        Some(result)
    }

    /// As [`drive`](Self::drive), with an action that can fail: then the vCPU is driven no longer.
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
        self.await_deadline(number, place);
    }

    /// A vCPU, if it is driven.
    fn vcpu(&self, number: u64, place: usize) -> Option<&Vcpu> {
        self.vms.get(&number)?.vcpus.get(place)?.as_ref().ok()
    }

    /// As [`vcpu`](Self::vcpu), mutable.
    fn vcpu_mut(&mut self, number: u64, place: usize) -> Option<&mut Vcpu> {
        self.vms.get_mut(&number)?.vcpus.get_mut(place)?.as_mut().ok()
    }

    /// Does what is due.
    fn act(&mut self) {
        let now = monotonic();
        while let Some(&(at, due)) = self.dues.first()
            && at <= now
        {
            self.dues.pop_first();
            match due {
                DueAction::Policy(number, place) => {
                    self.run(number, place, |port| {
                        // Nothing is due until it is armed again, also for the keeper.
                        port.arm(None);
                        driver::timer(port)
                    });
                    self.await_deadline(number, place);
                }
                DueAction::Deadline(number, place) => self.meet_deadline(number, place),
                DueAction::Look(number) => self.look(number),
                DueAction::Govern(number) => self.govern(number),
                DueAction::Account(number) => {
                    self.account(number);
                    self.due_again(number, now + ACCOUNT_NS, due);
                }
                DueAction::Check(number) => {
                    let places = self.vms.get(&number).map_or(0, |vm| vm.vcpus.len());
                    (0..places).for_each(|place| self.check(number, place));
                    self.meet(number);
                    self.seek_window(number);
                    self.check_limit(number);
                    self.check_rest(number);
                    self.check_scheduler();
                    self.due_again(number, next_check(now), due);
                }
                DueAction::Rest => self.rest(),
            }
        }
    }

    /// Schedules the same for a VM again, unless the VM was found to have ended.
    fn due_again(&mut self, number: u64, at: Ns, due: DueAction) {
        if self.vms.contains_key(&number) {
            self.dues.insert((at, due));
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

    /// Checks whether a vCPU's thread was changed from outside.
    fn check(&mut self, number: u64, place: usize) {
        self.heed_nice(number, place);
        let Some(vcpu) = self.vcpu(number, place) else { return };
        let now = Attributes::get(vcpu.tid());
        let (true, Ok(now)) = (vcpu.captured.is_alive(), now) else {
            return self.leave(number, place, None);
        };
        if self.keeper.slot(vcpu.slot).lends() {
            let why = "it lends its boosts to threads that hold a lock in which it sleeps";
            return self.leave(number, place, Some(why.to_owned()));
        }
        let policy = now.to_policy();
        if policy == vcpu.has.to_policy() {
            return;
        }
        if vcpu.keeps_boost(policy) {
            let why = format!("its process has made {now} of its boost");
            return self.leave(number, place, Some(why));
        }
        if policy.is_rt() || policy.is_deadline() {
            return self.leave(number, place, Some(format!("somebody else made it {now}")));
        }
        self.rebase(number, place);
    }

    /// A vCPU's thread has been changed from outside: that becomes its baseline.
    fn rebase(&mut self, number: u64, place: usize) {
        let Some(vcpu) = self.vcpu_mut(number, place) else { return };
        if vcpu.captured.renew().is_err() {
            return self.leave(number, place, None);
        }
        let baseline = vcpu.captured.baseline();
        (vcpu.has, vcpu.nice) = (baseline.attributes, baseline.nice);
        self.note_baseline(number, place);
    }

    /// Checks whether a boosted thread was given another nice value from outside.
    fn heed_nice(&mut self, number: u64, place: usize) {
        let Some(vcpu) = self.vcpu_mut(number, place) else { return };
        let Some(nice) = vcpu.reniced() else { return };
        vcpu.captured.renice(nice);
        vcpu.nice = nice;
        self.note_baseline(number, place);
    }

    /// Records a thread's new baseline in journal and keeper.
    fn note_baseline(&mut self, number: u64, place: usize) {
        let Some(vcpu) = self.vcpu(number, place) else { return };
        let (baseline, slot) = (vcpu.captured.baseline().clone(), vcpu.slot);
        self.journal.replace(&baseline);
        match self.keeper.hold_anew(slot, &baseline) {
            Ok(()) => {
                self.rebased.push((number, place));
                let policy = baseline.attributes.to_policy();
                self.run(number, place, |port| driver::rebase(port, policy));
            }
            Err(why) => self.leave(number, place, Some(why.to_string())),
        }
    }

    /// A thread with this number has ended. The number may belong to another thread by now.
    fn ended(&mut self, tid: i32) {
        if let Some(&(number, place)) = self.threads.get(&tid)
            && self.vcpu(number, place).is_some_and(|vcpu| !vcpu.captured.is_alive())
        {
            self.leave(number, place, None);
        }
    }

    /// The keeper has ended. Returns whether the engine has to end as well: without a keeper nothing may be boosted.
    fn keeper_ended(&mut self) -> bool {
        // Not by closing it: the new keeper has a copy until its program has begun. Until then epoll would say of the
        // old pipe that the new keeper has ended, and the engine would wait for that.
        let _ = epoll::delete(&self.poll, self.keeper.ends());
        let again = self.keeper.again(&self.place).and_then(|()| {
            let token = EventData::new_u64(KEEPER);
            Ok(epoll::add(&self.poll, self.keeper.ends(), token, EventFlags::IN)?)
        });
        let Err(why) = again else {
            tracing::warn!("the keeper had ended; another has taken its place");
            return false;
        };
        self.fails(format!("its keeper has ended and cannot be started again: {why}"));
        true
    }

    /// Records why the engine ends.
    fn fails(&self, why: String) {
        tracing::error!("{why}");
        let _ = self.why.set(why);
    }

    /// Status of a VM, including the thread that delivers its timers.
    fn status_of(&self, vm: &AttachedVm, now: Ns) -> VmStatus {
        let timers = vm.timers.and_then(|number| self.vms.get(&number));
        let timers = timers.and_then(|vm| self.vcpus_of(vm, now).next());
        VmStatus {
            vm: vm.id.clone(),
            policy: vm.policy.clone(),
            for_ns: now.saturating_sub(vm.since),
            vcpus: self.vcpus_of(vm, now).collect(),
            timers,
            hears: vm.hears.iter().map(|name| (*name).to_owned()).collect(),
            interrupts: self.interrupts_of(vm).or_else(|| self.interrupts_in_kernel(vm)),
            rests: vm.rests,
            asked: vm.governor.as_ref().map(GovernorDriver::width),
            notes: vm.notes.clone(),
            not_given_back: Vec::new(),
        }
    }

    fn vcpus_of(&self, vm: &AttachedVm, now: Ns) -> impl Iterator<Item = VcpuStatus> {
        vm.vcpus.iter().enumerate().map(move |(place, vcpu)| match vcpu {
            Ok(vcpu) => {
                let heard = listens(&vm.plan).then(|| vm.hears(place));
                VcpuStatus { heard, ..self.vcpu_status(vcpu, now) }
            }
            Err(alone) => alone.clone(),
        })
    }

    fn vcpu_status(&self, vcpu: &Vcpu, now: Ns) -> VcpuStatus {
        let policy = vcpu.driver.policy();
        let own = || VcpuState {
            boosted: policy.is_boosted(),
            stats: policy.stats(),
            budget_left_ns: policy.budget_left(now),
            deadlines: vcpu.deadlines,
        };
        let in_kernel = self.state_in_kernel(vcpu);
        let budgeted = vcpu.for_life.is_none() || in_kernel.is_some();
        let VcpuState { boosted, stats, budget_left_ns, deadlines } = in_kernel.unwrap_or_else(own);
        let baseline = vcpu.captured.baseline().attributes;
        let outranks = vcpu.driver.outranks();
        // Not what its policy says now: the last status is taken when that has ended.
        let for_life = vcpu.for_life.filter(|_| !outranks);
        let awake =
            |before: RunTime| run_time(vcpu.tid()).awake_ns().saturating_sub(before.awake_ns());
        VcpuStatus {
            index: vcpu.index,
            tid: vcpu.tid(),
            boosted,
            left_alone: outranks
                .then(|| format!("it has {baseline}, and a boost would not raise it")),
            boosts: stats.boosts,
            denied: stats.denied,
            throttles: stats.throttles,
            too_long: stats.too_long,
            by_vm: stats.by_vm,
            boosted_ns: for_life.map_or(stats.boosted_ns, awake),
            budget_left_ns: budgeted.then_some(budget_left_ns),
            heard: None,
            deadlines,
            notified: stats.notified,
        }
    }

    /// Status of one VM, or of all.
    fn status(&self, of: Option<&VmId>) -> Status {
        let now = monotonic();
        Status {
            pid: std::process::id(),
            engine_cpu_ns: kernel_clock(ClockId::ThreadCPUTime),
            events: self.heard.events,
            reaction_sum_ns: self.heard.sum_ns,
            reaction_max_ns: self.heard.max_ns,
            vms: self
                .vms
                .values()
                .filter(|vm| !vm.is_timers && of.is_none_or(|of| vm.id == *of))
                .map(|vm| self.status_of(vm, now))
                .collect(),
        }
    }
}

/// All VMs are checked at the same time, because each wake-up costs.
fn next_check(now: Ns) -> Ns {
    (now / CHECK_NS + 1) * CHECK_NS
}
