//! What the command line can say.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use vcoop_experiment::result::Limits;

const EXIT: &str = "\
Exit codes: 0 done; 1 the run failed; 2 bad usage or bad scenario; 3 a needed facility is missing;
4 a condition of --fail-if is true; 5 some points of a sweep failed (their rows say why);
130 interrupted (what was measured until then is still printed).";

/// Cooperative vCPU scheduling: what each policy does to guest latency, and what the host pays.
#[derive(Debug, Parser)]
#[command(name = "vcoop", version = vcoop_build_id::BUILD, after_help = EXIT, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a scenario and compare policies.
    Run(RunArgs),
    /// Show what made the worst samples late, one by one and by cause.
    Explain(ExplainArgs),
    /// Write a run as a Perfetto trace: what ran where and when, and what made samples late.
    Trace(TraceArgs),
    /// Draw report.html again from a folder that --out wrote.
    Report(ReportArgs),
    /// Compare two results: show what differs beyond noise, and what only one of them has.
    Diff(DiffArgs),
    /// Compare the simulator with published tables and claims.
    Reproduce(ReproduceArgs),
    /// Run scenarios on real vCPUs and in the simulator, and show how far the two are apart.
    Validate(ValidateArgs),
    /// Run a scenario at many points and keep the results as Parquet.
    Sweep(SweepArgs),
    /// Draw a heat map of a sweep: the best policy, or a number, over two axes.
    Map(MapArgs),
    /// Search for the policy and settings that hold limits at the least cost.
    Tune(TuneArgs),
    /// Find how many VMs, or which ratio of vCPUs to pCPUs, fit before a limit breaks.
    Capacity(CapacityArgs),
    /// List scenarios, profiles, policies, published tables and claims.
    List(ListArgs),
    /// Print the JSON schema of scenario files, for editors.
    Schema,
    /// Show which threads a capture becomes, and which events could not be converted.
    Capture(CaptureArgs),
    /// Measure what mechanisms cost on this host, and write a profile for the simulator.
    Calibrate(CalibrateArgs),
    /// Show what works on this host, what is missing, and how to get it.
    Doctor(DoctorArgs),
    /// Show the VMs that run on this host, and the threads of their vCPUs.
    Vms(VmsArgs),
    /// Show how long a running VM's vCPUs wait for a CPU, and what runs instead. Changes nothing.
    Observe(ObserveArgs),
    /// Compare policies on a running VM, in turns.
    Compare(CompareArgs),
    /// Hold the driver of a running VM's guest against the protocol of the shared page.
    Conformance(ConformanceArgs),
    /// Apply a policy to a running VM until Ctrl-C, --for, or `vcoop detach`.
    Attach(AttachArgs),
    /// Take a policy back from a running VM.
    Detach(DetachArgs),
    /// Undo what a killed vcoop left changed. It can be repeated.
    Restore(RestoreArgs),
    /// Apply policies by rules to the VMs of this host, as they come and go.
    Daemon(DaemonArgs),
    /// Schedule this host's fair threads by vcoop's sched_ext scheduler until Ctrl-C or --for (experimental).
    Scx(ScxArgs),
    /// Show steal, boosts and budgets of VMs and vCPUs, kept up to date; keys apply policies.
    Top(TopArgs),
    /// In a Linux guest: use fewer vCPUs while the host takes CPU time away (steal).
    Guest(GuestArgs),
    /// Take boosts back when their owner dies; started by the owner.
    #[command(hide = true)]
    Keeper(KeeperArgs),
    /// Print shell completions.
    Completions(CompletionsArgs),
    /// Write man pages into a folder, or print the first one.
    Man(ManArgs),
}

/// What a policy may cost the host and others: the same everywhere.
#[derive(Debug, ClapArgs)]
pub(crate) struct MayCost {
    /// What the best policy may cost others, compared with the baseline: mean=1.1x and p99=1.25x of a
    /// host probe, missed=1% more of its periods, work=0.95x of a load's left
    #[arg(long = "may-cost", value_name = "NAME=LIMIT", value_delimiter = ',', value_parser = may_cost)]
    changes: Vec<String>,
}

