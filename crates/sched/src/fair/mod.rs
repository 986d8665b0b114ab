//! The fair class: CFS as of Linux 6.5, or EEVDF as of a [release](crate::config::EevdfRelease), on the same
//! queues.
//!
//! Every task has a [`Se`]; so has every group on every CPU where it ever had a task. A [`Rq`]
//! orders the Ses of one CPU (root) or of one group on one CPU. Both are numbered: root queue
//! `c` is queue `c`, queues of groups follow in the order in which they were first needed.
//!
//! Virtual times are `i64` nanoseconds that never wrap: at the smallest weight (2 of 1024)
//! virtual time runs 512 times as fast as the clock, which leaves months of simulated time.
//!
//! [`cfs`] and [`eevdf`] have the differences between the two schedulers, [`queue`] how entities get on and off queues,
//! [`load`] averages by which CPUs are compared, [`group`] the weight of groups, and [`flat`] the queue that groups
//! share since Linux 7.3.

mod cfs;
mod check;
mod eevdf;
mod flat;
mod group;
#[cfg(test)]
mod known_answers;
mod load;
mod penalty;
mod pool;
mod queue;
mod quota;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod weight;

use alloc::vec;
use alloc::vec::Vec;

use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{Fair, LevelConfig, Ns, Policy};
use crate::heap::NONE;
use crate::{CpuId, EntId};
use group::Group;
use queue::{Rq, Se};
pub(crate) use quota::RunsNow;

/// Bounds of a custom slice, as `sched_setattr` clamps them.
const SLICE_RANGE: (Ns, Ns) = (100_000, 100_000_000);

/// The fair class's data of an entity of the level.
#[derive(Clone, Copy, Debug)]
struct Task {
    /// Its Se.
    se: u32,
    /// Its group, or [`NONE`].
    group: u32,
}

/// See the module.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct FairClass {
    rqs: Vec<Rq>,
    ses: Vec<Se>,
    tasks: Vec<Task>,
    kind: Fair,
    /// The time of averages.
    pub(crate) clock: Ns,
    /// Heap position of each Se; [`NONE`] if it is not in a heap.
    pos: Vec<u32>,
    base_slice: Ns,
    tick_ns: Ns,
    groups: Vec<Group>,
    /// Whether a group has a quota.
    quotas: bool,
    /// Whether there are groups, and all share the root queue of a CPU.
    flat: bool,
    /// If so: those that wait because a group has used up its quota. They are on no queue.
    held: Vec<EntId>,
    /// `group * cpus + cpu` to queue, [`NONE`] until needed.
    group_rq: Vec<u32>,
    cpus: usize,
    /// Whether there are CPUs to compare by average loads.
    tracks: bool,
    /// How long a queue waits before it tells its group again, and when all queues last told.
    tells_after: Ns,
    all_told_at: Ns,
    /// The last turn that was given ([`Self::take_turn`]).
    turns: u64,
    /// Of each CPU, if directed yields have a penalty.
    penalties: Vec<penalty::PenaltyHistory>,
}

impl FairClass {
    pub(crate) fn new(cfg: &LevelConfig) -> Self {
        let cpus = cfg.topology.cpus() as usize;
        Self {
            kind: cfg.fair,
            clock: 0,
            tick_ns: cfg.tick_ns,
            base_slice: match cfg.fair {
                Fair::Cfs(c) => c.min_granularity_ns,
                Fair::Eevdf(t) => t.base_slice_ns,
            },
            ses: Vec::new(),
            pos: Vec::new(),
            rqs: (0..cpus).map(|c| Rq::new(c as u32, NONE, NONE, 0)).collect(),
            tasks: Vec::new(),
            groups: cfg.groups.iter().map(|&group| Group::new(group, cpus)).collect(),
            quotas: cfg.groups.iter().any(|group| group.quota.is_some()),
            flat: !cfg.groups.is_empty()
                && matches!(cfg.fair, Fair::Eevdf(t) if t.release.rules().flat),
            held: Vec::new(),
            group_rq: vec![NONE; cpus * cfg.groups.len()],
            cpus,
            tracks: cpus > 1,
            tells_after: match cfg.fair {
                Fair::Eevdf(t) if t.release.rules().tells_rarely => 1_000_000,
                _ => 0,
            },
            all_told_at: 0,
            turns: 0,
            penalties: match cfg.fair {
                Fair::Eevdf(t) if t.yield_penalty => vec![penalty::PenaltyHistory::default(); cpus],
                _ => Vec::new(),
            },
        }
    }

