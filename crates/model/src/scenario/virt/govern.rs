//! Keys of governors: how many of its vCPUs a guest uses.

use std::collections::BTreeMap;

use vcoop_policy::govern::{INTERVAL_MAX_NS, INTERVAL_MIN_NS, Kind};

use super::{set, shared_keys};
use crate::diagnostic::{Collector, Span};
use crate::plan::VmPlan;
use crate::plan::virt::Virt;
use crate::scenario::keys::VmKeys;
use crate::toml_read::units::{Percent, Time, show};
use crate::toml_read::value::{Int, choice};

choice! {
    /// What decides how many vCPUs a guest uses.
    pub(crate) enum GovernorKind {
        /// Its entitlement, while the host's pool is contended.
        Entitlement = "entitlement",
        /// One core at a time, by steal.
        Step = "step",
        /// As many as steal shows.
        Proportional = "proportional",
        /// The host's word.
        HostHint = "host-hint",
    }
}

shared_keys! {
    /// Governors.
    pub(crate) struct GovernKeys {
        /// What decides how many of its vCPUs the guest uses: `entitlement`, `step` (as merged in
        /// Linux), `proportional` or `host-hint`. Default: nothing does, it uses all.
        governor: GovernorKind,
        /// False: this VM has no governor, whatever a policy says. Default: true.
        takes_part: bool,
        /// Governor: time between two looks, 100ms to 100s. Default: 1s for `step`, else 250ms.
        governor_interval: Time,
        /// Governor: steal above which the guest folds. Default: 5%.
        steal_high: Percent<100>,
        /// Governor: steal up to which it unfolds. Default: 2%.
        steal_low: Percent<100>,
        /// Governor: fewest vCPUs in use; in whole cores, and at least one. Default: 1.
        governor_floor: Int<1, 256>,
        /// proportional: CPU time that it keeps while folded, of what it had at full width.
        /// Default: 95%.
        governor_keep: Percent<100>,
        /// proportional: longest that it stays folded without trying whether it still has to, in
        /// intervals. Default: 32.
        governor_patience: Int<2, 10_000>,
        /// pCPUs' worth of time that the VM is entitled to. Without `weight` it is also its weight in
        /// the pool. Default: for governors, its part of the pCPUs by the number of vCPUs.
        entitled: Int<1, 256>,
        /// Governor: vCPUs go offline rather than being avoided. Default: false.
        hotplug: bool,
        /// hotplug: time that one change takes, however many vCPUs it is about. Default: 20s.
        hotplug_batch: Time,
        /// hotplug: time that each vCPU stops all of the guest for. Default: 5ms.
        hotplug_stall: Time,
        /// On real vCPUs: the guest moves its tasks between its vCPUs, as one with a governor does. (In
        /// the simulator every guest does.) Default: false, each task stays on one.
        guest_balance: bool,
    }
}

impl GovernKeys {
    pub(super) fn apply(&self, virt: &mut Virt) {
        let govern = &mut virt.govern;
        set(&self.governor, &mut govern.kind, |kind| {
            Some(match kind {
                GovernorKind::Entitlement => Kind::Entitlement,
                GovernorKind::Step => Kind::Step,
                GovernorKind::Proportional => Kind::Proportional,
                GovernorKind::HostHint => Kind::HostHint,
            })
        });
        set(&self.takes_part, &mut govern.takes_part, |on| *on);
        set(&self.governor_interval, &mut govern.interval_ns, |time| Some(time.0));
        set(&self.steal_high, &mut govern.high_bp, |share| Some(share.ppm / 100));
        set(&self.steal_low, &mut govern.low_bp, |share| Some(share.ppm / 100));
        set(&self.governor_floor, &mut govern.floor, |n| Some(n.get32()));
        set(&self.governor_keep, &mut govern.keep_pct, |share| Some(share.ppm / 10_000));
        set(&self.governor_patience, &mut govern.patience, |n| Some(n.get32()));
        set(&self.entitled, &mut govern.entitled, |n| Some(n.get32()));
        set(&self.hotplug, &mut govern.means.hotplug, |on| *on);
        set(&self.hotplug_batch, &mut govern.means.batch_ns, |time| Some(time.0));
        set(&self.guest_balance, &mut govern.guest_balance, |on| *on);
        set(&self.hotplug_stall, &mut govern.means.stall_ns, |time| Some(time.0));
    }
}

/// Refuses a governor that cannot be, in a VM of `vcpus`. `written` are the keys and where they are.
pub(super) fn refuse(
    virt: &Virt,
    vcpus: u32,
    written: &BTreeMap<&str, Span>,
    errors: &mut Collector<'_>,
) {
    let mut refuse = |keys: &[&str], message: String, help: String| {
        // What nobody wrote is not wrong.
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

/// Refuses to promise more than there is.
pub(crate) fn check_capacity(
    vms: &[VmKeys],
    plans: &[VmPlan],
    pcpus: u32,
    errors: &mut Collector<'_>,
) {
    let entitled = |plan: &VmPlan| u64::from(plan.virt.govern.entitled.unwrap_or(0));
    let all: u64 = plans.iter().map(entitled).sum();
    if all > u64::from(pcpus) {
        let last = vms.iter().rev().find_map(|vm| vm.virt.0.govern.0.entitled.as_ref());
        if let Some(key) = last {
            let message = format!("VMs are entitled to {all} pCPUs of {pcpus}");
            let help = format!("all together at most {pcpus}");
            errors.error_help(key.span, message, help);
        }
    }
}
