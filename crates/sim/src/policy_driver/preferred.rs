//! The vCPUs that a guest keeps off: by a mask, or by CPU hotplug.
//!
//! The mask is a word of the shared page's host area, which the guest's scheduler has at once; entities
//! leave at the ticks of their vCPUs, as [`Level`](vcoop_sched::Level) says. Each costs the vCPU that it
//! leaves two switches, to the stopper thread and from it.
//!
//! Hotplug takes vCPUs off or on one by one, evenly over the time that a batch takes, and each stops
//! every vCPU of the guest for a while. A batch that has begun is finished before the next begins. (That
//! `stop_machine` has to wait for vCPUs that are preempted is left out: it makes the real thing worse.)

use vcoop_model::plan::govern::{HOTPLUG_BATCH_NS, HOTPLUG_STALL_NS};
use vcoop_policy::Injection;
use vcoop_sched::CpuSet;

use crate::clock::Event;
use crate::machine::vector;
use crate::queue::Ns;
use crate::world::World;

/// How many vCPUs a guest uses, and how that changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PreferredMask {
    /// vCPUs in use.
    pub(crate) width: u32,
    /// Times the mask changed, or hotplug began a batch.
    pub(crate) changes: u64,
    /// vCPUs in use, summed over time, up to `since`.
    used_ns: Ns,
    since: Ns,
    /// Hotplug: the width that the batch ends with, time between two of its steps.
    target: u32,
    step_ns: Ns,
    /// The width to go for once the batch is done.
    next: u32,
    busy: bool,
}

impl PreferredMask {
    /// All vCPUs.
    pub(crate) fn new(vcpus: u32) -> Self {
        Self { width: vcpus, target: vcpus, next: vcpus, ..Self::default() }
    }

    /// vCPUs in use, summed over time up to now.
    pub(crate) fn used_ns(&self, now: Ns) -> Ns {
        self.used_ns + u64::from(self.width) * (now - self.since)
    }

    /// When the number changed last.
    pub(crate) fn since(&self) -> Ns {
        self.since
    }

    fn set(&mut self, now: Ns, width: u32) {
        self.used_ns = self.used_ns(now);
        self.since = now;
        self.width = width;
    }
}

impl World<'_> {
    /// A guest uses its first `width` vCPUs from now on, by whatever means it has.
    pub(crate) fn fold(&mut self, vm: u32, width: u32) {
        let means = &self.plan.vms[vm as usize].virt.govern.means;
        if !means.hotplug {
            let mask = CpuSet::first_n(width);
            return self.set_mask(vm, &mask);
        }
        let mask = &mut self.masks[vm as usize];
        mask.next = width;
        if !mask.busy {
            self.begin_batch(vm);
        }
    }

    /// Sets the vCPUs a guest prefers; none of them: all.
    pub(crate) fn set_mask(&mut self, vm: u32, preferred: &CpuSet) {
        let m = vm as usize;
        let vcpus = self.plan.vms[m].level.topology.cpus();
        let all = CpuSet::first_n(vcpus);
        let avoided = if preferred.is_empty() { CpuSet::EMPTY } else { all.without(preferred) };
        if *self.vms[m].level.avoided() == avoided {
            return;
        }
        // A guest that would be left without a CPU keeps what it has.
        if self.vms[m].level.set_avoided(avoided).is_ok() {
            self.count_in_use(vm, true);
            let mask = &mut self.masks[m];
            mask.set(self.clock.now(), vcpus - avoided.len());
            mask.changes += 1;
            if self.vms[m].nohz {
                self.mask_ticks(vm);
            }
            if self.spans.is_on() {
                self.span_mask(vm);
            }
        }
    }

    fn begin_batch(&mut self, vm: u32) {
        let means = self.plan.vms[vm as usize].virt.govern.means;
        let mask = &mut self.masks[vm as usize];
        let steps = mask.next.abs_diff(mask.width);
        mask.target = mask.next;
        mask.busy = steps > 0;
        if steps > 0 {
            mask.changes += 1;
            let batch = means.batch_ns.unwrap_or(HOTPLUG_BATCH_NS);
            mask.step_ns = (batch / u64::from(steps)).max(1);
            self.clock.set(Event::Hotplug(vm), self.clock.now() + mask.step_ns);
        }
    }

    /// The next vCPU of a batch goes or comes.
    pub(crate) fn plug(&mut self, vm: u32) {
        let m = vm as usize;
        self.count_in_use(vm, true);
        let mask = &mut self.masks[m];
        let width = if mask.target < mask.width { mask.width - 1 } else { mask.width + 1 };
        mask.set(self.clock.now(), width);
        let done = width == mask.target;
        let step_ns = mask.step_ns;
        if self.spans.is_on() {
            self.span_mask(vm);
        }
        let vcpus = self.plan.vms[m].level.topology.cpus();
        // vCPU 0 is never among them.
        let _ = self.vms[m].level.set_offline(self.clock.now(), CpuSet::range(width, vcpus));
        let stall = self.plan.vms[m].virt.govern.means.stall_ns.unwrap_or(HOTPLUG_STALL_NS);
        let first = self.vms[m].first;
        for v in &mut self.vcpus[first as usize..(first + vcpus) as usize] {
            if !v.halted {
                v.extra += stall;
            }
        }
        // vCPU 0 does it, and tells the others.
        self.guest_notes(first);
        self.cpu = self.vcpus[first as usize].home;
        self.inject(first, vector::IPI, Injection::Ipi);
        if !done {
            return self.clock.set(Event::Hotplug(vm), self.clock.now() + step_ns);
        }
        self.begin_batch(vm);
    }

    /// What it costs to have pushed entities off a vCPU.
    pub(crate) fn charge_pushes(&mut self, v: u32, before: u64) {
        let vcpu = &mut self.vcpus[v as usize];
        let pushed = self.vms[vcpu.vm as usize].level.pushed_off() - before;
        vcpu.extra += 2 * pushed * self.costs.guest_switch_ns;
    }

    /// Entities pushed off vCPUs of a VM so far.
    pub(crate) fn pushed_off(&self, vm: usize) -> u64 {
        self.vms[vm].level.pushed_off()
    }
}
