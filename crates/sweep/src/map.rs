//! A dataset as a map: one axis down, one across; each cell summarises all of its points.
//!
//! An axis of many numbers is cut into bins, named by the least and the largest value in each.
//!
//! Points that differ in other axes share a cell. Ratios are combined by their geometric mean, because 2x and 0.5x
//! cancel out; other numbers by their median.

use std::collections::BTreeSet;
use std::path::Path;

use vcoop_experiment::judge::{Change, Effect, Judgement, LEAST_REPEATS, Whose};
use vcoop_experiment::result::{Interval, Limits};
use vcoop_experiment::stats::median;
use vcoop_experiment::verdict::LEAST_LOAD;
use vcoop_model::diagnostic::nearest;

use crate::columns::{AxisColumn, Kind};
use crate::manifest::{Manifest, Unreadable, manifest};
use crate::parquet_reader::{Record, records};
use crate::row::NUMBERS;

/// Ratios within this factor of the best one count as equal.
pub const AS_GOOD: f64 = 1.05;

/// Axis of a map that shows numbers of several policies, in the sweep's order.
pub const POLICY: &str = "policy";

/// Share of a latency's periods that were missed, in percent, over all points of a cell.
pub const MISSED: &str = "missed";

/// Columns that the verdict needs.
const JUDGED: [&str; 6] =
    ["ratio", "ratio_lo", "ratio_hi", "ratio_p99", "ratio_p99_lo", "ratio_p99_hi"];

/// Content of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
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
pub struct Ask {
    /// Axis down, by its column; or [`POLICY`].
    pub rows: String,
    /// Axis across.
    pub columns: String,
    /// Content of the cells.
    pub show: Show,
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
pub fn map(dir: &Path, ask: &Ask) -> Result<Map, Unreadable> {
    let manifest = manifest(dir)?;
    let mut names: Vec<&str> = manifest.axes.iter().map(|axis| axis.name.as_str()).collect();
    if matches!(ask.show, Show::Number { policy: None, .. }) {
        names.push(POLICY);
    }
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
    let only: Vec<(usize, &str)> = ask
        .only
        .iter()
        .map(|(name, value)| Ok((axis(name)?, value.as_str())))
        .collect::<Result<_, Unreadable>>()?;
    let mut all = records(dir, &manifest, &numbers(ask, &manifest)?)?;
    if ask.show == Show::Best {
        judgeable(&all)?;
    }
    for record in &mut all {
        record.axes.push(record.policy.clone());
    }
    for (axis, value) in &only {
        if !all.iter().any(|record| record.axes[*axis] == *value) {
            return Err(Unreadable(format!("no point has {} = {value}", names[*axis])));
        }
    }
    let probe = match &ask.show {
        Show::Number { probe, .. } => Some(probe_of(&all, probe.as_deref())?),
        Show::Best => None,
    };
    let of = |failed: bool| {
        let points = all.iter().filter(|r| !failed || r.error.is_some()).map(|r| r.point);
        points.collect::<BTreeSet<u32>>().len() as u32
    };
    let (points, failed, missing) = (manifest.points, of(true), manifest.points - of(false));
    all.retain(|record| only.iter().all(|(axis, value)| record.axes[*axis] == *value));
    for axis in [down, across] {
        let of_numbers = |axis: &AxisColumn| matches!(axis.kind, Kind::Int | Kind::Double);
        if manifest.axes.get(axis).is_some_and(of_numbers) {
            bin(&mut all, axis);
        }
    }
    let records: Vec<&Record> = all.iter().collect();
    let ratio = match &ask.show {
        Show::Best => true,
        Show::Number { column, .. } => column.starts_with("ratio"),
    };
    let along = |axis: usize| match names[axis] {
        POLICY => {
            let all = manifest.policies.iter();
            all.filter(|policy| !ratio || **policy != manifest.baseline).cloned().collect()
        }
        _ => values(&records, axis),
    };
    let (rows, columns) = (along(down), along(across));
    let cell = |row: &String, column: &String| {
        let inside: Vec<&Record> = records
            .iter()
            .filter(|r| r.axes[down] == *row && r.axes[across] == *column)
            .copied()
            .collect();
        match &ask.show {
            Show::Best => best(&inside, &manifest.policies, &manifest.baseline, &ask.limits),
            Show::Number { column, policy, .. } => {
                number(&inside, column, policy.as_deref(), probe.as_deref().unwrap_or_default())
            }
        }
    };
    let cells = rows.iter().map(|row| columns.iter().map(|c| cell(row, c)).collect()).collect();
    let unit = match &ask.show {
        Show::Number { column, .. } if column == MISSED => Some("%".to_owned()),
        _ => probe.as_ref().filter(|_| !ratio).and_then(|probe| {
            let unit = &records.iter().find(|r| full_name(r) == *probe)?.unit;
            (!unit.is_empty()).then(|| unit.clone())
        }),
    };
    let Manifest { name, policies, baseline, .. } = manifest;
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

/// The columns that a map needs.
fn numbers<'a>(ask: &'a Ask, manifest: &Manifest) -> Result<Vec<&'a str>, Unreadable> {
    let Show::Number { column, policy, .. } = &ask.show else {
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
        None if ask.rows != POLICY && ask.columns != POLICY => Err(Unreadable(format!(
            "{column} of which policy? Name one by --policy, or show all by --rows {POLICY}"
        ))),
        _ => Ok(vec![column.as_str()]),
    }
}

