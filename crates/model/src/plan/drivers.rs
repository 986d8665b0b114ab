//! Policy machines for a plan, the same for every backend.

use vcoop_policy::config::{DynamicConfig, Means, WakeBoostConfig};
use vcoop_policy::driver::VcpuDriver;
use vcoop_policy::govern::GovernorDriver;
use vcoop_policy::thread::Policy;
use vcoop_policy::{HostPolicy, VmShared};

use super::{Ns, Plan, PolicyPlan};

impl PolicyPlan {
    /// The machine of a vCPU, starting at time 0, and its means of boosting. `own`: the vCPU's own means, instead
    /// of the policy's.
    fn machine(&self, own: Option<Means>) -> (HostPolicy, Option<Means>) {
        let means = own.or(self.means());
        let machine = match (self, means) {
            (Self::Static { .. }, Some(means)) => HostPolicy::fixed(means),
            (Self::Dynamic(config), Some(means)) => {
                HostPolicy::dynamic(DynamicConfig { means, ..*config }, 0)
            }
            (Self::WakeBoost(config), Some(means)) => {
                HostPolicy::wake_boost(WakeBoostConfig { means, ..*config }, 0)
            }
            _ => return (HostPolicy::Vanilla, None),
        };
        (machine, means)
    }

    /// State shared by the vCPUs of a VM under this policy, from time `now` on.
    pub fn shared(&self, now: Ns) -> VmShared {
        match self {
            Self::Dynamic(config) => VmShared::new(config.vm_budget, now),
            Self::WakeBoost(config) => VmShared::new(config.vm_budget, now),
            Self::Vanilla | Self::Static { .. } | Self::RatelimitAuto(_) => {
                VmShared::unbudgeted(now)
            }
        }
    }

    /// Whether it boosts vCPUs temporarily, not for life or never.
    pub fn boosts(&self) -> bool {
        matches!(self, Self::Dynamic(_) | Self::WakeBoost(_))
    }

    /// Its means of boosting, if it boosts.
    pub fn means(&self) -> Option<Means> {
        match self {
            Self::Vanilla | Self::RatelimitAuto(_) => None,
            Self::Static { means } => Some(*means),
            Self::Dynamic(config) => Some(config.means),
            Self::WakeBoost(config) => Some(config.means),
        }
    }

    /// Whether it boosts for interrupts, so that each interrupt gets a ticket.
    pub fn boosts_on_injection(&self) -> bool {
        match self {
            Self::Dynamic(config) => config.boost_on_injection,
            Self::WakeBoost(config) => config.boost_on_injection,
            _ => false,
        }
    }

    /// Whether boosted time is given back, which needs accounts.
    pub fn repays(&self) -> bool {
        match self {
            Self::Dynamic(config) => config.repay,
            Self::WakeBoost(config) => config.repay,
            Self::Vanilla | Self::Static { .. } | Self::RatelimitAuto(_) => false,
        }
    }
}

impl Plan {
    /// The driver of a vCPU, at time 0. `dynamic` does nothing for a VM whose guest does not cooperate.
    ///
    /// # Panics
    /// If there is no such VM.
    pub fn vcpu_driver(&self, vm: usize, vcpu: usize) -> VcpuDriver {
        let of = &self.vms[vm];
        let own = of.vcpu_means.get(vcpu).copied().flatten();
        let alone = matches!(self.policy, PolicyPlan::Dynamic(_)) && !of.cooperative;
        let policy = if alone { &PolicyPlan::Vanilla } else { &self.policy };
        let (machine, means) = policy.machine(own);
        let baseline = of.vcpu_policy.get(vcpu).copied().unwrap_or(Policy::NORMAL);
        VcpuDriver::new(machine, means, baseline)
    }

    /// The driver of a VM's governor, if it has one.
    ///
    /// # Panics
    /// If there is no such VM.
    pub fn governor_driver(&self, vm: usize) -> Option<GovernorDriver> {
        let config = self.governor(vm)?;
        let topology = &self.vms[vm].level.topology;
        let (vcpus, threads) = (topology.cpus(), topology.threads_per_core);
        Some(GovernorDriver::new(&config, vm, self.vms.len(), vcpus, threads))
    }
}
