//! Programs: what a task does next. The same state machine runs as a host thread and as a guest
//! task; whoever runs it interprets its operations on its own level.

mod desk;

use std::sync::Arc;

use desk::{Acting, Boot, Booting, Desktop};
use vcoop_abi::BoostRequest;
use vcoop_model::plan::{Dist, Mode, Phase, Program, RogueMode, Step, Target};
use vcoop_sched::config::Policy;

use crate::queue::Ns;
use crate::rng::Stream;

/// How often [`Phase::Busy`] looks at the clock.
const BUSY_STEP_NS: Ns = 1_000_000;

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
    /// A hostile guest kernel does this.
    Rogue(Misdeed),
    /// The first instruction of an own part of an action: what it uses of the CPU from here on is work.
    Act,
    /// The action that was due at a time is done: take the sample.
    Respond {
        /// When it was due.
        due: Ns,
    },
    /// The VM has booted.
    Login,
    /// Leave for good.
    Exit,
}

/// What a hostile guest kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// Ask for a boost, and claim to be in a preempt-disabled section (or not).
    Ask {
        /// The claimed preempt-off state.
        preempt_off: bool,
    },
    /// From now on, the words of the VM's next vCPU are nonsense whenever the host reads them.
    Scribble,
    /// Write the notify MSR.
    Notify(BoostRequest),
    /// Write the registration MSR: the own area, none, or (`None`) what must be refused.
    Register(Option<bool>),
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
        /// Operations so far.
        done: u64,
    },
    Serve {
        work: Dist,
        wait: Dist,
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
    Boot(Boot),
    Desktop(Desktop),
}

/// Where a server is with a call: `Free -> Taken -> Worked -> Done -> Free -> ...`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Free,
    Taken,
    Worked,
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
            &Program::Rogue { mode } => Kind::Rogue { mode, done: 0 },
            &Program::Serve { work, wait, .. } => Kind::Serve { work, wait, at: Service::Free },
            &Program::Boot { rounds, burst, every, long, server, irq_vcpu, hog } => {
                let server = server.map(|server| (server, irq_vcpu));
                let at = Booting::Burst;
                Kind::Boot(Boot { rounds, burst, every, long, server, hog, done: 0, at })
            }
            &Program::Desktop { think, bursts, burst, server, irq_vcpu } => {
                let server = server.map(|server| (server, irq_vcpu));
                let at = Acting::Think;
                Kind::Desktop(Desktop { think, bursts, burst, server, due: 0, done: 0, at })
            }
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
                if let Phase::Busy { period_ns, on_ns } = phase
                    && let Some(left @ 1..) = on_ns.checked_sub(now % period_ns)
                {
                    // Asked again and again: the clock goes on while it waits for a CPU.
                    return Op::Run { ns: left.min(BUSY_STEP_NS), mode: Mode::User };
                }
                *next = (*next + 1) % phases.len();
                match phase {
                    // Over: the next one may be its turn.
                    Phase::Busy { .. } => Op::SleepUntil { at: now, sample: false },
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
            Kind::Serve { work, wait, at } => match *at {
                Service::Free => {
                    *at = Service::Taken;
                    Op::TakeCall
                }
                Service::Taken => {
                    let waits = *wait != Dist::Const(0);
                    *at = if waits { Service::Worked } else { Service::Done };
                    Op::Run { ns: rng.draw(work), mode: Mode::User }
                }
                Service::Worked => {
                    *at = Service::Done;
                    Op::SleepUntil { at: now + rng.draw(wait), sample: false }
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
            Kind::Boot(boot) => boot.next(rng),
            Kind::Desktop(desktop) => desktop.next(now, rng),
            Kind::Rogue { mode, done } => {
                *done += 1;
                misdeed(*mode, *done - 1)
            }
        }
    }
}

/// Operation `n` of a rogue: a misdeed and some work by turns.
fn misdeed(mode: RogueMode, n: u64) -> Op {
    let work = |ns| Op::Run { ns, mode: Mode::User };
    let deed = n / 2;
    let acts = n.is_multiple_of(2);
    match mode {
        RogueMode::Forever if acts => Op::Rogue(Misdeed::Ask { preempt_off: true }),
        RogueMode::Forever => work(1_000_000),
        RogueMode::Toggle { .. } if acts => {
            Op::Rogue(Misdeed::Ask { preempt_off: deed.is_multiple_of(2) })
        }
        RogueMode::Toggle { period_ns } => work(period_ns),
        RogueMode::Scribble if n == 0 => Op::Rogue(Misdeed::Scribble),
        RogueMode::Scribble => work(1_000_000),
        // As the live guest: 64 exits with each request; the registration renewed every 32nd.
        RogueMode::MsrFlood if acts && deed % 32 == 31 => Op::Rogue(Misdeed::Register(Some(true))),
        RogueMode::MsrFlood if acts => {
            let asks = [BoostRequest::Boost, BoostRequest::Unboost, BoostRequest::None];
            Op::Rogue(Misdeed::Notify(asks[(deed / 64 % 3) as usize]))
        }
        // Nine refusals, then none, then the own area.
        RogueMode::HostileGpa if acts => Op::Rogue(Misdeed::Register(match deed % 11 {
            9 => Some(false),
            10 => Some(true),
            _ => None,
        })),
        RogueMode::MsrFlood | RogueMode::HostileGpa => work(1_000),
        RogueMode::TripleFault { after_ns } if n == 0 => work(after_ns),
        RogueMode::TripleFault { .. } => Op::Exit,
    }
}

