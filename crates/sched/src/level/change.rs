//! Changes of policy, affinity and weight, in any state of the entity.

use super::{Level, ReschedRequest, State};
use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{ClassId, Ns, Policy};
use crate::dl::NEVER;
use crate::fair::weight;
use crate::{CpuId, CpuSet, EntId, Refusal};

impl Level {
    /// Changes the policy of an entity in any state, as `sched_setattr` does.
    ///
    /// A running entity keeps its CPU until the next [`Level::schedule`], which a [`Note::Kick`](crate::Note::Kick)
    /// asks for if another entity should run now. EEVDF lag and virtual time survive a time as RT; a new EEVDF slice
    /// counts from the entity's next request on. Deadline and remaining runtime of a deadline entity survive a time
    /// under another policy until its zero-lag time.
    ///
    /// A deadline policy that [`Level::try_set_policy`] would refuse changes nothing.
    pub fn set_policy(&mut self, now: Ns, e: EntId, policy: Policy) {
        // The entity stays what it was.
        let _ = self.try_set_policy(now, e, policy);
    }

    /// [`Level::set_policy`], with the kernel's answer to a deadline policy.
    ///
    /// # Errors
    /// [`Refusal`]; the entity has not changed.
    pub fn try_set_policy(&mut self, now: Ns, e: EntId, policy: Policy) -> Result<(), Refusal> {
        let old = self.policies[e.index()];
        // If changes take an entity off its queue, a request for the default slice does so, too: the kernel compares
        // the requested slice, 0, with the slice in force.
        let renewed =
            matches!(policy, Policy::Normal { slice_ns: None, .. }) && self.fair.requeues();
        if old == policy && !renewed {
            return Ok(());
        }
        self.fair.clock = now;
        if policy.is_deadline() {
            if self.ents[e.index()].state == State::Running {
                self.charge(now, self.ents[e.index()].cpu);
            }
            self.dl.admit(now, e, policy, &self.masks[e.index()])?;
        }
        let fair = [old, policy].iter().all(|p| ClassId::of(p) == ClassId::Fair);
        if !fair {
            self.fair.forget_delayed(e);
        }
        let cpu = self.ents[e.index()].cpu;
        match self.ents[e.index()].state {
            State::Blocked | State::Waking | State::Dead => {
                if !fair && ClassId::of(&old) == ClassId::Fair {
                    self.fair.leave_asleep(e);
                }
                self.store_policy(e, policy);
                if !fair && ClassId::of(&policy) == ClassId::Fair {
                    self.fair.join_asleep(e, cpu);
                }
            }
            State::Queued | State::Running => {
                self.charge_for(now, cpu, ClassId::of(&old));
                match (ClassId::of(&old), ClassId::of(&policy)) {
                    (ClassId::Fair, ClassId::Fair) => self.change_fair(now, e, cpu, old, policy),
                    (ClassId::Rt, ClassId::Rt) => self.change_rt(now, e, cpu, policy),
                    _ => self.change_class(now, e, cpu, policy),
                }
            }
        }
        if old.is_deadline() && !policy.is_deadline() {
            self.dl.left(e);
        }
        Ok(())
    }

    fn store_policy(&mut self, e: EntId, policy: Policy) {
        self.policies[e.index()] = policy;
        let ent = &mut self.ents[e.index()];
        let same = ent.class == ClassId::of(&policy);
        (ent.class, ent.idle) = (ClassId::of(&policy), policy == Policy::Idle);
        if !same {
            self.reopen_class(e);
        }
        match ClassId::of(&policy) {
            ClassId::Fair => self.fair.set_policy(e, policy),
            ClassId::Rt => self.rt.set_policy(e, policy),
            ClassId::Dl => self.dl.set_policy(e, policy),
        }
    }

