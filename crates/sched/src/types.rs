//! Types that a level and its driver share.

use core::fmt;

use crate::CpuSet;
use crate::config::{Ns, Policy};

/// A CPU of a level, numbered from 0 as [`Topology`](crate::config::Topology) lays them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

/// A schedulable entity of a level, numbered from 0 in the order of [`Level::add`](crate::Level::add).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntId(pub u32);

impl CpuId {
    /// Index into per-CPU arrays.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl EntId {
    /// Index into per-entity arrays.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu{}", self.0)
    }
}

impl fmt::Display for EntId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ent{}", self.0)
    }
}

/// What an entity is when it is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Scheduling policy and its parameters.
    pub policy: Policy,
    /// CPUs it may run on. Empty, after CPUs outside the level are dropped, means all.
    pub cpus: CpuSet,
    /// Index into `LevelConfig::groups`; `None` is the root. RT entities ignore it while RT.
    pub group: Option<u16>,
}

impl Attr {
    /// A root entity that may run anywhere.
    pub fn anywhere(policy: Policy) -> Self {
        Self { policy, cpus: CpuSet::EMPTY, group: None }
    }
}

/// Why the current entity leaves its CPU. Ignored if the CPU was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaveReason {
    /// It can still run: a kick was served.
    Preempted,
    /// It sleeps until [`Level::wake`](crate::Level::wake).
    Blocked,
    /// It can still run, but asked to stand back (`sched_yield`).
    Yield,
    /// It exits; its id is never reused.
    Exit,
}

/// Result of a directed yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DirectedYield {
    /// Both are alone on their CPUs, so that a yield has no effect (`-ESRCH`).
    Alone,
    /// The other entity does not wait, or one of the two is not fair.
    Refused,
    /// The other entity is next in its queue, as far as that is fair.
    Done,
}

/// What a level tells its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Note {
    /// `cpu` should call [`Level::schedule`](crate::Level::schedule).
    Kick {
        /// The CPU to interrupt.
        cpu: CpuId,
        /// True: an RT or deadline entity, a forced move, or an idle CPU; interrupt it now. False: one fair
        /// entity should give way to another, which lazy preemption may leave to the next tick.
        eager: bool,
    },
    /// Woken entities are on the wake list of `cpu`, which was empty: interrupt it. It calls
    /// [`Level::take_woken`](crate::Level::take_woken) in the interrupt's handler, or when it is out of its idle state.
    Woken {
        /// The CPU to interrupt.
        cpu: CpuId,
    },
    /// An entity changed its CPU: woken elsewhere, pushed, pulled or balanced.
    Moved {
        /// The entity.
        ent: EntId,
        /// Where it was.
        from: CpuId,
        /// Where it is now.
        to: CpuId,
    },
    /// RT entities of the CPU used up their runtime and are held back.
    Throttled {
        /// The CPU.
        cpu: CpuId,
    },
    /// RT entities of the CPU may run again.
    Unthrottled {
        /// The CPU.
        cpu: CpuId,
    },
    /// [`Level::deadline`](crate::Level::deadline) of the CPU has another value now.
    DeadlineChanged {
        /// The CPU.
        cpu: CpuId,
    },
    /// The entity's domain has used up its cap: it waits (or wakes up) without a queue.
    Parked {
        /// The entity.
        ent: EntId,
    },
    /// The entity may run again, and waits on a queue.
    Unparked {
        /// The entity.
        ent: EntId,
    },
    /// A scheduler whose trace is on decided something. A [`Level`](crate::Level) has no such trace.
    Decision {
        /// What.
        what: &'static str,
        /// The entity it is about.
        ent: EntId,
        /// The CPU it is about.
        cpu: CpuId,
    },
}

/// What a driver knows about a wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waker {
    /// CPU of the level that executes the wake-up; `None` if none of this level does.
    pub cpu: Option<CpuId>,
    /// Entity that asked for it (an event channel, an IPI); `None` for timers and devices.
    pub ent: Option<EntId>,
    /// Whether it says that I/O is complete: an event channel of a backend, or a device.
    pub io: bool,
    /// Whether the entity says that it is about to sleep ([`Level::wake_sync`](crate::Level::wake_sync)).
    pub sync: bool,
}

impl Waker {
    /// A wake-up executed by a CPU for no entity's sake.
    pub fn on(cpu: CpuId) -> Self {
        Self { cpu: Some(cpu), ..Self::default() }
    }
}

/// Counters of one entity since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntStats {
    /// Time executed (charged; steal is not in it).
    pub exec_ns: Ns,
    /// Time runnable but not running.
    pub wait_ns: Ns,
    /// Times it changed its CPU.
    pub migrations: u64,
    /// Times it was switched in.
    pub switches_in: u64,
    /// Times it lost the CPU while it could still run.
    pub preempted: u64,
}

/// Why an entity cannot have a deadline policy, or be confined while it has one: what `sched_setattr`
/// and `sched_setaffinity` answer on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Runtime, deadline or period out of the kernel's limits (EINVAL).
    #[error("runtime (1.024us or more) <= deadline <= period (100us to 4.19s) does not hold")]
    Parameters,
    /// All reservations together would exceed what admission control grants (EBUSY).
    #[error("all reservations exceed 95 % of the CPUs, less what fair servers have")]
    Bandwidth,
    /// Its affinity does not cover the level (EPERM for a policy, EBUSY for an affinity).
    #[error("a deadline thread has to be allowed on every CPU")]
    Affinity,
}

/// A mask of CPUs to keep off, or to take offline, that would leave none to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the mask leaves no CPU to run on")]
pub struct MaskError;

/// Why a [`LevelConfig`](crate::config::LevelConfig) cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The topology has no CPU, or more than [`MAX_CPUS`](crate::MAX_CPUS).
    #[error("a level of {cpus} CPUs: it takes 1 to {max}", max = crate::MAX_CPUS)]
    CpuCount {
        /// CPUs asked for.
        cpus: u64,
    },
    /// The field must not be 0.
    #[error("`{field}` is 0: it must be at least 1")]
    Zero {
        /// Name of the field.
        field: &'static str,
    },
    /// The guard's runtime exceeds its period.
    #[error(
        "RT guard grants {runtime_ns} ns in a period of {period_ns} ns: the runtime cannot exceed the period"
    )]
    RuntimeOverPeriod {
        /// Runtime asked for.
        runtime_ns: Ns,
        /// Period asked for.
        period_ns: Ns,
    },
    /// A group's weight lies outside what cgroups accept.
    #[error("group {group} has weight {weight}: it takes 2 to 262144")]
    GroupWeight {
        /// Index of the group.
        group: usize,
        /// Weight asked for.
        weight: u64,
    },
    /// A group is in one that does not come before it.
    #[error("group {group} is in a group that does not come before it")]
    GroupParent {
        /// Index of the group.
        group: usize,
    },
    /// An entity cannot have the deadline policy it should start with.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A field lies outside what it can be.
    #[error("`{field}` is {value}: it takes {min} to {max}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Value asked for.
        value: u64,
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A field is no multiple of what it is counted in, or 0.
    #[error("`{field}` is {value}: it takes multiples of {of}")]
    Multiple {
        /// Name of the field.
        field: &'static str,
        /// Value asked for.
        value: u64,
        /// What it is counted in.
        of: u64,
    },
    /// More groups than an index can name.
    #[error("{groups} groups: a level takes up to 65535")]
    TooManyGroups {
        /// Groups asked for.
        groups: usize,
    },
}

impl ConfigError {
    /// Refuses a value outside of `min..=max`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Range`].
    pub fn range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(Self::Range { field, value, min, max })
        }
    }
}
