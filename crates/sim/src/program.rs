//! Programs: the operations of a task. The same state machine runs as a host thread and as a guest task, whose level
//! interprets the operations.

mod boot;
pub(crate) mod clock;
mod cycle;
mod desktop;
mod message;
mod period;
mod rogue;
mod routine;
mod script;

use std::sync::Arc;

use boot::{Boot, Booting};
use clock::SkewedClock;
use cycle::Cycle;
use desktop::{Desktop, DesktopStage};
use message::{Ping, Serve};
use period::{Audio, Cyclictest};
use rogue::Rogue;
use routine::Routine;
use script::Script;
use vcoop_model::plan::{IpiTo, LockKind, Mode, Phase, Program, QueueRoom, RogueStep, Target};
use vcoop_sched::config::Policy;

use crate::queue::Ns;
use vcoop_model::rng::Stream;

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Use the CPU.
    Run {
        /// For this long.
        ns: Ns,
        /// In this mode.
        mode: Mode,
    },
    /// Use the CPU until this time has passed by the clock, in user mode. An open sample does not count it.
    Spin {
        /// For this long.
        ns: Ns,
    },
    /// Sleep until a time; `sample`: the lateness of the next instruction is a sample.
    SleepUntil {
        /// When.
        at: Ns,
        /// Measure.
        sample: bool,
    },
    /// Sleep until a device event that is due at a time (sampled), or go on at once if it has already come.
    WaitDevice {
        /// When it is due.
        due: Ns,
    },
    /// Sleep until woken by a peer, or until the time runs out.
    Wait {
        /// Give up after.
        timeout: Ns,
    },
    /// Wake a peer (index within its capture).
    Wake(u32),
    /// Send a request.
    Call {
        /// To whom.
        server: Target,
        /// vCPU that the answer interrupts, if it comes from outside of the VM.
        irq_vcpu: u32,
    },
    /// Send a request to another machine, whose answer comes back after this time.
    Remote {
        /// Time until the answer reaches this machine.
        ns: Ns,
        /// vCPU that the answer interrupts.
        irq_vcpu: u32,
    },
    /// Sleep until the answer is there.
    Await,
    /// Sleep until there is a call, and take it.
    TakeCall,
    /// Answer the call that was taken last.
    Answer,
    /// The first instruction after a measured sleep: take the sample.
    Sample,
    /// Periods that passed without a sample.
    Missed(MissedPeriods),
    /// Audio: glitches, and callbacks without a sample.
    Glitches {
        /// Written too late, or lost.
        glitches: u64,
        /// Lost, or caught up without a sample.
        missed: MissedPeriods,
    },
    /// Change its own policy.
    SetPolicy(Policy),
    /// A step of a hostile guest kernel, which takes no time.
    Rogue(RogueStep),
    /// First instruction of the task's own part of an action: CPU time from here on is work.
    Act,
    /// The action due at this time is done: take the sample.
    Respond {
        /// When it was due.
        due: Ns,
    },
    /// The VM has booted.
    Login,
    /// Read this many counters of C-state residency.
    ReadCstates(u32),
    /// A sample begins.
    Begin,
    /// A unit of work is done.
    Done,
    /// Spin until a timer's interrupt; sampled like a sleep.
    BusyUntil {
        /// When it is due.
        at: Ns,
    },
    /// Take a spinlock.
    Lock(u32),
    /// The same, with interrupts off.
    LockIrq(u32),
    /// Release it.
    Unlock(u32),
    /// Take a sleeping lock.
    Acquire {
        /// Its number.
        lock: u32,
        /// How.
        kind: LockKind,
    },
    /// Release it.
    Release(u32),
    /// Wait until this many tasks of its label have come.
    Barrier {
        /// How many.
        of: u32,
        /// How long to spin before sleeping.
        spin_ns: Ns,
    },
    /// Go on behind the barrier, or sleep until it opens.
    Pass,
    /// Have other vCPUs call a function.
    Ipi {
        /// Which.
        to: IpiTo,
        /// Spin until all have.
        wait: bool,
    },
    /// Flush the TLB of the vCPUs that have the address space loaded; spin until all have.
    Flush,
    /// Send a message to a peer (index among those of its label).
    Post {
        /// The peer.
        peer: u32,
        /// Its limit; the task sleeps while there is no room.
        room: QueueRoom,
    },
    /// Take a message, or sleep until there is one.
    Receive {
        /// The wake-up is measured.
        sample: bool,
    },
    /// Post a message to the sender of the one taken last.
    Reply,
    /// End.
    Exit,
}