    fn change_fair(&mut self, now: Ns, e: EntId, cpu: CpuId, old: Policy, policy: Policy) {
        let running = self.ents[e.index()].state == State::Running;
        if self.fair.requeues() {
            self.replace(now, e, cpu, policy);
            if running {
                self.ents[e.index()].state = State::Running;
                self.fair.resume(cpu, e);
            }
        } else {
            if !self.fair.is_held(e, cpu) {
                let c = &mut self.cpus[cpu.index()];
                c.nr_idle += u32::from(policy == Policy::Idle);
                c.nr_idle -= u32::from(old == Policy::Idle);
            }
            self.store_policy(e, policy);
            self.refresh(cpu);
        }
        let others = self.cpus[cpu.index()].nr_fair > 1;
        let (before, after) = (weight::of_policy(old), weight::of_policy(policy));
        if !running && before != after {
            self.check_preempt(cpu, e);
        } else if running && others && after < before {
            self.kick(cpu, false);
        }
    }

    /// Takes an entity off its queue, running or not, and queues it under its new policy.
    fn replace(&mut self, now: Ns, e: EntId, cpu: CpuId, policy: Policy) {
        let running = self.ents[e.index()].state == State::Running;
        if running {
            self.put_aside(e, cpu);
        }
        self.deactivate(e, Dequeue::Save);
        self.store_policy(e, policy);
        match ClassId::of(&policy) {
            ClassId::Fair if running => self.lift_quota(now, cpu, e),
            ClassId::Fair | ClassId::Rt => {}
            ClassId::Dl => self.dl.join(now, e),
        }
        self.activate(now, e, cpu, Enqueue::Restore);
    }

    fn change_rt(&mut self, now: Ns, e: EntId, cpu: CpuId, policy: Policy) {
        self.refresh(cpu);
        let before = self.rt.prio(e);
        if self.ents[e.index()].state == State::Queued {
            self.rt.dequeue(cpu, e, Dequeue::Save);
            self.store_policy(e, policy);
            // An entity that is demoted goes ahead of its new equals; one that is promoted goes behind them.
            let down = self.rt.prio(e) < before;
            let how = if down { Enqueue::RestoreHead } else { Enqueue::Restore };
            self.rt.enqueue(cpu, e, how);
            self.update_pri(cpu);
            self.check_preempt(cpu, e);
            self.push_woken(now, cpu, e);
            return;
        }
        self.store_policy(e, policy);
        self.update_pri(cpu);
        if self.rt.prio(e) < before {
            self.pull_rt(now, cpu);
            if self.rt.waiting(cpu) > self.rt.prio(e) && !self.guard.holds_rt(cpu) {
                self.kick(cpu, true);
            }
        }
    }

    /// Moves an entity between classes, or from one reservation to another.
    fn change_class(&mut self, now: Ns, e: EntId, cpu: CpuId, policy: Policy) {
        let running = self.ents[e.index()].state == State::Running;
        self.replace(now, e, cpu, policy);
        if !running {
            self.check_preempt(cpu, e);
            match ClassId::of(&policy) {
                ClassId::Fair => {}
                ClassId::Rt => self.push_woken(now, cpu, e),
                ClassId::Dl => self.push_woken_dl(now, cpu, e),
            }
            return;
        }
        self.ents[e.index()].state = State::Running;
        match ClassId::of(&policy) {
            ClassId::Rt => {
                self.rt.set_next(cpu, e);
                self.pull_dl(now, cpu);
                // It has to wait if RT is throttled, the fair server has its turn, or a deadline entity or a more
                // urgent RT entity waits.
                let c = &self.cpus[cpu.index()];
                let fair_first = self.guard.fair_first(cpu) && c.nr_fair > 0;
                let better = self.rt.waiting(cpu) > self.rt.prio(e);
                if c.nr_dl > 0 || self.guard.holds_rt(cpu) || fair_first || better {
                    self.kick(cpu, true);
                }
                if self.rt.overloaded().contains(cpu) {
                    self.push_rt(now, cpu);
                }
            }
            ClassId::Fair => {
                self.fair.resume(cpu, e);
                self.pull_dl(now, cpu);
                if self.dl.earliest(cpu) == NEVER {
                    self.pull_rt(now, cpu);
                }
                // Its protection and its precedence are gone: every waiting entity is a candidate.
                if self.nr_running(cpu) > 1 {
                    self.kick(cpu, true);
                }
            }
            ClassId::Dl => self.run_dl(now, e, cpu),
        }
    }

