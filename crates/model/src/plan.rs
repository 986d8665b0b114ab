//! A plan: one scenario, one policy, one cell of its matrix, resolved and validated.
//!
//! A plan has no unit strings, no defaults and no references to files: it describes the experiment completely, in
//! integer nanoseconds, and both backends run it as it is. Repeats differ only by seed.

mod drivers;
pub mod govern;
mod program;
mod rogue;
mod routine;
mod storm;
pub mod virt;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use vcoop_credit1::Credit1Config;
use vcoop_policy::config::{DynamicConfig, Means, RatelimitConfig, WakeBoostConfig};
use vcoop_powervm::PoolConfig;
use vcoop_sched::config::{LevelConfig, Policy, Topology};

pub use crate::dist::{Dist, Ns};
use crate::profile::{Costs, Cpu, Noise};
use crate::toml_read::value::choice;
pub use program::{Mode, Phase, Program, Step};
pub use rogue::{Claim, Registers, RogueStep};
pub use routine::{Act, IpiTo, LockKind, QueueRoom, Section};
pub use storm::{DensityPlan, Milestone, Score, StormPlan, ViewPlan, ViewStart};
pub use virt::{GuestTimer, Virt};

/// One runnable experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Scenario name.
    pub scenario: String,
    /// Name of the policy under test, as the series shows it.
    pub policy_name: String,
    /// Matrix coordinates of this cell: path as the user wrote it, value as text.
    pub params: BTreeMap<String, String>,
    /// Measured time after the warm-up.
    pub duration_ns: Ns,
    /// Time before the measurement, which is dropped.
    pub warmup_ns: Ns,
    /// Independent repeats.
    pub repeats: u32,
    /// Seed of repeat 0.
    pub seed: u64,
    /// The machine.
    pub host: HostPlan,
    /// Threads of the host that are not vCPUs: loads and host probes.
    pub host_tasks: Vec<TaskPlan>,
    /// Virtual machines.
    pub vms: Vec<VmPlan>,
    /// The policy under test.
    pub policy: PolicyPlan,
    /// What to report, in order. Probes of one name are one series: the copies of a VM.
    pub probes: Vec<ProbePlan>,
    /// Changes during the run, sorted by time from the start of the warm-up.
    pub timeline: Vec<TimelineEvent>,
    /// VMs that are created during the run.
    pub storms: Vec<StormPlan>,
    /// Views of single runs.
    pub views: Vec<ViewPlan>,
    /// Number of slices of the measured time for which latencies and policy events are kept; 0: none.
    #[serde(default)]
    pub slices: u32,
}

impl Plan {
    /// A task of it.
    pub fn task(&self, at: Target) -> &TaskPlan {
        match at {
            Target::Host(i) => &self.host_tasks[i as usize],
            Target::Guest { vm, task } => &self.vms[vm as usize].tasks[task as usize],
        }
    }

    /// The pCPU for housekeeping of guests (exitless timers, an injector thread): the last one that nothing is pinned
    /// to, else the last one without vCPUs; `None` if vCPUs may use all. With `nohz_full` it is one of the other pCPUs.
    pub fn housekeeping(&self) -> Option<u32> {
        let cpus = self.host.sched.cpus();
        let misses = |list: &Vec<u32>, cpu: u32| !list.is_empty() && !list.contains(&cpu);
        let of_vcpus =
            |cpu: &u32| self.vms.iter().flat_map(|vm| &vm.vcpu_cpus).all(|list| misses(list, *cpu));
        let of_loads = |cpu: &u32| self.host_tasks.iter().all(|task| misses(&task.cpus, *cpu));
        let full = &self.host.nohz_full;
        let ticks = || (0..cpus).rev().filter(|cpu| !full.contains(cpu));
        let candidates: Vec<u32> = ticks().filter(of_vcpus).collect();
        let keeper = if full.is_empty() { None } else { ticks().next() };
        candidates.iter().copied().find(of_loads).or(candidates.first().copied()).or(keeper)
    }

