//! The vCPUs of a VM that vcoop does not run: where their time went, and who ran instead.

use std::collections::BTreeMap;

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, Key, LatencySeries, Note, Params};

use crate::cost::probes_with;
use crate::parts::largest;
use crate::style::{Style, cut, finish, visible};

/// Width of names.
const NAME: usize = 22;
/// Most names in "ran instead", and most reasons of exits.
const MOST_NAMES: usize = 5;
/// A share that is worth a name.
const LEAST_SHARE: f64 = 0.005;

/// The table's columns.
const HEADER: [&str; 9] =
    ["", "running", "halted", "woken", "preempted", "wait mean", "p99", "max", "moves/s"];
/// Columns that a narrow terminal has no room for; the first is the first to go. The table of latencies has the last
/// three of them.
const LEAVE: [usize; 4] = [8, 6, 7, 5];

/// A table of the vCPUs of a cell, a row for each and each policy; empty where none was observed.
pub(crate) fn render(document: &Document, cell: &(String, Params), style: Style) -> String {
    let scalar = |probe: &str, policy: &str, metric: &str| {
        document.scalar(cell, probe, metric, policy)?.value
    };
    let vcpus = probes_with(document, cell, "halted");
    if vcpus.is_empty() {
        return String::new();
    }
    let mut rows = Vec::new();
    let mut instead = String::new();
    let (alone, several) = (document.policies.len() < 2, vcpus.len() > 1);
    for probe in vcpus {
        if !alone {
            rows.push(vec![cut(probe, NAME)]);
        }
        for policy in &document.policies {
            let name =
                if alone { cut(probe, NAME) } else { format!("  {}", cut(policy, NAME - 2)) };
            let wait = |metric: &str| {
                document.latencies().find(|s| {
                    let key = &s.key;
                    key.is_in(cell)
                        && key.probe == probe
                        && key.policy == *policy
                        && key.metric == metric
                })
            };
            let Some(running) = scalar(probe, policy, "running") else { continue };
            let percent = |value: f64| format!("{} %", format::digits(value));
            let [woken, preempted] = Key::WAITS.map(wait);
            // The waits add up to the steal. What was measured may have lasted longer than planned.
            let waited = |series: Option<&LatencySeries>| {
                series.map_or(0.0, |s| s.mean.unwrap_or(0.0) * s.count as f64)
            };
            let all = waited(woken) + waited(preempted);
            let of_steal = |series| {
                let steal = scalar(probe, policy, "steal")?;
                Some(if all > 0.0 { steal * waited(series) / all } else { 0.0 })
            };
            rows.push(vec![
                name.clone(),
                percent(running),
                format::maybe(scalar(probe, policy, "halted"), percent),
                format::maybe(of_steal(woken), percent),
                format::maybe(of_steal(preempted), percent),
                format::maybe_time(woken.and_then(|s| s.mean)),
                format::maybe_time(woken.and_then(|s| s.p99)),
                format::maybe_time(woken.and_then(|s| s.max)),
                format::maybe(scalar(probe, policy, "migrations"), format::digits),
            ]);
            let series = [woken, preempted].into_iter().flatten();
            if let Some(names) = ran_instead(series) {
                let whose = match several {
                    true if !alone => format!("{} under {policy}", cut(probe, NAME)),
                    _ => name.trim_start().to_owned(),
                };
                instead += &style.wrap(&format!("  {whose}: {names}"), 4);
            }
        }
    }
    let (mut out, left_out) = fitting(&rows, style);
    out += &style.wrap(
        "  woken and preempted are shares of time spent waiting for a CPU, since a wake-up and since \
         the CPU was lost; mean, p99 and max are of the waits since wake-ups",
        2,
    );
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|column| HEADER[*column]).collect();
        out += &style.left_out(&names);
    }
    if !instead.is_empty() {
        out += "  Ran instead, of the time that was waited:\n";
        out += &instead;
    }
    out + &exits(document, cell, style)
}

/// A table of these rows with the columns that fit the width, and which are left out.
fn fitting(rows: &[Vec<String>], style: Style) -> (String, &'static [usize]) {
    let fits = |line: &str| visible(line).count() <= style.width;
    let with = |left_out: &'static [usize]| (columns(rows, left_out, style), left_out);
    let mut tables = (0..LEAVE.len()).map(|n| with(&LEAVE[..n]));
    tables.find(|(table, _)| table.lines().all(fits)).unwrap_or_else(|| with(&LEAVE))
}

fn columns(rows: &[Vec<String>], left_out: &[usize], style: Style) -> String {
    let is_shown = |column: &usize| !left_out.contains(column);
    let shown: Vec<usize> = (0..HEADER.len()).filter(is_shown).collect();
    let mut table = style.table(shown.iter().map(|column| HEADER[*column]));
    for row in rows {
        table.add_row(shown.iter().filter_map(|column| row.get(*column)));
    }
    finish(table, 1)
}

/// Who ran while a vCPU waited, in shares of its waits.
fn ran_instead<'s>(series: impl Iterator<Item = &'s LatencySeries>) -> Option<String> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut all = 0.0;
    for s in series {
        all += s.mean.unwrap_or(0.0) * s.count as f64;
        for (label, mean) in &s.ran_instead_mean {
            *sums.entry(label).or_default() += mean * s.count as f64;
        }
    }
    let names = sums.into_iter().map(|(name, us)| (name, us / all));
    let names = largest(names.filter(|(_, share)| *share >= LEAST_SHARE), MOST_NAMES);
    let shown: Vec<String> =
        names.iter().map(|(name, share)| format!("{name} {:.0} %", 100.0 * share)).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// The most frequent reasons for leaving guest mode, a line for each VM and policy.
fn exits(document: &Document, cell: &(String, Params), style: Style) -> String {
    let mut found: BTreeMap<(&str, &str), Vec<(&str, f64)>> = BTreeMap::new();
    for s in document.scalars().filter(|s| s.key.is_in(cell)) {
        if let (Some(reason), Some(value)) = (s.key.metric.strip_prefix("exit."), s.value) {
            found.entry((&s.key.probe, &s.key.policy)).or_default().push((reason, value));
        }
    }
    let mut out = String::new();
    for ((vm, policy), reasons) in found {
        let reasons = largest(reasons, usize::MAX);
        let all: f64 = reasons.iter().map(|(_, n)| n).sum();
        let shown = reasons.iter().take(MOST_NAMES);
        let shown: Vec<String> =
            shown.map(|(reason, n)| format!("{reason} {}", format::digits(*n))).collect();
        let under =
            if document.policies.len() < 2 { String::new() } else { format!(" under {policy}") };
        let all = format::digits(all);
        out += &style.wrap(&format!("  Exits of {vm}{under}: {all} /s: {}", shown.join(", ")), 4);
    }
    out
}

/// What is to be known besides, and what helps.
pub(crate) fn notes(notes: &[Note], style: Style) -> String {
    let one = |note: &Note| {
        let mut text = style.wrap(&format!("note: {}", note.evidence), 6);
        if let Some(remedy) = &note.remedy {
            text += &style.wrap(&format!("  remedy: {remedy}"), 10);
        }
        text
    };
    notes.iter().map(one).collect()
}
