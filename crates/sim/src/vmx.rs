//! Entering and leaving guest mode, and what the host does for each exit.

use vcoop_policy::Injection;
use vcoop_sched::Leave;

use crate::queue::Ns;
use crate::track::State;
use crate::world::{Exit, Segment, World, vector};

impl World<'_> {
    /// Begins a VM entry.
    pub(crate) fn enter(&mut self, p: u32, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        let (irr, track) = (vcpu.irr, vcpu.track);
        let inject = if irr != 0 { self.costs.inject_ns } else { 0 };
        self.state(track, State::ExitEntry);
        self.begin(p, Segment::Entry, self.costs.entry_ns + inject);
    }

    /// Leaves guest mode (or never got there) for a reason; the segment covers the exit and its
    /// handling.
    pub(crate) fn exit(&mut self, p: u32, reason: Exit) {
        let c = self.costs;
        let handling = match reason {
            Exit::Interrupt => 0,
            Exit::Halt => c.handle_hlt_ns,
            Exit::Timer => c.handle_timer_msr_ns,
            Exit::Ipi(_) | Exit::Multicast { hypercall: false, .. } => c.handle_icr_ns,
            // What a PAUSE exit takes besides the search is taken to be a hypercall's.
            Exit::Notify
            | Exit::Register(_)
            | Exit::Send(_)
            | Exit::Start(_)
            | Exit::Pause
            | Exit::Multicast { hypercall: true, .. }
            | Exit::Kick(_)
            | Exit::Yield(_)
            | Exit::Remote(_) => c.handle_hypercall_ns,
        };
        let v = self.threads[self.pcpus[p as usize].current as usize].vcpu;
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.exit_counts[reason.index()] += 1;
        let track = vcpu.track;
        self.state(track, State::ExitEntry);
        self.begin(p, Segment::Exit(reason), c.exit_ns + handling);
    }

    /// The host's work for an exit is done: its effects. True when the thread went to sleep.
    pub(crate) fn handle_exit(&mut self, p: u32, reason: Exit) -> bool {
        let v = self.threads[self.pcpus[p as usize].current as usize].vcpu;
        match reason {
            Exit::Interrupt => self.boost_exit(v),
            Exit::Timer => {
                self.arm_lapic(v);
                self.boost_exit(v);
            }
            Exit::Ipi(target) => {
                self.boost_exit(v);
                self.inject(target, vector::IPI, Injection::Ipi);
            }
            Exit::Notify => self.boost_notify(v),
            Exit::Register(Some(on)) => self.boost_registered(v, on),
            // A fault for the guest, and for the policy an exit like any other.
            Exit::Register(None) => self.boost_exit(v),
            Exit::Send(message) => {
                self.boost_exit(v);
                self.send(message);
            }
            Exit::Start(birth) => {
                self.boost_exit(v);
                self.vm_starts(birth);
            }
            Exit::Multicast { targets, .. } => {
                self.boost_exit(v);
                self.multicast_sent(v, targets);
            }
            Exit::Kick(target) => {
                self.boost_exit(v);
                self.kick(target);
            }
            Exit::Remote(client) => {
                self.boost_exit(v);
                self.remote_sent(client);
            }
            Exit::Pause => {
                self.boost_exit(v);
                return self.on_spin(p, v);
            }
            Exit::Yield(to) => {
                self.boost_exit(v);
                return self.on_yield(p, to);
            }
            Exit::Halt => return self.halt(p, v),
        }
        false
    }

    /// Starts, moves or stops the host timer behind the guest's deadline.
    pub(crate) fn arm_lapic(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.programmed = vcpu.timers.last().map_or(Ns::MAX, |t| t.0);
        let slot = self.slots.lapic + v;
        if vcpu.programmed == Ns::MAX {
            self.queue.cancel(slot);
        } else {
            self.queue.set(slot, vcpu.programmed.max(self.now));
        }
    }

    /// HLT: with an interrupt pending the guest goes on, else the thread sleeps.
    fn halt(&mut self, p: u32, v: u32) -> bool {
        let parks = self.parks(v);
        if self.vcpus[v as usize].irr != 0 || parks && self.was_kicked(v) {
            self.boost_exit(v);
            return false;
        }
        self.vcpus[v as usize].halted = true;
        self.boost_halted(v);
        // What the priority change costs is paid with the switch.
        self.reschedule(p, Leave::Blocked);
        if parks {
            // Asleep, but not for want of work.
            self.state(self.vcpus[v as usize].track, State::Spin);
        }
        true
    }
}
