//! The verdict of a comparison: reads the effects of each policy from the result, and applies the rule
//! ([`crate::judge`]).
//!
//! If a command has measured times in the guest (`vcoop compare --exec`), these count instead of the waits of its
//! vCPUs, because they are what the user asks about. The longest of them (`max`) does not: it is a single sample.
//! Without such a command, the measurement of urgent tasks by the guest's driver (`VM.urgent`) counts instead of the
//! waits, if there is one. Loads below 1 % of a CPU do not count. The best policy is named with its cost, and so are
//! the others that improve the guest more.

use vcoop_model::recording::LatencyRecord;

use crate::format;
use crate::judge::{Change, Effect, Judgement, LEAST_REPEATS, SeriesOwner};
use crate::params;
use crate::result::{
    Document, EXEC, Key, LatencySeries, Params, ScalarSeries, Statistic, VM, Verdict,
};

/// The backend that needs the host for itself.
const LAB: &str = "kvm";

/// CPUs used by others from which a live result is not due to the policies alone.
const BUSY: f64 = 0.1;

/// CPUs that a load must use under the baseline to count.
pub const LEAST_LOAD: f64 = 0.01;

/// Times printed by a command, for all policies: less is better.
pub fn exec_times<'d>(
    document: &'d Document,
    cell: &Cell,
) -> impl Iterator<Item = &'d ScalarSeries> {
    let is_time = |unit: &str| ["ns", "us", "ms", "s"].contains(&unit);
    document
        .scalars()
        .filter(move |s| s.key.is_in(cell) && s.key.probe.starts_with(EXEC) && is_time(&s.key.unit))
}

/// A backend and a cell of the matrix, as in [`Document::cells`].
pub type Cell = (String, Params);

/// The verdicts of a document, one for each of its cells. A backend with several cells has one over all of them, before
/// the others.
pub fn verdicts(document: &Document) -> Vec<Verdict> {
    if document.is_observation() {
        return Vec::new();
    }
    let mut all = Vec::new();
    let cells = document.cells();
    for backend in &document.backends {
        let own: Vec<Cell> = cells.iter().filter(|(name, _)| name == backend).cloned().collect();
        let each = own.iter().map(|cell| verdict(document, std::slice::from_ref(cell)));
        let each: Vec<Verdict> = each.collect();
        if own.len() > 1 && document.policies.len() > 1 {
            let mut over = verdict(document, &own);
            let (n, none) = (own.len(), each.iter().filter(|v| v.best.is_none()).count());
            // With few repeats only all cells together have a verdict.
            if let Some(best) = &over.best
                && none < n
            {
                let same = each.iter().filter(|v| v.best.as_ref() == Some(best)).count();
                over.text += &match none {
                    0 => format!(". It is best in {same} of {n} cells"),
                    _ => format!(". It is best in {same} of {n} cells; in {none} no policy is"),
                };
            }
            all.push(Verdict { cells: n, ..over });
        }
        all.extend(each);
    }
    let busy = document.others_cpu.filter(|cpus| *cpus >= BUSY);
    for verdict in all.iter_mut().filter(|verdict| verdict.backend == LAB) {
        if let Some(cpus) = busy {
            let cpus = format::digits(cpus);
            verdict.text += &format!(
                ". Others used {cpus} CPUs of this host meanwhile: measure again where nobody does \
                 before you rely on it"
            );
        }
    }
    all
}

