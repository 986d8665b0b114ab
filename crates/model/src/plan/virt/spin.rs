//! IPIs, and spinning of guests.

use serde::{Deserialize, Serialize};

use crate::plan::{Ns, is_default};
use crate::toml_read::value::choice;

/// How a guest's IPIs are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpiVirt {
    /// Mechanism.
    pub path: IpiPath,
    /// An IPI to all other vCPUs is a single ICR write with a destination shorthand, whatever the mechanism
    /// (`native_send_call_func_ipi` of `arch/x86/kernel/apic/ipi.c`, Linux 5.4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shorthand: bool,
    /// A TLB shootdown leaves out vCPUs that are not loaded, and has them flush when they are entered
    /// (`KVM_FEATURE_PV_TLB_FLUSH`).
    pub pv_tlb: bool,
    /// A TLB shootdown also goes to vCPUs that became idle with the address space loaded, which drop it then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lazy_tlb: bool,
    /// A vCPU that has sent a function call to several vCPUs yields to the first of them that is preempted
    /// (`KVM_FEATURE_PV_SCHED_YIELD`).
    pub pv_yield: bool,
}

choice! {
    /// How an IPI is sent. Without a hypercall it is an ICR write. One write or call can have several targets only if
    /// their numbers are close together.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum IpiPath {
        /// x2APIC, physical: an exit a target.
        #[default]
        Icr = "icr",
        /// x2APIC, cluster: an exit for up to 16 targets.
        Cluster = "cluster",
        /// A hypercall for up to 128 targets.
        // `KVM_HC_SEND_IPI`; a single target has an ICR write, as in Linux in x2APIC mode.
        Pv = "pv",
        /// IPI virtualisation: no exit.
        // An ICR write a target.
        Posted = "posted",
    }
}

/// How a guest's vCPUs spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpinVirt {
    /// Kind of its spinlocks.
    pub locks: SpinLocks,
    /// How long a waiter spins for a paravirtual lock; `None`: `pv_spin` of the host's profile.
    pub threshold_ns: Option<Ns>,
    /// How long a vCPU spins until the hardware ends that by an exit (PAUSE-loop exiting), the first time since it was
    /// loaded; without effect if PAUSE does not exit. `None`: KVM's value,
    /// [`PLE_WINDOW_CYCLES`](Self::PLE_WINDOW_CYCLES) or [`PLE_WINDOW_PAUSES`](Self::PLE_WINDOW_PAUSES).
    pub ple_window_ns: Option<Ns>,
    /// Factor by which each such exit makes the window longer.
    pub ple_grow: u32,
    /// vCPUs to which the host yields.
    #[serde(default, skip_serializing_if = "is_default")]
    pub candidates: Candidates,
    /// The guest does not know which of its vCPUs have no pCPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preempted_unseen: bool,
    /// Which of its vCPUs a guest is told are preempted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub told: PreemptedReport,
    /// A waiter for a paravirtual lock halts also if the vCPU of the waiter before it is preempted (`pv_wait_early`
    /// from Linux 4.11 to 5.3).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early_if_preempted: bool,
}

choice! {
    /// Which vCPUs without a pCPU a guest takes for preempted: those that KVM reports (`kvm_steal_time_set_preempted` of
    /// `arch/x86/kvm/x86.c`), or a rule of the guest itself.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum PreemptedReport {
        /// Those that left guest mode because of an interrupt of the host.
        // Since 5.19. Those that gave their pCPU up in another exit, or halted, are not.
        #[default]
        Interrupted = "interrupted",
        /// All that have no pCPU.
        Away = "away",
        /// Linux on POWER, since 5.16 (`vcpu_is_preempted` of `arch/powerpc/include/asm/paravirt.h`): those of which a
        /// thread of the core lost its pCPU while it was busy, idle ones as well: a pool dispatches cores.
        Core = "core",
    }
}

impl SpinVirt {
    /// Whether the guest knows which of its vCPUs have no pCPU (`vcpu_is_preempted`).
    pub fn sees_preempted(&self) -> bool {
        !self.preempted_unseen
    }
}

