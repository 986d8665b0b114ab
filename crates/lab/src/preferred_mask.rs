//! The vCPUs that the host prefers a guest to use: the mask in its host areas.
//!
//! A guest reads the mask only if `Control::masked` is set, and can follow it only if it [moves](balances) its tasks.

use std::sync::atomic::Ordering;

use vcoop_abi::{Hints, Word};
use vcoop_model::plan::{Ns, Plan, VmPlan};
use vcoop_model::recording::InUse;

use crate::policy_driver::LabVm;

/// Changes that are kept until the collector reads them, some 20 ms later: a governor's interval is
/// longer than that.
const CHANGES: usize = 64;

/// A VM's mask, and its last changes.
#[derive(Debug)]
pub(crate) struct Masked {
    mask: Mask,
    /// When it changed, and to how many vCPUs. Room for all is there from the start: the injector
    /// writes here, too.
    changed: Vec<(Ns, u32)>,
    /// Changes for which there was no room.
    lost: u64,
}

impl Masked {
    fn new(vcpus: u32) -> Self {
        Self { mask: Mask::new(vcpus), changed: Vec::with_capacity(CHANGES), lost: 0 }
    }

    fn set(&mut self, now: Ns, preferred: u64) -> bool {
        let changes = self.mask.set(now, preferred);
        if changes && self.changed.len() < CHANGES {
            self.changed.push((now, self.mask.width()));
        } else if changes {
            self.lost += 1;
        }
        changes
    }
}

/// The vCPUs that a guest is asked to use, and counters of changes.
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

    /// Sets another mask; a mask without vCPUs means all. False: it is the same.
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

/// A list of vCPUs as bits; vCPUs from the 64th on are ignored.
pub(crate) fn bits(vcpus: &[u32]) -> u64 {
    vcpus.iter().filter(|v| **v < 64).fold(0, |bits, v| bits | 1 << v)
}

/// Whether a VM's guest moves its tasks between its vCPUs.
pub(crate) fn balances(plan: &Plan, vm: usize) -> bool {
    let of = &plan.vms[vm];
    of.vcpu_cpus.len() > 1 && (of.virt.govern.guest_balance || plan.has_mask(vm))
}

/// The period of the tick in the guest of such a VM.
pub(crate) fn tick_ns(vm: &VmPlan) -> Ns {
    vm.level.tick_ns.max(1_000_000)
}

impl LabVm {
    /// Announces in every vCPU's host area that mask and steal are maintained.
    pub(crate) fn offer_mask(&mut self) {
        let vcpus = self.vcpus.len() as u32;
        self.mask = Some(vcoop_threads::PiMutex::new(Masked::new(vcpus)));
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

/// vCPUs in use over time, for reports, from the changes of masks.
#[derive(Debug)]
pub(crate) struct Widths {
    zero: Ns,
    duration: Ns,
    /// For each VM: its index in `in_use`, the number of vCPUs in use, and since when.
    vms: Vec<(Option<usize>, u32, Ns)>,
    /// Results so far; VMs of one name together.
    pub(crate) in_use: Vec<InUse>,
}

impl Widths {
    /// All vCPUs of all VMs, from the start of the warm-up on.
    pub(crate) fn new(plan: &Plan, vms: &[LabVm]) -> Self {
        let in_use = InUse::all(plan);
        let place = |label: &str| in_use.iter().position(|own| own.vm == *label);
        let pairs = plan.vms.iter().zip(vms);
        let vms = pairs.map(|(of, vm)| (place(&of.label), vm.vcpus.len() as u32, 0)).collect();
        Self { zero: plan.warmup_ns, duration: plan.duration_ns, vms, in_use }
    }

    /// Reads the changes since the last call and hands them to `each`; returns how many are lost.
    pub(crate) fn read(&mut self, vms: &[LabVm], mut each: impl FnMut(Ns, u32, u32)) -> u64 {
        let mut lost = 0;
        let mut changes = Vec::new();
        for (m, vm) in vms.iter().enumerate() {
            // Copied with the lock held and read without it, because the injector may wait for it.
            lost += vm.take_changes(|at, width| changes.push((at, width)));
            for (at, width) in changes.drain(..) {
                self.changed(m, at, width);
                each(at, m as u32, width);
            }
        }
        lost
    }

    /// The run is over.
    pub(crate) fn end(&mut self, ended: Ns) {
        (0..self.vms.len()).for_each(|m| self.used(m, ended));
    }

    fn changed(&mut self, m: usize, at: Ns, width: u32) {
        self.used(m, at);
        let (place, now, since) = &mut self.vms[m];
        (*now, *since) = (width, at);
        let at = at.checked_sub(self.zero).filter(|at| *at < self.duration);
        if let (Some(own), Some(at)) = (place.map(|i| &mut self.in_use[i]), at) {
            own.changed(at);
        }
    }

    /// Books the vCPUs in use of a VM from its last change up to now.
    fn used(&mut self, m: usize, now: Ns) {
        let (Some(place), width, since) = self.vms[m] else { return };
        if let Some(now) = now.checked_sub(self.zero) {
            self.in_use[place].used(since.saturating_sub(self.zero), now, width);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANGES, InUse, Mask, Masked, Widths, first};

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

    #[test]
    fn changes_are_kept_in_order_until_there_is_no_room() {
        let mut masked = Masked::new(4);
        let room = masked.changed.capacity();
        for at in 0..CHANGES as u64 + 3 {
            assert!(masked.set(at, 1 + at % 2 * 2));
            assert!(!masked.set(at, 1 + at % 2 * 2), "the same is no change");
        }
        assert_eq!(masked.changed[..3], [(0, 1), (1, 2), (2, 1)]);
        assert_eq!((masked.changed.len(), masked.lost), (CHANGES, 3));
        assert_eq!(masked.changed.capacity(), room, "nothing is allocated on the way");
    }

    #[test]
    fn widths_count_from_the_end_of_the_warm_up() {
        let in_use = vec![InUse::new("guest", 4, 400)];
        // Two VMs of one name, and one without a mask.
        let vms = vec![(Some(0), 4, 0), (Some(0), 2, 0), (None, 9, 0)];
        let mut widths = Widths { zero: 100, duration: 400, vms, in_use };
        // In the warm-up, in the second slice, and after the end.
        widths.changed(0, 50, 2);
        widths.changed(1, 250, 1);
        widths.changed(2, 260, 1);
        widths.changed(0, 600, 4);
        widths.end(700);
        let own = &widths.in_use[0];
        assert_eq!(own.used_ns, [100 * 4, 50 * 4 + 50 * 3, 100 * 3, 100 * 3]);
        assert_eq!(own.changes, [0, 1, 0, 0]);
    }
}
