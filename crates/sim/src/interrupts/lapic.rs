//! The timer behind a guest's deadline: who holds it, in which mode, and how early it fires.

use std::slice::from_ref;

use prefetch_index::prefetch_index;
use vcoop_model::plan::virt::{TimerMode, TimerVirt};
use vcoop_model::profile::{CostKey, Cpu};
use vcoop_policy::config::AdvanceConfig;
use vcoop_policy::{Injection, TimerAdvance};
use vcoop_sched::{CpuId, EntId};

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::guest::vcpu_virt::{VmVirt, wants};
use crate::interrupts::hv_timer::Range;
use crate::machine::{Irq, Segment, Vcpu, vector};
use crate::queue::Ns;
use crate::ticks::Ticks;
use crate::world::World;

/// A count of the APIC timer in one-shot mode: 16 cycles of KVM's bus of 1 GHz, as Linux divides it.
const COUNT_NS: Ns = 16;

/// The deadline of a vCPU whose timer is not plain: what it stands for, and how early it fires. `Ns::MAX` is
/// no time.
#[derive(Debug)]
pub(crate) struct Deadline {
    mode: TimerMode,
    advance: TimerAdvance,
    /// Whether it fires early.
    early: bool,
    /// Of a periodic timer.
    period: Ns,
    /// What the preemption timer can hold.
    range: Range,
    /// The deadline.
    due: Ns,
    /// The deadline of the interrupt that is pending: it is not to come before.
    expires: Ns,
    /// The preemption timer's deadline while an hrtimer stands in.
    parked: Ns,
}

impl Deadline {
    pub(crate) fn new(timer: &TimerVirt, tick_ns: Ns, cpu: Option<Cpu>) -> Self {
        Self {
            mode: timer.mode,
            advance: TimerAdvance::new(timer.advance, cpu.map_or(1_000_000, |cpu| cpu.tsc_khz)),
            early: timer.advance != AdvanceConfig::None,
            // KVM lets none be shorter (`min_timer_period_us`).
            period: tick_ns.max(200_000),
            range: Range::new(cpu, timer.tsc_ratio_ppm),
            due: Ns::MAX,
            expires: Ns::MAX,
            parked: Ns::MAX,
        }
    }

    /// How early it fires.
    pub(crate) fn advance_ns(&self) -> Ns {
        self.advance.ns()
    }

    /// When the host's timer is to fire for it.
    fn fires(&self, now: Ns) -> Ns {
        self.due.saturating_sub(self.advance.ns()).max(now)
    }

    /// It stands for this deadline from now on.
    fn stand_for(&mut self, at: Ns) {
        self.due = at;
    }

    /// The host has handled the guest's write of a deadline, which the guest began at `wrote`.
    fn write(&mut self, at: Ns, wrote: Ns, now: Ns) {
        self.parked = Ns::MAX;
        self.due = at;
        if self.mode == TimerMode::Oneshot && at != Ns::MAX {
            // The guest wrote how long from then; the host counts from now.
            let count = at.saturating_sub(wrote.min(now)).next_multiple_of(COUNT_NS);
            self.due = now + count;
        }
    }

    /// It has fired; a periodic one goes on by itself, to the deadline that is given back. Periods that have
    /// passed are one interrupt.
    fn fired(&mut self, now: Ns) -> Option<Ns> {
        if self.early {
            self.expires = self.due;
        }
        (self.mode == TimerMode::Periodic).then(|| {
            let behind = now.saturating_sub(self.due) / self.period;
            self.due += (behind + 1) * self.period;
            self.due
        })
    }

    /// How early its interrupt has come, if it has and nobody has waited yet.
    fn is_early(&self, now: Ns) -> Option<Ns> {
        let left = self.expires.saturating_sub(now);
        (left > 0 && self.expires != Ns::MAX).then_some(left)
    }

    /// Its interrupt would reach the guest at `ready`: whoever brings it spins for this long, so that it does
    /// not come early.
    fn spin(&mut self, ready: Ns) -> Ns {
        let due = std::mem::replace(&mut self.expires, Ns::MAX);
        if due == Ns::MAX {
            return 0;
        }
        self.advance.delivered(ready as i64 - due as i64);
        due.saturating_sub(ready)
    }

    /// How long the preemption timer takes to count down from what is loaded for so long a time; `None`: it
    /// cannot hold that.
    pub(crate) fn counts(&self, ns: Ns) -> Option<Ns> {
        self.range.counts(ns)
    }

    /// An hrtimer stands in for the preemption timer until this time.
    pub(crate) fn park(&mut self, at: Ns) {
        self.parked = at;
    }

