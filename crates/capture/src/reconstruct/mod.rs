//! Turns events into threads: how long each ran and slept, and which thread woke which.
//!
//! The rules, the most important first:
//!
//! - *Demand* is time between a switch to a thread and the switch away from it. A preemption
//!   (`prev_state=R`) does not end a burst of demand: the pieces are added up, and the time in the
//!   run queue between them is left out, because the replay's scheduler makes its own.
//! - A sleep lasts from the switch away to the wake-up, not to the switch back.
//! - The *current* thread of the waking CPU is the waker, unless it is the idle thread or the
//!   wake-up came from a hard interrupt: those are timers and devices, and the sleep is timed.
//!   A soft interrupt counts as the thread's own: on machines that serve requests most of these
//!   are packets it just sent. Where flags are missing (`perf script`) nothing tells them apart.
//! - A fork wakes the child, which was "asleep" from the start of the capture.
//! - A thread that runs on a CPU that was assumed idle has run there since its wake-up.
//! - A CPU's current thread is known from its switches. Until the first switch, and after lost events, it is the thread
//!   that an event names; the time until then is attributed to none.

mod cpu;
mod life;
mod thread;
mod wake;

use std::collections::BTreeMap;

use vcoop_model::plan::Ns;

use crate::line::{Event, Record, SwitchOut, Task};
use crate::losses::Losses;
use crate::{CaptureError, Limits};

use cpu::{Cpu, Current};
pub(crate) use thread::{Act, numbers};
use thread::{Building, CpusSeen, State};

/// A thread at the end of the capture.
#[derive(Debug)]
pub(crate) struct ReconstructedThread {
    pub(crate) tid: i32,
    pub(crate) name: String,
    pub(crate) first_prio: i32,
    pub(crate) only_cpu: Option<u32>,
    pub(crate) demand_ns: Ns,
    pub(crate) acts: Vec<Act>,
}

/// The state of all CPUs and threads at the latest event.
#[derive(Debug, Default)]
pub(crate) struct Reconstruction {
    limits: Limits,
    pub(crate) losses: Losses,
    /// Times of the first and the latest event.
    start_ns: Option<Ns>,
    now: Ns,
    threads: Vec<Building>,
    /// Index of the living thread with each id.
    live: BTreeMap<i32, u32>,
    cpus: BTreeMap<u32, Cpu>,
    announced_cpus: u32,
    steps: usize,
    pub(crate) switches: u64,
    /// `sched_waking` was seen: then `sched_wakeup` is ignored.
    has_waking: bool,
}

impl Reconstruction {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(crate) fn announce_cpus(&mut self, cpus: u32) {
        self.announced_cpus = self.announced_cpus.max(cpus.min(self.limits.max_cpus));
    }

    /// The next event of this CPU is the first in its buffer.
    pub(crate) fn buffer_starts(&mut self, cpu: u32) {
        if cpu < self.limits.max_cpus {
            self.cpus.entry(cpu).or_default().late = true;
        }
    }

    /// Takes one event.
    ///
    /// # Errors
    ///
    /// `max_threads` or `max_steps` is reached.
    pub(crate) fn record(&mut self, record: &Record<'_>) -> Result<(), CaptureError> {
        if record.cpu >= self.limits.max_cpus {
            self.losses.line_not_understood("CPU number beyond the limit `max_cpus`");
            return Ok(());
        }
        let start = *self.start_ns.get_or_insert(record.time_ns);
        if record.time_ns.saturating_sub(start) > self.limits.max_span_ns {
            self.losses.line_not_understood("time stamp beyond the limit `max_span_ns`");
            return Ok(());
        }
        self.losses.events += 1;
        if record.time_ns < self.now {
            self.losses.out_of_order += 1;
        }
        self.now = self.now.max(record.time_ns);
        let now = self.now;
        let cpu = self.cpus.entry(record.cpu).or_default();
        if !cpu.seen {
            cpu.begin(start, now);
        }
        cpu.last = now;
        match record.event {
            Event::Switch { prev, left, next } => self.switch(record.cpu, prev, left, next)?,
            Event::Waking(task) => {
                self.has_waking = true;
                self.wake(record, task)?;
            }
            Event::Wakeup(task) if !self.has_waking => self.wake(record, task)?,
            Event::WakeupNew(task) => self.wake(record, task)?,
            Event::Wakeup(_) | Event::Unused => {}
            Event::Fork { child, comm } => self.fork(record, child, comm)?,
            Event::Exec { tid, old_tid } => self.exec(tid, old_tid),
            Event::Exit { tid } => {
                if let Some(t) = self.living(tid) {
                    self.threads[t].exiting = true;
                }
            }
            Event::PiSetPrio { tid, old, new } => {
                if let Some(t) = self.living(tid) {
                    self.threads[t].inherits(old, new);
                }
            }
            Event::Other(name) => self.losses.other_event(name, self.limits.max_event_names),
        }
        if self.steps > self.limits.max_steps {
            return Err(CaptureError::too_long("steps", "max_steps", self.limits.max_steps));
        }
        Ok(())
    }

