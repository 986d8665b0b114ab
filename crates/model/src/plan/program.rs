//! Programs of tasks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vcoop_sched::config::Policy;

use super::{Act, Dist, Ns, RogueStep, Section, Target};

/// What a task does. Both levels have these workloads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Program {
    /// Wakes up at a period, and samples how late.
    Cyclictest {
        /// Period.
        interval_ns: Ns,
        /// Absolute due times (`next += interval`, as cyclictest) or relative sleeps (`-r`).
        absolute: bool,
        /// CPU time per wake-up, after the sample is taken.
        work: Dist,
        /// Offset of the first due time, drawn once: it sets where the periods lie between the ticks.
        phase: Dist,
    },
    /// A loop over phases; a CPU hog is one endless `Run`.
    Cycle {
        /// Executed in order, for ever.
        phases: Vec<Phase>,
    },
    /// A loop over acts: phases as in a cycle, with locks, IPIs, messages and samples between them.
    Routine {
        /// Executed in order, for ever.
        acts: Vec<Act>,
    },
    /// An audio callback: each `period` a burst of samples is due, which is written after `work` CPU time. It is a
    /// glitch if that is more than `buffer` after it was due.
    Audio {
        /// Time between callbacks.
        period_ns: Ns,
        /// Audio queued ahead of the device.
        buffer_ns: Ns,
        /// CPU time of a callback.
        work: Dist,
        /// Woken by a device interrupt (else by a timer of its own).
        device: bool,
    },
    /// Steps played in a loop: a captured thread.
    Script {
        /// The steps.
        steps: Arc<Vec<Step>>,
        /// Start again at the end.
        repeat: bool,
    },
    /// A guest task that abuses the boost request of its vCPU.
    Rogue {
        /// Its steps, in a loop; some of them take time.
        steps: Arc<Vec<RogueStep>>,
    },
    /// Waits for calls, serves them in order of arrival: uses the CPU for each and answers it.
    Serve {
        /// CPU time of a call.
        work: Dist,
        /// Sleep after it and before the answer (a disk), which holds up the calls behind.
        wait: Dist,
        /// In a guest: vCPU that takes the interrupts by which calls from outside of the VM come.
        irq_vcpu: u32,
        /// Guests only: the part under a lock, before the work.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        section: Option<Section>,
    },
    /// Calls a server at a period and measures the round trip on its own clock: from the call to its first instruction
    /// after the answer. A closed loop: it makes one call at a time, and periods that pass during a call are missed.
    Ping {
        /// Period.
        interval_ns: Ns,
        /// Offset of the first call, drawn once.
        phase: Dist,
        /// A [`Program::Serve`].
        server: Target,
        /// In a guest: vCPU that takes the interrupts by which answers from outside of the VM come.
        irq_vcpu: u32,
        /// CPU time after the answer, when the sample is taken.
        work: Dist,
    },
    /// A guest that boots, until VMLogin: rounds of compute and one I/O call each.
    Boot {
        /// Rounds.
        rounds: u32,
        /// CPU time before each call.
        burst: Dist,
        /// Every so many rounds there is a longer burst; 0: never.
        every: u32,
        /// Its CPU time, besides the round's own.
        long: Dist,
        /// A [`Program::Serve`] that does the I/O; `None`: there is none.
        server: Option<Target>,
        /// vCPU that takes the interrupts by which answers from outside of the VM come.
        irq_vcpu: u32,
        /// Uses the CPU without end after VMLogin; else the task ends.
        hog: bool,
    },
    /// A user of an office desktop: thinks, then starts an action, which takes bursts of CPU with an I/O call after
    /// each but the last. The sample is the response time: from the end of the thinking to the end of the last burst.
    Desktop {
        /// Time between two actions.
        think: Dist,
        /// Bursts of an action, at least 1.
        bursts: u32,
        /// CPU time of a burst.
        burst: Dist,
        /// A [`Program::Serve`] that does the I/O; `None`: there is none.
        server: Option<Target>,
        /// vCPU that takes the interrupts by which answers from outside of the VM come.
        irq_vcpu: u32,
    },
}

impl Program {
    /// Whether it takes latency samples.
    pub fn measures(&self) -> bool {
        match self {
            Self::Cyclictest { .. }
            | Self::Audio { .. }
            | Self::Ping { .. }
            | Self::Desktop { .. } => true,
            Self::Routine { acts } => acts.iter().any(Act::measures),
            _ => false,
        }
    }

    /// Mean CPU time that it needs, and the period in which it needs that; `None` if that is not determined.
    pub fn demand(&self) -> Option<(Ns, Ns)> {
        match self {
            Self::Cyclictest { interval_ns, work, .. } | Self::Ping { interval_ns, work, .. } => {
                Some((work.mean(), *interval_ns))
            }
            Self::Audio { period_ns, work, .. } => Some((work.mean(), *period_ns)),
            _ => None,
        }
    }

    /// Whether it calls other machines.
    pub fn is_remote(&self) -> bool {
        self.acts().iter().any(|act| matches!(act, Act::Remote { .. }))
    }

