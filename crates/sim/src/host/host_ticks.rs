//! Ticks of the pCPUs, and where timers fire.

use vcoop_sched::{CpuId, CpuSet};

use crate::attribution::track::NONE;
use crate::clock::{Clock, Event};
use crate::host::scheduler::Scheduler;
use crate::ticks::Ticks;

/// A list of CPUs as a set.
pub(crate) fn cpu_set(cpus: &[u32]) -> CpuSet {
    cpus.iter().map(|&cpu| CpuId(cpu)).collect()
}

/// The ticks of the host's pCPUs, and where timers fire.
#[derive(Debug)]
pub(crate) struct HostTicks {
    ticks: Ticks,
    /// Full-nohz pCPUs, and whether there are any.
    full: CpuSet,
    has_full: bool,
    /// pCPU that fires exitless and posted timers, and those of full-nohz pCPUs; [`NONE`]: timers fire where they were
    /// set.
    housekeeping: u32,
}

impl HostTicks {
    pub(crate) fn new(ticks: Ticks, full: CpuSet, housekeeping: Option<u32>) -> Self {
        let has_full = !full.is_empty();
        Self { ticks, full, has_full, housekeeping: housekeeping.unwrap_or(NONE) }
    }

    /// The pCPU that fires a timer set on `p`, and that takes device interrupts for a thread that ran there.
    #[inline]
    pub(crate) fn timer_cpu(&self, p: u32) -> u32 {
        let full = self.has_full && self.full.contains(CpuId(p));
        if full { self.away(p) } else { p }
    }

    /// The pCPU that fires timers for vCPUs on `p` without disturbing them.
    #[inline]
    pub(crate) fn away(&self, p: u32) -> u32 {
        if self.housekeeping == NONE { p } else { self.housekeeping }
    }

    /// Schedules the next tick of a pCPU, a period after this one.
    #[inline]
    pub(crate) fn repeat(&self, p: u32, clock: &mut Clock) {
        clock.set(Event::Tick(p), clock.now() + self.ticks.period());
    }

    /// A thread gets a pCPU: starts its tick, if needed. True if it was started.
    #[inline]
    pub(crate) fn start(&self, p: u32, host: &Scheduler, clock: &mut Clock) -> bool {
        let starts = !clock.is_pending(Event::Tick(p)) && host.tick_needed(CpuId(p));
        if starts {
            clock.set(Event::Tick(p), self.ticks.after(p, clock.now()));
        }
        starts
    }

    /// A pCPU goes idle.
    #[inline]
    pub(crate) fn stop(&self, p: u32, clock: &mut Clock) {
        clock.cancel(Event::Tick(p));
    }

    /// The tick of a pCPU has been handled: a full-nohz pCPU stops it if it is not needed.
    #[inline]
    pub(crate) fn handled(&self, p: u32, host: &Scheduler, clock: &mut Clock) {
        if self.has_full && !host.tick_needed(CpuId(p)) {
            self.stop(p, clock);
        }
    }

    /// The queue of a pCPU grew, or the class of a thread changed: true if its tick starts again, which an IPI has to
    /// tell it.
    #[inline]
    pub(crate) fn grew(&self, p: u32, host: &Scheduler, clock: &mut Clock) -> bool {
        self.has_full && self.start(p, host, clock)
    }
}

#[cfg(test)]
mod tests {
    use vcoop_sched::config::Policy;
    use vcoop_sched::{Attr, LeaveReason, Waker};

    use super::*;
    use crate::clock::Entities;
    use vcoop_testing::rig::builtin;

    #[test]
    fn a_full_nohz_cpu_ticks_only_while_two_compete() {
        let mut host =
            Scheduler::new(&builtin("busy-host-1", &[], &[]).remove(0).host.sched, 1).unwrap();
        let attr =
            || Attr { policy: Policy::NORMAL, cpus: [CpuId(0)].into_iter().collect(), group: None };
        let [first, second] = [0, 0].map(|cpu| host.try_add(attr(), CpuId(cpu)).unwrap());
        let full: CpuSet = cpu_set(&[0]);
        host.set_nohz_full(&full);
        let ticks = HostTicks::new(Ticks::new(1_000_000, 1, 0), full, Some(1));
        let mut clock = Clock::new(&Entities { pcpus: 2, ..Entities::default() });
        assert_eq!((ticks.timer_cpu(0), ticks.timer_cpu(1), ticks.away(1)), (1, 1, 1));

        host.wake(0, first, Waker::default());
        assert_eq!(host.schedule(0, CpuId(0), LeaveReason::Blocked), Some(first));
        assert!(!ticks.start(0, &host, &mut clock), "it is alone");
        host.wake(10, second, Waker::default());
        assert!(ticks.grew(0, &host, &mut clock) && clock.is_pending(Event::Tick(0)));
        assert!(!ticks.grew(0, &host, &mut clock), "it ticks already");
        ticks.handled(0, &host, &mut clock);
        assert!(clock.is_pending(Event::Tick(0)), "they still compete");
        assert_eq!(host.schedule(20, CpuId(0), LeaveReason::Blocked), Some(second));
        ticks.handled(0, &host, &mut clock);
        assert!(clock.is_pending(Event::Tick(0)), "who sleeps in debt is still queued");
        assert_eq!(host.schedule(5_000_000, CpuId(0), LeaveReason::Yield), Some(second));
        ticks.handled(0, &host, &mut clock);
        assert!(!clock.is_pending(Event::Tick(0)));
    }
}
