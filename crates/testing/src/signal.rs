//! Signals to programs under test.

use rustix::process::{Pid, Signal, kill_process};

use crate::until;

/// `SIGINT` in a mask of signals.
const INT: u64 = 1 << (2 - 1);

/// Waits until a program has a handler for Ctrl-C: an earlier signal would end it without output. A program that has
/// ended is not waited for.
///
/// # Panics
///
/// It has no handler within a minute.
pub fn awaits_interrupt_handler(pid: u32) {
    until(format!("process {pid} has a handler for SIGINT"), || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let of = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let ended = of("State:").is_none_or(|state| state.starts_with('Z'));
        let caught = of("SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        ended || caught.is_some_and(|mask| mask & INT != 0)
    });
}

/// Sends a signal to a process.
///
/// # Panics
///
/// There is no such process, or it is somebody else's.
#[track_caller]
pub fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a process id")).expect("it is not 0");
    kill_process(pid, signal).expect("the process is there");
}
