//! Latency and policy events over the measured time.

use vcoop_experiment::format;
use vcoop_experiment::result::{CurvePoint, Document, OverTime};
use vcoop_model::distinct;

use super::Group;
use super::lanes::{Lane, Panel, panels, probes};
use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Key, Layer, LegendSymbol, Scale, Slot, Table, Unit};

/// A column of [`OverTime`], with its name.
type Column = (&'static str, fn(&OverTime) -> &[Option<f64>]);

/// From the most informative about the tail to the one that always exists.
const COLUMNS: [Column; 3] = [("p99", |t| &t.p99), ("p50", |t| &t.p50), ("max", |t| &t.max)];

/// Quantiles for each slice of the measured time.
pub(super) fn latency(document: &Document) -> Group {
    let mut group = Group::new(
        "time",
        "Latency over time",
        "All repeats pooled, by when samples were due. A line that climbs or falls says that the \
         warm-up was too short or that the load changes; the thin line is the largest sample of each \
         slice. Ticks along the bottom are starts of VMs.",
    );
    for probe in &probes(document) {
        let columns: Vec<&OverTime> = document
            .latencies()
            .filter(|s| s.key.is_named(probe))
            .filter_map(|s| s.detail.as_ref()?.over_time.as_ref())
            .collect();
        let filled = |column: &&Column| {
            // Half of the slices, of one series.
            columns.iter().any(|t| 2 * column.1(t).iter().flatten().count() >= t.count.len().max(1))
        };
        let column = COLUMNS.iter().find(filled).unwrap_or(&COLUMNS[2]);
        let values = columns.iter().flat_map(|t| column.1(t).iter().chain(&t.max)).flatten();
        let label =
            if column.0 == "max" { "largest".to_owned() } else { format!("{} and max", column.0) };
        let y = Axis::over(&label, Unit::Us, Scale::Log, values.copied());
        group.each_panel(&format!("time-{}", id(probe)), probe, &panels(document), |_, panel| {
            over_time(document, probe, panel, column, y.clone())
        });
    }
    group
}

/// The axis of measured time.
pub(super) fn seconds(document: &Document) -> Axis {
    Axis {
        min: 0.0,
        max: document.duration_s.max(1e-9),
        ..Axis::over("time since the warm-up", Unit::S, Scale::Linear, [1.0])
    }
}

fn over_time(document: &Document, probe: &str, panel: &Panel, column: &Column, y: Axis) -> Chart {
    let mut chart = Chart {
        caption: format!("{} by time, on a logarithmic axis.", y.label),
        table: Table::new(&["", "time", "samples", "p50", "p99", "max"]),
        zoom: true,
        ..Chart::new(170.0, seconds(document), y)
    };
    for lane in &panel.lanes {
        let Some(series) = lane.latency(document, probe) else { continue };
        let Some(time) = series.detail.as_ref().and_then(|d| d.over_time.as_ref()) else {
            continue;
        };
        let width = time.width_us / 1e6;
        let line = |values: &[Option<f64>]| -> Vec<(f64, f64)> {
            let place = |i: usize| (i as f64 + 0.5) * width;
            let one = |(i, v): (usize, &Option<f64>)| (place(i), v.unwrap_or(f64::NAN));
            values.iter().enumerate().map(one).collect()
        };
        let (slot, label) = (lane.slot, lane.label.clone());
        if column.0 != "max" {
            let (label, points) = (format!("{label} max"), line(&time.max));
            chart.layers.insert(0, Layer::Line { slot, label, points, step: false, faint: true });
        }
        let (label, points) = (format!("{label} {}", column.0), line(column.1(time)));
        chart.layers.push(Layer::Line { slot, label, points, step: false, faint: false });
        chart.legend.push(lane.key(LegendSymbol::Line));
        for (i, count) in time.count.iter().enumerate() {
            chart.table.rows.push(vec![
                lane.label.clone(),
                format::time(i as f64 * time.width_us),
                count.to_string(),
                format::maybe_time(time.p50[i]),
                format::maybe_time(time.p99[i]),
                format::maybe_time(time.max[i]),
            ]);
        }
    }
    // Starts of VMs alone are no chart of a probe that has no samples here.
    marks(document, panel, &mut chart);
    chart
}

/// Starts of VMs along the bottom, and changes of the timeline.
fn marks(document: &Document, panel: &Panel, chart: &mut Chart) {
    if chart.layers.is_empty() {
        return;
    }
    for switch in document.switches.iter().filter(|s| s.at_us >= 0.0) {
        let (at, label) = (switch.at_us / 1e6, switch.what.clone());
        chart.layers.push(Layer::Rule { at, label });
    }
    let starts = document.curves.iter().filter(|c| c.event == "start");
    let of = starts.filter(|c| panel.lanes.first().is_some_and(|lane| lane.is_at(&c.place)));
    for curve in of {
        let label = format!("{} starts", curve.vm);
        let place = |p: &CurvePoint| (curve.begin_s + p.mean_s, chart.y.min);
        let points = curve.points.iter().map(place).collect();
        chart.dots(Key { slot: Slot::Event, sign: LegendSymbol::Dot, label }, points, 5.0);
    }
}

/// Policy events.
pub(super) fn policy_events(document: &Document) -> Group {
    let mut about = "In slices of the measured time; means over repeats.".to_owned();
    if !document.policy_events.is_empty() {
        about += " Boosts, and budgets that ran out.";
    }
    if !document.in_use.is_empty() {
        about += " vCPUs that a guest uses: the others it keeps off, as its mask or hotplug says.";
    }
    let mut group = Group::new("events", "What the policies did", &about);
    in_use(document, &mut group);
    for (vm, event) in distinct(document.policy_events.iter().map(|s| (&s.vm, &s.event))) {
        let of = || document.policy_events.iter().filter(|s| (&s.vm, &s.event) == (vm, event));
        let word = match event.as_str() {
            "boost" => "boosts",
            "throttle" => "throttles: a budget ran out",
            _ => "boosts not given",
        };
        let values = of().flat_map(|s| s.per_s.iter().copied());
        let lines = Lines {
            id: format!("events-{}-{}", id(vm), id(event)),
            title: format!("{vm} {word}"),
            caption: "Events a second by time.".to_owned(),
            y: Axis::over(word, Unit::PerSecond, Scale::Linear, values),
            columns: &["events a second"],
        };
        lines.draw(document, &mut group, |lane| {
            let series = of().find(|s| lane.is_at(&s.place))?;
            Some((series.width_us, vec![&series.per_s]))
        });
    }
    group
}

/// vCPUs in use, if masks or hotplug change them.
fn in_use(document: &Document, group: &mut Group) {
    for vm in distinct(document.in_use.iter().map(|series| &series.vm)) {
        let of = || document.in_use.iter().filter(|s| s.vm == *vm);
        let all = of().map(|s| f64::from(s.vcpus)).fold(0.0, f64::max);
        let lines = Lines {
            id: format!("in-use-{}", id(vm)),
            title: format!("{vm}: vCPUs in use"),
            caption: format!("vCPUs that {vm} uses by time, of {all}."),
            y: Axis::over("vCPUs in use", Unit::Count, Scale::Linear, [all]),
            columns: &["vCPUs in use", "changes"],
        };
        lines.draw(document, group, |lane| {
            let series = of().find(|s| lane.is_at(&s.place))?;
            Some((series.width_us, vec![&series.used, &series.changes]))
        });
    }
}

/// Charts of numbers in slices of the measured time, one for each panel.
struct Lines<'a> {
    id: String,
    title: String,
    caption: String,
    y: Axis,
    /// Names of the numbers: the first is drawn, all are in the table.
    columns: &'a [&'a str],
}

