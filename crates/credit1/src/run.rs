//! Waking and scheduling.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId, LeaveReason};

use super::{Credit1, Decision, NEVER, NONE, Pri, State, Waker};
use crate::config::{BoostPreempts, Patch};

/// The shortest timer that today's Xen sets for a hold: its minimum ratelimit.
const LEAST_HOLD_NS: Ns = 100_000;

impl Credit1 {
    /// Makes a blocked entity runnable and returns the CPU where it waits; `None` if it was not blocked (or has
    /// exited). It stays on its CPU if allowed; an idle CPU may be told to steal it.
    ///
    /// An entity with credit that is not boosted yet is boosted.
    pub fn wake(&mut self, now: Ns, e: EntId, by: Waker) -> Option<CpuId> {
        let ent = &mut self.ents[e.index()];
        if ent.state != State::Blocked {
            return None;
        }
        ent.seen.wakes += 1;
        ent.queued_at = now;
        ent.run_ns = 0;
        ent.woke = true;
        let fresh = core::mem::replace(&mut ent.fresh, false);
        ent.io |= match self.cfg.patches.io_wake_ignores_ratelimit {
            Patch::Off => false,
            // The posted lines sit where a vCPU's context is loaded: when it is brought up.
            Patch::AsPosted => fresh && !ent.dom0,
            Patch::AsMeant => by.io,
        };
        if ent.parked {
            let cpu = ent.cpu;
            self.shelve(e);
            return Some(cpu);
        }
        let to = self.wake_cpu(e, fresh, by);
        self.moved(e, to);
        self.boost(e);
        self.insert(now, e, to);
        self.tickle(by.cpu.unwrap_or(to), to, e);
        Some(to)
    }

    /// The CPU for a waking entity: its last one, unless that is not allowed or a patch says otherwise.
    fn wake_cpu(&mut self, e: EntId, fresh: bool, by: Waker) -> CpuId {
        let ent = &self.ents[e.index()];
        if self.cfg.patches.waker_local
            && !ent.dom0
            && let Some(waker) = by.ent
        {
            let waker = &self.ents[waker.index()];
            if waker.dom0 && self.may_use(e, waker.cpu) {
                return waker.cpu;
            }
        }
        let crowds =
            ent.dom0 && self.cfg.patches.spread_dom0 && self.cpus[ent.cpu.index()].dom0 > 0;
        if fresh || crowds || !self.may_use(e, ent.cpu) { self.pick(e, true) } else { ent.cpu }
    }

    fn boost(&mut self, e: EntId) {
        let ent = &self.ents[e.index()];
        if ent.pri == Pri::Under && !ent.parked {
            let cpu = ent.cpu;
            self.set_pri(e, Pri::Boost);
            self.counters.boosts += 1;
            self.note(Decision::Boost, e, cpu);
        }
    }

    /// Takes the current entity off `cpu`, as `leave` says (ignored if the CPU was idle), and returns the entity that
    /// runs from now on; `None`: idle.
    ///
    /// Call it when the current entity blocks, yields or exits, and to serve a
    /// [`Note::Kick`](vcoop_sched::Note::Kick). Within its ratelimit the current entity stays.
    pub fn schedule(&mut self, now: Ns, cpu: CpuId, leave: LeaveReason) -> Option<EntId> {
        let i = cpu.index();
        self.cpus[i].kicked = true;
        self.charge(now, cpu);
        self.burn(now, cpu);
        let prev = self.current(cpu);
        let mut migrates = None;
        if let Some(p) = prev {
            if leave == LeaveReason::Yield {
                self.ents[p.index()].yielding = true;
                self.counters.yields += 1;
                self.note(Decision::Yield, p, cpu);
            }
            let ent = &self.ents[p.index()];
            let willing = matches!(leave, LeaveReason::Preempted | LeaveReason::Yield);
            if willing && !ent.parked && !ent.migrating {
                if let Some(left) = self.hold(now, cpu, p) {
                    self.counters.ratelimit_holds += 1;
                    self.note(Decision::RatelimitHold, p, cpu);
                    let c = &mut self.cpus[i];
                    c.slice_end = now + left;
                    c.kicked = false;
                    self.rearm(cpu);
                    return prev;
                }
                self.put_aside(p, cpu);
                self.ents[p.index()].queued_at = now;
                self.ents[p.index()].woke = false;
                self.insert(now, p, cpu);
            } else {
                self.put_aside(p, cpu);
                migrates = self.stop(now, p, leave);
            }
        }
        let (next, alone) = self.choose(now, cpu, prev);
        if next != prev {
            self.switch(now, cpu, prev, next, leave);
        }
        self.run(now, cpu, next, alone);
        if let Some(p) = migrates {
            self.migrate(now, p);
        }
        next
    }

    /// Takes the current entity off its CPU.
    fn put_aside(&mut self, p: EntId, cpu: CpuId) {
        self.cpus[cpu.index()].curr = NONE;
        self.ents[p.index()].state = State::Blocked;
        if self.ents[p.index()].dom0 {
            self.count_dom0(cpu, false);
        }
    }

    /// The entity does not go back to its queue. Returns it if it needs another queue.
    fn stop(&mut self, now: Ns, p: EntId, leave: LeaveReason) -> Option<EntId> {
        let short = self.cfg.short_run_ns;
        let ent = &mut self.ents[p.index()];
        let migrates = core::mem::replace(&mut ent.migrating, false);
        match leave {
            LeaveReason::Blocked => {
                ent.seen.blocks += 1;
                ent.brief = ent.run_ns < short;
                ent.seen.short_runs += u64::from(ent.brief);
                ent.yielding = false;
                None
            }
            LeaveReason::Exit => {
                ent.state = State::Dead;
                self.deactivate(p);
                None
            }
            LeaveReason::Preempted | LeaveReason::Yield => {
                ent.queued_at = now;
                ent.woke = false;
                if ent.parked {
                    self.shelve(p);
                    return None;
                }
                migrates.then_some(p)
            }
        }
    }

