//! What a driver tells a host policy.

use vcoop_abi::GuestWords;

use crate::govern::CpuTime;

/// What kind of interrupt is about to be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Injection {
    /// The vCPU's own timer.
    Timer,
    /// A device.
    Device,
    /// Another vCPU.
    Ipi,
    /// A non-maskable interrupt.
    Nmi,
}

/// Something that happened to a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The switches of the VM ([`VmShared`](crate::VmShared)) may have changed.
    Enable,
    /// Whether the vCPU's thread exists. At first it does; with `false` it is about to go and gets its baseline back.
    /// Otherwise as `Enable`.
    Attached(bool),
    /// The vCPU's guest area was registered (`true`) or taken away. Tickets go on counting;
    /// interrupts from before count as answered.
    Registered(bool),
    /// An interrupt is about to be injected. The call, and the ticket that answers it, come before the interrupt is
    /// made visible to the guest. The driver may boost before or after that: before is faster for the guest.
    Injected(Injection),
    /// Another vCPU of the VM is about to send this one an IPI, through the host, and this one is not running; or this
    /// one has just lost its pCPU with such an IPI pending. Otherwise as `Injected`, which it replaces where the host
    /// sends the interrupt.
    Asked,
    /// The vCPU left guest mode for any reason but a halt; the words were read while it was outside.
    Exit(GuestWords),
    /// The words were read while the vCPU may be running: by a host that samples them because it
    /// does not see the exits. Preempt-disabled sections do not count as a reason here (see
    /// [`boost`](crate::dynamic)).
    Sampled(GuestWords),
    /// Answer to [`Action::Recheck`](crate::Action::Recheck).
    Recheck(GuestWords),
    /// The guest's synchronous end of a boost (an exit by MSR write), with the words read then.
    Notify(GuestWords),
    /// As `Notify`, with words that were read while the vCPU may be running again: by a host that answers notifications
    /// in another thread than the vCPU's. Judged as `Sampled`.
    NotifySampled(GuestWords),
    /// The vCPU halted and its thread is about to sleep. Replaces the `Exit` of that exit.
    Halted(GuestWords),
    /// The halted vCPU's thread was woken.
    Woken,
    /// The armed time has come.
    Timer,
    /// What the vCPU's thread did since the last such event, or since it began. Fed every
    /// [`ACCOUNT_NS`](crate::repay::ACCOUNT_NS) to a policy that [repays](crate::HostPolicy::repays).
    Ran(CpuTime),
    /// The baseline of the vCPU thread was changed (by an administrator, a timeline). A
    /// later [`Action::Restore`](crate::Action::Restore) means the new one.
    Baseline {
        /// The new baseline is at least as urgent as the means of boosting.
        outranks: bool,
    },
    /// The host refused the means of the last [`Action::Boost`](crate::Action::Boost): the thread still has its
    /// baseline. Fed at once, before the actions that follow it. The next reason asks again.
    Refused,
}
