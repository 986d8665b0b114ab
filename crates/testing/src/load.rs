//! Second chances on a host that others use as well.

use crate::{Outcome, Skip};

/// Why what a test claims does not show.
#[derive(Debug)]
pub enum Trouble {
    /// It does not hold, of which this is the measure.
    Wrong(String),
    /// It cannot be judged here.
    Skip(Skip),
}

impl From<String> for Trouble {
    fn from(measured: String) -> Self {
        Self::Wrong(measured)
    }
}

impl From<Skip> for Trouble {
    fn from(skip: Skip) -> Self {
        Self::Skip(skip)
    }
}

/// Holds at once, or the second time.
///
/// # Errors
///
/// It cannot be judged; or it fails twice on a host that others used meanwhile, which says nothing about
/// what is tested.
///
/// # Panics
///
/// It fails twice.
pub fn twice<E: Into<Trouble>>(mut holds: impl FnMut() -> Result<(), E>) -> Outcome {
    let before = Used::now();
    let mut once = || match holds().map_err(Into::into) {
        Ok(()) => Ok(None),
        Err(Trouble::Wrong(measured)) => Ok(Some(measured)),
        Err(Trouble::Skip(skip)) => Err(skip),
    };
    let Some(first) = once()? else { return Ok(()) };
    eprintln!("once more: {first}");
    let Some(second) = once()? else { return Ok(()) };
    let others = Used::now().others_since(&before);
    assert!(others > MOST_BY_OTHERS, "{first}; then {second}");
    let percent = 100.0 * others;
    let reason = format!("others used {percent:.0} % of this host: {first}; then {second}");
    Err(Skip::because(reason))
}

/// Largest part of the host's CPU time that others may have used for a failure to count: half a CPU of four.
const MOST_BY_OTHERS: f64 = 0.125;

/// CPU time, in clock ticks.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Of all CPUs, idle or not.
    all: f64,
    /// Not idle; stolen time is somebody's, too.
    busy: f64,
    /// By this process and the children it has waited for.
    own: f64,
}

impl Used {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpus = ticks(stat.lines().next().unwrap_or_default().trim_start_matches("cpu"));
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in the first two.
        let all: f64 = cpus.iter().take(8).sum();
        let idle: f64 = cpus.iter().skip(3).take(2).sum();
        let own = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // utime, stime, cutime, cstime: fields 14 to 17, of which two end with the name.
        let own = ticks(own.rsplit(')').next().unwrap_or_default());
        Self { all, busy: all - idle, own: own.iter().skip(11).take(4).sum() }
    }

    /// The part of the host's CPU time that others used.
    fn others_since(&self, then: &Self) -> f64 {
        let others = (self.busy - then.busy) - (self.own - then.own);
        others / (self.all - then.all).max(1.0)
    }
}

/// The numbers of a line; what is none is 0.
fn ticks(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect()
}
