//! Charts of VMs that are created during the run: curves, single samples, and threads on a pCPU.

use std::collections::BTreeMap;

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, Interval, IntervalView, Place, ScatterView};
use vcoop_model::distinct;

use super::Group;
use super::lanes::{panels, place_words, titled};
use super::time::seconds;
use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Key, Layer, LegendSymbol, Rect, Scale, Slot, Table, Unit};

/// Most rows of an interval view; the threads that ran least share one.
const MOST_ROWS: usize = 14;

/// Accumulated time by number of VMs.
pub(super) fn curves(document: &Document) -> Group {
    let mut group = Group::new(
        "storm",
        "Accumulated time until so many VMs were there",
        "From the first request; means over repeats, as far as every repeat got. A straight line: \
         the next VM takes as long as the last.",
    );
    for (vm, event) in distinct(document.curves.iter().map(|c| (&c.vm, &c.event))) {
        let of = || document.curves.iter().filter(|c| (&c.vm, &c.event) == (vm, event));
        let word = if event == "start" { "VMStart" } else { "VMLogin" };
        let x = Axis {
            max: of().map(|c| c.planned).max().unwrap_or(1).into(),
            ..Axis::over("number of VMs", Unit::Count, Scale::Linear, [1.0])
        };
        let times = of().flat_map(|c| c.points.iter().map(|p| p.mean_s));
        let label = format!("accumulated {word} time");
        let y = Axis::over(&label, Unit::S, Scale::Linear, times);
        let id = format!("storm-{}-{}", id(vm), id(event));
        group.each_panel(&id, &format!("{vm} {word}"), &panels(document), |_, panel| {
            let mut chart = Chart {
                caption: format!("Accumulated {word} time by number of VMs."),
                table: Table::new(&["", "VMs", "after", "95 % interval"]),
                ..Chart::new(220.0, x.clone(), y.clone())
            };
            for lane in &panel.lanes {
                let Some(curve) = of().find(|c| lane.is_at(&c.place)) else { continue };
                let points = curve.points.iter().map(|p| (f64::from(p.vm), p.mean_s)).collect();
                chart.line(lane.key(LegendSymbol::Line), points, false);
                chart.table.rows.extend(curve.points.iter().map(|p| {
                    let time = |s: f64| format::with_unit(s, "s");
                    let range = |[lo, hi]: Interval| format!("{} to {}", time(lo), time(hi));
                    let bounds = format::maybe(p.mean_s_ci95, range);
                    vec![lane.label.clone(), p.vm.to_string(), time(p.mean_s), bounds]
                }));
            }
            chart
        });
    }
    group
}

fn place(document: &Document, place: &Place) -> String {
    let mut words = place_words(document, &place.backend, &place.params);
    if document.policies.len() > 1 {
        words = if words.is_empty() {
            place.policy.clone()
        } else {
            format!("{}, {words}", place.policy)
        };
    }
    words
}

/// Every sample of a probe in the first repeat.
pub(super) fn scatters(document: &Document) -> Group {
    let mut group = Group::new(
        "samples",
        "Single samples",
        "Every sample of the first repeat at the time it was due. Dots along the bottom: a VM \
         starts; along the top: one has logged in.",
    );
    let all = document.scatters.iter().flat_map(|s| s.latency_us.iter().copied());
    let y = Axis::over("latency", Unit::Us, Scale::Log, all);
    let charts = document.scatters.iter().enumerate();
    group.add(charts.map(|(i, view)| scatter(document, i, view, y.clone())).collect());
    group
}

fn scatter(document: &Document, index: usize, view: &ScatterView, y: Axis) -> Chart {
    let points = view.due_us.iter().zip(&view.latency_us).map(|(d, l)| (d / 1e6, l.max(y.min)));
    let label = view.probe.clone();
    let samples = view.latency_us.len();
    let mut layers =
        vec![Layer::Dots { slot: Slot::Series(1), label, points: points.collect(), size: 2.2 }];
    let key = |slot, label: &str| Key { slot, sign: LegendSymbol::Dot, label: label.to_owned() };
    let mut legend = vec![key(Slot::Series(1), "sample")];
    for (event, at) in [("start", y.min), ("login", y.max)] {
        let marks = view.marks.iter().filter(|m| m.event == event);
        let points: Vec<(f64, f64)> = marks.map(|m| (m.at_us / 1e6, at)).collect();
        if !points.is_empty() {
            let label = format!("VM {event}");
            legend.push(key(Slot::Event, &label));
            layers.push(Layer::Dots { slot: Slot::Event, label, points, size: 5.0 });
        }
    }
    let mut table = Table::new(&["samples", "dropped", "VMs that started", "VMs that logged in"]);
    let count = |event: &str| view.marks.iter().filter(|m| m.event == event).count().to_string();
    table.rows.push(vec![
        samples.to_string(),
        view.dropped.to_string(),
        count("start"),
        count("login"),
    ]);
    let lost = match view.dropped {
        0 => String::new(),
        n => format!(" {n} samples after the last one kept are missing."),
    };
    Chart {
        id: format!("samples-{}-{index}", id(&view.probe)),
        title: titled(&view.probe, &place(document, &view.place)),
        caption: format!("{samples} samples, on a logarithmic axis.{lost}"),
        layers,
        legend,
        table,
        zoom: true,
        ..Chart::new(220.0, seconds(document), y)
    }
}

