//! `[axes]` and `[set]`: fields that vary, and fields that are changed at every point.

use super::cases::{cases, is_cases, ratio};
use super::values::{AxisValue, RangeKeys, Values, range};
use crate::diagnostic::{Collector, Span};
use crate::distinct;
use crate::scenario::Set;
use crate::toml_read::node::leaves;
use crate::toml_read::table::read_table;
use crate::toml_read::units::twice;
use crate::toml_read::{Node, NodeValue};

/// Tables that no axis can vary: they identify the experiment.
const FIXED: [&str; 9] =
    ["name", "title", "about", "assumptions", "matrix", "compare", "probe", "repeats", "seed"];

/// The axis that is a ratio rather than a field.
pub const RATIO: &str = "vcpus_per_pcpu";

/// A dimension of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name: the path of its first field as written, or a given name.
    pub name: String,
    /// What it changes.
    pub vary: Vary,
    /// Its values.
    pub values: Values,
}

/// What a value of an axis changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Vary {
    /// Fields at these paths (as for `--set`): all get the value.
    Fields(Vec<String>),
    /// Each value is the name of a case: path and value (as TOML) of what it sets.
    Cases(Vec<Vec<(String, String)>>),
    /// vCPUs a pCPU. This field gets the value that results in the ratio, after all other changes.
    Ratio(String),
}

impl Axis {
    /// The changes for a value of this axis. None for a ratio: its field's value depends on the rest of the scenario.
    pub fn sets(&self, value: &AxisValue) -> Vec<Set> {
        match &self.vary {
            Vary::Fields(paths) => paths.iter().map(|path| Set::of(path, &value.toml)).collect(),
            Vary::Cases(cases) => {
                let Values::List(names) = &self.values else { return Vec::new() };
                let case = names.iter().position(|name| name == value).and_then(|i| cases.get(i));
                case.into_iter().flatten().map(|(path, value)| Set::of(path, value)).collect()
            }
            Vary::Ratio(_) => Vec::new(),
        }
    }

    /// Paths of all fields that it changes, each once.
    pub fn paths(&self) -> Vec<&str> {
        match &self.vary {
            Vary::Fields(paths) => paths.iter().map(String::as_str).collect(),
            Vary::Cases(cases) => distinct(cases.iter().flatten().map(|(path, _)| path.as_str())),
            Vary::Ratio(by) => vec![by],
        }
    }
}

/// The axes, and the place of each. `grid`: ranges must give their number of values.
pub(super) fn axes(node: &Node, grid: bool, errors: &Collector) -> Vec<(Axis, Span)> {
    let mut found: Vec<(Axis, Span)> = Vec::new();
    let leaves = leaves(node, &is_range);
    if leaves.is_empty() {
        let help = "add a field: \"host.pcpus\" = [1, 2, 4]";
        errors.error_help(node.span, "[axes] varies nothing", help);
    }
    for (path, span, node) in leaves {
        let Some(axis) = axis(&path, span, node, grid, errors) else { continue };
        let paths = axis.paths();
        let earlier = |path: &str| found.iter().any(|(axis, _)| axis.paths().contains(&path));
        let twice = paths.iter().enumerate().find(|(i, p)| earlier(p) || paths[..*i].contains(p));
        if let Some((_, path)) = twice {
            errors.error(span, format!("`{path}` is varied twice"));
        }
        for path in &paths {
            let root = path.split('.').next().unwrap_or_default().trim_matches(['"', '\'']);
            if FIXED.contains(&root) {
                errors.error(span, format!("a sweep cannot vary `{root}`"));
            }
        }
        found.push((axis, span));
    }
    found
}

/// One axis.
fn axis(path: &str, span: Span, node: &Node, grid: bool, errors: &Collector) -> Option<Axis> {
    if path == RATIO {
        let (by, values) = ratio(span, node, grid, errors)?;
        return Some(Axis { name: path.to_owned(), vary: Vary::Ratio(by), values });
    }
    if is_cases(node) {
        let (names, cases) = cases(path, span, node, errors)?;
        let values = Values::List(names);
        return Some(Axis { name: path.to_owned(), vary: Vary::Cases(cases), values });
    }
    let paths: Vec<String> = path.split(',').map(|p| p.trim().to_owned()).collect();
    let values = values(path, span, node, grid, errors)?;
    let name = paths.first().cloned().unwrap_or_default();
    Some(Axis { name, vary: Vary::Fields(paths), values })
}

/// The values of an axis of fields.
fn values(path: &str, span: Span, node: &Node, grid: bool, errors: &Collector) -> Option<Values> {
    match &node.value {
        NodeValue::Array(items) if !items.is_empty() => {
            if let Some((value, message)) = twice(items) {
                errors.error(value.span, message);
            }
            Some(Values::List(items.iter().map(AxisValue::of).collect()))
        }
        NodeValue::Array(_) => {
            errors.error(span, format!("`{path}` has no value to try"));
            None
        }
        NodeValue::Table(_) => {
            let keys: RangeKeys = read_table(node, errors)?;
            range(&keys, span, grid, errors).map(Values::Range)
        }
        _ => {
            let message = format!("`{path}` is {}, not a list or a range", node.what());
            let help = "write the values to try, [1, 2, 4], or { from = 1, to = 64, points = 7 }";
            errors.error_help(span, message, help);
            None
        }
    }
}

/// `[set]` as overrides.
pub(super) fn sets(node: &Node, errors: &Collector) -> Vec<Set> {
    let mut sets = Vec::new();
    for (path, span, node) in leaves(node, &|_| false) {
        if path.starts_with("matrix") {
            errors.error(span, "a sweep has [axes] instead of a matrix");
        }
        sets.push(Set::of(&path, &node.toml()));
    }
    sets
}

/// Whether a table is a range rather than further keys of a path.
fn is_range(node: &Node) -> bool {
    let is_value = |n: &Node| n.as_table().is_none() && !matches!(n.value, NodeValue::Array(_));
    node.as_table().is_some_and(|t| t.entries.iter().any(|(_, _, n)| is_value(n)))
}
