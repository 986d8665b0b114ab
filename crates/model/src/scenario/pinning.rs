//! Policies that pin vCPUs, and that keep the host's loads off the vCPUs' pCPUs.

use std::collections::BTreeSet;

use super::keys::PolicyKeys;
use super::keys::pinning::{LoadCpus, Pin};
use super::keys::sched::ClassKind;
use super::misfit::PolicyMisfit;
use crate::diagnostic::{Collector, Span};
use crate::plan::{Plan, TaskPlan, VmPlan};
use crate::toml_read::Placed;
use crate::toml_read::value::OneOrEach;

/// Pins of a policy. By default none: vCPUs and loads stay where the scenario has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pinning {
    pin: Option<Placed<OneOrEach<Pin>>>,
    load_cpus: Option<Placed<LoadCpus>>,
}

impl Pinning {
    /// Of a policy's keys.
    pub(crate) fn of(keys: &PolicyKeys) -> Self {
        Self { pin: keys.pin.clone(), load_cpus: keys.load_cpus.clone() }
    }

    /// Place of the keys; `None`: the policy has none.
    pub(crate) fn span(&self) -> Option<Span> {
        let loads = self.load_cpus.as_ref().map(|key| key.span);
        self.pin.as_ref().map(|key| key.span).or(loads)
    }

    /// Refuses pCPUs that the host does not have.
    pub(crate) fn check(&self, pcpus: u32, errors: &Collector) {
        let one = |list: &[u32], span: Span| {
            if let Some(cpu) = list.iter().find(|cpu| **cpu >= pcpus) {
                let help = format!("pCPUs go from 0 to {}", pcpus - 1);
                errors.error_help(span, format!("there is no pCPU {cpu}"), help);
            }
        };
        match &self.pin {
            Some(Placed { value: OneOrEach::One(Pin::To(list)), span }) => one(list, *span),
            Some(Placed { value: OneOrEach::Each(pins), .. }) => {
                for Placed { value, span } in pins {
                    if let Pin::To(list) = value {
                        one(list, *span);
                    }
                }
            }
            _ => {}
        }
        if let Some(Placed { value: LoadCpus::On(list), span }) = &self.load_cpus {
            one(list, *span);
        }
    }

    /// Why the policy `name` cannot pin on a host of this class.
    pub(crate) fn unfit(&self, name: &str, class: ClassKind) -> Option<PolicyMisfit> {
        let (message, help) = match class {
            ClassKind::PowerVm if self.span().is_some() => (
                format!("`{name}` pins vCPUs: a shared pool pins nobody"),
                "whoever is next gets whatever core is free",
            ),
            ClassKind::Credit1 if self.load_cpus.is_some() => (
                format!("`{name}` moves the host's loads: Xen has no threads of its own"),
                "take `load_cpus` out; `pin` can stay",
            ),
            _ => return None,
        };
        Some(PolicyMisfit { message, help: help.to_owned() })
    }

    /// Pins the vCPUs of a plan and moves its loads, for the policy `name`.
    pub(crate) fn apply(&self, name: &str, plan: &mut Plan) -> Result<(), PolicyMisfit> {
        let pcpus = plan.host.sched.cpus();
        if let Some(pin) = &self.pin {
            let pinned = pinned(name, &pin.value, &plan.vms, pcpus)?;
            for (vm, cpus) in plan.vms.iter_mut().zip(pinned) {
                vm.vcpu_cpus = cpus;
            }
        }
        let cpus = match self.load_cpus.as_ref().map(|key| &key.value) {
            None => return Ok(()),
            Some(LoadCpus::On(list)) => list.clone(),
            Some(LoadCpus::Others) => {
                let of_vcpus = |cpu: &u32| {
                    plan.vms.iter().flat_map(|vm| &vm.vcpu_cpus).any(|list| list.contains(cpu))
                };
                let others: Vec<u32> = (0..pcpus).filter(|cpu| !of_vcpus(cpu)).collect();
                // An empty list would be all pCPUs.
                if others.is_empty() && movable(plan).next().is_some() {
                    let message = format!(
                        "`{name}` leaves the host's loads no pCPU: vCPUs are pinned to all {pcpus}"
                    );
                    let help =
                        "a policy without `load_cpus`, as `pinned` is, or more pCPUs than vCPUs";
                    return Err(PolicyMisfit { message, help: help.to_owned() });
                }
                others
            }
        };
        for load in movable(plan) {
            load.cpus.clone_from(&cpus);
        }
        Ok(())
    }
}

/// Loads that may be moved: those that have no `cpus` of their own.
fn movable(plan: &mut Plan) -> impl Iterator<Item = &mut TaskPlan> {
    plan.host_tasks.iter_mut().filter(|load| load.cpus.is_empty())
}

/// pCPUs of each vCPU of each VM.
fn pinned(
    name: &str,
    pin: &OneOrEach<Pin>,
    vms: &[VmPlan],
    pcpus: u32,
) -> Result<Vec<Vec<Vec<u32>>>, PolicyMisfit> {
    let unfit = |message: String, help: &str| PolicyMisfit { message, help: help.to_owned() };
    for vm in vms {
        let (label, vcpus) = (&vm.label, vm.vcpu_cpus.len());
        if vm.vcpu_cpus.iter().any(|list| !list.is_empty()) {
            let message = format!("`{name}` pins vCPUs, and VM `{label}` has pins of its own");
            return Err(unfit(message, "take `pin` of the VM out, and give it to a policy"));
        }
        if let OneOrEach::Each(pins) = pin
            && pins.len() != vcpus
        {
            let message =
                format!("`{name}` has {} pins, and VM `{label}` has {vcpus} vCPUs", pins.len());
            return Err(unfit(message, "one list for each vCPU, or one for all"));
        }
    }
    let of = |vcpu: usize| match pin {
        OneOrEach::One(pin) => pin,
        OneOrEach::Each(pins) => &pins[vcpu].value,
    };
    let all = || vms.iter().flat_map(|vm| (0..vm.vcpu_cpus.len()).map(of));
    let taken: BTreeSet<u32> = all()
        .filter_map(|pin| match pin {
            Pin::To(list) => Some(list),
            Pin::Own => None,
        })
        .flatten()
        .copied()
        .collect();
    let own = all().filter(|pin| **pin == Pin::Own).count();
    let mut free = (0..pcpus).filter(|cpu| !taken.contains(cpu));
    let left = free.clone().count();
    if own > left {
        let pcpus = if left == 1 { "pCPU" } else { "pCPUs" };
        let message =
            format!("`{name}` gives each vCPU a pCPU of its own: {own} vCPUs, and {left} {pcpus}");
        return Err(unfit(message, "fewer vCPUs, or `pin` with lists that share pCPUs"));
    }
    let mut one = |vcpu| match of(vcpu) {
        Pin::To(list) => list.clone(),
        Pin::Own => free.next().into_iter().collect(),
    };
    Ok(vms.iter().map(|vm| (0..vm.vcpu_cpus.len()).map(&mut one).collect()).collect())
}
