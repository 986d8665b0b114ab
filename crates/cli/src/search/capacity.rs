//! `vcoop capacity`.

use serde_json::json;
use vcoop_experiment::judge::LimitResult;
use vcoop_experiment::result::Document;
use vcoop_model::diagnostic::Diagnostic;
use vcoop_model::scenario::Set;
use vcoop_sweep::capacity::{Capacity, CapacityStep, Knob, capacity};
use vcoop_sweep::ratio::{reach, size};
use vcoop_sweep::slo::{Reading, Slo, quantities};
use vcoop_sweep::trial::Bench;

use super::{CapacityArgs, bench, failure, limit_words, limits, look, score_json};
use crate::failure::Failure;
use crate::interrupt::stop_flag_of_search;
use crate::output::{self, print, style};
use crate::progress::line;
use crate::scenario::refuse;

/// The name of vCPUs per pCPU in `--vary`.
const RATIO: &str = "vcpus_per_pcpu";

/// What helps if a quantile of a limit has too few samples.
const MORE_SAMPLES: &str = "give more --repeats or a longer --duration";

/// The one field with a known effect: the number of pCPUs, in steps of one.
const PCPUS: &str = "host.pcpus";

/// The varied quantity, as requested.
#[derive(Clone, Debug, PartialEq)]
enum Vary {
    /// `PATH=FROM..TO`.
    Field(Knob),
    /// `vcpus_per_pcpu=FROM..TO`.
    Ratio(String, String),
}

impl Vary {
    fn parse(text: &str) -> Result<Self, Failure> {
        let help = "write PATH=EASY..HARD with whole numbers, like vm.guest.count=1..64 or \
                    host.pcpus=16..1, or vcpus_per_pcpu with numbers above 0, like \
                    vcpus_per_pcpu=0.5..4";
        let no = || Failure::usage(format!("--vary {text}: {help}"));
        let (path, range) = text.split_once('=').ok_or_else(no)?;
        let (from, to) = range.split_once("..").ok_or_else(no)?;
        let (path, from, to) = (path.trim(), from.trim(), to.trim());
        if from == to && !from.is_empty() {
            let help = "nothing is varied; for one value use `vcoop run`";
            return Err(Failure::usage(format!("--vary {text}: both ends are {from}; {help}")));
        }
        if path == RATIO {
            let ratio = |x: &str| x.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
            return match (ratio(from), ratio(to)) {
                (Some(a), Some(b)) if a != b => Ok(Self::Ratio(from.to_owned(), to.to_owned())),
                _ => Err(no()),
            };
        }
        match (from.parse(), to.parse()) {
            (Ok(from), Ok(to)) if !path.is_empty() && from != to => {
                Ok(Self::Field(Knob { path: path.to_owned(), from, to }))
            }
            _ => Err(no()),
        }
    }

    /// The field that is varied; for a ratio, the field `by`.
    fn knob(&self, bench: &Bench, policy: &str, by: &str) -> Result<Knob, Failure> {
        let (from, to) = match self {
            Self::Field(knob) => return Ok(knob.clone()),
            Self::Ratio(from, to) => (from, to),
        };
        let asked = format!("--vary {RATIO}={from}..{to}");
        let plan = |n: i64| bench.plan(&[Set::of(by, &n.to_string())], policy);
        let (vcpus, _) = bench.plan(&[], policy).map(|plan| size(&plan)).map_err(refuse)?;
        let sized = |n: i64| match u32::try_from(n) {
            // Not every number of pCPUs fits the host's topology.
            Ok(pcpus) if by == PCPUS => Ok((vcpus, pcpus)),
            _ => plan(n).map(|plan| size(&plan)),
        };
        let end = |value: &str| {
            let found = reach(by, value, sized).and_then(|n| plan(n).map(|_| n));
            found.map_err(|mut found| {
                found
                    .0
                    .iter_mut()
                    .filter(|d| d.file == RATIO)
                    .for_each(|d| d.file.clone_from(&asked));
                let message = format!("{value} vCPUs a pCPU cannot be reached by `{by}` here");
                let help = "take another end, a topology without `cores_per_llc`, or another \
                            field: --by vm.NAME.count"
                    .to_owned();
                found.0.push(Diagnostic::whole(&asked, message, Some(help)));
                refuse(found)
            })
        };
        let (easy, hard) = (end(from)?, end(to)?);
        if easy == hard {
            return Err(Failure::usage(format!("{asked}: both ends are {by} = {easy}")));
        }
        Ok(Knob { path: by.to_owned(), from: easy, to: hard })
    }
}

