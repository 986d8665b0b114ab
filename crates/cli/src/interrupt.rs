//! Ctrl-C, SIGTERM and SIGHUP, which are treated alike. A SIGHUP that is ignored stays ignored: `nohup` starts programs
//! so, which are to outlive their terminal. One that is blocked does not stay so: the program that has started this one
//! has blocked it for itself.

use std::fs;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output::note;

static STOP: AtomicBool = AtomicBool::new(false);

/// Lets this process get the signals that end it. Called before it has other threads.
pub(crate) fn unblock() {
    vcoop_threads::unblock(&[SIGINT, SIGTERM, SIGHUP]);
}

/// The flag that Ctrl-C sets, for commands that normally end by it.
pub(crate) fn end_flag() -> &'static AtomicBool {
    handle(|| STOP.store(true, Ordering::Relaxed));
    &STOP
}

/// The flag that Ctrl-C sets. The first one makes the run end and show its results so far; the second one ends the
/// process at once.
pub(crate) fn stop_flag() -> &'static AtomicBool {
    flag("what was measured follows")
}

/// As above, for commands without a result before their end.
pub(crate) fn stop_flag_of_search() -> &'static AtomicBool {
    flag("a search that is cut short has no result")
}

fn flag(and: &'static str) -> &'static AtomicBool {
    handle(move || {
        if STOP.swap(true, Ordering::Relaxed) {
            crate::watch::restore();
            std::process::exit(130);
        }
        note(&format!("vcoop: stopping; {and} (Ctrl-C again to end at once)"));
    });
    &STOP
}

/// Calls `act` at each signal, in a thread. A second call of this does nothing.
fn handle(act: impl Fn() + Send + 'static) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hangs_up = Some(SIGHUP).filter(|_| !is_ignored(SIGHUP));
        // Without a handler a signal ends the process, and the keeper restores everything.
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangs_up)) else {
            return;
        };
        let waits = move || signals.forever().for_each(|_| act());
        let _ = thread::Builder::new().name("signals".to_owned()).spawn(waits);
    });
}

/// Whether this process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}
