//! Makes the result document from measurements.

mod detail;
mod views;

use std::collections::BTreeMap;

use vcoop_model::distinct;
use vcoop_model::plan::Plan;
use vcoop_model::recording::{EngineStats, Part};
use vcoop_statistics::{self as stats, Block, MAX_BLOCKS, Pool, carries, quotient, weighted_mean};

use crate::deploy::deploy;
use crate::params;
use crate::repeat_summary::{Latency, RepeatSummary};
use crate::result::{
    Document, EXEC_METRIC, Engine, Interval, Key, LatencySeries, Limits, Missing, Note,
    PerStatistic, RatioIntervals, Ratios, SCHEMA, ScalarSeries, Series, VM, Worst,
};
use crate::rounding::{mean_us, ratio, scalar, us, us_f};
use crate::runner::{Measurements, PlanRuns};
use crate::verdict;
use views::Views;

/// The quantiles of a series, in millionths: p50, p90, p99, p999, p9999.
const QUANTILES: [u64; 5] = [500_000, 900_000, 990_000, 999_000, 999_900];

/// Prefix of metrics that are time in exits. Most of it can be in exits of only a few repeats, if a vCPU loses its CPU
/// in one: repeats without such exits are alike, and an interval from them would be wrong.
const EXIT_TIME: &str = "exit_time.";

/// Parts of a vCPU's time that an observation leaves out if they are zero.
const TIMES: [&str; 4] = ["blocked", "guest", "polling", "unknown"];

/// How many of the worst samples a series shows.
const WORST: usize = 5;

/// Content of the document besides measurements.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// One line about the scenario.
    pub title: String,
    /// The command that reproduces the result.
    pub command: String,
    /// Policy that ratios are taken to; if it is not among the plans, the first one.
    pub baseline: String,
    /// [`Backend::environment`](crate::backend::Backend::environment) of the backends.
    pub environment: BTreeMap<String, String>,
    /// What a backend could not run on this host.
    pub missing: Vec<Missing>,
    /// Notes beside the results.
    pub notes: Vec<Note>,
    /// What policies may cost others.
    pub limits: Limits,
    /// Length of turns on a running VM, if it differs from the plan: see [`Document::measured_s`].
    pub measured_s: Option<[f64; 2]>,
}

/// Makes the document of an experiment.
pub fn document(plans: &[Plan], measured: &Measurements, about: Metadata) -> Document {
    let policies = distinct(plans.iter().map(|plan| plan.policy_name.clone()));
    let mut backends: Vec<String> = Vec::new();
    for run in &measured.runs {
        if backends.last().is_none_or(|last| last != run.backend) {
            backends.push(run.backend.to_owned());
        }
    }
    let hosts = distinct(measured.runs.iter().filter_map(|run| run.host.clone()));
    let known = policies.contains(&about.baseline);
    let baseline =
        if known { about.baseline } else { policies.first().cloned().unwrap_or_default() };
    let mut series = Vec::new();
    let mut views = Views::default();
    for run in &measured.runs {
        let plan = &plans[run.plan];
        let base = measured.runs.iter().find(|other| {
            let p = &plans[other.plan];
            other.backend == run.backend && p.policy_name == baseline && p.params == plan.params
        });
        let base = base.filter(|base| base.plan != run.plan);
        one_plan(plan, run, base, &mut series);
        views.add(plan, run);
    }
    let of = |policy: &str| plans.iter().find(|plan| plan.policy_name == policy);
    // A living VM has a name.
    let living = backends.iter().any(|backend| backend == VM);
    let vm = plans.first().and_then(|plan| plan.vms.first()).map(|vm| vm.label.as_str());
    let vm = vm.filter(|_| living);
    let others = policies.iter().filter(|policy| **policy != baseline);
    let deployments =
        others.filter_map(|name| Some(deploy(of(name)?, of(&baseline), vm))).collect();
    let first = plans.first();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut document = Document {
        schema: SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        scenario: first.map_or_else(String::new, |p| p.scenario.clone()),
        title: about.title,
        seed: first.map_or(0, |p| p.seed),
        backends,
        command: about.command,
        baseline,
        policies,
        repeats: first.map_or(0, |p| p.repeats),
        duration_s: first.map_or(0.0, |p| seconds(p.duration_ns)),
        measured_s: about.measured_s,
        warmup_s: first.map_or(0.0, |p| seconds(p.warmup_ns)),
        interrupted: measured.interrupted,
        hosts,
        others_cpu: measured.others.map(scalar),
        series,
        curves: views.curves,
        scatters: views.scatters,
        intervals: views.intervals,
        policy_events: views.policy_events,
        in_use: views.in_use,
        switches: first.map(detail::switches).unwrap_or_default(),
        limits: about.limits,
        verdicts: Vec::new(),
        deployments,
        missing: about.missing,
        notes: about.notes,
        environment: about.environment,
        engine: engine(measured),
    };
    document.verdicts = verdict::verdicts(&document);
    document
}

