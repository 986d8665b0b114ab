//! Operations of programs, step by step.

use vcoop_model::plan::{Act, Dist, Phase, Step};

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
    assert_eq!(r.next(470), missed(2, 400)); // 300 and 400
    assert_eq!(r.next(470), Op::SleepUntil { at: 500, sample: true });
    // Woken in time, held up in its work until 1250: one late sample for 600, and the periods
    // that were over when that one was taken are missed.
    r.next(505);
    r.next(505);
    assert_eq!(r.next(1250), Op::SleepUntil { at: 600, sample: true });
    assert_eq!(r.open(0, 0, 1250), late(6));
    assert_eq!(r.open(0, 1000, 1250), late(2), "of the measured time");
    assert_eq!(r.next(1250), Op::Sample);
    r.next(1250);
    assert_eq!(r.next(1260), missed(6, 1200)); // 700 to 1200
    assert_eq!(r.next(1260), Op::SleepUntil { at: 1300, sample: true });
}

fn missed(n: u64, last: Ns) -> Op {
    Op::Missed(MissedPeriods { n, last, every: 100 })
}

#[test]
fn periods_missed_before_the_measured_time_do_not_count() {
    let missed = MissedPeriods { n: 5, last: 1_000, every: 100 };
    for (from, n) in [(0, 5), (600, 5), (601, 4), (1_000, 1), (1_001, 0)] {
        assert_eq!(missed.since(from), n, "{from}");
    }
}

#[test]
fn periods_that_pass_before_a_probe_has_its_cpu_are_missed() {
    let (work, phase) = (Dist::Const(10), Dist::Const(0));
    let cyclictest = Program::Cyclictest { interval_ns: 100, absolute: true, work, phase };
    let mut r = runner(&cyclictest).begins(50);
    assert_eq!(r.next(970), missed(9, 950)); // 150 to 950
    assert_eq!(r.next(970), Op::SleepUntil { at: 1070, sample: true });
}

fn late(missed: u64) -> Open {
    Open { late: true, missed, never: None }
}

#[test]
fn a_probe_that_never_ran_has_missed_every_period() {
    let (work, phase) = (Dist::Const(10), Dist::Const(0));
    let cyclictest = Program::Cyclictest { interval_ns: 100, absolute: true, work, phase };
    let r = runner(&cyclictest);
    assert_eq!(r.open(0, 0, 1000), Open { late: false, never: Some(100), missed: 9 });
    assert_eq!(r.open(50, 500, 1000).missed, 5, "those of the measured time");
    assert_eq!(r.open(0, 0, 150), Open::default(), "it is late by less than a period");
    assert_eq!(r.open(2000, 500, 1000), Open::default(), "it was not to begin yet");
}

#[test]
fn a_timer_of_a_routine_misses_periods_like_a_cyclictest() {
    let timer = Act::Timer { period_ns: 100, busy: false, interrupt: false };
    let work = Act::Do(Phase::Run { time: Dist::Const(10), mode: Mode::User });
    for acts in [vec![timer.clone(), work.clone()], vec![work.clone(), timer.clone()]] {
        let worked_first = acts[0] != timer;
        let mut r = runner(&Program::Routine { acts }).begins(50);
        assert_eq!(r.open(50, 500, 1000), Open { late: false, never: Some(150), missed: 5 });
        assert_eq!(r.next(970), missed(9, 950));
        if worked_first {
            r.next(970);
        }
        assert_eq!(r.next(970), missed(0, 970));
        assert_eq!(r.next(970), Op::SleepUntil { at: 1070, sample: true });
        assert_eq!(r.open(50, 0, 1050), Open::default(), "it is not due yet");
        assert_eq!(r.open(50, 0, 1300), late(2));
        assert_eq!(r.next(1300), Op::Sample);
        assert_eq!(r.open(50, 0, 1400), Open { missed: 3, ..Open::default() }, "it works");
    }
    let mut once = runner(&Program::Routine { acts: vec![timer, Act::Exit] });
    (0..4).for_each(|_| _ = once.next(0));
    assert_eq!(once.open(0, 0, 1000), Open::default(), "it has ended");
    let work = runner(&Program::Routine { acts: vec![work] });
    assert_eq!(work.open(0, 0, 1000), Open::default(), "it has no period");
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
    assert_eq!(
        r.next(320),
        Op::Glitches { glitches: 1, missed: MissedPeriods { n: 1, last: 300, every: 100 } }
    );
    assert_eq!(r.next(320), run(30));
    assert_eq!(r.next(350), Op::WaitDevice { due: 400 });
    r.next(750);
    r.next(750);
    // Due 400, written 780: late. 500 and 600 were lost whole; 700 can still be written.
    assert_eq!(
        r.next(780),
        Op::Glitches { glitches: 3, missed: MissedPeriods { n: 3, last: 700, every: 100 } }
    );
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
    assert_eq!(r.open(0, 0, 480), late(2));
    r.next(480);
    assert_eq!(r.open(0, 0, 480), Open { missed: 2, ..Open::default() });
    r.next(480);
    assert_eq!(r.next(490), missed(2, 420)); // 320 and 420
    assert_eq!(r.next(490), sleep(520));
    assert_eq!(r.open(0, 0, 510), Open::default());
}

#[test]
fn a_server_takes_works_and_answers() {
    let mut r = runner(&Program::Serve {
        work: Dist::Const(5),
        wait: Dist::Const(0),
        irq_vcpu: 0,
        section: None,
    });
    let ops: Vec<_> = (0..4).map(|_| r.next(0)).collect();
    assert_eq!(ops, [Op::TakeCall, run(5), Op::Answer, Op::TakeCall]);
    let (work, wait) = (Dist::Const(5), Dist::Const(30));
    let mut r = runner(&Program::Serve { work, wait, irq_vcpu: 0, section: None });
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
    assert_eq!(r.open(0, 0, 500), Open::default());
    let ops: Vec<_> = (0..8).map(|_| r.next(5)).collect();
    let call = Op::Call { server, irq_vcpu: 0 };
    let think = Op::SleepUntil { at: 105, sample: true };
    let respond = Op::Respond { due: 105 };
    assert_eq!(ops, [think, Op::Act, run(10), call, Op::Await, Op::Act, run(10), respond]);
    assert_eq!(r.next(300), Op::SleepUntil { at: 400, sample: true });
    let open = |now| r.open(0, 0, now);
    assert_eq!([open(399), open(450), open(500)], [Open::default(), Open::default(), late(0)]);
}

#[test]
fn a_vcpu_that_was_held_up_is_in_time_again() {
    let ms = 1_000_000;
    let steps = Arc::new(vec![Step::Run(5 * ms), Step::Sleep(10 * ms)]);
    let mut r = runner(&Program::Script { steps, repeat: true }).of_vcpu();
    let mut sleeps_until = |now| {
        r.next(now * ms);
        match r.next(now * ms) {
            Op::SleepUntil { at, .. } => at / ms,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(sleeps_until(5), 15);
    // Later than its next time: it misses that one, and no other.
    assert_eq!([41, 42, 47].map(&mut sleeps_until), [41, 45, 60]);
    // Periods that it missed more than 100 ms ago are dropped.
    let missed = (0..).take_while(|_| sleeps_until(10_000) == 10_000).count();
    assert_eq!(missed, 7);
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
