//! Captured threads, played back.

use std::sync::Arc;

use vcoop_model::plan::{Mode, Step};

use super::Op;
use crate::queue::Ns;

/// Most that a script with absolute times may be behind and still catch up: otherwise a starved vCPU never would.
const MOST_BEHIND_NS: Ns = 100_000_000;

/// [`Program::Script`](vcoop_model::plan::Program::Script) in execution.
#[derive(Clone, Debug)]
pub(super) struct Script {
    steps: Arc<Vec<Step>>,
    next: usize,
    repeat: bool,
    /// Time at which it would be at this step without delays since its last sleep; `None`: its sleeps have a length,
    /// not an end.
    due: Option<Ns>,
}

impl Script {
    pub(super) fn new(steps: Arc<Vec<Step>>, repeat: bool) -> Self {
        Self { steps, next: 0, repeat, due: None }
    }

    /// Wakes up at the times of the capture from now on, whatever its delays, like a vCPU whose guest sets timers. If
    /// such a time has passed it goes on at once, and later times stay.
    pub(super) fn keep_time(&mut self) {
        self.due = Some(0);
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
            Step::Run(ns) => {
                self.due = self.due.map(|due| due + ns);
                Op::Run { ns, mode: Mode::User }
            }
            Step::Sleep(ns) => {
                let due = self.due.map(|due| (due + ns).max(now.saturating_sub(MOST_BEHIND_NS)));
                let at = due.map_or(now + ns, |due| due.max(now));
                self.due = due;
                Op::SleepUntil { at, sample: false }
            }
            Step::Wait(timeout) => Op::Wait { timeout },
            Step::Wake(peer) => Op::Wake(peer),
            Step::SetPolicy(policy) => Op::SetPolicy(policy),
            Step::Exit => Op::Exit,
        }
    }
}