    /// See [`Level::prefetch`](crate::Level::prefetch).
    #[cfg(feature = "prefetch")]
    #[inline]
    pub(crate) fn prefetch(&self, cpu: CpuId, e: EntId) {
        use core::slice::from_ref;
        use prefetch_index::prefetch_index;
        prefetch_index(from_ref(&self.kind), 0);
        if let Some(rq) = self.rqs.get(cpu.index()) {
            prefetch_index(from_ref(rq), 0);
            prefetch_index(from_ref(&rq.min_vruntime), 0);
        }
        // Without groups the numbers are the same.
        prefetch_index(&self.ses, e.index());
        prefetch_index(&self.tasks, e.index());
    }

    /// Adds entity number `tasks.len()`, off every queue.
    pub(crate) fn add(&mut self, e: EntId, policy: Policy, group: Option<u16>) {
        debug_assert_eq!(e.index(), self.tasks.len());
        let s = self.new_se(e.0, NONE);
        self.tasks.push(Task { se: s as u32, group: group.map_or(NONE, u32::from) });
        self.ses[s].rq = NONE;
        self.set_policy(e, policy);
    }

    fn new_se(&mut self, ent: u32, owns: u32) -> usize {
        self.ses.push(Se::new(ent, owns, self.base_slice));
        self.pos.push(NONE);
        self.ses.len() - 1
    }

    #[inline]
    pub(crate) fn is_eevdf(&self) -> bool {
        matches!(self.kind, Fair::Eevdf(_))
    }

    #[inline]
    fn se_of(&self, e: EntId) -> usize {
        self.tasks[e.index()].se as usize
    }

    /// Takes weight, slice and SCHED_IDLE from a policy, in any state of the entity. A new slice counts from the next
    /// request on: the pending request keeps its deadline.
    pub(crate) fn set_policy(&mut self, e: EntId, policy: Policy) {
        let s = self.se_of(e);
        let custom = match policy {
            Policy::Normal { slice_ns, .. } => slice_ns,
            _ => None,
        };
        self.set_slice(s, custom.map(|ns| ns.clamp(SLICE_RANGE.0, SLICE_RANGE.1)));
        self.ses[s].idle = policy == Policy::Idle;
        let w = weight::of_policy(policy);
        let old = core::mem::replace(&mut self.ses[s].own, w);
        if w == old {
            return;
        }
        if self.flat {
            return self.own_weight_changed(s, old);
        }
        self.reweight(s, w);
        if self.ses[s].on_rq {
            self.update_group_weights(self.ses[s].rq as usize);
        }
    }

    /// Whether an entity whose nice value or slice changes is taken off its queue for that, and put back.
    pub(crate) fn requeues(&self) -> bool {
        matches!(self.kind, Fair::Eevdf(t) if t.release.rules().picked_only)
    }

    /// Whether a waking entity is compared also if the current one was asked to give way before.
    #[inline]
    pub(crate) fn always_compares(&self) -> bool {
        matches!(self.kind, Fair::Eevdf(t) if t.release.rules().short_goes_next && t.preempt_short)
    }

    /// Whether the entity sleeps but is still queued, to work off its negative lag.
    #[inline]
    pub(crate) fn is_delayed(&self, e: EntId) -> bool {
        self.ses[self.se_of(e)].delayed
    }

