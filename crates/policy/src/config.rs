//! What a boost policy is told.

/// Integer nanoseconds.
pub type Ns = u64;

/// A boost that could not last this long is not started: applying and ending it costs two changes
/// of a thread's scheduling attributes, a few microseconds in all.
pub const MIN_BOOST_NS: Ns = 20_000;

/// How a boosted vCPU thread outranks the rest of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Means {
    /// SCHED_FIFO at this priority.
    Fifo(u8),
    /// SCHED_RR at this priority (the first dynamic-priority patches: 8).
    Rr(u8),
    /// SCHED_OTHER at this nice value.
    Nice(i8),
    /// SCHED_OTHER with this EEVDF slice, in nanoseconds.
    Slice(Ns),
    /// SCHED_DEADLINE: `runtime` in each `period`, within `deadline` of its start, and nothing beyond
    /// that, however idle the CPU is. A host may refuse it
    /// ([`Event::Refused`](crate::Event::Refused)): the bandwidth of all may not exceed 95 % of its
    /// CPUs, and the thread has to be allowed on every one of them.
    Deadline {
        /// CPU time in a period.
        runtime_ns: Ns,
        /// Relative deadline.
        deadline_ns: Ns,
        /// Period.
        period_ns: Ns,
    },
    /// To be first among the threads of `scx_vcoop`, vcoop's sched_ext scheduler. Nobody sets anything for it: the
    /// policy itself is decided in that scheduler.
    Ext,
}

/// A token bucket: `burst` of boosted time at once, refilled at `refill_ppm` of elapsed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Budget {
    /// Capacity (the bound of the first dynamic-priority patches: 3 ms).
    pub burst_ns: Ns,
    /// Refill in parts per million of wall time (250 000 = a quarter of a CPU).
    pub refill_ppm: u32,
}

/// Parameters of `dynamic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DynamicConfig {
    /// What a boost is.
    pub means: Means,
    /// Budget of each vCPU.
    pub vcpu_budget: Budget,
    /// Budget of each VM, shared by its vCPUs.
    pub vm_budget: Budget,
    /// Longest boost at once, but for a two-hundredth of the time; `None`: as the budget allows.
    pub longest_boost_ns: Option<Ns>,
    /// Longest that a preempt-disabled section may hold a boost (the first dynamic-priority patches: 3 ms).
    pub max_preempt_off_ns: Ns,
    /// Boost when an interrupt is injected.
    pub boost_on_injection: bool,
    /// Boost a vCPU that is not running when another one of its VM sends it an IPI
    /// ([`Event::Asked`](crate::Event::Asked)).
    pub boost_receiver: bool,
    /// Honour the guest's lazy request at VM exits.
    pub boost_on_request: bool,
    /// Boost when the vCPU halts, so that its wake-up is already urgent.
    pub boost_across_idle: bool,
    /// Boosted time is given back as fair time: see [`repay`](crate::repay).
    pub repay: bool,
    /// EEVDF slice of the thread while it is not boosted; `None`: its baseline's. A thread that leaves the
    /// fair class is owed or owes up to about a slice, and others that wake up meanwhile are placed as if
    /// that were gone: the shorter the slice, the less they suffer for it.
    pub rest_slice_ns: Option<Ns>,
}

impl DynamicConfig {
    /// As in the first dynamic-priority patches: boosts on injection, on request and across idle, and 3 ms of a preempt-disabled section.
    pub const fn new(means: Means, vcpu_budget: Budget, vm_budget: Budget) -> Self {
        Self {
            means,
            vcpu_budget,
            vm_budget,
            longest_boost_ns: None,
            max_preempt_off_ns: 3_000_000,
            boost_on_injection: true,
            boost_receiver: false,
            boost_on_request: true,
            boost_across_idle: true,
            repay: false,
            rest_slice_ns: None,
        }
    }
}

/// Parameters of `wake-boost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WakeBoostConfig {
    /// What a boost is.
    pub means: Means,
    /// How long a woken vCPU stays boosted at most.
    pub run_ns: Ns,
    /// Budget of each vCPU.
    pub vcpu_budget: Budget,
    /// Budget of each VM.
    pub vm_budget: Budget,
    /// Boost a vCPU that is awake when an interrupt is injected, too: one that was preempted would take it only
    /// when it gets its pCPU back. On a real VM KVM's events have to be heard for this.
    pub boost_on_injection: bool,
    /// Boosted time is given back as fair time: see [`repay`](crate::repay).
    pub repay: bool,
    /// EEVDF slice of the thread while it is not boosted; `None`: its baseline's. A thread that leaves the
    /// fair class is owed or owes up to about a slice, and others that wake up meanwhile are placed as if
    /// that were gone: the shorter the slice, the less they suffer for it.
    pub rest_slice_ns: Option<Ns>,
}

