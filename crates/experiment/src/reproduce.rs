//! Published numbers against simulated ones.
//!
//! Every cell is shown, whether it agrees or not.

mod compare;
mod document;
mod histogram;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use vcoop_model::builtin::named_scenario;
use vcoop_model::capture::CaptureLoader;
use vcoop_model::diagnostic::{Diagnostic, Diagnostics};
use vcoop_model::distinct;
use vcoop_model::plan::Plan;
use vcoop_model::scenario::{Scenario, Set};

use crate::analysis::{Metadata, document};
use crate::backend::{Column, Sim};
use crate::published::{Claim, Histogram, Publication, Table};
use crate::result::Document;
pub use document::{
    Bucket, Caption, Cell, CheckResult, ClaimResult, Evidence, HistogramResult, Reproduction,
    SCHEMA, Summary,
};

use crate::runner::{Control, Experiment, Measurements, RunError};

/// Tables and claims to reproduce.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Tables.
    pub tables: Vec<Table>,
    /// Histograms.
    pub histograms: Vec<Histogram>,
    /// Claims.
    pub claims: Vec<Claim>,
    /// The publications they are from.
    pub publications: Vec<Publication>,
}

impl Selection {
    /// Everything with these names (publications, tables, claims); without names, everything.
    ///
    /// # Errors
    ///
    /// A name that does not exist.
    pub fn new(publications: &[Publication], names: &[String]) -> Result<Self, String> {
        let mut chosen = Self::default();
        let mut unknown: Vec<&String> = names.iter().collect();
        for publication in publications {
            let whole = names.is_empty() || names.contains(&publication.name);
            unknown.retain(|name| **name != publication.name);
            unknown.retain(|name| !publication.ids().any(|(_, id)| id == *name));
            let asked = |id: &String| whole || names.contains(id);
            if publication.ids().any(|(_, id)| asked(id)) {
                chosen.publications.push(publication.clone());
            }
            let Publication { tables, histograms, claims, .. } = publication;
            chosen.tables.extend(tables.iter().filter(|table| asked(&table.id)).cloned());
            chosen.histograms.extend(histograms.iter().filter(|h| asked(&h.id)).cloned());
            chosen.claims.extend(claims.iter().filter(|claim| asked(&claim.id)).cloned());
        }
        unknown.first().map_or(Ok(chosen), |name| Err((*name).clone()))
    }

    /// Adds all of a publication.
    ///
    /// # Errors
    ///
    /// A name in it that the selection already has: results are identified by name.
    pub fn add(&mut self, publication: Publication) -> Result<(), Diagnostics> {
        let tables = self.tables.iter().map(|table| &table.id);
        let histograms = self.histograms.iter().map(|histogram| &histogram.id);
        let claims = self.claims.iter().map(|claim| &claim.id);
        let known: Vec<&String> = tables.chain(histograms).chain(claims).collect();
        let twice = publication.ids().filter(|(_, id)| known.contains(id));
        let found = twice.map(|(path, id)| {
            let message = format!("something else that is reproduced is called `{id}`, too");
            let help = "give it a name of its own, or leave the other out".to_owned();
            publication.origin.at(&path, message, Some(help))
        });
        let found: Vec<Diagnostic> = found.collect();
        if !found.is_empty() {
            return Err(Diagnostics(found));
        }
        self.tables.extend(publication.tables.iter().cloned());
        self.histograms.extend(publication.histograms.iter().cloned());
        self.claims.extend(publication.claims.iter().cloned());
        self.publications.push(publication);
        Ok(())
    }

    /// A diagnostic about a missing scenario, at the first place that names it.
    fn no_scenario(&self, name: &str, message: &str, help: Option<String>) -> Diagnostics {
        let said = |publication: &Publication| {
            let (mut path, _) = publication.scenarios().find(|(_, scenario)| *scenario == name)?;
            path.push("scenario".into());
            Some(publication.origin.at(&path, message.to_owned(), help.clone()))
        };
        let whole = || Diagnostic::whole("scenario", message.to_owned(), help.clone());
        self.publications.iter().find_map(said).unwrap_or_else(whole).into()
    }

    /// The scenarios that it needs, in order of first appearance.
    pub fn scenarios(&self) -> Vec<&str> {
        let tables = self.tables.iter().map(|table| &table.scenario);
        let tables = tables.chain(self.histograms.iter().map(|histogram| &histogram.scenario));
        let claims = self.claims.iter().flat_map(|c| c.checks.iter().map(|check| &check.scenario));
        distinct(tables.chain(claims).map(String::as_str))
    }

    /// The policies of a scenario that are compared with something published.
    fn policies(&self, scenario: &str) -> BTreeSet<&str> {
        let tables = self.tables.iter().filter(|table| table.scenario == scenario);
        let tables = tables.flat_map(|table| table.columns.iter().map(|column| &column.policy));
        let histograms = self.histograms.iter().filter(|h| h.scenario == scenario);
        let histograms = histograms.flat_map(|h| h.columns.iter().map(|column| &column.policy));
        let checks = self.claims.iter().flat_map(|claim| &claim.checks);
        let checks = checks.filter(|check| check.scenario == scenario);
        let checks = checks.flat_map(|check| [&check.policy].into_iter().chain(&check.to));
        tables.chain(histograms).chain(checks).map(String::as_str).collect()
    }
}

