//! Choice of the CPUs that are told of a waiting entity.

use vcoop_sched::{CpuId, CpuSet, EntId};

use super::Pri;
use super::{Credit1, Decision, Ent, NONE};

impl Credit1 {
    /// `e` has joined the queue of `cpu`: tells that CPU, or idle ones, or none. `here` is the CPU that executes this.
    pub(super) fn tickle(&mut self, here: CpuId, cpu: CpuId, e: EntId) {
        if self.modern() { self.tickle_modern(here, cpu, e) } else { self.tickle_4_2(here, cpu, e) }
    }

    fn pri_on(&self, cpu: CpuId) -> Pri {
        let c = self.cpus[cpu.index()].curr;
        if c == NONE { Pri::Idle } else { self.ents[c as usize].pri }
    }

    /// 4.2: tells the CPU if `e` is more urgent than what runs, and idle CPUs if anything runs there.
    fn tickle_4_2(&mut self, here: CpuId, cpu: CpuId, e: EntId) {
        let curr = self.pri_on(cpu);
        if self.ents[e.index()].pri > curr {
            self.challenge(cpu, e);
            self.poke(cpu, e);
        }
        if curr > Pri::Idle {
            let idlers = self.idlers_for(e);
            self.tickle_idlers(here, &idlers, e);
        }
    }

    /// Today: tells an idle CPU if there is one, and leaves what runs alone; otherwise the CPU if `e` is more urgent.
    /// The running entity stays even if an idle CPU would suit it: Xen's check for that tests the affinity of `e`, for
    /// which there is no idle CPU at this point.
    fn tickle_modern(&mut self, here: CpuId, cpu: CpuId, e: EntId) {
        let ent = &self.ents[e.index()];
        let urgent = ent.pri > self.pri_on(cpu);
        if ent.allowed == 1 && self.idlers.contains(cpu) {
            return self.poke(cpu, e);
        }
        let curr = self.cpus[cpu.index()].curr;
        if curr == NONE {
            return self.poke(cpu, e);
        }
        let suitable = self.idlers_for(e);
        if !suitable.is_empty() {
            return self.tickle_idlers(here, &suitable, e);
        }
        if !urgent {
            return;
        }
        self.challenge(cpu, e);
        self.poke(cpu, e);
    }

    /// Counts the wake-up of a more urgent entity as a challenge of the one that runs on its CPU.
    fn challenge(&mut self, cpu: CpuId, e: EntId) {
        let Ent { woke, brief, .. } = self.ents[e.index()];
        let curr = self.cpus[cpu.index()].curr;
        if curr != NONE && woke {
            let seen = &mut self.ents[curr as usize].seen;
            seen.challenges += 1;
            seen.short_challenges += u64::from(brief);
        }
    }

    fn tickle_idlers(&mut self, here: CpuId, idlers: &CpuSet, e: EntId) {
        if !self.cfg.tickle_one_idle {
            for cpu in idlers {
                self.poke(cpu, e);
            }
            return;
        }
        let n = self.cpus.len() as u32;
        let last = self.cpus[here.index()].last_tickled;
        if let Some(cpu) = idlers.find_from(None, last + 1, 0, n) {
            self.cpus[here.index()].last_tickled = cpu.0;
            self.poke(cpu, e);
        }
    }

    fn poke(&mut self, cpu: CpuId, e: EntId) {
        self.counters.tickles += 1;
        let idle = self.cpus[cpu.index()].curr == NONE;
        self.counters.idle_tickles += u64::from(idle);
        self.note(if idle { Decision::TickleIdler } else { Decision::Tickle }, e, cpu);
        if self.modern() {
            // It is told once: the next wake-up chooses another one.
            self.idlers.remove(cpu);
        }
        self.kick(cpu);
    }
}
