//! Entitlements of VMs in a shared processor pool.

use vcoop_powervm::Partition;
use vcoop_sched::config::Topology;

use super::keys::sched::ClassKind;
use super::keys::{HostKeys, VmKeys};
use crate::diagnostic::Collector;
use crate::toml_read::Placed;

/// Refuses tables and keys of the host that its scheduler does not use.
pub(crate) fn refuse_unused(host: &HostKeys, errors: &Collector) {
    let has = host.sched.value.class.value;
    let tables = [
        (ClassKind::Linux, &host.sched.given),
        (ClassKind::Credit1, &host.credit1.given),
        (ClassKind::PowerVm, &host.powervm.given),
    ];
    for (class, given) in tables.into_iter().filter(|(class, _)| *class != has) {
        class.not_tuned(has, given, errors);
    }
    ClassKind::Credit1.only(has, "dom0_pin", Placed::span_of(&host.dom0_pin), errors);
}

/// Default topology of a VM: threads of cores like the host's.
pub(crate) fn topology(vcpus: u32, threads: u32) -> Topology {
    if threads > 1 && vcpus.is_multiple_of(threads) {
        Topology { threads_per_core: threads, cores_per_llc: vcpus / threads, llcs: 1 }
    } else {
        Topology::flat(vcpus)
    }
}

/// The partition of a VM in a pool whose cores have `threads` threads.
pub(crate) fn partition(
    keys: &VmKeys,
    guest: Topology,
    threads: u32,
    errors: &Collector,
) -> Partition {
    let vcpus = keys.vcpus.value.get32();
    let mut out = Partition::new(vcpus, vcpus);
    if !vcpus.is_multiple_of(threads) {
        let message = format!("{vcpus} vCPUs do not fill cores of {threads} threads");
        let help = format!("a multiple of {threads}: whole cores are dispatched");
        errors.error_help(keys.vcpus.span, message, help);
    } else if let Some(given) = keys.topology.as_ref().filter(|_| guest.threads_per_core != threads)
    {
        let has = guest.threads_per_core;
        let message = format!("the guest sees {has} threads a core, and the host has {threads}");
        errors.error_help(given.span, message, format!("threads_per_core = {threads}"));
    }
    match &keys.virt.0.entitled {
        None => {
            let message = "a VM of a shared pool is entitled to something";
            let help = "say to how many pCPUs' worth of time: entitled = 1";
            errors.error_help(keys.name.span, message, help);
        }
        Some(Placed { value, span }) => {
            out.entitled = value.get32();
            if out.entitled * 20 < vcpus {
                let message = format!("{} pCPUs for {vcpus} vCPUs", out.entitled);
                let help = "at least a twentieth of each vCPU, as PowerVM asks for";
                errors.error_help(*span, message, help);
            }
        }
    }
    if let Some(weight) = &keys.weight {
        out.weight = weight.value.get32();
        if out.weight > 255 {
            let message = format!("{} is out of range in a pool", out.weight);
            errors.error_help(weight.span, message, "write an integer from 0 (capped) to 255");
        }
    }
    if let Some(capped) = keys.capped.as_ref().filter(|k| k.value) {
        if keys.weight.is_some() && out.weight > 0 {
            let message = "a capped VM has nothing of what others leave, whatever its weight";
            errors.error_help(capped.span, message, "take `capped` or `weight` out");
        }
        out.weight = 0;
    }
    out
}
