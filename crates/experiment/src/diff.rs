//! Two results side by side: differences, and series of only one of them.

use serde::Serialize;
use vcoop_model::distinct;

use crate::judge::{LEAST_REPEATS, clearly_above, clearly_below};
use crate::params;
use crate::result::{Bounded, Document, Interval, Key, Params, Series, Statistic};

/// Name and version of the format.
pub const SCHEMA: &str = "vcoop.diff/1";

/// Two results, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Numbers that both have.
    pub rows: Vec<Row>,
    /// Series that only the first has, and only the second. What the other has nothing of (a policy, a cell, a backend)
    /// is one entry, which begins with "all of".
    pub only: [Vec<String>; 2],
    /// Other differences: name, value in the first, value in the second.
    pub settings: Vec<[String; 3]>,
}

/// A number in both results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Backend.
    pub backend: String,
    /// Policy.
    pub policy: String,
    /// Cell.
    pub params: Params,
    /// Its name: `guest.cyclictest.p99`, `host.cpu`.
    pub name: String,
    /// Unit of both.
    pub unit: String,
    /// In the first and in the second.
    pub values: [Option<f64>; 2],
    /// The second over the first; null where either is missing or zero.
    pub ratio: Option<f64>,
    /// Its interval, as for two independent results; null if one of them has none, or fewer repeats than a claim needs.
    pub ratio_ci95: Option<Interval>,
}

impl Row {
    /// Whether the two differ beyond noise; `None` if that cannot be decided.
    pub fn differs(&self) -> Option<bool> {
        self.ratio_ci95.map(|_| clearly_below(self.ratio_ci95) || clearly_above(self.ratio_ci95))
    }

    /// Backend, policy and cell.
    pub fn place(&self) -> String {
        place(&self.backend, &self.policy, &self.params)
    }
}