/// The verdict over cells of one backend.
fn verdict(document: &Document, cells: &[Cell]) -> Verdict {
    let base = document.baseline.as_str();
    let others: Vec<&str> =
        document.policies.iter().map(String::as_str).filter(|p| *p != base).collect();
    let within = |s: &&LatencySeries| cells.iter().any(|cell| s.key.is_in(cell));
    let least = document.latencies().filter(within).map(|s| s.key.repeats).min().unwrap_or(0);
    let repeats = least as usize * cells.len();
    let guests = document.latencies().filter(within).filter(|s| s.is_of_a_guest());
    let done = |best: Option<&str>, text: String| {
        let (backend, params) = cells.first().cloned().unwrap_or_default();
        let params = if cells.len() == 1 { params } else { Params::new() };
        Verdict { backend, params, cells: 0, best: best.map(str::to_owned), text }
    };
    if others.is_empty() {
        return done(None, format!("only {base} was run: there is nothing to compare"));
    }
    if guests.count() == 0 {
        return done(None, "no guest latency was measured: there is nothing to compare".to_owned());
    }
    if repeats < LEAST_REPEATS as usize {
        let planned = document.repeats as usize * cells.len();
        let of_vm = cells.iter().any(|(backend, _)| backend == VM);
        let (turn, option) = if of_vm { ("round", "--rounds") } else { ("repeat", "--repeats") };
        let text = if document.interrupted && planned >= LEAST_REPEATS as usize {
            format!(
                "no verdict: a verdict takes {LEAST_REPEATS} {turn}s, and the run ended after {repeats} \
                 of {planned}"
            )
        } else {
            let repeats = format::count(repeats as u64, turn);
            format!(
                "no verdict from {repeats}: a verdict takes {LEAST_REPEATS} ({option}), 10 are better"
            )
        };
        return done(None, text);
    }
    let judged = others.iter().map(|policy| {
        let each: Vec<_> = cells.iter().map(|cell| effects(document, cell, policy)).collect();
        (*policy, Judgement::new(&Effect::together(&each), base, &document.limits))
    });
    let judged: Vec<(&str, Judgement)> = judged.collect();
    let mut found: Vec<(&str, f64, &Judgement)> = judged
        .iter()
        .filter(|(_, judgement)| judgement.improves)
        .filter_map(|(policy, judgement)| Some((*policy, judgement.gain?, judgement)))
        .collect();
    found.sort_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
    let best = found.iter().find(|(.., judgement)| judgement.too_much().is_empty());
    match (best, found.first()) {
        (None, None) => {
            let worse = judged.iter().filter(|(_, judgement)| !judgement.worse.is_empty());
            let worse = worse.map(|(policy, judgement)| {
                format!("{policy} makes it worse: {}", judgement.worse.join(", "))
            });
            let worse: Vec<String> = worse.collect();
            let text = match worse.is_empty() {
                true => format!("no policy differs from {base} beyond noise"),
                false => format!("no policy helps the guest beyond noise; {}", worse.join("; ")),
            };
            done(None, text)
        }
        (None, Some((first, _, judgement))) => {
            let excess = judgement.too_much().join(", ");
            let (shown, limits) = (&judgement.shown, document.limits.words());
            let price = format!("none within the limits: {first} brings {shown}, but {excess}");
            done(None, format!("{price}. {}", limits.trim_end_matches('.')))
        }
        (Some((best, least, judgement)), _) => {
            let mut text = format!("{best}: {}. {}", judgement.shown, judgement.price());
            let dearer = found.iter().take_while(|(policy, ..)| policy != best).next();
            if let Some((other, gain, judgement)) = dearer {
                let (gain, excess) = (format::ratio(gain / least), judgement.too_much().join(", "));
                text += &format!(
                    ". Under {other} the guest waits {gain} as long as under {best}, but {excess}"
                );
            }
            done(Some(best), text)
        }
    }
}

/// The rule's result for a policy in a cell.
pub fn judgement(document: &Document, cell: &Cell, policy: &str) -> Judgement {
    Judgement::new(&effects(document, cell, policy), &document.baseline, &document.limits)
}

/// A policy's effect on each series of a cell.
fn effects(document: &Document, cell: &Cell, policy: &str) -> Vec<Effect> {
    let of = |policy: &str| {
        let policy = policy.to_owned();
        document.latencies().filter(move |s| s.key.is_in(cell) && s.key.policy == policy)
    };
    let mut effects = Vec::new();
    let times = exec_times(document, cell);
    let times = times.filter(|s| s.key.policy == policy && !s.key.probe.contains("max"));
    effects.extend(times.filter_map(|s| time(document, s)));
    let timed = !effects.is_empty();
    let inside = of(policy).any(is_inside);
    // By the baseline's: a probe that is not there has no sample either.
    for base in of(&document.baseline) {
        let guest = base.is_of_a_guest();
        if guest && (timed || (inside && !is_inside(base))) {
            continue;
        }
        let name = base.key.name();
        let whose = if guest { SeriesOwner::Guest } else { SeriesOwner::Others };
        let series = document.latency(cell, &name, policy);
        // A vCPU that never waited has no series of waits, and no ratio of them.
        if series.is_none() && base.key.metric != "latency" {
            continue;
        }
        effects.push(latency(document, cell, whose, base, series));
    }
    let loads = loads(document, cell, policy).into_iter();
    effects.extend(loads.filter_map(|(series, base)| {
        let (from, to) = (base.value?, series.value?);
        let show = |value| format::with_unit(value, "cpu");
        let (name, ratio) = (&series.key.probe, series.ratio_to_baseline?);
        let (interval, values) = (series.ratio_ci95, Some([show(from), show(to)]));
        let work = Change { ratio, interval, name: name.clone(), values };
        let whose =
            if is_of_others(document, cell, name) { SeriesOwner::Others } else { SeriesOwner::Own };
        Some(Effect { work: Some(work), ..Effect::new(name.clone(), whose, series.key.repeats) })
    }));
    effects
}

