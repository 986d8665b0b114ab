//! Host threads going to sleep and waking up, and the notes of the host's scheduler.

use vcoop_model::plan::Preemption;
use vcoop_model::profile::CostKey;
use vcoop_sched::{CpuId, EntId, LeaveReason, Note, Waker};

use crate::attribution::track::{NONE, State};
use crate::clock::Event;
use crate::machine::{Irq, Segment, Wait};
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// Blocks the current thread until a time, or until it is woken.
    pub(crate) fn sleep(&mut self, p: u32, t: u32, until: Ns) {
        self.clock.set(Event::Sleep(t), until);
        let mut more = self.costs.of(CostKey::TimerProgram);
        if self.host.has_single(CpuId(p)) {
            more += self.costs.of(CostKey::SleepIdle);
        }
        self.block(p, t, CostKey::Sleep, more);
    }

    /// Blocks the current thread, whose wait is already recorded. It pays `key` for going to sleep and coming back, and
    /// `more`: the scheduler has to count that as its CPU time, not as the next thread's. A thread that is woken in
    /// between goes on without having slept.
    pub(crate) fn block(&mut self, p: u32, t: u32, key: CostKey, more: Ns) {
        let ns = self.costs.of(key) + more;
        if ns == 0 {
            return self.reschedule(p, LeaveReason::Blocked);
        }
        let thread = &mut self.threads[t as usize];
        thread.work.leaving = true;
        let track = thread.track;
        self.state(track, State::Switch);
        self.begin(p, Segment::Overhead, ns);
    }

    /// A thread's sleep timer fires, on the pCPU where the thread set it.
    pub(crate) fn sleep_expires(&mut self, t: u32) {
        let thread = &self.threads[t as usize];
        let p =
            if thread.last_cpu == NONE { self.host.cpu_of(EntId(t)).0 } else { thread.last_cpu };
        let p = self.ticks.timer_cpu(p);
        self.event_on_its_way(thread.track, p);
        self.interrupt(p, Irq::Sleep(t));
    }

    /// An interrupt that will wake a sleeping thread is about to arrive at `p`.
    pub(crate) fn event_on_its_way(&mut self, track: u32, p: u32) {
        let idle = matches!(self.pcpus[p as usize].segment, Segment::Idle | Segment::CState);
        self.state(track, if idle { State::IdleExit } else { State::HostIrq });
    }

    pub(crate) fn wake_sleeper(&mut self, t: u32) {
        // A timer that was set again while this interrupt waited belongs to a later sleep.
        let stale = self.clock.is_pending(Event::Sleep(t));
        let work = &mut self.threads[t as usize].work;
        if !stale && matches!(work.wait, Wait::Timer | Wait::Peer | Wait::Device(_)) {
            work.wait = Wait::No;
            if work.server != NONE {
                self.host_server_sleeps(t, false);
            }
            self.wake_thread(t, Waker::default());
        }
    }

    pub(crate) fn wake_peer(&mut self, t: u32) {
        let Some(thread) = self.threads.get_mut(t as usize) else { return };
        if thread.work.wait == Wait::Peer {
            thread.work.wait = Wait::No;
            self.clock.cancel(Event::Sleep(t));
            self.wake_thread(t, self.waker());
        } else {
            thread.work.woken = true;
        }
    }

    /// The thread that runs on `self.cpu`, as a waker.
    pub(crate) fn waker(&self) -> Waker {
        let current = self.pcpus[self.cpu as usize].current;
        Waker { ent: (current != NONE).then_some(EntId(current)), ..Waker::default() }
    }

    /// Wakes a blocked thread on `self.cpu`; `by`: the waker.
    pub(crate) fn wake_thread(&mut self, t: u32, by: Waker) {
        self.pay_for(CostKey::Wakeup);
        let by = Waker { cpu: Some(CpuId(self.cpu)), ..by };
        let thread = &mut self.threads[t as usize];
        if std::mem::take(&mut thread.work.leaving) {
            let (track, sampler) = (thread.track, thread.work.sampler);
            self.tracks.event(sampler, track, self.clock.now());
            return;
        }
        if self.host.wake(self.clock.now(), EntId(t), by).is_none() {
            return;
        }
        if self.spans.is_on() {
            self.span_wake(t);
        }
        self.host_notes();
        let cpu = self.host.cpu_of(EntId(t));
        self.queue_grew(cpu.0);
        self.poll_sees(cpu.0);
        let thread = &self.threads[t as usize];
        let (track, sampler) = (thread.track, thread.work.sampler);
        if track != NONE {
            let target = &mut self.pcpus[cpu.index()];
            let idle = matches!(target.segment, Segment::Idle | Segment::CState);
            // The wake-up of a throttled thread does not end the idle state.
            let idle = idle && !self.host.is_throttled(EntId(t));
            if idle && target.waking == NONE {
                target.waking = track;
                self.tracks.set(track, State::IdleExit, self.clock.now());
            } else {
                self.tracks.set(track, State::WakeToRun, self.clock.now());
            }
            if sampler != NONE && thread.vcpu != NONE {
                // Its wait for a pCPU is what is measured of a vCPU's thread.
                self.tracks.begin(sampler, track, self.clock.now());
            } else if sampler != NONE {
                self.tracks.event(sampler, track, self.clock.now());
            }
            self.queued(t);
        }
    }

    /// A pCPU queues the threads that others woke for it.
    pub(crate) fn take_woken(&mut self, p: u32) {
        while let Some(e) = self.host.take_woken(self.clock.now(), CpuId(p)) {
            self.host_notes();
            self.queue_grew(p);
            let track = self.threads[e.index()].track;
            if track != NONE && self.host.is_throttled(e) {
                self.tracks.set(track, State::Throttled, self.clock.now());
            }
        }
    }

    /// A tracked thread begins to wait on its run queue.
    pub(crate) fn queued(&mut self, thread: u32) {
        let track = self.threads[thread as usize].track;
        if track == NONE {
            return;
        }
        let cpu = self.host.cpu_of(EntId(thread)).0;
        self.tracks.wait_begins(track, cpu, self.clock.now());
        if self.host.is_throttled(EntId(thread)) {
            self.tracks.set(track, State::Throttled, self.clock.now());
        }
    }

    /// Carries out the notes of the host's scheduler.
    pub(crate) fn host_notes(&mut self) {
        while let Some(note) = self.host.pop_note() {
            if self.spans.is_on() {
                self.span_note(note);
            }
            match note {
                Note::Kick { cpu, eager } => {
                    let pc = &mut self.pcpus[cpu.index()];
                    pc.resched = true;
                    pc.eager |= eager;
                    if eager || self.plan.host.preemption != Preemption::Lazy {
                        self.send_ipi(cpu.0);
                    }
                }
                Note::Woken { cpu } => self.send_ipi(cpu.0),
                Note::Moved { ent, to, .. } => self.thread_moved(ent.0, to.0),
                Note::Throttled { cpu } => self.throttle(cpu, true),
                Note::Unthrottled { cpu } => {
                    self.throttle(cpu, false);
                    self.queue_grew(cpu.0);
                }
                Note::Parked { ent } => self.park(ent.0, State::Throttled),
                Note::Unparked { ent } => self.park(ent.0, State::Preempted),
                // For observers only.
                Note::Decision { .. } => {}
                Note::DeadlineChanged { cpu } => {
                    let event = Event::Sched(cpu.0);
                    match self.host.deadline(cpu) {
                        Some(at) => self.clock.set(event, at.max(self.clock.now())),
                        None => self.clock.cancel(event),
                    }
                }
            }
        }
    }

    pub(crate) fn thread_moved(&mut self, t: u32, to: u32) {
        self.queue_grew(to);
        self.poll_sees(to);
        let track = self.threads[t as usize].track;
        if self.tracks.waits(track) {
            self.tracks.wait_moves(track, to, self.clock.now());
        }
    }

    pub(crate) fn throttle(&mut self, cpu: CpuId, on: bool) {
        for t in 0..self.threads.len() as u32 {
            let track = self.threads[t as usize].track;
            let e = EntId(t);
            if track == NONE || self.host.cpu_of(e) != cpu || !self.host.is_queued(e) {
                continue;
            }
            if on && self.host.is_throttled(e) {
                self.tracks.set(track, State::Throttled, self.clock.now());
            } else if !on && self.tracks.is(track, State::Throttled) && !self.host.is_throttled(e) {
                self.tracks.set(track, State::Preempted, self.clock.now());
            }
        }
    }

    /// A waiting thread is throttled, or no longer.
    fn park(&mut self, t: u32, state: State) {
        let track = self.threads[t as usize].track;
        if self.tracks.waits(track) {
            self.tracks.set(track, state, self.clock.now());
        }
    }

    /// Makes another pCPU reschedule: by an interrupt, or by a write if it is idle and watches for that
    /// (`TIF_POLLING_NRFLAG`). Several requests in flight are one.
    pub(crate) fn send_ipi(&mut self, to: u32) {
        if to == self.cpu {
            return;
        }
        let watches = self.costs.idle_watches() && self.pcpus[to as usize].segment == Segment::Idle;
        if !watches {
            self.pay_for(CostKey::IpiSend);
        }
        let event = Event::Ipi(to);
        if !self.clock.is_pending(event) {
            // It leaves after this pCPU's pending work and the sending itself.
            let sent = self.clock.now() + self.pcpus[self.cpu as usize].extra;
            let way = if watches { CostKey::PollNotice } else { CostKey::IpiFlight };
            self.pcpus[to as usize].sees_write = watches;
            let far = self.crossing(to);
            self.clock.set(event, sent + self.costs.of(way) + far);
        }
    }

    /// Extra time of an IPI or a cache line between the executing pCPU and this one, compared with inside an LLC.
    pub(crate) fn crossing(&mut self, to: u32) -> Ns {
        let topology = self.plan.host.sched.topology();
        if topology.llc(self.cpu) == topology.llc(to) {
            0
        } else {
            self.costs.of(CostKey::LlcCrossing)
        }
    }

    /// The signal of [`send_ipi`](Self::send_ipi) arrives.
    pub(crate) fn ipi_arrives(&mut self, p: u32) {
        let pc = &mut self.pcpus[p as usize];
        if !std::mem::take(&mut pc.sees_write) {
            return self.interrupt(p, Irq::Ipi);
        }
        match pc.segment {
            Segment::Idle => self.leave_idle(p, false),
            // An interrupt came first, and its return was too early to see the write.
            Segment::User | Segment::Guest | Segment::Poll if pc.resched => {
                self.interrupt(p, Irq::Ipi);
            }
            _ if self.host.has_woken(CpuId(p)) => self.interrupt(p, Irq::Ipi),
            _ => {}
        }
    }
}