fn engine(measured: &Measurements) -> Option<Engine> {
    let summaries = measured.runs.iter().flat_map(|run| run.repeats.iter().flatten());
    let stats: Vec<_> = summaries.filter_map(|summary| summary.recording.engine).collect();
    if stats.is_empty() {
        return None;
    }
    let sum = |f: fn(&EngineStats) -> u64| stats.iter().map(f).sum::<u64>();
    // CPU time to the microsecond: the clock is no finer.
    let cpu_s = (sum(|s| s.cpu_ns) / 1000) as f64 / 1e6;
    Some(Engine { events: sum(|s| s.events), cpu_s, sim_s: sum(|s| s.sim_ns) as f64 / 1e9 })
}

/// The repeats that count: the complete ones, or, if there is none, those that were interrupted after their warm-up.
fn usable<'r>(plan: &Plan, run: &'r PlanRuns) -> Vec<(u32, &'r RepeatSummary)> {
    let numbered = (0..).zip(&run.repeats).filter_map(|(r, d)| Some((r, d.as_ref()?)));
    let begun = |engine: EngineStats| engine.sim_ns > plan.warmup_ns;
    let measured = |d: &RepeatSummary| d.recording.engine.is_none_or(begun);
    let all: Vec<(u32, &RepeatSummary)> = numbered.filter(|(_, d)| measured(d)).collect();
    let complete: Vec<_> = all.iter().copied().filter(|(_, d)| d.complete).collect();
    if complete.is_empty() { all } else { complete }
}

