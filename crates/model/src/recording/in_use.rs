//! Number of vCPUs that a VM uses over the measured time, for VMs that can avoid some.

use crate::plan::{Ns, Plan};

/// vCPUs in use of the VMs of one name, in slices of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// The VMs' common name.
    pub vm: String,
    /// How many vCPUs they have together.
    pub vcpus: u32,
    /// Length of a slice.
    pub width_ns: Ns,
    /// vCPUs in use times nanoseconds, for each slice; `vcpus` times `width_ns` in a slice in which all are always
    /// used.
    pub used_ns: Vec<u64>,
    /// Times the number changed, slice by slice.
    pub changes: Vec<u32>,
}

impl InUse {
    /// For `slices` slices (at least one) of a measurement of this length. VMs are added one by one.
    pub fn new(vm: &str, slices: u32, duration_ns: Ns) -> Self {
        let slices = slices.max(1);
        Self {
            vm: vm.to_owned(),
            vcpus: 0,
            width_ns: super::slices::width(slices, duration_ns),
            used_ns: vec![0; slices as usize],
            changes: vec![0; slices as usize],
        }
    }

    /// The counters for runs of a plan: one for the VMs of a name, if one of them can avoid vCPUs; none unless the plan
    /// has slices.
    pub fn all(plan: &Plan) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (m, vm) in plan.vms.iter().enumerate().filter(|_| plan.slices > 0) {
            let known = all.iter().any(|known| known.vm == vm.label);
            if !known && plan.has_mask(m) {
                let mut own = Self::new(&vm.label, plan.slices, plan.duration_ns);
                let copies = plan.vms.iter().filter(|copy| copy.label == vm.label);
                own.vcpus = copies.map(|copy| copy.level.topology.cpus()).sum();
                all.push(own);
            }
        }
        all
    }

    /// A VM used so many vCPUs between two times of the measurement. Time beyond the last slice is ignored.
    pub fn used(&mut self, from: Ns, to: Ns, vcpus: u32) {
        let first = usize::try_from(from / self.width_ns).unwrap_or(usize::MAX);
        for (i, used) in self.used_ns.iter_mut().enumerate().skip(first) {
            let begin = i as u64 * self.width_ns;
            if begin >= to {
                break;
            }
            let end = to.min(begin.saturating_add(self.width_ns));
            *used += u64::from(vcpus) * (end - from.max(begin));
        }
    }

    /// The number changed at this time of the measurement.
    pub fn changed(&mut self, at: Ns) {
        let slice = super::slices::place(at, self.width_ns, self.changes.len());
        self.changes[slice] = self.changes[slice].saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::InUse;

    #[test]
    fn time_is_shared_out_among_slices() {
        let mut in_use = InUse::new("guest", 4, 400);
        in_use.vcpus = 4;
        in_use.used(0, 150, 4);
        in_use.used(150, 160, 1);
        in_use.used(160, 1000, 2);
        assert_eq!(in_use.used_ns, [400, 4 * 50 + 10 + 2 * 40, 200, 200]);
        in_use.used(9_999, 10_000, 4);
        in_use.changed(150);
        in_use.changed(5_000);
        assert_eq!((in_use.used_ns[3], in_use.changes), (200, vec![0, 1, 0, 1]));
    }
}
