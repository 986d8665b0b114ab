//! One queue for the threads of all groups of a CPU, as in Linux 7.3. Earlier releases choose a group, and then one of
//! its entities.
//!
//! All tasks are on the root queue of their CPU, with weights that follow from those of their groups:
//!
//! ```text
//! weight = own weight * product over its groups of (weight of the group on this CPU / load of the group there)
//! ```
//!
//! The queues of groups have a load and a number of entities, and order nothing. A task gets its weight when it is
//! queued, when it is picked, and at a tick while it runs. So a task that waits does not notice that others come or go
//! in its groups, until it is picked.
//!
//! A group that has used up its quota takes its tasks off the queue at once. The kernel lets each of them be picked
//! first.

use alloc::vec::Vec;

use super::{FairClass, weight};
use crate::class::{Dequeue, Enqueue};
use crate::config::Fair;
use crate::heap::NONE;
use crate::{CpuId, EntId};

/// Least effective weight (`MIN_SHARES`); it has no fraction bits.
const MIN_WEIGHT: u64 = 2;

impl FairClass {
    /// The queue that a task's weight belongs to: that of its innermost group on the CPU where it is, or last was.
    #[inline]
    pub(super) fn own_queue(&self, s: usize) -> u32 {
        let r = self.ses[s].rq;
        if self.flat { self.group_queue_of(s, r) } else { r }
    }

    fn group_queue_of(&self, s: usize, r: u32) -> u32 {
        match (self.tasks[self.ses[s].ent as usize].group, self.rqs.get(r as usize)) {
            (NONE, _) | (_, None) => r,
            (g, Some(rq)) => self.group_rq[g as usize * self.cpus + rq.cpu as usize],
        }
    }

    /// The weight with which a task competes (`__calc_prop_weight`).
    fn effective_weight(&self, s: usize) -> u64 {
        let (mut part, mut r) = (self.ses[s].own, self.own_queue(s));
        let mut weight = weight::NICE_0;
        loop {
            let rq = &self.rqs[r as usize];
            let of = if rq.se == NONE { weight::NICE_0 } else { rq.load };
            weight = (weight * part / of).max(MIN_WEIGHT);
            if rq.se == NONE {
                return weight;
            }
            let group = &self.ses[rq.se as usize];
            (part, r) = (group.weight, group.rq);
        }
    }

    /// Gives a task on the queue the weight that it should have now. Its lag, and the distances of its deadline and of
    /// the end of its protection from the mean, stay the same in nanoseconds (`reweight_eevdf`).
    #[inline]
    pub(super) fn renew_weight(&mut self, s: usize) {
        if self.flat {
            self.renew_flat(s);
        }
    }

    fn renew_flat(&mut self, s: usize) {
        let (old, new) = (self.ses[s].weight, self.effective_weight(s));
        let Fair::Eevdf(t) = self.kind else { return };
        if old == new || !self.ses[s].on_rq {
            return;
        }
        let r = self.ses[s].rq as usize;
        let waits = self.rqs[r].curr != s as u32;
        let avg = self.avg_vruntime(r);
        let lag = self.lag(r, s, avg, &t);
        if waits {
            self.heap_out(r, s);
        }
        let rescale = |v: i64| (i128::from(v) * i128::from(old) / i128::from(new)) as i64;
        let se = &mut self.ses[s];
        if se.is_protected() {
            se.protect = avg + rescale(se.protect - avg);
        }
        se.vruntime = avg - rescale(lag);
        se.deadline = avg + rescale(se.deadline - avg);
        se.weight = new;
        if waits {
            self.heap_in(r, s);
        }
        self.update_min_vruntime(r);
    }

    /// A task has another nice value.
    pub(super) fn own_weight_changed(&mut self, s: usize, old: u64) {
        self.reweigh_average(s, old, self.ses[s].own);
        if self.ses[s].on_rq {
            self.change_load(self.own_queue(s) as usize, old, self.ses[s].own);
            self.renew_flat(s);
        }
    }

    /// Sets the weight of a group's entity.
    pub(super) fn set_share(&mut self, g: usize, new: u64) {
        let se = &mut self.ses[g];
        let old = core::mem::replace(&mut se.weight, new);
        let (on_rq, above) = (se.on_rq, se.rq as usize);
        self.reweigh_average(g, old, new);
        if on_rq {
            self.change_load(above, old, new);
        }
    }

