//! A timer that ends the request of a fair entity in time, and not at the next tick: the feature HRTICK.

use super::Level;
use crate::class::Class;
use crate::config::{ClassId, Ns};
use crate::dl::NEVER;
use crate::{CpuId, EntId, Note};

/// The timer is at least so far away (`hrtick_start` of `kernel/sched/core.c`).
const LEAST: Ns = 10_000;
/// The timer is not moved by less than this (`hrtick_needs_rearm`).
const LEAST_CHANGE: Ns = 5_000;

impl Level {
    /// The fair entity `e` was picked and becomes current (`hrtick_start_fair` in `set_next_task_fair`).
    ///
    /// An entity that is picked again while it runs does not come here, so nothing ends its next request in time. This
    /// is so in Linux up to 7.3 at least.
    #[inline]
    pub(super) fn start_hrtick(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        if self.fair.has_hrtick() {
            self.set_hrtick(now, cpu, e);
        }
    }

    /// A fair entity came onto the queue of `cpu`, whose current entity may have been alone (`hrtick_update`).
    #[inline]
    pub(super) fn update_hrtick(&mut self, now: Ns, cpu: CpuId) {
        if self.fair.has_hrtick() {
            self.joined(now, cpu);
        }
    }

    /// `cpu` goes idle.
    #[inline]
    pub(super) fn cancel_hrtick(&mut self, cpu: CpuId) {
        if self.cpus[cpu.index()].hrtick != NEVER {
            self.cpus[cpu.index()].hrtick = NEVER;
            self.notes.push_back(Note::DeadlineChanged { cpu });
        }
    }

    #[cold]
    fn joined(&mut self, now: Ns, cpu: CpuId) {
        if self.cpus[cpu.index()].hrtick == NEVER
            && let Some(e) = self.current(cpu)
            && self.class(e) == ClassId::Fair
        {
            self.set_hrtick(now, cpu, e);
        }
    }

    /// An entity without others, or whose request is used up, leaves the timer as it is, and so does one that would move
    /// it by a few microseconds.
    #[cold]
    fn set_hrtick(&mut self, now: Ns, cpu: CpuId, e: EntId) {
        match self.fair.left_beside_others(e) {
            None => {}
            Some(0) => self.kick(cpu, true),
            Some(left) => {
                let (at, armed) = (now + left.max(LEAST), self.cpus[cpu.index()].hrtick);
                if armed == NEVER || at.abs_diff(armed) > LEAST_CHANGE {
                    let before = self.deadline(cpu);
                    self.cpus[cpu.index()].hrtick = at;
                    self.announce(cpu, before);
                }
            }
        }
    }

    /// The timer fires: a fair entity that runs is asked to give way, and not lazily. As at a tick, it has its weight
    /// renewed (`task_tick_fair`).
    pub(super) fn on_hrtick(&mut self, now: Ns, cpu: CpuId) {
        if self.cpus[cpu.index()].hrtick > now {
            return;
        }
        self.cpus[cpu.index()].hrtick = NEVER;
        if let Some(e) = self.current(cpu)
            && self.class(e) == ClassId::Fair
        {
            self.fair.tick(cpu, e);
            self.kick(cpu, true);
        }
    }
}
