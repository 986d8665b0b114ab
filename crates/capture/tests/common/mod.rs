//! Short traces, built line by line.

#![allow(dead_code, reason = "no test binary uses all of it")]

use std::fmt::Write as _;

use vcoop_capture::{Capture, Limits};
use vcoop_model::plan::Step;

/// Microseconds in nanoseconds.
pub(crate) const US: u64 = 1000;

/// A trace in ftrace's form, line by line. Times are in microseconds, thread 0 is idle.
#[derive(Debug, Default)]
pub(crate) struct Trace(pub(crate) String);

impl Trace {
    pub(crate) fn line(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self.0.push('\n');
        self
    }

    pub(crate) fn event(
        &mut self,
        us: u64,
        cpu: u32,
        tid: i32,
        flags: &str,
        event: &str,
    ) -> &mut Self {
        let (s, us) = (us / 1_000_000, us % 1_000_000);
        let _ = writeln!(self.0, "t-{tid} [{cpu:03}] {flags} {s}.{us:06}: {event}");
        self
    }

    pub(crate) fn switch(
        &mut self,
        us: u64,
        cpu: u32,
        prev: i32,
        state: &str,
        next: i32,
    ) -> &mut Self {
        self.switch_prio(us, cpu, (prev, 120), state, (next, 120))
    }

    pub(crate) fn switch_prio(
        &mut self,
        us: u64,
        cpu: u32,
        prev: (i32, i32),
        state: &str,
        next: (i32, i32),
    ) -> &mut Self {
        let event = format!(
            "sched_switch: prev_comm=t{0} prev_pid={0} prev_prio={1} prev_state={state} ==> \
             next_comm=t{2} next_pid={2} next_prio={3}",
            prev.0, prev.1, next.0, next.1
        );
        self.event(us, cpu, prev.0, "d..2.", &event)
    }

    /// A wake-up by the thread that is current.
    pub(crate) fn wake(&mut self, us: u64, cpu: u32, waker: i32, target: i32) -> &mut Self {
        self.wake_in(us, cpu, waker, target, "d..2.")
    }

    /// A wake-up by a timer.
    pub(crate) fn timer(&mut self, us: u64, cpu: u32, current: i32, target: i32) -> &mut Self {
        self.wake_in(us, cpu, current, target, "d.h2.")
    }

    pub(crate) fn wake_in(
        &mut self,
        us: u64,
        cpu: u32,
        current: i32,
        target: i32,
        flags: &str,
    ) -> &mut Self {
        let event = format!("sched_waking: comm=t{target} pid={target} prio=120 target_cpu=000");
        self.event(us, cpu, current, flags, &event)
    }

    pub(crate) fn read(&self) -> Capture {
        Capture::read(self.0.as_bytes(), &Limits::default()).expect("a trace")
    }
}

/// The script of the thread with this id, in microseconds.
pub(crate) fn script(capture: &Capture, tid: i32) -> Vec<Step> {
    let index = capture.threads.iter().position(|t| t.tid == tid).expect("thread");
    let replay = capture.replay(&vcoop_capture::Shape::default());
    replay.threads[index].steps.to_vec()
}
