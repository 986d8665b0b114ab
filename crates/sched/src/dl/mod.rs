//! The deadline class: SCHED_DEADLINE, earliest deadline first.
//!
//! Each CPU has a list of the entities that wait, in the order of their absolute deadlines, and of their arrival if
//! these are equal. It has another list of entities that are *held*: runnable, but throttled by their own
//! [server](cbs) until their next period begins. The lists are short, so they are plain arrays.
//!
//! The end of the current entity's runtime is noticed at a tick or a switch. The kernel also has a timer for it, the
//! feature HRTICK_DL, which is off by default before 7.1; here it is [`DlConfig::hrtick`].
//!
//! Differences from the kernel:
//!
//! - An equal deadline never preempts. In the kernel it does if only the running entity could go elsewhere.
//! - A throttled entity that returns to the class after its period has ended is replenished then. In the kernel the
//!   timer that should do this finds it outside the class.
//! - Unused bandwidth is not given to others (SCHED_FLAG_RECLAIM).

mod admission;
mod cbs;

use alloc::vec::Vec;

use crate::class::{Class, Dequeue, Enqueue};
use crate::config::{DlConfig, LevelConfig, Ns, Policy};
use crate::heap::NONE;
use crate::{CpuId, CpuSet, EntId, Refusal};
use admission::Admission;
pub use admission::check_reservation;
use cbs::Cbs;

/// "No deadline", "no timer": later than all.
pub(crate) const NEVER: Ns = Ns::MAX;

#[derive(Clone, Debug, Default)]
struct DlEnt {
    cbs: Cbs,
    /// Order of arrival on its queue.
    seq: u64,
    /// May run on more than one CPU.
    movable: bool,
}

/// A waiting entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    due: Ns,
    seq: u64,
    e: u32,
}

#[derive(Clone, Debug)]
struct DlRq {
    /// By deadline, earliest first.
    waiting: Vec<Waiter>,
    /// Throttled.
    held: Vec<u32>,
    curr: u32,
    /// Waiting entities that may run elsewhere.
    movable: u32,
    /// Earliest deadline of an entity that may run, current or waiting.
    earliest: Ns,
    /// When the runtime of the current entity is used up, if there is a timer for that.
    exhausted: Ns,
    /// When [`DlClass::on_timer`] is due.
    timer: Ns,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct DlClass {
    hrtick: bool,
    ents: Vec<DlEnt>,
    rqs: Vec<DlRq>,
    seq: u64,
    /// CPUs where a movable entity waits.
    overloaded: CpuSet,
    /// CPUs without entities of this class that may run.
    free: CpuSet,
    admission: Admission,
}

impl DlClass {
    pub(crate) fn new(cfg: &LevelConfig) -> Self {
        let DlConfig { admission, hrtick } = cfg.dl;
        let cpus = cfg.topology.cpus();
        let rq = DlRq {
            waiting: Vec::new(),
            held: Vec::new(),
            curr: NONE,
            movable: 0,
            earliest: NEVER,
            exhausted: NEVER,
            timer: NEVER,
        };
        Self {
            hrtick,
            ents: Vec::new(),
            rqs: (0..cpus).map(|_| rq.clone()).collect(),
            seq: 0,
            overloaded: CpuSet::EMPTY,
            free: CpuSet::first_n(cpus),
            admission: Admission::new(admission, cfg.rt_guard, cpus),
        }
    }

    pub(crate) fn add(&mut self, e: EntId, movable: bool) {
        debug_assert_eq!(e.index(), self.ents.len());
        self.ents.push(DlEnt { movable, ..DlEnt::default() });
    }

    /// Whether the kernel would let the entity change to this policy, at `now`, with this affinity. If so, reserves its
    /// bandwidth. Does nothing for other policies.
    pub(crate) fn admit(
        &mut self,
        now: Ns,
        e: EntId,
        policy: Policy,
        allowed: &CpuSet,
    ) -> Result<(), Refusal> {
        let Policy::Deadline { runtime_ns, deadline_ns, period_ns } = policy else { return Ok(()) };
        check_reservation(runtime_ns, deadline_ns, period_ns)?;
        let ents = &mut self.ents;
        self.admission.expire(now, |gone| {
            if let Some(ent) = ents.get_mut(gone.index()) {
                ent.cbs.forget();
            }
        });
        self.admission.enter(e, (runtime_ns, period_ns), allowed)
    }

