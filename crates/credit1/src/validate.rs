//! Valid configurations: the ranges that Xen's own interface accepts.

use vcoop_sched::ConfigError;
use vcoop_sched::config::Ns;

use crate::config::Credit1Config;

const MS: Ns = 1_000_000;
const US: Ns = 1_000;

pub(super) fn validate(cfg: &Credit1Config) -> Result<(), ConfigError> {
    cfg.topology.validate()?;
    let range = ConfigError::range;
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
