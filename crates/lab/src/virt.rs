//! Virtualisation of a VM on real vCPUs, as far as user space controls it.
//!
//! | of the plan | here |
//! | --- | --- |
//! | who fires deadlines, how early | KVM, or the injector with an advance that is fixed or learned |
//! | exits off | `KVM_CAP_X86_DISABLE_EXITS`, what this KVM offers of them |
//! | host halt polling | its cap, by `KVM_CAP_HALT_POLL`, if the plan has one; how it adapts is the module's |
//! | guest's idle loop | HLT, polling, haltpoll |
//! | hint `dedicated` | `KVM_HINTS_REALTIME` in CPUID: the guest polls because it finds it there |
//! | IPIs | one ICR write each, or (`pv`) one exit to user space for several, which injects them; to all others by a shorthand |
//! | all else | as this host's KVM has it; a plan that asks for it is refused |

use kvm_bindings::{
    KVM_CAP_HALT_POLL, KVM_CAP_X86_DISABLE_EXITS, KVM_X86_DISABLE_EXITS_CSTATE,
    KVM_X86_DISABLE_EXITS_HLT, KVM_X86_DISABLE_EXITS_MWAIT, KVM_X86_DISABLE_EXITS_PAUSE,
};
use kvm_ioctls::Kvm;
use vcoop_guest::layout::IdlePoll;
use vcoop_model::Missing;
use vcoop_model::plan::virt::{ExitsOff, GuestIdle, IpiPath};
use vcoop_model::plan::{GuestTimer, Plan, PolicyPlan, Virt, VmPlan};
use vcoop_policy::TimerAdvance;
use vcoop_policy::config::{AdvanceConfig, HostPollConfig, MOST_INJECTOR_ADVANCE_NS};
use vcoop_threads::tsc::Clock;

use crate::Options;
use crate::error::Error;

/// Whether the lab can virtualise a VM as the plan says.
///
/// # Errors
///
/// [`Error::Unsupported`], with the reason; [`Error::PolicyMissing`] for what another KVM may have.
pub(crate) fn check(kvm: &Kvm, plan: &Plan, vm: &VmPlan) -> Result<(), Error> {
    let refuse = |what: String, why: &str| Err(Error::unsupported(what, why));
    let mut plain = Virt::default();
    plain.timer.source = vm.virt.timer.source;
    plain.timer.advance = vm.virt.timer.advance;
    // Nothing in the lab asks for it, and nothing forbids it.
    plain.apic.posted = vm.virt.apic.posted;
    plain.exits_off = vm.virt.exits_off;
    plain.idle = vm.virt.idle;
    plain.dedicated = vm.virt.dedicated;
    (plain.ipi.path, plain.ipi.shorthand) = (vm.virt.ipi.path, vm.virt.ipi.shorthand);
    if matches!(vm.virt.ipi.path, IpiPath::Cluster | IpiPath::Posted) {
        let why = "the lab's guest writes one target at a time, and KVM decides whether that exits: \
                   \"icr\" or \"pv\"";
        return refuse(format!("ipi of VM {}", vm.name), why);
    }
    if vm.virt.govern.config(1).is_some() && vm.virt.govern.means.hotplug {
        let why = "the lab's guest has no CPU hotplug";
        return refuse(format!("the governor of VM {}", vm.name), why);
    }
    plain.govern = vm.virt.govern.clone();
    if vm.virt.timer.skew_ppm > 0 {
        let why = "the lab's guests read the host's clock";
        return refuse(format!("clock_skew of VM {}", vm.name), why);
    }
    if vm.virt.charges_steal {
        let why = "the lab's guest is no Linux, and has slices by the clock";
        return refuse(format!("paravirt_time_accounting of VM {}", vm.name), why);
    }
    if vm.virt != plain {
        return refuse(format!("how VM {} is virtualised", vm.name), "KVM decides it here");
    }
    if matches!(
        vm.virt.timer.source,
        Some(GuestTimer::HvTimer | GuestTimer::Hrtimer | GuestTimer::Posted)
    ) {
        let why = "KVM chooses what its timer stands on: write timer = \"lapic\"";
        return refuse(format!("the timer of VM {}", vm.name), why);
    }
    if vm.virt.timer.advance != AdvanceConfig::None && !is_exitless(plan, vm) {
        let why = "KVM advances its own timer as its module is told: lapic_timer_advance_ns";
        return refuse(format!("timer_advance of VM {}", vm.name), why);
    }
    if vm.virt.idle.guest == GuestIdle::Mwait {
        let why = "the lab's guest has no MWAIT";
        return refuse(format!("the idle loop of VM {}", vm.name), why);
    }
    let missing = |what: String, remedy: &str| {
        let missing = Missing { what, remedy: remedy.to_owned() };
        Err(Error::PolicyMissing { policy: plan.policy_name.clone(), missing })
    };
    let host = vm.virt.idle.host_polls();
    if (HostPollConfig { max_ns: 0, ..host }) != HostPollConfig::OFF {
        let why = "how KVM's polling adapts is told to its module: halt_poll_ns_grow and others";
        return refuse(format!("halt polling of VM {}", vm.name), why);
    }
    if says_how_to_poll(vm) && kvm.check_extension_raw(KVM_CAP_HALT_POLL.into()) == 0 {
        return missing("a VM's own halt polling".to_owned(), "use Linux 5.10 or later");
    }
    let offered = kvm.check_extension_raw(KVM_CAP_X86_DISABLE_EXITS.into());
    let absent = EXITS.iter().filter(|(bit, ..)| offered as u32 & bit == 0);
    let absent: Vec<&str> =
        absent.filter(|(.., of)| of(&vm.virt.exits_off)).map(|(_, name, _)| *name).collect();
    if !absent.is_empty() {
        let what = format!("this KVM cannot keep {} from exiting", absent.join(", "));
        return missing(what, "measure on a host whose KVM and CPU can");
    }
    Ok(())
}

