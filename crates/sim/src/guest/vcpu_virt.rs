//! State of a vCPU that few events use: counters, and the state of mechanisms that most VMs have off. And the
//! mechanisms that a VM has on.

use vcoop_model::plan::virt::{GuestIdle, GuestTimer, IpiPath, TimerMode, Virt};
use vcoop_model::plan::{HostPlan, Plan, VmPlan};
use vcoop_policy::config::AdvanceConfig;

use crate::guest::counters::Counters;
use crate::guest::exit::Exit;
use crate::guest::halt_poll::{GuestPoll, HostPoll};
use crate::host::idle_governor::IdleGovernor;
use crate::interrupts::deadline::Deadline;

/// Reasons to call `tend` when a vCPU is switched to; bits of `Vcpu::wants`.
pub(crate) mod wants {
    /// Its preemption timer is replaced by an hrtimer.
    pub(crate) const HV_TIMER: u8 = 1;
    /// The host's polling needs the length of its halt.
    pub(crate) const HALT_TIME: u8 = 2;
    /// Its timer has expired on another pCPU, and it is to take the interrupt at its next entry.
    pub(crate) const TIMER: u8 = 4;
    /// Its timer has fired on the host, and that handler is still to run.
    pub(crate) const FIRED: u8 = 8;
}

/// Which exits KVM handles on its fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FastPath {
    Off,
    /// Those of the timer.
    Timer,
    /// Those, and writes of the ICR.
    TimerAndIcr,
}

/// What a guest's idle vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleMode {
    /// HLT exits.
    Halt,
    /// HLT or MWAIT does not exit: the pCPU rests in guest mode.
    Rest,
    /// Polls for ever.
    Poll,
    /// Polls for a while, then HLT exits (`false`) or rests (`true`).
    Haltpoll(bool),
}

/// What fires a VM's deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadlineTimer {
    /// An hrtimer of the pCPU where it was set.
    Hrtimer,
    /// The preemption timer, where it can.
    Hv,
    /// The housekeeping pCPU.
    Posted,
    /// The housekeeping pCPU, and writing a deadline does not exit.
    Exitless,
}

/// How a VM is virtualised, in a form that events use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VmVirt {
    /// Interrupts reach a running guest without an exit.
    pub(crate) posted: bool,
    fires: DeadlineTimer,
    /// An hrtimer replaces the preemption timer while the vCPU is preempted.
    pub(crate) sw_on_preempt: bool,
    /// Deadlines are fired early.
    pub(crate) advance: bool,
    /// The guest's kernel waits for the deadline in its handler; else the CPU that delivers the interrupt waits.
    pub(crate) guest_waits: bool,
    pub(crate) mode: TimerMode,
    /// One of the three fields above is not the default.
    special_timer: bool,
    pub(crate) eoi_exits: bool,
    pub(crate) window_exits: bool,
    fastpath: FastPath,
    pub(crate) idle: IdleMode,
    /// MWAIT: idle states of every depth, not only the first.
    pub(crate) mwait: bool,
    pub(crate) host_polls: bool,
}

impl VmVirt {
    /// Writing a deadline does not exit.
    #[inline]
    pub(crate) fn exitless(&self) -> bool {
        self.fires == DeadlineTimer::Exitless
    }

    /// Its deadlines are fired by the housekeeping pCPU.
    #[inline]
    pub(crate) fn away(&self) -> bool {
        matches!(self.fires, DeadlineTimer::Posted | DeadlineTimer::Exitless)
    }

    /// Its deadlines use the preemption timer where possible.
    #[inline]
    pub(crate) fn hv_timer(&self) -> bool {
        self.fires == DeadlineTimer::Hv
    }

    /// Whether its timer is an hrtimer (or the housekeeping's) that fires when it is due.
    #[inline]
    pub(crate) fn plain_timer(&self) -> bool {
        !self.special_timer
    }

    /// Whether KVM handles an exit on its fast path.
    #[inline]
    pub(crate) fn is_fast(&self, reason: Exit) -> bool {
        match reason {
            Exit::Timer => self.fastpath != FastPath::Off,
            Exit::Ipi(_) => self.fastpath == FastPath::TimerAndIcr,
            // Its interrupt goes along only if it can be posted.
            Exit::HvTimer => self.fastpath != FastPath::Off && self.posted,
            _ => false,
        }
    }

