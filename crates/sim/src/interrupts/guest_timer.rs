//! A guest's timers: its tick, its sleeps, and the one deadline the hardware holds.

use prefetch_index::prefetch_index;
use vcoop_model::plan::virt::TimerMode;
use vcoop_model::profile::CostKey;

use crate::attribution::track::NONE;
use crate::guest::spin::Spin;
use crate::machine::{Exit, Wait};
use crate::queue::Ns;
use crate::world::World;

/// What a guest's timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerFor {
    /// The tick.
    Tick,
    /// The timer of the guest's scheduler.
    Level,
    /// The sleep of a task.
    Task(u32),
}

impl TimerFor {
    /// In one word: every sleep of a task compares some of them.
    #[inline(always)]
    fn key(self) -> u32 {
        match self {
            Self::Tick => 0,
            Self::Level => 1,
            Self::Task(t) => t + 2,
        }
    }

    #[inline(always)]
    fn of_key(key: u32) -> Self {
        match key {
            0 => Self::Tick,
            1 => Self::Level,
            task => Self::Task(task - 2),
        }
    }
}

/// The timers of a vCPU: at most one for each purpose.
#[derive(Clone, Debug)]
pub(crate) struct GuestTimers {
    /// invariant: sorted by time and key, latest first.
    timers: Vec<(Ns, u32)>,
}

impl GuestTimers {
    /// None, and room for as many as most have.
    pub(crate) fn new() -> Self {
        Self { timers: Vec::with_capacity(16) }
    }

    /// When the next one is due; `Ns::MAX`: there is none.
    #[inline]
    pub(crate) fn next(&self) -> Ns {
        self.timers.last().map_or(Ns::MAX, |t| t.0)
    }

    /// Whether there is one for this purpose.
    #[inline]
    pub(crate) fn has(&self, what: TimerFor) -> bool {
        self.timers.iter().any(|t| t.1 == what.key())
    }

    /// Sets a timer; replaces the one for the same purpose.
    #[inline]
    pub(crate) fn set(&mut self, what: TimerFor, at: Ns) {
        self.cancel(what);
        let new = (at, what.key());
        let i = self.timers.partition_point(|&timer| timer > new);
        self.timers.insert(i, new);
    }

    /// Takes out the timer for a purpose.
    #[inline]
    pub(crate) fn cancel(&mut self, what: TimerFor) {
        if let Some(i) = self.timers.iter().position(|t| t.1 == what.key()) {
            self.timers.remove(i);
        }
    }

    /// Takes out the next timer that is due by now.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Ns) -> Option<TimerFor> {
        let &(at, key) = self.timers.last()?;
        if at > now {
            return None;
        }
        self.timers.pop();
        Some(TimerFor::of_key(key))
    }

    /// What number `i` of the timers that are due by now is for.
    fn due(&self, i: usize, now: Ns) -> Option<TimerFor> {
        let timer = self.timers.iter().rev().nth(i).filter(|timer| timer.0 <= now)?;
        Some(TimerFor::of_key(timer.1))
    }

    /// Has all timers fire later, by this much.
    pub(crate) fn postpone(&mut self, ns: Ns) {
        self.timers.iter_mut().for_each(|(at, _)| *at += ns);
    }

    /// Fetches into the cache what [`next`](Self::next) reads.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_index(&self.timers, 0);
    }
}

