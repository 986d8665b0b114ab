//! Reasons for which vCPUs leave guest mode.

use crate::messages::call::Message;

/// Why a vCPU left guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// A host interrupt.
    Interrupt,
    /// HLT.
    Halt,
    /// A write of the TSC-deadline MSR.
    Timer,
    /// An ICR write to another vCPU of the VM (global index).
    Ipi(u32),
    /// The synchronous end of a boost.
    Notify,
    /// A write of the registration MSR: true sets the guest area, false removes it, `None` is refused.
    Register(Option<bool>),
    /// A doorbell or hypercall: a message to a receiver outside the VM.
    Send(Message),
    /// A hypercall of the toolstack: a VM of a storm may run.
    Start(u32),
    /// The VMX preemption timer.
    HvTimer,
    /// The end of an interrupt (EOI), if that is not virtualised.
    Eoi,
    /// The interrupt window: the guest can take an interrupt now.
    Window,
    /// A PAUSE loop.
    Pause,
    /// One ICR write or hypercall for several vCPUs: the next `targets` of the sender's multicast.
    Multicast {
        /// Number of targets.
        targets: u32,
        /// A hypercall, not an ICR write.
        hypercall: bool,
    },
    /// A hypercall that wakes a halted vCPU (global index), which is next in line for a lock.
    Kick(u32),
    /// A hypercall: yield to a vCPU (global index).
    Yield(u32),
    /// A hypercall: confer time to a vCPU (global index).
    Confer(u32),
    /// A message to another machine, for this client.
    Remote(u32),
    /// A hypercall: an IPI to a preempted vCPU (global index), which is to be boosted for it.
    Ask(u32),
    /// A read of a counter of C-state residency.
    CstateRead,
}

impl Exit {
    /// Whether user space handles it; the effect comes in the middle of the exit.
    pub(crate) fn goes_to_user(self) -> bool {
        matches!(
            self,
            Self::Notify | Self::Register(_) | Self::Send(_) | Self::Start(_) | Self::Remote(_)
        )
    }

    /// Index into the counters, in the order of [`EXIT_NAMES`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Interrupt => 0,
            Self::Halt => 1,
            Self::Timer => 2,
            Self::Ipi(_) | Self::Multicast { hypercall: false, .. } => 3,
            Self::Notify => 4,
            Self::Register(Some(_)) => 5,
            Self::Register(None) => 6,
            Self::Send(_) | Self::Start(_) | Self::Remote(_) => 7,
            Self::HvTimer => 8,
            Self::Eoi => 9,
            Self::Window => 10,
            Self::Pause => 11,
            Self::Multicast { hypercall: true, .. }
            | Self::Kick(_)
            | Self::Yield(_)
            | Self::Confer(_)
            | Self::Ask(_) => 12,
            Self::CstateRead => 13,
        }
    }
}

/// Exit reasons as reported.
pub(crate) const EXIT_NAMES: [&str; 14] = [
    "interrupt",
    "hlt",
    "msr_timer",
    "msr_icr",
    "notify",
    "register",
    "refused",
    "send",
    "preemption_timer",
    "eoi",
    "interrupt_window",
    "pause",
    "hypercall",
    "msr_cstate",
];
