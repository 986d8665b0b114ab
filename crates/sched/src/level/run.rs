//! Waking and running: the most frequent calls of a driver.

use super::{Level, ReschedRequest, State};
use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{ClassId, Ns};
use crate::dl::NEVER;
use crate::fair::RunsNow;
use crate::heap::NONE;
use crate::rt::DEADLINE;
use crate::{CpuId, EntId, LeaveReason, Note};

impl Level {
    /// Makes a blocked entity runnable, places it, and returns where; `None` if it was not blocked (or has exited).
    /// `waker`: the CPU that woke it; `None` if no CPU of this level did.
    ///
    /// A CPU whose current entity should give way gets a [`Note::Kick`]. An idle CPU, and one that shares no cache with
    /// the waker, queues the entity itself ([`Level::take_woken`]).
    pub fn wake(&mut self, now: Ns, e: EntId, waker: Option<CpuId>) -> Option<CpuId> {
        self.wake_up(now, e, waker, false)
    }

    /// [`Level::wake`] by a current entity that is about to sleep (`WF_SYNC`), because it has written to a pipe or a
    /// socket. A fair entity is then more likely to go to the waker's CPU.
    pub fn wake_sync(&mut self, now: Ns, e: EntId, waker: CpuId) -> Option<CpuId> {
        self.wake_up(now, e, Some(waker), true)
    }

    fn wake_up(&mut self, now: Ns, e: EntId, by: Option<CpuId>, sync: bool) -> Option<CpuId> {
        if self.ents[e.index()].state != State::Blocked {
            return None;
        }
        self.fair.clock = now;
        if self.fair.is_delayed(e) {
            // It is still on its queue and goes on there, as in the kernel. Whether its debt is paid depends on the
            // times of the others as of the last charge, so the current one is charged afterwards.
            let cpu = self.ents[e.index()].cpu;
            self.fair.wake_delayed(e);
            self.charge_between(now, cpu);
            self.ents[e.index()].state = State::Queued;
            self.ents[e.index()].queued_at = now;
            self.count_fair(now, e, cpu);
            self.check_preempt(cpu, e);
            return Some(cpu);
        }
        let to = self.place(now, e, by, sync);
        let ent = &mut self.ents[e.index()];
        let (from, fresh) = (ent.cpu, core::mem::replace(&mut ent.fresh, false));
        if from != to {
            self.fair.migrate_blocked(e);
            self.moved(e, from, to);
        }
        if !fresh && by.is_some_and(|by| self.hands_over(by, to)) {
            self.list_woken(e, to);
            return Some(to);
        }
        let how = if fresh { Enqueue::Initial } else { Enqueue::Wakeup };
        self.enqueue_woken(now, e, to, how);
        Some(self.ents[e.index()].cpu)
    }

    /// Puts a woken entity on the queue of the CPU where it was placed.
    pub(super) fn enqueue_woken(&mut self, now: Ns, e: EntId, cpu: CpuId, how: Enqueue) {
        let class = self.class(e);
        if class == ClassId::Dl {
            self.dl.wake(now, e);
        }
        self.ents[e.index()].queued_at = now;
        self.charge_between(now, cpu);
        self.activate(now, e, cpu, how);
        if how == Enqueue::Wakeup && self.pull_depends_on_idle() {
            self.cpus[cpu.index()].idle_times.end(now, &self.cfg.balance);
        }
        self.ask_quota(now, cpu, e);
        self.check_preempt(cpu, e);
        match class {
            ClassId::Fair => {}
            ClassId::Rt => self.push_woken(now, cpu, e),
            ClassId::Dl => self.push_woken_dl(now, cpu, e),
        }
    }

