//! Parts of the time of samples, by their latency: why the slowest 1 % are slow.

use std::collections::BTreeMap;

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, LatencySeries, SizeBand};
use vcoop_model::recording::Part;

use super::Group;
use super::lanes::{Lane, panels, probes};
use crate::chart::escape::id;
use crate::chart::{Axis, Chart, Key, Layer, LegendSymbol, Rect, Scale, Slot, Table, Unit};
use crate::parts::{self, words};

/// Parts from the bottom of a stack to its top: the host's first.
const ORDER: [Part; Part::COUNT] = [
    Part::PreemptedToRun,
    Part::WakeToRun,
    Part::Throttled,
    Part::HostIrq,
    Part::HostSwitch,
    Part::CState,
    Part::TimerSlack,
    Part::EntryExit,
    Part::Delivery,
    Part::GuestIrq,
    Part::GuestWait,
    Part::GuestSwitch,
    Part::LockWait,
    Part::CallWait,
    Part::ServiceQueue,
    Part::Service,
    Part::Overrun,
];

/// A part is in the legend if it has at least this share of any bar.
const LEAST_SHARE: f64 = 0.02;
/// The share of slowest samples described in words.
const TAIL: f64 = 0.01;

/// Stacks by octave of latency; a chart for each policy.
pub(super) fn by_size(document: &Document) -> Group {
    let mut group = Group::new(
        "parts",
        "What makes slow samples slow",
        "A bar is an octave of latency: samples of that size, and where their time went. Above it \
         stands which share of all samples is at least that late, so the right-hand end is the tail.",
    );
    let panels = panels(document);
    for probe in &probes(document) {
        let mut found: Vec<(String, &LatencySeries)> = Vec::new();
        for panel in &panels {
            for lane in &panel.lanes {
                let series = lane.latency(document, probe).filter(|s| s.is_of_a_guest());
                found.extend(series.map(|s| (named(lane, &panel.place), s)));
            }
        }
        let bands = || found.iter().flat_map(|(_, s)| bands(s));
        let from = bands().map(|b| b.from_us).fold(f64::INFINITY, f64::min).max(1e-3);
        let until = bands().map(|b| b.until_us).fold(0.0, f64::max);
        let x = Axis {
            min: from,
            max: until.max(2.0 * from),
            grid: false,
            ..Axis::over("latency", Unit::Us, Scale::Log, [from, until])
        };
        let legend: Vec<Key> = ORDER
            .iter()
            .filter(|part| bands().any(|band| share(band, **part) >= LEAST_SHARE))
            .map(|part| key(*part))
            .collect();
        let charts = found
            .iter()
            .enumerate()
            .map(|(i, (name, series))| stack(probe, i, name, series, x.clone(), legend.clone()));
        group.add(charts.collect());
    }
    group
}

fn named(lane: &Lane, place: &str) -> String {
    if place.is_empty() { lane.label.clone() } else { format!("{}, {place}", lane.label) }
}

fn key(part: Part) -> Key {
    Key { slot: Slot::Part(part as usize), sign: LegendSymbol::Box, label: words(part).to_owned() }
}

fn bands(series: &LatencySeries) -> &[SizeBand] {
    series.detail.as_ref().map_or(&[], |detail| &detail.by_size)
}

fn share(band: &SizeBand, part: Part) -> f64 {
    let total: f64 = band.parts_mean.values().sum();
    let own = band.parts_mean.get(part.name()).copied().unwrap_or(0.0);
    if total > 0.0 { own / total } else { 0.0 }
}