pub(crate) fn run_capacity(args: &CapacityArgs) -> Result<(), Failure> {
    let stop = stop_flag_of_search();
    let bench = bench(&args.search)?;
    let quiet = args.search.quiet;
    let scenario = bench.scenario(&[]).map_err(refuse)?;
    let policies = match args.search.policy.as_slice() {
        [] => scenario.compared.clone(),
        named => named.to_vec(),
    };
    let first = policies.first().map_or("vanilla", String::as_str);
    let plan = bench.plan(&[], first).map_err(refuse)?;
    let vary = match (&args.vary, plan.vms.first()) {
        (Some(text), _) => Vary::parse(text)?,
        (None, Some(vm)) => {
            let name = vm.name.split('/').next().unwrap_or(&vm.name);
            Vary::Field(Knob { path: format!("vm.{name}.count"), from: 1, to: 64 })
        }
        (None, None) => {
            return Err(Failure::usage("the scenario has no VM; say what grows with --vary"));
        }
    };
    if matches!(vary, Vary::Field(_)) && args.by != PCPUS {
        return Err(Failure::usage(format!("--by goes with --vary {RATIO}=EASY..HARD")));
    }
    let knob = vary.knob(&bench, first, &args.by)?;
    // First checks both ends for every policy: an impossible value must not cost the time of a run.
    for policy in &policies {
        for end in [knob.from, knob.to] {
            let set = Set::of(&knob.path, &end.to_string());
            bench.plan(std::slice::from_ref(&set), policy).map_err(|mut found| {
                let own = |d: &&mut Diagnostic| d.snippet == set.text();
                found.0.iter_mut().filter(own).for_each(|d| "--vary".clone_into(&mut d.file));
                refuse(found)
            })?;
        }
    }
    let look = look(&bench)?;
    let slos = limits(&args.search, &quantities(&look))?;
    slos.iter().try_for_each(|slo| slo.refuse_total("--slo", &knob.path)).map_err(refuse)?;
    let mut found = Vec::new();
    for policy in &policies {
        let told = |tried: &CapacityStep| {
            let text = format!("{policy}: {} = {}: {}", knob.path, tried.value, tried.score.held);
            line(quiet, &text);
        };
        let one = capacity(&bench, policy, &knob, &slos, stop, &told);
        line(quiet, "");
        found.push(one.map_err(failure)?);
    }
    print(&if args.search.json {
        capacity_json(&knob, &slos, &found, &look)?
    } else {
        capacity_words(&vary, &knob, &slos, &found, &look)
    })
}

/// vCPUs per pCPU at a step that was tried.
fn ratio(tried: &CapacityStep) -> f64 {
    f64::from(tried.vcpus) / f64::from(tried.pcpus.max(1))
}

/// vCPUs per pCPU at a value of the varied field.
fn ratio_at(one: &Capacity, value: Option<i64>) -> Option<f64> {
    one.tried.iter().find(|tried| Some(tried.value) == value).map(ratio)
}

fn capacity_words(
    vary: &Vary,
    knob: &Knob,
    slos: &[Slo],
    found: &[Capacity],
    look: &Document,
) -> String {
    let Knob { path, from, to } = knob;
    let what = match vary {
        Vary::Field(_) if to < from => {
            format!("The smallest {path} from {from} to {to} with")
        }
        Vary::Field(_) => format!("The largest {path} from {from} to {to} with"),
        Vary::Ratio(easy, hard) => {
            format!("The most vCPUs a pCPU from {easy} to {hard} ({path} {from} to {to}) with")
        }
    };
    let limits: Vec<&str> = slos.iter().map(|slo| slo.text.as_str()).collect();
    let limits = limits.join(" and ");
    let mut text =
        style().wrap(&format!("{what} {limits}, and no more cost to others than --may-cost"), 2);
    text.push('\n');
    for one in found {
        for (i, line) in capacity_lines(one, vary, knob, slos).iter().enumerate() {
            let lead = if i == 0 { "" } else { "  " };
            text += &style().wrap(&format!("{lead}{line}"), 4);
        }
    }
    text += &style().wrap(&look.limits.words(), 2);
    text +=
        &style().wrap(&format!("Simulated, as the scenario has it: {}", look.hosts.join(", ")), 2);
    text
}