    pub(super) fn enqueue_flat(&mut self, cpu: CpuId, e: EntId, how: Enqueue) {
        let s = self.se_of(e);
        self.ses[s].rq = cpu.0;
        if self.is_held(e, cpu) {
            self.held.push(e);
            return;
        }
        self.join_groups(s, cpu, how);
        let weight = self.effective_weight(s);
        if weight != self.ses[s].weight {
            self.reweight(s, weight);
        }
        self.rqs[cpu.index()].tasks += 1;
        self.enqueue_se(cpu.index(), s, how);
    }

    /// Counts a task that is about to be queued in its groups.
    fn join_groups(&mut self, s: usize, cpu: CpuId, how: Enqueue) {
        let e = EntId(self.ses[s].ent);
        let (mut r, mut part, mut joins) = (self.rq_for(e, cpu), self.ses[s].own, true);
        self.attach(s, r, how);
        while self.rqs[r].se != NONE {
            if joins {
                self.rqs[r].nr += 1;
                self.change_load(r, 0, part);
            }
            self.update_group_weight(r);
            let g = self.rqs[r].se as usize;
            joins = !self.ses[g].on_rq;
            if joins {
                self.set_on_rq(g, true);
            }
            (part, r) = (self.ses[g].weight, self.ses[g].rq as usize);
        }
        if joins {
            self.change_load(r, 0, part);
        }
        self.count_awake(s, true);
    }

    /// A task sleeps if it was `awake`, and has left the queue if it has `left`.
    pub(super) fn leave_groups(&mut self, s: usize, awake: bool, left: bool) {
        if awake {
            self.count_awake(s, false);
        }
        let (mut r, mut part) = (self.own_queue(s) as usize, self.ses[s].own);
        while left && self.rqs[r].se != NONE {
            self.rqs[r].nr -= 1;
            self.change_load(r, part, 0);
            self.tell(r);
            let rq = &self.rqs[r];
            if rq.nr > 0 {
                return self.update_group_weights(r);
            }
            let g = rq.se as usize;
            if self.quotas {
                self.give_back(rq.group, rq.cpu);
            }
            self.set_on_rq(g, false);
            (part, r) = (self.ses[g].weight, self.ses[g].rq as usize);
        }
        if left {
            self.change_load(r, part, 0);
        }
    }

    /// A task of the queue wakes up or goes to sleep.
    pub(super) fn count_awake(&mut self, s: usize, wakes: bool) {
        let mut group = self.tasks[self.ses[s].ent as usize].group;
        while self.flat && group != NONE {
            let of = &mut self.groups[group as usize];
            of.count_awake(self.clock, wakes);
            group = of.parent;
        }
    }

    /// Whether the current task of the CPU is of the group whose queue is `r`, or of one in it.
    pub(super) fn runs_in(&self, r: usize) -> bool {
        let rq = &self.rqs[r];
        if !self.flat {
            return rq.curr != NONE;
        }
        let curr = self.ses.get(self.rqs[rq.cpu as usize].curr as usize);
        curr.is_some_and(|se| self.groups_of(EntId(se.ent)).any(|(group, _)| group == rq.group))
    }

    /// A task is not held any more, because it leaves; false if it was not.
    pub(super) fn forget_held(&mut self, e: EntId) -> bool {
        let at = self.held.iter().position(|&held| held == e);
        at.map(|at| self.held.remove(at)).is_some()
    }

    /// Takes the tasks that a quota holds off the queue of `cpu`. Returns how many were awake, and how many of those
    /// are SCHED_IDLE.
    pub(super) fn hold_tasks(&mut self, cpu: CpuId) -> (u32, u32) {
        let mut tasks = Vec::new();
        self.any_task(cpu.index(), &mut |se, _| {
            tasks.push(EntId(se.ent));
            false
        });
        tasks.retain(|&e| self.is_held(e, cpu));
        let mut held = (0, 0);
        for e in tasks {
            let s = self.se_of(e);
            if !self.ses[s].delayed {
                held.0 += 1;
                held.1 += u32::from(self.ses[s].idle);
                self.held.push(e);
            }
            self.dequeue_se_up(s, Dequeue::Exit);
        }
        self.rqs[cpu.index()].tasks -= held.0;
        held
    }