    /// Whether it measures timers, so that its sleeps have no slack.
    pub fn is_timed(&self) -> bool {
        self.acts().iter().any(|act| matches!(act, Act::Timer { .. }))
    }

    /// Whether it also measures how late the interrupts of its timers are.
    pub fn times_interrupts(&self) -> bool {
        self.acts().iter().any(|act| matches!(act, Act::Timer { interrupt: true, .. }))
    }

    /// Whether it receives messages of its peers.
    pub fn takes_messages(&self) -> bool {
        self.acts().iter().any(|act| matches!(act, Act::Receive { .. } | Act::Serve { .. }))
    }

    /// Whether it counts units of work.
    pub fn counts(&self) -> bool {
        self.acts().contains(&Act::Done)
    }

    /// One more than the largest number of a lock that it takes, if it takes any.
    pub fn locks(&self) -> Option<u32> {
        let locks = self.acts().iter().filter_map(|act| match act {
            Act::Lock { lock } | Act::LockIrq { lock } | Act::Acquire { lock, .. } => {
                Some(lock + 1)
            }
            _ => None,
        });
        let served = match self {
            Self::Serve { section: Some(section), .. } => Some(section.lock + 1),
            _ => None,
        };
        locks.chain(served).max()
    }

    /// Whether it takes spinlocks.
    pub fn takes_spinlocks(&self) -> bool {
        self.acts().iter().any(|act| matches!(act, Act::Lock { .. } | Act::LockIrq { .. }))
    }

    /// Its acts, if it is a routine.
    fn acts(&self) -> &[Act] {
        match self {
            Self::Routine { acts } => acts,
            _ => &[],
        }
    }

    /// Whether it can keep its vCPU busy without own work.
    pub fn may_spin(&self) -> bool {
        matches!(self, Self::Routine { .. } | Self::Serve { section: Some(_), .. })
    }

    /// The servers it calls.
    pub fn servers(&self) -> impl Iterator<Item = Target> {
        let phases = match self {
            Self::Cycle { phases } => phases.as_slice(),
            _ => &[],
        };
        let own = match self {
            Self::Ping { server, .. } => Some(*server),
            Self::Boot { server, .. } | Self::Desktop { server, .. } => *server,
            _ => None,
        };
        let called = |phase: &Phase| match phase {
            Phase::Call { server, .. } => Some(*server),
            _ => None,
        };
        let done = self.acts().iter().filter_map(move |act| match act {
            Act::Do(phase) => called(phase),
            _ => None,
        });
        own.into_iter().chain(phases.iter().filter_map(called)).chain(done)
    }

    /// Replaces the servers that it calls.
    pub fn retarget(&mut self, to: &dyn Fn(Target) -> Target) {
        match self {
            Self::Cycle { phases } => {
                for phase in phases {
                    if let Phase::Call { server, .. } = phase {
                        *server = to(*server);
                    }
                }
            }
            Self::Routine { acts } => {
                for act in acts {
                    if let Act::Do(Phase::Call { server, .. }) = act {
                        *server = to(*server);
                    }
                }
            }
            Self::Ping { server, .. } => *server = to(*server),
            Self::Boot { server, .. } | Self::Desktop { server, .. } => *server = server.map(to),
            _ => {}
        }
    }
}

/// One phase of a [`Program::Cycle`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Use the CPU.
    Run {
        /// For how long.
        time: Dist,
        /// In which mode.
        mode: Mode,
    },
    /// Sleep.
    Sleep {
        /// For how long.
        time: Dist,
    },
    /// Sleep to the next multiple of a period (phase-locked duty cycles).
    Align {
        /// The period.
        period_ns: Ns,
    },
    /// Use the CPU, or wait for it, until so much of the period has passed by the clock.
    Busy {
        /// The period, counted from the start of the run.
        period_ns: Ns,
        /// End of this phase, from the period's start.
        on_ns: Ns,
    },
    /// Call a server and wait for its answer.
    Call {
        /// A [`Program::Serve`].
        server: Target,
        /// In a guest: vCPU that takes the interrupts by which answers from outside of the VM come.
        irq_vcpu: u32,
    },
}

/// Whether a run can be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// User mode: any time.
    User,
    /// Kernel mode: as the [`Preemption`](super::Preemption) model allows.
    Kernel,
    /// Preemption disabled: not before its end.
    PreemptOff,
    /// Interrupts disabled: not even an interrupt before its end.
    IrqOff,
}

/// One step of a [`Program::Script`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Use the CPU for this long.
    Run(Ns),
    /// Sleep for this long (from the moment it is reached).
    Sleep(Ns),
    /// Sleep until the peer wakes us; earlier wake-ups are consumed first. Gives up after this time, so that a looped
    /// script cannot hang on a cut trace.
    Wait(Ns),
    /// Wake the task of the same level with this index in its capture. Tasks of one capture are adjacent and the only
    /// ones with their label; the index counts from the first.
    Wake(u32),
    /// Change its own scheduling policy.
    SetPolicy(Policy),
    /// End (only with `repeat = false`, or to mark the end of a short-lived thread).
    Exit,
}
