//! Charts of distributions: complementary cumulative distributions, histograms, and quantiles side by side.

use std::collections::{BTreeMap, BTreeSet};

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, LatencySeries, Statistic};

use super::Group;
use super::lanes::{Panel, across_words, panels, panels_across, probes};
use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Layer, LegendSymbol, Scale, Table, Unit, Whisker};

/// Bins of a drawn histogram by octave.
const PER_OCTAVE: f64 = 4.0;
/// Samples that must lie beyond a point for it to be significant.
const BEYOND: u64 = 10;

/// A quantile's share of slower samples, its name, and which it is.
type Quantile = (f64, &'static str, Statistic);

const QUANTILES: [Quantile; 5] = [
    (0.5, "p50", Statistic::P50),
    (0.1, "p90", Statistic::P90),
    (0.01, "p99", Statistic::P99),
    (0.001, "p99.9", Statistic::P999),
    (0.0001, "p99.99", Statistic::P9999),
];

/// Range of latencies of a probe over the whole document, so that its charts can be compared.
fn over(document: &Document, probe: &str, label: &str) -> Axis {
    let of = document.latencies().filter(|s| s.key.is_named(probe));
    let values = of.flat_map(|s| [s.min, s.p50.or(s.mean), s.max]).flatten();
    Axis::over(label, Unit::Us, Scale::Log, values)
}

/// Complementary cumulative distribution: the share of slower samples, on two logarithmic axes.
pub(super) fn slower(document: &Document) -> Group {
    let mut group = Group::new(
        "slower",
        "How late, how often",
        "Each point of a line is the share of samples that are later than a latency: lines further left \
         are better. Dots mark the quantiles. A line is thin where fewer than ten samples are later.",
    );
    group.about.push_str(across_words(document));
    for probe in &probes(document) {
        let most = document.latencies().filter(|s| s.key.is_named(probe)).map(|s| s.count).max();
        let x = over(document, probe, "latency");
        let rarest = 1.0 / most.unwrap_or(1).max(10) as f64;
        let mut ticks = vec![(1.0, "all".to_owned())];
        ticks.extend(QUANTILES.iter().filter(|q| q.0 >= rarest).map(|q| (q.0, q.1.to_owned())));
        let y = Axis {
            min: rarest,
            max: 1.0,
            ticks: Some(ticks),
            ..Axis::over("samples later than this", Unit::Share, Scale::Log, [rarest, 1.0])
        };
        let id = format!("slower-{}", id(probe));
        group.each_panel(&id, probe, &panels_across(document), |_, panel| {
            slower_panel(document, probe, panel, x.clone(), y.clone())
        });
    }
    group
}

fn slower_panel(document: &Document, probe: &str, panel: &Panel, x: Axis, y: Axis) -> Chart {
    let (left_end, mut dots) = (x.min, Vec::new());
    let mut chart = Chart {
        caption: "Share of samples later than a latency, both axes logarithmic.".to_owned(),
        table: Table::new(&["", "samples", "p50", "p90", "p99", "p99.9", "p99.99", "max"]),
        zoom: true,
        ..Chart::new(230.0, x, y)
    };
    for lane in &panel.lanes {
        let Some(series) = lane.latency(document, probe) else { continue };
        chart.legend.push(lane.key(LegendSymbol::Line));
        let mut row = vec![lane.label.clone(), series.count.to_string()];
        row.extend(QUANTILES.iter().map(|q| format::maybe_time(series.statistic(q.2).0)));
        row.push(format::maybe_time(series.max));
        chart.table.rows.push(row);
        let Some(detail) = &series.detail else { continue };
        let total: u64 = detail.distribution.count.iter().sum();
        let share = |n: u64| n as f64 / total.max(1) as f64;
        let (mut left, mut sure, mut rare) = (total, Vec::new(), Vec::new());
        // A latency of zero has no place on a logarithmic axis: it goes to its end.
        sure.push((series.min.unwrap_or(left_end).max(left_end), 1.0));
        for (le, n) in detail.distribution.le_us.iter().zip(&detail.distribution.count) {
            left -= n;
            let le = le.max(left_end);
            if left >= BEYOND {
                sure.push((le, share(left)));
            } else {
                if rare.is_empty() {
                    // A curve that falls by more at once is certain down to ten samples.
                    let fallen = (le, sure.last().map_or(1.0, |p| p.1.min(share(BEYOND))));
                    sure.push(fallen);
                    rare.push(fallen);
                }
                // The last sample of all: the line ends where it lies.
                rare.push((le, share(left.max(1))));
            }
        }
        for (points, faint) in [(sure, false), (rare, true)] {
            let rest = if faint { ", last ten" } else { "" };
            let (slot, label) = (lane.slot, format!("{}{rest}", lane.label));
            chart.layers.push(Layer::Line { slot, label, points, step: true, faint });
        }
        let mark = |q: &Quantile| Some((series.statistic(q.2).0?.max(left_end), q.0));
        let marks = QUANTILES.iter().filter_map(mark);
        let (slot, label) = (lane.slot, format!("{}, quantiles", lane.label));
        dots.push(Layer::Dots { slot, label, points: marks.collect(), size: 7.0 });
    }
    chart.layers.extend(dots);
    chart
}

/// Histograms of latencies.
pub(super) fn histograms(document: &Document) -> Group {
    let mut group = Group::new(
        "histograms",
        "Histograms",
        "Share of samples in bins of equal width on the logarithmic axis, four to an octave. The \
         vertical axis is logarithmic too: what is rare still shows.",
    );
    for probe in &probes(document) {
        let x = over(document, probe, "latency");
        let panels = panels(document);
        let bins = |panel: &Panel| -> Vec<Option<BTreeMap<i32, f64>>> {
            panel.lanes.iter().map(|l| l.latency(document, probe).and_then(binned)).collect()
        };
        let all: Vec<_> = panels.iter().map(bins).collect();
        let shares = all.iter().flatten().flatten().flat_map(|bins| bins.values().copied());
        let y = Axis {
            max: 1.0,
            ..Axis::over(
                "share of samples",
                Unit::Share,
                Scale::Log,
                shares.map(|s| s / 2.0).chain([1.0]),
            )
        };
        group.each_panel(&format!("histogram-{}", id(probe)), probe, &panels, |i, panel| {
            histogram(panel, &all[i], x.clone(), y.clone())
        });
    }
    group
}

/// Shares of samples by bin, if the distribution is known.
fn binned(series: &LatencySeries) -> Option<BTreeMap<i32, f64>> {
    let distribution = &series.detail.as_ref()?.distribution;
    let total: u64 = distribution.count.iter().sum();
    let mut bins = BTreeMap::new();
    for (le, n) in distribution.le_us.iter().zip(&distribution.count) {
        *bins.entry(bin(*le)).or_insert(0.0) += *n as f64 / total.max(1) as f64;
    }
    Some(bins)
}

fn bin(us: f64) -> i32 {
    // In nanoseconds, so that nothing that was measured is below one.
    (libm::log2((us * 1e3).max(1.0)) * PER_OCTAVE).floor() as i32
}

fn bin_from(bin: i32) -> f64 {
    libm::exp2(f64::from(bin) / PER_OCTAVE) / 1e3
}

fn histogram(panel: &Panel, bins: &[Option<BTreeMap<i32, f64>>], x: Axis, y: Axis) -> Chart {
    let (left, bottom) = (x.min, y.min);
    let mut chart = Chart {
        caption: "Histogram of latencies, both axes logarithmic.".to_owned(),
        ..Chart::new(180.0, x, y)
    };
    let mut header = vec!["from", "until"];
    let mut columns: Vec<&BTreeMap<i32, f64>> = Vec::new();
    for (lane, bins) in panel.lanes.iter().zip(bins) {
        let Some(bins) = bins else { continue };
        header.push(&lane.label);
        columns.push(bins);
        let mut points = Vec::new();
        let bin_from = |bin: i32| bin_from(bin).max(left);
        for (bin, share) in bins {
            if !bins.contains_key(&(bin - 1)) {
                points.push((bin_from(*bin), bottom));
            }
            points.push((bin_from(*bin), *share));
            if !bins.contains_key(&(bin + 1)) {
                points.push((bin_from(bin + 1), bottom));
            }
        }
        chart.line(lane.key(LegendSymbol::Line), points, true);
    }
    chart.table = Table::new(&header);
    let every: BTreeSet<i32> = columns.iter().flat_map(|bins| bins.keys().copied()).collect();
    for bin in every {
        let mut row = vec![format::time(bin_from(bin)), format::time(bin_from(bin + 1))];
        row.extend(columns.iter().map(|bins| match bins.get(&bin) {
            Some(share) => format!("{} %", format::digits(share * 100.0)),
            None => "0".to_owned(),
        }));
        chart.table.rows.push(row);
    }
    chart
}

/// Quantiles side by side, with their intervals.
pub(super) fn quantiles(document: &Document) -> Group {
    let mut group = Group::new(
        "quantiles",
        "Quantiles with their intervals",
        "Whiskers are 95 % intervals over repeats. A quantile that fewer than ten samples exceed is \
         left out.",
    );
    group.about.push_str(across_words(document));
    for probe in &probes(document) {
        let values = document.latencies().filter(|s| s.key.is_named(probe)).flat_map(|s| {
            QUANTILES.iter().flat_map(move |q| {
                let (value, interval) = s.statistic(q.2);
                let [lo, hi] = interval.unwrap_or([f64::NAN; 2]);
                [value.unwrap_or(f64::NAN), lo, hi]
            })
        });
        let y = Axis::over("latency", Unit::Us, Scale::Log, values);
        let id = format!("quantiles-{}", id(probe));
        group.each_panel(&id, probe, &panels_across(document), |_, panel| {
            quantile_dots(document, probe, panel, y.clone())
        });
    }
    group
}

fn quantile_dots(document: &Document, probe: &str, panel: &Panel, y: Axis) -> Chart {
    let found: Vec<_> = panel
        .lanes
        .iter()
        .filter_map(|lane| Some((lane, lane.latency(document, probe)?)))
        .collect();
    let is_there = |q: &&Quantile| found.iter().any(|(_, s)| s.statistic(q.2).0.is_some());
    let shown: Vec<&Quantile> = QUANTILES.iter().filter(is_there).collect();
    let mut table = Table::new(&["", "quantile", "value", "95 % interval"]);
    let (mut layers, mut legend) = (Vec::new(), Vec::new());
    let width = 0.8 / found.len().max(1) as f64;
    for (n, (lane, series)) in found.iter().enumerate() {
        legend.push(lane.key(LegendSymbol::Dot));
        let mut marks = Vec::new();
        for (group, quantile) in shown.iter().enumerate() {
            let (Some(value), interval) = series.statistic(quantile.2) else { continue };
            let from = group as f64 + 0.1 + n as f64 * width;
            let bounds = interval.map_or_else(String::new, |[lo, hi]| {
                format!("{} to {}", format::time(lo), format::time(hi))
            });
            let hint = format!("{} {} {}", lane.label, quantile.1, format::time(value));
            marks.push(Whisker {
                at: from + width / 2.0,
                value,
                interval,
                horizontal: false,
                hint: format!("{hint}, {bounds}"),
            });
            let row = [lane.label.clone(), quantile.1.to_owned(), format::time(value), bounds];
            table.rows.push(row.to_vec());
        }
        layers.push(Layer::Whiskers { slot: lane.slot, whiskers: marks });
    }
    let names = shown.iter().enumerate().map(|(i, q)| (i as f64 + 0.5, q.1.to_owned()));
    let x = Axis::labelled(0.0, shown.len().max(1) as f64, names.collect());
    Chart {
        caption: "Quantiles of latency on a logarithmic axis, with 95 % intervals.".to_owned(),
        layers,
        legend,
        table,
        ..Chart::new(180.0, x, y)
    }
}
