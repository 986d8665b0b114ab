//! What a vCPU keeps besides the state that every event looks at: counters, and the state of mechanisms
//! that most VMs have switched off. And what a VM has switched on.

use vcoop_model::plan::virt::{GuestIdle, GuestTimer, IpiPath, TimerMode, Virt};
use vcoop_model::plan::{HostPlan, Ns, Plan};
use vcoop_policy::config::AdvanceConfig;
use vcoop_policy::{GuestHaltPoll, HostHaltPoll, TimerAdvance};

use crate::guest::counters::Counters;
use crate::host::idle::IdleTimes;
use crate::machine::Exit;

/// Why a vCPU has to be tended when it is switched to; bits of `Vcpu::wants`.
pub(crate) mod wants {
    /// Its preemption timer stands on an hrtimer.
    pub(crate) const HV_TIMER: u8 = 1;
    /// The host's polling is told how long it was halted.
    pub(crate) const HALT_TIME: u8 = 2;
    /// Its timer has expired on another pCPU, and it is to take the interrupt at its next entry.
    pub(crate) const TIMER: u8 = 4;
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
        let shuns = host.cpu.is_none_or(|cpu| cpu.shuns_preemption_timer());
        // KVM's `kvm_can_use_hv_timer`, and whether it has one at all.
        let hv_timer =
            virt.timer.source == Some(GuestTimer::HvTimer) && !virt.exits_off.mwait && !shuns;
        Self {
            posted: virt.apic.posted,
            fires: match virt.timer.source {
                Some(GuestTimer::Exitless) => Fires::Exitless,
                Some(GuestTimer::Posted) => Fires::Posted,
                _ if hv_timer => Fires::Hv,
                _ => Fires::Hrtimer,
            },
            special_timer: hv_timer || advance || virt.timer.mode != TimerMode::TscDeadline,
            sw_on_preempt: virt.timer.arm_sw_on_preempt,
            advance,
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
            host_polls: virt.idle.host_poll.max_ns > 0,
        }
    }
}

/// The cold part of a vCPU. The counters that every exit counts come first, on a cache line of theirs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct VcpuVirt {
    pub(crate) counters: Counters,
    /// The deadline that its timer stands for.
    pub(crate) due: Ns,
    /// The deadline of the interrupt that is pending: it is not to come before.
    pub(crate) expires: Ns,
    pub(crate) advance: TimerAdvance,
    /// Period of a periodic timer.
    pub(crate) period: Ns,
    /// The preemption timer's deadline while an hrtimer stands in.
    pub(crate) parked: Ns,
    /// Cycles of the TSC, and its ratio: what the preemption timer can hold.
    pub(crate) range: crate::interrupts::hv_timer::Range,
    pub(crate) host_poll: HostHaltPoll,
    /// When it halted, as the host sees it; `Ns::MAX`: it has not.
    pub(crate) halted_at: Ns,
    /// Until when the host polls for it.
    pub(crate) poll_until: Ns,
    /// Time polled so far.
    pub(crate) polled: Ns,
    pub(crate) guest_poll: GuestHaltPoll,
    /// When it halted, as the guest sees it; `Ns::MAX`: it has not.
    pub(crate) guest_halted_at: Ns,
    /// When the guest's poll began; `Ns::MAX`: it does not poll.
    pub(crate) guest_poll_at: Ns,
    /// How long it rested in guest mode.
    pub(crate) rests: IdleTimes,
}

impl VcpuVirt {
    pub(crate) fn new(plan: &Plan, vm: usize) -> Box<Self> {
        let (virt, host) = (&plan.vms[vm].virt, &plan.host);
        let khz = host.cpu.map_or(1_000_000, |cpu| cpu.tsc_khz);
        Box::new(Self {
            counters: Counters::default(),
            due: Ns::MAX,
            expires: Ns::MAX,
            advance: TimerAdvance::new(virt.timer.advance, khz),
            // KVM lets none be shorter (`min_timer_period_us`).
            period: plan.vms[vm].level.tick_ns.max(200_000),
            parked: Ns::MAX,
            range: crate::interrupts::hv_timer::Range::new(host.cpu, virt.timer.tsc_ratio_ppm),
            host_poll: HostHaltPoll::new(virt.idle.host_poll),
            halted_at: Ns::MAX,
            poll_until: Ns::MAX,
            polled: 0,
            guest_poll: GuestHaltPoll::new(virt.idle.guest_poll),
            guest_halted_at: Ns::MAX,
            guest_poll_at: Ns::MAX,
            rests: IdleTimes::default(),
        })
    }
}
