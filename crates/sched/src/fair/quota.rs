//! Quotas of groups: CPU bandwidth control (`cpu.max`), as of `kernel/sched/fair.c` until Linux 6.17.
//!
//! In each period a group may run for its quota, on all CPUs together. Its queues take slices of it in advance, and
//! pay for what runs there. If a queue has no time left, and its group has none to give, the queue is *throttled*:
//! the group's entity leaves the CPU's queue, and the entities on the group's queue wait. At the end of each period
//! the group gets its quota again. Throttled queues first get what they owe, in the order in which they were
//! throttled. Queues that become empty give back what they have, which may end the throttling of others earlier.
//!
//! Time is checked where it is charged, so a queue that took too much pays with later periods. Linux 6.18 throttles
//! tasks on their way to user space or to a guest, so that no task waits while it holds a lock of the kernel. The
//! simulated host spends no time in its kernel for which this would make a difference. Where all groups of a CPU share
//! a queue ([`flat`](super::flat)), the entities leave that queue.

use alloc::vec::Vec;

use super::FairClass;
use super::group::Group;
use super::pool::SLICE;
use crate::class::Dequeue;
use crate::config::Ns;
use crate::dl::NEVER;
use crate::heap::NONE;
use crate::{CpuId, EntId};

/// Why a queue is checked: an entity is about to run on it, so that it takes a slice; or an entity was put aside there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunsNow {
    Yes,
    No,
}

impl FairClass {
    /// Whether a group has a quota.
    #[inline]
    pub(crate) fn has_quotas(&self) -> bool {
        self.quotas
    }

    /// A group and those around it, from the inside out.
    fn groups_from(&self, group: u32) -> impl Iterator<Item = (u32, &Group)> {
        let get = |group| Some((group, self.groups.get(group as usize)?));
        core::iter::successors(get(group), move |(_, of)| get(of.parent))
    }

    /// The groups of an entity, from the inside out.
    pub(super) fn groups_of(&self, e: EntId) -> impl Iterator<Item = (u32, &Group)> {
        self.groups_from(self.tasks[e.index()].group)
    }

    /// Whether an entity is in a group with a quota.
    #[inline]
    pub(crate) fn has_quota(&self, e: EntId) -> bool {
        self.quotas && self.groups_of(e).any(|(_, group)| group.quota.is_some())
    }

    /// Whether an entity on the queue of `cpu` may not run, because a group has used up its quota.
    #[inline]
    pub(crate) fn is_held(&self, e: EntId, cpu: CpuId) -> bool {
        self.quotas && self.groups_of(e).any(|(_, group)| group.holds(cpu.0))
    }

    /// Whether the queue of a group is throttled itself.
    #[inline]
    pub(super) fn is_throttled(&self, r: usize) -> bool {
        let rq = &self.rqs[r];
        self.quotas && self.groups.get(rq.group as usize).is_some_and(|group| group.holds(rq.cpu))
    }

    /// The current entity of `cpu` executed. Returns whether one of its queues has no time left, and gets none.
    #[cold]
    pub(crate) fn use_quota(&mut self, cpu: CpuId, e: EntId, ran: Ns) -> bool {
        let (mut group, mut none_left) = (self.tasks[e.index()].group, false);
        while let Some(of) = self.groups.get_mut(group as usize) {
            group = of.parent;
            let Some(pool) = &mut of.quota else { continue };
            let local = &mut pool.on[cpu.index()];
            local.left -= ran as i64;
            let asks = local.left <= 0 && !local.throttled;
            none_left |= asks && !pool.take(self.clock, cpu.index(), SLICE as i64);
        }
        none_left
    }

    /// The queue of an entity's group has become empty.
    #[cold]
    pub(super) fn give_back(&mut self, group: u32, cpu: u32) {
        let now = self.clock;
        if let Some(pool) = &mut self.groups[group as usize].quota {
            pool.give_back(now, cpu as usize);
        }
    }

    /// Throttles the queues of the entity's groups on `cpu` that have no time left and get none. Returns how many
    /// entities can run no more, and how many of those are SCHED_IDLE.
    #[cold]
    pub(crate) fn throttle(&mut self, cpu: CpuId, e: EntId, wanted: RunsNow) -> Option<(u32, u32)> {
        let (mut group, mut all) = (self.tasks[e.index()].group, None);
        while let Some(of) = self.groups.get(group as usize) {
            let above = of.parent;
            if let Some((n, idle)) = self.throttle_group(cpu, group, wanted) {
                let (others, others_idle) = all.unwrap_or((0, 0));
                all = Some((others + n, others_idle + idle));
            }
            group = above;
        }
        all
    }

