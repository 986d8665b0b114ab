//! The host level: segments of a pCPU.
//!
//! ```text
//! Idle --interrupt--> CState --> Irq --> [Overhead] --> [Switch] --> User | Entry --> Guest
//!   ^                             ^                                   |        ^        |
//!   |                             +------------- interrupt -----------+        |        v
//!   +---------------------- nothing to run <--- block, halt ---------- Exit <--+--------+
//! ```
//!
//! Kernel segments (all but `User` and `Guest`) run with interrupts off: an interrupt that arrives then is taken at
//! their end.

pub(crate) mod devices;
pub(crate) mod host_ticks;
mod idle;
pub(crate) mod idle_governor;
mod nohz;
pub(crate) mod noise;
pub(crate) mod scheduler;
pub(crate) mod smt;
mod speed;
mod wake;

use vcoop_model::plan::{Mode, Preemption, QueueRoom};
use vcoop_model::profile::CostKey;
use vcoop_policy::Injection;
use vcoop_sched::{CpuId, EntId, LeaveReason};

use crate::attribution::track::{NONE, State};
use crate::clock::Event;
use crate::guest::exit::Exit;
use crate::machine::{Irq, Segment, Wait, vector};
use crate::program::Op;
use crate::queue::Ns;
use crate::world::World;

/// A program that does this many operations in a row without using the CPU gets a microsecond of CPU time, so that a
/// script without runs cannot stop the clock.
pub(crate) const FREE_OPS: u32 = 1000;

/// How long others must run to evict all that `switch_refill` stands for; a shorter run evicts a part. Assumed: with 20
/// misses of the first-level cache in 1000 instructions, at one instruction a cycle, the lines of such a cache of 32 to
/// 48 kB are loaded in some 10 us.
const EVICTS_IN_NS: Ns = 10_000;

