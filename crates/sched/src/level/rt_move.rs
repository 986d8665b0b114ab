//! Moving RT entities between CPUs, so that at any time the most urgent ones run.
//!
//! A CPU *pushes* entities that wait behind an RT entity to a CPU with less urgent work, when an RT entity wakes and
//! when it switches to one. It *pulls* from CPUs where RT entities wait, when its own RT work gets less urgent.

use super::Level;
use crate::config::Ns;
use crate::heap::NONE;
use crate::{CpuId, EntId};

/// A CPU pushes at most this many at once; others wait for its next switch.
const MAX_PUSH: u32 = 32;

impl Level {
    /// The CPU where `e` would displace the least urgent work: its own, the waker's if it shares
    /// the cache, one that shares the cache, or any.
    pub(super) fn lowest(&self, e: EntId, waker: Option<CpuId>) -> Option<CpuId> {
        let found = self.pri.lowest(self.rt.prio(e), &self.open[e.index()])?;
        let cpu = self.ents[e.index()].cpu;
        if found.contains(cpu) {
            return Some(cpu);
        }
        let (lo, hi) = self.llc(cpu);
        let near = waker.filter(|w| (lo..hi).contains(&w.0) && found.contains(*w));
        near.or_else(|| found.find_from(None, cpu.0, lo, hi))
            .or_else(|| waker.filter(|w| found.contains(*w)))
            .or_else(|| found.next_at(cpu.0))
            .or_else(|| found.first())
    }

    /// Whether `e` goes before a running entity of equal priority, because that one can go on elsewhere and `e` cannot
    /// (`check_preempt_equal_prio` of `kernel/sched/rt.c`).
    #[cold]
    pub(super) fn passes_rt(&mut self, cpu: CpuId, curr: EntId, e: EntId) -> bool {
        let elsewhere = |e: EntId| {
            let less = |e: EntId| self.pri.lowest(self.rt.prio(e), &self.open[e.index()]);
            self.rt.is_movable(e) && less(e).is_some()
        };
        let passes = self.rt.prio(curr) == self.rt.prio(e) && elsewhere(curr) && !elsewhere(e);
        if passes {
            self.rt.pass(cpu, curr, e);
        }
        passes
    }

    /// An RT entity woke on `cpu`: if it has to wait there for another, it may go elsewhere.
    pub(super) fn push_woken(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        let c = self.cpus[cpu.index()].curr;
        if c == NONE || !self.rt.is_movable(e) {
            return;
        }
        if self.rank(EntId(c)) >= self.rt.prio(e) {
            self.push_rt(now, cpu);
        }
    }

    /// Sends waiting RT entities to CPUs with less urgent work, the most urgent first.
    pub(super) fn push_rt(&mut self, now: Ns, cpu: CpuId) {
        let curr = self.cpus[cpu.index()].curr;
        let curr_prio = if curr == NONE { 0 } else { self.rank(EntId(curr)) };
        for _ in 0..MAX_PUSH {
            let Some(e) = self.rt.movable(cpu, |_| true) else { return };
            if self.rt.prio(e) > curr_prio {
                return self.runs_here(cpu, e);
            }
            let Some(to) = self.lowest(e, None).filter(|&to| to != cpu) else { return };
            self.transfer(now, e, to);
        }
    }

    /// Fetches RT entities that wait elsewhere and are more urgent than all that `cpu` has.
    pub(super) fn pull_rt(&mut self, now: Ns, cpu: CpuId) {
        if self.guard.holds_rt(cpu) {
            return;
        }
        for src in self.rt.overloaded().iter() {
            if src == cpu {
                continue;
            }
            let here = self.rt.highest(cpu);
            if self.rt.waiting(src) <= here {
                continue;
            }
            let fits = |e: EntId| self.open[e.index()].contains(cpu);
            let Some(e) = self.rt.movable(src, fits) else { continue };
            let c = self.cpus[src.index()].curr;
            // An entity that is more urgent than the running one there was just woken, and gets that CPU.
            let runs = c != NONE && self.rank(EntId(c)) >= self.rt.prio(e);
            if runs && self.rt.prio(e) > here {
                self.transfer(now, e, cpu);
            }
        }
    }
}
