//! Placement of waking entities.
//!
//! Fair entities follow the kernel's `select_task_rq_fair`: choose between the CPU they slept on
//! and the waker's, then look for an idle CPU that shares its cache. The busier that LLC was when it
//! was last balanced, the fewer CPUs the kernel looks at (`SIS_UTIL`). Here idle CPUs are bits, and
//! a look costs a few instructions for every 64 CPUs.

use super::Level;
use crate::config::{ClassId, Ns};
use crate::heap::NONE;
use crate::{CpuId, CpuSet, EntId};

/// How often the count of changed wakees is halved.
const FLIPS_DECAY: Ns = 1_000_000_000;

impl Level {
    pub(super) fn place(&mut self, now: Ns, e: EntId, waker: Option<CpuId>, sync: bool) -> CpuId {
        let ent = &self.ents[e.index()];
        let (prev, fresh) = (ent.cpu, ent.fresh);
        if self.is_single() {
            return prev;
        }
        let by = waker.and_then(|w| self.current(w));
        if let Some(by) = by {
            self.record_wakee(now, by, e);
        }
        let ent = &self.ents[e.index()];
        if ent.allowed == 1 {
            return self.open[e.index()].first().unwrap_or(prev);
        }
        match ent.class {
            ClassId::Fair => {}
            ClassId::Rt => return self.place_rt(e, prev, waker),
            ClassId::Dl => return self.place_dl(e, prev, waker),
        }
        if fresh {
            return self.idlest(e, prev);
        }
        let mut target = prev;
        if let Some(w) = waker
            && w != prev
            && self.may_use(e, w)
            && !by.is_some_and(|by| self.wakes_wide(by, e))
        {
            target = self.wake_affine(e, w, prev, sync);
        }
        let to = self.idle_sibling(e, prev, target);
        if to != prev {
            self.ents[e.index()].recent = prev;
        }
        to
    }

    /// Counts how often an entity wakes another one than before: that distinguishes a dispatcher of many from one of a
    /// pair.
    fn record_wakee(&mut self, now: Ns, by: EntId, e: EntId) {
        let ent = &mut self.ents[by.index()];
        if now > ent.flips_at + FLIPS_DECAY {
            ent.flips /= 2;
            ent.flips_at = now;
        }
        if ent.wakee != e.0 {
            ent.wakee = e.0;
            ent.flips += 1;
        }
    }

    /// Whether waker and wakee belong to a fan-out wider than a cache: pulling its workers to the
    /// dispatcher would only pile them up.
    fn wakes_wide(&self, by: EntId, e: EntId) -> bool {
        let (a, b) = (self.ents[by.index()].flips, self.ents[e.index()].flips);
        let (most, least) = (a.max(b), a.min(b));
        least >= self.llc_cpus && most >= least * self.llc_cpus
    }

    /// The waker's CPU or the previous one: the one that is idle or, if the waker is about to sleep, has no other
    /// entity; else the one with less average load if the entity were there (`wake_affine_weight`).
    fn wake_affine(&self, e: EntId, waker: CpuId, prev: CpuId, sync: bool) -> CpuId {
        let near = self.llc(waker) == self.llc(prev);
        let (waker_idle, prev_idle) = (self.is_idle(waker), self.is_idle(prev));
        if waker_idle && near {
            return if prev_idle { prev } else { waker };
        }
        if sync && self.nr_running(waker) == 1 {
            return waker;
        }
        if prev_idle {
            return prev;
        }
        let leaves = self.current(waker).filter(|&by| sync && self.class(by) == ClassId::Fair);
        let leaves = leaves.map_or(0, |by| self.fair.load_of(by));
        let Some(left) = self.fair.load(waker).checked_sub(leaves) else { return waker };
        let bias = 100 + u64::from(self.cfg.balance.imbalance_pct.saturating_sub(100)) / 2;
        // Asleep, it still counts where it ran.
        let own = self.fair.load_of(e);
        let here = (left + own) * 100;
        let there = self.fair.load(prev).saturating_sub(own) * bias + u64::from(sync);
        // Compared per capacity, without dividing.
        let (cap_here, cap_there) = (self.capacity(waker), self.capacity(prev));
        let less =
            u128::from(here) * u128::from(cap_there) < u128::from(there) * u128::from(cap_here);
        if less { waker } else { prev }
    }

