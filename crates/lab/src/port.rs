//! The port of a vCPU of the lab, for the driver of its policy.

use std::sync::atomic::Ordering;

use vcoop_abi::conformance::Operation;
use vcoop_abi::{BoostRequest, GuestArea, GuestWords, Status, Word};
use vcoop_model::plan::Ns;
use vcoop_policy::driver::{self, Port, SetError, VcpuDriver};
use vcoop_policy::thread::Policy;
use vcoop_policy::{Actions, Injection, PolicyStats, VmShared};
use vcoop_threads::tsc::tsc;
use vcoop_threads::{Attributes, PiGuard};

use crate::common::{Common, NEVER};
use crate::error::Error;
use crate::lab_vm::{LabVcpu, LabVm, State};
use crate::page_check::PageCheck;
use crate::policy_log::Note;

/// A vCPU whose lock is held.
#[derive(Debug)]
pub(crate) struct VcpuPort<'a> {
    pub(crate) common: &'a Common,
    pub(crate) vm: &'a LabVm,
    pub(crate) v: &'a LabVcpu,
    pub(crate) state: PiGuard<'a, State>,
    /// The interrupt that is to be injected, and its vector.
    pub(crate) interrupt: Option<(Injection, u8)>,
}

impl VcpuPort<'_> {
    /// Reports that the vCPU has halted, or was woken.
    pub(crate) fn halt(&mut self, halted: bool) -> Result<(), Error> {
        self.happens(Operation::Halted(halted));
        driver::halt(self, halted)
    }

    /// Reports a notification. `running`: its vCPU may be running again.
    pub(crate) fn notify(&mut self, running: bool) -> Result<(), Error> {
        if self.state.checked.is_some() {
            let words = self.words();
            // If the vCPU has run on since, its words may ask for something else by now.
            if words.request.decode::<BoostRequest>() == BoostRequest::Unboost {
                self.happens(Operation::Notify);
            }
        }
        driver::notify(self, running)
    }

    /// Reports to the checker of the page, if there is one.
    pub(crate) fn happens(&mut self, what: Operation) {
        self.checks(|page, now| page.watch.event(now, what));
    }

    fn checks(&mut self, tell: impl FnOnce(&mut PageCheck, Ns)) {
        if let Some(page) = &mut self.state.checked {
            tell(page, self.common.clock.now());
        }
    }
}

impl Port for VcpuPort<'_> {
    type Error = Error;

    fn now(&mut self) -> Ns {
        self.common.clock.now()
    }

    fn driver(&mut self) -> &mut VcpuDriver {
        &mut self.state.driver
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R {
        f(&mut self.state.driver, &mut self.vm.shared.lock())
    }

    fn store_ticket(&mut self, ticket: u64) {
        self.checks(|page, now| page.watch.ticket(now, ticket));
        self.vm.machine.host_area(self.v.number).ticket.store(ticket, Ordering::Release);
    }

    fn store_status(&mut self, status: Status) {
        self.checks(|page, now| page.watch.status(now, status));
        let host = self.vm.machine.host_area(self.v.number);
        host.status.store(status.to_word(), Ordering::Release);
    }

    fn store_budget(&mut self, left: Ns) {
        self.vm.machine.host_area(self.v.number).budget_left_ns.store(left, Ordering::Release);
    }

    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<Error>> {
        let attr = match &self.state.captured {
            Some(captured) if policy == self.state.driver.baseline() => *captured,
            _ => Attributes::from_policy(&policy),
        };
        // The thread is named only if the call fails: boosts must not allocate.
        let whom = || self.vm.machine.vcpu_target(self.v.number);
        match attr.set(self.v.tid()).map_err(|e| Error::refused(&whom())(e)) {
            Ok(()) => {
                let boosted = self.state.driver.policy().is_boosted();
                self.happens(Operation::Applied(boosted));
                Ok(())
            }
            // Deadline bandwidth is the host's, and other threads may have it now.
            Err(e) if attr.is_deadline() && e.is_busy() => Err(SetError::Refused(e)),
            Err(e) => Err(SetError::Failed(e)),
        }
    }

    fn arm(&mut self, at: Option<Ns>) {
        self.v.timer.store(at.unwrap_or(NEVER), Ordering::Release);
        if let Some(at) = at {
            self.common.announce(at);
        }
    }

    fn fire(&mut self) -> Result<(), Error> {
        let Some((kind, vector)) = self.interrupt.take() else { return Ok(()) };
        if matches!(kind, Injection::Timer | Injection::Device) {
            let words = &self.vm.control().vcpu[self.v.number as usize];
            words.fired.store(tsc(), Ordering::Release);
        }
        if self.vm.boosts_on_injection {
            self.happens(Operation::Inject);
        }
        self.vm.machine.signal(self.v.number, vector, kind == Injection::Nmi)
    }

    fn words(&mut self) -> GuestWords {
        GuestArea::fence();
        let words = self.vm.words(self.v);
        self.checks(|page, now| page.reads(now, &words));
        words
    }

    fn is_watched(&self) -> bool {
        self.v.diary.is_on()
    }

    fn called(&mut self, before: &PolicyStats, actions: &Actions) {
        let now = self.common.clock.now();
        let policy = self.state.driver.policy();
        let (left, after) = (policy.budget_left(now), policy.stats());
        if let Some(note) = Note::of(now, left, actions.iter().copied(), (*before, after)) {
            self.v.diary.write(note);
        }
    }
}