impl Runner {
    /// What is open when a run ends: whether a sample is in the making that has become late by a whole
    /// period (of a desktop: by the mean time between two actions), and how many periods have passed
    /// without one.
    pub fn open(&self, now: Ns) -> (bool, u64) {
        let (due, period, at) = match &self.kind {
            Kind::Cyclictest { due, interval, at, .. } => (*due, *interval, *at),
            Kind::Audio { due, period, at, .. } => (*due, *period, *at),
            Kind::Ping { due, interval, at, .. } => {
                let out = matches!(at, Trip::Called | Trip::Awaited);
                let passed =
                    if *at == Trip::Start { 0 } else { now.saturating_sub(*due) / interval };
                return (out && passed > 0, passed);
            }
            Kind::Desktop(desktop) => {
                let late = |due: Ns| now - due >= desktop.think_ns();
                return (desktop.open(now).is_some_and(late), 0);
            }
            Kind::Cycle { .. }
            | Kind::Script { .. }
            | Kind::Rogue { .. }
            | Kind::Serve { .. }
            | Kind::Boot(_) => return (false, 0),
        };
        if due > now {
            return (false, 0);
        }
        let passed = (now - due) / period;
        match at {
            Stage::Woken => (passed > 0, passed),
            Stage::Sampled | Stage::Worked => (false, passed),
            Stage::Start | Stage::Arm => (false, 0),
        }
    }

    /// When the action of a desktop that is under way was due.
    pub(crate) fn acting_since(&self, now: Ns) -> Option<Ns> {
        match &self.kind {
            Kind::Desktop(desktop) => desktop.open(now),
            _ => None,
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
        let mut r =
            runner(&Program::Serve { work: Dist::Const(5), wait: Dist::Const(0), irq_vcpu: 0 });
        let ops: Vec<_> = (0..4).map(|_| r.next(0)).collect();
        assert_eq!(ops, [Op::TakeCall, run(5), Op::Answer, Op::TakeCall]);
        let (work, wait) = (Dist::Const(5), Dist::Const(30));
        let mut r = runner(&Program::Serve { work, wait, irq_vcpu: 0 });
        let ops: Vec<_> = (0..4).map(|_| r.next(7)).collect();
        let disk = Op::SleepUntil { at: 37, sample: false };
        assert_eq!(ops, [Op::TakeCall, run(5), disk, Op::Answer]);
    }

    #[test]
    fn a_boot_ends_with_its_login() {
        let server = Target::Host(3);
        let mut r = runner(&Program::Boot {
            rounds: 2,
            burst: Dist::Const(10),
            every: 2,
            long: Dist::Const(7),
            server: Some(server),
            irq_vcpu: 1,
            hog: false,
        });
        let ops: Vec<_> = (0..8).map(|_| r.next(0)).collect();
        let call = Op::Call { server, irq_vcpu: 1 };
        let (await_, login) = (Op::Await, Op::Login);
        assert_eq!(ops, [run(10), call, await_, run(17), call, await_, login, Op::Exit]);
    }

    #[test]
    fn an_action_is_its_bursts_with_calls_between_them() {
        let server = Target::Host(3);
        let mut r = runner(&Program::Desktop {
            think: Dist::Const(100),
            bursts: 2,
            burst: Dist::Const(10),
            server: Some(server),
            irq_vcpu: 0,
        });
        assert_eq!(r.open(500), (false, 0));
        let ops: Vec<_> = (0..8).map(|_| r.next(5)).collect();
        let call = Op::Call { server, irq_vcpu: 0 };
        let think = Op::SleepUntil { at: 105, sample: true };
        let respond = Op::Respond { due: 105 };
        assert_eq!(ops, [think, Op::Act, run(10), call, Op::Await, Op::Act, run(10), respond]);
        assert_eq!(r.next(300), Op::SleepUntil { at: 400, sample: true });
        assert_eq!((r.open(399), r.open(450), r.open(500)), ((false, 0), (false, 0), (true, 0)));
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