impl Lines<'_> {
    /// Adds them to a group. `of`: length of a lane's slices in microseconds, and its numbers by column.
    fn draw<'d>(
        &self,
        document: &Document,
        group: &mut Group,
        of: impl Fn(&Lane) -> Option<(f64, Vec<&'d Vec<f64>>)>,
    ) {
        let header: Vec<&str> = ["", "time"].iter().chain(self.columns).copied().collect();
        group.each_panel(&self.id, &self.title, &panels(document), |_, panel| {
            let mut chart = Chart {
                caption: self.caption.clone(),
                table: Table::new(&header),
                ..Chart::new(120.0, seconds(document), self.y.clone())
            };
            for lane in &panel.lanes {
                let Some((width_us, columns)) = of(lane) else { continue };
                let width = width_us / 1e6;
                let at = |i: usize| (i as f64 + 0.5) * width;
                let points = columns[0].iter().enumerate().map(|(i, v)| (at(i), *v)).collect();
                chart.line(lane.key(LegendSymbol::Line), points, false);
                chart.table.rows.extend((0..columns[0].len()).map(|i| {
                    let row = [lane.label.clone(), format::time(i as f64 * width_us)];
                    row.into_iter().chain(columns.iter().map(|c| format::digits(c[i]))).collect()
                }));
            }
            marks(document, panel, &mut chart);
            chart
        });
    }
}
