//! Fair entities and their queues, and how entities get on and off them.

use alloc::vec::Vec;

use super::load::Average;
use super::{FairClass, weight};
use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{Fair, Ns};
use crate::heap::{Heap, NONE};
use crate::{CpuId, EntId};

/// A schedulable entity of the fair class: a task, or a group on one CPU. Its first cache line has what charging and
/// picking use.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Se {
    /// Execution time scaled by weight, in nanoseconds of nice 0. If `relative` and CFS: less the
    /// minimum of the queue it left.
    pub(crate) vruntime: i64,
    /// EEVDF: virtual time at which the current request should be done. If `relative`: less
    /// `vruntime`.
    pub(crate) deadline: i64,
    /// EEVDF, while current: run-to-parity protects it until `vruntime` gets here.
    pub(crate) protect: i64,
    /// Load weight on its queue.
    pub(crate) weight: u64,
    /// Request size.
    pub(crate) slice: Ns,
    /// Execution time since it was switched in.
    pub(crate) ran: Ns,
    /// The queue it is, or was last, on.
    pub(crate) rq: u32,
    /// The queue that it represents, if it is a group's; else [`NONE`].
    pub(crate) owns: u32,
    /// The task that it represents; else [`NONE`].
    pub(crate) ent: u32,
    /// On a queue: waiting, current, or delayed.
    pub(crate) on_rq: bool,
    /// Asleep, but queued while its lag is negative.
    pub(crate) delayed: bool,
    /// The slice was set for the task; it is not the level's.
    pub(crate) custom: bool,
    /// SCHED_IDLE.
    pub(crate) idle: bool,
    /// See `vruntime` and `deadline`.
    pub(crate) relative: bool,
    /// EEVDF, off the queue: its lag when it left, that is the queue's average less `vruntime`.
    pub(crate) vlag: i64,
    /// A task's weight among those of its group: that of its nice value.
    pub(crate) own: u64,
    /// The average of `on_rq`.
    pub(crate) average: Average,
    /// See [`FairClass::by_turn`].
    pub(crate) turn: u64,
    /// The queue whose average load it counts in, also while it sleeps, or [`NONE`].
    pub(crate) counts_in: u32,
}

impl Se {
    pub(crate) fn new(ent: u32, owns: u32, slice: Ns) -> Self {
        Self {
            protect: i64::MIN,
            weight: weight::NICE_0,
            own: weight::NICE_0,
            slice,
            rq: NONE,
            owns,
            ent,
            counts_in: NONE,
            ..Self::default()
        }
    }

    /// EEVDF, for the current entity: whether its protection lasts.
    #[inline]
    pub(crate) fn is_protected(&self) -> bool {
        self.vruntime < self.protect
    }
}

/// The fair queue of a CPU, or of a group on a CPU.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Rq {
    /// Waiting entities: by vruntime (CFS) or by deadline (EEVDF). The current one is not in it.
    pub(crate) heap: Heap,
    /// The running entity, if it is of this queue. It counts as on the queue.
    pub(crate) curr: u32,
    /// The entity that should run next: it caused a preemption (CFS), was yielded to, or is a group of which an entity
    /// went to sleep; see `picks_buddy` for EEVDF.
    pub(crate) next: u32,
    /// CFS: the entity that was preempted, and should run after that.
    pub(crate) last: u32,
    /// CFS: the entity that yielded, and should not run.
    pub(crate) skip: u32,
    /// Entities on the queue, including current and delayed ones.
    pub(crate) nr: u32,
    /// Root: runnable tasks on this queue and those below, without delayed ones.
    pub(crate) tasks: u32,
    /// Of those counted by `nr`, how many have a slice of their own.
    pub(crate) customs: u32,
    /// Never goes back; no entity is placed far below it.
    pub(crate) min_vruntime: i64,
    /// EEVDF: sum over the heap of `(vruntime - min_vruntime) * weight`.
    pub(crate) sum_wv: i128,
    /// EEVDF: sum over the heap of `weight`.
    pub(crate) sum_w: u64,
    /// Weight of all on the queue, with the current. On a root queue that groups share, they and not their tasks count.
    pub(crate) load: u64,
    /// The average of `load`.
    pub(crate) average: Average,
    /// What its group has been told of the average, and when.
    pub(crate) told: u64,
    pub(crate) told_at: Ns,
    /// The group's entity on the queue above; [`NONE`] if this is a root queue.
    pub(crate) se: u32,
    /// Its group.
    pub(crate) group: u32,
    /// Its CPU.
    pub(crate) cpu: u32,
    /// Depth of its group: 0 for a root queue.
    pub(crate) depth: u32,
}