    /// Puts the current entity of `cpu` aside, as `leave` says (ignored if the CPU was idle), and picks the entity that
    /// runs from now on; `None` = idle.
    ///
    /// Call it when the current entity blocks, yields or exits, and to serve a [`Note::Kick`].
    /// Serving a kick that has no reason any more is harmless: the current entity stays.
    pub fn schedule(&mut self, now: Ns, cpu: CpuId, leave: LeaveReason) -> Option<EntId> {
        let i = cpu.index();
        self.cpus[i].kicked = ReschedRequest::Serving;
        let push = core::mem::replace(&mut self.cpus[i].push, NONE);
        self.charge(now, cpu);
        let prev = self.current(cpu);
        let mut prev_rank = 0;
        let mut prev_dl = false;
        // Whether `prev` still waits here if it is not picked.
        let mut stays = false;
        if let Some(p) = prev {
            let class = self.class(p);
            prev_dl = class == ClassId::Dl;
            prev_rank = self.rank(p);
            match leave {
                LeaveReason::Blocked => self.stop(p, Dequeue::Sleep, State::Blocked),
                LeaveReason::Exit => {
                    self.stop(p, Dequeue::Exit, State::Dead);
                    if prev_dl {
                        self.dl.left(p);
                    }
                }
                LeaveReason::Yield => match class {
                    ClassId::Fair => self.fair.yield_current(cpu, p),
                    ClassId::Rt => self.rt.yield_current(cpu, p),
                    ClassId::Dl if self.dl.is_held(p) => {}
                    ClassId::Dl => {
                        self.dl.yield_current(cpu, p);
                        self.exhausted(now, cpu, p);
                    }
                },
                LeaveReason::Preempted => {}
            }
            stays = matches!(leave, LeaveReason::Preempted | LeaveReason::Yield);
            let to = if stays { self.leaves_for(now, cpu, p, push == p.0) } else { None };
            if let Some(to) = to {
                self.expel(now, p, to);
                stays = false;
            }
        }
        if prev_rank > 0 {
            // Whether the current entity is throttled is settled only when it is put aside.
            if prev_dl && (!stays || prev.is_some_and(|p| self.dl.is_held(p))) {
                self.pull_dl(now, cpu);
            }
            if prev_rank > self.rt.highest(cpu) && self.dl.earliest(cpu) == NEVER {
                self.pull_rt(now, cpu);
            }
        }
        if stays && prev_rank == 0 {
            self.guard.fair_preempted(now, cpu);
        }
        if let Some(p) = prev.filter(|&p| prev_rank == 0 && self.fair.has_quota(p)) {
            self.throttle(now, cpu, p, RunsNow::No);
        }
        let mut next = self.pick(cpu);
        let pulls = next.is_none() && !self.is_single() && self.cfg.balance.newidle;
        let pulls = pulls && !self.cpus[i].spared && !self.cpus[i].has_woken;
        if pulls && self.pull_newidle(now, cpu) {
            next = self.pick(cpu);
        }
        if self.core.is_some() {
            next = self.pick_for_core(now, cpu, next);
            if let Some(e) = next.filter(|_| next == prev) {
                self.begin_again(cpu, e);
            }
        }
        if next != prev {
            self.switch(now, cpu, prev, next, stays && leave == LeaveReason::Preempted);
        }
        self.cpus[i].kicked = ReschedRequest::No;
        match next.map(|n| self.class(n)) {
            Some(ClassId::Rt) if self.rt.overloaded().contains(cpu) => self.push_rt(now, cpu),
            Some(ClassId::Dl) if self.dl.overloaded().contains(cpu) => self.push_dl(now, cpu),
            _ => {}
        }
        next
    }

    /// The tick of a CPU that is not idle: charges, ends slices, and balances now and then.
    pub fn tick(&mut self, now: Ns, cpu: CpuId) {
        let Some(e) = self.current(cpu) else { return };
        self.charge(now, cpu);
        self.fair.tell_all();
        match self.class(e) {
            ClassId::Fair if self.fair.tick(cpu, e) || self.tick_for_core(cpu, e) => {
                self.kick(cpu, false);
            }
            ClassId::Rt if self.rt.tick(cpu, e) => self.kick(cpu, true),
            // A deadline entity is only charged.
            _ => {}
        }
        if self.cpus[cpu.index()].spared {
            return self.push_off(now, cpu, e);
        }
        if self.cfg.balance.periodic && !self.is_single() {
            self.balance_tick(now, cpu, e);
        }
    }

    /// Reports [`Level::deadline`] if it differs from `before`.
    pub(super) fn announce(&mut self, cpu: CpuId, before: Option<Ns>) {
        if self.deadline(cpu) != before {
            self.notes.push_back(Note::DeadlineChanged { cpu });
        }
    }

