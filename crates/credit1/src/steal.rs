//! Load balancing: a CPU whose next entity has no credit looks for a better one elsewhere.

use vcoop_sched::config::Ns;
use vcoop_sched::{CpuId, EntId};

use super::{Credit1, Decision, Pri, State};
use crate::config::Patch;

impl Credit1 {
    /// Looks for an entity more urgent than `pri` on other CPUs and takes the first one found.
    pub(super) fn balance(&mut self, now: Ns, cpu: CpuId, pri: Pri) -> Option<EntId> {
        let every = self.cfg.load_balance_ratelimit_ns;
        if every > 0 {
            let last = &mut self.cpus[cpu.index()].balanced;
            if now < *last + every {
                return None;
            }
            *last = now;
        }
        if self.peers(pri).is_empty() {
            return None;
        }
        if self.modern() {
            self.balance_by_node(now, cpu, pri)
        } else {
            let (n, from) = (self.cpus.len() as u32, cpu.0 + 1);
            let found = self.search(now, cpu, pri, from, n);
            found.or_else(|| self.search(now, cpu, pri, 0, from))
        }
    }

    /// CPUs where an entity waits that may be more urgent than `pri`.
    fn peers(&self, pri: Pri) -> &vcoop_sched::CpuSet {
        if pri == Pri::Idle { &self.crowded } else { &self.urgent }
    }

    /// Today: node by node, beginning with its own, each from where the last search there ended.
    fn balance_by_node(&mut self, now: Ns, cpu: CpuId, pri: Pri) -> Option<EntId> {
        let t = self.cfg.topology;
        let per = t.threads_per_core * t.cores_per_llc;
        let own = t.llc(cpu.0);
        let mut step = 0;
        while step < t.llcs {
            let at = (own + step) % t.llcs;
            // Skips to the next node where an entity waits.
            let next = self.peers(pri).find_from(None, at * per, 0, per * t.llcs)?;
            step += (t.llc(next.0) + t.llcs - at) % t.llcs;
            if step >= t.llcs {
                return None;
            }
            let node = (own + step) % t.llcs;
            let (lo, hi) = (node * per, (node + 1) * per);
            let from = (self.bias[node as usize] + 1).clamp(lo, hi);
            let found = self.search(now, cpu, pri, from, hi);
            let found = found.or_else(|| self.search(now, cpu, pri, lo, from));
            if found.is_some() {
                return found;
            }
            step += 1;
        }
        None
    }

    /// Searches the CPUs `lo..hi`.
    fn search(&mut self, now: Ns, cpu: CpuId, pri: Pri, lo: u32, hi: u32) -> Option<EntId> {
        let mut at = lo;
        while let Some(peer) = self.peers(pri).find(None, at, hi) {
            if peer != cpu
                && let Some(e) = self.steal(now, peer, cpu, pri)
            {
                self.bias[self.cfg.topology.llc(peer.0) as usize] = peer.0;
                return Some(e);
            }
            at = peer.0 + 1;
        }
        None
    }

    /// Takes the first entity of a peer's queue that is more urgent than `pri` and may come.
    fn steal(&mut self, now: Ns, peer: CpuId, cpu: CpuId, pri: Pri) -> Option<EntId> {
        let queue = &self.cpus[peer.index()].queue;
        let mut found = None;
        for (at, &e) in queue.iter().enumerate() {
            if self.ents[e as usize].pri <= pri {
                break;
            }
            if self.may_come(now, EntId(e), cpu) {
                found = Some(at);
                break;
            }
        }
        let e = self.take(peer, found?)?;
        self.counters.steals += 1;
        self.note(Decision::Steal, e, cpu);
        self.moved(e, cpu);
        Some(e)
    }

    fn may_come(&self, now: Ns, e: EntId, cpu: CpuId) -> bool {
        let ent = &self.ents[e.index()];
        if !self.may_use(e, cpu) {
            return false;
        }
        let patches = &self.cfg.patches;
        if patches.spread_dom0 && ent.dom0 && self.dom0_on.contains(cpu) {
            return false;
        }
        let hot = ent.stats.switches_in > 0 && now < ent.last_ran + self.cfg.migration_delay_ns;
        let excused = match patches.migrate_if_blocked {
            Patch::Off => false,
            // The test of the posted line. An entity on a queue is runnable, so it never holds.
            Patch::AsPosted => matches!(ent.state, State::Parked | State::Dead),
            Patch::AsMeant => ent.woke,
        };
        !hot || excused
    }
}