    fn throttle_group(&mut self, cpu: CpuId, group: u32, wanted: RunsNow) -> Option<(u32, u32)> {
        self.groups[group as usize].quota.as_ref()?;
        let r = self.group_queue(group, cpu);
        let target = match wanted {
            // A running entity asks for more when it is charged.
            RunsNow::Yes if self.runs_in(r) => return None,
            RunsNow::Yes => SLICE as i64,
            RunsNow::No => 1,
        };
        let pool = self.groups[group as usize].quota.as_mut()?;
        let local = pool.on[cpu.index()];
        if local.throttled || local.left > 0 || pool.take(self.clock, cpu.index(), target) {
            return None;
        }
        pool.on[cpu.index()].throttled = true;
        pool.throttled.push(cpu.0);
        if self.flat {
            return Some(self.hold_tasks(cpu));
        }
        let held = self.runnable(r);
        self.rqs[cpu.index()].tasks -= held.0;
        let g = self.rqs[r].se as usize;
        if self.ses[g].on_rq {
            let above = self.ses[g].rq as usize;
            self.dequeue_se(above, g, Dequeue::Exit);
            self.dequeue_groups(above, Dequeue::Exit, false);
        }
        Some(held)
    }

    /// Lets a throttled queue of the entity's groups on `cpu` run again although it has no time, if there is one.
    /// Returns the group, for [`unthrottle`](Self::unthrottle).
    pub(crate) fn lift(&mut self, cpu: CpuId, e: EntId) -> Option<u32> {
        let (group, _) = self.groups_of(e).find(|(_, group)| group.holds(cpu.0))?;
        let pool = self.groups[group as usize].quota.as_mut()?;
        pool.throttled.retain(|&other| other != cpu.0);
        Some(group)
    }

    /// The queue of a group on `cpu` may run again. Returns how many entities can, and how many of those are
    /// SCHED_IDLE.
    pub(crate) fn unthrottle(&mut self, cpu: CpuId, group: u32) -> (u32, u32) {
        if let Some(pool) = &mut self.groups[group as usize].quota {
            pool.on[cpu.index()].throttled = false;
        }
        if self.flat {
            return self.release_tasks(cpu);
        }
        let r = self.group_queue(group, cpu);
        let back = self.runnable(r);
        if self.rqs[r].nr > 0 {
            self.enqueue_groups(r);
            self.rqs[cpu.index()].tasks += back.0;
        }
        back
    }

    /// Entities of a group's queue, and of the groups on it, that do not sleep and that no group above holds, and how
    /// many of those are SCHED_IDLE.
    fn runnable(&self, r: usize) -> (u32, u32) {
        let mut awake = (0, 0);
        let rq = &self.rqs[r];
        if !self.groups_from(rq.group).skip(1).any(|(_, above)| above.holds(rq.cpu)) {
            self.any_task(r, &mut |se, _| {
                awake.0 += u32::from(!se.delayed);
                awake.1 += u32::from(!se.delayed && se.idle);
                false
            });
        }
        awake
    }

    /// When a quota's timer fires on `cpu`, or [`NEVER`].
    #[inline]
    pub(crate) fn quota_timer(&self, cpu: CpuId) -> Ns {
        if self.quotas { self.first_quota_timer(cpu) } else { NEVER }
    }

    #[cold]
    fn first_quota_timer(&self, cpu: CpuId) -> Ns {
        let pools = self.groups.iter().filter_map(|group| group.quota.as_ref());
        let timers = pools.filter(|pool| pool.timer_cpu == cpu.0).map(|pool| pool.timer());
        timers.min().unwrap_or(NEVER)
    }

    /// A CPU whose quota timer has moved.
    #[cold]
    pub(crate) fn moved_quota_timer(&mut self) -> Option<CpuId> {
        let mut pools = self.groups.iter_mut().filter_map(|group| group.quota.as_mut());
        let pool = pools.find(|pool| pool.moved)?;
        pool.moved = false;
        Some(CpuId(pool.timer_cpu))
    }

    /// Fires the timers of `cpu` that are due. Returns the groups and CPUs of the queues to
    /// [`unthrottle`](Self::unthrottle).
    pub(crate) fn on_quota_timer(&mut self, now: Ns, cpu: CpuId) -> Vec<(u32, CpuId)> {
        let mut all = Vec::new();
        for (i, group) in self.groups.iter_mut().enumerate() {
            let Some(pool) = &mut group.quota else { continue };
            if pool.timer_cpu == cpu.0 {
                let mut back = Vec::new();
                pool.on_timer(now, &mut back);
                all.extend(back.into_iter().map(|cpu| (i as u32, cpu)));
            }
        }
        all
    }

    /// Panics if a throttled queue is queued, or one with runnable entities is not.
    pub(super) fn check_quotas(&self) {
        for (g, group) in self.groups.iter().enumerate() {
            let Some(pool) = &group.quota else { continue };
            for (cpu, local) in pool.on.iter().enumerate() {
                let listed = pool.throttled.contains(&(cpu as u32));
                assert_eq!(local.throttled, listed, "group {g} on CPU {cpu}: throttled");
                let r = self.group_rq[g * self.cpus + cpu];
                if r != NONE && local.throttled {
                    let se = self.rqs[r as usize].se as usize;
                    assert!(!self.ses[se].on_rq, "throttled group {g} is queued on CPU {cpu}");
                }
            }
        }
    }
}
