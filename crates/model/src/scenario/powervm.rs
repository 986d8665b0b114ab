//! `[host.powervm]`: a shared processor pool, and what VMs are entitled to in it.

use vcoop_powervm::{Partition, PoolConfig};
use vcoop_sched::config::Topology;

use super::keys::{HostKeys, VmKeys};
use super::sched::ClassKind;
use crate::diagnostic::Collector;
use crate::plan::Ns;
use crate::toml_read::At;
use crate::toml_read::table::table;
use crate::toml_read::units::{Time, show};

table! {
    /// A shared processor pool as PowerVM has it, with `class = "powervm"` in `[host.sched]`. Every VM
    /// says to how much it is `entitled`; it has its part of that in every dispatch window, and, unless
    /// it is `capped`, what others leave by its `weight`. What is dispatched are whole cores: a
    /// VM's vCPUs are threads of as many as one of the host's has.
    pub(crate) struct PowerVmKeys {
        /// Dispatch window, 1ms to 1s.
        window: At<Time> = "10ms",
    }
}

impl PowerVmKeys {
    /// The pool's configuration, without partitions.
    pub(crate) fn resolve(&self, topology: Topology, errors: &mut Collector<'_>) -> PoolConfig {
        const MS: Ns = 1_000_000;
        let window_ns = self.window.value.0;
        if !(MS..=1000 * MS).contains(&window_ns) {
            let message = format!("`window` cannot be {}", show(window_ns));
            errors.error_help(self.window.span, message, "1ms to 1s");
        }
        PoolConfig { window_ns, ..PoolConfig::new(topology, Vec::new()) }
    }
}

/// Refuses tables and keys of the host that mean nothing under its scheduler.
pub(crate) fn refuse_unused(host: &HostKeys, errors: &mut Collector<'_>) {
    let has = host.sched.value.class.value;
    let tables = [
        (ClassKind::Linux, &host.sched.given),
        (ClassKind::Credit1, &host.credit1.given),
        (ClassKind::PowerVm, &host.powervm.given),
    ];
    for (class, given) in tables.into_iter().filter(|(class, _)| *class != has) {
        class.not_tuned(has, given, errors);
    }
    if let Some(pin) = host.dom0_pin.as_ref().filter(|_| has != ClassKind::Credit1) {
        ClassKind::Credit1.only(has, "dom0_pin", pin.span, errors);
    }
}

/// Where the vCPUs of a VM sit that says nothing else: on the threads of cores like the host's.
pub(crate) fn topology(vcpus: u32, threads: u32) -> Topology {
    if threads > 1 && vcpus.is_multiple_of(threads) {
        Topology { threads_per_core: threads, cores_per_llc: vcpus / threads, llcs: 1 }
    } else {
        Topology::flat(vcpus)
    }
}

/// The partition that a VM is to a pool whose cores have `threads`.
pub(crate) fn partition(
    keys: &VmKeys,
    guest: Topology,
    threads: u32,
    errors: &mut Collector<'_>,
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
    match &keys.virt.0.govern.0.entitled {
        None => {
            let message = "a VM of a shared pool is entitled to something";
            let help = "say to how many pCPUs' worth of time: entitled = 1";
            errors.error_help(keys.name.span, message, help);
        }
        Some(At { value, span }) => {
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

/// Refuses keys of a VM that mean nothing to a pool.
pub(crate) fn refuse_foreign(keys: &VmKeys, pinned: bool, errors: &mut Collector<'_>) {
    let has = ClassKind::PowerVm;
    let cap = keys.cap.as_ref().map(|k| ("cap", k.span));
    let dom0 = keys.dom0.as_ref().map(|k| ("dom0", k.span));
    for (key, span) in [cap, dom0].into_iter().flatten() {
        ClassKind::Credit1.only(has, key, span, errors);
    }
    if pinned {
        let help = "take `pin` out: whoever is next gets whatever core is free";
        errors.error_help(keys.pin.span, "a shared pool pins nobody", help);
    }
}
