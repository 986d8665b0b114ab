//! Governors: how many of its vCPUs a guest should use for now.
//!
//! If VMs overcommit a host, and a guest spreads its work over all of its vCPUs, the host preempts all of these vCPUs,
//! also while they hold locks. With fewer vCPUs in use the guest switches tasks instead. A switch of tasks costs less
//! than a preemption, and the guest decides when it happens ("paravirt CPUs", 2025; merged as `cpu_preferred_mask` with
//! a steal governor). A governor says how many vCPUs to use. The guest's scheduler keeps tasks off the others.
//!
//! All kinds have one interface. Once per interval [`Governor::on`] gets what was [`GovernorInput`], and returns the new width
//! if it changes. The width is the number of vCPUs to use, counted from vCPU 0, in whole cores. Governors do not choose
//! *which* vCPUs (NUMA, caches): they use the lowest, as the merged driver does.
//!
//! | kind | goes by | in one interval |
//! | --- | --- | --- |
//! | [`Step`] | steal over all active vCPUs | one core less above `high`, one more up to `low` |
//! | [`Proportional`] | steal on the vCPUs in use, and the CPU time they get | as far as it shows |
//! | `Entitlement` | the host's word that the pool is contended | to the entitled width, or to all |
//! | `HostHint` | what the host can give ([`share`], [`grant`]) | to that width |

#[cfg(feature = "alloc")]
mod driver;
mod grant_follower;
mod pool;
mod proportional;
mod share;
mod step;

#[cfg(feature = "alloc")]
pub use driver::{GovernorDriver, Host};
pub use grant_follower::GrantFollower;
pub use pool::{Member, grant};
pub use proportional::{Proportional, State};
pub use share::{Claim, share};
pub use step::Step;

use crate::config::Ns;

/// Most vCPUs of a VM: the bits of the page's mask.
pub const MAX_VCPUS: u32 = 256;
/// The least interval (the merged driver's, since its eighth version).
pub const INTERVAL_MIN_NS: Ns = 100_000_000;
/// The longest interval (the merged driver's).
pub const INTERVAL_MAX_NS: Ns = 100_000_000_000;

/// How busy vCPUs may be, in percent, if their tasks are not to wait for each other: at 60 % of many CPUs a queue is
/// rare.
pub const ROOM_PCT: u64 = 60;

/// What a governor's decision is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Kind {
    /// Entitled vCPUs while the host says that its pool is contended, else all, as in the published experiment.
    Entitlement,
    /// One core an interval by thresholds of steal, as merged in Linux.
    Step,
    /// As many cores as the steal on the vCPUs in use shows.
    Proportional,
    /// As many as the host says it can give.
    HostHint,
}

impl Kind {
    /// Name, also of the policy that has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Entitlement => "entitlement",
            Self::Step => "step",
            Self::Proportional => "proportional",
            Self::HostHint => "host-hint",
        }
    }

    /// Whether the host says how many vCPUs the guest uses.
    pub fn is_the_hosts(self) -> bool {
        matches!(self, Self::Entitlement | Self::HostHint)
    }
}

/// Parameters of a governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GovernorConfig {
    /// What the decision is based on.
    pub kind: Kind,
    /// Length of an interval.
    pub interval_ns: Ns,
    /// Steal above which the guest folds, in hundredths of a percent (merged: 500).
    pub high_bp: u32,
    /// Steal up to which it unfolds (merged: 200).
    pub low_bp: u32,
    /// Fewest vCPUs it keeps, rounded up to whole cores; never below one core.
    pub floor: u32,
    /// vCPUs that it is entitled to: what `Entitlement` folds to, and at least what `HostHint` is given.
    pub entitled: u32,
    /// `Proportional`: how much of the CPU time that the guest had at full width it keeps while folded, in percent. The
    /// rest is what folding may cost against VMs that do not fold.
    pub keep_pct: u32,
    /// `Proportional`: longest time folded before all cores are tried again, in intervals.
    pub patience: u32,
}

impl GovernorConfig {
    /// The defaults of a kind. `Step`'s are the merged driver's.
    pub fn new(kind: Kind) -> Self {
        let interval_ns = match kind {
            Kind::Step => 1_000_000_000,
            // Two periods of a CPU quota: each look has the same number of them.
            Kind::Proportional => 200_000_000,
            Kind::Entitlement | Kind::HostHint => 250_000_000,
        };
        Self {
            kind,
            interval_ns,
            high_bp: 500,
            low_bp: 200,
            floor: 1,
            entitled: 1,
            keep_pct: 95,
            patience: 32,
        }
    }
}

/// Time of one vCPU in an interval, as its guest accounts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time it ran.
    pub busy_ns: Ns,
    /// Time it wanted to run while the host ran something else.
    pub steal_ns: Ns,
}

impl core::iter::Sum for CpuTime {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            busy_ns: sum.busy_ns + one.busy_ns,
            steal_ns: sum.steal_ns + one.steal_ns,
        })
    }
}