/// Parameters of `ratelimit-auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RatelimitConfig {
    /// Time between two looks at a domain.
    pub interval_ns: Ns,
    /// Least ratelimit: what bounds the cost, since a vCPU so protected is preempted at most
    /// `1 / min` times a second. 0 = off is allowed, else [`RATELIMIT_FLOOR_NS`] or more.
    pub min_ns: Ns,
    /// Largest ratelimit, at least [`RATELIMIT_FLOOR_NS`] and `min_ns`. What bounds the harm: the
    /// first wake-ups of a new I/O phase wait so long at most.
    pub max_ns: Ns,
    /// A domain whose mean run from wake-up to block is at most this runs briefly. Runs of others
    /// below it count as short where they challenge it.
    pub brief_ns: Ns,
    /// ... and it does so until its mean run is at least this.
    pub busy_ns: Ns,
    /// Short challenges a second, averaged over some eight intervals, that make a domain yield.
    pub pressed_per_s: u32,
    /// ... until they are at most so many.
    pub calm_per_s: u32,
    /// Intervals in a row that must say the same before it counts. At least 1.
    pub confirm: u32,
}

/// The least ratelimit that Xen accepts, but for 0 (`XEN_SYSCTL_SCHED_RATELIMIT_MIN`).
pub const RATELIMIT_FLOOR_NS: Ns = 100_000;

/// The largest ratelimit that Xen accepts (`XEN_SYSCTL_SCHED_RATELIMIT_MAX`).
pub const RATELIMIT_CEILING_NS: Ns = 500_000_000;

/// How early a thread in user space fires at most: for that time a guest that it boosts is boosted, too.
pub const MOST_INJECTOR_ADVANCE_NS: Ns = 200_000;

/// How early a guest's timer is fired, so that the guest has its interrupt when it is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum AdvanceConfig {
    /// When it is due.
    #[default]
    None,
    /// So many nanoseconds before.
    Fixed(Ns),
    /// As deliveries teach, by KVM's rule and within its bounds.
    Adaptive,
    /// The same within other bounds, for a thread in user space that fires: the interrupt reaches the guest early, and the
    /// guest's kernel waits for the deadline.
    Within {
        /// What learning begins with.
        first_ns: Ns,
        /// Differences below this are noise.
        noise_ns: Ns,
        /// The most it becomes.
        most_ns: Ns,
    },
}

impl AdvanceConfig {
    /// A thread in user space that fires deadlines of a shared page. It begins with less than any delivery
    /// takes on a software-virtualised KVM, and about what it takes on VMX and SVM with the vCPU halted.
    pub const INJECTOR: Self =
        Self::Within { first_ns: 20_000, noise_ns: 500, most_ns: MOST_INJECTOR_ADVANCE_NS };
}

/// How long the host polls for a halted vCPU's wake-up before it gives the CPU away: KVM's
/// module parameters `halt_poll_ns*`, the cap also a VM's own (`KVM_CAP_HALT_POLL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostPollConfig {
    /// Longest poll; 0: it never polls.
    pub max_ns: Ns,
    /// Factor by which a vCPU's poll grows; 0: it does not grow.
    pub grow: u32,
    /// What it grows from, and below which it shrinks to nothing.
    pub grow_start_ns: Ns,
    /// Divisor by which it shrinks; 0: to nothing.
    pub shrink: u32,
    /// It is always the longest.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_not"))]
    pub fixed: bool,
}

/// For serde.
#[cfg(feature = "serde")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_not(flag: &bool) -> bool {
    !flag
}

impl HostPollConfig {
    /// Never.
    pub const OFF: Self = Self { max_ns: 0, ..Self::KVM };
    /// What Linux has on x86 since 6.11: 200 us, times 2 from 10 us, halved.
    pub const KVM: Self =
        Self { max_ns: 200_000, grow: 2, grow_start_ns: 10_000, shrink: 2, fixed: false };
}

/// How long a guest polls for work before it halts: the parameters `guest_halt_poll_*` of Linux's
/// haltpoll governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GuestPollConfig {
    /// Longest poll.
    pub max_ns: Ns,
    /// Factor by which a vCPU's poll grows.
    pub grow: u32,
    /// What it grows from.
    pub grow_start_ns: Ns,
    /// Divisor by which it shrinks; 0: to nothing.
    pub shrink: u32,
    /// Whether it shrinks at all.
    pub allow_shrink: bool,
}

impl GuestPollConfig {
    /// Linux's defaults: 200 us, times 2 from 50 us, halved.
    pub const LINUX: Self =
        Self { max_ns: 200_000, grow: 2, grow_start_ns: 50_000, shrink: 2, allow_shrink: true };
}
