//! Costs of mechanisms on a machine.

mod load;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use vcoop_sched::config::Topology;

pub use load::{CostKey, Costs};

use crate::dist::Ns;
use crate::quantiles::Quantiles;
use crate::toml_read::value::choice;

/// A machine: its shape, and what each mechanism costs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name, as in `host.profile`.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// Description of the machine and of how its numbers were obtained.
    pub about: String,
    /// Its CPUs, the default of a scenario.
    pub topology: Topology,
    /// Timers of its CPU, if known.
    pub cpu: Option<Cpu>,
    /// The costs.
    pub costs: Costs,
    /// Activities that take its CPUs unasked.
    pub noise: Vec<Noise>,
    /// Source of each number, by key (`exit`, `cstate.C6`, `noise.threads`): `measured ...`, `published: ...`,
    /// `derived: ...` or `assumed: ...`.
    pub sources: BTreeMap<String, String>,
}

/// Timers of a machine's CPUs. They are no costs.
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

/// CPUs whose preemption timer counts wrongly, by signature: the list of KVM's `cpu_has_broken_vmx_preemption_timer`.
const BROKEN_PREEMPTION_TIMER: [u32; 9] =
    [0x206e6, 0x20652, 0x20655, 0x106e5, 0x106a0, 0x106a1, 0x106a4, 0x106a5, 0x306a8];

impl Cpu {
    /// Whether KVM uses SVM on it: a CPU of AMD's since Zen, or of Hygon's.
    pub fn has_svm(&self) -> bool {
        let (family, extended) = ((self.signature >> 8) & 0xf, (self.signature >> 20) & 0xff);
        // Intel's families end below.
        family == 0xf && family + extended >= 0x17
    }

    /// Whether KVM does not use the preemption timer on this CPU: it has none, it is broken, or its 32 bits last less
    /// than ten seconds.
    pub fn avoids_preemption_timer(&self) -> bool {
        let lasts_ms = |shift: u32| (1u64 << 32 << shift.min(31)) / u64::from(self.tsc_khz.max(1));
        self.preemption_timer_shift.is_none_or(|shift| lasts_ms(shift) < 10_000)
            || BROKEN_PREEMPTION_TIMER.contains(&self.signature)
    }
}

/// An activity that takes each CPU of a machine again and again, on each at random times of its own (a Poisson
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
    /// The mean of that.
    pub mean_ns: Ns,
}

choice! {
    /// What noise is made of.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum NoiseBy {
        /// Interrupts, softirqs, and stalls that the kernel does not see.
        // Firmware, a hypervisor beneath: whatever runs has to wait.
        Interrupts = "interrupts",
        /// Fair threads of nice 0.
        // Threads of the kernel and of its services, that compete for the CPU.
        Threads = "threads",
    }
}

impl Costs {
    /// Removes the idle states that take longer than this to leave, like `/dev/cpu_dma_latency`. If none is left, or at
    /// 0, the CPU polls.
    pub fn limit_idle(&mut self, limit: Ns) {
        self.cstates.retain(|state| limit > 0 && state.exit_ns <= limit);
        if self.cstates.is_empty() {
            let name = "POLL".to_owned();
            self.cstates.push(CState { name, exit_ns: 0, residency_ns: 0, monitor: true });
        }
    }
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
    /// The CPU monitors a flag in it (MWAIT, or a loop): if all states of a machine do, waking an idle CPU takes a
    /// write instead of an IPI.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub monitor: bool,
}