    /// A running entity has joined the deadline class.
    fn run_dl(&mut self, now: Ns, e: EntId, cpu: CpuId) {
        if self.dl.is_held(e) {
            // Its runtime in this period is used up. It runs on until it is put aside.
            let c = &mut self.cpus[cpu.index()];
            c.nr_held -= 1;
            c.nr_dl += 1;
        }
        let before = self.deadline(cpu);
        self.dl.set_next(cpu, e);
        self.dl.set_exhaustion(now, cpu);
        self.update_pri(cpu);
        self.refresh(cpu);
        self.announce(cpu, before);
        let c = &self.cpus[cpu.index()];
        let due = self.dl.due(e);
        let fair_first = c.nr_fair > 0 && self.fair_before(cpu, due);
        if self.dl.is_held(e) || self.dl.waiting(cpu) < due || fair_first {
            self.kick(cpu, true);
        }
        if self.dl.overloaded().contains(cpu) {
            self.push_dl(now, cpu);
        }
    }

    /// Changes where an entity may run; an empty set (after CPUs outside the level are dropped) means everywhere.
    ///
    /// A waiting entity that may not stay moves at once. A running one gets its CPU kicked and
    /// moves at the next [`Level::schedule`] there. A blocked one is placed when it wakes.
    ///
    /// What [`Level::try_set_cpus`] would refuse changes nothing.
    pub fn set_cpus(&mut self, now: Ns, e: EntId, cpus: CpuSet) {
        // The entity stays where it may be.
        let _ = self.try_set_cpus(now, e, cpus);
    }

    /// [`Level::set_cpus`], with the kernel's answer for a deadline entity.
    ///
    /// # Errors
    /// [`Refusal::Affinity`]; the entity has not changed.
    pub fn try_set_cpus(&mut self, now: Ns, e: EntId, cpus: CpuSet) -> Result<(), Refusal> {
        let mask = self.clip(cpus);
        if mask == self.masks[e.index()] {
            return Ok(());
        }
        let everywhere = mask.len() as usize == self.cpus.len();
        let class = self.class(e);
        if class == ClassId::Dl && !everywhere && !self.dl.may_confine() {
            return Err(Refusal::Affinity);
        }
        self.fair.clock = now;
        self.fair.forget_delayed(e);
        let allowed = mask.len();
        self.masks[e.index()] = mask;
        self.reopen(e);
        let ent = &self.ents[e.index()];
        let (cpu, state) = (ent.cpu, ent.state);
        let queued = |of| (state == State::Queued && class == of).then_some(cpu);
        self.rt.set_movable(e, allowed > 1, queued(ClassId::Rt));
        self.dl.set_movable(e, allowed > 1, queued(ClassId::Dl));
        if !self.may_stay(e, cpu) {
            self.send_away(now, e);
        }
        Ok(())
    }

    /// An entity leaves its CPU, on which it may not stay any more.
    pub(super) fn send_away(&mut self, now: Ns, e: EntId) {
        let ent = &self.ents[e.index()];
        match ent.state {
            State::Queued => {
                let to = self.new_home(e);
                self.transfer(now, e, to);
            }
            State::Running => self.kick(ent.cpu, true),
            State::Waking => self.unlist(now, e),
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
        if core::mem::replace(&mut self.cfg.groups[usize::from(group)].weight, weight) == weight {
            return;
        }
        for i in 0..self.cpus.len() {
            self.charge_between(now, CpuId(i as u32));
        }
        self.fair.set_group_weight(group, weight);
    }

    /// Whether `cpu` was kicked and has not scheduled since.
    pub fn is_kicked(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].kicked != ReschedRequest::No
    }

    /// New CPU of an entity that may not stay.
    pub(super) fn new_home(&self, e: EntId) -> CpuId {
        let best = match self.class(e) {
            ClassId::Fair => None,
            ClassId::Rt => self.lowest(e, None),
            ClassId::Dl => self.latest(e, None),
        };
        best.unwrap_or_else(|| self.fallback(e))
    }
}
