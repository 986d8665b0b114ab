//! The driver of one vCPU's policy: feeds it, and carries out what it says.
//!
//! One lock a vCPU is held over a call and over its actions, as the policies demand. It inherits
//! priority (see [`PiMutex`]), because both the injector and the vCPU's own thread take it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use vcoop_abi::discovery::{REGISTER_ENABLE, Registration};
use vcoop_abi::{BoostRequest, GuestArea, GuestWords, Status, Word};
use vcoop_guest::layout::{VECTOR_IPI, WORDS, Words};
use vcoop_model::plan::{Ns, PolicyPlan};
use vcoop_policy::config::Means;
use vcoop_policy::govern::CpuTime;
use vcoop_policy::{Action, Event, HostPolicy, Injection, PolicyStats, TimerAdvance, VmShared};
use vcoop_threads::tsc::Clock;
use vcoop_threads::{Attributes, Kick, PiMutex, RunTimes, Stat};

use crate::bell::Bell;
use crate::diary::{Diary, Note};
use crate::error::Error;
use crate::machine::Machine;
use crate::mask::Masked;

/// A time that never comes.
pub(crate) const NEVER: Ns = Ns::MAX;

/// What all threads of a run share.
#[derive(Debug)]
pub(crate) struct Common {
    /// The run's clock.
    pub(crate) clock: Clock,
    /// Ends the injector's sleep.
    pub(crate) kick: Kick,
    /// When the injector's sleep ends by itself.
    pub(crate) horizon: AtomicU64,
    /// Boosts are taken back by the injector, not by the vCPU's own thread.
    pub(crate) attend: bool,
    /// Everybody ends.
    pub(crate) stop: AtomicBool,
    /// The first thing that went wrong.
    failure: Mutex<Option<Error>>,
}

