//! Why samples were slow: the worst samples with their events, and a summary by cause.

mod log;
mod story;

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;
use vcoop_experiment::analysis::worst_of;
use vcoop_experiment::format;
use vcoop_experiment::result::{Document, LatencySeries, Worst};
use vcoop_experiment::runner::PlanRuns;
use vcoop_model::plan::{Ns, Plan, Target};
use vcoop_model::recording::Part;

pub use log::Log;
pub use story::Line;
use story::story;

use crate::parts::{in_words, words};
use crate::style::{Style, Tone, cut, finish};

/// A share below this has no line.
const LEAST_SHARE: f64 = 0.005;
/// Most parts named beside a sample.
const MOST_PARTS: usize = 5;

/// Runs a repeat of the plan again, with a log as observer.
pub type Rerun<'a> = &'a mut dyn FnMut(u32, &mut Log) -> Result<(), String>;

/// Result of `vcoop explain`.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// `vcoop.explain/1`.
    pub schema: &'static str,
    /// The scenario.
    pub scenario: String,
    /// Seed of the first repeat.
    pub seed: u64,
    /// By probe.
    pub series: Vec<ExplainedSeries>,
}

/// The worst samples of a series.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedSeries {
    /// Its statistics, with a part of its worst samples.
    #[serde(flatten)]
    pub of: LatencySeries,
    /// Events of each of its `worst` samples; empty if the run cannot be repeated.
    pub timelines: Vec<Vec<Line>>,
}

/// Explains the worst samples of a plan: `worst` of each probe, or of one. `look`: for backends whose runs can be
/// repeated exactly.
///
/// # Errors
///
/// A repetition failed.
pub fn explain(
    document: &Document,
    runs: &PlanRuns,
    plan: &Plan,
    probe: Option<&str>,
    worst: usize,
    mut look: Option<Rerun<'_>>,
) -> Result<Explanation, String> {
    let mut found = Vec::new();
    for series in document.latencies().filter(|s| probe.is_none_or(|p| s.key.probe == p)) {
        let mut of = series.clone();
        of.worst = worst_of(runs, &of.key.probe, worst);
        let timelines = match look.as_mut() {
            Some(look) => stories(plan, &of.key.probe, &of.worst, look)?,
            None => Vec::new(),
        };
        found.push(ExplainedSeries { of, timelines });
    }
    let (scenario, seed) = (plan.scenario.clone(), plan.seed);
    Ok(Explanation { schema: "vcoop.explain/1", scenario, seed, series: found })
}

impl Explanation {
    /// As text for a terminal.
    pub fn render(&self, style: Style) -> String {
        let mut out = String::new();
        for ExplainedSeries { of, timelines } in &self.series {
            let key = &of.key;
            let title = format!(
                "{} under {} on {}: the worst of {} samples, mean {}",
                key.probe,
                key.policy,
                key.backend,
                of.count,
                format::maybe_time(of.mean)
            );
            let _ = writeln!(out, "{}", style.heading(style.wrap(&title, 2).trim_end()));
            if of.worst.is_empty() {
                out.push_str("  no samples\n\n");
                continue;
            }
            for (i, sample) in of.worst.iter().enumerate() {
                one(&mut out, style, i, sample, timelines.get(i).map(Vec::as_slice));
            }
            out.push_str(&summary(of, &of.worst, style));
            out.push('\n');
        }
        out
    }
}

fn ns(us: f64) -> Ns {
    (us * 1e3).round() as Ns
}

/// The events of each sample, from a repetition of its run.
fn stories(
    plan: &Plan,
    probe: &str,
    samples: &[Worst],
    look: &mut Rerun<'_>,
) -> Result<Vec<Vec<Line>>, String> {
    let targets: Vec<Target> =
        plan.probes.iter().filter(|p| p.probe == probe).map(|p| p.target).collect();
    let mut stories = vec![Vec::new(); samples.len()];
    let repeats: BTreeSet<u32> = samples.iter().map(|s| s.repeat).collect();
    for repeat in repeats {
        let own = || samples.iter().enumerate().filter(|(_, s)| s.repeat == repeat);
        let when = |s: &Worst| (ns(s.due_us) + plan.warmup_ns, ns(s.latency_us));
        let mut log = Log::around(own().map(|(_, s)| when(s)));
        look(repeat, &mut log)?;
        for (i, sample) in own() {
            let (due, latency) = when(sample);
            let end = due + latency;
            stories[i] = story(&log.names, &targets, log.at(due), due, end);
        }
    }
    Ok(stories)
}

fn one(out: &mut String, style: Style, i: usize, sample: &Worst, story: Option<&[Line]>) {
    let behind = sample.ran_instead.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let behind = match behind {
        Some((who, us)) if *us > 0.0 => format!(", behind {who} for {}", format::time(*us)),
        _ => String::new(),
    };
    let line = format!(
        "{:>3}. {} late, due at {} of repeat {}{behind}",
        i + 1,
        format::time(sample.latency_us),
        format::time(sample.due_us),
        sample.repeat
    );
    out.push('\n');
    out.push_str(&style.wrap(&line, 5));
    let parts = in_words(&sample.parts, |us| us > 0.0, MOST_PARTS);
    out.push_str(&style.wrap(&format!("     {parts}"), 5));
    for line in story.unwrap_or_default() {
        let us = line.at_us;
        let at = if us == 0.0 { "due".to_owned() } else { format!("+{}", format::time(us)) };
        out.push_str(&style.wrap(&format!("     {at:>9}  {}", line.text), 16));
    }
    if story.is_some_and(|lines| !lines.is_empty()) {
        let at = format!("+{}", format::time(sample.latency_us));
        let _ = writeln!(out, "     {at:>9}  the task is there");
    }
}

/// The parts of the worst samples, beside those of all.
fn summary(series: &LatencySeries, shown: &[Worst], style: Style) -> String {
    let mean = series.mean.unwrap_or(0.0);
    let total: f64 = shown.iter().map(|s| s.latency_us).sum();
    let of = |part: &Part| {
        let name = part.name();
        let all = series.parts_mean.get(name).copied().unwrap_or(0.0);
        // An empty sum is -0.
        let worst = shown.iter().filter_map(|s| s.parts.get(name)).sum::<f64>() + 0.0;
        (*part, all, worst)
    };
    let mut parts: Vec<(Part, f64, f64)> = Part::ALL
        .iter()
        .map(of)
        .filter(|(_, all, worst)| *all >= LEAST_SHARE * mean || *worst >= LEAST_SHARE * total)
        .collect();
    parts.sort_by(|a, b| b.2.total_cmp(&a.2).then(b.1.total_cmp(&a.1)));
    let worst = format!("worst {}", shown.len());
    let mut table = style.table(["by cause", "all samples", worst.as_str()]);
    let cell = |us: f64, whole: f64| {
        let share = if whole > 0.0 { (100.0 * us / whole).round() } else { 0.0 };
        style.cell(format!("{} {share:>3} %", format::time(us)), Tone::Plain)
    };
    let count = shown.len() as f64;
    for (part, all, worst) in parts {
        let name = style.cell(cut(words(part), 32), Tone::Plain);
        table.add_row(vec![name, cell(all, mean), cell(worst / count, total / count)]);
    }
    format!("\n{}", finish(table, 1))
}
