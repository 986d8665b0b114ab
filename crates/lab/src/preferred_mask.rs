//! The vCPUs that the host prefers a guest to use: the mask in its host areas.
//!
//! A guest reads the mask only if `Control::masked` is set, and can follow it only if it [moves](balances) its tasks.

use vcoop_model::plan::{Ns, Plan, VmPlan};

/// Changes that are kept until the collector reads them, some 20 ms later: a governor's interval is
/// longer than that.
const CHANGES: usize = 64;

/// A VM's mask, and its last changes.
#[derive(Debug)]
pub(crate) struct VmMask {
    pub(crate) mask: Mask,
    /// When it changed, and to how many vCPUs. Room for all is there from the start: the injector
    /// writes here, too.
    pub(crate) changed: Vec<(Ns, u32)>,
    /// Changes for which there was no room.
    pub(crate) lost: u64,
}

impl VmMask {
    pub(crate) fn new(vcpus: u32) -> Self {
        Self { mask: Mask::new(vcpus), changed: Vec::with_capacity(CHANGES), lost: 0 }
    }

    pub(crate) fn set(&mut self, now: Ns, preferred: u64) -> bool {
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
    pub(crate) preferred: u64,
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

#[cfg(test)]
mod tests {
    use super::{CHANGES, Mask, VmMask, first};

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
        let mut masked = VmMask::new(4);
        let room = masked.changed.capacity();
        for at in 0..CHANGES as u64 + 3 {
            assert!(masked.set(at, 1 + at % 2 * 2));
            assert!(!masked.set(at, 1 + at % 2 * 2), "the same is no change");
        }
        assert_eq!(masked.changed[..3], [(0, 1), (1, 2), (2, 1)]);
        assert_eq!((masked.changed.len(), masked.lost), (CHANGES, 3));
        assert_eq!(masked.changed.capacity(), room, "nothing is allocated on the way");
    }
}
