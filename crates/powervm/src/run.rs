//! Waking and scheduling.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId, LeaveReason, Note};

use super::{NONE, Pool, State, VpState};

impl Pool {
    /// Makes a blocked entity runnable and returns the CPU that it waits for; `None` if it was not blocked (or has
    /// exited).
    ///
    /// If its virtual processor has a core, the entity runs there at once. If not and other threads of it wait, the
    /// entity waits with them. If it is the first to wake up, the virtual processor takes an idle core or, if it has
    /// entitlement left, one that runs on spare time.
    pub fn wake(&mut self, now: Ns, e: EntId) -> Option<CpuId> {
        let ent = &mut self.ents[e.index()];
        if ent.state != State::Blocked {
            return None;
        }
        ent.state = State::Ready;
        ent.queued_at = now;
        let (v, lane) = (ent.vp, ent.lane);
        let vp = &mut self.vps[v as usize];
        vp.runnable += 1;
        let (place, core) = (vp.place, vp.core);
        match place {
            VpState::On => {
                let cpu = core * self.threads + lane;
                self.moved(e, CpuId(cpu));
                if !self.cores[core as usize].leaving {
                    self.kick(cpu);
                }
            }
            VpState::Ready | VpState::Spare | VpState::Parked => {}
            VpState::Away => {
                // One that wakes up as the window begins has been able to run since then.
                vp.steady = now + self.cfg.window_ns == self.window_end;
                self.line_up(now, v);
                self.seek(now, v);
                self.give_up_cores(now);
                self.rearm(CpuId(0));
            }
        }
        Some(self.ents[e.index()].cpu)
    }

    /// A virtual processor without a core starts to wait, in the line for its remaining share.
    pub(super) fn line_up(&mut self, now: Ns, v: u32) {
        let vp = &mut self.vps[v as usize];
        let capped = self.parts[usize::from(vp.partition)].weight == 0;
        if vp.left > 0 {
            vp.place = VpState::Ready;
            vp.seq = self.seq;
            self.seq += 1;
            self.ready.insert((vp.seq, v));
            if vp.steady {
                self.urgent.insert((self.window_end.saturating_sub(vp.left), v));
            }
        } else if capped {
            vp.place = VpState::Parked;
            self.counters.parks += 1;
            for e in self.members(v) {
                if self.ents[e as usize].state == State::Ready {
                    self.notes.push_back(Note::Parked { ent: EntId(e) });
                }
            }
        } else {
            vp.place = VpState::Spare;
            self.spare_wait(v);
        }
        debug_assert!(self.window_end + self.cfg.window_ns > now, "the window is long over");
    }

    /// Removes a waiting virtual processor from its line.
    pub(super) fn step_out(&mut self, v: u32) {
        let vp = &mut self.vps[v as usize];
        match vp.place {
            VpState::Ready => {
                self.ready.remove(&(vp.seq, v));
                if core::mem::take(&mut vp.rushed) {
                    self.rush.retain(|&o| o != v);
                } else if vp.steady {
                    self.urgent.remove(&(self.window_end.saturating_sub(vp.left), v));
                }
            }
            VpState::Spare => self.spare_unwait(v),
            VpState::Parked | VpState::Away | VpState::On => {}
        }
    }

    /// Finds a core for a virtual processor that just lined up: an idle one (its last, then one near it), else one that
    /// runs on spare time, which then has to leave.
    fn seek(&mut self, now: Ns, v: u32) {
        let (VpState::Ready | VpState::Spare) = self.vps[v as usize].place else { return };
        let last = self.vps[v as usize].core;
        let n = self.cores.len() as u32;
        let per_llc = self.cfg.topology.cores_per_llc;
        let low = last / per_llc * per_llc;
        let near = self.idle.find_from(None, last, low, low + per_llc);
        if let Some(core) = near.or_else(|| self.idle.find_from(None, last, 0, n)) {
            return self.dispatch(now, core.0, v);
        }
        if self.vps[v as usize].place == VpState::Ready
            && let Some(core) = self.spare.find_from(None, last, 0, n)
        {
            self.take_core(core.0);
        }
    }

