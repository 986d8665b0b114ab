//! Costs of the host alone: system calls, switches, wake-ups, timers.
#![allow(unsafe_code, reason = "times raw system calls")]

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread;

use vcoop_model::plan::Ns;
use vcoop_sched::config::Policy;
use vcoop_threads::clock::{ClockId, kernel_clock, monotonic, sleep_until};
use vcoop_threads::tsc::tsc;
use vcoop_threads::{Attributes, Kick, Stat, gettid, pin, set_timer_slack};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EventFd};

use super::bench::{BLOCK_NS, Bench, OnDrop};
use super::timer::TimerFd;
use crate::environment::NoDeepIdle;
use crate::error::{Error, RequestTarget};

/// Priority of the measuring thread.
const PRIORITY: u8 = 10;

/// Makes the calling thread a measuring thread.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn prepare(cpu: u32, fifo: bool, below: u8) -> Result<(), Error> {
    let whom = RequestTarget::Thread("calibration".to_owned());
    pin(&[cpu]).map_err(Error::refused(&whom))?;
    set_timer_slack(1);
    if fifo {
        let fifo = Attributes::from_policy(&Policy::Fifo(PRIORITY - below));
        fifo.set(0).map_err(Error::refused(&whom))?;
    }
    Ok(())
}

fn syscall() {
    // SAFETY: no arguments, cannot fail. By number, because libc might answer from memory.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// What a waiter for a paravirtual lock does until its vCPU halts (`pv_wait_head_or_lock`).
fn pause_loop() {
    static LOCKED: AtomicBool = AtomicBool::new(true);
    for _ in 0..32_768 {
        if !LOCKED.load(Ordering::Relaxed) {
            break;
        }
        std::hint::spin_loop();
    }
}

/// Cost of reading the clock, which all other samples include.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn clock(b: &mut Bench<'_>) -> Result<(), Error> {
    let timer = Timer::of(b);
    let about = "reading the clock twice; taken off everything below";
    b.sample("clock", about, |out| timer.time(out, || ()))?;
    b.floor = b.found("clock").map_or(0, |d| b.clock.to_cycles(d.median_ns));
    Ok(())
}

/// All other measurements.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn measure(b: &mut Bench<'_>) -> Result<(), Error> {
    let (timer, kick) = (Timer::of(b), Kick::default());
    b.sample("syscall", "getppid: into the kernel and back", |out| timer.time(out, syscall))?;
    b.sample("futex-wake-nobody", "futex wake with nobody waiting", |out| {
        timer.time(out, || kick.wake_syscall());
    })?;
    let about = "32768 turns of a loop around PAUSE, as a waiter for a paravirtual lock makes them";
    b.sample("pause-loop", about, |out| timer.time(out, pause_loop))?;
    cache_lines(b)?;
    timer_program(b)?;
    setattr(b)?;
    switch(b)?;
    wake_here(b)?;
    eventfd(b)?;
    sleep(b)?;
    wake_there(b)
}

/// Times an operation for a block.
#[derive(Clone, Copy, Debug)]
struct Timer {
    block: u64,
}

impl Timer {
    fn of(b: &Bench<'_>) -> Self {
        Self { block: b.clock.to_cycles(BLOCK_NS) }
    }

    fn time(self, out: &mut Vec<u64>, mut op: impl FnMut()) {
        let until = tsc() + self.block;
        while out.len() < 20_000 {
            let before = tsc();
            op();
            let after = tsc();
            out.push(after - before);
            if after > until {
                break;
            }
        }
    }
}

/// Programs a timer that is earlier than all others, so that the hardware is programmed too.
fn timer_program(b: &mut Bench<'_>) -> Result<(), Error> {
    let timer = TimerFd::new()?;
    let block = Timer::of(b).block;
    let about = "timerfd_settime, 30 us ahead, from disarmed: earlier than any other timer";
    b.sample("timer-program", about, |out| {
        let until = tsc() + block;
        while tsc() < until && out.len() < 20_000 {
            let before = tsc();
            timer.set(30_000);
            out.push(tsc() - before);
            timer.set(0);
        }
    })
}

/// The way of a cache line from core to core.
fn cache_lines(b: &mut Bench<'_>) -> Result<(), Error> {
    let about = "compare-and-swap on a word that another core with the same last-level cache wrote";
    let why = "no other core has the same last-level cache";
    cache_line(b, ("cache-line", about), b.near, why)?;
    let about = "the same with a core that has another last-level cache";
    cache_line(b, ("cache-line-far", about), b.far, "there is only one last-level cache")
}

/// A word that two threads write in turn, alone in its cache line and in that which a prefetcher takes with it.
#[derive(Debug)]
#[repr(align(128))]
struct Word(AtomicU32);