/// Which thread ran when on one pCPU.
pub(super) fn intervals(document: &Document) -> Group {
    let mut group = Group::new(
        "intervals",
        "Who ran on one pCPU",
        "A row each for those who had the pCPU in the first repeat; the vCPU that the view begins \
         with is uppermost. Where no row has a box the pCPU was idle.",
    );
    let charts = document.intervals.iter().enumerate();
    group.add(charts.map(|(i, view)| interval(document, i, view)).collect());
    group
}

fn interval(document: &Document, index: usize, view: &IntervalView) -> Chart {
    let mut ran: BTreeMap<&str, f64> = BTreeMap::new();
    for span in &view.spans {
        *ran.entry(&span.who).or_default() += span.until_us - span.from_us;
    }
    let first = view.spans.first().map(|s| s.who.as_str());
    let mut order: Vec<(&str, f64)> = ran.iter().map(|(who, us)| (*who, *us)).collect();
    order.sort_by(|a, b| {
        (Some(b.0) == first).cmp(&(Some(a.0) == first)).then(b.1.total_cmp(&a.1)).then(a.0.cmp(b.0))
    });
    let own_rows = if order.len() > MOST_ROWS { MOST_ROWS - 1 } else { order.len() };
    let others = order.len() - own_rows;
    let row = |who: &str| order.iter().position(|(w, _)| *w == who).unwrap_or(0).min(own_rows);
    let mut boxes: [Vec<Rect>; 2] = [Vec::new(), Vec::new()];
    for span in &view.spans {
        let at = row(&span.who) as f64;
        let (from, until) = (span.from_us, span.until_us);
        let hint =
            format!("{} for {} at {}", span.who, format::time(until - from), format::time(from));
        let own = usize::from(Some(span.who.as_str()) != first);
        boxes[own].push(Rect { x: (from, until), y: (at + 0.15, at + 0.85), hint });
    }
    let rows = own_rows + usize::from(others > 0);
    let mut ticks: Vec<(f64, String)> = order
        .iter()
        .take(own_rows)
        .enumerate()
        .map(|(i, (who, _))| (i as f64 + 0.5, (*who).to_owned()))
        .collect();
    if others > 0 {
        ticks.push((own_rows as f64 + 0.5, format!("{others} others")));
    }
    let mut table = Table::new(&["who", "ran for", "times"]);
    for (who, us) in &order {
        let times = view.spans.iter().filter(|s| s.who == *who).count().to_string();
        table.rows.push(vec![(*who).to_owned(), format::time(*us), times]);
    }
    let [own, rest] = boxes;
    let length = (view.until_us - view.from_us).max(1e-3);
    let pcpu = view.pcpu.map_or_else(|| "never began".to_owned(), |p| format!("pCPU {p}"));
    let x = Axis {
        min: 0.0,
        max: length,
        ..Axis::over("time since the view began", Unit::Us, Scale::Linear, [1.0])
    };
    Chart {
        id: format!("intervals-{index}"),
        title: titled(&format!("{pcpu} from {}", view.at), &place(document, &view.place)),
        caption: match view.spans.len() {
            1 => format!("1 run in {}.", format::time(length)),
            n => format!("{n} runs in {}.", format::time(length)),
        },
        layers: vec![
            Layer::Boxes { slot: Slot::Series(1), boxes: own },
            Layer::Boxes { slot: Slot::Series(0), boxes: rest },
        ],
        legend: first
            .map(|who| Key {
                slot: Slot::Series(1),
                sign: LegendSymbol::Box,
                label: who.to_owned(),
            })
            .into_iter()
            .chain([Key {
                slot: Slot::Series(0),
                sign: LegendSymbol::Box,
                label: "others".to_owned(),
            }])
            .collect(),
        table,
        ..Chart::new((rows as f64 * 15.0).max(40.0), x, Axis::rows(rows as f64, ticks))
    }
}
