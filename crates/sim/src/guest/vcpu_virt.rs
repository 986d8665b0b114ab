//! What a vCPU keeps besides the state that every event looks at: counters, and the state of mechanisms
//! that most VMs have switched off. And what a VM has switched on.

use vcoop_model::plan::virt::{GuestIdle, GuestTimer, IpiPath, TimerMode, Virt};
use vcoop_model::plan::{HostPlan, Plan, VmPlan};
use vcoop_policy::config::AdvanceConfig;

use crate::guest::counters::Counters;
use crate::guest::exit::Exit;
use crate::guest::halt_poll::{GuestPoll, HostPoll};
use crate::host::idle_governor::IdleGovernor;
use crate::interrupts::deadline::Deadline;

/// Why a vCPU has to be tended when it is switched to; bits of `Vcpu::wants`.
pub(crate) mod wants {
    /// Its preemption timer stands on an hrtimer.
    pub(crate) const HV_TIMER: u8 = 1;
    /// The host's polling is told how long it was halted.
    pub(crate) const HALT_TIME: u8 = 2;
    /// Its timer has expired on another pCPU, and it is to take the interrupt at its next entry.
    pub(crate) const TIMER: u8 = 4;
    /// Its timer has fired on the host, and the handler of that is still to run.
    pub(crate) const FIRED: u8 = 8;
}

/// Which exits KVM handles on its fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FastPath {
    Off,
    /// Those of the timer.
    Timer,
    /// ... and writes of the ICR.
    TimerAndIcr,
}

/// What a guest's idle vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleWay {
    /// HLT exits.
    Halt,
    /// HLT or MWAIT does not exit: the pCPU rests in guest mode.
    Rest,
    /// Polls for ever.
    Poll,
    /// Polls for a while, then as the field says: HLT exits (false) or rests (true).
    Haltpoll(bool),
}

/// Who fires a VM's deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fires {
    /// An hrtimer of the pCPU where it was set.
    Hrtimer,
    /// The preemption timer, where it can.
    Hv,
    /// The housekeeping pCPU.
    Posted,
    /// The same, and writing a deadline does not exit.
    Exitless,
}

/// How a VM is virtualised, as its events ask for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VmVirt {
    /// Interrupts reach a running guest without an exit.
    pub(crate) posted: bool,
    fires: Fires,
    /// An hrtimer stands in for that while the vCPU is preempted.
    pub(crate) sw_on_preempt: bool,
    /// Deadlines are fired early.
    pub(crate) advance: bool,
    /// The guest's kernel waits for the deadline in its handler; else whoever brings the interrupt does.
    pub(crate) guest_waits: bool,
    pub(crate) mode: TimerMode,
    /// One of the three above is not as usual.
    special_timer: bool,
    pub(crate) eoi_exits: bool,
    pub(crate) window_exits: bool,
    fastpath: FastPath,
    pub(crate) idle: IdleWay,
    /// MWAIT: idle states of every depth, not the first alone.
    pub(crate) mwait: bool,
    pub(crate) host_polls: bool,
}

impl VmVirt {
    /// Writing a deadline does not exit.
    #[inline]
    pub(crate) fn exitless(&self) -> bool {
        self.fires == Fires::Exitless
    }

    /// Its deadlines are fired by the housekeeping pCPU.
    #[inline]
    pub(crate) fn away(&self) -> bool {
        matches!(self.fires, Fires::Posted | Fires::Exitless)
    }

    /// Its deadlines stand on the preemption timer where they can.
    #[inline]
    pub(crate) fn hv_timer(&self) -> bool {
        self.fires == Fires::Hv
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
                Some(GuestTimer::Exitless) => Fires::Exitless,
                Some(GuestTimer::Posted) => Fires::Posted,
                Some(GuestTimer::HvTimer) if posts_timers(virt, host) => Fires::Posted,
                _ if hv_timer => Fires::Hv,
                _ => Fires::Hrtimer,
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
                GuestIdle::Hlt if rests => IdleWay::Rest,
                GuestIdle::Hlt => IdleWay::Halt,
                GuestIdle::Poll => IdleWay::Poll,
                GuestIdle::Haltpoll => IdleWay::Haltpoll(rests),
                GuestIdle::Mwait => IdleWay::Rest,
            },
            mwait: virt.idle.guest == GuestIdle::Mwait,
            host_polls: virt.idle.host_polls_in_force().max_ns > 0,
        }
    }
}

/// Whether deadlines of a VM's vCPUs stand on the preemption timer where they can: KVM's `kvm_can_use_hv_timer`, and whether
/// there is one at all.
fn can_use_hv_timer(virt: &Virt, host: &HostPlan) -> bool {
    let shuns = host.cpu.is_none_or(|cpu| cpu.shuns_preemption_timer());
    let off = virt.exits_off.mwait || posts_timers(virt, host);
    virt.timer.source == Some(GuestTimer::HvTimer) && !off && !shuns
}

/// Whether KVM has housekeeping pCPUs post the timers of a VM without being told to (`kvm_can_post_timer_interrupt`).
fn posts_timers(virt: &Virt, host: &HostPlan) -> bool {
    let rests = virt.exits_off.hlt || virt.exits_off.mwait;
    rests && virt.apic.posted && !host.nohz_full.is_empty()
}

/// How a vCPU is virtualised: what most events do not look at. The counters that every exit counts come first, on
/// a cache line of theirs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct VcpuVirt {
    pub(crate) counters: Counters,
    pub(crate) deadline: Deadline,
    pub(crate) host_poll: HostPoll,
    pub(crate) guest_poll: GuestPoll,
    /// Of its guest, when it rests in guest mode.
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
