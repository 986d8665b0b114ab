//! The driver of one vCPU's policy: feeds it, and carries out what it says.
//!
//! One lock a vCPU is held over a call and over its actions, as the policies demand. It inherits
//! priority (see [`PiMutex`]), because both the injector and the vCPU's own thread take it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use vcoop_abi::conformance::What;
use vcoop_abi::discovery::{REGISTER_ENABLE, Registration};
use vcoop_abi::{BoostRequest, GuestArea, GuestWords, Status, Word};
use vcoop_guest::layout::{VECTOR_IPI, WORDS, Words};
use vcoop_model::plan::Ns;
use vcoop_policy::driver::{self, VcpuDriver};
use vcoop_policy::govern::CpuTime;
use vcoop_policy::thread::Policy;
use vcoop_policy::{HostPolicy, Injection, PolicyStats, TimerAdvance, VmShared};
use vcoop_threads::tsc::Clock;
use vcoop_threads::{Attributes, Kick, PiMutex, RunTimes, Stat};

use crate::error::Error;
use crate::event_signal::EventSignal;
use crate::machine::Machine;
use crate::page_check::PageCheck;
use crate::policy_log::PolicyLog;
use crate::port::VcpuPort;
use crate::preferred_mask::Masked;

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
    pub(crate) fn announce(&self, at: Ns) {
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
pub(crate) struct LabVm {
    /// The machine.
    pub(crate) machine: Machine,
    /// The policies' shared part.
    pub(crate) shared: PiMutex<VmShared>,
    /// Registrations in force, by vCPU. Taken with a vCPU's state locked, which the injector may wait
    /// for: so this inherits priority too, or a guest that registers without end could make the
    /// injector wait for a vCPU thread that has lost its CPU.
    registrations: PiMutex<Vec<Registration>>,
    /// vCPUs.
    pub(crate) vcpus: Vec<LabVcpu>,
    /// Bells behind bytes written to the port of calls.
    pub(crate) bells: Vec<(u8, Arc<EventSignal>)>,
    /// How early the injector fires its vCPUs' deadlines; each learns for itself.
    pub(crate) advance: TimerAdvance,
    /// Whether each interrupt gets a ticket.
    pub(crate) boosts_on_injection: bool,
    /// Which vCPUs the guest is asked to use, if it is told at all.
    pub(crate) mask: Option<PiMutex<Masked>>,
}

/// The driver of one vCPU.
#[derive(Debug)]
pub(crate) struct LabVcpu {
    pub(crate) number: u32,
    state: PiMutex<State>,
    /// The vCPU's thread; 0 until it runs.
    tid: AtomicI32,
    /// What the kernel counts of that thread; open from its start.
    counted: OnceLock<(RunTimes, Stat)>,
    /// When the policy wants its timer, for who looks without the lock; [`NEVER`] = not.
    pub(crate) timer: AtomicU64,
    /// What the registration MSR reads: where the guest area is, or 0.
    registration: AtomicU64,
    /// The guest has notified, and the injector has not looked yet.
    notified: AtomicBool,
    /// What the policy did, if anybody wants to know.
    pub(crate) diary: PolicyLog,
    /// The guest's count of kernel entries when an interrupt was last sent to it: while it is still
    /// the same, the guest has not taken that interrupt, and its idle word is an old one.
    entries: AtomicU64,
}

/// What a vCPU's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) driver: VcpuDriver,
    /// The baseline as the kernel had it when the thread began: what is restored.
    pub(crate) captured: Option<Attributes>,
    /// What checks the vCPU's page, in tests.
    pub(crate) checked: Option<Box<PageCheck>>,
}

impl LabVcpu {
    pub(crate) fn new(number: u32, driver: VcpuDriver) -> Self {
        Self {
            number,
            state: PiMutex::new(State { driver, captured: None, checked: None }),
            tid: AtomicI32::new(0),
            counted: OnceLock::new(),
            timer: AtomicU64::new(NEVER),
            registration: AtomicU64::new(0),
            notified: AtomicBool::new(false),
            diary: PolicyLog::off(),
            entries: AtomicU64::new(u64::MAX),
        }
    }

