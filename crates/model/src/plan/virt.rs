//! How a VM is virtualised: one independent field for each mechanism.
//!
//! The default is KVM's plain in-kernel APIC with a paravirtual EOI: every mechanism is off unless a scenario switches
//! it on.

mod spin;

use serde::{Deserialize, Serialize};
use vcoop_policy::config::{AdvanceConfig, GuestPollConfig, HostPollConfig};

use super::govern::Govern;
use crate::toml_read::value::choice;
pub use spin::{Candidates, IpiPath, IpiVirt, PreemptedReport, SpinLocks, SpinVirt};

/// Everything by which one VM is virtualised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Virt {
    /// Its timer.
    pub timer: TimerVirt,
    /// Its interrupt controller.
    pub apic: ApicVirt,
    /// Instructions that do not exit.
    pub exits_off: ExitsOff,
    /// What its vCPUs do when they have nothing to run.
    pub idle: IdleVirt,
    /// How its IPIs are sent.
    pub ipi: IpiVirt,
    /// How its vCPUs spin.
    pub spin: SpinVirt,
    /// How many of its vCPUs its guest uses.
    pub govern: Govern,
    /// vCPUs without a periodic tick while one task runs there (`nohz_full` of the guest's kernel).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nohz_full: Vec<u32>,
    /// CPUID tells the guest that its pCPUs are its own (`KVM_HINTS_REALTIME`). The guest's reactions are the other
    /// fields: the simulator does not derive them from this one.
    #[serde(default)]
    pub dedicated: bool,
    /// The guest's scheduler charges tasks for stolen time, as kernels without `CONFIG_PARAVIRT_TIME_ACCOUNTING` do.
    #[serde(default)]
    pub charges_steal: bool,
}

/// How a guest's deadlines are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerVirt {
    /// Who fires them; `None` leaves it to the backend.
    pub source: Option<GuestTimer>,
    /// How the guest programs them.
    pub mode: TimerMode,
    /// How early they are fired.
    pub advance: AdvanceConfig,
    /// With [`GuestTimer::HvTimer`]: an hrtimer stands in while the vCPU is preempted.
    pub arm_sw_on_preempt: bool,
    /// Cycles of the guest's TSC in a million of the host's (TSC scaling).
    pub tsc_ratio_ppm: u64,
    /// Largest difference between the rates of the guest's clock and the host's, in millionths.
    #[serde(default)]
    pub skew_ppm: u32,
}

/// TSC ratio of a guest whose TSC is the host's.
pub const TSC_UNSCALED: u64 = 1_000_000;

impl Default for TimerVirt {
    fn default() -> Self {
        Self {
            source: None,
            mode: TimerMode::default(),
            advance: AdvanceConfig::None,
            arm_sw_on_preempt: false,
            tsc_ratio_ppm: TSC_UNSCALED,
            skew_ppm: 0,
        }
    }
}

choice! {
    /// Who fires a guest's timer deadlines. All but the last are the in-kernel LAPIC timer.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum GuestTimer {
        /// KVM's in-kernel LAPIC timer, by the mechanism that the host's KVM uses.
        // An hrtimer in the simulator, on real vCPUs the preemption timer where the host uses it.
        Lapic = "lapic",
        /// An hrtimer of the host.
        // Writing the deadline is an exit, and it fires on the pCPU where the vCPU ran last.
        Hrtimer = "hrtimer",
        /// The VMX preemption timer.
        // It counts down in guest mode and ends in an exit of its own, without a timer interrupt on the host. While the
        // vCPU is halted, and wherever KVM cannot use it, it is `Hrtimer`; on a host with `nohz_full`, where KVM posts
        // the timers of guests whose HLT or MWAIT does not exit, it is `Posted` for those.
        HvTimer = "hv-timer",
        /// A housekeeping CPU, which posts the interrupt; writing the deadline exits.
        // KVM's `pi_inject_timer` (Linux 5.3: `kvm_can_post_timer_interrupt`). The expiry is no exit while the vCPU is
        // in guest mode.
        Posted = "posted",
        /// A housekeeping CPU, from a deadline in the shared page.
        // The KVM tax cut's exitless timer: writing the deadline is a store, and the vCPU's pCPU takes no timer
        // interrupt.
        Exitless = "exitless",
    }
}

choice! {
    /// How a guest programs its LAPIC timer. With `Periodic` it has no other timer than its tick, which never stops.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum TimerMode {
        /// By a TSC value.
        #[default]
        TscDeadline = "tsc-deadline",
        /// By a count, for one event.
        Oneshot = "oneshot",
        /// By a count that repeats.
        Periodic = "periodic",
    }
}

/// A guest's interrupt controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApicVirt {
    /// Interrupts reach a running guest without an exit (APICv/AVIC posted interrupts).
    pub posted: bool,
    /// The end of an interrupt exits: neither APICv nor a paravirtual EOI.
    pub eoi_exits: bool,
    /// An interrupt that the guest cannot take yet exits once more when it can.
    pub window_exits: bool,
    /// Timer and ICR writes are handled before the exit is complete, and the guest is re-entered at once (Linux 5.6 and
    /// later). For ICR writes only in physical mode (`handle_fastpath_set_x2apic_icr_irqoff`), so not with
    /// [`IpiPath::Cluster`].
    pub fastpath: bool,
}

/// Instructions that do not exit (`KVM_CAP_X86_DISABLE_EXITS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitsOff {
    /// HLT idles the pCPU in guest mode.
    pub hlt: bool,
    /// MWAIT idles the pCPU in guest mode, and the guest may use it.
    pub mwait: bool,
    /// PAUSE loops do not exit.
    pub pause: bool,
    /// Reads of the C-state residency counters.
    pub cstate: bool,
}

/// What vCPUs without work do, and what the host does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleVirt {
    /// What the guest does.
    pub guest: GuestIdle,
    /// With [`GuestIdle::Haltpoll`]: for how long.
    pub guest_poll: GuestPollConfig,
    /// How long the host polls for a halted vCPU; `None`: never in the simulator, and as its KVM does on a real host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_poll: Option<HostPollConfig>,
}

impl IdleVirt {
    /// How long a simulated host polls for a halted vCPU.
    pub fn host_polls(&self) -> HostPollConfig {
        self.host_poll.unwrap_or(HostPollConfig::OFF)
    }

    /// Changes how the host polls. What then is as by default is not said.
    pub(crate) fn set_host_poll(&mut self, change: impl FnOnce(&mut HostPollConfig)) {
        let mut host = self.host_polls();
        change(&mut host);
        if host != self.host_polls() {
            self.host_poll = Some(host);
        }
    }

    /// The host's polling in force: a guest that polls by haltpoll switches it off (`MSR_KVM_POLL_CONTROL`, which Linux
    /// writes since 5.3).
    pub fn host_polls_in_force(&self) -> HostPollConfig {
        if self.guest == GuestIdle::Haltpoll { HostPollConfig::OFF } else { self.host_polls() }
    }
}

impl Default for IdleVirt {
    fn default() -> Self {
        Self { guest: GuestIdle::Hlt, guest_poll: GuestPollConfig::LINUX, host_poll: None }
    }
}

choice! {
    /// A guest's idle loop: Linux's `idle=poll`, its haltpoll governor, or an instruction. MWAIT must not exit.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum GuestIdle {
        /// HLT.
        #[default]
        Hlt = "hlt",
        /// Polls for ever.
        Poll = "poll",
        /// Polls, then halts.
        Haltpoll = "haltpoll",
        /// MWAIT.
        Mwait = "mwait",
    }
}