impl Rq {
    pub(crate) fn new(cpu: u32, se: u32, group: u32, depth: u32) -> Self {
        Self {
            curr: NONE,
            next: NONE,
            last: NONE,
            skip: NONE,
            se,
            group,
            cpu,
            depth,
            ..Self::default()
        }
    }
}

impl FairClass {
    /// The entity that represents `s` on the root queue: itself, or that of its outermost group.
    #[inline]
    pub(super) fn root_se(&self, mut s: usize) -> usize {
        while let Some(g) = self.above(s) {
            s = g;
        }
        s
    }

    /// Makes a waiting entity the next buddy of its queue, and its groups the next buddies of theirs.
    pub(crate) fn favour(&mut self, e: EntId) {
        let eevdf = self.is_eevdf();
        self.on_each_queue(self.se_of(e), |rq, s| {
            // A group that runs has its turn already; under CFS it is the one that yields, and goes on for this one.
            if rq.curr != s || !eevdf {
                rq.next = s;
            }
        });
    }

    /// Puts an entity into the heap.
    #[inline]
    pub(super) fn heap_in(&mut self, r: usize, s: usize) {
        let (rq, se) = (&mut self.rqs[r], &self.ses[s]);
        let key = match self.kind {
            Fair::Cfs(_) => se.vruntime,
            Fair::Eevdf(_) => {
                rq.sum_wv += i128::from(se.vruntime - rq.min_vruntime) * i128::from(se.weight);
                rq.sum_w += se.weight;
                se.deadline
            }
        };
        rq.heap.insert(&mut self.pos, s as u32, key, se.vruntime);
    }

    /// Takes an entity out of the heap.
    #[inline]
    pub(super) fn heap_out(&mut self, r: usize, s: usize) {
        let (rq, se) = (&mut self.rqs[r], &self.ses[s]);
        if let Fair::Eevdf(_) = self.kind {
            rq.sum_wv -= i128::from(se.vruntime - rq.min_vruntime) * i128::from(se.weight);
            rq.sum_w -= se.weight;
        }
        rq.heap.remove(&mut self.pos, s as u32);
    }

