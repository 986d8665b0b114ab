//! `vcoop scx`: only the scheduler that `means = "ext"` uses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use vcoop_bpf::Scheduler;

use crate::args::host::ScxArgs;
use crate::failure::Failure;
use crate::interrupt::end_flag;
use crate::output::{log, print};
use crate::scenario::time;

/// Time between two checks whether the kernel has ended it.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ScxArgs) -> Result<(), Failure> {
    let stop = end_flag();
    let length = args.time.as_ref().map(|text| time("--for", text)).transpose()?;
    let loaded = schedule(length.map(Duration::from_nanos), stop, args.quiet)?;
    print(&format!("scx_vcoop was loaded for {:.1} s\n", loaded.as_secs_f64()))
}

/// Keeps it loaded for a time or until `stop`; returns for how long.
fn schedule(length: Option<Duration>, stop: &AtomicBool, quiet: bool) -> Result<Duration, Failure> {
    let scheduler = Scheduler::load().map_err(|why| Failure::Missing(why.to_string()))?;
    let began = Instant::now();
    if !quiet {
        log(
            "vcoop: scx_vcoop schedules this host's fair threads; EEVDF has them again when this ends",
        );
    }
    let left = || length.map_or(LOOK, |length| length.saturating_sub(began.elapsed()).min(LOOK));
    while !stop.load(Ordering::Relaxed) && left() > Duration::ZERO {
        thread::sleep(left());
        if let Some(why) = scheduler.ended() {
            return Err(Failure::run(format!("the kernel has ended scx_vcoop: {why}")));
        }
    }
    Ok(began.elapsed())
}