impl Word {
    const SOON: u32 = 0;
    const MINE: u32 = 1;
    const PEERS: u32 = 2;
    const OVER: u32 = 3;

    /// Writes `to` as soon as `from` is there. False: there will be no other.
    fn swap(&self, from: u32, to: u32) -> bool {
        loop {
            match self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(Self::OVER) => return false,
                Err(_) => {}
            }
        }
    }
}

fn cache_line(
    b: &mut Bench<'_>,
    (name, about): (&'static str, &'static str),
    peer: Option<u32>,
    why_not: &str,
) -> Result<(), Error> {
    /// Turns of both threads in a sample: one alone is not much longer than reading the clock.
    const TURNS: u64 = 64;
    let Some(peer) = peer else {
        b.skip(name, why_not);
        return Ok(());
    };
    let (block, fifo, floor) = (Timer::of(b).block, b.fifo, b.floor);
    b.measure(name, about, |out| {
        let word = Word(AtomicU32::new(Word::SOON));
        thread::scope(|s| {
            let peer = s.spawn(|| {
                let ready = prepare(peer, fifo, 0);
                let first = if ready.is_ok() { Word::MINE } else { Word::OVER };
                word.0.store(first, Ordering::Release);
                while word.swap(Word::PEERS, Word::MINE) {}
                ready
            });
            // It begins on this CPU.
            while word.0.load(Ordering::Acquire) == Word::SOON {
                sleep_until(monotonic() + 200_000);
            }
            let turn = || word.swap(Word::MINE, Word::PEERS);
            let mut both = turn();
            let until = tsc() + block;
            let mut last = tsc();
            while both && last < until {
                let before = last;
                both = (0..TURNS).all(|_| turn());
                last = tsc();
                out.push((last - before) / (2 * TURNS) + floor);
            }
            word.swap(Word::MINE, Word::OVER);
            peer.join().unwrap_or(Err(Error::Panicked(RequestTarget::Host)))
        })
    })
}

fn setattr(b: &mut Bench<'_>) -> Result<(), Error> {
    if !b.needs_fifo("setattr") {
        return Ok(());
    }
    let (fair, fifo) = (
        Attributes::from_policy(&Policy::NORMAL),
        Attributes::from_policy(&Policy::Fifo(PRIORITY)),
    );
    let whom = RequestTarget::Thread("calibration".to_owned());
    let timer = Timer::of(b);
    let toggle = |out: &mut Vec<u64>, tid: i32| {
        let mut failed = None;
        let mut boost = true;
        timer.time(out, || {
            if let Err(e) = (if boost { &fifo } else { &fair }).set(tid) {
                failed = Some(e);
            }
            boost = !boost;
        });
        let _ = fair.set(tid);
        failed.map_or(Ok(()), |e| Err(Error::refused(&whom)(e)))
    };
    let about = "sched_setattr on itself, FIFO and back";
    b.measure("setattr-own", about, |out| {
        let done = toggle(out, 0);
        fifo.set(0).map_err(Error::refused(&whom))?;
        done
    })?;
    let cpu = b.cpu;
    Helper::sleeping(cpu, || {}).with(|tid| {
        b.measure("setattr-sleeping", "the same on a thread that sleeps", |out| toggle(out, tid))
    })?;
    let Some(other) = b.other_cpu(&["setattr-running"]) else { return Ok(()) };
    Helper::spinning(other).with(|tid| {
        b.measure("setattr-running", "the same on a thread that runs on another CPU", |out| {
            toggle(out, tid)
        })
    })
}

/// A thread to measure on. Ends with its scope.
#[derive(Clone, Copy, Debug)]
struct Helper<F> {
    cpu: u32,
    spins: bool,
    /// Its first action.
    first: F,
}

impl Helper<fn()> {
    fn spinning(cpu: u32) -> Self {
        Self { cpu, spins: true, first: || {} }
    }
}

impl<F: FnOnce() + Send> Helper<F> {
    fn sleeping(cpu: u32, first: F) -> Self {
        Self { cpu, spins: false, first }
    }

