//! Times, and distributions of them.

use serde::{Deserialize, Serialize};
pub use vcoop_policy::config::Ns;

use crate::quantiles::Quantiles;

/// A distribution of times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dist {
    /// Always the same.
    Const(Ns),
    /// Evenly between two bounds (inclusive).
    Uniform(Ns, Ns),
    /// Exponential with this mean, cut at the bound.
    Exp {
        /// Mean before the cut.
        mean_ns: Ns,
        /// Largest value; larger ones are cut to it.
        max_ns: Ns,
    },
    /// By measured quantiles and the measured mean.
    Measured {
        /// Quantiles.
        quantiles: Quantiles,
        /// [`Quantiles::exponent`] for the mean, which takes longer to find than a draw.
        exponent: f64,
    },
}

impl Dist {
    /// The mean, before any cut.
    pub fn mean(&self) -> Ns {
        match *self {
            Self::Const(ns) => ns,
            Self::Uniform(low, high) => low.midpoint(high),
            Self::Exp { mean_ns, .. } => mean_ns,
            Self::Measured { quantiles, exponent } => quantiles.mean_at_power(exponent),
        }
    }
}