    /// Whether an entity of the class may be confined to some CPUs.
    pub(crate) fn may_confine(&self) -> bool {
        !self.admission.is_on()
    }

    /// Sets the parameters of an admitted policy. The entity must not be in a list.
    pub(crate) fn set_policy(&mut self, e: EntId, policy: Policy) {
        if let Policy::Deadline { runtime_ns, deadline_ns, period_ns } = policy {
            self.ents[e.index()].cbs.set_params(runtime_ns, deadline_ns, period_ns);
        }
    }

    /// The entity has another policy from now on, or exits.
    pub(crate) fn left(&mut self, e: EntId) {
        self.admission.leave(e, self.ents[e.index()].cbs.zero_lag());
    }

    /// Whether the entity, waiting on `queued` if given, may run on more than one CPU.
    pub(crate) fn set_movable(&mut self, e: EntId, movable: bool, queued: Option<CpuId>) {
        let was = core::mem::replace(&mut self.ents[e.index()].movable, movable);
        if let Some(cpu) = queued.filter(|_| !self.is_held(e)) {
            let rq = &mut self.rqs[cpu.index()];
            rq.movable = rq.movable - u32::from(was) + u32::from(movable);
            self.refresh(cpu);
        }
    }

    /// The entity becomes runnable after a sleep: applies the wake-up rule.
    pub(crate) fn wake(&mut self, now: Ns, e: EntId) {
        self.ents[e.index()].cbs.wake(now);
    }

    /// The entity joins the class, or has new parameters, while runnable.
    pub(crate) fn join(&mut self, now: Ns, e: EntId) {
        self.ents[e.index()].cbs.join(now);
    }

    #[inline]
    pub(crate) fn due(&self, e: EntId) -> Ns {
        self.ents[e.index()].cbs.due()
    }

    /// What is left of the entity's runtime.
    pub(crate) fn runtime_left(&self, e: EntId) -> i64 {
        self.ents[e.index()].cbs.left()
    }

    /// Whether the entity is throttled.
    #[inline]
    pub(crate) fn is_held(&self, e: EntId) -> bool {
        self.ents[e.index()].cbs.is_throttled()
    }

    #[inline]
    pub(crate) fn is_movable(&self, e: EntId) -> bool {
        self.ents[e.index()].movable
    }

    /// Deadline of the earliest on the CPU that may run; [`NEVER`] without any.
    #[inline]
    pub(crate) fn earliest(&self, cpu: CpuId) -> Ns {
        self.rqs[cpu.index()].earliest
    }

    /// Deadline of the earliest that waits.
    #[inline]
    pub(crate) fn waiting(&self, cpu: CpuId) -> Ns {
        self.rqs[cpu.index()].waiting.first().map_or(NEVER, |w| w.due)
    }

    /// When [`DlClass::on_timer`] is due.
    #[inline]
    pub(crate) fn timer(&self, cpu: CpuId) -> Ns {
        self.rqs[cpu.index()].timer
    }

    /// Whether a timer ends the runtime of a current entity in time.
    #[inline]
    pub(crate) fn has_hrtick(&self) -> bool {
        self.hrtick
    }

    /// Whether the entity is the CPU's current one.
    #[inline]
    pub(crate) fn is_current(&self, cpu: CpuId, e: EntId) -> bool {
        self.rqs[cpu.index()].curr == e.0
    }

    /// CPUs where an entity waits that could run elsewhere.
    #[inline]
    pub(crate) fn overloaded(&self) -> &CpuSet {
        &self.overloaded
    }

    /// CPUs without entities of this class that may run.
    pub(crate) fn free(&self) -> &CpuSet {
        &self.free
    }

    /// The earliest waiting entity that may move and satisfies `fits`.
    pub(crate) fn movable(&self, cpu: CpuId, fits: impl Fn(EntId) -> bool) -> Option<EntId> {
        self.first(cpu, |e| self.is_movable(e) && fits(e))
    }