fn one_plan(plan: &Plan, run: &PlanRuns, base: Option<&PlanRuns>, series: &mut Vec<Series>) {
    let own = usable(plan, run);
    let base = base.map(|base| usable(plan, base)).unwrap_or_default();
    let mut paired = (Vec::new(), Vec::new());
    for (repeat, summary) in &own {
        if let Some((_, other)) = base.iter().find(|(r, _)| r == repeat) {
            paired.0.push(*summary);
            paired.1.push(*other);
        }
    }
    let key = |probe: &str, metric: &str, unit: &str| Key {
        backend: run.backend.to_owned(),
        policy: plan.policy_name.clone(),
        params: params::short(&plan.params),
        cell: plan.params.clone(),
        probe: probe.to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        repeats: own.len() as u32,
    };
    // An interrupted warm-up measured nothing, but says what would have been measured.
    let begun = run.repeats.iter().flatten().next();
    let Some(any) = own.first().map(|(_, summary)| *summary).or(begun) else { return };
    let all: Vec<&RepeatSummary> = own.iter().map(|(_, summary)| *summary).collect();
    for (index, first) in any.latencies.iter().enumerate() {
        let own: Vec<(u32, &Latency)> =
            own.iter().filter_map(|(r, d)| Some((*r, d.latencies.get(index)?))).collect();
        let side = |summaries: &[&'_ RepeatSummary]| -> Vec<Block> {
            let records: Vec<&Latency> =
                summaries.iter().filter_map(|d| d.latencies.get(index)).collect();
            blocks(&records)
        };
        let pool = Pool::new(&side(&all));
        // Mostly every repeat has one of the baseline.
        let mine = (1..all.len()).contains(&paired.0.len()).then(|| Pool::new(&side(&paired.0)));
        let base = (!paired.1.is_empty()).then(|| Pool::new(&side(&paired.1)));
        let pair = base.as_ref().map(|base| (mine.as_ref().unwrap_or(&pool), base));
        let key = key(&first.probe, first.metric, "us");
        if let Some(mut one) = latency(key, &own, &pool, pair) {
            let records: Vec<&Latency> = own.iter().map(|(_, latency)| *latency).collect();
            one.detail = (plan.slices > 0).then(|| Box::new(detail::of(&records)));
            series.push(Series::Latency(Box::new(one)));
        }
    }
    let mut units: BTreeMap<&(String, String), &'static str> =
        any.recording.scalars.iter().map(|(id, scalar)| (id, scalar.unit)).collect();
    let others = own.iter().map(|(_, summary)| *summary).chain(paired.1.iter().copied());
    // Mostly all repeats have the same.
    for summary in others.filter(|other| !have_the_same(other, any)) {
        for (id, scalar) in &summary.recording.scalars {
            units.entry(id).or_insert(scalar.unit);
        }
    }
    for (id @ (probe, metric), unit) in units {
        let value = |summary: &RepeatSummary| {
            summary.recording.scalars.get(id).map(|s| s.value).or_else(|| if_absent(metric, unit))
        };
        let mine: Vec<f64> = own.iter().filter_map(|(_, summary)| value(summary)).collect();
        // Another policy's number.
        if mine.is_empty() && !any.recording.scalars.contains_key(id) {
            continue;
        }
        let pairs = paired.0.iter().zip(&paired.1);
        let pair = pairs.filter_map(|(mine, base)| Some((value(mine)?, value(base)?))).unzip();
        let per = events_per(metric, unit, plan.duration_ns);
        let mut one = number(key(probe, metric, unit), &mine, &pair, per);
        if metric.starts_with(EXIT_TIME) {
            (one.value_ci95, one.ratio_ci95) = (None, None);
        }
        series.push(Series::Scalar(Box::new(one)));
    }
}

/// Blocks to resample: one repeat each, or several if there are very many.
fn blocks(records: &[&Latency]) -> Vec<Block> {
    let mut blocks = vec![Block::default(); records.len().min(MAX_BLOCKS)];
    for (i, record) in records.iter().enumerate() {
        let block = &mut blocks[i % MAX_BLOCKS];
        block.count += record.count;
        block.sum_ns += record.sum_ns;
        block.bins.merge(&record.bins);
    }
    blocks
}

/// A statistic of a pool with weights: the mean, or a quantile.
fn statistic(pool: &Pool, weights: &[u16], ppm: Option<u64>) -> f64 {
    ppm.map_or_else(|| pool.mean(weights), |ppm| pool.quantile(weights, ppm))
}

