//! Ctrl-C, SIGTERM and SIGHUP, which are treated alike.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::output::note;

static STOP: AtomicBool = AtomicBool::new(false);

/// The flag that Ctrl-C sets, for commands that normally end by it.
pub(crate) fn end_flag() -> &'static AtomicBool {
    // Without a handler Ctrl-C ends the process, and the keeper restores everything.
    let _ = ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed));
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
    // Without a handler Ctrl-C still ends the process, but without cleanup. A second call finds the handler installed.
    let _ = ctrlc::set_handler(move || {
        if STOP.swap(true, Ordering::Relaxed) {
            crate::watch::restore();
            std::process::exit(130);
        }
        note(&format!("vcoop: stopping; {and} (Ctrl-C again to end at once)"));
    });
    &STOP
}
