//! Keys about how VMs are virtualised: of `[[vm]]`, and of `[policy.NAME]` for all VMs.

mod govern;
mod idle;
mod spin;
mod timer;

use schemars::SchemaGenerator;
use vcoop_policy::config::{AdvanceConfig, HostPollConfig};

use crate::diagnostic::Span;
use crate::plan::virt::{ApicVirt, GuestTimer, IpiPath, Virt};
use crate::toml_read::table::{Flat, Table};
use crate::toml_read::value::choice;
use crate::toml_read::{At, Reader, TableSchema};
use govern::GovernKeys;
use idle::IdleKeys;
use spin::{HintKeys, SpinKeys};
use timer::TimerKeys;

/// Declares keys that VMs and policies share, all optional.
macro_rules! shared_keys {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $name:ident {
            $( $(#[doc = $doc:literal])+ $key:ident : $type:ty ),* $(,)?
        }
    ) => {
        $crate::toml_read::table::table! {
            $(#[doc = $about])+
            $vis struct $name {
                $( $(#[doc = $doc])+ $key: Option<$crate::toml_read::At<$type>>, )*
            }
        }

        impl $name {
            /// All keys.
            pub(crate) const KEYS: &[&str] = &[$( stringify!($key) ),*];

            /// These keys, and what they lack from `under`.
            pub(crate) fn over(self, under: Self) -> Self {
                Self { $( $key: self.$key.or(under.$key), )* }
            }

            /// The keys that are written, and where.
            pub(crate) fn given(&self) -> Vec<(&'static str, $crate::diagnostic::Span)> {
                let all = [$( (stringify!($key), self.$key.as_ref().map(|at| at.span)) ),*];
                all.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
            }
        }
    };
}
use shared_keys;

choice! {
    /// Defaults of the host's KVM.
    pub(crate) enum KvmKind {
        /// As KVM of Linux 6.18 on a CPU with APICv: posted interrupts, the fast path of exits, the VMX
        /// preemption timer (where the profile's CPU has one), deadlines advanced adaptively, polling for
        /// halted vCPUs for up to 200us, and IPIs by a hypercall or a shorthand, as its Linux guests send them.
        Stock = "stock",
    }
}

shared_keys! {
    /// KVM as a whole.
    pub(crate) struct KvmKeys {
        /// Defaults of the host's KVM: `stock` is Linux 6.18 on a CPU with APICv
        /// (simulated only). That is apicv = true, exit_fastpath = true, timer = "hv-timer" (an hrtimer where the
        /// profile's CPU has no preemption timer), timer_advance = "adaptive", halt_poll = "200us", ipi = "pv" and
        /// ipi_shorthand = true. Each can be set by its own key as well. With AMD's AVIC, KVM virtualises IPIs, too:
        /// add ipi = "posted". What else a guest takes up depends on `hints`: write hints = "shared" for a VM as by
        /// default. Default: nothing of these.
        kvm: KvmKind,
    }
}

impl KvmKeys {
    fn apply(&self, virt: &mut Virt) {
        let Some(At { value: KvmKind::Stock, .. }) = &self.kvm else { return };
        virt.apic = ApicVirt { posted: true, fastpath: true, ..ApicVirt::default() };
        virt.timer.source = Some(GuestTimer::HvTimer);
        virt.timer.advance = AdvanceConfig::Adaptive;
        virt.idle.host_poll = Some(HostPollConfig::KVM);
        virt.ipi.path = IpiPath::Pv;
        virt.ipi.shorthand = true;
    }
}

choice! {
    /// An instruction that need not exit.
    pub(crate) enum ExitKind {
        /// HLT: an idle vCPU keeps its pCPU, which the host sees busy.
        Hlt = "hlt",
        /// MWAIT. A guest has this instruction only if it does not exit.
        Mwait = "mwait",
        /// PAUSE.
        Pause = "pause",
        /// Reads of the C-state residency counters.
        Cstate = "cstate",
    }
}

shared_keys! {
    /// Exits of a VM.
    pub(crate) struct ExitKeys {
        /// APICv. True: posted interrupts, and an interrupt's end without an exit. False: neither, and
        /// an exit each time a guest becomes able to take an interrupt that waits. Default: no posted
        /// interrupts, and a paravirtual EOI, which does not exit.
        apicv: bool,
        /// Interrupts reach a running guest without an exit. Default: false, or as `apicv` says.
        posted_interrupts: bool,
        /// Writes of the TSC deadline and of the ICR take KVM's fast path. With ipi = "cluster" those of
        /// the ICR do not: KVM's fast path leaves out the logical mode. Default: false.
        exit_fastpath: bool,
        /// Instructions that do not exit (`KVM_CAP_X86_DISABLE_EXITS`), of "hlt", "mwait", "pause",
        /// "cstate". Default: none.
        disable_exits: Vec<At<ExitKind>>,
    }
}

/// Declares all groups of keys once.
macro_rules! groups {
    ($( $group:ident: $keys:ty ),+ $(,)?) => {
        /// Everything about virtualisation that a VM or a policy can say.
        #[derive(Clone, Debug)]
        pub(crate) struct VirtKeys { $( pub(crate) $group: Flat<$keys>, )+ }

        impl Table for VirtKeys {
            const ABOUT: &'static str = "How a VM is virtualised.";

            fn read_fields(reader: &mut Reader<'_, '_, '_>) -> Option<Self> {
                $( let $group = reader.field::<Flat<$keys>>(stringify!($group), ""); )+
                Some(Self { $( $group: $group?, )+ })
            }

            fn describe(schema: &mut TableSchema<'_>) {
                $( schema.field::<Flat<$keys>>(stringify!($group), "", ""); )+
            }
        }

        impl schemars::JsonSchema for VirtKeys {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                "VirtKeys".into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> schemars::Schema {
                let mut schema = TableSchema::new(generator);
                Self::describe(&mut schema);
                schema.finish(Self::ABOUT)
            }
        }

        impl VirtKeys {
            /// These keys, and what they lack from `under`.
            pub(crate) fn over(self, under: Self) -> Self {
                Self { $( $group: Flat(self.$group.0.over(under.$group.0)), )+ }
            }

            /// The keys that are written, and where.
            pub(crate) fn given(&self) -> Vec<(&'static str, Span)> {
                let mut all = Vec::new();
                $( all.extend(self.$group.0.given()); )+
                all
            }

            /// Whether this is one of the keys.
            pub(crate) fn has(key: &str) -> bool {
                [$( <$keys>::KEYS ),+].concat().contains(&key)
            }

            /// Puts what is written over what there is.
            pub(crate) fn apply(&self, virt: &mut Virt) {
                $( self.$group.0.apply(virt); )+
            }
        }
    };
}
// KVM as a whole and a hint say several things at once: keys of one of them are put over them.
groups! {
    kvm: KvmKeys, timer: TimerKeys, exits: ExitKeys, hints: HintKeys, idle: IdleKeys, spin: SpinKeys,
    govern: GovernKeys
}

/// Puts a value where it belongs, if it is written.
fn set<T, U>(key: &Option<At<T>>, to: &mut U, value: impl Fn(&T) -> U) {
    if let Some(key) = key {
        *to = value(&key.value);
    }
}

impl ExitKeys {
    fn apply(&self, virt: &mut Virt) {
        if let Some(apicv) = &self.apicv {
            virt.apic.posted = apicv.value;
            virt.apic.eoi_exits = !apicv.value;
            virt.apic.window_exits = !apicv.value;
        }
        set(&self.posted_interrupts, &mut virt.apic.posted, |on| *on);
        set(&self.exit_fastpath, &mut virt.apic.fastpath, |on| *on);
        if let Some(list) = &self.disable_exits {
            let off = |kind| list.value.iter().any(|at| at.value == kind);
            virt.exits_off.hlt = off(ExitKind::Hlt);
            virt.exits_off.mwait = off(ExitKind::Mwait);
            virt.exits_off.pause = off(ExitKind::Pause);
            virt.exits_off.cstate = off(ExitKind::Cstate);
        }
    }
}

impl VirtKeys {
    /// Whether a housekeeping CPU posts the timers.
    pub(crate) fn is_posted(&self) -> bool {
        self.timer.0.timer.as_ref().is_some_and(|timer| timer.value == GuestTimer::Posted)
    }
}