    /// Has its page checked from now on, if its policy uses one. `guest`: the guest's side, too.
    pub(crate) fn check_page(&self, guest: bool, at: Ns) {
        let mut state = self.state.lock();
        if state.driver.policy().reads_guest() {
            state.checked = Some(Box::new(PageCheck::new(guest, at)));
        }
    }

    /// When the policy's timer is due.
    pub(crate) fn timer(&self) -> Ns {
        self.timer.load(Ordering::Acquire)
    }

    /// Counters of the policy.
    pub(crate) fn stats(&self) -> PolicyStats {
        self.state.lock().driver.policy().stats()
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

impl LabVm {
    pub(crate) fn new(machine: Machine, shared: VmShared, vcpus: Vec<LabVcpu>) -> Self {
        let registrations = PiMutex::new(vec![Registration::None; vcpus.len()]);
        Self {
            machine,
            shared: PiMutex::new(shared),
            registrations,
            vcpus,
            bells: Vec::new(),
            advance: TimerAdvance::fixed(0),
            boosts_on_injection: false,
            mask: None,
        }
    }

    /// The words of a vCPU, each read once; silent while there is no registered area.
    pub(crate) fn words(&self, v: &LabVcpu) -> GuestWords {
        self.area(v).map_or(GuestWords::SILENT, GuestArea::read)
    }

    /// A vCPU's guest area, where it has registered one: checked then to lie in its memory.
    pub(crate) fn area(&self, v: &LabVcpu) -> Option<&GuestArea> {
        let gpa = v.registration().checked_sub(REGISTER_ENABLE)?;
        Some(self.machine.ram.at(gpa))
    }

    /// A vCPU with its lock held.
    pub(crate) fn port<'a>(&'a self, common: &'a Common, n: u32) -> VcpuPort<'a> {
        let v = &self.vcpus[n as usize];
        VcpuPort { common, vm: self, v, state: v.state.lock(), interrupt: None }
    }

    /// The vCPU's thread runs: its baseline is in force, and the policy may act.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: the baseline or the means could not be applied.
    pub(crate) fn attach(&self, common: &Common, n: u32, tid: i32) -> Result<(), Error> {
        let whom = self.machine.whom_vcpu(n);
        let counted = RunTimes::open(tid).and_then(|times| Ok((times, Stat::open(tid)?)));
        let counted = counted.map_err(|e| Error::io("open /proc/TID", whom.clone(), e))?;
        let mut port = self.port(common, n);
        port.v.counted.get_or_init(|| counted);
        let baseline = Attributes::from_policy(&port.state.driver.baseline());
        baseline.set(tid).map_err(Error::refused(&whom))?;
        // What is restored later is what the kernel made of it.
        port.state.captured = Some(Attributes::get(tid).map_err(Error::refused(&whom))?);
        port.v.tid.store(tid, Ordering::Release);
        driver::start(&mut port, false)
    }

    /// Looks at the switches of the VM.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: the means or the baseline could not be applied.
    pub(crate) fn enable(&self, common: &Common, n: u32) -> Result<(), Error> {
        driver::enable(&mut self.port(common, n))
    }

    /// The vCPU has left guest mode, for its own thread to tell.
    ///
    /// # Errors
    ///
    /// As [`enable`](Self::enable).
    pub(crate) fn exited(&self, common: &Common, n: u32) -> Result<(), Error> {
        driver::exit(&mut self.port(common, n))
    }

    /// The policy's timer seems to be due.
    ///
    /// # Errors
    ///
    /// As [`enable`](Self::enable).
    pub(crate) fn timer_due(&self, common: &Common, n: u32) -> Result<(), Error> {
        let mut port = self.port(common, n);
        driver::timer(&mut port)?;
        // One that has come is gone, and one that was armed meanwhile is there.
        let next = port.state.driver.timer().unwrap_or(NEVER);
        port.v.timer.store(next, Ordering::Release);
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
        self.port(common, n).notify(false)
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
        if notified {
            self.port(common, n).notify(true)?;
        } else if self.is_idle(n) {
            self.look(common, n)?;
        } else {
            driver::sample(&mut self.port(common, n))?;
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
        if words.ack.validate(|ack| if ack == ticket { Ok(()) } else { Err(()) }).is_err() {
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
        let mut port = self.port(common, n);
        port.interrupt = Some((kind, vector));
        if self.is_idle(n) && !port.state.driver.is_halted() {
            port.halt(true)?;
        }
        let entries = self.control().vcpu[n as usize].entries.load(Ordering::Relaxed);
        // Whether the receiver of an IPI has its pCPU user space cannot see: a sender's request counts
        // for all that it sends through us.
        driver::inject(&mut port, kind, kind == Injection::Ipi)?;
        port.v.entries.store(entries, Ordering::Relaxed);
        if port.state.driver.is_halted() {
            port.halt(false)?;
        }
        let policy = port.state.driver.policy();
        Ok(policy.is_boosted() && policy.reads_guest())
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
        let mut port = self.port(common, n);
        let policy = port.state.driver.policy();
        let reads_guest = policy.reads_guest();
        if port.v.tid() == 0 || matches!(policy, HostPolicy::Vanilla | HostPolicy::Static { .. }) {
            return Ok(());
        }
        let idle = self.is_idle(n) && port.v.is_asleep();
        if idle != port.state.driver.is_halted() {
            port.halt(idle)
        } else if !idle && port.v.is_registered() && reads_guest {
            driver::sample(&mut port)
        } else {
            Ok(())
        }
    }

    /// Tells a policy that gives boosted time back what the vCPU's thread has done.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn account(&self, common: &Common, n: u32) -> Result<(), Error> {
        let mut port = self.port(common, n);
        if port.v.tid() == 0 || !port.state.driver.policy().repays() {
            return Ok(());
        }
        let total = port.v.cpu_time();
        driver::account(&mut port, total)
    }

    /// A new baseline for a vCPU, from the timeline. A vCPU without a thread gets it when that begins.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn rebase(&self, common: &Common, n: u32, policy: Policy) -> Result<(), Error> {
        let mut port = self.port(common, n);
        port.state.captured = None;
        driver::rebase(&mut port, policy)
    }

    /// A write of the registration MSR. False: refused, the guest gets a fault.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub(crate) fn register(&self, common: &Common, n: u32, value: u64) -> Result<bool, Error> {
        let mut port = self.port(common, n);
        let new = {
            let mut all = self.registrations.lock();
            let others = all.iter().enumerate().filter(|(i, _)| *i != n as usize).map(|(_, r)| r);
            let Ok(new) = Registration::write(value, self.machine.ram.len(), others) else {
                return Ok(false);
            };
            all[n as usize] = new;
            new
        };
        port.v.registration.store(new.read(), Ordering::Release);
        port.happens(What::Registered(new != Registration::None));
        driver::register(&mut port, new != Registration::None)?;
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

    /// Ends the policy's influence: whatever was boosted is at its baseline.
    pub(crate) fn detach(&self, common: &Common, n: u32) {
        let mut port = self.port(common, n);
        // The thread is about to end, so there is nobody to tell if this fails.
        let _ = driver::stop(&mut port);
        if let Some(broken) = port.state.checked.as_ref().and_then(|page| page.broken()) {
            let whom = self.machine.whom_vcpu(n);
            common.fail(Error::Guest { whom, what: format!("its page: {broken}") });
        }
        port.v.tid.store(0, Ordering::Release);
        port.v.timer.store(NEVER, Ordering::Release);
    }
}

#[cfg(test)]
mod race;