    /// What numbers of its results can be about: the host, its loads and devices, VMs and their tasks, vCPUs whose
    /// waits are measured, and storms. Copies of a VM or a task have one name.
    pub fn subjects(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::from(["host".to_owned()]);
        all.extend(self.probes.iter().map(|probe| probe.probe.clone()));
        all.extend(self.host_tasks.iter().map(|task| format!("host.{}", task.label)));
        all.extend(self.host.interrupts.iter().map(|device| format!("host.{}", device.name)));
        all.extend(self.storms.iter().map(|storm| storm.label.clone()));
        for vm in &self.vms {
            all.insert(vm.label.clone());
            all.extend(vm.tasks.iter().map(|task| format!("{}.{}", vm.label, task.label)));
            if vm.waits {
                all.extend((0..vm.vcpu_cpus.len() as u32).map(|vcpu| vm.wait_probe(vcpu)));
            }
        }
        all
    }

    /// Whether a VM may keep off some of its vCPUs: it has a governor, or the timeline names those that it prefers.
    pub fn has_mask(&self, vm: usize) -> bool {
        let names = |event: &TimelineEvent| matches!(event.action, TimelineAction::Prefer { vm: of, .. } if of as usize == vm);
        self.governor(vm).is_some() || self.timeline.iter().any(names)
    }
}

/// The host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostPlan {
    /// Name of the profile the costs came from.
    pub profile: String,
    /// What machine the profile is of, and where its numbers are from, in a line.
    #[serde(default)]
    pub origin: String,
    /// What its CPU's timers are, if the profile says so; what needs to know them is refused
    /// without.
    pub cpu: Option<Cpu>,
    /// What each mechanism costs on this machine.
    pub costs: Costs,
    /// Scheduler, with the topology of the pCPUs.
    pub sched: HostSched,
    /// When a kernel-mode section can be preempted.
    pub preemption: Preemption,
    /// pCPUs without a periodic tick while one thread runs there (`nohz_full`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nohz_full: Vec<u32>,
    /// Speed of work on a pCPU while one, two, ... siblings of its core are busy, in millionths; the last one holds
    /// for more. Empty: as fast as alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smt_ppm: Vec<u32>,
    /// Which vCPU threads may run on siblings of one core at a time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub core_scheduling: CoreScheduling,
    /// Devices that interrupt pCPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupts: Vec<InterruptPlan>,
    /// Activities that take pCPUs unasked; only for the simulator, because a live host has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noise: Vec<Noise>,
}

choice! {
    /// Core scheduling of a Linux host: which threads have a cookie in common, and so may share a core. Threads other
    /// than vCPUs have no cookie, and share cores only with each other.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CoreScheduling {
        /// Off: all threads may share a core.
        #[default]
        Off = "off",
        /// The vCPUs of one VM may, as if its process had a cookie (`PR_SCHED_CORE`).
        Vm = "vm",
        /// No two vCPUs may: each has its own cookie.
        Vcpu = "vcpu",
    }
}

/// A device of the host that interrupts each of its pCPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterruptPlan {
    /// Name.
    pub name: String,
    /// Time from one interrupt to the next, on each of the pCPUs.
    pub period: Dist,
    /// Time that handler and softirq keep the pCPU.
    pub work: Dist,
    /// pCPUs that take them.
    pub cpus: Vec<u32>,
}

impl HostPlan {
    /// The host in a line: number of pCPUs, and source of the costs.
    pub fn words(&self) -> String {
        let n = self.sched.cpus();
        let plural = if n == 1 { "" } else { "s" };
        format!("{n} pCPU{plural} with the costs of {} ({})", self.profile, self.origin)
    }
}

/// The scheduler of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one a plan")]
pub enum HostSched {
    /// Linux's classes; `groups[i]` is the group with index `i`.
    Linux(LevelConfig),
    /// Xen's credit1; `domains[i]` is VM `i`.
    Credit1(Credit1Config),
    /// A shared processor pool as PowerVM has it; `partitions[i]` is VM `i`.
    Pool(PoolConfig),
}

impl HostSched {
    /// The host's pCPUs.
    pub fn topology(&self) -> &Topology {
        match self {
            Self::Linux(level) => &level.topology,
            Self::Credit1(credit1) => &credit1.topology,
            Self::Pool(pool) => &pool.topology,
        }
    }

    /// The topology, mutable.
    pub fn topology_mut(&mut self) -> &mut Topology {
        match self {
            Self::Linux(level) => &mut level.topology,
            Self::Credit1(credit1) => &mut credit1.topology,
            Self::Pool(pool) => &mut pool.topology,
        }
    }

