//! The driver of one vCPU's policy: feeds events, and carries out actions.
//!
//! Each vCPU has a lock that is held over a call and its actions, as policies require. It inherits priority (see
//! [`PiMutex`]), because both the injector and the vCPU's own thread take it.

use std::sync::atomic::Ordering;

use vcoop_abi::conformance::Operation;
use vcoop_abi::discovery::Registration;
use vcoop_abi::{BoostRequest, Status, Word};
use vcoop_guest::layout::VECTOR_IPI;
use vcoop_policy::driver;
use vcoop_policy::thread::Policy;
use vcoop_policy::{HostPolicy, Injection};
use vcoop_threads::{Attributes, RunTimes, Stat};

use crate::common::{Common, NEVER};
use crate::error::Error;
use crate::lab_vm::LabVm;
use crate::port::VcpuPort;

impl LabVm {
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
        let whom = self.machine.vcpu_target(n);
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
        port.happens(Operation::Registered(new != Registration::None));
        driver::register(&mut port, new != Registration::None)?;
        Ok(true)
    }

    /// Ends the policy's effect: a boosted thread gets its baseline.
    pub(crate) fn detach(&self, common: &Common, n: u32) {
        let mut port = self.port(common, n);
        // The thread is about to end: a failure cannot be reported any more.
        let _ = driver::stop(&mut port);
        if let Some(broken) = port.state.checked.as_ref().and_then(|page| page.broken()) {
            let whom = self.machine.vcpu_target(n);
            common.fail(Error::Guest { whom, what: format!("its page: {broken}") });
        }
        port.v.tid.store(0, Ordering::Release);
        port.v.timer.store(NEVER, Ordering::Release);
    }
}

#[cfg(test)]
mod race;