impl CpuTime {
    /// What came since an earlier count.
    pub fn since(self, before: Self) -> Self {
        Self {
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            steal_ns: self.steal_ns.saturating_sub(before.steal_ns),
        }
    }
}

/// The host's word, for the kinds that follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// All VMs together want more than the host has.
    pub contended: bool,
    /// CPU time that this VM can have in an interval as long as the last.
    pub cpu_ns: Ns,
}

/// What a governor sees of an interval.
#[derive(Clone, Copy, Debug)]
pub struct GovernorInput<'s> {
    /// Length of the interval.
    pub elapsed_ns: Ns,
    /// Every vCPU of the guest, from 0 up, with the same number for each core; `None`: this core has no such vCPU.
    pub cpus: &'s [Option<CpuTime>],
    /// Times are counted in multiples of this, as in ticks by a guest's kernel. 0: they are exact.
    pub grain_ns: Ns,
    /// The host's word; `None` where it gives none.
    pub grant: Option<Grant>,
}

impl GovernorInput<'_> {
    /// Time of the first `width` vCPUs together.
    pub fn sum(&self, width: u32) -> CpuTime {
        self.first(width).fold(CpuTime::default(), |all, one| CpuTime {
            busy_ns: all.busy_ns.saturating_add(one.busy_ns),
            steal_ns: all.steal_ns.saturating_add(one.steal_ns),
        })
    }

    /// How many vCPUs exist among the first `width`.
    pub fn count(&self, width: u32) -> u32 {
        self.first(width).count() as u32
    }

    /// *Pressure* on the first `width` vCPUs, in hundredths of a percent: the share of the time that they wanted and
    /// did not get.
    ///
    /// Each vCPU's count of steal is off by less than a grain, and their sum by about a grain times the square root of
    /// their number. That much is ignored: otherwise one tick of steal would be half of all that a guest wanted which
    /// ran for one tick.
    pub fn pressure_bp(&self, width: u32) -> u32 {
        let CpuTime { busy_ns, steal_ns } = self.sum(width);
        let grains = match self.count(width) {
            0 => 0,
            n => 1 + (n - 1).isqrt(),
        };
        let sure = steal_ns.saturating_sub(self.grain_ns.saturating_mul(u64::from(grains)));
        let wanted = u128::from(busy_ns) + u128::from(steal_ns);
        (10_000 * u128::from(sure)).checked_div(wanted).unwrap_or(0) as u32
    }

    fn first(&self, width: u32) -> impl Iterator<Item = &CpuTime> {
        self.cpus.iter().take(width as usize).flatten()
    }
}

/// The cores of a guest, for governors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    threads: u32,
    all: u32,
    floor: u32,
}

impl Cores {
    fn new(config: &GovernorConfig, vcpus: u32, threads: u32) -> Self {
        let threads = threads.max(1);
        let all = (vcpus / threads).max(1);
        Self { threads, all, floor: config.floor.div_ceil(threads).clamp(1, all) }
    }

    /// vCPUs of so many cores.
    fn width(&self, cores: u32) -> u32 {
        cores * self.threads
    }

    /// Cores that have `cpu_ns` of CPU time in `elapsed_ns`, rounded up.
    fn holding(&self, cpu_ns: Ns, elapsed_ns: Ns) -> u32 {
        let core = u128::from(elapsed_ns.max(1)) * u128::from(self.threads);
        let cores = u128::from(cpu_ns).div_ceil(core);
        u32::try_from(cores).unwrap_or(u32::MAX).clamp(self.floor, self.all)
    }
}

/// A governor of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Governor {
    /// See [`Step`].
    Step(Step),
    /// See [`Proportional`].
    Proportional(Proportional),
    /// `Entitlement` and `HostHint`: see [`GrantFollower`].
    Granted(GrantFollower),
}

impl Governor {
    /// At full width: `vcpus` vCPUs, `threads` to a core (a guest sees whole cores).
    pub fn new(config: &GovernorConfig, vcpus: u32, threads: u32) -> Self {
        match config.kind {
            Kind::Step => Self::Step(Step::new(config, vcpus, threads)),
            Kind::Proportional => Self::Proportional(Proportional::new(config, vcpus, threads)),
            Kind::Entitlement | Kind::HostHint => {
                Self::Granted(GrantFollower::new(config, vcpus, threads))
            }
        }
    }

    /// An interval is over. Returns how many vCPUs to use from now on, if that changes.
    pub fn on(&mut self, seen: &GovernorInput<'_>) -> Option<u32> {
        let before = self.width();
        if seen.elapsed_ns > 0 {
            match self {
                Self::Step(g) => g.on(seen),
                Self::Proportional(g) => g.on(seen),
                Self::Granted(g) => g.on(seen),
            }
        }
        let width = self.width();
        (width != before).then_some(width)
    }

    /// How many vCPUs to use.
    pub fn width(&self) -> u32 {
        match self {
            Self::Step(g) => g.width(),
            Self::Proportional(g) => g.width(),
            Self::Granted(g) => g.width(),
        }
    }
}
