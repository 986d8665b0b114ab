//! Tables: the numbers of the charts, and the origin of the result.

use std::fmt::Write;

use vcoop_experiment::format;
use vcoop_experiment::result::{Bounded, Document, LatencySeries, Statistic, Worst};
use vcoop_experiment::sim_vs_kvm;

use super::{class, details, facts, heads, row, scrolling};
use crate::chart::build::{place_words, probes, slowest};
use crate::chart::escape::text as esc;
use crate::compare::{LatencyComparison, judged, mark, with_interval};
use crate::cost;
use crate::parts::{largest, named_parts};
use crate::style::Tone;
use crate::text::{by_chance, duration, turn};

fn bounds(bounded: Bounded) -> String {
    match bounded {
        (Some(value), Some([lo, hi])) => format!(
            "{} <small>{} \u{2013} {}</small>",
            format::time(value),
            format::time(lo),
            format::time(hi)
        ),
        (value, _) => format::maybe_time(value),
    }
}

/// Every latency series, with intervals; a table a probe.
pub(super) fn latency(document: &Document) -> String {
    let mut out = String::new();
    if document.latencies().next().is_none() {
        return out;
    }
    let turn = turn(document);
    let _ = write!(
        out,
        "<p>Small: 95 % intervals over {turn}s. Ratios are to {}, paired by {turn}. max is the largest \
         sample seen, not a bound; n/a stands where fewer than 10 samples lie beyond. {}</p>",
        esc(&document.baseline),
        by_chance(document).unwrap_or_default()
    );
    let head = [
        "",
        "samples",
        "missed",
        "mean",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "p99 ratio",
    ];
    let cells = document.cells();
    for probe in &probes(document) {
        let mut rows = Vec::new();
        for cell in &cells {
            let own = document.latencies().filter(|s| s.key.is_in(cell) && s.key.is_named(probe));
            let own: Vec<String> = own.map(|series| latency_row(document, series)).collect();
            let title = place_words(document, &cell.0, &cell.1);
            if !own.is_empty() && !title.is_empty() {
                rows.push(format!(
                    "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"{}\">{}</th></tr>",
                    head.len(),
                    esc(&title)
                ));
            }
            rows.extend(own);
        }
        let table = scrolling(&format!("Latency of {probe}"), &heads(head), rows);
        out += &format!("<h3>{}</h3>{table}", esc(probe));
    }
    out
}

fn latency_row(document: &Document, s: &LatencySeries) -> String {
    let (ratio, tone) = match judged(document, s) {
        _ if s.is_starved() => ("starved".to_owned(), Tone::Bad),
        None => (String::new(), Tone::Plain),
        Some(LatencyComparison { ratio, interval, of_means, sign, tone }) => {
            let star = if of_means { "* of means" } else { "" };
            (format!("{} {sign}{star}", with_interval(ratio, interval)), tone)
        }
    };
    let statistics = Statistic::ALL.iter().map(|of| bounds(s.statistic(*of)));
    let counts = [s.count.to_string(), s.missed.to_string()];
    let cells = counts.into_iter().chain(statistics).chain([format::maybe_time(s.max)]);
    let cells = cells.map(|cell| format!("<td>{cell}</td>"));
    let ratio = format!("<td class=\"{}\">{}</td>", class(tone), esc(&ratio));
    row(&esc(&s.key.policy), cells.chain([ratio]))
}

/// Costs and counts, a table a cell.
pub(super) fn costs(document: &Document) -> String {
    let mut out = String::new();
    let cells = document.cells();
    for (i, cell) in cells.iter().enumerate() {
        let rows = cost::rows(document, cell);
        if rows.is_empty() {
            continue;
        }
        let title = place_words(document, &cell.0, &cell.1);
        let table = cost_table(document, &rows, &title);
        let _ = match title.is_empty() {
            true => write!(out, "{table}"),
            false => {
                let open = if i < 2 { " open" } else { "" };
                write!(out, "<details{open}><summary>{}</summary>{table}</details>", esc(&title))
            }
        };
    }
    out
}

fn cost_table(document: &Document, rows: &[cost::Row], title: &str) -> String {
    let columns = [""].into_iter().chain(document.policies.iter().map(String::as_str));
    let rows = rows.iter().map(|one| {
        let cell = |entry: &Option<cost::Entry>| {
            let Some(entry) = entry else { return "<td></td>".to_owned() };
            let (sign, tone) = mark(entry.interval, entry.repeats, one.better);
            let ratio = match entry.ratio {
                Some(_) => {
                    let ratio = with_interval(entry.ratio, entry.interval);
                    format!(" <small>{}</small> {sign}", esc(&ratio))
                }
                None => String::new(),
            };
            format!("<td class=\"{}\">{}{ratio}</td>", class(tone), esc(&entry.text))
        };
        row(&esc(&one.label), one.entries.iter().map(cell))
    });
    scrolling(&format!("Costs and counts {title}"), &heads(columns), rows)
}

