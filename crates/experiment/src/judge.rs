//! The rule that decides which policy is best, for all users: `run`, `tune`, `capacity`, `map`, `compare`, the report
//! and Python.
//!
//! A policy is judged by its [`Effect`]s: what it does to each series, as ratios to the baseline.
//!
//! 1. **Gain.** Each guest latency series counts with the ratio of its p99 to the baseline's, or
//!    of its mean where it has too few samples for a p99. A policy's gain is the geometric mean of
//!    these ratios; it improves the guest if that is below 1 and at least one ratio's interval
//!    lies below 1. A series that misses a larger share of its periods than under the baseline, or
//!    glitches more often, is not better, whatever its quantiles: the samples it lacks would have
//!    been the worst.
//! 2. **Cost.** A policy costs too much if, beyond noise (the ratio's interval excludes 1, by more
//!    than half a percent), a host probe's mean or p99 rises above its limit, or a load of the host, or
//!    of a VM whose latency is not measured, does less than its limit of its work ([`Limits`]); or if a
//!    host probe misses a larger share of its periods, by more than its limit. Where the baseline misses a larger share by as
//!    much, its p99 lacks its worst periods: the probe's p99 is named, and not judged. One without any sample
//!    has missed all of them: the work of a task that never runs is lost. What the guest's own other
//!    work loses is named, but is the guest's bargain. [`LimitResult`] says whether intervals leave a doubt.
//! 3. **Best** is the policy with the smallest gain ratio among those that improve the guest and
//!    do not cost too much.
//!
//! Several experiments are judged together by the geometric means of their ratios ([`Effect::together`]). With fewer
//! than [`LEAST_REPEATS`] repeats there is no verdict: their intervals are too narrow. A search with fewer repeats,
//! which needs a preference, uses the values alone.

use std::fmt;

use vcoop_model::distinct;

use crate::format;
use crate::result::{Interval, Limits, is_starved};

/// Least repeats for a claim.
pub const LEAST_REPEATS: u32 = 5;

/// Ratios nearer to 1 than this are no difference, however precise: two decimals do not show them.
const LEAST_DIFFERENCE: f64 = 0.005;

/// A smaller ratio counts as this one in a mean: a latency of a nanosecond beside one of a millisecond.
const LEAST_RATIO: f64 = 1e-6;

/// Share of missed periods from which they are mentioned.
const LEAST_MISSED: f64 = 0.001;

/// Most guest series that a verdict names.
const MOST_SHOWN: usize = 3;

/// Whether a ratio's interval lies below 1, by more than half a percent.
pub fn clearly_below(interval: Option<Interval>) -> bool {
    interval.is_some_and(|[_, hi]| hi < 1.0 - LEAST_DIFFERENCE)
}

/// Whether a ratio's interval lies above 1, by more than half a percent.
pub fn clearly_above(interval: Option<Interval>) -> bool {
    interval.is_some_and(|[lo, _]| lo > 1.0 + LEAST_DIFFERENCE)
}

impl Default for Limits {
    fn default() -> Self {
        Self { mean: 1.10, p99: 1.25, missed: 0.01, work: 0.95 }
    }
}

impl Limits {
    /// Description of the argument of [`set`](Self::set).
    pub const HELP: &str = "mean=1.1x, p99=1.25x (a host probe's, to the baseline's), missed=1% (of \
                            its periods, more) or work=0.95x (of what loads do under the baseline)";

    /// Changes one limit, as in `p99=2x`.
    ///
    /// # Errors
    ///
    /// What is allowed.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let wrong = || format!("`{text}`: write {}", Self::HELP);
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim());
        let number = |end: char| {
            let number = value.strip_suffix(end).unwrap_or(value).trim_end().parse::<f64>().ok();
            number.filter(|x| x.is_finite() && *x >= 0.0).ok_or_else(wrong)
        };
        // No latency is 0 times another.
        let times = || number('x').and_then(|x| if x > 0.0 { Ok(x) } else { Err(wrong()) });
        match name {
            "mean" => self.mean = times()?,
            "p99" => self.p99 = times()?,
            "work" => self.work = number('x')?,
            "missed" if value.ends_with('%') => {
                self.missed = number('%').ok().filter(|x| *x <= 100.0).ok_or_else(wrong)? / 100.0;
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// The limits in a sentence, with the option that changes them.
    pub fn words(&self) -> String {
        let percent = format::digits(self.missed * 100.0);
        let [mean, p99, work] = [self.mean, self.p99, self.work].map(format::ratio);
        format!(
            "Limits of what the best policy may cost others (--may-cost): a host probe's mean {mean}, its p99 \
             {p99}, {percent} % more of its periods missed; a load's work {work}. What else the guest does has no limit."
        )
    }
}

/// Whether a number meets a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitResult {
    /// Broken, by the whole interval.
    No,
    /// Broken, but the interval includes the limit; or there is no interval.
    Unlikely,
    /// Not known: there is no number, for example a quantile of too few samples.
    Unknown,
    /// Held, but the interval includes the limit; or there is no interval.
    Likely,
    /// Held, by the whole interval.
    Yes,
}