    /// Puts the tasks that no quota holds any more back on the queue of `cpu`, the last one first. Returns what
    /// [`hold_tasks`](Self::hold_tasks) does.
    pub(super) fn release_tasks(&mut self, cpu: CpuId) -> (u32, u32) {
        let here = |class: &Self, e| class.ses[class.se_of(e)].rq == cpu.0;
        let (mut back, mut at) = ((0, 0), self.held.len());
        while at > 0 {
            at -= 1;
            let e = self.held[at];
            if here(self, e) && !self.is_held(e, cpu) {
                self.held.remove(at);
                back.0 += 1;
                back.1 += u32::from(self.ses[self.se_of(e)].idle);
                self.enqueue_flat(cpu, e, Enqueue::Wakeup);
            }
        }
        back
    }

    /// Panics if the load of a queue is wrong: on it are the tasks that belong to it, and the groups directly below.
    pub(super) fn check_members(&self, r: usize) -> u32 {
        let tasks = self.tasks.iter().map(|task| task.se as usize);
        let tasks = tasks.filter(|&s| self.ses[s].on_rq && self.own_queue(s) == r as u32);
        let groups = self.ses.iter().filter(|se| se.owns != NONE && se.on_rq && se.rq == r as u32);
        let parts = tasks.map(|s| self.ses[s].own).chain(groups.map(|se| se.weight));
        let (nr, load) = parts.fold((0, 0), |(nr, load), part| (nr + 1, load + part));
        assert_eq!(self.rqs[r].load, load, "load of queue {r}");
        nr
    }