    pub(crate) fn new(virt: &Virt, host: &HostPlan) -> Self {
        let rests = virt.exits_off.hlt;
        let advance = virt.timer.advance != AdvanceConfig::None;
        let hv_timer = can_use_hv_timer(virt, host);
        Self {
            posted: virt.apic.posted,
            fires: match virt.timer.source {
                Some(GuestTimer::Exitless) => DeadlineTimer::Exitless,
                Some(GuestTimer::Posted) => DeadlineTimer::Posted,
                Some(GuestTimer::HvTimer) if posts_timers(virt, host) => DeadlineTimer::Posted,
                _ if hv_timer => DeadlineTimer::Hv,
                _ => DeadlineTimer::Hrtimer,
            },
            special_timer: hv_timer || advance || virt.timer.mode != TimerMode::TscDeadline,
            sw_on_preempt: virt.timer.arm_sw_on_preempt,
            advance,
            guest_waits: matches!(virt.timer.advance, AdvanceConfig::Within { .. }),
            mode: virt.timer.mode,
            eoi_exits: virt.apic.eoi_exits,
            window_exits: virt.apic.window_exits,
            fastpath: match virt.ipi.path {
                _ if !virt.apic.fastpath => FastPath::Off,
                // Its ICR writes are in logical mode.
                IpiPath::Cluster => FastPath::Timer,
                IpiPath::Icr | IpiPath::Pv | IpiPath::Posted => FastPath::TimerAndIcr,
            },
            idle: match virt.idle.guest {
                GuestIdle::Hlt if rests => IdleMode::Rest,
                GuestIdle::Hlt => IdleMode::Halt,
                GuestIdle::Poll => IdleMode::Poll,
                GuestIdle::Haltpoll => IdleMode::Haltpoll(rests),
                GuestIdle::Mwait => IdleMode::Rest,
            },
            mwait: virt.idle.guest == GuestIdle::Mwait,
            host_polls: virt.idle.host_polls_in_force().max_ns > 0,
        }
    }
}

/// Whether deadlines of a VM's vCPUs use the preemption timer where possible: KVM's `kvm_can_use_hv_timer`, and whether
/// the CPU has one.
fn can_use_hv_timer(virt: &Virt, host: &HostPlan) -> bool {
    let shuns = host.cpu.is_none_or(|cpu| cpu.avoids_preemption_timer());
    let off = virt.exits_off.mwait || posts_timers(virt, host);
    virt.timer.source == Some(GuestTimer::HvTimer) && !off && !shuns
}

/// Whether KVM by itself has housekeeping pCPUs post the timers of a VM (`kvm_can_post_timer_interrupt`).
fn posts_timers(virt: &Virt, host: &HostPlan) -> bool {
    let rests = virt.exits_off.hlt || virt.exits_off.mwait;
    rests && virt.apic.posted && !host.nohz_full.is_empty()
}

/// Virtualisation of a vCPU: fields that most events do not use. The counters of every exit come first, on their own
/// cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct VcpuVirt {
    pub(crate) counters: Counters,
    pub(crate) deadline: Deadline,
    pub(crate) host_poll: HostPoll,
    pub(crate) guest_poll: GuestPoll,
    /// The guest's governor of idle states, for rests in guest mode.
    pub(crate) idle_governor: IdleGovernor,
}

impl VcpuVirt {
    pub(crate) fn new(plan: &Plan, vm: usize) -> Box<Self> {
        let VmPlan { virt, level, .. } = &plan.vms[vm];
        let hv_timer = can_use_hv_timer(virt, &plan.host);
        Box::new(Self {
            counters: Counters::default(),
            deadline: Deadline::new(&virt.timer, hv_timer, level.tick_ns, plan.host.cpu),
            host_poll: HostPoll::new(virt.idle.host_polls_in_force()),
            guest_poll: GuestPoll::new(virt.idle.guest_poll),
            idle_governor: IdleGovernor::default(),
        })
    }
}
