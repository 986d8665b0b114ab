//! `[host.credit1]`: the tunables of Xen's scheduler, and who dom0 is.

use vcoop_credit1::{
    BoostPreempts, Burn, Credit1Config, Domain, Patch, Patches, XenVersion, find_patch, patches,
};
use vcoop_sched::config::Topology;

use super::keys::{PolicyKeys, VmKeys};
use crate::diagnostic::{Collector, nearest};
use crate::plan::{Ns, VmPlan};
use crate::toml_read::At;
use crate::toml_read::table::{Sub, table};
use crate::toml_read::units::{Time, show};
use crate::toml_read::value::choice;

choice! {
    /// Whose rules hold where they differ.
    pub(crate) enum VersionKind {
        /// Xen 4.2.
        V42 = "4.2",
        /// Today's.
        Current = "current",
    }
}

choice! {
    /// How running is charged.
    pub(crate) enum BurnKind {
        /// By the nanosecond.
        Exact = "exact",
        /// To whoever a tick finds running, as before 2010.
        TickSampled = "tick-sampled",
    }
}

choice! {
    /// A patch whose posted lines do something else than they are meant to.
    pub(crate) enum PatchKind {
        /// Not applied.
        Off = "off",
        /// What the posted lines do.
        AsPosted = "as-posted",
        /// What its author wrote it for.
        AsMeant = "as-meant",
    }
}

impl PatchKind {
    fn resolve(self) -> Patch {
        match self {
            Self::Off => Patch::Off,
            Self::AsPosted => Patch::AsPosted,
            Self::AsMeant => Patch::AsMeant,
        }
    }
}

choice! {
    /// Which version of the patch that lets BOOST preempt the ratelimit.
    pub(crate) enum BoostKind {
        /// Not applied.
        Off = "off",
        /// Whenever a boosted vCPU waits first.
        V1 = "v1",
        /// ... and the running one is not boosted.
        V2 = "v2",
    }
}

choice! {
    /// Several patches by one name.
    pub(crate) enum PresetKind {
        /// Five points that make an unpinned dom0 run like an exclusively pinned one.
        XpinLike = "xpin-like",
    }
}

choice! {
    /// Where dom0 runs.
    pub(crate) enum Dom0Pin {
        /// Anywhere, like every VM.
        Nopin = "nopin",
        /// Each of its vCPUs on the pCPU of the same number; others run anywhere.
        Pin = "pin",
        /// The same, and nobody else runs there.
        Xpin = "xpin",
    }
}

table! {
    /// Patches of the study "Performance of Xen VCPU Scheduling", each by itself.
    pub(crate) struct PatchKeys {
        /// Start from several: "xpin-like" keeps dom0's vCPUs apart and boosted, with credit, and
        /// protected by a ratelimit of 100 ms of their own.
        preset: Option<At<PresetKind>>,
        /// dom0 preempts within the ratelimit.
        dom0_preempts_ratelimit: Option<At<PatchKind>>,
        /// A vCPU that blocked may be stolen while cache-hot. As posted: no effect.
        migrate_if_blocked: Option<At<PatchKind>>,
        /// A vCPU woken by dom0 goes to dom0's pCPU.
        waker_local: Option<At<bool>>,
        /// A boosted vCPU preempts within the ratelimit.
        boost_preempts_ratelimit: Option<At<BoostKind>>,
        /// An I/O completion ends the ratelimit. As posted: only a VM's first wake-up does.
        io_wake_ignores_ratelimit: Option<At<PatchKind>>,
        /// dom0 keeps its boost. As posted: only until the next accounting.
        keep_dom0_boost: Option<At<PatchKind>>,
        /// Ten times the timeslice for a vCPU alone. As posted: the credit tick stays as it is.
        long_slice_alone: Option<At<PatchKind>>,
        /// dom0's vCPUs do not move to a pCPU that has another of them.
        spread_dom0: Option<At<bool>>,
        /// dom0's vCPUs go to the front of run queues.
        dom0_front: Option<At<bool>>,
    }
}

table! {
    /// Xen's credit1, with `class = "credit1"` in `[host.sched]`.
    pub(crate) struct Credit1Keys {
        /// Whose rules, where they differ.
        version: At<VersionKind> = "current",
        /// Timeslice and accounting period, 1ms to 1s; a third of it is the credit tick.
        timeslice: At<Time> = "30ms",
        /// How long a vCPU runs before it can be preempted: 0us (off), or 100us to 500ms and at
        /// most the timeslice.
        ratelimit: At<Time> = "1ms",
        /// A vCPU that stopped running so recently is cache-hot and not stolen, up to 100ms.
        migration_delay: At<Time> = "0us",
        /// A pCPU looks for work elsewhere at most this often, up to 1s; 0us: at every chance.
        load_balance_ratelimit: At<Time> = "0us",
        /// A wake-up interrupts one suitable idle pCPU rather than all.
        tickle_one_idle: At<bool> = "true",
        /// Fill cores rather than spread over them.
        smt_power_savings: At<bool> = "false",
        /// How running is charged.
        burn: At<BurnKind> = "exact",
        /// Patches.
        patches: Sub<PatchKeys>,
    }
}

