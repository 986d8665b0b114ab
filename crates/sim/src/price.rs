//! Costs of mechanisms: constant, or drawn anew each time from the profile's distribution.
//!
//! Each cost that varies has its own stream, named by its key, so that another varying cost does not change its draws.

use vcoop_model::profile::{CostKey, Costs};
use vcoop_model::quantiles::Quantiles;
use vcoop_model::rng::Stream;

use crate::queue::Ns;

/// A cost that varies.
#[derive(Clone, Debug)]
struct VaryingCost {
    stream: Stream,
    quantiles: Quantiles,
}

impl VaryingCost {
    fn of(costs: &Costs, seed: u64, key: &str) -> Option<Self> {
        let quantiles = *costs.spread.get(key)?;
        Some(Self { stream: Stream::cost(seed, key), quantiles })
    }

    #[inline]
    fn draw(&mut self) -> Ns {
        self.stream.quantile(self.quantiles)
    }
}

/// Exit latency of an idle state.
#[derive(Clone, Debug)]
struct IdleState {
    exit_ns: Ns,
    residency_ns: Ns,
    varying: Option<VaryingCost>,
}

/// The costs of a run.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    constants: [Ns; CostKey::ALL.len()],
    /// Bit `k`: cost `k` varies. Separate from the draws, which take many cache lines.
    varies: u64,
    varying: Box<[Option<VaryingCost>]>,
    idle: Box<[IdleState]>,
    /// Idle CPUs watch a flag in all of these states.
    idle_watches: bool,
}

impl Prices {
    pub(crate) fn new(costs: &Costs, seed: u64) -> Self {
        const { assert!(CostKey::ALL.len() <= 64) };
        let mut constants = [0; CostKey::ALL.len()];
        let entries = costs.entries();
        for (constant, (_, ns)) in constants.iter_mut().zip(&entries) {
            *constant = *ns;
        }
        let varying: Box<[_]> =
            entries.iter().map(|(key, _)| VaryingCost::of(costs, seed, key)).collect();
        let bits = (0..).zip(&varying).map(|(k, varying)| u64::from(varying.is_some()) << k);
        let idle = costs.cstates.iter().map(|state| IdleState {
            exit_ns: state.exit_ns,
            residency_ns: state.residency_ns,
            varying: VaryingCost::of(costs, seed, &format!("cstate.{}", state.name)),
        });
        let states = &costs.cstates;
        let idle_watches = !states.is_empty() && states.iter().all(|state| state.monitor);
        Self { constants, varies: bits.sum(), idle: idle.collect(), idle_watches, varying }
    }

    /// Whether an idle CPU sees a write to its flags, so that waking it takes no IPI.
    pub(crate) fn idle_watches(&self) -> bool {
        self.idle_watches
    }

    /// The cost, this time.
    #[inline]
    pub(crate) fn of(&mut self, key: CostKey) -> Ns {
        if self.varies >> key as u32 & 1 == 0 {
            return self.constants[key as usize];
        }
        self.draw(key)
    }

    /// The constant cost.
    pub(crate) fn constant(&self, key: CostKey) -> Ns {
        self.constants[key as usize]
    }

    fn draw(&mut self, key: CostKey) -> Ns {
        self.varying[key as usize].as_mut().map_or(0, VaryingCost::draw)
    }

    /// Exit latency of the idle state that a governor chooses for this expected idle time.
    pub(crate) fn idle_exit(&mut self, expected: Ns) -> Ns {
        let deepest = self.idle.iter().rposition(|s| s.residency_ns <= expected).unwrap_or(0);
        let Some(state) = self.idle.get_mut(deepest) else { return 0 };
        state.varying.as_mut().map_or(state.exit_ns, VaryingCost::draw)
    }
}

#[cfg(test)]
mod tests {
    use vcoop_model::profile::Profile;

    use super::*;

    fn costs() -> Costs {
        Profile::load("xeon-server").expect("it ships").costs
    }

    const SPREAD: [Ns; 8] = [100, 200, 300, 500, 1_000, 5_000, 20_000, 400_000];

    #[test]
    fn constants_are_as_the_profile_has_them() {
        let mut prices = Prices::new(&costs(), 1);
        for (key, (name, ns)) in CostKey::ALL.iter().zip(costs().entries()) {
            assert_eq!((key.key(), prices.of(*key)), (name, ns));
        }
        assert_eq!(prices.idle_exit(600_000), costs().cstates[2].exit_ns);
        assert_eq!(prices.idle_exit(0), costs().cstates[0].exit_ns);
    }

    #[test]
    fn draws_of_a_cost_depend_on_no_other() {
        let quantiles = Quantiles::ascending(SPREAD);
        let mut one = costs();
        one.spread.insert("exit".to_owned(), quantiles);
        let mut two = one.clone();
        two.spread.insert("entry".to_owned(), quantiles);
        two.spread.insert("cstate.C6".to_owned(), quantiles);
        let (mut one, mut two) = (Prices::new(&one, 3), Prices::new(&two, 3));
        let n = 100_000;
        let mut sum = 0;
        for _ in 0..n {
            let exit = one.of(CostKey::Exit);
            assert_eq!(exit, two.of(CostKey::Exit));
            two.of(CostKey::Entry);
            two.idle_exit(Ns::MAX);
            sum += exit;
        }
        let mean = quantiles.mean();
        assert!((sum / n).abs_diff(mean) * 20 < mean, "{} {mean}", sum / n);
    }
}
