//! The boot of a VM of a storm.

use vcoop_model::plan::{Dist, Mode, Target};

use super::Op;
use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// Length of a hog's run; it does not matter.
const RUN_NS: Ns = 1_000_000_000;

/// [`Program::Boot`](vcoop_model::plan::Program::Boot) in execution.
///
/// `Burst -> [Call -> Await ->] Burst -> ...`, after the last round `Login -> Over`.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    pub(super) rounds: u32,
    pub(super) burst: Dist,
    pub(super) every: u32,
    pub(super) long: Dist,
    pub(super) server: Option<(Target, u32)>,
    pub(super) hog: bool,
    pub(super) done: u32,
    pub(super) at: Booting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Booting {
    Burst,
    Call,
    Await,
    Login,
    Over,
}

impl Boot {
    pub(super) fn next(&mut self, rng: &mut Stream) -> Op {
        let (then, op) = match self.at {
            Booting::Burst => {
                let mut ns = rng.draw(&self.burst);
                self.done += 1;
                if self.every > 0 && self.done.is_multiple_of(self.every) {
                    ns += rng.draw(&self.long);
                }
                let then = if self.server.is_some() { Booting::Call } else { self.round_ends() };
                (then, Op::Run { ns, mode: Mode::User })
            }
            Booting::Call => {
                // Without a server this stage is not reached.
                let call = |(server, irq_vcpu)| Op::Call { server, irq_vcpu };
                (Booting::Await, self.server.map_or(Op::Exit, call))
            }
            Booting::Await => (self.round_ends(), Op::Await),
            Booting::Login => (Booting::Over, Op::Login),
            Booting::Over if self.hog => (Booting::Over, Op::Run { ns: RUN_NS, mode: Mode::User }),
            Booting::Over => (Booting::Over, Op::Exit),
        };
        self.at = then;
        op
    }

    fn round_ends(&self) -> Booting {
        if self.done < self.rounds { Booting::Burst } else { Booting::Login }
    }
}
