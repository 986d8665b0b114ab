//! Published numbers against simulated ones.
//!
//! Every cell is shown, whether it agrees or not; nothing here knows how to look better.

mod compare;
mod document;
mod histogram;

use std::collections::BTreeMap;

use vcoop_model::builtin::builtin_scenario;
use vcoop_model::capture::CaptureLoader;
use vcoop_model::diagnostic::Diagnostics;
use vcoop_model::plan::Plan;
use vcoop_model::scenario::{Scenario, Set};

use crate::analysis::{About, document};
use crate::backend::{Column, Sim};
use crate::published::{Claim, Histogram, Publication, Table};
use crate::result::Document;
pub use document::{
    Bucket, Caption, Cell, CheckResult, ClaimResult, Evidence, HistogramResult, Reproduction,
    SCHEMA, Summary,
};

use crate::runner::{Control, Experiment, Measured, PlanRuns, RunError};

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
    /// Everything named: publications, tables, claims; all there is for no name.
    ///
    /// # Errors
    ///
    /// The name that is none of these.
    pub fn new(publications: &[Publication], names: &[String]) -> Result<Self, String> {
        let mut chosen = Self::default();
        let mut unknown: Vec<&String> = names.iter().collect();
        for publication in publications {
            let whole = names.is_empty() || names.contains(&publication.name);
            unknown.retain(|name| **name != publication.name);
            let tables: Vec<Table> = publication
                .tables
                .iter()
                .filter(|t| whole || names.contains(&t.id))
                .cloned()
                .collect();
            let claims: Vec<Claim> = publication
                .claims
                .iter()
                .filter(|c| whole || names.contains(&c.id))
                .cloned()
                .collect();
            let histograms: Vec<Histogram> = publication
                .histograms
                .iter()
                .filter(|h| whole || names.contains(&h.id))
                .cloned()
                .collect();
            unknown.retain(|name| !tables.iter().any(|t| t.id == **name));
            unknown.retain(|name| !histograms.iter().any(|h| h.id == **name));
            unknown.retain(|name| !claims.iter().any(|c| c.id == **name));
            if !(tables.is_empty() && histograms.is_empty() && claims.is_empty()) {
                chosen.publications.push(publication.clone());
            }
            chosen.tables.extend(tables);
            chosen.histograms.extend(histograms);
            chosen.claims.extend(claims);
        }
        unknown.first().map_or(Ok(chosen), |name| Err((*name).clone()))
    }

    /// The scenarios it takes, in the order in which they first come up.
    pub fn scenarios(&self) -> Vec<&str> {
        let tables = self.tables.iter().map(|table| &table.scenario);
        let tables = tables.chain(self.histograms.iter().map(|histogram| &histogram.scenario));
        let claims = self.claims.iter().flat_map(|c| c.checks.iter().map(|check| &check.scenario));
        let mut names: Vec<&str> = Vec::new();
        for name in tables.chain(claims) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }
}

/// Why nothing could be reproduced.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A published file names a scenario that does not ship.
    #[error("no scenario `{0}`")]
    NoScenario(String),
    /// The scenario refuses an override.
    #[error("{0}")]
    Scenario(#[from] Diagnostics),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The experiment behind a selection: all scenarios as one, so that all cores are busy to the end.
#[derive(Clone, Debug)]
pub struct Setup {
    scenarios: Vec<(Scenario, usize)>,
    plans: Vec<Plan>,
}

impl Setup {
    /// Reads the scenarios, with overrides (repeats, seed, duration) for all.
    ///
    /// # Errors
    ///
    /// As [`ReproduceError`], except a failed run.
    pub fn new(
        selection: &Selection,
        overrides: &[Set],
        loader: &dyn CaptureLoader,
    ) -> Result<Self, ReproduceError> {
        let (mut scenarios, mut plans) = (Vec::new(), Vec::new());
        for name in selection.scenarios() {
            let missing = || ReproduceError::NoScenario(name.to_owned());
            let text = builtin_scenario(name).ok_or_else(missing)?;
            let scenario = Scenario::parse(name, text, overrides, loader)?;
            let own = scenario.plans(None)?;
            scenarios.push((scenario, own.len()));
            plans.extend(own);
        }
        Ok(Self { scenarios, plans })
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

    fn histograms(&self, selection: &Selection, measured: &Measured) -> Vec<HistogramResult> {
        let mut all = Vec::new();
        for histogram in &selection.histograms {
            let of = |run: &&PlanRuns| self.plans[run.plan].scenario == histogram.scenario;
            let runs: Vec<PlanRuns> = measured.runs.iter().filter(of).cloned().collect();
            all.extend(histogram::compare(histogram, &self.plans, &runs));
        }
        all
    }

    fn documents(&self, measured: &Measured) -> Vec<Document> {
        let mut documents = Vec::new();
        let mut first = 0;
        for (scenario, count) in &self.scenarios {
            let range = first..first + count;
            let mut runs = measured.runs[range.clone()].to_vec();
            for run in &mut runs {
                run.plan -= first;
            }
            let part =
                Measured { runs, interrupted: measured.interrupted, failure: None, others: None };
            let about = About { baseline: scenario.baseline.clone(), ..About::default() };
            documents.push(document(&self.plans[range], &part, about));
            first += count;
        }
        documents
    }

    fn assumptions(&self) -> BTreeMap<String, Vec<String>> {
        self.scenarios.iter().map(|(s, _)| (s.name.clone(), s.assumptions.clone())).collect()
    }
}
