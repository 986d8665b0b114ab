//! Programs that measure at a period: cyclictest and the audio callback.

use vcoop_model::plan::{Dist, Mode};

use super::{MissedPeriods, Op, Open, skip_past};
use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// Stage of a measuring program in its period.
///
/// `Start -> Arm -> Woken -> Sampled -> Worked -> Arm -> ...`; an audio callback that is behind
/// goes from `Worked` to `Sampled`, without a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Start,
    Arm,
    Woken,
    Sampled,
    Worked,
}

/// [`Program::Cyclictest`](vcoop_model::plan::Program::Cyclictest) in execution.
#[derive(Clone, Debug)]
pub(super) struct Cyclictest {
    interval: Ns,
    absolute: bool,
    work: Dist,
    phase: Dist,
    due: Ns,
    woke: Ns,
    at: Stage,
}

impl Cyclictest {
    pub(super) fn new(interval: Ns, absolute: bool, work: Dist, phase: Dist) -> Self {
        Self { interval, absolute, work, phase, due: 0, woke: 0, at: Stage::Start }
    }

    pub(super) fn every(&self) -> Ns {
        self.interval
    }

    pub(super) fn next(&mut self, now: Ns, rng: &mut Stream) -> Op {
        if self.at == Stage::Start {
            self.due = now + self.interval + rng.draw(&self.phase);
            self.at = Stage::Arm;
        } else if self.at == Stage::Worked {
            // A period that was already over at the wake-up is skipped and counted, as cyclictest does: sampling it
            // would count one long stall many times. One that ran out during the work is sampled, and shows what
            // held the work up.
            self.due = if self.absolute { self.due } else { now } + self.interval;
            self.at = Stage::Arm;
            let missed = skip_past(&mut self.due, self.interval, self.woke);
            if missed.n > 0 {
                return Op::Missed(missed);
            }
        }
        let (then, op) = match self.at {
            Stage::Arm => (Stage::Woken, Op::SleepUntil { at: self.due, sample: true }),
            Stage::Woken => {
                self.woke = now;
                (Stage::Sampled, Op::Sample)
            }
            _ => (Stage::Worked, Op::Run { ns: rng.draw(&self.work), mode: Mode::User }),
        };
        self.at = then;
        op
    }

    pub(super) fn open(&self, begun: Ns, from: Ns, now: Ns) -> Open {
        open(self.at, (self.due, begun), self.interval, from, now)
    }
}

/// [`Program::Audio`](vcoop_model::plan::Program::Audio) in execution.
#[derive(Clone, Debug)]
pub(super) struct Audio {
    period: Ns,
    buffer: Ns,
    work: Dist,
    device: bool,
    due: Ns,
    at: Stage,
}

impl Audio {
    pub(super) fn new(period: Ns, buffer: Ns, work: Dist, device: bool) -> Self {
        Self { period, buffer, work, device, due: 0, at: Stage::Start }
    }

    pub(super) fn every(&self) -> Ns {
        self.period
    }

    pub(super) fn next(&mut self, now: Ns, rng: &mut Stream) -> Op {
        if self.at == Stage::Start {
            self.due = (now / self.period + 1) * self.period;
            self.at = Stage::Arm;
        } else if self.at == Stage::Worked {
            let late = now > self.due + self.buffer;
            self.due += self.period;
            // Audio whose buffer ran dry before its callback could start is lost whole.
            let lost = skip_past(&mut self.due, self.period, now.saturating_sub(self.buffer));
            // A callback that is only behind catches up at once, without a sample.
            let behind = self.due <= now;
            self.at = if behind { Stage::Sampled } else { Stage::Arm };
            let glitches = lost.n + u64::from(late);
            let last = if behind { self.due } else { lost.last };
            let missed = MissedPeriods { n: lost.n + u64::from(behind), last, ..lost };
            if glitches + missed.n > 0 {
                return Op::Glitches { glitches, missed };
            }
        }
        let (then, op) = match self.at {
            Stage::Arm if self.device => (Stage::Woken, Op::WaitDevice { due: self.due }),
            Stage::Arm => (Stage::Woken, Op::SleepUntil { at: self.due, sample: true }),
            Stage::Woken => (Stage::Sampled, Op::Sample),
            _ => (Stage::Worked, Op::Run { ns: rng.draw(&self.work), mode: Mode::User }),
        };
        self.at = then;
        op
    }

    pub(super) fn waits_for_device(&self) -> bool {
        self.device
    }

    pub(super) fn open(&self, begun: Ns, from: Ns, now: Ns) -> Open {
        open(self.at, (self.due, begun), self.period, from, now)
    }
}

/// What is open in a program that measures at a period, at the end of a run.
pub(super) fn open(at: Stage, (due, begun): (Ns, Ns), period: Ns, from: Ns, now: Ns) -> Open {
    // One that has not run at all would have been due a period after it was to begin.
    let due = if at == Stage::Start { begun + period } else { due };
    if due > now {
        return Open::default();
    }
    let missed = (now - due.max(from)) / period;
    let late = now - due >= period;
    match at {
        Stage::Start if late => Open { never: Some(due), missed, ..Open::default() },
        Stage::Woken => Open { late, missed, never: None },
        Stage::Sampled | Stage::Worked => Open { missed, ..Open::default() },
        Stage::Start | Stage::Arm => Open::default(),
    }
}