impl Credit1Keys {
    /// The scheduler's configuration, without domains.
    pub(crate) fn resolve(&self, topology: Topology, errors: &mut Collector<'_>) -> Credit1Config {
        const MS: Ns = 1_000_000;
        let slice = self.timeslice.value.0;
        range("timeslice", &self.timeslice, MS, 1000 * MS, errors);
        let (ratelimit, span) = (self.ratelimit.value.0, self.ratelimit.span);
        if ratelimit != 0 && !(MS / 10..=500 * MS).contains(&ratelimit) {
            let message = format!("`ratelimit` cannot be {}", show(ratelimit));
            errors.error_help(span, message, "0us (off), or 100us to 500ms");
        } else if ratelimit > slice {
            let (limit, slice) = (show(ratelimit), show(slice));
            let message = format!("the ratelimit {limit} is above the timeslice {slice}");
            errors.error_help(span, message, "0us, or up to the timeslice");
        }
        range("migration_delay", &self.migration_delay, 0, 100 * MS, errors);
        range("load_balance_ratelimit", &self.load_balance_ratelimit, 0, 1000 * MS, errors);
        Credit1Config {
            version: match self.version.value {
                VersionKind::V42 => XenVersion::V4_2,
                VersionKind::Current => XenVersion::Current,
            },
            tslice_ns: slice,
            ratelimit_ns: ratelimit,
            migration_delay_ns: self.migration_delay.value.0,
            load_balance_ratelimit_ns: self.load_balance_ratelimit.value.0,
            tickle_one_idle: self.tickle_one_idle.value,
            smt_power_savings: self.smt_power_savings.value,
            burn: match self.burn.value {
                BurnKind::Exact => Burn::Exact,
                BurnKind::TickSampled => Burn::TickSampled,
            },
            patches: self.patches.value.resolve(),
            ..Credit1Config::new(topology, Vec::new())
        }
    }
}

fn range(key: &str, at: &At<Time>, min: Ns, max: Ns, errors: &mut Collector<'_>) {
    if !(min..=max).contains(&at.value.0) {
        let message = format!("`{key}` cannot be {}", show(at.value.0));
        errors.error_help(at.span, message, format!("{} to {}", show(min), show(max)));
    }
}

impl PatchKeys {
    fn resolve(&self) -> Patches {
        let base = match &self.preset {
            None => Patches::default(),
            Some(At { value: PresetKind::XpinLike, .. }) => Patches::xpin_like(),
        };
        let patch =
            |key: &Option<At<PatchKind>>| key.as_ref().map_or(Patch::Off, |k| k.value.resolve());
        let flag = |key: &Option<At<bool>>, base| key.as_ref().map_or(base, |k| k.value);
        Patches {
            dom0_preempts_ratelimit: patch(&self.dom0_preempts_ratelimit),
            migrate_if_blocked: patch(&self.migrate_if_blocked),
            waker_local: flag(&self.waker_local, base.waker_local),
            boost_preempts_ratelimit: match self.boost_preempts_ratelimit.as_ref().map(|k| k.value)
            {
                None | Some(BoostKind::Off) => BoostPreempts::Off,
                Some(BoostKind::V1) => BoostPreempts::V1,
                Some(BoostKind::V2) => BoostPreempts::V2,
            },
            io_wake_ignores_ratelimit: patch(&self.io_wake_ignores_ratelimit),
            keep_dom0_boost: patch(&self.keep_dom0_boost),
            long_slice_alone: patch(&self.long_slice_alone),
            spread_dom0: flag(&self.spread_dom0, base.spread_dom0),
            dom0_front: flag(&self.dom0_front, base.dom0_front),
            ..base
        }
    }
}

/// The patches that a policy names; `None` if it leaves those of the host.
pub(crate) fn policy_patches(keys: &PolicyKeys, errors: &mut Collector<'_>) -> Option<Patches> {
    if keys.patches.is_none() && keys.preset.is_none() {
        return None;
    }
    let mut out = match &keys.preset {
        None => Patches::default(),
        Some(At { value: PresetKind::XpinLike, .. }) => Patches::xpin_like(),
    };
    let mut seen: Vec<&str> = Vec::new();
    for At { value: name, span } in keys.patches.iter().flat_map(|k| &k.value) {
        let Some(patch) = find_patch(&name.0) else {
            let names: Vec<&str> = patches().iter().map(|p| p.name).collect();
            let help = nearest(&name.0, "patches", &names);
            errors.error_help(*span, format!("there is no patch `{}`", name.0), help);
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

/// The domain that a VM is to credit1.
pub(crate) fn domain(keys: &VmKeys, errors: &mut Collector<'_>) -> Domain {
    let mut domain = Domain { privileged: is_dom0(keys), ..Domain::default() };
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

/// Whether a VM is dom0.
pub(crate) fn is_dom0(keys: &VmKeys) -> bool {
    keys.dom0.as_ref().is_some_and(|k| k.value)
}

/// Applies `dom0_pin` to the VMs, which are those of `keys` that are enabled.
pub(crate) fn pin_dom0(
    pin: Option<&At<Dom0Pin>>,
    keys: &[VmKeys],
    vms: &mut [VmPlan],
    pcpus: u32,
    errors: &mut Collector<'_>,
) {
    let mut dom0s = keys.iter().filter(|k| is_dom0(k));
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
