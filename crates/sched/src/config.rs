//! Configuration of a level: its machine and its tunables.
//!
//! Every constant of the algorithms is a named field here, in nanoseconds unless the name says
//! otherwise. The defaults are the kernel's own, scaled by the number of CPUs where the kernel
//! scales them (`sched_tunable_scaling = LOG`).

mod eevdf;

pub use eevdf::{EevdfRelease, EevdfTunables};

pub use vcoop_policy::thread::Policy;

use crate::{ConfigError, MAX_CPUS};

/// Integer nanoseconds, on the driver's clock.
pub type Ns = u64;

/// How a CPU's fair class orders its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Fair {
    /// The completely fair scheduler, until Linux 6.5.
    Cfs(CfsTunables),
    /// Earliest eligible virtual deadline first, since Linux 6.6.
    Eevdf(EevdfTunables),
}

/// Releases of Linux whose rules with CFS differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CfsRelease {
    /// Until Linux 5.15: a CPU whose idle times are short on average does not pull when it goes idle (`newidle_balance`,
    /// until commit c5b0a7eefc70).
    V5_15,
    /// Linux 5.16 to 6.5.
    V6_5,
}

/// CFS constants (`kernel/sched/fair.c`, 6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CfsTunables {
    /// Which rules.
    pub release: CfsRelease,
    /// Period in which every runnable entity should run once.
    pub sched_latency_ns: Ns,
    /// No slice is shorter than this.
    pub min_granularity_ns: Ns,
    /// A waking entity preempts only when its virtual-time lead exceeds this.
    pub wakeup_granularity_ns: Ns,
    /// Place a sleeper at `min_vruntime - latency/2` rather than a whole latency behind.
    pub gentle_sleepers: bool,
}

impl CfsTunables {
    /// The values of Linux 6.5 times `1 + ilog2(min(cpus, 8))`.
    pub fn for_cpus(cpus: u32) -> Self {
        Self::of(CfsRelease::V6_5, cpus)
    }

    /// The same for a release.
    pub fn of(release: CfsRelease, cpus: u32) -> Self {
        let f = scale(cpus);
        Self {
            release,
            sched_latency_ns: 6_000_000 * f,
            min_granularity_ns: 750_000 * f,
            wakeup_granularity_ns: 1_000_000 * f,
            gentle_sleepers: true,
        }
    }
}

fn scale(cpus: u32) -> u64 {
    1 + u64::from(cpus.clamp(1, 8).ilog2())
}

/// What keeps real-time entities from starving the fair ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RtGuard {
    /// Nothing (`sched_rt_runtime_us = -1`).
    Off,
    /// RT throttling per CPU: so much RT in each period (kernels before 6.12).
    Throttle(Bandwidth),
    /// The fair server (6.12 and later, deferred): starved fair entities get so much in each period,
    /// at its zero-laxity point.
    FairServer(Bandwidth),
    /// Both (6.12 and later with `CONFIG_RT_GROUP_SCHED`): RT throttling by this, and a fair server with
    /// what it leaves of the period.
    Both(Bandwidth),
}

impl RtGuard {
    /// RT throttling with the kernel's default.
    pub const THROTTLE: Self =
        Self::Throttle(Bandwidth { runtime_ns: 950_000_000, period_ns: 1_000_000_000 });

    /// The fair server with the kernel's default.
    pub const FAIR_SERVER: Self =
        Self::FairServer(Bandwidth { runtime_ns: 50_000_000, period_ns: 1_000_000_000 });

    /// RT time allowed in a period, if RT is throttled.
    pub fn throttle(self) -> Option<Bandwidth> {
        match self {
            Self::Throttle(rt) | Self::Both(rt) => Some(rt),
            Self::Off | Self::FairServer(_) => None,
        }
    }

    /// Fair time granted in a period, if there is a fair server.
    pub fn fair_server(self) -> Option<Bandwidth> {
        match self {
            Self::FairServer(fair) => Some(fair),
            Self::Both(Bandwidth { runtime_ns, period_ns }) => {
                let left = period_ns.saturating_sub(runtime_ns);
                (left > 0).then_some(Bandwidth { runtime_ns: left, period_ns })
            }
            Self::Off | Self::Throttle(_) => None,
        }
    }
}

/// So much time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Bandwidth {
    /// The time.
    pub runtime_ns: Ns,
    /// The period.
    pub period_ns: Ns,
}

/// Settings of SCHED_DEADLINE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DlConfig {
    /// Admission control: reservations fit into 95 % of the CPUs (less what fair servers have), and no entity with a
    /// reservation is confined to some CPUs. Off is `sched_rt_runtime_us = -1`.
    pub admission: bool,
    /// A timer ends a runtime when it is used up (HRTICK_DL, on since Linux 7.1 on x86), instead of the next tick.
    pub hrtick: bool,
}

impl Default for DlConfig {
    fn default() -> Self {
        Self { admission: true, hrtick: false }
    }
}