    #[inline]
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.sets.idle.contains(cpu) && !self.is_away(cpu)
    }

    #[inline]
    fn is_away(&self, cpu: CpuId) -> bool {
        self.away.as_ref().is_some_and(|away| away.contains(cpu))
    }

    /// Whether a CPU is idle, or as good as idle for a fair entity that is not SCHED_IDLE.
    #[inline]
    fn is_free(&self, cpu: CpuId) -> bool {
        self.is_idle(cpu) || self.sets.only_idle.contains(cpu)
    }

    /// An idle CPU in the cache of `target`, else `target`.
    fn idle_sibling(&self, e: EntId, prev: CpuId, target: CpuId) -> CpuId {
        if self.is_free(target) && self.may_use(e, target) {
            return target;
        }
        let (lo, hi) = self.llc(target);
        let near = |c: CpuId| c != target && (lo..hi).contains(&c.0);
        if near(prev) && self.is_free(prev) && self.may_use(e, prev) {
            return prev;
        }
        let recent = self.ents[e.index()].recent;
        if near(recent) && self.is_free(recent) && self.may_use(e, recent) {
            return recent;
        }
        if let Some(cpu) = self.scan(e, prev, target, (lo, hi)) {
            return cpu;
        }
        if self.may_use(e, target) { target } else { self.fallback(e) }
    }

    /// Searches an idle CPU in the LLC of `target` (`select_idle_cpu`): for an idle core among all of its CPUs; else
    /// among the siblings of `prev` and as many CPUs as the LLC's utilisation allows. In a busy LLC among none.
    fn scan(&self, e: EntId, prev: CpuId, target: CpuId, (lo, hi): (u32, u32)) -> Option<CpuId> {
        let (mask, from) = (self.mask(e), target.0 + 1);
        let looks = self.idle_scan[(lo / self.llc_cpus) as usize];
        let t = self.topology();
        let smt = t.threads_per_core > 1;
        let has_idle_core = smt && self.sets.idle_cores.find(None, lo, hi).is_some();
        if smt && !has_idle_core && (lo..hi).contains(&prev.0) {
            let first = t.core(prev.0) * t.threads_per_core;
            let free = (first..first + t.threads_per_core).map(CpuId);
            let mut free = free.filter(|&cpu| self.is_free(cpu) && self.may_use(e, cpu));
            if let Some(cpu) = free.find(|&cpu| self.fits_core(e, cpu)) {
                return Some(cpu);
            }
        }
        if looks == 0 {
            return None;
        }
        let found = self.idle_in(e, from, lo, hi);
        let found = found.or_else(|| self.sets.only_idle.find_from(mask, from, lo, hi));
        found.filter(|&cpu| {
            has_idle_core || looks >= hi - lo || {
                // How many CPUs that it may use lie before this one, round the LLC.
                let count = |lo: u32, hi: u32| mask.map_or(hi - lo, |mask| mask.len_in(lo, hi));
                let from = if from < hi { from } else { lo };
                let before = match cpu.0 >= from {
                    true => count(from, cpu.0),
                    false => count(from, hi) + count(lo, cpu.0),
                };
                before < looks
            }
        })
    }

    /// An idle CPU of `lo..hi` for an entity, one on an idle core if there is one, searching upwards from `from`.
    #[inline]
    pub(super) fn idle_in(&self, e: EntId, from: u32, lo: u32, hi: u32) -> Option<CpuId> {
        let here;
        let mask = match &self.away {
            Some(away) if !away.is_empty() => {
                here = self.open[e.index()].without(away);
                Some(&here)
            }
            _ => self.mask(e),
        };
        if self.cfg.topology.threads_per_core > 1 {
            let cores = &self.sets.idle_cores;
            let open = self.open_cores.as_ref();
            let mut at = cores.find_from(open, from, lo, hi);
            // The entity may be confined to some of the core's threads, or to none.
            for _ in 0..8 {
                let Some(core) = at else { break };
                let end = core.0 + self.cfg.topology.threads_per_core;
                if let Some(cpu) = self.sets.idle.find(mask, core.0, end) {
                    return Some(cpu);
                }
                at = cores.find(open, end, hi);
            }
        }
        if self.core.is_some() {
            return self.idle_that_fits(e, from, lo, hi);
        }
        self.sets.idle.find_from(mask, from, lo, hi)
    }

    /// An idle CPU of `lo..hi` whose core runs entities that this one may run beside.
    #[cold]
    fn idle_that_fits(&self, e: EntId, from: u32, lo: u32, hi: u32) -> Option<CpuId> {
        let mut idle = (from..hi).chain(lo..from.min(hi)).map(CpuId).filter(|&c| self.is_idle(c));
        idle.find(|&cpu| self.may_use(e, cpu) && self.fits_core(e, cpu))
    }

    /// For an entity that cannot stay where it is: an idle CPU near, an idle CPU, or the first
    /// allowed one near or anywhere.
    pub(super) fn fallback(&self, e: EntId) -> CpuId {
        let cpu = self.ents[e.index()].cpu;
        let mask = &self.open[e.index()];
        let (lo, hi) = self.llc(cpu);
        let all = self.cpus.len() as u32;
        self.idle_in(e, cpu.0, lo, hi)
            .or_else(|| self.idle_in(e, cpu.0, 0, all))
            .or_else(|| self.least_loaded(mask, cpu, lo, hi))
            .or_else(|| self.least_loaded(mask, cpu, 0, all))
            .unwrap_or(cpu)
    }

    /// Where a new entity starts: an idle CPU, in the LLC that has most of them, or the least
    /// loaded. *O*(CPUs), once an entity.
    fn idlest(&self, e: EntId, home: CpuId) -> CpuId {
        let mask = &self.open[e.index()];
        let all = self.cpus.len() as u32;
        let idle = self.sets.idle.and(mask);
        if idle.is_empty() {
            return self.least_loaded(mask, home, 0, all).unwrap_or(home);
        }
        if idle.contains(home) && self.cfg.topology.threads_per_core == 1 {
            return home;
        }
        let (lo, hi) = self.llc(home);
        let mut best = (idle.len_in(lo, hi), lo, hi);
        for l in 0..self.topology().llcs {
            let (lo, hi) = (l * self.llc_cpus, (l + 1) * self.llc_cpus);
            let n = idle.len_in(lo, hi);
            if n > best.0 {
                best = (n, lo, hi);
            }
        }
        // Each idle CPU may be on a core whose threads it must not run beside.
        self.idle_in(e, home.0, best.1, best.2)
            .or_else(|| self.least_loaded(mask, home, 0, all))
            .unwrap_or(home)
    }

    /// The CPU of `lo..hi` with the least fair load for its capacity, `near` before its equals.
    fn least_loaded(&self, mask: &CpuSet, near: CpuId, lo: u32, hi: u32) -> Option<CpuId> {
        let mut best: Option<(u64, CpuId)> = None;
        let mut at = mask.find(None, lo, hi);
        while let Some(cpu) = at {
            let load = self.scaled_load(cpu);
            if best.is_none_or(|(b, _)| load < b || load == b && cpu == near) {
                best = Some((load, cpu));
            }
            at = mask.find(None, cpu.0 + 1, hi);
        }
        best.map(|(_, c)| c)
    }

    /// RT: stay, unless the CPU runs something that would not give way (or could not go away);
    /// then the CPU with the least urgent work.
    fn place_rt(&self, e: EntId, prev: CpuId, waker: Option<CpuId>) -> CpuId {
        if !self.may_use(e, prev) {
            return self.lowest(e, waker).unwrap_or_else(|| self.fallback(e));
        }
        let c = self.cpus[prev.index()].curr;
        if c == NONE || self.rank(EntId(c)) == 0 {
            return prev;
        }
        let curr = EntId(c);
        if !self.rt.is_movable(curr) || self.rank(curr) >= self.rt.prio(e) {
            return self.lowest(e, waker).unwrap_or(prev);
        }
        prev
    }

    /// Deadline: stay, unless the CPU runs an earlier deadline (or one that could not go away); then
    /// the CPU with the latest.
    fn place_dl(&self, e: EntId, prev: CpuId, waker: Option<CpuId>) -> CpuId {
        if !self.may_use(e, prev) {
            return self.latest(e, waker).unwrap_or_else(|| self.fallback(e));
        }
        let c = self.cpus[prev.index()].curr;
        if c == NONE || self.class(EntId(c)) != ClassId::Dl || self.dl.is_held(e) {
            return prev;
        }
        let curr = EntId(c);
        if !self.dl.is_movable(curr) || self.dl.due(curr) <= self.dl.due(e) {
            return self.latest(e, waker).unwrap_or(prev);
        }
        prev
    }
}
