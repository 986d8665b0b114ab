//! Options that several commands have.

use std::fmt::Display;
use std::path::PathBuf;

use vcoop_experiment::backend::{Choice, Request, select};
use vcoop_experiment::result::Limits;
use vcoop_model::plan::Plan;

use crate::failure::Failure;
use crate::output::style_of_notes;

/// What a policy may cost the host and others: the same everywhere.
#[derive(Debug, clap::Args)]
pub(crate) struct MayCost {
    /// What the best policy may cost others, compared with the baseline. Default: mean=1.1x and p99=1.25x
    /// of a host probe, missed=1% more of its periods, work=0.95x of a load's work kept
    #[arg(long = "may-cost", value_name = "NAME=LIMIT", value_delimiter = ',', value_parser = may_cost)]
    changes: Vec<String>,
}

impl MayCost {
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        // Each was parsed before.
        self.changes.iter().for_each(|text| drop(limits.set(text)));
        limits
    }

    /// The options that give the same value again.
    pub(crate) fn arguments(&self) -> Vec<String> {
        if self.changes.is_empty() {
            return Vec::new();
        }
        vec!["--may-cost".to_owned(), self.changes.join(",")]
    }
}

/// A number with a minimum.
pub(crate) fn least<const LEAST: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| *n >= LEAST);
    number.ok_or_else(|| format!("give a number from {LEAST} to {}", u32::MAX))
}

fn may_cost(text: &str) -> Result<String, String> {
    let changed = Limits::default().set(text);
    // clap does not wrap errors.
    let said = |why| format!("\n{}", style_of_notes().wrap(&format!("  {why}"), 4).trim_end());
    changed.map(|()| text.to_owned()).map_err(said)
}

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BackendArg {
    /// The simulator, on the host that the scenario describes
    Sim,
    /// Real vCPUs beside a simulation of this host where they work and the scenario fits; else sim
    Auto,
    /// Real vCPUs on /dev/kvm: it loads this host, with real-time threads
    Kvm,
}

/// Whose costs are simulated.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Calibration {
    /// Simulate with this host's costs (from `vcoop calibrate -o FILE`) instead of the scenario's profile
    #[arg(
        id = "calibration",
        long,
        value_name = "FILE",
        env = "VCOOP_CALIBRATION",
        hide_env_values = true
    )]
    pub(crate) file: Option<PathBuf>,
}

/// A remedy where a command has the option `--backend`.
pub(crate) const SIMULATE: &str = "simulate it: --backend sim";

/// A remedy where the option `--fit` lets this host measure these plans.
pub(crate) fn fit(plans: Vec<Plan>) -> Option<&'static str> {
    let fitted = select(Request { choice: Choice::Kvm, fit: true }, plans);
    fitted.is_ok().then_some("fit it to this host: --fit")
}

/// A failure of a command that was to measure on this host, with the remedies that its options are.
pub(crate) fn unmeasured(
    why: impl Display,
    remedies: impl IntoIterator<Item = &'static str>,
) -> Failure {
    let mut text = why.to_string();
    for remedy in remedies {
        text += "; or ";
        text += remedy;
    }
    Failure::Missing(text)
}

/// What `run` and `reproduce` share.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    /// Measured time of a repeat, with a unit: 500ms, 10s
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// Time at the start that is not measured
    #[arg(long, value_name = "TIME")]
    pub(crate) warmup: Option<String>,
    /// Repeats, each with a seed of its own; a verdict needs 5, and 10 are better
    #[arg(long, value_name = "N")]
    pub(crate) repeats: Option<String>,
    /// Seed of the first repeat
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<String>,
    /// Runs at the same time; results do not depend on it. Default: one for each CPU
    #[arg(long, value_name = "N", value_parser = least::<1>)]
    pub(crate) jobs: Option<u32>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Say on stderr how long it took, and what captures lost
    #[arg(long, short, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

/// Which single run to look into.
#[derive(Debug, clap::Args)]
pub(crate) struct SingleRun {
    /// A scenario file, or the name of a built-in scenario (see `vcoop list scenarios`)
    pub(crate) scenario: String,
    /// Policy; default: the one that the scenario compares the others with
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Change a field: host.pcpus=8, vm.guest.vcpus=2, load.build.file=my.txt.gz
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    /// The cell of the matrix with this value: interval=1ms, vcpus=4; several: all must match
    #[arg(long = "cell", value_name = "NAME=VALUE")]
    pub(crate) cells: Vec<String>,
}
