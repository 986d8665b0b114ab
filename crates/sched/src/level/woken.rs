//! Wake lists: an idle CPU, or one that shares no cache with the waker, queues woken entities itself.
//!
//! As `ttwu_queue_wakelist` of `kernel/sched/core.c` (Linux 6.0): the waker places the entity, puts it on a list of the
//! CPU, and sends an interrupt if the list was empty. Until the CPU takes it, the entity is on no queue: nobody can
//! pull it to another CPU. This matters in a guest, where the CPU may have to wait for a pCPU first.

use super::{Level, State};
use crate::class::Enqueue;
use crate::config::Ns;
use crate::{CpuId, EntId, Note};

impl Level {
    /// `cpu` takes the first entity off its wake list, queues it, and returns it. Call it there after a
    /// [`Note::Woken`], until it returns `None`.
    pub fn take_woken(&mut self, now: Ns, cpu: CpuId) -> Option<EntId> {
        if !self.has_woken(cpu) {
            return None;
        }
        let e = self.wake_lists[cpu.index()].pop_front()?;
        self.enqueue_woken(now, e, cpu, Enqueue::Wakeup);
        self.list_shrank(cpu);
        Some(e)
    }

    /// Whether the wake list of `cpu` has entities.
    #[inline]
    pub fn has_woken(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].has_woken
    }

    /// Whether a CPU leaves the queueing of a woken entity to the entity's CPU (`ttwu_queue_cond`).
    pub(super) fn hands_over(&self, by: CpuId, to: CpuId) -> bool {
        let idle = || self.sets.idle.contains(to) || self.has_woken(to);
        self.llc(by) != self.llc(to) || by != to && idle()
    }

    pub(super) fn list_woken(&mut self, e: EntId, cpu: CpuId) {
        self.ents[e.index()].state = State::Waking;
        self.wake_lists[cpu.index()].push_back(e);
        if !core::mem::replace(&mut self.cpus[cpu.index()].has_woken, true) {
            self.refresh(cpu);
            self.notes.push_back(Note::Woken { cpu });
        }
    }

    /// Moves an entity on a wake list that may no longer run on that CPU.
    pub(super) fn unlist(&mut self, now: Ns, e: EntId) {
        let from = self.ents[e.index()].cpu;
        self.wake_lists[from.index()].retain(|&listed| listed != e);
        self.list_shrank(from);
        let to = self.new_home(e);
        self.fair.migrate_blocked(e);
        self.moved(e, from, to);
        self.enqueue_woken(now, e, to, Enqueue::Wakeup);
    }

    fn list_shrank(&mut self, cpu: CpuId) {
        if self.wake_lists[cpu.index()].is_empty() {
            self.cpus[cpu.index()].has_woken = false;
            self.refresh(cpu);
        }
    }
}
