//! What mechanisms cost on a machine.

mod load;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use vcoop_sched::config::Topology;

pub use load::CostKey;

use crate::dist::Ns;
use crate::quantiles::Quantiles;

/// A machine: its shape, and what each mechanism costs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name, as `host.profile` says it.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// What machine this is and how its numbers came about.
    pub about: String,
    /// Its CPUs, which a scenario takes unless it says otherwise.
    pub topology: Topology,
    /// What its CPU's timers are, if that is known.
    pub cpu: Option<Cpu>,
    /// The costs.
    pub costs: Costs,
    /// What takes its CPUs though nobody asked for it.
    pub noise: Vec<Noise>,
    /// Where each number is from, by key (`exit`, `cstate.C6`, `noise.threads`): `measured ...`, `published: ...`,
    /// `derived: ...` or `assumed: ...`.
    pub sources: BTreeMap<String, String>,
}

/// What the timers of a machine's CPUs are. None of it is a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Frequency of the time-stamp counter.
    pub tsc_khz: u32,
    /// Family, model and stepping, as CPUID leaf 1 gives them in EAX.
    pub signature: u32,
    /// The VMX preemption timer counts once in `2^shift` cycles of the TSC (IA32_VMX_MISC, bits 4:0);
    /// `None`: there is none.
    pub preemption_timer_shift: Option<u32>,
}

/// CPUs whose preemption timer does not count as it should, by signature: those that KVM's
/// `cpu_has_broken_vmx_preemption_timer` lists.
const BROKEN_PREEMPTION_TIMER: [u32; 9] =
    [0x206e6, 0x20652, 0x20655, 0x106e5, 0x106a0, 0x106a1, 0x106a4, 0x106a5, 0x306a8];

impl Cpu {
    /// Whether KVM leaves the preemption timer alone on this CPU: it has none, it is broken, or its
    /// 32 bits last less than ten seconds.
    pub fn shuns_preemption_timer(&self) -> bool {
        let lasts_ms = |shift: u32| (1u64 << 32 << shift.min(31)) / u64::from(self.tsc_khz.max(1));
        self.preemption_timer_shift.is_none_or(|shift| lasts_ms(shift) < 10_000)
            || BROKEN_PREEMPTION_TIMER.contains(&self.signature)
    }
}

/// Costs of one machine, in nanoseconds of the CPU that pays for them: a constant for each, and of those that vary
/// the distribution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Host tick handler.
    pub tick_ns: Ns,
    /// Host timer interrupt (hrtimer): entry, handler, exit.
    pub timer_irq_ns: Ns,
    /// Program a host timer.
    pub timer_program_ns: Ns,
    /// Send an IPI (paid by the sender).
    pub ipi_send_ns: Ns,
    /// Time an IPI travels.
    pub ipi_flight_ns: Ns,
    /// Take an IPI (paid by the receiver).
    pub ipi_receive_ns: Ns,
    /// Device interrupt on the host, incl. the irqfd path to the injection.
    pub device_irq_ns: Ns,
    /// Wake a thread: placement and enqueue (paid by the waker).
    pub wakeup_ns: Ns,
    /// Pick and switch to another thread.
    pub context_switch_ns: Ns,
    /// What a thread pays to go to sleep and come back, besides the timer and the switch.
    pub sleep_ns: Ns,
    /// Progress lost to cold caches when a thread resumes on another CPU than its last.
    pub migration_refill_ns: Ns,
    /// Progress lost to cold caches when a thread resumes on its CPU after another ran there.
    pub switch_refill_ns: Ns,
    /// Change a thread's policy (dequeue, enqueue, resched).
    pub setattr_ns: Ns,
    /// Leave guest mode and come to KVM's handler, any reason.
    pub exit_ns: Ns,
    /// From KVM's loop back into guest mode.
    pub entry_ns: Ns,
    /// Put an interrupt into the guest at entry.
    pub inject_ns: Ns,
    /// Handle a TSC-deadline write: cancel and start the timer behind it.
    pub handle_timer_msr_ns: Ns,
    /// Handle an ICR write (one IPI), besides the kick itself.
    pub handle_icr_ns: Ns,
    /// Handle an EOI write (without posted interrupts).
    pub handle_eoi_ns: Ns,
    /// Handle a hypercall or a synchronous notification MSR.
    pub handle_hypercall_ns: Ns,
    /// Handle HLT up to the point where the thread sleeps.
    pub handle_hlt_ns: Ns,
    /// Handle the exit by which a guest becomes able to take an interrupt (without posted ones).
    pub handle_window_ns: Ns,
    /// Handle the expiry of the VMX preemption timer.
    pub handle_hv_timer_ns: Ns,
    /// Handle a TSC-deadline write that only sets the VMX preemption timer.
    pub set_hv_timer_ns: Ns,
    /// Load the VMX preemption timer at a VM entry.
    pub arm_hv_timer_ns: Ns,
    /// A write that KVM handles on its fast path: exit, handling and entry together.
    pub fastpath_ns: Ns,
    /// How late a polling loop notices what it waits for.
    pub poll_notice_ns: Ns,
    /// Load a vCPU on the pCPU it was just switched to.
    pub vcpu_load_ns: Ns,
    /// Guest interrupt handler for a timer or IPI (entry, handler, exit).
    pub guest_irq_ns: Ns,
    /// Guest tick work on top of the interrupt.
    pub guest_tick_ns: Ns,
    /// Guest wakes a task.
    pub guest_wakeup_ns: Ns,
    /// Guest context switch.
    pub guest_switch_ns: Ns,
    /// What a task of a Linux guest pays to go to sleep and come back, besides the exit for its timer and the switch.
    pub guest_sleep_ns: Ns,
    /// The same of a task of the lab's guest.
    pub lab_sleep_ns: Ns,
    /// Distance of voluntary preemption points in kernel sections.
    pub voluntary_point_ns: Ns,
    /// Idle states, shallowest first. The first is entered at once.
    pub cstates: Vec<CState>,
    /// Costs that vary, by their keys in profiles (`exit`, `cstate.C6`): the simulator draws each anew. The constant
    /// stands for it where nothing is drawn.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: BTreeMap<String, Quantiles>,
}

/// Something that takes each CPU of a machine for a while, again and again: each at times of its own, at random (a Poisson
/// process).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Name.
    pub name: String,
    /// What it is.
    pub by: NoiseBy,
    /// Mean time from one to the next, on each CPU.
    pub period_ns: Ns,
    /// How long it takes the CPU.
    pub takes: Quantiles,
}

/// What noise is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoiseBy {
    /// Interrupts, softirqs, and stalls that the kernel does not see (firmware, a hypervisor beneath): whatever runs
    /// has to wait.
    Interrupts,
    /// Threads of the kernel and of its services: fair threads of nice 0, that compete for the CPU.
    Threads,
}

/// A host idle state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CState {
    /// Name (`C1`, `C6`, ...).
    pub name: String,
    /// Time to leave it.
    pub exit_ns: Ns,
    /// Predicted idle time from which the governor chooses it.
    pub residency_ns: Ns,
}
