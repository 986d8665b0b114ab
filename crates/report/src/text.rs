//! The report of `vcoop run`.

use vcoop_experiment::deploy::Deployment;
use vcoop_experiment::format;
use vcoop_experiment::judge;
use vcoop_experiment::result::{Document, SIM, Series, VM, Verdict};
use vcoop_experiment::verdict;

use crate::chart::build::place_words;
use crate::style::Style;
use crate::{cost, curves, latency, parts, sim_vs_kvm, vcpus};

/// A report that fits 100 columns: latency by probe and policy, when VMs had come, what the host pays,
/// where the time went, what is best, and the command that gives it again.
///
/// With one cell everything is shown; a matrix has the first two and the verdict for each cell.
pub fn render(document: &Document, style: Style) -> String {
    let mut out = style.heading(&format!("{}: {}", document.scenario, document.title));
    out = style.wrap(&out, 2);
    out.push_str(&style.wrap(&setting(document), 2));
    if let Some(hosts) = hosts(document) {
        out.push_str(&style.wrap(&format!("Simulated: {hosts}"), 2));
    }
    let cells = document.cells();
    let alone = cells.len() == document.backends.len();
    for cell in &cells {
        let title = place_words(document, &cell.0, &cell.1);
        out.push('\n');
        if !title.is_empty() {
            out.push_str(&style.heading(&title));
            out.push('\n');
        }
        let parts = if alone { parts::render(document, cell, style) } else { String::new() };
        let sections = [
            ("Where the vCPUs' time went", vcpus::render(document, cell, style)),
            ("Latency", latency::render(document, cell, style)),
            (
                "Time from the first request until so many VMs were there",
                curves::render(document, cell, style),
            ),
            ("Costs and counts", cost::render(document, cell, style)),
            ("Where the time went", parts),
        ];
        for (heading, body) in &sections {
            out.push_str(&style.section(heading, body));
        }
        let [_, (_, latencies), _, (_, costs), _] = sections;
        if latencies.is_empty() && costs.is_empty() {
            out.push_str("Nothing was measured.\n");
        }
    }
    out.push_str(&sim_vs_kvm::render(document, style));
    if cells.is_empty() {
        out.push_str("\nNothing was measured.\n");
    }
    out.push('\n');
    out.push_str(&style.wrap(&legend(document), 2));
    out.push_str(&sim_vs_kvm::missing(&document.missing, style));
    if let Some(text) = interrupted(document) {
        out.push_str(&style.wrap(&text, 2));
    }
    out.push_str(&vcpus::notes(&document.notes, style));
    for verdict in &document.verdicts {
        out.push_str(
            &style.heading(&style.wrap(&verdict::line(verdict, document.backends.len() > 1), 2)),
        );
    }
    let (limits, verdicts) = (document.limits.words(), &document.verdicts);
    // The verdict that none is within the limits has them in its text.
    if verdicts.iter().any(|verdict| verdict.best.is_some())
        && !verdicts.iter().any(|verdict| verdict.text.ends_with(limits.trim_end_matches('.')))
    {
        out.push_str(&style.wrap(&limits, 2));
    }
    out.push_str(&deployments(document, style));
    if !document.command.is_empty() {
        // One line of any length, so that it can be copied.
        out.push_str(&format!("Again: {}\n", document.command));
    }
    out
}

/// How to have the best policies, a line each as it is to be typed. If policies were measured, a simulation beside the
/// measurement does not decide which are best.
fn deployments(document: &Document, style: Style) -> String {
    let mut out = String::new();
    let measured = document.verdicts.iter().any(|v| v.backend != SIM);
    let decides = |v: &&Verdict| !measured || v.backend != SIM;
    let best = |policy: &str| {
        document.verdicts.iter().filter(decides).any(|v| v.best.as_deref() == Some(policy))
    };
    for one in document.deployments.iter().filter(|one| best(&one.policy)) {
        out += &render_deployment(one, &one.policy, style);
    }
    out
}

/// How to have a policy, a line each as it is to be typed. `name` is what the reader knows it by.
pub fn render_deployment(one: &Deployment, name: &str, style: Style) -> String {
    let mut out = String::new();
    if !one.lines.is_empty() {
        out.push_str(&format!("To apply {name} to a running VM:\n"));
    }
    one.lines.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
    for why in &one.simulation_only {
        out.push_str(&style.wrap(&format!("{name} is for simulation only: {why}."), 2));
    }
    out
}