    /// A delayed sleeper wakes: it is runnable where it is.
    pub(crate) fn wake_delayed(&mut self, e: EntId) {
        let s = self.se_of(e);
        let r = self.ses[s].rq as usize;
        self.requeue_delayed(r, s);
        self.count_awake(s, true);
        let cpu = self.rqs[r].cpu;
        if !self.is_held(e, CpuId(cpu)) {
            self.rqs[cpu as usize].tasks += 1;
        }
    }

    /// A delayed sleeper leaves its queue at once (it changes class, moves or exits).
    pub(crate) fn forget_delayed(&mut self, e: EntId) {
        let s = self.se_of(e);
        if self.ses[s].delayed {
            self.dequeue_se_up(s, Dequeue::Sleep);
        }
    }

    /// A blocked entity will wake on another CPU than the one it slept on. CFS has to make its virtual time relative to
    /// each queue's minimum; EEVDF keeps a lag, which is relative.
    pub(crate) fn migrate_blocked(&mut self, e: EntId) {
        let s = self.se_of(e);
        if !self.is_eevdf() && self.ses[s].rq != NONE && !self.ses[s].relative {
            let min = self.rqs[self.ses[s].rq as usize].min_vruntime;
            self.ses[s].vruntime -= min;
            self.ses[s].relative = true;
        }
    }

    /// Runnable entities on `cpu`, without delayed sleepers.
    pub(crate) fn tasks(&self, cpu: CpuId) -> u32 {
        self.rqs[cpu.index()].tasks
    }

    /// Whether sleepers are still queued on `cpu`, for their negative lag.
    pub(crate) fn has_delayed(&self, cpu: CpuId) -> bool {
        if !matches!(self.kind, Fair::Eevdf(t) if t.delay_dequeue) {
            return false;
        }
        self.any_task(cpu.index(), &mut |se, _| se.delayed)
    }

    /// Whether a timer ends requests.
    #[inline]
    pub(crate) fn has_hrtick(&self) -> bool {
        matches!(self.kind, Fair::Eevdf(t) if t.hrtick)
    }

    /// Execution that is left to the current entity until its deadline; `None` if no other entity, not even a delayed
    /// sleeper, is queued on its CPU.
    pub(crate) fn left_beside_others(&self, e: EntId) -> Option<Ns> {
        let s = self.se_of(e);
        let path = core::iter::successors(Some(s), |&s| self.above(s));
        path.map(|s| &self.rqs[self.ses[s].rq as usize]).find(|rq| rq.nr > 1)?;
        let se = &self.ses[s];
        let left = u64::try_from(se.deadline - se.vruntime).unwrap_or(0);
        Some(weight::real_time(left, se.weight))
    }

    /// Visits the tasks of a queue and of the groups on it, those of the current entity last, until `visit` returns
    /// true. Its second argument is whether the task is the current one of its queue.
    fn any_task(&self, r: usize, visit: &mut impl FnMut(&Se, bool) -> bool) -> bool {
        let rq = &self.rqs[r];
        let curr = (rq.curr != NONE).then_some(rq.curr);
        let queued = rq.heap.nodes().iter().rev().map(|n| n.se);
        queued.chain(curr).any(|s| {
            let se = &self.ses[s as usize];
            match se.owns {
                NONE => visit(se, s == rq.curr),
                own => self.any_task(own as usize, visit),
            }
        })
    }

    /// Visits runnable entities that wait on `cpu`, least urgent ones first (roughly), until
    /// `visit` returns true.
    pub(crate) fn any_queued(&self, cpu: CpuId, mut visit: impl FnMut(EntId) -> bool) -> bool {
        self.any_task(cpu.index(), &mut |se, runs| !runs && !se.delayed && visit(EntId(se.ent)))
    }

