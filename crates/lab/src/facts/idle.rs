//! Idle states, from the cpuidle directories of sysfs.

use serde::Serialize;
use vcoop_model::plan::Ns;

use super::Root;

/// How the host's CPUs idle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdleFacts {
    /// Driver (`intel_idle`, `acpi_idle`, `haltpoll`); `None` = the architecture's default, a plain
    /// HLT.
    pub driver: Option<String>,
    /// Governor (`menu`, `teo`, `haltpoll`).
    pub governor: Option<String>,
    /// States of the first CPU, shallowest first; empty without a driver.
    pub states: Vec<IdleState>,
}

/// An idle state as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IdleState {
    /// Name (`POLL`, `C1`, `C6`).
    pub name: String,
    /// The driver's description.
    pub description: String,
    /// Time to leave it as the driver states it, the worst case, in nanoseconds.
    pub exit_ns: Ns,
    /// Shortest stay that saves energy, in nanoseconds.
    pub residency_ns: Ns,
    /// The governor may not choose it.
    pub disabled: bool,
}

impl IdleFacts {
    /// The states that halt and may be chosen.
    pub fn halting(&self) -> impl Iterator<Item = &IdleState> {
        self.states.iter().filter(|state| !state.is_poll() && !state.disabled)
    }
}

impl IdleState {
    /// Whether the CPU spins in it rather than halts.
    pub fn is_poll(&self) -> bool {
        self.name == "POLL"
    }

    /// Whether the CPU waits in it by MWAIT, and so sees a write to its flags.
    pub fn is_mwait(&self) -> bool {
        self.description.contains("MWAIT")
    }
}

pub(super) fn read(root: &Root) -> IdleFacts {
    let all = "sys/devices/system/cpu/cpuidle";
    // A name that does not change anything is not a driver.
    let known = |text: &String| text != "none";
    let state = |i: u32| {
        let dir = format!("sys/devices/system/cpu/cpu0/cpuidle/state{i}");
        let us = |file: &str| root.number::<Ns>(&format!("{dir}/{file}"));
        Some(IdleState {
            name: root.text(&format!("{dir}/name"))?,
            description: root.text(&format!("{dir}/desc")).unwrap_or_default(),
            exit_ns: us("latency")?.saturating_mul(1000),
            residency_ns: us("residency").unwrap_or(0).saturating_mul(1000),
            disabled: us("disable").unwrap_or(0) != 0,
        })
    };
    IdleFacts {
        driver: root.text(&format!("{all}/current_driver")).filter(known),
        governor: root
            .text(&format!("{all}/current_governor"))
            .or_else(|| root.text(&format!("{all}/current_governor_ro")))
            .filter(known),
        // The kernel has at most 10.
        states: (0..16).map_while(state).collect(),
    }
}
