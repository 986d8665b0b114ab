//! How VMs are virtualised: keys of `[[vm]]`, and of `[policy.NAME]` for all VMs.
//!
//! A VM's keys are put over the defaults, and a policy's over the VM's, key by key: a table of
//! policies can so add mechanisms one by one. What the keys of both say together must be something
//! that KVM can have.

mod govern;
mod idle;
mod spin;
mod timer;

use std::collections::BTreeMap;

use schemars::SchemaGenerator;
use vcoop_policy::config::AdvanceConfig;

use super::expand::{Place, check_cpus};
use super::keys::VmKeys;
use super::sched::ClassKind;
use crate::diagnostic::{Collector, Span};
use crate::plan::VmPlan;
use crate::plan::virt::{Candidates, GuestIdle, GuestTimer, TimerMode, Virt};
use crate::profile::Cpu;
use crate::toml_read::table::{Flat, Table};
use crate::toml_read::value::choice;
use crate::toml_read::{At, Reader, TableSchema};
use govern::GovernKeys;
pub(crate) use govern::check_capacity;
use idle::IdleKeys;
use spin::{HintKeys, SpinKeys};
use timer::{TimerKeys, TimerKind};

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
    /// An instruction that need not exit.
    pub(crate) enum ExitKind {
        /// HLT: an idle vCPU keeps its pCPU, which the host sees busy.
        Hlt = "hlt",
        /// MWAIT, which a guest has only so.
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

            /// Puts what is written over what there is.
            pub(crate) fn apply(&self, virt: &mut Virt) {
                $( self.$group.0.apply(virt); )+
            }
        }
    };
}
// A hint says several things at once: keys of one of them are put over it.
groups! {
    timer: TimerKeys, exits: ExitKeys, hints: HintKeys, idle: IdleKeys, spin: SpinKeys,
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

/// What cannot be together: the keys that say it (the first that is written is blamed), what is
/// wrong, and what to do.
struct Conflict {
    keys: &'static [&'static str],
    message: &'static str,
    help: &'static str,
}

/// What KVM cannot have, and what cannot be simulated on a machine whose `cpu` is not known.
fn conflicts(virt: &Virt, cpu: Option<Cpu>) -> Vec<Conflict> {
    let mut found = Vec::new();
    let mut refuse = |wrong: bool, keys, message, help| {
        if wrong {
            found.push(Conflict { keys, message, help });
        }
    };
    let timer = &virt.timer;
    refuse(
        virt.apic.posted && virt.apic.eoi_exits,
        &["posted_interrupts", "apicv"],
        "posted interrupts are a part of APICv, which is off",
        "take `posted_interrupts` out, or set apicv = true",
    );
    refuse(
        virt.idle.guest == GuestIdle::Mwait && !virt.exits_off.mwait,
        &["guest_idle", "disable_exits"],
        "KVM offers MWAIT to a guest only where it does not exit",
        "add disable_exits = [\"mwait\"]",
    );
    refuse(
        virt.spin.candidates.queue_heads && !virt.spin.pv_locks,
        &["yield_queue_heads"],
        "only paravirtual spinlocks tell the host who is next in line",
        "set spinlocks = \"pv\"",
    );
    refuse(
        virt.spin.candidates != Candidates::default()
            && virt.exits_off.pause
            && !virt.spin.candidates.queue_heads,
        &["yield_in_kernel", "yield_interrupted"],
        "a PAUSE loop that does not exit yields to nobody",
        "take \"pause\" out of `disable_exits`",
    );
    refuse(
        virt.idle.host_poll.fixed && virt.idle.host_poll.max_ns == 0,
        &["halt_poll_fixed"],
        "how long it polls is not said",
        "set `halt_poll`",
    );
    refuse(
        timer.arm_sw_on_preempt && timer.source != Some(GuestTimer::HvTimer),
        &["arm_sw_on_preempt", "timer"],
        "only the preemption timer needs something to stand in for it",
        "set timer = \"hv-timer\"",
    );
    refuse(
        timer.mode != TimerMode::TscDeadline && timer.source == Some(GuestTimer::Exitless),
        &["timer_mode", "timer"],
        "the shared page holds TSC deadlines and nothing else",
        "set timer_mode = \"tsc-deadline\", or another timer",
    );
    refuse(
        !virt.nohz_full.is_empty() && timer.mode == TimerMode::Periodic,
        &["nohz_full", "timer_mode"],
        "a periodic timer never stops",
        "take out `nohz_full`, or set timer_mode = \"tsc-deadline\"",
    );
    refuse(
        timer.source == Some(GuestTimer::Posted) && !virt.apic.posted,
        &["timer"],
        "a timer interrupt is posted where interrupts are",
        "set apicv = true, or another timer",
    );
    refuse(
        timer.source == Some(GuestTimer::Posted) && !virt.exits_off.hlt && !virt.exits_off.mwait,
        &["timer"],
        "KVM posts timer interrupts only to guests whose HLT or MWAIT does not exit",
        "add disable_exits = [\"hlt\"]",
    );
    refuse(
        timer.source == Some(GuestTimer::HvTimer) && cpu.is_none(),
        &["timer"],
        "the profile does not say what this machine's preemption timer is",
        "take another profile, or add [cpu] to it",
    );
    refuse(
        timer.advance == AdvanceConfig::Adaptive && cpu.is_none(),
        &["timer_advance"],
        "KVM's bounds are in cycles, and the profile does not say how long they are",
        "take another profile, or add [cpu] to it",
    );
    found
}