    /// Asks the threads of a core to leave it.
    pub(super) fn take_core(&mut self, core: u32) {
        let c = &mut self.cores[core as usize];
        if c.leaving {
            return;
        }
        c.leaving = true;
        self.spare.remove(CpuId(core));
        let first = core * self.threads;
        let busy = |cpu: &u32| self.cpus[*cpu as usize].curr != NONE;
        let cpus: Vec<u32> = (first..first + self.threads).filter(busy).collect();
        if cpus.is_empty() {
            // No thread has started there yet: one CPU has to release the core.
            self.kick(first);
        }
        cpus.into_iter().for_each(|cpu| self.kick(cpu));
        self.rearm(CpuId(first));
    }

    /// Gives a free core to a waiting virtual processor.
    pub(super) fn dispatch(&mut self, now: Ns, core: u32, v: u32) {
        self.stop_paying(now, v);
        let spare = self.vps[v as usize].place == VpState::Spare;
        let part = usize::from(self.vps[v as usize].partition);
        if spare {
            self.spare_start(part);
        }
        self.step_out(v);
        self.idle.remove(CpuId(core));
        if spare {
            self.spare.insert(CpuId(core));
        }
        self.counters.dispatches += 1;
        self.counters.spare_dispatches += u64::from(spare);
        let vp = &mut self.vps[v as usize];
        self.counters.migrations += u64::from(vp.core != core);
        vp.place = VpState::On;
        vp.core = core;
        let c = &mut self.cores[core as usize];
        (c.vp, c.leaving, c.spare, c.charged_to) = (v, false, spare, now);
        c.used_up_at = now + self.vps[v as usize].left;
        for e in self.members(v) {
            let ent = &self.ents[e as usize];
            if ent.state == State::Ready {
                let cpu = core * self.threads + ent.lane;
                self.moved(EntId(e), CpuId(cpu));
                self.kick(cpu);
            }
        }
        self.rearm(CpuId(core * self.threads));
    }

    /// Takes the current entity off `cpu`, as `leave` says (ignored if the CPU was idle), and returns the entity that
    /// runs from now on; `None`: idle.
    ///
    /// Call it when the current entity blocks, yields or exits, and to serve a [`Note::Kick`]. A CPU idles while other
    /// threads of its core have still to leave. A yield gives up the core only if the virtual processor has no other
    /// threads on it.
    pub fn schedule(&mut self, now: Ns, cpu: CpuId, leave: LeaveReason) -> Option<EntId> {
        let core = cpu.0 / self.threads;
        self.charge(now, cpu);
        let prev = self.current(cpu);
        if let Some(p) = prev
            && !self.put_aside(now, cpu, p, leave)
        {
            self.cpus[cpu.index()].kicked = false;
            return prev;
        }
        // Its own kicks are served in this call.
        self.cpus[cpu.index()].kicked = true;
        let c = &self.cores[core as usize];
        let giver = c.vp;
        let done = c.leaving || c.vp != NONE && self.vps[c.vp as usize].runnable == 0;
        if done && c.running == 0 {
            self.release(now, core);
        }
        if self.cores[core as usize].vp == NONE {
            let heir = core::mem::replace(&mut self.cores[core as usize].heir, NONE);
            match self.next_after(now, giver, heir) {
                Some((v, true)) => self.dispatch_paid(now, core, v, giver),
                Some((v, false)) => self.dispatch(now, core, v),
                None => self.idle.insert(CpuId(core)),
            }
        }
        let next = self.lane_of(cpu);
        if let Some(n) = next {
            let c = &mut self.cores[core as usize];
            c.running += 1;
            self.cpus[cpu.index()].curr = n.0;
            let ent = &mut self.ents[n.index()];
            ent.state = State::Running;
            ent.cpu = cpu;
            ent.stats.wait_ns += now - ent.queued_at;
            ent.stats.switches_in += u64::from(next != prev);
        }
        if let Some(p) = prev
            && next != prev
        {
            let stats = &mut self.ents[p.index()].stats;
            stats.preempted += u64::from(leave == LeaveReason::Preempted);
        }
        self.cpus[cpu.index()].kicked = false;
        self.give_up_cores(now);
        self.rearm(CpuId(0));
        next
    }

