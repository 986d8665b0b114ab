//! Checks names in publications against the scenarios.

use std::collections::BTreeSet;

use vcoop_model::diagnostic::{Diagnostic, nearest};
use vcoop_model::plan::Plan;
use vcoop_model::recording::Part;

use super::ScenarioPlans;
use super::compare::fits;
use crate::published::{CYCLES, Coordinates, Publication, Step};

/// Every policy, probe and matrix cell of a publication that its scenarios do not have. Scenarios that are not in `all`
/// are not checked.
pub(super) fn wrong(publication: &Publication, all: &[ScenarioPlans<'_>]) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let of = |name: &str| all.iter().find(|scenario| scenario.name == name);
    for (i, table) in publication.tables.iter().enumerate() {
        let Some(scenario) = of(&table.scenario) else { continue };
        let mut held = NameCheck { publication, scenario, found: &mut found };
        let at = |list: &'static str, j: usize, key: &'static str| -> [Step<'static>; 5] {
            ["table".into(), i.into(), list.into(), j.into(), key.into()]
        };
        for (j, column) in table.columns.iter().enumerate() {
            held.policy(&column.policy, &at("columns", j, "policy"));
            held.probe(&column.probe, &at("columns", j, "probe"));
            held.cell(&column.cell, &at("columns", j, "cell"));
        }
        for (j, row) in table.rows.iter().enumerate() {
            held.cell(&row.cell, &at("rows", j, "cell"));
            let places = table.columns.iter().map(|column| column.place(row));
            if let Some(free) = places.filter_map(|place| held.free(&place)).next() {
                let message = format!("it is not said which `{free}` this row is about");
                let help = format!("add cell = {{ \"{free}\" = ... }} to the row or to columns");
                held.refuse(&at("rows", j, "name")[..4], message, Some(help));
            }
        }
        if table.simulated_unit() == CYCLES
            && let Some(plan) = scenario.plans.iter().find(|plan| plan.host.cpu.is_none())
        {
            let profile = &plan.host.profile;
            let message = format!("the profile {profile} does not say how long a cycle is");
            let key = if table.simulated_unit.is_some() { "simulated_unit" } else { "unit" };
            let help = Some("take another profile, or add [cpu] to it".to_owned());
            held.refuse(&["table".into(), i.into(), key.into()], message, help);
        }
    }
    for (i, histogram) in publication.histograms.iter().enumerate() {
        let Some(scenario) = of(&histogram.scenario) else { continue };
        let mut held = NameCheck { publication, scenario, found: &mut found };
        held.probe(&histogram.probe, &["histogram".into(), i.into(), "probe".into()]);
        for (j, column) in histogram.columns.iter().enumerate() {
            let at = |key| ["histogram".into(), i.into(), "column".into(), j.into(), key];
            held.policy(&column.policy, &at("policy".into()));
            held.cell(&column.cell, &at("cell".into()));
        }
    }
    for (i, claim) in publication.claims.iter().enumerate() {
        for (j, check) in claim.checks.iter().enumerate() {
            let Some(scenario) = of(&check.scenario) else { continue };
            let mut held = NameCheck { publication, scenario, found: &mut found };
            let at = |key| ["claim".into(), i.into(), "check".into(), j.into(), key];
            held.policy(&check.policy, &at("policy".into()));
            if let Some(to) = &check.to {
                held.policy(to, &at("to".into()));
            }
            held.probe(&check.probe, &at("probe".into()));
            for (k, cell) in check.cells.iter().enumerate() {
                held.cell(cell, &[&at("cells".into())[..], &[k.into()]].concat());
            }
            held.cell(&check.to_cell, &at("to_cell".into()));
            if let Some(part) = &check.part {
                held.part(part, &at("part".into()));
            }
        }
    }
    found
}

/// A scenario, and the publication that is checked against it.
struct NameCheck<'h> {
    publication: &'h Publication,
    scenario: &'h ScenarioPlans<'h>,
    found: &'h mut Vec<Diagnostic>,
}

impl NameCheck<'_> {
    fn refuse(&mut self, path: &[Step<'_>], message: String, help: Option<String>) {
        self.found.push(self.publication.origin.at(path, message, help));
    }

    /// Refuses a name that is not in `known`; `what`: their kind, for lists.
    fn known<'n>(
        &mut self,
        name: &str,
        known: impl Iterator<Item = &'n str>,
        what: &str,
        path: &[Step<'_>],
        message: impl Fn(&str) -> String,
    ) {
        let known: BTreeSet<&str> = known.collect();
        if !known.contains(name) {
            let message = message(self.scenario.name);
            self.refuse(path, message, Some(nearest(name, what, known)));
        }
    }

    fn policy(&mut self, name: &str, path: &[Step<'_>]) {
        let known = self.scenario.plans.iter().map(|plan| plan.policy_name.as_str());
        self.known(name, known, "policies compared", path, |scenario| {
            format!("scenario {scenario} does not compare the policy `{name}`")
        });
    }

    fn probe(&mut self, name: &str, path: &[Step<'_>]) {
        let plans = self.scenario.plans.iter();
        let mut known: BTreeSet<String> = plans.clone().flat_map(Plan::subjects).collect();
        // The tasks of all VMs together, whose rates are summed.
        let tasks = plans.flat_map(|plan| &plan.vms).flat_map(|vm| &vm.tasks);
        known.extend(tasks.map(|task| format!("*.{}", task.label)));
        self.known(name, known.iter().map(String::as_str), "probes", path, |scenario| {
            format!("scenario {scenario} has no probe `{name}`")
        });
    }

    fn part(&mut self, name: &str, path: &[Step<'_>]) {
        let known = Part::ALL.iter().map(|part| part.name()).chain(["host_wait"]);
        self.known(name, known, "parts", path, |_| {
            format!("no part of a latency is called `{name}`")
        });
    }

    /// `path` is that of the table of coordinates.
    fn cell(&mut self, cell: &Coordinates, path: &[Step<'_>]) {
        let cells = self.scenario.plans.iter().map(|plan| &plan.params);
        for (axis, value) in cell {
            let path = [path, &[axis.as_str().into()]].concat();
            let values = cells.clone().filter_map(|cell| cell.get(axis).map(String::as_str));
            if values.clone().next().is_none() {
                let axes = cells.clone().flat_map(|cell| cell.keys().map(String::as_str));
                self.known(axis, axes, "fields of its [matrix]", &path, |scenario| {
                    format!("scenario {scenario} has no [matrix] with `{axis}`")
                });
            } else {
                self.known(value, values, "values", &path, |scenario| {
                    format!("scenario {scenario} has no cell where `{axis}` is `{value}`")
                });
            }
        }
    }

    /// An axis of the matrix that a place does not determine.
    fn free(&self, place: &Coordinates) -> Option<String> {
        let mut cells = self.scenario.plans.iter().map(|plan| &plan.params);
        let first = cells.find(|cell| fits(cell, place))?;
        let other = cells.find(|cell| fits(cell, place) && *cell != first)?;
        first.iter().find(|(axis, value)| other.get(*axis) != Some(value)).map(|(a, _)| a.clone())
    }
}
