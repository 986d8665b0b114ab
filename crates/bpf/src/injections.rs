//! Interrupts for vCPUs, heard before these take them: KVM's own events, by BPF.
//!
//! | heard by | where | of | misses |
//! | --- | --- | --- | --- |
//! | fentry of `apic_timer_expired` and `__apic_accept_irq` | kernels with BTF and ftrace's direct calls, and KVM's local APIC in the kernel | a vCPU that was preempted, or is before it has taken the interrupt: its timer, devices, other vCPUs, NMIs | what hardware posts to a vCPU itself (AVIC, posted interrupts); emulated guests |
//! | the tracepoint `kvm_apic_accept_irq` | other kernels with KVM's tracepoints | any vCPU: devices and other vCPUs of its own process | the vCPU's own timer, which comes there when the vCPU runs again; who runs already is told of, too |

use vcoop_threads::Ns;

#[cfg(not(feature = "bpf"))]
use crate::Missing;

#[cfg(feature = "bpf")]
mod bpf;

#[cfg(feature = "bpf")]
pub use bpf::Injections;

/// An interrupt for a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    /// When, by CLOCK_MONOTONIC.
    pub at: Ns,
    /// The vCPU's thread.
    pub tid: i32,
    /// What kind it is.
    pub kind: Kind,
}

/// What kind of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The vCPU's own timer.
    Timer,
    /// A device, or a thread of the VMM.
    Device,
    /// Another vCPU.
    Ipi,
    /// A non-maskable interrupt.
    Nmi,
}

/// A vCPU to hear of.
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
pub enum Injections {}

#[cfg(not(feature = "bpf"))]
impl Injections {
    /// Loads the BPF programs, if this build has them.
    ///
    /// # Errors
    ///
    /// It has none.
    pub fn open() -> Result<Self, Missing> {
        Err(Missing::feature("hears no interrupts of VMs"))
    }

    /// By what it hears.
    pub fn name(&self) -> &'static str {
        match *self {}
    }

    /// What becomes readable when there is something to [`take`](Self::take).
    pub fn ready(&self) -> std::os::fd::BorrowedFd<'_> {
        match *self {}
    }

    /// Hears of a vCPU from now on.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn watch(&mut self, _: OfVcpu) -> Result<(), Missing> {
        match *self {}
    }

    /// Hears of it no longer.
    pub fn forget(&mut self, _: OfVcpu) {
        match *self {}
    }

    /// What happened since the last call, in order.
    pub fn take(&mut self) -> Vec<Injected> {
        match *self {}
    }

    /// Interrupts that could not be told, because too many were at once.
    pub fn lost(&self) -> u64 {
        match *self {}
    }
}
