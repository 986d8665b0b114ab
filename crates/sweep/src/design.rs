//! Points of a sweep, from its axes.
//!
//! Sources: Latin hypercube sampling, M. McKay, R. Beckman, W. Conover, Technometrics 21(2), 1979;
//! Owen-scrambled Sobol points by the `sobol_burley` crate, B. Burley, JCGT 9(4), 2020, with the
//! direction numbers of S. Joe and F. Kuo, SIAM J. Sci. Comput. 30(5), 2008.

use rand::Rng;
use rand_pcg::Pcg64Mcg;
use vcoop_model::sweep::{AxisValue, DesignKind, Sweep, Values};

/// Most points of the Sobol generator.
pub const MAX_SOBOL: u32 = 1 << 16;

/// Most axes of the Sobol generator.
pub const MAX_SOBOL_AXES: usize = 256;

/// The points of a sweep, by number.
#[derive(Clone, Debug)]
pub struct Design {
    points: u32,
    shape: Shape,
}

#[derive(Clone, Debug)]
enum Shape {
    /// Number of values of each axis.
    Grid(Vec<u32>),
    /// Axis by axis: the stratum of each point.
    LatinHypercube { strata: Vec<Vec<u32>>, seed: u64 },
    /// Seed of the scrambling.
    Sobol(u32),
}

impl Design {
    /// The design that a sweep asks for.
    pub fn new(sweep: &Sweep) -> Self {
        let seed = sweep.seed;
        let points = sweep.points.unwrap_or(1);
        match sweep.design {
            DesignKind::Grid => {
                let lens: Vec<u64> = sweep.axes.iter().map(|a| a.values.grid_len()).collect();
                // The reader of the file holds the product below a million.
                let points = lens.iter().product::<u64>().try_into().unwrap_or(u32::MAX);
                let lens = lens.into_iter().map(|n| n.try_into().unwrap_or(u32::MAX)).collect();
                Self { points, shape: Shape::Grid(lens) }
            }
            DesignKind::LatinHypercube => {
                let strata = (0..sweep.axes.len()).map(|axis| shuffled(points, seed, axis));
                let strata = strata.collect();
                Self { points, shape: Shape::LatinHypercube { strata, seed } }
            }
            DesignKind::Sobol => Self { points, shape: Shape::Sobol((seed ^ (seed >> 32)) as u32) },
        }
    }

    /// Number of points.
    pub fn len(&self) -> u32 {
        self.points
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// The values of a point, axis by axis.
    pub fn point(&self, sweep: &Sweep, index: u32) -> Vec<AxisValue> {
        let mut values = Vec::with_capacity(sweep.axes.len());
        match &self.shape {
            Shape::Grid(lens) => {
                let mut rest = index;
                for (axis, len) in sweep.axes.iter().zip(lens).rev() {
                    values.push(step(&axis.values, rest % len));
                    rest /= len;
                }
                values.reverse();
            }
            Shape::LatinHypercube { strata, seed } => {
                for (i, (axis, strata)) in sweep.axes.iter().zip(strata).enumerate() {
                    let stratum = strata.get(index as usize).copied().unwrap_or(0);
                    let inside = unit(&mut stream(*seed, i, 1 + u64::from(index)));
                    let share = (f64::from(stratum) + inside) / f64::from(self.points);
                    values.push(within(&axis.values, share));
                }
            }
            Shape::Sobol(seed) => {
                for (dimension, axis) in (0..).zip(&sweep.axes) {
                    let share = sobol_burley::sample(index, dimension, *seed);
                    values.push(within(&axis.values, f64::from(share)));
                }
            }
        }
        values
    }
}

/// The `i`th value of a grid's axis.
fn step(values: &Values, i: u32) -> AxisValue {
    match values {
        Values::List(list) => list[i as usize].clone(),
        Values::Range(range) => {
            let last = range.points.unwrap_or(1).saturating_sub(1).max(1);
            range.at(f64::from(i) / f64::from(last))
        }
    }
}

/// The value at a share of an axis, 0 to 1. A range with a number of values is treated as a list.
fn within(values: &Values, share: f64) -> AxisValue {
    let of = |n: u32| ((share * f64::from(n)) as u32).min(n.saturating_sub(1));
    match values {
        Values::List(list) => step(values, of(list.len() as u32)),
        Values::Range(range) => match range.points {
            Some(n) => step(values, of(n)),
            None => range.at(share),
        },
    }
}

/// A random stream for one purpose.
fn stream(seed: u64, axis: usize, what: u64) -> Pcg64Mcg {
    let key = (u128::from(seed) << 64) | (u128::from(what) << 16) | axis as u128;
    // One step apart from its neighbours is not enough for a multiplicative generator: spread them.
    let mut rng = Pcg64Mcg::new(key.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645) | 1);
    rng.next_u64();
    rng
}

