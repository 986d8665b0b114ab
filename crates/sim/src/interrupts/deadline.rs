//! The deadline of a vCPU: the mode of the guest's timer, and how early the host's timer fires for it.

use vcoop_model::plan::virt::{TimerMode, TimerVirt};
use vcoop_model::profile::Cpu;
use vcoop_policy::TimerAdvance;
use vcoop_policy::config::AdvanceConfig;

use crate::interrupts::hv_range::Range;
use crate::queue::Ns;

/// One count of the APIC timer in one-shot mode: 16 cycles of KVM's bus of 1 GHz, with the divisor that Linux sets.
const COUNT_NS: Ns = 16;

/// The deadline of a vCPU whose timer is not plain (see `VmVirt::plain_timer`). `Ns::MAX` is no time.
#[derive(Debug)]
pub(crate) struct Deadline {
    mode: TimerMode,
    advance: TimerAdvance,
    /// Whether it fires early.
    early: bool,
    /// Period of a periodic timer.
    period: Ns,
    /// Range of the preemption timer.
    range: Range,
    /// The deadline.
    due: Ns,
    /// The deadline of the pending interrupt, which must not come earlier.
    expires: Ns,
    /// The preemption timer's deadline while an hrtimer replaces it.
    parked: Ns,
}

impl Deadline {
    /// `hv`: it is on the preemption timer if in range.
    pub(crate) fn new(timer: &TimerVirt, hv: bool, tick_ns: Ns, cpu: Option<Cpu>) -> Self {
        // KVM advances TSC deadlines, and deadlines on the preemption timer (`start_sw_tscdeadline`,
        // `vmx_set_hv_timer`).
        let early =
            timer.advance != AdvanceConfig::None && (timer.mode == TimerMode::TscDeadline || hv);
        let advance = if early { timer.advance } else { AdvanceConfig::None };
        Self {
            mode: timer.mode,
            advance: TimerAdvance::new(advance, cpu.map_or(1_000_000, |cpu| cpu.tsc_khz)),
            early,
            // KVM allows no shorter period (`min_timer_period_us`).
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

    /// When the host's timer fires for it.
    pub(crate) fn fires(&self, now: Ns) -> Ns {
        self.due.saturating_sub(self.advance.ns()).max(now)
    }

    /// Sets the deadline.
    pub(crate) fn stand_for(&mut self, at: Ns) {
        self.due = at;
    }

    /// The host has handled the guest's write of a deadline, which the guest began at `wrote`.
    pub(crate) fn write(&mut self, at: Ns, wrote: Ns, now: Ns) {
        self.parked = Ns::MAX;
        self.expires = Ns::MAX;
        self.due = at;
        if self.mode == TimerMode::Oneshot && at != Ns::MAX {
            // The guest wrote a time relative to `wrote`; the host counts from now.
            let count = at.saturating_sub(wrote.min(now)).next_multiple_of(COUNT_NS);
            self.due = now + count;
        }
    }

    /// The timer fires: its interrupt must not come before the current deadline, whatever is written until then.
    pub(crate) fn latch(&mut self) {
        if self.early {
            self.expires = self.due;
        }
    }

    /// The timer has fired. Returns the next deadline of a periodic one. All periods that have passed are one
    /// interrupt.
    pub(crate) fn next_period(&mut self, now: Ns) -> Option<Ns> {
        (self.mode == TimerMode::Periodic).then(|| {
            let behind = now.saturating_sub(self.due) / self.period;
            self.due += (behind + 1) * self.period;
            self.due
        })
    }

    /// Its interrupt would reach the guest at `ready`: returns how long to spin so that it does not come early.
    pub(crate) fn spin(&mut self, ready: Ns) -> Ns {
        let due = std::mem::replace(&mut self.expires, Ns::MAX);
        if due == Ns::MAX {
            return 0;
        }
        self.advance.delivered(ready as i64 - due as i64);
        let left = due.saturating_sub(ready);
        debug_assert!(left <= self.advance.cap(), "{left} ns: this is not the deadline that fired");
        left
    }

    /// Time that the preemption timer takes to count down when loaded for `ns`; `None`: out of range.
    pub(crate) fn counts(&self, ns: Ns) -> Option<Ns> {
        self.range.counts(ns)
    }

    /// An hrtimer replaces the preemption timer, whose deadline is `at`.
    pub(crate) fn park(&mut self, at: Ns) {
        self.parked = at;
    }

    /// The preemption timer's deadline that an hrtimer had.
    pub(crate) fn unpark(&mut self) -> Ns {
        std::mem::replace(&mut self.parked, Ns::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(mode: TimerMode, advance: AdvanceConfig) -> Deadline {
        let timer = TimerVirt { mode, advance, ..TimerVirt::default() };
        Deadline::new(&timer, false, 1_000_000, None)
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
        assert_eq!(timer.next_period(1_000_100), Some(2_000_000));
        assert_eq!(timer.next_period(4_500_000), Some(5_000_000));
        assert_eq!(timer.spin(4_500_000), 0);
    }

    #[test]
    fn who_brings_an_early_interrupt_waits_for_the_deadline_once() {
        let mut timer = deadline(TimerMode::TscDeadline, AdvanceConfig::Fixed(700));
        timer.write(10_000, 0, 0);
        assert_eq!((timer.advance_ns(), timer.fires(0), timer.fires(9_500)), (700, 9_300, 9_500));
        assert_eq!(timer.spin(9_300), 0, "nothing is pending");
        timer.latch();
        assert_eq!(timer.next_period(9_300), None);
        assert_eq!((timer.spin(9_600), timer.spin(9_600)), (400, 0));
    }
}
