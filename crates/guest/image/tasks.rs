//! The tasks: ring 3, interrupts on.

use core::sync::atomic::Ordering;

use vcoop_guest::layout::{
    LINE_STRIDE, LINES, MAX_LINES, MAX_RINGS, MAX_STEPS, PORT_CALL, RING_STRIDE, RINGS, STEPS,
};
use vcoop_guest::line::{Line, ServedCall, oldest};
use vcoop_guest::program::{Call, Kind, LineSpec, Step, StepOp, TaskSpec, flag, skip_past};
use vcoop_guest::ring::{Ring, Sample};

mod calibrate;

use crate::instructions::{self, tsc, work};
use crate::memory::{control, owner, stats, words};

/// Iterations between two updates of a task's progress: a few microseconds.
pub(crate) const CHUNK: u64 = 8192;

/// Where every task starts.
pub(crate) extern "sysv64" fn main(task: usize) -> ! {
    let spec = &control().task[task];
    let task = Task { number: task, spec };
    task.sleep_until(control().start_tsc + spec.start_tsc);
    match Kind::from_word(spec.kind) {
        Kind::Cyclictest => task.cyclictest(),
        Kind::Audio => task.audio(),
        Kind::Loop => task.follow(),
        Kind::Calibrate => calibrate::run(&task),
        Kind::Serve => task.serve(),
        Kind::Ping => task.ping(),
        Kind::None => {}
    }
    loop {
        task.sleep_until(u64::MAX);
    }
}

pub(crate) struct Task {
    number: usize,
    pub(crate) spec: &'static TaskSpec,
}

impl Task {
    fn call(&self, call: Call) {
        let (op, arg) = call.to_words();
        instructions::call(op, arg);
    }

    fn sleep_until(&self, at: u64) {
        self.call(Call::SleepUntil(at));
    }

    fn step(&self, i: u64) -> Step {
        let i = self.spec.first_step + i % self.spec.steps.max(1);
        // SAFETY: the table was written before the guest started and lies in its memory.
        unsafe { *(STEPS as *const Step).add((i as usize).min(MAX_STEPS - 1)) }
    }

