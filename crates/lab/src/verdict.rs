//! What a comparison says, in a line.
//!
//! The rules, for each backend and cell:
//!
//! 1. **Gain.** Each guest latency series counts with the ratio of its p99 to the baseline's, or
//!    of its mean where it has too few samples for a p99. A policy's gain is the geometric mean of
//!    these ratios; it improves the guest if that is below 1 and at least one ratio's interval
//!    lies below 1. A series that misses a larger share of its periods than under the baseline, or
//!    glitches more often, is not better, whatever its quantiles: the samples it lacks would have
//!    been the worst.
//!
//!    Where a command has measured times in the guest (`vcoop compare --exec`), these count, in place
//!    of the waits of its vCPUs: they are what its user wants to know. The longest of them (`max`)
//!    does not: it is a single sample. Where there is no such command, and the guest's driver has
//!    measured its urgent tasks (`VM.urgent`), that counts in place of the waits.
//! 2. **Cost.** A policy costs too much if, beyond noise (the ratio's interval excludes 1, by more
//!    than half a percent), a host
//!    probe's mean rises by more than 10 % or its p99 by more than 25 %, or a host load loses more
//!    than 5 % of its throughput ([`LIMITS`]); or if a host probe misses a share of its periods that is
//!    larger by more than one in a hundred. One without any sample has missed all of them: the work of
//!    a task that never runs is lost. Loads below 1 % of a CPU do not count. What the
//!    guest's own other work loses is named, but is the guest's bargain.
//! 3. **Best** is the policy with the smallest gain ratio among those that improve the guest and
//!    do not cost too much. The others that improve it are named with what they cost.
//! 4. Nothing is claimed from fewer than [`LEAST_REPEATS`] repeats: intervals from fewer are too
//!    narrow.

use vcoop_model::recording::LatencyRecord;

use crate::human;
use crate::params;
use crate::result::{Document, Interval, LatencySeries, Params, ScalarSeries, Verdict};
use crate::vm;

/// Repeats from which something is claimed.
pub const LEAST_REPEATS: u32 = 5;

/// What a policy may cost the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest ratio of a host probe's means.
    pub probe_mean: f64,
    /// Largest ratio of a host probe's p99s.
    pub probe_p99: f64,
    /// Share of its periods that a host probe may miss beyond what it misses under the baseline. Where
    /// it misses more than one in a hundred, its p99 is not that of its periods.
    pub missed: f64,
    /// Smallest ratio of a host load's throughputs.
    pub load: f64,
}

/// The limits in force.
pub const LIMITS: Limits = Limits { probe_mean: 1.10, probe_p99: 1.25, missed: 0.01, load: 0.95 };

/// CPUs a load must use under the baseline to count.
const LEAST_LOAD: f64 = 0.01;

/// Ratios nearer to 1 than this are no difference, however sharp: it is what two decimals show.
const LEAST_DIFFERENCE: f64 = 0.005;

/// Whether a ratio's interval lies below 1, by more than half a percent.
pub fn clearly_below(interval: Option<Interval>) -> bool {
    interval.is_some_and(|[_, hi]| hi < 1.0 - LEAST_DIFFERENCE)
}

/// Whether a ratio's interval lies above 1, by more than half a percent.
pub fn clearly_above(interval: Option<Interval>) -> bool {
    interval.is_some_and(|[lo, _]| lo > 1.0 + LEAST_DIFFERENCE)
}

/// How probes begin whose values a command has printed.
pub const EXEC: &str = "exec.";
/// What such a value is called.
pub const EXEC_METRIC: &str = "value";

/// Times that a command has printed, all policies: less is better.
pub fn exec_times<'d>(
    document: &'d Document,
    cell: &(String, Params),
) -> impl Iterator<Item = &'d ScalarSeries> {
    let is_time = |unit: &str| ["ns", "us", "ms", "s"].contains(&unit);
    document
        .scalars()
        .filter(move |s| s.key.is_in(cell) && s.key.probe.starts_with(EXEC) && is_time(&s.key.unit))
}

/// Most guest series a verdict names.
const MOST_SHOWN: usize = 3;

/// Share of missed periods that is worth a word.
const LEAST_MISSED: f64 = 0.001;

type Cell = (String, Params);

/// The verdicts of a document, one for each of its cells.
pub fn verdicts(document: &Document) -> Vec<Verdict> {
    if vm::is_observation(document) {
        return Vec::new();
    }
    document.cells().into_iter().map(|cell| verdict(document, cell)).collect()
}