/// A number in `[0, 1)`.
fn unit(rng: &mut Pcg64Mcg) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// 0 to `n - 1` in random order (Fisher and Yates).
fn shuffled(n: u32, seed: u64, axis: usize) -> Vec<u32> {
    let mut rng = stream(seed, axis, 0);
    let mut order: Vec<u32> = (0..n).collect();
    for i in (1..order.len()).rev() {
        // Multiply-shift: evenly in 0..=i, but for a bias of 2^-44.
        let j = (u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sweep(design: &str) -> Sweep {
        let text = format!(
            "name = \"s\"\nscenario = \"x\"\n{design}\n[axes]\na = [1, 2]\nb = [\"x\", \"y\", \"z\"]\n\
             c = {{ from = 0.0, to = 1.0, points = 2 }}\n"
        );
        Sweep::parse("s.toml", &text).unwrap()
    }

    fn texts(design: &Design, sweep: &Sweep) -> Vec<Vec<String>> {
        let point = |i| design.point(sweep, i).into_iter().map(|v| v.text).collect();
        (0..design.len()).map(point).collect()
    }

    #[test]
    fn a_grid_has_every_combination_once_last_axis_fastest() {
        let sweep = sweep("");
        let all = texts(&Design::new(&sweep), &sweep);
        assert_eq!(all.len(), 12);
        assert_eq!(all[0], ["1", "x", "0.0"]);
        assert_eq!(all[1], ["1", "x", "1.0"]);
        assert_eq!(all[11], ["2", "z", "1.0"]);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 12);
    }

    #[test]
    fn a_latin_hypercube_has_one_point_a_stratum() {
        let text = "name = \"s\"\nscenario = \"x\"\ndesign = \"latin-hypercube\"\npoints = 40\n[axes]\n\
                    a = { from = 0.0, to = 40.0 }\nb = { from = 0.0, to = 40.0 }\n";
        let sweep = Sweep::parse("s.toml", text).unwrap();
        let all = texts(&Design::new(&sweep), &sweep);
        for axis in 0..2 {
            let mut strata: Vec<i64> =
                all.iter().map(|p| p[axis].parse::<f64>().unwrap() as i64).collect();
            strata.sort_unstable();
            strata.dedup();
            // Three digits can round a value up into the next stratum, no more.
            assert!(strata.len() >= 36, "{strata:?}");
        }
        assert_ne!(
            all.iter().map(|p| &p[0]).collect::<Vec<_>>(),
            all.iter().map(|p| &p[1]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn sobol_points_are_balanced_and_seeds_differ() {
        let one = sweep("design = \"sobol\"\npoints = 64");
        let all = texts(&Design::new(&one), &one);
        // Powers of two halve exactly.
        assert_eq!(all.iter().filter(|p| p[0] == "1").count(), 32);
        assert_eq!(all.iter().filter(|p| p[0] == "1" && p[2] == "1.0").count(), 16);
        let other = sweep("design = \"sobol\"\npoints = 64\nseed = 2");
        assert_ne!(all, texts(&Design::new(&other), &other));
    }
}
