//! What policies count.

use crate::config::Ns;

/// Counters of one vCPU's policy, since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Times the means were applied.
    pub boosts: u64,
    /// Times a boost was ended by the guest's synchronous notification.
    pub notified: u64,
    /// Times the budget ended or prevented a boost and the state became throttled.
    pub throttles: u64,
    /// Throttles because a boost was the longest allowed.
    pub too_long: u64,
    /// Throttles by the VM's budget, where the vCPU's own had tokens left.
    pub by_vm: u64,
    /// Boosts that were due and not given.
    pub denied: u64,
    /// Boosts that a recheck found without a reason, and ended.
    pub raced: u64,
    /// Boosted and not halted, in nanoseconds: what the budgets were charged.
    pub boosted_ns: Ns,
    /// Time running or waiting at each level below the baseline, times the level, in nanoseconds.
    pub lowered_ns: Ns,
}