/// The result for a policy: the answer, then its reason.
fn capacity_lines(one: &Capacity, vary: &Vary, knob: &Knob, slos: &[Slo]) -> Vec<String> {
    let by_ratio = matches!(vary, Vary::Ratio(..));
    let at = |value: i64| match ratio_at(one, Some(value)) {
        Some(ratio) if by_ratio => format!("{ratio:.2}"),
        _ => value.to_string(),
    };
    let policy = &one.policy;
    let Some(most) = &one.most else {
        let Some(first) = one.tried.first() else { return Vec::new() };
        let answer = match first.score.held {
            LimitResult::Unknown => &format!("not known: too few samples; {MORE_SAMPLES}"),
            _ => "none",
        };
        let why =
            format!("at {}, where the range begins: {}", at(first.value), broken(slos, first));
        return vec![format!("{policy}: {answer}"), why];
    };
    let value = most.value;
    let (answer, ratio) = (at(value), ratio(most));
    let harder = |tried: &&CapacityStep| tried.value != value;
    let next = one.tried.iter().rev().take_while(harder).last();
    // Too few samples are no broken limit.
    let unknown = next.is_some_and(|next| next.score.held == LimitResult::Unknown);
    let more = match (one.open, unknown) {
        (true, _) if knob.to < knob.from && !by_ratio => " or less, as the range ends there",
        (true, _) => " or more, as the range ends there",
        (_, true) => " or harder",
        _ => "",
    };
    let mut lines = vec![if by_ratio {
        format!("{policy}: {answer}{more} ({} = {value})", knob.path)
    } else {
        format!("{policy}: {answer}{more} ({ratio:.2} vCPUs a pCPU)")
    }];
    let held: Vec<String> = slos.iter().zip(&most.score.limits).map(limit_words).collect();
    lines.push(format!("holds at {answer}: {}", held.join(", ")));
    if let Some(next) = next {
        let (at, why) = (at(next.value), broken(slos, next));
        lines.push(match unknown {
            true => format!("not known at {at}: {why}; {MORE_SAMPLES}"),
            false => format!("fails at {at}: {why}"),
        });
    }
    let sure = one.surely.map_or("nowhere".to_owned(), |value| format!("as far as {}", at(value)));
    let fails = match one.at_best.filter(|value| *value != knob.to) {
        Some(value) => format!("beyond {}", at(value)),
        None => "nowhere".to_owned(),
    };
    lines.push(format!("by 95 % intervals: surely holds {sure}, surely fails {fails}"));
    lines.extend(Some(most.score.price.clone()).filter(|price| !price.is_empty()));
    if !one.contradictions.is_empty() {
        let values: Vec<String> = one.contradictions.iter().map(|value| at(*value)).collect();
        let values = values.join(", ");
        lines.push(format!(
            "harder is not always worse here: {values} hold though an easier one fails"
        ));
    }
    lines
}

/// The limits that a step breaks, and its excessive costs.
fn broken(slos: &[Slo], tried: &CapacityStep) -> String {
    let holds =
        |slo: &Slo, r: &Option<Reading>| r.is_some_and(|r| slo.held(r) >= LimitResult::Likely);
    let limits = slos.iter().zip(&tried.score.limits).filter(|(slo, r)| !holds(slo, r));
    let mut said: Vec<String> = limits.map(limit_words).collect();
    if !tried.score.too_much.is_empty() {
        said.push(format!("costs too much: {}", tried.score.too_much.join(", ")));
    }
    said.join(", ")
}

