//! How many of its vCPUs a VM's guest uses, and what decides it.

use serde::{Deserialize, Serialize};
use vcoop_policy::govern::{GovernorConfig, Kind};

use super::{Ns, Plan};

/// Settings of a VM's governor, by the VM and by a policy. Missing ones have the defaults of the kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Govern {
    /// Kind of governor; `None`: no governor, all vCPUs are used.
    pub kind: Option<Kind>,
    /// Whether the VM has a governor if the policy has one.
    pub takes_part: bool,
    /// Time between two looks.
    pub interval_ns: Option<Ns>,
    /// Steal above which it folds, in hundredths of a percent.
    pub high_bp: Option<u32>,
    /// Steal up to which it unfolds.
    pub low_bp: Option<u32>,
    /// Fewest vCPUs in use.
    pub floor: Option<u32>,
    /// CPU time that is kept while folded, in percent of that at full width.
    pub keep_pct: Option<u32>,
    /// Longest that it stays folded without a try, in intervals.
    pub patience: Option<u32>,
    /// pCPUs' worth of time that the VM is entitled to.
    pub entitled: Option<u32>,
    /// How vCPUs are given up.
    pub means: FoldMeans,
    /// Lab: the guest moves its tasks between its vCPUs, with or without a governor.
    #[serde(default)]
    pub guest_balance: bool,
}

impl Default for Govern {
    fn default() -> Self {
        Self {
            kind: None,
            takes_part: true,
            interval_ns: None,
            high_bp: None,
            low_bp: None,
            floor: None,
            keep_pct: None,
            patience: None,
            entitled: None,
            means: FoldMeans::default(),
            guest_balance: false,
        }
    }
}

/// How a guest gives up vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldMeans {
    /// By CPU hotplug instead of a mask of CPUs to keep off.
    pub hotplug: bool,
    /// Hotplug: duration of one change of width, however many vCPUs it concerns; they go one by one over this time.
    pub batch_ns: Option<Ns>,
    /// Hotplug: for how long each vCPU that goes or comes stops all of the guest's vCPUs.
    pub stall_ns: Option<Ns>,
}

/// The paravirt-CPU patches: "the hotplug operation itself takes close to 20+ seconds".
pub const HOTPLUG_BATCH_NS: Ns = 20_000_000_000;
/// Assumed: time that `stop_machine` and the rebuilding of scheduler domains take from every CPU.
pub const HOTPLUG_STALL_NS: Ns = 5_000_000;

impl Govern {
    /// The governor's configuration, if there is a governor. `entitled`: the guest's entitlement, unless set.
    pub fn config(&self, entitled: u32) -> Option<GovernorConfig> {
        let kind = self.kind.filter(|_| self.takes_part)?;
        let base = GovernorConfig::new(kind);
        Some(GovernorConfig {
            kind,
            interval_ns: self.interval_ns.unwrap_or(base.interval_ns),
            high_bp: self.high_bp.unwrap_or(base.high_bp),
            low_bp: self.low_bp.unwrap_or(base.low_bp),
            floor: self.floor.unwrap_or(base.floor),
            entitled: self.entitled.unwrap_or(entitled),
            keep_pct: self.keep_pct.unwrap_or(base.keep_pct),
            patience: self.patience.unwrap_or(base.patience),
        })
    }
}

impl Plan {
    /// The configuration of VM `vm`'s governor, if it has one. Without a configured entitlement a VM is entitled to its
    /// part of the pCPUs, by the number of vCPUs.
    ///
    /// # Panics
    /// If there is no such VM.
    pub fn governor(&self, vm: usize) -> Option<GovernorConfig> {
        let vcpus = |vm: &super::VmPlan| u64::from(vm.level.topology.cpus());
        let all: u64 = self.vms.iter().map(vcpus).sum();
        let part = u64::from(self.host.sched.cpus()) * vcpus(&self.vms[vm]) / all.max(1);
        let part = part.clamp(1, vcpus(&self.vms[vm]));
        self.vms[vm].virt.govern.config(u32::try_from(part).unwrap_or(u32::MAX))
    }
}
