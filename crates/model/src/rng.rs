//! Random numbers: PCG-64 (MCG), one stream for each purpose.
//!
//! A stream is named by what draws from it (level, task index, purpose), not by the order of draws, so that two
//! policies under one seed see the same workload: common random numbers, which make their differences precise.
//! Simulator and lab use the same names, so that the simulation beside a live run has the same workload.

use rand::Rng;
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;

use crate::plan::{Dist, Ns};
use crate::quantiles::Quantiles;

/// Kinds of entities that draw; first part of their streams' names.
const HOST_TASK: u64 = 1;
const GUEST_TASK: u64 = 2;
const DEVICE: u64 = 3;
const TICK: u64 = 4;
const INTERRUPT: u64 = 5;
const COST: u64 = 6;
const CLOCK: u64 = 7;
const START: u64 = 8;
const QUOTA: u64 = 9;

/// One stream.
#[derive(Clone, Debug)]
pub struct Stream(Pcg64Mcg);

impl Stream {
    /// What host task number `task` of a plan draws from.
    pub fn host_task(seed: u64, task: usize) -> Self {
        Self::new(seed, &[HOST_TASK, task as u64])
    }

    /// What task number `task` of VM number `vm` of a plan draws from.
    pub fn guest_task(seed: u64, vm: usize, task: usize) -> Self {
        Self::new(seed, &[GUEST_TASK, vm as u64, task as u64])
    }

    /// What a device draws from, numbered over all VMs of a plan.
    pub fn device(seed: u64, device: usize) -> Self {
        Self::new(seed, &[DEVICE, device as u64])
    }

    /// What the interrupts of the host's device number `device` at a pCPU draw from.
    pub fn interrupt(seed: u64, device: usize, cpu: u32) -> Self {
        Self::new(seed, &[INTERRUPT, device as u64, u64::from(cpu)])
    }

    /// What the phase of the ticks is drawn from: machine 0 is the host, then come the VMs of a plan.
    pub fn ticks(seed: u64, machine: usize) -> Self {
        Self::new(seed, &[TICK, machine as u64])
    }

    /// What the start of task number `task` is drawn from: machine 0 is the host, then come the VMs of a plan.
    pub fn start(seed: u64, machine: usize, task: usize) -> Self {
        Self::new(seed, &[START, machine as u64, task as u64])
    }

    /// What the phase of the quota of control group number `group` is drawn from.
    pub fn quota(seed: u64, group: usize) -> Self {
        Self::new(seed, &[QUOTA, group as u64])
    }

    /// What the rate of the clock of VM number `vm` of a plan is drawn from.
    pub fn clock(seed: u64, vm: usize) -> Self {
        Self::new(seed, &[CLOCK, vm as u64])
    }

    /// What a cost of the host is drawn from, by its key in profiles.
    pub fn cost(seed: u64, key: &str) -> Self {
        let bytes = key.bytes().map(u64::from);
        Self::new(seed, &std::iter::once(COST).chain(bytes).collect::<Vec<_>>())
    }

    /// The stream `name` of `seed`.
    pub fn new(seed: u64, name: &[u64]) -> Self {
        let mut h = splitmix(seed ^ 0x9e37_79b9_7f4a_7c15);
        let mut l = splitmix(h);
        for &part in name {
            h = splitmix(h ^ part);
            l = splitmix(l.rotate_left(17) ^ part ^ h);
        }
        Self(Pcg64Mcg::new((u128::from(h) << 64) | u128::from(l)))
    }

    /// A uniform draw from `0..n` (multiply-shift: the bias of at most n/2^64 is far below any effect here).
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A draw from a distribution, in nanoseconds.
    #[inline]
    pub fn draw(&mut self, dist: &Dist) -> Ns {
        match *dist {
            Dist::Const(v) => v,
            Dist::Uniform(lo, hi) => lo + self.below(hi - lo + 1),
            Dist::Exp { mean_ns, max_ns } => self.exponential(mean_ns).min(max_ns),
            Dist::Measured { quantiles, exponent } => {
                quantiles.at_power(exponent, self.0.next_u64())
            }
        }
    }

    /// A draw from a distribution that is known by its quantiles.
    #[inline]
    pub fn quantile(&mut self, quantiles: Quantiles) -> Ns {
        quantiles.at(self.0.next_u64())
    }

    /// Exponential with a mean (ziggurat; `libm` underneath, so equal on every platform).
    #[inline]
    pub fn exponential(&mut self, mean: Ns) -> Ns {
        let x: f64 = Exp1.sample(&mut self.0);
        (x * mean as f64) as Ns
    }
}

fn splitmix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_hold_on_every_platform() {
        let mut s = Stream::new(1, &[2, 3]);
        let got: Vec<u64> = (0..3).map(|_| s.below(1_000_000)).collect();
        let mut e = Stream::new(1, &[2, 4]);
        let exp: Vec<u64> = (0..3).map(|_| e.exponential(1_000_000)).collect();
        assert_eq!(got, [957_181, 684_765, 182_452]);
        assert_eq!(exp, [621_742, 261_895, 67_589]);
    }

    #[test]
    fn exponential_has_its_mean() {
        let mut s = Stream::new(7, &[]);
        let n = 200_000u64;
        let sum: u64 = (0..n).map(|_| s.exponential(1000)).sum();
        let mean = sum as f64 / n as f64;
        assert!((985.0..1010.0).contains(&mean), "mean {mean}");
    }

    #[test]
    fn streams_of_different_names_differ() {
        let a = Stream::new(1, &[1]).below(u64::MAX);
        let b = Stream::new(1, &[2]).below(u64::MAX);
        let c = Stream::new(2, &[1]).below(u64::MAX);
        assert!(a != b && a != c && b != c);
    }
}
