//! Run queues: by priority, first come first served within a priority.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, CpuSet, EntId};

use super::{Credit1, NONE, Pri, State};

impl Credit1 {
    /// Puts an entity on the queue of `cpu`, behind all that are at least as urgent; after a yield, behind one more.
    pub(super) fn insert(&mut self, now: Ns, e: EntId, cpu: CpuId) {
        let ent = &mut self.ents[e.index()];
        debug_assert!(ent.state != State::Queued, "{e} is on a queue");
        ent.state = State::Queued;
        ent.cpu = cpu;
        let (pri, dom0, yielding) = (ent.pri, ent.dom0, ent.yielding);
        let c = &self.cpus[cpu.index()];
        let mut at = 0;
        if !(dom0 && self.cfg.patches.dom0_front) {
            let pri_of = |&&o: &&u32| self.ents[o as usize].pri >= pri;
            at = c.queue.iter().take_while(pri_of).count();
            if yielding && at < c.queue.len() {
                at += 1;
            }
        }
        let c = &mut self.cpus[cpu.index()];
        c.queue.insert(at, e.0);
        c.better += u32::from(pri > Pri::Over);
        if dom0 {
            self.count_dom0(cpu, true);
        }
        if self.cpus[cpu.index()].slow_tick {
            self.advance_tick(now, cpu);
        }
        self.refresh(cpu);
    }

    /// Removes an entity from its queue; the caller sets its new state.
    pub(super) fn remove(&mut self, e: EntId) {
        let cpu = self.ents[e.index()].cpu;
        let queue = &self.cpus[cpu.index()].queue;
        // invariant: State::Queued means that it is on the queue of its CPU.
        let at = queue.iter().position(|&o| o == e.0);
        debug_assert!(at.is_some(), "{e} is not on the queue of {cpu}");
        if let Some(at) = at {
            self.take(cpu, at);
        }
    }

    /// Removes the entity at position `at` of a queue.
    pub(super) fn take(&mut self, cpu: CpuId, at: usize) -> Option<EntId> {
        let c = &mut self.cpus[cpu.index()];
        let e = EntId(c.queue.remove(at)?);
        let ent = &self.ents[e.index()];
        c.better -= u32::from(ent.pri > Pri::Over);
        if ent.dom0 {
            self.count_dom0(cpu, false);
        }
        self.refresh(cpu);
        Some(e)
    }

    /// Adds a dom0 vCPU to a CPU's count, running or waiting, or subtracts it.
    pub(super) fn count_dom0(&mut self, cpu: CpuId, on: bool) {
        let n = &mut self.cpus[cpu.index()].dom0;
        *n = if on { *n + 1 } else { *n - 1 };
        put(&mut self.dom0_on, cpu, *n > 0);
    }

    /// Recomputes the sets that contain a CPU.
    pub(super) fn refresh(&mut self, cpu: CpuId) {
        let c = &self.cpus[cpu.index()];
        let crowded = c.curr != NONE && !c.queue.is_empty();
        let urgent = crowded && c.better > 0;
        put(&mut self.crowded, cpu, crowded);
        put(&mut self.urgent, cpu, urgent);
    }

    /// Changes a priority without moving the entity in its queue: a later sort does that.
    pub(super) fn set_pri(&mut self, e: EntId, pri: Pri) {
        let ent = &mut self.ents[e.index()];
        let pri = if ent.dom0 && self.cfg.patches.dom0_always_boosted { Pri::Boost } else { pri };
        let old = core::mem::replace(&mut ent.pri, pri);
        if ent.state != State::Queued || (old > Pri::Over) == (pri > Pri::Over) {
            return;
        }
        let cpu = ent.cpu;
        let better = &mut self.cpus[cpu.index()].better;
        *better = if pri > Pri::Over { *better + 1 } else { *better - 1 };
        self.refresh(cpu);
    }

    /// After an accounting: moves entities with credit ahead of those without, once.
    pub(super) fn sort(&mut self, cpu: CpuId) {
        let c = &mut self.cpus[cpu.index()];
        if c.sorted == self.accountings {
            return;
        }
        c.sorted = self.accountings;
        let mut ahead = 0;
        for at in 0..c.queue.len() {
            if self.ents[c.queue[at] as usize].pri < Pri::Under {
                continue;
            }
            if at > ahead
                && let Some(e) = c.queue.remove(at)
            {
                c.queue.insert(ahead, e);
            }
            ahead += 1;
        }
    }
}

pub(super) fn put(set: &mut CpuSet, cpu: CpuId, member: bool) {
    if member {
        set.insert(cpu);
    } else {
        set.remove(cpu);
    }
}
