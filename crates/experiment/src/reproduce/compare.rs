//! Compares tables and claims with measurements.

use std::collections::BTreeMap;

use vcoop_model::distinct;
use vcoop_model::plan::Plan;
use vcoop_statistics::median;

use super::document::{
    Caption, Cell, CheckResult, ClaimResult, Evidence, HistogramResult, Reproduction, SCHEMA,
    Summary,
};
use super::{Measurement, Selection};
use crate::params;
use crate::published::{
    CYCLES, Check, Claim, Column, Coordinates, Quantity, QuantityForm, Row, TIMES, Table,
};
use crate::result::{Document, Interval, Key, Series, SpanView};
use crate::rounding::{ratio, scalar};

/// Compares tables and claims with the documents of the scenarios.
pub(super) fn compare(
    selection: &Selection,
    measured: &[Measurement<'_>],
    histograms: Vec<HistogramResult>,
    assumptions: BTreeMap<String, Vec<String>>,
    interrupted: bool,
) -> Reproduction {
    let mut cells = Vec::new();
    for table in &selection.tables {
        let of = of(measured, &table.scenario);
        for (row, values) in table.rows.iter().zip(&table.values) {
            for (column, published) in table.columns.iter().zip(values) {
                let own = of.and_then(|m| simulated(m, table, row, column));
                let per = column.per.as_ref().map(|per| {
                    let other = table.columns.iter().find(|other| other.name == *per)?;
                    of.and_then(|m| simulated(m, table, row, other)).filter(|v| *v > 0.0)
                });
                let simulated = match per {
                    Some(per) => own.zip(per).map(|(own, per)| ratio(own / per)),
                    None => own,
                };
                cells.push(cell(table, row, column, *published, simulated));
            }
        }
    }
    let claims: Vec<ClaimResult> =
        selection.claims.iter().map(|one| claim(one, measured)).collect();
    let summary = summary(&cells, &claims);
    Reproduction {
        schema: SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        interrupted,
        tables: selection.tables.iter().map(caption).collect(),
        cells,
        histograms,
        claims,
        summary,
        notes: notes(selection),
        hosts: measured.iter().map(|m| (m.of.name.to_owned(), m.document.hosts.clone())).collect(),
        assumptions,
    }
}

fn caption(table: &Table) -> (String, Caption) {
    let (title, row_name) = (table.title.clone(), table.row_name.clone());
    (table.id.clone(), Caption { title, row_name })
}

fn of<'m>(measured: &'m [Measurement<'m>], scenario: &str) -> Option<&'m Measurement<'m>> {
    measured.iter().find(|one| one.of.name == scenario)
}

/// The simulated value of a cell, before any division.
fn simulated(m: &Measurement<'_>, table: &Table, row: &Row, column: &Column) -> Option<f64> {
    let place = column.place(row);
    let (policy, probe) = (&column.policy, &column.probe);
    let series = find(&m.document, policy, probe, &table.metric, |k| fits(&k.cell, &place))?;
    let value = quantity(series, table.quantity)?;
    let key = series.key();
    let plan = m.of.plans.iter().find(|p| p.policy_name == *policy && p.params == key.cell);
    let (from, to) = (us_per(&key.unit, plan), us_per(table.simulated_unit(), plan));
    Some(match (from, to) {
        (Some(from), Some(to)) if from != to => scalar(value * from / to),
        // A count or a share is no time, nor the other way round.
        (None, Some(_)) | (Some(_), None) if table.comparable && column.per.is_none() => {
            return None;
        }
        _ => value,
    })
}

/// Microseconds in a unit of time; for cycles, by the profile.
fn us_per(unit: &str, plan: Option<&Plan>) -> Option<f64> {
    if unit == CYCLES {
        return Some(1e3 / f64::from(plan?.host.cpu?.tsc_khz));
    }
    TIMES.iter().find(|(name, _)| *name == unit).map(|(_, us)| *us)
}

/// Unit of values that are ratios to another column.
const RATIO: &str = "ratio";

fn cell(table: &Table, row: &Row, column: &Column, published: f64, simulated: Option<f64>) -> Cell {
    let (unit, simulated_unit) = match column.per {
        Some(_) => (RATIO, RATIO),
        None => (table.unit.as_str(), table.simulated_unit()),
    };
    let quotient = simulated.filter(|_| published > 0.0).map(|s| s / published);
    let both_zero = published == 0.0 && simulated == Some(0.0);
    Cell {
        table: table.id.clone(),
        row: row.name.clone(),
        column: column.name.clone(),
        unit: unit.to_owned(),
        published,
        simulated,
        ratio: quotient.map(ratio),
        simulated_unit: simulated_unit.to_owned(),
        comparable: table.comparable,
        within_2x: both_zero || quotient.is_some_and(|q| (0.5..=2.0).contains(&q)),
    }
}

/// Whether a matrix cell has the coordinates.
pub(super) fn fits(cell: &Coordinates, asked: &Coordinates) -> bool {
    asked.iter().all(|(path, value)| cell.get(path) == Some(value))
}

fn find<'d>(
    document: &'d Document,
    policy: &str,
    probe: &str,
    metric: &str,
    place: impl Fn(&Key) -> bool,
) -> Option<&'d Series> {
    document.series.iter().find(|series| {
        let key = series.key();
        key.policy == policy && key.probe == probe && key.metric == metric && place(key)
    })
}

