//! Control groups of a Linux host: those that are declared, those of VMs, and those of vCPUs.

use vcoop_credit1::Domain;
use vcoop_powervm::Partition;
use vcoop_sched::config::{GroupConfig, Quota};

use super::keys::sched::ClassKind;
use super::keys::texts::CpuMax;
use super::keys::{GroupKeys, VmKeys};
use crate::diagnostic::{Collector, nearest};
use crate::plan::VmPlan;
use crate::toml_read::Placed;
use crate::toml_read::units::Time;
use crate::toml_read::value::Name;

/// Groups, domains and partitions of VMs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    /// Linux: names of the declared groups.
    pub(crate) named: Vec<String>,
    /// Linux: the groups, first the declared ones, then those of VMs that have their own.
    pub(crate) groups: Vec<GroupConfig>,
    /// credit1: every VM's domain.
    pub(crate) domains: Vec<Domain>,
    /// powervm: every VM's partition.
    pub(crate) partitions: Vec<Partition>,
}

impl Shares {
    /// Adds a group; returns its number.
    pub(crate) fn add(&mut self, group: GroupConfig) -> Option<u16> {
        self.groups.push(group);
        u16::try_from(self.groups.len() - 1).ok()
    }
}

/// Weight of a group without that key: as much as a thread of nice 0.
const DEFAULT_WEIGHT: u64 = 1024;

/// The groups that are declared.
pub(crate) fn declared(keys: &[GroupKeys], class: ClassKind, errors: &Collector) -> Shares {
    ClassKind::Linux.only(class, "group", keys.first().map(|group| group.name.span), errors);
    errors.distinct(keys.iter().map(|group| (group.name.value.0.as_str(), group.name.span)));
    let named: Vec<String> = keys.iter().map(|group| group.name.value.0.clone()).collect();
    let one = |(i, group): (usize, &GroupKeys)| GroupConfig {
        weight: group.weight.value.get(),
        quota: quota(group.cpu_max.as_ref(), Some(&group.cpu_max_burst), errors),
        parent: group.group.as_ref().and_then(|outer| {
            let number = number(outer, &named, errors)?;
            if usize::from(number) >= i {
                let message = format!("group `{}` does not stand before this one", outer.value.0);
                errors.error_help(outer.span, message, "write the outer one first");
                return None;
            }
            Some(number)
        }),
    };
    let groups = keys.iter().enumerate().map(one).collect();
    Shares { named, groups, ..Shares::default() }
}

/// The group of a VM, if it has one, and those of its vCPUs, if each has its own. Adds them to `shares`.
pub(crate) fn of_vm(
    keys: &VmKeys,
    shares: &mut Shares,
    errors: &Collector,
) -> (Option<u16>, Vec<u16>) {
    let outer = keys.group.as_ref().and_then(|group| number(group, &shares.named, errors));
    let entitled = &keys.virt.0.entitled;
    let weight = match (&keys.weight, entitled) {
        (Some(weight), _) => {
            if weight.value.get() < 2 {
                let message = format!("{} is out of range", weight.value.get());
                errors.error_help(weight.span, message, "write an integer from 2 to 262144");
            }
            Some(weight.value.get())
        }
        // A pool keeps its promises by weights in proportion to them.
        (None, Some(entitled)) if outer.is_none() => Some(entitled.value.get() * DEFAULT_WEIGHT),
        _ => keys.cpu_max.as_ref().map(|_| DEFAULT_WEIGHT),
    };
    let quota_of_vm = quota(keys.cpu_max.as_ref(), keys.cpu_max_burst.as_ref(), errors);
    let own = match weight {
        Some(weight) => shares.add(GroupConfig { weight, quota: quota_of_vm, parent: outer }),
        None => outer,
    };
    let quota = quota(keys.vcpu_cpu_max.as_ref(), None, errors);
    let each = if keys.vcpu_groups.value || quota.is_some() { keys.vcpus.value.get32() } else { 0 };
    let group = GroupConfig { weight: DEFAULT_WEIGHT, quota, parent: own };
    (own, (0..each).filter_map(|_| shares.add(group)).collect())
}

fn quota(
    max: Option<&Placed<CpuMax>>,
    burst: Option<&Placed<Time>>,
    errors: &Collector,
) -> Option<Quota> {
    let burst_ns = burst.map_or(0, |burst| burst.value.0);
    let Some(&CpuMax { runtime_ns, period_ns }) = max.map(|max| &max.value) else {
        if let Some(burst) = burst.filter(|burst| burst.value.0 > 0) {
            let help = "write cpu_max as well, or take this out";
            errors.error_help(burst.span, "`cpu_max_burst` is of a group with `cpu_max`", help);
        }
        return None;
    };
    if let Some(burst) = burst.filter(|_| burst_ns > runtime_ns) {
        let message = "the burst is longer than the quota";
        errors.error_help(burst.span, message, "Linux takes at most the quota");
    }
    Some(Quota { runtime_ns, period_ns, burst_ns, phase_ns: 0 })
}

/// The number of a group that is declared.
pub(crate) fn number(name: &Placed<Name>, named: &[String], errors: &Collector) -> Option<u16> {
    let found = named.iter().position(|group| *group == name.value.0);
    if found.is_none() {
        let message = format!("there is no [[group]] named `{}`", name.value.0);
        errors.error_help(name.span, message, nearest(&name.value.0, "groups", named));
    }
    found.and_then(|i| u16::try_from(i).ok())
}

/// Gives another copy of a VM groups like the VM's own.
pub(crate) fn copy(vm: &VmPlan, copy: &mut VmPlan, shares: &mut Shares) {
    let own = |group: &&u16| usize::from(**group) >= shares.named.len();
    let Some(&first) = vm.group.iter().chain(&vm.vcpu_groups).find(own) else { return };
    let by = (shares.groups.len() - usize::from(first)) as u16;
    let moved = |group: u16| if group >= first { group.saturating_add(by) } else { group };
    let last = vm.vcpu_groups.last().copied().unwrap_or(first);
    for i in first..=last {
        let group = shares.groups[usize::from(i)];
        shares.groups.push(GroupConfig { parent: group.parent.map(moved), ..group });
    }
    copy.group = copy.group.map(moved);
    copy.vcpu_groups.iter_mut().for_each(|group| *group = moved(*group));
}