impl Op {
    /// That of a phase. The answer to a call is up to the program.
    fn of_phase(phase: &Phase, now: Ns, rng: &mut Stream) -> Self {
        match phase {
            Phase::Run { time, mode } => Self::Run { ns: rng.draw(time), mode: *mode },
            Phase::Sleep { time } => Self::SleepUntil { at: now + rng.draw(time), sample: false },
            Phase::Align { period_ns } => {
                Self::SleepUntil { at: (now / period_ns + 1) * period_ns, sample: false }
            }
            // In one piece: it is asked for only once.
            Phase::Busy { period_ns, on_ns } => {
                Self::Run { ns: on_ns.saturating_sub(now % period_ns), mode: Mode::User }
            }
            &Phase::Call { server, irq_vcpu } => Self::Call { server, irq_vcpu },
        }
    }
}

/// Consecutive periods without a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedPeriods {
    /// How many.
    pub n: u64,
    /// When the last one was due.
    pub last: Ns,
    /// Time between two.
    pub every: Ns,
}

impl MissedPeriods {
    /// How many were due at a time or later.
    pub fn since(self, from: Ns) -> u64 {
        match self.last.checked_sub(from) {
            Some(after) => self.n.min(after / self.every.max(1) + 1),
            None => 0,
        }
    }
}

/// A program in execution.
#[derive(Clone, Debug)]
pub struct Runner {
    kind: Kind,
    rng: Stream,
    clock: SkewedClock,
    /// When it is to begin, until then.
    begins: Option<Ns>,
    /// An operation that was returned and could not be begun.
    held: Option<Op>,
}

#[derive(Clone, Debug)]
enum Kind {
    Cyclictest(Cyclictest),
    Cycle(Cycle),
    Routine(Routine),
    Audio(Audio),
    Script(Script),
    Rogue(Rogue),
    Serve(Serve),
    Ping(Ping),
    Boot(Boot),
    Desktop(Desktop),
}

impl Runner {
    /// A program at its start, with its own stream.
    pub fn new(program: &Program, rng: Stream) -> Self {
        let kind = match program {
            &Program::Cyclictest { interval_ns, absolute, work, phase } => {
                Kind::Cyclictest(Cyclictest::new(interval_ns, absolute, work, phase))
            }
            Program::Cycle { phases } => Kind::Cycle(Cycle::new(phases)),
            Program::Routine { acts } => Kind::Routine(Routine::new(acts)),
            &Program::Audio { period_ns, buffer_ns, work, device } => {
                Kind::Audio(Audio::new(period_ns, buffer_ns, work, device))
            }
            Program::Script { steps, repeat } => {
                Kind::Script(Script::new(Arc::clone(steps), *repeat))
            }
            Program::Rogue { steps } => Kind::Rogue(Rogue::new(Arc::clone(steps))),
            &Program::Serve { work, wait, section, .. } => {
                Kind::Serve(Serve::new(work, wait, section))
            }
            &Program::Boot { rounds, burst, every, long, server, irq_vcpu, hog } => {
                let server = server.map(|server| (server, irq_vcpu));
                let at = Booting::Burst;
                Kind::Boot(Boot { rounds, burst, every, long, server, hog, done: 0, at })
            }
            &Program::Desktop { think, bursts, burst, server, irq_vcpu } => {
                let server = server.map(|server| (server, irq_vcpu));
                let at = DesktopStage::Think;
                Kind::Desktop(Desktop { think, bursts, burst, server, due: 0, done: 0, at })
            }
            &Program::Ping { interval_ns, phase, server, irq_vcpu, work } => {
                Kind::Ping(Ping::new(interval_ns, phase, (server, irq_vcpu), work))
            }
        };
        Self { kind, rng, clock: SkewedClock::HOST, begins: None, held: None }
    }

    /// The same by another clock, except for device events and waits for them.
    #[must_use]
    pub(crate) fn by(self, clock: SkewedClock) -> Self {
        let of_device = matches!(&self.kind, Kind::Audio(audio) if audio.waits_for_device());
        if of_device { self } else { Self { clock, ..self } }
    }

    /// The same for a task that is to begin at a time of the host's clock: periods that pass while it waits for its CPU
    /// count.
    #[must_use]
    pub(crate) fn begins(self, at: Ns) -> Self {
        Self { begins: Some(self.clock.shows(at)), ..self }
    }