/// Why a reproduction failed.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A scenario is missing, refuses an override, or lacks something that a publication names.
    #[error("{0}")]
    Scenario(#[from] Diagnostics),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The plans of one scenario of a selection.
#[derive(Clone, Debug)]
struct SelectedScenario {
    /// Its name in the selection.
    name: String,
    scenario: Scenario,
    /// Its plans.
    plans: Range<usize>,
}

/// The plans of a scenario, by its name in publications.
struct ScenarioPlans<'p> {
    name: &'p str,
    plans: &'p [Plan],
}

/// The experiment for a selection: all scenarios as one, so that all cores are busy to the end.
#[derive(Clone, Debug)]
pub struct Setup {
    scenarios: Vec<SelectedScenario>,
    plans: Vec<Plan>,
}

impl Setup {
    /// Reads the scenarios, with overrides (repeats, seed, duration) for all. Policies that nothing published is
    /// compared with are left out.
    ///
    /// # Errors
    ///
    /// As [`ReproduceError`], except a failed run.
    pub fn new(
        selection: &Selection,
        overrides: &[Set],
        loader: &dyn CaptureLoader,
    ) -> Result<Self, ReproduceError> {
        let mut read = Vec::new();
        for name in selection.scenarios() {
            let text = named_scenario(name, Path::new(name))
                .map_err(|(message, help)| selection.no_scenario(name, &message, help))?;
            let scenario = Scenario::parse(name, &text, overrides, loader)?;
            let plans = scenario.plans(None)?;
            read.push((name, scenario, plans));
        }
        let all: Vec<ScenarioPlans<'_>> =
            read.iter().map(|(name, _, plans)| ScenarioPlans { name, plans }).collect();
        let wrong = selection.publications.iter().flat_map(|one| names::wrong(one, &all));
        let found: Vec<Diagnostic> = wrong.collect();
        if !found.is_empty() {
            return Err(Diagnostics(found).into());
        }
        let mut setup = Self { scenarios: Vec::new(), plans: Vec::new() };
        for (name, scenario, plans) in read {
            let compared = selection.policies(name);
            let is_compared = |plan: &Plan| compared.contains(plan.policy_name.as_str());
            let first = setup.plans.len();
            setup.plans.extend(plans.into_iter().filter(is_compared));
            let plans = first..setup.plans.len();
            setup.scenarios.push(SelectedScenario { name: name.to_owned(), scenario, plans });
        }
        Ok(setup)
    }

    fn all(&self) -> impl Iterator<Item = ScenarioPlans<'_>> {
        let of = |own: &'_ SelectedScenario| own.plans.clone();
        self.scenarios
            .iter()
            .map(move |own| ScenarioPlans { name: &own.name, plans: &self.plans[of(own)] })
    }

    /// Runs it and compares.
    ///
    /// # Errors
    ///
    /// A run failed.
    pub fn run(
        &self,
        selection: &Selection,
        jobs: usize,
        control: Control<'_>,
    ) -> Result<Reproduction, ReproduceError> {
        let columns = [Column::all(&Sim, self.plans.len())];
        let experiment = Experiment { plans: &self.plans, columns: &columns, jobs };
        let mut measured = experiment.run(control)?;
        if let Some(failure) = measured.failure.take() {
            return Err(failure.into());
        }
        let documents = self.documents(&measured);
        let histograms = self.histograms(selection, &measured);
        let (assumptions, interrupted) = (self.assumptions(), measured.interrupted);
        Ok(compare::compare(selection, &documents, histograms, assumptions, interrupted))
    }

    fn histograms(&self, selection: &Selection, measured: &Measurements) -> Vec<HistogramResult> {
        let mut all = Vec::new();
        for histogram in &selection.histograms {
            let own = self.scenarios.iter().find(|own| own.name == histogram.scenario);
            let runs = own.map_or(&[][..], |own| &measured.runs[own.plans.clone()]);
            all.extend(histogram::compare(histogram, &self.plans, runs));
        }
        all
    }

    fn documents(&self, measured: &Measurements) -> Vec<Measurement<'_>> {
        let mut documents = Vec::new();
        for (own, of) in self.scenarios.iter().zip(self.all()) {
            let mut runs = measured.runs[own.plans.clone()].to_vec();
            for run in &mut runs {
                run.plan -= own.plans.start;
            }
            let part = Measurements {
                runs,
                interrupted: measured.interrupted,
                failure: None,
                others: None,
            };
            let about = Metadata { baseline: own.scenario.baseline.clone(), ..Metadata::default() };
            documents.push(Measurement { document: document(of.plans, &part, about), of });
        }
        documents
    }

    fn assumptions(&self) -> BTreeMap<String, Vec<String>> {
        let assumptions =
            |own: &SelectedScenario| (own.name.clone(), own.scenario.assumptions.clone());
        self.scenarios.iter().map(assumptions).collect()
    }
}

/// Results of a scenario.
struct Measurement<'p> {
    of: ScenarioPlans<'p>,
    document: Document,
}
