//! vCPUs in use by time, for reports: told at every change, and when the run is over.

use crate::world::World;

impl World<'_> {
    /// A VM has used as many vCPUs as it does since the last change; the next one follows unless the
    /// run is over.
    pub(crate) fn count_in_use(&mut self, vm: u32, changes: bool) {
        let label = &self.plan.vms[vm as usize].label;
        let Some(in_use) = self.in_use.iter_mut().find(|known| known.vm == *label) else { return };
        let zero = self.plan.warmup_ns;
        let Some(now) = self.clock.now().checked_sub(zero) else { return };
        let mask = &self.masks[vm as usize];
        in_use.used(mask.since().saturating_sub(zero), now, mask.width);
        if changes {
            in_use.changed(now);
        }
    }
}