/// A policy that improves the guest.
#[derive(Clone, Debug)]
struct Candidate<'d> {
    policy: &'d str,
    /// Geometric mean of ratios.
    gain: f64,
    /// What is clearly better: probe, statistic, baseline's value and own.
    shown: String,
    /// Costs beyond the limits.
    excess: Vec<String>,
    /// What it costs, in any case.
    price: String,
}

fn verdict(document: &Document, cell: Cell) -> Verdict {
    let base = document.baseline.as_str();
    let others: Vec<&str> =
        document.policies.iter().map(String::as_str).filter(|p| *p != base).collect();
    let in_cell = |s: &&LatencySeries| s.key.is_in(&cell);
    let repeats = document.latencies().filter(in_cell).map(|s| s.key.repeats).min().unwrap_or(0);
    let guests = document.latencies().filter(in_cell).filter(|s| s.is_of_a_guest());
    let done = |best: Option<&str>, text: String| {
        let (backend, params) = cell.clone();
        Verdict { backend, params, best: best.map(str::to_owned), text }
    };
    if others.is_empty() {
        return done(None, format!("only {base} was run: there is nothing to compare"));
    }
    if guests.count() == 0 {
        return done(None, "no guest latency was measured: there is nothing to compare".to_owned());
    }
    if repeats < LEAST_REPEATS {
        let text = format!(
            "no verdict from {repeats} repeats: it takes {LEAST_REPEATS} (--repeats), better 10"
        );
        return done(None, text);
    }
    let mut found: Vec<Candidate<'_>> =
        others.iter().filter_map(|policy| candidate(document, &cell, policy)).collect();
    found.sort_by(|a, b| a.gain.total_cmp(&b.gain));
    let best = found.iter().find(|c| c.excess.is_empty());
    match (best, found.first()) {
        (None, None) => done(None, format!("no policy differs from {base} beyond noise")),
        (None, Some(first)) => {
            let text = format!(
                "none without a price: {} brings {}, but {}",
                first.policy,
                first.shown,
                first.excess.join(", ")
            );
            done(None, text)
        }
        (Some(best), _) => {
            let mut text = format!("{}: {}. {}", best.policy, best.shown, best.price);
            if let Some(other) = found.iter().take_while(|c| c.policy != best.policy).next() {
                let (gain, excess) =
                    (human::ratio(other.gain / best.gain), other.excess.join(", "));
                text +=
                    &format!(". {} gets the guest to {gain} of that, but {excess}", other.policy);
            }
            done(Some(best.policy), text)
        }
    }
}

/// The statistic a guest series counts with: name, ratio, interval, value.
fn counted(s: &LatencySeries) -> Option<(&'static str, f64, Option<Interval>, f64)> {
    let (ratios, intervals) = (s.ratio_to_baseline?, s.ratio_ci95.unwrap_or_default());
    match (ratios.p99, s.p99) {
        (Some(ratio), Some(value)) => Some(("p99", ratio, intervals.p99, value)),
        _ => Some(("mean", ratios.mean?, intervals.mean, s.mean?)),
    }
}

/// How a series misses periods, in words: `host.probe misses 12 % of its periods (vanilla 0 %)`.
fn misses(series: &LatencySeries, base: &LatencySeries) -> String {
    let verb = if series.is_starved() { "is starved: it misses" } else { "misses" };
    let shares = missed_words(series.missed_share(), &base.key.policy, base.missed_share());
    format!("{} {verb} {shares}", series.key.name())
}

/// A share of periods that were missed, beside the baseline's: `12 % of its periods (vanilla 0 %)`.
pub fn missed_words(now: f64, baseline: &str, before: f64) -> String {
    let percent = |share: f64| human::digits(share * 100.0);
    format!("{} % of its periods ({baseline} {} %)", percent(now), percent(before))
}

/// Glitches a minute of an audio probe; none of any other.
fn glitches(document: &Document, cell: &Cell, policy: &str, probe: &str) -> f64 {
    let found = document.scalars().find(|s| {
        s.key.is_in(cell)
            && s.key.policy == policy
            && s.key.probe == probe
            && s.key.metric == "glitches"
    });
    found.and_then(|s| s.value).unwrap_or(0.0)
}