/// Whether KVM is told how long to poll for halted vCPUs of a VM. A guest that polls by haltpoll wants no polling by
/// the host; Linux says so by an MSR, the lab's VMM for its guest.
pub(crate) fn says_how_to_poll(vm: &VmPlan) -> bool {
    vm.virt.idle.host_poll.is_some() || vm.virt.idle.guest == GuestIdle::Haltpoll
}

/// Exits that can be off, by KVM's bit.
type Exit = (u32, &'static str, fn(&ExitsOff) -> bool);

const EXITS: [Exit; 4] = [
    (KVM_X86_DISABLE_EXITS_MWAIT, "mwait", |off| off.mwait),
    (KVM_X86_DISABLE_EXITS_HLT, "hlt", |off| off.hlt),
    (KVM_X86_DISABLE_EXITS_PAUSE, "pause", |off| off.pause),
    (KVM_X86_DISABLE_EXITS_CSTATE, "cstate", |off| off.cstate),
];

/// The argument of `KVM_CAP_X86_DISABLE_EXITS`; 0: nothing to disable.
pub(crate) fn exits_off(vm: &VmPlan) -> u32 {
    EXITS.iter().filter(|(.., of)| of(&vm.virt.exits_off)).map(|(bit, ..)| bit).sum()
}

/// What the guest's idle loop does.
pub(crate) fn idle_poll(vm: &VmPlan, clock: &Clock) -> IdlePoll {
    let poll = vm.virt.idle.guest_poll;
    match vm.virt.idle.guest {
        GuestIdle::Hlt | GuestIdle::Mwait => IdlePoll::NEVER,
        GuestIdle::Poll => IdlePoll::ALWAYS,
        GuestIdle::Haltpoll => IdlePoll {
            max_tsc: clock.to_cycles(poll.max_ns),
            grow: poll.grow.into(),
            grow_start_tsc: clock.to_cycles(poll.grow_start_ns),
            shrink: poll.shrink.into(),
            allow_shrink: poll.allow_shrink.into(),
        },
    }
}

/// How early the injector fires a VM's deadlines. By default it learns under policies that boost, and is not early
/// under others.
pub(crate) fn advance(plan: &Plan, vm: &VmPlan, options: &Options) -> TimerAdvance {
    let boosts = matches!(plan.policy, PolicyPlan::Dynamic(_) | PolicyPlan::WakeBoost(_));
    let config = match (options.advance_ns, vm.virt.timer.advance) {
        (Some(ns), _) | (None, AdvanceConfig::Fixed(ns)) => {
            AdvanceConfig::Fixed(ns.min(MOST_INJECTOR_ADVANCE_NS))
        }
        (None, AdvanceConfig::Adaptive) => AdvanceConfig::INJECTOR,
        (None, AdvanceConfig::None) if boosts => AdvanceConfig::INJECTOR,
        (None, other) => other,
    };
    // Its bounds are times.
    TimerAdvance::new(config, 0)
}

/// Whether the injector fires the VM's deadlines: by default under policies that boost, because only the injector can
/// boost together with the interrupt.
pub(crate) fn is_exitless(plan: &Plan, vm: &VmPlan) -> bool {
    vm.virt.timer.source.map_or(plan.policy.boosts(), |timer| timer == GuestTimer::Exitless)
}