/// How it was run, in a line.
pub(crate) fn setting(document: &Document) -> String {
    if document.is_observation() {
        return format!("observed for {}", format::time(document.duration_s * 1e6));
    }
    let turn = turn(document);
    // For a VM that vcoop does not run nothing is drawn.
    let seed = if turn == ROUND { String::new() } else { format!(", seed {}", document.seed) };
    format!(
        "{}; {} of {} after {} s of warm-up{seed}",
        document.backends.join(" and "),
        format::count(document.repeats.into(), turn),
        duration(document),
        document.warmup_s,
    )
}

/// What a VM that vcoop does not run takes its turns in.
const ROUND: &str = "round";

/// What is done several times with each policy.
pub(crate) fn turn(document: &Document) -> &'static str {
    if document.backends == [VM] { ROUND } else { "repeat" }
}

/// The largest number of repeats of a policy.
fn most_repeats(document: &Document) -> u32 {
    document.series.iter().map(|series| series.key().repeats).max().unwrap_or(0)
}

/// The smallest number of repeats of a policy, in cells with results.
fn least_repeats(document: &Document) -> u32 {
    let cells = document.cells();
    let all = cells.iter().flat_map(|cell| document.policies.iter().map(move |p| (cell, p)));
    let of = |(cell, policy): (&_, &String)| {
        let mut keys = document.series.iter().map(Series::key);
        keys.find(|key| key.is_in(cell) && key.policy == *policy).map_or(0, |key| key.repeats)
    };
    all.map(of).min().unwrap_or(0)
}

/// How far a run came that was interrupted.
pub(crate) fn interrupted(document: &Document) -> Option<String> {
    if !document.interrupted {
        return None;
    }
    if document.is_observation() {
        return Some("Interrupted: it was observed for less time than asked for.".to_owned());
    }
    let (least, most) = (least_repeats(document), most_repeats(document));
    let have = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let turns = format::count(document.repeats.into(), turn(document));
    let cells = document.cells().len() > document.backends.len();
    let of_what = if cells { ", in the cells that were begun" } else { "" };
    Some(format!(
        "Interrupted: each policy has {have} of {turns}{of_what}. A ratio is of those that both \
         policies have."
    ))
}

/// How long each repeat was measured.
pub(crate) fn duration(document: &Document) -> String {
    match document.measured_s {
        Some([least, most]) if least < most => format!("{least} to {most} s"),
        Some([least, _]) => format!("{least} s"),
        None => format!("{} s", document.duration_s),
    }
}

/// The hosts that were simulated, if any was.
pub(crate) fn hosts(document: &Document) -> Option<String> {
    match document.hosts.as_slice() {
        [] => None,
        [first] => Some(first.clone()),
        [first, rest @ ..] => Some(format!("{first}, and {} others", rest.len())),
    }
}

fn legend(document: &Document) -> String {
    if document.policies.len() < 2 {
        return "max is the largest sample seen, not a bound".to_owned();
    }
    let (base, turn) = (&document.baseline, turn(document));
    let most = "max is the largest sample seen, not a bound.";
    if most_repeats(document) < judge::LEAST_REPEATS {
        let least = judge::LEAST_REPEATS;
        return format!(
            "Ratios are to {base}, paired by {turn}, with 95 % intervals over {turn}s. No sign says \
             whether they differ beyond noise: that takes {least} {turn}s. {most}"
        );
    }
    let chance = by_chance(document).map(|text| text + " ").unwrap_or_default();
    format!(
        "Ratios are to {base}, paired by {turn}, with 95 % intervals over {turn}s: + better, \
         - worse, ~ no difference beyond noise; a ratio without a sign is not judged. {chance}{most}"
    )
}

/// How many of the signs chance alone would have set, where that is one or more.
pub(crate) fn by_chance(document: &Document) -> Option<String> {
    let mut signs = Vec::new();
    for cell in document.cells() {
        signs.extend(latency::signs(document, &cell));
        signs.extend(cost::signs(document, &cell));
    }
    let judged = signs.iter().filter(|sign| !sign.is_empty()).count();
    let marked = signs.iter().filter(|sign| ["+", "-"].contains(sign)).count();
    // One of twenty 95 % intervals does not contain the true value.
    let chance = (judged as f64 / 20.0).round() as usize;
    (chance > 0).then(|| {
        format!(
            "Of {judged} ratios that are judged {marked} are marked; if nothing differed at all, \
             chance would mark about {chance}."
        )
    })
}
