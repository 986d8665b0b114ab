//! State shared by all vCPUs of a VM.

use crate::budget::Bucket;
use crate::config::{Budget, Ns};

/// What the vCPUs of one VM share: switches and a budget.
#[derive(Clone, Debug)]
pub struct VmShared {
    pub(crate) bucket: Bucket,
    global_on: bool,
    vm_on: bool,
}

impl VmShared {
    /// Both switches on, bucket full at time `now`.
    pub fn new(budget: Budget, now: Ns) -> Self {
        Self { bucket: Bucket::new(budget, now), global_on: true, vm_on: true }
    }

    /// For policies without a VM budget (`vanilla`, `static`).
    pub fn unbudgeted(now: Ns) -> Self {
        Self::new(Budget { burst_ns: 0, refill_ppm: 0 }, now)
    }

    /// The host-wide switch. Feed [`Event::Enable`](crate::Event::Enable) to every vCPU afterwards.
    pub fn set_global(&mut self, on: bool) {
        self.global_on = on;
    }

    /// The VM's own switch. Feed [`Event::Enable`](crate::Event::Enable) to every vCPU of the VM afterwards.
    pub fn set_vm(&mut self, on: bool) {
        self.vm_on = on;
    }

    /// Level of the VM's bucket at its last use, in nanoseconds; what vCPUs have leased is not in
    /// it.
    pub fn budget_left(&self) -> Ns {
        self.bucket.level()
    }

    /// Whether both switches are on.
    pub fn is_on(&self) -> bool {
        self.global_on && self.vm_on
    }
}
