//! A loop over phases.

use vcoop_model::plan::{Mode, Phase};

use super::Op;
use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// How often [`Phase::Busy`] checks the clock.
const BUSY_STEP_NS: Ns = 1_000_000;

/// [`Program::Cycle`](vcoop_model::plan::Program::Cycle) in execution.
#[derive(Clone, Debug)]
pub(super) struct Cycle {
    phases: Box<[Phase]>,
    next: usize,
    /// A call was made.
    awaits: bool,
}

impl Cycle {
    pub(super) fn new(phases: &[Phase]) -> Self {
        Self { phases: phases.into(), next: 0, awaits: false }
    }

    pub(super) fn next(&mut self, now: Ns, rng: &mut Stream) -> Op {
        if std::mem::take(&mut self.awaits) {
            return Op::Await;
        }
        let phase = &self.phases[self.next];
        if let Phase::Busy { period_ns, on_ns } = phase
            && let Some(left @ 1..) = on_ns.checked_sub(now % period_ns)
        {
            // Asked again and again: the clock goes on while it waits for a CPU.
            return Op::Run { ns: left.min(BUSY_STEP_NS), mode: Mode::User };
        }
        self.next = (self.next + 1) % self.phases.len();
        self.awaits = matches!(phase, Phase::Call { .. });
        match phase {
            // Over: the next one has its turn.
            Phase::Busy { .. } => Op::SleepUntil { at: now, sample: false },
            phase => Op::of_phase(phase, now, rng),
        }
    }
}
