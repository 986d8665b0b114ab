//! Threads of the host that are not vCPUs: loads, and the latency probe.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use vcoop_guest::program::skip_past;
use vcoop_model::plan::{Dist, Ns, Phase, Program, Step, TaskPlan};
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::{Attributes, gettid, pin, set_timer_slack, tsc};

use crate::channels::Channels;
use crate::common::Common;
use crate::error::{Error, RequestTarget};
use crate::inbox::Inbox;
use crate::lab_vm::LabVm;
use crate::rates::Rates;
use crate::samples::HostSample;
use crate::stress_ng::{self, Stressor};
use crate::work::spin;
use vcoop_model::rng::Stream;

/// Iterations between two looks at the clock: some microseconds.
const CHUNK: u64 = 16_384;

/// What other threads see of such a thread.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Thread id; 0 until it runs.
    pub(crate) tid: AtomicI32,
    /// Iterations of the unit of work done.
    pub(crate) done: AtomicU64,
    /// Samples that were lost because the channel was full.
    pub(crate) lost: AtomicU64,
    /// Calls made or served.
    pub(crate) calls: AtomicU64,
    /// Wake-ups by other threads of its capture.
    pub(crate) inbox: Inbox,
}

/// A thread of the plan.
#[derive(Debug)]
pub(crate) struct HostTask<'a> {
    pub(crate) common: &'a Common,
    pub(crate) plan: &'a TaskPlan,
    pub(crate) cpus: Vec<u32>,
    pub(crate) progress: &'a Progress,
    /// This and the following threads of its capture.
    pub(crate) capture: &'a [Progress],
    pub(crate) stream: Stream,
    pub(crate) rates: Rates,
    /// CLOCK_MONOTONIC at the start of the warm-up.
    pub(crate) start: Ns,
    /// Channel for its samples, if it measures. Sending does not block: samples without room are counted in `lost`.
    pub(crate) samples: Option<SyncSender<HostSample>>,
    /// Its number in the plan.
    pub(crate) number: u32,
    pub(crate) vms: &'a [LabVm],
    pub(crate) wiring: &'a Channels,
}

