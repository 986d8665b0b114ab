//! How hardware threads of a core slow each other's work down.

use vcoop_model::plan::HostPlan;

use crate::queue::Ns;

/// Full speed.
const FULL: u128 = 1_000_000;

/// How siblings slow each other down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Smt {
    /// Speed of work beside a busy sibling, in millionths; 0: siblings have no effect.
    ppm: u32,
    threads_per_core: u32,
}

impl Smt {
    pub(crate) fn new(host: &HostPlan) -> Self {
        let threads_per_core = host.sched.topology().threads_per_core;
        Self { ppm: host.smt_ppm.unwrap_or(0), threads_per_core }
    }

    /// Whether siblings have an effect.
    #[inline]
    pub(crate) fn is_on(self) -> bool {
        self.ppm != 0
    }

    /// The other pCPUs of a core.
    pub(crate) fn siblings(self, p: u32) -> impl Iterator<Item = u32> {
        let first = p - p % self.threads_per_core;
        (first..first + self.threads_per_core).filter(move |q| *q != p)
    }

    /// Duration of this much work beside a busy sibling.
    pub(crate) fn takes(self, ns: Ns) -> Ns {
        let takes = (u128::from(ns) * FULL).div_ceil(u128::from(self.ppm));
        Ns::try_from(takes).unwrap_or(Ns::MAX / 2)
    }

    /// Work done in this time beside a busy sibling.
    pub(crate) fn done(self, ran: Ns) -> Ns {
        (u128::from(ran) * u128::from(self.ppm) / FULL) as Ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beside_a_busy_sibling_is_slower_and_none_of_it_is_lost() {
        let smt = Smt { ppm: 600_000, threads_per_core: 2 };
        assert_eq!(smt.siblings(5).collect::<Vec<_>>(), [4]);
        assert_eq!(Smt { threads_per_core: 4, ..smt }.siblings(5).collect::<Vec<_>>(), [4, 6, 7]);
        assert_eq!((smt.takes(600), smt.done(1_000)), (1_000, 600));
        for ns in [0, 1, 7, 999, 123_456_789] {
            assert_eq!(smt.done(smt.takes(ns)), ns);
        }
    }
}
