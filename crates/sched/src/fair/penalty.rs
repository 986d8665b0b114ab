//! A penalty for entities that yield to a certain other one, as posted for Linux in December 2025 ("sched/kvm:
//! Semantics-aware vCPU scheduling", v2) and not merged.
//!
//! Who is yielded to is picked once, as the next buddy. Afterwards the one that yielded competes as before, and may
//! take the CPU back at once. The penalty adds to its virtual time, at the level where both share a queue:
//!
//! ```text
//! 1 + 1.1 * (vruntime of the target - its own)          in base slices, if the target has had more; else 1
//! not beyond the gap (or 1) if the last penalty was the other way round, at most 600 us ago
//! not beyond 6, 4, 2.5, 2, 1.5, 1 for 2, 3, 4 to 6, 7 to 8, 9 to 12, more tasks on that queue; at least 1
//! ```
//!
//! Each CPU gives at most one penalty in 6 ms.

use super::{FairClass, weight};
use crate::config::{Fair, Ns};
use crate::{CpuId, EntId};

/// Least time between two penalties of a CPU.
const INTERVAL: Ns = 6_000_000;

/// A penalty that reverses the last one within this time is bounded.
const REVERSAL: Ns = 600_000;

/// What the penalties of a CPU depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PenaltyHistory {
    /// When the last one was considered. Linux takes 0 for never.
    considered: Ns,
    /// Who yielded to whom at the last one, and when.
    pair: Option<(EntId, EntId, Ns)>,
}

impl FairClass {
    /// The running entity of `cpu` yields to a waiting one: it gets a penalty, if the tunables say so. Its run has to
    /// be charged first.
    pub(crate) fn penalise(&mut self, now: Ns, cpu: CpuId, from: EntId, to: EntId) {
        let Fair::Eevdf(t) = self.kind else { return };
        if !t.yield_penalty {
            return;
        }
        let past = &mut self.penalties[cpu.index()];
        if past.considered > 0 && now - past.considered <= INTERVAL {
            return;
        }
        past.considered = now;
        let (s, p) = (self.se_of(from), self.se_of(to));
        if self.rqs[self.ses[p].rq as usize].cpu != cpu.0 {
            return;
        }
        let (s, p) = self.matching(s, p);
        let r = self.ses[s].rq as usize;
        let slice = weight::virtual_time(self.base_slice, self.ses[s].weight);
        let gap = (self.ses[p].vruntime - self.ses[s].vruntime).max(0);
        let past = &mut self.penalties[cpu.index()];
        let back = past
            .pair
            .replace((from, to, now))
            .is_some_and(|(a, b, at)| (a, b) == (to, from) && now - at <= REVERSAL);
        let bound = if back { gap.max(slice) } else { i64::MAX };
        let penalty = (slice + gap + gap / 10).min(bound).clamp(slice, most(slice, self.below(r)));
        let se = &mut self.ses[s];
        se.vruntime += penalty;
        se.deadline = se.vruntime + weight::virtual_time(se.slice, se.weight);
        self.update_min_vruntime(r);
    }

    /// Tasks on a queue and on those of the groups on it.
    fn below(&self, r: usize) -> u32 {
        let mut tasks = 0;
        self.any_task(r, &mut |_, _| {
            tasks += 1;
            false
        });
        tasks
    }
}

/// The largest penalty beside so many tasks.
fn most(slice: i64, tasks: u32) -> i64 {
    match tasks {
        ..=2 => slice * 6,
        3 => slice * 4,
        4..=6 => slice * 5 / 2,
        7..=8 => slice * 2,
        9..=12 => slice * 3 / 2,
        _ => slice,
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::tests::{CPU, eevdf, put};
    use super::*;
    use crate::class::Class;
    use crate::config::{EevdfTunables, Policy};

    const MS: Ns = 1_000_000;

    /// Tasks with these virtual times, of which the first runs. The base slice is 1 ms.
    fn queue(vruntimes: &[i64], yield_penalty: bool) -> FairClass {
        let kernel = EevdfTunables::for_cpus(8);
        let t = EevdfTunables { base_slice_ns: MS, yield_penalty, ..kernel };
        let mut c = eevdf(t, &vec![Policy::NORMAL; vruntimes.len()]);
        for (e, &v) in (0..).zip(vruntimes) {
            put(&mut c, e, v, v + MS as i64);
        }
        c.set_next(CPU, EntId(0));
        c
    }

    fn paid(c: &mut FairClass, now: Ns, from: u32, to: u32) -> i64 {
        let before = c.ses[from as usize].vruntime;
        c.penalise(now, CPU, EntId(from), EntId(to));
        let se = &c.ses[from as usize];
        if se.vruntime > before {
            assert_eq!(se.deadline, se.vruntime + MS as i64);
        }
        se.vruntime - before
    }

    #[test]
    fn a_penalty_grows_with_the_gap_and_shrinks_with_the_queue() {
        let ms = MS as i64;
        let of = |vruntimes: &[i64]| paid(&mut queue(vruntimes, true), MS, 0, 1);
        assert_eq!(of(&[0, 0]), ms, "a slice without a gap");
        assert_eq!(of(&[2 * ms, 0]), ms, "and if the target has had less");
        assert_eq!(of(&[0, 2 * ms]), 3 * ms + ms / 5);
        assert_eq!(of(&[0, 90 * ms]), 6 * ms);
        let beside = |n: usize| of(&[[0, 90 * ms].as_slice(), &vec![0; n]].concat());
        assert_eq!([1, 3, 6, 10, 11].map(beside), [4 * ms, 5 * ms / 2, 2 * ms, 3 * ms / 2, ms]);
        assert_eq!(paid(&mut queue(&[0, 0], false), MS, 0, 1), 0, "no kernel has it");
    }

    #[test]
    fn a_cpu_gives_one_penalty_in_6_ms() {
        let mut c = queue(&[0, 0, 0], true);
        assert!(paid(&mut c, MS, 0, 1) > 0);
        assert_eq!(paid(&mut c, 7 * MS, 0, 1), 0);
        assert!(paid(&mut c, 7 * MS + 1, 0, 1) > 0);
    }
}
