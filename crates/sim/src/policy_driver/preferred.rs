//! The vCPUs that a guest avoids: by a mask, or by CPU hotplug.
//!
//! The mask is a word of the shared page's host area, which the guest's scheduler sees at once. Entities leave at the
//! ticks of their vCPUs, as [`Level`](vcoop_sched::Level) describes. Each such move costs the old vCPU two switches, to
//! the stopper thread and back.
//!
//! Hotplug takes vCPUs offline or online one by one, evenly over the time of a batch, and each stops every vCPU of the
//! guest for a while. A batch is finished before the next begins. (Not modelled: `stop_machine` has to wait for
//! preempted vCPUs, which makes the real thing worse.)

use vcoop_model::plan::govern::HOTPLUG_BATCH_NS;
use vcoop_model::plan::{Plan, VmPlan};
use vcoop_model::recording;

use crate::queue::Ns;

/// vCPUs in use of a guest, and changes.
#[derive(Clone, Copy, Debug)]
struct InUse {
    /// vCPUs in use.
    width: u32,
    /// Times the mask changed, or hotplug began a batch.
    changes: u64,
    /// vCPUs in use, summed over time, up to `since`.
    used_ns: Ns,
    since: Ns,
    /// Hotplug: width at the end of the batch, time of a whole batch, and time between two of its steps.
    target: u32,
    batch_ns: Ns,
    step_ns: Ns,
    /// Width to reach once the batch is done.
    next: u32,
    busy: bool,
}

impl InUse {
    fn used_ns(&self, now: Ns) -> Ns {
        self.used_ns + u64::from(self.width) * (now - self.since)
    }

    /// Begins the next batch. Returns the time until its first step; `None`: there is nothing to do.
    fn begin_batch(&mut self) -> Option<Ns> {
        let steps = self.next.abs_diff(self.width);
        self.target = self.next;
        self.busy = steps > 0;
        self.busy.then(|| {
            self.changes += 1;
            self.step_ns = (self.batch_ns / u64::from(steps)).max(1);
            self.step_ns
        })
    }
}

/// vCPUs in use of each VM; over time, if a plan asks for slices.
#[derive(Debug)]
pub(crate) struct PreferredVcpus<'p> {
    plan: &'p Plan,
    vms: Vec<InUse>,
    by_time: Vec<recording::InUse>,
}

impl<'p> PreferredVcpus<'p> {
    /// All vCPUs of each VM are in use.
    pub(crate) fn new(plan: &'p Plan) -> Self {
        let all = |vm: &VmPlan| {
            let width = vm.level.topology.cpus();
            let batch_ns = vm.virt.govern.means.batch_ns.unwrap_or(HOTPLUG_BATCH_NS);
            let (target, next) = (width, width);
            let (changes, used_ns, since, step_ns, busy) = (0, 0, 0, 0, false);
            InUse { width, changes, used_ns, since, target, batch_ns, step_ns, next, busy }
        };
        let by_time = recording::InUse::all(plan);
        Self { plan, vms: plan.vms.iter().map(all).collect(), by_time }
    }

    /// vCPUs in use of a VM.
    pub(crate) fn width(&self, vm: u32) -> u32 {
        self.vms[vm as usize].width
    }

    /// For each VM: number of changes, and vCPUs in use, summed over time up to now.
    pub(crate) fn totals(&self, now: Ns) -> impl Iterator<Item = (u64, Ns)> + '_ {
        self.vms.iter().map(move |vm| (vm.changes, vm.used_ns(now)))
    }

    /// A VM has another mask, and uses `width` vCPUs.
    pub(crate) fn set(&mut self, vm: u32, width: u32, now: Ns) {
        self.uses(vm, width, now);
        self.vms[vm as usize].changes += 1;
    }

    /// A VM with hotplug is to use `width` vCPUs. Returns the time until the first step, if it begins now.
    pub(crate) fn plug(&mut self, vm: u32, width: u32) -> Option<Ns> {
        let vm = &mut self.vms[vm as usize];
        vm.next = width;
        if vm.busy { None } else { vm.begin_batch() }
    }

    /// The next step of hotplug. Returns how many vCPUs the VM uses now, and the time until the step after it.
    pub(crate) fn step(&mut self, vm: u32, now: Ns) -> (u32, Option<Ns>) {
        let InUse { width, target, step_ns, .. } = self.vms[vm as usize];
        let width = if target < width { width - 1 } else { width + 1 };
        self.uses(vm, width, now);
        let more =
            if width == target { self.vms[vm as usize].begin_batch() } else { Some(step_ns) };
        (width, more)
    }

    fn uses(&mut self, vm: u32, width: u32, now: Ns) {
        self.count(vm, now, true);
        let vm = &mut self.vms[vm as usize];
        vm.used_ns = vm.used_ns(now);
        vm.since = now;
        vm.width = width;
    }

    /// Books the vCPUs in use of a VM since the last change. `changes`: the number changes now; else the run is over.
    fn count(&mut self, vm: u32, now: Ns, changes: bool) {
        let label = &self.plan.vms[vm as usize].label;
        let Some(in_use) = self.by_time.iter_mut().find(|known| known.vm == *label) else { return };
        let zero = self.plan.warmup_ns;
        let Some(now) = now.checked_sub(zero) else { return };
        let vm = &self.vms[vm as usize];
        in_use.used(vm.since.saturating_sub(zero), now, vm.width);
        if changes {
            in_use.changed(now);
        }
    }

    /// The run is over. Returns vCPUs in use over time, in the order of the plan.
    pub(crate) fn finish(mut self, now: Ns) -> Vec<recording::InUse> {
        (0..self.vms.len() as u32).for_each(|vm| self.count(vm, now, false));
        self.by_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_testing::rig::builtin;

    fn four() -> Plan {
        let mut plan = Plan { slices: 0, ..builtin("busy-host-1", &[], &[]).remove(0) };
        plan.vms[0].level.topology.cores_per_llc = 4;
        plan.vms[0].virt.govern.means.batch_ns = Some(300);
        plan
    }

    #[test]
    fn hotplug_takes_vcpus_off_evenly_and_then_goes_for_what_was_asked_meanwhile() {
        let plan = four();
        let mut preferred = PreferredVcpus::new(&plan);
        assert_eq!(preferred.width(0), 4);
        assert_eq!(preferred.plug(0, 4), None, "nothing to do");
        assert_eq!(preferred.plug(0, 1), Some(100));
        assert_eq!(preferred.plug(0, 3), None, "a batch that has begun is finished");
        assert_eq!(preferred.step(0, 100), (3, Some(100)));
        assert_eq!(preferred.step(0, 200), (2, Some(100)));
        assert_eq!(preferred.step(0, 300), (1, Some(150)), "two steps in a batch's time");
        assert_eq!(preferred.step(0, 450), (2, Some(150)));
        assert_eq!(preferred.step(0, 600), (3, None));
        let used = 4 * 100 + 3 * 100 + 2 * 100 + 150 + 2 * 150;
        assert_eq!(preferred.totals(600).next(), Some((2, used)));
    }

    #[test]
    fn vcpus_in_use_are_summed_over_time() {
        let plan = four();
        let mut preferred = PreferredVcpus::new(&plan);
        preferred.set(0, 2, 1_000);
        assert_eq!(preferred.totals(1_500).next(), Some((1, 4 * 1_000 + 2 * 500)));
    }
}
