//! Why a governor decided as it did, in words.

use vcoop_policy::govern::{CpuTime, Governor, GovernorConfig, Kind, State};

use crate::decider::Decider;

/// The steal that a governor goes by, in hundredths of a percent: `step` takes it of the time of all
/// CPUs, the others of the time that the CPUs in use wanted.
pub(crate) fn steal_bp(kind: Kind, used: CpuTime, all: CpuTime, cpus: u32, elapsed_ns: u64) -> u32 {
    let (steal, of) = if kind == Kind::Step {
        (all.steal_ns, u128::from(elapsed_ns) * u128::from(cpus))
    } else {
        (used.steal_ns, u128::from(used.busy_ns) + u128::from(used.steal_ns))
    };
    let bp = (10_000 * u128::from(steal)).checked_div(of).unwrap_or(0);
    u32::try_from(bp).unwrap_or(u32::MAX)
}

/// `5 %`, `2.5 %`.
pub(crate) fn percent(bp: u32) -> String {
    format!("{} %", f64::from(bp) / 100.0)
}

fn state(decider: &Decider) -> Option<State> {
    match decider {
        Decider::Own(Governor::Proportional(governor)) => Some(governor.state()),
        Decider::Own(_) | Decider::Host { .. } => None,
    }
}

/// Why the width is another one than before, or the same.
pub(crate) fn why(before: &Decider, after: &Decider, config: &GovernorConfig, bp: u32) -> String {
    match after {
        Decider::Host { asked: None, .. } => return "the host does not say".to_owned(),
        Decider::Host { asked: Some(n), .. } => return format!("the host asks for {n}"),
        Decider::Own(_) => {}
    }
    let (high, low) = (percent(config.high_bp), percent(config.low_bp));
    let level = if bp > config.high_bp {
        format!("steal is above {high}")
    } else if bp <= config.low_bp {
        format!("steal is not above {low}")
    } else {
        format!("steal is between {low} and {high}")
    };
    let wider = after.width() > before.width();
    if after.width() == before.width() {
        return level;
    }
    match (state(before), state(after)) {
        (Some(_), Some(State::Trying)) => format!("{level}: tries one core more"),
        (Some(_), Some(State::Narrowing)) => {
            format!("{level}, and as much CPU time as before: tries fewer")
        }
        (Some(_), Some(State::Measuring)) => {
            format!("{level}: measures the CPU time with all for one look")
        }
        (Some(State::Measuring), Some(_)) => "with all there was hardly more CPU time".to_owned(),
        (Some(State::Trying), Some(_)) if !wider => "steal came back with one core more".to_owned(),
        (Some(State::Trying), _) => format!("{level} with one core more: uses all"),
        (Some(State::Narrowing), _) => "with fewer there was less CPU time, or no room".to_owned(),
        (Some(_), _) if wider => "too narrow: less CPU time than before, or no room".to_owned(),
        (Some(_), _) => level,
        (None, _) if wider => format!("{level}: one core more"),
        (None, _) => format!("{level}: one core less"),
    }
}