    /// Number of pCPUs.
    pub fn cpus(&self) -> u32 {
        self.topology().cpus()
    }

    /// Period of the scheduler's tick; for a pool, its dispatch window.
    pub fn tick_ns(&self) -> Ns {
        match self {
            Self::Linux(level) => level.tick_ns,
            Self::Credit1(credit1) => credit1.tick_ns(),
            Self::Pool(pool) => pool.window_ns,
        }
    }

    /// Linux's scheduler, if the host has it.
    pub fn linux(&self) -> Option<&LevelConfig> {
        if let Self::Linux(level) = self { Some(level) } else { None }
    }

    /// Linux's scheduler, mutable, if the host has it.
    pub fn linux_mut(&mut self) -> Option<&mut LevelConfig> {
        if let Self::Linux(level) = self { Some(level) } else { None }
    }

    /// Xen's scheduler, if the host has it.
    pub fn credit1(&self) -> Option<&Credit1Config> {
        if let Self::Credit1(credit1) = self { Some(credit1) } else { None }
    }

    /// PowerVM's pool, if the host has it.
    pub fn pool(&self) -> Option<&PoolConfig> {
        if let Self::Pool(pool) = self { Some(pool) } else { None }
    }

    /// The scheduler's name in scenarios.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Linux(_) => "linux",
            Self::Credit1(_) => "credit1",
            Self::Pool(_) => "powervm",
        }
    }
}

choice! {
    /// Kernel preemption model (PREEMPT_NONE, PREEMPT_VOLUNTARY, ...): when a kernel section can be preempted.
    /// Voluntary preemption points are `Costs::voluntary_point_ns` apart. A section with preemption off is never
    /// preempted.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Preemption {
        /// Not before its end.
        None = "none",
        /// At its next voluntary preemption point.
        Voluntary = "voluntary",
        /// At once by real-time threads, at its end by fair ones.
        Lazy = "lazy",
        /// At once.
        Full = "full",
    }
}

/// A thread of the host or a task of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskPlan {
    /// Unique within its level (`build/3` for the fourth thread of load `build`).
    pub name: String,
    /// Index of the report group ("who ran instead"), into `Plan::groups()`; loads of one name
    /// share it.
    pub label: String,
    /// What it does.
    pub program: Program,
    /// Scheduling policy.
    pub policy: Policy,
    /// CPUs it may use (pCPUs for host threads, vCPUs for guest tasks); empty = all.
    pub cpus: Vec<u32>,
    /// Time at which it starts, from the start of the warm-up; in a VM of a storm, from VMStart.
    pub start_ns: Ns,
    /// Its times are relative to those of other threads (a capture, rt-app): it starts at `start_ns` exactly. Other
    /// tasks that would start with the run start at a drawn time in the simulator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
    /// In a guest: `start_ns` counts from the end of the VM's boot program.
    pub after_login: bool,
    /// Timer slack of its sleeps (0 for RT; 50 us is Linux's default for the rest).
    pub timer_slack_ns: Ns,
    /// On a Linux host: index into its groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u16>,
    /// In a guest: the process of which it is a thread, whose address space TLB flushes are about; `None`: all tasks of
    /// its label are one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// For a hog of a live host: the CPU method of `stress-ng`, which then does the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stress_ng: Option<String>,
    /// In a guest: its program is the recorded activity of a vCPU's thread as a whole. So its runs include the CPU time
    /// for exits, the guest's kernel and switches, and it wakes up when that thread did, however long it waited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_vcpu: bool,
}

