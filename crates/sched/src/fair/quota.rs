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
//! simulated host spends no time in its kernel for which this would make a difference.

use alloc::vec;
use alloc::vec::Vec;

use super::FairClass;
use super::group::Group;
use crate::class::Dequeue;
use crate::config::{Ns, Quota};
use crate::dl::NEVER;
use crate::heap::NONE;
use crate::{CpuId, EntId};

/// What a queue takes at once (`sched_cfs_bandwidth_slice_us`).
const SLICE: Ns = 5_000_000;
/// Time that an empty queue keeps (`min_cfs_rq_runtime`).
const KEPT: i64 = 1_000_000;
/// Delay until returned time is distributed (`cfs_bandwidth_slack_period`).
const SLACK_DELAY: Ns = 5_000_000;
/// No distribution within this time before the end of a period (`min_bandwidth_expiration`).
const SHORTLY: Ns = 2_000_000;

/// The quota of a group.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    quota: Quota,
    /// Time that queues may still take.
    left: Ns,
    /// End of the current period, or of the last one in which an entity was runnable.
    ends: Ns,
    /// Whether its timer runs.
    active: bool,
    /// No queue has taken time since the last period began.
    unused: bool,
    /// When returned time is distributed, or [`NEVER`].
    slack_at: Ns,
    /// The CPU that has the timers, and whether they have moved since the last query.
    timer_cpu: u32,
    moved: bool,
    /// CPUs of throttled queues, in the order in which they were throttled.
    throttled: Vec<u32>,
    /// What the queue on each CPU has left.
    on: Vec<Local>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Local {
    /// Negative: it ran for longer than it had time.
    left: i64,
    throttled: bool,
}

/// Why a queue is checked: an entity is about to run on it, so that it takes a slice; or an entity was put aside there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Yes,
    No,
}

impl Pool {
    pub(super) fn new(quota: Quota, cpus: usize) -> Self {
        Self {
            quota,
            left: quota.runtime_ns,
            ends: quota.phase_ns,
            active: false,
            unused: true,
            slack_at: NEVER,
            timer_cpu: 0,
            moved: false,
            throttled: Vec::new(),
            on: vec![Local::default(); cpus],
        }
    }

    /// Whether the queue of `cpu` is throttled.
    #[inline]
    pub(super) fn holds(&self, cpu: u32) -> bool {
        self.on[cpu as usize].throttled
    }

    /// Gives the queue of `cpu` time until it has `target`, as far as there is any (`__assign_cfs_rq_runtime`). Returns
    /// whether the queue may run.
    fn take(&mut self, now: Ns, cpu: usize, target: i64) -> bool {
        if !self.active {
            self.active = true;
            let passed = (now + self.quota.period_ns).saturating_sub(self.ends);
            self.ends += passed / self.quota.period_ns * self.quota.period_ns;
            (self.timer_cpu, self.moved) = (cpu as u32, true);
        }
        let local = &mut self.on[cpu];
        let given = self.left.min((target - local.left).max(0) as Ns);
        self.left -= given;
        local.left += given as i64;
        self.unused &= given == 0;
        local.left > 0
    }

    /// An empty queue returns its time, except a little (`__return_cfs_rq_runtime`).
    fn give_back(&mut self, now: Ns, cpu: usize) {
        let slack = self.on[cpu].left - KEPT;
        if slack <= 0 {
            return;
        }
        self.on[cpu].left = KEPT;
        self.left += slack as Ns;
        let late = self.ends.saturating_sub(now) <= SLACK_DELAY + SHORTLY;
        if self.left > SLICE && !self.throttled.is_empty() && !late && self.slack_at == NEVER {
            (self.slack_at, self.moved) = (now + SLACK_DELAY, true);
        }
    }

    /// Its timer fires: at the end of a period, or to distribute returned time. Adds CPUs whose queues may run again to
    /// `back`.
    fn on_timer(&mut self, now: Ns, back: &mut Vec<CpuId>) {
        if self.slack_at <= now {
            self.slack_at = NEVER;
            if self.ends.saturating_sub(now) > SHORTLY && self.left > SLICE {
                self.distribute(back);
            }
        }
        if !self.active || self.ends > now {
            return;
        }
        let Quota { runtime_ns, period_ns, burst_ns, .. } = self.quota;
        self.ends += ((now - self.ends) / period_ns + 1) * period_ns;
        self.left = (self.left + runtime_ns).min(runtime_ns + burst_ns);
        self.active = !self.unused || !self.throttled.is_empty();
        self.unused = self.throttled.is_empty();
        self.distribute(back);
    }

    /// Gives throttled queues the time that they owe, and a nanosecond (`distribute_cfs_runtime`).
    fn distribute(&mut self, back: &mut Vec<CpuId>) {
        let (on, left) = (&mut self.on, &mut self.left);
        self.throttled.retain(|&cpu| {
            let local = &mut on[cpu as usize];
            let given = (*left).min((1 - local.left) as Ns);
            *left -= given;
            local.left += given as i64;
            if local.left > 0 {
                back.push(CpuId(cpu));
            }
            local.left <= 0
        });
    }

    /// When its timer fires, or [`NEVER`].
    fn timer(&self) -> Ns {
        if self.active { self.ends.min(self.slack_at) } else { NEVER }
    }
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
    fn groups_of(&self, e: EntId) -> impl Iterator<Item = (u32, &Group)> {
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
    pub(crate) fn throttle(&mut self, cpu: CpuId, e: EntId, wanted: Wanted) -> Option<(u32, u32)> {
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

    fn throttle_group(&mut self, cpu: CpuId, group: u32, wanted: Wanted) -> Option<(u32, u32)> {
        self.groups[group as usize].quota.as_ref()?;
        let r = self.group_queue(group, cpu);
        let target = match wanted {
            // A running entity asks for more when it is charged.
            Wanted::Yes if self.rqs[r].curr != NONE => return None,
            Wanted::Yes => SLICE as i64,
            Wanted::No => 1,
        };
        let pool = self.groups[group as usize].quota.as_mut()?;
        let local = pool.on[cpu.index()];
        if local.throttled || local.left > 0 || pool.take(self.clock, cpu.index(), target) {
            return None;
        }
        pool.on[cpu.index()].throttled = true;
        pool.throttled.push(cpu.0);
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
