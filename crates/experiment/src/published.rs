//! Published tables and claims as data: what was printed, and what it maps to here.
//!
//! The files stand in `published/` of the source and ship with the program. A cell is a scenario,
//! a cell of its matrix, a policy, a probe and a quantity; a claim is a list of bounds on such
//! quantities or on what two policies make of them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Path of the scenario to value, as text: the coordinates of a matrix cell. A scenario's cell
/// fits if it has at least these.
pub type Coordinates = BTreeMap<String, String>;

/// A publication.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// Name, as `vcoop reproduce NAME` takes it.
    pub name: String,
    /// One line for lists.
    pub title: String,
    /// Who, what, when.
    pub source: String,
    /// What a reader of the comparison must know.
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
}

/// A published table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Name, unique over all publications.
    pub id: String,
    /// Caption.
    pub title: String,
    /// Unit of the published values.
    pub unit: String,
    /// Scenario that stands for the experiment.
    pub scenario: String,
    /// Metric of the probe.
    #[serde(default = "latency")]
    pub metric: String,
    /// Quantity of the series.
    pub quantity: Quantity,
    /// Unit of the simulated values, where it is not that of the published ones.
    pub simulated_unit: Option<String>,
    /// Whether a simulated value can be held against the published one by itself (else only
    /// against other cells).
    #[serde(default = "yes")]
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
    fn complete(&self) -> Result<(), &'static str> {
        for column in &self.columns {
            if column.buckets.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
                return Err("buckets are not in order");
            }
            if column.buckets.iter().map(|bucket| bucket.1).sum::<u64>() > column.samples {
                return Err("more samples in the buckets than were taken");
            }
        }
        Ok(())
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
    /// Why it is not reproduced, as far as that was found.
    pub reason: Option<String>,
    /// What the verdict depends on: a value that was not published, and what becomes of the checked
    /// number over its plausible range.
    #[serde(default)]
    pub depends: Vec<String>,
    /// Commands (`vcoop run ...`) whose output shows what `reason` and `depends` say.
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
    /// Cells in which it must hold; all of them where left out.
    #[serde(default)]
    pub cells: Vec<Coordinates>,
    /// Probe.
    pub probe: String,
    /// Metric of the probe.
    #[serde(default = "latency")]
    pub metric: String,
    /// Another metric of the probe, by which the value of the first is divided: exits a second for
    /// each multicast a second.
    pub per: Option<String>,
    /// Quantity; `share` takes the mean.
    #[serde(default)]
    pub quantity: Quantity,
    /// What is made of it.
    pub form: Form,
    /// Policy it is about.
    pub policy: String,
    /// Policy it is compared with, for `ratio` and `difference`; where only `to_cell` is given, its
    /// own.
    pub to: Option<String>,
    /// Cell it is compared with, for `ratio` and `difference`: its own, but for these coordinates.
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
    /// Seconds in which a storm got from one VM to another (`vms`; 0 is its begin), by its curve:
    /// `probe` is the VMs' name, `metric` is `start` or `login`.
    Curve,
    /// Of an interval view: the share of pauses in which a vCPU of a third VM had the pCPU. `metric`
    /// is the view's `at`; a pause is what lies between two runs of the vCPU that the view begins
    /// with, and `probe` the VM in which its I/O is served, which is no third.
    Interleaved,
}

/// What a check makes of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// As it is.
    Value,
    /// Of `policy` over that of `to`.
    Ratio,
    /// Of `policy` minus that of `to`.
    Difference,
    /// Mean of `part` over the mean.
    Share,
}

fn latency() -> String {
    "latency".to_owned()
}

fn yes() -> bool {
    true
}

impl Publication {
    /// Reads a file of `published/`.
    ///
    /// # Errors
    ///
    /// What is wrong, with its place: a field that does not belong, a table whose values do not
    /// fit its rows and columns, a check without what its form needs.
    pub fn parse(text: &str) -> Result<Self, String> {
        let this: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        for table in &this.tables {
            let widths = table.values.iter().map(Vec::len);
            if table.values.len() != table.rows.len()
                || !widths.eq(table.rows.iter().map(|_| table.columns.len()))
            {
                return Err(format!("table {}: values do not fit rows and columns", table.id));
            }
        }
        for histogram in &this.histograms {
            histogram.complete().map_err(|why| format!("histogram {}: {why}", histogram.id))?;
        }
        for claim in &this.claims {
            for check in &claim.checks {
                check.complete().map_err(|why| format!("claim {}: {why}", claim.id))?;
            }
        }
        Ok(this)
    }

    /// Everything that ships with the program.
    pub fn builtin() -> Vec<Self> {
        const TEXTS: [&str; 5] = [
            include_str!("../../../published/pvsched.toml"),
            include_str!("../../../published/xen.toml"),
            include_str!("../../../published/hv-timer.toml"),
            include_str!("../../../published/tax-cut.toml"),
            include_str!("../../../published/paravirt-cpus.toml"),
        ];
        // A test parses them all: none is lost here.
        TEXTS.iter().filter_map(|text| Self::parse(text).ok()).collect()
    }
}

impl Check {
    fn complete(&self) -> Result<(), &'static str> {
        let compares = matches!(self.form, Form::Ratio | Form::Difference);
        if compares != (self.to.is_some() || !self.to_cell.is_empty()) {
            return Err("`to` and `to_cell` belong to ratio and difference, and to nothing else");
        }
        if (self.quantity == Quantity::Curve) != self.vms.is_some_and(|[from, to]| from < to) {
            return Err("`vms`, a smaller and a larger one, belong to curve, and to nothing else");
        }
        if (self.form == Form::Share) != self.part.is_some() {
            return Err("`part` belongs to share, and to nothing else");
        }
        if self.per.is_some() && self.quantity != Quantity::Value {
            return Err("`per` divides a value, and nothing else");
        }
        if self.at_least.is_none() && self.at_most.is_none() {
            return Err("a check without a bound holds always");
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
        let parse = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Publication::parse(&text.replacen(from, to, 1)).unwrap_err()
        };
        assert!(parse("[9, 9, 10, 5, 3, 3],", "[9, 9],").contains("idle-avg"));
        assert!(parse("to = \"static\"\n", "").contains("busy-near-static"));
        assert!(parse("at_most = 0.05\n", "").contains("without a bound"));
        assert!(parse("row_name", "row_nam").contains("row_nam"));
        let text = include_str!("../../../published/hv-timer.toml");
        let order = text.replacen("[5, 169]", "[7, 169]", 1);
        assert!(Publication::parse(&order).unwrap_err().contains("not in order"));
        let many = text.replacen("[5, 169]", "[5, 900000]", 1);
        assert!(Publication::parse(&many).unwrap_err().contains("more samples"));
    }
}
