//! `[matrix]`: fields that vary.

use std::collections::BTreeSet;

use super::set::Path;
use crate::diagnostic::{Collector, Span};
use crate::limits::MAX_CELLS;
use crate::toml_read::node::leaves;
use crate::toml_read::units::twice;
use crate::toml_read::{Node, NodeValue};

/// Tables a matrix cannot vary: they say which experiment it is, not how it runs.
const FIXED: [&str; 8] =
    ["name", "title", "about", "assumptions", "matrix", "compare", "probe", "repeats"];

/// One field and its values, or several fields that change together.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// Paths as the user wrote them.
    pub(crate) paths: Vec<String>,
    /// Where they are written.
    pub(crate) span: Span,
    /// Values: for all paths, or lists of one for each.
    pub(crate) values: Vec<Node>,
    /// Number of paths that identify its values.
    told: usize,
}

impl Axis {
    fn new(paths: Vec<String>, span: Span, values: Vec<Node>) -> Self {
        let mut this = Self { told: paths.len(), paths, span, values };
        let firsts = (0..this.values.len()).map(|index| this.value(index, 0).text());
        if firsts.collect::<BTreeSet<_>>().len() == this.values.len() {
            this.told = 1;
        }
        this
    }

    /// Paths that results show: the first, or all if the first has one value twice.
    pub(crate) fn told_by(&self) -> &[String] {
        &self.paths[..self.told]
    }

    /// The `index`th value for the path number `at`; its own, if the value is a list with one for each of several
    /// paths.
    pub(crate) fn value(&self, index: usize, at: usize) -> &Node {
        let value = &self.values[index];
        match &value.value {
            NodeValue::Array(each) if self.paths.len() > 1 && each.len() == self.paths.len() => {
                &each[at]
            }
            _ => value,
        }
    }
}

/// One combination: an index into each axis' values.
pub(crate) type Cell = Vec<usize>;

/// Reads the axes. A key of several paths with commas between them changes them together: to the same value, or each to
/// its own of a list (`"host.pcpus, vm.guest.count" = [[8, 20], [24, 60]]`). Keys without quotes nest (`vm.guest.vcpus
/// = [1, 2]`): their path is put together again.
pub(crate) fn axes(matrix: &Node, errors: &Collector) -> Vec<Axis> {
    let mut found: Vec<Axis> = Vec::new();
    for (path, span, node) in leaves(matrix, &|_| false) {
        found.extend(axis(&path, span, node, &found, errors));
    }
    let mut cells = 1usize;
    for axis in &found {
        cells = cells.saturating_mul(axis.values.len());
        for path in &axis.paths {
            let root = Path::at(path, axis.span).root().to_owned();
            if FIXED.contains(&root.as_str()) {
                errors.error(axis.span, format!("a matrix cannot vary `{root}`"));
            }
        }
    }
    if cells > MAX_CELLS {
        let message = format!("the matrix has {cells} cells, more than {MAX_CELLS}");
        errors.error(found.last().map_or(matrix.span, |axis| axis.span), message);
        return Vec::new();
    }
    found
}

/// An axis beside earlier ones.
fn axis(path: &str, span: Span, node: &Node, found: &[Axis], errors: &Collector) -> Option<Axis> {
    let help = "write the values to try: \"vm.guest.vcpus\" = [1, 2, 4]";
    match &node.value {
        NodeValue::Array(values) if !values.is_empty() => {
            let paths: Vec<String> = path.split(',').map(|p| p.trim().to_owned()).collect();
            for (i, path) in paths.iter().enumerate() {
                let earlier = found.iter().flat_map(|axis| &axis.paths).chain(&paths[..i]);
                if earlier.into_iter().any(|other| other == path) {
                    errors.error(span, format!("`{path}` is varied twice"));
                    return None;
                }
            }
            if let Some((value, message)) = twice(values) {
                errors.error(value.span, message);
                return None;
            }
            return Some(Axis::new(paths, span, values.clone()));
        }
        NodeValue::Array(_) => {
            errors.error_help(node.span, format!("`{path}` has no value to try"), help);
        }
        _ => {
            let message = format!("`{path}` is {}, not a list of values", node.what());
            errors.error_help(node.span, message, help);
        }
    }
    None
}

/// Every combination, the last axis fastest; one empty cell for no axes.
pub(crate) fn cells(axes: &[Axis]) -> Vec<Cell> {
    let longer = |cells: Vec<Cell>, axis: &Axis| {
        let each = |cell: Cell| (0..axis.values.len()).map(move |i| [&cell[..], &[i]].concat());
        cells.into_iter().flat_map(each).collect()
    };
    axes.iter().fold(vec![Vec::new()], longer)
}
