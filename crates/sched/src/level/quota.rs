//! Groups that use up their quota, and get it back.

use super::Level;
use crate::config::{ClassId, Ns};
use crate::fair::RunsNow;
use crate::heap::NONE;
use crate::{CpuId, EntId, Note};

impl Level {
    /// The current entity of `cpu`, of a group with a quota, executed.
    #[cold]
    pub(super) fn charge_quota(&mut self, cpu: CpuId, e: EntId, ran: Ns) {
        if self.fair.use_quota(cpu, e, ran) {
            self.kick(cpu, true);
        }
        self.announce_quotas();
    }

    /// Throttles the queues of an entity's groups on `cpu` that have no time left.
    #[cold]
    pub(super) fn throttle(&mut self, now: Ns, cpu: CpuId, e: EntId, wanted: RunsNow) {
        self.fair.clock = now;
        if let Some((tasks, idle)) = self.fair.throttle(cpu, e, wanted) {
            self.remove_fair(cpu, tasks, idle);
            self.notes.push_back(Note::Throttled { cpu });
        }
        self.announce_quotas();
    }

    /// The same for an entity that just came onto the queue of `cpu` (`check_enqueue_throttle`).
    #[inline]
    pub(super) fn ask_quota(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        if self.fair.has_quota(e) && self.class(e) == ClassId::Fair {
            self.throttle(now, cpu, e, RunsNow::Yes);
        }
    }

    /// The current entity of `cpu` becomes fair, in a group that is throttled there: it runs until the CPU schedules.
    pub(super) fn lift_quota(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        while let Some(group) = self.fair.lift(cpu, e) {
            self.unthrottle(now, cpu, group);
            self.kick(cpu, true);
        }
    }

    /// Fires the timers of quotas that are due on `cpu`.
    #[cold]
    pub(super) fn on_quota_timer(&mut self, now: Ns, cpu: CpuId) {
        for (group, cpu) in self.fair.on_quota_timer(now, cpu) {
            self.charge_between(now, cpu);
            self.unthrottle(now, cpu, group);
        }
        self.announce_quotas();
    }

    fn unthrottle(&mut self, now: Ns, cpu: CpuId, group: u32) {
        let (tasks, idle) = self.fair.unthrottle(cpu, group);
        self.add_fair(now, cpu, tasks, idle);
        self.notes.push_back(Note::Unthrottled { cpu });
        if tasks > 0 && self.cpus[cpu.index()].curr == NONE {
            self.kick(cpu, true);
        }
    }

    /// Reports timers that moved.
    #[cold]
    pub(super) fn announce_quotas(&mut self) {
        while let Some(cpu) = self.fair.moved_quota_timer() {
            self.notes.push_back(Note::DeadlineChanged { cpu });
        }
    }
}