impl MayCost {
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        // Each was tried when it was read.
        self.changes.iter().for_each(|text| drop(limits.set(text)));
        limits
    }

    /// The options that say so again.
    pub(crate) fn words(&self) -> Vec<String> {
        if self.changes.is_empty() {
            return Vec::new();
        }
        vec!["--may-cost".to_owned(), self.changes.join(",")]
    }
}

fn may_cost(text: &str) -> Result<String, String> {
    Limits::default().set(text).map(|()| text.to_owned())
}

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    /// The simulator, on the host that the scenario describes
    Sim,
    /// Real vCPUs beside a simulation of this host where they work and the scenario fits; else sim
    Auto,
    /// Real vCPUs on /dev/kvm: it loads this host, with real-time threads
    Kvm,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RunArgs {
    /// A scenario file, or the name of a built-in scenario (see `vcoop list scenarios`)
    pub(crate) scenario: String,
    /// Where to run
    #[arg(long, value_enum, env = "VCOOP_BACKEND", hide_env_values = true, default_value_t = BackendArg::Sim)]
    pub(crate) backend: BackendArg,
    /// Scale a scenario that needs more CPUs than this host has down to it, in proportion
    #[arg(long)]
    pub(crate) fit: bool,
    /// Policies to compare instead of the scenario's, with commas between
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,
    /// Change a field: host.pcpus=8, vm.guest.vcpus=2, load.build.file=my.txt.gz
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Of a matrix only the cells with this value: interval=1ms, vcpus=4; several choose among these
    #[arg(long = "cell", value_name = "NAME=VALUE")]
    pub(crate) cells: Vec<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write report.html, report.txt, result.json, plan.json, scenario.toml and the data files into
    /// this folder: samples.parquet, latency.hlog, histograms, compare.txt
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files or another result
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// With --json: also what charts are drawn from (distributions, latency by time), as --out has it
    #[arg(long, requires = "json")]
    pub(crate) detail: bool,
    /// Write the result as OpenMetrics text
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
    /// End with exit code 4 if this holds for any policy that was run: 'guest.cyclictest.p99 > 1ms'.
    /// A number that is n/a counts as true
    #[arg(long, value_name = "NAME > LIMIT")]
    pub(crate) fail_if: Vec<String>,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Check everything, say what would run, where, and for how long
    #[arg(long, conflicts_with_all = ["json", "watch", "out"])]
    pub(crate) dry_run: bool,
    /// Show a dashboard on the terminal while it runs
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) watch: bool,
    /// Run twice, with different numbers of jobs, and compare the results byte by byte
    #[arg(long)]
    pub(crate) check_determinism: bool,
}

/// Whose costs are simulated.
#[derive(Debug, Default, ClapArgs)]
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

/// What `run` and `reproduce` share.
#[derive(Debug, ClapArgs)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    /// Measured time of a repeat, with a unit: 500ms, 10s
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) duration: Option<String>,
    /// Time dropped before it; it must be shorter
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) warmup: Option<String>,
    /// Repeats, each with a seed of its own; a verdict needs 5, and 10 are better
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) repeats: Option<String>,
    /// Seed of the first repeat
    #[arg(long, value_name = "SEED", allow_hyphen_values = true)]
    pub(crate) seed: Option<String>,
    /// Runs at the same time; results do not depend on it. Default: one for each CPU
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Say on stderr how fast it was, and what captures lost
    #[arg(long, short, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

