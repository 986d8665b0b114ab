//! The tables of a sweep file.

use schemars::generate::SchemaSettings;

use super::axes::{axes, sets};
use super::{Keep, Stop, Sweep};
use crate::diagnostic::{Collector, Sources, Span};
use crate::limits::MAX_POINTS;
use crate::toml_read::Node;
use crate::toml_read::Placed;
use crate::toml_read::table::{SubTable, table};
use crate::toml_read::units::Percent;
use crate::toml_read::value::{Int, Name, choice};

table! {
    /// A sweep: the scenario, what varies, and when a point has enough repeats.
    pub(crate) struct SweepKeys {
        /// Name, as the dataset shows it.
        name: Placed<Name>,
        /// One line about it.
        title: Option<Placed<String>>,
        /// The base scenario: a built-in name, or a path relative to this file.
        scenario: Placed<String>,
        /// Fields of the base scenario to change at every point: path and value, as `--set` has them.
        set: Option<Placed<Node>>,
        /// What varies: path of a field (or several with commas between, which change together) and
        /// a list of values, or a range `{ from = 1, to = 64, points = 7, scale = "log" }`. Ends are
        /// integers, numbers, durations or percentages. A name of its own and a list of cases
        /// `{ name = "busy", set = { PATH = VALUE, ... } }` varies several fields together.
        /// `vcpus_per_pcpu` with ratios (or `{ by = PATH, values = [0.5, 1, 2] }`, or a range) sets `host.pcpus`, or
        /// the field that `by` names, so that the scenario has this ratio.
        axes: Placed<Node>,
        /// How points are chosen.
        design: Placed<DesignKind> = "grid",
        /// latin-hypercube and sobol: number of points.
        points: Option<Placed<Int<1, { MAX_POINTS as i64 }>>>,
        /// Seed of the design. Workloads have the scenario's own seed.
        seed: Placed<Int<0, { i64::MAX }>> = "1",
        /// Policies to compare; `dynamic:nice` is `dynamic` by another means: fifo, rr, nice or slice,
        /// or with a value, as `dynamic:nice -10`. Default: the scenario's.
        policies: Option<Placed<Vec<Placed<String>>>>,
        /// Repeats.
        repeats: SubTable<RepeatKeys>,
        /// When a point has enough repeats.
        stop: SubTable<StopKeys>,
        /// What the whole sweep may cost.
        budget: SubTable<BudgetKeys>,
        /// Parts of the results that the dataset keeps. Default: all.
        keep: SubTable<KeepKeys>,
    }
}

table! {
    /// Repeats of a point. Repeat `r` of every policy at every point sees the same workload.
    pub(crate) struct RepeatKeys {
        /// Least repeats of a point.
        min: Placed<Int<1, 10_000>> = "5",
        /// Most repeats of a point; more than `min` needs `[stop]`. Default: `min`.
        max: Option<Placed<Int<1, 10_000>>>,
    }
}

table! {
    /// When a point has enough repeats: when the intervals of all comparisons are narrow enough. Default: at `min`
    /// repeats.
    pub(crate) struct StopKeys {
        /// Widest 95 % interval of a policy's ratio to the baseline, relative to the ratio.
        width: Option<Placed<Percent<1000>>>,
        /// Whose ratio.
        statistic: Placed<Statistic> = "mean",
        /// Latency probes that count. Default: those of guests.
        probes: Option<Placed<Vec<Placed<String>>>>,
    }
}

table! {
    /// What the whole sweep may cost.
    pub(crate) struct BudgetKeys {
        /// Most simulated runs (one repeat of one policy each). Points share them evenly, so that the repeats of a
        /// point do not depend on the others. No point has fewer than `min` repeats.
        runs: Option<Placed<Int<1, { i64::MAX }>>>,
    }
}

table! {
    /// What the dataset keeps of a point. Best policies and the stopping rule see everything.
    pub(crate) struct KeepKeys {
        /// Probes whose rows it has. Default: all.
        probes: Option<Placed<Vec<Placed<String>>>>,
        /// Columns of numbers that it has; the others are null. Default: all.
        columns: Option<Placed<Vec<Placed<String>>>>,
    }
}

choice! {
    /// How points are chosen.
    pub enum DesignKind {
        /// Every combination, the last axis fastest.
        Grid = "grid",
        /// Each axis in `points` equal strata, one point in each, strata combined at random.
        LatinHypercube = "latin-hypercube",
        /// An Owen-scrambled Sobol sequence.
        Sobol = "sobol",
    }
}

choice! {
    /// A statistic of a latency series.
    pub enum Statistic {
        /// The mean.
        Mean = "mean",
        /// The median.
        P50 = "p50",
        /// The 90 % quantile.
        P90 = "p90",
        /// The 99 % quantile.
        P99 = "p99",
        /// The 99.9 % quantile.
        P999 = "p999",
        /// The 99.99 % quantile.
        P9999 = "p9999",
    }
}

