//! A VM of the lab and its vCPUs: the state that their policies' drivers share.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use vcoop_abi::discovery::{REGISTER_ENABLE, Registration};
use vcoop_abi::{GuestArea, GuestWords, Hints, Word};
use vcoop_guest::layout::{WORDS, Words};
use vcoop_model::plan::Ns;
use vcoop_policy::driver::VcpuDriver;
use vcoop_policy::govern::CpuTime;
use vcoop_policy::{PolicyStats, TimerAdvance, VmShared};
use vcoop_threads::{Attributes, PiMutex, RunTime, RunTimes, Stat};

use crate::common::NEVER;
use crate::event_signal::EventSignal;
use crate::machine::Machine;
use crate::page_check::PageCheck;
use crate::policy_log::PolicyLog;
use crate::preferred_mask::{Mask, VmMask, first};

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
    pub(crate) registrations: PiMutex<Vec<Registration>>,
    /// vCPUs.
    pub(crate) vcpus: Vec<LabVcpu>,
    /// Event signals, by byte written to the port of calls.
    pub(crate) bells: Vec<(u8, Arc<EventSignal>)>,
    /// Initial advance of the injector for its vCPUs' deadlines; each vCPU learns its own.
    pub(crate) advance: TimerAdvance,
    /// Whether each interrupt gets a ticket.
    pub(crate) boosts_on_injection: bool,
    /// The vCPUs that the guest is asked to use, if it is told.
    pub(crate) mask: Option<PiMutex<VmMask>>,
}

/// The driver of one vCPU.
#[derive(Debug)]
pub(crate) struct LabVcpu {
    pub(crate) number: u32,
    pub(crate) state: PiMutex<State>,
    /// The vCPU's thread; 0 until it runs.
    pub(crate) tid: AtomicI32,
    /// The kernel's counters of that thread, open from its start.
    pub(crate) counted: OnceLock<(RunTimes, Stat)>,
    /// When the policy's timer is due, for readers without the lock; [`NEVER`]: not set.
    pub(crate) timer: AtomicU64,
    /// Value of the registration MSR: address of the guest area, or 0.
    pub(crate) registration: AtomicU64,
    /// The guest has notified, and the injector has not looked yet.
    pub(crate) notified: AtomicBool,
    /// Log of the policy, for an observer.
    pub(crate) diary: PolicyLog,
    /// The guest's count of kernel entries when it was last sent an interrupt: until that changes, the guest has not
    /// taken the interrupt, and its idle word is outdated.
    pub(crate) entries: AtomicU64,
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

    /// Time boosted and awake, if its thread has used this time.
    pub(crate) fn boosted_ns(&self, used: RunTime) -> Ns {
        let state = self.state.lock();
        let policy = state.driver.policy();
        match policy.is_boosted_for_life() {
            true => used.awake_ns(),
            false => policy.stats().boosted_ns,
        }
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

    pub(crate) fn is_asleep(&self) -> bool {
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

    /// The words of its vCPUs that change while they run.
    pub(crate) fn control(&self) -> &Words {
        self.machine.ram.at(WORDS)
    }

    /// Whether its guest says that the vCPU is idle, and has taken the last interrupt.
    pub(crate) fn is_idle(&self, n: u32) -> bool {
        let words = &self.control().vcpu[n as usize];
        words.idle.load(Ordering::Acquire) != 0
            && words.entries.load(Ordering::Relaxed)
                != self.vcpus[n as usize].entries.load(Ordering::Relaxed)
    }

    /// Announces in every vCPU's host area that mask and steal are maintained.
    pub(crate) fn offer_mask(&mut self) {
        let vcpus = self.vcpus.len() as u32;
        self.mask = Some(PiMutex::new(VmMask::new(vcpus)));
        for n in 0..vcpus {
            let host = self.machine.host_area(n);
            let others = Hints::from_word(host.hints.load(Ordering::Relaxed));
            let hints = Hints { preferred_valid: true, steal_valid: true, ..others };
            host.preferred[0].store(first(vcpus), Ordering::Release);
            host.hints.store(hints.to_word(), Ordering::Release);
        }
    }

    /// Has the guest use these vCPUs, one bit each, from now on.
    pub(crate) fn prefer(&self, now: Ns, preferred: u64) {
        let Some(masked) = &self.mask else { return };
        let mut masked = masked.lock();
        if masked.set(now, preferred) {
            // With the lock held: the pages show one mask after the other, in order.
            for n in 0..self.vcpus.len() as u32 {
                self.machine.host_area(n).preferred[0]
                    .store(masked.mask.preferred, Ordering::Release);
            }
        }
    }

    /// The current mask of a VM, if it has one.
    pub(crate) fn masked(&self) -> Option<Mask> {
        self.mask.as_ref().map(|masked| masked.lock().mask)
    }

    /// Takes the changes of the mask since the last call: when, and to how many vCPUs. Returns how many were lost.
    pub(crate) fn take_changes(&self, mut each: impl FnMut(Ns, u32)) -> u64 {
        let Some(masked) = &self.mask else { return 0 };
        let mut masked = masked.lock();
        masked.changed.drain(..).for_each(|(at, width)| each(at, width));
        std::mem::take(&mut masked.lost)
    }
}