fn quantity(series: &Series, quantity: Quantity) -> Option<f64> {
    match (series, quantity) {
        (Series::Latency(s), Quantity::Min) => s.min,
        (Series::Latency(s), Quantity::MaxPerRepeat) => s.max_per_repeat,
        (Series::Latency(s), quantity) => s.statistic(quantity.statistic()?).0,
        (Series::Scalar(s), Quantity::Value) => s.value,
        (Series::Scalar(_), _) => None,
    }
}

fn claim(claim: &Claim, measured: &[Measurement<'_>]) -> ClaimResult {
    let mut checks = Vec::new();
    for check in &claim.checks {
        let document = of(measured, &check.scenario).map(|m| &m.document);
        let asked = |cell: &&Coordinates| {
            check.cells.is_empty() || check.cells.iter().any(|c| fits(cell, c))
        };
        let cells = document.into_iter().flat_map(|d| &d.series).map(|series| &series.key().cell);
        let places = distinct(cells.filter(asked).cloned());
        let before = checks.len();
        checks.extend(places.into_iter().map(|place| result(check, document, place)));
        if checks.len() == before {
            // Nothing was measured: a claim is not held by the lack of evidence.
            checks.push(result(check, None, Coordinates::new()));
        }
    }
    ClaimResult {
        id: claim.id.clone(),
        statement: claim.statement.clone(),
        holds: checks.iter().all(|check| check.holds),
        evidence: Evidence {
            assumption: claim.assumption.clone(),
            reason: claim.reason.clone(),
            depends: claim.depends.clone(),
            shown_by: claim.shown_by.clone(),
            checks,
        },
    }
}

fn result(check: &Check, document: Option<&Document>, place: Coordinates) -> CheckResult {
    let series = |policy: &str, place: &Coordinates| {
        find(document?, policy, &check.probe, &check.metric, |key| key.cell == *place)
    };
    let of = |policy: &str, place: &Coordinates| match check.quantity {
        Quantity::Curve => between(document?, check, policy, place),
        Quantity::Interleaved => interleaved(document?, check, policy, place),
        of_a_series => {
            let value = quantity(series(policy, place)?, of_a_series)?;
            let Some(per) = &check.per else { return Some(value) };
            let other = find(document?, policy, &check.probe, per, |key| key.cell == *place);
            Some(ratio(value / quantity(other?, of_a_series)?))
        }
    };
    let mut other_place = place.clone();
    other_place.extend(check.to_cell.clone());
    let other_policy = check.to.as_ref().unwrap_or(&check.policy);
    let value = || -> Option<f64> {
        Some(match check.form {
            QuantityForm::Value => of(&check.policy, &place)?,
            QuantityForm::Ratio => {
                ratio(of(&check.policy, &place)? / of(other_policy, &other_place)?)
            }
            QuantityForm::Difference => {
                scalar(of(&check.policy, &place)? - of(other_policy, &other_place)?)
            }
            QuantityForm::Share => match series(&check.policy, &place)? {
                Series::Latency(s) => ratio(s.parts_mean.get(check.part.as_deref()?)? / s.mean?),
                Series::Scalar(_) => return None,
            },
        })
    };
    let value = value().filter(|v| v.is_finite());
    let to_baseline = document.is_some_and(|d| check.to.as_ref() == Some(&d.baseline))
        && check.to_cell.is_empty();
    let shown = check.form == QuantityForm::Ratio && to_baseline && check.per.is_none();
    let ci95 = series(&check.policy, &place).filter(|_| shown);
    let ci95 = ci95.and_then(|series| interval(series, check.quantity));
    let keeps = |v: f64| {
        check.at_least.is_none_or(|bound| v >= bound)
            && check.at_most.is_none_or(|bound| v <= bound)
    };
    CheckResult {
        scenario: check.scenario.clone(),
        what: words(check),
        unit: unit(check, series(&check.policy, &place).map(Series::key)),
        cell: place,
        value,
        ci95,
        at_least: check.at_least,
        at_most: check.at_most,
        holds: value.is_some_and(keeps),
    }
}

/// Unit of the compared values, which is that of the series; empty for ratios.
fn unit(check: &Check, key: Option<&Key>) -> String {
    let own = key.map_or("", |key| &key.unit);
    let unit = match (check.form, check.quantity, &check.per) {
        (QuantityForm::Ratio | QuantityForm::Share, ..)
        | (_, Quantity::Interleaved, _)
        | (.., Some(_)) => "",
        (_, Quantity::Curve, _) => "s",
        _ => own,
    };
    unit.to_owned()
}

/// Seconds between two points of a curve.
fn between(d: &Document, check: &Check, policy: &str, place: &Coordinates) -> Option<f64> {
    let curve = d.curves.iter().find(|c| {
        c.vm == check.probe
            && c.event == check.metric
            && c.place.policy == policy
            && c.place.cell == *place
    })?;
    let at = |n: u32| match n {
        0 => Some(0.0),
        n => curve.points.iter().find(|p| p.vm == n).map(|p| p.mean_s),
    };
    let [from, to] = check.vms?;
    Some(scalar(at(to)? - at(from)?))
}

/// Share of pauses in which another VM ran, for the vCPU with which a view begins.
fn interleaved(d: &Document, check: &Check, policy: &str, place: &Coordinates) -> Option<f64> {
    let view = d
        .intervals
        .iter()
        .find(|v| v.at == check.metric && v.place.policy == policy && v.place.cell == *place)?;
    let own = &view.spans.first()?.who;
    let served = format!("{}/", check.probe);
    let mut pauses: Vec<_> = view.spans.split(|span| span.who == *own).skip(1).collect();
    // The time after the last run is no pause between two runs.
    pauses.pop();
    let third = |pause: &&&[SpanView]| pause.iter().any(|s| !s.who.starts_with(&served));
    let taken = pauses.iter().filter(third).count();
    (!pauses.is_empty()).then(|| ratio(taken as f64 / pauses.len() as f64))
}

fn interval(series: &Series, quantity: Quantity) -> Option<Interval> {
    match series {
        Series::Latency(s) => s.ratio(quantity.statistic()?).1,
        Series::Scalar(s) => s.ratio_ci95.filter(|_| quantity == Quantity::Value),
    }
}

fn words(check: &Check) -> String {
    let quantity = match check.quantity {
        Quantity::Mean => "mean".to_owned(),
        Quantity::Min => "minimum".to_owned(),
        Quantity::P50 => "p50".to_owned(),
        Quantity::P90 => "p90".to_owned(),
        Quantity::P99 => "p99".to_owned(),
        Quantity::P999 => "p99.9".to_owned(),
        Quantity::MaxPerRepeat => "maximum".to_owned(),
        Quantity::Value => match &check.per {
            Some(per) => format!("{} / {per}", check.metric),
            None => check.metric.clone(),
        },
        Quantity::Curve => {
            let [from, to] = check.vms.unwrap_or_default();
            format!("{} of VMs {from} to {to}", check.metric)
        }
        Quantity::Interleaved => format!("interleaved at {}", check.metric),
    };
    let (probe, policy) = (&check.probe, &check.policy);
    let mut to = check.to.clone().unwrap_or_else(|| policy.clone());
    if !check.to_cell.is_empty() {
        to = format!("{to} at {}", params::words(&params::short(&check.to_cell)));
    }
    match check.form {
        QuantityForm::Value => format!("{probe} {quantity}, {policy}"),
        QuantityForm::Ratio => format!("{probe} {quantity}, {policy} / {to}"),
        QuantityForm::Difference => format!("{probe} {quantity}, {policy} - {to}"),
        QuantityForm::Share => {
            format!("{probe} share of {} in mean, {policy}", check.part.as_deref().unwrap_or("?"))
        }
    }
}

fn summary(cells: &[Cell], claims: &[ClaimResult]) -> Summary {
    let comparable: Vec<&Cell> = cells.iter().filter(|c| c.comparable).collect();
    let mut logs: Vec<f64> =
        comparable.iter().filter_map(|c| c.ratio).map(|r| libm::log2(r).abs()).collect();
    let middle = median(&mut logs);
    Summary {
        cells: cells.len(),
        within_2x: cells.iter().filter(|c| c.within_2x).count(),
        cells_comparable: comparable.len(),
        within_2x_comparable: comparable.iter().filter(|c| c.within_2x).count(),
        median_abs_log2: middle.filter(|m| m.is_finite()).map(ratio),
        claims: claims.len(),
        claims_held: claims.iter().filter(|c| c.holds).count(),
    }
}

fn notes(selection: &Selection) -> Vec<String> {
    let mut notes = Vec::new();
    for publication in &selection.publications {
        notes.push(format!("{}: {}", publication.name, publication.source));
        notes.extend(publication.notes.iter().cloned());
    }
    notes
}
