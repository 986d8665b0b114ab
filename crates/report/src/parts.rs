//! Parts of the mean sample's time, and the threads on the pCPU meanwhile.

use std::collections::BTreeMap;

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, LatencySeries, Params};
use vcoop_model::distinct;
use vcoop_model::recording::Part;

use crate::style::{POLICY, Style, Tone, cut, finish, name, side_by_side};

/// A part is shown if it has at least this share of the mean under any policy.
const LEAST_SHARE: f64 = 0.02;
/// Most parts shown.
const MOST_PARTS: usize = 6;
/// The sum of other parts is shown if it has at least this share of the mean under any policy.
const LEAST_REST: f64 = 0.005;
/// Most names in "ran instead".
const MOST_NAMES: usize = 3;

/// The label of a part.
pub(crate) fn words(part: Part) -> &'static str {
    match part {
        Part::TimerSlack => "timer slack",
        Part::CState => "pCPU leaves idle",
        Part::HostIrq => "host interrupts",
        Part::WakeToRun => "host wait since wake-up",
        Part::PreemptedToRun => "host wait, preempted",
        Part::Throttled => "throttling",
        Part::HostSwitch => "host scheduler",
        Part::EntryExit => "VM exits and entries",
        Part::Delivery => "interrupt not yet taken",
        Part::GuestIrq => "guest interrupts",
        Part::GuestWait => "guest run queue",
        Part::GuestSwitch => "guest scheduler",
        Part::ServiceQueue => "server's earlier calls",
        Part::Service => "server's work",
        Part::Overrun => "own earlier period",
        Part::LockWait => "guest spinlocks",
        Part::CallWait => "calls to other vCPUs",
    }
}

/// Parts by label, largest first; those below a hundredth are left out.
pub(crate) fn named_parts(parts: &BTreeMap<String, f64>) -> String {
    let all: f64 = parts.values().sum();
    in_words(parts, |us| us >= all * 0.01, Part::COUNT)
}

/// At most this many of the parts to show.
pub(crate) fn in_words(
    parts: &BTreeMap<String, f64>,
    is_shown: impl Fn(f64) -> bool,
    most: usize,
) -> String {
    let found = Part::ALL.iter().filter_map(|p| Some((*p, *parts.get(p.name())?)));
    let one = |(part, us)| format!("{} {}", words(part), format::time(us));
    let found = largest(found.filter(|(_, us)| is_shown(*us)), most);
    found.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The largest first, at most so many; equal ones in their order.
pub(crate) fn largest<T>(all: impl IntoIterator<Item = (T, f64)>, most: usize) -> Vec<(T, f64)> {
    let mut all: Vec<(T, f64)> = all.into_iter().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(most);
    all
}

/// The decomposition of each guest probe of a cell, and of each round trip through a guest.
pub(crate) fn render(document: &Document, cell: &(String, Params), style: Style) -> String {
    let guests = document
        .latencies()
        .filter(|s| s.key.is_in(cell) && s.is_of_a_guest() && !s.key.is_a_wait());
    let guests: Vec<&LatencySeries> = guests.collect();
    let mut out = String::new();
    for name in distinct(guests.iter().map(|series| series.key.name())) {
        let own: Vec<&LatencySeries> =
            guests.iter().copied().filter(|s| s.key.is_named(&name)).collect();
        // A guest's driver measures only how long its urgent tasks waited.
        if own.iter().all(|s| s.parts_mean.values().all(|us| *us == 0.0)) {
            continue;
        }
        out.push_str(&side_by_side(document, style, |columns| table(&name, &own, columns, style)));
        out.push_str(&instead(&own, style));
    }
    out
}

fn share(series: &LatencySeries, part: Part) -> f64 {
    let value = series.parts_mean.get(part.name()).copied().unwrap_or(0.0);
    series.mean.filter(|mean| *mean > 0.0).map_or(0.0, |mean| value / mean)
}

fn table(probe: &str, own: &[&LatencySeries], columns: &[&str], style: Style) -> String {
    let most = |part: Part| own.iter().map(|s| share(s, part)).fold(0.0, f64::max);
    let parts = Part::ALL.iter().map(|part| (*part, most(*part)));
    let parts = largest(parts.filter(|(_, most)| *most >= LEAST_SHARE), MOST_PARTS);
    // A sum of its own: what remains of the sum of all may be a rounding error instead of zero.
    let hidden = |part: &&Part| parts.iter().all(|(shown, _)| shown != *part);
    let rest = |series: &LatencySeries| -> f64 {
        Part::ALL.iter().filter(hidden).map(|part| share(series, *part)).sum()
    };
    let title = name(&format!("{probe} mean"));
    let mut header = vec![title.as_str()];
    let names: Vec<String> = columns.iter().map(|c| cut(c, POLICY)).collect();
    header.extend(names.iter().map(String::as_str));
    let mut table = style.table(header);
    let of = |policy: &str| own.iter().find(|s| s.key.policy == policy);
    let mut row = |label: &str, share: &dyn Fn(&LatencySeries) -> f64| {
        let mut row = vec![style.cell(format!("  {label}"), Tone::Plain)];
        row.extend(columns.iter().map(|policy| match of(policy) {
            Some(series) => {
                let share = share(series);
                let (value, percent) =
                    (share * series.mean.unwrap_or(0.0), (share * 100.0).round());
                let tone = if percent < 1.0 { Tone::Faint } else { Tone::Plain };
                style.cell(format!("{} {percent:>3} %", format::time(value)), tone)
            }
            None => style.cell("", Tone::Plain),
        }));
        table.add_row(row);
    };
    for (part, _) in &parts {
        row(words(*part), &|series| share(series, *part));
    }
    if own.iter().any(|series| rest(series) >= LEAST_REST) {
        row("other", &rest);
    }
    finish(table, 1)
}

/// Threads that ran while the guest waited for a pCPU, if that was a large part of the time.
fn instead(own: &[&LatencySeries], style: Style) -> String {
    let mut lines = Vec::new();
    for series in own {
        let total: f64 = series.ran_instead_mean.values().sum();
        if total <= 0.0 || total < series.mean.unwrap_or(0.0) * 0.1 {
            continue;
        }
        let names = series.ran_instead_mean.iter().map(|(label, time)| (label, *time));
        let shown: Vec<String> = largest(names, MOST_NAMES)
            .into_iter()
            .filter(|(_, time)| *time >= total * LEAST_SHARE)
            .map(|(label, time)| format!("{label} {:.0} %", time / total * 100.0))
            .collect();
        lines.push(format!("{}: {}", series.key.policy, shown.join(", ")));
    }
    if lines.is_empty() {
        return String::new();
    }
    style.wrap(&format!("    ran instead under {}", lines.join("; ")), 6)
}
