//! The dataset rows of a point.

use serde::{Deserialize, Serialize};
use vcoop_experiment::result::{Bounded, Document, LatencySeries, ScalarSeries, Series, Statistic};

/// Columns of numbers, in order; their unit is in the row's `unit`, ratios have none.
pub const NUMBERS: [&str; 38] = [
    "value",
    "value_lo",
    "value_hi",
    "min",
    "mean",
    "mean_lo",
    "mean_hi",
    "p50",
    "p50_lo",
    "p50_hi",
    "p90",
    "p90_lo",
    "p90_hi",
    "p99",
    "p99_lo",
    "p99_hi",
    "p999",
    "p999_lo",
    "p999_hi",
    "p9999",
    "p9999_lo",
    "p9999_hi",
    "max",
    "host_wait",
    "ratio",
    "ratio_lo",
    "ratio_hi",
    "ratio_p50",
    "ratio_p50_lo",
    "ratio_p50_hi",
    "ratio_p90",
    "ratio_p99",
    "ratio_p99_lo",
    "ratio_p99_hi",
    "ratio_p999",
    "ratio_p999_lo",
    "ratio_p999_hi",
    "ratio_p9999",
];

/// A series of one policy at one point, or the error of a failed point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Policy; none if the whole point failed.
    pub policy: Option<String>,
    /// Probe.
    pub probe: Option<String>,
    /// What was measured.
    pub metric: Option<String>,
    /// Unit of the numbers.
    pub unit: Option<String>,
    /// Repeats that are in it.
    pub repeats: u32,
    /// Samples, of a latency.
    pub count: Option<u64>,
    /// Periods without a sample, of a latency.
    pub missed: Option<u64>,
    /// Whether it is about guests, of a latency.
    #[serde(default)]
    pub guest: Option<bool>,
    /// Index into [`NUMBERS`], and number; ascending. Missing columns are null.
    pub numbers: Vec<(u8, f64)>,
    /// Why the point failed.
    pub error: Option<String>,
}

/// A point that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointRows {
    /// Its number.
    pub point: u32,
    /// Whether every comparison was precise enough at the end; true without a stopping rule.
    pub settled: bool,
    /// Best policy of the point's verdict, if there is one.
    pub best: Option<String>,
    /// Rows: policy by policy, in each latencies before numbers. One row for a failed point.
    pub rows: Vec<Row>,
}

impl PointRows {
    /// A point that failed.
    pub fn failed(point: u32, error: String) -> Self {
        let row = Row { error: Some(error), ..Row::default() };
        Self { point, settled: false, best: None, rows: vec![row] }
    }

    /// A point's results.
    pub fn new(point: u32, settled: bool, document: &Document) -> Self {
        let rows = document.series.iter().map(Row::new).collect();
        let best = document.verdicts.first().and_then(|v| v.best.clone());
        Self { point, settled, best, rows }
    }

    /// Why it failed, if it did.
    pub fn error(&self) -> Option<&str> {
        self.rows.iter().find_map(|row| row.error.as_deref())
    }
}

impl Row {
    /// A number by the name of its column.
    pub fn number(&self, name: &str) -> Option<f64> {
        let column = NUMBERS.iter().position(|n| *n == name)?;
        self.numbers.iter().find(|(i, _)| usize::from(*i) == column).map(|(_, x)| *x)
    }

    fn new(series: &Series) -> Self {
        let key = series.key();
        let mut row = Self {
            policy: Some(key.policy.clone()),
            probe: Some(key.probe.clone()),
            metric: Some(key.metric.clone()),
            unit: Some(key.unit.clone()),
            repeats: key.repeats,
            ..Self::default()
        };
        match series {
            Series::Latency(series) => row.latency(series),
            Series::Scalar(series) => row.scalar(series),
        }
        row.numbers.sort_by_key(|(i, _)| *i);
        row
    }

    /// Sets a number in its column, if there is such a column.
    fn put(&mut self, name: &str, value: Option<f64>) {
        let column = NUMBERS.iter().position(|n| *n == name);
        // A number that JSON cannot carry would not survive the journal: null, as there.
        if let (Some(i), Some(x)) = (column, value.filter(|x| x.is_finite())) {
            self.numbers.push((i as u8, x));
        }
    }

    /// The same with the ends of its interval; ratios of some quantiles have no columns for these.
    fn bounded(&mut self, name: &str, (value, interval): Bounded) {
        self.put(name, value);
        self.put(&format!("{name}_lo"), interval.map(|[lo, _]| lo));
        self.put(&format!("{name}_hi"), interval.map(|[_, hi]| hi));
    }

    fn latency(&mut self, s: &LatencySeries) {
        self.count = Some(s.count);
        self.missed = Some(s.missed);
        self.guest = Some(s.is_of_a_guest());
        self.put("min", s.min);
        self.put("max", s.max);
        self.put("host_wait", s.parts_mean.get("host_wait").copied());
        for of in Statistic::ALL {
            self.bounded(of.name(), s.statistic(of));
            match of {
                Statistic::Mean => self.bounded("ratio", s.ratio(of)),
                _ => self.bounded(&format!("ratio_{}", of.name()), s.ratio(of)),
            }
        }
    }

    fn scalar(&mut self, s: &ScalarSeries) {
        self.bounded("value", (s.value, s.value_ci95));
        self.bounded("ratio", (s.ratio_to_baseline, s.ratio_ci95));
    }
}
