//! The guest level: a vCPU in guest mode.
//!
//! ```text
//!            +--------- pending exits ---------> Exit (host) --> Entry (host) --+
//!            |                                                                  v
//! goes on ---+--> Irq --> [Softirq] --> [Overhead] --> [Switch] --> User --> goes on
//!            |
//!            +--> nothing to run: HLT exit
//! ```
//!
//! A host interrupt stops any of these with what is left of it. Guest kernel segments run with
//! guest interrupts off.

mod acquire;
mod barrier;
mod barrier_wait;
mod confer;
pub(crate) mod counters;
pub(crate) mod exit;
mod halt_poll;
pub(crate) mod halt_times;
mod idle;
mod lock;
mod operation;
mod sleeping_lock;
mod spin;
pub(crate) mod spin_vcpu;
pub(crate) mod vcpu_virt;
pub(crate) mod vm_sync;
mod vmx;

use vcoop_model::plan::virt::IpiPath;
use vcoop_model::plan::{Mode, Preemption};
use vcoop_model::profile::CostKey;
use vcoop_policy::GuestEvent;
use vcoop_sched::{CpuId, EntId, LeaveReason, Note};

use crate::attribution::track::{NONE, State};
use crate::guest::exit::Exit;
use crate::guest::spin_vcpu::Spin;
use crate::host::{FREE_OPS, preemptible};
use crate::interrupts::guest_timers::TimerFor;
use crate::machine::{GuestSegment, Segment, Wait, vector};
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// Begins or resumes a guest segment on the vCPU's pCPU.
    #[inline(always)]
    pub(crate) fn guest_begin(&mut self, v: u32, segment: GuestSegment, ns: Ns) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.segment = segment;
        vcpu.left = ns;
        vcpu.since = self.clock.now();
        vcpu.in_kernel |= segment != GuestSegment::User;
        let (p, track) = (vcpu.pcpu, vcpu.track);
        let state = match segment {
            GuestSegment::Irq(_)
            | GuestSegment::IrqEnd(..)
            | GuestSegment::Softirq(_)
            | GuestSegment::SoftirqEnd
            | GuestSegment::Overhead => State::GuestIrq,
            GuestSegment::Switch => State::GuestSwitch,
            GuestSegment::User | GuestSegment::None => State::Run,
            GuestSegment::Poll | GuestSegment::Rest => State::Asleep,
        };
        self.state(track, state);
        let takes = match segment {
            GuestSegment::User => self.guest_work_takes(v, p, ns),
            _ => ns,
        };
        self.begin(p, Segment::Guest, takes);
        if segment == GuestSegment::Rest {
            self.sibling_turns(p);
        }
    }

    /// How long a part of a task's work takes; spinning has no speed.
    #[inline]
    fn guest_work_takes(&mut self, v: u32, p: u32, ns: Ns) -> Ns {
        if !self.smt.is_on() {
            return ns;
        }
        let vcpu = &self.vcpus[v as usize];
        let spins = self.vms[vcpu.vm as usize].tasks[vcpu.current as usize].spin != Spin::No;
        let takes = if spins { ns } else { self.work_takes(p, ns) };
        self.vcpus[v as usize].left = takes;
        takes
    }

    /// Leaves guest mode: the segment keeps its remaining time.
    pub(crate) fn stop_guest(&mut self, p: u32) {
        let v = self.pcpus[p as usize].vcpu;
        let vcpu = &mut self.vcpus[v as usize];
        let now = self.clock.now();
        let ran = now - vcpu.since;
        vcpu.left -= ran;
        vcpu.since = now;
        if vcpu.segment == GuestSegment::User {
            let (vm, t) = (vcpu.vm as usize, vcpu.current as usize);
            let done = self.work_done(p, ran);
            let work = &mut self.vms[vm].tasks[t];
            let most = if work.spin == Spin::No { work.needs() } else { done };
            work.ran(done.min(most));
            work.reads_clock(now);
        }
    }

    /// A guest segment has ended.
    #[inline(always)]
    pub(crate) fn guest_segment_ends(&mut self, p: u32) {
        self.stop_guest(p);
        let v = self.pcpus[p as usize].vcpu;
        let ended = std::mem::replace(&mut self.vcpus[v as usize].segment, GuestSegment::None);
        match ended {
            GuestSegment::Irq(which) => {
                let device = self.guest_irq_done(v, which);
                self.handler_ends(v, GuestSegment::IrqEnd(which, device));
            }
            GuestSegment::Rest => {
                self.rested(v);
                self.sibling_turns(p);
            }
            GuestSegment::Softirq(d) => {
                self.device_wakes(v, d);
                self.handler_ends(v, GuestSegment::SoftirqEnd);
            }
            end @ (GuestSegment::IrqEnd(..) | GuestSegment::SoftirqEnd) => {
                self.handler_returns(v, end)
            }
            GuestSegment::User => {
                let vcpu = &self.vcpus[v as usize];
                let work = &self.vms[vcpu.vm as usize].tasks[vcpu.current as usize];
                if work.spin != Spin::No {
                    self.spin_period_ends(v);
                }
            }
            GuestSegment::None
            | GuestSegment::Overhead
            | GuestSegment::Switch
            | GuestSegment::Poll => {}
        }
        self.guest_goes_on(v);
    }

    /// In guest mode between two segments, or just after the entry: begins the next segment.
    pub(crate) fn guest_goes_on(&mut self, v: u32) {
        for free in 0.. {
            let vcpu = &mut self.vcpus[v as usize];
            if let Some(reason) = vcpu.exits.pop_front() {
                let p = vcpu.pcpu;
                return self.exit(p, reason);
            }
            if vcpu.segment.is_kernel() {
                let (segment, left) = (vcpu.segment, vcpu.left);
                return self.guest_begin(v, segment, left);
            }
            if vcpu.irr != 0 && self.guest_takes_irqs(v) {
                let vcpu = &mut self.vcpus[v as usize];
                if std::mem::take(&mut vcpu.window) {
                    let p = vcpu.pcpu;
                    return self.exit(p, Exit::Window);
                }
                return self.guest_take_irq(v);
            }
            let vcpu = &mut self.vcpus[v as usize];
            vcpu.segment = GuestSegment::None;
            if vcpu.extra > 0 {
                let ns = std::mem::take(&mut vcpu.extra);
                return self.guest_begin(v, GuestSegment::Overhead, ns);
            }
            let (current, resched) = (vcpu.current, vcpu.resched);
            let (vm, thread) = (vcpu.vm as usize, vcpu.thread as usize);
            if resched && current == NONE {
                // A CPU that leaves the idle loop looks for calls that came without an IPI.
                self.calls_done(v);
            }
            if resched && (current == NONE || self.guest_may_preempt(v, current)) {
                if self.guest_reschedule(v, LeaveReason::Preempted) {
                    return;
                }
                continue;
            }
            if current == NONE {
                if self.guest_idle(v) {
                    return;
                }
                continue;
            }
            if std::mem::take(&mut self.vms[vm].tasks[current as usize].leaving) {
                if self.guest_reschedule(v, LeaveReason::Blocked) {
                    return;
                }
                continue;
            }
            let work = &mut self.vms[vm].tasks[current as usize];
            work.reads_clock(self.clock.now());
            if work.left > 0 {
                let spin = self.vms[vm].tasks[current as usize].spin;
                let spell = match spin {
                    Spin::No => None,
                    _ => match self.begin_spin(v, current) {
                        Some(ns) => Some(ns),
                        None => continue,
                    },
                };
                let work = &mut self.vms[vm].tasks[current as usize];
                work.evicted(std::mem::take(&mut self.threads[thread].work.refill));
                let ns = work.needs();
                if work.mode == Mode::User && std::mem::take(&mut self.vcpus[v as usize].in_kernel)
                {
                    self.guest_event(v, GuestEvent::UserReturn);
                    if !self.vcpus[v as usize].exits.is_empty() {
                        continue;
                    }
                }
                self.guest_begin(v, GuestSegment::User, spell.unwrap_or(ns));
                if spell.is_some() {
                    self.spin_state(v, spin);
                }
                return;
            }
            if self.guest_op(v, current, free >= FREE_OPS) {
                return;
            }
        }
    }

    pub(crate) fn guest_takes_irqs(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.irr & vector::NMI != 0 || vcpu.current == NONE {
            return true;
        }
        let work = &self.vms[vcpu.vm as usize].tasks[vcpu.current as usize];
        !work.irqs_off && (work.left == 0 || work.mode != Mode::IrqOff)
    }

    fn guest_may_preempt(&self, v: u32, task: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let vm = &self.vms[vcpu.vm as usize];
        let work = &vm.tasks[task as usize];
        // A task that spins for a sleeping lock stops that, and goes to sleep.
        if work.holds > 0 || matches!(work.spin, Spin::Sleeping(_)) {
            return false;
        }
        // In user mode no code reads a lazy flag that another CPU has set, whether the vCPU left guest mode or not.
        let unseen = work.mode == Mode::User && work.left > 0 && !vcpu.in_kernel;
        if unseen && vm.preemption == Preemption::Lazy && !vcpu.eager {
            return false;
        }
        // A guest kernel section has its scheduling points no denser than the guest can see: it is
        // preempted at the next interrupt that comes in it.
        preemptible(work.mode, work.left, vm.preemption, vcpu.eager, true)
    }

    /// Takes the most urgent pending interrupt.
    fn guest_take_irq(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let which = 1 << vcpu.irr.trailing_zeros();
        vcpu.irr &= !which;
        let vm = vcpu.vm as usize;
        if which == vector::TIMER && self.vms[vm].times_interrupts {
            self.timer_handler_entered(v);
        }
        let nmi = which == vector::NMI;
        self.guest_event(v, if nmi { GuestEvent::NmiEnter } else { GuestEvent::IrqEnter });
        self.stops_conferring(v);
        let mut ns = self.costs.of(CostKey::GuestIrq);
        if which == vector::TIMER && self.vms[vm].virt.advance {
            // The guest waits itself, or a segment has ended before the kick: the entry after that would have waited.
            ns += self.waits_for_deadline(v, 0);
        }
        self.guest_begin(v, GuestSegment::Irq(which), ns);
    }

    /// Carries out the handler's effects. Returns the device whose softirq half follows, or `NONE`.
    fn guest_irq_done(&mut self, v: u32, which: u8) -> u32 {
        match which {
            vector::TIMER => self.guest_timer(v),
            vector::DEVICE => return self.guest_device(v),
            vector::IPI => {
                self.calls_done(v);
                self.guest_takes_woken(v);
                if self.vms[self.vcpus[v as usize].vm as usize].nohz {
                    // Its tick may have come back.
                    self.guest_program(v);
                }
            }
            vector::MESSAGE => {
                while let Some(message) = self.vcpus[v as usize].messages.pop_front() {
                    self.deliver_to_guest(v, message);
                }
            }
            _ => {}
        }
        NONE
    }

    /// A handler is over when the exits that it asked for (its timer's next deadline, IPIs) have been served and its
    /// wake-ups are done: a host that reads the page at such an exit finds the guest in the handler.
    fn handler_ends(&mut self, v: u32, end: GuestSegment) {
        let vcpu = &mut self.vcpus[v as usize];
        let eoi = matches!(end, GuestSegment::IrqEnd(which, _) if which != vector::NMI);
        if eoi && self.vms[vcpu.vm as usize].virt.eoi_exits {
            vcpu.exits.push_back(Exit::Eoi);
        }
        let left = std::mem::take(&mut vcpu.extra);
        if left == 0 && vcpu.exits.is_empty() {
            return self.handler_returns(v, end);
        }
        vcpu.segment = end;
        vcpu.left = left;
    }

    fn handler_returns(&mut self, v: u32, end: GuestSegment) {
        let GuestSegment::IrqEnd(which, device) = end else {
            return self.guest_event(v, GuestEvent::SoftirqExit);
        };
        if self.vcpus[v as usize].resched {
            self.guest_event(v, GuestEvent::NeedResched);
        }
        if which == vector::NMI {
            return self.guest_event(v, GuestEvent::NmiExit);
        }
        self.guest_event(v, GuestEvent::IrqExit { softirq_pending: device != NONE });
        if device != NONE {
            let vcpu = &mut self.vcpus[v as usize];
            vcpu.segment = GuestSegment::Softirq(device);
            vcpu.left = self.devices.softirq_takes(device);
            self.guest_event(v, GuestEvent::SoftirqEnter);
        }
    }

    /// Takes a device interrupt. Returns the device if its softirq half follows, or `NONE`.
    fn guest_device(&mut self, v: u32) -> u32 {
        let Some(d) = self.vcpus[v as usize].devices.pop_front() else { return NONE };
        if !self.vcpus[v as usize].devices.is_empty() {
            self.vcpus[v as usize].irr |= vector::DEVICE;
        }
        if self.devices.softirq_takes(d) > 0 {
            return d;
        }
        self.device_wakes(v, d);
        NONE
    }

    /// Wakes the task of a device, if it waits for an event that has come.
    fn device_wakes(&mut self, v: u32, d: u32) {
        let Some((vm, t)) = self.devices.wakes(d) else { return };
        let work = &mut self.vms[vm as usize].tasks[t as usize];
        if let Wait::Device(due) = work.wait
            && self.clock.now() >= due
        {
            self.guest_wake(v, t);
        }
    }

    /// Wakes a guest task from code that runs on vCPU `v`.
    pub(crate) fn guest_wake(&mut self, v: u32, t: u32) {
        self.guest_wake_up(v, t, false);
    }

    /// The same. `sync`: the task that runs there is about to sleep.
    pub(crate) fn guest_wake_up(&mut self, v: u32, t: u32, sync: bool) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.extra += self.costs.of(CostKey::GuestWakeup);
        let (vm, cpu) = (vcpu.vm as usize, vcpu.cpu);
        let first = self.vms[vm].first;
        let work = &mut self.vms[vm].tasks[t as usize];
        work.wait = Wait::No;
        let sampler = work.sampler;
        if std::mem::take(&mut work.leaving) {
            return self.guest_stays(vm, t);
        }
        let (level, now) = (&mut self.vms[vm].level, self.clock.now());
        let to = match sync {
            true => level.wake_sync(now, EntId(t), cpu),
            false => level.wake(now, EntId(t), Some(cpu)),
        };
        let Some(to) = to else { return };
        if self.spans.is_on() {
            self.span_task_wake(first + to.0, t, v);
        }
        self.guest_queue_grew(v, first + to.0);
        if sampler != NONE {
            let track = self.vcpus[(first + to.0) as usize].track;
            self.tracks.event(sampler, track, self.clock.now());
        }
        self.server_is(first + to.0, t, false);
        self.tells_of_urgent(v, EntId(t));
        self.guest_notes(v);
        let has_policy = self.vcpus[v as usize].has_policy;
        if to != cpu && has_policy && self.vms[vm].level.is_urgent(EntId(t)) {
            self.notify_again(v, first + to.0);
        }
    }

    /// A vCPU queues the tasks that others woke for it.
    fn guest_takes_woken(&mut self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, cpu) = (vcpu.vm as usize, vcpu.cpu);
        while let Some(e) = self.vms[vm].level.take_woken(self.clock.now(), cpu) {
            self.guest_queue_grew(v, v);
            self.tells_of_urgent(v, e);
            self.guest_notes(v);
        }
    }

    /// The guest's kernel on vCPU `v` has queued a task: reports an urgent one to its half of the policy.
    fn tells_of_urgent(&mut self, v: u32, e: EntId) {
        let vcpu = &self.vcpus[v as usize];
        let level = &self.vms[vcpu.vm as usize].level;
        // Without a policy it does not matter how urgent the task is.
        if vcpu.has_policy && level.is_urgent(e) && level.cpu_of(e) == vcpu.cpu {
            let intent = crate::policy_driver::page::intent(level.policy(e));
            self.guest_event(v, GuestEvent::RtEnqueued(intent));
        }
    }

    /// A vCPU was told to reschedule before an urgent task came to it, so the kernel that woke the task on vCPU `v`
    /// sends no other IPI. But the vCPU may have lost its pCPU since, and only an injection tells the host.
    fn notify_again(&mut self, v: u32, to: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let posted = self.vms[vcpu.vm as usize].sync.ipi.path == IpiPath::Posted;
        let ipi = Exit::Ipi(to);
        if !posted && vcpu.cooperates() && !vcpu.exits.contains(&ipi) {
            vcpu.exits.push_back(ipi);
        }
    }

    /// Carries out the notes of the guest's scheduler, on vCPU `v`.
    pub(crate) fn guest_notes(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let first = self.vms[vm].first;
        while let Some(note) = self.vms[vm].level.pop_note() {
            match note {
                Note::Kick { cpu, eager } => {
                    let target = first + cpu.0;
                    let to = &mut self.vcpus[target as usize];
                    to.resched = true;
                    to.eager |= eager;
                    // No interrupt is sent for a lazy flag (`__resched_curr`).
                    let lazy = !eager && self.vms[vm].preemption == Preemption::Lazy;
                    if target != v && !lazy {
                        self.guest_interrupts(v, target);
                    }
                }
                Note::Woken { cpu } => self.guest_interrupts(v, first + cpu.0),
                Note::Moved { ent, to, .. } => {
                    let sampler = self.vms[vm].tasks[ent.index()].sampler;
                    if sampler != NONE {
                        let track = self.vcpus[(first + to.0) as usize].track;
                        self.tracks.moved(sampler, track, self.clock.now());
                    }
                    self.server_is(first + to.0, ent.0, false);
                    self.guest_queue_grew(v, first + to.0);
                }
                // Guests are Linux: nothing parks a task, and a throttled one is not tracked.
                Note::Throttled { .. }
                | Note::Unthrottled { .. }
                | Note::Parked { .. }
                | Note::Unparked { .. }
                | Note::Decision { .. } => {}
                Note::DeadlineChanged { cpu } => {
                    // Set on the vCPU concerned; it programs its hardware when it next runs.
                    let target = first + cpu.0;
                    match self.vms[vm].level.deadline(cpu) {
                        Some(at) => self.vcpus[target as usize].timers.set(TimerFor::Level, at),
                        None => self.vcpus[target as usize].timers.cancel(TimerFor::Level),
                    }
                    if target == v {
                        self.guest_program(v);
                    }
                }
            }
        }
    }

    /// The guest's kernel on vCPU `v` makes another vCPU reschedule, by an IPI or by a flag that it watches.
    fn guest_interrupts(&mut self, v: u32, to: u32) {
        match self.guest_watches(to) {
            true => self.guest_flags(v, to),
            false => self.resched_ipi(v, to),
        }
    }

    /// Runs the guest's scheduler; true if a context switch was begun.
    fn guest_reschedule(&mut self, v: u32, leave: LeaveReason) -> bool {
        if self.vcpus[v as usize].current == NONE {
            // The idle loop looks at its wake list without an IPI, too.
            self.guest_takes_woken(v);
        }
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.resched = false;
        vcpu.eager = false;
        let (vm, cpu, prev) = (vcpu.vm as usize, vcpu.cpu, vcpu.current);
        let level = &mut self.vms[vm].level;
        let before = level.stopped();
        let next = level.schedule(self.clock.now(), cpu, leave).map_or(NONE, |e| e.0);
        // A switch to the stopper thread, and one from it.
        let stopped = level.stopped() - before;
        self.vcpus[v as usize].extra += 2 * stopped * self.costs.of(CostKey::GuestSwitch);
        self.guest_notes(v);
        if next == prev {
            if next != NONE {
                // The reschedule that was owed changed nothing.
                self.guest_event(v, GuestEvent::UserReturn);
            }
            return false;
        }
        let keeps = next == NONE && self.vms[vm].sync.ipi.lazy_tlb;
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.current = next;
        vcpu.lazy_space = if keeps { self.vms[vm].tasks[prev as usize].space } else { NONE };
        if self.spans.is_on() {
            self.span_task(v, leave);
        }
        if prev != NONE {
            self.server_is(v, prev, false);
            self.actor_is(v, prev, false);
            self.holder_stops(vm, prev);
        }
        if next == NONE {
            return false;
        }
        if prev == NONE {
            self.guest_idle_ends(v);
        }
        self.server_is(v, next, true);
        self.actor_is(v, next, true);
        if self.vcpus[v as usize].has_guest_half {
            let next = crate::policy_driver::page::intent(self.vms[vm].level.policy(EntId(next)));
            self.guest_event(v, GuestEvent::TaskSwitch { next, pending: None });
        }
        if self.guest_tick_starts(v) {
            self.guest_program(v);
        }
        let ns = self.costs.of(CostKey::GuestSwitch);
        self.guest_switch(v, ns)
    }

    /// A switch of tasks takes `ns`. Returns whether it has begun: an exit that it has asked for comes first.
    #[inline(always)]
    fn guest_switch(&mut self, v: u32, ns: Ns) -> bool {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.segment = GuestSegment::Switch;
        vcpu.left = ns;
        let begins = vcpu.exits.is_empty();
        if begins {
            self.guest_begin(v, GuestSegment::Switch, ns);
        }
        begins
    }

    /// Blocks the current task, with a timer on this vCPU or without. First it pays `key` for going to sleep and coming
    /// back, like a host thread in [`block`](Self::block).
    pub(crate) fn guest_sleep(&mut self, v: u32, t: u32, until: Option<Ns>, key: CostKey) -> bool {
        if let Some(at) = until {
            self.vcpus[v as usize].timers.set(TimerFor::Task(t), at);
            let vcpu = &self.vcpus[v as usize];
            if vcpu.timers.next() < vcpu.programmed {
                self.guest_program(v);
            }
        }
        let ns = self.costs.of(key);
        if ns == 0 {
            return self.guest_reschedule(v, LeaveReason::Blocked);
        }
        let vm = self.vcpus[v as usize].vm as usize;
        self.vms[vm].tasks[t as usize].leaving = true;
        self.server_is(v, t, false);
        self.actor_is(v, t, false);
        self.guest_switch(v, ns)
    }

    /// A wake-up came while a task was going to sleep: it goes on without having slept.
    #[cold]
    fn guest_stays(&mut self, vm: usize, t: u32) {
        let home = self.home_of(vm, t);
        let vcpu = &self.vcpus[home as usize];
        let (runs, track) = (vcpu.current == t, vcpu.track);
        let sampler = self.vms[vm].tasks[t as usize].sampler;
        self.tracks.event(sampler, track, self.clock.now());
        self.server_is(home, t, runs);
        if runs {
            self.actor_is(home, t, true);
        }
    }

    /// The program of a task is the activity of its vCPU's thread, which is to run for `ns`: subtracts what that thread
    /// has already run since the last run, for exits and the guest's kernel.
    #[cold]
    fn runs_for_thread(&mut self, v: u32, t: u32, ns: Ns) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, thread) = (vcpu.vm as usize, EntId(vcpu.thread));
        self.host.charge(self.clock.now(), CpuId(vcpu.pcpu));
        self.host_notes();
        let had = self.host.stats(thread).exec_ns;
        let work = &mut self.vms[vm].tasks[t as usize];
        let before = work.thread_time.filter(|time| *time > 0).unwrap_or(had);
        work.left = (before + ns).saturating_sub(had);
        work.thread_time = Some(before + ns);
    }

    fn guest_wake_peer(&mut self, v: u32, t: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let Some(work) = self.vms[vm].tasks.get_mut(t as usize) else { return };
        if work.wait == Wait::Peer {
            // The timer that would give up is on the vCPU where the task went to sleep.
            let first = self.vms[vm].first;
            for c in 0..self.plan.vms[vm].level.topology.cpus() {
                self.vcpus[(first + c) as usize].timers.cancel(TimerFor::Task(t));
            }
            self.guest_wake(v, t);
        } else {
            work.woken = true;
        }
    }

    /// The track of the vCPU that a task's device interrupts.
    fn device_track(&self, vm: usize, t: u32) -> Option<u32> {
        let device = self.plan.vms[vm].devices.iter().find(|d| d.wakes == Some(t))?;
        Some(self.vcpus[(self.vms[vm].first + device.vcpu) as usize].track)
    }
}
