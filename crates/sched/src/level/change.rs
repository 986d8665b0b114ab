//! Changing policy, affinity and weights of entities, whatever they are doing.

use super::{Kicked, Level, State};
use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{Ns, Policy};
use crate::fair::weight;
use crate::{CpuId, CpuSet, EntId};

impl Level {
    /// Changes the policy of an entity in any state, as `sched_setattr` does.
    ///
    /// A running entity keeps its CPU until the next [`Level::schedule`], which a
    /// [`Note::Kick`](crate::Note::Kick) asks for if somebody else should run now. EEVDF lag and virtual time
    /// survive a spell as RT; a new EEVDF slice counts from the entity's next request on.
    pub fn set_policy(&mut self, now: Ns, e: EntId, policy: Policy) {
        let old = self.ents[e.index()].policy;
        if old == policy {
            return;
        }
        self.fair.forget_delayed(e);
        let cpu = self.ents[e.index()].cpu;
        match self.ents[e.index()].state {
            State::Blocked | State::Dead => self.store_policy(e, policy),
            State::Queued | State::Running => {
                self.charge(now, cpu);
                match (old.is_rt(), policy.is_rt()) {
                    (false, false) => self.change_fair(e, cpu, old, policy),
                    (true, true) => self.change_rt(now, e, cpu, policy),
                    _ => self.change_class(now, e, cpu, policy),
                }
            }
        }
    }

    fn store_policy(&mut self, e: EntId, policy: Policy) {
        self.ents[e.index()].policy = policy;
        if policy.is_rt() {
            self.rt.set_policy(e, policy);
        } else {
            self.fair.set_policy(e, policy);
        }
    }

    fn change_fair(&mut self, e: EntId, cpu: CpuId, old: Policy, policy: Policy) {
        let c = &mut self.cpus[cpu.index()];
        c.nr_idle += u32::from(policy == Policy::Idle);
        c.nr_idle -= u32::from(old == Policy::Idle);
        let others = c.nr_fair > 1;
        self.store_policy(e, policy);
        self.refresh(cpu);
        if self.ents[e.index()].state == State::Queued {
            self.check_preempt(cpu, e);
        } else if others && weight::of_policy(policy) < weight::of_policy(old) {
            self.kick(cpu, false);
        }
    }

    fn change_rt(&mut self, now: Ns, e: EntId, cpu: CpuId, policy: Policy) {
        let before = self.rt.prio(e);
        if self.ents[e.index()].state == State::Queued {
            self.rt.dequeue(cpu, e, Dequeue::Save);
            self.store_policy(e, policy);
            // Who is demoted goes ahead of its new equals, who is promoted behind them.
            let down = self.rt.prio(e) < before;
            let how = if down { Enqueue::RestoreHead } else { Enqueue::Restore };
            self.rt.enqueue(cpu, e, how);
            self.pri.set(cpu, self.rt.highest(cpu));
            self.check_preempt(cpu, e);
            self.push_woken(now, cpu, e);
            return;
        }
        self.store_policy(e, policy);
        self.pri.set(cpu, self.rt.highest(cpu));
        if self.rt.prio(e) < before {
            self.pull_rt(now, cpu);
            if self.rt.waiting(cpu) > self.rt.prio(e) && !self.guard.holds_rt(cpu) {
                self.kick(cpu, true);
            }
        }
    }

    /// Fair to RT or back: off one class's queue, onto the other's.
    fn change_class(&mut self, now: Ns, e: EntId, cpu: CpuId, policy: Policy) {
        let running = self.ents[e.index()].state == State::Running;
        if running {
            self.put_aside(e, cpu);
        }
        self.deactivate(e, Dequeue::Save);
        self.store_policy(e, policy);
        self.activate(now, e, cpu, Enqueue::Restore);
        if !running {
            self.check_preempt(cpu, e);
            if policy.is_rt() {
                self.push_woken(now, cpu, e);
            }
            return;
        }
        self.ents[e.index()].state = State::Running;
        if policy.is_rt() {
            self.rt.set_next(cpu, e);
            // Throttled, or the fair server's turn: it has to wait like any RT entity.
            let c = &self.cpus[cpu.index()];
            if self.guard.holds_rt(cpu) || self.guard.fair_first(cpu) && c.nr_fair > 0 {
                self.kick(cpu, true);
            }
            if self.rt.overloaded().contains(cpu) {
                self.push_rt(now, cpu);
            }
        } else {
            self.fair.set_next(cpu, e);
            self.pull_rt(now, cpu);
            // Its protection and its precedence are gone: everybody who waits is a candidate.
            if self.nr_running(cpu) > 1 {
                self.kick(cpu, true);
            }
        }
    }

    /// Changes where an entity may run; an empty set (after CPUs outside the level are dropped)
    /// means everywhere.
    ///
    /// A waiting entity that may not stay moves at once. A running one gets its CPU kicked and
    /// moves at the next [`Level::schedule`] there. A blocked one is placed when it wakes.
    pub fn set_cpus(&mut self, now: Ns, e: EntId, cpus: CpuSet) {
        let mask = self.clip(cpus);
        if mask == self.masks[e.index()] {
            return;
        }
        self.fair.forget_delayed(e);
        let allowed = mask.len();
        self.masks[e.index()] = mask;
        let ent = &mut self.ents[e.index()];
        ent.allowed = allowed;
        let (cpu, state) = (ent.cpu, ent.state);
        let waits = state == State::Queued && ent.policy.is_rt();
        self.rt.set_movable(e, allowed > 1, waits.then_some(cpu));
        if mask.contains(cpu) {
            return;
        }
        match state {
            State::Queued => {
                let to = self.new_home(e);
                self.transfer(now, e, to);
            }
            State::Running => self.kick(cpu, true),
            State::Blocked | State::Dead => {}
        }
    }

    /// Changes the weight of a group (1024 = one nice-0 task), on all CPUs at once. Weights out
    /// of range count as the nearest in range (2 to 262144).
    ///
    /// # Panics
    /// If there is no such group.
    pub fn set_group_weight(&mut self, now: Ns, group: u16, weight: u64) {
        let weight = weight.clamp(weight::MIN_GROUP, weight::MAX_GROUP);
        if core::mem::replace(&mut self.cfg.groups[usize::from(group)], weight) == weight {
            return;
        }
        for i in 0..self.cpus.len() {
            self.charge(now, CpuId(i as u32));
        }
        self.fair.set_group_weight(group, weight);
    }

    /// Whether `cpu` was kicked and has not scheduled since.
    pub fn is_kicked(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].kicked != Kicked::No
    }

    /// Where an entity goes that may not stay.
    pub(super) fn new_home(&self, e: EntId) -> CpuId {
        let rt = self.ents[e.index()].policy.is_rt();
        let lowest = if rt { self.lowest(e, None) } else { None };
        lowest.unwrap_or_else(|| self.fallback(e))
    }
}
