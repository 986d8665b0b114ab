//! Programs on both ends of a call: server and ping.

use vcoop_model::plan::{Dist, LockKind, Mode, Section, Target};

use super::{MissedPeriods, Op, Open, skip_past};
use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// Stage of a server: `Free -> [Takes -> Holds -> [Flushes ->] Releases ->] Taken -> [Worked ->] Done -> Free -> ...`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Free,
    Takes,
    Holds,
    Flushes,
    Releases,
    Taken,
    Worked,
    Done,
}

/// [`Program::Serve`](vcoop_model::plan::Program::Serve) in execution.
#[derive(Clone, Debug)]
pub(super) struct Serve {
    work: Dist,
    wait: Dist,
    section: Option<Section>,
    /// Calls so far.
    calls: u64,
    at: Service,
}

impl Serve {
    pub(super) fn new(work: Dist, wait: Dist, section: Option<Section>) -> Self {
        Self { work, wait, section, calls: 0, at: Service::Free }
    }

    pub(super) fn next(&mut self, now: Ns, rng: &mut Stream) -> Op {
        match (self.at, self.section) {
            (Service::Free, section) => {
                self.at = if section.is_some() { Service::Takes } else { Service::Taken };
                Op::TakeCall
            }
            (Service::Takes, Some(Section { lock, kind, .. })) => {
                self.at = Service::Holds;
                match kind {
                    LockKind::Spin => Op::Lock(lock),
                    LockKind::SpinIrq => Op::LockIrq(lock),
                    kind => Op::Acquire { lock, kind },
                }
            }
            (Service::Holds, Some(section)) => {
                self.calls += 1;
                let every = u64::from(section.flush_every);
                let flushes = every > 0 && self.calls.is_multiple_of(every);
                self.at = if flushes { Service::Flushes } else { Service::Releases };
                Op::Run { ns: rng.draw(&section.time), mode: section.mode() }
            }
            (Service::Flushes, Some(_)) => {
                self.at = Service::Releases;
                Op::Flush
            }
            (Service::Releases, Some(Section { lock, kind, .. })) => {
                self.at = Service::Taken;
                match kind {
                    LockKind::Spin | LockKind::SpinIrq => Op::Unlock(lock),
                    _ => Op::Release(lock),
                }
            }
            (at, _) => self.works(at, now, rng),
        }
    }

    fn works(&mut self, at: Service, now: Ns, rng: &mut Stream) -> Op {
        match at {
            Service::Taken => {
                let waits = self.wait != Dist::Const(0);
                self.at = if waits { Service::Worked } else { Service::Done };
                Op::Run { ns: rng.draw(&self.work), mode: Mode::User }
            }
            Service::Worked => {
                self.at = Service::Done;
                Op::SleepUntil { at: now + rng.draw(&self.wait), sample: false }
            }
            // The others are those of a section.
            _ => {
                self.at = Service::Free;
                Op::Answer
            }
        }
    }
}

/// Stage of a ping in its period: `Start -> Arm -> Woken -> Called -> Awaited -> Sampled -> Worked -> Arm -> ...`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PingStage {
    Start,
    Arm,
    Woken,
    Called,
    Awaited,
    Sampled,
    Worked,
}

/// [`Program::Ping`](vcoop_model::plan::Program::Ping) in execution.
#[derive(Clone, Debug)]
pub(super) struct Ping {
    interval: Ns,
    phase: Dist,
    server: (Target, u32),
    work: Dist,
    due: Ns,
    at: PingStage,
}

impl Ping {
    pub(super) fn new(interval: Ns, phase: Dist, server: (Target, u32), work: Dist) -> Self {
        Self { interval, phase, server, work, due: 0, at: PingStage::Start }
    }

    pub(super) fn every(&self) -> Ns {
        self.interval
    }

    pub(super) fn next(&mut self, now: Ns, rng: &mut Stream) -> Op {
        let (then, op) = match self.at {
            PingStage::Start => {
                self.due = now + self.interval + rng.draw(&self.phase);
                (PingStage::Woken, Op::SleepUntil { at: self.due, sample: false })
            }
            PingStage::Arm => (PingStage::Woken, Op::SleepUntil { at: self.due, sample: false }),
            PingStage::Woken => {
                let (server, irq_vcpu) = self.server;
                (PingStage::Called, Op::Call { server, irq_vcpu })
            }
            PingStage::Called => (PingStage::Awaited, Op::Await),
            PingStage::Awaited => (PingStage::Sampled, Op::Sample),
            PingStage::Sampled => {
                (PingStage::Worked, Op::Run { ns: rng.draw(&self.work), mode: Mode::User })
            }
            PingStage::Worked => {
                // A closed loop: what fell due before now had no call, whatever held it up.
                self.due += self.interval;
                match skip_past(&mut self.due, self.interval, now) {
                    MissedPeriods { n: 0, .. } => {
                        (PingStage::Woken, Op::SleepUntil { at: self.due, sample: false })
                    }
                    missed => (PingStage::Arm, Op::Missed(missed)),
                }
            }
        };
        self.at = then;
        op
    }

    pub(super) fn open(&self, begun: Ns, from: Ns, now: Ns) -> Open {
        let out = matches!(self.at, PingStage::Called | PingStage::Awaited);
        // One that has not run at all would have called a period after it was to begin.
        let never = self.at == PingStage::Start;
        let due = if never { begun + self.interval } else { self.due };
        let late = now.saturating_sub(due) >= self.interval;
        let missed = now.saturating_sub(due.max(from)) / self.interval;
        Open { late: out && late, missed, never: (never && late).then_some(due) }
    }
}
