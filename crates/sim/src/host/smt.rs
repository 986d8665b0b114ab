//! How hardware threads of a core slow each other's work down.

use vcoop_model::plan::HostPlan;

use crate::queue::Ns;

/// Speed of work, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed(u32);

impl Speed {
    pub(crate) const FULL: Self = Self(1_000_000);

    /// Duration of this much work.
    pub(crate) fn takes(self, ns: Ns) -> Ns {
        let takes = (u128::from(ns) * u128::from(Self::FULL.0)).div_ceil(u128::from(self.0));
        Ns::try_from(takes).unwrap_or(Ns::MAX / 2)
    }

    /// Work done in this time.
    pub(crate) fn done(self, ran: Ns) -> Ns {
        (u128::from(ran) * u128::from(self.0) / u128::from(Self::FULL.0)) as Ns
    }
}

/// How siblings slow each other down.
#[derive(Clone, Debug)]
pub(crate) struct Smt {
    /// Speed beside one, two, ... busy siblings; empty: siblings have no effect.
    speeds: Vec<Speed>,
    threads_per_core: u32,
}

impl Smt {
    pub(crate) fn new(host: &HostPlan) -> Self {
        let threads_per_core = host.sched.topology().threads_per_core;
        Self { speeds: host.smt_ppm.iter().map(|ppm| Speed(*ppm)).collect(), threads_per_core }
    }

    /// Whether siblings have an effect.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.speeds.is_empty()
    }

    /// The other pCPUs of a core.
    pub(crate) fn siblings(&self, p: u32) -> impl Iterator<Item = u32> + use<> {
        let first = p - p % self.threads_per_core;
        (first..first + self.threads_per_core).filter(move |q| *q != p)
    }

    /// Speed beside so many busy siblings.
    pub(crate) fn beside(&self, busy: usize) -> Speed {
        let last = self.speeds.len().min(busy);
        last.checked_sub(1).map_or(Speed::FULL, |at| self.speeds[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beside_a_busy_sibling_is_slower_and_none_of_it_is_lost() {
        let speeds = vec![Speed(600_000), Speed(450_000)];
        let smt = Smt { speeds, threads_per_core: 4 };
        assert_eq!(smt.siblings(5).collect::<Vec<_>>(), [4, 6, 7]);
        assert_eq!(Smt { threads_per_core: 2, ..smt.clone() }.siblings(5).collect::<Vec<_>>(), [4]);
        let speeds = [0, 1, 2, 3].map(|busy| smt.beside(busy).0);
        assert_eq!(speeds, [1_000_000, 600_000, 450_000, 450_000]);
        let speed = smt.beside(1);
        assert_eq!((speed.takes(600), speed.done(1_000)), (1_000, 600));
        for ns in [0, 1, 7, 999, 123_456_789] {
            assert_eq!(speed.done(speed.takes(ns)), ns);
        }
    }
}
