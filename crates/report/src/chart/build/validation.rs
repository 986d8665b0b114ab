//! Simulated beside measured values, a chart for each series.

use vcoop_experiment::format;
use vcoop_experiment::params;
use vcoop_experiment::sim_vs_kvm::SeriesPair;
use vcoop_experiment::validate::ScenarioValidation;

use super::pairs::{self, Pair};
use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Scale, Table, Unit};

/// Height of a row, in pixels.
const STEP: f64 = 17.0;

/// The charts of a scenario: one for each probe in each cell, with all policies.
pub(crate) fn charts(scenario: &ScenarioValidation) -> Vec<Chart> {
    let mut groups: Vec<Vec<&SeriesPair>> = Vec::new();
    for row in &scenario.series {
        let same = |group: &&mut Vec<&SeriesPair>| {
            let first = group[0];
            (&first.params, &first.probe, &first.metric) == (&row.params, &row.probe, &row.metric)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.iter().enumerate().map(|(n, rows)| chart(scenario, n, rows)).collect()
}

fn chart(scenario: &ScenarioValidation, n: usize, rows: &[&SeriesPair]) -> Chart {
    let first = rows[0];
    let latency = first.metric == "latency";
    let (unit, label) = match latency {
        true => (Unit::Us, "latency".to_owned()),
        false => (Unit::Count, format!("{} ({})", first.metric, first.unit)),
    };
    let word = |v| format::maybe(v, |v| format::with_unit(v, &first.unit));
    let mut pairs = Vec::new();
    let mut table = Table::new(&["", "measured", "simulated", "simulated / measured"]);
    let mut depth = 0.0;
    for row in rows {
        for (statistic, pair) in row.statistics() {
            if !latency && statistic != "mean" {
                continue;
            }
            let name = match latency {
                true => format!("{} {statistic}", row.policy),
                false => row.policy.clone(),
            };
            let positive = |v: Option<f64>| v.filter(|v| *v > 0.0);
            let (kvm, sim) = (positive(pair.kvm), positive(pair.sim));
            let ratio = format::maybe(pair.ratio, format::ratio);
            table.rows.push(vec![name.clone(), word(pair.kvm), word(pair.sim), ratio]);
            // A row of nothing, as a quantile that too few samples carry, stands in the table only.
            if kvm.is_none() && sim.is_none() {
                continue;
            }
            pairs.push(Pair { label: name, at: depth + 0.5, values: [kvm, sim] });
            depth += 1.0;
        }
        // Room between policies.
        depth += if depth > 0.0 { 0.4 } else { 0.0 };
    }
    let values = pairs.iter().flat_map(|pair| pair.values).flatten();
    let x = Axis::over(&label, unit, Scale::Log, values);
    let words = params::words(&first.params);
    let what = if latency { first.probe.clone() } else { format!("{} work", first.probe) };
    Chart {
        id: format!("{}-{}-{n}", id(&scenario.scenario), id(&first.probe)),
        title: if words.is_empty() { what } else { format!("{what}: {words}") },
        height: (depth * STEP).max(40.0),
        ..pairs::chart(["measured", "simulated"], pairs, x, depth, table)
    }
}