    /// Urgency of an entity for comparison with RT entities: 0 if it is fair.
    #[inline]
    pub(super) fn rank(&self, e: EntId) -> u8 {
        match self.class(e) {
            ClassId::Fair => 0,
            ClassId::Rt => self.rt.prio(e),
            ClassId::Dl => DEADLINE,
        }
    }

    /// Updates the urgency of a CPU's entities.
    #[inline]
    pub(super) fn update_pri(&mut self, cpu: CpuId) {
        let dl = self.cpus[cpu.index()].nr_dl > 0 && self.has_dl(cpu);
        self.pri.set(cpu, if dl { DEADLINE } else { self.rt.highest(cpu) });
    }

    #[cold]
    fn has_dl(&self, cpu: CpuId) -> bool {
        self.dl.earliest(cpu) != NEVER
    }

    /// Whether the fair entities of a CPU go ahead of a deadline: the fair server has a deadline, too.
    #[inline]
    pub(super) fn fair_before(&self, cpu: CpuId, due: Ns) -> bool {
        self.guard.fair_first(cpu) && self.guard.due(cpu) < due
    }

    /// Asks the classes in their order.
    #[inline]
    pub(super) fn pick(&mut self, cpu: CpuId) -> Option<EntId> {
        let c = &self.cpus[cpu.index()];
        if c.nr_rt | c.nr_dl == 0 {
            return self.fair.pick(cpu);
        }
        if c.nr_dl > 0
            && let Some(e) = self.pick_dl(cpu)
        {
            return Some(e);
        }
        self.pick_rt(cpu).or_else(|| self.fair.pick(cpu))
    }

    /// The most urgent RT entity, or a fair one that the fair server puts before it.
    #[inline]
    fn pick_rt(&mut self, cpu: CpuId) -> Option<EntId> {
        if self.cpus[cpu.index()].nr_rt == 0 || self.guard.holds_rt(cpu) {
            return None;
        }
        let first = if self.guard.fair_first(cpu) { self.fair.pick(cpu) } else { None };
        first.or_else(|| self.rt.pick(cpu))
    }

    /// The entity with the earliest deadline, or a fair one that the fair server puts before it.
    #[cold]
    fn pick_dl(&mut self, cpu: CpuId) -> Option<EntId> {
        let e = self.dl.pick(cpu)?;
        let first = self.fair_before(cpu, self.dl.due(e));
        if first { self.fair.pick(cpu) } else { None }.or(Some(e))
    }

    fn switch(
        &mut self,
        now: Ns,
        cpu: CpuId,
        prev: Option<EntId>,
        next: Option<EntId>,
        preempted: bool,
    ) {
        let next_fair = next.filter(|&n| self.class(n) == ClassId::Fair);
        // An expelled entity was put aside already, and is another CPU's now.
        if let Some(p) = prev.filter(|p| self.ents[p.index()].cpu == cpu) {
            let ent = &mut self.ents[p.index()];
            ent.last_ran = now;
            if preempted {
                ent.stats.preempted += 1;
            }
            if ent.state == State::Running {
                ent.state = State::Queued;
                ent.queued_at = now;
            }
            match ent.class {
                ClassId::Fair => self.fair.put_prev(cpu, p, next_fair),
                ClassId::Rt => self.rt.put_prev(cpu, p, None),
                ClassId::Dl => self.put_dl(cpu, p),
            }
        }
        let c = &mut self.cpus[cpu.index()];
        if prev.is_none() {
            self.guard.charge_idle(now, cpu, now - c.charged_to);
        }
        c.curr = next.map_or(NONE, |n| n.0);
        c.charged_to = now;
        c.stolen = 0;
        if let Some(n) = next {
            let ent = &mut self.ents[n.index()];
            ent.state = State::Running;
            ent.stats.switches_in += 1;
            ent.stats.wait_ns += now - ent.queued_at;
            match ent.class {
                ClassId::Fair => {
                    self.fair.set_next(cpu, n);
                    self.start_hrtick(now, cpu, n);
                }
                ClassId::Rt => self.rt.set_next(cpu, n),
                ClassId::Dl => self.set_dl(now, cpu, n),
            }
        } else {
            self.cancel_hrtick(cpu);
        }
    }

