//! What a boost policy is told.

/// Integer nanoseconds.
pub type Ns = u64;

/// How a boosted vCPU thread outranks the rest of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Means {
    /// SCHED_FIFO at this priority.
    Fifo(u8),
    /// SCHED_RR at this priority (seed 0: 8).
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
}

/// A token bucket: `burst` of boosted time at once, refilled at `refill_ppm` of elapsed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Budget {
    /// Capacity (seed 0's bound: 3 ms).
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
    /// Longest that a preempt-disabled section may hold a boost (seed 0: 3 ms).
    pub max_preempt_off_ns: Ns,
    /// Boost when an interrupt is injected.
    pub boost_on_injection: bool,
    /// Honour the guest's lazy request at VM exits.
    pub boost_on_request: bool,
    /// Boost when the vCPU halts, so that its wake-up is already urgent.
    pub boost_across_idle: bool,
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
}
