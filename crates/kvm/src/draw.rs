//! Random numbers: PCG-64 (MCG), one stream a purpose, so that two policies under one seed see the
//! same workload.

use rand::Rng;
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;
use vcoop_model::plan::{Dist, Ns};

/// One stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream(Pcg64Mcg);

impl Stream {
    /// The stream `name` of `seed`.
    pub(crate) fn new(seed: u64, name: &[u64]) -> Self {
        let mut state = mix(seed);
        for part in name {
            state = mix(state ^ mix(*part));
        }
        Self(Pcg64Mcg::new(u128::from(mix(state)) << 64 | u128::from(state)))
    }

    /// A draw from a distribution, in nanoseconds.
    pub(crate) fn draw(&mut self, dist: &Dist) -> Ns {
        match *dist {
            Dist::Const(v) => v,
            Dist::Uniform(low, high) => {
                let n = u128::from(high.saturating_sub(low)) + 1;
                low + ((u128::from(self.0.next_u64()) * n) >> 64) as Ns
            }
            Dist::Exp { mean_ns, max_ns } => {
                let x: f64 = Exp1.sample(&mut self.0);
                ((x * mean_ns as f64) as Ns).min(max_ns)
            }
        }
    }
}

/// The finaliser of SplitMix64.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::Stream;
    use vcoop_model::plan::Dist;

    #[test]
    fn draws_are_reproducible_and_within_bounds() {
        let (mut a, mut b) = (Stream::new(1, &[2, 3]), Stream::new(1, &[2, 3]));
        let mut other = Stream::new(2, &[2, 3]);
        let dist = Dist::Uniform(10, 20_000);
        let draws: Vec<_> = (0..50).map(|_| a.draw(&dist)).collect();
        assert!(draws.iter().all(|d| (10..=20_000).contains(d)));
        assert!(draws.iter().all(|d| *d == b.draw(&dist)));
        assert!(draws.iter().any(|d| *d != other.draw(&dist)));
        let exp = Dist::Exp { mean_ns: 1_000, max_ns: 3_000 };
        let sum: u64 = (0..1000).map(|_| a.draw(&exp)).sum();
        assert!((700_000..1_200_000).contains(&sum), "{sum}");
    }
}
