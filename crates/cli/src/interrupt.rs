//! Ctrl-C, and the requests to end by SIGTERM and SIGHUP, which are treated alike.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::output::note;

static STOP: AtomicBool = AtomicBool::new(false);

/// The flag Ctrl-C sets, for what runs until then: the first one is the way to end it.
#[cfg(target_os = "linux")]
pub(crate) fn end_flag() -> &'static AtomicBool {
    // Without a handler Ctrl-C ends the process, and the keeper gives everything back.
    let _ = ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed));
    &STOP
}

/// The flag Ctrl-C sets. The first one asks the run to end and to show what it has; the second
/// ends the process at once.
pub(crate) fn stop_flag() -> &'static AtomicBool {
    flag("what was measured follows")
}

/// The same for what has no result before its end.
pub(crate) fn stop_flag_of_search() -> &'static AtomicBool {
    flag("a search that is cut short has no result")
}

fn flag(and: &'static str) -> &'static AtomicBool {
    // Without a handler Ctrl-C still ends the process, only less politely. A second call finds the
    // handler in place.
    let _ = ctrlc::set_handler(move || {
        if STOP.swap(true, Ordering::Relaxed) {
            crate::watch::restore();
            std::process::exit(130);
        }
        note(&format!("vcoop: stopping; {and} (Ctrl-C again to end at once)"));
    });
    &STOP
}