/// Load-balancing constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Balance {
    /// Periodic balancing on the tick.
    pub periodic: bool,
    /// Pull when a CPU is about to go idle.
    pub newidle: bool,
    /// An entity that ran within this time is cache-hot and not pulled at first.
    pub migration_cost_ns: Ns,
    /// Busiest must exceed local by this many percent.
    pub imbalance_pct: u32,
    /// A busy CPU balances this many times less often than an idle one.
    pub busy_factor: u32,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            periodic: true,
            newidle: true,
            migration_cost_ns: 500_000,
            imbalance_pct: 117,
            busy_factor: 16,
        }
    }
}

/// CPU topology: all parts are of equal size, and CPUs are numbered threads first, then cores, then LLCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Topology {
    /// Hardware threads a core.
    pub threads_per_core: u32,
    /// Cores that share a last-level cache (a socket, here).
    pub cores_per_llc: u32,
    /// Sockets.
    pub llcs: u32,
}

impl Topology {
    /// One LLC, no SMT.
    pub fn flat(cpus: u32) -> Self {
        Self { threads_per_core: 1, cores_per_llc: cpus, llcs: 1 }
    }

    /// Refuses a topology without CPUs or with more than a set can hold.
    ///
    /// # Errors
    ///
    /// [`ConfigError::CpuCount`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        let cpus = u64::from(self.threads_per_core)
            .saturating_mul(u64::from(self.cores_per_llc))
            .saturating_mul(u64::from(self.llcs));
        if cpus == 0 || cpus > u64::from(MAX_CPUS) {
            return Err(ConfigError::CpuCount { cpus });
        }
        Ok(())
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> u32 {
        self.threads_per_core * self.cores_per_llc * self.llcs
    }

    /// The LLC of a CPU.
    pub fn llc(&self, cpu: u32) -> u32 {
        cpu / (self.threads_per_core * self.cores_per_llc)
    }

    /// The core of a CPU.
    pub fn core(&self, cpu: u32) -> u32 {
        cpu / self.threads_per_core
    }
}

/// Scheduling classes, in ascending order of precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClassId {
    #[default]
    Fair,
    Rt,
    Dl,
}

impl ClassId {
    /// The class of a policy.
    #[inline]
    pub(crate) fn of(policy: &Policy) -> Self {
        match policy {
            Policy::Normal { .. } | Policy::Idle => Self::Fair,
            Policy::Fifo(_) | Policy::Rr(_) => Self::Rt,
            Policy::Deadline { .. } => Self::Dl,
        }
    }
}

/// Everything a [`Level`](crate::Level) needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LevelConfig {
    /// CPUs of the level.
    pub topology: Topology,
    /// Tick period (`1/HZ`).
    pub tick_ns: Ns,
    /// Fair class.
    pub fair: Fair,
    /// Round-robin slice of SCHED_RR (100 ms).
    pub rr_slice_ns: Ns,
    /// Starvation guard.
    pub rt_guard: RtGuard,
    /// SCHED_DEADLINE.
    #[cfg_attr(feature = "serde", serde(default))]
    pub dl: DlConfig,
    /// Load balancing.
    pub balance: Balance,
    /// Control groups. Entities name their group by index; `None` puts them at the root.
    pub groups: alloc::vec::Vec<GroupConfig>,
}

impl LevelConfig {
    /// A group and those around it, from the inside out.
    pub fn groups_of(&self, group: Option<u16>) -> impl Iterator<Item = (u16, &GroupConfig)> {
        let get = |group: u16| Some((group, self.groups.get(usize::from(group))?));
        core::iter::successors(group.and_then(get), move |(_, of)| get(of.parent?))
    }
}

/// A control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GroupConfig {
    /// Its weight: 1024 is that of a nice-0 task, and 100 in `cpu.weight`.
    pub weight: u64,
    /// Most time that it may have.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub quota: Option<Quota>,
    /// Index of the group around it, which is less than its own. `None`: the root.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub parent: Option<u16>,
}

impl GroupConfig {
    /// A group of this weight at the root, without a quota.
    pub fn new(weight: u64) -> Self {
        Self { weight, quota: None, parent: None }
    }
}

/// CPU time that the fair entities of a group may have, on all CPUs together (`cpu.max`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Quota {
    /// CPU time in each period.
    pub runtime_ns: Ns,
    /// Length of a period.
    pub period_ns: Ns,
    /// Most unused time that is kept for later periods (`cpu.max.burst`).
    pub burst_ns: Ns,
    /// Time at which a period begins.
    pub phase_ns: Ns,
}

impl Quota {
    /// Least quota, and shortest period (`kernel/sched/core.c`).
    pub const LEAST_NS: Ns = 1_000_000;
    /// Longest period.
    pub const LONGEST_NS: Ns = 1_000_000_000;

    /// CPU time in each second.
    pub fn per_second(&self) -> Ns {
        let runtime = u128::from(self.runtime_ns) * 1_000_000_000;
        Ns::try_from(runtime / u128::from(self.period_ns)).unwrap_or(Ns::MAX)
    }
}
