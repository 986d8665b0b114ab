//! A user at a desktop: thinks, then waits for an action.

use vcoop_model::plan::{Dist, Mode, Target};

use super::Op;
use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// [`Program::Desktop`](vcoop_model::plan::Program::Desktop) in execution.
///
/// `Think -> Act -> Burst -> [Call -> Await -> Act -> Burst -> ...] -> Respond -> Think`
#[derive(Clone, Debug)]
pub(super) struct Desktop {
    pub(super) think: Dist,
    pub(super) bursts: u32,
    pub(super) burst: Dist,
    pub(super) server: Option<(Target, u32)>,
    pub(super) due: Ns,
    pub(super) done: u32,
    pub(super) at: DesktopStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DesktopStage {
    Think,
    Act,
    Burst,
    Call,
    Await,
    Respond,
}

impl Desktop {
    pub(super) fn next(&mut self, now: Ns, rng: &mut Stream) -> Op {
        let (then, op) = match self.at {
            DesktopStage::Think => {
                // Never at this very moment: the sample's event is a timer's.
                self.due = now + rng.draw(&self.think).max(1);
                self.done = 0;
                (DesktopStage::Act, Op::SleepUntil { at: self.due, sample: true })
            }
            DesktopStage::Act => (DesktopStage::Burst, Op::Act),
            DesktopStage::Burst => {
                self.done += 1;
                let then = match self.server {
                    _ if self.done == self.bursts => DesktopStage::Respond,
                    Some(_) => DesktopStage::Call,
                    None => DesktopStage::Burst,
                };
                (then, Op::Run { ns: rng.draw(&self.burst), mode: Mode::User })
            }
            DesktopStage::Call => {
                // Without a server this stage is not reached.
                let call = |(server, irq_vcpu)| Op::Call { server, irq_vcpu };
                (DesktopStage::Await, self.server.map_or(Op::Exit, call))
            }
            DesktopStage::Await => (DesktopStage::Act, Op::Await),
            DesktopStage::Respond => (DesktopStage::Think, Op::Respond { due: self.due }),
        };
        self.at = then;
        op
    }

    /// When the present action was due; `None` while thinking.
    pub(super) fn open(&self, now: Ns) -> Option<Ns> {
        // `Think` is what comes next only before the first sleep, and after a response.
        (self.at != DesktopStage::Think && self.due <= now).then_some(self.due)
    }

    /// The mean time between two actions.
    pub(super) fn think_ns(&self) -> Ns {
        self.think.mean().max(1)
    }
}
