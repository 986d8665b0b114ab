//! How VMs are virtualised.
//!
//! A VM's keys override the defaults, and a policy's override the VM's, key by key: so a table of policies can add
//! mechanisms one by one. The result must be something that KVM can have.

use std::collections::BTreeMap;

use vcoop_policy::config::AdvanceConfig;
use vcoop_policy::govern::{INTERVAL_MAX_NS, INTERVAL_MIN_NS};

use super::expand::{Place, check_cpus};
use super::keys::VmKeys;
use super::keys::sched::ClassKind;
use super::keys::virt::VirtKeys;
use super::keys::workload::Kind;
use crate::diagnostic::{Collector, Span};
use crate::plan::VmPlan;
use crate::plan::virt::{
    GuestIdle, GuestTimer, IpiPath, PreemptedReport, SpinLocks, TimerMode, Virt,
};
use crate::profile::Cpu;
use crate::toml_read::units::show;

/// A combination that is impossible: its keys (the first written one is blamed), what is wrong, and the remedy.
struct Conflict {
    keys: &'static [&'static str],
    message: &'static str,
    help: &'static str,
}

/// Combinations that KVM cannot have, or that cannot be simulated on a machine whose `cpu` is not known.
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
        virt.ipi.path == IpiPath::Posted && virt.apic.eoi_exits,
        &["ipi", "apicv"],
        "IPI virtualisation is a part of APICv, which is off",
        "set another `ipi`, or apicv = true",
    );
    refuse(
        virt.idle.guest == GuestIdle::Mwait && !virt.exits_off.mwait,
        &["guest_idle", "disable_exits"],
        "KVM offers MWAIT to a guest only where it does not exit",
        "add disable_exits = [\"mwait\"]",
    );
    refuse(
        virt.idle.host_polls().fixed && virt.idle.host_polls().max_ns == 0,
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
        &["timer", "kvm"],
        "the profile does not say what this machine's preemption timer is",
        "take another profile, or add [cpu] to it",
    );
    refuse(
        timer.advance == AdvanceConfig::Adaptive && cpu.is_none(),
        &["timer_advance", "kvm"],
        "KVM's bounds are in cycles, and the profile does not say how long they are",
        "take another profile, or add [cpu] to it",
    );
    found
}

/// Refuses impossible combinations in a VM with the keys `own`, under a policy with the keys `over`.
fn refuse(
    virt: &Virt,
    own: &VirtKeys,
    over: Option<&VirtKeys>,
    vm: &VmKeys,
    cpu: Option<Cpu>,
    errors: &Collector,
) {
    let of_policy = over.map(VirtKeys::given).unwrap_or_default();
    let written: BTreeMap<&str, Span> = own.given().into_iter().chain(of_policy).collect();
    for Conflict { keys, message, help } in conflicts(virt, cpu) {
        let place = keys.iter().find_map(|key| written.get(key)).copied().unwrap_or(vm.name.span);
        errors.error_help(place, message, help);
    }
    let mut kinds = vm.task.iter().map(|task| &task.0.kind);
    if virt.timer.mode == TimerMode::Periodic
        && let Some(at) = written.get("timer_mode")
        && kinds.any(|kind| matches!(kind, Kind::TimerBench(_)))
    {
        let message = "the guest has no timer but its tick, and `timer-bench` measures deadlines";
        errors.error_help(*at, message, "set another `timer_mode`, or take out that task");
    }
    refuse_hv_timer(virt, own, over, cpu, errors);
    let vcpus = vm.vcpus.value.get32();
    // For a policy without this key the error was reported at the VM.
    if over.is_none_or(|over| over.nohz_full.is_some())
        && let Some(at) = written.get("nohz_full")
    {
        check_nohz(&virt.nohz_full, *at, Place { cpus: vcpus, guest: true }, errors);
    }
    refuse_governor(virt, vcpus, &written, errors);
}

/// Refuses `timer = "hv-timer"` on a machine whose CPU has no preemption timer. KVM would use an hrtimer, and the timer
/// asked for would be compared under a name that is not its own. `kvm = "stock"` asks for what the machine has.
fn refuse_hv_timer(
    virt: &Virt,
    own: &VirtKeys,
    over: Option<&VirtKeys>,
    cpu: Option<Cpu>,
    errors: &Collector,
) {
    // Under a policy that says nothing of it, it has been said of the VM.
    let asked = over.unwrap_or(own).timer.as_ref();
    let none = cpu.is_some_and(|cpu| cpu.preemption_timer_shift.is_none());
    if let Some(asked) = asked
        && virt.timer.source == Some(GuestTimer::HvTimer)
        && none
    {
        let message = "the profile's CPU has no VMX preemption timer";
        errors.error_help(asked.span, message, "set timer = \"hrtimer\", which KVM uses there");
    }
}

/// Refuses full-nohz CPUs that the level does not have, and a list of all its CPUs.
pub(crate) fn check_nohz(cpus: &[u32], at: Span, place: Place, errors: &Collector) {
    check_cpus(cpus, at, place, errors);
    if cpus.len() as u64 >= u64::from(place.cpus) {
        let help = "leave out one of them";
        errors.error_help(at, "one CPU has to keep the time for the others", help);
    }
}

/// A VM by its own keys.
pub(crate) fn resolve(vm: &VmKeys, class: ClassKind, cpu: Option<Cpu>, errors: &Collector) -> Virt {
    let mut virt = Virt::default();
    if class == ClassKind::PowerVm {
        virt.spin.locks = SpinLocks::Confer;
        virt.spin.told = PreemptedReport::Core;
    }
    vm.virt.0.apply(&mut virt);
    refuse(&virt, &vm.virt.0, None, vm, cpu, errors);
    virt
}