    /// Panics if a count of a group's queue is wrong, or a held task is queued.
    pub(super) fn check_flat(&self, r: usize) {
        let rq = &self.rqs[r];
        assert!(rq.heap.nodes().is_empty() && rq.curr == NONE, "a group's queue orders nothing");
        let nr = self.check_members(r);
        assert_eq!(rq.nr, nr, "entities of a group");
        assert_eq!(self.ses[rq.se as usize].on_rq, nr > 0, "a busy group counts in the one above");
        let awake = |task: &&super::Task| {
            let se = &self.ses[task.se as usize];
            let of = |(group, _)| group == rq.group;
            se.on_rq && !se.delayed && self.groups_of(EntId(se.ent)).any(of)
        };
        let awake = self.tasks.iter().filter(awake).count();
        assert_eq!(self.groups[rq.group as usize].awake, awake as u64, "awake in a group");
        for &e in &self.held {
            let se = &self.ses[self.se_of(e)];
            assert!(!se.on_rq && self.is_held(e, CpuId(se.rq)), "{e} is held");
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::tests::{CPU, level, start};
    use super::*;
    use crate::class::Class;
    use crate::config::{EevdfRelease, EevdfTunables, GroupConfig, Ns, Policy};

    const MS: Ns = 1_000_000;

    /// EEVDF of 7.3 with groups of these weights, the last of which is in the first.
    fn class(cpus: u32, groups: &[u64], tasks: &[Option<u16>]) -> FairClass {
        let fair = Fair::Eevdf(EevdfTunables::of(EevdfRelease::V7_3, cpus));
        let mut cfg = level(fair, 4 * MS, cpus, groups.to_vec());
        if let [_, _, .., last] = &mut cfg.groups[..] {
            *last = GroupConfig { parent: Some(0), ..*last };
        }
        let mut c = FairClass::new(&cfg);
        for (e, &group) in (0..).zip(tasks) {
            c.add(EntId(e), Policy::NORMAL, group);
        }
        c
    }

    fn weights<const N: usize>(c: &FairClass) -> [u64; N] {
        c.check();
        core::array::from_fn(|e| c.ses[e].weight >> weight::SHIFT)
    }

    #[test]
    fn a_weight_is_its_part_of_those_of_its_groups() {
        // Group 0 of twice the weight has tasks 0 and 1 and group 2, with tasks 3 and 4.
        let groups = [Some(0), Some(0), Some(1), Some(2), Some(2), None];
        let mut c = class(1, &[2048, 512, 1024], &groups);
        start(&mut c, 5);
        start(&mut c, 2);
        start(&mut c, 0);
        assert_eq!(c.ses[0].weight, 2 * weight::NICE_0);
        start(&mut c, 1);
        assert_eq!(weights(&c), [2048, 1024, 512], "task 0 does not notice");
        start(&mut c, 3);
        start(&mut c, 4);
        assert_eq!(weights(&c), [2048, 1024, 512, 682, 341, 1024]);
        // All of them do when they are picked, and at their ticks.
        for (e, weight) in [(0, 682), (3, 341), (2, 512), (5, 1024)] {
            c.set_next(CPU, EntId(e));
            assert_eq!(c.ses[e as usize].weight >> weight::SHIFT, weight);
            c.put_prev(CPU, EntId(e), None);
        }
        c.set_next(CPU, EntId(3));
        c.dequeue(CPU, EntId(4), Dequeue::Exit);
        c.set_policy(EntId(1), Policy::Normal { nice: -5, slice_ns: None });
        assert_eq!(weights(&c), [682, 1236, 512, 341], "3121 of 5169; others are stale");
        c.tick(CPU, EntId(3));
        assert_eq!(weights(&c), [682, 1236, 512, 405], "1024 of 5169");
        // A group that ends leaves what it has to the others.
        for e in [0, 1, 2] {
            c.dequeue(CPU, EntId(e), Dequeue::Exit);
        }
        c.tick(CPU, EntId(3));
        assert_eq!(c.ses[3].weight >> weight::SHIFT, 2048);
        c.check();
    }

    #[test]
    fn another_weight_keeps_what_is_owed() {
        // Beside task 2, which has as much weight as both others have together.
        let mut c = class(1, &[1024], &[Some(0), Some(0), None]);
        for e in [0, 2] {
            start(&mut c, e);
        }
        c.set_next(CPU, EntId(0));
        c.charge(CPU, EntId(0), 600_000);
        let (before, avg) = (c.ses[0].clone(), c.avg_vruntime(0));
        assert_eq!((before.vruntime - avg, before.deadline - avg), (300_000, 400_000));
        start(&mut c, 1);
        assert_eq!(c.ses[1].weight, weight::NICE_0 / 2);
        assert_eq!((c.avg_vruntime(0), c.ses[1].vruntime), (avg, avg), "no lag, so at the mean");
        c.tick(CPU, EntId(0));
        let after = &c.ses[0];
        assert_eq!(after.weight, weight::NICE_0 / 2);
        assert_eq!((after.vruntime - avg, after.deadline - avg), (600_000, 800_000));
        assert_eq!(after.protect, after.deadline, "it began with a full request");
        assert_eq!(c.avg_vruntime(0), avg, "the mean stays");
        c.check();
        // Ends after the 100 us that it had left.
        assert!(!c.charge(CPU, EntId(0), 99_999) && c.charge(CPU, EntId(0), 1));
    }

    /// As `se->load.weight` of a group of weight 1024 on a running 7.3.4 with two CPUs.
    #[test]
    fn a_group_has_its_weight_for_each_cpu_that_it_can_use() {
        for (tasks, shown) in [
            (&[0, 0, 0][..], [2048, 0]),
            (&[0, 0, 1], [1365, 682]),
            (&[0, 0, 1, 1], [1024, 1024]),
            (&[0, 0, 0, 1], [1536, 512]),
            // An average of almost two counts as one.
            (&[0, 1], [512, 512]),
        ] {
            let mut c = class(2, &[1024], &vec![Some(0); tasks.len()]);
            for (e, &cpu) in (0..).zip(tasks) {
                c.enqueue(CpuId(cpu), EntId(e), Enqueue::Initial);
            }
            let runs = |cpu| tasks.iter().position(|&on| on == cpu).map(|e| EntId(e as u32));
            let runs = [0, 1].map(|cpu| (CpuId(cpu), runs(cpu)));
            for (cpu, e) in runs.iter().filter_map(|&(cpu, e)| Some((cpu, e?))) {
                c.set_next(cpu, e);
            }
            for _ in 0..750 {
                c.clock += 4 * MS;
                for (cpu, e) in runs.iter().filter_map(|&(cpu, e)| Some((cpu, e?))) {
                    c.tick(cpu, e);
                }
            }
            let weight = |(_, e): (CpuId, Option<EntId>)| {
                let queue = c.own_queue(c.se_of(e?));
                Some(c.ses[c.rqs[queue as usize].se as usize].weight >> weight::SHIFT)
            };
            assert_eq!(runs.map(|on| weight(on).unwrap_or(0)), shown, "{tasks:?}");
            c.check();
        }
    }
}
