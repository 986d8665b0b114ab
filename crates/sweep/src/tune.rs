//! Finds the policy and settings that meet limits at the least cost.
//!
//! 1. **Search.** Every policy as it is and with each means, then settings that a tree-structured
//!    Parzen estimator proposes (J. Bergstra et al., NIPS 2011; the `tpe` crate), one estimator for each
//!    key, which learns only from settings that have the key. All see the same random numbers.
//! 2. **Confirm.** The best few run again with seeds that the search has not used: the best of many is
//!    partly luck.
//! 3. **Explain.** Each key of the winner is reset to the policy's own value: the difference is
//!    the key's contribution.
//!
//! Batches have a fixed size, so the search does not depend on the number of threads.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use rand_pcg::Pcg64Mcg;
use tpe::TpeOptimizer;
use tpe::density_estimation::DefaultEstimatorBuilder;
use vcoop_experiment::runner::repeat_seed;
use vcoop_model::plan::Plan;

use crate::slo::Slo;
use crate::space::{BASES, Choice, KEYS, Key, Parts, Setting, TUNED, keys};
use crate::trial::{BASELINE, Bench, Objective, Score, SearchError};

/// Settings proposed at a time.
const BATCH: usize = 8;

/// Candidates confirmed with fresh seeds.
const CONFIRMED: usize = 3;

/// Impossible proposals in a row before a plain policy is tried.
const UNFIT: usize = 16;

/// First repeat of the confirmation: far above any number that the search uses, so that its seeds are fresh.
const FRESH: u32 = 1_000_000;

/// What to search for.
#[derive(Clone, Debug)]
pub struct Goal {
    /// Limits that must hold.
    pub slos: Vec<Slo>,
    /// What to minimise among settings that hold them.
    pub cost: Objective,
    /// Policies to start from; empty: [`BASES`].
    pub bases: Vec<String>,
    /// What to vary besides policies and their keys.
    pub parts: Parts,
    /// Settings to try.
    pub trials: usize,
    /// Repeats of the confirmation.
    pub confirm: u32,
    /// Seed of the search.
    pub seed: u64,
}

/// A setting and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedTrial {
    /// The setting.
    pub setting: Setting,
    /// Its result.
    pub score: Score,
}

/// A confirmed setting.
#[derive(Clone, Debug)]
pub struct ConfirmedSetting {
    /// The setting and its score over all fresh repeats.
    pub tried: TunedTrial,
    /// Number of fresh repeats in which every limit held, and number of repeats with enough samples to decide.
    pub held: (u32, u32),
}

/// Effect of a key of the recommendation.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// Key, or the policy itself.
    pub what: String,
    /// What it is set to.
    pub value: String,
    /// Score with the policy's own value of the key; for the policy itself: with `vanilla`.
    pub without: Score,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// Best confirmed setting that holds every limit; `None`: none does.
    pub best: Option<ConfirmedSetting>,
    /// Confirmed settings, best first; if none meets the limits, the nearest first.
    pub confirmed: Vec<ConfirmedSetting>,
    /// What each part of the first confirmed setting contributes.
    pub contributions: Vec<Contribution>,
    /// Settings that no other beats in both worst limit and cost, cheapest first.
    pub front: Vec<TunedTrial>,
    /// Settings that were tried.
    pub trials: usize,
    /// Settings that are impossible in this scenario, and why: the first of each policy.
    pub unfit: Vec<(String, String)>,
}

/// Searches.
///
/// # Errors
///
/// An impossible goal, a run that failed, or the stop flag.
pub fn tune(
    bench: &Bench,
    goal: &Goal,
    stop: &AtomicBool,
    told: &dyn Fn(usize, usize),
) -> Result<Tuned, SearchError> {
    let mut search = Search::new(bench, goal, stop)?;
    let mut first: Vec<Setting> = search.bases.iter().map(|base| Setting::plain(base)).collect();
    let means = KEYS[0];
    for base in search.bases.iter().filter(|base| means.of.contains(&base.as_str())) {
        first.extend(alone(base, &means));
    }
    // An optional key is tried by itself once, with the first policy that takes it.
    for (key, _) in search.keys.iter().filter(|(key, _)| key.values.optional()) {
        let base = search.bases.iter().find(|base| key.fits(&Setting::plain(base)));
        first.extend(base.into_iter().flat_map(|base| alone(base, key)));
    }
    first.retain(|setting| search.can_be(setting));
    first.truncate(goal.trials.max(1));
    let total = goal.trials.max(first.len());
    for batch in first.chunks(BATCH) {
        search.evaluate(batch)?;
        told(search.asked, total);
    }
    while search.asked < total {
        let batch: Vec<Setting> =
            (0..BATCH.min(total - search.asked)).map(|_| search.propose()).collect();
        search.evaluate(&batch)?;
        told(search.asked, total);
    }
    search.finish()
}

