//! Reads the rows of a dataset that a picture or a table needs.

use std::collections::BTreeMap;
use std::path::Path;

use parquet::record::{Field, Row};
use vcoop_model::sweep::Sweep;

use crate::columns::{axis_columns, cell};
use crate::design::Design;
use crate::journal::Journal;
use crate::manifest::{MANIFEST, Manifest, Unreadable, cannot_read, journal_name, part_name};
use crate::part;

/// Columns that every record has.
const ALWAYS: [&str; 10] =
    ["point", "policy", "probe", "metric", "unit", "repeats", "count", "missed", "guest", "error"];

/// A row: a policy's series at a point, or a point that failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Point.
    pub point: u32,
    /// Values of the axes, by the order of the manifest, as text.
    pub axes: Vec<String>,
    /// Policy; empty for a failed point.
    pub policy: String,
    /// Probe.
    pub probe: String,
    /// Metric.
    pub metric: String,
    /// Unit of its numbers, except for ratios.
    pub unit: String,
    /// Repeats that are in it.
    pub repeats: u32,
    /// Samples of a latency.
    pub count: u64,
    /// Periods without one.
    pub missed: u64,
    /// Whether it is about guests, of a latency; older datasets do not say it.
    pub guest: Option<bool>,
    /// Requested numbers that exist.
    pub numbers: BTreeMap<String, f64>,
    /// Why the point failed.
    pub error: Option<String>,
}

impl Record {
    /// Whether it is a latency of a guest: of a task in one, or of a round trip of the host through one.
    pub(crate) fn is_of_a_guest(&self) -> bool {
        self.metric == "latency" && self.guest.unwrap_or(!self.probe.starts_with("host."))
    }
}

/// Every row of a folder, with the requested numbers. Points of incomplete parts are read from their journals.
///
/// # Errors
///
/// A part or a journal cannot be read.
pub fn records(
    dir: &Path,
    manifest: &Manifest,
    numbers: &[&str],
) -> Result<Vec<Record>, Unreadable> {
    let axes: Vec<&str> = manifest.axes.iter().map(|axis| axis.name.as_str()).collect();
    let mut found = Vec::new();
    for part in 0..manifest.parts() {
        let path = dir.join(part_name(part));
        let range = manifest.range(part);
        let Some(file) = part::open(dir, manifest, part)? else {
            found.extend(unfinished(dir, manifest, part, numbers)?);
            continue;
        };
        let no = |e: &dyn std::fmt::Display| part::damaged(&path, e);
        let wanted =
            |name: &str| ALWAYS.contains(&name) || axes.contains(&name) || numbers.contains(&name);
        for row in part::rows(&file, wanted).map_err(|e| no(&e))? {
            let record = record(&row.map_err(|e| no(&e))?, &axes, numbers);
            if !range.contains(&record.point) {
                return Err(part::misplaced(&path, record.point));
            }
            found.push(record);
        }
    }
    Ok(found)
}

/// The rows of an incomplete part: the points in its journal.
fn unfinished(
    dir: &Path,
    manifest: &Manifest,
    part: u32,
    numbers: &[&str],
) -> Result<Vec<Record>, Unreadable> {
    let path = dir.join(journal_name(part));
    let mark = part::mark(manifest, part).value.unwrap_or_default();
    let mut points = Journal::read(&path, &mark).map_err(|e| cannot_read(&path, &e))?;
    points.sort_by_key(|point| point.point);
    if points.is_empty() {
        return Ok(Vec::new());
    }
    // A journal does not have the values of the axes: the sweep's file says them.
    let sweep = Sweep::parse(MANIFEST, &manifest.spec).map_err(|e| Unreadable(e.to_string()))?;
    if axis_columns(&sweep) != manifest.axes {
        let path = dir.join(MANIFEST);
        let why = "its axes are not those of the sweep's file in it";
        return Err(Unreadable(format!("{} is none of a sweep: {why}", path.display())));
    }
    let design = Design::new(&sweep);
    let mut found = Vec::new();
    let range = manifest.range(part);
    for point in points.iter().filter(|point| range.contains(&point.point)) {
        let values = design.point(&sweep, point.point);
        let cells = manifest.axes.iter().zip(&values).map(|(axis, value)| cell(axis, value));
        let axes: Vec<String> = cells.map(|cell| cell.to_string()).collect();
        found.extend(point.rows.iter().map(|row| {
            Record {
                point: point.point,
                axes: axes.clone(),
                policy: row.policy.clone().unwrap_or_default(),
                probe: row.probe.clone().unwrap_or_default(),
                metric: row.metric.clone().unwrap_or_default(),
                unit: row.unit.clone().unwrap_or_default(),
                repeats: row.repeats,
                count: row.count.unwrap_or(0),
                missed: row.missed.unwrap_or(0),
                guest: row.guest,
                numbers: numbers
                    .iter()
                    .filter_map(|name| Some(((*name).to_owned(), row.number(name)?)))
                    .collect(),
                error: row.error.clone(),
            }
        }));
    }
    Ok(found)
}

fn record(row: &Row, axes: &[&str], numbers: &[&str]) -> Record {
    let mut record = Record { axes: vec![String::new(); axes.len()], ..Record::default() };
    let whole = |field: &Field| match field {
        Field::Long(i) => u64::try_from(*i).unwrap_or(0),
        _ => 0,
    };
    for (name, field) in row.get_column_iter() {
        if let Some(axis) = axes.iter().position(|axis| axis == name) {
            record.axes[axis] = text(field);
            continue;
        }
        match name.as_str() {
            "point" => record.point = u32::try_from(whole(field)).unwrap_or(u32::MAX),
            "policy" => record.policy = text(field),
            "probe" => record.probe = text(field),
            "metric" => record.metric = text(field),
            "unit" => record.unit = text(field),
            "repeats" => record.repeats = u32::try_from(whole(field)).unwrap_or(u32::MAX),
            "count" => record.count = whole(field),
            "missed" => record.missed = whole(field),
            "guest" => record.guest = if let Field::Bool(on) = field { Some(*on) } else { None },
            "error" => record.error = Some(text(field)).filter(|error| !error.is_empty()),
            name => {
                if let (true, Field::Double(x)) = (numbers.contains(&name), field) {
                    record.numbers.insert(name.to_owned(), *x);
                }
            }
        }
    }
    record
}

fn text(field: &Field) -> String {
    match field {
        Field::Null => String::new(),
        Field::Str(text) => text.clone(),
        Field::Double(x) => x.to_string(),
        Field::Long(i) => i.to_string(),
        Field::Bool(on) => on.to_string(),
        other => other.to_string(),
    }
}
