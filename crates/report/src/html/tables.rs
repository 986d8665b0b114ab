//! Tables: the numbers of the charts, and the origin of the result.

use std::fmt::Write;

use vcoop_experiment::format;
use vcoop_experiment::result::{Bounded, Document, LatencySeries, Statistic, Worst};
use vcoop_experiment::sim_vs_kvm;

use super::{END_OF_TABLE, class, heads, open_table};
use crate::chart::build::{place_words, probes, slowest};
use crate::chart::escape::text as esc;
use crate::compare::{Judged, judged, mark, with_interval};
use crate::cost;
use crate::parts::named_parts;
use crate::style::Tone;
use crate::text::{by_chance, duration};

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
    let _ = write!(
        out,
        "<p>Small: 95 % intervals over repeats. Ratios are to {}, paired by repeat. max is the largest \
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
        let table = open_table(&format!("Latency of {probe}"), &heads(head));
        let _ = write!(out, "<h3>{}</h3>{table}", esc(probe));
        for cell in &cells {
            let rows: Vec<&LatencySeries> = document
                .latencies()
                .filter(|s| s.key.is_in(cell) && s.key.is_named(probe))
                .collect();
            let title = place_words(document, &cell.0, &cell.1);
            if !rows.is_empty() && !title.is_empty() {
                let title = esc(&title);
                let _ = write!(
                    out,
                    "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"{}\">{title}</th></tr>",
                    head.len()
                );
            }
            rows.iter().for_each(|series| out.push_str(&latency_row(document, series)));
        }
        out.push_str(END_OF_TABLE);
    }
    out
}

fn latency_row(document: &Document, s: &LatencySeries) -> String {
    let (ratio, tone) = match judged(document, s) {
        _ if s.is_starved() => ("starved".to_owned(), Tone::Bad),
        None => (String::new(), Tone::Plain),
        Some(Judged { ratio, interval, of_means, sign, tone }) => {
            let star = if of_means { "* of means" } else { "" };
            (format!("{} {sign}{star}", with_interval(ratio, interval)), tone)
        }
    };
    let statistics = Statistic::ALL.iter().map(|of| bounds(s.statistic(*of)));
    let counts = [s.count.to_string(), s.missed.to_string()];
    let cells = counts.into_iter().chain(statistics).chain([format::maybe_time(s.max)]);
    let mut out = format!("<tr><th scope=\"row\">{}</th>", esc(&s.key.policy));
    for cell in cells {
        let _ = write!(out, "<td>{cell}</td>");
    }
    let _ = write!(out, "<td class=\"{}\">{}</td></tr>", class(tone), esc(&ratio));
    out
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
    let mut out = open_table(&format!("Costs and counts {title}"), &heads(columns));
    for row in rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", esc(&row.label));
        for entry in &row.entries {
            let Some(entry) = entry else {
                out.push_str("<td></td>");
                continue;
            };
            let (sign, tone) = mark(entry.interval, entry.repeats, row.better);
            let ratio = match entry.ratio {
                Some(_) => {
                    let ratio = with_interval(entry.ratio, entry.interval);
                    format!(" <small>{}</small> {sign}", esc(&ratio))
                }
                None => String::new(),
            };
            let class = class(tone);
            let _ = write!(out, "<td class=\"{class}\">{}{ratio}</td>", esc(&entry.text));
        }
        out.push_str("</tr>");
    }
    out.push_str(END_OF_TABLE);
    out
}

/// The worst samples of each series, with their largest parts.
pub(super) fn worst(document: &Document) -> String {
    let mut out = String::new();
    for series in document.latencies().filter(|s| !s.worst.is_empty()) {
        let place = place_words(document, &series.key.backend, &series.key.params);
        let place = if place.is_empty() { place } else { format!(", {place}") };
        let title = format!("{} under {}{place}", series.key.name(), series.key.policy);
        let _ = write!(out, "<details><summary>{}</summary>", esc(&title));
        if let Some(tail) = slowest(series) {
            let _ = write!(out, "<p>{}</p>", esc(&tail));
        }
        let columns = ["latency", "due at", "repeat", "where it went", "who ran instead"];
        out.push_str(&open_table(&title, &heads(columns)));
        series.worst.iter().for_each(|sample| out.push_str(&worst_row(sample)));
        out.push_str(END_OF_TABLE);
        out.push_str("</details>");
    }
    out
}

fn worst_row(sample: &Worst) -> String {
    let mut ran: Vec<(&String, &f64)> = sample.ran_instead.iter().collect();
    ran.sort_by(|a, b| b.1.total_cmp(a.1).then(a.0.cmp(b.0)));
    let one = |(who, us): &(&String, &f64)| format!("{who} {}", format::time(**us));
    let ran: Vec<String> = ran.iter().take(4).map(one).collect();
    format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"words\">{}</td>\
         <td class=\"words\">{}</td></tr>",
        format::time(sample.latency_us),
        format::time(sample.due_us),
        sample.repeat,
        esc(&named_parts(&sample.parts)),
        esc(&ran.join(", "))
    )
}

/// Both backends' numbers side by side.
pub(super) fn beside(document: &Document) -> String {
    let rows = sim_vs_kvm::beside(document);
    if rows.is_empty() {
        return String::new();
    }
    let statistics = ["mean sim", "p50 sim", "p99 sim"];
    let columns = statistics.into_iter().flat_map(|sim| [sim, "kvm", "sim / kvm"]);
    let mut out = open_table("Simulated beside measured", &heads([""].into_iter().chain(columns)));
    for row in rows {
        let words = vcoop_experiment::params::words(&row.params);
        let words = if words.is_empty() { words } else { format!(", {words}") };
        let what = if row.metric == "latency" { "" } else { " throughput" };
        let title = format!("{}{what}, {}{words}", row.probe, row.policy);
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", esc(&title));
        for pair in [&row.mean, &row.p50, &row.p99] {
            let value = |v: Option<f64>| format::maybe(v, |v| format::with_unit(v, &row.unit));
            let ratio = format::maybe(pair.ratio, format::ratio);
            let class = match pair.ratio {
                Some(ratio) if !(0.5..=2.0).contains(&ratio) => "bad",
                _ => "",
            };
            let far = if pair.is_far() { " <b title=\"more than 3x apart\">!</b>" } else { "" };
            let (sim, kvm) = (esc(&value(pair.sim)), esc(&value(pair.kvm)));
            let _ =
                write!(out, "<td>{sim}</td><td>{kvm}</td><td class=\"{class}\">{ratio}{far}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str(END_OF_TABLE);
    out
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
    let mut facts: Vec<(String, String)> = vec![
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
        facts.push(("simulator".to_owned(), speed));
    }
    facts.extend(document.environment.iter().map(|(k, v)| (k.clone(), v.clone())));
    out.push_str("<dl>");
    for (name, value) in facts {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", esc(&name), esc(&value));
    }
    out.push_str("</dl>");
    if document.environment.is_empty() {
        out.push_str("<p>Simulated only: nothing of this host is in these numbers.</p>");
    }
    out
}
