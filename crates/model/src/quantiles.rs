//! A distribution of times, by its quantiles.

use serde::{Deserialize, Serialize};
use vcoop_policy::config::Ns;

/// Number of quantiles that describe a distribution.
pub const LEVELS: usize = 8;

/// These quantiles, in parts of 10 000: minimum, 10 %, median, 90 %, 99 %, 99.9 %, 99.99 % and maximum.
pub const PER_10_000: [u64; LEVELS] = [0, 1_000, 5_000, 9_000, 9_900, 9_990, 9_999, 10_000];

/// For each level, where its quantile begins among draws of 64 bits.
const BEGINS: [u64; LEVELS - 1] = {
    let mut begins = [0; LEVELS - 1];
    let mut i = 0;
    while i < begins.len() {
        begins[i] = (((PER_10_000[i] as u128) << 64) / 10_000) as u64;
        i += 1;
    }
    begins
};

/// Scales the distance from there, so that 2^32 is the next level.
const SCALES: [u64; LEVELS - 1] = {
    let mut scales = [0; LEVELS - 1];
    let mut i = 0;
    while i < scales.len() {
        scales[i] = (10_000 * WHOLE) / (PER_10_000[i + 1] - PER_10_000[i]);
        i += 1;
    }
    scales
};

/// The whole distance from a level to the next, as [`place`] has it.
const WHOLE: u64 = 1 << 32;

/// Between which quantiles that at `u / 2^64` is: the number of the lower one, and how far beyond it, in 2^32nds.
#[inline]
fn place(u: u64) -> (usize, u64) {
    // Nine of ten draws end here, without a branch between them.
    let mut i = usize::from(u >= BEGINS[1]) + usize::from(u >= BEGINS[2]);
    if u >= BEGINS[3] {
        i = 3;
        while i + 1 < BEGINS.len() && u >= BEGINS[i + 1] {
            i += 1;
        }
    }
    let part = (u128::from(u - BEGINS[i]) * u128::from(SCALES[i])) >> 64;
    (i, part as u64)
}

/// A distribution by its quantiles at [`PER_10_000`], in nanoseconds, at most 4 s. In between it is linear, or follows a
/// power if its mean is known, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[u32; LEVELS]", into = "[u32; LEVELS]")]
pub struct Quantiles([u32; LEVELS]);

impl From<Quantiles> for [u32; LEVELS] {
    fn from(quantiles: Quantiles) -> Self {
        quantiles.0
    }
}

impl TryFrom<[u32; LEVELS]> for Quantiles {
    type Error = String;

    fn try_from(ns: [u32; LEVELS]) -> Result<Self, String> {
        if !ns.is_sorted() {
            return Err("the quantiles of a distribution do not descend".to_owned());
        }
        Ok(Self(ns))
    }
}

impl Quantiles {
    /// The quantiles in nanoseconds, in the order of [`PER_10_000`].
    pub fn values(self) -> [Ns; LEVELS] {
        self.0.map(Ns::from)
    }

    /// The distribution with these quantiles, where each is raised to the one before if it is below that.
    pub fn ascending(ns: [Ns; LEVELS]) -> Self {
        let mut last = 0;
        Self(ns.map(|ns| {
            last = u32::try_from(ns).unwrap_or(u32::MAX).max(last);
            last
        }))
    }

    /// The mean of the piecewise linear distribution.
    pub fn mean(self) -> Ns {
        let ends = self.0.windows(2).zip(PER_10_000.windows(2));
        let twice: Ns = ends.map(|(v, p)| (Ns::from(v[0]) + Ns::from(v[1])) * (p[1] - p[0])).sum();
        (twice + 10_000) / 20_000
    }

    /// The least and the largest mean that a distribution with these quantiles can have, in 10 000ths of a nanosecond.
    fn means(self) -> (Ns, Ns) {
        let weighed = |ns: &[u32]| {
            ns.iter().zip(PER_10_000.windows(2)).map(|(ns, p)| Ns::from(*ns) * (p[1] - p[0])).sum()
        };
        (weighed(&self.0[..LEVELS - 1]), weighed(&self.0[1..]))
    }

    /// Whether a distribution with these quantiles can have this mean.
    pub fn allow_mean(self, mean: Ns) -> bool {
        let (least, most) = self.means();
        mean == self.mean() || (least..=most).contains(&mean.saturating_mul(10_000))
    }

    /// The quantile at `u / 2^64`.
    #[inline]
    pub fn at(self, u: u64) -> Ns {
        let (i, part) = place(u);
        let (from, to) = (Ns::from(self.0[i]), Ns::from(self.0[i + 1]));
        from + (((to - from) * part) >> 32)
    }

    /// For [`at_power`](Self::at_power), so that the distribution has this mean; that of straight lines if the quantiles do
    /// not allow it.
    pub fn exponent(self, mean: Ns) -> f64 {
        if mean == self.mean() || !self.allow_mean(mean) {
            return 1.0;
        }
        // The mean of a power of a uniform draw is 1 / (exponent + 1).
        let (least, most) = self.means();
        (most - least) as f64 / (mean * 10_000 - least) as f64 - 1.0
    }

