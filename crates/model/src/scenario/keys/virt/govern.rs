//! Keys of governors: how many of its vCPUs a guest uses.

use vcoop_policy::govern::Kind;

use super::{set, shared_keys};
use crate::plan::virt::Virt;
use crate::toml_read::units::{Percent, Time};
use crate::toml_read::value::{Int, choice};

choice! {
    for Kind {
        /// Its entitlement, while the host's pool is contended.
        Entitlement = "entitlement",
        /// One core at a time, by steal.
        Step = "step",
        /// As many vCPUs as the steal time allows.
        Proportional = "proportional",
        /// The host's hint.
        HostHint = "host-hint",
    }
}

shared_keys! {
    /// Governors.
    pub(crate) struct GovernKeys {
        /// What decides how many of its vCPUs the guest uses: `entitlement`, `step` (as merged in
        /// Linux), `proportional` or `host-hint`. Default: no governor; the guest uses all vCPUs.
        governor: Kind,
        /// False: this VM has no governor, whatever a policy says. Default: true.
        takes_part: bool,
        /// Governor: interval between two decisions, 100ms to 100s. Default: 1s for `step`, 200ms for `proportional`,
        /// else 250ms.
        governor_interval: Time,
        /// Governor: steal above which the guest folds. Default: 5%.
        steal_high: Percent<100>,
        /// Governor: steal up to which it unfolds. Default: 2%.
        steal_low: Percent<100>,
        /// Governor: fewest vCPUs in use; in whole cores, and at least one. Default: 1.
        governor_floor: Int<1, 256>,
        /// proportional: share of its CPU time at full width that the guest keeps while folded.
        /// Default: 95%.
        governor_keep: Percent<100>,
        /// proportional: intervals after which a folded guest tries its full width again. Default: 32.
        governor_patience: Int<2, 10_000>,
        /// pCPUs' worth of time that the VM is entitled to. Without `weight` it is also its weight in
        /// the pool. Default: for governors, its part of the pCPUs by the number of vCPUs.
        entitled: Int<1, 256>,
        /// Governor: the guest takes vCPUs offline instead of avoiding them. Default: false.
        hotplug: bool,
        /// hotplug: time that one change takes, for any number of vCPUs. Default: 20s.
        hotplug_batch: Time,
        /// hotplug: time for which each changed vCPU stops the whole guest. Default: 5ms.
        hotplug_stall: Time,
        /// On real vCPUs: the guest moves its tasks between its vCPUs, as one with a governor does. (In
        /// the simulator every guest does.) Default: false, each task stays on one.
        guest_balance: bool,
    }
}

impl GovernKeys {
    pub(super) fn apply(&self, virt: &mut Virt) {
        let govern = &mut virt.govern;
        set(&self.governor, &mut govern.kind, |kind| Some(*kind));
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
