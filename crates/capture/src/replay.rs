//! Makes scripts from recorded threads, which can be replayed in a loop.

use std::sync::Arc;

use vcoop_model::capture::{CapturedThread, Shape};
use vcoop_model::plan::{Ns, Step};

use crate::capture::{Capture, Thread, policy};
use crate::reconstruct::{Act, numbers};

const PPM: u64 = 1_000_000;

/// Timeout of a waiting thread: this many times the recorded wait, plus [`GIVE_UP_SLACK_NS`].
///
/// A factor of two lets a waker be slow on a busy host, and bounds the stall if its wake-up never comes (a peer cut off
/// at the end of the capture, or a lost event).
pub const GIVE_UP_FACTOR: u64 = 2;

/// Added to every timeout, so that a wait of microseconds survives a peer's time slice.
pub const GIVE_UP_SLACK_NS: Ns = 10_000_000;

/// Scripts for the threads of a capture.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The threads; `Step::Wake` counts from the first.
    pub threads: Vec<CapturedThread>,
    /// Length of each script on an idle machine with enough CPUs.
    pub span_ns: Ns,
    /// CPU time of a pass over all scripts.
    pub demand_ns: Ns,
    /// What the shape left out.
    pub dropped: Dropped,
}

/// What a [`Shape`] left out of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Threads whose names were not requested.
    pub other_names: usize,
    /// Threads beyond `max_threads`.
    pub over_limit: usize,
    /// Recorded CPU time of both.
    pub demand_ns: Ns,
    /// Waits for dropped threads, which became timed sleeps.
    pub waits_timed: usize,
    /// Scripts that scaling made longer than the span: they get out of step with the others.
    pub overlong: usize,
}

impl Capture {
    /// Scripts of the threads that `shape` keeps.
    ///
    /// Every script lasts [`Capture::span_ns`] if nothing delays it: the time during which its thread waited in a run
    /// queue, did not exist yet or had exited is a sleep at the end. So all scripts loop together, and a short-lived
    /// thread lives again in each pass.
    pub fn replay(&self, shape: &Shape) -> Replay {
        let mut dropped = Dropped::default();
        let kept = self.keep(shape, &mut dropped);
        let index = numbers(kept.iter().copied());
        let mut threads = Vec::new();
        let mut demand_ns: Ns = 0;
        for (thread, _) in self.threads.iter().zip(&kept).filter(|(_, keep)| **keep) {
            let mut script = Script { demand_ppm: shape.demand_ppm, ..Script::default() };
            for act in &thread.acts {
                script.push_act(*act, &index, &mut dropped);
            }
            demand_ns = demand_ns.saturating_add(script.demand_ns);
            dropped.overlong += usize::from(script.length_ns > self.span_ns);
            threads.push(CapturedThread {
                name: thread.name.clone(),
                policy: thread.policy,
                cpus: thread.cpus.clone(),
                steps: Arc::new(script.close(thread, self.span_ns)),
                repeat: true,
            });
        }
        Replay { threads, span_ns: self.span_ns, demand_ns, dropped }
    }

    /// The threads that stay. Among equal demands the one that appeared first stays.
    fn keep(&self, shape: &Shape, dropped: &mut Dropped) -> Vec<bool> {
        let named = |t: &Thread| shape.comms.is_empty() || shape.comms.iter().any(|c| fits(c, t));
        let mut kept: Vec<bool> = self.threads.iter().map(named).collect();
        dropped.other_names = kept.iter().filter(|keep| !**keep).count();
        let mut order: Vec<usize> = (0..kept.len()).filter(|&i| kept[i]).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(self.threads[i].demand_ns), i));
        let limit = shape.max_threads.unwrap_or(usize::MAX);
        for &i in order.iter().skip(limit) {
            kept[i] = false;
            dropped.over_limit += 1;
        }
        let gone = self.threads.iter().zip(&kept).filter(|(_, keep)| !**keep);
        dropped.demand_ns = gone.map(|(t, _)| t.demand_ns).fold(0, u64::saturating_add);
        kept
    }
}

fn fits(pattern: &str, thread: &Thread) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => thread.name.starts_with(beginning),
        None => thread.name == pattern,
    }
}

/// A script being written.
#[derive(Default)]
struct Script {
    steps: Vec<Step>,
    demand_ppm: u64,
    /// Demand not yet emitted, in millionths of a nanosecond, so that rounding loses nothing.
    carry: u64,
    demand_ns: Ns,
    /// Duration of the script if nothing delays it.
    length_ns: Ns,
    changes_policy: bool,
}

impl Script {
    fn push_act(&mut self, act: Act, index: &[Option<u32>], dropped: &mut Dropped) {
        let before = act;
        let Some(act) = act.renumbered(index) else { return };
        if matches!((before, act), (Act::Wait { .. }, Act::Sleep(_))) {
            dropped.waits_timed += 1;
        }
        match act {
            Act::Run(ns) => self.run(ns),
            Act::Sleep(ns) => self.sleep(ns),
            Act::Wait { slept, .. } => {
                let give_up = slept.saturating_mul(GIVE_UP_FACTOR).saturating_add(GIVE_UP_SLACK_NS);
                self.length_ns = self.length_ns.saturating_add(slept);
                self.steps.push(Step::Wait(give_up));
            }
            Act::Wake(peer) => self.steps.push(Step::Wake(peer)),
            Act::Prio(prio) => {
                self.changes_policy = true;
                self.steps.push(Step::SetPolicy(policy(prio)));
            }
        }
    }

    fn run(&mut self, ns: Ns) {
        let exact = u128::from(ns) * u128::from(self.demand_ppm) + u128::from(self.carry);
        self.carry = (exact % u128::from(PPM)) as u64;
        let ns = u64::try_from(exact / u128::from(PPM)).unwrap_or(u64::MAX);
        if ns == 0 {
            return;
        }
        self.demand_ns = self.demand_ns.saturating_add(ns);
        self.length_ns = self.length_ns.saturating_add(ns);
        match self.steps.last_mut() {
            Some(Step::Run(last)) => *last = last.saturating_add(ns),
            _ => self.steps.push(Step::Run(ns)),
        }
    }

    fn sleep(&mut self, ns: Ns) {
        self.length_ns = self.length_ns.saturating_add(ns);
        match self.steps.last_mut() {
            Some(Step::Sleep(last)) => *last = last.saturating_add(ns),
            _ if ns > 0 => self.steps.push(Step::Sleep(ns)),
            _ => {}
        }
    }

    /// Fills the script up to the span, and resets the policy for the next pass.
    fn close(mut self, thread: &Thread, span_ns: Ns) -> Vec<Step> {
        if self.changes_policy {
            self.steps.push(Step::SetPolicy(thread.policy));
        }
        self.sleep(span_ns.saturating_sub(self.length_ns));
        self.steps
    }
}