    fn ring(&self) -> Option<&'static Ring> {
        // SAFETY: zeroed memory for this many rings, made of atomics; one task writes each.
        (self.spec.ring < MAX_RINGS as u64)
            .then(|| unsafe { &*((RINGS + self.spec.ring * RING_STRIDE) as *const Ring) })
    }

    pub(crate) fn work(&self, mut iterations: u64) {
        let done = &stats(self.number).done;
        while iterations > 0 {
            let n = iterations.min(CHUNK);
            work(n);
            done.store(done.load(Ordering::Relaxed) + n, Ordering::Relaxed);
            iterations -= n;
        }
    }

    fn sample(&self, due: u64, taken: u64, missed: u64) {
        self.sample_trip(due, taken, missed, ServedCall::default());
    }

    fn sample_trip(&self, due: u64, taken: u64, missed: u64, served: ServedCall) {
        let Some(ring) = self.ring() else { return };
        let s = stats(self.number);
        ring.push(Sample {
            due,
            taken,
            woken: s.woken.load(Ordering::Relaxed),
            fired: words().vcpu[owner(self.number) as usize].fired.load(Ordering::Relaxed),
            missed,
            from_idle: s.woken_idle.load(Ordering::Relaxed) != 0,
            served,
        });
    }

    /// Notifies the other end of a line: a task plus 1, or 0 for one outside of the VM.
    fn notify(&self, line: u64, end: u64) {
        match end.checked_sub(1) {
            Some(task) => self.call(Call::Wake(task)),
            None => instructions::out(PORT_CALL, line as u8),
        }
    }

    /// Makes a call. Returns when it was made, and how it was served.
    fn request(&self, n: u64) -> (u64, ServedCall) {
        let line = line(n);
        let now = tsc();
        line.call(now);
        self.notify(n, line_spec(n).server);
        loop {
            if let Some(served) = line.answered(now) {
                return (now, served);
            }
            self.call(Call::WaitDevice);
        }
    }

    fn ping(&self) {
        let spec = self.spec;
        let mut due = tsc() + spec.period_tsc + spec.phase_tsc;
        let (mut round, mut missed) = (0, 0);
        loop {
            self.sleep_until(due);
            let (sent, served) = self.request(spec.first_line);
            let taken = tsc();
            self.sample_trip(sent, taken, missed, served);
            self.work(self.step(round).arg);
            round += 1;
            due += spec.period_tsc;
            missed = skip_past(&mut due, spec.period_tsc, tsc());
        }
    }

    fn serve(&self) {
        let first = self.spec.first_line;
        let mut round = 0;
        loop {
            let Some((i, request)) = oldest((first..first + self.spec.lines).map(line)) else {
                self.call(Call::WaitDevice);
                continue;
            };
            let n = first + i as u64;
            let s = stats(self.number);
            let idle = s.woken_idle.load(Ordering::Relaxed) != 0;
            line(n).take(tsc(), s.woken.load(Ordering::Relaxed), idle);
            self.work(self.step(round).arg);
            round += 1;
            line(n).answer(request, tsc());
            self.notify(n, line_spec(n).caller);
        }
    }

    fn cyclictest(&self) {
        let spec = self.spec;
        let mut due = tsc() + spec.period_tsc + spec.phase_tsc;
        let (mut round, mut missed) = (0, 0);
        loop {
            self.sleep_until(due);
            let taken = tsc();
            self.sample(due, taken, missed);
            self.work(self.step(round).arg);
            round += 1;
            let now = tsc();
            let from = if spec.flags & flag::ABSOLUTE != 0 { due } else { now };
            due = from + spec.period_tsc;
            missed = skip_past(&mut due, spec.period_tsc, now);
        }
    }

    fn audio(&self) {
        let spec = self.spec;
        let start = control().start_tsc;
        let period = spec.period_tsc.max(1);
        let mut due = start + ((tsc() - start) / period + 1) * period;
        let (mut round, mut behind, mut missed) = (0, false, 0);
        loop {
            if !behind {
                if spec.flags & flag::DEVICE != 0 {
                    // An interrupt from before, that came while it was behind, is not this one.
                    while tsc() < due {
                        self.call(Call::WaitDevice);
                    }
                } else {
                    self.sleep_until(due);
                }
            }
            let taken = tsc();
            self.work(self.step(round).arg);
            round += 1;
            let done = tsc();
            if !behind {
                self.sample(due, taken, missed);
                missed = 0;
            }
            let late = u64::from(done > due + spec.buffer_tsc);
            due += period;
            // Audio whose buffer ran dry before its callback could start is lost whole; one that is
            // merely behind catches up at once.
            let lost = skip_past(&mut due, period, done.saturating_sub(spec.buffer_tsc));
            let glitches = &stats(self.number).glitches;
            glitches.store(glitches.load(Ordering::Relaxed) + lost + late, Ordering::Relaxed);
            behind = due <= done;
            // Neither what was lost nor what only catches up has a sample of its own.
            missed += lost + u64::from(behind);
        }
    }

    fn follow(&self) {
        let start = control().start_tsc;
        let (mut i, mut begun, mut served) = (0, 0, ServedCall::default());
        let (mut due, mut missed) = (0, 0);
        loop {
            let Step { op, arg } = self.step(i);
            i += 1;
            match StepOp::from_word(op) {
                StepOp::Run => self.work(if arg == 0 { u64::MAX } else { arg }),
                StepOp::RunPreemptOff => {
                    self.call(Call::PreemptOff);
                    self.work(arg);
                    self.call(Call::PreemptOn);
                }
                StepOp::Sleep => self.sleep_until(tsc() + arg),
                StepOp::Call => (begun, served) = self.request(arg),
                StepOp::Align => {
                    let period = arg.max(1);
                    self.sleep_until(start + ((tsc() - start) / period + 1) * period);
                }
                StepOp::Begin => (begun, served) = (tsc(), ServedCall::default()),
                StepOp::Sample => self.sample_trip(begun, tsc(), 0, served),
                StepOp::Timer => {
                    let now = tsc();
                    due = if due == 0 { now } else { due } + arg;
                    missed += skip_past(&mut due, arg, now);
                    self.sleep_until(due);
                    self.sample(due, tsc(), core::mem::take(&mut missed));
                }
                StepOp::Interrupt => self.interrupt(arg),
                StepOp::Done => {
                    let rounds = &stats(self.number).rounds;
                    rounds.store(rounds.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
                hostile => self.misbehave(hostile, arg),
            }
        }
    }

    /// Has other vCPUs call a function, and spins until they have.
    fn interrupt(&self, vcpus: u64) {
        self.call(Call::Interrupt(vcpus));
        while stats(self.number).acks.load(Ordering::Acquire) != 0 {
            core::hint::spin_loop();
        }
    }
}

/// A line of the table.
fn line(n: u64) -> &'static Line {
    let n = n.min(MAX_LINES as u64 - 1);
    // SAFETY: zeroed memory for this many lines, made of atomics.
    unsafe { &*((LINES + n * LINE_STRIDE) as *const Line) }
}

/// The ends of a line.
fn line_spec(n: u64) -> LineSpec {
    control().line[(n as usize).min(MAX_LINES - 1)]
}
