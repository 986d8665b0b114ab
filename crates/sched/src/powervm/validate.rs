//! What a pool may be.

use crate::ConfigError;
use crate::config::{Ns, Partition, PoolConfig};

const MS: Ns = 1_000_000;

/// Virtual processors that may share one CPU's worth of entitlement: since POWER7+ each is entitled to
/// at least 0.05 processing units.
const VPS_A_CPU: u32 = 20;

pub(super) fn validate(cfg: &PoolConfig) -> Result<(), ConfigError> {
    cfg.topology.validate()?;
    let threads = cfg.topology.threads_per_core;
    let range = ConfigError::range;
    range("window_ns", cfg.window_ns, MS, 1000 * MS)?;
    range("partitions", cfg.partitions.len() as u64, 1, u64::from(u16::MAX))?;
    for (partition, &Partition { vcpus, entitled, weight }) in cfg.partitions.iter().enumerate() {
        if vcpus == 0 || !vcpus.is_multiple_of(threads) {
            return Err(ConfigError::HalfCore { partition, vcpus, threads });
        }
        let least = u64::from(vcpus.div_ceil(VPS_A_CPU));
        range("entitled", u64::from(entitled), least, u64::from(vcpus))?;
        range("weight", u64::from(weight), 0, 255)?;
    }
    let entitled = cfg.partitions.iter().map(|p| u64::from(p.entitled)).sum();
    let cpus = cfg.topology.cpus();
    if entitled > u64::from(cpus) {
        return Err(ConfigError::Promised { entitled, cpus });
    }
    Ok(())
}
