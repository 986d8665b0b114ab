//! How many of its vCPUs a guest is asked to use: the host's governors, and the usage that they decide by.

use std::collections::BTreeMap;

use vcoop_policy::config::Ns;
use vcoop_policy::govern::{CpuTime, GovernorDriver, Host, Member};
use vcoop_threads::clock::monotonic;
use vcoop_threads::{allowed_cpus, host_busy_ns, run_time};
use vcoop_vmm::Groups;

use super::{AttachedVm, EngineThread};
use crate::port::DueAction;

/// Looks of governors that are this close together share one sample of the host.
const FRESH_NS: Ns = 5_000_000;

/// CPU time of the VMs with a policy, and of the rest of the host, as of one sample. VMs without a policy belong to the
/// rest.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) at: Ns,
    busy_ns: Ns,
    pub(super) vms: BTreeMap<u64, VmUsage>,
    /// CPU time of the rest.
    own_ns: Ns,
}

#[derive(Debug)]
pub(super) struct VmUsage {
    /// CPU time of each vCPU since it began.
    vcpus: Vec<CpuTime>,
    groups: Groups,
    quota_ns: Option<Ns>,
    weight: Option<u64>,
}

impl VmUsage {
    fn of(vm: &AttachedVm) -> Self {
        let tids = || vm.threads.iter().map(|thread| thread.thread.tid);
        let groups = Groups::of(tids());
        let quota_ns = groups.quota();
        Self { vcpus: tids().map(time_of).collect(), groups, quota_ns, weight: None }
    }

    fn sum(&self) -> CpuTime {
        self.vcpus.iter().copied().sum()
    }
}

impl Usage {
    /// Samples the host, unless it just did for the same VMs. CPU time of a VM that came or went since is not counted.
    fn look(&mut self, vms: &BTreeMap<u64, AttachedVm>) {
        let now = monotonic();
        let vms = || vms.iter().filter(|(_, vm)| !vm.is_timers);
        if now < self.at + FRESH_NS && vms().map(|(number, _)| number).eq(self.vms.keys()) {
            return;
        }
        self.at = now;
        let busy = host_busy_ns();
        let seen = vms().map(|(number, vm)| (*number, VmUsage::of(vm))).collect();
        let before = std::mem::replace(&mut self.vms, seen);
        let weights = Groups::weights(self.vms.values().map(|vm| &vm.groups));
        for (vm, weight) in self.vms.values_mut().zip(weights.into_iter().flatten()) {
            vm.weight = Some(weight);
        }
        let since = |(number, now): (&u64, &VmUsage)| {
            let before = before.get(number).unwrap_or(now);
            now.sum().since(before.sum()).busy_ns
        };
        let of_vms: Ns = self.vms.iter().map(since).sum();
        let all = busy.saturating_sub(std::mem::replace(&mut self.busy_ns, busy));
        self.own_ns += all.saturating_sub(of_vms);
    }
}

/// The host for its governors.
struct Pool<'a> {
    vms: &'a BTreeMap<u64, AttachedVm>,
    usage: &'a Usage,
}

impl Pool<'_> {
    fn vm(&self, number: usize) -> Option<&AttachedVm> {
        self.vms.get(&(number as u64))
    }
}

impl Host for Pool<'_> {
    fn cpu_time(&self, vm: usize, vcpu: u32) -> CpuTime {
        let usage = self.usage.vms.get(&(vm as u64));
        usage.and_then(|usage| usage.vcpus.get(vcpu as usize)).copied().unwrap_or_default()
    }

    fn own_ns(&self) -> Ns {
        self.usage.own_ns
    }

    fn pcpus(&self) -> u32 {
        allowed_cpus().map_or(1, |cpus| cpus.len() as u32)
    }

    fn vms(&self) -> impl Iterator<Item = usize> {
        self.usage.vms.keys().map(|number| *number as usize)
    }

    fn member(&self, vm: usize) -> Member {
        let usage = &self.usage.vms[&(vm as u64)];
        let vm = &self.vms[&(vm as u64)];
        let vcpus = vm.threads.len() as u32;
        let governor = vm.governor.as_ref();
        Member {
            used: usage.sum(),
            width: governor.map_or(vcpus, GovernorDriver::width),
            vcpus,
            weight: usage.weight,
            entitled: vm.plan.vms.first().and_then(|vm| vm.virt.govern.entitled).unwrap_or(0),
            quota_ns: usage.quota_ns,
            folds: governor.is_some(),
        }
    }

    fn publish_steal(&self, vm: usize, vcpu: u32, steal_ns: Ns) {
        if let Some(link) = self.vm(vm).and_then(|vm| vm.link.as_ref()) {
            link.tell_steal(vcpu as usize, steal_ns);
        }
    }
}

fn time_of(tid: u32) -> CpuTime {
    let time = run_time(tid.cast_signed());
    CpuTime { busy_ns: time.ran_ns, steal_ns: time.waited_ns }
}

/// Governors with the same interval look at the same times, so that one sample of the host serves all of them.
fn next_look(now: Ns, governor: &GovernorDriver) -> Ns {
    let every = governor.interval_ns();
    (now + every / 2).next_multiple_of(every)
}

impl EngineThread {
    /// The governor of a VM begins, if it has one.
    pub(super) fn begin_to_govern(&mut self, number: u64) {
        let Some(vm) = self.vms.get(&number) else { return };
        let mut governor = vm.plan.governor(0).map(|config| {
            // The guest's cores are not known: the guest rounds to whole ones.
            GovernorDriver::new(&config, number as usize, 0, vm.threads.len() as u32, 1)
        });
        if let Some(governor) = &mut governor {
            self.usage.look(&self.vms);
            governor.begin(self.usage.at, &Pool { vms: &self.vms, usage: &self.usage });
            if let Some(link) = &vm.link {
                link.prefer(Some(governor.width()));
            }
            self.dues.insert((next_look(self.usage.at, governor), DueAction::Govern(number)));
        }
        self.vms.entry(number).and_modify(|vm| vm.governor = governor);
    }

    /// The interval of a VM's governor is over.
    pub(super) fn govern(&mut self, number: u64) {
        self.usage.look(&self.vms);
        // It looks at itself, too, as one of the host's.
        let Some(mut governor) = self.vms.get(&number).and_then(|vm| vm.governor.clone()) else {
            return;
        };
        let width = governor.look(self.usage.at, &Pool { vms: &self.vms, usage: &self.usage });
        self.dues.insert((next_look(self.usage.at, &governor), DueAction::Govern(number)));
        let Some(vm) = self.vms.get_mut(&number) else { return };
        vm.governor = Some(governor);
        if let (Some(width), Some(link)) = (width, &vm.link) {
            link.prefer(Some(width));
        }
    }

    /// Lets the guest of a VM use all its vCPUs again.
    pub(super) fn govern_no_more(&mut self, number: u64) {
        self.dues.retain(|(_, due)| *due != DueAction::Govern(number));
        let vm = self.vms.get_mut(&number);
        if let Some(AttachedVm { governor: governor @ Some(_), link: Some(link), .. }) = vm {
            *governor = None;
            link.prefer(None);
        }
    }
}
