//! Moving the *running* entity to a better CPU (active balancing).
//!
//! Balancing moves entities that wait. An entity alone on its CPU does not wait, but gets less done if its CPU is
//! worse than an idle one. The kernel moves it in two cases (`need_active_balance` of `kernel/sched/fair.c`, Linux
//! 6.18), by a stopper thread on the CPU that loses it:
//!
//! - RT, deadline entities or steal take so much of the CPU that an idle one has clearly more capacity;
//! - it shares its core with a busy SMT sibling while a whole core is idle, or in its LLC at least two more
//!   entities run than in another LLC that has room (`sibling_imbalance`). In both cases several attempts of that
//!   core or LLC to pull a waiting entity must have failed.
//!
//! There are four differences. In the kernel the tick of a busy CPU wakes an idle one, which decides; here the tick
//! of the busy CPU decides. In the kernel the first idle CPU of a group decides for the group; here any idle CPU
//! that is better is taken. The kernel also decides when a CPU goes idle, up to a tick earlier. And between NUMA
//! nodes of which one is nearly empty, the kernel tolerates a difference of two.

use super::Level;
use super::balance::{FULL, INTERVAL_PER_CPU, NICE_TRIES};
use crate::config::{ClassId, Ns};
use crate::{CpuId, CpuSet, EntId};

/// The attempt at which an idle core or LLC takes a running entity: its failures then exceed `cache_nice_tries` + 2.
const PATIENCE: u32 = NICE_TRIES + 3;

/// Attempts to pull a waiting entity where none waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PullAttempts {
    failed: u32,
    /// When the next one is due.
    next: Ns,
}

impl PullAttempts {
    /// Starts again: there is nothing to pull any more.
    pub(super) fn start_anew(&mut self) {
        self.failed = 0;
    }

    /// Whether there have been enough attempts, of which one counts in every `interval`.
    fn are_enough(&mut self, now: Ns, interval: Ns) -> bool {
        if now >= self.next {
            self.failed += 1;
            self.next = now + interval;
        }
        self.failed >= PATIENCE
    }
}

impl Level {
    /// The part of the tick on a CPU without waiting entities: decides whether the running entity should move.
    pub(super) fn active_balance(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        if self.sets.idle.is_empty() || self.class(e) != ClassId::Fair {
            return;
        }
        if self.core_takes(now, cpu, e)
            || self.whole_cpu(now, cpu, e).is_some()
            || self.llc_takes(now, cpu, e)
        {
            self.cpus[cpu.index()].push = e.0;
            self.kick(cpu, true);
        }
    }

    /// Whether an idle core has tried often enough to relieve the core of `cpu`.
    fn core_takes(&mut self, now: Ns, cpu: CpuId, e: EntId) -> bool {
        let idle = self.idle_core(cpu, e).is_some();
        let interval = Ns::from(self.llc_cpus) * INTERVAL_PER_CPU;
        let tries = &mut self.cores[self.cfg.topology.core(cpu.0) as usize].tries;
        if !idle {
            tries.start_anew();
        }
        idle && tries.are_enough(now, interval)
    }

    /// Whether an LLC with fewer running entities has tried often enough to relieve the LLC of `cpu`.
    fn llc_takes(&mut self, now: Ns, cpu: CpuId, e: EntId) -> bool {
        let own = (cpu.0 / self.llc_cpus) as usize;
        if self.topology().llcs == 1 || now < self.spread[own].next {
            return false;
        }
        let interval = self.cpus.len() as Ns * INTERVAL_PER_CPU;
        let Some(llc) = self.roomier_llc(cpu) else {
            self.spread[own] = PullAttempts { failed: 0, next: now + interval };
            return false;
        };
        if self.idle_in(e, llc.0, llc.0, llc.1).is_none() {
            // It cannot go there; another entity can, perhaps.
            return false;
        }
        let tries = &mut self.spread[own];
        let enough = tries.are_enough(now, interval);
        if enough {
            tries.start_anew();
        }
        enough
    }

    /// The LLC with the fewest running entities, if it has an idle CPU, runs at least two fewer than the LLC of `cpu`,
    /// and no entity has to wait there.
    fn roomier_llc(&self, cpu: CpuId) -> Option<(u32, u32)> {
        let n = self.llc_cpus;
        let runs = |llc: u32| self.group(llc * n, n, &CpuSet::EMPTY);
        let own = runs(cpu.0 / n);
        let (least, llc) =
            (0..self.topology().llcs).map(|llc| (runs(llc).runnable(), llc)).min()?;
        let spare = !own.is_crowded() && least + 1 < own.runnable();
        spare.then_some((llc * n, (llc + 1) * n))
    }

    /// The CPU where the current entity of `cpu`, which the tick wanted moved, is better off now.
    pub(super) fn better_cpu(&mut self, now: Ns, cpu: CpuId, e: EntId) -> Option<CpuId> {
        let near = self.idle_core(cpu, e).or_else(|| self.whole_cpu(now, cpu, e));
        near.or_else(|| {
            let (lo, hi) = self.roomier_llc(cpu)?;
            self.idle_in(e, lo, lo, hi)
        })
    }

    /// A CPU of an idle core of the same LLC, if a sibling of `cpu` is busy.
    fn idle_core(&self, cpu: CpuId, e: EntId) -> Option<CpuId> {
        let t = self.topology();
        if t.threads_per_core - self.cores[t.core(cpu.0) as usize].idle < 2 {
            return None;
        }
        let (lo, hi) = self.llc(cpu);
        let to = self.idle_in(e, cpu.0, lo, hi)?;
        (self.cores[t.core(to.0) as usize].idle == t.threads_per_core).then_some(to)
    }

    /// An idle CPU with clearly more capacity than `cpu` has left: of the LLC, or of all.
    fn whole_cpu(&mut self, now: Ns, cpu: CpuId, e: EntId) -> Option<CpuId> {
        let pct = u64::from(self.cfg.balance.imbalance_pct);
        let least = self.capacity(cpu) * pct / 100;
        if least >= FULL {
            return None;
        }
        let (lo, hi) = self.llc(cpu);
        let all = self.cpus.len() as u32;
        [(lo, hi), (hi, all), (0, lo)].into_iter().find_map(|(mut at, hi)| {
            while let Some(to) = self.sets.idle.find(self.mask(e), at, hi) {
                // Its last tick may be long ago.
                self.update_averages(now, to);
                if self.capacity(to) > least && self.fits_core(e, to) {
                    return Some(to);
                }
                at = to.0 + 1;
            }
            None
        })
    }
}
