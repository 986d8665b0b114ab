//! VM entries and exits, and the host's work for each exit.

use vcoop_model::profile::CostKey;

use vcoop_policy::Injection;

use crate::attribution::track::State;
use crate::clock::Event;
use crate::guest::exit::Exit;
use crate::guest::vcpu_virt::wants;
use crate::machine::{GuestSegment, Segment, vector};
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// Begins a VM entry.
    pub(crate) fn enter(&mut self, p: u32, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.polling {
            return self.poll_goes_on(p, v);
        }
        if vcpu.wants & wants::TIMER != 0 {
            self.timer_pends(v);
        }
        self.sync_posts(v);
        let vcpu = &self.vcpus[v as usize];
        let (irr, track) = (vcpu.irr, vcpu.track);
        let arms = if vcpu.hv_at == Ns::MAX { 0 } else { self.costs.of(CostKey::ArmHvTimer) };
        let mut ns = arms + self.costs.of(CostKey::Entry);
        if irr != 0 {
            ns += self.entry_injects(v, arms);
        }
        self.state(track, State::ExitEntry);
        self.begin(p, Segment::Entry, ns);
    }

    /// Extra time of an entry that brings an interrupt. `host`: KVM's work before it waits for the deadline; the entry
    /// itself comes after that (`kvm_wait_lapic_expire` of `arch/x86/kvm/lapic.c`).
    fn entry_injects(&mut self, v: u32, host: Ns) -> Ns {
        let vcpu = &self.vcpus[v as usize];
        let virt = &self.vms[vcpu.vm as usize].virt;
        let (waits, window) = (virt.advance && !virt.guest_waits, virt.window_exits);
        let mut ns = self.costs.of(CostKey::Inject);
        if waits && vcpu.irr & vector::TIMER != 0 {
            ns += self.waits_for_deadline(v, host);
        }
        if window {
            let vcpu = &self.vcpus[v as usize];
            let waits = vcpu.segment.is_kernel() || !self.guest_takes_irqs(v);
            self.vcpus[v as usize].window = waits;
        }
        ns
    }

    /// Guest mode is reached.
    #[inline(always)]
    pub(crate) fn entered(&mut self, p: u32, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if vcpu.exit_at != Ns::MAX {
            let away = self.clock.now() - std::mem::replace(&mut vcpu.exit_at, Ns::MAX);
            vcpu.virt.counters.exits[usize::from(vcpu.exit_why)].ns += away;
        }
        if vcpu.hv_at == Ns::MAX {
            self.guest_goes_on(v);
        } else {
            self.enter_with_hv_timer(p, v);
        }
    }

    /// The host's work for an exit on KVM's fast path is done: re-enters the guest, unless something prevents it.
    pub(crate) fn fast_reentry(&mut self, p: u32, v: u32, reason: Exit) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let virt = &self.vms[vcpu.vm as usize].virt;
        let pc = &self.pcpus[p as usize];
        if !virt.is_fast(reason) || !pc.irqs.is_empty() || pc.resched {
            return false;
        }
        if vcpu.irr != 0 && !virt.posted {
            return false;
        }
        self.sync_posts(v);
        let host = std::mem::take(&mut self.pcpus[p as usize].extra);
        let mut ns = host + self.vcpus[v as usize].fast_entry;
        if self.vcpus[v as usize].irr != 0 {
            ns += self.entry_injects(v, host);
        }
        self.begin(p, Segment::Entry, ns);
        true
    }

    /// Leaves guest mode (or the way there) for a reason; the segment covers the exit and its handling.
    pub(crate) fn exit(&mut self, p: u32, reason: Exit) {
        let v = self.pcpus[p as usize].vcpu;
        let hv_timer = self.vms[self.vcpus[v as usize].vm as usize].virt.hv_timer();
        let handling = match reason {
            Exit::Interrupt => None,
            Exit::Halt => Some(CostKey::HandleHlt),
            Exit::Timer if hv_timer => Some(CostKey::SetHvTimer),
            Exit::Timer => Some(CostKey::HandleTimerMsr),
            Exit::Ipi(_) | Exit::Multicast { hypercall: false, .. } => Some(CostKey::HandleIcr),
            // A PAUSE exit besides its search, and an MSR that KVM reads for its guest, are assumed to cost what a
            // hypercall costs.
            Exit::Notify
            | Exit::Register(_)
            | Exit::Send(_)
            | Exit::Start(_)
            | Exit::Pause
            | Exit::Multicast { hypercall: true, .. }
            | Exit::Kick(_)
            | Exit::Yield(_)
            | Exit::Confer(_)
            | Exit::Ask(_)
            | Exit::CstateRead
            | Exit::Remote(_) => Some(CostKey::HandleHypercall),
            Exit::HvTimer => Some(CostKey::HandleHvTimer),
            Exit::Eoi => Some(CostKey::HandleEoi),
            Exit::Window => Some(CostKey::HandleWindow),
        };
        let vcpu = &mut self.vcpus[v as usize];
        let virt = &self.vms[vcpu.vm as usize].virt;
        let why = reason.index();
        vcpu.virt.counters.exits[why].n += 1;
        vcpu.exit_at = self.clock.now();
        vcpu.exit_why = why as u8;
        let handling = handling.map_or(0, |key| self.costs.of(key));
        let mut ns = if virt.is_fast(reason) {
            let all = self.costs.of(CostKey::Fastpath);
            // The way back comes after the effects.
            vcpu.fast_entry = self.costs.of(CostKey::Entry).min(all);
            all - vcpu.fast_entry
        } else if reason.goes_to_user() {
            self.costs.of(CostKey::Exit) + handling / 2
        } else {
            self.costs.of(CostKey::Exit) + handling
        };
        if hv_timer && vcpu.hv_at != Ns::MAX {
            self.clock.cancel(Event::Lapic(v));
        }
        let (track, rests) = (vcpu.track, vcpu.segment == GuestSegment::Rest);
        if rests {
            ns += self.rest_exit(v);
            self.rested(v);
        }
        self.state(track, State::ExitEntry);
        self.begin(p, Segment::Exit(reason), ns);
        if rests {
            self.sibling_turns(p);
        }
    }

    /// The host's work for an exit is done: carries out its effects. True if the thread went to sleep.
    pub(crate) fn handle_exit(&mut self, p: u32, reason: Exit) -> bool {
        let sleeps = self.exit_takes_effect(p, reason);
        if reason.goes_to_user() {
            // The way back.
            let ns = self.costs.of(CostKey::HandleHypercall) / 2;
            self.pay(ns);
        }
        sleeps
    }

    fn exit_takes_effect(&mut self, p: u32, reason: Exit) -> bool {
        let v = self.pcpus[p as usize].vcpu;
        match reason {
            Exit::Interrupt | Exit::Window | Exit::CstateRead => self.boost_exit(v),
            Exit::Eoi => {
                self.boost_exit(v);
                self.irq_ended(v);
            }
            Exit::HvTimer => {
                self.hv_timer_expired(v);
                self.boost_exit(v);
            }
            Exit::Timer => {
                self.arm_lapic(v);
                self.boost_exit(v);
            }
            Exit::Ipi(target) | Exit::Ask(target) => {
                self.boost_exit(v);
                self.pays_for_distance(target);
                if reason == Exit::Ipi(target) {
                    self.ipi_delivered(v, target);
                }
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
            Exit::Multicast { targets, hypercall } => {
                self.boost_exit(v);
                self.multicast_sent(v, targets, !hypercall);
            }
            Exit::Kick(target) => {
                self.boost_exit(v);
                return self.on_kick(p, target);
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
            Exit::Confer(to) => {
                self.boost_exit(v);
                self.on_confer(v, to);
            }
            Exit::Halt => return self.halt(p, v),
        }
        false
    }

    /// HLT: with an interrupt pending the guest goes on, else the thread sleeps.
    fn halt(&mut self, p: u32, v: u32) -> bool {
        self.sync_posts(v);
        let parks = self.vcpus[v as usize].spin.parks();
        let vcpu = &self.vcpus[v as usize];
        let pending = vcpu.irr != 0 || vcpu.wants & wants::TIMER != 0;
        if pending && self.guest_takes_irqs(v) || parks && self.vcpus[v as usize].spin.take_kick() {
            self.boost_exit(v);
            return false;
        }
        let vcpu = &self.vcpus[v as usize];
        let polls = self.vms[vcpu.vm as usize].virt.host_polls;
        if vcpu.hv_at != Ns::MAX {
            self.hv_to_sw(v);
        }
        if !(polls && self.host_polls(p, v)) {
            self.falls_asleep(p, v);
        }
        if parks {
            // It sleeps because it waits for a lock.
            self.state(self.vcpus[v as usize].track, State::Spin);
        }
        true
    }
}
