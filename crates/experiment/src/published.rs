//! Published tables and claims as data, with their scenarios here.
//!
//! The files in `published/` of the source ship with the program; users may have files of the same form. A cell of a
//! table is a scenario, a cell of its matrix, a policy, a probe and a quantity. A claim is a list of bounds on such
//! quantities, or on combinations of two policies' quantities.

mod places;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use vcoop_model::builtin::is_path;
use vcoop_model::diagnostic::{Diagnostic, Diagnostics, nearest};
use vcoop_model::kind::Kind;

use crate::result::Statistic;
use places::Origin;
pub(crate) use places::Step;

/// Path of the scenario to value, as text: the coordinates of a matrix cell. A scenario's cell matches if it has at
/// least these.
pub type Coordinates = BTreeMap<String, String>;

/// Samples beyond this, in microseconds, are in the last bucket.
pub(crate) const MOST_US: u64 = 100_000;

/// A publication.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// Name, as for `vcoop reproduce NAME`.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// Authors, title and date.
    pub source: String,
    /// Notes for readers of the comparison.
    pub notes: Vec<String>,
    /// Tables.
    #[serde(rename = "table", default)]
    pub tables: Vec<Table>,
    /// Histograms.
    #[serde(rename = "histogram", default)]
    pub histograms: Vec<Histogram>,
    /// Claims.
    #[serde(rename = "claim", default)]
    pub claims: Vec<Claim>,
    /// The file, for messages.
    #[serde(skip)]
    pub(crate) origin: Origin,
}

/// A published table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Name, unique over all publications.
    pub id: String,
    /// Caption.
    pub title: String,
    /// Unit of the published values. Simulated times are shown in it if it is a unit of time, or `cycles` of the
    /// profile's TSC.
    pub unit: String,
    /// Scenario that stands for the experiment.
    pub scenario: String,
    /// Metric of the probe.
    #[serde(default = "latency")]
    pub metric: String,
    /// Quantity of the series.
    pub quantity: Quantity,
    /// Unit of the simulated values, if it differs.
    pub simulated_unit: Option<String>,
    /// Whether a simulated value can be compared with the published one directly (else only with other cells).
    #[serde(default = "default_true")]
    pub comparable: bool,
    /// What the rows are.
    pub row_name: String,
    /// Rows.
    pub rows: Vec<Row>,
    /// Columns.
    pub columns: Vec<Column>,
    /// The published values, row by row.
    pub values: Vec<Vec<f64>>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// As printed.
    pub name: String,
    /// Where it is in the matrix.
    #[serde(default)]
    pub cell: Coordinates,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// As printed.
    pub name: String,
    /// Policy.
    pub policy: String,
    /// Probe.
    pub probe: String,
    /// Where it is in the matrix, besides the row.
    #[serde(default)]
    pub cell: Coordinates,
    /// If the published values are ratios: the column by whose simulated value in the same row this column's is
    /// divided.
    pub per: Option<String>,
}

/// Published histograms of one experiment, in buckets of a microsecond as cyclictest prints them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// Name, unique over all publications.
    pub id: String,
    /// Caption.
    pub title: String,
    /// Scenario that stands for the experiment.
    pub scenario: String,
    /// Probe.
    pub probe: String,
    /// One for each setting.
    #[serde(rename = "column")]
    pub columns: Vec<HistogramColumn>,
}

/// One histogram.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistogramColumn {
    /// As printed.
    pub name: String,
    /// Policy.
    pub policy: String,
    /// Where it is in the matrix.
    #[serde(default)]
    pub cell: Coordinates,
    /// Samples taken, those in buckets that were not printed too.
    pub samples: u64,
    /// Microseconds and samples of the buckets that were printed, ascending.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    fn wrong(&self, refuse: &mut Refuse<'_>) {
        for (i, column) in self.columns.iter().enumerate() {
            let path = &["column".into(), i.into(), "buckets".into()];
            if column.buckets.iter().any(|bucket| bucket.0 > MOST_US) {
                refuse(path, format!("buckets end at {MOST_US} us"), None);
            } else if column.buckets.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
                refuse(path, "buckets are not in order".to_owned(), None);
            }
            let listed = column.buckets.iter().map(|bucket| u128::from(bucket.1)).sum::<u128>();
            if listed > u128::from(column.samples) {
                let message = format!("{listed} samples in the buckets, {} taken", column.samples);
                refuse(path, message, None);
            }
        }
    }
}