    /// A waiting deadline entity becomes current.
    #[cold]
    fn set_dl(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        let before = self.deadline(cpu);
        self.dl.set_next(cpu, e);
        self.dl.set_exhaustion(now, cpu);
        self.announce(cpu, before);
    }

    /// The current deadline entity goes to wait, or to the held list.
    #[cold]
    fn put_dl(&mut self, cpu: CpuId, e: EntId) {
        let before = self.deadline(cpu);
        let held = self.dl.is_current(cpu, e) && self.dl.is_held(e);
        self.dl.put_prev(cpu, e, None);
        if held {
            let c = &mut self.cpus[cpu.index()];
            c.nr_dl -= 1;
            c.nr_held += 1;
            self.update_pri(cpu);
            self.refresh(cpu);
        }
        self.announce(cpu, before);
    }

    /// The current entity sleeps or exits.
    #[inline(always)]
    fn stop(&mut self, e: EntId, how: Dequeue, state: State) {
        self.ents[e.index()].state = state;
        self.deactivate(e, how);
    }

    /// New CPU of the current entity of `cpu`, if it has to leave although it is runnable: the CPU is closed to it, or
    /// the tick wanted it `pushed` off, for a reason that still holds.
    #[inline]
    fn leaves_for(&mut self, now: Ns, cpu: CpuId, e: EntId, pushed: bool) -> Option<CpuId> {
        if !self.may_stay(e, cpu) {
            return Some(self.new_home(e));
        }
        if pushed { self.pushed_to(now, cpu, e) } else { None }
    }

    /// The current entity goes on elsewhere.
    fn expel(&mut self, now: Ns, e: EntId, to: CpuId) {
        self.stopped += 1;
        let ent = &mut self.ents[e.index()];
        let from = ent.cpu;
        ent.state = State::Queued;
        ent.queued_at = now;
        ent.last_ran = now;
        self.put_aside(e, from);
        self.transfer(now, e, to);
    }

    /// Moves a waiting entity to another CPU's queue.
    pub(super) fn transfer(&mut self, now: Ns, e: EntId, to: CpuId) {
        let from = self.ents[e.index()].cpu;
        self.charge_for(now, from, self.class(e));
        self.charge_between(now, to);
        if self.class(e) == ClassId::Fair {
            self.fair.take_load(e);
        }
        self.deactivate(e, Dequeue::Save);
        self.moved(e, from, to);
        self.activate(now, e, to, Enqueue::Restore);
        self.ask_quota(now, to, e);
        self.check_preempt(to, e);
    }

    /// Moves a sleeper that is still queued to another CPU's queue.
    pub(super) fn transfer_delayed(&mut self, now: Ns, e: EntId, to: CpuId) {
        let from = self.ents[e.index()].cpu;
        self.charge_between(now, from);
        self.charge_between(now, to);
        self.fair.move_delayed(e, to);
        self.moved(e, from, to);
    }

    /// The current entity goes back to wait on its queue.
    pub(super) fn put_aside(&mut self, e: EntId, cpu: CpuId) {
        match self.class(e) {
            ClassId::Fair => self.fair.put_prev(cpu, e, None),
            ClassId::Rt => self.rt.put_prev(cpu, e, None),
            ClassId::Dl => self.put_dl(cpu, e),
        }
    }

    pub(super) fn moved(&mut self, ent: EntId, from: CpuId, to: CpuId) {
        self.ents[ent.index()].cpu = to;
        self.ents[ent.index()].stats.migrations += 1;
        self.notes.push_back(Note::Moved { ent, from, to });
    }

    /// Puts an entity on the queue of `cpu`.
    #[inline(always)]
    pub(super) fn activate(&mut self, now: Ns, e: EntId, cpu: CpuId, how: Enqueue) {
        let ent = &mut self.ents[e.index()];
        ent.state = State::Queued;
        match ent.class {
            ClassId::Fair => {
                self.fair.clock = now;
                self.fair.enqueue(cpu, e, how);
                self.count_fair(now, e, cpu);
                self.update_hrtick(now, cpu);
            }
            ClassId::Rt => {
                self.rt.enqueue(cpu, e, how);
                self.count_rt(now, cpu, true);
            }
            ClassId::Dl => self.enqueue_dl(e, cpu, how),
        }
    }

