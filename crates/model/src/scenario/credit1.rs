//! Keys about Xen's scheduler: patches of a policy, domains of VMs, and dom0.

use vcoop_credit1::{Domain, Patches, find_patch, patches};

use super::keys::credit1::{Dom0Pin, PresetKind};
use super::keys::{PolicyKeys, VmKeys};
use crate::diagnostic::{Collector, nearest};
use crate::plan::VmPlan;
use crate::toml_read::Placed;

/// The patches that a policy names; `None` if it keeps those of the host.
pub(crate) fn policy_patches(keys: &PolicyKeys, errors: &Collector) -> Option<Patches> {
    if keys.patches.is_none() && keys.preset.is_none() {
        return None;
    }
    let mut out = PresetKind::patches(keys.preset.as_ref());
    let mut seen: Vec<&str> = Vec::new();
    for Placed { value: name, span } in keys.patches.iter().flat_map(|k| &k.value) {
        let Some(patch) = find_patch(name) else {
            let help = nearest(name, "patches", patches().iter().map(|p| p.name));
            errors.error_help(*span, format!("there is no patch `{}`", name), help);
            continue;
        };
        let versions = ["-as-posted", "-as-meant", "-v1", "-v2"];
        let stem = versions.iter().find_map(|v| patch.name.strip_suffix(v)).unwrap_or(patch.name);
        if seen.contains(&stem) {
            errors.error(*span, format!("`{stem}` is patched twice"));
        }
        seen.push(stem);
        (patch.apply)(&mut out);
    }
    Some(out)
}

/// The domain of a VM in credit1.
pub(crate) fn domain(keys: &VmKeys, errors: &Collector) -> Domain {
    let mut domain = Domain { privileged: keys.is_dom0(), ..Domain::default() };
    if let Some(weight) = &keys.weight {
        domain.weight = weight.value.get32();
        if !(1..=65_535).contains(&weight.value.get()) {
            let message = format!("{} is out of range under credit1", weight.value.get());
            errors.error_help(weight.span, message, "write an integer from 1 to 65535");
        }
    }
    if let Some(cap) = &keys.cap {
        domain.cap_pct = cap.value.get32();
        let most = 100 * keys.vcpus.value.get();
        if cap.value.get() > most {
            let message = format!("a cap of {} % is more than its vCPUs can use", cap.value.get());
            errors.error_help(cap.span, message, format!("0 (none), or up to {most}"));
        }
    }
    domain
}

/// Applies `dom0_pin` to the VMs, which are those of `keys` that are enabled.
pub(crate) fn pin_dom0(
    pin: Option<&Placed<Dom0Pin>>,
    keys: &[VmKeys],
    vms: &mut [VmPlan],
    pcpus: u32,
    errors: &Collector,
) {
    let mut dom0s = keys.iter().filter(|k| k.is_dom0());
    let first = dom0s.next();
    if let Some(second) = dom0s.next() {
        let name = first.map_or("", |k| k.name.value.0.as_str());
        let span = second.dom0.as_ref().map_or(second.name.span, |k| k.span);
        errors.error(span, format!("there are two dom0s: `{name}` is the other one"));
        return;
    }
    if let Some(dom0) = first.filter(|k| k.count.value.get() > 1) {
        errors.error(dom0.count.span, "there is one dom0");
        return;
    }
    let Some(pin) = pin else { return };
    let Some(dom0) = first else {
        errors.error_help(pin.span, "there is no dom0 to pin", "mark a VM by `dom0 = true`");
        return;
    };
    let own = dom0.vcpus.value.get32();
    let Some(at) = vms.iter().position(|vm| vm.name == dom0.name.value.0) else { return };
    if pin.value == Dom0Pin::Nopin {
        return;
    }
    if own > pcpus {
        let message = format!("dom0 has {own} vCPUs, and the host {pcpus} pCPUs");
        errors.error_help(pin.span, message, "one pCPU for each vCPU of dom0");
        return;
    }
    if vms[at].vcpu_cpus.iter().any(|cpus| !cpus.is_empty()) {
        let message = "dom0 is pinned twice: by `dom0_pin`, and here";
        errors.error_help(dom0.pin.span, message, "take one of them out");
        return;
    }
    for (i, cpus) in (0..own).zip(&mut vms[at].vcpu_cpus) {
        *cpus = vec![i];
    }
    if pin.value == Dom0Pin::Pin {
        return;
    }
    for (_, vm) in vms.iter_mut().enumerate().filter(|(i, _)| *i != at) {
        for cpus in &mut vm.vcpu_cpus {
            if cpus.is_empty() {
                cpus.extend(0..pcpus);
            }
            cpus.retain(|&cpu| cpu >= own);
            if cpus.is_empty() {
                let span = keys
                    .iter()
                    .find(|k| k.name.value.0 == vm.label)
                    .map_or(pin.span, |k| if own == pcpus { pin.span } else { k.pin.span });
                let message = format!("`{}` has no pCPU left: dom0 has 0 to {}", vm.name, own - 1);
                errors.error_help(span, message, "fewer vCPUs for dom0, or another `pin`");
                return;
            }
        }
    }
}