/// A policy with one key, for each of its words.
fn alone(base: &str, key: &Key) -> Vec<Setting> {
    let Choice::Words(words) = key.values else { return Vec::new() };
    let with = |word: &&str| Setting {
        base: base.to_owned(),
        keys: vec![(key.name.to_owned(), (*word).to_owned())],
    };
    words.iter().filter(|word| !word.is_empty()).map(with).collect()
}

#[derive(Debug)]
struct Search<'a> {
    bench: &'a Bench,
    goal: &'a Goal,
    stop: &'a AtomicBool,
    bases: Vec<String>,
    unfit: Vec<(String, String)>,
    rng: Pcg64Mcg,
    base: TpeOptimizer<DefaultEstimatorBuilder>,
    keys: Vec<(Key, TpeOptimizer<DefaultEstimatorBuilder>)>,
    known: BTreeMap<Setting, Score>,
    /// In the order of the search.
    order: Vec<Setting>,
    asked: usize,
}

impl<'a> Search<'a> {
    fn new(bench: &'a Bench, goal: &'a Goal, stop: &'a AtomicBool) -> Result<Self, SearchError> {
        let asked: Vec<String> = match goal.bases.as_slice() {
            [] => BASES.iter().map(|base| (*base).to_owned()).collect(),
            named => named.to_vec(),
        };
        let (mut bases, mut unfit) = (Vec::new(), Vec::new());
        for base in asked {
            match bench.plan(&[], &base) {
                Ok(_) => bases.push(base),
                // A policy that the user named must fit; others are left out if they do not.
                Err(why) if !goal.bases.is_empty() => return Err(why.into()),
                Err(why) => {
                    unfit.push((base, why.0.first().map_or(String::new(), |d| d.message.clone())));
                }
            }
        }
        if bases.is_empty() {
            // Vanilla does not fit either: the scenario itself is wrong, and this returns its errors.
            bench.plan(&[], "vanilla")?;
            return Err(SearchError::Failed("no policy fits this scenario".to_owned()));
        }
        let space = |choices: usize| tpe::range(0.0, choices as f64).map_err(|e| e.to_string());
        let categorical = |n| Ok(TpeOptimizer::new(tpe::histogram_estimator(), space(n)?));
        let numeric = || Ok(TpeOptimizer::new(tpe::parzen_estimator(), space(1)?));
        let of = |key: Key| {
            let optimizer = match key.values {
                Choice::Words(words) => categorical(words.len()),
                Choice::Time(..) | Choice::Percent(..) => numeric(),
            };
            optimizer.map(|optimizer| (key, optimizer))
        };
        let keys: Result<Vec<_>, String> = keys(goal.parts).into_iter().map(of).collect();
        Ok(Self {
            bench,
            goal,
            stop,
            base: categorical(bases.len()).map_err(SearchError::Failed)?,
            keys: keys.map_err(SearchError::Failed)?,
            bases,
            unfit,
            rng: Pcg64Mcg::new(u128::from(goal.seed) | 1 << 64),
            known: BTreeMap::new(),
            order: Vec::new(),
            asked: 0,
        })
    }

    /// Whether the scenario accepts a setting: valid keys may exclude each other.
    fn can_be(&self, setting: &Setting) -> bool {
        self.bench.plan(&setting.sets(), TUNED).is_ok()
    }

    /// The next possible proposal of the estimators.
    fn propose(&mut self) -> Setting {
        let mut setting = self.ask();
        for _ in 0..UNFIT {
            if self.can_be(&setting) {
                return setting;
            }
            setting = self.ask();
        }
        Setting::plain(&setting.base)
    }

    fn ask(&mut self) -> Setting {
        let n = self.bases.len();
        let i = self.base.ask(&mut self.rng).map_or(0, |x| (x as usize).min(n - 1));
        let mut setting = Setting::plain(&self.bases[i]);
        for (key, optimizer) in &mut self.keys {
            if key.fits(&setting)
                && let Ok(x) = optimizer.ask(&mut self.rng)
            {
                let share = match key.values {
                    Choice::Words(words) => (x.floor() + 0.5) / words.len() as f64,
                    Choice::Time(..) | Choice::Percent(..) => x,
                };
                let value = key.values.at(share);
                if !value.is_empty() {
                    setting.keys.push((key.name.to_owned(), value));
                }
            }
        }
        setting
    }

