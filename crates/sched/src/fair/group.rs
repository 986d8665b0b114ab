//! Groups: cgroups, which may be in others.
//!
//! A group has a weight as a whole. On each CPU an entity represents it, on the queue of the parent group or on the
//! root queue. This entity has the part of the weight that corresponds to the group's load there
//! (`calc_group_shares`):
//!
//! ```text
//! weight on a CPU = weight * load on that CPU / (load on that CPU + average load on the others)
//! ```
//!
//! The load on that CPU is what is queued there, or its average if this is more ([`load`](super::load)). That on the
//! others is what they last told. The weight follows when the group's load on that CPU changes, and at each tick there.
//! A change on one CPU therefore reaches the others a tick later, or later still if it is not told at once. A group of
//! which nothing is queued on a CPU keeps the weight that it had there.
//!
//! In Linux 7.3 the weight counts [several times](Group::concurrency), and entities of groups are not queued
//! ([`flat`](super::flat)).

use alloc::boxed::Box;

use super::load::{Average, rounded};
use super::pool::Pool;
use super::queue::Rq;
use super::{FairClass, weight};
use crate::CpuId;
use crate::class::{Dequeue, Enqueue};
use crate::config::{GroupConfig, Ns};
use crate::heap::NONE;

/// Bits of a group's weight on a CPU.
const WEIGHT_BITS: u32 = 12;

/// A group of the level.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Weight of the whole.
    pub(crate) weight: u64,
    /// The sum of what its queues have told.
    pub(super) told: u64,
    /// Its entities that are awake, if all groups share a queue, and the average.
    pub(super) awake: u64,
    awake_average: Average,
    /// The latter as of when it last changed by more than 1/64, with [`SHIFT`](weight::SHIFT) fraction bits.
    awake_told: u64,
    /// Its quota.
    pub(super) quota: Option<Box<Pool>>,
    /// The group around it, or [`NONE`].
    pub(super) parent: u32,
}

impl Group {
    pub(crate) fn new(of: GroupConfig, cpus: usize) -> Self {
        Self {
            weight: of.weight << weight::SHIFT,
            told: 0,
            awake: 0,
            awake_average: Average::default(),
            awake_told: 0,
            quota: of.quota.map(|quota| Box::new(Pool::new(quota, cpus))),
            parent: of.parent.map_or(NONE, u32::from),
        }
    }

    /// Whether its queue on `cpu` is throttled.
    #[inline]
    pub(super) fn holds(&self, cpu: u32) -> bool {
        self.quota.as_ref().is_some_and(|pool| pool.holds(cpu))
    }

    /// An entity wakes up or goes to sleep.
    pub(super) fn count_awake(&mut self, now: Ns, wakes: bool) {
        self.awake_average.advance(now, self.awake);
        self.awake = if wakes { self.awake + 1 } else { self.awake - 1 };
    }

    /// How many times it has its weight, if all groups share a queue: once for each entity that is awake on average,
    /// but at most once for each of `cpus` (`cgroup_mode` "concur"). Averages are rounded down, and the other CPUs see
    /// one change only after 1/64. So one that grows stops short of a whole number.
    fn concurrency(&mut self, now: Ns, cpus: usize) -> u64 {
        let awake = self.awake_average.fine(now, self.awake);
        if awake.abs_diff(self.awake_told) > self.awake_told / 64 {
            self.awake_told = awake;
        }
        (self.awake_told >> weight::SHIFT).clamp(1, cpus as u64)
    }
}

/// The part of a group's `weight` for a queue with this load, if that of its queues on other CPUs is `others`. It is
/// rounded, so that it stays the same while loads do.
fn weight_here(weight: u64, here: u64, others: u64) -> u64 {
    let part = weight::share(weight, here, here + others);
    rounded(part, WEIGHT_BITS).max(weight::MIN_GROUP << weight::SHIFT).min(weight)
}

