//! Rows of a dataset, as far as a picture or a table needs them.

use std::collections::BTreeMap;
use std::path::Path;

use parquet::file::reader::FileReader;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use crate::manifest::{Manifest, Unreadable, part_name};
use crate::part;

/// Columns that every record has.
const ALWAYS: [&str; 9] =
    ["point", "policy", "probe", "metric", "unit", "repeats", "count", "missed", "error"];

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
    /// Unit of its numbers, but for ratios.
    pub unit: String,
    /// Repeats that are in it.
    pub repeats: u32,
    /// Samples of a latency.
    pub count: u64,
    /// Periods without one.
    pub missed: u64,
    /// Numbers that were asked for and are there.
    pub numbers: BTreeMap<String, f64>,
    /// Why the point failed.
    pub error: Option<String>,
}

/// Every row of the complete parts of a folder, with the numbers that are asked for.
///
/// # Errors
///
/// A part cannot be read.
pub fn records(
    dir: &Path,
    manifest: &Manifest,
    numbers: &[&str],
) -> Result<Vec<Record>, Unreadable> {
    let axes: Vec<&str> = manifest.axes.iter().map(|axis| axis.name.as_str()).collect();
    let mut found = Vec::new();
    for part in 0..manifest.parts() {
        let path = dir.join(part_name(part));
        let Some(file) = part::open(dir, manifest, part)? else { continue };
        let range = manifest.range(part);
        let no = |e: &dyn std::fmt::Display| part::damaged(&path, e);
        let schema = file.metadata().file_metadata().schema();
        let wanted =
            |name: &str| ALWAYS.contains(&name) || axes.contains(&name) || numbers.contains(&name);
        let fields = schema.get_fields().iter().filter(|field| wanted(field.name())).cloned();
        let projection = Type::group_type_builder(schema.name())
            .with_fields(fields.collect())
            .build()
            .map_err(|e| no(&e))?;
        for row in file.get_row_iter(Some(projection)).map_err(|e| no(&e))? {
            let record = record(&row.map_err(|e| no(&e))?, &axes, numbers);
            if !range.contains(&record.point) {
                return Err(part::misplaced(&path, record.point));
            }
            found.push(record);
        }
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
