//! `scx_vcoop`: a sched_ext scheduler for a whole host, in which `wake-boost` and `dynamic` are decided in the kernel.
//!
//! Loading it takes all fair threads of the host away from EEVDF; dropping [`Scheduler`], or the death of its process,
//! gives them back, and so does the kernel where a thread has waited for five seconds. It is weighted-fair for all
//! threads. A vCPU that is [admitted](Scheduler::admit) is boosted as
//! [`WakeBoost`](vcoop_policy::WakeBoost) or [`Dynamic`](vcoop_policy::Dynamic) has it, with no system call and no
//! wake-up of a daemon on the way: the kernel itself sees what begins and ends a boost.
//!
//! | what | reported by | misses |
//! | --- | --- | --- |
//! | a vCPU sleeps, or wakes up | the scheduler's own calls | nothing |
//! | an interrupt for a vCPU that was preempted, or is before it has taken the interrupt | fentry of `apic_timer_expired` and `__apic_accept_irq` | what hardware posts to a vCPU itself; emulated guests |
//! | what its guest says | the vCPU's own thread reads the guest's page, before it enters the guest and when it loses its CPU | what changes until the next exit |
//! | another vCPU of its VM sends it an IPI | the same | IPIs that the sender makes no exit for |
//! | a deadline that its guest has announced, of a vCPU that does not run | a timer of each vCPU, ahead of it | nothing |
//! | a run or a budget ends | the same | nothing |
//!
//! The rules are those of `vcoop_policy` in C (`bpf/policy.h`); a test holds one against the other. A boost here
//! needs no account of what it took: virtual time counts it like any other time on a CPU.
//!
//! Experimental. Weights and limits of cgroups are not kept while it is loaded.

use vcoop_policy::PolicyStats;
use vcoop_policy::config::{Budget, DynamicConfig, WakeBoostConfig};
use vcoop_threads::Ns;

#[cfg(not(feature = "bpf"))]
use crate::Unsupported;

#[cfg(feature = "bpf")]
mod loaded;

#[cfg(feature = "bpf")]
pub use loaded::Scheduler;

/// A policy that can be decided in the kernel. Parameters about an account of boosted time (`repay`, `rest_slice`) have
/// no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Boosts without the guest's help.
    WakeBoost(WakeBoostConfig),
    /// Boosts with it.
    Dynamic(DynamicConfig),
}

impl Rules {
    /// The budget of a VM.
    pub fn vm_budget(&self) -> Budget {
        match self {
            Self::WakeBoost(config) => config.vm_budget,
            Self::Dynamic(config) => config.vm_budget,
        }
    }

    /// Whether it boosts for interrupts, even if only for those from other vCPUs.
    pub fn hears_interrupts(&self) -> bool {
        match self {
            Self::WakeBoost(config) => config.boost_on_injection,
            Self::Dynamic(config) => config.boost_on_injection || config.boost_receiver,
        }
    }

    /// Whether it needs KVM's own events: interrupts, and entries into the guest.
    pub fn needs_kvm(&self) -> bool {
        matches!(self, Self::Dynamic(_)) || self.hears_interrupts()
    }
}

/// A vCPU to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Its VM, from [`Scheduler::begin_vm`].
    pub vm: u32,
    /// Its thread.
    pub tid: i32,
    /// Whether that thread sleeps.
    pub asleep: bool,
    /// How long before a deadline that its guest has announced it is boosted.
    pub lead_ns: Ns,
}

/// State of an admitted vCPU. Counters are since its admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuState {
    /// It is boosted.
    pub boosted: bool,
    /// What its policy counts; `notified`, `raced` and `lowered_ns` do not occur.
    pub stats: PolicyStats,
    /// Boosted time left at its last event, in nanoseconds.
    pub budget_left_ns: Ns,
    /// Number of boosts for deadlines that its guest had announced.
    pub deadlines: u64,
}

/// Counters since the scheduler was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerTotals {
    /// Interrupts for admitted vCPUs.
    pub interrupts: u64,
    /// Of these: interrupts whose vCPU was boosted then, before or because of it.
    pub boosted: u64,
}

/// Placeholder: this build has no BPF.
#[cfg(not(feature = "bpf"))]
#[derive(Debug)]
pub enum Scheduler {}

#[cfg(not(feature = "bpf"))]
impl Scheduler {
    /// Whether the scheduler can be loaded.
    ///
    /// # Errors
    ///
    /// Always: this build does not have it.
    pub fn available() -> Result<(), Unsupported> {
        Err(Unsupported::feature("has no scheduler to load"))
    }

    /// Whether `dynamic` can be decided in the kernel.
    ///
    /// # Errors
    ///
    /// As [`Self::available`].
    pub fn answers_guests() -> Result<(), Unsupported> {
        Self::available()
    }

    /// Loads the scheduler, if this build has it.
    ///
    /// # Errors
    ///
    /// Always: it does not.
    pub fn load() -> Result<Self, Unsupported> {
        Err(Unsupported::feature("has no scheduler to load"))
    }

    absent! { self:
        /// The source of interrupts; `None`: interrupts are not known.
        fn hears(&self) -> Option<&'static str>;

        /// Why the kernel has ended the scheduler; `None`: it has not.
        fn ended(&self) -> Option<String>;

        /// Adds a VM, whose vCPUs share a budget; returns its number.
        ///
        /// # Errors
        ///
        /// There are too many VMs.
        fn begin_vm(&mut self, _: Budget) -> Result<u32, Unsupported>;

        /// Removes a VM, which has no vCPUs any more.
        fn end_vm(&mut self, _: u32);

        /// Admits a vCPU with a policy; returns its place, for the other calls.
        ///
        /// # Errors
        ///
        /// There are too many vCPUs.
        fn admit(&mut self, _: Admission, _: &Rules) -> Result<u32, Unsupported>;

        /// Sets the address in the VMM of a vCPU's guest page, which the host's page follows; `None`: the guest does
        /// not take part.
        fn listen(&mut self, _: u32, _: Option<u64>);

        /// Makes a vCPU an ordinary thread again.
        fn leave(&mut self, _: u32);

        /// The state of a vCPU.
        fn state(&self, _: u32) -> VcpuState;

        /// The counters of the scheduler.
        fn totals(&self) -> SchedulerTotals;
    }
}