/// Checks that a sweep keeps what the verdict needs.
fn judgeable(all: &[Record]) -> Result<(), Unreadable> {
    for ratio in ["ratio", "ratio_p99"] {
        let has = |r: &Record, end: &str| r.numbers.contains_key(&format!("{ratio}{end}"));
        let mut settled = all.iter().filter(|r| r.repeats >= LEAST_REPEATS);
        let ends = ["_lo", "_hi"].map(|end| all.iter().any(|r| has(r, end)));
        if settled.any(|r| has(r, "")) && ends != [true, true] {
            return Err(Unreadable(format!(
                "which policy is best is told from intervals, and the sweep does not keep them: add \
                 {} to the columns of [keep]",
                JUDGED.join(", ")
            )));
        }
    }
    Ok(())
}

/// The requested probe; without a name the guests' latency, if there is only one.
fn probe_of(all: &[Record], asked: Option<&str>) -> Result<String, Unreadable> {
    let guests = |r: &&Record| r.metric == "latency" && !r.probe.starts_with("host.");
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
fn values(records: &[&Record], axis: usize) -> Vec<String> {
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
    let mut points: Vec<u32> =
        records.iter().filter(|r| r.error.is_none()).map(|r| r.point).collect();
    points.sort_unstable();
    points.dedup();
    points.len() as u32
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

/// A policy's effect on a ratio of one series at a point.
fn change(record: &Record, column: &str, name: &str) -> Option<Change> {
    let number = |end: &str| record.numbers.get(&format!("{column}{end}")).copied();
    let interval = || -> Option<Interval> { Some([number("_lo")?, number("_hi")?]) };
    let name = format!("{} {name}", record.probe);
    Some(Change { ratio: number("")?, interval: interval(), name, values: None })
}

/// A policy's effects at a point, on each series that the baseline has.
fn effects(point: &[&Record], policy: &str, baseline: &str) -> Vec<Effect> {
    let vm = |name: &str| name.split_once('.').map(|(vm, _)| vm.to_owned());
    let guest = |r: &Record| r.metric == "latency" && !r.probe.starts_with("host.");
    let measured =
        |load: &Record| point.iter().any(|r| guest(r) && vm(&r.probe) == vm(&load.probe));
    let share = |r: &Record| r.missed as f64 / (r.missed + r.count).max(1) as f64;
    let mut effects = Vec::new();
    for base in point.iter().filter(|r| r.policy == baseline) {
        let same =
            |r: &&&Record| r.policy == policy && r.probe == base.probe && r.metric == base.metric;
        let own = point.iter().find(same);
        let repeats = own.map_or(0, |r| r.repeats);
        let of = |whose| Effect::new(base.probe.clone(), whose, repeats);
        match base.metric.as_str() {
            "latency" => {
                let whose = if guest(base) { Whose::Guest } else { Whose::Others };
                effects.push(Effect {
                    // Older datasets leave a series without samples out.
                    missed: [share(base), own.map_or(1.0, |own| share(own))],
                    mean: own.and_then(|own| change(own, "ratio", "mean")),
                    p99: own.and_then(|own| change(own, "ratio_p99", "p99")),
                    ..of(whose)
                });
            }
            "throughput" => {
                let probe = point.iter().any(|r| r.metric == "latency" && r.probe == base.probe);
                let idle = base.numbers.get("value").is_some_and(|value| *value < LEAST_LOAD);
                if let (Some(own), false) = (own, probe || idle) {
                    let others = base.probe.starts_with("host.") || !measured(base);
                    let whose = if others { Whose::Others } else { Whose::Own };
                    effects.push(Effect { work: change(own, "ratio", "work"), ..of(whose) });
                }
            }
            _ => {}
        }
    }
    effects
}

/// The best policy of a cell, by the rule of all verdicts.
fn best(records: &[&Record], policies: &[String], baseline: &str, limits: &Limits) -> Cell {
    let mut cell = Cell { points: points(records), ..Cell::default() };
    let numbers: BTreeSet<u32> = records.iter().map(|r| r.point).collect();
    let of = |point: &u32| records.iter().copied().filter(|r| r.point == *point).collect();
    let each: Vec<Vec<&Record>> = numbers.iter().map(of).collect();
    let mut found: Vec<(f64, &str, [Option<f64>; 2])> = Vec::new();
    for policy in policies.iter().filter(|policy| *policy != baseline) {
        let all: Vec<_> = each.iter().map(|point| effects(point, policy, baseline)).collect();
        let effects = Effect::together(&all);
        if effects.iter().any(|effect| (1..LEAST_REPEATS).contains(&effect.repeats)) {
            cell.few = true;
            return cell;
        }
        let judged = Judgement::new(&effects, baseline, limits);
        let Some(gain) = judged.gain.filter(|_| judged.improves) else { continue };
        if judged.too_much().is_empty() {
            let of = |whose: Whose, change: fn(&Effect) -> Option<&Change>| {
                let own = effects.iter().filter(|effect| effect.whose == whose);
                geometric(&own.filter_map(change).map(|c| c.ratio).collect::<Vec<f64>>())
            };
            let host = of(Whose::Others, |effect| effect.mean.as_ref());
            found.push((gain, policy, [host, of(Whose::Own, |effect| effect.work.as_ref())]));
        }
    }
    // Stable: of equals the one that the sweep names first.
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((gain, policy, [cost, own])) = found.first().copied() {
        cell.best = Some(policy.to_owned());
        (cell.value, cell.cost, cell.own) = (Some(gain), cost, own);
        let ties = found[1..].iter().take_while(|(other, ..)| *other <= gain * AS_GOOD);
        cell.ties = ties.map(|(_, policy, _)| (*policy).to_owned()).collect();
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(policy: &str, probe: &str, tail: f64, mean: f64, missed: u64) -> Record {
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

    fn work(policy: &str, probe: &str, ratio: f64) -> Record {
        let metric = "throughput".to_owned();
        Record { metric, count: 0, ..record(policy, probe, ratio, ratio, 0) }
    }

    fn best_of(records: &[Record]) -> Cell {
        let policies = ["vanilla", "a", "b", "c"].map(str::to_owned);
        let records: Vec<&Record> = records.iter().collect();
        best(&records, &policies, "vanilla", &Limits::default())
    }

    #[test]
    fn the_best_is_the_lowest_that_others_can_bear() {
        let mut all = vec![
            record("vanilla", "guest.t", 1.0, 1.0, 0),
            record("vanilla", "host.t", 1.0, 1.0, 0),
            record("a", "guest.t", 0.01, 0.02, 0),
            record("a", "host.t", 1.0, 1.2, 0),
            record("b", "guest.t", 0.20, 0.2, 0),
            record("b", "host.t", 1.2, 1.05, 0),
            record("c", "guest.t", 0.205, 0.2, 0),
            record("c", "host.t", 1.0, 1.0, 0),
        ];
        let cell = best_of(&all);
        assert_eq!((cell.best.as_deref(), cell.cost), (Some("b"), Some(1.05)), "a is too dear");
        assert_eq!(cell.ties, ["c"]);
        let works = |probe: &str, b: f64| {
            [("vanilla", 1.0), ("a", 1.0), ("b", b), ("c", 1.0)].map(|(p, x)| work(p, probe, x))
        };
        let with = |more: [Record; 4]| best_of(&[all.clone(), more.to_vec()].concat());
        assert_eq!(with(works("host.build", 0.9)).best.as_deref(), Some("c"), "b stops the build");
        let own = with(works("guest.build", 0.5));
        assert_eq!((own.best.as_deref(), own.own), (Some("b"), Some(0.5)), "the guest's bargain");
        assert_eq!(with(works("other.build", 0.9)).best.as_deref(), Some("c"), "another VM's");
        all[4].missed = 10;
        assert_eq!(best_of(&all).best.as_deref(), Some("c"), "b loses the worst samples");
        all[7].missed = 1_000_000;
        assert_eq!(best_of(&all).best, None, "c starves the host's probe");
        all.remove(7);
        assert_eq!(best_of(&all).best, None, "so that it is not there");
        all.iter_mut().for_each(|r| r.repeats = LEAST_REPEATS - 1);
        assert!(best_of(&all).few);
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
        assert_eq!(values(&all.iter().collect::<Vec<_>>(), 0), ["0.5", "1", "4", "16", "x"]);
    }
}
