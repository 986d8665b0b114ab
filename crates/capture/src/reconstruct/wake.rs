//! Finds the waker of each wake-up.

use crate::CaptureError;
use crate::line::{Context, Record, Task};

use super::Reconstruction;
use super::cpu::Current;
use super::thread::{Act, State};

impl Reconstruction {
    pub(super) fn wake(&mut self, record: &Record<'_>, task: Task<'_>) -> Result<(), CaptureError> {
        self.occupy(record.cpu, record.tid)?;
        let Some(target) = self.thread(task.tid)? else { return Ok(()) };
        let start = self.start_ns.unwrap_or(self.now);
        let since = match self.threads[target].state {
            // A wake-up of a thread that is not asleep changes nothing.
            State::Runnable { .. } | State::Running { .. } | State::Dead => return Ok(()),
            State::Fresh => start,
            State::Asleep { since } | State::Gap { since } => since,
        };
        let slept = self.now - since;
        match self.waker(record, target) {
            Some(waker) => {
                self.account(record.cpu, self.now);
                self.push(waker, Act::Wake(target as u32));
                self.push(target, Act::Wait { by: waker as u32, slept });
            }
            None => self.push(target, Act::Sleep(slept)),
        }
        self.threads[target].seen_as(task.comm, task.prio);
        self.threads[target].state = State::Runnable { since: self.now };
        Ok(())
    }

    /// The thread that wakes `target`; `None` for an interrupt or an unknown waker.
    pub(super) fn waker(&mut self, r: &Record<'_>, target: usize) -> Option<usize> {
        let current = self.cpus.get(&r.cpu).map(|c| c.current);
        let known = if let Some(Current::Known { tid, .. }) = current { Some(tid) } else { None };
        if known == Some(0) || r.context == Context::Interrupt {
            self.losses.wakes_by_interrupt += 1;
            return None;
        }
        let waker = known.and_then(|tid| self.living(tid)).filter(|&waker| waker != target);
        if waker.is_none() {
            self.losses.unknown_wakers += 1;
            return None;
        }
        self.losses.wakes_by_thread += 1;
        match r.context {
            Context::Softirq => self.losses.wakes_by_softirq += 1,
            Context::Unknown => self.losses.wakes_unknown_context += 1,
            Context::Task | Context::Interrupt => {}
        }
        waker
    }
}
