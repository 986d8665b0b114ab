//! Configuration of Xen's credit1 scheduler: its tunables, the domains, and the patches of a study.

use vcoop_sched::config::{Ns, Topology};

/// Configuration of a [`Credit1`](crate::Credit1).
///
/// Sources: `xen/common/sched_credit.c` of Xen 4.2 and `xen/common/sched/credit.c` of today.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Credit1Config {
    /// pCPUs; an LLC stands for Xen's socket and for its NUMA node.
    pub topology: Topology,
    /// Version of Xen whose rules apply where versions differ.
    pub version: XenVersion,
    /// Timeslice and accounting period (`sched_credit_tslice_ms`): 1..=1000 ms, Xen's default 30 ms.
    /// A third of it is the credit tick.
    pub tslice_ns: Ns,
    /// How long a vCPU runs before it can be preempted (`sched_ratelimit_us`): 0 = off, else
    /// 100 us..=500 ms and at most the timeslice. Xen's default: 1 ms.
    pub ratelimit_ns: Ns,
    /// A vCPU that left its pCPU less than this ago is cache-hot and not stolen (`vcpu_migration_delay`). At most 100
    /// ms; Xen's default: 0, never hot.
    pub migration_delay_ns: Ns,
    /// A pCPU looks for work at its peers at most once in this time (a patch posted to xen-devel
    /// on 2023-04-28). At most 1 s; 0 = at every chance, as merged Xen does.
    pub load_balance_ratelimit_ns: Ns,
    /// A wake-up interrupts one suitable idle pCPU, not all of them (`tickle_one_idle_cpu`). Xen: true.
    pub tickle_one_idle: bool,
    /// Fill cores rather than spread over them (`sched_smt_power_savings`). Xen: false.
    pub smt_power_savings: bool,
    /// How CPU time is charged.
    pub burn: Burn,
    /// A run (wake-up to block) with less CPU time than this counts as short in
    /// [`EntityCounters`](crate::EntityCounters).
    pub short_run_ns: Ns,
    /// Patches applied.
    pub patches: Patches,
    /// The domains; entities name theirs by index in [`Attr::group`](vcoop_sched::Attr) (`None`: 0).
    pub domains: Vec<Domain>,
}

impl Credit1Config {
    /// Xen's defaults of today.
    pub fn new(topology: Topology, domains: Vec<Domain>) -> Self {
        Self {
            topology,
            version: XenVersion::Current,
            tslice_ns: 30_000_000,
            ratelimit_ns: 1_000_000,
            migration_delay_ns: 0,
            load_balance_ratelimit_ns: 0,
            tickle_one_idle: true,
            smt_power_savings: false,
            burn: Burn::Exact,
            short_run_ns: 100_000,
            patches: Patches::default(),
            domains,
        }
    }

    /// The credit tick: a third of the timeslice, or all of it below 3 ms.
    pub fn tick_ns(&self) -> Ns {
        if self.tslice_ns < 3_000_000 { self.tslice_ns } else { self.tslice_ns / 3 }
    }
}

/// Version of Xen. Versions differ in preemption by a wake-up, the timer of a ratelimit hold, whether a yield ends the
/// hold, and whether a migration boosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XenVersion {
    /// Xen 4.2 (2012).
    V4_2,
    /// Recent master.
    #[default]
    Current,
}

/// How CPU time is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Burn {
    /// By the nanosecond; the rest below one credit is carried on (since 2010).
    #[default]
    Exact,
    /// A tick's worth to the vCPU that a tick finds running. A guest that sleeps before each tick is never charged.
    /// With exact burning such a guest is charged, but keeps its priority: only a tick that finds it running puts it on
    /// the accounting's list.
    TickSampled,
}

/// A domain: a VM, or dom0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Domain {
    /// Weight of each of its active vCPUs, 1..=65535. Xen's default: 256.
    pub weight: u32,
    /// Cap, in percent of one pCPU; 0: none. At most 100 for each vCPU.
    pub cap_pct: u32,
    /// Whether it is dom0. Credit1 itself treats all domains alike; patches do not.
    pub privileged: bool,
}

impl Default for Domain {
    fn default() -> Self {
        Self { weight: 256, cap_pct: 0, privileged: false }
    }
}

impl Domain {
    /// dom0 with Xen's default weight.
    pub const DOM0: Self = Self { weight: 256, cap_pct: 0, privileged: true };
}

/// Form of a patch whose posted lines do not do what its author wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Patch {
    /// Not applied.
    #[default]
    Off,
    /// What the posted lines do.
    AsPosted,
    /// What its description says.
    AsMeant,
}

/// Version of the patch "BOOST preempts the ratelimit".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoostPreempts {
    /// Not applied.
    #[default]
    Off,
    /// Whenever a boosted vCPU is first in the queue.
    V1,
    /// As `V1`, if the running vCPU is not boosted.
    V2,
}

/// The patches of "Performance of Xen VCPU Scheduling" (Xen wiki, 2013).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Patches {
    /// dom0 preempts a guest within its ratelimit. As posted: the ratelimit is void whenever a dom0 vCPU is first in
    /// the queue, even if the running vCPU then wins and so gets a new timeslice. As meant: only when that dom0 vCPU
    /// will run.
    pub dom0_preempts_ratelimit: Patch,
    /// A vCPU that blocked may be stolen while cache-hot. As posted: tests whether a queued vCPU is *offline*, which it
    /// never is. As meant: tests whether it queued because it woke up.
    pub migrate_if_blocked: Patch,
    /// A vCPU woken by dom0 goes to the pCPU of the dom0 vCPU that woke it (an idea without code).
    pub waker_local: bool,
    /// A boosted vCPU preempts within the ratelimit.
    pub boost_preempts_ratelimit: BoostPreempts,
    /// An I/O completion ends the ratelimit of the running vCPU. As posted: set where the context of an HVM vCPU is
    /// loaded, so only at its first wake-up. As meant: at each I/O wake-up.
    pub io_wake_ignores_ratelimit: Patch,
    /// dom0 keeps its BOOST. As posted: the tick does not end it, but the accounting every timeslice does. As meant:
    /// neither ends it.
    pub keep_dom0_boost: Patch,
    /// Ten times the timeslice for a vCPU alone on its pCPU. As posted: the credit tick does not change, so few
    /// interrupts are saved. As meant: the tick period is ten times as long, too.
    pub long_slice_alone: Patch,
    /// dom0 vCPUs do not move to pCPUs that have another dom0 vCPU (posted as a link only).
    pub spread_dom0: bool,
    /// dom0 vCPUs go to the front of a run queue, whatever their priority.
    pub dom0_front: bool,
    /// No guest ends a dom0 vCPU's ratelimit, whatever other patches allow.
    pub dom0_ratelimit_firm: bool,
    /// A separate ratelimit for dom0.
    pub dom0_ratelimit_ns: Option<Ns>,
    /// dom0 vCPUs are always in BOOST.
    pub dom0_always_boosted: bool,
    /// dom0 vCPUs burn no credit.
    pub dom0_never_over: bool,
}

impl Patches {
    /// The study's five points that make an unpinned dom0 run like an exclusively pinned one: dom0 vCPUs on separate
    /// pCPUs; no guest preempts within dom0's ratelimit; that ratelimit is 100 ms; dom0 always boosted; dom0 never out
    /// of credit.
    pub fn xpin_like() -> Self {
        Self {
            spread_dom0: true,
            dom0_ratelimit_firm: true,
            dom0_ratelimit_ns: Some(100_000_000),
            dom0_always_boosted: true,
            dom0_never_over: true,
            ..Self::default()
        }
    }
}
