//! Writes lines of a trace in the format of the kernel's tracer, for `vcoop_capture`.

use std::fmt::Write as _;

use vcoop_model::plan::Ns;
use vcoop_policy::thread::Policy;
use vcoop_sources::trace::Tid;

use crate::follow::Step;

/// Kernel priority of a fair thread with nice 0.
const NICE_0: i32 = 120;

/// A policy as the kernel's priority in a trace.
pub(crate) fn priority(policy: Option<Policy>) -> i32 {
    match policy {
        None => NICE_0,
        Some(Policy::Fifo(priority) | Policy::Rr(priority)) => 99 - i32::from(priority),
        Some(Policy::Normal { nice, .. }) => NICE_0 + i32::from(nice),
        // The least that a fair thread can have.
        Some(Policy::Idle) => NICE_0 + 19,
        Some(Policy::Deadline { .. }) => -1,
    }
}

/// A time of a trace, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamp(pub(crate) Ns);

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A thread's number, name and priority.
pub(crate) type ThreadLabel = (Tid, (String, i32));

fn name_of((tid, (name, priority)): &ThreadLabel, cpu: u32) -> (String, i32) {
    if *tid == 0 { (format!("swapper/{cpu}"), NICE_0) } else { (name.clone(), *priority) }
}

pub(crate) fn switch(
    text: &mut String,
    (cpu, at): (u32, Timestamp),
    prev: ThreadLabel,
    state: &str,
    next: ThreadLabel,
) {
    let ((prev_name, prev_prio), (next_name, next_prio)) =
        (name_of(&prev, cpu), name_of(&next, cpu));
    let (prev, next) = (prev.0, next.0);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{prev_name}-{prev} [{cpu:03}] d..2. {at}: sched_switch: prev_comm={prev_name} \
         prev_pid={prev} prev_prio={prev_prio} prev_state={state} ==> next_comm={next_name} \
         next_pid={next} next_prio={next_prio}"
    );
}

/// `by`: 0 for an interrupt.
pub(crate) fn waking(text: &mut String, (cpu, at): (u32, Timestamp), by: Tid, who: ThreadLabel) {
    let (tid, (name, priority)) = who;
    let flags = if by == 0 { "d.h2." } else { "d..2." };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "waker-{by} [{cpu:03}] {flags} {at}: sched_waking: comm={name} pid={tid} prio={priority} \
         target_cpu={cpu:03}"
    );
}

/// A marker line of the recorder.
pub(crate) fn mark(text: &mut String, (cpu, at): (u32, Timestamp), word: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "vcoop-0 [{cpu:03}] ..... {at}: tracing_mark_write: {word}");
}

/// A task's steps as a trace of a CPU that it has to itself.
pub(crate) fn script(task: &str, steps: &[Step]) -> String {
    let mut text = String::from("# tracer: nop\n");
    let idle = || (0, (String::new(), NICE_0));
    let own = || (1, (task.to_owned(), NICE_0));
    let mut at = 0;
    for step in steps {
        match step {
            Step::Run(ns) => {
                switch(&mut text, (0, Timestamp(at)), idle(), "R", own());
                at += ns;
                switch(&mut text, (0, Timestamp(at)), own(), "S", idle());
            }
            Step::Sleep(ns) => {
                at += ns;
                waking(&mut text, (0, Timestamp(at)), 0, own());
            }
        }
    }
    text
}
