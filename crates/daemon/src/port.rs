//! A vCPU of a real VM as the driver of its policy sees it.

use std::collections::BTreeSet;

use vcoop_abi::{GuestWords, Status};
use vcoop_policy::VmShared;
use vcoop_policy::config::Ns;
use vcoop_policy::driver::{Port, SetError, VcpuDriver};
use vcoop_policy::thread::Policy;
use vcoop_threads::{Attributes, Captured, Error};

use crate::keeper::Keeper;

/// Why a vCPU's thread cannot be driven any more.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It has ended.
    Gone,
    /// The kernel does not let it be changed.
    Refused(Error),
    /// Somebody else has changed it.
    Foreign,
}

/// Something that is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The policy timer of a vCPU: number of its VM, place in it.
    Policy(u64, usize),
    /// Accounts for the vCPUs of a VM.
    Account(u64),
    /// A look at what the threads of a VM have.
    Check(u64),
}

/// What is due, by time.
pub(crate) type Dues = BTreeSet<(Ns, Due)>;

/// A vCPU.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) index: u32,
    pub(crate) driver: VcpuDriver,
    pub(crate) captured: Captured,
    /// What the thread has been given last.
    pub(crate) has: Attributes,
    /// The keeper's words for it.
    pub(crate) slot: usize,
    /// Boosted as long as the policy is in force.
    pub(crate) for_life: bool,
    /// When its policy timer is among what is due.
    pub(crate) armed: Option<Ns>,
}

impl Vcpu {
    pub(crate) fn tid(&self) -> i32 {
        self.captured.baseline().tid
    }
}

/// A vCPU, and all that its port needs.
#[derive(Debug)]
pub(crate) struct VcpuPort<'a> {
    pub(crate) vcpu: &'a mut Vcpu,
    pub(crate) shared: &'a mut VmShared,
    pub(crate) keeper: &'a Keeper,
    pub(crate) dues: &'a mut Dues,
    pub(crate) due: Due,
    /// What the policy is told about began at this time, and it may be told so: no policy of this VM
    /// was called since.
    pub(crate) since: Ns,
}

impl Port for VcpuPort<'_> {
    type Error = Stop;

    const SHOWS_BUDGET: bool = false;

    fn now(&mut self) -> Ns {
        self.since
    }

    fn driver(&mut self) -> &mut VcpuDriver {
        &mut self.vcpu.driver
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut VcpuDriver, &mut VmShared) -> R) -> R {
        f(&mut self.vcpu.driver, self.shared)
    }

    // There is no shared page yet for VMs that others run: nobody reads these.
    fn store_ticket(&mut self, _: u64) {}

    fn store_status(&mut self, _: Status) {}

    fn store_budget(&mut self, _: Ns) {}

    fn set_thread(&mut self, policy: Policy) -> Result<(), SetError<Stop>> {
        if !self.vcpu.captured.is_alive() {
            return Err(SetError::Failed(Stop::Gone));
        }
        let captured = self.vcpu.captured.baseline();
        // What somebody else has given it must not be written over.
        let is_ours = |now: Attributes| now.to_policy() == self.vcpu.has.to_policy();
        if !Attributes::get(captured.tid).is_ok_and(is_ours) {
            return Err(SetError::Failed(Stop::Foreign));
        }
        let attributes = if policy == self.vcpu.driver.baseline() {
            captured.attributes
        } else {
            Attributes::from_policy(&policy)
        };
        let (slot, boosted) =
            (self.keeper.slot(self.vcpu.slot), self.vcpu.driver.policy().is_boosted());
        if boosted {
            // Before the boost: it must be known to whoever has to take it back.
            slot.boosted(self.vcpu.for_life);
        }
        let set = attributes.set(captured.tid);
        if !boosted || set.is_err() {
            slot.rests();
        }
        match set {
            Ok(()) => {
                self.vcpu.has = attributes;
                Ok(())
            }
            Err(e) if e.source.raw_os_error() == Some(libc::ESRCH) => {
                Err(SetError::Failed(Stop::Gone))
            }
            // Deadline bandwidth is the host's, and somebody else may have it now.
            Err(e) if attributes.is_deadline() && e.source.raw_os_error() == Some(libc::EBUSY) => {
                Err(SetError::Refused(Stop::Refused(e)))
            }
            Err(e) => Err(SetError::Failed(Stop::Refused(e))),
        }
    }

    fn arm(&mut self, at: Option<Ns>) {
        self.keeper.slot(self.vcpu.slot).due(at);
        if let Some(before) = std::mem::replace(&mut self.vcpu.armed, at) {
            self.dues.remove(&(before, self.due));
        }
        if let Some(at) = at {
            self.dues.insert((at, self.due));
        }
    }

    fn fire(&mut self) -> Result<(), Stop> {
        // Interrupts of such a VM are its VMM's; nobody injects any here.
        Ok(())
    }

    fn words(&mut self) -> GuestWords {
        GuestWords::SILENT
    }
}