impl World<'_> {
    /// Starts a segment of a known length.
    #[inline(always)]
    pub(crate) fn begin(&mut self, p: u32, segment: Segment, ns: Ns) {
        let pc = &mut self.pcpus[p as usize];
        pc.segment = segment;
        pc.since = self.clock.now();
        self.clock.set(Event::Segment(p), self.clock.now() + ns);
        if self.spans.is_on() {
            self.span_begin(p);
        }
    }

    /// An interrupt arrives at a pCPU.
    pub(crate) fn interrupt(&mut self, p: u32, irq: Irq) {
        if irq == Irq::Tick {
            self.ticks.repeat(p, &mut self.clock);
        }
        self.pcpus[p as usize].irqs.push_back(irq);
        match self.pcpus[p as usize].segment {
            Segment::Idle => self.leave_idle(p, irq.is_timer()),
            Segment::User => {
                let thread = self.pcpus[p as usize].current;
                if self.threads[thread as usize].work.mode != Mode::IrqOff {
                    self.stop_user(p);
                    self.take_irq(p);
                }
            }
            Segment::Guest => {
                self.stop_guest(p);
                self.exit(p, Exit::Interrupt);
            }
            Segment::Poll => {
                self.poll_stops(p);
                self.take_irq(p);
            }
            _ => {}
        }
    }

    /// Stops user work, which keeps its remaining time.
    pub(crate) fn stop_user(&mut self, p: u32) {
        let pc = &self.pcpus[p as usize];
        let (now, thread) = (self.clock.now(), pc.current as usize);
        let done = self.work_done(p, now - pc.since);
        let work = &mut self.threads[thread].work;
        let needs = work.needs();
        work.ran(done.min(needs));
        work.reads_clock(now);
    }

    /// Begins the handler of the first queued interrupt.
    fn take_irq(&mut self, p: u32) {
        let pc = &self.pcpus[p as usize];
        let Some(first) = pc.irqs.first() else { return };
        let ns = match first {
            Irq::Tick => self.costs.of(CostKey::Tick),
            Irq::Ipi | Irq::Posted(_) => self.costs.of(CostKey::IpiReceive),
            Irq::Sched
            | Irq::Lapic(_)
            | Irq::Sleep(_)
            | Irq::Boost(_)
            | Irq::Ratelimit
            | Irq::Accounts
            | Irq::Govern(_) => self.costs.of(CostKey::TimerIrq),
            Irq::Device(_) | Irq::Remote(_) | Irq::Storm(_) => self.costs.of(CostKey::DeviceIrq),
            Irq::Host(line) => self.lines.takes(line),
        };
        let pc = &self.pcpus[p as usize];
        if pc.current != NONE {
            self.state(self.threads[pc.current as usize].track, State::HostIrq);
        }
        self.begin(p, Segment::Irq, ns);
    }

    /// The segment of a pCPU is over: its one pending event.
    #[inline(always)]
    pub(crate) fn segment_ends(&mut self, p: u32) {
        self.cpu = p;
        match self.pcpus[p as usize].segment {
            Segment::Irq => {
                if let Some(irq) = self.pcpus[p as usize].irqs.pop_front() {
                    self.handle_irq(p, irq);
                }
            }
            Segment::CState => {
                self.awake(p);
                if self.smt.is_on() {
                    // The next segment is chosen below.
                    self.pcpus[p as usize].segment = Segment::Overhead;
                    self.sibling_turns(p);
                }
            }
            Segment::User => {
                self.stop_user(p);
                // Ended with work left: a voluntary preemption point.
                let pc = &mut self.pcpus[p as usize];
                pc.at_point = self.threads[pc.current as usize].work.left > 0;
            }
            Segment::Guest => return self.guest_segment_ends(p),
            Segment::Exit(reason) => {
                let v = self.pcpus[p as usize].vcpu;
                if self.handle_exit(p, reason) || self.fast_reentry(p, v, reason) {
                    return;
                }
            }
            Segment::Entry => {
                let v = self.pcpus[p as usize].vcpu;
                let pc = &self.pcpus[p as usize];
                if pc.irqs.is_empty() && !pc.resched {
                    return self.entered(p, v);
                }
            }
            Segment::Poll => self.poll_stops(p),
            Segment::Idle | Segment::Overhead | Segment::Switch => {}
        }
        self.goes_on(p);
    }

    /// In the kernel between two segments: begins the next one.
    pub(crate) fn goes_on(&mut self, p: u32) {
        self.cpu = p;
        let pc = &mut self.pcpus[p as usize];
        if !pc.irqs.is_empty() {
            return self.take_irq(p);
        }
        let current = pc.current;
        let extra = pc.extra;
        if pc.resched && (current == NONE || self.may_preempt(p, current)) {
            if let Some(v) = self.polled_for(current) {
                return self.poll_goes_on(p, v);
            }
            return self.reschedule(p, LeaveReason::Preempted);
        }
        if extra > 0 {
            self.pcpus[p as usize].extra = 0;
            if current != NONE {
                self.state(self.threads[current as usize].track, State::Switch);
            }
            return self.begin(p, Segment::Overhead, extra);
        }
        if current == NONE {
            return self.idle(p);
        }
        match self.pcpus[p as usize].vcpu {
            NONE => self.run_thread(p, current),
            v => self.enter(p, v),
        }
    }

    /// Whether the current thread can be preempted where it stands.
    fn may_preempt(&self, p: u32, thread: u32) -> bool {
        let pc = &self.pcpus[p as usize];
        let work = &self.threads[thread as usize].work;
        preemptible(work.mode, work.left, self.plan.host.preemption, pc.eager, pc.at_point)
    }

    /// Runs the scheduler and switches to its choice.
    pub(crate) fn reschedule(&mut self, p: u32, leave: LeaveReason) {
        let pc = &mut self.pcpus[p as usize];
        pc.resched = false;
        pc.eager = false;
        pc.at_point = false;
        let prev = pc.current;
        let waking = std::mem::replace(&mut pc.waking, NONE);
        let before = self.host.stopped();
        let next = self.host.schedule(self.clock.now(), CpuId(p), leave).map_or(NONE, |e| e.0);
        // A switch to the stopper thread, and one from it.
        let stopped = self.host.stopped() - before;
        self.pcpus[p as usize].extra += 2 * stopped * self.costs.of(CostKey::ContextSwitch);
        self.host_notes();
        if self.tracks.is(waking, State::IdleExit) {
            // The idle exit was for it; another thread was chosen, or it will be chosen now.
            self.tracks.set(waking, State::WakeToRun, self.clock.now());
        }
        if next == prev {
            return self.goes_on(p);
        }
        if self.views.are_open() {
            self.views_switch(p, next);
        }
        if self.spans.is_on() {
            self.span_switch(p, prev, next, leave);
        }
        if prev != NONE {
            self.switch_out(p, prev, leave);
        }
        let pc = &mut self.pcpus[p as usize];
        pc.current = next;
        if next == NONE {
            pc.vcpu = NONE;
            return self.goes_on(p);
        }
        let thread = &self.threads[next as usize];
        pc.vcpu = thread.vcpu;
        self.tracks.runs(p, thread.work.label, self.clock.now());
        let pc = &mut self.pcpus[p as usize];
        let ns = self.costs.of(CostKey::ContextSwitch)
            + std::mem::take(&mut pc.extra)
            + self.switch_in(p, next);
        self.ticks.start(p, &self.host, &mut self.clock);
        self.begin(p, Segment::Switch, ns);
    }

    fn switch_out(&mut self, p: u32, prev: u32, leave: LeaveReason) {
        let thread = &mut self.threads[prev as usize];
        (thread.last_cpu, thread.off_since) = (p, self.clock.now());
        thread.off_idle = self.pcpus[p as usize].idle_ns;
        let (track, vcpu) = (thread.track, thread.vcpu);
        self.pcpus[p as usize].last = prev;
        if vcpu != NONE {
            self.sync_posts(vcpu);
            let v = &mut self.vcpus[vcpu as usize];
            v.pcpu = NONE;
            v.off_since = self.clock.now();
            self.watch(vcpu, |page, now| page.off(now, true));
            let v = &self.vcpus[vcpu as usize];
            if v.hv_at != Ns::MAX && self.vms[v.vm as usize].virt.sw_on_preempt {
                self.hv_to_sw(vcpu);
            }
            if matches!(leave, LeaveReason::Preempted | LeaveReason::Yield) {
                self.spin_preempted(vcpu);
            }
            self.guest_sees_away(vcpu);
        }
        let waits = matches!(leave, LeaveReason::Preempted | LeaveReason::Yield);
        if track != NONE && waits {
            self.tracks.set(track, State::Preempted, self.clock.now());
            self.queued(prev);
        } else if track != NONE {
            self.tracks.set(track, State::Asleep, self.clock.now());
        }
        if waits && vcpu != NONE && self.vcpus[vcpu as usize].irr & vector::IPI != 0 {
            // It ran when the IPI was sent, and lost its pCPU before it took it.
            self.boost_asked(vcpu);
        }
    }

    /// Loads the next thread. Returns the cost besides the switch itself.
    fn switch_in(&mut self, p: u32, next: u32) -> Ns {
        let last = self.pcpus[p as usize].last;
        let thread = &mut self.threads[next as usize];
        if thread.last_cpu != p && thread.last_cpu != NONE {
            thread.work.evicted(self.costs.of(CostKey::MigrationRefill));
        } else if last != next && last != NONE {
            let idle = self.pcpus[p as usize].idle_ns - thread.off_idle;
            let others = (self.clock.now() - thread.off_since - idle).min(EVICTS_IN_NS);
            thread.work.evicted(self.costs.of(CostKey::SwitchRefill) * others / EVICTS_IN_NS);
        }
        let (track, vcpu) = (thread.track, thread.vcpu);
        if track != NONE {
            self.tracks.set(track, State::Switch, self.clock.now());
            self.tracks.wait_ends(track, self.clock.now());
        }
        if vcpu == NONE {
            let after_vcpu = last != NONE && self.threads[last as usize].vcpu != NONE;
            return if after_vcpu { self.costs.of(CostKey::VcpuPut) } else { 0 };
        }
        let work = &self.threads[next as usize].work;
        self.sample(work.sampler, work.probe);
        self.spin_loaded(vcpu);
        let v = &mut self.vcpus[vcpu as usize];
        v.pcpu = p;
        v.home = p;
        self.watch(vcpu, |page, now| page.off(now, false));
        self.guest_sees_away(vcpu);
        let v = &self.vcpus[vcpu as usize];
        let vm = &mut self.vms[v.vm as usize];
        if !v.halted && !vm.charges_steal {
            vm.level.stolen(v.cpu, self.clock.now() - v.off_since);
        }
        if self.vcpus[vcpu as usize].wants != 0 {
            self.tend(vcpu);
        } else if self.vcpus[vcpu as usize].hv_at != Ns::MAX {
            self.restart_hv_timer(vcpu);
        }
        self.costs.of(CostKey::VcpuLoad)
    }

    /// Interprets the program of the current thread until it uses the CPU or leaves it.
    fn run_thread(&mut self, p: u32, t: u32) {
        if std::mem::take(&mut self.threads[t as usize].work.leaving) {
            return self.reschedule(p, LeaveReason::Blocked);
        }
        if let Some(message) = self.threads[t as usize].work.outbox.take() {
            self.signal(message);
        }
        for free in 0.. {
            let work = &mut self.threads[t as usize].work;
            work.reads_clock(self.clock.now());
            if work.left > 0 {
                return self.run_user(p, t);
            }
            if self.pcpus[p as usize].resched {
                // Between two operations there is no kernel section to protect.
                return self.reschedule(p, LeaveReason::Preempted);
            }
            let now = self.clock.now();
            let work = &mut self.threads[t as usize].work;
            let Some(runner) = work.runner.as_mut() else { return };
            match if free < FREE_OPS { runner.next_or_held(now) } else { FREE_RUN } {
                Op::Run { ns, mode } => {
                    work.left = ns;
                    work.mode = mode;
                }
                Op::Spin { ns } => {
                    work.spin_until(now + ns, now);
                    self.tracks.works(work.sampler, ns, now);
                }
                Op::SleepUntil { at, sample } => {
                    if at <= now && !sample {
                        continue;
                    }
                    work.wait = Wait::Timer;
                    let (sampler, fires) = (work.sampler, at.max(now) + work.slack);
                    if work.server != NONE {
                        self.host_server_sleeps(t, true);
                    }
                    if sample {
                        self.tracks.arm(sampler, self.threads[t as usize].track, at, now);
                    }
                    return self.sleep(p, t, fires);
                }
                Op::Wait { timeout } => {
                    if std::mem::take(&mut work.woken) {
                        continue;
                    }
                    work.wait = Wait::Peer;
                    return self.sleep(p, t, now + timeout);
                }
                Op::WaitDevice { due } => {
                    // Host threads have no device of their own: a timer stands in.
                    work.wait = Wait::Timer;
                    self.tracks.arm(work.sampler, self.threads[t as usize].track, due, now);
                    return self.sleep(p, t, due.max(now));
                }
                Op::Wake(peer) => {
                    let peer = work.peers + peer;
                    self.wake_peer(peer);
                }
                Op::Sample => {
                    let (sampler, probe) = (work.sampler, work.probe);
                    self.sample(sampler, probe);
                }
                Op::Missed(missed) => self.probes.missed(work.probe, missed),
                Op::Glitches { glitches, missed } => {
                    work.glitches += glitches;
                    self.probes.missed(work.probe, missed);
                }
                Op::SetPolicy(policy) => {
                    self.host.set_policy(now, EntId(t), policy);
                    self.pcpus[p as usize].extra += self.costs.of(CostKey::Setattr);
                    self.host_notes();
                    self.queue_grew(p);
                }
                op @ (Op::Call { .. } | Op::Await | Op::TakeCall | Op::Answer) => {
                    if self.call_op(p, t, op) {
                        return;
                    }
                }
                Op::Remote { ns, irq_vcpu } => {
                    let (client, track) = (work.client, self.threads[t as usize].track);
                    self.calls.call_remote(client, ns, irq_vcpu, self.tracks.on(track, now));
                    self.remote_sent(client);
                }
                Op::Begin => {
                    self.tracks.begin(work.sampler, self.threads[t as usize].track, now);
                }
                Op::Done => work.units += 1,
                Op::Post { peer, room } => {
                    let to = work.peers + peer;
                    if self.post(p, t, to, room) {
                        return;
                    }
                }
                Op::Reply => {
                    if let Some(to) = self.mail.correspondent(work.mail)
                        && self.post(p, t, to, QueueRoom::List)
                    {
                        return;
                    }
                }
                Op::Receive { sample } => {
                    if self.receive(p, t, sample) {
                        return;
                    }
                }
                // Guests only.
                Op::Rogue(_)
                | Op::Act
                | Op::Respond { .. }
                | Op::Login
                | Op::BusyUntil { .. }
                | Op::Lock(_)
                | Op::LockIrq(_)
                | Op::Unlock(_)
                | Op::Acquire { .. }
                | Op::Release(_)
                | Op::Barrier { .. }
                | Op::Pass
                | Op::Ipi { .. }
                | Op::Flush
                | Op::ReadCstates(_) => {}
                Op::Exit => {
                    work.wait = Wait::Dead;
                    work.ended = Some(self.clock.now());
                    return self.reschedule(p, LeaveReason::Exit);
                }
            }
        }
    }

    /// Begins or resumes user work. A kernel section with a preemption pending stops at its next voluntary point.
    pub(crate) fn run_user(&mut self, p: u32, t: u32) {
        let thread = &self.threads[t as usize];
        let mut ns = thread.work.needs();
        if self.pcpus[p as usize].resched
            && thread.work.mode == Mode::Kernel
            && self.plan.host.preemption == Preemption::Voluntary
        {
            ns = ns.min(self.costs.of(CostKey::VoluntaryPoint).max(1));
        }
        let (track, by_clock) = (thread.track, thread.work.by_clock);
        self.state(track, State::Run);
        let takes = self.work_takes(p, ns);
        self.begin(p, Segment::User, if by_clock { ns } else { takes });
    }

    fn handle_irq(&mut self, p: u32, irq: Irq) {
        match irq {
            Irq::Tick => {
                self.host.tick(self.clock.now(), CpuId(p));
                let pc = &mut self.pcpus[p as usize];
                pc.eager |= pc.resched;
                self.host_notes();
                self.ticks.handled(p, &self.host, &mut self.clock);
            }
            Irq::Ipi => self.take_woken(p),
            Irq::Host(_) => {}
            Irq::Sched => {
                self.host.on_deadline(self.clock.now(), CpuId(p));
                self.host_notes();
            }
            Irq::Lapic(v) => self.timer_interrupt(v),
            Irq::Boost(v) => self.boost_timer(v),
            Irq::Ratelimit => self.set_ratelimits(),
            Irq::Accounts => self.accounts(),
            Irq::Govern(vm) => self.govern(vm),
            Irq::Device(d) => self.device_interrupt(d),
            Irq::Posted(v) => self.inject(v, vector::IPI, Injection::Ipi),
            Irq::Remote(client) => self.remote_arrived(client),
            Irq::Sleep(t) => self.wake_sleeper(t),
            Irq::Storm(s) => self.batch_begins(s),
        }
    }

    /// A measuring task's first instruction.
    pub(crate) fn sample(&mut self, sampler: u32, probe: u32) {
        if sampler == NONE {
            return;
        }
        if let Some(sample) = self.tracks.sample(sampler, self.clock.now()) {
            self.probes.record(probe, &sample, self.clock.now(), &mut self.spans);
        }
    }
}

pub(crate) const FREE_RUN: Op = Op::Run { ns: 1000, mode: Mode::User };

/// Whether work in `mode` with `left` remaining can be preempted under a preemption model.
pub(crate) fn preemptible(
    mode: Mode,
    left: Ns,
    model: Preemption,
    eager: bool,
    at_point: bool,
) -> bool {
    if left == 0 {
        return true;
    }
    match (mode, model) {
        (Mode::User, _) | (Mode::Kernel, Preemption::Full) => true,
        (Mode::Kernel, Preemption::Lazy) => eager,
        (Mode::Kernel, Preemption::Voluntary) => at_point,
        (Mode::Kernel, Preemption::None) | (Mode::PreemptOff | Mode::IrqOff, _) => false,
    }
}
