//! A dataset as a map: one axis down, one across; each cell summarises all of its points.
//!
//! An axis of many numbers is cut into bins, named by the least and the largest value in each.
//!
//! Points that differ in other axes share a cell. Ratios are combined by their geometric mean, because 2x and 0.5x
//! cancel out; other numbers by their median.

mod best;

use std::collections::BTreeSet;
use std::path::Path;

use vcoop_experiment::result::Limits;
use vcoop_model::diagnostic::nearest;
use vcoop_statistics::median;

use crate::columns::{AxisColumn, Kind};
use crate::manifest::{Manifest, Unreadable, manifest};
use crate::parquet_reader::{Record, records};
use crate::row::NUMBERS;
use best::{JUDGED, best, judgeable};

/// Ratios within this factor of the best one count as equal.
pub const AS_GOOD: f64 = 1.05;

/// Axis of a map that shows numbers of several policies, in the sweep's order.
pub const POLICY: &str = "policy";

/// Share of a latency's periods that were missed, in percent, over all points of a cell.
pub const MISSED: &str = "missed";

/// Content of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapContent {
    /// The policy with the lowest p99 of the guests at an acceptable cost.
    Best,
    /// A column of numbers, of one policy and one probe.
    Number {
        /// Column of the dataset, or [`MISSED`].
        column: String,
        /// Policy. None: [`POLICY`] is an axis of the map.
        policy: Option<String>,
        /// Probe, and metric if it is not `latency`: `host.cyclictest`, `host.cpu`. None: the guests' latency, if there
        /// is only one.
        probe: Option<String>,
    },
}

/// Parameters of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct MapRequest {
    /// Axis down, by its column; or [`POLICY`].
    pub rows: String,
    /// Axis across.
    pub columns: String,
    /// Content of the cells.
    pub show: MapContent,
    /// Only points with these values: column and value.
    pub only: Vec<(String, String)>,
    /// What a policy may cost others.
    pub limits: Limits,
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Points in it that did not fail.
    pub points: u32,
    /// The best policy; none if none is better at an acceptable cost, or if the map shows numbers.
    pub best: Option<String>,
    /// Others within [`AS_GOOD`] of it.
    pub ties: Vec<String>,
    /// The value shown: the guests' ratio under the best policy, or the number; none if there is no value.
    pub value: Option<f64>,
    /// Ratio of the host's mean latencies under the best policy.
    pub cost: Option<f64>,
    /// Ratio of the guests' other work under it.
    pub own: Option<f64>,
    /// Whether there are too few repeats to decide which policy is best.
    pub few: bool,
}

/// A map.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// Name of the sweep.
    pub name: String,
    /// Values down.
    pub rows: Vec<String>,
    /// Values across.
    pub columns: Vec<String>,
    /// Row by row.
    pub cells: Vec<Vec<Cell>>,
    /// Policies, in the sweep's order.
    pub policies: Vec<String>,
    /// Policy that ratios are taken to.
    pub baseline: String,
    /// Whether values are ratios.
    pub ratio: bool,
    /// Probe of the numbers, if it shows numbers.
    pub probe: Option<String>,
    /// Their unit, where they have one.
    pub unit: Option<String>,
    /// All points of the sweep.
    pub points: u32,
    /// Points that the folder does not have.
    pub missing: u32,
    /// Points in the folder that failed.
    pub failed: u32,
}