/// Refuses what cannot be together in a VM whose keys are `own`, under a policy whose keys are
/// `over`.
fn refuse(
    virt: &Virt,
    own: &VirtKeys,
    over: Option<&VirtKeys>,
    vm: &VmKeys,
    cpu: Option<Cpu>,
    errors: &mut Collector<'_>,
) {
    let of_policy = over.map(VirtKeys::given).unwrap_or_default();
    let written: BTreeMap<&str, Span> = own.given().into_iter().chain(of_policy).collect();
    for Conflict { keys, message, help } in conflicts(virt, cpu) {
        let place = keys.iter().find_map(|key| written.get(key)).copied().unwrap_or(vm.name.span);
        errors.error_help(place, message, help);
    }
    if virt.idle.host_poll.fixed {
        let adapts = ["halt_poll_grow", "halt_poll_grow_start", "halt_poll_shrink"];
        for (key, at) in adapts.iter().filter_map(|key| Some((key, written.get(key)?))) {
            let message = format!("a fixed poll does not adapt: `{key}` has no effect");
            errors.error_help(*at, message, "take it out, or `halt_poll_fixed`");
        }
    }
    let vcpus = vm.vcpus.value.get32();
    // Under a policy that says nothing of it, it has been said of the VM.
    if over.is_none_or(|over| over.timer.0.nohz_full.is_some())
        && let Some(at) = written.get("nohz_full")
    {
        check_nohz(&virt.nohz_full, *at, Place { cpus: vcpus, guest: true }, errors);
    }
    govern::refuse(virt, vcpus, &written, errors);
}

/// Refuses full-nohz CPUs that the level does not have, and all of them.
pub(crate) fn check_nohz(cpus: &[u32], at: Span, place: Place, errors: &mut Collector<'_>) {
    check_cpus(cpus, at, place, errors);
    if cpus.len() as u64 >= u64::from(place.cpus) {
        let help = "leave out one of them";
        errors.error_help(at, "one CPU has to keep the time for the others", help);
    }
}

/// A VM by its own keys.
pub(crate) fn resolve(vm: &VmKeys, cpu: Option<Cpu>, errors: &mut Collector<'_>) -> Virt {
    let mut virt = Virt::default();
    vm.virt.0.apply(&mut virt);
    refuse(&virt, &vm.virt.0, None, vm, cpu, errors);
    virt
}

/// Refuses what policies make of VMs that KVM cannot have; `plans` are the VMs as their own keys have
/// them.
pub(crate) fn check_policies<'p>(
    vms: &[VmKeys],
    plans: &[VmPlan],
    policies: impl Iterator<Item = &'p VirtKeys>,
    cpu: Option<Cpu>,
    errors: &mut Collector<'_>,
) {
    for policy in policies.filter(|policy| !policy.given().is_empty()) {
        for vm in vms {
            let plan = plans.iter().find(|plan| plan.label == vm.name.value.0);
            let Some(mut virt) = plan.map(|plan| plan.virt.clone()) else { continue };
            // What is wrong without the policy has been said.
            if conflicts(&virt, cpu).is_empty() {
                policy.apply(&mut virt);
                refuse(&virt, &vm.virt.0, Some(policy), vm, cpu, errors);
            }
        }
    }
}

/// Whether a housekeeping CPU posts the timers.
pub(crate) fn is_posted(keys: &VirtKeys) -> bool {
    keys.timer.0.timer.as_ref().is_some_and(|timer| timer.value == TimerKind::Posted)
}

/// Refuses timers that a housekeeping CPU posts, on a host that has none.
pub(crate) fn refuse_posted<'k>(
    all: impl Iterator<Item = &'k VirtKeys>,
    errors: &mut Collector<'_>,
) {
    for timer in all.filter(|keys| is_posted(keys)).filter_map(|keys| keys.timer.0.timer.as_ref()) {
        let message = "no pCPU is kept for housekeeping, which would fire these timers";
        errors.error_help(timer.span, message, "pin vCPUs so that one pCPU has none");
    }
}

/// Xen and PowerVM have other mechanisms than KVM, which are not modelled: there a guest's timer and
/// interrupts are as by default, or as with posted interrupts. Guests of PowerVM have governors.
pub(crate) fn refuse_foreign(keys: &VirtKeys, has: ClassKind, errors: &mut Collector<'_>) {
    let governs: Vec<&str> = match has {
        ClassKind::PowerVm => keys.govern.0.given().into_iter().map(|(key, _)| key).collect(),
        ClassKind::Linux | ClassKind::Credit1 => Vec::new(),
    };
    for (key, span) in keys.given() {
        if !matches!(key, "timer" | "posted_interrupts") && !governs.contains(&key) {
            ClassKind::Linux.only(has, key, span, errors);
        }
    }
    if let Some(timer) = &keys.timer.0.timer {
        let named = match timer.value {
            TimerKind::HvTimer => "timer = \"hv-timer\"",
            TimerKind::Posted => "timer = \"posted\"",
            TimerKind::Lapic | TimerKind::Hrtimer | TimerKind::Exitless => return,
        };
        ClassKind::Linux.only(has, named, timer.span, errors);
    }
}