    /// Takes an entity off its queue.
    #[inline(always)]
    pub(super) fn deactivate(&mut self, e: EntId, how: Dequeue) {
        let ent = &self.ents[e.index()];
        let cpu = ent.cpu;
        match ent.class {
            ClassId::Fair => {
                let held = self.fair.is_held(e, cpu);
                self.fair.dequeue(cpu, e, how);
                if !held {
                    self.remove_fair(cpu, 1, u32::from(self.ents[e.index()].idle));
                }
                if self.fair.has_quotas() {
                    self.announce_quotas();
                }
            }
            ClassId::Rt => {
                self.rt.dequeue(cpu, e, how);
                self.count_rt(0, cpu, false);
            }
            ClassId::Dl => self.dequeue_dl(e, cpu, how),
        }
    }

    #[cold]
    fn enqueue_dl(&mut self, e: EntId, cpu: CpuId, how: Enqueue) {
        let before = self.deadline(cpu);
        self.dl.enqueue(cpu, e, how);
        self.announce(cpu, before);
        self.count_dl(cpu, self.dl.is_held(e), true);
    }

    #[cold]
    fn dequeue_dl(&mut self, e: EntId, cpu: CpuId, how: Dequeue) {
        let before = self.deadline(cpu);
        // A running entity counts as not held until it is put aside.
        let held = self.dl.is_held(e) && !self.dl.is_current(cpu, e);
        self.dl.dequeue(cpu, e, how);
        self.announce(cpu, before);
        self.count_dl(cpu, held, false);
    }

    /// Counts fair entities that may run, of which `idle` are SCHED_IDLE, and starts the guard.
    #[inline]
    pub(super) fn add_fair(&mut self, now: Ns, cpu: CpuId, n: u32, idle: u32) {
        let c = &mut self.cpus[cpu.index()];
        let first = c.nr_fair == 0 && n > 0;
        c.nr_fair += n;
        c.nr_idle += idle;
        if first && self.guard.fair_started(now, cpu) {
            self.notes.push_back(Note::DeadlineChanged { cpu });
        }
        self.refresh(cpu);
    }

    /// Counts a fair entity that came onto the queue of `cpu`, if it may run.
    #[inline]
    fn count_fair(&mut self, now: Ns, e: EntId, cpu: CpuId) {
        if !self.fair.is_held(e, cpu) {
            self.add_fair(now, cpu, 1, u32::from(self.ents[e.index()].idle));
        }
    }

    /// Reverts [`add_fair`](Self::add_fair).
    #[inline]
    pub(super) fn remove_fair(&mut self, cpu: CpuId, n: u32, idle: u32) {
        let c = &mut self.cpus[cpu.index()];
        let last = c.nr_fair == n && n > 0;
        c.nr_fair -= n;
        c.nr_idle -= idle;
        if last {
            self.guard.fair_ended(cpu);
        }
        self.refresh(cpu);
    }

    /// Counts an RT entity, in or out.
    #[inline]
    fn count_rt(&mut self, now: Ns, cpu: CpuId, on: bool) {
        let d = if on { 1 } else { u32::MAX };
        let c = &mut self.cpus[cpu.index()];
        c.nr_rt = c.nr_rt.wrapping_add(d);
        self.update_pri(cpu);
        if on && self.guard.rt_started(now, cpu) {
            self.notes.push_back(Note::DeadlineChanged { cpu });
        }
        self.refresh(cpu);
    }

    /// Counts a deadline entity, in or out.
    #[cold]
    fn count_dl(&mut self, cpu: CpuId, held: bool, on: bool) {
        let c = &mut self.cpus[cpu.index()];
        let n = if held { &mut c.nr_held } else { &mut c.nr_dl };
        *n = if on { *n + 1 } else { *n - 1 };
        self.update_pri(cpu);
        self.refresh(cpu);
    }