/// Makes a map of a folder.
///
/// # Errors
///
/// The folder cannot be read; or it has no such axis, column, policy or value.
pub fn map(dir: &Path, ask: &MapRequest) -> Result<Map, Unreadable> {
    let manifest = manifest(dir)?;
    let numbers = numbers(ask, &manifest)?;
    let axes = manifest.axes.iter().map(|axis| axis.name.as_str());
    let names: Vec<&str> = axes.chain([POLICY]).collect();
    let axis = |name: &str| {
        names.iter().position(|n| *n == name).ok_or_else(|| {
            Unreadable(format!("no axis `{name}`; {}", nearest(name, "axes", &names)))
        })
    };
    let (down, across) = (axis(&ask.rows)?, axis(&ask.columns)?);
    if down == across {
        let names = names.join(", ");
        let why =
            format!("`{}` cannot be down and across: a map has two axes; axes: {names}", ask.rows);
        return Err(Unreadable(why));
    }
    let mut all = records(dir, &manifest, &numbers)?;
    if ask.show == MapContent::Best {
        judgeable(&all)?;
    }
    for record in &mut all {
        record.axes.push(record.policy.clone());
    }
    let probe = match &ask.show {
        MapContent::Number { probe, .. } => Some(probe_of(&all, probe.as_deref())?),
        MapContent::Best => None,
    };
    let different = |points: &mut dyn Iterator<Item = &Record>| {
        points.map(|record| record.point).collect::<BTreeSet<u32>>().len() as u32
    };
    let failed = different(&mut all.iter().filter(|record| record.error.is_some()));
    let missing = manifest.points - different(&mut all.iter());
    for (i, (name, value)) in ask.only.iter().enumerate() {
        let axis = axis(name)?;
        // The dataset's numbers have no text of their own: 2 and 2.0 are one.
        let number = value.parse::<f64>();
        let is = |text: &String| {
            text == value || number.as_ref().is_ok_and(|n| text.parse() == Ok::<f64, _>(*n))
        };
        all.retain(|record| is(&record.axes[axis]));
        if all.is_empty() {
            let only = ask.only[..=i].iter().map(|(name, value)| format!("{name} = {value}"));
            let only = only.collect::<Vec<String>>().join(" and ");
            return Err(Unreadable(format!("no point has {only}")));
        }
    }
    for axis in [down, across] {
        let of_numbers = |axis: &AxisColumn| matches!(axis.kind, Kind::Int | Kind::Double);
        if manifest.axes.get(axis).is_some_and(of_numbers) {
            bin(&mut all, axis);
        }
    }
    let ratio = match &ask.show {
        MapContent::Best => true,
        MapContent::Number { column, .. } => column.starts_with("ratio"),
    };
    let along = |axis: usize| match names[axis] {
        // The baseline has no ratio to itself.
        POLICY => {
            let all = manifest.policies.iter();
            all.filter(|policy| !ratio || **policy != manifest.baseline).cloned().collect()
        }
        _ => values(&all, axis),
    };
    let (rows, columns) = (along(down), along(across));
    let cell = |row: &String, column: &String| {
        let inside = |r: &&Record| r.axes[down] == *row && r.axes[across] == *column;
        let inside: Vec<&Record> = all.iter().filter(inside).collect();
        match &ask.show {
            MapContent::Best => best(&inside, &manifest.policies, &manifest.baseline, &ask.limits),
            MapContent::Number { column, policy, .. } => {
                number(&inside, column, policy.as_deref(), probe.as_deref().unwrap_or_default())
            }
        }
    };
    let cells = rows.iter().map(|row| columns.iter().map(|c| cell(row, c)).collect()).collect();
    let unit = unit(ask, &all, probe.as_deref()).filter(|_| !ratio);
    let Manifest { name, policies, baseline, points, .. } = manifest;
    Ok(Map {
        name,
        rows,
        columns,
        cells,
        policies,
        baseline,
        ratio,
        probe,
        unit,
        points,
        missing,
        failed,
    })
}

/// The unit of a map's numbers, which are no ratios.
fn unit(ask: &MapRequest, all: &[Record], probe: Option<&str>) -> Option<String> {
    match &ask.show {
        MapContent::Number { column, .. } if column == MISSED => Some("%".to_owned()),
        _ => {
            let unit = &all.iter().find(|r| Some(full_name(r).as_str()) == probe)?.unit;
            (!unit.is_empty()).then(|| unit.clone())
        }
    }
}

