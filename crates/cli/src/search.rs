//! `vcoop tune`, and the code that it shares with `vcoop capacity`.

mod capacity;

use serde_json::{Value, json};
use vcoop_capture::Loader;
use vcoop_experiment::deploy::{Deployment, deploy};
use vcoop_experiment::judge::LimitResult;
use vcoop_experiment::result::Document;
use vcoop_report::render_deployment;
use vcoop_sweep::slo::{Quantity, Reading, Slo, quantities};
use vcoop_sweep::space::{Parts, TUNED};
use vcoop_sweep::trial::{BASELINE, Bench, Objective, Score, SearchError};
use vcoop_sweep::tune::{ConfirmedSetting, Goal, Tuned, tune};

use crate::failure::Failure;
use crate::interrupt::stop_flag_of_search;
use crate::options::{Calibration, MayCost, least};
use crate::output::{self, note, print, style};
use crate::progress::line;
use crate::run::refuse_twice;
use crate::scenario::{Overrides, jobs, refuse, source};

pub(crate) use capacity::run_capacity;

/// What `tune` and `capacity` share.
#[derive(Debug, clap::Args)]
pub(crate) struct SearchArgs {
    /// A scenario file, or the name of a built-in scenario (see `vcoop list scenarios`)
    pub(crate) scenario: String,
    /// A limit that must hold, like 'guest.cyclictest.p999 < 100us'; several: all of them
    #[arg(long, value_name = "LIMIT", required = true)]
    pub(crate) slo: Vec<String>,
    /// Policies to try, with commas between. Default: those of the scenario (capacity), or those that fit
    /// it (tune)
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,
    /// Change a field: host.pcpus=8, vm.guest.vcpus=2
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<String>,
    #[command(flatten)]
    pub(crate) calibration: Calibration,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Measured time of a repeat, with a unit: 500ms, 10s
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// Repeats of each setting, each with a seed of its own
    #[arg(long, value_name = "N")]
    pub(crate) repeats: Option<String>,
    /// Seed of the first repeat
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<String>,
    /// Runs at the same time; results do not depend on it. Default: one for each CPU
    #[arg(long, value_name = "N", value_parser = least::<1>)]
    pub(crate) jobs: Option<u32>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress and no notes on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// What a search can vary besides policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AlsoArg {
    /// What fires guests' timers, and how early
    Timers,
    /// What idle vCPUs do, and how long the host polls for them
    Idle,
    /// How many of its vCPUs a guest uses
    Governors,
    /// Patches of Xen's scheduler
    Patches,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// What to minimize among settings that hold every limit: gain, which is what guests wait as a
    /// ratio to what they wait under vanilla, as in every verdict; or a number of the result, like host.cpu
    #[arg(long, value_name = "NAME", default_value = "gain")]
    pub(crate) minimize: String,
    /// Vary these, too. Default: those that the scenario sets (a timer, an idle loop, a governor), and
    /// patches on a host with Xen's scheduler
    #[arg(long, value_enum, value_name = "A,B", value_delimiter = ',')]
    pub(crate) also: Vec<AlsoArg>,
    /// Settings to try
    #[arg(long, value_name = "N", default_value = "64", value_parser = least::<1>)]
    pub(crate) trials: u32,
    /// Repeats, with seeds that the search has not seen, of the best; 2 at least. Default: twice the
    /// scenario's
    #[arg(long, value_name = "N", value_parser = least::<2>)]
    pub(crate) confirm: Option<u32>,
    /// Seed of the search itself
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) search_seed: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CapacityArgs {
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// What gets harder: host.pcpus=16..1, or vcpus_per_pcpu=0.5..4. Default: the first VM's count,
    /// 1 to 64
    #[arg(long, value_name = "PATH=EASY..HARD")]
    pub(crate) vary: Option<String>,
    /// The field that changes for vcpus_per_pcpu: the host's pCPUs, or a VM's count or vCPUs
    #[arg(long, value_name = "PATH", requires = "vary", default_value = "host.pcpus")]
    pub(crate) by: String,
}

