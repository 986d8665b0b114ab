//! Changes during a run (`[[at]]`).

use super::host::check_policy_slice;
use super::keys::{AtKeys, ScenarioKeys, Switch};
use crate::diagnostic::{Collector, Span, nearest};
use crate::plan::{Ns, TimelineAction, TimelineEvent, VmPlan};
use crate::toml_read::Placed;
use crate::toml_read::units::{CpuList, show};

/// The events of `switches`, in order of time. `slices`: whether the host's fair class has slices.
pub(super) fn timeline(
    switches: &[AtKeys],
    keys: &ScenarioKeys,
    vms: &[VmPlan],
    end_ns: Ns,
    slices: bool,
    errors: &Collector,
) -> Vec<TimelineEvent> {
    let mut events = Vec::new();
    for switch in switches {
        check_before_end(switch.time.value.0, switch.time.span, end_ns, errors);
        let vm = match &switch.vm {
            None => vec![None],
            // All copies of a VM.
            Some(name) => match places(vms, &name.value) {
                some if !some.is_empty() => some,
                _ => {
                    if !keys.vm.iter().any(|vm| vm.name.value.0 == name.value) {
                        let message = format!("there is no VM `{}`", name.value);
                        let help = nearest(&name.value, "VMs", vms.iter().map(|vm| &vm.name));
                        errors.error_help(name.span, message, help);
                    }
                    // A VM that is left out has nothing to switch.
                    continue;
                }
            },
        };
        for vm in vm {
            if let Some(action) = action(switch, vm, vms, slices, errors) {
                events.push(TimelineEvent { at_ns: switch.time.value.0, action });
            } else {
                break;
            }
        }
    }
    events.sort_by_key(|event| event.at_ns);
    events
}

/// The VMs of a name.
fn places(vms: &[VmPlan], name: &str) -> Vec<Option<u32>> {
    let named = vms.iter().enumerate().filter(|(_, vm)| vm.label == name || vm.name == name);
    named.map(|(i, _)| u32::try_from(i).ok()).collect()
}

fn action(
    switch: &AtKeys,
    vm: Option<u32>,
    vms: &[VmPlan],
    slices: bool,
    errors: &Collector,
) -> Option<TimelineAction> {
    if let Some(prefer) = &switch.prefer {
        return prefers(switch, prefer, vm, vms, errors);
    }
    match (&switch.boost, &switch.policy) {
        (Some(boost), None) => {
            if let Some(vcpu) = &switch.vcpu {
                errors.error(vcpu.span, "boosting is switched for whole VMs: take out `vcpu`");
            }
            Some(TimelineAction::Boost { vm, on: boost.value == Switch::On })
        }
        (None, Some(policy)) => {
            let (Some(vm), Some(vcpu)) = (vm, &switch.vcpu) else {
                let help = "add `vm = ...` and `vcpu = ...`";
                errors.error_help(policy.span, "it is not said which vCPU gets this policy", help);
                return None;
            };
            let vcpus = vms.get(vm as usize).map_or(0, |vm| vm.vcpu_policy.len());
            if vcpu.value.get() as usize >= vcpus {
                let message = format!("there is no vCPU {}", vcpu.value.get());
                let help = format!("vCPUs go from 0 to {}", vcpus.saturating_sub(1));
                errors.error_help(vcpu.span, message, help);
            }
            check_policy_slice(policy.value, policy.span, slices, "host", errors);
            let vcpu = vcpu.value.get32();
            Some(TimelineAction::VcpuPolicy { vm, vcpu, policy: policy.value })
        }
        _ => {
            let help = "give `boost`, or `vm`, `vcpu` and `policy`, or `vm` and `prefer`";
            errors.error_help(switch.time.span, "an entry switches exactly one thing", help);
            None
        }
    }
}

/// A mask set by hand.
fn prefers(
    switch: &AtKeys,
    prefer: &Placed<CpuList>,
    vm: Option<u32>,
    vms: &[VmPlan],
    errors: &Collector,
) -> Option<TimelineAction> {
    if switch.boost.is_some() || switch.policy.is_some() || switch.vcpu.is_some() {
        errors.error_help(prefer.span, "an entry switches exactly one thing", "`vm` and `prefer`");
        return None;
    }
    let Some(vm) = vm else {
        errors.error_help(prefer.span, "it is not said which VM gets this mask", "add `vm = ...`");
        return None;
    };
    let vcpus = vms.get(vm as usize)?.level.topology.cpus();
    let list = prefer.value.0.clone();
    if let Some(beyond) = list.iter().find(|cpu| **cpu >= vcpus) {
        let help = format!("vCPUs go from 0 to {}", vcpus - 1);
        errors.error_help(prefer.span, format!("there is no vCPU {beyond}"), help);
        return None;
    }
    Some(TimelineAction::Prefer { vm, vcpus: list })
}

/// Checks that a time is before the end of the run.
pub(super) fn check_before_end(at_ns: Ns, span: Span, end_ns: Ns, errors: &Collector) {
    if at_ns >= end_ns {
        errors.error(span, format!("the run ends at {}, before this", show(end_ns)));
    }
}
