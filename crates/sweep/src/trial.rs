//! Runs a scenario with settings, for searches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use vcoop_capture::Loader;
use vcoop_experiment::format;
use vcoop_experiment::judge::{Judgement, LimitResult};
use vcoop_experiment::result::{Document, Limits};
use vcoop_experiment::verdict::judgement;
use vcoop_model::diagnostic::{Diagnostic, Diagnostics};
use vcoop_model::plan::Plan;
use vcoop_model::scenario::{Scenario, Set};

use crate::point::enough;
use crate::slo::{Quantity, Reading, Slo, quantities};

/// A scenario that a search changes.
#[derive(Debug)]
pub struct Bench {
    /// Name, or path it was read from.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Changes that apply to all settings.
    pub sets: Vec<Set>,
    /// Threads that a search uses.
    pub jobs: usize,
    /// What a policy may cost others.
    pub limits: Limits,
    /// Captures.
    pub loader: Loader,
}

/// Why a search ended early.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The scenario, an objective or a setting is impossible.
    #[error(transparent)]
    Refused(#[from] Diagnostics),
    /// A run failed.
    #[error("{0}")]
    Failed(String),
    /// It was interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl Bench {
    /// The scenario with further changes.
    ///
    /// # Errors
    ///
    /// What is wrong with the result.
    pub fn scenario(&self, sets: &[Set]) -> Result<Scenario, Diagnostics> {
        let all = [&self.sets, sets].concat();
        Scenario::parse(&self.name, &self.text, &all, &self.loader)
    }

    /// The plan of one policy. A scenario with a matrix has several, and is refused.
    ///
    /// # Errors
    ///
    /// What is wrong with the result; a matrix.
    pub fn plan(&self, sets: &[Set], policy: &str) -> Result<Plan, Diagnostics> {
        let scenario = self.scenario(sets)?;
        let mut plans = scenario.plans(Some(&[policy.to_owned()]))?;
        if plans.len() != 1 || !scenario.axes.is_empty() {
            let message = "it has a [matrix]: a search needs one experiment".to_owned();
            let help = Some("copy the scenario without the matrix".to_owned());
            let found = Diagnostic::whole(&self.name, message, help);
            return Err(found.into());
        }
        // One cell and one policy: one plan.
        Ok(plans.remove(0))
    }

    /// Runs plans, each with all its repeats, on all threads. Results are in the order of the plans, ratios are to the
    /// first.
    ///
    /// # Errors
    ///
    /// A run that failed, or the stop flag.
    pub fn run(&self, plans: &mut [Plan], stop: &AtomicBool) -> Result<Document, SearchError> {
        let baseline = plans.first().map_or_else(String::new, |p| p.policy_name.clone());
        let most = plans.iter().map(|p| p.repeats).max().unwrap_or(1);
        let run = || enough(plans, &baseline, None, most, self.jobs, stop);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(Some((document, _)))) => Ok(Document { limits: self.limits, ..document }),
            Ok(Ok(None)) => Err(SearchError::Interrupted),
            Ok(Err(why)) => Err(SearchError::Failed(why)),
            Err(_) => Err(SearchError::Failed("internal error, please report it".to_owned())),
        }
    }
}

/// The policy to compare with.
pub const BASELINE: &str = "vanilla";

/// What a search minimises.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// The guests' latency relative to the baseline, as in a verdict.
    Gain,
    /// A number of the result.
    Of(Quantity),
}

impl Objective {
    /// Name of [`Objective::Gain`].
    pub const GAIN: &str = "gain";

    /// Load of the host, in percent, from which a policy can save CPU time only by keeping others from their work.
    const SATURATED: f64 = 95.0;

