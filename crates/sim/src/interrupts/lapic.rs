//! The timer for a guest's deadline: where it is, its mode, and how early it fires.

use std::slice::from_ref;

use prefetch_index::prefetch_index;
use vcoop_model::plan::virt::TimerMode;
use vcoop_model::profile::CostKey;
use vcoop_policy::Injection;
use vcoop_sched::{CpuId, EntId};

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::guest::vcpu_virt::{IdleMode, VmVirt, wants};
use crate::machine::{Irq, Segment, Vcpu, vector};
use crate::queue::Ns;
use crate::ticks::Ticks;
use crate::world::World;

/// The first deadline of a vCPU that boots halted at `now`; returns when the host's timer fires for it. A vCPU whose
/// idle loop keeps its pCPU begins with that at once, even if it never has a task.
pub(crate) fn boots(vcpu: &mut Vcpu, virt: &VmVirt, ticks: &Ticks, now: Ns) -> Option<Ns> {
    vcpu.programmed = match virt.idle {
        IdleMode::Halt | IdleMode::Haltpoll(false) => vcpu.timers.next(),
        IdleMode::Rest | IdleMode::Poll | IdleMode::Haltpoll(true) => now.max(1),
    };
    if virt.mode == TimerMode::Periodic {
        vcpu.programmed = ticks.after(vcpu.cpu.0, now);
    }
    if vcpu.programmed == Ns::MAX {
        return None;
    }
    let deadline = &mut vcpu.virt.deadline;
    deadline.stand_for(vcpu.programmed);
    let fires = deadline.fires(now);
    if virt.hv_timer() {
        deadline.park(fires);
        vcpu.wants |= wants::HV_TIMER;
    }
    Some(fires)
}

