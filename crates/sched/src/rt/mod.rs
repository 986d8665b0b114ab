//! The real-time class: SCHED_FIFO and SCHED_RR.
//!
//! 99 priorities with a list each, and a bitmap of the lists that are not empty. Within a priority the order is first
//! in, first out; a preempted entity waits at the head, one that yields or used up a round-robin slice at the tail.

mod cpupri;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{LevelConfig, Ns, Policy};
use crate::heap::NONE;
use crate::{CpuId, CpuSet, EntId};
pub(crate) use cpupri::{CpuPri, DEADLINE};

/// Priorities, with 0 for "no RT".
pub(crate) const PRIOS: usize = 100;

#[derive(Clone, Debug)]
struct RtEnt {
    next: u32,
    prev: u32,
    /// Remaining round-robin slice. Each tick takes a whole tick from it, as in the kernel.
    left: Ns,
    prio: u8,
    rr: bool,
    /// For the current entity: it goes to the tail when it leaves the CPU.
    tail: bool,
    /// May run on more than one CPU.
    movable: bool,
}

#[derive(Clone, Debug)]
struct RtRq {
    /// Bit `p`: list `p` is not empty.
    bitmap: u128,
    /// Head and tail of each list.
    lists: Box<[(u32, u32); PRIOS]>,
    curr: u32,
    /// Waiting entities that may run elsewhere.
    movable: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct RtClass {
    rr_slice: Ns,
    tick_ns: Ns,
    ents: Vec<RtEnt>,
    rqs: Vec<RtRq>,
    /// CPUs where a movable entity waits.
    overloaded: CpuSet,
}

impl RtClass {
    pub(crate) fn new(cfg: &LevelConfig) -> Self {
        let rq = RtRq { bitmap: 0, lists: Box::new([(NONE, NONE); PRIOS]), curr: NONE, movable: 0 };
        Self {
            rr_slice: cfg.rr_slice_ns,
            tick_ns: cfg.tick_ns,
            ents: Vec::new(),
            rqs: (0..cfg.topology.cpus()).map(|_| rq.clone()).collect(),
            overloaded: CpuSet::EMPTY,
        }
    }

    pub(crate) fn add(&mut self, e: EntId, policy: Policy, movable: bool) {
        debug_assert_eq!(e.index(), self.ents.len());
        let left = self.rr_slice;
        self.ents.push(RtEnt {
            next: NONE,
            prev: NONE,
            left,
            prio: 0,
            rr: false,
            tail: false,
            movable,
        });
        self.set_policy(e, policy);
    }

    /// Takes priority and kind from an RT policy. The entity must not be in a list.
    pub(crate) fn set_policy(&mut self, e: EntId, policy: Policy) {
        let ent = &mut self.ents[e.index()];
        let (prio, rr) = match policy {
            Policy::Fifo(p) => (p, false),
            Policy::Rr(p) => (p, true),
            Policy::Normal { .. } | Policy::Idle | Policy::Deadline { .. } => return,
        };
        ent.prio = prio.clamp(1, 99);
        if rr != ent.rr {
            ent.rr = rr;
            ent.left = self.rr_slice;
        }
    }

    /// Whether the entity, waiting on `queued` if given, may run on more than one CPU.
    pub(crate) fn set_movable(&mut self, e: EntId, movable: bool, queued: Option<CpuId>) {
        let was = core::mem::replace(&mut self.ents[e.index()].movable, movable);
        if let Some(cpu) = queued {
            self.rqs[cpu.index()].movable -= u32::from(was);
            self.rqs[cpu.index()].movable += u32::from(movable);
            self.update_overloaded(cpu);
        }
    }

    #[inline]
    pub(crate) fn prio(&self, e: EntId) -> u8 {
        self.ents[e.index()].prio
    }

    #[inline]
    pub(crate) fn is_movable(&self, e: EntId) -> bool {
        self.ents[e.index()].movable
    }

    /// Best waiting priority; 0 if no entity waits.
    #[inline]
    pub(crate) fn waiting(&self, cpu: CpuId) -> u8 {
        // Bit 0 is never set, so an empty bitmap gives 0 as well.
        (127 - (self.rqs[cpu.index()].bitmap | 1).leading_zeros()) as u8
    }

    /// Best priority on the CPU, waiting or current; 0 if there is none.
    #[inline]
    pub(crate) fn highest(&self, cpu: CpuId) -> u8 {
        let rq = &self.rqs[cpu.index()];
        let curr = self.ents.get(rq.curr as usize).map_or(0, |e| e.prio);
        curr.max(self.waiting(cpu))
    }

    /// CPUs where an entity waits that could run elsewhere.
    #[inline]
    pub(crate) fn overloaded(&self) -> &CpuSet {
        &self.overloaded
    }

    #[inline]
    fn update_overloaded(&mut self, cpu: CpuId) {
        if self.rqs[cpu.index()].movable > 0 {
            self.overloaded.insert(cpu);
        } else {
            self.overloaded.remove(cpu);
        }
    }

    /// The most urgent waiting entity that may move and satisfies `fits`.
    pub(crate) fn movable(&self, cpu: CpuId, fits: impl Fn(EntId) -> bool) -> Option<EntId> {
        self.first(cpu, |e| self.is_movable(e) && fits(e))
    }

    /// The most urgent waiting entity that satisfies `fits`.
    pub(crate) fn first(&self, cpu: CpuId, fits: impl Fn(EntId) -> bool) -> Option<EntId> {
        let rq = &self.rqs[cpu.index()];
        let mut left = rq.bitmap;
        while left != 0 {
            let p = 127 - left.leading_zeros();
            left &= !(1 << p);
            let mut e = rq.lists[p as usize].0;
            while e != NONE {
                if fits(EntId(e)) {
                    return Some(EntId(e));
                }
                e = self.ents[e as usize].next;
            }
        }
        None
    }