/// The worst samples of each series, with their largest parts.
pub(super) fn worst(document: &Document) -> String {
    let mut out = String::new();
    for series in document.latencies().filter(|s| !s.worst.is_empty()) {
        let place = place_words(document, &series.key.backend, &series.key.params);
        let place = if place.is_empty() { place } else { format!(", {place}") };
        let title = format!("{} under {}{place}", series.key.name(), series.key.policy);
        let tail = slowest(series).map(|tail| format!("<p>{}</p>", esc(&tail)));
        let columns = ["latency", "due at", "repeat", "where it went", "who ran instead"];
        let table = scrolling(&title, &heads(columns), series.worst.iter().map(worst_row));
        out += &details(&esc(&title), &(tail.unwrap_or_default() + &table));
    }
    out
}

fn worst_row(sample: &Worst) -> String {
    let ran = largest(sample.ran_instead.iter().map(|(who, us)| (who, *us)), 4);
    let ran = ran.into_iter().map(|(who, us)| format!("{who} {}", format::time(us)));
    let ran: Vec<String> = ran.collect();
    let cells = [
        format!("<td>{}</td>", format::time(sample.due_us)),
        format!("<td>{}</td>", sample.repeat),
        format!("<td class=\"words\">{}</td>", esc(&named_parts(&sample.parts))),
        format!("<td class=\"words\">{}</td>", esc(&ran.join(", "))),
    ];
    row(&format::time(sample.latency_us), cells)
}

/// Both backends' numbers side by side.
pub(super) fn beside(document: &Document) -> String {
    let rows = sim_vs_kvm::beside(document);
    if rows.is_empty() {
        return String::new();
    }
    let statistics = ["mean sim", "p50 sim", "p99 sim"];
    let columns = statistics.into_iter().flat_map(|sim| [sim, "kvm", "sim / kvm"]);
    let rows = rows.iter().map(|one| {
        let words = vcoop_experiment::params::words(&one.params);
        let words = if words.is_empty() { words } else { format!(", {words}") };
        let what = if one.metric == "latency" { "" } else { " throughput" };
        let cells = [&one.mean, &one.p50, &one.p99].map(|pair| {
            let value =
                |v: Option<f64>| esc(&format::maybe(v, |v| format::with_unit(v, &one.unit)));
            let ratio = format::maybe(pair.ratio, format::ratio);
            let class = match pair.ratio {
                Some(ratio) if !(0.5..=2.0).contains(&ratio) => "bad",
                _ => "",
            };
            let far = if pair.is_far() { " <b title=\"more than 3x apart\">!</b>" } else { "" };
            let (sim, kvm) = (value(pair.sim), value(pair.kvm));
            format!("<td>{sim}</td><td>{kvm}</td><td class=\"{class}\">{ratio}{far}</td>")
        });
        row(&esc(&format!("{}{what}, {}{words}", one.probe, one.policy)), cells)
    });
    scrolling("Simulated beside measured", &heads([""].into_iter().chain(columns)), rows)
}

/// The command, the host, and counters of the engine.
pub(super) fn provenance(document: &Document) -> String {
    let mut out = String::new();
    if !document.command.is_empty() {
        let _ = write!(
            out,
            "<p>The same again, with vcoop {}:</p><pre tabindex=\"0\"><code>{}</code></pre>",
            esc(&document.version),
            esc(&document.command)
        );
    }
    let mut all: Vec<(String, String)> = vec![
        ("schema".to_owned(), document.schema.clone()),
        ("repeats".to_owned(), document.repeats.to_string()),
        ("measured".to_owned(), format!("{} each", duration(document))),
        ("warm-up".to_owned(), format!("{} s", document.warmup_s)),
        ("seed".to_owned(), document.seed.to_string()),
    ];
    if let Some(engine) = &document.engine {
        let speed = format!(
            "{} events, {} simulated s in {:.3} CPU s",
            engine.events, engine.sim_s, engine.cpu_s
        );
        all.push(("simulator".to_owned(), speed));
    }
    let all = all.iter().map(|(name, fact)| (name, fact)).chain(&document.environment);
    out += &facts(all);
    if document.environment.is_empty() {
        out.push_str("<p>Simulated only: nothing of this host is in these numbers.</p>");
    }
    out
}
