//! Idle vCPUs that do not sleep: the host polls for their wake-up, the guest polls for work, or the pCPU
//! rests in guest mode.
//!
//! ```text
//!  guest has nothing to run
//!    idle=poll ----------------------------> polls until there is work
//!    haltpoll --- polls for its limit -----> work, or:
//!    HLT, exits --> host polls for its own --> an interrupt, another task, or: the thread sleeps
//!    HLT or MWAIT, no exit ----------------> the pCPU rests until an interrupt comes
//! ```

use vcoop_model::profile::CostKey;
use vcoop_policy::{GuestEvent, Idle};
use vcoop_sched::{CpuId, LeaveReason};

use crate::attribution::track::{NONE, State};
use crate::clock::Event;
use crate::guest::exit::Exit;
use crate::guest::vcpu_virt::{IdleMode, wants};
use crate::host::idle_governor::{IdleGovernor, TICKED_NS};
use crate::interrupts::guest_timers::TimerFor;
use crate::machine::{GuestSegment, Segment, Vcpu};
use crate::queue::Ns;
use crate::world::World;

/// No run is this long.
const FOR_EVER: Ns = 1 << 60;

impl World<'_> {
    /// HLT with nothing pending: polls for the vCPU, if its VM and its history say so. True if it does; else the thread
    /// goes to sleep.
    pub(crate) fn host_polls(&mut self, p: u32, v: u32) -> bool {
        if !self.vcpus[v as usize].virt.host_poll.halts(self.clock.now()) {
            return false;
        }
        if !self.can_poll(p) {
            self.poll_ends(v, false);
            return false;
        }
        self.vcpus[v as usize].polling = true;
        // Before it polls, interrupts of the exit are handled, and the exit's remaining work is done.
        self.goes_on(p);
        true
    }

    /// The vCPU of a thread, if the host polls for it.
    pub(crate) fn polled_for(&self, thread: u32) -> Option<u32> {
        let v = self.threads.get(thread as usize)?.vcpu;
        self.vcpus.get(v as usize).is_some_and(|vcpu| vcpu.polling).then_some(v)
    }

    /// Whether no other thread wants this pCPU (`kvm_vcpu_can_poll`).
    fn can_poll(&self, p: u32) -> bool {
        !self.pcpus[p as usize].resched && self.host.has_single(CpuId(p))
    }

    /// In the kernel, between segments, with a vCPU that is polled for.
    pub(crate) fn poll_goes_on(&mut self, p: u32, v: u32) {
        self.sync_posts(v);
        let vcpu = &self.vcpus[v as usize];
        let (kicked, track) = (vcpu.spin.is_kicked(), vcpu.track);
        let woken = kicked || vcpu.irr != 0 && self.guest_takes_irqs(v);
        let until = vcpu.virt.host_poll.until();
        if woken {
            self.poll_ends(v, true);
            self.tend(v);
            return self.goes_on(p);
        }
        if self.clock.now() >= until || !self.can_poll(p) {
            self.poll_ends(v, false);
            return self.falls_asleep(p, v);
        }
        self.state(track, State::Asleep);
        self.begin(p, Segment::Poll, until - self.clock.now());
    }

    /// Polling stops for an interrupt, or ends.
    pub(crate) fn poll_stops(&mut self, p: u32) {
        let v = self.pcpus[p as usize].vcpu;
        let since = self.pcpus[p as usize].since;
        self.vcpus[v as usize].virt.host_poll.polled(self.clock.now() - since);
    }

    fn poll_ends(&mut self, v: u32, won: bool) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.polling = false;
        let ns = vcpu.virt.host_poll.ends();
        let counters = &mut vcpu.virt.counters;
        if won {
            counters.polls_won += 1;
            counters.poll_won_ns += ns;
            vcpu.wants |= wants::HALT_TIME;
        } else {
            counters.polls_lost += 1;
            counters.poll_lost_ns += ns;
        }
        if let Some(halts) = &mut self.vms[vcpu.vm as usize].halts {
            halts.polled(won, ns);
        }
    }

    /// A polling pCPU gets a wake-up, or another thread wants it. It can see that once the executing pCPU has finished
    /// its current work.
    pub(crate) fn poll_sees(&mut self, p: u32) {
        self.poll_sees_in(p, self.pcpus[self.cpu as usize].extra);
    }

    /// The same, for something that can be seen after `after`.
    pub(crate) fn poll_sees_in(&mut self, p: u32, after: Ns) {
        if self.pcpus[p as usize].segment == Segment::Poll {
            let there = self.clock.now() + after;
            self.clock.set_earlier(Event::Segment(p), there + self.costs.of(CostKey::PollNotice));
        }
    }

    /// A vCPU goes on after a halt, or after a preemption.
    #[cold]
    pub(crate) fn tend(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if vcpu.wants & wants::HALT_TIME != 0 {
            vcpu.wants &= !wants::HALT_TIME;
            let halted = vcpu.virt.host_poll.goes_on(self.clock.now());
            if let Some(halts) = &mut self.vms[vcpu.vm as usize].halts {
                halts.halted(halted);
            }
        }
        if vcpu.wants & wants::HV_TIMER != 0 {
            self.sw_to_hv(v);
        }
    }

    /// A guest's vCPU has nothing to run. True if it stays in guest mode.
    pub(crate) fn guest_idle(&mut self, v: u32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let way = self.vms[vm].virt.idle;
        let way = match way {
            IdleMode::Haltpoll(rests) => match self.guest_haltpoll(v) {
                Idle::Poll(left) => return self.guest_polls(v, left),
                Idle::Halt if rests => IdleMode::Rest,
                Idle::Halt => IdleMode::Halt,
            },
            IdleMode::Poll => return self.guest_polls(v, FOR_EVER),
            way => way,
        };
        if !(self.vms[vm].virt.mwait && self.keeps_tick(v)) {
            self.vcpus[v as usize].timers.cancel(TimerFor::Tick);
        }
        self.guest_program(v);
        self.guest_event(v, GuestEvent::IdleEnter);
        let vcpu = &mut self.vcpus[v as usize];
        if way == IdleMode::Halt {
            vcpu.exits.push_back(Exit::Halt);
            return false;
        }
        if !vcpu.exits.is_empty() {
            return false;
        }
        self.guest_begin(v, GuestSegment::Rest, FOR_EVER);
        true
    }

    /// Whether the idle time that begins is too short to stop the tick, if the guest has a governor of idle states.
    fn keeps_tick(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let tick = self.plan.vms[vcpu.vm as usize].level.tick_ns;
        let next = vcpu.timers.next_but_tick();
        let until = (next != Ns::MAX).then(|| next.saturating_sub(self.clock.now()));
        vcpu.timers.has(TimerFor::Tick) && vcpu.virt.idle_governor.keeps_tick(tick, until)
    }

    /// The decision of the haltpoll governor, with the remaining time.
    fn guest_haltpoll(&mut self, v: u32) -> Idle {
        let virt = &mut self.vcpus[v as usize].virt;
        let (choice, lost) = virt.guest_poll.idles(self.clock.now());
        if let Some(ns) = lost {
            virt.counters.guest_polls_lost += 1;
            virt.counters.guest_poll_ns += ns;
        }
        choice
    }

    /// Polls for work, with the tick running.
    fn guest_polls(&mut self, v: u32, ns: Ns) -> bool {
        if self.vcpus[v as usize].virt.guest_poll.begins(self.clock.now()) {
            self.guest_event(v, GuestEvent::IdleEnter);
        }
        self.guest_program(v);
        if !self.vcpus[v as usize].exits.is_empty() {
            return false;
        }
        self.guest_begin(v, GuestSegment::Poll, ns);
        true
    }

    /// The guest's idle loop ends: there is work.
    pub(crate) fn guest_idle_ends(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if let IdleMode::Halt | IdleMode::Rest = self.vms[vcpu.vm as usize].virt.idle {
            return;
        }
        if let Some(ns) = vcpu.virt.guest_poll.work_comes(self.clock.now()) {
            vcpu.virt.counters.guest_polls_won += 1;
            vcpu.virt.counters.guest_poll_ns += ns;
        }
    }

    /// Whether an idle vCPU watches its reschedule flag, so that no IPI is needed: it polls, or waits by MWAIT.
    pub(crate) fn guest_watches(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let virt = &self.vms[vcpu.vm as usize].virt;
        match virt.idle {
            IdleMode::Halt => false,
            IdleMode::Poll | IdleMode::Haltpoll(_) => {
                vcpu.current == NONE && vcpu.virt.guest_poll.is_polling()
            }
            IdleMode::Rest => virt.mwait && vcpu.segment == GuestSegment::Rest,
        }
    }

    /// Code on vCPU `v` sets the reschedule flag of an idle vCPU that watches it, at the end of a wake-up or of a call.
    pub(crate) fn guest_flags(&mut self, v: u32, to: u32) {
        self.vcpus[to as usize].resched = true;
        self.guest_sees(to, self.vcpus[v as usize].extra);
    }

    /// An idle vCPU in guest mode is to go on: after `after` it notices its reschedule flag, or a posted interrupt.
    /// Outside guest mode it sees that at the next entry.
    pub(crate) fn guest_sees(&mut self, v: u32, after: Ns) {
        let vcpu = &self.vcpus[v as usize];
        let p = vcpu.pcpu;
        if p == NONE || self.pcpus[p as usize].segment != Segment::Guest {
            return;
        }
        let ns = match vcpu.segment {
            GuestSegment::Poll => self.costs.of(CostKey::PollNotice),
            GuestSegment::Rest => self.rest_exit(v),
            _ => return,
        };
        self.clock.set_earlier(Event::Segment(p), self.clock.now() + after + ns);
    }

    /// Exit latency of the idle state in which a pCPU rests in guest mode: for HLT the first, for MWAIT the one that
    /// the guest's governor has chosen.
    pub(crate) fn rest_exit(&mut self, v: u32) -> Ns {
        let vcpu = &self.vcpus[v as usize];
        let expected = match self.vms[vcpu.vm as usize].virt.mwait {
            true => self.rests(vcpu).1,
            false => 0,
        };
        self.costs.idle_exit(expected)
    }

    /// A rest in guest mode has been stopped.
    pub(crate) fn rested(&mut self, v: u32) {
        let (ns, _, governor) = self.rests(&self.vcpus[v as usize]);
        let virt = &mut self.vcpus[v as usize].virt;
        virt.idle_governor = governor;
        virt.counters.rest_ns += ns;
    }

    /// How long a vCPU has rested in guest mode, how long its guest expected that, and the governor's state after it.
    pub(crate) fn rests(&self, vcpu: &Vcpu) -> (Ns, Ns, IdleGovernor) {
        // The time when it began, or was last stopped.
        let since = vcpu.since - (FOR_EVER - vcpu.left);
        let ns = self.clock.now() - since;
        let mut governor = vcpu.virt.idle_governor;
        let next = vcpu.timers.next_but_tick();
        let until = (next != Ns::MAX).then(|| next.saturating_sub(since));
        let tick = self.plan.vms[vcpu.vm as usize].level.tick_ns;
        let ticked = vcpu.timers.next() <= self.clock.now() && next > self.clock.now();
        let lasted = if ticked && until.is_none_or(|ns| ns > tick) { TICKED_NS } else { ns };
        let expected = governor.was_idle(lasted, || until);
        (ns, expected, governor)
    }

    /// Whether a vCPU is in guest mode.
    pub(crate) fn is_in_guest(&self, vcpu: &Vcpu) -> bool {
        vcpu.pcpu != NONE && self.pcpus[vcpu.pcpu as usize].segment == Segment::Guest
    }

    /// Whether an interrupt finds a vCPU idle but not asleep: polled for by the host, or idle in guest mode.
    pub(crate) fn is_idle_awake(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        vcpu.polling
            || matches!(vcpu.segment, GuestSegment::Poll | GuestSegment::Rest)
                && self.is_in_guest(vcpu)
    }

    /// The thread of a halted vCPU goes to sleep.
    pub(crate) fn falls_asleep(&mut self, p: u32, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.halted = true;
        let polls = self.vms[vcpu.vm as usize].virt.host_polls;
        if polls && vcpu.virt.host_poll.is_halted() {
            vcpu.wants |= wants::HALT_TIME;
        }
        self.boost_halted(v);
        // The cost of the priority change is paid with the switch.
        self.reschedule(p, LeaveReason::Blocked);
    }
}
