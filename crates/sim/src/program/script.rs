//! Captured threads, played back.

use std::sync::Arc;

use vcoop_model::plan::{Mode, Step};

use super::Op;
use crate::queue::Ns;

/// [`Program::Script`](vcoop_model::plan::Program::Script) in execution.
#[derive(Clone, Debug)]
pub(super) struct Script {
    steps: Arc<Vec<Step>>,
    next: usize,
    repeat: bool,
}

impl Script {
    pub(super) fn new(steps: Arc<Vec<Step>>, repeat: bool) -> Self {
        Self { steps, next: 0, repeat }
    }

    pub(super) fn next(&mut self, now: Ns) -> Op {
        if self.next == self.steps.len() {
            if !self.repeat || self.steps.is_empty() {
                return Op::Exit;
            }
            self.next = 0;
        }
        let step = self.steps[self.next];
        self.next += 1;
        match step {
            Step::Run(ns) => Op::Run { ns, mode: Mode::User },
            Step::Sleep(ns) => Op::SleepUntil { at: now + ns, sample: false },
            Step::Wait(timeout) => Op::Wait { timeout },
            Step::Wake(peer) => Op::Wake(peer),
            Step::SetPolicy(policy) => Op::SetPolicy(policy),
            Step::Exit => Op::Exit,
        }
    }
}