/// Refuses combinations of policies and VMs that KVM cannot have. `plans`: the VMs by their own keys.
pub(crate) fn check_policies<'p>(
    vms: &[VmKeys],
    plans: &[VmPlan],
    policies: impl Iterator<Item = &'p VirtKeys>,
    cpu: Option<Cpu>,
    errors: &Collector,
) {
    for policy in policies.filter(|policy| !policy.given().is_empty()) {
        for vm in vms {
            let plan = plans.iter().find(|plan| plan.label == vm.name.value.0);
            let Some(mut virt) = plan.map(|plan| plan.virt.clone()) else { continue };
            // Errors that do not depend on the policy were reported before.
            if conflicts(&virt, cpu).is_empty() {
                policy.apply(&mut virt);
                refuse(&virt, &vm.virt.0, Some(policy), vm, cpu, errors);
            }
        }
    }
}

/// Refuses timers that a housekeeping CPU posts, on a host without one.
pub(crate) fn refuse_posted<'k>(all: impl Iterator<Item = &'k VirtKeys>, errors: &Collector) {
    for timer in all.filter(|keys| keys.is_posted()).filter_map(|keys| keys.timer.as_ref()) {
        let message = "no pCPU is kept for housekeeping, which would fire these timers";
        errors.error_help(timer.span, message, "pin vCPUs so that one pCPU has none");
    }
}

/// Refuses KVM's mechanisms on Xen and PowerVM, whose own are not modelled: there a guest has the default timer and
/// interrupts, or posted interrupts. Guests of PowerVM have governors.
pub(crate) fn refuse_foreign(keys: &VirtKeys, has: ClassKind, errors: &Collector) {
    let of_all = ["timer", "posted_interrupts"];
    let of_power =
        ["governor", "takes_part", "steal_", "entitled", "hotplug", "guest_balance", "spinlocks"];
    let powers = |key: &str| {
        has == ClassKind::PowerVm && of_power.iter().any(|start| key.starts_with(start))
    };
    for (key, span) in keys.given() {
        if !of_all.contains(&key) && !powers(key) {
            ClassKind::Linux.only(has, key, span, errors);
        }
    }
    if let Some(locks) = &keys.spinlocks {
        let named = format!("spinlocks = \"{}\"", locks.value.name());
        match locks.value {
            SpinLocks::Queued => {}
            SpinLocks::Confer => ClassKind::PowerVm.only(has, &named, locks.span, errors),
            _ if has == ClassKind::PowerVm => {
                ClassKind::Linux.only(has, &named, locks.span, errors);
            }
            _ => {}
        }
    }
    if let Some(told) =
        keys.preempted_flag.as_ref().filter(|told| told.value == PreemptedReport::Core)
    {
        ClassKind::PowerVm.only(has, "preempted_flag = \"core\"", told.span, errors);
    }
    if let Some(timer) = &keys.timer {
        let named = match timer.value {
            GuestTimer::HvTimer => "timer = \"hv-timer\"",
            GuestTimer::Posted => "timer = \"posted\"",
            GuestTimer::Exitless => "timer = \"exitless\"",
            GuestTimer::Lapic | GuestTimer::Hrtimer => return,
        };
        ClassKind::Linux.only(has, named, timer.span, errors);
    }
}

/// Refuses an impossible governor in a VM of `vcpus` vCPUs. `written`: the keys and their places.
fn refuse_governor(virt: &Virt, vcpus: u32, written: &BTreeMap<&str, Span>, errors: &Collector) {
    let refuse = |keys: &[&str], message: String, help: String| {
        // A default is not refused.
        if let Some(at) = keys.iter().find_map(|key| written.get(key)) {
            errors.error_help(*at, message, help);
        }
    };
    let govern = &virt.govern;
    if let Some(interval) = govern.interval_ns
        && !(INTERVAL_MIN_NS..=INTERVAL_MAX_NS).contains(&interval)
    {
        let message = format!("a governor cannot look every {}", show(interval));
        let help = format!("{} to {}", show(INTERVAL_MIN_NS), show(INTERVAL_MAX_NS));
        refuse(&["governor_interval"], message, help);
    }
    if let Some(config) = govern.config(1)
        && config.low_bp >= config.high_bp
    {
        let percent = |bp: u32| format!("{}.{:02}%", bp / 100, bp % 100);
        let (low, high) = (percent(config.low_bp), percent(config.high_bp));
        let message = format!("`steal_low` ({low}) is not below `steal_high` ({high})");
        let help = "between them nothing changes: without a gap it would always".to_owned();
        refuse(&["steal_low", "steal_high"], message, help);
    }
    if let Some(floor) = govern.floor.filter(|floor| *floor > vcpus) {
        let message = format!("a floor of {floor} for {vcpus} vCPUs");
        refuse(&["governor_floor"], message, format!("1 to {vcpus}"));
    }
    if let Some(entitled) = govern.entitled.filter(|entitled| *entitled > vcpus) {
        let message = format!("entitled to {entitled} pCPUs with {vcpus} vCPUs");
        refuse(&["entitled"], message, format!("1 to {vcpus}"));
    }
}

/// Refuses entitlements that exceed the host together.
pub(crate) fn check_capacity(vms: &[VmKeys], plans: &[VmPlan], pcpus: u32, errors: &Collector) {
    let entitled = |plan: &VmPlan| u64::from(plan.virt.govern.entitled.unwrap_or(0));
    let all: u64 = plans.iter().map(entitled).sum();
    if all > u64::from(pcpus) {
        let last = vms.iter().rev().find_map(|vm| vm.virt.0.entitled.as_ref());
        if let Some(key) = last {
            let message = format!("VMs are entitled to {all} pCPUs of {pcpus}");
            let help = format!("all together at most {pcpus}");
            errors.error_help(key.span, message, help);
        }
    }
}