    /// The entity among those waiting on `cpu` that satisfy `fits` with the least virtual time where two share a queue.
    pub(crate) fn first(&self, cpu: CpuId, fits: impl Fn(EntId) -> bool) -> Option<EntId> {
        let mut least: Option<EntId> = None;
        self.any_queued(cpu, |e| {
            let had_less = |other| {
                let (s, p) = self.matching(self.se_of(e), self.se_of(other));
                self.ses[s].vruntime < self.ses[p].vruntime
            };
            if fits(e) && least.is_none_or(had_less) {
                least = Some(e);
            }
            false
        });
        least
    }

    /// The virtual time that a queued entity, or its outermost group, has had on its CPU's queue.
    pub(crate) fn vruntime(&self, e: EntId) -> i64 {
        self.ses[self.root_se(self.se_of(e))].vruntime
    }

    /// The origin of virtual times on a CPU's queue.
    pub(crate) fn virtual_time(&self, cpu: CpuId) -> i64 {
        match self.kind {
            Fair::Cfs(_) => self.rqs[cpu.index()].min_vruntime,
            Fair::Eevdf(_) => self.avg_vruntime(cpu.index()),
        }
    }

    /// Whether the current entity, alone on its CPU, has used what `sharers` would have of its slice.
    pub(crate) fn used_alone(&self, cpu: CpuId, e: EntId, sharers: u64) -> bool {
        let s = self.se_of(e);
        let slice = match self.kind {
            Fair::Cfs(c) => self.slice_cfs(self.ses[s].rq as usize, s, &c),
            Fair::Eevdf(_) => self.ses[s].slice,
        };
        self.rqs[cpu.index()].nr == 1 && self.ses[s].ran * sharers > slice
    }

    /// A running entity that was taken off its queue and put back is current again, without having been picked.
    pub(crate) fn resume(&mut self, cpu: CpuId, e: EntId) {
        self.make_current(cpu, e, false);
    }

    #[inline]
    fn make_current(&mut self, cpu: CpuId, e: EntId, picked: bool) {
        let mut s = self.se_of(e);
        self.take_turn(s);
        if picked {
            self.tell_up(self.own_queue(s) as usize);
        }
        self.set_se(self.ses[s].rq as usize, s, picked);
        while let Some(g) = self.above(s) {
            let r = self.ses[g].rq as usize;
            if self.rqs[r].curr == g as u32 {
                return;
            }
            self.set_se(r, g, picked);
            s = g;
        }
        debug_assert_eq!(self.ses[s].rq, cpu.0);
    }

    /// The queue a task of this group uses on `cpu`.
    fn rq_for(&mut self, e: EntId, cpu: CpuId) -> usize {
        match self.tasks[e.index()].group {
            NONE => cpu.index(),
            g => self.group_queue(g, cpu),
        }
    }
}

impl Class for FairClass {
    fn enqueue(&mut self, cpu: CpuId, e: EntId, how: Enqueue) {
        if self.flat {
            return self.enqueue_flat(cpu, e, how);
        }
        let s = self.se_of(e);
        let r = self.rq_for(e, cpu);
        self.ses[s].rq = r as u32;
        self.rqs[cpu.index()].tasks += u32::from(!self.is_held(e, cpu));
        self.attach(s, r, how);
        self.enqueue_se(r, s, how);
        self.enqueue_groups(r);
    }

    fn dequeue(&mut self, cpu: CpuId, e: EntId, how: Dequeue) -> bool {
        let s = self.se_of(e);
        let mut left = self.flat && self.forget_held(e);
        if !left {
            self.rqs[cpu.index()].tasks -= u32::from(!self.is_held(e, cpu));
            left = self.dequeue_se_up(s, how);
        }
        if how != Dequeue::Sleep {
            self.take_load(e);
        }
        left
    }

