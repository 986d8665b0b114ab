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
//! The load on that CPU is what is queued there, or its average if this is more. Averages forget half in 33 ms, as
//! the kernel's do (PELT). The kernel's are not updated for up to a millisecond, and for longer on idle CPUs; these
//! always are. The weight follows when the group's load on that CPU changes, and at each tick there. A change on
//! one CPU therefore reaches the others a tick later.
//!
//! In Linux 7.3 the weight counts [several times](Group::concurrency), and entities of groups are not queued
//! ([`flat`](super::flat)).

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::pool::Pool;
use super::queue::Rq;
use super::{FairClass, weight};
use crate::CpuId;
use crate::class::{Dequeue, Enqueue};
use crate::config::{GroupConfig, Ns};
use crate::heap::NONE;

/// Half-life of an average: 32 periods of 1024 * 1024 ns (`LOAD_AVG_PERIOD`).
const HALF_LIFE: f64 = (32 << 20) as f64;

/// A group of the level.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Weight of the whole.
    pub(crate) weight: u64,
    /// Weight of its entities on all CPUs.
    pub(crate) load: Load,
    /// The same for each CPU.
    pub(crate) on: Vec<Load>,
    /// Its entities that are awake, if all groups share a queue.
    pub(super) awake: Load,
    /// Their average, as of when it last changed by more than 1/64.
    awake_told: f64,
    /// Its quota.
    pub(super) quota: Option<Box<Pool>>,
    /// The group around it, or [`NONE`].
    pub(super) parent: u32,
}

impl Group {
    pub(crate) fn new(of: GroupConfig, cpus: usize) -> Self {
        Self {
            weight: of.weight << weight::SHIFT,
            load: Load::default(),
            on: vec![Load::default(); cpus],
            awake: Load::default(),
            awake_told: 0.0,
            quota: of.quota.map(|quota| Box::new(Pool::new(quota, cpus))),
            parent: of.parent.map_or(NONE, u32::from),
        }
    }

    /// Whether its queue on `cpu` is throttled.
    #[inline]
    pub(super) fn holds(&self, cpu: u32) -> bool {
        self.quota.as_ref().is_some_and(|pool| pool.holds(cpu))
    }

    /// Sets the load on `cpu`.
    #[inline]
    pub(super) fn set_load(&mut self, now: Ns, cpu: u32, load: u64) {
        let on = &mut self.on[cpu as usize];
        let all = self.load.queued - on.queued + load;
        on.set(now, load);
        self.load.set(now, all);
    }

    /// How many times it has its weight, if all groups share a queue: once for each entity that is awake on average,
    /// but at most once for each CPU (`cgroup_mode` "concur"). Averages are rounded down, and the other CPUs see one
    /// change only after 1/64. So one that grows stops short of a whole number.
    pub(super) fn concurrency(&mut self, now: Ns) -> u64 {
        let awake = self.awake.average(now);
        if (awake - self.awake_told).abs() > self.awake_told / 64.0 {
            self.awake_told = awake;
        }
        (self.awake_told as u64).clamp(1, self.on.len() as u64)
    }

    /// The part of `whole`, its weight, that it has on `cpu`.
    fn weight_on(&self, now: Ns, cpu: u32, whole: u64) -> u64 {
        let on = &self.on[cpu as usize];
        let average = on.average(now);
        let here = average.max(on.queued as f64);
        let others = (self.load.average(now) - average).max(0.0);
        let part = (whole as f64 * here / (here + others).max(1.0)) as u64;
        part.max(weight::MIN_GROUP << weight::SHIFT).min(whole)
    }
}

/// Load that is queued, and its average.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) queued: u64,
    /// The average at `since`.
    average: f64,
    since: Ns,
}

impl Load {
    /// All loads follow the same rule, so the average of a sum is the sum of the averages.
    fn average(&self, now: Ns) -> f64 {
        let queued = self.queued as f64;
        let kept = libm::exp2(-(now.saturating_sub(self.since) as f64) / HALF_LIFE);
        queued + (self.average - queued) * kept
    }

    pub(super) fn set(&mut self, now: Ns, queued: u64) {
        *self = Self { queued, average: self.average(now), since: now };
    }
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
            self.ses[g].rq = above as u32;
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
        let rq = &self.rqs[r];
        if rq.nr == 0 {
            return;
        }
        let (g, cpu) = (rq.se as usize, rq.cpu);
        let group = &mut self.groups[rq.group as usize];
        let times = if self.flat { group.concurrency(self.clock) } else { 1 };
        let new = group.weight_on(self.clock, cpu, group.weight * times);
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
    use super::*;

    #[test]
    fn a_weight_goes_where_the_load_is_and_follows_within_its_half_life() {
        let one = 1024 << weight::SHIFT;
        let half_life = HALF_LIFE as Ns;
        let mut group = Group::new(GroupConfig::new(1024), 4);
        let parts = |group: &Group, now, cpu| group.weight_on(now, cpu, one) >> weight::SHIFT;
        // Alone, it has all of it at once.
        group.set_load(0, 0, one);
        assert_eq!(parts(&group, 0, 0), 1024);
        // Another CPU's average counts, not what is queued there just now.
        let later = 100 * half_life;
        group.set_load(later, 1, one);
        assert_eq!(parts(&group, later, 1), 512);
        assert_eq!(parts(&group, later, 0), 1024, "CPU 1 has no past");
        let (a, b) = (later + half_life, later + 2 * half_life);
        assert_eq!([parts(&group, a, 0), parts(&group, b, 0)], [682, 585]);
        // A queue that has emptied is forgotten by halves.
        group.set_load(2 * later, 0, 0);
        assert_eq!(parts(&group, 2 * later, 1), 512);
        assert_eq!(parts(&group, 2 * later + half_life, 1), 682);
        assert_eq!(parts(&group, 3 * later, 1), 1024);
        // Nothing anywhere has ever been: the least there is.
        assert_eq!(parts(&Group::new(GroupConfig::new(1024), 4), later, 2), weight::MIN_GROUP);
    }
}