fn failure(error: SearchError) -> Failure {
    match error {
        SearchError::Refused(found) => refuse(found),
        SearchError::Failed(why) => Failure::Run(why),
        SearchError::Interrupted => Failure::Interrupted,
    }
}

/// The scenario, to be changed.
fn bench(args: &SearchArgs) -> Result<Bench, Failure> {
    let source = source(&args.scenario)?;
    refuse_twice(&args.policy)?;
    let numbers = [("--repeats", &args.repeats), ("--seed", &args.seed)];
    let times = [("--duration", &args.duration)];
    let overrides = Overrides::of(&args.sets, &args.calibration, &times, &numbers)?;
    let bench = Bench {
        name: source.name,
        text: source.text,
        jobs: jobs(args.jobs),
        limits: args.may_cost.limits(),
        loader: Loader::default(),
        sets: overrides.sets.clone(),
    };
    bench.scenario(&[]).map_err(|found| overrides.refuse(found))?;
    Ok(bench)
}

/// A short simulation of the scenario without a policy, for all names in results.
fn look(bench: &Bench) -> Result<Document, Failure> {
    let mut plans = [bench.plan(&[], BASELINE).map_err(refuse)?];
    plans[0].repeats = 1;
    bench.run(&mut plans, stop_flag_of_search()).map_err(failure)
}

fn limits(args: &SearchArgs, known: &[Quantity]) -> Result<Vec<Slo>, Failure> {
    args.slo.iter().map(|text| Slo::parse("--slo", text, known).map_err(refuse)).collect()
}

pub(crate) fn run_tune(args: &TuneArgs) -> Result<(), Failure> {
    let stop = stop_flag_of_search();
    let bench = bench(&args.search)?;
    let quiet = args.search.quiet;
    let look = look(&bench)?;
    let slos = limits(&args.search, &quantities(&look))?;
    let cost = Objective::find("--minimize", &args.minimize, &look).map_err(refuse)?;
    let repeats = bench.plan(&[], BASELINE).map_err(refuse)?.repeats;
    let plans = bench.scenario(&[]).and_then(|s| s.plans(None)).map_err(refuse)?;
    let mut parts = Parts::of(&plans);
    for also in &args.also {
        match also {
            AlsoArg::Timers => parts.timers = true,
            AlsoArg::Idle => parts.idle = true,
            AlsoArg::Governors => parts.governors = true,
            AlsoArg::Patches => parts.patches = true,
        }
    }
    let goal = Goal {
        slos,
        cost,
        bases: args.search.policy.clone(),
        parts,
        trials: args.trials as usize,
        confirm: args.confirm.unwrap_or(repeats.saturating_mul(2).max(10)),
        seed: args.search_seed,
    };
    let told = |done: usize, total: usize| line(quiet, &format!("{done}/{total} settings"));
    let found = tune(&bench, &goal, stop, &told);
    line(quiet, "");
    let found = found.map_err(failure)?;
    if !quiet {
        for (policy, why) in &found.unfit {
            note(&format!("{policy} was left out: {why}"));
        }
    }
    let apply = match &found.best {
        Some(best) => {
            let tuned = bench.plan(&best.tried.setting.sets(), TUNED).map_err(refuse)?;
            let base = bench.plan(&[], BASELINE).map_err(refuse)?;
            Some(deploy(&tuned, Some(&base), None))
        }
        None => None,
    };
    print(&if args.search.json {
        tuned_json(&goal, &found, &look, apply.as_ref())?
    } else {
        tuned_words(&goal, &found, &look, apply.as_ref())
    })
}

/// A score as text: each limit, then the cost.
fn score_words(goal: &Goal, score: &Score) -> String {
    let mut parts: Vec<String> = goal.slos.iter().zip(&score.limits).map(limit_words).collect();
    let show = |x| goal.cost.show(x);
    let cost = score.cost.map_or("n/a".to_owned(), |c| shown(&show, c.value, c.interval));
    parts.push(match &goal.cost {
        Objective::Gain => format!("guests wait {cost} as long as under vanilla"),
        Objective::Of(quantity) => format!("{} {cost}", quantity.name),
    });
    if !score.too_much.is_empty() {
        parts.push(format!("costs too much: {}", score.too_much.join(", ")));
    }
    parts.join(", ")
}