choice! {
    /// Kind of a guest's spinlocks, which decides who gets the lock next: `kernel/locking/qspinlock.c`, or
    /// `virt_spin_lock` of `arch/x86/include/asm/qspinlock.h`. A waiter for a paravirtual lock halts after a while, and
    /// is kicked by a hypercall when it is next (`KVM_FEATURE_PV_UNHALT`).
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SpinLocks {
        /// As on bare metal: in order of arrival.
        Queued = "native",
        /// The first waiter to see that it is free, as in a VM without paravirtual locks.
        TestAndSet = "test-and-set",
        /// Paravirtual.
        Pv = "pv",
        /// Paravirtual, in order of arrival, as in guests from Linux 3.12 to 4.1.
        // `__ticket_lock_spinning` and `__ticket_unlock_slowpath` of `arch/x86/kernel/kvm.c` (`kvm_lock_spinning`,
        // `kvm_unlock_kick`).
        PvTicket = "pv-ticket",
        /// Those of Linux on POWER in a shared pool: a waiter gives its time to a vCPU that it waits for and that has no
        /// pCPU (`H_CONFER`).
        // `arch/powerpc/lib/qspinlock.c`.
        Confer = "confer",
    }
}

impl SpinLocks {
    /// Whether waiters get the lock in order of arrival.
    pub fn in_order(self) -> bool {
        matches!(self, Self::Queued | Self::PvTicket)
    }

    /// Whether waiters confer their time to preempted vCPUs.
    pub fn confers(self) -> bool {
        self == Self::Confer
    }

    /// Whether a task that comes while the head of the queue does not claim the lock waits outside the queue. `empty`:
    /// there is no queue.
    pub fn spins_outside(self, empty: bool) -> bool {
        self == Self::TestAndSet || self == Self::Pv && !empty
    }

    /// Whether waiters halt after a while, and are kicked.
    pub fn halts(self) -> bool {
        matches!(self, Self::Pv | Self::PvTicket)
    }
}

/// To which vCPUs of its VM a spinning vCPU yields (`kvm_vcpu_on_spin`), among those that could run if they had a pCPU.
/// Each field is a rule of a release of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidates {
    /// A preempted vCPU is a candidate only if it was in its kernel (4.14).
    pub in_kernel: bool,
    /// A vCPU that an interrupt woke and that waits for a pCPU is a candidate (5.3).
    pub woken: bool,
    /// A vCPU with a pending interrupt counts as in its kernel (5.13).
    pub interrupted: bool,
    /// A vCPU that releases a paravirtual lock and kicks the next waiter yields to that vCPU (5.4).
    pub queue_heads: bool,
    /// A hypercall that asks to yield does nothing if its caller is alone on its pCPU (5.13).
    pub not_alone: bool,
    /// The vCPU to which the spinning one has sent an IPI is a candidate, and one that an interrupt woke is not. If
    /// there is no candidate, any preempted vCPU is one (posted in December 2025).
    pub ipi: bool,
}

impl Default for Candidates {
    fn default() -> Self {
        Self {
            in_kernel: true,
            woken: true,
            interrupted: true,
            queue_heads: true,
            not_alone: true,
            ipi: false,
        }
    }
}

impl SpinVirt {
    /// VMX's default window, in cycles of the time-stamp counter (`KVM_VMX_DEFAULT_PLE_WINDOW`).
    pub const PLE_WINDOW_CYCLES: u64 = 4096;

    /// VMX's window never grows beyond this: 2^32 - 1 cycles at 3 GHz.
    pub const PLE_MAX_NS: Ns = 1_431_655_765;

    /// SVM's default window, in PAUSEs (`KVM_SVM_DEFAULT_PLE_WINDOW`).
    pub const PLE_WINDOW_PAUSES: u64 = 3000;

    /// SVM's window never grows beyond this, in PAUSEs (`KVM_SVM_DEFAULT_PLE_WINDOW_MAX`).
    pub const PLE_MAX_PAUSES: u64 = 65_535;

    /// Turns of a loop around PAUSE in the profile's `pv_spin`.
    pub const PV_TURNS: u64 = 32_768;

    /// How often in the profile's `pv_spin` a waiter for a paravirtual lock checks whether the waiter before it has
    /// halted; then it halts, too (`pv_wait_early` of `kernel/locking/qspinlock_paravirt.h`): every 256 turns.
    pub const PV_LOOKS: u64 = Self::PV_TURNS / 256;
}

impl Default for SpinVirt {
    fn default() -> Self {
        // KVM doubles its window.
        Self {
            locks: SpinLocks::Queued,
            threshold_ns: None,
            ple_window_ns: None,
            ple_grow: 2,
            candidates: Candidates::default(),
            preempted_unseen: false,
            told: PreemptedReport::default(),
            early_if_preempted: false,
        }
    }
}