/// A published finding, checked by bounds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Name, unique over all publications.
    pub id: String,
    /// The finding.
    pub statement: String,
    /// What was assumed in turning it into bounds.
    pub assumption: Option<String>,
    /// Why it is not reproduced, as far as known.
    pub reason: Option<String>,
    /// A value that was not published and on which the verdict depends, with the checked number over its plausible
    /// range.
    #[serde(default)]
    pub depends: Vec<String>,
    /// Commands (`vcoop run ...`) whose output shows the statements of `reason` and `depends`.
    #[serde(default)]
    pub shown_by: Vec<String>,
    /// All of them must hold.
    #[serde(rename = "check")]
    pub checks: Vec<Check>,
}

/// One bound of a claim.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Scenario.
    pub scenario: String,
    /// Cells in which it must hold; default: all.
    #[serde(default)]
    pub cells: Vec<Coordinates>,
    /// Probe.
    pub probe: String,
    /// Metric of the probe.
    #[serde(default = "latency")]
    pub metric: String,
    /// Another metric of the probe, by which the first is divided: for example exits a second for each multicast a
    /// second.
    pub per: Option<String>,
    /// Quantity; `share` takes the mean.
    #[serde(default)]
    pub quantity: Quantity,
    /// How the quantity is used.
    pub form: QuantityForm,
    /// Policy it is about.
    pub policy: String,
    /// Policy to compare with, for `ratio` and `difference`; default with `to_cell`: the same policy.
    pub to: Option<String>,
    /// Cell to compare with, for `ratio` and `difference`: the same cell with these coordinates changed.
    #[serde(default)]
    pub to_cell: Coordinates,
    /// VMs of a storm, from one to another, for the quantity `curve`.
    pub vms: Option<[u32; 2]>,
    /// Part of the latency, for `share`.
    pub part: Option<String>,
    /// Lower bound.
    pub at_least: Option<f64>,
    /// Upper bound.
    pub at_most: Option<f64>,
}

/// A number of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Mean of a latency.
    #[default]
    Mean,
    /// Smallest sample.
    Min,
    /// Median.
    P50,
    /// 90 % quantile.
    P90,
    /// 99 % quantile.
    P99,
    /// 99.9 % quantile.
    P999,
    /// Median over repeats of the largest sample of each.
    MaxPerRepeat,
    /// Value of a scalar.
    Value,
    /// Seconds that a storm took from one VM to another (`vms`; 0 is its begin), by its curve: `probe` is the VMs'
    /// name, `metric` is `start` or `login`.
    Curve,
    /// For an interval view: the share of pauses in which a vCPU of a third VM had the pCPU. `metric` is the view's
    /// `at`. A pause is the time between two runs of the vCPU with which the view begins. `probe` is the VM that serves
    /// its I/O, which does not count as third.
    Interleaved,
}

impl Quantity {
    /// The corresponding statistic of a latency series, which has its own interval.
    pub(crate) fn statistic(self) -> Option<Statistic> {
        match self {
            Self::Mean => Some(Statistic::Mean),
            Self::P50 => Some(Statistic::P50),
            Self::P90 => Some(Statistic::P90),
            Self::P99 => Some(Statistic::P99),
            Self::P999 => Some(Statistic::P999),
            Self::Min | Self::MaxPerRepeat | Self::Value | Self::Curve | Self::Interleaved => None,
        }
    }
}

/// How a check uses a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuantityForm {
    /// The quantity itself.
    Value,
    /// The quantity of `policy` over that of `to`.
    Ratio,
    /// The quantity of `policy` minus that of `to`.
    Difference,
    /// Mean of `part` over the mean.
    Share,
}

fn latency() -> String {
    "latency".to_owned()
}

fn default_true() -> bool {
    true
}

/// Receives an error at a path of a table, a histogram or a claim, with advice.
type Refuse<'r> = dyn FnMut(&[Step<'_>], String, Option<&str>) + 'r;

