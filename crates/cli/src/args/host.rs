//! Arguments of the commands about VMs of this host, or about this guest.

use std::path::PathBuf;

use crate::options::{Calibration, MayCost};

#[derive(Debug, clap::Args)]
pub(crate) struct VmsArgs {
    /// Instead of the table, say how the guest of this VM gets vcoop's driver: what to add to the command line of QEMU
    /// or to libvirt's XML, and what to load in the guest. For a VM that does not run yet, any name is accepted
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["qmp", "json", "tree"]
    )]
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

#[derive(Debug, clap::Args)]
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
    /// Write also into a folder that holds other files or another VM's result. A result of the same VM is
    /// replaced without it
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

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "vcoop conformance [OPTIONS] <VM>\n       vcoop conformance [OPTIONS] --window <FILE>"
)]
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
    /// How long the guest may take to react. A vCPU does not react while it waits for a CPU
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub(crate) grace: String,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AttachArgs {
    /// The VM: its name or the process id of its VMM, as `vcoop vms` shows them
    pub(crate) vm: String,
    /// The policy: static, wake-boost, dynamic, host-hint, entitlement or hotplug, with what --set changes
    #[arg(long)]
    pub(crate) policy: String,
    /// Change a setting of the policy: policy.wake-boost.run=1ms, policy.static.means="nice -10"
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    /// End the policy after this time, with a unit: 500ms, 10s
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Print one JSON document on stdout at the end, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScxArgs {
    /// End after this time, with a unit: 500ms, 10s
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
#[command(override_usage = "vcoop detach <VM>\n       vcoop detach --all")]
pub(crate) struct DetachArgs {
    /// The VM: its name or the process id of its VMM
    #[arg(required_unless_present = "all")]
    pub(crate) vm: Option<String>,
    /// All VMs that have a policy
    #[arg(long, conflicts_with = "vm")]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Print nothing if nothing was left changed
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeeperArgs {
    /// The owner's journal
    pub(crate) journal: PathBuf,
}

#[derive(Debug, clap::Args)]
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
    /// Measured time of a turn, with a unit. A warm-up of 500ms, which is not measured, comes before it
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) each: String,
    /// A shell command that runs during each turn and prints NAME=NUMBER, such as a benchmark in the
    /// guest. It has VCOOP_VM, VCOOP_POLICY and VCOOP_EACH_S in its environment
    #[arg(long, value_name = "CMD")]
    pub(crate) exec: Option<String>,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Do not run the thread that measures how long others on the host wait (host.probe)
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Write report.html, report.txt, result.json and the data files into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write also into a folder that holds other files or another VM's result. A result of the same VM is
    /// replaced without it
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DaemonArgs {
    /// Rules; read again on SIGHUP. Default: /etc/vcoop/vcoop.toml, if it is there
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Read the rules, say what is wrong with them, and do nothing else
    #[arg(long)]
    pub(crate) check: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Time between two updates, with a unit; at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) every: String,
    /// Measure once, print the table and end. Without a terminal that is the default
    #[arg(long)]
    pub(crate) once: bool,
}

/// What decides how many vCPUs a guest uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum GovernorArg {
    /// One core at a time, by thresholds of steal, as merged in Linux
    Step,
    /// As many as steal and CPU time allow; the guest keeps 95 % of the CPU time that it had
    Proportional,
    /// Those that the host asks for, which vcoop's driver says: see `vcoop attach --policy host-hint`
    HostHint,
}

/// How a guest keeps off vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ByArg {
    /// cpuset.cpus of every cgroup below the root (cgroup v2)
    Cpuset,
    /// CPU hotplug; never CPU 0
    Hotplug,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GuestArgs {
    /// What decides how many vCPUs are used
    #[arg(long, value_enum, default_value = "proportional")]
    pub(crate) governor: GovernorArg,
    /// How tasks are kept off the other vCPUs
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
    /// Continue although threads have set CPU affinities, which this kernel (before 6.2) forgets
    #[arg(long)]
    pub(crate) lose_affinities: bool,
    /// Serve metrics as OpenMetrics text on this Unix socket
    #[arg(long, value_name = "PATH")]
    pub(crate) metrics: Option<PathBuf>,
    /// Also show the decisions to change nothing
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print one JSON object for each decision on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// For tests: DIR/proc and DIR/sys instead of this system's
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) tree: Option<PathBuf>,
}
