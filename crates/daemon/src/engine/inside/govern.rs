//! How many of its vCPUs a guest is asked to use: the host's governors, and what they go by.

use std::collections::BTreeMap;

use vcoop_policy::config::Ns;
use vcoop_policy::govern::{CpuTime, GovernorDriver, Host, Member};
use vcoop_threads::clock::monotonic;
use vcoop_threads::{allowed_cpus, host_busy_ns, run_time};

use super::{AttachedVm, Inside};
use crate::port::Due;

/// What the host has done beside the VMs with a policy. VMs without one are among it.
#[derive(Debug, Default)]
pub(super) struct Own {
    busy_ns: Ns,
    /// CPU time of each VM's vCPUs.
    vms: BTreeMap<u64, Ns>,
    /// The sum so far.
    own_ns: Ns,
}

impl Own {
    /// Takes in what came since the last look. CPU time of a VM that has come or gone meanwhile is nobody's.
    fn look(&mut self, vms: &BTreeMap<u64, AttachedVm>) {
        let busy = host_busy_ns();
        let before = std::mem::take(&mut self.vms);
        let vms = vms.iter().filter(|(_, vm)| !vm.is_timers);
        self.vms = vms.map(|(number, vm)| (*number, vm.used().busy_ns)).collect();
        let since =
            |(number, now): (&u64, &Ns)| now.saturating_sub(*before.get(number).unwrap_or(now));
        let of_vms: Ns = self.vms.iter().map(since).sum();
        let all = busy.saturating_sub(std::mem::replace(&mut self.busy_ns, busy));
        self.own_ns += all.saturating_sub(of_vms);
    }
}

/// The host as its governors see it.
struct Pool<'a> {
    vms: &'a BTreeMap<u64, AttachedVm>,
    own_ns: Ns,
}

impl Pool<'_> {
    fn vm(&self, number: usize) -> Option<&AttachedVm> {
        self.vms.get(&(number as u64))
    }
}

impl Host for Pool<'_> {
    fn cpu_time(&self, vm: usize, vcpu: u32) -> CpuTime {
        let thread = self.vm(vm).and_then(|vm| vm.threads.get(vcpu as usize));
        thread.map_or_else(CpuTime::default, |thread| time_of(thread.thread.tid))
    }

    fn own_ns(&self) -> Ns {
        self.own_ns
    }

    fn pcpus(&self) -> u32 {
        allowed_cpus().map_or(1, |cpus| cpus.len() as u32)
    }

    fn vms(&self) -> impl Iterator<Item = usize> {
        self.vms.iter().filter(|(_, vm)| !vm.is_timers).map(|(number, _)| *number as usize)
    }

    fn member(&self, vm: usize) -> Member {
        let vm = &self.vms[&(vm as u64)];
        let vcpus = vm.threads.len() as u32;
        let governor = vm.governor.as_ref();
        Member {
            used: vm.used(),
            width: governor.map_or(vcpus, GovernorDriver::width),
            vcpus,
            // Weights of cgroups are not looked at: threads are alike.
            weight: None,
            entitled: vm.plan.vms.first().and_then(|vm| vm.virt.govern.entitled).unwrap_or(0),
            quota_ns: vcoop_vmm::quota(vm.threads.iter().map(|thread| thread.thread.tid)),
            folds: governor.is_some(),
        }
    }

    fn publish_steal(&self, vm: usize, vcpu: u32, steal_ns: Ns) {
        if let Some(link) = self.vm(vm).and_then(|vm| vm.link.as_ref()) {
            link.tell_steal(vcpu as usize, steal_ns);
        }
    }
}

impl AttachedVm {
    /// What its vCPUs have done since they began.
    fn used(&self) -> CpuTime {
        self.threads.iter().map(|thread| time_of(thread.thread.tid)).sum()
    }
}

fn time_of(tid: u32) -> CpuTime {
    let time = run_time(tid.cast_signed());
    CpuTime { busy_ns: time.ran_ns, steal_ns: time.waited_ns }
}

impl Inside {
    /// The governor of a VM begins, if it has one.
    pub(super) fn begin_to_govern(&mut self, number: u64) {
        let now = monotonic();
        let Some(vm) = self.vms.get(&number) else { return };
        let mut governor = vm.plan.governor(0).map(|config| {
            // The guest's cores are not known: the guest rounds to whole ones.
            GovernorDriver::new(&config, number as usize, 0, vm.threads.len() as u32, 1)
        });
        if let Some(governor) = &mut governor {
            self.own.look(&self.vms);
            governor.begin(now, &Pool { vms: &self.vms, own_ns: self.own.own_ns });
            if let Some(link) = &vm.link {
                link.prefer(Some(governor.width()));
            }
            self.dues.insert((now + governor.interval_ns(), Due::Govern(number)));
        }
        self.vms.entry(number).and_modify(|vm| vm.governor = governor);
    }

    /// The interval of a VM's governor is over.
    pub(super) fn govern(&mut self, number: u64) {
        let now = monotonic();
        self.own.look(&self.vms);
        // It looks at itself, too, as one of the host's.
        let Some(mut governor) = self.vms.get(&number).and_then(|vm| vm.governor.clone()) else {
            return;
        };
        let width = governor.look(now, &Pool { vms: &self.vms, own_ns: self.own.own_ns });
        self.dues.insert((now + governor.interval_ns(), Due::Govern(number)));
        let Some(vm) = self.vms.get_mut(&number) else { return };
        vm.governor = Some(governor);
        if let (Some(width), Some(link)) = (width, &vm.link) {
            link.prefer(Some(width));
        }
    }

    /// Its guest may use what it likes.
    pub(super) fn govern_no_more(&mut self, number: u64) {
        self.dues.retain(|(_, due)| *due != Due::Govern(number));
        let vm = self.vms.get_mut(&number);
        if let Some(AttachedVm { governor: governor @ Some(_), link: Some(link), .. }) = vm {
            *governor = None;
            link.prefer(None);
        }
    }
}
