//! What happens to threads, and interrupts for vCPUs before they take them, heard by BPF.
//!
//! That a thread goes to sleep is heard in the raw tracepoint `sched_switch`, filtered in the kernel. Interrupts are heard
//! by the first way that the running kernel has. Of each vCPU the first one since it ran is told, and then at most one each
//! 100 us, so that no VM can keep whoever listens busy.
//!
//! | heard by | where | of | misses |
//! | --- | --- | --- | --- |
//! | fentry of `apic_timer_expired` and `__apic_accept_irq` | kernels with BTF and ftrace's direct calls, and KVM's local APIC in the kernel | a vCPU that was preempted, or is before it has taken the interrupt: its timer, devices, other vCPUs, NMIs | what hardware posts to a vCPU itself (AVIC, posted interrupts); emulated guests |
//! | the tracepoint `kvm_apic_accept_irq` | other kernels with KVM's tracepoints | any vCPU: devices and other vCPUs of its own process | the vCPU's own timer, which comes there when the vCPU runs again; who runs already is told of, too |
//! | none | kernels without KVM | no interrupts | all |

use vcoop_threads::Ns;

#[cfg(not(feature = "bpf"))]
use crate::Missing;

#[cfg(feature = "bpf")]
mod bpf;

#[cfg(feature = "bpf")]
pub use bpf::Events;

/// Something that happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, by CLOCK_MONOTONIC.
    pub at: Ns,
    /// The thread.
    pub tid: i32,
    /// What.
    pub what: What,
    /// Events that could not be told until then, because too many were at once.
    pub lost: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It goes to sleep.
    Sleeps,
    /// It is a vCPU, and has an interrupt.
    Interrupt {
        /// Of what kind.
        kind: Interrupt,
        /// How many it had since the last one that was told. They came so soon after that one that they were not told.
        coalesced: u64,
    },
}

/// What kind of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The vCPU's own timer.
    Timer,
    /// A device, or a thread of the VMM.
    Device,
    /// Another vCPU.
    Ipi,
    /// A non-maskable interrupt.
    Nmi,
}

/// A vCPU whose interrupts are to be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfVcpu {
    /// The VMM's process.
    pub process: u32,
    /// Its thread.
    pub tid: i32,
    /// Its APIC id, by default KVM's number of it.
    pub apic: u32,
}

/// Nothing: this build has no BPF.
#[cfg(not(feature = "bpf"))]
#[derive(Debug)]
pub enum Events {}

#[cfg(not(feature = "bpf"))]
impl Events {
    /// Loads the BPF programs, if this build has them.
    ///
    /// # Errors
    ///
    /// It has none.
    pub fn open() -> Result<Self, Missing> {
        Err(Missing::feature("hears no interrupts of VMs"))
    }

    /// By what it hears interrupts.
    ///
    /// # Errors
    ///
    /// It hears none, because of this.
    pub fn interrupts(&self) -> Result<&'static str, &Missing> {
        match *self {}
    }

    /// What becomes readable when there is something to [`take`](Self::take).
    pub fn ready(&self) -> std::os::fd::BorrowedFd<'_> {
        match *self {}
    }

    /// Looks at a thread from now on, and knows whether it sleeps. `asleep`: whether it does, as of after this was called.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn watch(&mut self, _: i32, _: impl FnOnce() -> bool) -> Result<(), Missing> {
        match *self {}
    }

    /// Hears of a vCPU's interrupts from now on. Its thread is watched.
    ///
    /// # Errors
    ///
    /// They are not heard here, or there are too many.
    pub fn hear_interrupts(&mut self, _: OfVcpu) -> Result<&'static str, Missing> {
        match *self {}
    }

    /// Looks at a thread no longer.
    pub fn forget(&mut self, _: i32) {
        match *self {}
    }

    /// Whether a watched thread sleeps.
    pub fn is_asleep(&self, _: i32) -> bool {
        match *self {}
    }

    /// Hears of a watched thread's sleeps from now on, or does so no longer.
    pub fn hear_sleeps(&mut self, _: i32, _: bool) {
        match *self {}
    }

    /// Threads that are watched.
    pub fn watched(&self) -> impl Iterator<Item = i32> {
        std::iter::empty()
    }

    /// What happened since the last call, in order, and whether there may be more.
    pub fn take(&mut self) -> (Vec<Event>, bool) {
        match *self {}
    }
}