impl LimitResult {
    /// Whether a limit holds; `good` decides for a value.
    pub fn of(value: f64, interval: Option<Interval>, good: impl Fn(f64) -> bool) -> Self {
        let holds = good(value);
        let sure = interval.is_some_and(|ends| ends.iter().all(|end| good(*end) == holds));
        match (holds, sure) {
            (true, true) => Self::Yes,
            (true, false) => Self::Likely,
            (false, true) => Self::No,
            (false, false) => Self::Unlikely,
        }
    }
}

impl fmt::Display for LimitResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "broken",
            Self::Unlikely => "probably broken",
            Self::Unknown => "not known",
            Self::Likely => "probably held",
            Self::Yes => "held",
        })
    }
}

/// To whom a series belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesOwner {
    /// The latency of guests, which a policy is to improve.
    Guest,
    /// Other work of guests whose latency is measured.
    Own,
    /// Of the host, and of VMs without measured latency.
    Others,
}

/// A number under a policy, beside the baseline's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Ratio.
    pub ratio: f64,
    /// Its interval.
    pub interval: Option<Interval>,
    /// Name of the number.
    pub name: String,
    /// Both values; none if there are several of each.
    pub values: Option<[String; 2]>,
}

impl Change {
    /// `host.probe p99 1.2 ms -> 5.0 ms (4.17x)`.
    pub fn words(&self) -> String {
        self.with_ratio(&format::ratio(self.ratio))
    }

    /// The same, with one more digit if the ratio would look equal to its limit.
    fn words_beside(&self, limit: f64) -> String {
        let ratio = format::ratio(self.ratio);
        match ratio == format::ratio(limit) {
            true => self.with_ratio(&format!("{:.4}x", self.ratio)),
            false => self.with_ratio(&ratio),
        }
    }

    fn with_ratio(&self, ratio: &str) -> String {
        let name = &self.name;
        match &self.values {
            Some([from, to]) => format!("{name} {from} -> {to} ({ratio})"),
            None => format!("{name} {ratio}"),
        }
    }

    /// Combines changes of one number in several experiments: the geometric mean of their ratios. The interval follows
    /// from theirs, which are independent, if each has one.
    fn together(all: &[&Self]) -> Option<Self> {
        let (first, n) = (all.first()?, all.len() as f64);
        if all.len() == 1 {
            return Some((*first).clone());
        }
        let log = |x: f64| libm::log(x.max(f64::MIN_POSITIVE));
        let ratio = libm::exp(all.iter().map(|change| log(change.ratio)).sum::<f64>() / n);
        let reach = |end: usize| -> Option<f64> {
            let squares = all.iter().map(|change| {
                let reach = log(change.interval?[end]) - log(change.ratio);
                Some(reach * reach)
            });
            Some(libm::sqrt(squares.sum::<Option<f64>>()?) / n)
        };
        let interval = || Some([ratio * libm::exp(-reach(0)?), ratio * libm::exp(reach(1)?)]);
        Some(Self { ratio, interval: interval(), name: first.name.clone(), values: None })
    }
}

/// A policy's effect on one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// Name of the series.
    pub name: String,
    /// To whom it belongs.
    pub whose: SeriesOwner,
    /// Mean latency, or a time printed by a command.
    pub mean: Option<Change>,
    /// p99.
    pub p99: Option<Change>,
    /// Work done.
    pub work: Option<Change>,
    /// Share of missed periods: under the baseline, and under the policy.
    pub missed: [f64; 2],
    /// Glitches a minute: under the baseline, and under the policy.
    pub glitches: [f64; 2],
    /// Repeats that the policy's numbers are from.
    pub repeats: u32,
    /// For several experiments, the combined change that counts.
    pub over_all: Option<Change>,
}