    /// How long the ratelimit still keeps `p`; `None`: it does not.
    fn hold(&self, now: Ns, cpu: CpuId, p: EntId) -> Option<Ns> {
        let ent = &self.ents[p.index()];
        let limit = self.ratelimit_of(p);
        let ran = now - ent.since;
        if ran >= limit || ent.yielding && self.modern() || self.breaks_ratelimit(cpu, p) {
            return None;
        }
        // 4.2 counts from now, whenever the current run began. Today no timer is shorter than the minimum ratelimit
        // (`CSCHED_MIN_TIMER`).
        Some(if self.modern() { (limit - ran).max(LEAST_HOLD_NS) } else { limit })
    }

    /// Whether a patch lets the first of the queue end the ratelimit of the running entity.
    fn breaks_ratelimit(&self, cpu: CpuId, p: EntId) -> bool {
        let Some(&head) = self.cpus[cpu.index()].queue.front() else { return false };
        let (head, curr) = (&self.ents[head as usize], &self.ents[p.index()]);
        let patches = &self.cfg.patches;
        if patches.dom0_ratelimit_firm && curr.dom0 && !head.dom0 {
            return false;
        }
        let dom0 = match patches.dom0_preempts_ratelimit {
            Patch::Off => false,
            Patch::AsPosted => head.dom0,
            Patch::AsMeant => head.dom0 && head.pri >= curr.pri,
        };
        let boost = match patches.boost_preempts_ratelimit {
            BoostPreempts::Off => false,
            BoostPreempts::V1 => head.pri == Pri::Boost,
            BoostPreempts::V2 => head.pri == Pri::Boost && curr.pri != Pri::Boost,
        };
        dom0 || boost || head.io
    }

    /// The first of the queue or, if that has no credit, a better one from elsewhere. Also whether the queue had only
    /// one entity.
    fn choose(&mut self, now: Ns, cpu: CpuId, prev: Option<EntId>) -> (Option<EntId>, bool) {
        let queue = &self.cpus[cpu.index()].queue;
        let alone = queue.len() == 1;
        let head = queue.front().map(|&h| h as usize);
        if let Some(p) = prev {
            self.ents[p.index()].yielding = false;
        }
        let pri = head.map_or(Pri::Idle, |h| {
            self.ents[h].io = false;
            self.ents[h].pri
        });
        if pri <= Pri::Over
            && let Some(e) = self.balance(now, cpu, pri)
        {
            return (Some(e), alone);
        }
        (self.take(cpu, 0), alone)
    }

    fn switch(
        &mut self,
        now: Ns,
        cpu: CpuId,
        prev: Option<EntId>,
        next: Option<EntId>,
        leave: LeaveReason,
    ) {
        if let Some(p) = prev {
            let ent = &mut self.ents[p.index()];
            ent.last_ran = now;
            ent.stats.preempted += u64::from(leave == LeaveReason::Preempted);
        }
        if let Some(n) = next {
            let ent = &mut self.ents[n.index()];
            ent.stats.switches_in += 1;
            ent.stats.wait_ns += now - ent.queued_at;
            ent.since = now;
        }
        let c = &mut self.cpus[cpu.index()];
        c.charged_to = now;
        c.burned_to = now;
    }

    /// Switches to `next`, and updates timers and sets.
    fn run(&mut self, now: Ns, cpu: CpuId, next: Option<EntId>, alone: bool) {
        let long = self.cfg.patches.long_slice_alone;
        if let Some(n) = next {
            self.ents[n.index()].state = State::Running;
            self.ents[n.index()].cpu = cpu;
            if self.ents[n.index()].dom0 {
                self.count_dom0(cpu, true);
            }
            self.idlers.remove(cpu);
        } else {
            self.idlers.insert(cpu);
        }
        let alone = alone && long != Patch::Off;
        let c = &mut self.cpus[cpu.index()];
        c.curr = next.map_or(NONE, |n| n.0);
        c.slice_end = match next {
            None => NEVER,
            Some(_) if alone => now + 10 * self.cfg.tslice_ns,
            Some(_) => now + self.cfg.tslice_ns,
        };
        c.kicked = false;
        let slow = alone && long == Patch::AsMeant && c.queue.is_empty();
        self.refresh(cpu);
        self.arm_tick(now, cpu, slow);
        self.rearm(cpu);
    }

    /// Finds a queue for a preempted entity that was told to go elsewhere. Only 4.2 treats this as a wake-up and boosts
    /// it.
    fn migrate(&mut self, now: Ns, p: EntId) {
        let here = self.ents[p.index()].cpu;
        let to = self.pick(p, true);
        self.moved(p, to);
        if !self.modern() {
            self.boost(p);
        }
        self.insert(now, p, to);
        self.tickle(here, to, p);
    }

    /// Brings the CPU time of the CPU's current entity up to `now`. Credit is burnt when the
    /// scheduler runs, not here.
    #[inline]
    pub fn charge(&mut self, now: Ns, cpu: CpuId) {
        let c = &mut self.cpus[cpu.index()];
        let ran = now.saturating_sub(core::mem::replace(&mut c.charged_to, now));
        if c.curr != NONE && ran > 0 {
            let ent = &mut self.ents[c.curr as usize];
            ent.stats.exec_ns += ran;
            ent.seen.run_ns += ran;
            ent.run_ns += ran;
        }
    }
}
