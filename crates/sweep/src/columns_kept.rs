//! Rows and columns that a dataset keeps, by `[keep]`.

use std::collections::BTreeSet;

use vcoop_model::diagnostic::{Diagnostic, nearest};
use vcoop_model::plan::Plan;
use vcoop_model::sweep::{Keep, Place, Sweep};

use crate::row::{NUMBERS, PointRows};

/// Diagnostics about names of `[keep]` that do not exist.
pub(crate) fn wrong(sweep: &Sweep, base: &str, plans: &[Plan]) -> Vec<Diagnostic> {
    let Some(keep) = &sweep.keep else { return Vec::new() };
    let mut found = Vec::new();
    let known: BTreeSet<String> = plans.iter().flat_map(Plan::subjects).collect();
    for (i, probe) in keep.probes.iter().enumerate() {
        if !known.contains(probe) {
            let message = format!("{base} has nothing called `{probe}`");
            let help = nearest(probe, "names", &known);
            found.push(sweep.place(Place::KeepProbe(i), message, Some(help)));
        }
    }
    for (i, column) in keep.columns.iter().enumerate() {
        if !NUMBERS.contains(&column.as_str()) {
            let message = format!("there is no column of numbers `{column}`");
            let help = nearest(column, "columns", &NUMBERS);
            found.push(sweep.place(Place::KeepColumn(i), message, Some(help)));
        }
    }
    found
}

/// Removes what is not kept. The row of a failed point stays.
pub(crate) fn cut(keep: Option<&Keep>, point: &mut PointRows) {
    let Some(keep) = keep else { return };
    let kept = |list: &[String], name: &str| list.is_empty() || list.iter().any(|k| k == name);
    point.rows.retain(|row| row.probe.as_deref().is_none_or(|probe| kept(&keep.probes, probe)));
    for row in &mut point.rows {
        row.numbers.retain(|(i, _)| {
            NUMBERS.get(usize::from(*i)).is_some_and(|name| kept(&keep.columns, name))
        });
    }
}
