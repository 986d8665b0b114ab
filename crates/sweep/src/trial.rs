//! A scenario tried with settings, for searches.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use vcoop_capture::Loader;
use vcoop_lab::result::{Document, LatencySeries};
use vcoop_lab::verdict::{LIMITS, missed_words};
use vcoop_model::diagnostic::Diagnostics;
use vcoop_model::plan::{Plan, Target};
use vcoop_model::scenario::{Scenario, Set};

use crate::point::enough;
use crate::slo::{Held, Quantity, Reading, Slo};

/// A scenario that a search changes.
#[derive(Debug)]
pub struct Bench {
    /// Name, or path it was read from.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Changes that always hold.
    pub sets: Vec<Set>,
    /// Threads that a search uses.
    pub jobs: usize,
    /// Captures.
    pub loader: Loader,
}

/// Why a search ended early.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The scenario, an objective or a setting cannot be.
    #[error("{0}")]
    Refused(Diagnostics),
    /// A run failed.
    #[error("{0}")]
    Failed(String),
    /// It was told to.
    #[error("interrupted")]
    Interrupted,
}

impl From<Diagnostics> for SearchError {
    fn from(found: Diagnostics) -> Self {
        Self::Refused(found)
    }
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
            let found = vcoop_model::diagnostic::Diagnostic::whole(&self.name, message, help);
            return Err(found.into());
        }
        // One cell and one policy: one plan.
        Ok(plans.remove(0))
    }

    /// Runs plans, each with all its repeats, on all threads; results in the order of the plans.
    ///
    /// # Errors
    ///
    /// A run that failed, or the stop flag.
    pub fn run(&self, plans: &mut [Plan], stop: &AtomicBool) -> Result<Document, SearchError> {
        let baseline = plans.first().map_or_else(String::new, |p| p.policy_name.clone());
        let most = plans.iter().map(|p| p.repeats).max().unwrap_or(1);
        let run = || enough(plans, &baseline, None, most, self.jobs, stop);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(Some((document, _)))) => Ok(document),
            Ok(Ok(None)) => Err(SearchError::Interrupted),
            Ok(Err(why)) => Err(SearchError::Failed(why)),
            Err(_) => Err(SearchError::Failed("internal error, please report it".to_owned())),
        }
    }
}

/// What the host's probes miss without any policy: what a setting is held against, beside the limits
/// that its user names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host(BTreeMap<String, f64>);

impl Host {
    /// The policy that is none.
    pub const WITHOUT: &str = "vanilla";

    /// Whether a plan has a probe of the host at all.
    pub fn is_probed(plan: &Plan) -> bool {
        plan.probes.iter().any(|probe| matches!(probe.target, Target::Host(_)))
    }

    /// What a policy's probes miss.
    pub fn of(document: &Document, policy: &str) -> Self {
        Self(
            probes(document, policy)
                .map(|s| (s.key.name().into_owned(), s.missed_share()))
                .collect(),
        )
    }

    /// Probes of the host that a policy starves, and how far the worst is beyond what is allowed, as a
    /// natural logarithm of the ratio.
    fn starved(&self, document: &Document, policy: &str) -> (Vec<String>, f64) {
        let (mut names, mut excess) = (Vec::new(), f64::NEG_INFINITY);
        for (name, before) in &self.0 {
            let found = probes(document, policy).find(|s| s.key.is_named(name));
            let now = found.map_or(1.0, LatencySeries::missed_share);
            let most = before + LIMITS.missed;
            if now > most {
                let shares = missed_words(now, Self::WITHOUT, *before);
                names.push(format!("{name} misses {shares}"));
                excess = excess.max(libm::log(now / most));
            }
        }
        (names, excess)
    }
}

/// A policy's probes of the host.
fn probes<'d>(
    document: &'d Document,
    policy: &'d str,
) -> impl Iterator<Item = &'d LatencySeries> + 'd {
    document.latencies().filter(move |s| s.key.policy == policy && !s.is_of_a_guest())
}

/// What an objective and the limits are of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Each limit's reading; `None` where the result has no such value.
    pub limits: Vec<Option<Reading>>,
    /// What is minimised.
    pub cost: Option<Reading>,
    /// The worst limit, by [`Slo::excess`]; zero or less where all hold.
    pub excess: f64,
    /// How sure the worst limit is.
    pub held: Held,
    /// Probes of the host that it starves, in words: a limit that is broken, whoever names it or not.
    pub starved: Vec<String>,
}

/// Excess of a limit whose quantity has no value: beyond any real one.
const UNKNOWN: f64 = 1e3;

impl Score {
    /// Reads the score of a policy from a result.
    pub fn of(
        document: &Document,
        policy: &str,
        slos: &[Slo],
        cost: Option<&Quantity>,
        host: &Host,
    ) -> Self {
        let (starved, beyond) = host.starved(document, policy);
        let limits: Vec<Option<Reading>> =
            slos.iter().map(|slo| slo.quantity.read(document, policy)).collect();
        let pairs = || slos.iter().zip(&limits);
        let excess = pairs()
            .map(|(slo, reading)| reading.map_or(UNKNOWN, |r| slo.excess(r.value)))
            .fold(beyond, f64::max);
        let broken = (!starved.is_empty()).then_some(Held::No);
        let held = pairs().map(|(slo, r)| r.map_or(Held::Unlikely, |r| slo.held(r)));
        let held = held.chain(broken).min();
        Self {
            cost: cost.and_then(|q| q.read(document, policy)),
            excess,
            held: held.unwrap_or(Held::Yes),
            limits,
            starved,
        }
    }

    /// Whether every limit holds, by the values themselves.
    pub fn holds(&self) -> bool {
        self.held >= Held::Likely
    }
}
