//! Charging of the current entity, and what ends or returns with time.

use super::Level;
use crate::class::Class;
use crate::config::{ClassId, Ns};
use crate::heap::NONE;
use crate::{CpuId, EntId, Note};

impl Level {
    /// Brings the accounting of the CPU's current entity up to `now`. May kick the CPU: a slice
    /// or a throttling budget can end here.
    #[inline]
    pub fn charge(&mut self, now: Ns, cpu: CpuId) {
        self.fair.clock = now;
        let c = &mut self.cpus[cpu.index()];
        let elapsed = now.saturating_sub(c.charged_to);
        if c.curr == NONE || elapsed == 0 {
            return;
        }
        let stolen = c.stolen.min(elapsed);
        c.stolen -= stolen;
        c.taken += stolen;
        c.charged_to = now;
        let ran = elapsed - stolen;
        if ran > 0 {
            self.charge_current(now, cpu, ran);
        }
    }

    /// As [`charge`](Self::charge), at an event that is neither a tick nor a switch. As in the kernel, an RT entity then
    /// goes on without being charged, and a deadline entity if no timer ends its runtime: their overruns are found at the
    /// next tick, however much happens before.
    #[inline]
    pub(super) fn charge_between(&mut self, now: Ns, cpu: CpuId) {
        let goes_on = self.current(cpu).is_some_and(|e| match self.class(e) {
            ClassId::Fair => false,
            ClassId::Rt => true,
            ClassId::Dl => !self.dl.has_hrtick(),
        });
        if goes_on {
            self.fair.clock = now;
        } else {
            self.charge(now, cpu);
        }
    }

    /// As [`charge_between`](Self::charge_between), before an entity of `class` leaves the queue of `cpu`: the current
    /// entity is charged if it is of the same class (`dequeue_task_rt` and its like).
    #[inline]
    pub(super) fn charge_for(&mut self, now: Ns, cpu: CpuId, class: ClassId) {
        if self.current(cpu).is_some_and(|e| self.class(e) == class) {
            self.charge(now, cpu);
        } else {
            self.charge_between(now, cpu);
        }
    }

    fn charge_current(&mut self, now: Ns, cpu: CpuId, ran: Ns) {
        let c = &mut self.cpus[cpu.index()];
        let e = EntId(c.curr);
        let ent = &mut self.ents[e.index()];
        ent.stats.exec_ns += ran;
        match ent.class {
            ClassId::Rt => {
                c.taken += ran;
                self.rt.charge(cpu, e, ran);
                if self.guard.charge_rt(cpu, ran) {
                    self.notes.push_back(Note::Throttled { cpu });
                    self.refresh(cpu);
                    self.kick(cpu, true);
                }
            }
            ClassId::Fair => {
                c.used += ran;
                if self.fair.charge(cpu, e, ran) {
                    self.kick(cpu, false);
                }
                if self.fair.has_quotas() {
                    self.charge_quota(cpu, e, ran);
                }
                let c = &self.cpus[cpu.index()];
                let waited = c.nr_rt + c.nr_dl > 0;
                if self.guard.charge_fair(now, cpu, ran) && (waited || self.forces(cpu)) {
                    self.kick(cpu, true);
                }
            }
            ClassId::Dl => self.charge_dl(now, cpu, e, ran),
        }
    }

    // Out of line, because most levels have no deadline entities.
    #[cold]
    fn charge_dl(&mut self, now: Ns, cpu: CpuId, e: EntId, ran: Ns) {
        self.cpus[cpu.index()].taken += ran;
        if self.guard.charge_dl(cpu, ran) {
            self.notes.push_back(Note::Throttled { cpu });
            self.refresh(cpu);
        }
        if self.dl.charge(cpu, e, ran) {
            self.exhausted(now, cpu, e);
        }
    }

    /// The current deadline entity has used up or given up its runtime.
    #[cold]
    pub(super) fn exhausted(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        let before = self.deadline(cpu);
        if self.dl.exhaust(now, cpu, e) {
            if self.dl.is_held(e) {
                self.notes.push_back(Note::Throttled { cpu });
            }
            self.kick(cpu, true);
        }
        self.dl.set_exhaustion(now, cpu);
        self.update_pri(cpu);
        self.announce(cpu, before);
    }

    /// `cpu` did not execute for `ns` (steal). If it has a current entity, this time is left out of its next charges.
    /// In any case it reduces the CPU's capacity.
    #[inline]
    pub fn stolen(&mut self, cpu: CpuId, ns: Ns) {
        let c = &mut self.cpus[cpu.index()];
        if c.curr == NONE {
            c.taken += ns;
        } else {
            c.stolen += ns;
        }
    }

    /// The time of [`Level::deadline`] has come on `cpu`. Harmless if it has not.
    pub fn on_deadline(&mut self, now: Ns, cpu: CpuId) {
        self.charge_between(now, cpu);
        let before = self.deadline(cpu);
        if self.dl.timer(cpu) <= now {
            self.replenish(now, cpu);
        }
        if self.fair.quota_timer(cpu) <= now {
            self.on_quota_timer(now, cpu);
        }
        self.on_hrtick(now, cpu);
        let cpus = &self.cpus;
        for back in &self.guard.on_rt_timer(now, cpu, |i| cpus[i].nr_rt > 0) {
            self.notes.push_back(Note::Unthrottled { cpu: back });
            self.refresh(back);
            if self.cpus[back.index()].nr_rt > 0 {
                self.kick(back, true);
            }
        }
        let fair = self.cpus[cpu.index()].nr_fair > 0;
        if self.guard.on_timer(now, cpu, fair) {
            let behind = match self.current(cpu) {
                None => self.is_forced_idle(cpu),
                Some(e) => match self.class(e) {
                    ClassId::Fair => false,
                    ClassId::Rt => true,
                    ClassId::Dl => self.fair_before(cpu, self.dl.due(e)),
                },
            };
            if behind {
                self.kick(cpu, true);
            }
        }
        self.announce(cpu, before);
    }

    /// Throttled deadline entities of `cpu` whose period has ended may run again.
    #[cold]
    fn replenish(&mut self, now: Ns, cpu: CpuId) {
        let mut back = core::mem::take(&mut self.back);
        self.dl.on_timer(now, cpu, &mut back);
        self.dl.set_exhaustion(now, cpu);
        let n = back.len() as u32;
        let c = &mut self.cpus[cpu.index()];
        c.nr_held -= n;
        c.nr_dl += n;
        self.update_pri(cpu);
        if n > 0 {
            self.notes.push_back(Note::Unthrottled { cpu });
            self.refresh(cpu);
        }
        for e in back.drain(..) {
            if self.ents[e.index()].cpu == cpu {
                self.check_preempt(cpu, e);
            }
        }
        self.back = back;
        if self.dl.overloaded().contains(cpu) {
            self.push_dl(now, cpu);
        }
    }
}
