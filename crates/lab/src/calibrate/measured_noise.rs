//! Noise of a host, as measured and as in a profile.

use serde::Serialize;
use vcoop_model::plan::Ns;
use vcoop_model::profile::{Noise, NoiseBy};
use vcoop_model::quantiles::Quantiles;

use super::settle::Distribution;

/// Longest time that a profile accepts.
const LONGEST_NS: Ns = 4_000_000_000;

/// Noise, and the time in which it was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredNoise {
    /// What it is made of.
    pub by: NoiseBy,
    /// Lengths of the times for which it took the CPU, in nanoseconds.
    #[serde(flatten)]
    pub took: Distribution,
    /// Watched time, all CPUs together.
    pub watched_ns: Ns,
    /// Watched CPUs.
    pub cpus: Vec<u32>,
}

impl MeasuredNoise {
    /// Mean time from one to the next.
    pub fn period_ns(&self) -> Ns {
        self.watched_ns / self.took.n.max(1)
    }

    /// Part of the watched time that it took, in permille.
    pub fn permille(&self) -> u64 {
        self.took.n * self.took.mean_ns * 1_000 / self.watched_ns.max(1)
    }

    /// Whether it left the CPU any time; a profile accepts no other noise.
    pub(crate) fn leaves_time(&self) -> bool {
        let Noise { period_ns, mean_ns, .. } = self.noise();
        mean_ns < period_ns
    }

    /// As a profile has it.
    pub(crate) fn noise(&self) -> Noise {
        let takes = Quantiles::ascending(self.took.quantiles().map(|ns| ns.min(LONGEST_NS)));
        // A few samples, or cut ones, may have a mean that their quantiles do not allow.
        let known = Some(self.took.mean_ns).filter(|&mean| takes.allow_mean(mean));
        Noise {
            name: self.by.name().to_owned(),
            by: self.by,
            period_ns: self.period_ns(),
            takes,
            mean_ns: known.unwrap_or(takes.mean()),
        }
    }

    /// Its source, as in the profile.
    pub(crate) fn source(&self, place: &str) -> String {
        let Self { took, watched_ns, cpus, .. } = self;
        let seconds = watched_ns / 1_000_000_000;
        let of = match self.by {
            NoiseBy::Interrupts => "without a context switch, ticks left out",
            NoiseBy::Threads => "with a context switch",
        };
        format!(
            "measured by vcoop calibrate on {place}: gaps {of} in {seconds} s of a thread of nice 19 that spun on CPUs {cpus:?} by \
             turns; n={}, mean {} ns",
            took.n, took.mean_ns
        )
    }
}
