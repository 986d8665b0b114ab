//! Measures what mechanisms cost on this host: the profile that the simulator needs to predict it.
//!
//! Everything is timed from user space and from inside guests of the lab: each number is the time between two readings
//! of the TSC, and each [`Measure`] says between which. The simulator's costs are finer: `costs` has the rules by which
//! measures become [`Cost`]s. The source of each cost names its rule, the measures, and the number of samples.
//!
//! Interference: the measuring threads are pinned and, where the host lets them, real-time (FIFO 10);
//! memory is locked; `/dev/cpu_dma_latency` is held at 0 while guests are measured (as in the lab),
//! not while idle wake-ups are. All of it ends with [`calibrate`].

mod costs;
mod measured_noise;
mod settle;

mod bench;
mod gaps;
mod guest;
mod host;
mod noise;
mod run;
mod timer;

use serde::Serialize;
use vcoop_model::plan::Ns;
use vcoop_model::profile::Profile;

use crate::facts::HostFacts;

pub use costs::{BASE_PROFILE, Cost, Origin};
pub use measured_noise::MeasuredNoise;
pub use run::calibrate;
pub use settle::{Distribution, TOLERANCE_PERCENT};

/// How to calibrate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CalibrateOptions {
    /// Measure for a tenth of the time: fewer medians settle.
    pub quick: bool,
    /// Leave guests out: no KVM is needed.
    pub host_only: bool,
    /// How long to watch for noise on the idle host's CPUs, in nanoseconds; `None`: a minute, or two seconds if quick.
    pub noise_ns: Option<Ns>,
    /// Only constants: no distributions of costs, and no noise.
    pub constant: bool,
}

/// One thing that was timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measure {
    /// Name of the measurement.
    pub name: &'static str,
    /// What exactly was timed.
    pub about: &'static str,
    /// The samples.
    #[serde(flatten)]
    pub distribution: Distribution,
    /// Number of blocks, without the first, which is dropped.
    pub blocks: usize,
    /// Whether the last three block medians agreed within [`TOLERANCE_PERCENT`] before the time was
    /// up.
    pub stable: bool,
}

/// One thing that could not be timed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Name.
    pub name: &'static str,
    /// Why.
    pub why: String,
}

/// Conditions of the measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conditions {
    /// The measuring threads were real-time.
    pub fifo: bool,
    /// Memory was locked.
    pub memory_locked: bool,
    /// `/dev/cpu_dma_latency` could be held while guests were measured.
    pub cpu_dma_latency_held: bool,
    /// KVM's halt polling was off in all guests that should not have it; `None` without guests.
    pub halt_polling_off: Option<bool>,
    /// CPU under measurement.
    pub cpu: u32,
    /// A second CPU, for measurements that need two.
    pub other_cpu: Option<u32>,
    /// `/proc/loadavg` before.
    pub load_average: String,
    /// Part of the time, in permille, that this host's own hypervisor kept its CPUs from it.
    pub steal_permille: Option<u64>,
    /// How long it all took, in nanoseconds.
    pub took_ns: Ns,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Calibration {
    /// This host.
    pub facts: HostFacts,
    /// Which implementation stands behind `/dev/kvm`; `None` if guests were left out.
    pub kvm: Option<String>,
    /// Conditions.
    pub conditions: Conditions,
    /// What was timed.
    pub measures: Vec<Measure>,
    /// What could not be timed.
    pub skipped: Vec<Skipped>,
    /// Activities that took CPUs unasked.
    pub noise: Vec<MeasuredNoise>,
    /// The simulator's costs, in the order of profile files.
    pub costs: Vec<Cost>,
    /// The profile; [`Profile::to_toml`] gives the file.
    #[serde(skip)]
    pub profile: Profile,
    /// Whether it ended by itself, not because the caller stopped it.
    pub complete: bool,
}

impl Calibration {
    /// Whether every median has settled.
    pub fn is_stable(&self) -> bool {
        self.measures.iter().all(|m| m.stable)
    }
}