impl World<'_> {
    /// Starts, moves or stops the timer for the guest's deadline.
    pub(crate) fn arm_lapic(&mut self, v: u32) {
        self.arm_deadline(v, self.vcpus[v as usize].timers.next());
    }

    /// As [`arm_lapic`](Self::arm_lapic), for a deadline that may differ from what the guest's kernel wants. KVM
    /// cancels the previous timer, and drops its interrupt if that has not been injected
    /// (`kvm_set_lapic_tscdeadline_msr`). The interrupt of a timer that a housekeeping pCPU fires by a word of the
    /// shared page comes all the same.
    pub(crate) fn arm_deadline(&mut self, v: u32, at: Ns) {
        if self.vcpus[v as usize].waits_out {
            // The pCPU that posts it ends its wait first.
            self.clock.cancel(Event::Lapic(v));
            let cpu = self.cpu;
            self.waited_out(v);
            self.cpu = cpu;
        }
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.programmed = at;
        if !self.vms[vcpu.vm as usize].virt.exitless() {
            vcpu.wants &= !(wants::FIRED | wants::TIMER);
        }
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
        vcpu.wants &= !wants::HV_TIMER;
        vcpu.virt.deadline.write(at, vcpu.exit_at, self.clock.now());
        if at == Ns::MAX {
            return self.clock.cancel(event);
        }
        self.arm_due(v);
    }

    /// Arms a timer that is not plain for its deadline.
    fn arm_due(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let fires = vcpu.virt.deadline.fires(self.clock.now());
        let hv = self.vms[vcpu.vm as usize].virt.hv_timer();
        if hv && (vcpu.halted || vcpu.polling) {
            vcpu.virt.deadline.park(fires);
            vcpu.wants |= wants::HV_TIMER;
        } else if hv {
            if self.start_hv_timer(v, fires) {
                return;
            }
            // It has to be an hrtimer.
            let whole = self.costs.of(CostKey::HandleTimerMsr);
            let rest = whole.saturating_sub(self.costs.of(CostKey::SetHvTimer));
            self.pay(rest);
        }
        self.clock.set(Event::Lapic(v), fires);
    }

    /// Prefetches what the following interrupt, exit, entry and guest handler of one vCPU read. On a large host it is
    /// in no near cache any more.
    #[inline]
    fn prefetch(&self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        let vm = &self.vms[vcpu.vm as usize];
        prefetch_index(from_ref(&vcpu.exits), 0);
        prefetch_index(from_ref(&vcpu.exit_at), 0);
        prefetch_index(from_ref(&*vcpu.virt), 0);
        vcpu.timers.prefetch();
        prefetch_index(&self.pcpus, vcpu.home as usize);
        prefetch_index(&self.threads, vcpu.thread as usize);
        if let Some(work) = vm.tasks.first() {
            prefetch_index(from_ref(work), 0);
            prefetch_index(from_ref(&work.runner), 0);
        }
        // The first task: in the small guests of a large host mostly the only one.
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
        let (ticks, home) = (&self.ticks, vcpu.home);
        let p = if virt.away() { ticks.away(home) } else { ticks.timer_cpu(home) };
        let track = vcpu.track;
        if vcpu.halted || self.is_idle_awake(v) {
            self.event_on_its_way(track, p);
        } else if self.tracks.waits(track) {
            // Due while the vCPU waits for a pCPU: threads that ran before do not count.
            self.tracks.due_while_waiting(track, self.clock.now());
        }
        self.timer_fired(v);
        self.interrupt(p, Irq::Lapic(v));
    }

    /// The host's timer has fired for the deadline of a vCPU.
    pub(crate) fn timer_fired(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.wants |= wants::FIRED;
        if !self.vms[vcpu.vm as usize].virt.plain_timer() {
            vcpu.virt.deadline.latch();
        }
    }

    /// KVM learns that the vCPU's timer has fired: puts the interrupt into the guest, unless the timer has been
    /// cancelled since.
    pub(crate) fn timer_interrupt(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let virt = &self.vms[vcpu.vm as usize].virt;
        let fired = vcpu.wants & wants::FIRED != 0;
        vcpu.wants &= !wants::FIRED;
        if !fired && !virt.exitless() {
            return;
        }
        if !virt.plain_timer() {
            let (away, posted, waits) = (virt.away(), virt.posted, virt.guest_waits);
            self.timer_repeats(v);
            if away && !waits && self.waits_out(v, posted) {
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

    /// A timer that is not plain has fired: a periodic one goes on.
    fn timer_repeats(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if let Some(next) = vcpu.virt.deadline.next_period(self.clock.now()) {
            vcpu.programmed = next;
            self.arm_due(v);
        }
    }

    /// An interrupt that no VM entry would hold back any more: the pCPU that fires it waits until it is due, and sees
    /// how early or late it was, as KVM does for a timer that it posts (`__kvm_wait_lapic_expire`). True if it has to
    /// wait.
    fn waits_out(&mut self, v: u32, posted: bool) -> bool {
        let p = self.vcpus[v as usize].pcpu;
        if p == NONE || p == self.cpu {
            return false;
        }
        let passes = match self.pcpus[p as usize].segment {
            Segment::Entry => true,
            Segment::Guest => posted,
            _ => false,
        };
        if !passes {
            return false;
        }
        let left = self.waits_for_deadline(v, 0);
        if left > 0 {
            self.vcpus[v as usize].waits_out = true;
            self.pay(left);
            let now = self.clock.now();
            self.clock.set(Event::Lapic(v), now + left);
        }
        left > 0
    }

    /// It is due now.
    fn waited_out(&mut self, v: u32) {
        self.vcpus[v as usize].waits_out = false;
        self.cpu = self.ticks.away(self.cpu);
        self.inject(v, vector::TIMER, Injection::Timer);
    }

    /// An entry with a timer's interrupt, or its handler: how long to spin, so that it does not come early; `host` is
    /// what comes before.
    pub(crate) fn waits_for_deadline(&mut self, v: u32, host: Ns) -> Ns {
        let virt = &mut self.vcpus[v as usize].virt;
        let spin = virt.deadline.spin(self.clock.now() + host);
        virt.counters.advance_ns += spin;
        spin
    }
}