fn limit_words((slo, reading): (&Slo, &Option<Reading>)) -> String {
    match reading {
        Some(r) => {
            let value = shown(&|x| slo.quantity.show(x), r.value, r.interval);
            format!("{} {value}", slo.quantity.name)
        }
        None => format!("{} n/a (too few samples)", slo.quantity.name),
    }
}

fn shown(show: &dyn Fn(f64) -> String, value: f64, interval: Option<[f64; 2]>) -> String {
    match interval {
        Some([lo, hi]) if lo != hi => format!("{} [{}, {}]", show(value), show(lo), show(hi)),
        _ => show(value),
    }
}

/// 95 % score interval of a proportion (E. Wilson, JASA 22, 1927), in percent.
fn wilson((held, of): (u32, u32)) -> (f64, f64) {
    let (n, p, z) = (f64::from(of), f64::from(held) / f64::from(of.max(1)), 1.959_964_f64);
    let (centre, spread) =
        (p + z * z / (2.0 * n), z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt());
    let scale = 1.0 + z * z / n;
    (100.0 * ((centre - spread) / scale).max(0.0), 100.0 * ((centre + spread) / scale).min(1.0))
}

fn sure(confirmed: &ConfirmedSetting) -> String {
    let (held, of) = confirmed.held;
    let together = format!("every limit {} over all repeats", confirmed.tried.score.held);
    if of == 0 {
        return together + "; single ones have too few samples to tell";
    }
    let (lo, hi) = wilson(confirmed.held);
    format!(
        "{together}, and in {held} of {of} of them alone: 95 % sure that {lo:.0} to {hi:.0} % of such runs hold"
    )
}

/// Whether the confirmed settings have too few samples to tell.
fn is_unknown(found: &Tuned) -> bool {
    found.confirmed.first().is_some_and(|first| first.tried.score.held == LimitResult::Unknown)
}

fn tuned_words(goal: &Goal, found: &Tuned, look: &Document, apply: Option<&Deployment>) -> String {
    let limits: Vec<&str> = goal.slos.iter().map(|slo| slo.text.as_str()).collect();
    let style = style();
    let limits = limits.join(" and ");
    let best = match &goal.cost {
        Objective::Gain => "shortest waits of guests, as a ratio to vanilla,".to_owned(),
        Objective::Of(quantity) => format!("lowest {}", quantity.name),
    };
    let tried = format!(
        "Settings tried: {}. The best is the one with the {best} among those with {limits} and no more \
         cost to others than --may-cost.",
        found.trials
    );
    let mut text = style.wrap(&tried, 2) + "\n";
    let Some(first) = found.confirmed.first() else { return text };
    let unknown = is_unknown(found);
    match &found.best {
        Some(best) => {
            text += &style.wrap(&format!("Recommended: {}", best.tried.setting.words()), 2);
            text += "\n";
            text += &best.tried.setting.toml();
            if let Some(one) = apply {
                text.push('\n');
                text += &render_deployment(one, "the setting", style);
            }
        }
        // Without numbers the first is only the one that was tried first.
        None if unknown => {
            let none = "No setting is known to meet it, and none is the nearest: the repeats that confirm \
                        settings have too few samples; give a larger --confirm or --duration";
            text += &style.wrap(none, 2);
        }
        None => {
            let nearest = first.tried.setting.words();
            text += &style.wrap(&format!("No setting meets it; the nearest is {nearest}"), 2);
            text += "\n";
            text += &first.tried.setting.toml();
        }
    }
    if !unknown {
        text += "\n";
        text += &style.wrap(&format!("  {}", score_words(goal, &first.tried.score)), 4);
        text += &style.wrap(&format!("  {}", sure(first)), 4);
        text += "  with seeds that the search had not seen\n";
        if !first.tried.score.price.is_empty() {
            text += &style.wrap(&format!("  {}", first.tried.score.price), 4);
        }
    }
    text += &style.wrap(&look.limits.words(), 2);
    text += &style.wrap(&format!("Simulated: {}", look.hosts.join(", ")), 2);
    if !unknown && !found.contributions.is_empty() {
        text += "\nWithout one of the settings:\n";
        for part in &found.contributions {
            let instead =
                if part.what == "policy" { "vanilla instead" } else { "as the policy has it" };
            let value = part.value.trim_matches('"');
            let score = score_words(goal, &part.without);
            let held = &part.without.held;
            let line = format!("  {} {value} -> {instead}: {score} ({held})", part.what);
            text += &style.wrap(&line, 4);
        }
    }
    text += "\nNo setting tried is better than one of these in both the worst limit and what is minimized:\n";
    for tried in &found.front {
        let (setting, score) = (tried.setting.words(), score_words(goal, &tried.score));
        text += &style.wrap(&format!("  {setting}: {score}"), 4);
    }
    text
}

