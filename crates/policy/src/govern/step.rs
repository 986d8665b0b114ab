//! The steal governor as merged in Linux (`drivers/virt/steal_governor.c`, tip, September 2026).

use super::{Cores, GovernorConfig, GovernorInput};

/// One core less an interval above `high`, one more up to `low`, none between.
///
/// The ratio is `10000 * steal / (elapsed * active vCPUs)`: the steal of all active vCPUs, over *all* of them, in use
/// or not. So a folded guest sees its pressure diluted: with a quarter of its vCPUs in use it unfolds while those lose
/// 8 %, and folds only when they lose more than 20 %. And it takes as many intervals as cores, however great the
/// overload. Both are properties of the merged driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    cores: Cores,
    used: u32,
    high_bp: u32,
    low_bp: u32,
}

impl Step {
    pub(crate) fn new(config: &GovernorConfig, vcpus: u32, threads: u32) -> Self {
        let cores = Cores::new(config, vcpus, threads);
        Self { cores, used: cores.all, high_bp: config.high_bp, low_bp: config.low_bp }
    }

    pub(crate) fn width(&self) -> u32 {
        self.cores.width(self.used)
    }

    pub(crate) fn on(&mut self, seen: &GovernorInput<'_>) {
        let steal = u128::from(seen.sum(u32::MAX).steal_ns);
        let active = u128::from(seen.count(u32::MAX).max(1));
        let ratio = 10_000 * steal / (u128::from(seen.elapsed_ns) * active);
        if ratio > u128::from(self.high_bp) {
            self.used = (self.used - 1).max(self.cores.floor);
        } else if ratio <= u128::from(self.low_bp) {
            self.used = (self.used + 1).min(self.cores.all);
        }
    }
}
