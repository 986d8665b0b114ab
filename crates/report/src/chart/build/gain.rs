//! Gains of the guest beside costs of the host: ratios to the baseline with their intervals.

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, Interval, Statistic};
use vcoop_experiment::verdict;
use vcoop_model::distinct;

use super::Group;
use super::lanes::{Lane, across_words, panels_across, probes, titled};
use crate::chart::{Axis, Chart, Layer, LegendSymbol, Scale, Table, Unit, Whisker};

/// Ratios beyond these are drawn at the edge.
const EDGES: [f64; 2] = [1e-3, 1e3];
/// Height of a policy in a row, and of a heading, in pixels.
const STEP: f64 = 13.0;

/// A ratio to draw.
struct Entry {
    lane: usize,
    ratio: f64,
    interval: Option<Interval>,
}

struct Row {
    label: String,
    entries: Vec<Entry>,
}

/// Ratios of every policy but the baseline; a chart for each cell.
pub(super) fn gain_and_cost(document: &Document) -> Group {
    let mut group = Group::new(
        "cost",
        "What the guest gains, and what the host pays",
        &format!(
            "Ratios to {} on a logarithmic axis with 95 % intervals: one that crosses the line at 1x \
             says nothing. Of latencies less is better, of work done more.{}",
            document.baseline,
            across_words(document)
        ),
    );
    if document.policies.len() < 2 {
        return group;
    }
    let charts = panels_across(document).into_iter().enumerate().map(|(i, panel)| {
        let lanes: Vec<Lane> =
            panel.lanes.iter().filter(|l| !l.is_baseline(document)).cloned().collect();
        let mut chart = forest(&lanes, &rows(document, &lanes));
        chart.id = format!("cost-{i}");
        chart.title = titled(&format!("ratios to {}", document.baseline), &panel.title);
        chart
    });
    let mut charts: Vec<Chart> = charts.collect();
    // One axis for all: they are there to be compared.
    let ends = charts.iter().flat_map(|c| [c.x.min, c.x.max]).collect::<Vec<f64>>();
    let x = Axis::over("ratio to the baseline", Unit::Ratio, Scale::Log, ends);
    charts.iter_mut().for_each(|chart| chart.x = x.clone());
    group.add(charts);
    group
}

fn rows(document: &Document, lanes: &[Lane]) -> Vec<Row> {
    let mut guests = Vec::new();
    let mut hosts = Vec::new();
    for probe in &probes(document) {
        let of = |lane: &Lane| lane.latency(document, probe);
        let Some(any) = lanes.iter().find_map(of) else { continue };
        let guest = any.is_of_a_guest();
        let p99 = lanes
            .iter()
            .filter_map(of)
            .all(|s| s.ratio_to_baseline.is_some_and(|r| r.p99.is_some()));
        let row = |statistic: Statistic| {
            let entry = |(lane, own): (usize, &Lane)| {
                let (ratio, interval) = of(own)?.ratio(statistic);
                Some(Entry { lane, ratio: ratio?, interval })
            };
            let entries = lanes.iter().enumerate().filter_map(entry).collect();
            Row { label: format!("{probe} {}", statistic.name()), entries }
        };
        let rows = if guest { &mut guests } else { &mut hosts };
        if p99 {
            rows.push(row(Statistic::P99));
        }
        if !guest || !p99 {
            rows.push(row(Statistic::Mean));
        }
    }
    let loads = lanes
        .iter()
        .flat_map(|lane| verdict::loads(document, &lane.cell(), &document.baseline))
        .map(|(load, _)| load.key.probe.as_str());
    let work = distinct(loads).into_iter().map(|load| {
        let of = |lane: &Lane| {
            document
                .scalars()
                .find(|s| s.key.probe == load && s.key.metric == "throughput" && lane.has(&s.key))
        };
        let entry = |(lane, own): (usize, &Lane)| {
            let series = of(own)?;
            let ratio = series.ratio_to_baseline?;
            Some(Entry { lane, ratio, interval: series.ratio_ci95 })
        };
        let entries = lanes.iter().enumerate().filter_map(entry).collect();
        Row { label: format!("{load} work"), entries }
    });
    let work: Vec<Row> = work.collect();
    let mut all = Vec::new();
    for (heading, rows) in [("GUEST LATENCY", guests), ("HOST LATENCY", hosts), ("WORK DONE", work)]
    {
        let rows: Vec<Row> = rows.into_iter().filter(|row| !row.entries.is_empty()).collect();
        if !rows.is_empty() {
            all.push(Row { label: heading.to_owned(), entries: Vec::new() });
            all.extend(rows);
        }
    }
    all
}

fn forest(lanes: &[Lane], rows: &[Row]) -> Chart {
    let mut table = Table::new(&["", "policy", "ratio", "95 % interval"]);
    let mut whiskers: Vec<Vec<Whisker>> = vec![Vec::new(); lanes.len()];
    let mut ticks = Vec::new();
    let mut values = vec![0.5, 2.0];
    let edge = |v: f64| v.clamp(EDGES[0], EDGES[1]);
    let mut depth = 0.0;
    for row in rows {
        let height = if row.entries.is_empty() { 1.6 } else { lanes.len() as f64 + 0.6 };
        ticks.push((depth + height / 2.0, row.label.clone()));
        for entry in &row.entries {
            let interval = entry.interval.map(|ends| ends.map(edge));
            values.push(edge(entry.ratio));
            values.extend(interval.into_iter().flatten());
            let bounds = format::maybe(entry.interval, |[lo, hi]| {
                format!("{} to {}", format::bound(lo), format::ratio(hi))
            });
            let policy = &lanes[entry.lane].label;
            let ratio = format::ratio(entry.ratio);
            whiskers[entry.lane].push(Whisker {
                at: depth + 0.8 + entry.lane as f64,
                value: edge(entry.ratio),
                interval,
                horizontal: true,
                hint: format!("{}: {policy} {ratio} ({bounds})", row.label),
            });
            table.rows.push(vec![row.label.clone(), policy.clone(), ratio, bounds]);
        }
        depth += height;
    }
    // A policy that was not run has no dot to explain.
    let ran = lanes.iter().zip(&whiskers).filter(|(_, whiskers)| !whiskers.is_empty());
    let legend = ran.map(|(lane, _)| lane.key(LegendSymbol::Dot)).collect();
    let mut layers = vec![Layer::Rule { at: 1.0, label: String::new() }];
    layers.extend(
        lanes
            .iter()
            .zip(whiskers)
            .map(|(lane, whiskers)| Layer::Whiskers { slot: lane.slot, whiskers }),
    );
    Chart {
        caption: "Ratios to the baseline with 95 % intervals, on a logarithmic axis.".to_owned(),
        layers,
        legend,
        table,
        ..Chart::new(
            (depth * STEP).max(40.0),
            Axis::over("ratio to the baseline", Unit::Ratio, Scale::Log, values),
            Axis::rows(depth, ticks),
        )
    }
}