    /// The earliest waiting entity that satisfies `fits`.
    pub(crate) fn first(&self, cpu: CpuId, fits: impl Fn(EntId) -> bool) -> Option<EntId> {
        self.rqs[cpu.index()].waiting.iter().map(|w| EntId(w.e)).find(|&e| fits(e))
    }

    /// The runtime of the current entity is used up, or it yields: it is throttled, or already in its next period. True
    /// if it should give way.
    pub(crate) fn exhaust(&mut self, now: Ns, cpu: CpuId, e: EntId) -> bool {
        let held = self.ents[e.index()].cbs.throttle(now);
        self.refresh(cpu);
        held || self.waiting(cpu) < self.due(e)
    }

    /// Ends the periods of throttled entities on `cpu` that are over. Adds each entity that left the held list to
    /// `put`; the current one just goes on.
    pub(crate) fn on_timer(&mut self, now: Ns, cpu: CpuId, put: &mut Vec<EntId>) {
        let rq = &mut self.rqs[cpu.index()];
        if rq.timer > now {
            return;
        }
        let ents = &mut self.ents;
        rq.held.retain(|&e| {
            let cbs = &mut ents[e as usize].cbs;
            let over = cbs.next_period() <= now;
            if over {
                cbs.replenish(now);
                put.push(EntId(e));
            }
            !over
        });
        if let Some(curr) = ents.get_mut(rq.curr as usize)
            && curr.cbs.is_throttled()
            && curr.cbs.next_period() <= now
        {
            curr.cbs.replenish(now);
        }
        for &e in put.iter() {
            self.link(cpu, e, true);
        }
        self.refresh(cpu);
    }

    /// When the current entity will have used up its runtime, from `now` on.
    pub(crate) fn set_exhaustion(&mut self, now: Ns, cpu: CpuId) {
        if self.hrtick {
            let rq = &mut self.rqs[cpu.index()];
            let left = self.ents.get(rq.curr as usize).map(|e| e.cbs.left().max(0) as u64);
            rq.exhausted = left.map_or(NEVER, |left| now + left);
            self.refresh(cpu);
        }
    }

    /// Puts an entity into the waiting list; behind its equals if it just arrived.
    fn link(&mut self, cpu: CpuId, e: EntId, arrives: bool) {
        if arrives {
            self.seq += 1;
            self.ents[e.index()].seq = self.seq;
        }
        let ent = &self.ents[e.index()];
        let waiter = Waiter { due: ent.cbs.due(), seq: ent.seq, e: e.0 };
        let rq = &mut self.rqs[cpu.index()];
        rq.movable += u32::from(ent.movable);
        let at = rq.waiting.partition_point(|w| (w.due, w.seq) < (waiter.due, waiter.seq));
        rq.waiting.insert(at, waiter);
    }

    fn unlink(&mut self, cpu: CpuId, e: EntId) {
        let rq = &mut self.rqs[cpu.index()];
        if self.ents[e.index()].cbs.is_throttled() {
            rq.held.retain(|&h| h != e.0);
            return;
        }
        let before = rq.waiting.len();
        rq.waiting.retain(|w| w.e != e.0);
        debug_assert_eq!(rq.waiting.len() + 1, before, "{e} is not in the queue of {cpu}");
        rq.movable -= u32::from(self.ents[e.index()].movable);
    }

    /// Recomputes the CPU's earliest deadline and its membership in sets.
    fn refresh(&mut self, cpu: CpuId) {
        let rq = &mut self.rqs[cpu.index()];
        let mut earliest = rq.waiting.first().map_or(NEVER, |w| w.due);
        let mut timer = rq.held.iter().map(|&e| self.ents[e as usize].cbs.next_period()).min();
        if let Some(curr) = self.ents.get(rq.curr as usize) {
            if curr.cbs.is_throttled() {
                timer = Some(timer.unwrap_or(NEVER).min(curr.cbs.next_period()));
            } else {
                earliest = earliest.min(curr.cbs.due());
                timer = Some(timer.unwrap_or(NEVER).min(rq.exhausted));
            }
        }
        rq.earliest = earliest;
        rq.timer = timer.unwrap_or(NEVER);
        if rq.movable > 0 {
            self.overloaded.insert(cpu);
        } else {
            self.overloaded.remove(cpu);
        }
        if earliest == NEVER {
            self.free.insert(cpu);
        } else {
            self.free.remove(cpu);
        }
    }

