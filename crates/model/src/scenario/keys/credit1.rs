//! `[host.credit1]`: the tunables of Xen's scheduler.

use vcoop_credit1::{BoostPreempts, Burn, Credit1Config, Patch, Patches, XenVersion};
use vcoop_sched::config::Topology;

use crate::diagnostic::Collector;
use crate::plan::Ns;
use crate::toml_read::Placed;
use crate::toml_read::table::{SubTable, table};
use crate::toml_read::units::{Time, show};
use crate::toml_read::value::choice;

choice! {
    for XenVersion {
        /// Xen 4.2.
        V4_2 = "4.2",
        /// Today's.
        Current = "current",
    }
}

choice! {
    for Burn {
        /// For the time that a vCPU ran, to the nanosecond.
        Exact = "exact",
        /// A whole tick to the vCPU that runs at the tick, as before 2010.
        TickSampled = "tick-sampled",
    }
}

choice! {
    for Patch {
        /// Not applied.
        Off = "off",
        /// What the posted lines do.
        AsPosted = "as-posted",
        /// What its author wrote it for.
        AsMeant = "as-meant",
    }
}

choice! {
    for BoostPreempts {
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
        /// The same, and no other vCPU runs there.
        Xpin = "xpin",
    }
}

table! {
    /// Patches of the study "Performance of Xen VCPU Scheduling", each by itself.
    pub(crate) struct PatchKeys {
        /// Start from several: "xpin-like" keeps dom0's vCPUs apart and boosted, with credit, and
        /// protected by a ratelimit of 100 ms of their own.
        preset: Option<Placed<PresetKind>>,
        /// dom0 preempts within the ratelimit.
        dom0_preempts_ratelimit: Option<Placed<Patch>>,
        /// A vCPU that blocked may be stolen while cache-hot. As posted: no effect.
        migrate_if_blocked: Option<Placed<Patch>>,
        /// A vCPU woken by dom0 goes to dom0's pCPU.
        waker_local: Option<Placed<bool>>,
        /// A boosted vCPU preempts within the ratelimit.
        boost_preempts_ratelimit: Option<Placed<BoostPreempts>>,
        /// An I/O completion ends the ratelimit. As posted: only a VM's first wake-up does.
        io_wake_ignores_ratelimit: Option<Placed<Patch>>,
        /// dom0 keeps its boost. As posted: only until the next accounting.
        keep_dom0_boost: Option<Placed<Patch>>,
        /// Ten times the timeslice for a vCPU alone. As posted: the credit tick stays as it is.
        long_slice_alone: Option<Placed<Patch>>,
        /// dom0's vCPUs do not move to a pCPU that has another of them.
        spread_dom0: Option<Placed<bool>>,
        /// dom0's vCPUs go to the front of run queues.
        dom0_front: Option<Placed<bool>>,
    }
}

table! {
    /// Xen's credit1, with `class = "credit1"` in `[host.sched]`.
    pub(crate) struct Credit1Keys {
        /// Version of Xen whose rules apply, where versions differ.
        version: Placed<XenVersion> = "current",
        /// Timeslice and accounting period, 1ms to 1s; a third of it is the credit tick.
        timeslice: Placed<Time> = "30ms",
        /// How long a vCPU runs before it can be preempted: 0us (off), or 100us to 500ms, and at most the timeslice.
        ratelimit: Placed<Time> = "1ms",
        /// A vCPU that stopped running so recently is cache-hot and not stolen, up to 100ms.
        migration_delay: Placed<Time> = "0us",
        /// A pCPU looks for work elsewhere at most this often, up to 1s; 0us: at every chance.
        load_balance_ratelimit: Placed<Time> = "0us",
        /// A wake-up interrupts one suitable idle pCPU rather than all.
        tickle_one_idle: Placed<bool> = "true",
        /// Fill cores rather than spread over them.
        smt_power_savings: Placed<bool> = "false",
        /// How running is charged.
        burn: Placed<Burn> = "exact",
        /// Patches.
        patches: SubTable<PatchKeys>,
    }
}

impl Credit1Keys {
    /// The scheduler's configuration, without domains.
    pub(crate) fn resolve(&self, topology: Topology, errors: &Collector) -> Credit1Config {
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
            version: self.version.value,
            tslice_ns: slice,
            ratelimit_ns: ratelimit,
            migration_delay_ns: self.migration_delay.value.0,
            load_balance_ratelimit_ns: self.load_balance_ratelimit.value.0,
            tickle_one_idle: self.tickle_one_idle.value,
            smt_power_savings: self.smt_power_savings.value,
            burn: self.burn.value,
            patches: self.patches.value.resolve(),
            ..Credit1Config::new(topology, Vec::new())
        }
    }
}

fn range(key: &str, at: &Placed<Time>, min: Ns, max: Ns, errors: &Collector) {
    if !(min..=max).contains(&at.value.0) {
        let message = format!("`{key}` cannot be {}", show(at.value.0));
        errors.error_help(at.span, message, format!("{} to {}", show(min), show(max)));
    }
}

impl PresetKind {
    /// The patches to start from.
    pub(crate) fn patches(given: Option<&Placed<Self>>) -> Patches {
        given.map_or_else(Patches::default, |Placed { value: Self::XpinLike, .. }| {
            Patches::xpin_like()
        })
    }
}

impl PatchKeys {
    fn resolve(&self) -> Patches {
        let base = PresetKind::patches(self.preset.as_ref());
        let patch = |key: &Option<Placed<Patch>>| key.as_ref().map_or(Patch::Off, |k| k.value);
        let flag = |key: &Option<Placed<bool>>, base| key.as_ref().map_or(base, |k| k.value);
        Patches {
            dom0_preempts_ratelimit: patch(&self.dom0_preempts_ratelimit),
            migrate_if_blocked: patch(&self.migrate_if_blocked),
            waker_local: flag(&self.waker_local, base.waker_local),
            boost_preempts_ratelimit: self
                .boost_preempts_ratelimit
                .as_ref()
                .map_or(BoostPreempts::Off, |k| k.value),
            io_wake_ignores_ratelimit: patch(&self.io_wake_ignores_ratelimit),
            keep_dom0_boost: patch(&self.keep_dom0_boost),
            long_slice_alone: patch(&self.long_slice_alone),
            spread_dom0: flag(&self.spread_dom0, base.spread_dom0),
            dom0_front: flag(&self.dom0_front, base.dom0_front),
            ..base
        }
    }
}