fn capacity_json(
    knob: &Knob,
    slos: &[Slo],
    found: &[Capacity],
    look: &Document,
) -> Result<String, Failure> {
    let policies = found.iter().map(|one| {
        let tried = one.tried.iter().map(|t| {
            json!({
                "value": t.value, "vcpus": t.vcpus, "pcpus": t.pcpus,
                "score": score_json(slos, None, &t.score),
            })
        });
        json!({
            "policy": one.policy,
            "most": one.most.as_ref().map(|t| t.value),
            "vcpus_per_pcpu": one.most.as_ref().map(ratio),
            "ci95": [one.surely, one.at_best],
            "vcpus_per_pcpu_ci95": [ratio_at(one, one.surely), ratio_at(one, one.at_best)],
            "open": one.open,
            "contradictions": one.contradictions,
            "tried": tried.collect::<Vec<_>>(),
        })
    });
    output::json(&json!({
        "schema": "vcoop.capacity/1",
        "version": env!("CARGO_PKG_VERSION"),
        "limits": look.limits,
        "hosts": look.hosts,
        "vary": knob.path,
        "from": knob.from,
        "to": knob.to,
        "policies": policies.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use vcoop_sweep::trial::Score;

    use super::*;

    fn tried(value: i64, held: LimitResult) -> CapacityStep {
        let score = Score {
            limits: Vec::new(),
            cost: None,
            excess: 0.0,
            held,
            too_much: Vec::new(),
            price: String::new(),
        };
        CapacityStep { value, vcpus: 1, pcpus: 2, score }
    }

    #[test]
    fn a_step_of_too_few_samples_is_not_said_to_fail() {
        let lines = |held| {
            let one = Capacity {
                policy: "vanilla".to_owned(),
                most: Some(tried(1, LimitResult::Yes)),
                surely: Some(1),
                at_best: None,
                open: false,
                contradictions: Vec::new(),
                tried: vec![tried(1, LimitResult::Yes), tried(2, held)],
            };
            let knob = Knob { path: "load.hog.count".to_owned(), from: 1, to: 4 };
            capacity_lines(&one, &Vary::Field(knob.clone()), &knob, &[])
        };
        let unknown = lines(LimitResult::Unknown);
        assert_eq!(unknown[0], "vanilla: 1 or harder (0.50 vCPUs a pCPU)");
        assert!(unknown[2].starts_with("not known at 2: "), "{unknown:?}");
        let broken = lines(LimitResult::No);
        assert_eq!(broken[0], "vanilla: 1 (0.50 vCPUs a pCPU)");
        assert!(broken[2].starts_with("fails at 2: "), "{broken:?}");
    }

    #[test]
    fn an_open_end_is_said_to_be_where_the_range_goes() {
        let first = |path: &str, from, to, ratio| {
            let one = Capacity {
                policy: "vanilla".to_owned(),
                most: Some(tried(to, LimitResult::Yes)),
                surely: Some(to),
                at_best: None,
                open: true,
                contradictions: Vec::new(),
                tried: vec![tried(to, LimitResult::Yes)],
            };
            let knob = Knob { path: path.to_owned(), from, to };
            let vary = if ratio {
                Vary::Ratio("0.1".to_owned(), "0.5".to_owned())
            } else {
                Vary::Field(knob.clone())
            };
            capacity_lines(&one, &vary, &knob, &[]).remove(0)
        };
        let fields = [first("vm.guest.count", 1, 4, false), first("host.pcpus", 4, 2, false)];
        assert!(fields[0].starts_with("vanilla: 4 or more, "), "{fields:?}");
        assert!(fields[1].starts_with("vanilla: 2 or less, "), "{fields:?}");
        let ratio = first("host.pcpus", 4, 2, true);
        assert!(ratio.starts_with("vanilla: 0.50 or more, "), "{ratio}");
    }

    #[test]
    fn what_varies_is_read_in_either_direction() {
        let Ok(Vary::Field(fewer)) = Vary::parse("host.pcpus=16..1") else {
            panic!("a field");
        };
        assert_eq!((fewer.from, fewer.to, fewer.steps()), (16, 1, 16));
        let ratio = Vary::Ratio("0.5".to_owned(), "4".to_owned());
        assert_eq!(Vary::parse(" vcpus_per_pcpu = 0.5 .. 4 ").ok(), Some(ratio));
        let wrong = ["host.pcpus", "=1..2", "a=1", "a=1..1", "a=x..2", "a=0.5..2"];
        let ratios = ["0..4", "4..4", "-1..4", "nan..4", "x..4", "1..inf"];
        let ratios = ratios.iter().map(|range| format!("vcpus_per_pcpu={range}"));
        for wrong in wrong.map(str::to_owned).into_iter().chain(ratios) {
            assert!(Vary::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
