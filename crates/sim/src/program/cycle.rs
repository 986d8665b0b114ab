//! A loop over phases.

use vcoop_model::plan::Phase;

use super::Op;
use crate::queue::Ns;
use crate::rng::Stream;

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
        self.next = (self.next + 1) % self.phases.len();
        match phase {
            Phase::Run { time, mode } => Op::Run { ns: rng.draw(time), mode: *mode },
            Phase::Sleep { time } => Op::SleepUntil { at: now + rng.draw(time), sample: false },
            Phase::Align { period_ns } => {
                Op::SleepUntil { at: (now / period_ns + 1) * period_ns, sample: false }
            }
            &Phase::Call { server, irq_vcpu } => {
                self.awaits = true;
                Op::Call { server, irq_vcpu }
            }
        }
    }
}