impl Publication {
    /// Parses a publication; `file` is its path, to which paths of scenarios are relative.
    ///
    /// # Errors
    ///
    /// What is wrong, with its place: an unknown field, a table whose values do not match its rows and columns, a check
    /// without what its form needs.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let refused = |e: toml::de::Error| {
            let range = e.span().unwrap_or_default();
            Diagnostic::at(file, text, range, e.message().to_owned(), None)
        };
        let table: toml::Table = toml::from_str(text).map_err(refused)?;
        Kind::Publication.expect(file, table.keys().map(String::as_str))?;
        let mut this: Self = toml::from_str(text).map_err(refused)?;
        this.origin = Origin { file: file.to_owned(), text: text.to_owned() };
        let found = this.wrong();
        if !found.is_empty() {
            return Err(Diagnostics(found));
        }
        let dir = Path::new(file).parent().unwrap_or(Path::new(""));
        for scenario in this.scenarios_mut().filter(|name| is_path(name)) {
            *scenario = dir.join(&*scenario).display().to_string();
        }
        Ok(this)
    }

    /// The names of its parts, each with its path.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ([Step<'static>; 3], &String)> {
        let tables = self.tables.iter().map(|table| &table.id).enumerate();
        let histograms = self.histograms.iter().map(|histogram| &histogram.id).enumerate();
        let claims = self.claims.iter().map(|claim| &claim.id).enumerate();
        let at = |list: &'static str| {
            move |(i, id): (usize, _)| ([list.into(), i.into(), "id".into()], id)
        };
        tables
            .map(at("table"))
            .chain(histograms.map(at("histogram")))
            .chain(claims.map(at("claim")))
    }

    /// The scenarios that it names, each with the path of the table or check that does.
    pub(crate) fn scenarios(&self) -> impl Iterator<Item = (Vec<Step<'static>>, &String)> {
        let at = |list: &'static str, i: usize| vec![list.into(), i.into()];
        let tables = self.tables.iter().enumerate();
        let histograms = self.histograms.iter().enumerate();
        let checks = self.claims.iter().enumerate().flat_map(move |(i, claim)| {
            let checks = claim.checks.iter().enumerate();
            checks
                .map(move |(j, check)| ([at("claim", i), at("check", j)].concat(), &check.scenario))
        });
        tables
            .map(move |(i, table)| (at("table", i), &table.scenario))
            .chain(histograms.map(move |(i, histogram)| (at("histogram", i), &histogram.scenario)))
            .chain(checks)
    }

    fn scenarios_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let tables = self.tables.iter_mut().map(|table| &mut table.scenario);
        let histograms = self.histograms.iter_mut().map(|histogram| &mut histogram.scenario);
        let checks = self.claims.iter_mut().flat_map(|claim| &mut claim.checks);
        tables.chain(histograms).chain(checks.map(|check| &mut check.scenario))
    }

    /// Errors that do not depend on its scenarios.
    fn wrong(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        let mut known: Vec<&String> = Vec::new();
        for (path, id) in self.ids() {
            if id.is_empty() {
                found.push(self.origin.at(&path, "the name is empty".to_owned(), None));
            } else if known.contains(&id) {
                let help = Some("give each a name of its own".to_owned());
                found.push(self.origin.at(&path, format!("the name `{id}` is used twice"), help));
            }
            known.push(id);
        }
        let mut look = |list: &str, i: usize, wrong: &dyn Fn(&mut Refuse<'_>)| {
            wrong(&mut |path, message, help| {
                let path = [&[list.into(), i.into()], path].concat();
                found.push(self.origin.at(&path, message, help.map(str::to_owned)));
            });
        };
        for (i, table) in self.tables.iter().enumerate() {
            look("table", i, &|refuse| table.wrong(refuse));
        }
        for (i, histogram) in self.histograms.iter().enumerate() {
            look("histogram", i, &|refuse| histogram.wrong(refuse));
        }
        for (i, claim) in self.claims.iter().enumerate() {
            look("claim", i, &|refuse| claim.wrong(refuse));
        }
        found
    }

    /// All publications that ship with the program.
    pub fn builtin() -> Vec<Self> {
        const TEXTS: [&str; 5] = [
            include_str!("../../../published/pvsched.toml"),
            include_str!("../../../published/xen.toml"),
            include_str!("../../../published/hv-timer.toml"),
            include_str!("../../../published/tax-cut.toml"),
            include_str!("../../../published/paravirt-cpus.toml"),
        ];
        // A test parses them all: none is lost here.
        TEXTS.iter().filter_map(|text| Self::parse("published", text).ok()).collect()
    }
}

/// Units of time for simulated values, in microseconds.
pub(crate) const TIMES: [(&str, f64); 4] = [("ns", 1e-3), ("us", 1.0), ("ms", 1e3), ("s", 1e6)];

/// A further unit, whose length is in the profile.
pub(crate) const CYCLES: &str = "cycles";

/// Largest published value.
const MOST_VALUE: f64 = 1e15;

impl Column {
    /// Matrix coordinates of this column in a row.
    pub(crate) fn place(&self, row: &Row) -> Coordinates {
        let mut place = row.cell.clone();
        place.extend(self.cell.clone());
        place
    }
}

impl Table {
    pub(crate) fn simulated_unit(&self) -> &str {
        self.simulated_unit.as_ref().unwrap_or(&self.unit)
    }

