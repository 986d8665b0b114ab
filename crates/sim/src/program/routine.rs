//! A loop over acts.

use vcoop_model::plan::{Act, Phase};

use super::period::{Stage, open};
use super::{Op, Open, skip_past};
use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// A wait that only a peer ends.
const FOR_EVER_NS: Ns = 1 << 60;

/// Operation to return before the next act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingOp {
    Next,
    /// A call was made: its answer.
    Await,
    /// The answer is there: own work follows.
    Act,
    /// A measured wake-up.
    Sample,
    /// A measured request: the work of this act.
    Serve(usize),
    /// The measured sleep to this moment.
    Timer {
        at: Ns,
        busy: bool,
    },
}

/// [`Program::Routine`](vcoop_model::plan::Program::Routine) in execution.
#[derive(Clone, Debug)]
pub(super) struct Routine {
    acts: Box<[Act]>,
    /// For a timer: when it is due next, 0 before it has begun. For `Loop` and `Every`: how often it was reached.
    states: Box<[u64]>,
    /// The timer that was reached last.
    timer: Option<usize>,
    next: usize,
    then: PendingOp,
}

impl Routine {
    pub(super) fn new(acts: &[Act]) -> Self {
        let states = vec![0; acts.len()].into();
        Self { acts: acts.into(), states, timer: None, next: 0, then: PendingOp::Next }
    }

    /// The period at which it measures from its begin on, perhaps after work.
    pub(super) fn every(&self) -> Option<Ns> {
        match self.acts.iter().find(|act| !matches!(act, Act::Do(Phase::Run { .. })))? {
            &Act::Timer { period_ns, .. } if period_ns > 0 => Some(period_ns),
            _ => None,
        }
    }

    pub(super) fn open(&self, begun: Ns, from: Ns, now: Ns) -> Open {
        let begins = self.next == 0 && self.then == PendingOp::Next;
        match (self.timer, self.every()) {
            (Some(i), _) => {
                let &Act::Timer { period_ns, .. } = &self.acts[i] else { return Open::default() };
                let waits = matches!(self.then, PendingOp::Timer { .. } | PendingOp::Sample);
                let at = if waits { Stage::Woken } else { Stage::Worked };
                open(at, (self.states[i], begun), period_ns, from, now)
            }
            (None, Some(period)) if begins => open(Stage::Start, (0, begun), period, from, now),
            _ => Open::default(),
        }
    }

    pub(super) fn next(&mut self, now: Ns, rng: &mut Stream) -> Op {
        match std::mem::replace(&mut self.then, PendingOp::Next) {
            PendingOp::Next => {}
            PendingOp::Await => {
                self.then = PendingOp::Act;
                return Op::Await;
            }
            PendingOp::Act => return Op::Act,
            PendingOp::Sample => return Op::Sample,
            PendingOp::Serve(i) => {
                if let Act::Serve { time } = &self.acts[i] {
                    self.then = PendingOp::Sample;
                    return Op::Spin { ns: rng.draw(time) };
                }
            }
            PendingOp::Timer { at, busy } => {
                self.then = PendingOp::Sample;
                return if busy {
                    Op::BusyUntil { at }
                } else {
                    Op::SleepUntil { at, sample: true }
                };
            }
        }
        // Acts that only say where to go on are no operation. A round of nothing else would never end, so a run of
        // length 0 follows it.
        for _ in 0..=self.acts.len() {
            let i = self.next;
            self.next = (i + 1) % self.acts.len();
            match self.acts[i] {
                Act::Every { n, skip } => {
                    self.states[i] += 1;
                    if !self.states[i].is_multiple_of(u64::from(n)) {
                        self.next = (i + 1 + skip as usize) % self.acts.len();
                    }
                }
                Act::Loop { to, times } => {
                    self.states[i] += 1;
                    if self.states[i] < u64::from(times) {
                        self.next = to as usize;
                    } else {
                        self.states[i] = 0;
                    }
                }
                _ => return self.act(i, now, rng),
            }
        }
        Op::Run { ns: 0, mode: vcoop_model::plan::Mode::User }
    }

    fn act(&mut self, i: usize, now: Ns, rng: &mut Stream) -> Op {
        match &self.acts[i] {
            Act::Do(phase) => {
                if matches!(phase, Phase::Call { .. }) {
                    self.then = PendingOp::Await;
                }
                Op::of_phase(phase, now, rng)
            }
            Act::Remote { delay, irq_vcpu } => {
                self.then = PendingOp::Await;
                Op::Remote { ns: rng.draw(delay), irq_vcpu: *irq_vcpu }
            }
            Act::Begin => Op::Begin,
            Act::Sample => Op::Sample,
            &Act::Timer { period_ns: 0, .. } => {
                self.then = PendingOp::Sample;
                Op::BusyUntil { at: now }
            }
            &Act::Timer { period_ns, busy, .. } => {
                let due = &mut self.states[i];
                *due = if *due == 0 { now } else { *due } + period_ns;
                let missed = skip_past(due, period_ns, now);
                self.timer = Some(i);
                self.then = PendingOp::Timer { at: *due, busy };
                Op::Missed(missed)
            }
            Act::Done => Op::Done,
            &Act::Lock { lock } => Op::Lock(lock),
            &Act::LockIrq { lock } => Op::LockIrq(lock),
            &Act::Unlock { lock } => Op::Unlock(lock),
            &Act::Acquire { lock, kind } => Op::Acquire { lock, kind },
            &Act::Release { lock } => Op::Release(lock),
            &Act::Barrier { of, spin_ns } => Op::Barrier { of, spin_ns },
            &Act::Ipi { to, wait } => Op::Ipi { to, wait },
            Act::Flush => Op::Flush,
            &Act::ReadCstates { counters } => Op::ReadCstates(counters),
            &Act::Post { peer, room } => Op::Post { peer, room },
            &Act::Receive { sample } => {
                self.then = if sample { PendingOp::Sample } else { PendingOp::Next };
                Op::Receive { sample }
            }
            Act::Serve { .. } => {
                self.then = PendingOp::Serve(i);
                Op::Receive { sample: true }
            }
            Act::Reply => Op::Reply,
            Act::Suspend => Op::Wait { timeout: FOR_EVER_NS },
            &Act::Resume { peer } => Op::Wake(peer),
            &Act::SetPolicy(policy) => Op::SetPolicy(policy),
            // The first two have been followed.
            Act::Every { .. } | Act::Loop { .. } | Act::Exit => {
                // Nothing is open from now on, and it does not begin anew.
                (self.timer, self.next) = (None, i);
                Op::Exit
            }
        }
    }
}
