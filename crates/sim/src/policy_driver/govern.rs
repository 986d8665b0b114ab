//! The driver of governors: it calls a VM's governor once per interval, and makes the guest use more or fewer
//! vCPUs.
//!
//! A governor that goes by steal runs in the guest: each look costs vCPU 0 the time of a tick, and it sees what the
//! guest's kernel sees (run time and run delay of each vCPU, without a wait that has not ended). A governor that
//! goes by the host's information costs a pCPU a timer interrupt. Each mask that it writes costs what a change of a
//! thread's policy costs, which is more work.

use std::collections::BTreeMap;

use vcoop_model::plan::govern::HOTPLUG_STALL_NS;
use vcoop_model::plan::{HostSched, Plan, TimelineAction, VmPlan};
use vcoop_model::profile::CostKey;
use vcoop_policy::Injection;
use vcoop_policy::govern::{CpuTime, Host, Member};
use vcoop_sched::config::LevelConfig;
use vcoop_sched::{CpuId, CpuSet, EntId};

use crate::clock::Event;
use crate::machine::{Irq, vector};
use crate::policy_driver::MASTER;
use crate::queue::Ns;
use crate::world::World;

impl Host for World<'_> {
    fn cpu_time(&self, vm: usize, vcpu: u32) -> CpuTime {
        self.time_of(self.vms[vm].first + vcpu)
    }

    fn own_ns(&self) -> Ns {
        let own = 0..self.plan.host_tasks.len() as u32;
        own.map(|t| self.host.stats(EntId(t)).exec_ns).sum()
    }

    fn pcpus(&self) -> u32 {
        self.pcpus.len() as u32
    }

    fn vms(&self) -> impl Iterator<Item = usize> {
        0..self.vms.len()
    }

    fn member(&self, vm: usize) -> Member {
        let linux = self.plan.host.sched.linux();
        let plan = &self.plan.vms[vm];
        let vcpus = plan.level.topology.cpus();
        let govern = &plan.virt.govern;
        Member {
            used: (0..vcpus).map(|vcpu| self.cpu_time(vm, vcpu)).sum(),
            width: self.preferred.width(vm as u32),
            vcpus,
            weight: self.weights[vm],
            quota_ns: linux
                .into_iter()
                .flat_map(|level| level.groups_of(plan.group))
                .filter_map(|(_, group)| Some(group.quota?.per_second()))
                .min(),
            entitled: govern.entitled.unwrap_or(0),
            folds: govern.kind.is_some() && govern.takes_part,
        }
    }
}

/// The weight of each VM, as in [`Member`].
pub(crate) fn weights(plan: &Plan) -> Vec<Option<u64>> {
    match &plan.host.sched {
        HostSched::Linux(level) => weights_of_groups(level, &plan.vms),
        HostSched::Pool(pool) => {
            let partition = |vm: &VmPlan| pool.partitions.get(usize::from(vm.group?));
            plan.vms.iter().map(|vm| Some(u64::from(partition(vm)?.weight))).collect()
        }
        HostSched::Credit1(_) => vec![None; plan.vms.len()],
    }
}

/// The weights of the VMs' groups where they compete: directly below the innermost group that contains all VMs. `None`:
/// a VM has no group there, or shares it with another VM.
fn weights_of_groups(level: &LevelConfig, vms: &[VmPlan]) -> Vec<Option<u64>> {
    let outer_first = |vm: &VmPlan| {
        let mut groups: Vec<u16> = level.groups_of(vm.group).map(|(group, _)| group).collect();
        groups.reverse();
        groups
    };
    let all: Vec<Vec<u16>> = vms.iter().map(outer_first).collect();
    let is_shared = |depth: &usize| {
        let first = all.first().and_then(|groups| groups.get(*depth));
        all.len() > 1 && first.is_some() && all.iter().all(|groups| groups.get(*depth) == first)
    };
    let depth = (0..).take_while(is_shared).count();
    let mut members = BTreeMap::new();
    for group in all.iter().filter_map(|groups| groups.get(depth)) {
        *members.entry(*group).or_insert(0) += 1;
    }
    let weight = |groups: &Vec<u16>| {
        let group = groups.get(depth).filter(|group| members[group] == 1)?;
        Some(level.groups[usize::from(*group)].weight)
    };
    all.iter().map(weight).collect()
}

impl World<'_> {
    /// The interval of a VM's governor is over.
    pub(crate) fn govern_due(&mut self, vm: u32) {
        let Some(driver) = &self.governors[vm as usize] else { return };
        self.clock.set(Event::Govern(vm), self.clock.now() + driver.interval_ns());
        if driver.goes_by_host() {
            return self.interrupt(MASTER, Irq::Govern(vm));
        }
        let first = self.vms[vm as usize].first;
        self.vcpus[first as usize].extra += self.costs.of(CostKey::GuestTick);
        self.govern(vm);
    }

    /// Calls a governor, and carries out its decision.
    pub(crate) fn govern(&mut self, vm: u32) {
        let m = vm as usize;
        if !self.vms[m].started {
            return;
        }
        self.charge_all();
        let Some(mut driver) = self.governors[m].take() else { return };
        let width = driver.look(self.clock.now(), self);
        let by_host = driver.goes_by_host();
        self.governors[m] = Some(driver);
        if let Some(width) = width {
            if by_host {
                self.pcpus[MASTER as usize].extra += self.costs.of(CostKey::Setattr);
            }
            self.fold(vm, width);
        }
    }

    /// Run time and run delay of a vCPU since its thread began.
    pub(crate) fn time_of(&self, v: u32) -> CpuTime {
        let stats = self.host.stats(EntId(self.vcpus[v as usize].thread));
        CpuTime { busy_ns: stats.exec_ns, steal_ns: stats.wait_ns }
    }

    /// A change of the timeline that sets a mask by hand.
    pub(crate) fn prefer(&mut self, action: &TimelineAction) {
        if let TimelineAction::Prefer { vm, vcpus } = action {
            let preferred = vcpus.iter().map(|&c| CpuId(c)).collect();
            self.set_mask(*vm, &preferred);
        }
    }

    /// A guest uses its first `width` vCPUs from now on, by mask or hotplug.
    pub(crate) fn fold(&mut self, vm: u32, width: u32) {
        let means = &self.plan.vms[vm as usize].virt.govern.means;
        if !means.hotplug {
            let mask = CpuSet::first_n(width);
            return self.set_mask(vm, &mask);
        }
        if let Some(ns) = self.preferred.plug(vm, width) {
            self.clock.set(Event::Hotplug(vm), self.clock.now() + ns);
        }
    }

    /// Sets the vCPUs that a guest prefers; none: all.
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
            self.preferred.set(vm, vcpus - avoided.len(), self.clock.now());
            if self.vms[m].nohz {
                self.mask_ticks(vm);
            }
            if self.spans.is_on() {
                self.span_mask(vm);
            }
        }
    }

    /// The next vCPU of a batch goes offline or comes online.
    pub(crate) fn hotplug_step(&mut self, vm: u32) {
        let m = vm as usize;
        let (width, more) = self.preferred.step(vm, self.clock.now());
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
        if let Some(ns) = more {
            self.clock.set(Event::Hotplug(vm), self.clock.now() + ns);
        }
    }
}
