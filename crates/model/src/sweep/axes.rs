//! `[axes]` and `[set]`: what varies, and what is changed everywhere.

use super::MAX_POINTS;
use crate::diagnostic::{Collector, Span};
use crate::scenario::Set;
use crate::toml_read::table::{read_table, table};
use crate::toml_read::units::{Percent, Time, show};
use crate::toml_read::value::{Int, choice};
use crate::toml_read::{At, Node, NodeValue, Text, Value};

/// Tables that no axis can vary: they say which experiment it is.
const FIXED: [&str; 9] =
    ["name", "title", "about", "assumptions", "matrix", "compare", "probe", "repeats", "seed"];

/// A field that varies, or several that change together.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Paths as `--set` has them; the first names the axis.
    pub paths: Vec<String>,
    /// What it can be.
    pub values: Values,
}

impl Axis {
    /// What the axis is called.
    pub fn name(&self) -> &str {
        self.paths.first().map_or("", String::as_str)
    }

    /// The changes that put a point at a value of this axis.
    pub fn sets(&self, value: &AxisValue) -> Vec<Set> {
        self.paths.iter().map(|path| Set::of(path, &value.toml)).collect()
    }
}

/// What an axis can be.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// One of these.
    List(Vec<AxisValue>),
    /// Anything between two ends.
    Range(Range),
}

impl Values {
    /// Values a grid takes of it.
    pub fn grid_len(&self) -> u64 {
        match self {
            Self::List(values) => values.len() as u64,
            Self::Range(range) => u64::from(range.points.unwrap_or(1)),
        }
    }
}

/// A value of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisValue {
    /// As TOML has it.
    pub toml: String,
    /// The same without quotes.
    pub text: String,
}

/// A range, in the unit of its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Lower end.
    pub from: f64,
    /// Upper end, above the lower.
    pub to: f64,
    /// Evenly in the logarithm; the lower end is above zero then.
    pub log: bool,
    /// Values a grid takes; at least 2.
    pub points: Option<u32>,
    /// What its numbers are.
    pub kind: RangeKind,
}

/// What the numbers of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// Integers.
    Integer,
    /// Numbers.
    Number,
    /// Durations, in nanoseconds.
    Duration,
    /// Percentages, in percent.
    Percent,
}

/// Digits of values inside a range: more would say nothing and read badly.
const DIGITS: usize = 3;

impl Range {
    /// The value at a share of the way, 0 to 1: whole where the kind is, else to three digits, and
    /// never beyond an end.
    pub fn at(&self, share: f64) -> AxisValue {
        let (from, to) = (self.from, self.to);
        let x = if share >= 1.0 {
            to
        } else if share <= 0.0 {
            from
        } else if self.log {
            // libm, so that every machine has the same point.
            from * libm::exp(share * libm::log(to / from))
        } else {
            from + share * (to - from)
        };
        let inside = |x: f64| x.clamp(from, to);
        let rounded = || -> f64 {
            let ends = x == from || x == to;
            let near: f64 = format!("{x:.*e}", DIGITS - 1).parse().unwrap_or(x);
            if ends { x } else { inside(near) }
        };
        let text = match self.kind {
            RangeKind::Integer => format!("{}", inside(x.round()) as i64),
            RangeKind::Number => {
                let x = rounded();
                if x.fract() == 0.0 { format!("{x:.1}") } else { x.to_string() }
            }
            RangeKind::Duration => show(rounded().round() as u64),
            RangeKind::Percent => format!("{}%", rounded()),
        };
        let quoted = matches!(self.kind, RangeKind::Duration | RangeKind::Percent);
        let toml = if quoted { format!("\"{text}\"") } else { text.clone() };
        AxisValue { toml, text }
    }
}

choice! {
    /// How the values of a range lie.
    pub(crate) enum Scale {
        /// Evenly.
        Linear = "linear",
        /// Evenly in the logarithm.
        Log = "log",
    }
}

table! {
    /// A range.
    pub(crate) struct RangeKeys {
        /// Lower end.
        from: At<End>,
        /// Upper end.
        to: At<End>,
        /// Values that a grid takes, both ends among them.
        points: Option<At<Int<2, { MAX_POINTS as i64 }>>>,
        /// How values lie.
        scale: At<Scale> = "linear",
    }
}

/// An end of a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct End {
    value: f64,
    kind: RangeKind,
}

impl Value for End {
    fn what() -> String {
        "an integer, a number, a duration like \"500us\" or a percentage like \"5%\"".to_owned()
    }

    fn read(node: &Node, errors: &mut Collector<'_>) -> Option<Self> {
        let found = match &node.value {
            NodeValue::Integer(Some(i)) if i.unsigned_abs() < 1 << 53 => {
                Some(Self { value: *i as f64, kind: RangeKind::Integer })
            }
            NodeValue::Float(x) if x.is_finite() => {
                Some(Self { value: *x, kind: RangeKind::Number })
            }
            NodeValue::String(text) => match (Time::parse(text), Percent::<100_000>::parse(text)) {
                (Ok(ns), _) => Some(Self { value: ns.0 as f64, kind: RangeKind::Duration }),
                (_, Ok(share)) => {
                    let value = f64::from(share.ppm) / 1e4;
                    Some(Self { value, kind: RangeKind::Percent })
                }
                _ => None,
            },
            _ => None,
        };
        if found.is_none() {
            let message = format!("{} cannot be the end of a range", node.what());
            errors.error_help(node.span, message, format!("write {}", Self::what()));
        }
        found
    }

    fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["integer", "number", "string"] })
    }
}

/// The axes and where each is written. `grid`: ranges must say their number of values.
pub(super) fn axes(node: &Node, grid: bool, errors: &mut Collector<'_>) -> Vec<(Axis, Span)> {
    let mut leaves = Vec::new();
    collect("", node, node.span, &is_range, &mut leaves);
    let mut found: Vec<(Axis, Span)> = Vec::new();
    for (path, span, node) in leaves {
        let paths: Vec<String> = path.split(',').map(|p| p.trim().to_owned()).collect();
        let earlier = |path: &String| found.iter().any(|(axis, _)| axis.paths.contains(path));
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
        if let Some(values) = values(&path, span, node, grid, errors) {
            found.push((Axis { paths, values }, span));
        }
    }
    found
}

/// The values of one axis.
fn values(
    path: &str,
    span: Span,
    node: &Node,
    grid: bool,
    errors: &mut Collector<'_>,
) -> Option<Values> {
    match &node.value {
        NodeValue::Array(items) if !items.is_empty() => {
            let values: Vec<AxisValue> = items.iter().map(value).collect();
            let twice = values.iter().enumerate().find(|(i, v)| values[..*i].contains(v));
            if let Some((i, value)) = twice {
                errors.error(items[i].span, format!("{} is there twice", value.toml));
            }
            Some(Values::List(values))
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

fn range(keys: &RangeKeys, span: Span, grid: bool, errors: &mut Collector<'_>) -> Option<Range> {
    let (from, to) = (&keys.from.value, &keys.to.value);
    let kind = match (from.kind, to.kind) {
        (a, b) if a == b => a,
        (RangeKind::Integer, RangeKind::Number) | (RangeKind::Number, RangeKind::Integer) => {
            RangeKind::Number
        }
        _ => {
            errors.error(keys.to.span, "the two ends are not of one kind");
            return None;
        }
    };
    if from.value >= to.value {
        errors.error(keys.to.span, "it must be above `from`");
        return None;
    }
    let log = keys.scale.value == Scale::Log;
    if log && from.value <= 0.0 {
        errors.error(keys.from.span, "a logarithmic range begins above 0");
        return None;
    }
    let points = keys.points.as_ref().map(|at| at.value.get32());
    if grid && points.is_none() {
        errors.error_help(span, "a grid needs to know how many values", "add points = 5");
        return None;
    }
    let range = Range { from: from.value, to: to.value, log, points, kind };
    if let (Some(n), true) = (points, kind == RangeKind::Integer) {
        let share = |i: u32| range.at(f64::from(i) / f64::from(n - 1));
        if n > 100_000 || (1..n).any(|i| share(i) == share(i - 1)) {
            let message = format!("there are not {n} different integers in it");
            errors.error(keys.points.as_ref().map_or(span, |at| at.span), message);
            return None;
        }
    }
    Some(range)
}

/// `[set]` as overrides.
pub(super) fn sets(node: &Node, errors: &mut Collector<'_>) -> Vec<Set> {
    let mut leaves = Vec::new();
    collect("", node, node.span, &|_| false, &mut leaves);
    let mut sets = Vec::new();
    for (path, span, node) in leaves {
        if path.starts_with("matrix") {
            errors.error(span, "a sweep has [axes] instead of a matrix");
        }
        sets.push(Set::of(&path, &toml(node)));
    }
    sets
}

/// Leaves of nested tables by path: keys without quotes nest, and the path is put together again.
fn collect<'n>(
    prefix: &str,
    node: &'n Node,
    span: Span,
    is_leaf: &dyn Fn(&Node) -> bool,
    found: &mut Vec<(String, Span, &'n Node)>,
) {
    match node.as_table() {
        Some(table) if prefix.is_empty() || !is_leaf(node) => {
            for (key, span, value) in &table.entries {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                collect(&path, value, *span, is_leaf, found);
            }
        }
        _ => found.push((prefix.to_owned(), span, node)),
    }
}

/// Whether a table is a range rather than further keys of a path.
fn is_range(node: &Node) -> bool {
    let is_value = |n: &Node| n.as_table().is_none() && !matches!(n.value, NodeValue::Array(_));
    node.as_table().is_some_and(|t| t.entries.iter().any(|(_, _, n)| is_value(n)))
}

fn value(node: &Node) -> AxisValue {
    AxisValue { toml: toml(node), text: node.text() }
}

/// A value as TOML has it.
fn toml(node: &Node) -> String {
    match &node.value {
        NodeValue::String(text) => toml::Value::String(text.clone()).to_string(),
        NodeValue::Float(x) if x.fract() == 0.0 => format!("{x:.1}"),
        NodeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(toml).collect();
            format!("[{}]", items.join(", "))
        }
        NodeValue::Table(table) => {
            let entry = |(key, _, value): &(String, Span, Node)| format!("{key} = {}", toml(value));
            let entries: Vec<String> = table.entries.iter().map(entry).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        _ => node.text(),
    }
}
