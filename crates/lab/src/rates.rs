//! Rates of this host.

use vcoop_model::plan::Ns;
use vcoop_threads::tsc::Clock;

/// Rates of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) clock: Clock,
    /// Iterations of the unit of work in a millisecond.
    pub(crate) per_ms: u64,
}

impl Rates {
    /// CPU time as iterations, at least one.
    pub(crate) fn iterations(&self, ns: Ns) -> u64 {
        let n = u128::from(ns) * u128::from(self.per_ms) / 1_000_000;
        u64::try_from(n).unwrap_or(u64::MAX).max(1)
    }
}