fn candidate<'d>(document: &'d Document, cell: &Cell, policy: &'d str) -> Option<Candidate<'d>> {
    let of = |policy: &str| {
        let policy = policy.to_owned();
        document.latencies().filter(move |s| s.key.is_in(cell) && s.key.policy == policy)
    };
    let mut logs = Vec::new();
    let mut better: Vec<String> = Vec::new();
    let mut missed: Vec<String> = Vec::new();
    let inside = of(policy).any(is_inside);
    for series in of(policy).filter(|s| s.is_of_a_guest()) {
        if inside && !is_inside(series) {
            continue;
        }
        let (probe, name_of) = (&series.key.probe, series.key.name());
        let base = of(&document.baseline).find(|s| s.key.is_named(&name_of));
        let Some(base) = base else { continue };
        if series.is_starved() && !base.is_starved() {
            return None;
        }
        let Some((name, ratio, interval, value)) = counted(series) else { continue };
        logs.push(libm::log(ratio.max(f64::MIN_POSITIVE)));
        let (gone, gone_before) = (series.missed_share(), base.missed_share());
        if gone >= LEAST_MISSED {
            missed.push(misses(series, base));
        }
        let heard = glitches(document, cell, policy, probe);
        let heard_before = glitches(document, cell, &document.baseline, probe);
        if heard > heard_before {
            let (now, before) = (human::digits(heard), human::digits(heard_before));
            let baseline = &document.baseline;
            missed.push(format!("{probe} glitches {now} times a minute ({baseline} {before})"));
        }
        let clearly = clearly_below(interval) && gone <= gone_before && heard <= heard_before;
        if clearly {
            let before = if name == "p99" { base.p99? } else { base.mean? };
            let (before, after) = (human::time(before), human::time(value));
            let ratio = human::ratio(ratio);
            let text = format!("{name_of} {name} {before} -> {after} ({ratio})");
            better.push(text);
        }
    }
    let times = exec_times(document, cell);
    let times = times.filter(|s| s.key.policy == policy && !s.key.probe.contains("max"));
    let times: Vec<_> = times.filter_map(|s| Some((s, s.ratio_to_baseline?))).collect();
    if !times.is_empty() {
        logs = times.iter().map(|(_, ratio)| libm::log(ratio.max(f64::MIN_POSITIVE))).collect();
        better = times.iter().filter_map(|(s, ratio)| faster(document, s, *ratio)).collect();
    }
    let gain = libm::exp(logs.iter().sum::<f64>() / logs.len().max(1) as f64);
    if gain >= 1.0 || better.is_empty() {
        return None;
    }
    better.truncate(MOST_SHOWN);
    let mut shown = better.join(", ");
    for text in missed {
        shown += &format!("; {text}");
    }
    let costs = costs(document, cell, policy);
    let excess = costs.iter().filter(|c| c.excessive).map(|c| c.text.clone()).collect();
    Some(Candidate { policy, gain, shown, excess, price: price(&costs) })
}

/// Whether it is what the driver of a living guest has measured.
fn is_inside(series: &LatencySeries) -> bool {
    let probe = series.key.probe.rsplit_once('.').map(|(_, probe)| probe);
    series.key.backend == vm::BACKEND && probe == Some(LatencyRecord::URGENT)
}

/// A time that a command has printed, in words, if it is clearly less than under the baseline.
fn faster(document: &Document, series: &ScalarSeries, ratio: f64) -> Option<String> {
    let is_base = |s: &&ScalarSeries| {
        let (base, own) = (&s.key, &series.key);
        let same = base.probe == own.probe && base.metric == own.metric;
        same && base.policy == document.baseline
            && base.is_in(&(own.backend.clone(), own.params.clone()))
    };
    let (before, after) = (document.scalars().find(is_base)?.value?, series.value?);
    let show = |value| human::with_unit(value, &series.key.unit);
    let words = || {
        let (before, after) = (show(before), show(after));
        format!("{} {before} -> {after} ({})", series.key.probe, human::ratio(ratio))
    };
    clearly_below(series.ratio_ci95).then(words)
}

/// A cost to the host.
#[derive(Clone, Debug)]
struct Cost {
    text: String,
    /// How bad: the ratio, turned so that more is worse.
    weight: f64,
    beyond_noise: bool,
    excessive: bool,
}

