//! Groups: one level of cgroups.
//!
//! A group has a weight as a whole. On each CPU an entity of the root queue stands for it, with
//! that part of the weight which corresponds to the group's load there:
//!
//! ```text
//! weight on a CPU = weight * load on that CPU / load on all CPUs
//! ```
//!
//! The kernel takes running averages of the loads; here they are what is queued now. The weight
//! follows when the group's load on that CPU changes and on each tick there, so that a change on
//! one CPU reaches the others a tick later.

use super::queue::Rq;
use super::{FairClass, weight};
use crate::CpuId;
use crate::heap::NONE;

/// A group of the level.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Weight of the whole.
    pub(crate) weight: u64,
    /// Weight of its entities on all CPUs.
    pub(crate) load: u64,
}

impl Group {
    pub(crate) fn new(w: u64) -> Self {
        Self { weight: w << weight::SHIFT, load: 0 }
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
        let group = &self.groups[rq.group as usize];
        let part = u128::from(group.weight) * u128::from(rq.load) / u128::from(group.load.max(1));
        let least = weight::MIN_GROUP << weight::SHIFT;
        let new = (part as u64).max(least).min(group.weight);
        let (g, cpu) = (rq.se as usize, rq.cpu);
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