fn stack(
    probe: &str,
    index: usize,
    name: &str,
    series: &LatencySeries,
    x: Axis,
    legend: Vec<Key>,
) -> Chart {
    let bands = bands(series);
    let total = bands.iter().map(|b| b.count).sum::<u64>().max(1);
    let mut boxes: BTreeMap<usize, Vec<Rect>> = BTreeMap::new();
    let mut above = Vec::new();
    let mut table = Table::new(&["from", "until", "samples", "at least so late", "where it went"]);
    let mut left = total;
    for band in bands {
        let (from, until) = (band.from_us.max(x.min), band.until_us);
        let at_least = left as f64 / total as f64;
        left -= band.count;
        // Twice the square root of two: the middle of the bar.
        // Without the space: there is little room.
        let word = percent(at_least).replace(' ', "");
        above.push((from * std::f64::consts::SQRT_2, 1.06, word));
        let mut bottom = 0.0;
        for (place, part) in ORDER.iter().enumerate() {
            let height = share(band, *part);
            if height <= 0.0 {
                continue;
            }
            let mean = band.parts_mean.get(part.name()).copied().unwrap_or(0.0);
            let hint = format!(
                "{} to {}: {} {} ({} on average)",
                format::time(from),
                format::time(until),
                words(*part),
                percent(height),
                format::time(mean)
            );
            let rect = Rect { x: (from, until), y: (bottom, bottom + height), hint };
            boxes.entry(place).or_default().push(rect);
            bottom += height;
        }
        table.rows.push(vec![
            format::time(band.from_us),
            format::time(until),
            band.count.to_string(),
            percent(at_least),
            largest(|part| share(band, part), 4),
        ]);
    }
    let mut layers: Vec<Layer> = boxes
        .into_iter()
        .map(|(place, boxes)| Layer::Boxes { slot: Slot::Part(ORDER[place] as usize), boxes })
        .collect();
    layers.push(Layer::Words { words: thinned(above, &x) });
    let ticks = [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")].map(|(at, word)| (at, word.to_owned()));
    let y = Axis {
        label: "share of the time".to_owned(),
        unit: Unit::Share,
        ..Axis::labelled(0.0, 1.12, ticks.into())
    };
    Chart {
        id: format!("parts-{}-{index}", id(probe)),
        title: format!("{probe} under {name}"),
        caption: slowest(series).unwrap_or_default(),
        layers,
        legend,
        table,
        ..Chart::new(170.0, x, y)
    }
}

/// Labels above bars, as many as fit side by side in a narrow chart.
fn thinned(words: Vec<(f64, f64, String)>, x: &Axis) -> Vec<(f64, f64, String)> {
    /// A label's width as a share of a narrow plot.
    const WIDE: f64 = 0.115;
    let mut kept: Vec<(f64, f64, String)> = Vec::new();
    // From the right: the tail is what is looked at.
    for word in words.into_iter().rev() {
        let free = kept.last().is_none_or(|last| x.place(last.0) - x.place(word.0) >= WIDE);
        if free {
            kept.push(word);
        }
    }
    kept
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if percent >= 9.95 => format!("{percent:.0} %"),
        _ if percent >= 0.095 => format!("{percent:.1} %"),
        _ if percent >= 0.0095 => format!("{percent:.2} %"),
        _ => format!("{percent:.3} %"),
    }
}

/// The largest shares in words.
fn largest(share: impl Fn(Part) -> f64, most: usize) -> String {
    let shares = parts::largest(Part::ALL.iter().map(|p| (*p, share(*p))), most).into_iter();
    let one = |(part, share)| format!("{} {:.0} %", words(part), share * 100.0);
    shares.filter(|(_, s)| *s >= LEAST_SHARE).map(one).collect::<Vec<_>>().join(", ")
}

/// Parts of the slowest samples: about a hundredth of all, in whole octaves. `None` if nothing is known of them.
pub(crate) fn slowest(series: &LatencySeries) -> Option<String> {
    let bands = bands(series);
    let total: u64 = bands.iter().map(|b| b.count).sum();
    let tail = |first: usize| bands[first..].iter().map(|b| b.count).sum::<u64>();
    let far = |first: usize| libm::fabs(libm::log(tail(first) as f64 / total.max(1) as f64 / TAIL));
    let first = (0..bands.len()).min_by(|a, b| far(*a).total_cmp(&far(*b)))?;
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for band in &bands[first..] {
        for (part, mean) in &band.parts_mean {
            *sums.entry(part).or_default() += mean * band.count as f64;
        }
    }
    let all: f64 = sums.values().sum();
    let share = |part: Part| sums.get(part.name()).copied().unwrap_or(0.0) / all.max(1e-9);
    let which = match first {
        0 => "All samples".to_owned(),
        _ => format!(
            "The slowest {} ({} and more)",
            percent(tail(first) as f64 / total as f64),
            format::time(bands[first].from_us)
        ),
    };
    Some(format!("{which}: {}.", largest(share, 3)))
}
