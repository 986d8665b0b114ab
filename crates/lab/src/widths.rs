//! vCPUs in use over time.

use vcoop_model::plan::{Ns, Plan};
use vcoop_model::recording::InUse;

use crate::lab_vm::LabVm;

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
    use super::{InUse, Widths};

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
