//! What the VMs of a boot storm do: boot, and serve somebody at a desktop.

use vcoop_model::plan::{Dist, Mode, Target};

use super::Op;
use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// How long a hog's run is; it is of no consequence.
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
        match self.at {
            Booting::Burst => {
                let mut ns = rng.draw(&self.burst);
                self.done += 1;
                if self.every > 0 && self.done.is_multiple_of(self.every) {
                    ns += rng.draw(&self.long);
                }
                self.at = match self.server {
                    Some(_) => Booting::Call,
                    None => self.round_ends(),
                };
                Op::Run { ns, mode: Mode::User }
            }
            Booting::Call => {
                self.at = Booting::Await;
                // Without a server this stage is not reached.
                self.server.map_or(Op::Exit, |(server, irq_vcpu)| Op::Call { server, irq_vcpu })
            }
            Booting::Await => {
                self.at = self.round_ends();
                Op::Await
            }
            Booting::Login => {
                self.at = Booting::Over;
                Op::Login
            }
            Booting::Over if self.hog => Op::Run { ns: RUN_NS, mode: Mode::User },
            Booting::Over => Op::Exit,
        }
    }

    fn round_ends(&self) -> Booting {
        if self.done < self.rounds { Booting::Burst } else { Booting::Login }
    }
}

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
    pub(super) at: Acting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acting {
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
            Acting::Think => {
                // Never at this very moment: the sample's event is a timer's.
                self.due = now + rng.draw(&self.think).max(1);
                self.done = 0;
                (Acting::Act, Op::SleepUntil { at: self.due, sample: true })
            }
            Acting::Act => (Acting::Burst, Op::Act),
            Acting::Burst => {
                self.done += 1;
                let then = match self.server {
                    _ if self.done == self.bursts => Acting::Respond,
                    Some(_) => Acting::Call,
                    None => Acting::Burst,
                };
                (then, Op::Run { ns: rng.draw(&self.burst), mode: Mode::User })
            }
            Acting::Call => {
                // Without a server this stage is not reached.
                let call = |(server, irq_vcpu)| Op::Call { server, irq_vcpu };
                (Acting::Await, self.server.map_or(Op::Exit, call))
            }
            Acting::Await => (Acting::Act, Op::Await),
            Acting::Respond => (Acting::Think, Op::Respond { due: self.due }),
        };
        self.at = then;
        op
    }

    /// When the action under way was due; `None` while it thinks.
    pub(super) fn open(&self, now: Ns) -> Option<Ns> {
        // `Think` is what comes next only before the first sleep, and after a response.
        (self.at != Acting::Think && self.due <= now).then_some(self.due)
    }

    /// The mean time between two actions.
    pub(super) fn think_ns(&self) -> Ns {
        match self.think {
            Dist::Const(ns) => ns,
            Dist::Uniform(low, high) => low.midpoint(high),
            Dist::Exp { mean_ns, .. } => mean_ns,
        }
        .max(1)
    }
}