    /// Runs the new settings of a batch, and reports all of it to the estimators.
    fn evaluate(&mut self, batch: &[Setting]) -> Result<(), SearchError> {
        let mut fresh: Vec<Setting> =
            batch.iter().filter(|s| !self.known.contains_key(s)).cloned().collect();
        fresh.sort();
        fresh.dedup();
        let scores = self.score(&fresh, |_| ())?;
        for (setting, score) in fresh.iter().zip(scores) {
            self.known.insert(setting.clone(), score);
        }
        for setting in batch {
            self.asked += 1;
            let Some(score) = self.known.get(setting) else { continue };
            let value = rank(score);
            if !self.order.contains(setting) {
                self.order.push(setting.clone());
            }
            let base = self.bases.iter().position(|b| *b == setting.base).unwrap_or(0);
            // Proposed values lie inside their ranges, and ranks are numbers: telling cannot fail.
            let _ = self.base.tell(base as f64 + 0.5, value);
            for (key, optimizer) in self.keys.iter_mut().filter(|(key, _)| key.fits(setting)) {
                let found = setting.keys.iter().find(|(name, _)| name == key.name);
                // Left out is a choice as well, where it is one.
                let text = found.map_or("", |(_, text)| text.as_str());
                if let Some(x) = position(key, text) {
                    let _ = optimizer.tell(x, value);
                }
            }
        }
        Ok(())
    }

    /// Scores of settings, all in one experiment so that all cores have work.
    fn score(
        &self,
        settings: &[Setting],
        change: impl Fn(&mut Plan),
    ) -> Result<Vec<Score>, SearchError> {
        if settings.is_empty() {
            return Ok(Vec::new());
        }
        // First the baseline that they are compared with, with the same seeds.
        let mut plans = vec![self.bench.plan(&[], BASELINE)?];
        change(&mut plans[0]);
        for (i, setting) in settings.iter().enumerate() {
            let mut plan = self.bench.plan(&setting.sets(), TUNED)?;
            plan.policy_name = name(i);
            change(&mut plan);
            plans.push(plan);
        }
        let document = self.bench.run(&mut plans, self.stop)?;
        let score = |i| Score::of(&document, &name(i), &self.goal.slos, Some(&self.goal.cost));
        Ok((0..settings.len()).map(score).collect())
    }

    fn finish(self) -> Result<Tuned, SearchError> {
        let mut tried: Vec<TunedTrial> = self
            .order
            .iter()
            .filter_map(|s| {
                Some(TunedTrial { setting: s.clone(), score: self.known.get(s)?.clone() })
            })
            .collect();
        let front = front(&tried);
        // A stable sort: of equals the one that was tried first, which is the simpler one.
        tried.sort_by(|a, b| rank(&a.score).total_cmp(&rank(&b.score)));
        let trials = tried.len();
        let candidates: Vec<Setting> =
            tried.into_iter().take(CONFIRMED).map(|t| t.setting).collect();
        let confirmed = self.confirm(&candidates)?;
        let contributions = match confirmed.first() {
            Some(best) => self.contributions(&best.tried.setting)?,
            None => Vec::new(),
        };
        let best = confirmed.first().filter(|c| c.tried.score.holds()).cloned();
        Ok(Tuned { best, confirmed, contributions, front, trials, unfit: self.unfit })
    }

    fn fresh(&self, plan: &mut Plan) {
        plan.seed = repeat_seed(plan.seed, FRESH);
        plan.repeats = self.goal.confirm.max(2);
    }

    fn confirm(&self, settings: &[Setting]) -> Result<Vec<ConfirmedSetting>, SearchError> {
        let scores = self.score(settings, |plan| self.fresh(plan))?;
        let mut held = vec![(0, 0); settings.len()];
        for repeat in 0..self.goal.confirm.max(2) {
            let single = self.score(settings, |plan| {
                self.fresh(plan);
                plan.seed = repeat_seed(plan.seed, repeat);
                plan.repeats = 1;
            })?;
            let alone = |score: &Score| {
                let pairs = self.goal.slos.iter().zip(&score.limits);
                let excess = pairs.map(|(slo, reading)| Some(slo.excess((*reading)?.value)));
                excess.collect::<Option<Vec<f64>>>()
            };
            for ((held, told), score) in held.iter_mut().zip(&single) {
                if let Some(excess) = alone(score) {
                    *told += 1;
                    *held += u32::from(excess.iter().all(|x| *x <= 0.0));
                }
            }
        }
        let tried = settings.iter().zip(scores);
        let tried = tried.map(|(s, score)| TunedTrial { setting: s.clone(), score });
        let both = tried.zip(held).map(|(tried, held)| ConfirmedSetting { tried, held });
        let mut confirmed: Vec<ConfirmedSetting> = both.collect();
        confirmed.sort_by(|a, b| rank(&a.tried.score).total_cmp(&rank(&b.tried.score)));
        Ok(confirmed)
    }