    /// The mean for which this is the [`exponent`](Self::exponent).
    pub fn mean_at_power(self, exponent: f64) -> Ns {
        if exponent == 1.0 {
            return self.mean();
        }
        let (least, most) = self.means();
        let beyond = (most - least) as f64 / (exponent + 1.0);
        (least + libm::round(beyond) as Ns + 5_000) / 10_000
    }

    /// The quantile at `u / 2^64` of the distribution that follows a power between two quantiles, with the same exponent
    /// for all. With 1 it is [`at`](Self::at).
    #[inline]
    pub fn at_power(self, exponent: f64, u: u64) -> Ns {
        if exponent == 1.0 {
            return self.at(u);
        }
        let (i, part) = place(u);
        let (from, to) = (Ns::from(self.0[i]), Ns::from(self.0[i + 1]));
        from + ((to - from) as f64 * libm::pow(part as f64 / WHOLE as f64, exponent)) as Ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Quantiles = Quantiles([100, 200, 300, 500, 1_000, 5_000, 20_000, 400_000]);

    #[test]
    fn quantiles_are_met_and_lines_are_straight() {
        for (level, ns) in PER_10_000.iter().zip(SOME.values()) {
            let u = ((u128::from(*level) << 64) / 10_000).min(u128::from(u64::MAX)) as u64;
            assert!(SOME.at(u).abs_diff(ns) <= 1, "{level}: {} {ns}", SOME.at(u));
        }
        assert_eq!(SOME.at(u64::MAX / 10 * 7), 399, "half way from 50 % to 90 %");
        assert_eq!(SOME.at(u64::MAX / 20), 149, "half way from the least to 10 %");
        let drawn: Vec<Ns> = (0..10_000).map(|i| SOME.at(u64::MAX / 10_000 * i)).collect();
        assert!(drawn.is_sorted());
    }

    #[test]
    fn the_mean_is_that_of_the_draws() {
        let n = 1_000_000;
        let sum: Ns = (0..n).map(|i| SOME.at(u64::MAX / n * i)).sum();
        assert!(SOME.mean().abs_diff(sum / n) <= 1, "{} {}", SOME.mean(), sum / n);
        assert_eq!(Quantiles([7; LEVELS]).mean(), 7);
    }

    /// What `vcoop calibrate` found on an idle machine, with the mean of the same samples.
    const SKEWED: Quantiles =
        Quantiles([160, 200, 1_211, 17_916, 82_432, 150_113, 226_687, 322_991]);

    #[test]
    fn a_known_mean_is_that_of_the_draws() {
        let n = 1_000_000;
        let drawn = |q: Quantiles, power| (0..n).map(move |i| q.at_power(power, u64::MAX / n * i));
        assert_eq!(SKEWED.mean(), 9_885, "straight lines have another one");
        for (q, mean) in [(SKEWED, 6_088), (SKEWED, 3_500), (SKEWED, 16_000), (SOME, 300)] {
            let power = q.exponent(mean);
            let found = drawn(q, power).sum::<Ns>() / n;
            assert!(found.abs_diff(mean) <= 1 + mean / 1_000, "{found} {mean}");
            assert_eq!(q.mean_at_power(power), mean);
            assert!(drawn(q, power).is_sorted());
            for (level, ns) in PER_10_000.iter().zip(q.values()) {
                let u = ((u128::from(*level) << 64) / 10_000).min(u128::from(u64::MAX)) as u64;
                assert!(q.at_power(power, u).abs_diff(ns) <= 1, "{level} of {mean}");
            }
        }
    }

    #[test]
    fn a_mean_that_the_quantiles_do_not_allow_changes_nothing() {
        let means: Vec<Ns> = (0..20_000).filter(|&mean| SKEWED.allow_mean(mean)).collect();
        assert_eq!((means.first(), means.last()), (Some(&3_093), Some(&16_677)));
        for mean in [0, 3_092, 9_885, 16_678, Ns::MAX] {
            assert_eq!(SKEWED.exponent(mean), 1.0);
        }
        assert_eq!(SKEWED.at_power(1.0, u64::MAX / 3), SKEWED.at(u64::MAX / 3));
        assert_eq!(SKEWED.at_power(SKEWED.exponent(3_093), 0), 160);
        let same = Quantiles([7; LEVELS]);
        assert!(same.allow_mean(7) && !same.allow_mean(8));
        assert_eq!(same.at_power(same.exponent(7), u64::MAX), 7);
    }

    #[test]
    fn what_descends_is_refused_or_raised() {
        let odd = [5, 4, 6, 7, 7, 7, 7, 7];
        assert!(Quantiles::try_from(odd).is_err());
        assert_eq!(Quantiles::ascending(odd.map(Ns::from)).values(), [5, 5, 6, 7, 7, 7, 7, 7]);
    }
}