    /// Recomputes the sets that a CPU is in.
    #[inline]
    pub(super) fn refresh(&mut self, cpu: CpuId) {
        if self.is_single() {
            return;
        }
        let c = &self.cpus[cpu.index()];
        let rt = if c.nr_rt == 0 || self.guard.holds_rt(cpu) { 0 } else { c.nr_rt };
        let nr = rt + c.nr_dl + c.nr_fair;
        if self.core.is_some() {
            self.core_changed(cpu, nr == 0);
        }
        let c = &self.cpus[cpu.index()];
        // An entity on its wake list will run there.
        let idle = nr == 0 && !c.has_woken;
        put(&mut self.sets.crowded, cpu, nr >= 2 && c.nr_fair > 0 && !c.spared);
        put(&mut self.sets.only_idle, cpu, nr > 0 && nr == c.nr_idle);
        if idle != self.sets.idle.contains(cpu) {
            put(&mut self.sets.idle, cpu, idle);
            let threads = self.cfg.topology.threads_per_core;
            if threads > 1 {
                let i = self.cfg.topology.core(cpu.0);
                let core = &mut self.cores[i as usize];
                core.idle = if idle { core.idle + 1 } else { core.idle - 1 };
                if core.idle + 1 >= threads {
                    core.tries.start_anew();
                }
                put(&mut self.sets.idle_cores, CpuId(i * threads), core.idle == threads);
            }
        }
    }

    /// Asks a CPU to schedule, once.
    #[inline]
    pub(super) fn kick(&mut self, cpu: CpuId, eager: bool) {
        let c = &mut self.cpus[cpu.index()];
        let kicked = if eager { ReschedRequest::Eager } else { ReschedRequest::Lazy };
        if kicked > c.kicked {
            c.kicked = kicked;
            self.notes.push_back(Note::Kick { cpu, eager });
        }
    }

    /// Kicks `cpu` if `e`, which just came onto its queue, should run at once.
    #[inline]
    pub(super) fn check_preempt(&mut self, cpu: CpuId, e: EntId) {
        let c = &self.cpus[cpu.index()];
        if c.kicked >= ReschedRequest::Eager {
            return;
        }
        let (curr, kicked, class) = (c.curr, c.kicked, self.class(e));
        if class == ClassId::Fair {
            if self.fair.is_held(e, cpu) {
                return;
            }
            if curr == NONE {
                return self.kick(cpu, true);
            }
            if self.class(EntId(curr)) == ClassId::Fair {
                if (kicked == ReschedRequest::No || self.fair.always_compares())
                    && self.fair.check_preempt(cpu, EntId(curr), e)
                {
                    self.kick(cpu, false);
                }
                return;
            }
        }
        if self.goes_first(cpu, curr, e, class) {
            self.kick(cpu, true);
        }
    }

    /// Whether `e` should run instead of `curr`, or of nothing; at most one of them is fair.
    #[inline(always)]
    fn goes_first(&mut self, cpu: CpuId, curr: u32, e: EntId, class: ClassId) -> bool {
        use ClassId::{Dl, Fair, Rt};
        let held = match class {
            Fair => false,
            Rt => self.guard.holds_rt(cpu),
            Dl => self.dl.is_held(e),
        };
        if held || curr == NONE {
            return !held;
        }
        let curr = EntId(curr);
        match (self.class(curr), class) {
            (Fair, Fair) => false,
            (Rt, Rt) => self.rt.check_preempt(cpu, curr, e) || self.passes_rt(cpu, curr, e),
            (Fair, Rt) => !self.guard.fair_first(cpu),
            (Rt, Fair) => self.guard.fair_first(cpu),
            (Dl, Dl) => self.dl.check_preempt(cpu, curr, e),
            (Fair, Dl) => !self.fair_before(cpu, self.dl.due(e)),
            (Rt, Dl) => true,
            (Dl, Fair) => self.fair_before(cpu, self.dl.due(curr)),
            (Dl, Rt) => false,
        }
    }
}

#[inline]
fn put(set: &mut crate::CpuSet, cpu: CpuId, member: bool) {
    if member {
        set.insert(cpu);
    } else {
        set.remove(cpu);
    }
}