    /// Finds a name among known ones. `option`: where it was written. `document`: of a run of the baseline.
    ///
    /// # Errors
    ///
    /// There is no such quantity; or it is what guests wait, and nobody waits in a guest; or the load of a host without
    /// idle time to win.
    pub fn find(option: &str, name: &str, document: &Document) -> Result<Self, Diagnostics> {
        if name == Self::GAIN {
            if document.latencies().any(|series| !series.key.name().starts_with("host.")) {
                return Ok(Self::Gain);
            }
            let help = format!("name what is to be least, like {option} host.cpu");
            let message = "no guest has a latency that is measured".to_owned();
            return Err(Diagnostic::whole(option, message, Some(help)).into());
        }
        let found = Quantity::find(option, name, &quantities(document))?;
        let load = found.read(document, &document.baseline).map_or(0.0, |reading| reading.value);
        if found.name == "host.cpu" && load >= Self::SATURATED {
            let message = format!(
                "the host is saturated ({load:.0} % of its CPU time without a policy): it is least \
                 under the policy that keeps most work from being done"
            );
            let help = "take what guests wait (gain), which is the default, or a latency of the host \
                        like host.NAME.p99; or look at a host with more pCPUs: --set host.pcpus=N";
            return Err(Diagnostic::whole(option, message, Some(help.to_owned())).into());
        }
        Ok(Self::Of(found))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Gain => Self::GAIN,
            Self::Of(quantity) => &quantity.name,
        }
    }

    /// Its unit.
    pub fn unit(&self) -> &str {
        match self {
            Self::Gain => "ratio",
            Self::Of(quantity) => &quantity.unit,
        }
    }

    /// A value with its unit.
    pub fn show(&self, value: f64) -> String {
        match self {
            Self::Gain => format::ratio(value),
            Self::Of(quantity) => quantity.show(value),
        }
    }
}

/// Values of the limits and the objective for one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Each limit's reading; `None` if the result has no such value.
    pub limits: Vec<Option<Reading>>,
    /// What is minimised.
    pub cost: Option<Reading>,
    /// The worst limit, by [`Slo::excess`]; zero or less where all hold.
    pub excess: f64,
    /// How certain the worst limit is.
    pub held: LimitResult,
    /// What it costs others beyond the accepted cost, in words, including quantities that no limit names.
    pub too_much: Vec<String>,
    /// Losses of others and of the guests' other work, in words; empty for the baseline.
    pub price: String,
}

/// Excess of a limit whose quantity has no value: larger than any real one.
const UNKNOWN: f64 = 1e3;

impl Score {
    /// Reads the score of a policy from a result with one cell.
    pub fn of(
        document: &Document,
        policy: &str,
        slos: &[Slo],
        objective: Option<&Objective>,
    ) -> Self {
        let cell = document.cells().into_iter().next().unwrap_or_default();
        let judged = (policy != document.baseline).then(|| judgement(document, &cell, policy));
        let too_much = judged.as_ref().map(Judgement::too_much).unwrap_or_default();
        let beyond = judged.as_ref().map_or(f64::NEG_INFINITY, Judgement::excess);
        let limits: Vec<Option<Reading>> =
            slos.iter().map(|slo| slo.quantity.read(document, policy)).collect();
        let pairs = || slos.iter().zip(&limits);
        let excess = pairs()
            .map(|(slo, reading)| reading.map_or(UNKNOWN, |r| slo.excess(r.value)))
            .fold(beyond, f64::max);
        let held = pairs().map(|(slo, r)| r.map_or(LimitResult::Unknown, |r| slo.held(r)));
        let held = held.chain(judged.as_ref().map(Judgement::held)).min();
        let cost = objective.and_then(|objective| match (objective, &judged) {
            (Objective::Of(quantity), _) => quantity.read(document, policy),
            (Objective::Gain, None) => Some(Reading { value: 1.0, interval: None }),
            (Objective::Gain, Some(judged)) => {
                judged.gain.map(|value| Reading { value, interval: None })
            }
        });
        Self {
            cost,
            excess,
            held: held.unwrap_or(LimitResult::Yes),
            limits,
            too_much,
            price: judged.as_ref().map(Judgement::price).unwrap_or_default(),
        }
    }

    /// Whether every limit holds, by the values without intervals.
    pub fn holds(&self) -> bool {
        self.held >= LimitResult::Likely
    }
}
