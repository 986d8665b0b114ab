//! Values of an axis: a list, or a range, which is anything between two ends.

use crate::diagnostic::{Collector, Span};
use crate::limits::MAX_POINTS;
use crate::toml_read::table::table;
use crate::toml_read::units::{Percent, Time, show};
use crate::toml_read::value::{Int, choice};
use crate::toml_read::{Node, NodeValue, Placed, Text, Value};

/// Possible values of an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// One of these.
    List(Vec<AxisValue>),
    /// Anything between two ends.
    Range(Range),
}

impl Values {
    /// Number of values that a grid takes.
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
    /// As TOML.
    pub toml: String,
    /// The same without quotes.
    pub text: String,
}

impl AxisValue {
    /// As in a file.
    pub(super) fn of(node: &Node) -> Self {
        Self { toml: node.toml(), text: node.text() }
    }
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

/// Digits of values inside a range: more would be unreadable.
const DIGITS: usize = 3;

impl Range {
    /// The value at a share of the way, 0 to 1: whole for integers, else to three digits, and never beyond an end.
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
        from: Placed<End>,
        /// Upper end.
        to: Placed<End>,
        /// Values that a grid takes, both ends among them.
        points: Option<Placed<Int<2, { MAX_POINTS as i64 }>>>,
        /// How values lie.
        scale: Placed<Scale> = "linear",
    }
}

/// An end of a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct End {
    /// In the unit of its kind.
    pub(super) value: f64,
    /// What it is.
    pub(super) kind: RangeKind,
}

impl Value for End {
    fn what() -> String {
        "an integer, a number, a duration like \"500us\" or a percentage like \"5%\"".to_owned()
    }

    fn read(node: &Node, errors: &Collector) -> Option<Self> {
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

/// Checks a range. `grid`: it must give its number of values.
pub(super) fn range(keys: &RangeKeys, span: Span, grid: bool, errors: &Collector) -> Option<Range> {
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