    fn with(self, body: impl FnOnce(i32) -> Result<(), Error>) -> Result<(), Error> {
        let (over, kick, tid) = (AtomicBool::new(false), Kick::default(), AtomicI32::new(0));
        thread::scope(|s| {
            s.spawn(|| {
                let fair = Attributes::from_policy(&Policy::NORMAL);
                let pinned = pin(&[self.cpu]).and_then(|()| fair.set(0));
                (self.first)();
                tid.store(if pinned.is_ok() { gettid() } else { -1 }, Ordering::Release);
                while !over.load(Ordering::Acquire) {
                    if self.spins {
                        crate::work::spin(1000);
                    } else {
                        let armed = kick.arm();
                        kick.wait_until(armed, monotonic() + 1_000_000_000);
                    }
                }
            });
            // It may have to wait for its CPU: this thread may be in its way.
            while tid.load(Ordering::Acquire) == 0 {
                sleep_until(monotonic() + 200_000);
            }
            let id = tid.load(Ordering::Acquire);
            while !self.spins && id > 0 && !Stat::open(id).is_ok_and(|stat| stat.is_asleep()) {
                sleep_until(monotonic() + 200_000);
            }
            let _end = OnDrop(|| {
                over.store(true, Ordering::Release);
                kick.kick();
            });
            body(id)
        })
    }
}

/// Two real-time threads of one priority hand the CPU to each other: each time it comes back, it has
/// been switched twice.
fn switch(b: &mut Bench<'_>) -> Result<(), Error> {
    if !b.needs_fifo("switch-pair") {
        return Ok(());
    }
    let (cpu, block) = (b.cpu, Timer::of(b).block);
    b.measure("switch-pair", "sched_yield between two FIFO threads: two switches", |out| {
        let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            let peer = s.spawn(|| {
                prepare(cpu, true, 0)?;
                ready.store(true, Ordering::Release);
                while !over.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                Ok(())
            });
            while !ready.load(Ordering::Acquire) && !peer.is_finished() {
                sleep_until(monotonic() + 200_000);
            }
            let until = tsc() + block;
            let mut last = tsc();
            while last < until && out.len() < 20_000 {
                let before = tsc();
                thread::yield_now();
                last = tsc();
                out.push(last - before);
            }
            over.store(true, Ordering::Release);
            peer.join().unwrap_or(Err(Error::Panicked(RequestTarget::Host)))
        })
    })
}

/// A thread that waits on a futex on `cpu`, and notes when it runs again.
struct Sleeper {
    kick: Kick,
    ran: AtomicU64,
    tid: AtomicI32,
    over: AtomicBool,
}

impl Sleeper {
    fn run(&self, cpu: u32, fifo: bool, below: u8) -> Result<(), Error> {
        let done = prepare(cpu, fifo, below);
        self.tid.store(if done.is_ok() { gettid() } else { -1 }, Ordering::Release);
        while done.is_ok() && !self.over.load(Ordering::Acquire) {
            let armed = self.kick.arm();
            self.kick.wait_until(armed, monotonic() + 1_000_000_000);
            self.ran.store(tsc(), Ordering::Release);
        }
        done
    }

    /// Kicks it every 150 us for a block; `sample` gets the times before and after the kick, and when
    /// the sleeper ran.
    fn kicks(&self, block: u64, mut sample: impl FnMut(u64, u64, u64)) {
        let until = tsc() + block;
        while tsc() < until {
            sleep_until(monotonic() + 150_000);
            if !self.kick.is_waiting() {
                continue;
            }
            self.ran.store(0, Ordering::Release);
            let before = tsc();
            self.kick.kick();
            let after = tsc();
            let patience = monotonic() + 2_000_000;
            let mut ran = self.ran.load(Ordering::Acquire);
            while ran == 0 && monotonic() < patience {
                sleep_until(monotonic() + 20_000);
                ran = self.ran.load(Ordering::Acquire);
            }
            if ran != 0 {
                sample(before, after, ran);
            }
        }
    }

    fn with(
        cpu: u32,
        fifo: bool,
        below: u8,
        body: impl FnOnce(&Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let sleeper = Self {
            kick: Kick::default(),
            ran: AtomicU64::new(0),
            tid: AtomicI32::new(0),
            over: AtomicBool::new(false),
        };
        thread::scope(|s| {
            let thread = s.spawn(|| sleeper.run(cpu, fifo, below));
            while sleeper.tid.load(Ordering::Acquire) == 0 && !thread.is_finished() {
                sleep_until(monotonic() + 200_000);
            }
            let end = OnDrop(|| {
                sleeper.over.store(true, Ordering::Release);
                sleeper.kick.kick();
            });
            let done = body(&sleeper);
            drop(end);
            let ended = thread.join().unwrap_or(Err(Error::Panicked(RequestTarget::Host)));
            done.and(ended)
        })
    }
}

/// Cost of a wake-up for the waker, where the woken thread may not run yet and no CPU is interrupted.
fn wake_here(b: &mut Bench<'_>) -> Result<(), Error> {
    if !b.needs_fifo("wake-here") {
        return Ok(());
    }
    let (cpu, block) = (b.cpu, Timer::of(b).block);
    Sleeper::with(cpu, true, 1, |sleeper| {
        b.sample("wake-here", "futex wake of a less urgent thread on the same CPU", |out| {
            sleeper.kicks(block, |before, after, _| out.push(after - before));
        })
    })
}

/// From a futex wake to the sleeper's first instruction, on another CPU that is idle (or runs fair work).
fn wake_there(b: &mut Bench<'_>) -> Result<(), Error> {
    let (block, fifo) = (Timer::of(b).block, b.fifo);
    let Some(other) = b.other_cpu(&["wake-idle"]) else { return Ok(()) };
    let woken = |b: &mut Bench<'_>, name, about| {
        Sleeper::with(other, fifo, 0, |sleeper| {
            b.sample(name, about, |out| {
                sleeper.kicks(block, |before, _, ran| out.push(ran.saturating_sub(before)));
            })
        })
    };
    woken(b, "wake-idle", "futex wake to first instruction on another CPU that idles")?;
    let held = NoDeepIdle::hold();
    if !held.is_held() {
        b.skip("wake-polling", "/dev/cpu_dma_latency cannot be held");
        return Ok(());
    }
    woken(b, "wake-polling", "the same with /dev/cpu_dma_latency held at 0")
}