impl Effect {
    /// An effect without any numbers yet.
    pub fn new(name: String, whose: SeriesOwner, repeats: u32) -> Self {
        let (missed, glitches) = ([0.0; 2], [0.0; 2]);
        let (mean, p99, work, over_all) = (None, None, None, None);
        Self { name, whose, mean, p99, work, missed, glitches, repeats, over_all }
    }

    /// Combines effects in several experiments, series by series.
    pub fn together(all: &[Vec<Self>]) -> Vec<Self> {
        let names = all.iter().flatten().map(|effect| (effect.name.as_str(), effect.whose));
        let one = |(name, whose): (&str, SeriesOwner)| {
            let is = |effect: &&Self| effect.name == name && effect.whose == whose;
            let own: Vec<&Self> = all.iter().flatten().filter(is).collect();
            let change = |of: fn(&Self) -> Option<&Change>| {
                Change::together(&own.iter().filter_map(|effect| of(effect)).collect::<Vec<_>>())
            };
            let mut over_all = change(Self::counted);
            if own.iter().any(|effect| effect.p99.is_none())
                && own.iter().any(|effect| effect.p99.is_some())
                && let Some(change) = &mut over_all
            {
                change.name = format!("{name} p99 or mean");
            }
            let mean = |of: fn(&Self) -> [f64; 2]| {
                let sum = |i: usize| own.iter().map(|effect| of(effect)[i]).sum::<f64>();
                [0, 1].map(|i| sum(i) / own.len() as f64)
            };
            let repeats = own.iter().map(|effect| effect.repeats).sum();
            Self {
                mean: change(|effect| effect.mean.as_ref()),
                p99: change(|effect| effect.p99.as_ref()),
                work: change(|effect| effect.work.as_ref()),
                missed: mean(|effect| effect.missed),
                glitches: mean(|effect| effect.glitches),
                over_all,
                ..Self::new(name.to_owned(), whose, repeats)
            }
        };
        distinct(names).into_iter().map(one).collect()
    }

    /// The statistic by which a guest's series counts.
    fn counted(&self) -> Option<&Change> {
        self.over_all.as_ref().or(self.p99.as_ref()).or(self.mean.as_ref())
    }

    /// How it misses periods: `host.probe misses 12 % of its periods (vanilla 0 %)`.
    fn misses(&self, baseline: &str) -> String {
        let [before, now] = self.missed;
        let percent = |share: f64| format::digits(share * 100.0);
        let verb = if is_starved(now) { "is starved: it misses" } else { "misses" };
        let (name, now, before) = (&self.name, percent(now), percent(before));
        format!("{name} {verb} {now} % of its periods ({baseline} {before} %)")
    }
}

/// A cost for others, or for the guest's own other work.
#[derive(Clone, Debug, PartialEq)]
struct Cost {
    /// In words.
    text: String,
    /// Interval of its ratio.
    interval: Option<Interval>,
    /// Size of the cost: the ratio, inverted if less is worse.
    weight: f64,
    /// Whether it differs from the baseline beyond noise.
    beyond_noise: bool,
    /// How far it is beyond its limit, as the natural logarithm of the ratio; `None`: within the limit.
    excess: Option<f64>,
    /// Whether it is beyond its limit, possibly by noise.
    unsure: bool,
    /// Whether it is within its limit. A cost that noise can explain probably is.
    held: LimitResult,
    /// Whether a verdict may mention it: a mean or work always, a p99 only beyond its limit.
    told: bool,
}

/// The rule's result for a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Geometric mean of the guests' ratios; `None` if there are none, or a guest is starved.
    pub gain: Option<f64>,
    /// Whether the gain is better beyond noise.
    pub improves: bool,
    /// What is clearly better for the guests, what is clearly worse, and which periods they miss, in words.
    pub shown: String,
    /// What is clearly worse for the guests, in words.
    pub worse: Vec<String>,
    /// Costs, worst first.
    costs: Vec<Cost>,
    /// Whether there is a host probe.
    probed: bool,
    /// Quantiles of host probes that are not judged, and why, in words.
    unjudged: Vec<String>,
}