impl Common {
    pub(crate) fn new(clock: Clock, attend: bool) -> Self {
        Self {
            clock,
            kick: Kick::default(),
            horizon: AtomicU64::new(0),
            attend,
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Ends the run with an error; the first one counts.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.end();
    }

    /// Has the injector look at a timer that was just stored, unless it will in time anyway. Pairs
    /// with the fence in the injector's `publish`.
    fn announce(&self, at: Ns) {
        GuestArea::fence();
        if at < self.horizon.load(Ordering::Acquire) {
            self.kick.kick();
        }
    }

    /// Ends the run.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.kick.kick();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What went wrong, if anything did.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The parts of a VM that its vCPUs' drivers share.
#[derive(Debug)]
pub(crate) struct VmDriver {
    /// The machine.
    pub(crate) machine: Machine,
    /// The policies' shared part.
    pub(crate) shared: PiMutex<VmShared>,
    /// Registrations in force, by vCPU. Taken with a vCPU's state locked, which the injector may wait
    /// for: so this inherits priority too, or a guest that registers without end could make the
    /// injector wait for a vCPU thread that has lost its CPU.
    registrations: PiMutex<Vec<Registration>>,
    /// vCPUs.
    pub(crate) vcpus: Vec<VcpuDriver>,
    /// Bells behind bytes written to the port of calls.
    pub(crate) bells: Vec<(u8, Arc<Bell>)>,
    /// How early the injector fires its vCPUs' deadlines; each learns for itself.
    pub(crate) advance: TimerAdvance,
    /// Which vCPUs the guest is asked to use, if it is told at all.
    pub(crate) mask: Option<PiMutex<Masked>>,
}

/// The driver of one vCPU.
#[derive(Debug)]
pub(crate) struct VcpuDriver {
    number: u32,
    state: PiMutex<State>,
    /// The vCPU's thread; 0 until it runs.
    tid: AtomicI32,
    /// What the kernel counts of that thread; open from its start.
    counted: OnceLock<(RunTimes, Stat)>,
    /// When the policy wants its timer; [`NEVER`] = not.
    timer: AtomicU64,
    /// What the registration MSR reads: where the guest area is, or 0.
    registration: AtomicU64,
    /// The guest has notified, and the injector has not looked yet.
    notified: AtomicBool,
    /// What the policy did, if anybody wants to know.
    pub(crate) diary: Diary,
    /// The guest's count of kernel entries when an interrupt was last sent to it: while it is still
    /// the same, the guest has not taken that interrupt, and its idle word is an old one.
    entries: AtomicU64,
}

#[derive(Debug)]
struct State {
    policy: HostPolicy,
    baseline: Attributes,
    means: Means,
    halted: bool,
    /// What the thread had done at the last account.
    accounted: CpuTime,
}

impl State {
    /// What the thread has while it is not boosted.
    fn unboosted(&self) -> Attributes {
        self.baseline.at_rest(self.policy.rest())
    }
}

/// The policy that a plan means for a vCPU. `own`: the vCPU's own means.
pub(crate) fn policy(plan: &PolicyPlan, own: Option<Means>, now: Ns) -> (HostPolicy, Means) {
    match plan {
        // Ratelimits are Xen's: the lab refuses such a host.
        PolicyPlan::Vanilla | PolicyPlan::RatelimitAuto(_) => (HostPolicy::Vanilla, Means::Nice(0)),
        PolicyPlan::Static { means } => {
            let means = own.unwrap_or(*means);
            (HostPolicy::fixed(means), means)
        }
        PolicyPlan::Dynamic(config) => {
            let means = own.unwrap_or(config.means);
            let mut config = *config;
            config.means = means;
            (HostPolicy::dynamic(config, now), means)
        }
        PolicyPlan::WakeBoost(config) => {
            let means = own.unwrap_or(config.means);
            let mut config = *config;
            config.means = means;
            (HostPolicy::wake_boost(config, now), means)
        }
    }
}

/// Whether a policy gives boosted time back.
pub(crate) fn repays(plan: &PolicyPlan) -> bool {
    match plan {
        PolicyPlan::Dynamic(config) => config.repay,
        PolicyPlan::WakeBoost(config) => config.repay,
        PolicyPlan::Vanilla | PolicyPlan::Static { .. } | PolicyPlan::RatelimitAuto(_) => false,
    }
}

/// The part of a policy that a VM's vCPUs share.
pub(crate) fn shared(plan: &PolicyPlan, now: Ns) -> VmShared {
    match plan {
        PolicyPlan::Vanilla | PolicyPlan::Static { .. } | PolicyPlan::RatelimitAuto(_) => {
            VmShared::unbudgeted(now)
        }
        PolicyPlan::Dynamic(config) => VmShared::new(config.vm_budget, now),
        PolicyPlan::WakeBoost(config) => VmShared::new(config.vm_budget, now),
    }
}

impl VcpuDriver {
    pub(crate) fn new(number: u32, policy: HostPolicy, means: Means, baseline: Attributes) -> Self {
        Self {
            number,
            state: PiMutex::new(State {
                policy,
                baseline,
                means,
                halted: false,
                accounted: CpuTime::default(),
            }),
            tid: AtomicI32::new(0),
            counted: OnceLock::new(),
            timer: AtomicU64::new(NEVER),
            registration: AtomicU64::new(0),
            notified: AtomicBool::new(false),
            diary: Diary::off(),
            entries: AtomicU64::new(u64::MAX),
        }
    }

    /// When the policy's timer is due.
    pub(crate) fn timer(&self) -> Ns {
        self.timer.load(Ordering::Acquire)
    }

    /// Counters of the policy.
    pub(crate) fn stats(&self) -> PolicyStats {
        self.state.lock().policy.stats()
    }

    /// The vCPU's thread; 0 until it runs.
    pub(crate) fn tid(&self) -> i32 {
        self.tid.load(Ordering::Acquire)
    }

    /// Run time and run delay since the vCPU's thread began.
    pub(crate) fn cpu_time(&self) -> CpuTime {
        let Some((times, _)) = self.counted.get().filter(|_| self.tid() != 0) else {
            return CpuTime::default();
        };
        let now = times.read();
        CpuTime { busy_ns: now.ran_ns, steal_ns: now.waited_ns }
    }

    fn is_asleep(&self) -> bool {
        self.counted.get().is_some_and(|(_, stat)| stat.is_asleep())
    }

    /// The guest area is registered.
    pub(crate) fn is_registered(&self) -> bool {
        self.registration() != 0
    }

    /// What a read of the registration MSR gives.
    pub(crate) fn registration(&self) -> u64 {
        self.registration.load(Ordering::Acquire)
    }
}

impl VmDriver {
    pub(crate) fn new(machine: Machine, shared: VmShared, vcpus: Vec<VcpuDriver>) -> Self {
        let registrations = PiMutex::new(vec![Registration::None; vcpus.len()]);
        Self {
            machine,
            shared: PiMutex::new(shared),
            registrations,
            vcpus,
            bells: Vec::new(),
            advance: TimerAdvance::fixed(0),
            mask: None,
        }
    }

    /// The words of a vCPU, each read once; silent while there is no registered area.
    pub(crate) fn words(&self, v: &VcpuDriver) -> GuestWords {
        self.area(v).map_or(GuestWords::SILENT, GuestArea::read)
    }

    /// A vCPU's guest area, where it has registered one: checked then to lie in its memory.
    pub(crate) fn area(&self, v: &VcpuDriver) -> Option<&GuestArea> {
        let gpa = v.registration().checked_sub(REGISTER_ENABLE)?;
        Some(self.machine.ram.at(gpa))
    }

    /// The vCPU's thread runs: its baseline is in force, and the policy may act.
    pub(crate) fn attach(&self, common: &Common, n: u32, tid: i32) -> Result<(), Error> {
        let v = &self.vcpus[n as usize];
        let whom = self.machine.whom_vcpu(n);
        let counted = RunTimes::open(tid).and_then(|times| Ok((times, Stat::open(tid)?)));
        let counted = counted.map_err(|e| Error::io("open /proc/TID", whom.clone(), e))?;
        v.counted.get_or_init(|| counted);
        let mut state = v.state.lock();
        state.baseline.set(tid).map_err(Error::refused(&whom))?;
        // What is restored later is what the kernel made of it.
        state.baseline = Attributes::get(tid).map_err(Error::refused(&whom))?;
        let outranks = state.baseline.outranks(state.means);
        v.tid.store(tid, Ordering::Release);
        if !matches!(state.policy, HostPolicy::Vanilla | HostPolicy::Static { .. }) {
            self.call(common, v, &mut state, Event::Baseline { outranks })?;
        }
        self.call(common, v, &mut state, Event::Enable)?;
        Ok(())
    }

    /// Feeds an event, and what follows from it.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: the means or the baseline could not be applied.
    pub(crate) fn feed(&self, common: &Common, n: u32, event: Event) -> Result<(), Error> {
        let v = &self.vcpus[n as usize];
        let mut state = v.state.lock();
        if v.tid() == 0 {
            return Ok(());
        }
        if self.call(common, v, &mut state, event)? {
            self.recheck(common, v, &mut state)?;
        }
        Ok(())
    }

    /// A notification of the guest, on its vCPU's thread.
    ///
    /// A thread that takes its own boost away is preempted on the spot, on its way back into the
    /// guest and with the policy's lock held; the next boost would have to get it out of there
    /// first. So where the injector has a CPU of its own it does this, while the vCPU goes back into
    /// the guest: it watches a boosted vCPU anyway. It reads the words while the vCPU may run again,
    /// hence as a sample.
    ///
    /// `may_kick`: a guest that notifies without end must not keep the injector from its sleep, so
    /// beyond its [allowance](crate::vcpu::Kicks) its own thread does the work.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn notify(&self, common: &Common, n: u32, may_kick: bool) -> Result<(), Error> {
        let v = &self.vcpus[n as usize];
        if common.attend && may_kick {
            v.notified.store(true, Ordering::Release);
            common.kick.kick();
            return Ok(());
        }
        self.feed(common, n, Event::Notify(self.words(v)))
    }

    /// The injector's part of [`notify`](Self::notify); true if there was something to answer.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn answer(&self, common: &Common, n: u32) -> Result<bool, Error> {
        let v = &self.vcpus[n as usize];
        let notified = v.notified.swap(false, Ordering::AcqRel);
        if !notified && !self.is_done(n) {
            return Ok(false);
        }
        if !notified && self.is_idle(n) {
            self.look(common, n)?;
        } else {
            GuestArea::fence();
            self.feed(common, n, Event::Sampled(self.words(v)))?;
        }
        Ok(true)
    }