/// A policy's effect on a latency; without a series all periods count as missed.
fn latency(
    document: &Document,
    cell: &Cell,
    whose: SeriesOwner,
    base: &LatencySeries,
    series: Option<&LatencySeries>,
) -> Effect {
    let name = base.key.name().into_owned();
    let repeats = series.map_or(0, |s| s.key.repeats);
    let mut effect = Effect::new(name.clone(), whose, repeats);
    effect.missed = [base.missed_share(), series.map_or(1.0, LatencySeries::missed_share)];
    let Some(series) = series else { return effect };
    let change = |of: Statistic| {
        let (ratio, interval) = series.ratio(of);
        let (from, to) = (base.statistic(of).0?, series.statistic(of).0?);
        let values = Some([format::time(from), format::time(to)]);
        Some(Change { ratio: ratio?, interval, name: format!("{name} {}", of.name()), values })
    };
    effect.mean = change(Statistic::Mean);
    effect.p99 = change(Statistic::P99);
    let probe = &series.key.probe;
    // Glitches a minute of an audio probe; none of any other.
    effect.glitches = [&document.baseline, &series.key.policy]
        .map(|policy| document.scalar(cell, probe, "glitches", policy)?.value)
        .map(Option::unwrap_or_default);
    effect
}

/// Whether a load belongs to the host, or to a VM without measured latency.
fn is_of_others(document: &Document, cell: &Cell, load: &str) -> bool {
    let vm = |name: &str| name.split_once('.').map(|(vm, _)| vm.to_owned());
    let own = |s: &LatencySeries| s.is_of_a_guest() && vm(&s.key.probe) == vm(load);
    load.starts_with("host.") || !document.latencies().any(|s| s.key.is_in(cell) && own(s))
}

/// Whether it was measured by the driver of a running guest.
fn is_inside(series: &LatencySeries) -> bool {
    let probe = series.key.probe.rsplit_once('.').map(|(_, probe)| probe);
    series.key.backend == VM && probe == Some(LatencyRecord::URGENT)
}

/// A time printed by a command.
fn time(document: &Document, series: &ScalarSeries) -> Option<Effect> {
    let Key { backend, params, probe, metric, .. } = &series.key;
    let cell = (backend.clone(), params.clone());
    let base = document.scalar(&cell, probe, metric, &document.baseline);
    let ratio = series.ratio_to_baseline?;
    let (before, after) = (base?.value?, series.value?);
    let values = [before, after].map(|value| format::with_unit(value, &series.key.unit));
    let name = series.key.probe.clone();
    let (interval, values) = (series.ratio_ci95, Some(values));
    let mean = Some(Change { ratio, interval, name: name.clone(), values });
    Some(Effect { mean, ..Effect::new(name, SeriesOwner::Guest, series.key.repeats) })
}

/// Whether a thread or task has latencies. It is no load then.
pub(crate) fn is_probe(document: &Document, name: &str) -> bool {
    // `host.probe/0` is a copy of `host.probe`.
    document.latencies().any(|s| s.key.probe.split('/').next() == Some(name))
}

/// Loads of host and guests that count: throughput under the policy and under the baseline. Probes are not loads.
pub fn loads<'d>(
    document: &'d Document,
    cell: &Cell,
    policy: &str,
) -> Vec<(&'d ScalarSeries, &'d ScalarSeries)> {
    let throughput = |policy: &str| {
        let policy = policy.to_owned();
        document.scalars().filter(move |s| {
            s.key.is_in(cell) && s.key.policy == policy && s.key.metric == "throughput"
        })
    };
    throughput(policy)
        .filter(|s| !is_probe(document, &s.key.probe))
        .filter_map(|s| {
            let base = throughput(&document.baseline).find(|b| b.key.probe == s.key.probe)?;
            (base.value? >= LEAST_LOAD).then_some((s, base))
        })
        .collect()
}

/// A verdict as the last line of a report. `backend`: name the backend, because there are several.
pub fn line(verdict: &Verdict, backend: bool) -> String {
    let cell = match verdict.cells {
        0 => params::words(&verdict.params),
        n => format!("over all {n} cells"),
    };
    let place = match (backend, cell.is_empty()) {
        (false, true) => String::new(),
        (false, false) => format!(" ({cell})"),
        (true, true) => format!(" ({})", verdict.backend),
        (true, false) => format!(" ({}, {cell})", verdict.backend),
    };
    format!("Best here{place}: {}.", verdict.text)
}