/// Which single run to look into.
#[derive(Debug, ClapArgs)]
pub(crate) struct Single {
    /// A scenario file, or the name of a built-in scenario (see `vcoop list scenarios`)
    pub(crate) scenario: String,
    /// Policy; default: the one that the scenario compares the others with
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Change a field: host.pcpus=8, vm.guest.vcpus=2, load.build.file=my.txt.gz
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Of a matrix the cell with this value: interval=1ms, vcpus=4; several choose among these
    #[arg(long = "cell", value_name = "NAME=VALUE")]
    pub(crate) cells: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) single: Single,
    /// Where to run; auto is the simulator, because only it can show what happened around a sample
    #[arg(long, value_enum, default_value_t = BackendArg::Sim)]
    pub(crate) backend: BackendArg,
    /// Samples of each probe, at most 16
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) worst: usize,
    /// Only this probe
    #[arg(long, value_name = "NAME")]
    pub(crate) probe: Option<String>,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) single: Single,
    /// Where to run; auto is the simulator. A live run shows what tracefs records of the host
    #[arg(long, value_enum, default_value_t = BackendArg::Sim)]
    pub(crate) backend: BackendArg,
    /// Where to write the trace; <https://ui.perfetto.dev> opens it
    #[arg(long, short, value_name = "FILE", required_unless_present = "text")]
    pub(crate) output: Option<PathBuf>,
    /// Write it as text, a line an event; without --output to stdout
    #[arg(long)]
    pub(crate) text: bool,
    /// Begin of the window, from the start of the measurement, with a unit: 500ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// End of the window; default: that of the run
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    /// Measured time of the run, with a unit: 500ms, 10s
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) duration: Option<String>,
    /// Time dropped before it; it must be shorter
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) warmup: Option<String>,
    /// Seed of the run
    #[arg(long, value_name = "SEED", allow_hyphen_values = true)]
    pub(crate) seed: Option<String>,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReproduceArgs {
    /// Publications, tables or claims (see `vcoop list published`). Default: all
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write report.html, report.txt and reproduce.json into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files or another result
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReportArgs {
    /// A folder that --out of `vcoop run`, `vcoop reproduce` or `vcoop validate` wrote, or one with a
    /// result.json that `vcoop run --json --detail` printed
    pub(crate) dir: PathBuf,
    /// Write every chart as a picture of its own into this folder, too
    #[arg(long, value_name = "DIR")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DiffArgs {
    /// A result.json, or a folder that --out of `vcoop run` or `vcoop compare` wrote
    #[arg(value_name = "A")]
    pub(crate) first: PathBuf,
    /// The other result, likewise
    #[arg(value_name = "B")]
    pub(crate) second: PathBuf,
    /// Also show what does not differ beyond noise, or has no interval to tell by
    #[arg(long)]
    pub(crate) all: bool,
    /// End with exit code 4 if this holds for B over A under any policy: 'guest.cyclictest.p99 > 1.1x'
    #[arg(long, value_name = "NAME > RATIO")]
    pub(crate) fail_if: Vec<String>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ValidateArgs {
    /// Scenarios. Default: those that two CPUs can run
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenarios: Vec<String>,
    /// Scale scenarios that need more CPUs than this host has down to it, in proportion
    #[arg(long)]
    pub(crate) fit: bool,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write report.html, report.txt and validation.json into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files or another result
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

/// Where a sweep's points run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// All cores of this machine
    Local,
    /// An existing Ray cluster, by way of the Python package
    Ray,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SweepArgs {
    /// A sweep file
    #[arg(value_name = "SWEEP.toml")]
    pub(crate) file: PathBuf,
    /// Folder of the results. A sweep that was stopped resumes in its folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Points at the same time; results do not depend on it. Default: one for each CPU
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// Where points run; results do not depend on it
    #[arg(long, value_enum, default_value_t = EngineArg::Local)]
    pub(crate) engine: EngineArg,
    /// Address of the Ray cluster. Default: what Ray finds
    #[arg(long, value_name = "ADDRESS", env = "RAY_ADDRESS", hide_env_values = true)]
    pub(crate) ray_address: Option<String>,
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    /// Check everything and say what would run
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a summary as one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct MapArgs {
    /// A folder that `vcoop sweep --out` wrote
    pub(crate) dir: PathBuf,
    /// Axis down, by its column in the dataset
    #[arg(long, value_name = "COLUMN")]
    pub(crate) rows: String,
    /// Axis across
    #[arg(long, value_name = "COLUMN")]
    pub(crate) columns: String,
    /// What is in a cell: `best`, or a column of numbers of one policy, like ratio_p99
    #[arg(long, value_name = "WHAT", default_value = "best")]
    pub(crate) show: String,
    /// Whose numbers
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Of which probe, and of which metric where it is no latency: host.cpu. Default: the guests'
    /// latency, where there is one only
    #[arg(long, value_name = "NAME")]
    pub(crate) probe: Option<String>,
    /// Only points with this value of an axis; several: all of them
    #[arg(long, value_name = "COLUMN=VALUE")]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Title of the map
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Write it as an SVG picture into this file, instead of text on stdout
    #[arg(long, short, value_name = "FILE.svg")]
    pub(crate) out: Option<PathBuf>,
}

/// What `tune` and `capacity` share.
#[derive(Debug, ClapArgs)]
pub(crate) struct SearchArgs {
    /// A scenario file, or the name of a built-in scenario (see `vcoop list scenarios`)
    pub(crate) scenario: String,
    /// A limit that must hold, like 'guest.cyclictest.p999 < 100us'; several: all of them
    #[arg(long, value_name = "LIMIT", required = true)]
    pub(crate) slo: Vec<String>,
    /// Policies to look at, with commas between
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,
    /// Change a field: host.pcpus=8, vm.guest.vcpus=2
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Measured time of a repeat, with a unit: 500ms, 10s
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// Repeats of each setting, each with a seed of its own
    #[arg(long, value_name = "N")]
    pub(crate) repeats: Option<String>,
    /// Seed of the first repeat
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<String>,
    /// Runs at the same time; results do not depend on it. Default: one for each CPU
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// What a search can vary besides policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AlsoArg {
    /// Who fires guests' timers, and how early
    Timers,
    /// What idle vCPUs do, and how long the host polls for them
    Idle,
    /// How many of its vCPUs a guest uses
    Governors,
    /// Patches of Xen's scheduler
    Patches,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// What to minimize among settings that hold every limit: gain, which is what guests wait over what
    /// they wait under vanilla, as in every verdict; or a number of the result, like host.cpu
    #[arg(long, value_name = "NAME", default_value = "gain")]
    pub(crate) minimize: String,
    /// Vary these, too. Default: those that the scenario sets (a timer, an idle loop, a governor), and
    /// patches on a host with Xen's scheduler
    #[arg(long, value_enum, value_name = "A,B", value_delimiter = ',')]
    pub(crate) also: Vec<AlsoArg>,
    /// Settings to try
    #[arg(long, value_name = "N", default_value = "64", value_parser = least::<1>)]
    pub(crate) trials: u32,
    /// Repeats, with seeds that the search has not seen, of the best; 2 at least. Default: twice the
    /// scenario's
    #[arg(long, value_name = "N", value_parser = least::<2>)]
    pub(crate) confirm: Option<u32>,
    /// Seed of the search itself
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) search_seed: u64,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CapacityArgs {
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// What gets harder: host.pcpus=16..1, or vcpus_per_pcpu=0.5..4. Default: the first VM's count,
    /// 1 to 64
    #[arg(long, value_name = "PATH=EASY..HARD")]
    pub(crate) vary: Option<String>,
    /// The field that changes for vcpus_per_pcpu: the host's pCPUs, or a VM's count or vCPUs
    #[arg(long, value_name = "PATH", requires = "vary", default_value = "host.pcpus")]
    pub(crate) by: String,
}

/// What to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListWhat {
    /// Built-in scenarios
    Scenarios,
    /// Built-in machine profiles
    Profiles,
    /// Policies
    Policies,
    /// Published tables and claims
    Published,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ListArgs {
    /// What to list. Default: everything
    #[arg(value_enum)]
    pub(crate) what: Option<ListWhat>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CaptureArgs {
    /// A capture file (`perf script`, `trace-cmd report` or ftrace text, plain or compressed), or
    /// builtin:NAME
    pub(crate) file: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CalibrateArgs {
    /// Write the profile into this file, for `--set host.profile=FILE`
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Watch for so long what takes the CPUs of the idle host [default: 1min, 2s with --quick]
    #[arg(long, value_name = "TIME")]
    pub(crate) noise: Option<String>,
    /// Write constants only: no cost of the profile varies, and there is no noise
    #[arg(long)]
    pub(crate) constant: bool,
    /// Take some ten seconds instead of up to two minutes; fewer measures become stable
    #[arg(long)]
    pub(crate) quick: bool,
    /// Leave guests out: the host's own costs only, without KVM
    #[arg(long)]
    pub(crate) host_only: bool,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// What must work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Requirement {
    /// The micro-VM lab on /dev/kvm
    Kvm,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Exit with 3 if this does not work
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) require: Option<Requirement>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct VmsArgs {
    /// Instead of the table, say how the guest of this VM gets vcoop's driver: what to add to the
    /// command line of QEMU or to libvirt's XML, and what to load in the guest. Any name will do for a
    /// VM that does not run yet
    #[arg(long, value_name = "NAME", conflicts_with_all = ["qmp", "json", "tree"])]
    pub(crate) how: Option<String>,
    /// Also ask the QEMU behind this QMP socket for its name and the threads of its vCPUs; may be
    /// given several times. QEMU serves one client of a socket at a time
    #[arg(long, value_name = "SOCKET")]
    pub(crate) qmp: Vec<PathBuf>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// For tests: read DIR/proc, DIR/debugfs and DIR/libvirt instead of this host
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) tree: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ManArgs {
    /// Folder for one page a command; without it the first page is printed
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ObserveArgs {
    /// The VM: its name or the process id of its VMM, as `vcoop vms` shows them
    pub(crate) vm: String,
    /// How long, with a unit: 500ms, 10s. Ctrl-C ends it earlier and prints what was seen
    #[arg(long = "for", value_name = "TIME", default_value = "10s")]
    pub(crate) time: String,
    /// Write report.html, report.txt, result.json, plan.json, scenario.toml and trace.perfetto into
    /// this folder; <https://ui.perfetto.dev> opens the last
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files or another result
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Write this host, this VM and the load beside it as a scenario into this file, with captures in
    /// the same folder: `vcoop run FILE` and `vcoop tune FILE` show what would help
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ConformanceArgs {
    /// The VM: its name or the process id of its VMM, as `vcoop vms` shows them
    #[arg(required_unless_present = "window", conflicts_with = "window")]
    pub(crate) vm: Option<String>,
    /// A file that is a guest's window, instead of a VM
    #[arg(long, value_name = "FILE")]
    pub(crate) window: Option<PathBuf>,
    /// How long, with a unit: 500ms, 10s. Ctrl-C ends it earlier
    #[arg(long = "for", value_name = "TIME", default_value = "5s")]
    pub(crate) time: String,
    /// How long the guest may take to react. A vCPU that waits for a CPU cannot
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub(crate) grace: String,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AttachArgs {
    /// The VM: its name or the process id of its VMM, as `vcoop vms` shows them
    pub(crate) vm: String,
    /// The policy: static, wake-boost or dynamic, or one that --set makes of them
    #[arg(long)]
    pub(crate) policy: String,
    /// Change a setting of the policy: policy.wake-boost.run=1ms, policy.static.means="nice -10"
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Take it back after this time, with a unit: 500ms, 10s
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Print one JSON document on stdout at the end, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ScxArgs {
    /// End after this time, with a unit: 500ms, 10s
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DetachArgs {
    /// The VM: its name or the process id of its VMM
    #[arg(required_unless_present = "all")]
    pub(crate) vm: Option<String>,
    /// All VMs that have a policy
    #[arg(long, conflicts_with = "vm")]
    pub(crate) all: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RestoreArgs {
    /// Print nothing if nothing was left changed
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct KeeperArgs {
    /// The owner's journal
    pub(crate) journal: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CompareArgs {
    /// The VM: its name or the process id of its VMM, as `vcoop vms` shows them
    pub(crate) vm: String,
    /// Policies to compare, with commas between; ratios are to vanilla
    #[arg(long, value_name = "A,B", value_delimiter = ',', default_value = "vanilla,wake-boost")]
    pub(crate) policy: Vec<String>,
    /// Change a setting of a policy: policy.wake-boost.run=1ms
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Rounds; in each, every policy has its turn. A verdict needs 5, and 10 are better
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) rounds: u32,
    /// Measured time of a turn, with a unit
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) each: String,
    /// A shell command that runs during each turn and prints NAME=NUMBER, such as a benchmark in the
    /// guest. It has VCOOP_VM, VCOOP_POLICY and VCOOP_EACH_S in its environment
    #[arg(long, value_name = "CMD")]
    pub(crate) exec: Option<String>,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Do not run the thread that measures what others on the host wait (host.probe)
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Write report.html, report.txt, result.json and the data files into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files or another result
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DaemonArgs {
    /// Rules; read again on SIGHUP. Default: /etc/vcoop/vcoop.toml, if it is there
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Read the rules, say what is wrong with them, and do nothing else
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TopArgs {
    /// Time between two updates, with a unit; at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) every: String,
    /// Measure once, print the table and end. Without a terminal that is the default
    #[arg(long)]
    pub(crate) once: bool,
}

/// What decides how many vCPUs a guest uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GovernorArg {
    /// One core at a time, by thresholds of steal, as merged in Linux
    Step,
    /// As many as steal and CPU time allow; keeps nearly all the CPU time that the guest had
    Proportional,
    /// Those that the host asks for, which vcoop's driver says: see `vcoop attach --policy host-hint`
    HostHint,
}

/// How a guest keeps off vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByArg {
    /// cpuset.cpus of every cgroup below the root (cgroup v2)
    Cpuset,
    /// CPU hotplug; never CPU 0
    Hotplug,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GuestArgs {
    /// What decides how many vCPUs are used
    #[arg(long, value_enum, default_value = "proportional")]
    pub(crate) governor: GovernorArg,
    /// How the others are kept off
    #[arg(long, value_enum, default_value = "cpuset")]
    pub(crate) by: ByArg,
    /// Change a setting of the governor, by its key in scenario files: steal_high=10%,
    /// governor_interval=1s, governor_floor=2
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Change nothing; say what would be done, and why
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// End after this time, with a unit: 500ms, 10s. Default: at Ctrl-C or SIGTERM
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Undo what a killed `vcoop guest` left changed, and end. It can be repeated
    #[arg(long, conflicts_with_all = ["dry_run", "time", "metrics", "json", "verbose"])]
    pub(crate) restore: bool,
    /// Go on although threads have CPU affinities of their own, which this kernel (before 6.2) forgets
    #[arg(long)]
    pub(crate) lose_affinities: bool,
    /// Serve metrics as OpenMetrics text on this Unix socket
    #[arg(long, value_name = "PATH")]
    pub(crate) metrics: Option<PathBuf>,
    /// Also show the decisions to change nothing
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print one JSON object a decision on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// For tests: DIR/proc and DIR/sys instead of this system's
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) tree: Option<PathBuf>,
}

/// A number of things that must be done: `LEAST` or more.
fn least<const LEAST: u32>(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if n >= LEAST => Ok(n),
        Ok(_) => Err(format!("too few; give {LEAST} or more")),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_experiment::deploy;

    /// What is printed can be typed: each line that begins with `vcoop` is one that clap takes.
    #[test]
    fn printed_lines_are_taken() {
        let all = deploy::builtin();
        let lines = all.iter().flat_map(|one| &one.lines).filter(|line| line.starts_with("vcoop "));
        let mut taken = 0;
        for line in lines {
            let words = line.split(" #").next().unwrap_or(line).split_whitespace();
            let read = Args::try_parse_from(words);
            assert!(read.is_ok(), "{line}: {:?}", read.err());
            taken += 1;
        }
        assert!(taken >= 6, "{taken} lines");
    }
}