/// What the host pays. Of each probe the mean, and the p99 where that is beyond its limit.
fn costs(document: &Document, cell: &Cell, policy: &str) -> Vec<Cost> {
    let mut costs = Vec::new();
    let find = |policy: &str, name: &str| {
        document
            .latencies()
            .find(|s| s.key.is_in(cell) && s.key.policy == policy && s.key.is_named(name))
    };
    let hosts = document
        .latencies()
        .filter(|s| s.key.is_in(cell) && s.key.policy == policy && !s.is_of_a_guest());
    for series in hosts {
        let probe = series.key.name();
        let Some(base) = find(&document.baseline, &probe) else { continue };
        let ratios = series.ratio_to_baseline.unwrap_or_default();
        let intervals = series.ratio_ci95.unwrap_or_default();
        let mut one = |name, ratio: Option<f64>, interval: Option<Interval>, from, to, limit| {
            let (Some(ratio), Some(from), Some(to)) = (ratio, from, to) else { return };
            let beyond_noise = clearly_above(interval);
            let excessive = beyond_noise && ratio > limit;
            if name == "mean" || excessive {
                let (from, to) = (human::time(from), human::time(to));
                let text = format!("{probe} {name} {from} -> {to} ({})", human::ratio(ratio));
                costs.push(Cost { text, weight: ratio, beyond_noise, excessive });
            }
        };
        let (from, to) = (base.mean, series.mean);
        one("mean", ratios.mean, intervals.mean, from, to, LIMITS.probe_mean);
        one("p99", ratios.p99, intervals.p99, base.p99, series.p99, LIMITS.probe_p99);
    }
    // By the baseline's: a probe that is not there has no sample either.
    for base in document
        .latencies()
        .filter(|s| s.key.is_in(cell) && s.key.policy == document.baseline && !s.is_of_a_guest())
    {
        let name = base.key.name();
        let series = find(policy, &name);
        let more = series.map_or(1.0, LatencySeries::missed_share) - base.missed_share();
        if more > LIMITS.missed {
            let text = series
                .map_or_else(|| format!("{name} has no samples"), |series| misses(series, base));
            // A share has no ratio where there was none: worse than any that has one.
            let weight = f64::INFINITY;
            costs.push(Cost { text, weight, beyond_noise: true, excessive: true });
        }
    }
    let loads = loads(document, cell, policy);
    for (series, base) in loads {
        let hosts = series.key.probe.starts_with("host.");
        let (Some(ratio), Some(from), Some(to)) =
            (series.ratio_to_baseline, base.value, series.value)
        else {
            continue;
        };
        let beyond_noise = clearly_below(series.ratio_ci95);
        let (from, to) = (human::with_unit(from, "cpu"), human::with_unit(to, "cpu"));
        let text = format!("{} {from} -> {to} ({})", series.key.probe, human::ratio(ratio));
        let excessive = hosts && beyond_noise && ratio < LIMITS.load;
        costs.push(Cost { text, weight: 1.0 / ratio.max(1e-9), beyond_noise, excessive });
    }
    costs
}

/// Loads of host and guests that count: throughput under the policy and under the baseline. Probes
/// are no load.
pub fn loads<'d>(
    document: &'d Document,
    cell: &(String, Params),
    policy: &str,
) -> Vec<(&'d ScalarSeries, &'d ScalarSeries)> {
    let throughput = |policy: &str| {
        let policy = policy.to_owned();
        document.scalars().filter(move |s| {
            s.key.is_in(cell) && s.key.policy == policy && s.key.metric == "throughput"
        })
    };
    let is_probe = |name: &str| {
        document.latencies().any(|s| {
            // `host.probe/0` is a copy of `host.probe`.
            s.key.probe.split('/').next() == Some(name)
        })
    };
    throughput(policy)
        .filter(|s| !is_probe(&s.key.probe))
        .filter_map(|s| {
            let base = throughput(&document.baseline).find(|b| b.key.probe == s.key.probe)?;
            (base.value? >= LEAST_LOAD).then_some((s, base))
        })
        .collect()
}

/// The costs in words: those beyond noise, or that there is none and the largest of the rest.
fn price(costs: &[Cost]) -> String {
    let mut sorted: Vec<&Cost> = costs.iter().collect();
    sorted.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let real: Vec<&str> = sorted
        .iter()
        .filter(|c| c.beyond_noise && c.weight > 1.0)
        .map(|c| c.text.as_str())
        .collect();
    if !real.is_empty() {
        return format!("It costs: {}", real.join(", "));
    }
    match sorted.first() {
        None => {
            "What it costs the host was not measured: the scenario has no host probe".to_owned()
        }
        Some(most) => format!("It costs nothing beyond noise; most: {}", most.text),
    }
}

/// A verdict as the line a report ends with; `backend`: whether there are several to tell apart.
pub fn line(verdict: &Verdict, backend: bool) -> String {
    let cell = params::words(&verdict.params);
    let place = match (backend, cell.is_empty()) {
        (false, true) => String::new(),
        (false, false) => format!(" ({cell})"),
        (true, true) => format!(" ({})", verdict.backend),
        (true, false) => format!(" ({}, {cell})", verdict.backend),
    };
    format!("Best here{place}: {}.", verdict.text)
}