/// A virtual machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmPlan {
    /// Name: unique (`desktop/3` for the fourth copy of `desktop`).
    pub name: String,
    /// Report group: the copies of a VM share it, a VM alone has its name.
    pub label: String,
    /// Guest scheduler; `level.topology` holds the vCPUs.
    pub level: LevelConfig,
    /// Guest kernel preemption.
    pub preemption: Preemption,
    /// pCPUs each vCPU may use; one entry a vCPU, empty = all.
    pub vcpu_cpus: Vec<Vec<u32>>,
    /// Scheduling policy of the vCPU threads when not boosted, one a vCPU.
    pub vcpu_policy: Vec<Policy>,
    /// Means of boosting, one a vCPU (`None`: the policy's own).
    pub vcpu_means: Vec<Option<Means>>,
    /// Index into the groups of a Linux host, the domains of credit1, or the partitions of a pool.
    pub group: Option<u16>,
    /// On a Linux host: the groups of the vCPU threads, one a vCPU; empty: all are in `group` itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vcpu_groups: Vec<u16>,
    /// Tasks of the guest.
    pub tasks: Vec<TaskPlan>,
    /// Interrupt sources outside the guest.
    pub devices: Vec<DevicePlan>,
    /// Guest takes part in the boost protocol (advertised and registered).
    pub cooperative: bool,
    /// Each vCPU has a series of its waits for a pCPU after wake-ups: [`VmPlan::wait_probe`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub waits: bool,
    /// How it is virtualised.
    pub virt: Virt,
}

/// Whether a field is as by default, and left out of files.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl VmPlan {
    /// Name of the probe of a vCPU's waits; the copies of a VM share it.
    pub fn wait_probe(&self, vcpu: u32) -> String {
        format!("{}.vcpu{vcpu}", self.label)
    }
}

/// A device that interrupts a guest at a period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Name.
    pub name: String,
    /// Time between interrupts.
    pub period: Dist,
    /// vCPU that takes it.
    pub vcpu: u32,
    /// Injected as an NMI.
    pub nmi: bool,
    /// CPU time of the guest's softirq half, after the interrupt handler.
    pub softirq: Dist,
    /// Index of the guest task it wakes.
    pub wakes: Option<u32>,
}

/// The policy under test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum PolicyPlan {
    /// Do nothing.
    Vanilla,
    /// vCPU threads have these means for life.
    Static {
        /// The means.
        means: Means,
    },
    /// `dynamic`: boost with the guest's help.
    Dynamic(DynamicConfig),
    /// Boost on wake-up without the guest's help.
    WakeBoost(WakeBoostConfig),
    /// `ratelimit-auto`: a ratelimit for each domain of credit1, from its behaviour.
    RatelimitAuto(RatelimitConfig),
}

/// What to report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbePlan {
    /// `host.NAME` or `VM.NAME`: a measuring task; with `.interrupt` for [`SampleEnd::Interrupt`].
    pub probe: String,
    /// The task.
    pub target: Target,
    /// End of its samples.
    #[serde(default, skip_serializing_if = "is_default")]
    pub moment: SampleEnd,
}

/// End of a sample that begins when a timer is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleEnd {
    /// At the first instruction of the task that the timer wakes: cyclictest's latency.
    #[default]
    Task,
    /// At the entry of the guest's handler of the timer's interrupt: the latency of kvm-unit-tests'
    /// `tscdeadline_latency`.
    Interrupt,
}

/// A task of the plan.
///
/// Messages between tasks: within a level by a wake-up, with an IPI if the receiver is on another (v)CPU; from the host
/// into a VM by an interrupt at its `irq_vcpu`, like irqfd and Xen's event channels; from a VM to the host by an exit
/// (doorbell, hypercall) that wakes the thread; from one VM to another by an exit and an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// `host_tasks[i]`.
    Host(u32),
    /// `vms[vm].tasks[task]`.
    Guest {
        /// VM.
        vm: u32,
        /// Task.
        task: u32,
    },
}

/// A change during the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEvent {
    /// When, from the start of the warm-up.
    pub at_ns: Ns,
    /// What.
    pub action: TimelineAction,
}

/// Changes that are possible during a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimelineAction {
    /// Switch boosting on or off, for one VM or for all.
    Boost {
        /// VM index; `None` = global.
        vm: Option<u32>,
        /// On or off.
        on: bool,
    },
    /// Change a VM's vCPU baseline (what a boost returns to).
    VcpuPolicy {
        /// VM index.
        vm: u32,
        /// vCPU index.
        vcpu: u32,
        /// New baseline.
        policy: Policy,
    },
    /// Set the vCPUs that a guest prefers, like the mask in the shared page; it avoids the others.
    Prefer {
        /// VM index.
        vm: u32,
        /// vCPUs. Empty: all.
        vcpus: Vec<u32>,
    },
}