impl Judgement {
    /// From a policy's effects. `baseline`: name of the baseline.
    pub fn new(effects: &[Effect], baseline: &str, limits: &Limits) -> Self {
        let (mut logs, mut better, mut missed) = (Vec::new(), Vec::new(), Vec::new());
        let (mut starved, mut worse) = (false, Vec::new());
        for effect in effects.iter().filter(|effect| effect.whose == SeriesOwner::Guest) {
            let [before, now] = effect.missed;
            let starves = is_starved(now) && !is_starved(before);
            starved |= starves;
            let change = effect.counted().filter(|change| clearly_above(change.interval));
            let starves = || starves.then(|| effect.misses(baseline));
            worse.extend(change.map(Change::words).or_else(starves));
            let Some(change) = effect.counted() else { continue };
            logs.push(libm::log(change.ratio.max(LEAST_RATIO)));
            if now >= LEAST_MISSED {
                missed.push(effect.misses(baseline));
            }
            let [silent, heard] = effect.glitches;
            if heard > silent {
                let (heard, silent) = (format::digits(heard), format::digits(silent));
                let name = &effect.name;
                missed
                    .push(format!("{name} glitches {heard} times a minute ({baseline} {silent})"));
            }
            if clearly_below(change.interval) && now <= before && heard <= silent {
                better.push(change.words());
            }
        }
        let mean = libm::exp(logs.iter().sum::<f64>() / logs.len().max(1) as f64);
        let gain = (!logs.is_empty() && !starved).then_some(mean);
        let improves = gain.is_some_and(|gain| gain < 1.0) && !better.is_empty();
        better.truncate(MOST_SHOWN);
        worse.truncate(MOST_SHOWN);
        let mut shown = better.join(", ");
        if improves && !worse.is_empty() {
            shown += &format!("; worse: {}", worse.join(", "));
        }
        for text in missed {
            shown += &format!("; {text}");
        }
        let paying = || effects.iter().filter(|effect| effect.whose != SeriesOwner::Guest);
        let mut costs: Vec<Cost> =
            paying().flat_map(|effect| costs_of(effect, baseline, limits)).collect();
        costs.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let probed = paying().any(|effect| effect.mean.is_some() || effect.missed != [0.0; 2]);
        let unjudged = paying().filter_map(|effect| unjudged(effect, baseline, limits)).collect();
        Self { gain, improves, shown, worse, costs, probed, unjudged }
    }

    /// Whether all costs are within their limits.
    pub fn held(&self) -> LimitResult {
        self.costs.iter().map(|cost| cost.held).min().unwrap_or(LimitResult::Yes)
    }

    /// Costs beyond the limits, in words: a policy with such a cost is not recommended.
    pub fn too_much(&self) -> Vec<String> {
        self.costs.iter().filter(|c| c.excess.is_some()).map(|c| c.text.clone()).collect()
    }

