//! Axes other than fields: named cases, and vCPUs a pCPU.

use super::values::{AxisValue, End, RangeKeys, RangeKind, Scale, Values, range};
use crate::diagnostic::{Collector, Span};
use crate::limits::MAX_POINTS;
use crate::toml_read::node::leaves;
use crate::toml_read::table::{read_table, table};
use crate::toml_read::value::Int;
use crate::toml_read::{Node, NodeValue, Placed, Value};

/// Changes of a case: paths, and values as TOML.
type Case = Vec<(String, String)>;

/// Default field by which a ratio is reached.
const BY: &str = "host.pcpus";

/// Whether a list has cases: no field of a scenario has a key `set`.
pub(super) fn is_cases(node: &Node) -> bool {
    let NodeValue::Array(items) = &node.value else { return false };
    items.iter().any(|item| item.as_table().is_some_and(|table| table.get("set").is_some()))
}

/// Cases: `[{ name = "idle", set = { "load.hog.count" = 1, ... } }, ...]`; names and what each sets.
pub(super) fn cases(
    path: &str,
    span: Span,
    node: &Node,
    errors: &Collector,
) -> Option<(Vec<AxisValue>, Vec<Case>)> {
    let NodeValue::Array(items) = &node.value else { return None };
    let shape =
        "write { name = \"busy\", set = { \"load.hog.count\" = 8, \"host.tick_hz\" = 1000 } }";
    let (mut names, mut cases) = (Vec::new(), Vec::new());
    for item in items {
        let table = item.as_table();
        let field = |key: &str| table.and_then(|table| table.get(key));
        let extra = table
            .and_then(|table| table.entries.iter().find(|(key, ..)| key != "name" && key != "set"));
        let (Some(name), Some(set), None) = (field("name"), field("set"), extra) else {
            let at = extra.map_or(item.span, |(_, span, _)| *span);
            errors.error_help(at, format!("every case of `{path}` is a name and a set"), shape);
            return None;
        };
        let plain = !matches!(name.value, NodeValue::Array(_) | NodeValue::Table(_));
        if !plain || name.text().is_empty() {
            errors.error_help(name.span, format!("{} is no name", name.what()), shape);
            return None;
        }
        let leaves = leaves(set, &|_| false).into_iter();
        let sets: Case = leaves.map(|(path, _, node)| (path, node.toml())).collect();
        if set.as_table().is_none() || sets.is_empty() {
            errors.error_help(set.span, "it sets nothing", shape);
            return None;
        }
        let name = Placed { value: AxisValue::of(name), span: name.span };
        if names.contains(&name.value) {
            errors.error(name.span, format!("{} is there twice", name.value.toml));
        }
        names.push(name.value);
        cases.push(sets);
    }
    if path.contains([',', '.']) {
        let help = "it sets the fields that each case names";
        errors.error_help(
            span,
            "an axis of cases has a name of its own, without `.` and `,`",
            help,
        );
        return None;
    }
    Some((names, cases))
}

table! {
    /// vCPUs a pCPU.
    pub(crate) struct RatioKeys {
        /// The field that makes it so: the number of pCPUs, or that of VMs or of their vCPUs.
        by: Option<Placed<String>>,
        /// Ratios to try, instead of a range.
        values: Option<Placed<Vec<Placed<End>>>>,
        /// Lower end.
        from: Option<Placed<End>>,
        /// Upper end.
        to: Option<Placed<End>>,
        /// Values that a grid takes, both ends among them.
        points: Option<Placed<Int<2, { MAX_POINTS as i64 }>>>,
        /// How values lie.
        scale: Placed<Scale> = "linear",
    }
}

/// The ratios to try and the field that is set for them: a list, or a table with `by`.
pub(super) fn ratio(
    span: Span,
    node: &Node,
    grid: bool,
    errors: &Collector,
) -> Option<(String, Values)> {
    if let NodeValue::Array(items) = &node.value {
        let read = |item| Some(Placed { value: End::read(item, errors)?, span: item.span });
        let ends: Option<Vec<Placed<End>>> = items.iter().map(read).collect();
        return Some((BY.to_owned(), Values::List(ratios(span, &ends?, errors)?)));
    }
    if node.as_table().is_none() {
        let message = format!("{} is no list of ratios", node.what());
        let help = "write [0.5, 1, 2], or { by = \"vm.NAME.count\", values = [0.5, 1, 2] }";
        errors.error_help(span, message, help);
        return None;
    }
    let keys: RatioKeys = read_table(node, errors)?;
    let by = keys.by.map_or_else(|| BY.to_owned(), |by| by.value);
    match (keys.values, keys.from, keys.to) {
        (Some(values), None, None) => {
            let list = ratios(values.span, &values.value, errors)?;
            Some((by, Values::List(list)))
        }
        (None, Some(from), Some(to)) => {
            positive(&[from.clone(), to.clone()], errors)?;
            let keys = RangeKeys { from, to, points: keys.points, scale: keys.scale };
            let mut found = range(&keys, span, grid, errors)?;
            // Whole ends do not make whole ratios of what is between them.
            found.kind = RangeKind::Number;
            Some((by, Values::Range(found)))
        }
        _ => {
            let help = "write values = [0.5, 1, 2], or from = 0.5, to = 4 and points = 4";
            errors.error_help(span, "the ratios to try are a list or a range", help);
            None
        }
    }
}

/// A list of ratios without repetitions.
fn ratios(span: Span, ends: &[Placed<End>], errors: &Collector) -> Option<Vec<AxisValue>> {
    positive(ends, errors)?;
    if ends.is_empty() {
        errors.error(span, "there is no ratio in it");
        return None;
    }
    let mut values: Vec<AxisValue> = Vec::new();
    for end in ends {
        let text = end.value.value.to_string();
        let value = AxisValue { toml: text.clone(), text };
        if values.contains(&value) {
            errors.error(end.span, format!("{} is there twice", value.text));
        }
        values.push(value);
    }
    Some(values)
}

/// Whether all are numbers above zero; adds an error if not.
fn positive(ends: &[Placed<End>], errors: &Collector) -> Option<()> {
    let number = |end: &End| matches!(end.kind, RangeKind::Integer | RangeKind::Number);
    let right = |end: &&Placed<End>| number(&end.value) && end.value.value > 0.0;
    let Some(wrong) = ends.iter().find(|end| !right(end)) else { return Some(()) };
    errors.error_help(wrong.span, "a ratio is a number above 0", "write 0.5, 1, 2");
    None
}
