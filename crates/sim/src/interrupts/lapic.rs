//! The timer behind a guest's deadline: who holds it, in which mode, and how early it fires.

use std::slice::from_ref;

use prefetch_index::prefetch_index;
use vcoop_model::plan::virt::TimerMode;
use vcoop_policy::Injection;
use vcoop_sched::{CpuId, EntId};

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::guest::vcpu_virt::{VmVirt, wants};
use crate::machine::{Irq, Segment, Ticks, Vcpu, vector};
use crate::queue::Ns;
use crate::world::World;

/// A count of the APIC timer in one-shot mode: 16 cycles of KVM's bus of 1 GHz, as Linux divides it.
const COUNT_NS: Ns = 16;

/// The first deadline of a vCPU that boots halted at `now`: when the host's timer fires for it.
pub(crate) fn boots(vcpu: &mut Vcpu, virt: &VmVirt, ticks: &Ticks, now: Ns) -> Option<Ns> {
    vcpu.programmed = vcpu.timers.last().map_or(Ns::MAX, |t| t.0);
    if virt.mode == TimerMode::Periodic {
        vcpu.programmed = ticks.after(vcpu.cpu.0, now);
    }
    if vcpu.programmed == Ns::MAX {
        return None;
    }
    vcpu.cold.due = vcpu.programmed;
    let fires = vcpu.programmed.saturating_sub(vcpu.cold.advance.ns()).max(now);
    if virt.hv_timer() {
        vcpu.cold.parked = fires;
        vcpu.wants |= wants::HV_TIMER;
    }
    Some(fires)
}

