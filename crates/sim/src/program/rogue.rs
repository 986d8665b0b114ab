//! Hostile guest kernels: a program's steps, in a loop.

use std::sync::Arc;

use vcoop_model::plan::{Mode, RogueStep};

use super::Op;
use crate::queue::Ns;

/// A hostile kernel's program in execution.
#[derive(Clone, Debug)]
pub(super) struct Rogue {
    steps: Arc<Vec<RogueStep>>,
    /// The next step.
    at: usize,
    /// Time that the last step takes besides its effect.
    busy_ns: Ns,
}

impl Rogue {
    pub(super) fn new(steps: Arc<Vec<RogueStep>>) -> Self {
        Self { steps, at: 0, busy_ns: 0 }
    }

    pub(super) fn next(&mut self, now: Ns) -> Op {
        let work = |ns| Op::Run { ns, mode: Mode::User };
        if self.busy_ns > 0 {
            return work(std::mem::take(&mut self.busy_ns));
        }
        let step = self.steps[self.at];
        self.at = (self.at + 1) % self.steps.len();
        match step {
            RogueStep::Work(ns) => work(ns),
            RogueStep::Halt(ns) => Op::SleepUntil { at: now + ns, sample: false },
            RogueStep::Scribble(ns) => {
                self.busy_ns = ns;
                Op::Rogue(step)
            }
            step => Op::Rogue(step),
        }
    }
}
