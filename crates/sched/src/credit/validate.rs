//! What a configuration may hold: the ranges Xen's own interface accepts.

use crate::config::{Credit1Config, Ns};
use crate::cpuset::MAX_CPUS;
use crate::{ConfigError, config::Topology};

const MS: Ns = 1_000_000;
const US: Ns = 1_000;

pub(super) fn validate(cfg: &Credit1Config) -> Result<(), ConfigError> {
    let Topology { threads_per_core, cores_per_llc, llcs } = cfg.topology;
    let cpus = u64::from(threads_per_core)
        .saturating_mul(u64::from(cores_per_llc))
        .saturating_mul(u64::from(llcs));
    if cpus == 0 || cpus > u64::from(MAX_CPUS) {
        return Err(ConfigError::CpuCount { cpus });
    }
    let range = |field, value: Ns, min: Ns, max: Ns| {
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(ConfigError::Range { field, value, min, max })
        }
    };
    range("tslice_ns", cfg.tslice_ns, MS, 1000 * MS)?;
    if cfg.ratelimit_ns != 0 {
        range("ratelimit_ns", cfg.ratelimit_ns, 100 * US, (500 * MS).min(cfg.tslice_ns))?;
    }
    range("migration_delay_ns", cfg.migration_delay_ns, 0, 100 * MS)?;
    range("load_balance_ratelimit_ns", cfg.load_balance_ratelimit_ns, 0, 1000 * MS)?;
    range("domains", cfg.domains.len() as u64, 1, u64::from(u16::MAX))?;
    for dom in &cfg.domains {
        range("weight", u64::from(dom.weight), 1, 65_535)?;
    }
    let privileged = cfg.domains.iter().filter(|d| d.privileged).count() as u64;
    range("privileged domains", privileged, 0, 1)
}