/// The columns that a map needs.
fn numbers<'a>(ask: &'a MapRequest, manifest: &Manifest) -> Result<Vec<&'a str>, Unreadable> {
    let of_all = [&ask.rows, &ask.columns].into_iter().any(|axis| axis == POLICY);
    let MapContent::Number { column, policy, .. } = &ask.show else {
        if of_all {
            let why = format!("an axis `{POLICY}` goes with a column: --show ratio_p99");
            return Err(Unreadable(why));
        }
        return Ok([&JUDGED[..], &["value"]].concat());
    };
    let shown = [&NUMBERS[..], &[MISSED]].concat();
    if !shown.contains(&column.as_str()) {
        let help = nearest(column, "columns", &shown);
        return Err(Unreadable(format!("no column of numbers `{column}`; {help}")));
    }
    match policy {
        Some(policy) if !manifest.policies.contains(policy) => {
            let help = nearest(policy, "policies", &manifest.policies);
            Err(Unreadable(format!("no policy `{policy}`; {help}")))
        }
        Some(_) if of_all => {
            Err(Unreadable(format!("an axis `{POLICY}` shows all policies: leave --policy out")))
        }
        None if !of_all => Err(Unreadable(format!(
            "{column} of which policy? Name one by --policy, or show all by --rows {POLICY}"
        ))),
        _ => Ok(vec![column.as_str()]),
    }
}

/// The requested probe; without a name the guests' latency, if there is only one.
fn probe_of(all: &[Record], asked: Option<&str>) -> Result<String, Unreadable> {
    let guests = |r: &&Record| r.is_of_a_guest();
    let names = |of: &dyn Fn(&&Record) -> bool| -> Vec<String> {
        let found: BTreeSet<String> = all.iter().filter(|r| of(r)).map(full_name).collect();
        found.into_iter().collect()
    };
    let Some(asked) = asked else {
        let mut latencies = names(&guests);
        return match latencies.len() {
            1 => Ok(latencies.remove(0)),
            0 => Err(Unreadable("no latency of a guest: name a probe by --probe".to_owned())),
            _ => Err(Unreadable(format!(
                "several latencies of guests: name one by --probe: {}",
                latencies.join(", ")
            ))),
        };
    };
    let known = names(&|_| true);
    if known.iter().any(|name| name == asked) {
        return Ok(asked.to_owned());
    }
    let help = nearest(asked, "probes", &known);
    Err(Unreadable(format!("no probe `{asked}`; {help}")))
}

/// Most different values of an axis that is not cut into bins.
const MOST_VALUES: usize = 16;

/// Bins of an axis with more values.
const BINS: usize = 8;

/// From this ratio of the largest to the least value, bins are logarithmic.
const WIDE: f64 = 20.0;

/// Replaces the values of an axis by bins, if there are many: text with the least and the largest value in each.
fn bin(records: &mut [Record], axis: usize) {
    let number = |record: &Record| record.axes[axis].parse::<f64>().unwrap_or(0.0);
    let mut values: Vec<f64> = records.iter().map(number).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let (Some(&lo), Some(&hi)) = (values.first(), values.last()) else { return };
    if values.len() <= MOST_VALUES {
        return;
    }
    let scale = |x: f64| if lo > 0.0 && hi / lo >= WIDE { libm::log(x) } else { x };
    let share = |x: f64| (scale(x) - scale(lo)) / (scale(hi) - scale(lo));
    let bin_of = |x: f64| ((share(x) * BINS as f64) as usize).min(BINS - 1);
    let mut names: [Option<(f64, f64)>; BINS] = [None; BINS];
    for x in &values {
        let (least, _) = names[bin_of(*x)].unwrap_or((*x, *x));
        names[bin_of(*x)] = Some((least, *x));
    }
    for record in records {
        let (least, largest) = names[bin_of(number(record))].unwrap_or_default();
        let (least, largest) = (rounded(least), rounded(largest));
        record.axes[axis] =
            if least == largest { least } else { format!("{least}{BETWEEN}{largest}") };
    }
}

/// Between the ends of a bin.
pub const BETWEEN: &str = " to ";

/// Three digits distinguish bins.
fn rounded(x: f64) -> String {
    if x == x.trunc() && x.abs() < 1e6 {
        return x.to_string();
    }
    let rounded: f64 = format!("{x:.2e}").parse().unwrap_or(x);
    rounded.to_string()
}

/// A probe and its metric, as in limits and objectives.
fn full_name(record: &Record) -> String {
    match record.metric.as_str() {
        "latency" | "" => record.probe.clone(),
        metric => format!("{}.{metric}", record.probe),
    }
}