/// Two threads on one CPU pass a number to and fro.
fn eventfd(b: &mut Bench<'_>) -> Result<(), Error> {
    let (cpu, fifo, timer) = (b.cpu, b.fifo, Timer::of(b));
    let new =
        || EventFd::new(EFD_CLOEXEC).map_err(|e| Error::io("eventfd", RequestTarget::Host, e));
    let (there, back) = (new()?, new()?);
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let peer = s.spawn(|| {
            prepare(cpu, fifo, 0)?;
            loop {
                let _ = there.read();
                if over.load(Ordering::Acquire) {
                    return Ok(());
                }
                let _ = back.write(1);
            }
        });
        let end = OnDrop(|| {
            over.store(true, Ordering::Release);
            let _ = there.write(1);
        });
        let about = "two threads on one CPU pass an eventfd to and fro: two wake-ups, two switches";
        let done = b.sample("eventfd-round-trip", about, |out| {
            timer.time(out, || {
                let _ = there.write(1);
                let _ = back.read();
            });
        });
        drop(end);
        done.and(peer.join().unwrap_or(Err(Error::Panicked(RequestTarget::Host))))
    })
}

/// How long a sleep is.
const AHEAD_NS: Ns = 200_000;

/// Lateness of the calling thread after sleeps to absolute times, for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lateness {
    block: u64,
    ahead: u64,
}

impl Lateness {
    pub(crate) fn of(b: &Bench<'_>) -> Self {
        Self { block: Timer::of(b).block, ahead: b.clock.to_cycles(AHEAD_NS) }
    }

    pub(crate) fn measure(self, out: &mut Vec<u64>) {
        let until = tsc() + self.block;
        while tsc() < until {
            let (due, at) = (tsc() + self.ahead, monotonic() + AHEAD_NS);
            sleep_until(at);
            out.push(tsc().saturating_sub(due));
        }
    }
}

/// Lateness after a sleep to an absolute time, and the CPU time of such a cycle.
fn sleep(b: &mut Bench<'_>) -> Result<(), Error> {
    let (block, late) = (Timer::of(b).block, Lateness::of(b));
    let about = "clock_nanosleep to a time: how late the thread runs";
    idle_and_busy(b, ["sleep-late", "sleep-late-busy"], about, |out| late.measure(out))?;
    // As the scheduler bills it: from one return of the clock to the next lies exactly one cycle.
    let own = || kernel_clock(ClockId::ThreadCPUTime);
    let (clock, floor) = (b.clock, b.floor);
    let cycles = |out: &mut Vec<u64>| {
        let until = tsc() + block;
        let before = own();
        let reading = own().saturating_sub(before);
        while tsc() < until {
            let before = own();
            sleep_until(monotonic() + AHEAD_NS);
            let cycle = own().saturating_sub(before + reading);
            out.push(clock.to_cycles(cycle) + floor);
        }
    };
    let about = "CPU time of a thread that sleeps to a time, and again";
    idle_and_busy(b, ["sleep-cycle-cpu", "sleep-cycle-cpu-busy"], about, cycles)
}

/// Measures on a CPU that is idle meanwhile, and on one where a fair thread runs.
fn idle_and_busy(
    b: &mut Bench<'_>,
    [idle, busy]: [&'static str; 2],
    about: &'static str,
    block: impl Fn(&mut Vec<u64>),
) -> Result<(), Error> {
    b.sample(idle, about, &block)?;
    if !b.needs_fifo(busy) {
        return Ok(());
    }
    Helper::spinning(b.cpu)
        .with(|_| b.sample(busy, "the same where a fair thread runs meanwhile", &block))
}
