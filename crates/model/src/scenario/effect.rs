//! Keys about how VMs are virtualised that have no effect beside the others.
//!
//! A VM may say how long it polls, and only one of the policies that it does poll. The key then has an effect under
//! this policy. The same holds for a cell of the matrix. A key is refused if it has no effect under any policy and
//! in any cell.

use std::collections::{BTreeMap, BTreeSet};

use vcoop_policy::config::{AdvanceConfig, GuestPollConfig, HostPollConfig};

use super::keys::VmKeys;
use super::keys::virt::VirtKeys;
use crate::diagnostic::{Collector, Span};
use crate::plan::VmPlan;
use crate::plan::virt::{GuestIdle, GuestTimer, SpinVirt, TimerMode, Virt};

/// What is wrong, and what to do.
type Reason = (&'static str, &'static str);

/// Keys without effect, and why. A key with the value that holds without it is not one of them: `--set` cannot remove a
/// key of a file.
fn without(virt: &Virt) -> BTreeMap<&'static str, Reason> {
    let mut found = BTreeMap::new();
    let mut idle = |wrong: bool, keys: &[(&'static str, bool)], reason: Reason| {
        let said = keys.iter().filter(|(_, said)| wrong && *said);
        found.extend(said.map(|(key, _)| (*key, reason)));
    };
    let (guest, usual) = (virt.idle.guest_poll, GuestPollConfig::LINUX);
    idle(
        virt.idle.guest != GuestIdle::Haltpoll,
        &[
            ("guest_halt_poll", guest.max_ns != usual.max_ns),
            ("guest_halt_poll_grow", guest.grow != usual.grow),
            ("guest_halt_poll_grow_start", guest.grow_start_ns != usual.grow_start_ns),
            ("guest_halt_poll_shrink", guest.shrink != usual.shrink),
            ("guest_halt_poll_allow_shrink", guest.allow_shrink != usual.allow_shrink),
        ],
        ("the guest does not poll before it halts", "set guest_idle = \"haltpoll\""),
    );
    let (host, usual) = (virt.idle.host_polls(), HostPollConfig::OFF);
    idle(
        virt.idle.guest == GuestIdle::Haltpoll,
        &[("halt_poll", host.max_ns > 0)],
        ("a guest with haltpoll has its host not poll", "take it out, or set another `guest_idle`"),
    );
    idle(
        virt.exits_off.hlt || matches!(virt.idle.guest, GuestIdle::Poll | GuestIdle::Mwait),
        &[("halt_poll", host.max_ns > 0)],
        ("the guest makes no exits by HLT", "take it out, or let the guest halt"),
    );
    let adapts = [
        ("halt_poll_grow", host.grow != usual.grow),
        ("halt_poll_grow_start", host.grow_start_ns != usual.grow_start_ns),
        ("halt_poll_shrink", host.shrink != usual.shrink),
    ];
    idle(host.fixed, &adapts, ("a fixed poll does not adapt", "take it out, or `halt_poll_fixed`"));
    idle(host.max_ns == 0, &adapts, ("the host does not poll for halted vCPUs", "set `halt_poll`"));
    let usual = SpinVirt::default();
    idle(
        !virt.spin.locks.halts(),
        &[("spin_threshold", virt.spin.threshold_ns.is_some())],
        ("only waiters for paravirtual spinlocks stop to spin", "set spinlocks = \"pv\""),
    );
    let to = virt.spin.candidates;
    idle(
        virt.exits_off.pause,
        &[
            ("ple_window", virt.spin.ple_window_ns.is_some()),
            ("ple_grow", virt.spin.ple_grow != usual.ple_grow),
            ("yield_in_kernel", !to.in_kernel),
            ("yield_woken", !to.woken),
            ("yield_interrupted", !to.interrupted),
            ("yield_ipi", to.ipi),
        ],
        (
            "PAUSE loops do not exit, so the host does not yield for a vCPU that spins",
            "take it out, or \"pause\" out of `disable_exits`",
        ),
    );
    idle(
        to.ipi,
        &[("yield_woken", !to.woken), ("yield_interrupted", !to.interrupted)],
        (
            "yield_ipi has rules of its own for woken and interrupted vCPUs",
            "take it out, or `yield_ipi`",
        ),
    );
    let timer = &virt.timer;
    idle(
        timer.mode != TimerMode::TscDeadline && timer.source != Some(GuestTimer::HvTimer),
        &[("timer_advance", timer.advance != AdvanceConfig::None)],
        (
            "KVM advances TSC deadlines and the preemption timer only",
            "set timer_mode = \"tsc-deadline\" or timer = \"hv-timer\"",
        ),
    );
    found
}

/// Keys by their places: those with an effect in some cell, and those without one in some cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    some: BTreeSet<Span>,
    none: BTreeMap<Span, Reason>,
}

impl Effects {
    /// Effects of the keys of VMs and policies. `plans`: the VMs by their own keys.
    pub(crate) fn of<'p>(
        vms: &[VmKeys],
        plans: &[VmPlan],
        policies: impl Iterator<Item = &'p VirtKeys>,
    ) -> Self {
        let mut this = Self::default();
        let policies: Vec<&VirtKeys> = policies.filter(|keys| !keys.given().is_empty()).collect();
        for vm in vms {
            let Some(plan) = plans.iter().find(|plan| plan.label == vm.name.value.0) else {
                continue;
            };
            let own = vm.virt.0.given();
            this.see(&plan.virt, own.iter().copied());
            for policy in &policies {
                let mut virt = plan.virt.clone();
                policy.apply(&mut virt);
                this.see(&virt, own.iter().copied().chain(policy.given()));
            }
        }
        this
    }

    /// If one key is `written` several times, the last counts.
    fn see(&mut self, virt: &Virt, written: impl Iterator<Item = (&'static str, Span)>) {
        let without = without(virt);
        for (key, span) in written.collect::<BTreeMap<_, _>>() {
            match without.get(key) {
                Some(reason) => drop(self.none.insert(span, *reason)),
                None => drop(self.some.insert(span)),
            }
        }
    }

    /// Adds those of another cell.
    pub(crate) fn add(&mut self, other: Self) {
        self.some.extend(other.some);
        self.none.extend(other.none);
    }

    /// Refuses keys without any effect.
    pub(crate) fn refuse(&self, errors: &Collector) {
        for (span, (message, help)) in self.none.iter().filter(|(at, _)| !self.some.contains(at)) {
            errors.error_help(*span, format!("it has no effect: {message}"), *help);
        }
    }
}
