//! Programs: what a task does next. The same state machine runs as a host thread and as a guest
//! task; whoever runs it interprets its operations on its own level.

use std::sync::Arc;

use vcoop_model::plan::{Dist, Mode, Phase, Program, RogueMode, Step, Target};
use vcoop_sched::config::Policy;

use crate::queue::Ns;
use crate::rng::Stream;

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
    /// Sleep until a time; `sample` asks for the lateness of the next instruction to be explained.
    SleepUntil {
        /// When.
        at: Ns,
        /// Measure.
        sample: bool,
    },
    /// Sleep until a device event that is due at a time (measured), or go on at once if it has
    /// already come.
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
    /// Sleep until the answer is there.
    Await,
    /// Sleep until there is a call, and take it.
    TakeCall,
    /// Answer the call that was taken last.
    Answer,
    /// The first instruction after a measured sleep: take the sample.
    Sample,
    /// Periods that passed without a sample.
    Missed(u64),
    /// Audio: so many glitches, and so many callbacks without a sample.
    Glitches {
        /// Written too late, or lost.
        glitches: u64,
        /// Lost, or made up for without a sample.
        missed: u64,
    },
    /// Change own policy.
    SetPolicy(Policy),
    /// A hostile guest kernel writes its page: ask for a boost, and claim to be in a
    /// preempt-disabled section (or not).
    Rogue {
        /// The claimed preempt-off state.
        preempt_off: bool,
    },
    /// Leave for good.
    Exit,
}

/// A program in execution.
#[derive(Clone, Debug)]
pub struct Runner {
    kind: Kind,
    rng: Stream,
}

#[derive(Clone, Debug)]
enum Kind {
    Cyclictest {
        interval: Ns,
        absolute: bool,
        work: Dist,
        phase: Dist,
        due: Ns,
        woke: Ns,
        at: Stage,
    },
    Cycle {
        phases: Box<[Phase]>,
        next: usize,
        /// A call was made.
        awaits: bool,
    },
    Audio {
        period: Ns,
        buffer: Ns,
        work: Dist,
        device: bool,
        due: Ns,
        at: Stage,
    },
    Script {
        steps: Arc<Vec<Step>>,
        next: usize,
        repeat: bool,
    },
    Rogue {
        mode: RogueMode,
        on: bool,
        asked: bool,
    },
    Serve {
        work: Dist,
        at: Service,
    },
    Ping {
        interval: Ns,
        phase: Dist,
        server: Target,
        irq_vcpu: u32,
        work: Dist,
        due: Ns,
        at: Trip,
    },
}

/// Where a server is with a call: `Free -> Taken -> Done -> Free -> ...`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Free,
    Taken,
    Done,
}

/// Where a ping is in its period: `Start -> Arm -> Woken -> Called -> Awaited -> Sampled -> Worked ->
/// Arm -> ...`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trip {
    Start,
    Arm,
    Woken,
    Called,
    Awaited,
    Sampled,
    Worked,
}

/// Where a measuring program is in its period.
///
/// `Start -> Arm -> Woken -> Sampled -> Worked -> Arm -> ...`; an audio callback that is behind
/// goes from `Worked` to `Sampled`, without a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    Arm,
    Woken,
    Sampled,
    Worked,
}

impl Runner {
    /// A program at its start, drawing from its own stream.
    pub fn new(program: &Program, rng: Stream) -> Self {
        let kind = match program {
            &Program::Cyclictest { interval_ns, absolute, work, phase } => Kind::Cyclictest {
                interval: interval_ns,
                absolute,
                work,
                phase,
                due: 0,
                woke: 0,
                at: Stage::Start,
            },
            Program::Cycle { phases } => {
                Kind::Cycle { phases: phases.clone().into(), next: 0, awaits: false }
            }
            &Program::Audio { period_ns, buffer_ns, work, device } => Kind::Audio {
                period: period_ns,
                buffer: buffer_ns,
                work,
                device,
                due: 0,
                at: Stage::Start,
            },
            Program::Script { steps, repeat } => {
                Kind::Script { steps: Arc::clone(steps), next: 0, repeat: *repeat }
            }
            &Program::Rogue { mode } => Kind::Rogue { mode, on: false, asked: false },
            &Program::Serve { work, .. } => Kind::Serve { work, at: Service::Free },
            &Program::Ping { interval_ns, phase, server, irq_vcpu, work } => Kind::Ping {
                interval: interval_ns,
                phase,
                server,
                irq_vcpu,
                work,
                due: 0,
                at: Trip::Start,
            },
        };
        Self { kind, rng }
    }