    /// How far the worst cost is beyond its limit, as a natural logarithm; negative if none is.
    pub fn excess(&self) -> f64 {
        let all = self.costs.iter().filter_map(|c| c.excess);
        all.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The costs in words: those beyond noise, or that there is none, and the largest of the rest. Always includes
    /// costs beyond their limit that noise can explain, and what was not measured.
    pub fn price(&self) -> String {
        let told = || self.costs.iter().filter(|cost| cost.told);
        let real = told().filter(|cost| cost.beyond_noise && cost.weight > 1.0);
        let real: Vec<&str> = real.map(|cost| cost.text.as_str()).collect();
        let reach = |cost: &Cost| {
            let reach = cost.interval.map(|ends| ends.map(format::ratio));
            reach.map(|[lo, hi]| format!(", 95 %: {lo} to {hi}")).unwrap_or_default()
        };
        let unsure: Vec<String> = told()
            .filter(|cost| cost.unsure)
            .map(|cost| cost.text.clone() + &reach(cost))
            .collect();
        let mut said = Vec::new();
        match (real.is_empty(), told().next()) {
            (false, _) => said.push(format!("It costs: {}", real.join(", "))),
            (true, Some(most)) if unsure.is_empty() => {
                let (most, reach) = (&most.text, reach(most));
                said.push(format!("No cost is beyond noise; the largest is {most}{reach}"));
            }
            (true, Some(_)) => said.push("No cost is beyond noise".to_owned()),
            (true, None) => {}
        }
        if !unsure.is_empty() {
            said.push(format!("Beyond its limit, perhaps by chance: {}", unsure.join("; ")));
        }
        said.extend(self.unjudged.iter().cloned());
        if !self.probed {
            let why = "the scenario has no host probe";
            said.push(format!("Its cost to the host's latency was not measured: {why}"));
        }
        said.join(". ")
    }
}

/// Whether the p99 of a probe is meaningful: if the baseline misses a larger share of its periods, by more than the
/// limit, the baseline's p99 lacks its worst periods.
fn has_p99(effect: &Effect, limits: &Limits) -> bool {
    let [before, now] = effect.missed;
    before - now <= limits.missed
}

/// That a p99 beyond its limit is not judged, and why.
fn unjudged(effect: &Effect, baseline: &str, limits: &Limits) -> Option<String> {
    let p99 = effect.p99.as_ref().filter(|p99| p99.ratio > limits.p99)?;
    let is_judged = effect.whose != SeriesOwner::Others || has_p99(effect, limits);
    let percent = |share: f64| format::digits(share * 100.0);
    let [before, now] = effect.missed.map(percent);
    (!is_judged).then(|| {
        let words = p99.words();
        format!("Not judged: {words}, since {baseline} missed {before} % of its periods, and this {now} %")
    })
}

/// Costs of one series: for a probe the mean, the p99, and missed periods beyond their limit; for a load its work.
fn costs_of(effect: &Effect, baseline: &str, limits: &Limits) -> Vec<Cost> {
    let (whose, mut costs) = (effect.whose, Vec::new());
    let few = effect.repeats < LEAST_REPEATS;
    // `turned` converts a ratio so that more is worse.
    let mut one =
        |change: &Change, limit: f64, turned: fn(f64) -> f64, beyond_noise: bool, always: bool| {
            let (weight, most) = (turned(change.ratio), turned(limit));
            let beyond_limit = whose == SeriesOwner::Others && weight > most;
            let excessive = beyond_limit && (beyond_noise || few);
            let held = match whose {
                SeriesOwner::Others if beyond_limit && !excessive => LimitResult::Likely,
                SeriesOwner::Others => {
                    LimitResult::of(change.ratio, change.interval, |ratio| turned(ratio) <= most)
                }
                SeriesOwner::Guest | SeriesOwner::Own => LimitResult::Yes,
            };
            costs.push(Cost {
                text: match whose {
                    SeriesOwner::Others => change.words_beside(limit),
                    SeriesOwner::Guest | SeriesOwner::Own => change.words(),
                },
                interval: change.interval,
                weight,
                beyond_noise,
                excess: excessive.then(|| libm::log(weight / most)),
                unsure: beyond_limit && !excessive,
                held,
                told: always || beyond_limit,
            });
        };
    if let Some(mean) = &effect.mean {
        one(mean, limits.mean, |ratio| ratio, clearly_above(mean.interval), true);
    }
    if let Some(p99) = effect.p99.as_ref().filter(|_| has_p99(effect, limits)) {
        one(p99, limits.p99, |ratio| ratio, clearly_above(p99.interval), false);
    }
    if let Some(work) = &effect.work {
        one(work, limits.work, |ratio| 1.0 / ratio.max(1e-9), clearly_below(work.interval), true);
    }
    let [before, now] = effect.missed;
    if now - before > limits.missed {
        costs.push(Cost {
            text: effect.misses(baseline),
            interval: None,
            // Missed periods have no ratio if there were none before. They weigh more than any ratio.
            weight: f64::INFINITY,
            beyond_noise: true,
            excess: Some(libm::log(now / (before + limits.missed).max(1e-9))),
            unsure: false,
            held: LimitResult::No,
            told: true,
        });
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(ratio: f64, interval: Interval) -> Option<Change> {
        Some(Change { ratio, interval: Some(interval), ..Change::default() })
    }

    fn work_of(repeats: u32) -> Effect {
        Effect::new("host.build".to_owned(), SeriesOwner::Others, repeats)
    }

    fn work(ratio: f64, repeats: u32) -> Effect {
        Effect { work: change(ratio, [ratio - 0.01, ratio + 0.01]), ..work_of(repeats) }
    }

    #[test]
    fn limits_are_changed_one_by_one_and_said() {
        let mut limits = Limits::default();
        for text in ["p99=2x", "work = 0.5", "missed=5%", "mean=1.5x"] {
            limits.set(text).unwrap();
        }
        assert_eq!(limits, Limits { mean: 1.5, p99: 2.0, missed: 0.05, work: 0.5 });
        assert!(limits.words().contains("its p99 2.00x"), "{}", limits.words());
        for wrong in
            ["p99", "p98=1x", "p99=-1x", "missed=0.5", "missed=101%", "mean=nan", "work=1%", ""]
        {
            assert!(limits.set(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_better_policy_makes_worse_is_said() {
        let guest = |name: &str, ratio, interval| Effect {
            p99: Some(Change { name: name.to_owned(), ..change(ratio, interval).unwrap() }),
            ..Effect::new(name.to_owned(), SeriesOwner::Guest, 10)
        };
        let (wait, run) = (guest("wait", 0.04, [0.01, 0.1]), guest("preempted", 16.0, [3.0, 36.0]));
        let judged = Judgement::new(&[wait, run], "vanilla", &Limits::default());
        assert!(judged.improves);
        assert_eq!(judged.shown, "wait 0.0400x; worse: preempted 16.0x");
    }

    #[test]
    fn experiments_have_a_narrower_interval_together() {
        let all = [0.5, 2.0].map(|x| {
            let work = change(x, [x / 1.02, x * 1.02]);
            vec![Effect { work, missed: [0.0, x / 10.0], ..work_of(5) }]
        });
        let found = Effect::together(&all);
        let [effect] = found.as_slice() else { panic!("one series") };
        let change = effect.work.as_ref().unwrap();
        let [lo, hi] = change.interval.unwrap();
        // Logarithms of independent things: the square root of two, over two.
        let reach = 1.02_f64.powf(0.5_f64.sqrt());
        assert!((change.ratio - 1.0).abs() < 1e-9 && (hi - reach).abs() < 1e-9, "{hi}");
        assert!((lo * reach - 1.0).abs() < 1e-9);
        assert_eq!((effect.missed, effect.repeats), ([0.0, 0.125], 10));
    }

    #[test]
    fn what_others_lose_is_a_limit_and_what_the_guest_loses_is_not() {
        let judged = |effect: Effect, limits: &Limits| {
            Judgement::new(&[effect], "vanilla", limits).too_much().len()
        };
        let usual = Limits::default();
        assert_eq!(judged(work(0.9, 10), &usual), 1);
        assert_eq!(judged(work(0.9, 10), &Limits { work: 0.8, ..usual }), 0);
        assert_eq!(judged(Effect { whose: SeriesOwner::Own, ..work(0.1, 10) }, &usual), 0);
        let noisy = Effect { work: change(0.9, [0.7, 1.1]), ..work(0.9, 10) };
        assert_eq!(judged(noisy.clone(), &usual), 0, "within noise");
        assert_eq!(judged(Effect { repeats: 4, ..noisy }, &usual), 1, "few repeats show no noise");
        // It is said all the same, beside costs that are sure.
        let p99 = Some(Change { name: "p99".to_owned(), ..change(218.0, [0.3, 280.0]).unwrap() });
        let probe = Effect { p99, ..Effect::new("host.probe".to_owned(), SeriesOwner::Others, 10) };
        let judged_both = Judgement::new(&[probe, work(0.97, 10)], "vanilla", &usual);
        assert!(judged_both.too_much().is_empty());
        let said = judged_both.price();
        assert!(said.contains("by chance: p99 218x, 95 %: 0.30x to 280x"), "{said}");
        let starved = Effect { work: None, missed: [0.0, 1.0], ..work(1.0, 10) };
        assert_eq!(judged(starved, &usual), 1);
        // A probe that loses a twentieth of its periods has no p99 to speak of; one that loses none has.
        let p99 = change(286.0, [200.0, 300.0]);
        let probe = Effect { p99, ..Effect::new("host.probe".to_owned(), SeriesOwner::Others, 10) };
        assert_eq!(judged(probe.clone(), &usual), 1);
        let as_many = Effect { missed: [0.05, 0.05], ..probe.clone() };
        assert_eq!(judged(as_many, &usual), 1);
        let missed = Effect { missed: [0.05, 0.0], ..probe };
        assert_eq!(judged(missed.clone(), &usual), 0);
        let said = Judgement::new(&[missed], "vanilla", &usual).price();
        assert!(said.contains("Not judged:") && said.contains("vanilla missed 5.00 %"), "{said}");
    }

    #[test]
    fn a_cost_whose_interval_reaches_over_its_limit_is_not_sure() {
        let held = |ratio: f64, interval| {
            let effect = Effect { work: change(ratio, interval), ..work_of(10) };
            Judgement::new(&[effect], "vanilla", &Limits::default()).held()
        };
        assert_eq!(held(0.98, [0.96, 1.0]), LimitResult::Yes);
        assert_eq!(held(0.96, [0.94, 0.98]), LimitResult::Likely);
        assert_eq!(held(0.946, [0.927, 0.966]), LimitResult::Unlikely);
        assert_eq!(held(0.93, [0.91, 0.94]), LimitResult::No);
        assert_eq!(held(0.93, [0.8, 1.1]), LimitResult::Likely, "noise can explain it");
        let guest = Effect { whose: SeriesOwner::Own, ..work(0.5, 10) };
        assert_eq!(
            Judgement::new(&[guest], "vanilla", &Limits::default()).held(),
            LimitResult::Yes
        );
    }

    #[test]
    fn missed_periods_weigh_by_how_far_they_are_beyond_their_limit() {
        let judged = |whose, [before, now]: [f64; 2]| {
            let (missed, mean) = ([before, now], change(0.5, [0.49, 0.51]));
            let effect = Effect { mean, missed, ..Effect::new("rt".to_owned(), whose, 10) };
            Judgement::new(&[effect], "vanilla", &Limits::default())
        };
        let probe = |missed| judged(SeriesOwner::Others, missed);
        assert!((probe([0.02, 0.09]).excess() - 3.0_f64.ln()).abs() < 1e-9);
        assert_eq!(probe([0.02, 0.09]).held(), LimitResult::No);
        assert!(probe([0.02, 0.09]).price().starts_with("It costs: rt misses 9.00 %"));
        for within in [[0.02, 0.029], [0.09, 0.02]] {
            assert_eq!(probe(within).held(), LimitResult::Yes, "{within:?}");
            assert!(probe(within).too_much().is_empty(), "{within:?}");
        }
        // A lower latency is no gain if the guest misses more periods than before. The missed share is reported.
        let guest = |missed| judged(SeriesOwner::Guest, missed);
        assert!(guest([0.3, 0.2]).improves && !guest([0.2, 0.3]).improves);
        assert!(
            guest([0.3, 0.2]).shown.ends_with("; rt misses 20.0 % of its periods (vanilla 30.0 %)")
        );
    }

    #[test]
    fn a_ratio_that_looks_like_its_limit_has_a_digit_more() {
        let said = |ratio| {
            Judgement::new(&[work(ratio, 10)], "vanilla", &Limits::default()).costs[0].text.clone()
        };
        assert!(said(0.948).contains("0.9480x"), "{}", said(0.948));
        assert!(said(0.9).contains("0.90x"), "{}", said(0.9));
    }

    #[test]
    fn half_a_percent_is_no_gain_and_a_guest_that_starves_has_none() {
        let judged = |interval: Interval, now| {
            let mean = change(interval[0], interval);
            let guest = Effect {
                mean,
                missed: [0.0, now],
                ..Effect::new("rt".into(), SeriesOwner::Guest, 10)
            };
            Judgement::new(&[guest], "vanilla", &Limits::default())
        };
        assert!(judged([0.98, 0.994], 0.0).improves && !judged([0.98, 0.996], 0.0).improves);
        assert!(!judged([1.006, 1.01], 0.0).worse.is_empty());
        assert!(judged([1.004, 1.01], 0.0).worse.is_empty());
        assert!(judged([0.4, 0.5], 0.0).gain.is_some());
        let starved = judged([0.4, 0.5], 0.9);
        assert_eq!((starved.gain, starved.improves), (None, false));
        assert!(starved.worse[0].contains("starved: it misses 90.0 %"), "{starved:?}");
    }

    #[test]
    fn each_experiment_counts_by_its_own_statistic() {
        // Only the second has samples enough for a p99; in the first the guest gains.
        let guest = || Effect::new("guest.rt".to_owned(), SeriesOwner::Guest, 10);
        let few = Effect { mean: change(0.02, [0.019, 0.021]), ..guest() };
        let many =
            Effect { p99: change(1.0, [0.99, 1.01]), mean: change(1.0, [0.99, 1.01]), ..guest() };
        let both = Effect::together(&[vec![few], vec![many]]);
        let judged = Judgement::new(&both, "vanilla", &Limits::default());
        assert!(judged.improves && judged.shown.contains("p99 or mean"), "{judged:?}");
        assert!((judged.gain.unwrap() - 0.02_f64.sqrt()).abs() < 1e-9);
        assert!(judged.price().contains("no host probe"), "{}", judged.price());
    }
}