    fn contributions(&self, best: &Setting) -> Result<Vec<Contribution>, SearchError> {
        let mut parts: Vec<(String, String, Setting)> = best
            .keys
            .iter()
            .map(|(key, value)| (key.clone(), value.clone(), best.without(key)))
            .collect();
        if best.base != "vanilla" {
            let vanilla = Setting::plain("vanilla");
            parts.push(("policy".to_owned(), format!("\"{}\"", best.base), vanilla));
        }
        let settings: Vec<Setting> = parts.iter().map(|(.., setting)| setting.clone()).collect();
        let scores = self.score(&settings, |plan| self.fresh(plan))?;
        let pairs = parts.into_iter().zip(scores);
        Ok(pairs.map(|((what, value, _), without)| Contribution { what, value, without }).collect())
    }
}

/// Name of a trial's policy inside an experiment.
fn name(i: usize) -> String {
    format!("{TUNED}-{i}")
}

/// Position of a key's value in its estimator's range; `None` for a value that is not one of ours.
fn position(key: &Key, text: &str) -> Option<f64> {
    let number = |text: &str, scale: f64| Some(text.parse::<f64>().ok()? * scale);
    let bare = text.trim_matches('"');
    let (value, from, to) = match key.values {
        Choice::Words(words) => return Some(words.iter().position(|w| *w == text)? as f64 + 0.5),
        Choice::Percent(from, to) => (number(bare.strip_suffix('%')?, 1.0)?, from, to),
        Choice::Time(from, to) => {
            let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
            let found =
                units.iter().find_map(|(unit, ns)| number(bare.strip_suffix(unit)?, *ns))?;
            (found, from, to)
        }
    };
    Some((libm::log(value / from) / libm::log(to / from)).clamp(0.0, 1.0 - 1e-9))
}

/// A number to order by: first settings that meet every limit, by cost, then the others by how far they are from
/// meeting them.
fn rank(score: &Score) -> f64 {
    if score.excess > 0.0 {
        return 10.0 + score.excess;
    }
    // Costs of any unit, in order, below every setting that breaks a limit.
    score.cost.map_or(9.0, |cost| libm::atan(cost.value / 100.0))
}

/// The settings that no other beats in both worst limit and cost, cheapest first.
fn front(tried: &[TunedTrial]) -> Vec<TunedTrial> {
    let cost = |t: &TunedTrial| t.score.cost.map_or(f64::INFINITY, |c| c.value);
    let beats = |a: &TunedTrial, b: &TunedTrial| {
        cost(a) <= cost(b)
            && a.score.excess <= b.score.excess
            && (cost(a) < cost(b) || a.score.excess < b.score.excess)
    };
    let mut front: Vec<TunedTrial> =
        tried.iter().filter(|t| !tried.iter().any(|other| beats(other, t))).cloned().collect();
    front.sort_by(|a, b| {
        cost(a).total_cmp(&cost(b)).then(a.score.excess.total_cmp(&b.score.excess))
    });
    front.dedup_by(|a, b| cost(a) == cost(b) && a.score.excess == b.score.excess);
    front
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_experiment::judge::LimitResult;

    use crate::slo::Reading;

    fn tried(base: &str, excess: f64, cost: f64) -> TunedTrial {
        let cost = Some(Reading { value: cost, interval: None });
        let score = Score {
            limits: Vec::new(),
            cost,
            excess,
            held: LimitResult::Likely,
            too_much: Vec::new(),
            price: String::new(),
        };
        TunedTrial { setting: Setting::plain(base), score }
    }

    #[test]
    fn a_setting_that_holds_comes_before_any_that_does_not() {
        let order = [(-1.0, 1.0), (-0.1, 50.0), (-2.0, 1e9), (0.1, 0.0), (3.0, 0.0)];
        let ranks: Vec<f64> = order.iter().map(|(e, c)| rank(&tried("x", *e, *c).score)).collect();
        assert!(ranks.is_sorted(), "{ranks:?}");
    }

    #[test]
    fn the_front_has_what_nothing_beats() {
        let all = [
            tried("cheap", 2.0, 1.0),
            tried("beaten", 2.5, 2.0),
            tried("middle", 0.5, 3.0),
            tried("good", -1.0, 9.0),
            tried("twin", -1.0, 9.0),
        ];
        let names: Vec<String> = front(&all).into_iter().map(|t| t.setting.base).collect();
        assert_eq!(names, ["cheap", "middle", "good"]);
    }

    #[test]
    fn values_go_to_their_place_in_the_range_and_back() {
        for key in KEYS {
            for share in [0.01, 0.3, 0.77, 0.99] {
                let text = key.values.at(share);
                let x = position(&key, &text).unwrap();
                let back = match key.values {
                    Choice::Words(words) => key.values.at(x / words.len() as f64),
                    _ => key.values.at(x),
                };
                assert_eq!(text, back, "{}", key.name);
            }
        }
    }
}