/// A latency series of these repeats, which `pool` has; `pair`: those that the baseline has as well, and the baseline's.
fn latency(
    key: Key,
    own: &[(u32, &Latency)],
    pool: &Pool,
    pair: Option<(&Pool, &Pool)>,
) -> Option<LatencySeries> {
    let records: Vec<&Latency> = own.iter().map(|(_, l)| *l).collect();
    let count = pool.count();
    // A vCPU that never waited has no waits. A probe that a scenario declares stays: without samples it
    // is starved.
    if own.is_empty() || (count == 0 && key.metric != "latency") {
        return None;
    }
    let rounded = |ends: [f64; 2]| ends.map(us_f);
    let of_mean = stats::interval(pool.blocks(), &|w| pool.mean(w)).map(rounded);
    let ones = pool.ones();
    let shown = QUANTILES.map(|ppm| carries(count, ppm));
    let points: [Option<f64>; 5] =
        std::array::from_fn(|i| shown[i].then(|| us_f(pool.quantile(&ones, QUANTILES[i]))));
    let bounds: [Option<Interval>; 5] =
        std::array::from_fn(|i| pool.interval(QUANTILES[i]).filter(|_| shown[i]).map(rounded));
    let (ratios, ratio_intervals) = pair.map(|(mine, base)| compare(mine, base)).unzip();
    let mut maxima: Vec<u64> = records.iter().filter(|r| r.count > 0).map(|r| r.max_ns).collect();
    maxima.sort_unstable();
    Some(LatencySeries {
        key,
        count,
        missed: records.iter().map(|r| r.missed).sum(),
        min: records.iter().filter(|r| r.count > 0).map(|r| us(r.min_ns)).min_by(f64::total_cmp),
        mean: (count > 0).then(|| mean_us(pool.sum_ns(), count)),
        mean_ci95: of_mean,
        p50: points[0],
        p90: points[1],
        p99: points[2],
        p999: points[3],
        p9999: points[4],
        max: maxima.last().copied().map(us),
        max_per_repeat: (count > 0).then(|| us(median(&maxima))),
        p50_ci95: bounds[0],
        p90_ci95: bounds[1],
        p99_ci95: bounds[2],
        p999_ci95: bounds[3],
        p9999_ci95: bounds[4],
        ratio_to_baseline: ratios,
        ratio_ci95: ratio_intervals,
        parts_mean: parts(&records, count),
        ran_instead_mean: ran_instead(&records, count),
        worst: worst(own, WORST),
        detail: None,
    })
}

/// Ratios of paired pools, and their intervals.
fn compare(mine: &Pool, base: &Pool) -> (Ratios, RatioIntervals) {
    let enough = |ppm: Option<u64>| {
        let both = mine.count().min(base.count());
        ppm.map_or(both > 0, |ppm| carries(both, ppm))
    };
    let at = |weights: &[u16], ppm: Option<u64>| {
        quotient(statistic(mine, weights, ppm), statistic(base, weights, ppm))
    };
    let ones = mine.ones();
    let point = |ppm| {
        let value = if enough(ppm) { at(&ones, ppm) } else { f64::NAN };
        value.is_finite().then(|| ratio(value))
    };
    let bounds = |ppm| -> Option<Interval> {
        if !enough(ppm) {
            return None;
        }
        // The ratio is 0, which has no logarithm.
        if mine.blocks() > 1 && at(&ones, ppm) == 0.0 {
            return Some([0.0; 2]);
        }
        let ends = match ppm {
            Some(ppm) => stats::interval_of_quantiles(mine, base, ppm),
            None => stats::interval(mine.blocks(), &|w| quotient(mine.mean(w), base.mean(w))),
        };
        ends.map(|ends| ends.map(ratio))
    };
    (each(point), each(bounds))
}

/// A value for the mean and each quantile.
fn each<T>(of: impl Fn(Option<u64>) -> Option<T>) -> PerStatistic<T> {
    let [p50, p90, p99, p999, p9999] = QUANTILES.map(|ppm| of(Some(ppm)));
    PerStatistic { mean: of(None), p50, p90, p99, p999, p9999 }
}

/// Median of sorted values; the mean of the middle two. Zero without values.
fn median(sorted: &[u64]) -> u64 {
    match (sorted.get(sorted.len().wrapping_sub(1) / 2), sorted.get(sorted.len() / 2)) {
        (Some(a), Some(b)) => a.midpoint(*b),
        _ => 0,
    }
}