    fn push(&mut self, thread: usize, act: Act) {
        // A run that is flushed by this counts, too: the limit only needs an upper bound.
        self.steps += 2;
        self.threads[thread].push(act);
    }

    fn switch(
        &mut self,
        cpu: u32,
        prev: Task<'_>,
        left: SwitchOut,
        next: Task<'_>,
    ) -> Result<(), CaptureError> {
        self.switches += 1;
        let now = self.now;
        let expected = self.cpus.entry(cpu).or_default().current;
        if let Current::Known { tid, .. } = expected
            && tid != prev.tid
            && !self.infer_leaving_idle(cpu, prev.tid)
        {
            self.losses.unmatched_switches += 1;
            self.lose_current(cpu, None);
        }
        if let Some(p) = self.occupy(cpu, prev.tid)? {
            self.account(cpu, now);
            self.threads[p].seen_as(prev.comm, prev.prio);
            if left == SwitchOut::Runnable && !self.threads[p].exiting {
                self.threads[p].state = State::Runnable { since: now };
            } else if left == SwitchOut::Dead || self.threads[p].exiting {
                self.end(p);
            } else {
                self.threads[p].flush();
                self.threads[p].state = State::Asleep { since: now };
            }
        } else {
            self.account(cpu, now);
        }
        self.enter(cpu, next)
    }

    /// `next` is switched in.
    fn enter(&mut self, cpu: u32, next: Task<'_>) -> Result<(), CaptureError> {
        let now = self.now;
        if let Some(n) = self.thread(next.tid)? {
            self.settle(n, now);
            self.threads[n].seen_as(next.comm, next.prio);
            self.threads[n].runs_on(cpu);
            self.threads[n].state = State::Running { cpu };
        }
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.current = Current::Known { tid: next.tid, since: now };
        Ok(())
    }

    /// Makes `tid` the current thread of a CPU whose thread is not known, from as early as possible. Returns the
    /// thread, unless it is the idle one or unknown.
    fn occupy(&mut self, cpu: u32, tid: i32) -> Result<Option<usize>, CaptureError> {
        if tid < 0 {
            return Ok(None);
        }
        self.infer_leaving_idle(cpu, tid);
        let now = self.now;
        let thread = self.thread(tid)?;
        let slot = self.cpus.entry(cpu).or_default();
        let since = match slot.current {
            Current::Known { .. } => return Ok(thread),
            Current::FromStart { since } => since,
            Current::Lost { since } => {
                slot.time.unattributed_ns += now - since;
                now
            }
        };
        slot.current = Current::Known { tid, since };
        if let Some(t) = thread {
            self.settle(t, since);
            self.threads[t].runs_on(cpu);
            self.threads[t].state = State::Running { cpu };
        }
        Ok(thread)
    }

    /// Some kernels do not trace every switch away from the idle thread. An idle CPU runs a thread as soon as it is
    /// woken; so a thread that turns out to run on a CPU that was assumed idle has run there since its wake-up, if that
    /// came after the CPU went idle.
    fn infer_leaving_idle(&mut self, cpu: u32, tid: i32) -> bool {
        let current = self.cpus.get(&cpu).map(|c| c.current);
        let Some(Current::Known { tid: 0, since }) = current else { return false };
        let Some(t) = self.living(tid) else { return false };
        let State::Runnable { since: woken } = self.threads[t].state else { return false };
        if woken < since {
            return false;
        }
        self.losses.inferred_switches += 1;
        self.account(cpu, woken);
        self.cpus.entry(cpu).or_default().current = Current::Known { tid, since: woken };
        self.threads[t].runs_on(cpu);
        self.threads[t].state = State::Running { cpu };
        true
    }

