//! The driver of one vCPU's policy: feeds events, and carries out actions.
//!
//! Each vCPU has a lock that is held over a call and its actions, as policies require. It inherits priority (see
//! [`PiMutex`]), because both the injector and the vCPU's own thread take it.

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

/// State shared by all threads of a run.
#[derive(Debug)]
pub(crate) struct Common {
    /// The run's clock.
    pub(crate) clock: Clock,
    /// Ends the injector's sleep.
    pub(crate) kick: Kick,
    /// When the injector wakes up without a kick.
    pub(crate) horizon: AtomicU64,
    /// Whether the injector ends boosts, instead of the vCPU's own thread.
    pub(crate) attend: bool,
    /// All threads are to end.
    pub(crate) stop: AtomicBool,
    /// The first error.
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

    /// Ends the run with an error; only the first one is kept.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.end();
    }

    /// Wakes the injector for a timer that was just stored, unless it wakes up in time anyway. Pairs with the fence in
    /// the injector's `publish`.
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

    /// The first error, if there was one.
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
    /// Registrations in force, by vCPU. Taken with a vCPU's state locked, for which the injector may wait. So this lock
    /// inherits priority too: otherwise a guest that keeps registering could make the injector wait for a vCPU thread
    /// that has lost its CPU.
    registrations: PiMutex<Vec<Registration>>,
    /// vCPUs.
    pub(crate) vcpus: Vec<LabVcpu>,
    /// Event signals, by byte written to the port of calls.
    pub(crate) bells: Vec<(u8, Arc<EventSignal>)>,
    /// Initial advance of the injector for its vCPUs' deadlines; each vCPU learns its own.
    pub(crate) advance: TimerAdvance,
    /// Whether each interrupt gets a ticket.
    pub(crate) boosts_on_injection: bool,
    /// The vCPUs that the guest is asked to use, if it is told.
    pub(crate) mask: Option<PiMutex<Masked>>,
}

/// The driver of one vCPU.
#[derive(Debug)]
pub(crate) struct LabVcpu {
    pub(crate) number: u32,
    state: PiMutex<State>,
    /// The vCPU's thread; 0 until it runs.
    tid: AtomicI32,
    /// The kernel's counters of that thread, open from its start.
    counted: OnceLock<(RunTimes, Stat)>,
    /// When the policy's timer is due, for readers without the lock; [`NEVER`]: not set.
    pub(crate) timer: AtomicU64,
    /// Value of the registration MSR: address of the guest area, or 0.
    registration: AtomicU64,
    /// The guest has notified, and the injector has not looked yet.
    notified: AtomicBool,
    /// Log of the policy, for an observer.
    pub(crate) diary: PolicyLog,
    /// The guest's count of kernel entries when it was last sent an interrupt: until that changes, the guest has not
    /// taken the interrupt, and its idle word is outdated.
    entries: AtomicU64,
}

/// State protected by a vCPU's lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) driver: VcpuDriver,
    /// The thread's baseline as the kernel had it at its begin, to be restored.
    pub(crate) captured: Option<Attributes>,
    /// Checks the vCPU's page, in tests.
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

    /// Checks its page from now on, if its policy uses one. `guest`: the guest's side, too.
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

    /// Value of the registration MSR.
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

    /// A vCPU's guest area, if registered; it was checked to be in the guest's memory.
    pub(crate) fn area(&self, v: &LabVcpu) -> Option<&GuestArea> {
        let gpa = v.registration().checked_sub(REGISTER_ENABLE)?;
        Some(self.machine.ram.at(gpa))
    }

    /// A vCPU with its lock held.
    pub(crate) fn port<'a>(&'a self, common: &'a Common, n: u32) -> VcpuPort<'a> {
        let v = &self.vcpus[n as usize];
        VcpuPort { common, vm: self, v, state: v.state.lock(), interrupt: None }
    }

    /// The vCPU's thread runs, at its baseline; the policy may act.
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
        // The attributes as the kernel has them now are restored later.
        port.state.captured = Some(Attributes::get(tid).map_err(Error::refused(&whom))?);
        port.v.tid.store(tid, Ordering::Release);
        driver::start(&mut port, false)
    }

    /// Reports that the policy's timer may be due.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: the means or the baseline could not be applied.
    pub(crate) fn timer_due(&self, common: &Common, n: u32) -> Result<(), Error> {
        let mut port = self.port(common, n);
        driver::timer(&mut port)?;
        // The policy has used up its timer, or armed another one.
        let next = port.state.driver.timer().unwrap_or(NEVER);
        port.v.timer.store(next, Ordering::Release);
        Ok(())
    }

    /// Handles a notification of the guest, on its vCPU's thread.
    ///
    /// A thread that ends its own boost is preempted at once, before it returns to the guest and with the policy's lock
    /// held; the next boost would first have to wait for that lock. So if the injector has a CPU of its own it ends the
    /// boost, while the vCPU returns to the guest: it watches a boosted vCPU anyway. It reads the words while the vCPU
    /// may be running again, so they count as a sample.
    ///
    /// `may_kick`: a guest that notifies without end must not keep the injector awake. Beyond the
    /// [allowance](crate::vcpu::Kicks) the vCPU's own thread does the work.
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

    /// The injector's part of [`notify`](Self::notify); true if there was a notification.
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

    /// Whether a boosted guest has acknowledged the last interrupt and asks for the end of its boost, or halts. Only a
    /// few loads, for use in a loop; the policy decides on words that are read again.
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

    /// Injects an interrupt; true if the vCPU is boosted afterwards.
    ///
    /// The interrupt is sent after the ticket and the status, as the protocol requires, but before the thread is
    /// boosted: the boost takes several microseconds, in which a running vCPU takes the interrupt.
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
        // User space cannot see whether the receiver of an IPI has its pCPU, so a sender's request counts for every
        // IPI that it sends through us.
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
        // Guest-written: bits beyond its vCPUs mean no vCPU.
        let named = self.control().vcpu[n as usize].multicast.load(Ordering::Acquire);
        for to in (0..self.vcpus.len() as u32).filter(|to| named >> to & 1 != 0) {
            self.inject(common, to, Injection::Ipi, VECTOR_IPI)?;
        }
        Ok(())
    }

    /// Looks whether the vCPU is halted, and reports a change to the policy. This is how user space sees halts: an
    /// in-kernel interrupt controller handles HLT without an exit, so the lab's guest stores a word. A halt shorter
    /// than the time between two looks is not seen.
    ///
    /// The word alone is not enough: a guest that claims to halt and runs would be boosted without charge. The thread
    /// must be asleep as well. A vCPU that wakes up without saying so is charged from the next look on.
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

    /// Reports to a policy that repays what the vCPU's thread has run and waited.
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

    /// Sets a new baseline of a vCPU, from the timeline. A vCPU without a thread gets it when its thread begins.
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

    /// Ends the policy's effect: a boosted thread gets its baseline.
    pub(crate) fn detach(&self, common: &Common, n: u32) {
        let mut port = self.port(common, n);
        // The thread is about to end: a failure cannot be reported any more.
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
