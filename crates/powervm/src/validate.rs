//! Valid configurations of a pool.

use vcoop_sched::ConfigError;
use vcoop_sched::config::Ns;

use crate::config::{Partition, PoolConfig};

const MS: Ns = 1_000_000;

/// Maximum number of virtual processors per CPU of entitlement: since POWER7+ each is entitled to at least 0.05
/// processing units.
const VPS_A_CPU: u32 = 20;

pub(super) fn validate(cfg: &PoolConfig) -> Result<(), ConfigError> {
    cfg.topology.validate()?;
    let threads = cfg.topology.threads_per_core;
    let range = ConfigError::range;
    range("window_ns", cfg.window_ns, MS, 1000 * MS)?;
    range("partitions", cfg.partitions.len() as u64, 1, u64::from(u16::MAX))?;
    for &Partition { vcpus, entitled, weight } in &cfg.partitions {
        if vcpus == 0 || !vcpus.is_multiple_of(threads) {
            let (value, of) = (u64::from(vcpus), u64::from(threads));
            return Err(ConfigError::Multiple { field: "vcpus", value, of });
        }
        let least = u64::from(vcpus.div_ceil(VPS_A_CPU));
        range("entitled", u64::from(entitled), least, u64::from(vcpus))?;
        range("weight", u64::from(weight), 0, 255)?;
    }
    let entitled = cfg.partitions.iter().map(|p| u64::from(p.entitled)).sum();
    range("entitled, of all partitions", entitled, 0, u64::from(cfg.topology.cpus()))
}