impl HostTask<'_> {
    /// Whether a thread of the host can do what the plan says.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub(crate) fn check(plan: &TaskPlan) -> Result<(), Error> {
        if plan.stress_ng.is_some() {
            stress_ng::check(&plan.name)?;
        }
        let why = match plan.program {
            Program::Cyclictest { .. }
            | Program::Cycle { .. }
            | Program::Serve { .. }
            | Program::Script { .. }
            | Program::Ping { .. } => return Ok(()),
            Program::Audio { .. } => "an audio callback runs in a guest only",
            Program::Rogue { .. } => "a rogue is a guest",
            Program::Boot { .. } | Program::Desktop { .. } => "it runs in a guest only",
            Program::Routine { .. } => "this kind runs in the simulator only",
        };
        Err(Error::unsupported(format!("load {}", plan.name), why))
    }

    /// Runs until the run is over.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: its CPUs or its policy were refused.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let whom = RequestTarget::Thread(self.plan.name.clone());
        pin(&self.cpus).map_err(Error::refused(&whom))?;
        set_timer_slack(self.plan.timer_slack_ns);
        Attributes::from_policy(&self.plan.policy).set(0).map_err(Error::refused(&whom))?;
        self.progress.tid.store(gettid(), Ordering::Release);
        self.sleep(self.start + self.plan.start_ns);
        match &self.plan.program {
            Program::Cycle { phases } => match &self.plan.stress_ng {
                Some(method) => self.stress(method, &whom)?,
                None => self.cycle(phases)?,
            },
            Program::Serve { work, .. } => self.serve(work)?,
            Program::Ping { interval_ns, phase, server, work, .. } => {
                self.ping(*interval_ns, phase, *server, work)?;
            }
            Program::Cyclictest { interval_ns, absolute, work, phase } => {
                let first = interval_ns + self.stream.draw(phase);
                let mut due = monotonic() + first;
                let mut missed = 0;
                while !self.common.is_over() {
                    sleep_until(due);
                    let now = monotonic();
                    if now < due {
                        continue;
                    }
                    self.send(HostSample {
                        due: due.saturating_sub(self.start),
                        latency: now - due,
                        taken: tsc::tsc_of(&self.common.clock, now),
                        missed,
                        trip: None,
                    });
                    self.draw_work(work);
                    let now = monotonic();
                    due = if *absolute { due } else { now } + interval_ns;
                    // A period that is already over is skipped and counted, as cyclictest does.
                    missed = skip_past(&mut due, *interval_ns, now);
                }
            }
            Program::Script { steps, repeat } => self.play(steps, *repeat)?,
            Program::Audio { .. }
            | Program::Rogue { .. }
            | Program::Routine { .. }
            | Program::Boot { .. }
            | Program::Desktop { .. } => {}
        }
        Ok(())
    }

    /// Runs `stress-ng` for the work: its worker is the thread that others see.
    fn stress(&self, method: &str, whom: &RequestTarget) -> Result<(), Error> {
        let stressor = Stressor::start(method, whom)?;
        self.progress.tid.store(stressor.worker(), Ordering::Release);
        while !self.common.is_over() {
            self.sleep(monotonic() + 1_000_000_000);
        }
        Ok(())
    }

    fn cycle(&mut self, phases: &[Phase]) -> Result<(), Error> {
        while !self.common.is_over() {
            for phase in phases {
                match phase {
                    Phase::Run { time, .. } => {
                        let ns = self.stream.draw(time);
                        self.work(self.rates.iterations(ns));
                    }
                    Phase::Sleep { time } => {
                        let ns = self.stream.draw(time);
                        self.sleep(monotonic() + ns);
                    }
                    Phase::Align { period_ns } => {
                        let period = (*period_ns).max(1);
                        let since = monotonic().saturating_sub(self.start);
                        self.sleep(self.start + (since / period + 1) * period);
                    }
                    Phase::Busy { period_ns, on_ns } => {
                        let since = || monotonic().saturating_sub(self.start) % (*period_ns).max(1);
                        while since() < *on_ns && !self.common.is_over() {
                            self.work(self.rates.iterations(100_000));
                        }
                    }
                    Phase::Call { server, .. } => {
                        self.call(*server)?;
                    }
                }
                if self.common.is_over() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Sends a sample, if the thread measures.
    pub(crate) fn send(&self, sample: HostSample) {
        if let Some(samples) = &self.samples
            && samples.try_send(sample).is_err()
        {
            self.progress.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Uses the CPU for a time drawn, if that is not 0.
    pub(crate) fn draw_work(&mut self, work: &Dist) {
        let ns = self.stream.draw(work);
        if ns > 0 {
            self.work(self.rates.iterations(ns));
        }
    }

    /// Uses the CPU for so many iterations: CPU time, not wall time, however many threads compete.
    pub(crate) fn work(&self, mut iterations: u64) {
        while iterations > 0 && !self.common.is_over() {
            let n = iterations.min(CHUNK);
            spin(n);
            self.progress.done.fetch_add(n, Ordering::Relaxed);
            iterations -= n;
        }
    }

    /// Sleeps, but hardly beyond the end of the run.
    pub(crate) fn sleep(&self, until: Ns) {
        const STEP: Ns = 20_000_000;
        loop {
            let now = monotonic();
            if now >= until || self.common.is_over() {
                return;
            }
            sleep_until(until.min(now + STEP));
        }
    }

    /// Plays steps until the run is over or the thread leaves.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: a policy that the captured thread had is refused here.
    fn play(&mut self, steps: &[Step], repeat: bool) -> Result<(), Error> {
        loop {
            for step in steps {
                if self.common.is_over() {
                    return Ok(());
                }
                match *step {
                    Step::Run(ns) => self.work(self.rates.iterations(ns)),
                    Step::Sleep(ns) => self.sleep(monotonic() + ns),
                    Step::Wait(timeout) => {
                        let until = monotonic() + timeout;
                        self.progress.inbox.wait_until(until, monotonic, || self.common.is_over());
                    }
                    Step::Wake(peer) => {
                        if let Some(peer) = self.capture.get(peer as usize) {
                            peer.inbox.wake();
                        }
                    }
                    Step::SetPolicy(policy) => {
                        let whom = RequestTarget::Thread(self.plan.name.clone());
                        Attributes::from_policy(&policy).set(0).map_err(Error::refused(&whom))?;
                    }
                    Step::Exit => return Ok(()),
                }
            }
            if !repeat || steps.is_empty() {
                return Ok(());
            }
        }
    }
}
