//! What mechanisms cost on a machine.

mod load;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use vcoop_sched::config::Topology;

use crate::plan::Ns;

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
    /// The costs.
    pub costs: Costs,
    /// Where each number is from, by key (`exit`, `cstate.C6`): `measured ...`, `published: ...`,
    /// `derived: ...` or `assumed: ...`.
    pub sources: BTreeMap<String, String>,
}

/// Costs of one machine, in nanoseconds of the CPU that pays for them.
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
    /// Distance of voluntary preemption points in kernel sections.
    pub voluntary_point_ns: Ns,
    /// Idle states, shallowest first. The first is entered at once.
    pub cstates: Vec<CState>,
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