impl World<'_> {
    /// Starts, moves or stops the timer behind the guest's deadline.
    pub(crate) fn arm_lapic(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let at = vcpu.timers.last().map_or(Ns::MAX, |t| t.0);
        vcpu.programmed = at;
        let event = Event::Lapic(v);
        let virt = &self.vms[vcpu.vm as usize].virt;
        if virt.plain_timer() {
            if at == Ns::MAX {
                self.clock.cancel(event);
            } else {
                self.clock.set(event, at.max(self.clock.now()));
            }
            return;
        }
        vcpu.hv_at = Ns::MAX;
        vcpu.cold.parked = Ns::MAX;
        vcpu.wants &= !wants::HV_TIMER;
        if at == Ns::MAX {
            vcpu.cold.due = Ns::MAX;
            return self.clock.cancel(event);
        }
        vcpu.cold.due = at;
        if virt.mode == TimerMode::Oneshot {
            // The guest wrote how long from then; the host counts from now.
            let wrote = vcpu.exit_at.min(self.clock.now());
            vcpu.cold.due = self.clock.now() + at.saturating_sub(wrote).next_multiple_of(COUNT_NS);
        }
        self.arm_due(v);
    }

    /// Arms a timer that is not plain for its deadline.
    fn arm_due(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let fires = vcpu.cold.due.saturating_sub(vcpu.cold.advance.ns()).max(self.clock.now());
        let hv = self.vms[vcpu.vm as usize].virt.hv_timer();
        if hv && (vcpu.halted || vcpu.polling) {
            vcpu.cold.parked = fires;
            vcpu.wants |= wants::HV_TIMER;
        } else if hv {
            if self.start_hv_timer(v, fires) {
                return;
            }
            // It is an hrtimer after all.
            let c = self.costs;
            self.pcpus[self.cpu as usize].extra +=
                c.handle_timer_msr_ns.saturating_sub(c.set_hv_timer_ns);
        }
        self.clock.set(Event::Lapic(v), fires);
    }

    /// An interrupt, an exit, an entry and the guest's handler will follow, all of the same vCPU: what they
    /// look at is fetched meanwhile. On a large host it is in no near cache any more.
    #[inline]
    fn prefetch(&self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        let vm = &self.vms[vcpu.vm as usize];
        prefetch_index(from_ref(&vcpu.exits), 0);
        prefetch_index(from_ref(&vcpu.exit_at), 0);
        prefetch_index(from_ref(&*vcpu.cold), 0);
        prefetch_index(&vcpu.timers, 0);
        prefetch_index(&self.pcpus, vcpu.home as usize);
        prefetch_index(&self.threads, vcpu.thread as usize);
        if let Some(work) = vm.tasks.first() {
            prefetch_index(from_ref(work), 0);
            prefetch_index(from_ref(&work.runner), 0);
        }
        // The first task: of a large host's many small guests mostly the only one.
        vm.level.prefetch(vcpu.cpu, EntId(0));
        self.host.prefetch(CpuId(vcpu.home), EntId(vcpu.thread));
    }

    /// A vCPU's timer fires on the host.
    pub(crate) fn lapic_expires(&mut self, v: u32) {
        self.prefetch(v);
        let vcpu = &self.vcpus[v as usize];
        let virt = &self.vms[vcpu.vm as usize].virt;
        if vcpu.hv_at != Ns::MAX {
            return self.hv_timer_fires(v);
        }
        if vcpu.waits_out {
            return self.waited_out(v);
        }
        let away = self.housekeeping != NONE && virt.away();
        let p = if away { self.housekeeping } else { self.timer_cpu(vcpu.home) };
        let track = vcpu.track;
        if vcpu.halted || self.is_idle_awake(v) {
            self.event_on_its_way(track, p);
        } else if self.tracks.waits(track) {
            // Due while the vCPU waits for a pCPU: who ran before does not count.
            let cpu = self.host.cpu_of(self.thread_of(v)).0;
            self.tracks.due_while_waiting(track, cpu, self.clock.now());
        }
        self.interrupt(p, Irq::Lapic(v));
    }

    /// KVM learns that the vCPU's timer has fired: puts the interrupt into the guest.
    pub(crate) fn timer_interrupt(&mut self, v: u32) {
        let virt = &self.vms[self.vcpus[v as usize].vm as usize].virt;
        if !virt.plain_timer() {
            let (away, posted) = (virt.away(), virt.posted);
            self.fired(v);
            if away && self.waits_out(v, posted) {
                return;
            }
        }
        let vcpu = &mut self.vcpus[v as usize];
        let p = vcpu.pcpu;
        if p != NONE && p != self.cpu && !self.vms[vcpu.vm as usize].virt.away() {
            // Fired by another pCPU and not posted: KVM takes it to the guest at an entry, and kicks the vCPU for that.
            let running = matches!(self.pcpus[p as usize].segment, Segment::Guest | Segment::Entry);
            if running {
                vcpu.wants |= wants::TIMER;
                return self.send_ipi(p);
            }
        }
        self.inject(v, vector::TIMER, Injection::Timer);
    }

    /// A timer that has expired meanwhile is put into the guest, at an entry.
    #[cold]
    pub(crate) fn timer_pends(&mut self, v: u32) {
        self.vcpus[v as usize].wants &= !wants::TIMER;
        self.inject(v, vector::TIMER, Injection::Timer);
    }

    /// A timer that is not plain has fired.
    fn fired(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let virt = &self.vms[vcpu.vm as usize].virt;
        let cold = &mut vcpu.cold;
        if virt.advance {
            cold.expires = cold.due;
        }
        if virt.mode == TimerMode::Periodic {
            // It goes on by itself; periods that have passed are one interrupt.
            let behind = (self.clock.now().saturating_sub(cold.due)) / cold.period;
            cold.due += (behind + 1) * cold.period;
            vcpu.programmed = cold.due;
            self.arm_due(v);
        }
    }

    /// An interrupt fired early that no VM entry would hold back any more: the pCPU that fires it waits
    /// until it is due, as KVM does for a timer that it posts. True if it does.
    fn waits_out(&mut self, v: u32, posted: bool) -> bool {
        let vcpu = &mut self.vcpus[v as usize];
        let left = vcpu.cold.expires.saturating_sub(self.clock.now());
        let p = vcpu.pcpu;
        if left == 0 || vcpu.cold.expires == Ns::MAX || p == NONE || p == self.cpu {
            return false;
        }
        let passes = match self.pcpus[p as usize].segment {
            Segment::Entry => true,
            Segment::Guest => posted,
            _ => false,
        };
        if passes {
            vcpu.waits_out = true;
            let due = std::mem::replace(&mut vcpu.cold.expires, Ns::MAX);
            vcpu.cold.advance.delivered(-(left as i64));
            vcpu.cold.counters.advance_ns += left;
            self.pcpus[self.cpu as usize].extra += left;
            self.clock.set(Event::Lapic(v), due);
        }
        passes
    }

    /// It is due now.
    fn waited_out(&mut self, v: u32) {
        self.vcpus[v as usize].waits_out = false;
        if self.housekeeping != NONE {
            self.cpu = self.housekeeping;
        }
        self.inject(v, vector::TIMER, Injection::Timer);
    }

    /// An entry with a timer's interrupt: how long to spin, so that it does not come early; `host` is
    /// what comes before.
    pub(crate) fn waits_for_deadline(&mut self, v: u32, host: Ns) -> Ns {
        let ready = self.clock.now() + host;
        let cold = &mut self.vcpus[v as usize].cold;
        let due = std::mem::replace(&mut cold.expires, Ns::MAX);
        if due == Ns::MAX {
            return 0;
        }
        cold.advance.delivered(ready as i64 - due as i64);
        let spin = due.saturating_sub(ready);
        cold.counters.advance_ns += spin;
        spin
    }
}
