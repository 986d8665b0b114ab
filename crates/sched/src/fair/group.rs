//! Groups: one level of cgroups.
//!
//! A group has a weight as a whole. On each CPU an entity of the root queue stands for it, with
//! that part of the weight which corresponds to the group's load there (`calc_group_shares`):
//!
//! ```text
//! weight on a CPU = weight * load on that CPU / (load on that CPU + average load on the others)
//! ```
//!
//! The load on that CPU is what is queued there, or its average if that is more. Averages forget half in
//! 33 ms, as the kernel's do (PELT); the kernel's stand still for up to a millisecond, and for longer on
//! idle CPUs, and these do not. The weight follows when the group's load on that CPU changes and on each
//! tick there, so that a change on one CPU reaches the others a tick later.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::queue::Rq;
use super::quota::Pool;
use super::{FairClass, weight};
use crate::CpuId;
use crate::config::{GroupConfig, Ns};
use crate::heap::NONE;

/// In this time an average forgets half: 32 periods of 1024 * 1024 ns (`LOAD_AVG_PERIOD`).
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
    /// Most time that it may have.
    pub(super) quota: Option<Box<Pool>>,
}

impl Group {
    pub(crate) fn new(of: GroupConfig, cpus: usize) -> Self {
        Self {
            weight: of.weight << weight::SHIFT,
            load: Load::default(),
            on: vec![Load::default(); cpus],
            quota: of.quota.map(|quota| Box::new(Pool::new(quota, cpus))),
        }
    }

    /// Another load on `cpu`.
    #[inline]
    pub(super) fn set_load(&mut self, now: Ns, cpu: u32, load: u64) {
        let on = &mut self.on[cpu as usize];
        let all = self.load.queued - on.queued + load;
        on.set(now, load);
        self.load.set(now, all);
    }

    /// The part of its weight that it has on `cpu`.
    fn weight_on(&self, now: Ns, cpu: u32) -> u64 {
        let on = &self.on[cpu as usize];
        let average = on.average(now);
        let here = average.max(on.queued as f64);
        let others = (self.load.average(now) - average).max(0.0);
        let part = (self.weight as f64 * here / (here + others).max(1.0)) as u64;
        part.max(weight::MIN_GROUP << weight::SHIFT).min(self.weight)
    }
}

/// What is queued, and its average.
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

    fn set(&mut self, now: Ns, queued: u64) {
        *self = Self { queued, average: self.average(now), since: now };
    }
}

impl FairClass {
    /// The group's queue on `cpu`, made when it is first needed.
    pub(super) fn group_queue(&mut self, group: u32, cpu: CpuId) -> usize {
        let at = group as usize * self.cpus + cpu.index();
        if self.group_rq[at] == NONE {
            let r = self.rqs.len();
            let g = self.new_se(NONE, r as u32);
            self.ses[g].rq = cpu.0;
            self.rqs.push(Rq::new(cpu.0, g as u32, group));
            self.group_rq[at] = r as u32;
        }
        self.group_rq[at] as usize
    }

    /// Gives the group's entity on the CPU of its queue `r` the weight it should have there.
    /// Nothing to do for a root queue.
    #[inline]
    pub(super) fn update_group_weight(&mut self, r: usize) {
        let rq = &self.rqs[r];
        if rq.se == NONE || rq.nr == 0 {
            return;
        }
        let (g, cpu) = (rq.se as usize, rq.cpu);
        let new = self.groups[rq.group as usize].weight_on(self.clock, cpu);
        if new != self.ses[g].weight {
            self.reweight(cpu, g, new);
        }
    }

    /// Gives the group's entity the shortest slice asked for in the group (EEVDF), so that the
    /// group can serve it in time.
    pub(super) fn update_group_slice(&mut self, r: usize) {
        let rq = &self.rqs[r];
        if rq.se == NONE {
            return;
        }
        let (g, min) = (rq.se as usize, self.shortest_slice(r));
        self.set_slice(g, (min != self.base_slice).then_some(min));
    }

    /// Changes the weight of a group, on every CPU at once.
    pub(crate) fn set_group_weight(&mut self, group: u16, w: u64) {
        let g = usize::from(group);
        self.groups[g].weight = w << weight::SHIFT;
        for cpu in 0..self.cpus {
            let r = self.group_rq[g * self.cpus + cpu];
            if r != NONE {
                self.update_group_weight(r as usize);
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
        let parts = |group: &Group, now, cpu| group.weight_on(now, cpu) >> weight::SHIFT;
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