    /// Panics if lists, sets and the bandwidth account disagree; returns how many entities wait, and how many are held.
    pub(crate) fn check(&self, cpu: CpuId) -> (u32, u32) {
        self.admission.check();
        let rq = &self.rqs[cpu.index()];
        let order = rq.waiting.windows(2).all(|w| (w[0].due, w[0].seq) < (w[1].due, w[1].seq));
        assert!(order, "{cpu}: order of deadlines");
        for w in &rq.waiting {
            let ent = &self.ents[w.e as usize];
            assert_eq!((w.due, w.seq), (ent.cbs.due(), ent.seq), "ent{}: place in the queue", w.e);
            assert!(!ent.cbs.is_throttled(), "ent{} is throttled and waits", w.e);
        }
        for &e in &rq.held {
            assert!(self.ents[e as usize].cbs.is_throttled(), "ent{e} is held, not throttled");
        }
        let movable = rq.waiting.iter().filter(|w| self.ents[w.e as usize].movable).count();
        assert_eq!(movable as u32, rq.movable, "{cpu}: movable entities");
        let mut again = self.clone();
        again.refresh(cpu);
        let known = |c: &Self| {
            let rq = &c.rqs[cpu.index()];
            (rq.earliest, rq.timer, c.overloaded.contains(cpu), c.free.contains(cpu))
        };
        assert_eq!(known(self), known(&again), "{cpu}: earliest, timer, overloaded, free");
        (rq.waiting.len() as u32, rq.held.len() as u32)
    }
}

impl Class for DlClass {
    fn enqueue(&mut self, cpu: CpuId, e: EntId, _how: Enqueue) {
        if self.is_held(e) {
            self.rqs[cpu.index()].held.push(e.0);
        } else {
            self.link(cpu, e, true);
        }
        self.refresh(cpu);
    }

    fn dequeue(&mut self, cpu: CpuId, e: EntId, _how: Dequeue) -> bool {
        if self.rqs[cpu.index()].curr == e.0 {
            self.rqs[cpu.index()].curr = NONE;
        } else {
            self.unlink(cpu, e);
        }
        self.refresh(cpu);
        true
    }

    fn pick(&mut self, cpu: CpuId) -> Option<EntId> {
        let rq = &self.rqs[cpu.index()];
        let first = rq.waiting.first();
        if let Some(curr) = self.ents.get(rq.curr as usize)
            && !curr.cbs.is_throttled()
            && first.is_none_or(|w| curr.cbs.due() <= w.due)
        {
            return Some(EntId(rq.curr));
        }
        first.map(|w| EntId(w.e))
    }

    fn put_prev(&mut self, cpu: CpuId, prev: EntId, _next: Option<EntId>) {
        if self.rqs[cpu.index()].curr == prev.0 {
            self.rqs[cpu.index()].curr = NONE;
            if self.is_held(prev) {
                self.rqs[cpu.index()].held.push(prev.0);
            } else {
                self.link(cpu, prev, false);
            }
            self.refresh(cpu);
        }
    }

    fn set_next(&mut self, cpu: CpuId, e: EntId) {
        self.unlink(cpu, e);
        self.rqs[cpu.index()].curr = e.0;
        self.refresh(cpu);
    }

    fn charge(&mut self, _cpu: CpuId, e: EntId, ran: Ns) -> bool {
        let cbs = &mut self.ents[e.index()].cbs;
        cbs.charge(ran) && !cbs.is_throttled()
    }

    fn tick(&mut self, _cpu: CpuId, _e: EntId) -> bool {
        false
    }

    fn check_preempt(&mut self, _cpu: CpuId, curr: EntId, woken: EntId) -> bool {
        self.due(woken) < self.due(curr)
    }

    fn yield_current(&mut self, _cpu: CpuId, e: EntId) {
        self.ents[e.index()].cbs.give_up();
    }
}
