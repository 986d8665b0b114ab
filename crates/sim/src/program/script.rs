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
    /// When it would be at this step if nothing had held it up since it last slept; `None`: its sleeps are for a time,
    /// and not until one.
    due: Option<Ns>,
}

impl Script {
    pub(super) fn new(steps: Arc<Vec<Step>>, repeat: bool) -> Self {
        Self { steps, next: 0, repeat, due: None }
    }

    /// Wakes up at the times of the capture from now on, however long it was held up, as a vCPU does whose guest sets
    /// timers. A time that has passed is missed, and the ones after it are later by as much.
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
                let at = self.due.map_or(now + ns, |due| now.max(due + ns));
                self.due = self.due.map(|_| at);
                Op::SleepUntil { at, sample: false }
            }
            Step::Wait(timeout) => Op::Wait { timeout },
            Step::Wake(peer) => Op::Wake(peer),
            Step::SetPolicy(policy) => Op::SetPolicy(policy),
            Step::Exit => Op::Exit,
        }
    }
}