fn place(backend: &str, policy: &str, cell: &Params) -> String {
    let words = params::words(cell);
    [policy, backend, words.as_str()]
        .into_iter()
        .filter(|w| !w.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

/// The statistics that are compared.
const STATISTICS: [Statistic; 4] =
    [Statistic::Mean, Statistic::P50, Statistic::P99, Statistic::P999];

/// The numbers of a series, with the suffix of their names.
fn numbers(series: &Series) -> Vec<(String, Bounded)> {
    let key = series.key();
    match series {
        Series::Scalar(s) => {
            vec![(format!("{}.{}", key.probe, key.metric), (s.value, s.value_ci95))]
        }
        Series::Latency(s) => {
            let stem = match key.metric.as_str() {
                "latency" => key.probe.clone(),
                other => format!("{}.{other}", key.probe),
            };
            let missed = (format!("{stem}.missed"), (Some(s.missed as f64), None));
            let named = |of: Statistic| (format!("{stem}.{}", of.name()), s.statistic(of));
            STATISTICS.map(named).into_iter().chain([missed]).collect()
        }
    }
}

/// The second over the first, for independent results: the reaches of the logarithms add in squares.
fn ratio([(a, a_ci), (b, b_ci)]: [Bounded; 2]) -> (Option<f64>, Option<Interval>) {
    let (Some(a), Some(b)) = (a, b) else { return (None, None) };
    if a <= 0.0 || b <= 0.0 {
        return (None, None);
    }
    let ratio = b / a;
    let interval = || {
        let (a_ci, b_ci) = (a_ci?, b_ci?);
        let positive = a_ci.iter().chain(&b_ci).all(|x| *x > 0.0);
        let reach = |up: f64, down: f64| libm::exp(libm::hypot(libm::log(up), libm::log(down)));
        positive.then(|| {
            [ratio / reach(b / b_ci[0], a_ci[1] / a), ratio * reach(b_ci[1] / b, a / a_ci[0])]
        })
    };
    (Some(ratio), interval())
}

/// Compares two results; matched are series of the same backend, policy, cell, probe and metric.
pub fn diff(first: &Document, second: &Document) -> Diff {
    let same = |a: &Key, b: &Key| {
        (&a.backend, &a.policy, &a.params) == (&b.backend, &b.policy, &b.params)
            && (&a.probe, &a.metric, &a.unit) == (&b.probe, &b.metric, &b.unit)
    };
    let has = |document: &Document, key: &Key| document.series.iter().any(|s| same(s.key(), key));
    let alone = |one: &Document, other: &Document| -> Vec<String> {
        let place = |key: &Key| place(&key.backend, &key.policy, &key.params);
        let said = |key: &Key| match other.series.iter().any(|s| place(s.key()) == place(key)) {
            true => format!("{} {} ({})", key.probe, key.metric, place(key)),
            false => format!("all of {}", place(key)),
        };
        let keys = one.series.iter().map(Series::key).filter(|key| !has(other, key));
        distinct(keys.map(said))
    };
    let mut rows = Vec::new();
    for a in &first.series {
        let key = a.key();
        let Some(b) = second.series.iter().find(|b| same(b.key(), key)) else { continue };
        let enough = key.repeats.min(b.key().repeats) >= LEAST_REPEATS;
        for ((name, own), (_, other)) in numbers(a).into_iter().zip(numbers(b)) {
            let (ratio, interval) = ratio([own, other]);
            let unit = if name.ends_with(".missed") { "count" } else { &key.unit };
            rows.push(Row {
                backend: key.backend.clone(),
                policy: key.policy.clone(),
                params: key.params.clone(),
                unit: unit.to_owned(),
                name,
                values: [own.0, other.0],
                ratio,
                ratio_ci95: interval.filter(|_| enough),
            });
        }
    }
    let only = [alone(first, second), alone(second, first)];
    Diff { schema: SCHEMA, rows, only, settings: settings(first, second) }
}

/// Differences besides numbers.
fn settings(first: &Document, second: &Document) -> Vec<[String; 3]> {
    let of = |d: &Document| {
        let mut all = vec![
            ("version".to_owned(), d.version.clone()),
            ("scenario".to_owned(), d.scenario.clone()),
            ("baseline".to_owned(), d.baseline.clone()),
            ("repeats".to_owned(), d.repeats.to_string()),
            ("duration".to_owned(), format!("{} s", d.duration_s)),
            ("warm-up".to_owned(), format!("{} s", d.warmup_s)),
            ("seed".to_owned(), d.seed.to_string()),
            ("simulated host".to_owned(), d.hosts.join("; ")),
            ("interrupted".to_owned(), d.interrupted.to_string()),
        ];
        all.extend(d.environment.clone());
        all
    };
    let (a, b) = (of(first), of(second));
    let value = |all: &[(String, String)], name: &str| {
        let found = all.iter().find(|(n, value)| n == name && !value.is_empty());
        found.map_or("none".to_owned(), |(_, value)| value.clone())
    };
    let names = distinct(a.iter().chain(&b).map(|(name, _)| name));
    let both = names.into_iter().map(|name| [name.clone(), value(&a, name), value(&b, name)]);
    both.filter(|[_, a, b]| a != b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_independent_results_add_in_squares() {
        let one = (Some(10.0), Some([8.0, 12.5]));
        let (found, interval) = ratio([one, (Some(20.0), Some([16.0, 25.0]))]);
        let [lo, hi] = interval.unwrap();
        let reach = 1.25_f64.powf(2.0_f64.sqrt());
        assert_eq!(found, Some(2.0));
        assert!((hi / 2.0 - reach).abs() < 1e-9 && (2.0 / lo - reach).abs() < 1e-9, "{lo} {hi}");
        assert_eq!(ratio([one, (Some(0.0), None)]), (None, None));
        assert_eq!(ratio([one, (Some(5.0), None)]), (Some(0.5), None));
    }
}