    /// Whether a boosted guest has answered the last interrupt and asks for the end of its boost, or
    /// halts: a few loads, for a loop. What follows is decided by the policy, on words read anew.
    pub(crate) fn is_done(&self, n: u32) -> bool {
        let host = self.machine.host_area(n);
        if Status::from_word(host.status.load(Ordering::Relaxed)) != Status::Boosted {
            return false;
        }
        let words = self.words(&self.vcpus[n as usize]);
        let ticket = host.ticket.load(Ordering::Relaxed);
        if words.ack.bounded(ticket) != ticket {
            return false;
        }
        words.request.decode::<BoostRequest>() == BoostRequest::Unboost || self.is_idle(n)
    }

    /// Tells the guest until when its request is watched.
    pub(crate) fn attend(&self, n: u32, until_tsc: u64) {
        self.control().vcpu[n as usize].attended_until.store(until_tsc, Ordering::Release);
    }

    /// Injects; true if the vCPU is boosted afterwards.
    ///
    /// The interrupt goes after the ticket and the status, as the protocol demands, but before the
    /// thread is boosted: that takes several microseconds, in which a vCPU that runs anyway has
    /// taken the interrupt.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn inject(
        &self,
        common: &Common,
        n: u32,
        kind: Injection,
        vector: u8,
    ) -> Result<bool, Error> {
        let v = &self.vcpus[n as usize];
        let mut state = v.state.lock();
        let fire = || {
            if matches!(kind, Injection::Timer | Injection::Device) {
                let words = &self.control().vcpu[n as usize];
                words.fired.store(vcoop_threads::tsc::tsc(), Ordering::Release);
            }
            self.machine.signal(n, vector, kind == Injection::Nmi)
        };
        if v.tid() == 0 {
            fire()?;
            return Ok(false);
        }
        if self.is_idle(n) && !state.halted {
            self.halted(common, v, &mut state, true)?;
        }
        let entries = self.control().vcpu[n as usize].entries.load(Ordering::Relaxed);
        // Whether the receiver of an IPI has its pCPU user space cannot see: a sender's request counts
        // for all that it sends through us.
        let asked = kind == Injection::Ipi && state.policy.hears_senders();
        let event = if asked { Event::Asked } else { Event::Injected(kind) };
        let again = self.carry_out(common, v, &mut state, event, fire)?;
        v.entries.store(entries, Ordering::Relaxed);
        if state.halted {
            self.halted(common, v, &mut state, false)?;
        }
        if again {
            self.recheck(common, v, &mut state)?;
        }
        Ok(state.policy.is_boosted() && state.policy.reads_guest())
    }

    /// Interrupts the vCPUs that vCPU `n` has named.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn multicast(&self, common: &Common, n: u32) -> Result<(), Error> {
        // Guest-written: bits beyond its vCPUs are nobody.
        let named = self.control().vcpu[n as usize].multicast.load(Ordering::Acquire);
        for to in (0..self.vcpus.len() as u32).filter(|to| named >> to & 1 != 0) {
            self.inject(common, to, Injection::Ipi, VECTOR_IPI)?;
        }
        Ok(())
    }

    /// Looks whether the vCPU halts or not, and tells the policy what changed. This is how user
    /// space sees halts: an in-kernel interrupt controller handles HLT without an exit, so the
    /// lab's guest leaves a word. A halt shorter than the time between two looks is not seen.
    ///
    /// The word alone is not believed: a guest that claims to halt and runs would be boosted for
    /// nothing. The thread must be asleep as well. One that wakes up and does not say so is charged
    /// from the next look on.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn look(&self, common: &Common, n: u32) -> Result<(), Error> {
        let v = &self.vcpus[n as usize];
        let mut state = v.state.lock();
        if v.tid() == 0 || matches!(state.policy, HostPolicy::Vanilla | HostPolicy::Static { .. }) {
            return Ok(());
        }
        let idle = self.is_idle(n) && v.is_asleep();
        if idle != state.halted {
            self.halted(common, v, &mut state, idle)?;
        } else if !idle && v.is_registered() && state.policy.reads_guest() {
            GuestArea::fence();
            let words = self.words(v);
            if self.call(common, v, &mut state, Event::Sampled(words))? {
                self.recheck(common, v, &mut state)?;
            }
        }
        Ok(())
    }

    /// Tells a policy that gives boosted time back what the vCPU's thread did since the last time.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn account(&self, common: &Common, n: u32) -> Result<(), Error> {
        let v = &self.vcpus[n as usize];
        let mut state = v.state.lock();
        if v.tid() == 0 || !state.policy.repays() {
            return Ok(());
        }
        let now = v.cpu_time();
        let last = std::mem::replace(&mut state.accounted, now);
        self.call(common, v, &mut state, Event::Ran(now.since(last)))?;
        Ok(())
    }

    /// A new baseline for a vCPU, from the timeline.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn rebase(&self, common: &Common, n: u32, attr: Attributes) -> Result<(), Error> {
        let v = &self.vcpus[n as usize];
        let mut state = v.state.lock();
        state.baseline = attr;
        if !state.policy.is_boosted() {
            let whom = self.machine.whom_vcpu(n);
            state.unboosted().set(v.tid()).map_err(Error::refused(&whom))?;
        }
        let outranks = attr.outranks(state.means);
        self.call(common, v, &mut state, Event::Baseline { outranks })?;
        Ok(())
    }

    /// A write of the registration MSR. False: refused, the guest gets a fault.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn register(&self, common: &Common, n: u32, value: u64) -> Result<bool, Error> {
        let v = &self.vcpus[n as usize];
        let mut state = v.state.lock();
        let new = {
            let mut all = self.registrations.lock();
            let others = all.iter().enumerate().filter(|(i, _)| *i != n as usize).map(|(_, r)| r);
            let Ok(new) = Registration::write(value, self.machine.ram.len(), others) else {
                return Ok(false);
            };
            all[n as usize] = new;
            new
        };
        v.registration.store(new.read(), Ordering::Release);
        self.call(common, v, &mut state, Event::Registered(new != Registration::None))?;
        Ok(true)
    }

    /// The words of its vCPUs that change while they run.
    pub(crate) fn control(&self) -> &Words {
        self.machine.ram.at(WORDS)
    }

    fn is_idle(&self, n: u32) -> bool {
        let words = &self.control().vcpu[n as usize];
        words.idle.load(Ordering::Acquire) != 0
            && words.entries.load(Ordering::Relaxed)
                != self.vcpus[n as usize].entries.load(Ordering::Relaxed)
    }

    fn halted(
        &self,
        common: &Common,
        v: &VcpuDriver,
        state: &mut State,
        halted: bool,
    ) -> Result<(), Error> {
        state.halted = halted;
        let event = if halted { Event::Halted(self.words(v)) } else { Event::Woken };
        self.call(common, v, state, event)?;
        Ok(())
    }

    /// The second look: after the status (and the interrupt) is visible, whether anybody still
    /// needs the boost. It can only end one.
    fn recheck(&self, common: &Common, v: &VcpuDriver, state: &mut State) -> Result<(), Error> {
        GuestArea::fence();
        let words = self.words(v);
        self.call(common, v, state, Event::Recheck(words))?;
        Ok(())
    }

    /// One call of the policy, and its actions. True: it asks for a recheck.
    fn call(
        &self,
        common: &Common,
        v: &VcpuDriver,
        state: &mut State,
        event: Event,
    ) -> Result<bool, Error> {
        self.carry_out(common, v, state, event, || Ok(()))
    }

    /// The same; `fire` is called once, before the means are applied, after everything that the
    /// guest can see is in its page.
    fn carry_out(
        &self,
        common: &Common,
        v: &VcpuDriver,
        state: &mut State,
        event: Event,
        fire: impl FnOnce() -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let now = common.clock.now();
        let mut fire = Some(fire);
        let mut fire = move || fire.take().map_or(Ok(()), |fire| fire());
        let before = v.diary.is_on().then(|| state.policy.stats());
        let actions = state.policy.on(now, event, &mut self.shared.lock());
        let host = self.machine.host_area(v.number);
        let mut again = false;
        // Deadline bandwidth is a host's, and somebody else may have it now.
        let mut refused = false;
        for action in actions {
            match action {
                Action::Ticket(ticket) => host.ticket.store(ticket, Ordering::Release),
                Action::Status(status) => host.status.store(status.to_word(), Ordering::Release),
                Action::Boost(means) => {
                    fire()?;
                    let attr = Attributes::from_means(means);
                    match self.apply(v, &attr) {
                        Ok(()) => {}
                        // For life is for life: a run without is not what was asked for.
                        Err(e)
                            if attr.is_deadline()
                                && e.is_busy()
                                && !matches!(state.policy, HostPolicy::Static { .. }) =>
                        {
                            refused = true;
                        }
                        Err(e) => return Err(e),
                    }
                }
                Action::Rest(_) => {
                    if !state.policy.is_boosted() {
                        self.apply(v, &state.unboosted())?;
                    }
                }
                Action::Restore => self.apply(v, &state.unboosted())?,
                Action::ArmTimer(at) => {
                    v.timer.store(at, Ordering::Release);
                    common.announce(at);
                }
                Action::CancelTimer => v.timer.store(NEVER, Ordering::Release),
                Action::Recheck => again = true,
                Action::Denied(_) => {}
            }
        }
        fire()?;
        if refused {
            let answer = state.policy.on(now, Event::Refused, &mut self.shared.lock());
            for action in answer {
                if let Action::Status(status) = action {
                    host.status.store(status.to_word(), Ordering::Release);
                }
            }
        }
        if event == Event::Timer {
            // Fired; unless the call armed it anew.
            let rearmed = actions.iter().any(|a| matches!(a, Action::ArmTimer(_)));
            if !rearmed {
                v.timer.store(NEVER, Ordering::Release);
            }
        }
        if let Some(before) = before {
            let done = |action: &Action| !(refused && matches!(action, Action::Boost(_)));
            let (left, after) = (state.policy.budget_left(now), state.policy.stats());
            let note = Note::of(now, left, actions.into_iter().filter(done), (before, after));
            note.into_iter().for_each(|note| v.diary.write(note));
        }
        if state.policy.reads_guest() {
            host.budget_left_ns.store(state.policy.budget_left(now), Ordering::Release);
        }
        Ok(again)
    }

    fn apply(&self, v: &VcpuDriver, attr: &Attributes) -> Result<(), Error> {
        attr.set(v.tid()).map_err(Error::refused(&self.machine.whom_vcpu(v.number)))
    }

    /// Ends the policy's influence: whatever was boosted is at its baseline.
    pub(crate) fn detach(&self, n: u32) {
        let v = &self.vcpus[n as usize];
        let state = v.state.lock();
        let tid = v.tid.swap(0, Ordering::AcqRel);
        if tid != 0 {
            // The thread is about to end, so there is nobody to tell if this fails.
            let _ = state.baseline.set(tid);
        }
    }
}

#[cfg(test)]
mod race;
