//! Timers of a pCPU: end of slice or ratelimit, credit tick, and on one pCPU the accounting.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId, Note};

use super::{CREDIT_NS, Decision, Pri};
use super::{Credit1, MASTER, NEVER, NONE};
use crate::config::{Burn, Patch};

impl Credit1 {
    /// When [`Credit1::on_deadline`] is due on `cpu`. [`Note::DeadlineChanged`] reports changes.
    #[inline]
    pub fn deadline(&self, cpu: CpuId) -> Option<Ns> {
        let at = self.due(cpu);
        (at != NEVER).then_some(at)
    }

    fn due(&self, cpu: CpuId) -> Ns {
        let c = &self.cpus[cpu.index()];
        let master = if cpu == MASTER { self.master_at } else { NEVER };
        c.slice_end.min(c.tick_at).min(master)
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

    /// Call it on `cpu` at [`Credit1::deadline`]. It has no effect before that.
    pub fn on_deadline(&mut self, now: Ns, cpu: CpuId) {
        self.charge(now, cpu);
        if self.cpus[cpu.index()].tick_at <= now {
            self.credit_tick(now, cpu);
        }
        if cpu == MASTER && self.master_at <= now {
            self.account(now);
            self.master_at = now + self.cfg.tslice_ns;
        }
        let c = &mut self.cpus[cpu.index()];
        if c.slice_end <= now {
            c.slice_end = NEVER;
            self.kick(cpu);
        }
        self.rearm(cpu);
    }

    /// The 10 ms tick: the running entity loses its boost, joins the accounting, and is told to move if it would run
    /// better elsewhere.
    fn credit_tick(&mut self, now: Ns, cpu: CpuId) {
        let curr = self.cpus[cpu.index()].curr;
        if curr != NONE {
            let e = EntId(curr);
            let ent = &self.ents[e.index()];
            let keeps = ent.dom0 && self.cfg.patches.keep_dom0_boost != Patch::Off;
            let active = ent.active;
            if ent.pri == Pri::Boost && !keeps {
                self.set_pri(e, Pri::Under);
            }
            match self.cfg.burn {
                Burn::Exact => self.burn(now, cpu),
                Burn::TickSampled => {
                    let credits = (self.cfg.tick_ns() / CREDIT_NS) as i64;
                    self.spend(e, credits);
                }
            }
            if !active {
                self.activate(e);
            } else if self.pick(e, false) != cpu {
                self.ents[e.index()].migrating = true;
                self.note(Decision::Migrate, e, cpu);
                self.kick(cpu);
            }
        }
        self.sort(cpu);
        let tick = self.cfg.tick_ns();
        let c = &mut self.cpus[cpu.index()];
        c.tick_at = if curr == NONE {
            NEVER
        } else if c.slow_tick {
            now + 10 * tick
        } else {
            now + tick
        };
    }

    /// Starts the tick of a CPU that has become busy, in phase with all CPUs; stops the tick of one that has become
    /// idle.
    pub(super) fn arm_tick(&mut self, now: Ns, cpu: CpuId, slow: bool) {
        let tick = self.cfg.tick_ns();
        let c = &mut self.cpus[cpu.index()];
        if c.curr == NONE {
            c.tick_at = NEVER;
        } else if c.tick_at == NEVER || slow && !c.slow_tick {
            let period = if slow { 10 * tick } else { tick };
            c.tick_at = now + period - now % period;
        }
        c.slow_tick = slow;
    }

    /// An entity joins a CPU whose tick was slowed down for a vCPU alone.
    pub(super) fn advance_tick(&mut self, now: Ns, cpu: CpuId) {
        let tick = self.cfg.tick_ns();
        let c = &mut self.cpus[cpu.index()];
        c.slow_tick = false;
        if c.tick_at != NEVER {
            c.tick_at = c.tick_at.min(now + tick - now % tick);
        }
        self.rearm(cpu);
    }
}
