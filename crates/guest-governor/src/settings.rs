//! The parameters of a governor, by the names and with the checks of scenario files.

use vcoop_model::capture::NoCaptures;
use vcoop_model::diagnostic::Diagnostics;
use vcoop_model::running_vm::RunningVm;
use vcoop_model::scenario::{Scenario, Set};
use vcoop_policy::govern::{GovernorConfig, MAX_VCPUS};

use crate::error::FoldError;

/// Keys of scenario files that say something about a guest's own governor.
pub const KEYS: [&str; 6] = [
    "governor_interval",
    "steal_high",
    "steal_low",
    "governor_floor",
    "governor_keep",
    "governor_patience",
];

/// The parameters of `step`, `proportional` or `host-hint`, for a guest of `vcpus`. `sets`: `KEY=VALUE`, of
/// [`KEYS`].
///
/// # Errors
///
/// [`FoldError::Setting`]: the governor or a key is not known, or a value is impossible.
pub fn config(governor: &str, vcpus: u32, sets: &[String]) -> Result<GovernorConfig, FoldError> {
    let refuse = |e: Diagnostics| FoldError::Setting(e.to_string());
    let path = format!("policy.{governor}.");
    let mut parsed = Vec::new();
    for text in sets {
        let set = Set::parse(text).map_err(refuse)?;
        let key = set.path().strip_prefix(&path).unwrap_or(set.path());
        if !KEYS.contains(&key) {
            let keys = KEYS.join(", ");
            let what = format!("--set {text}: a guest's governor has no `{key}`");
            return Err(FoldError::Setting(format!("{what}\n  remedy: one of {keys}")));
        }
        let whole = key.len() < set.path().len();
        parsed.push(if whole { set } else { set.within(path.trim_end_matches('.')) });
    }
    // A scenario's VM has no more; the floor is the only setting that goes by it.
    let vcpus = vcpus.clamp(1, MAX_VCPUS) as usize;
    let guest = RunningVm { name: "guest".to_owned(), vcpus, pcpus: vcpus };
    let text = guest.scenario(&[governor.to_owned()]);
    let scenario = Scenario::parse("guest", &text, &parsed, &NoCaptures).map_err(refuse)?;
    let plans = scenario.plans(None).map_err(refuse)?;
    let config = plans.first().and_then(|plan| plan.governor(0));
    config.ok_or_else(|| FoldError::Setting(format!("{governor} is no governor")))
}

#[cfg(test)]
mod tests {
    use super::config;
    use vcoop_policy::govern::{GovernorConfig, Kind};

    fn set(text: &str) -> Result<GovernorConfig, String> {
        config("step", 8, &[text.to_owned()]).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_are_those_of_scenarios() {
        // Which these two kinds do not go by: a VM that is alone on its host is entitled to all of it.
        let plain = GovernorConfig { entitled: 8, ..GovernorConfig::new(Kind::Step) };
        assert_eq!(config("step", 8, &[]).unwrap(), plain);
        let all = [
            "governor_interval=100ms",
            "steal_high=\"10%\"",
            "policy.step.steal_low=1.5%",
            "governor_floor=2",
        ]
        .map(str::to_owned);
        let want = GovernorConfig {
            interval_ns: 100_000_000,
            high_bp: 1000,
            low_bp: 150,
            floor: 2,
            ..plain
        };
        assert_eq!(config("step", 8, &all).unwrap(), want);
        let many = config("proportional", 4096, &["governor_patience=4".to_owned()]).unwrap();
        assert_eq!((many.kind, many.patience), (Kind::Proportional, 4));
    }

    #[test]
    fn what_cannot_be_is_refused_in_the_words_of_scenarios() {
        for (text, says) in [
            ("interval=1s", "no `interval`\n  remedy: one of governor_interval"),
            ("vm.0.vcpus=3", "remedy"),
            ("steal_high=10", "1 | steal_high=10\n   |            ^^"),
            ("steal_high=10", "`10` lacks its percent sign"),
            ("governor_interval=1ms", "cannot look every 1ms"),
            ("steal_low=10%", "not below `steal_high`"),
            ("governor_floor=9", "a floor of 9 for 8 vCPUs"),
            ("steal_high", "PATH=VALUE"),
        ] {
            let why = set(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