fn parts(records: &[&Latency], count: u64) -> BTreeMap<String, f64> {
    let sum = |part: Part| records.iter().map(|r| r.parts_sum[part as usize]).sum::<u128>();
    let mut parts: BTreeMap<String, f64> =
        Part::ALL.iter().map(|p| (p.name().to_owned(), mean_us(sum(*p), count))).collect();
    let steal = sum(Part::WakeToRun) + sum(Part::PreemptedToRun);
    parts.insert("host_wait".to_owned(), mean_us(steal, count));
    parts
}

fn ran_instead(records: &[&Latency], count: u64) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, u128> = BTreeMap::new();
    for (label, ns) in records.iter().flat_map(|r| &r.ran_instead) {
        *sums.entry(label).or_default() += ns;
    }
    sums.into_iter().map(|(label, ns)| (label.to_owned(), mean_us(ns, count))).collect()
}

/// The worst samples of a probe over all repeats of a plan, largest first: `most`, of at most
/// [`LatencyRecord::WORST`](vcoop_model::recording::LatencyRecord::WORST) that are recorded.
pub fn worst_of(runs: &PlanRuns, probe: &str, most: usize) -> Vec<Worst> {
    let of = |summary: &'_ RepeatSummary| summary.latencies.iter().position(|l| l.probe == probe);
    let own: Vec<(u32, &Latency)> = (0..)
        .zip(&runs.repeats)
        .filter_map(|(repeat, summary)| {
            let summary = summary.as_ref()?;
            Some((repeat, &summary.latencies[of(summary)?]))
        })
        .collect();
    worst(&own, most)
}

fn worst(own: &[(u32, &Latency)], most: usize) -> Vec<Worst> {
    let mut all: Vec<_> =
        own.iter().flat_map(|(repeat, l)| l.worst.iter().map(move |w| (*repeat, w))).collect();
    all.sort_by_key(|(repeat, w)| (std::cmp::Reverse(w.latency_ns), *repeat, w.due_ns));
    let shown = all.into_iter().take(most);
    let parts = |w: &vcoop_model::recording::WorstSample| {
        let pairs = Part::ALL.iter().zip(w.parts).filter(|(_, ns)| *ns > 0);
        pairs.map(|(part, ns)| (part.name().to_owned(), us(ns))).collect()
    };
    shown
        .map(|(repeat, w)| Worst {
            repeat,
            due_us: us(w.due_ns),
            latency_us: us(w.latency_ns),
            parts: parts(w),
            ran_instead: w.ran_instead.iter().map(|(l, ns)| (l.clone(), us(*ns))).collect(),
        })
        .collect()
}

/// Whether two repeats have the same scalars.
fn have_the_same(one: &RepeatSummary, other: &RepeatSummary) -> bool {
    one.recording.scalars.keys().eq(other.recording.scalars.keys())
}

/// The value of a scalar in a repeat that does not have it: a repeat leaves out events that did not happen, and time
/// that was not spent. `None`: the value is unknown, like a quantile of few values.
fn if_absent(metric: &str, unit: &str) -> Option<f64> {
    let event = matches!(unit, "1/s" | "1/min");
    let time = metric.starts_with(EXIT_TIME) || unit == "%" && TIMES.contains(&metric);
    (event || time).then_some(0.0)
}

/// Events for which a number of this unit stands, in a repeat of this length; `None` if it counts no events, as far as
/// is known: what a command prints without a unit may be a score.
fn events_per(metric: &str, unit: &str, duration_ns: u64) -> Option<f64> {
    let seconds = duration_ns as f64 / 1e9;
    match unit {
        _ if metric == EXEC_METRIC => None,
        "1/s" => Some(seconds),
        "1/min" => Some(seconds / 60.0),
        "count" => Some(1.0),
        _ => None,
    }
}

/// Whether a number is a share of something: not an error in percent, and not what one clock shows of another's time.
fn is_share(key: &Key) -> bool {
    key.unit == "%" && key.probe != "lab" && key.metric != "fairness_error"
}