    /// Whether it takes latency samples.
    pub fn measures(program: &Program) -> bool {
        program.measures()
    }

    /// The next operation, asked for when the last one is done.
    pub fn next(&mut self, now: Ns) -> Op {
        let rng = &mut self.rng;
        match &mut self.kind {
            Kind::Cyclictest { interval, absolute, work, phase, due, woke, at } => {
                if *at == Stage::Start {
                    *due = now + *interval + rng.draw(phase);
                    *at = Stage::Arm;
                } else if *at == Stage::Worked {
                    // A period that was already over at the wake-up is skipped and counted, as
                    // cyclictest does: sampling it would count one long stall many times. One
                    // that ran out during the work is not: what held the work up shows there.
                    *due = if *absolute { *due + *interval } else { now + *interval };
                    *at = Stage::Arm;
                    let missed = skip_past(due, *interval, *woke);
                    if missed > 0 {
                        return Op::Missed(missed);
                    }
                }
                match *at {
                    Stage::Arm => {
                        *at = Stage::Woken;
                        Op::SleepUntil { at: *due, sample: true }
                    }
                    Stage::Woken => {
                        *at = Stage::Sampled;
                        *woke = now;
                        Op::Sample
                    }
                    _ => {
                        *at = Stage::Worked;
                        Op::Run { ns: rng.draw(work), mode: Mode::User }
                    }
                }
            }
            Kind::Audio { period, buffer, work, device, due, at } => {
                if *at == Stage::Start {
                    *due = (now / *period + 1) * *period;
                    *at = Stage::Arm;
                } else if *at == Stage::Worked {
                    let late = now > *due + *buffer;
                    *due += *period;
                    // Audio whose buffer ran dry before its callback could start is lost whole.
                    let lost = skip_past(due, *period, now.saturating_sub(*buffer));
                    // A callback that is merely behind catches up at once, without a sample.
                    let behind = *due <= now;
                    *at = if behind { Stage::Sampled } else { Stage::Arm };
                    let (glitches, missed) = (lost + u64::from(late), lost + u64::from(behind));
                    if glitches + missed > 0 {
                        return Op::Glitches { glitches, missed };
                    }
                }
                match *at {
                    Stage::Arm => {
                        *at = Stage::Woken;
                        if *device {
                            Op::WaitDevice { due: *due }
                        } else {
                            Op::SleepUntil { at: *due, sample: true }
                        }
                    }
                    Stage::Woken => {
                        *at = Stage::Sampled;
                        Op::Sample
                    }
                    _ => {
                        *at = Stage::Worked;
                        Op::Run { ns: rng.draw(work), mode: Mode::User }
                    }
                }
            }
            Kind::Cycle { phases, next, awaits } => {
                if std::mem::take(awaits) {
                    return Op::Await;
                }
                let phase = &phases[*next];
                *next = (*next + 1) % phases.len();
                match phase {
                    Phase::Run { time, mode } => Op::Run { ns: rng.draw(time), mode: *mode },
                    Phase::Sleep { time } => {
                        Op::SleepUntil { at: now + rng.draw(time), sample: false }
                    }
                    Phase::Align { period_ns } => {
                        Op::SleepUntil { at: (now / period_ns + 1) * period_ns, sample: false }
                    }
                    &Phase::Call { server, irq_vcpu } => {
                        *awaits = true;
                        Op::Call { server, irq_vcpu }
                    }
                }
            }
            Kind::Script { steps, next, repeat } => {
                if *next == steps.len() {
                    if !*repeat || steps.is_empty() {
                        return Op::Exit;
                    }
                    *next = 0;
                }
                let step = steps[*next];
                *next += 1;
                match step {
                    Step::Run(ns) => Op::Run { ns, mode: Mode::User },
                    Step::Sleep(ns) => Op::SleepUntil { at: now + ns, sample: false },
                    Step::Wait(timeout) => Op::Wait { timeout },
                    Step::Wake(peer) => Op::Wake(peer),
                    Step::SetPolicy(policy) => Op::SetPolicy(policy),
                    Step::Exit => Op::Exit,
                }
            }
            Kind::Serve { work, at } => match *at {
                Service::Free => {
                    *at = Service::Taken;
                    Op::TakeCall
                }
                Service::Taken => {
                    *at = Service::Done;
                    Op::Run { ns: rng.draw(work), mode: Mode::User }
                }
                Service::Done => {
                    *at = Service::Free;
                    Op::Answer
                }
            },
            Kind::Ping { interval, phase, server, irq_vcpu, work, due, at } => {
                let (then, op) = match *at {
                    Trip::Start => {
                        *due = now + *interval + rng.draw(phase);
                        (Trip::Woken, Op::SleepUntil { at: *due, sample: false })
                    }
                    Trip::Arm => (Trip::Woken, Op::SleepUntil { at: *due, sample: false }),
                    Trip::Woken => {
                        (Trip::Called, Op::Call { server: *server, irq_vcpu: *irq_vcpu })
                    }
                    Trip::Called => (Trip::Awaited, Op::Await),
                    Trip::Awaited => (Trip::Sampled, Op::Sample),
                    Trip::Sampled => {
                        (Trip::Worked, Op::Run { ns: rng.draw(work), mode: Mode::User })
                    }
                    Trip::Worked => {
                        // A closed loop: what fell due before now had no call, whatever held it up.
                        *due += *interval;
                        match skip_past(due, *interval, now) {
                            0 => (Trip::Woken, Op::SleepUntil { at: *due, sample: false }),
                            missed => (Trip::Arm, Op::Missed(missed)),
                        }
                    }
                };
                *at = then;
                op
            }
            Kind::Rogue { mode, on, asked } => {
                let period = match *mode {
                    RogueMode::Forever => 1_000_000,
                    RogueMode::Toggle { period_ns } => period_ns,
                };
                *asked = !*asked;
                if *asked {
                    *on = !*on || *mode == RogueMode::Forever;
                    Op::Rogue { preempt_off: *on }
                } else {
                    Op::Run { ns: period, mode: Mode::User }
                }
            }
        }
    }
}

