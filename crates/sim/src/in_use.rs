//! vCPUs in use by time, for reports: told at every change, and when the run is over.

use vcoop_model::plan::{Plan, TimelineAction, TimelineEvent};
use vcoop_model::recording::InUse;

use crate::world::World;

/// What is counted: VMs of one name together, where one of them can keep off vCPUs; nothing unless the
/// plan has slices.
pub(crate) fn all(plan: &Plan) -> Vec<InUse> {
    let mut all: Vec<InUse> = Vec::new();
    let told = |vm: usize| {
        let it = |event: &TimelineEvent| matches!(&event.action, TimelineAction::Prefer { vm: of, .. } if *of as usize == vm);
        plan.timeline.iter().any(it)
    };
    for (m, vm) in plan.vms.iter().enumerate().filter(|_| plan.slices > 0) {
        let known = all.iter().any(|known| known.vm == vm.label);
        if !known && (plan.governor(m).is_some() || told(m)) {
            let mut own = InUse::new(&vm.label, plan.slices, plan.duration_ns);
            let copies = plan.vms.iter().filter(|copy| copy.label == vm.label);
            own.vcpus = copies.map(|copy| copy.level.topology.cpus()).sum();
            all.push(own);
        }
    }
    all
}

impl World<'_> {
    /// A VM has used as many vCPUs as it does since the last change; the next one follows unless the
    /// run is over.
    pub(crate) fn count_in_use(&mut self, vm: u32, changes: bool) {
        let label = &self.plan.vms[vm as usize].label;
        let Some(in_use) = self.in_use.iter_mut().find(|known| known.vm == *label) else { return };
        let zero = self.plan.warmup_ns;
        let Some(now) = self.now.checked_sub(zero) else { return };
        let mask = &self.masks[vm as usize];
        in_use.used(mask.since().saturating_sub(zero), now, mask.width);
        if changes {
            in_use.changed(now);
        }
    }
}