impl World<'_> {
    /// Fires every guest timer that is due on this vCPU.
    pub(crate) fn guest_timer(&mut self, v: u32) {
        self.vcpus[v as usize].programmed = Ns::MAX;
        while let Some(what) = self.vcpus[v as usize].timers.pop_due(self.clock.now()) {
            let vcpu = &mut self.vcpus[v as usize];
            let (vm, cpu) = (vcpu.vm, vcpu.cpu);
            match what {
                TimerFor::Tick => {
                    vcpu.extra += self.costs.of(CostKey::GuestTick);
                    vcpu.eager |= vcpu.resched;
                    let next = self.vms[vm as usize].ticks.after(cpu.0, self.clock.now());
                    self.vms[vm as usize].level.tick(self.clock.now(), cpu);
                    self.guest_notes(v);
                    if !self.vms[vm as usize].nohz || self.vms[vm as usize].level.tick_needed(cpu) {
                        self.vcpus[v as usize].timers.set(TimerFor::Tick, next);
                    }
                }
                TimerFor::Level => {
                    self.vms[vm as usize].level.on_deadline(self.clock.now(), cpu);
                    self.guest_notes(v);
                }
                TimerFor::Task(t) => {
                    // Due while the handler ran: its own interrupt would be taken now.
                    self.timer_interrupt_came(v, t);
                    let work = &self.vms[vm as usize].tasks[t as usize];
                    let (wait, sampler) = (work.wait, work.sampler);
                    if work.spin == Spin::Timer {
                        self.busy_until_now(v, t, sampler);
                        continue;
                    }
                    if matches!(wait, Wait::Timer | Wait::Peer) {
                        self.guest_wake(v, t);
                    }
                }
            }
        }
        self.guest_program(v);
    }

    /// The handler of a vCPU's timer interrupt is entered: that ends the samples of interrupts.
    pub(crate) fn timer_handler_entered(&mut self, v: u32) {
        let mut due = 0;
        while let Some(what) = self.vcpus[v as usize].timers.due(due, self.clock.now()) {
            if let TimerFor::Task(t) = what {
                self.timer_interrupt_came(v, t);
            }
            due += 1;
        }
    }

    /// The interrupt of a task's timer is there, on vCPU `v`.
    fn timer_interrupt_came(&mut self, v: u32, t: u32) {
        let vcpu = &self.vcpus[v as usize];
        let work = &self.vms[vcpu.vm as usize].tasks[t as usize];
        let (sampler, probe) = (work.irq_sampler, work.irq_probe);
        if sampler != NONE {
            self.tracks.event(sampler, vcpu.track, self.clock.now());
            self.sample(sampler, probe);
        }
    }

    /// The interrupt for which a task has kept its vCPU busy is there; on vCPU `v`, whereas the task may
    /// have been moved.
    fn busy_until_now(&mut self, v: u32, t: u32, sampler: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        if sampler != NONE {
            let home = self.home_of(vm, t);
            self.settle_wait(home);
            let track = self.vcpus[home as usize].track;
            self.tracks.event(sampler, track, self.clock.now());
        }
        self.spin_ends(vm, t);
    }

    /// Writes the deadline when the next timer is not the one it holds: an MSR and so an exit, or,
    /// where a housekeeping CPU watches it, a word of the shared page. (The doorbell that the lab's
    /// guest rings for a deadline sooner than the next look is left out.)
    pub(crate) fn guest_program(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let next = vcpu.timers.next();
        if next == vcpu.programmed {
            return;
        }
        let virt = &self.vms[vcpu.vm as usize].virt;
        if virt.mode == TimerMode::Periodic {
            return;
        }
        if virt.exitless() {
            self.arm_lapic(v);
        } else if !vcpu.exits.contains(&Exit::Timer) {
            vcpu.exits.push_back(Exit::Timer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_by_time_one_for_each_purpose() {
        let mut timers = GuestTimers::new();
        assert_eq!((timers.next(), timers.pop_due(Ns::MAX)), (Ns::MAX, None));
        timers.set(TimerFor::Task(1), 30);
        timers.set(TimerFor::Tick, 20);
        timers.set(TimerFor::Task(0), 20);
        timers.set(TimerFor::Level, 10);
        timers.set(TimerFor::Level, 40);
        timers.set(TimerFor::Task(2), 5);
        timers.cancel(TimerFor::Task(2));
        assert!(timers.has(TimerFor::Tick) && !timers.has(TimerFor::Task(2)));
        assert_eq!(timers.next(), 20);
        assert_eq!((timers.due(1, 25), timers.due(2, 25)), (Some(TimerFor::Task(0)), None));
        timers.postpone(100);
        assert_eq!(timers.pop_due(119), None);
        let all: Vec<TimerFor> = std::iter::from_fn(|| timers.pop_due(140)).collect();
        let [first, second] = [TimerFor::Tick, TimerFor::Task(0)];
        assert_eq!(all, [first, second, TimerFor::Task(1), TimerFor::Level]);
    }
}