    /// The periods that have passed between when it was to begin and its first instruction, at `now`.
    #[cold]
    fn begin(&mut self, now: Ns) -> Option<Op> {
        let begins = self.begins.take()?;
        let (every, glitches) = match &self.kind {
            Kind::Cyclictest(cyclictest) => (cyclictest.every(), false),
            Kind::Audio(audio) => (audio.every(), true),
            Kind::Ping(ping) => (ping.every(), false),
            Kind::Routine(routine) => (routine.every()?, false),
            _ => return None,
        };
        let n = now.saturating_sub(begins) / every.max(1);
        let missed = MissedPeriods { n, last: begins + n * every, every };
        (n > 0).then_some(if glitches {
            Op::Glitches { glitches: n, missed }
        } else {
            Op::Missed(missed)
        })
    }

    /// The same with the wake-up times of its capture instead of sleeps, if it has one.
    #[must_use]
    pub(crate) fn of_vcpu(mut self) -> Self {
        if let Kind::Script(script) = &mut self.kind {
            script.keep_time();
        }
        self
    }

    /// Whether it takes latency samples.
    pub fn measures(program: &Program) -> bool {
        program.measures()
    }

    /// The next operation, after the last one is done.
    pub fn next(&mut self, now: Ns) -> Op {
        let now = self.clock.shows(now);
        if self.begins.is_some()
            && let Some(op) = self.begin(now)
        {
            return self.clock.on_host(op);
        }
        let rng = &mut self.rng;
        let op = match &mut self.kind {
            Kind::Cyclictest(cyclictest) => cyclictest.next(now, rng),
            Kind::Audio(audio) => audio.next(now, rng),
            Kind::Cycle(cycle) => cycle.next(now, rng),
            Kind::Routine(routine) => routine.next(now, rng),
            Kind::Script(script) => script.next(now),
            Kind::Serve(serve) => serve.next(now, rng),
            Kind::Ping(ping) => ping.next(now, rng),
            Kind::Boot(boot) => boot.next(rng),
            Kind::Desktop(desktop) => desktop.next(now, rng),
            Kind::Rogue(rogue) => rogue.next(now),
        };
        self.clock.on_host(op)
    }

    /// Returns this operation again next.
    pub fn hold(&mut self, op: Op) {
        self.held = Some(op);
    }

    /// [`next`](Self::next), or the held operation.
    #[inline]
    pub fn next_or_held(&mut self, now: Ns) -> Op {
        match self.held.take() {
            Some(op) => op,
            None => self.next(now),
        }
    }

    /// What is open when a run ends. `begun`: when the task was to begin; `from`: begin of the measurement. A sample is
    /// late if it is late by a whole period (of a desktop: by the mean time between two actions).
    pub fn open(&self, begun: Ns, from: Ns, now: Ns) -> Open {
        let [begun, from, now] = [begun, from, now].map(|at| self.clock.shows(at));
        let open = match &self.kind {
            Kind::Cyclictest(cyclictest) => cyclictest.open(begun, from, now),
            Kind::Audio(audio) => audio.open(begun, from, now),
            Kind::Ping(ping) => ping.open(begun, from, now),
            Kind::Routine(routine) => routine.open(begun, from, now),
            Kind::Desktop(desktop) => {
                let late = |due: Ns| now - due >= desktop.think_ns();
                Open { late: desktop.open(now).is_some_and(late), ..Open::default() }
            }
            Kind::Cycle(_) | Kind::Script(_) | Kind::Rogue(_) | Kind::Serve(_) | Kind::Boot(_) => {
                Open::default()
            }
        };
        Open { never: open.never.map(|due| self.clock.host_time(due)), ..open }
    }

    /// When the present action of a desktop was due.
    pub(crate) fn acting_since(&self, now: Ns) -> Option<Ns> {
        match &self.kind {
            Kind::Desktop(desktop) => {
                desktop.open(self.clock.shows(now)).map(|due| self.clock.host_time(due))
            }
            _ => None,
        }
    }
}

/// What is open in a measuring program when a run ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// A sample is open, and late.
    pub late: bool,
    /// The task has never run: due time of its first sample, which is late.
    pub never: Option<Ns>,
    /// Periods of the measured time that have passed without a sample.
    pub missed: u64,
}

/// Moves `due` past `now` by whole periods. Returns those that it skipped.
fn skip_past(due: &mut Ns, period: Ns, now: Ns) -> MissedPeriods {
    let n = now.checked_sub(*due).map_or(0, |late| late / period + 1);
    *due += n * period;
    MissedPeriods { n, last: due.saturating_sub(period), every: period }
}

#[cfg(test)]
mod tests;
