//! Moving deadline entities between CPUs, so that at any time the earliest deadlines run: global EDF,
//! made of one queue a CPU as RT's is (see `rt_move`).

use super::Level;
use crate::config::{ClassId, Ns};
use crate::dl::NEVER;
use crate::heap::NONE;
use crate::{CpuId, EntId};

/// A CPU pushes at most this many at once; others wait for its next switch.
const MAX_PUSH: u32 = 32;

impl Level {
    /// The CPU where `e` would displace the least: one without deadline entities (its own, the waker's
    /// if it shares the cache, one that shares the cache, any), else that with the latest deadline, if
    /// that is later than its own.
    pub(super) fn latest(&self, e: EntId, waker: Option<CpuId>) -> Option<CpuId> {
        let mask = &self.open[e.index()];
        let free = self.dl.free().and(mask);
        let cpu = self.ents[e.index()].cpu;
        if !free.is_empty() {
            if free.contains(cpu) {
                return Some(cpu);
            }
            let (lo, hi) = self.llc(cpu);
            let near = waker.filter(|w| (lo..hi).contains(&w.0) && free.contains(*w));
            return near
                .or_else(|| free.find_from(None, cpu.0, lo, hi))
                .or_else(|| waker.filter(|w| free.contains(*w)))
                .or_else(|| free.next_at(cpu.0))
                .or_else(|| free.first());
        }
        let mut latest = (self.dl.due(e), None);
        for c in mask {
            let due = self.dl.earliest(c);
            if due > latest.0 {
                latest = (due, Some(c));
            }
        }
        latest.1
    }

    /// A deadline entity woke on `cpu`: if it has to wait there for another, it may go elsewhere.
    pub(super) fn push_woken_dl(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        let Some(curr) = self.current_dl(cpu) else { return };
        if self.dl.is_movable(e) && self.dl.due(curr) <= self.dl.due(e) {
            self.push_dl(now, cpu);
        }
    }

    /// The current entity, if it is of the deadline class and not throttled.
    fn current_dl(&self, cpu: CpuId) -> Option<EntId> {
        let c = self.cpus[cpu.index()].curr;
        let dl = c != NONE && self.class(EntId(c)) == ClassId::Dl;
        (dl && !self.dl.is_held(EntId(c))).then_some(EntId(c))
    }

    /// Sends waiting deadline entities to CPUs with later deadlines or none, the earliest first.
    pub(super) fn push_dl(&mut self, now: Ns, cpu: CpuId) {
        for _ in 0..MAX_PUSH {
            let Some(e) = self.dl.movable(cpu, |_| true) else { return };
            let curr_due = self.current_dl(cpu).map_or(NEVER, |c| self.dl.due(c));
            if self.dl.due(e) < curr_due {
                return self.runs_here(cpu, e);
            }
            let Some(to) = self.latest(e, None).filter(|&to| to != cpu) else { return };
            self.transfer(now, e, to);
        }
    }

    /// Fetches deadline entities that wait elsewhere and are earlier than all that `cpu` has.
    pub(super) fn pull_dl(&mut self, now: Ns, cpu: CpuId) {
        for src in self.dl.overloaded().iter() {
            if src == cpu || self.dl.waiting(src) >= self.dl.earliest(cpu) {
                continue;
            }
            let fits = |e: EntId| self.open[e.index()].contains(cpu);
            let Some(e) = self.dl.movable(src, fits) else { continue };
            // An entity with an earlier deadline than the running one there was just woken, and gets that CPU.
            let runs = self.current_dl(src).is_some_and(|c| self.dl.due(c) <= self.dl.due(e));
            if runs && self.dl.due(e) < self.dl.earliest(cpu) {
                self.transfer(now, e, cpu);
            }
        }
    }
}