/// Different values of an axis: numbers by size, words in alphabetical order.
fn values(records: &[Record], axis: usize) -> Vec<String> {
    let mut values: Vec<String> = records.iter().map(|record| record.axes[axis].clone()).collect();
    let number = |text: &String| {
        let least = text.split(BETWEEN).next().unwrap_or(text);
        least.parse::<f64>().unwrap_or(f64::INFINITY)
    };
    values.sort_by(|a, b| number(a).total_cmp(&number(b)).then_with(|| a.cmp(b)));
    values.dedup();
    values
}

/// Points that did not fail.
fn points(records: &[&Record]) -> u32 {
    let done = records.iter().filter(|r| r.error.is_none());
    done.map(|r| r.point).collect::<BTreeSet<_>>().len() as u32
}

/// The number of one policy; of all records if the map has an axis of policies.
fn number(records: &[&Record], column: &str, policy: Option<&str>, probe: &str) -> Cell {
    let own: Vec<&&Record> = records
        .iter()
        .filter(|r| policy.is_none_or(|policy| r.policy == policy) && full_name(r) == probe)
        .collect();
    let mut found: Vec<f64> = own.iter().filter_map(|r| r.numbers.get(column).copied()).collect();
    let value = match column {
        MISSED => {
            let missed: u64 = own.iter().map(|r| r.missed).sum();
            let all = missed + own.iter().map(|r| r.count).sum::<u64>();
            (all > 0).then(|| 100.0 * missed as f64 / all as f64)
        }
        _ if column.starts_with("ratio") => geometric(&found),
        _ => median(&mut found),
    };
    Cell { points: points(records), value, ..Cell::default() }
}

fn geometric(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|x| libm::log(x.max(f64::MIN_POSITIVE))).sum();
    (!values.is_empty()).then(|| libm::exp(logs / values.len() as f64))
}

#[cfg(test)]
mod tests {
    use vcoop_experiment::judge::LEAST_REPEATS;

    use super::*;

    pub(super) fn record(policy: &str, probe: &str, tail: f64, mean: f64, missed: u64) -> Record {
        let mut numbers = std::collections::BTreeMap::new();
        for (name, x) in [("ratio", mean), ("ratio_p99", tail)] {
            numbers.insert(name.to_owned(), x);
            numbers.insert(format!("{name}_lo"), x / 1.02);
            numbers.insert(format!("{name}_hi"), x * 1.02);
        }
        Record {
            policy: policy.to_owned(),
            probe: probe.to_owned(),
            metric: "latency".to_owned(),
            unit: "us".to_owned(),
            repeats: LEAST_REPEATS,
            count: 1000,
            missed,
            numbers,
            ..Record::default()
        }
    }

    #[test]
    fn ratios_go_together_as_factors_and_others_by_the_middle() {
        assert!((geometric(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!((median(&mut [3.0, 1.0, 2.0]), median(&mut [4.0, 1.0])), (Some(2.0), Some(2.5)));
        assert_eq!((geometric(&[]), median(&mut [])), (None, None));
    }

    #[test]
    fn missed_periods_are_a_share_of_all() {
        let all = [
            record("a", "guest.t", 1.0, 1.0, 1000),
            record("a", "guest.t", 1.0, 1.0, 0),
            record("b", "guest.t", 1.0, 1.0, 7000),
        ];
        let all: Vec<&Record> = all.iter().collect();
        let share = |policy| number(&all, MISSED, policy, "guest.t").value;
        assert_eq!(share(Some("a")), Some(100.0 / 3.0));
        assert_eq!(share(None), Some(100.0 * 8.0 / 11.0));
        assert_eq!(share(Some("c")), None);
    }

    #[test]
    fn values_are_in_order_of_size() {
        let of = |text: &str| Record { axes: vec![text.to_owned()], ..Record::default() };
        let all = ["16", "1", "0.5", "4", "1", "x"].map(of);
        assert_eq!(values(&all, 0), ["0.5", "1", "4", "16", "x"]);
    }
}
