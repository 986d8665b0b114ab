//! The vCPUs that the host would like a guest to use: the mask in its host areas.
//!
//! Only a guest that is told to look there does (`Control::masked`), and only one that
//! [moves](balances) its tasks can follow.

use std::sync::atomic::Ordering;

use vcoop_abi::{Hints, Word};
use vcoop_model::plan::{Ns, Plan, TimelineAction, VmPlan};

use crate::driver::VmDriver;

/// What a guest is asked to use, and how that changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    /// The guest's vCPUs, one bit each.
    all: u64,
    preferred: u64,
    /// Times it changed.
    pub(crate) changes: u64,
    /// vCPUs in use, summed over time, up to `since`.
    used_ns: Ns,
    since: Ns,
}

impl Mask {
    /// All of `vcpus` vCPUs, from the start of the warm-up on.
    pub(crate) fn new(vcpus: u32) -> Self {
        let all = first(vcpus);
        Self { all, preferred: all, changes: 0, used_ns: 0, since: 0 }
    }

    /// vCPUs in use.
    pub(crate) fn width(&self) -> u32 {
        self.preferred.count_ones()
    }

    /// vCPUs in use, summed over time up to now.
    pub(crate) fn used_ns(&self, now: Ns) -> Ns {
        self.used_ns + u64::from(self.width()) * now.saturating_sub(self.since)
    }

    /// Takes another mask; one without any vCPU stands for all. False: it is the same.
    fn set(&mut self, now: Ns, preferred: u64) -> bool {
        let preferred = match preferred & self.all {
            0 => self.all,
            some => some,
        };
        if preferred == self.preferred {
            return false;
        }
        self.used_ns = self.used_ns(now);
        self.since = now;
        self.preferred = preferred;
        self.changes += 1;
        true
    }
}

/// The first so many vCPUs.
pub(crate) fn first(vcpus: u32) -> u64 {
    u64::MAX.checked_shr(64 - vcpus.min(64)).unwrap_or(0)
}

/// A list of vCPUs as bits; those beyond the 64th have none.
pub(crate) fn bits(vcpus: &[u32]) -> u64 {
    vcpus.iter().filter(|v| **v < 64).fold(0, |bits, v| bits | 1 << v)
}

/// Whether a VM's guest is told which vCPUs to keep off: it has a governor, or the timeline names them.
pub(crate) fn is_masked(plan: &Plan, vm: usize) -> bool {
    let names = |action: &TimelineAction| matches!(action, TimelineAction::Prefer { vm: of, .. } if *of as usize == vm);
    plan.governor(vm).is_some() || plan.timeline.iter().any(|event| names(&event.action))
}

/// Whether a VM's guest moves its tasks between its vCPUs.
pub(crate) fn balances(plan: &Plan, vm: usize) -> bool {
    let of = &plan.vms[vm];
    of.vcpu_cpus.len() > 1 && (of.virt.govern.guest_balance || is_masked(plan, vm))
}

/// How often the guest of a VM that does looks who runs where: its tick.
pub(crate) fn tick_ns(vm: &VmPlan) -> Ns {
    vm.level.tick_ns.max(1_000_000)
}

impl VmDriver {
    /// Says in every vCPU's host area that its mask and its steal are kept up to date.
    pub(crate) fn offer_mask(&mut self) {
        let vcpus = self.vcpus.len() as u32;
        self.mask = Some(crate::pi::PiMutex::new(Mask::new(vcpus)));
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
        let Some(mask) = &self.mask else { return };
        let mut mask = mask.lock();
        if mask.set(now, preferred) {
            // With the lock held: the pages show one mask after the other, in order.
            for n in 0..self.vcpus.len() as u32 {
                self.machine.host_area(n).preferred[0].store(mask.preferred, Ordering::Release);
            }
        }
    }

    /// The mask as it is, of a VM that has one.
    pub(crate) fn masked(&self) -> Option<Mask> {
        self.mask.as_ref().map(|mask| *mask.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::{Mask, first};

    #[test]
    fn a_mask_counts_its_changes_and_what_was_used() {
        assert_eq!([0, 1, 8, 64].map(first), [0, 1, 0xff, u64::MAX]);
        let mut mask = Mask::new(4);
        assert!(!mask.set(10, 0b1111) && !mask.set(20, u64::MAX), "all of them already");
        assert!(mask.set(100, 0b0101));
        assert_eq!((mask.width(), mask.used_ns(150)), (2, 400 + 100));
        assert!(mask.set(200, 0b1_0000), "none of its own: all");
        assert_eq!((mask.width(), mask.changes, mask.used_ns(300)), (4, 2, 400 + 200 + 400));
    }
}