    fn wrong(&self, refuse: &mut Refuse<'_>) {
        let (rows, columns) = (self.rows.len(), self.columns.len());
        if rows == 0 || columns == 0 {
            refuse(&["id".into()], "a table without cells says nothing".to_owned(), None);
        }
        if self.values.len() != rows {
            let message = format!("`values` has {} lists, `rows` has {rows}", self.values.len());
            refuse(&["values".into()], message, Some("write a list for each row"));
        }
        for (i, (row, values)) in self.rows.iter().zip(&self.values).enumerate() {
            let at = |rest: &[Step<'static>]| [&["values".into(), i.into()], rest].concat();
            if values.len() != columns {
                let message =
                    format!("row `{}` has {} of {columns} values", row.name, values.len());
                refuse(&at(&[]), message, Some("write a value for each column"));
            }
            let wrong = |value: &&(usize, &f64)| !(0.0..=MOST_VALUE).contains(value.1);
            for (j, value) in values.iter().enumerate().filter(|value| wrong(&value)) {
                let message = format!("{value} cannot be compared");
                refuse(&at(&[j.into()]), message, Some("write a number from 0 to 1e15"));
            }
        }
        if matches!(self.quantity, Quantity::Curve | Quantity::Interleaved) {
            let message = "this quantity is for the checks of claims".to_owned();
            refuse(&["quantity".into()], message, None);
        }
        let ours = self.simulated_unit.as_ref().filter(|ours| **ours != self.unit);
        if ours.is_some() && self.comparable {
            let message = "values in two units cannot be held against each other".to_owned();
            refuse(&["simulated_unit".into()], message, Some("set comparable = false"));
        }
        let times: Vec<&str> = TIMES.iter().map(|(name, _)| *name).chain([CYCLES]).collect();
        let a_time = self.metric == latency() && self.columns.iter().any(|c| c.per.is_none());
        if a_time && self.comparable && !times.contains(&self.simulated_unit()) {
            let message =
                format!("`{}` is no unit of time that is known here", self.simulated_unit());
            let help = format!("write one of {}", times.join(", "));
            refuse(&["unit".into()], message, Some(&help));
        }
        let names: Vec<&str> = self.columns.iter().map(|column| &*column.name).collect();
        let rows: Vec<&str> = self.rows.iter().map(|row| &*row.name).collect();
        for (list, names) in [("columns", &names), ("rows", &rows)] {
            for (j, name) in names.iter().enumerate() {
                if name.is_empty() || names[..j].contains(name) {
                    let path = [list.into(), j.into(), "name".into()];
                    refuse(&path, format!("`{name}` is no name of its own"), None);
                }
            }
        }
        for (j, column) in self.columns.iter().enumerate() {
            if let Some(per) = column.per.as_ref().filter(|per| !names.contains(&per.as_str())) {
                let path = ["columns".into(), j.into(), "per".into()];
                let help = nearest(per, "columns", &names);
                refuse(&path, format!("there is no column `{per}`"), Some(&help));
            }
        }
    }
}

impl Claim {
    fn wrong(&self, refuse: &mut Refuse<'_>) {
        if self.checks.is_empty() {
            refuse(&["check".into()], "a claim without a check holds always".to_owned(), None);
        }
        for (i, check) in self.checks.iter().enumerate() {
            if let Err(why) = check.complete() {
                refuse(&["check".into(), i.into()], why.to_owned(), None);
            }
        }
    }
}

impl Check {
    fn complete(&self) -> Result<(), &'static str> {
        let compares = matches!(self.form, QuantityForm::Ratio | QuantityForm::Difference);
        match (compares, self.to.is_some() || !self.to_cell.is_empty()) {
            (true, false) => return Err("a ratio or a difference needs `to` or `to_cell`"),
            (false, true) => return Err("`to` and `to_cell` are for ratios and differences"),
            _ => {}
        }
        match (self.quantity == Quantity::Curve, self.vms) {
            (true, Some([from, to])) if from < to => {}
            (true, _) => return Err("a curve needs `vms`, a smaller number and a larger one"),
            (false, Some(_)) => return Err("`vms` is for curves"),
            (false, None) => {}
        }
        match (self.form == QuantityForm::Share, self.part.is_some()) {
            (true, false) => return Err("a share needs `part`"),
            (false, true) => return Err("`part` is for shares"),
            _ => {}
        }
        if self.per.is_some() && self.quantity != Quantity::Value {
            return Err("`per` divides a value, and nothing else");
        }
        let bounds = [self.at_least, self.at_most];
        if bounds == [None, None] {
            return Err("a check without a bound holds always");
        }
        if bounds.into_iter().flatten().any(|bound| !bound.is_finite()) {
            return Err("a bound is a finite number");
        }
        if matches!(bounds, [Some(least), Some(most)] if least > most) {
            return Err("`at_least` is above `at_most`: nothing keeps both");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_can_be_read_and_names_are_unique() {
        let all = Publication::builtin();
        assert_eq!(all.len(), 5);
        let mut ids: Vec<&str> = all.iter().map(|p| p.name.as_str()).collect();
        ids.extend(all.iter().flat_map(|p| p.tables.iter().map(|t| t.id.as_str())));
        ids.extend(all.iter().flat_map(|p| p.histograms.iter().map(|h| h.id.as_str())));
        ids.extend(all.iter().flat_map(|p| p.claims.iter().map(|c| c.id.as_str())));
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        let cells: usize = all[0].tables.iter().map(|t| t.rows.len() * t.columns.len()).sum();
        assert_eq!(cells, 60, "pvsched has five tables: 4 of 12 latencies, and 12 glitch counts");
        let hv = all[2].histograms[0].columns.iter();
        let listed = hv.map(|c| c.buckets.iter().map(|b| b.1).sum::<u64>()).collect::<Vec<_>>();
        assert_eq!(listed, [598_909, 599_928], "hv-timer: 1085 and 65 are elided");
    }

    #[test]
    fn incomplete_files_are_refused() {
        let text = include_str!("../../../published/pvsched.toml");
        let refused = |text: &str, from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            let Diagnostics(found) =
                Publication::parse("p.toml", &text.replacen(from, to, 1)).unwrap_err();
            let [one] = &found[..] else { panic!("{found:?}") };
            (one.message.clone(), one.snippet.clone())
        };
        let parse = |from: &str, to: &str| refused(text, from, to);
        let (row, values) = ("[9, 9, 10, 5, 3, 3],", "  [9, 9],");
        assert_eq!(parse(row, "[9, 9],").0, "row `500` has 2 of 6 values");
        assert_eq!(parse(row, "[9, 9],").1, values);
        assert_eq!(parse(row, "").0, "`values` has 1 lists, `rows` has 2");
        for bad in ["nan", "inf", "-1"] {
            let (message, line) = parse(row, &format!("[{bad}, 9, 10, 5, 3, 3],"));
            assert!(message.ends_with("cannot be compared") && line.contains(bad), "{message}");
        }
        let (message, line) = parse("to = \"static\"\n", "");
        assert!(message.contains("needs `to` or `to_cell`") && line == "[[claim.check]]");
        assert!(parse("at_most = 0.05\n", "").0.contains("without a bound"));
        assert!(parse("at_most = 0.05\n", "at_most = nan\n").0.contains("finite"));
        assert!(parse("at_most = 0.05\n", "at_most = 0.05\nat_least = 1\n").0.contains("both"));
        assert!(parse("row_name", "row_nam").0.contains("row_nam"));
        assert!(parse("quantity = \"mean\"", "quantity = \"curve\"").0.contains("claims"));
        assert!(parse("comparable = false\n", "").0.contains("two units"));
        let twice = parse("id = \"idle-max\"", "id = \"idle-avg\"");
        assert_eq!(twice, ("the name `idle-avg` is used twice".into(), "id = \"idle-avg\"".into()));
        assert_eq!(parse("id = \"idle-avg\"", "id = \"\"").0, "the name is empty");
        assert!(
            parse("name = \"guest dynamic\"", "name = \"guest vanilla\"").0.contains("of its own")
        );
        assert!(parse("unit = \"us\"", "unit = \"usec\"").0.contains("no unit of time"));
        let per = "probe = \"guest.cyclictest\", per = \"guest vanila\" }";
        assert!(parse("probe = \"guest.cyclictest\" }", per).0.contains("no column"));
        let text = include_str!("../../../published/hv-timer.toml");
        let bucket = |to| refused(text, "[5, 169]", to).0;
        assert!(bucket("[7, 169]").contains("not in order"));
        assert!(bucket("[99999999, 1]").contains("buckets end at 100000 us"));
        assert!(bucket("[5, 900000]").contains("599994 taken"));
        let most = "[1, 9223372036854775807], [2, 9223372036854775807], [3, 9223372036854775807]";
        assert!(bucket(most).contains("599994 taken"), "sums do not wrap");
    }

    #[test]
    fn scenarios_by_path_stand_beside_the_file() {
        let text = include_str!("../../../published/hv-timer.toml")
            .replace("scenario = \"hv-timer\"", "scenario = \"mine.toml\"");
        let publication = Publication::parse("a/b.toml", &text).unwrap();
        assert_eq!(publication.tables[0].scenario, "a/mine.toml");
        assert_eq!(publication.claims[0].checks[0].scenario, "a/mine.toml");
    }
}
