//! Moving who *runs* to a better CPU (active balancing).
//!
//! Balancing moves entities that wait. An entity alone on its CPU does not wait, and still loses if its CPU is a
//! worse one than an idle CPU is. The kernel moves it in two cases (`need_active_balance` of `kernel/sched/fair.c`,
//! Linux 6.18), by a stopper thread on the CPU that loses it:
//!
//! - RT, deadline entities or steal take so much of the CPU that an idle one has clearly more to give;
//! - it shares its core with a busy SMT sibling while a whole core is idle, and several attempts of that core to pull
//!   somebody who waits have failed.
//!
//! Three things differ. In the kernel the tick of a busy CPU wakes an idle one, and that one decides; here the tick of
//! the busy CPU decides. The kernel lets the first idle CPU of a group decide for all of it; here any idle CPU that is
//! better will do. And the kernel also decides as a CPU goes idle, so up to a tick earlier.

use super::Level;
use super::balance::{FULL, INTERVAL_PER_CPU, NICE_TRIES};
use crate::config::{ClassId, Ns};
use crate::{CpuId, EntId};

/// The attempt of an idle core that takes somebody who runs: its failures are then above `cache_nice_tries` + 2.
const PATIENCE: u32 = NICE_TRIES + 3;

impl Level {
    /// The part of the tick of a CPU where nobody waits: whether who runs there should go on elsewhere.
    pub(super) fn active_balance(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        if self.sets.idle.is_empty() || self.class(e) != ClassId::Fair {
            return;
        }
        if self.core_takes(now, cpu, e) || self.whole_cpu(now, cpu, e).is_some() {
            self.cpus[cpu.index()].push = e.0;
            self.kick(cpu, true);
        }
    }

    /// Whether an idle core has tried often enough to relieve the core of `cpu`.
    fn core_takes(&mut self, now: Ns, cpu: CpuId, e: EntId) -> bool {
        let idle = self.idle_core(cpu, e).is_some();
        let interval = Ns::from(self.llc_cpus) * INTERVAL_PER_CPU;
        let core = &mut self.cores[self.cfg.topology.core(cpu.0) as usize];
        if !idle {
            core.failed = 0;
        } else if now >= core.next_try {
            core.failed += 1;
            core.next_try = now + interval;
        }
        core.failed >= PATIENCE
    }

    /// Where the current entity of `cpu`, which the tick wanted moved, is better off as things are now.
    pub(super) fn better_cpu(&mut self, now: Ns, cpu: CpuId, e: EntId) -> Option<CpuId> {
        self.idle_core(cpu, e).or_else(|| self.whole_cpu(now, cpu, e))
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