impl FairClass {
    /// The group's queue on `cpu`, made when it is first needed.
    pub(super) fn group_queue(&mut self, group: u32, cpu: CpuId) -> usize {
        let at = group as usize * self.cpus + cpu.index();
        if self.group_rq[at] == NONE {
            let above = match self.groups[group as usize].parent {
                NONE => cpu.index(),
                parent => self.group_queue(parent, cpu),
            };
            let r = self.rqs.len();
            let g = self.new_se(NONE, r as u32);
            (self.ses[g].rq, self.ses[g].counts_in) = (above as u32, above as u32);
            self.rqs.push(Rq::new(cpu.0, g as u32, group, self.rqs[above].depth + 1));
            self.group_rq[at] = r as u32;
        }
        self.group_rq[at] as usize
    }

    /// The entity of the group whose queue `s` is on, or `None` on a root queue.
    #[inline]
    pub(super) fn above(&self, s: usize) -> Option<usize> {
        match self.rqs[self.ses[s].rq as usize].se {
            NONE => None,
            g => Some(g as usize),
        }
    }

    /// The entities that represent two entities of one CPU on the innermost queue that has both (`find_matching_se`).
    #[inline]
    pub(super) fn matching(&self, mut s: usize, mut p: usize) -> (usize, usize) {
        while self.ses[s].rq != self.ses[p].rq {
            let [s_rq, p_rq] = [s, p].map(|s| &self.rqs[self.ses[s].rq as usize]);
            if s_rq.depth >= p_rq.depth {
                s = s_rq.se as usize;
            }
            if p_rq.depth >= s_rq.depth {
                p = p_rq.se as usize;
            }
        }
        (s, p)
    }

    /// Calls `act` for each queue that has the entity or a group around it, with the number of that entity, from the
    /// inside out.
    pub(super) fn on_each_queue(&mut self, mut s: usize, mut act: impl FnMut(&mut Rq, u32)) {
        loop {
            act(&mut self.rqs[self.ses[s].rq as usize], s as u32);
            match self.above(s) {
                Some(g) => s = g,
                None => return,
            }
        }
    }

    /// Updates the weight of the group's entity on the CPU of its queue `r`.
    #[inline]
    pub(super) fn update_group_weight(&mut self, r: usize) {
        self.tell(r);
        let rq = &self.rqs[r];
        if rq.nr == 0 {
            return;
        }
        let (g, now) = (rq.se as usize, self.clock);
        let group = &mut self.groups[rq.group as usize];
        let times = if self.flat { group.concurrency(now, self.cpus) } else { 1 };
        let mut new = group.weight * times;
        if self.tracks {
            let others = group.told - rq.told;
            new = weight_here(new, rq.load.max(self.average_load(r)), others);
        }
        if new != self.ses[g].weight {
            if self.flat { self.set_share(g, new) } else { self.reweight(g, new) }
        }
    }

    /// Updates the weights of the group and those around it, from the inside out.
    #[inline]
    pub(super) fn update_group_weights(&mut self, mut r: usize) {
        while self.rqs[r].se != NONE {
            self.update_group_weight(r);
            r = self.ses[self.rqs[r].se as usize].rq as usize;
        }
    }

    /// Gives the group's entity the shortest slice asked for in the group (EEVDF), so that the
    /// group can serve it in time.
    fn update_group_slice(&mut self, r: usize) {
        let (g, min) = (self.rqs[r].se as usize, self.shortest_slice(r));
        self.set_slice(g, (min != self.base_slice).then_some(min));
    }

    /// An entity came onto the queue `r`: queues the groups around it, up to a throttled one.
    pub(super) fn enqueue_groups(&mut self, mut r: usize) {
        while self.rqs[r].se != NONE && !self.is_throttled(r) {
            let g = self.rqs[r].se as usize;
            self.update_group_weight(r);
            self.update_group_slice(r);
            r = self.ses[g].rq as usize;
            if !self.ses[g].on_rq {
                self.enqueue_se(r, g, Enqueue::Wakeup);
            } else if self.ses[g].delayed {
                self.requeue_delayed(r, g);
            }
        }
    }

