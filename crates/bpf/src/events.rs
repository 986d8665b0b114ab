//! Sleeps of threads, and interrupts for vCPUs before they take them, reported by BPF.
//!
//! A thread's sleep is reported by the raw tracepoint `sched_switch`, filtered in the kernel. Interrupts are reported
//! by the first of the ways below that the running kernel has. For each vCPU the first interrupt since it ran is
//! reported, and then at most one per 100 us, so that no VM can keep the receiver busy.
//!
//! | reported by | where | of | misses |
//! | --- | --- | --- | --- |
//! | fentry of `apic_timer_expired` and `__apic_accept_irq` | kernels with BTF and ftrace's direct calls, and KVM's local APIC in the kernel | a vCPU that was preempted, or is before it has taken the interrupt: its timer, devices, other vCPUs, NMIs | what hardware posts to a vCPU itself (AVIC, posted interrupts); emulated guests |
//! | the tracepoint `kvm_apic_accept_irq` | other kernels with KVM's tracepoints | any vCPU: devices and other vCPUs of its own process | the vCPU's own timer, which comes there when the vCPU runs again; a vCPU that runs already is reported, too |
//! | none | kernels without KVM | no interrupts | all |

use vcoop_policy::Injection;
use vcoop_threads::Ns;

#[cfg(not(feature = "bpf"))]
use crate::Unsupported;

#[cfg(feature = "bpf")]
mod bpf;

#[cfg(feature = "bpf")]
pub use bpf::Events;

/// An event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time, by CLOCK_MONOTONIC.
    pub at: Ns,
    /// The thread.
    pub tid: i32,
    /// Kind of event.
    pub kind: EventKind,
    /// Number of events lost so far because the ring was full.
    pub lost: u64,
}

/// Kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It goes to sleep.
    Sleeps,
    /// It is a vCPU and got an interrupt.
    Interrupt {
        /// Kind of interrupt.
        kind: Injection,
        /// Number of interrupts since the last one reported, which were not reported because they came too soon after
        /// it.
        coalesced: u64,
    },
}

/// A vCPU whose interrupts are to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedVcpu {
    /// The VMM's process.
    pub process: u32,
    /// Its thread.
    pub tid: i32,
    /// Its APIC id, by default KVM's number of it.
    pub apic: u32,
}

/// Placeholder: this build has no BPF.
#[cfg(not(feature = "bpf"))]
#[derive(Debug)]
pub enum Events {}

#[cfg(not(feature = "bpf"))]
impl Events {
    /// Loads the BPF programs, if this build has them.
    ///
    /// # Errors
    ///
    /// Always: it has none.
    pub fn open() -> Result<Self, Unsupported> {
        Err(Unsupported::feature("hears no interrupts of VMs"))
    }

    /// The watched threads.
    pub fn watched(&self) -> impl Iterator<Item = i32> {
        std::iter::empty()
    }

    absent! { self:
        /// The way in which interrupts are reported.
        ///
        /// # Errors
        ///
        /// Why they are not reported.
        fn interrupts(&self) -> Result<&'static str, &Unsupported>;

        /// The file descriptor that becomes readable when there is something to [`take`](Self::take).
        fn ready(&self) -> std::os::fd::BorrowedFd<'_>;

        /// Watches a thread, to know whether it sleeps. `asleep` returns whether it sleeps, and is called after the
        /// watch has begun.
        ///
        /// # Errors
        ///
        /// There are too many watched threads.
        fn watch(&mut self, _: i32, _: impl FnOnce() -> bool) -> Result<(), Unsupported>;

        /// Reports a vCPU's interrupts from now on. Its thread is watched.
        ///
        /// # Errors
        ///
        /// Interrupts are not reported here, or there are too many vCPUs.
        fn hear_interrupts(&mut self, _: WatchedVcpu) -> Result<&'static str, Unsupported>;

        /// Stops watching a thread.
        fn forget(&mut self, _: i32);

        /// Whether a watched thread sleeps.
        fn is_asleep(&self, _: i32) -> bool;

        /// Starts or stops reporting a watched thread's sleeps.
        fn hear_sleeps(&mut self, _: i32, _: bool);

        /// The events since the last call, in order, and whether there may be more.
        fn take(&mut self) -> (Vec<Event>, bool);
    }
}