    /// Raises `min_vruntime` to the smallest vruntime on the queue, and with it the origin of `sum_wv`.
    #[inline]
    pub(super) fn update_min_vruntime(&mut self, r: usize) {
        let rq = &mut self.rqs[r];
        let curr = self.ses.get(rq.curr as usize).map(|se| se.vruntime);
        let min = match (curr, rq.heap.min_vruntime()) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => return,
        };
        if min > rq.min_vruntime {
            rq.sum_wv -= i128::from(min - rq.min_vruntime) * i128::from(rq.sum_w);
            rq.min_vruntime = min;
        }
    }

    /// Puts an entity on a queue, to wait.
    #[inline]
    pub(super) fn enqueue_se(&mut self, r: usize, s: usize, how: Enqueue) {
        self.ses[s].rq = r as u32;
        match self.kind {
            Fair::Cfs(c) => self.place_cfs(r, s, how, &c),
            Fair::Eevdf(t) => self.place_eevdf(r, s, how, &t),
        }
        if !self.flat {
            self.change_load(r, 0, self.ses[s].weight);
        }
        self.rqs[r].nr += 1;
        self.rqs[r].customs += u32::from(self.ses[s].custom);
        self.set_on_rq(s, true);
        self.heap_in(r, s);
        self.update_min_vruntime(r);
    }

    /// Takes an entity off its queue, and the groups around it that become empty off theirs. False if the entity stays
    /// as a delayed sleeper.
    pub(super) fn dequeue_se_up(&mut self, s: usize, how: Dequeue) -> bool {
        let r = self.ses[s].rq as usize;
        let slept = self.ses[s].delayed;
        let left = self.dequeue_se(r, s, how);
        if self.flat {
            self.leave_groups(s, !slept, left);
        } else if left {
            self.dequeue_groups(r, Dequeue::Sleep, how == Dequeue::Sleep);
        }
        left
    }

    pub(super) fn dequeue_se(&mut self, r: usize, s: usize, how: Dequeue) -> bool {
        let is_curr = self.rqs[r].curr == s as u32;
        let was_delayed = self.ses[s].delayed;
        match self.kind {
            Fair::Cfs(_) => {
                if how == Dequeue::Save {
                    self.ses[s].vruntime -= self.rqs[r].min_vruntime;
                    self.ses[s].relative = true;
                }
            }
            Fair::Eevdf(t) => {
                let delay = t.delay_dequeue && how == Dequeue::Sleep && !was_delayed;
                if delay && !self.eligible(r, self.ses[s].vruntime) {
                    self.ses[s].delayed = true;
                    if is_curr {
                        self.put_se(r, s);
                    }
                    return false;
                }
                self.update_lag(r, s, &t);
                let se = &mut self.ses[s];
                if was_delayed {
                    // A sleeper stays queued to lose its negative lag, and gains none.
                    se.vlag = se.vlag.min(0);
                    se.delayed = false;
                }
                if how == Dequeue::Save && t.release.rules().keeps_deadline {
                    se.deadline -= se.vruntime;
                    se.relative = true;
                }
            }
        }
        if is_curr {
            self.rqs[r].curr = NONE;
        } else {
            self.heap_out(r, s);
        }
        self.forget_buddy(r, s);
        self.set_on_rq(s, false);
        self.rqs[r].nr -= 1;
        self.rqs[r].customs -= u32::from(self.ses[s].custom);
        if !self.flat {
            self.change_load(r, self.ses[s].weight, 0);
        }
        self.update_min_vruntime(r);
        true
    }

    /// A delayed sleeper on `r` is runnable again. It loses lag that it gained in its sleep.
    pub(super) fn requeue_delayed(&mut self, r: usize, s: usize) {
        let Fair::Eevdf(t) = self.kind else { return };
        debug_assert!(self.ses[s].delayed && self.rqs[r].curr != s as u32);
        self.update_lag(r, s, &t);
        if self.ses[s].vlag > 0 {
            self.rqs[r].nr -= 1;
            self.heap_out(r, s);
            self.ses[s].vlag = 0;
            self.place_eevdf(r, s, Enqueue::Wakeup, &t);
            self.heap_in(r, s);
            self.rqs[r].nr += 1;
        }
        self.ses[s].delayed = false;
    }

    /// The current entity of `r` goes back to wait.
    #[inline]
    pub(super) fn put_se(&mut self, r: usize, s: usize) {
        self.rqs[r].curr = NONE;
        self.heap_in(r, s);
    }

    /// A waiting entity becomes the current of `r`: it was picked, or was current before.
    #[inline]
    pub(super) fn set_se(&mut self, r: usize, s: usize, picked: bool) {
        debug_assert_eq!(self.rqs[r].curr, NONE);
        self.heap_out(r, s);
        self.forget_buddy(r, s);
        self.rqs[r].curr = s as u32;
        self.ses[s].ran = 0;
        self.renew_weight(s);
        if let Fair::Eevdf(t) = self.kind
            && (picked || !t.release.rules().picked_only)
        {
            self.protect(r, s, &t);
        }
    }

    /// Clears the buddy and skip marks of an entity.
    #[inline]
    pub(super) fn forget_buddy(&mut self, r: usize, s: usize) {
        let rq = &mut self.rqs[r];
        for buddy in [&mut rq.next, &mut rq.last, &mut rq.skip] {
            if *buddy == s as u32 {
                *buddy = NONE;
            }
        }
    }

    /// The current entity of `r` executed. True if it should give way.
    #[inline]
    pub(super) fn charge_se(&mut self, r: usize, s: usize, ran: Ns) -> bool {
        let se = &mut self.ses[s];
        se.vruntime += weight::virtual_time(ran, se.weight);
        se.ran += ran;
        let done = match self.kind {
            Fair::Cfs(_) => false,
            Fair::Eevdf(_) => self.update_deadline(s),
        };
        self.update_min_vruntime(r);
        if done {
            self.forget_buddy(r, s);
        }
        match self.kind {
            Fair::Eevdf(t) if self.rqs[r].nr > 1 => done || self.was_outrun(r, s, &t),
            _ => false,
        }
    }

    /// Sets another weight. The entity keeps its place in CFS, and its lag in EEVDF: what it is owed in nanoseconds
    /// does not change, so its virtual lag is rescaled.
    pub(super) fn reweight(&mut self, s: usize, new: u64) {
        let old = self.ses[s].weight;
        let on_rq = self.ses[s].on_rq;
        let r = self.ses[s].rq as usize;
        if !self.flat {
            self.reweigh_average(s, old, new);
            if on_rq {
                self.change_load(r, old, new);
            }
        }
        let Fair::Eevdf(t) = self.kind else {
            self.ses[s].weight = new;
            return;
        };
        let is_curr = on_rq && self.rqs[r].curr == s as u32;
        let protect = self.ses[s].protect;
        let protected_for =
            (is_curr && protect != i64::MIN).then(|| protect - self.ses[s].vruntime);
        if on_rq {
            self.update_lag(r, s, &t);
            if !is_curr {
                self.heap_out(r, s);
            }
            let se = &mut self.ses[s];
            se.deadline -= se.vruntime;
            se.relative = true;
            self.rqs[r].nr -= 1;
        }
        self.ses[s].weight = new;
        let rescale = |v: i64| (i128::from(v) * i128::from(old) / i128::from(new)) as i64;
        let se = &mut self.ses[s];
        se.vlag = rescale(se.vlag);
        if se.relative {
            se.deadline = rescale(se.deadline);
        }
        if on_rq {
            self.place_eevdf(r, s, Enqueue::Restore, &t);
            if let Some(ns) = protected_for {
                self.ses[s].protect = self.ses[s].vruntime + rescale(ns);
            }
            if !is_curr {
                self.heap_in(r, s);
            }
            self.rqs[r].nr += 1;
            self.update_min_vruntime(r);
        }
    }

    /// Sets or clears a slice of an entity's own.
    pub(super) fn set_slice(&mut self, s: usize, custom: Option<Ns>) {
        let se = &mut self.ses[s];
        if se.on_rq {
            let customs = &mut self.rqs[se.rq as usize].customs;
            *customs = *customs + u32::from(custom.is_some()) - u32::from(se.custom);
        }
        se.custom = custom.is_some();
        se.slice = custom.unwrap_or(self.base_slice);
    }

    /// A delayed sleeper works off the rest of its negative lag on another CPU.
    pub(crate) fn move_delayed(&mut self, e: EntId, to: CpuId) {
        let s = self.se_of(e);
        self.take_load(e);
        self.dequeue_se_up(s, Dequeue::Save);
        self.enqueue(to, e, Enqueue::Restore);
        self.rqs[to.index()].tasks -= 1;
        self.count_awake(s, false);
        self.ses[s].delayed = true;
    }

    /// A task is the last to be moved away from its CPU: it came onto the queue, was picked, or was passed over.
    #[inline]
    pub(crate) fn take_turn(&mut self, s: usize) {
        if self.tracks {
            self.turns += 1;
            self.ses[s].turn = self.turns;
        }
    }

    /// The entities that wait on `cpu`, also delayed sleepers if so wanted, in the order in which balancing looks at
    /// them: what ran last comes last.
    pub(crate) fn by_turn(&self, cpu: CpuId, delayed: bool) -> Vec<EntId> {
        let mut waiting = Vec::new();
        self.any_task(cpu.index(), &mut |se, runs| {
            if !runs && (delayed || !se.delayed) {
                waiting.push(EntId(se.ent));
            }
            false
        });
        waiting.sort_unstable_by_key(|&e| self.turn(e));
        waiting
    }

    #[inline]
    fn turn(&self, e: EntId) -> u64 {
        self.ses[self.se_of(e)].turn
    }

    /// The first of them that satisfies `fits`.
    pub(crate) fn first_by_turn(
        &self,
        cpu: CpuId,
        mut fits: impl FnMut(EntId) -> bool,
    ) -> Option<EntId> {
        let mut first: Option<(u64, EntId)> = None;
        self.any_queued(cpu, |e| {
            let turn = self.turn(e);
            if first.is_none_or(|(least, _)| turn < least) && fits(e) {
                first = Some((turn, e));
            }
            false
        });
        first.map(|(_, e)| e)
    }

    /// Balancing has looked at a waiting entity, and left it.
    pub(crate) fn pass_over(&mut self, e: EntId) {
        self.take_turn(self.se_of(e));
    }
}
