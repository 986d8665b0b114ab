//! Directed yield: an entity yields its CPU time to a certain other one.

use super::{ClassId, Level};

use crate::config::Ns;
use crate::{CpuId, DirectedYield, EntId};

impl Level {
    /// The current entity of `cpu` yields to `to`, as Linux's `yield_to(to, true)`: `to` becomes the
    /// next buddy of its queue, and its CPU is asked to schedule. Call [`schedule`](Level::schedule)
    /// with [`LeaveReason::Yield`](crate::LeaveReason::Yield) after [`DirectedYield::Done`].
    pub fn yield_to(&mut self, now: Ns, cpu: CpuId, to: EntId) -> DirectedYield {
        let there = self.cpu_of(to);
        if self.has_single(cpu) && self.has_single(there) {
            return DirectedYield::Alone;
        }
        let Some(current) = self.current(cpu) else { return DirectedYield::Refused };
        let fair = |e| self.class(e) == ClassId::Fair;
        let waits = self.is_queued(to) && !self.is_running(to);
        if !waits || !fair(current) || !fair(to) || self.fair.is_delayed(to) {
            return DirectedYield::Refused;
        }
        self.charge(now, cpu);
        self.fair.favour(to);
        self.fair.penalise(now, cpu, current, to);
        if there != cpu {
            self.kick(there, true);
        }
        DirectedYield::Done
    }
}