    /// An entity left the queue `r`: the groups around it leave theirs, as `how` says, as far out as they are empty. If
    /// others are there and should have the rest of the turn (`leaves_turn`), the groups from there on are favoured.
    pub(super) fn dequeue_groups(&mut self, mut r: usize, how: Dequeue, leaves_turn: bool) {
        let (mut leaves, mut favoured) = (true, false);
        while self.rqs[r].se != NONE {
            self.tell(r);
            let rq = &self.rqs[r];
            let (g, empty) = (rq.se as usize, rq.nr == 0);
            if leaves && empty && self.quotas {
                self.give_back(rq.group, rq.cpu);
            }
            if !self.ses[g].on_rq {
                // It is throttled.
                return;
            }
            favoured |= leaves && !empty && leaves_turn;
            leaves &= empty;
            r = self.ses[g].rq as usize;
            if leaves {
                leaves = self.dequeue_se(r, g, how);
                continue;
            }
            let own = self.ses[g].owns as usize;
            self.update_group_weight(own);
            self.update_group_slice(own);
            if favoured {
                self.rqs[r].next = g as u32;
            }
        }
    }

    /// Changes the weight of a group, on every CPU at once.
    pub(crate) fn set_group_weight(&mut self, group: u16, w: u64) {
        let g = usize::from(group);
        self.groups[g].weight = w << weight::SHIFT;
        for cpu in 0..self.cpus {
            let r = self.group_rq[g * self.cpus + cpu];
            if r != NONE {
                self.update_group_weights(r as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::level;
    use super::*;
    use crate::EntId;
    use crate::class::Class;
    use crate::config::{CfsTunables, Fair, Ns, Policy};

    #[test]
    fn a_weight_goes_where_the_load_is_and_follows_within_its_half_life() {
        const HALF_LIFE: Ns = 32 << 20;
        let cfg = level(Fair::Cfs(CfsTunables::for_cpus(4)), 1_000_000, 4, [1024].into());
        let mut c = FairClass::new(&cfg);
        (0..2).for_each(|e| c.add(EntId(e), Policy::NORMAL, Some(0)));
        let weight = |c: &mut FairClass, now, cpu| {
            c.clock = now;
            (0..c.rqs.len()).for_each(|r| c.tell(r));
            let r = c.group_queue(0, CpuId(cpu));
            c.update_group_weight(r);
            c.check();
            c.ses[c.rqs[r].se as usize].weight as f64 / 1024.0
        };
        // What another CPU told may be 1/64 off.
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() <= expected / 64.0, "{found}");
        };
        // Alone, it has all of it at once.
        c.enqueue(CpuId(0), EntId(0), Enqueue::Wakeup);
        near(weight(&mut c, 0, 0), 1024.0);
        // Another CPU's average counts, not what is queued there just now.
        let later = 100 * HALF_LIFE;
        c.clock = later;
        c.enqueue(CpuId(1), EntId(1), Enqueue::Wakeup);
        near(weight(&mut c, later, 1), 512.0);
        near(weight(&mut c, later, 0), 1024.0);
        near(weight(&mut c, later + HALF_LIFE, 0), 682.7);
        near(weight(&mut c, later + 2 * HALF_LIFE, 0), 585.1);
        // What sleeps is forgotten by halves, and what moves away at once.
        c.clock = 2 * later;
        c.dequeue(CpuId(0), EntId(0), Dequeue::Sleep);
        near(weight(&mut c, 2 * later, 1), 512.0);
        near(weight(&mut c, 2 * later + HALF_LIFE, 1), 682.7);
        c.enqueue(CpuId(2), EntId(0), Enqueue::Wakeup);
        near(weight(&mut c, 2 * later + HALF_LIFE, 2), 512.0);
        near(weight(&mut c, 2 * later + HALF_LIFE, 1), 682.7);
        c.dequeue(CpuId(2), EntId(0), Dequeue::Save);
        near(weight(&mut c, 2 * later + HALF_LIFE, 1), 1024.0);
    }
}
