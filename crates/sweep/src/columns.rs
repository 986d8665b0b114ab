//! The dataset columns of axes.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vcoop_experiment::params::{typed, unique_end};
use vcoop_model::sweep::{AxisValue, RangeKind, Sweep, Values};

use crate::row::NUMBERS;

/// Columns beside axes and numbers.
pub const FIXED: [&str; 12] = [
    "point", "policy", "probe", "metric", "unit", "repeats", "settled", "best", "count", "missed",
    "guest", "error",
];

/// Type of an axis' column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// 64-bit integers.
    Int,
    /// Doubles.
    Double,
    /// Booleans.
    Bool,
    /// Text.
    Text,
}

/// An axis in the dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisColumn {
    /// Name of the column: the last keys of the path, and the unit.
    pub name: String,
    /// Path of the axis in the scenario.
    pub path: String,
    /// Type.
    pub kind: Kind,
}

/// A cell of an axis' column.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// An integer.
    Int(i64),
    /// A double.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// Text.
    Text(String),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(i) => i.fmt(f),
            Self::Double(x) => x.fmt(f),
            Self::Bool(on) => on.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// The columns of a sweep's axes. Durations are in microseconds.
pub fn axis_columns(sweep: &Sweep) -> Vec<AxisColumn> {
    let paths: Vec<&str> = sweep.axes.iter().map(|axis| &*axis.name).collect();
    let mut columns: Vec<AxisColumn> = Vec::new();
    for axis in &sweep.axes {
        let (suffix, kind) = match &axis.values {
            Values::Range(range) => match range.kind {
                RangeKind::Integer => (String::new(), Kind::Int),
                RangeKind::Number => (String::new(), Kind::Double),
                RangeKind::Duration => ("_us".to_owned(), Kind::Double),
                RangeKind::Percent => ("_percent".to_owned(), Kind::Double),
            },
            Values::List(values) => of_list(values),
        };
        let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let end: String = unique_end(&axis.name, &paths).chars().map(legal).collect();
        let mut name = format!("{end}{suffix}");
        let taken = |name: &str| {
            FIXED.contains(&name)
                || NUMBERS.contains(&name)
                || columns.iter().any(|column| column.name == name)
        };
        while taken(&name) {
            name.insert_str(0, "axis_");
        }
        columns.push(AxisColumn { name, path: axis.name.clone(), kind });
    }
    columns
}

/// Common unit and type of all values of a list; text if they have none in common.
fn of_list(values: &[AxisValue]) -> (String, Kind) {
    let all: Vec<(String, Value)> = values.iter().map(|v| typed(&v.text)).collect();
    let text = (String::new(), Kind::Text);
    let Some((suffix, _)) = all.first() else { return text };
    if all.iter().any(|(other, _)| other != suffix) {
        return text;
    }
    let is = |test: fn(&Value) -> bool| all.iter().all(|(_, value)| test(value));
    if is(Value::is_boolean) {
        (String::new(), Kind::Bool)
    } else if is(Value::is_i64) && suffix.is_empty() {
        (String::new(), Kind::Int)
    } else if is(Value::is_number) {
        (suffix.clone(), Kind::Double)
    } else {
        text
    }
}

/// A value in the type of its column.
pub fn cell(column: &AxisColumn, value: &AxisValue) -> Cell {
    let (_, json) = typed(&value.text);
    let text = || Cell::Text(value.text.clone());
    match column.kind {
        Kind::Int => json.as_i64().map_or_else(text, Cell::Int),
        Kind::Double => json.as_f64().map_or_else(text, Cell::Double),
        Kind::Bool => json.as_bool().map_or_else(text, Cell::Bool),
        Kind::Text => text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_units_and_types_are_those_of_all_values() {
        let text = "name = \"s\"\nscenario = \"x\"\n[axes]\nhost.pcpus = [1, 2]\n\
                    \"vm.a.task.t.interval\" = [\"500us\", \"1ms\"]\n\"x.mixed\" = [\"1ms\", 5]\n\
                    \"vm.a.on\" = [true, false]\n\"vm.a.mean\" = { from = 1, to = 9, points = 2 }\n\
                    \"x.pin\" = [\"0\", \"0,1\"]\n";
        let sweep = Sweep::parse("s.toml", text).unwrap();
        let columns = axis_columns(&sweep);
        let found: Vec<(&str, Kind)> = columns.iter().map(|c| (&*c.name, c.kind)).collect();
        let wanted = [
            ("pcpus", Kind::Int),
            ("interval_us", Kind::Double),
            ("mixed", Kind::Text),
            ("on", Kind::Bool),
            ("axis_mean", Kind::Int),
            ("pin", Kind::Text),
        ];
        assert_eq!(found, wanted);
        let Values::List(values) = &sweep.axes[1].values else { panic!("no list") };
        assert_eq!(cell(&columns[1], &values[1]), Cell::Double(1000.0));
    }

    #[test]
    fn cases_and_ratios_are_columns_by_their_names() {
        let text = "name = \"s\"\nscenario = \"x\"\n[axes]\nvcpus_per_pcpu = [0.5, 2]\n\
                    vms = [{ name = \"4\", set.a.b = 4 }, { name = \"16\", set.a.b = 16 }]\n\
                    load = [{ name = \"10%\", set.c.d = 1 }, { name = \"50%\", set.c.d = 5 }]\n\
                    kind = [{ name = \"old\", set.e.f = 1 }, { name = \"6.5\", set.e.f = 5 }]\n";
        let columns = axis_columns(&Sweep::parse("s.toml", text).unwrap());
        let found: Vec<(&str, Kind)> = columns.iter().map(|c| (&*c.name, c.kind)).collect();
        let wanted = [
            ("vcpus_per_pcpu", Kind::Double),
            ("vms", Kind::Int),
            ("load_percent", Kind::Double),
            ("kind", Kind::Text),
        ];
        assert_eq!(found, wanted);
    }
}
