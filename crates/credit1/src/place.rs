//! Choice of the best CPU for an entity: an idle one with idle neighbours.

use vcoop_sched::{CpuId, CpuSet, EntId};

use super::{Credit1, NONE};

impl Credit1 {
    /// The best CPU for `e`: its current one, unless another idle CPU has more idle siblings (in the same socket) or a
    /// socket with twice as many idle CPUs. `commit` advances the position from which equal CPUs take turns.
    pub(super) fn pick(&mut self, e: EntId, commit: bool) -> CpuId {
        let home = self.ents[e.index()].cpu;
        let mask = self.usable_cpus(e);
        let n = self.cpus.len() as u32;
        let cycle = |set: &CpuSet, after: u32| set.find_from(None, after + 1, 0, n);
        let mut cpu = if mask.contains(home) { home } else { cycle(&mask, home.0).unwrap_or(home) };
        let mut idlers = self.idlers;
        let c = &self.cpus[cpu.index()];
        let mine = c.queue.is_empty() && (c.curr == NONE || c.curr == e.0);
        // 4.2 takes the CPU itself as idle, whatever runs there.
        if !self.modern() || cpu == home && mine {
            idlers.insert(cpu);
        }
        let mut open = mask.and(&idlers);
        if self.modern()
            && !open.contains(cpu)
            && let Some(idle) = cycle(&open, cpu.0)
        {
            cpu = idle;
        }
        open.remove(cpu);
        let mut mark = None;
        while let Some(next) = cycle(&open, cpu.0) {
            let t = &self.cfg.topology;
            let near = t.llc(cpu.0) == t.llc(next.0);
            let (group, factor) = if near { (&self.cores, 1) } else { (&self.sockets, 2) };
            let of = |c: CpuId| if near { t.core(c.0) } else { t.llc(c.0) } as usize;
            let here = idlers.and(&group[of(cpu)]).len();
            let there_set = idlers.and(&group[of(next)]);
            let there = there_set.len();
            let better =
                if self.cfg.smt_power_savings { here > there } else { here * factor < there };
            if better {
                let bias = self.cpus[next.index()].idle_bias;
                cpu = cycle(&there_set.and(&open), bias).unwrap_or(next);
                mark = Some((next, cpu));
                open = open.without(&self.cores[self.cfg.topology.core(cpu.0) as usize]);
            } else {
                open = open.without(&there_set);
            }
        }
        if let (true, Some((next, cpu))) = (commit, mark) {
            self.cpus[next.index()].idle_bias = cpu.0;
        }
        cpu
    }

    /// The CPUs that an entity may use and, under the patch that keeps dom0 vCPUs apart, that have no other dom0 vCPU;
    /// all that it may use if none are left.
    pub(super) fn usable_cpus(&self, e: EntId) -> CpuSet {
        // If it may use all CPUs, its mask is not read: on a large host it is cold.
        let mask = if self.is_free(e) { self.all } else { self.masks[e.index()] };
        let ent = &self.ents[e.index()];
        if !(ent.dom0 && self.cfg.patches.spread_dom0) {
            return mask;
        }
        let mut others = self.dom0_on;
        let here = self.is_running(e) || ent.state == super::State::Queued;
        if here && self.cpus[ent.cpu.index()].dom0 == 1 {
            others.remove(ent.cpu);
        }
        let free = mask.without(&others);
        if free.is_empty() { mask } else { free }
    }
}