    #[inline]
    fn pick(&mut self, cpu: CpuId) -> Option<EntId> {
        'again: loop {
            let mut r = cpu.index();
            loop {
                if self.rqs[r].nr == 0 {
                    debug_assert_eq!(r, cpu.index(), "an empty group is not queued");
                    return None;
                }
                let s = match self.kind {
                    Fair::Cfs(c) => self.pick_cfs(r, &c),
                    Fair::Eevdf(t) => {
                        self.buddy(r, &t).unwrap_or_else(|| self.pick_eevdf(r, &t, true))
                    }
                };
                let se = &self.ses[s];
                if se.delayed {
                    // Nothing is owed any more: the sleeper leaves, and we look again.
                    self.dequeue_se_up(s, Dequeue::Sleep);
                    continue 'again;
                }
                if se.owns == NONE {
                    return Some(EntId(se.ent));
                }
                r = se.owns as usize;
            }
        }
    }

    #[inline]
    fn put_prev(&mut self, _: CpuId, prev: EntId, next: Option<EntId>) {
        let first = self.se_of(prev);
        // A group that keeps the CPU keeps its slice, whichever of its tasks runs.
        let last = match next.map(|next| self.se_of(next)) {
            Some(next) => self.matching(first, next).0,
            None => self.root_se(first),
        };
        let mut at = Some(first);
        while let Some(s) = at {
            let r = self.ses[s].rq as usize;
            if self.rqs[r].curr == s as u32 {
                self.put_se(r, s);
            }
            at = self.above(s).filter(|_| s != last);
        }
    }

    #[inline]
    fn set_next(&mut self, cpu: CpuId, e: EntId) {
        self.make_current(cpu, e, true);
    }

    #[inline]
    fn charge(&mut self, _: CpuId, e: EntId, ran: Ns) -> bool {
        let mut s = self.se_of(e);
        let mut resched = self.charge_se(self.ses[s].rq as usize, s, ran);
        while let Some(g) = self.above(s) {
            resched |= self.charge_se(self.ses[g].rq as usize, g, ran);
            s = g;
        }
        resched
    }

    fn tick(&mut self, _: CpuId, e: EntId) -> bool {
        let s = self.se_of(e);
        self.update_group_weights(self.own_queue(s) as usize);
        self.renew_weight(s);
        let Fair::Cfs(c) = self.kind else {
            return false;
        };
        let (mut at, mut ends) = (Some(s), false);
        while let Some(s) = at {
            ends |= self.tick_cfs(self.ses[s].rq as usize, s, &c);
            at = self.above(s);
        }
        ends
    }

    #[inline]
    fn check_preempt(&mut self, cpu: CpuId, curr: EntId, woken: EntId) -> bool {
        let (s, p) = (self.se_of(curr), self.se_of(woken));
        let own = self.ses[s].rq as usize;
        let (curr_idle, woken_idle) = (self.ses[s].idle, self.ses[p].idle);
        let (s, p) = self.matching(s, p);
        let r = self.ses[s].rq as usize;
        debug_assert!(r == cpu.index() || self.rqs[r].cpu == cpu.0);
        if curr_idle && !woken_idle {
            // SCHED_IDLE gives way to anything else, protected or not.
            self.ses[s].protect = i64::MIN;
            return true;
        }
        if woken_idle {
            return false;
        }
        match self.kind {
            Fair::Cfs(c) => self.preempts_cfs(r, s, p, self.is_long(own, &c), &c),
            Fair::Eevdf(t) => {
                let wins = self.preempts_eevdf(r, s, p, &t);
                if wins && self.goes_next(r, s, p, &t) {
                    self.favour(woken);
                }
                wins
            }
        }
    }

    fn yield_current(&mut self, cpu: CpuId, e: EntId) {
        if self.rqs[cpu.index()].tasks == 1 && !self.has_delayed(cpu) {
            return;
        }
        let s = self.se_of(e);
        match self.kind {
            // The groups that it is of are passed over as well (`set_skip_buddy`).
            Fair::Cfs(_) => self.on_each_queue(s, |rq, s| rq.skip = s),
            Fair::Eevdf(t) => self.yield_eevdf(self.ses[s].rq as usize, s, &t),
        }
    }
}
