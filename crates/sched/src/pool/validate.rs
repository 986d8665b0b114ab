//! What a pool may be.

use crate::config::{Ns, PoolConfig, Topology};
use crate::cpuset::MAX_CPUS;
use crate::{ConfigError, config::Partition};

const MS: Ns = 1_000_000;

/// Virtual processors that may share one CPU's worth of entitlement: since POWER7+ each is entitled to
/// at least 0.05 processing units.
const VPS_A_CPU: u32 = 20;

pub(super) fn validate(cfg: &PoolConfig) -> Result<(), ConfigError> {
    let Topology { threads_per_core, cores_per_llc, llcs } = cfg.topology;
    let cpus = u64::from(threads_per_core)
        .saturating_mul(u64::from(cores_per_llc))
        .saturating_mul(u64::from(llcs));
    if cpus == 0 || cpus > u64::from(MAX_CPUS) {
        return Err(ConfigError::CpuCount { cpus });
    }
    let range = |field, value: u64, min: u64, max: u64| {
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(ConfigError::Range { field, value, min, max })
        }
    };
    range("window_ns", cfg.window_ns, MS, 1000 * MS)?;
    range("partitions", cfg.partitions.len() as u64, 1, u64::from(u16::MAX))?;
    for (partition, &Partition { vcpus, entitled, weight }) in cfg.partitions.iter().enumerate() {
        if vcpus == 0 || !vcpus.is_multiple_of(threads_per_core) {
            return Err(ConfigError::HalfCore { partition, vcpus, threads: threads_per_core });
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