fn score_json(slos: &[Slo], cost: Option<&Objective>, score: &Score) -> Value {
    let reading = |r: &Option<Reading>| {
        r.map_or(Value::Null, |r| json!({ "value": r.value, "ci95": r.interval }))
    };
    let limits: Vec<Value> = slos
        .iter()
        .zip(&score.limits)
        .map(
            |(slo, r)| json!({ "slo": slo.text, "unit": slo.quantity.unit, "reading": reading(r) }),
        )
        .collect();
    let mut all = json!({ "held": score.held.to_string(), "limits": limits });
    if !score.too_much.is_empty() {
        all["too_much"] = json!(score.too_much);
    }
    if !score.price.is_empty() {
        all["price"] = json!(score.price);
    }
    if let Some(cost) = cost {
        all["cost"] =
            json!({ "name": cost.name(), "unit": cost.unit(), "reading": reading(&score.cost) });
    }
    all
}

fn tuned_json(
    goal: &Goal,
    found: &Tuned,
    look: &Document,
    apply: Option<&Deployment>,
) -> Result<String, Failure> {
    let score = |s: &Score| score_json(&goal.slos, Some(&goal.cost), s);
    let setting = |s: &vcoop_sweep::space::Setting| json!({ "base": s.base, "keys": s.keys });
    let confirmed = |c: &ConfirmedSetting| {
        let percent = (c.held.1 > 0).then(|| wilson(c.held));
        json!({
            "setting": setting(&c.tried.setting),
            "score": score(&c.tried.score),
            "repeats_held": c.held.0,
            "repeats_that_tell": c.held.1,
            "held_percent_ci95": percent,
        })
    };
    let parts = found.contributions.iter().map(
        |part| json!({ "what": part.what, "value": part.value, "without": score(&part.without) }),
    );
    let unknown = is_unknown(found);
    output::json(&json!({
        "schema": "vcoop.tune/1",
        "version": env!("CARGO_PKG_VERSION"),
        "limits": look.limits,
        "hosts": look.hosts,
        "met": (!unknown).then_some(found.best.is_some()),
        "deployment": apply,
        "confirmed": found.confirmed.iter().map(confirmed).collect::<Vec<_>>(),
        "contributions": parts.collect::<Vec<_>>(),
        "front": found.front.iter()
            .map(|t| json!({ "setting": setting(&t.setting), "score": score(&t.score) }))
            .collect::<Vec<_>>(),
        "trials": found.trials,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_known_answers() {
        // 10 of 10: 72.2 to 100 %; 5 of 10: 23.7 to 76.3 %.
        let (lo, hi) = wilson((10, 10));
        assert!((lo - 72.25).abs() < 0.1 && hi > 99.99, "{lo} {hi}");
        let (lo, hi) = wilson((5, 10));
        assert!((lo - 23.66).abs() < 0.1 && (hi - 76.34).abs() < 0.1, "{lo} {hi}");
    }
}