/// `per`: [`events_per`].
fn number(key: Key, own: &[f64], pair: &(Vec<f64>, Vec<f64>), per: Option<f64>) -> ScalarSeries {
    let mean = |values: &[f64]| weighted_mean(&vec![1; values.len()], values);
    // Scalars are few bytes, but the weights are those of the blocks: fold alike.
    let (mine, base) = (fold(&pair.0), fold(&pair.1));
    let paired = !mine.is_empty() && mine.len() == base.len();
    let point = if paired { quotient(mean(&mine), mean(&base)) } else { f64::NAN };
    let (value, value_ci95) = mean_of(own, per);
    let most = if is_share(&key) { 100.0 } else { f64::INFINITY };
    let work = key.unit == "cpu";
    let interval = if paired { interval_of_ratio(pair, (&mine, &base), per, work) } else { None };
    ScalarSeries {
        key,
        value: value.is_finite().then_some(value),
        value_ci95: value_ci95.map(|[lo, hi]| [lo, hi.min(most)]),
        ratio_to_baseline: point.is_finite().then(|| ratio(point)),
        ratio_ci95: interval.map(|ends| ends.map(ratio)),
    }
}

/// The mean over repeats, NaN without any, and its interval.
fn mean_of(values: &[f64], per: Option<f64>) -> (f64, Option<Interval>) {
    let blocks = fold(values);
    let mean = weighted_mean(&vec![1; blocks.len()], &blocks);
    (scalar(mean), interval_of_mean(values, per).map(|ends| ends.map(scalar)))
}

/// Values as counts of events.
fn counts(values: &[f64], per: f64) -> Vec<f64> {
    values.iter().map(|value| value * per).collect()
}

/// Whether values are zero in some repeats only: how often the measured event happens is then not known.
fn comes_and_goes(values: &[f64]) -> bool {
    values.contains(&0.0)
}

/// Whether values are zero in every repeat.
fn is_gone(values: &[f64]) -> bool {
    !values.is_empty() && values.iter().all(|value| *value == 0.0)
}

/// The interval of a mean over repeats.
fn interval_of_mean(values: &[f64], per: Option<f64>) -> Option<Interval> {
    match per {
        Some(per) => {
            let counts = counts(values, per);
            if stats::are_few(&counts) {
                return stats::interval_of_counts(&counts).map(|ends| ends.map(|end| end / per));
            }
        }
        None if comes_and_goes(values) => return None,
        None => {}
    }
    let blocks = fold(values);
    stats::interval(blocks.len(), &|w| weighted_mean(w, &blocks))
}

/// The interval of the ratio of two means over the same repeats; `folded`: their blocks. `work`: they are CPU time, of
/// which a repeat with none says as much as any other.
fn interval_of_ratio(
    (mine, base): &(Vec<f64>, Vec<f64>),
    folded: (&[f64], &[f64]),
    per: Option<f64>,
    work: bool,
) -> Option<Interval> {
    match per {
        Some(per) => {
            let (mine, base) = (counts(mine, per), counts(base, per));
            if stats::are_few(&mine) || stats::are_few(&base) {
                return stats::interval_of_count_ratio(&mine, &base);
            }
        }
        None if comes_and_goes(base) => return None,
        // If no repeat has any, the ratio is zero for certain.
        None if is_gone(mine) => return (mine.len() > 1).then_some([0.0; 2]),
        None if comes_and_goes(mine) && !work => return None,
        None => {}
    }
    let (mine, base) = folded;
    let ratio = |w: &[u16]| quotient(weighted_mean(w, mine), weighted_mean(w, base));
    stats::interval(mine.len(), &ratio).map(|[lo, hi]| [lo.max(0.0), hi])
}

/// Means of blocks, formed as [`blocks`] forms them.
fn fold(values: &[f64]) -> Vec<f64> {
    let blocks = values.len().min(MAX_BLOCKS);
    let of_block = |b: usize| values.iter().skip(b).step_by(MAX_BLOCKS);
    (0..blocks).map(|b| of_block(b).sum::<f64>() / of_block(b).count() as f64).collect()
}
