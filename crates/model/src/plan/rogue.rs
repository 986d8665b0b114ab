//! Programs of hostile guest kernels.

use std::fmt;

use serde::{Deserialize, Serialize};
use vcoop_abi::{CsState, Intent, TaskIntent};

use super::Ns;
use crate::named;
use crate::toml_read::units::show;

/// A step of a hostile kernel's program, which runs in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RogueStep {
    /// Ask for a boost.
    Ask,
    /// Request the end of the boost.
    End,
    /// Claim to be in exactly this state.
    Claim(Claim),
    /// Acknowledge the last interrupt.
    Acknowledge,
    /// Write the notify MSR.
    Notify,
    /// Ring the lab's doorbell. The simulator has none.
    Doorbell,
    /// Write the registration MSR.
    Register(Registers),
    /// Write random values into the words of the VM's next vCPU (its own, if it is alone) for this long, so that they
    /// change while the host reads them. Deadlines written to the page are near the present.
    Scribble(Ns),
    /// Program the vCPU's timer to fire so long from now.
    Deadline(Ns),
    /// Sleep; a vCPU that has nothing else to do halts.
    Halt(Ns),
    /// Use the CPU.
    Work(Ns),
    /// End the VM by a triple fault.
    Fault,
}

named! {
    /// State that a hostile kernel can claim for its vCPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Claim {
        /// To run a fair task.
        Nothing = "nothing",
        /// To be in a preempt-disabled section: a new one each time.
        Section = "section",
        /// To handle a softirq.
        Softirq = "softirq",
        /// To handle an NMI.
        Nmi = "nmi",
        /// To run a real-time task.
        Urgent = "urgent",
        /// To be idle.
        Idle = "idle",
    }
}

named! {
    /// What a hostile kernel registers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Registers {
        /// Its own area.
        Own = "own",
        /// None.
        Nothing = "nothing",
        /// Addresses that must be refused, another one at each such step.
        Refused = "refused",
        /// Memory of its own that is no area: code, descriptors. The simulator registers its own area again.
        Odd = "odd",
    }
}

impl RogueStep {
    /// Whether the task writes the words of its own vCPU from then on, so that the kernel's hooks must not.
    pub fn takes_own_area(self) -> bool {
        !matches!(self, Self::Scribble(_) | Self::Halt(_) | Self::Work(_) | Self::Fault)
    }

    /// Whether the step takes time.
    pub fn takes_time(self) -> bool {
        matches!(self, Self::Scribble(_) | Self::Halt(_) | Self::Work(_))
    }
}

impl Claim {
    /// The words that claim this; the number of a section is set by the caller.
    pub fn words(self) -> (Intent, CsState) {
        let running = if self == Self::Urgent { TaskIntent::fifo(99) } else { TaskIntent::FAIR };
        let intent = Intent { running, pending: None, idle: self == Self::Idle };
        let cs = CsState {
            nmi: (self == Self::Nmi).into(),
            softirq: (self == Self::Softirq).into(),
            preempt_off: self == Self::Section,
            ..CsState::default()
        };
        (intent, cs)
    }
}

impl fmt::Display for RogueStep {
    /// As scenarios have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timed = |f: &mut fmt::Formatter<'_>, word, ns| write!(f, "{word} {}", show(ns));
        match *self {
            Self::Ask => f.write_str("ask"),
            Self::End => f.write_str("end"),
            Self::Claim(claim) => write!(f, "claim {}", claim.name()),
            Self::Acknowledge => f.write_str("acknowledge"),
            Self::Notify => f.write_str("notify"),
            Self::Doorbell => f.write_str("doorbell"),
            Self::Register(what) => write!(f, "register {}", what.name()),
            Self::Scribble(ns) => timed(f, "scribble", ns),
            Self::Deadline(ns) => timed(f, "deadline", ns),
            Self::Halt(ns) => timed(f, "halt", ns),
            Self::Work(ns) => timed(f, "work", ns),
            Self::Fault => f.write_str("fault"),
        }
    }
}