impl Runner {
    /// What is open when a run ends: whether a sample is in the making that was due by now, and how
    /// many periods besides have passed without one.
    pub fn open(&self, now: Ns) -> (bool, u64) {
        let (due, period, at) = match self.kind {
            Kind::Cyclictest { due, interval, at, .. } => (due, interval, at),
            Kind::Audio { due, period, at, .. } => (due, period, at),
            Kind::Ping { due, interval, at, .. } => {
                let out = matches!(at, Trip::Called | Trip::Awaited);
                let passed = if at == Trip::Start { 0 } else { now.saturating_sub(due) / interval };
                return (out, passed);
            }
            Kind::Cycle { .. } | Kind::Script { .. } | Kind::Rogue { .. } | Kind::Serve { .. } => {
                return (false, 0);
            }
        };
        if due > now {
            return (false, 0);
        }
        match at {
            Stage::Woken => (true, (now - due) / period),
            Stage::Sampled | Stage::Worked => (false, (now - due) / period),
            Stage::Start | Stage::Arm => (false, 0),
        }
    }
}

/// Moves `due` past `now` in whole periods; how many it skipped.
fn skip_past(due: &mut Ns, period: Ns, now: Ns) -> u64 {
    if *due > now {
        return 0;
    }
    let n = (now - *due) / period + 1;
    *due += n * period;
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(program: &Program) -> Runner {
        Runner::new(program, Stream::new(1, &[]))
    }

    fn run(ns: Ns) -> Op {
        Op::Run { ns, mode: Mode::User }
    }

    #[test]
    fn absolute_cyclictest_keeps_its_grid_and_counts_what_it_missed() {
        let work = Dist::Const(10);
        let mut r = runner(&Program::Cyclictest {
            interval_ns: 100,
            absolute: true,
            work,
            phase: Dist::Const(0),
        });
        assert_eq!(r.next(0), Op::SleepUntil { at: 100, sample: true });
        assert_eq!(r.next(130), Op::Sample);
        assert_eq!(r.next(130), run(10));
        assert_eq!(r.next(140), Op::SleepUntil { at: 200, sample: true });
        assert_eq!(r.next(460), Op::Sample);
        assert_eq!(r.next(460), run(10));
        assert_eq!(r.next(470), Op::Missed(2)); // 300 and 400
        assert_eq!(r.next(470), Op::SleepUntil { at: 500, sample: true });
        // Woken in time, held up in its work until 1250: one late sample for 600, and the periods
        // that were over when that one was taken are missed.
        r.next(505);
        r.next(505);
        assert_eq!(r.next(1250), Op::SleepUntil { at: 600, sample: true });
        assert_eq!(r.open(1250), (true, 6));
        assert_eq!(r.next(1250), Op::Sample);
        r.next(1250);
        assert_eq!(r.next(1260), Op::Missed(6)); // 700 to 1200
        assert_eq!(r.next(1260), Op::SleepUntil { at: 1300, sample: true });
    }

    #[test]
    fn relative_cyclictest_counts_from_its_own_wake_up() {
        let work = Dist::Const(10);
        let mut r = runner(&Program::Cyclictest {
            interval_ns: 100,
            absolute: false,
            work,
            phase: Dist::Const(0),
        });
        r.next(0);
        r.next(460);
        r.next(460);
        assert_eq!(r.next(470), Op::SleepUntil { at: 570, sample: true });
    }

    #[test]
    fn audio_glitches_when_written_later_than_its_buffer_lasts() {
        let mut r = runner(&Program::Audio {
            period_ns: 100,
            buffer_ns: 100,
            work: Dist::Const(30),
            device: true,
        });
        assert_eq!(r.next(0), Op::WaitDevice { due: 100 });
        assert_eq!(r.next(110), Op::Sample);
        assert_eq!(r.next(110), run(30));
        assert_eq!(r.next(140), Op::WaitDevice { due: 200 });
        r.next(250);
        r.next(250);
        // Written at 320, due 200 + 100: a glitch; the next is due 300, behind: no sample.
        assert_eq!(r.next(320), Op::Glitches { glitches: 1, missed: 1 });
        assert_eq!(r.next(320), run(30));
        assert_eq!(r.next(350), Op::WaitDevice { due: 400 });
        r.next(750);
        r.next(750);
        // Due 400, written 780: late. 500 and 600 were lost whole; 700 can still be written.
        assert_eq!(r.next(780), Op::Glitches { glitches: 3, missed: 3 });
        assert_eq!(r.next(780), run(30));
        assert_eq!(r.next(790), Op::WaitDevice { due: 800 });
    }

    #[test]
    fn a_ping_is_a_closed_loop_on_a_fixed_grid() {
        let server = Target::Host(7);
        let mut r = runner(&Program::Ping {
            interval_ns: 100,
            phase: Dist::Const(20),
            server,
            irq_vcpu: 1,
            work: Dist::Const(10),
        });
        let sleep = |at| Op::SleepUntil { at, sample: false };
        assert_eq!(r.next(0), sleep(120));
        assert_eq!(r.next(125), Op::Call { server, irq_vcpu: 1 });
        assert_eq!(r.next(126), Op::Await);
        assert_eq!(r.next(140), Op::Sample);
        assert_eq!(r.next(140), run(10));
        assert_eq!(r.next(150), sleep(220));
        r.next(230);
        r.next(231);
        // The call is out for more than two periods.
        assert_eq!(r.open(480), (true, 2));
        r.next(480);
        assert_eq!(r.open(480), (false, 2));
        r.next(480);
        assert_eq!(r.next(490), Op::Missed(2)); // 320 and 420
        assert_eq!(r.next(490), sleep(520));
        assert_eq!(r.open(510), (false, 0));
    }

    #[test]
    fn a_server_takes_works_and_answers() {
        let mut r = runner(&Program::Serve { work: Dist::Const(5), irq_vcpu: 0 });
        let ops: Vec<_> = (0..4).map(|_| r.next(0)).collect();
        assert_eq!(ops, [Op::TakeCall, run(5), Op::Answer, Op::TakeCall]);
    }

    #[test]
    fn a_script_loops_or_ends() {
        let steps = Arc::new(vec![Step::Run(5), Step::Wake(2), Step::Sleep(7)]);
        let mut r = runner(&Program::Script { steps: Arc::clone(&steps), repeat: true });
        let ops: Vec<_> = (0..4).map(|_| r.next(10)).collect();
        let sleep = Op::SleepUntil { at: 17, sample: false };
        assert_eq!(ops, [run(5), Op::Wake(2), sleep, run(5)]);
        let mut r = runner(&Program::Script { steps, repeat: false });
        let last = (0..4).map(|_| r.next(0)).last();
        assert_eq!(last, Some(Op::Exit));
    }
}
