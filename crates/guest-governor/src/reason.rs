//! Why a governor decided as it did, in words.

use vcoop_policy::govern::{CpuTime, Governor, GovernorConfig, GovernorInput, Kind, State};

use crate::decider::Decider;

/// Steal of an interval, in hundredths of a percent: for `step` of the time of all CPUs, for the others of the time
/// that the CPUs in use wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steal {
    /// As the kernel counted it.
    pub(crate) counted_bp: u32,
    /// Without the possible error of counting in ticks: the value that the governor uses.
    sure_bp: u32,
}

impl Steal {
    /// Steal of an interval in which the first `width` CPUs were in use.
    pub(crate) fn new(kind: Kind, seen: &GovernorInput<'_>, width: u32) -> Self {
        let (steal_ns, of) = if kind == Kind::Step {
            let cpus = u128::from(seen.count(u32::MAX));
            (seen.sum(u32::MAX).steal_ns, u128::from(seen.elapsed_ns) * cpus)
        } else {
            let CpuTime { busy_ns, steal_ns } = seen.sum(width);
            (steal_ns, u128::from(busy_ns) + u128::from(steal_ns))
        };
        let bp = (10_000 * u128::from(steal_ns)).checked_div(of).unwrap_or(0);
        let counted_bp = u32::try_from(bp).unwrap_or(u32::MAX);
        let sure_bp = if kind == Kind::Step { counted_bp } else { seen.pressure_bp(width) };
        Self { counted_bp, sure_bp }
    }

    /// How it compares with a governor's thresholds.
    fn level(self, config: &GovernorConfig) -> String {
        let Self { counted_bp, sure_bp } = self;
        let (high, low) = (percent(config.high_bp), percent(config.low_bp));
        let certain = |above_bp: u32| if counted_bp > above_bp { " for certain" } else { "" };
        if sure_bp > config.high_bp {
            format!("steal is above {high}")
        } else if sure_bp <= config.low_bp {
            format!("steal is not above {low}{}", certain(config.low_bp))
        } else if counted_bp > config.high_bp {
            format!("steal is not above {high}{}", certain(config.high_bp))
        } else {
            format!("steal is between {low} and {high}")
        }
    }
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

/// Why the width changed, or did not.
pub(crate) fn reason(
    before: &Decider,
    after: &Decider,
    config: &GovernorConfig,
    steal: Steal,
) -> String {
    match after {
        Decider::Host { asked: None, .. } => return "the host does not say".to_owned(),
        Decider::Host { asked: Some(n), .. } => return format!("the host asks for {n}"),
        Decider::Own(_) => {}
    }
    let level = steal.level(config);
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

#[cfg(test)]
mod tests {
    use vcoop_policy::govern::{GovernorConfig, Kind};

    use super::Steal;

    #[test]
    fn counted_steal_that_may_be_a_rounding_error_is_not_certain() {
        let config =
            GovernorConfig { high_bp: 500, low_bp: 100, ..GovernorConfig::new(Kind::Proportional) };
        for (counted_bp, sure_bp, level) in [
            (501, 501, "steal is above 5 %"),
            (501, 500, "steal is not above 5 % for certain"),
            (500, 101, "steal is between 1 % and 5 %"),
            (101, 100, "steal is not above 1 % for certain"),
            (100, 100, "steal is not above 1 %"),
        ] {
            assert_eq!(Steal { counted_bp, sure_bp }.level(&config), level);
        }
    }
}
