//! Parameters of the policies.

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
    /// First among the threads of `scx_vcoop`, vcoop's sched_ext scheduler. That scheduler decides itself whom to
    /// boost, so no thread's attributes change.
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
    /// How a boosted thread outranks others.
    pub means: Means,
    /// Budget of each vCPU.
    pub vcpu_budget: Budget,
    /// Budget of each VM, shared by its vCPUs.
    pub vm_budget: Budget,
    /// Longest boost at once, except for 0.5 % of the time; `None`: as the budget allows.
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
    /// EEVDF slice of the thread while it is not boosted; `None`: its baseline's. A thread that leaves the fair class
    /// takes up to about a slice of lag with it, positive or negative, and others that wake up meanwhile are placed as
    /// if that lag did not exist: the shorter the slice, the less they suffer.
    pub rest_slice_ns: Option<Ns>,
}

impl DynamicConfig {
    /// As in the first dynamic-priority patches: boosts on injection, on request and across idle, and 3 ms of a
    /// preempt-disabled section.
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
    /// How a boosted thread outranks others.
    pub means: Means,
    /// How long a woken vCPU stays boosted at most.
    pub run_ns: Ns,
    /// Budget of each vCPU.
    pub vcpu_budget: Budget,
    /// Budget of each VM.
    pub vm_budget: Budget,
    /// Boost a vCPU that is awake when an interrupt is injected, too: if it was preempted, it would take the interrupt
    /// only when it gets its pCPU back. On a real VM this needs the events of KVM.
    pub boost_on_injection: bool,
    /// Boosted time is given back as fair time: see [`repay`](crate::repay).
    pub repay: bool,
    /// EEVDF slice of the thread while it is not boosted; `None`: its baseline's. See [`DynamicConfig::rest_slice_ns`].
    pub rest_slice_ns: Option<Ns>,
}

/// Parameters of `ratelimit-auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RatelimitConfig {
    /// Time between two evaluations of a domain.
    pub interval_ns: Ns,
    /// Least ratelimit. It bounds the cost: a vCPU with this ratelimit is preempted at most `1 / min` times a second. 0
    /// (off) is allowed, else [`RATELIMIT_FLOOR_NS`] or more.
    pub min_ns: Ns,
    /// Largest ratelimit, at least [`RATELIMIT_FLOOR_NS`] and `min_ns`. It bounds the harm: the first wake-ups of a new
    /// I/O phase wait at most this long.
    pub max_ns: Ns,
    /// A domain is brief if its mean run from wake-up to block is at most this. A run of another domain below this
    /// counts as a short challenge when it preempts.
    pub brief_ns: Ns,
    /// A brief domain remains brief until its mean run is at least this.
    pub busy_ns: Ns,
    /// Short challenges a second, averaged over some eight intervals, from which a domain yields.
    pub pressed_per_s: u32,
    /// A domain that yields does so until there are at most so many short challenges a second.
    pub calm_per_s: u32,
    /// Intervals in a row that must give the same verdict before it counts. At least 1.
    pub confirm: u32,
}

/// The least ratelimit that Xen accepts, but for 0 (`XEN_SYSCTL_SCHED_RATELIMIT_MIN`).
pub const RATELIMIT_FLOOR_NS: Ns = 100_000;

/// The largest ratelimit that Xen accepts (`XEN_SYSCTL_SCHED_RATELIMIT_MAX`).
pub const RATELIMIT_CEILING_NS: Ns = 500_000_000;

/// Largest advance of a thread in user space that fires timers: the guest that it boosts is boosted for that time, too.
pub const MOST_INJECTOR_ADVANCE_NS: Ns = 200_000;

/// How early a guest's timer is fired, so that the guest has its interrupt when it is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum AdvanceConfig {
    /// Fire at the deadline.
    #[default]
    None,
    /// Fire this many nanoseconds before the deadline.
    Fixed(Ns),
    /// Learned from deliveries, by KVM's rule and within its bounds.
    Adaptive,
    /// Learned by KVM's rule within other bounds, for a thread in user space that fires: the interrupt reaches the
    /// guest early, and the guest's kernel waits for the deadline.
    Within {
        /// Advance before anything is learned.
        first_ns: Ns,
        /// Differences below this are noise.
        noise_ns: Ns,
        /// Largest advance.
        most_ns: Ns,
    },
}

impl AdvanceConfig {
    /// For a thread in user space that fires the deadlines of a shared page. The first advance is less than any
    /// delivery takes on a software-virtualised KVM, and about what it takes on VMX and SVM with the vCPU halted.
    pub const INJECTOR: Self =
        Self::Within { first_ns: 20_000, noise_ns: 500, most_ns: MOST_INJECTOR_ADVANCE_NS };
}

/// How long the host polls for a halted vCPU's wake-up before it gives the CPU away: KVM's module parameters
/// `halt_poll_ns*`. The cap can also be set for a VM (`KVM_CAP_HALT_POLL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostPollConfig {
    /// Longest poll; 0: the host never polls.
    pub max_ns: Ns,
    /// Factor by which a vCPU's poll grows; 0: it does not grow.
    pub grow: u32,
    /// First poll above 0, and below which a poll shrinks to 0.
    pub grow_start_ns: Ns,
    /// Divisor by which a vCPU's poll shrinks; 0: to 0.
    pub shrink: u32,
    /// Every poll has the longest duration.
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
    /// No polls.
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
    /// First poll above 0.
    pub grow_start_ns: Ns,
    /// Divisor by which a vCPU's poll shrinks; 0: to 0.
    pub shrink: u32,
    /// Whether the poll shrinks at all.
    pub allow_shrink: bool,
}

impl GuestPollConfig {
    /// Linux's defaults: 200 us, times 2 from 50 us, halved.
    pub const LINUX: Self =
        Self { max_ns: 200_000, grow: 2, grow_start_ns: 50_000, shrink: 2, allow_shrink: true };
}