    /// Takes the current entity off its CPU; false if it goes on.
    fn put_aside(&mut self, now: Ns, cpu: CpuId, p: EntId, leave: LeaveReason) -> bool {
        let core = (cpu.0 / self.threads) as usize;
        let v = self.ents[p.index()].vp as usize;
        let state = match leave {
            LeaveReason::Blocked => State::Blocked,
            LeaveReason::Exit => State::Dead,
            LeaveReason::Yield if self.threads == 1 => {
                // It lets others go first, and so gives up its claim to a share in this window.
                self.vps[v].steady = false;
                self.cores[core].leaving = true;
                self.spare.remove(CpuId(core as u32));
                State::Ready
            }
            LeaveReason::Preempted | LeaveReason::Yield if self.cores[core].leaving => State::Ready,
            LeaveReason::Preempted | LeaveReason::Yield => return false,
        };
        let ent = &mut self.ents[p.index()];
        ent.state = state;
        ent.queued_at = now;
        if state != State::Ready {
            let vp = &mut self.vps[v];
            vp.runnable -= 1;
            vp.steady &= vp.runnable > 0;
        }
        self.cpus[cpu.index()].curr = NONE;
        self.cores[core].running -= 1;
        self.stop_conferring(p);
        true
    }

    /// Frees a core; the virtual processor that had it waits, or is away.
    fn release(&mut self, now: Ns, core: u32) {
        self.charge_core(now, core);
        let c = &mut self.cores[core as usize];
        let v = core::mem::replace(&mut c.vp, NONE);
        c.payer = NONE;
        let (asked, spare) = (c.leaving, c.spare);
        (c.leaving, c.spare) = (false, false);
        self.spare.remove(CpuId(core));
        let vp = &mut self.vps[v as usize];
        let part = usize::from(vp.partition);
        vp.place = VpState::Away;
        if vp.runnable == 0 {
            self.counters.cedes += 1;
        } else {
            self.counters.preemptions += u64::from(asked);
            self.line_up(now, v);
        }
        // Last: a partition that goes on wanting spare time keeps its pass.
        if spare {
            self.spare_stop(part);
        }
        self.rearm(CpuId(core * self.threads));
    }

    /// The virtual processor that gets the next free core.
    pub(super) fn next(&self, now: Ns) -> Option<u32> {
        let ready = || self.ready.first().map(|&(_, v)| v);
        let spare = || self.spare_next(now).and_then(|(_, part)| self.parts[part].waiting.front());
        self.rush.front().copied().or_else(ready).or_else(|| spare().copied())
    }

    /// The thread that a CPU should run now.
    fn lane_of(&self, cpu: CpuId) -> Option<EntId> {
        let c = &self.cores[(cpu.0 / self.threads) as usize];
        if c.vp == NONE || c.leaving {
            return None;
        }
        let e = self.lanes[(c.vp * self.threads + cpu.0 % self.threads) as usize];
        (e != NONE && self.ents[e as usize].state == State::Ready).then_some(EntId(e))
    }

    fn moved(&mut self, e: EntId, to: CpuId) {
        let ent = &mut self.ents[e.index()];
        let from = core::mem::replace(&mut ent.cpu, to);
        if from != to {
            ent.stats.migrations += 1;
            self.notes.push_back(Note::Moved { ent: e, from, to });
        }
    }

    /// Brings the CPU time of the current entity of `cpu`, and the use of its core, up to `now`.
    #[inline]
    pub fn charge(&mut self, now: Ns, cpu: CpuId) {
        let c = &mut self.cpus[cpu.index()];
        let ran = now.saturating_sub(core::mem::replace(&mut c.charged_to, now));
        if c.curr != NONE {
            self.ents[c.curr as usize].stats.exec_ns += ran;
        }
        self.charge_core(now, cpu.0 / self.threads);
    }

    /// Charges the virtual processor on a core: its share first, then spare time, with however many threads it runs.
    pub(super) fn charge_core(&mut self, now: Ns, core: u32) {
        let c = &mut self.cores[core as usize];
        let used = now.saturating_sub(core::mem::replace(&mut c.charged_to, now));
        if c.vp == NONE || used == 0 {
            return;
        }
        let pays = c.pays();
        let vp = &mut self.vps[pays as usize];
        let own = used.min(vp.left);
        vp.left -= own;
        let part = usize::from(vp.partition);
        let over = vp.left == 0 && pays != c.vp;
        if over {
            c.payer = NONE;
        }
        if used > own {
            self.spend(part, used - own);
        }
        if over {
            // It waits, and has used up its share by that of another.
            self.step_out(pays);
            self.line_up(now, pays);
        }
    }
}