    /// A waiting entity goes before the current one of equal priority.
    pub(crate) fn pass(&mut self, cpu: CpuId, curr: EntId, waiting: EntId) {
        self.unlink(cpu, waiting);
        self.link(cpu, waiting, true);
        self.ents[curr.index()].tail = true;
    }

    fn link(&mut self, cpu: CpuId, e: EntId, head: bool) {
        let rq = &mut self.rqs[cpu.index()];
        let ent = &mut self.ents[e.index()];
        ent.tail = false;
        rq.movable += u32::from(ent.movable);
        let p = usize::from(ent.prio);
        rq.bitmap |= 1 << p;
        let (first, last) = rq.lists[p];
        if first == NONE {
            (ent.prev, ent.next) = (NONE, NONE);
            rq.lists[p] = (e.0, e.0);
        } else if head {
            (ent.prev, ent.next) = (NONE, first);
            self.ents[first as usize].prev = e.0;
            rq.lists[p].0 = e.0;
        } else {
            (ent.prev, ent.next) = (last, NONE);
            self.ents[last as usize].next = e.0;
            rq.lists[p].1 = e.0;
        }
        self.update_overloaded(cpu);
    }

    fn unlink(&mut self, cpu: CpuId, e: EntId) {
        let rq = &mut self.rqs[cpu.index()];
        let ent = &self.ents[e.index()];
        let (prev, next, p) = (ent.prev, ent.next, usize::from(ent.prio));
        rq.movable -= u32::from(ent.movable);
        match prev {
            NONE => rq.lists[p].0 = next,
            prev => self.ents[prev as usize].next = next,
        }
        match next {
            NONE => rq.lists[p].1 = prev,
            next => self.ents[next as usize].prev = prev,
        }
        if rq.lists[p].0 == NONE {
            rq.bitmap &= !(1 << p);
        }
        self.update_overloaded(cpu);
    }

    /// Panics if lists, bitmap and counts disagree; returns the waiting entities.
    pub(crate) fn check(&self, cpu: CpuId) -> Vec<EntId> {
        let rq = &self.rqs[cpu.index()];
        let mut all = Vec::new();
        for (p, &(first, last)) in rq.lists.iter().enumerate() {
            assert_eq!(rq.bitmap >> p & 1 != 0, first != NONE, "bitmap of priority {p}");
            let (mut prev, mut e) = (NONE, first);
            while e != NONE {
                let ent = &self.ents[e as usize];
                assert_eq!((ent.prev, usize::from(ent.prio)), (prev, p), "list {p}");
                all.push(EntId(e));
                (prev, e) = (e, ent.next);
            }
            assert_eq!(prev, last, "tail of list {p}");
        }
        let movable = all.iter().filter(|e| self.is_movable(**e)).count();
        assert_eq!(movable as u32, rq.movable, "movable entities");
        assert_eq!(movable > 0, self.overloaded.contains(cpu), "overloaded CPUs");
        all
    }
}

impl Class for RtClass {
    fn enqueue(&mut self, cpu: CpuId, e: EntId, how: Enqueue) {
        self.link(cpu, e, how == Enqueue::RestoreHead);
    }

    fn dequeue(&mut self, cpu: CpuId, e: EntId, _how: Dequeue) -> bool {
        if self.rqs[cpu.index()].curr == e.0 {
            self.rqs[cpu.index()].curr = NONE;
        } else {
            self.unlink(cpu, e);
        }
        true
    }

    #[inline]
    fn pick(&mut self, cpu: CpuId) -> Option<EntId> {
        let top = self.waiting(cpu);
        let rq = &self.rqs[cpu.index()];
        if let Some(curr) = self.ents.get_mut(rq.curr as usize)
            && (curr.prio > top || curr.prio == top && !curr.tail)
        {
            curr.tail = false;
            return Some(EntId(rq.curr));
        }
        (top > 0).then(|| EntId(rq.lists[usize::from(top)].0))
    }

    fn put_prev(&mut self, cpu: CpuId, prev: EntId, _next: Option<EntId>) {
        if self.rqs[cpu.index()].curr == prev.0 {
            self.rqs[cpu.index()].curr = NONE;
            let head = !self.ents[prev.index()].tail;
            self.link(cpu, prev, head);
        }
    }

    fn set_next(&mut self, cpu: CpuId, e: EntId) {
        self.unlink(cpu, e);
        self.rqs[cpu.index()].curr = e.0;
    }

    fn charge(&mut self, _cpu: CpuId, _e: EntId, _ran: Ns) -> bool {
        false
    }

    fn tick(&mut self, cpu: CpuId, e: EntId) -> bool {
        let ent = &mut self.ents[e.index()];
        if !ent.rr {
            return false;
        }
        ent.left = ent.left.saturating_sub(self.tick_ns);
        if ent.left > 0 {
            return false;
        }
        ent.left = self.rr_slice;
        let peers = self.rqs[cpu.index()].lists[usize::from(ent.prio)].0 != NONE;
        ent.tail = peers;
        peers
    }

    #[inline]
    fn check_preempt(&mut self, _cpu: CpuId, curr: EntId, woken: EntId) -> bool {
        self.prio(woken) > self.prio(curr)
    }

    fn yield_current(&mut self, _cpu: CpuId, e: EntId) {
        self.ents[e.index()].tail = true;
    }
}