    /// The preemption timer's deadline for which an hrtimer stood in.
    pub(crate) fn unpark(&mut self) -> Ns {
        std::mem::replace(&mut self.parked, Ns::MAX)
    }
}

/// The first deadline of a vCPU that boots halted at `now`: when the host's timer fires for it.
pub(crate) fn boots(vcpu: &mut Vcpu, virt: &VmVirt, ticks: &Ticks, now: Ns) -> Option<Ns> {
    vcpu.programmed = vcpu.timers.next();
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
    /// Starts, moves or stops the timer behind the guest's deadline.
    pub(crate) fn arm_lapic(&mut self, v: u32) {
        self.arm_deadline(v, self.vcpus[v as usize].timers.next());
    }

    /// The same for a deadline that may be another one than the guest's kernel wants.
    pub(crate) fn arm_deadline(&mut self, v: u32, at: Ns) {
        let vcpu = &mut self.vcpus[v as usize];
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
            // It is an hrtimer after all.
            let whole = self.costs.of(CostKey::HandleTimerMsr);
            let rest = whole.saturating_sub(self.costs.of(CostKey::SetHvTimer));
            self.pay(rest);
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
        prefetch_index(from_ref(&*vcpu.virt), 0);
        vcpu.timers.prefetch();
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
        let (ticks, home) = (&self.ticks, vcpu.home);
        let p = if virt.away() { ticks.away(home) } else { ticks.timer_cpu(home) };
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
            let (away, posted, waits) = (virt.away(), virt.posted, virt.guest_waits);
            self.fired(v);
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

    /// A timer that is not plain has fired.
    fn fired(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if let Some(next) = vcpu.virt.deadline.fired(self.clock.now()) {
            vcpu.programmed = next;
            self.arm_due(v);
        }
    }

    /// An interrupt fired early that no VM entry would hold back any more: the pCPU that fires it waits
    /// until it is due, as KVM does for a timer that it posts. True if it does.
    fn waits_out(&mut self, v: u32, posted: bool) -> bool {
        let vcpu = &mut self.vcpus[v as usize];
        let now = self.clock.now();
        let p = vcpu.pcpu;
        let Some(left) = vcpu.virt.deadline.is_early(now) else { return false };
        if p == NONE || p == self.cpu {
            return false;
        }
        let passes = match self.pcpus[p as usize].segment {
            Segment::Entry => true,
            Segment::Guest => posted,
            _ => false,
        };
        if passes {
            vcpu.waits_out = true;
            vcpu.virt.deadline.spin(now);
            vcpu.virt.counters.advance_ns += left;
            self.pay(left);
            self.clock.set(Event::Lapic(v), now + left);
        }
        passes
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

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(mode: TimerMode, advance: AdvanceConfig) -> Deadline {
        let timer = TimerVirt { mode, advance, ..TimerVirt::default() };
        Deadline::new(&timer, 1_000_000, None)
    }

    #[test]
    fn a_oneshot_timer_is_late_by_the_exit() {
        let mut plain = deadline(TimerMode::TscDeadline, AdvanceConfig::None);
        plain.write(5_000, 1_000, 1_500);
        assert_eq!(plain.fires(1_500), 5_000);
        let mut oneshot = deadline(TimerMode::Oneshot, AdvanceConfig::None);
        oneshot.write(5_000, 1_000, 1_500);
        assert_eq!(oneshot.fires(1_500), 1_500 + 4_000);
        oneshot.write(5_001, 1_000, 1_500);
        assert_eq!(oneshot.fires(1_500), 1_500 + 4_016, "it counts 16 ns at a time");
    }

    #[test]
    fn a_periodic_timer_goes_on_and_makes_one_interrupt_of_what_it_missed() {
        let mut timer = deadline(TimerMode::Periodic, AdvanceConfig::None);
        timer.stand_for(1_000_000);
        assert_eq!(timer.fired(1_000_100), Some(2_000_000));
        assert_eq!(timer.fired(4_500_000), Some(5_000_000));
        assert_eq!(timer.is_early(4_500_000), None);
    }

    #[test]
    fn who_brings_an_early_interrupt_waits_for_the_deadline_once() {
        let mut timer = deadline(TimerMode::TscDeadline, AdvanceConfig::Fixed(700));
        timer.write(10_000, 0, 0);
        assert_eq!((timer.advance_ns(), timer.fires(0), timer.fires(9_500)), (700, 9_300, 9_500));
        assert_eq!(timer.is_early(9_300), None, "nothing is pending");
        assert_eq!(timer.fired(9_300), None);
        assert_eq!(timer.is_early(9_300), Some(700));
        assert_eq!(timer.spin(9_600), 400);
        assert_eq!((timer.is_early(9_300), timer.spin(9_600)), (None, 0));
    }
}