impl SweepKeys {
    /// The sweep, but for its sources.
    pub(super) fn resolve(self, file: &str, text: &str, errors: &Collector) -> Option<Sweep> {
        let grid = self.design.value == DesignKind::Grid;
        let (axes, axis_spans): (Vec<_>, Vec<_>) =
            axes(&self.axes.value, grid, errors).into_iter().unzip();
        let sets = self.set.map(|raw| sets(&raw.value, errors)).unwrap_or_default();
        match (&self.points, grid) {
            (Some(points), true) => {
                let help = "leave it out, or take design = \"sobol\"";
                errors.error_help(points.span, "a grid has its own number of points", help);
            }
            (None, false) => {
                let help = "add points = 64";
                errors.error_help(self.design.span, "this design needs a number of points", help);
            }
            _ => {}
        }
        if grid {
            let most = |n: u64, axis: &super::Axis| n.saturating_mul(axis.values.grid_len());
            let n = axes.iter().fold(1, most);
            if n > MAX_POINTS {
                let message = format!("the grid has {n} points, more than {MAX_POINTS}");
                errors.error_help(self.axes.span, message, "take design = \"sobol\" and points");
            }
        }
        let min = self.repeats.value.min.value.get32();
        let max = self.repeats.value.max.as_ref().map_or(min, |max| max.value.get32());
        if let Some(at) = self.repeats.value.max.as_ref().filter(|_| max < min) {
            errors.error(at.span, format!("it is below `min`, which is {min}"));
        }
        let keys = self.stop.value;
        let width = keys.width.as_ref();
        if let Some(at) = self.repeats.value.max.as_ref().filter(|_| max > min && width.is_none()) {
            let help = "add [stop] with width = \"10%\"";
            errors.error_help(at.span, "nothing says when a point has enough repeats", help);
        }
        if let (None, Some((key, span))) = (width, self.stop.given.first()) {
            let help = "add width = \"10%\"";
            errors.error_help(*span, format!("`{key}` means nothing without `width`"), help);
        }
        if let Some(width) = width.filter(|w| w.value.ppm == 0) {
            errors.error(width.span, "no interval is as narrow as that");
        }
        let listed = |list: Option<Placed<Vec<Placed<String>>>>| -> (Vec<String>, Vec<Span>) {
            let items = list.map(|at| at.value).unwrap_or_default();
            items.into_iter().map(|at| (at.value, at.span)).unzip()
        };
        let policies_span = self.policies.as_ref().map(|at| at.span).unwrap_or_default();
        let (policies, spans) = listed(self.policies);
        for (i, policy) in policies.iter().enumerate() {
            if policies[..i].contains(policy) {
                errors.error(spans[i], format!("`{policy}` is named twice"));
            }
        }
        let (probes, stop_spans) = listed(keys.probes);
        let statistic = keys.statistic.value;
        let stop = width.map(|w| Stop { width_ppm: w.value.ppm, statistic, probes });
        let keep = self.keep.value;
        let kept = !self.keep.given.is_empty();
        let (probes, probe_spans) = listed(keep.probes);
        let (columns, column_spans) = listed(keep.columns);
        Some(Sweep {
            file: file.to_owned(),
            text: text.to_owned(),
            name: self.name.value.0,
            title: self.title.map(|at| at.value).unwrap_or_default(),
            scenario: self.scenario.value,
            sets,
            axes,
            design: self.design.value,
            points: self.points.map(|at| at.value.get32()),
            policies,
            seed: self.seed.value.get(),
            repeats_min: min,
            repeats_max: max,
            stop,
            keep: kept.then_some(Keep { probes, columns }),
            runs: self.budget.value.runs.map(|at| at.value.get()),
            sources: Sources::default(),
            scenario_span: self.scenario.span,
            policies_span,
            axis_spans,
            stop_spans,
            keep_spans: [probe_spans, column_spans],
        })
    }
}

/// Every table and key of sweep files, as Markdown.
pub fn reference() -> String {
    let generator = SchemaSettings::draft07().into_generator();
    let schema = generator.into_root_schema_for::<SweepKeys>().to_value();
    let mut out = String::new();
    let tables = [
        ("Top level", None),
        ("[repeats]", Some("RepeatKeys")),
        ("[stop]", Some("StopKeys")),
        ("[budget]", Some("BudgetKeys")),
        ("[keep]", Some("KeepKeys")),
    ];
    for (title, name) in tables {
        let table = name.map_or(&schema, |name| &schema["definitions"][name]);
        crate::scenario::section(&mut out, title, table);
    }
    out
}
