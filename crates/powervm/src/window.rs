//! Timers of a pool: the end of a window, the end of a share, and the last moment to run a waiting virtual processor.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId, Note};

use super::{NEVER, NONE, Pool, State, VpState};

impl Pool {
    /// When [`Pool::on_deadline`] is due on `cpu`. [`Note::DeadlineChanged`] reports changes.
    #[inline]
    pub fn deadline(&self, cpu: CpuId) -> Option<Ns> {
        let at = self.due(cpu);
        (at != NEVER).then_some(at)
    }

    /// The timers of the window are on CPU 0; those of a core on its first thread.
    fn due(&self, cpu: CpuId) -> Ns {
        let mut at = NEVER;
        if cpu.0 == 0 {
            let urgent = self.urgent.first().map_or(NEVER, |&(at, _)| at);
            at = self.window_end.min(urgent);
        }
        let c = &self.cores[(cpu.0 / self.threads) as usize];
        if cpu.0.is_multiple_of(self.threads) && c.vp != NONE && !c.leaving && !c.spare {
            at = at.min(c.used_up_at);
        }
        at
    }

    /// Tells the driver of a changed deadline.
    pub(super) fn rearm(&mut self, cpu: CpuId) {
        let due = self.due(cpu);
        let c = &mut self.cpus[cpu.index()];
        if c.armed != due {
            c.armed = due;
            self.notes.push_back(Note::DeadlineChanged { cpu });
        }
    }

    /// Call it on `cpu` at [`Pool::deadline`]. It has no effect before that.
    pub fn on_deadline(&mut self, now: Ns, cpu: CpuId) {
        self.charge(now, cpu);
        if self.window_end <= now {
            self.refill(now);
        }
        if cpu.0 == 0 {
            self.rush_due(now);
        }
        let core = cpu.0 / self.threads;
        self.used_up(now, core);
        self.give_up_cores(now);
        self.rearm(CpuId(core * self.threads));
        self.rearm(CpuId(0));
    }

    /// A virtual processor that has used up its share on its core goes on with spare time, if there is any for it.
    fn used_up(&mut self, now: Ns, core: u32) {
        let c = &self.cores[core as usize];
        if c.vp == NONE || c.leaving || c.spare || self.vps[c.pays() as usize].left > 0 {
            return;
        }
        let part = usize::from(self.vps[c.vp as usize].partition);
        if self.parts[part].weight == 0 || !self.ready.is_empty() {
            return self.take_core(core);
        }
        self.spare_start(part);
        self.cores[core as usize].spare = true;
        self.spare.insert(CpuId(core));
        if self.spare_yields(part, now) {
            self.take_core(core);
        }
    }

    /// A waiting virtual processor that would otherwise miss its share takes a core: one on spare time, else that of
    /// one that is not steady, else that of the steady one that can wait longest.
    fn rush_due(&mut self, now: Ns) {
        while let Some(&(at, v)) = self.urgent.first() {
            if at > now {
                return;
            }
            self.urgent.pop_first();
            self.vps[v as usize].rushed = true;
            self.rush.push_back(v);
            if let Some(core) = self.victim(now) {
                self.counters.rushes += 1;
                self.take_core(core);
            }
        }
    }

    fn victim(&mut self, now: Ns) -> Option<u32> {
        let mut best: Option<((u8, Ns), u32)> = None;
        for core in 0..self.cores.len() as u32 {
            self.charge_core(now, core);
            let c = &self.cores[core as usize];
            if c.vp == NONE || c.leaving {
                continue;
            }
            let vp = &self.vps[c.vp as usize];
            let slack = self.window_end.saturating_sub(now).saturating_sub(vp.left);
            let rank = match (c.spare || vp.left == 0, vp.steady) {
                (true, _) => 2,
                (false, false) => 1,
                (false, true) if slack == 0 => continue,
                (false, true) => 0,
            };
            if best.is_none_or(|(key, _)| (rank, slack) > key) {
                best = Some(((rank, slack), core));
            }
        }
        best.map(|(_, core)| core)
    }

    /// A window begins: every virtual processor gets its full share again; what was left is lost.
    fn refill(&mut self, now: Ns) {
        while self.window_end <= now {
            self.window_end += self.cfg.window_ns;
        }
        for core in 0..self.cores.len() {
            self.charge_core(now, core as u32);
            self.cores[core].payer = NONE;
            if core::mem::take(&mut self.cores[core].spare) {
                let part = usize::from(self.vps[self.cores[core].vp as usize].partition);
                self.spare_stop(part);
            }
        }
        self.spare = vcoop_sched::CpuSet::EMPTY;
        self.urgent.clear();
        self.rush.clear();
        // Those with entitlement left stay ahead of those without; each group keeps its order.
        let waits =
            |v: &u32| matches!(self.vps[*v as usize].place, VpState::Spare | VpState::Parked);
        let mut others: Vec<u32> = (0..self.vps.len() as u32).filter(waits).collect();
        others.sort_by_key(|&v| (self.waits_since(v), v));
        for part in 0..self.parts.len() {
            while let Some(&v) = self.parts[part].waiting.front() {
                self.spare_unwait(v);
            }
        }
        for vp in &mut self.vps {
            vp.left = vp.share;
            vp.rushed = false;
            vp.steady = vp.runnable > 0;
            if vp.place == VpState::On {
                self.cores[vp.core as usize].used_up_at = now + vp.left;
            }
        }
        for &(_, v) in &self.ready {
            self.urgent.insert((self.window_end - self.vps[v as usize].left, v));
        }
        for v in others {
            if self.vps[v as usize].place == VpState::Parked {
                for e in self.members(v) {
                    if self.ents[e as usize].state == State::Ready {
                        self.notes.push_back(Note::Unparked { ent: EntId(e) });
                    }
                }
            }
            self.line_up(now, v);
        }
        while let (Some(core), Some(&(_, v))) = (self.idle.first(), self.ready.first()) {
            self.dispatch(now, core.0, v);
        }
        for core in 0..self.cores.len() as u32 {
            self.rearm(CpuId(core * self.threads));
        }
    }

    /// Since when the first thread of a waiting virtual processor has waited.
    fn waits_since(&self, v: u32) -> Ns {
        let ready = |e: &u32| self.ents[*e as usize].state == State::Ready;
        let since = self.members(v).filter(ready).map(|e| self.ents[e as usize].queued_at);
        since.min().unwrap_or(NEVER)
    }
}