    /// Moves a thread to "on a CPU since `then`" from its previous state.
    fn settle(&mut self, t: usize, then: Ns) {
        match self.threads[t].state {
            State::Runnable { .. } | State::Dead => {}
            State::Fresh => {
                // No wake-up came first, so it may have been runnable all the time. But a thread waits in a run queue
                // only for a short time, so asleep is the better guess.
                self.losses.cut_at_start += 1;
                let start = self.start_ns.unwrap_or(then);
                self.push(t, Act::Sleep(then.saturating_sub(start)));
            }
            State::Asleep { since } => {
                self.losses.sleeps_without_wake += 1;
                self.push(t, Act::Sleep(then.saturating_sub(since)));
            }
            State::Gap { since } => self.push(t, Act::Sleep(then.saturating_sub(since))),
            State::Running { cpu } => {
                // On two CPUs at once: the switch away from the first was lost.
                self.losses.unmatched_switches += 1;
                let since = self.lose_current(cpu, None);
                self.push(t, Act::Sleep(then.saturating_sub(since)));
            }
        }
        self.threads[t].state = State::Runnable { since: then };
    }

    /// Books the time of a CPU's current thread up to `now`.
    fn account(&mut self, cpu: u32, now: Ns) {
        let slot = self.cpus.entry(cpu).or_default();
        let Current::Known { tid, since } = slot.current else { return };
        let ns = now.saturating_sub(since);
        slot.current = Current::Known { tid, since: now };
        match self.live.get(&tid) {
            Some(&t) if tid > 0 => {
                slot.time.busy_ns += ns;
                self.threads[t as usize].ran(ns);
            }
            _ if tid == 0 => slot.time.idle_ns += ns,
            _ => slot.time.unattributed_ns += ns,
        }
    }

    /// A CPU's current thread becomes unknown, since `known_until` at the latest (`None`: since it was switched in).
    /// Returns that time.
    fn lose_current(&mut self, cpu: u32, known_until: Option<Ns>) -> Ns {
        if let Some(until) = known_until {
            self.account(cpu, until);
        }
        let slot = self.cpus.entry(cpu).or_default();
        match slot.current {
            Current::Known { tid, since } => {
                slot.current = Current::Lost { since };
                if let Some(t) = self.living(tid).filter(|_| tid > 0) {
                    self.losses.cut_by_loss += 1;
                    self.threads[t].flush();
                    self.threads[t].state = State::Gap { since };
                }
                since
            }
            Current::FromStart { since } => {
                slot.current = Current::Lost { since };
                since
            }
            Current::Lost { since } => since,
        }
    }

    /// Events of a CPU were lost after its latest one.
    pub(crate) fn lost(&mut self, cpu: u32, count: Option<u64>) {
        self.losses.lost_notices += 1;
        self.losses.lost_events = self.losses.lost_events.saturating_add(count.unwrap_or(1));
        if cpu < self.limits.max_cpus
            && let Some(slot) = self.cpus.get(&cpu).filter(|c| c.seen)
        {
            let last = slot.last;
            self.lose_current(cpu, Some(last));
        }
    }

    /// Ends the capture at its latest event.
    pub(crate) fn finish(mut self) -> (Vec<ReconstructedThread>, Ns, u32, Losses) {
        let now = self.now;
        let span = now - self.start_ns.unwrap_or(now);
        let numbers: Vec<u32> = self.cpus.keys().copied().collect();
        for cpu in numbers {
            self.account(cpu, now);
            let slot = self.cpus.entry(cpu).or_default();
            if let Current::Lost { since } | Current::FromStart { since } = slot.current {
                slot.time.unattributed_ns += now - since;
            }
            if slot.seen {
                self.losses.cpus.insert(cpu, slot.time);
            }
        }
        let seen = self.losses.cpus.len() as u32;
        self.losses.silent_cpus = self.announced_cpus.saturating_sub(seen);
        let cpus = self.losses.cpus.keys().last().map_or(0, |last| last + 1);
        self.losses.span_ns = span;
        let losses = &mut self.losses;
        let threads = self.threads.into_iter().map(|t| finished(t, losses)).collect();
        (threads, span, cpus.max(self.announced_cpus), self.losses)
    }
}

/// Ends a thread. A sleep that is open at the end is left to the replay, which fills every script up to the span.
fn finished(mut t: Building, losses: &mut Losses) -> ReconstructedThread {
    losses.cut_at_end +=
        u64::from(matches!(t.state, State::Running { .. } | State::Runnable { .. }));
    t.flush();
    let only_cpu = if let CpusSeen::Only(cpu) = t.ran_on { Some(cpu) } else { None };
    ReconstructedThread {
        tid: t.tid,
        name: if t.name.is_empty() { format!("tid {}", t.tid) } else { t.name },
        first_prio: t.first_prio.unwrap_or(120),
        only_cpu,
        demand_ns: t.demand_ns,
        acts: t.acts,
    }
}
