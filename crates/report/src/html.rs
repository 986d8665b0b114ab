//! The HTML report: one file that needs no network.
//!
//! Charts are SVG, drawn here, so that they work without scripts, in print and for screen readers. Each is drawn wide
//! and narrow, and the page shows the one that fits. uPlot, inlined, replaces a chart of many points for zooming.

mod matrix;
mod reproduction;
mod tables;
mod validation;

use std::fmt::Write;

use serde_json::{Value, json};
use vcoop_experiment::deploy::Deployment;
use vcoop_experiment::format;
use vcoop_experiment::result::{Document, Params};
use vcoop_experiment::verdict;
use vcoop_model::distinct;

use crate::chart::build::{self, Group, groups};
use crate::chart::escape::{script, text as esc};
use crate::chart::svg::{DARK, LIGHT, STYLE, draw, file, legend};
use crate::chart::{Chart, Key, Layer, Scale, Slot, Table};
use crate::sim_vs_kvm::missing_words;
use crate::style::{Style, Tone};
use crate::text::{hosts, interrupted, setting};
use crate::vcpus;
pub use reproduction::render_reproduction_html;
pub use validation::render_validation_html;

const PAGE_STYLE: &str = include_str!("../assets/page.css");
const PAGE_SCRIPT: &str = include_str!("../assets/page.js");
const UPLOT_STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");
/// Must accompany the script.
const UPLOT_LICENCE: &str = include_str!("../assets/uplot/LICENSE");
const UPLOT_SCRIPT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");

/// Widths in pixels for which charts are drawn: a phone or a column, and a page.
const NARROW: f64 = 328.0;
const WIDE: f64 = 640.0;
/// Width of a chart in a separate file.
const PICTURE: f64 = 720.0;
/// Most rows of numbers under a chart.
const MOST_ROWS: usize = 400;
/// Most points of a line for zooming.
const MOST_POINTS: usize = 20_000;

/// Most lines about best and worst cells.
const MOST_RANGES: usize = 12;

/// A section of a page: name for links, heading, content.
struct Section {
    id: String,
    title: String,
    body: String,
}

impl Section {
    fn new(id: impl Into<String>, title: impl Into<String>, body: String) -> Self {
        Self { id: id.into(), title: title.into(), body }
    }
}

/// The report of a result as one HTML page.
pub fn render_html(document: &Document) -> String {
    let mut sections = vec![Section::new("verdict", "In short", verdicts(document))];
    let mut add = |id: &str, title: &str, body: String| {
        if !body.is_empty() {
            sections.push(Section::new(id, title, body));
        }
    };
    add("matrix", "Cells at a glance", matrix::heat_maps(document));
    add("vcpus", "Where the vCPUs' time went", vcpus(document));
    for group in groups(document) {
        add(group.id, group.title, charts(&group));
    }
    add("beside", "Simulated beside measured", tables::beside(document));
    add("latency", "Latency in numbers", tables::latency(document));
    add("costs", "Costs and counts in numbers", tables::costs(document));
    add("worst", "The worst samples", tables::worst(document));
    add("environment", "Where this comes from", tables::provenance(document));
    let title = format!("{}: {}", document.scenario, document.title);
    let simulated = hosts(document).map(|hosts| format!(". Simulated: {hosts}"));
    page(&title, &(setting(document) + &simulated.unwrap_or_default()), &sections)
}

/// Every chart of a result, in the order of the report.
pub fn charts_of(document: &Document) -> Vec<Chart> {
    groups(document).into_iter().flat_map(|group| group.charts).collect()
}

/// Every chart of a result as a separate picture: file name and content. Titles include what a page has in headings.
pub fn pictures(document: &Document) -> Vec<(String, String)> {
    let one = |group: &Group, chart: Chart| {
        let title = format!("{}: {}", group.title, chart.title);
        (format!("{}.svg", chart.id), file(&Chart { title, ..chart }, PICTURE))
    };
    groups(document)
        .iter()
        .flat_map(|group| group.charts.iter().map(|chart| one(group, chart.clone())))
        .collect()
}

/// The verdicts, first on the page.
fn verdicts(document: &Document) -> String {
    let mut out = String::new();
    if let Some(text) = interrupted(document) {
        out += &note(&text);
    }
    if document.cells().is_empty() {
        out += &note("Nothing was measured.");
    }
    if !document.has_detail() {
        out += &note(
            "This result has no distributions and nothing by time, so most charts are missing: it was \
             kept without --out, and without --json --detail.",
        );
    }
    let cells = document.cells().len();
    if let ([policy], true) = (document.policies.as_slice(), cells > document.backends.len()) {
        out += &statement(&format!(
            "Only {} was run, in {cells} cells: what is compared are the cells, and the charts lay them \
             over each other.",
            esc(policy)
        ));
        let ranges = ranges(document);
        return if ranges.is_empty() { out } else { out + &list(ranges.iter().map(|r| esc(r))) };
    }
    let several = document.backends.len() > 1;
    let lines: Vec<String> =
        document.verdicts.iter().map(|v| prose(&verdict::line(v, several))).collect();
    if lines.len() <= 3 {
        out.extend(lines.iter().map(|line| statement(line)));
    } else {
        let over_all = lines.iter().zip(&document.verdicts).filter(|(_, v)| v.cells > 0);
        out.extend(over_all.map(|(line, _)| statement(line)));
        out += &statement(&tally(document));
        out += &details("Every cell in a sentence", &list(lines));
    }
    if !document.deployments.is_empty() {
        let one = |one: &Deployment| {
            let lines = one.lines.iter().map(|line| format!("<br><code>{}</code>", esc(line)));
            let why = one.simulation_only.iter();
            let why = why.map(|why| format!("<br>simulation only: {}", esc(why)));
            format!("{}: {}", esc(&one.policy), lines.chain(why).collect::<String>())
        };
        let all = list(document.deployments.iter().map(one));
        out += &details("How to apply each policy to a running VM", &all);
    }
    out += &note(&prose(&document.limits.words()));
    for one in &document.notes {
        let remedy = one.remedy.iter().map(|remedy| format!("; remedy: {remedy}"));
        out += &note(&prose(&format!("{}{}", one.evidence, remedy.collect::<String>())));
    }
    out.extend(document.missing.iter().map(|missing| note(&prose(&missing_words(missing)))));
    out
}

/// Prose for a narrow page: a number stays on the line of its unit, and an arrow on that of the word before it.
fn prose(text: &str) -> String {
    const UNITS: [&str; 7] = ["ns", "us", "ms", "s", "%", "CPU", "/s"];
    let mut out = String::new();
    let mut number = false;
    for word in text.split(' ') {
        let unit = number && UNITS.contains(&word.trim_end_matches([',', '.', ';', ':', ')', ']']));
        if !out.is_empty() {
            out.push(if unit || word == "->" { '\u{a0}' } else { ' ' });
        }
        out.push_str(if word == "->" { "\u{2192}" } else { word });
        number = word.ends_with(|c: char| c.is_ascii_digit());
    }
    esc(&out)
}

/// The tables of observed vCPUs, as on a terminal.
fn vcpus(document: &Document) -> String {
    let cells = document.cells();
    let tables = cells.iter().map(|cell| vcpus::render(document, cell, Style::default()));
    let tables = tables.filter(|table| !table.is_empty());
    tables.map(|table| format!("<pre>{}</pre>", esc(&table))).collect()
}

/// The best and the worst cell of each probe and of each storm, in words.
fn ranges(document: &Document) -> Vec<String> {
    let place = |backend: &str, params: &Params| build::place_words(document, backend, params);
    let line = |what: String, mut values: Vec<(f64, String)>, time: fn(f64) -> String| {
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ([(low, best), .., (high, worst)], true) = (values.as_slice(), values.len() > 1) else {
            return None;
        };
        Some(format!("{what}: from {} ({best}) to {} ({worst})", time(*low), time(*high)))
    };
    let mut lines = Vec::new();
    for probe in &build::probes(document) {
        let own: Vec<_> = document.latencies().filter(|s| s.key.is_named(probe)).collect();
        let p99 = own.iter().all(|s| s.p99.is_some());
        let value = |s: &&vcoop_experiment::result::LatencySeries| {
            let value = if p99 { s.p99? } else { s.mean? };
            Some((value, place(&s.key.backend, &s.key.params)))
        };
        let what = format!("{probe} {}", if p99 { "p99" } else { "mean" });
        lines.extend(line(what, own.iter().filter_map(value).collect(), format::time));
    }
    for (vm, event) in distinct(document.curves.iter().map(|c| (&c.vm, &c.event))) {
        let own = || document.curves.iter().filter(|c| (&c.vm, &c.event) == (vm, event));
        // Only where all came everywhere.
        let Some(all) = own().map(|c| c.points.len()).min().filter(|n| *n > 0) else { continue };
        let value = |c: &vcoop_experiment::result::Curve| {
            (1e6 * c.points[all - 1].mean_s, place(&c.place.backend, &c.place.params))
        };
        let verb = if event == "login" { "logged in" } else { "started" };
        let what = format!("time until {all} of {vm} had {verb}");
        lines.extend(line(what, own().map(value).collect(), format::time));
    }
    lines.truncate(MOST_RANGES);
    lines
}

/// How often each policy is the best of a cell.
fn tally(document: &Document) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    let each = || document.verdicts.iter().filter(|v| v.cells == 0);
    for best in each().filter_map(|v| v.best.as_deref()) {
        match counts.iter_mut().find(|(policy, _)| *policy == best) {
            Some((_, n)) => *n += 1,
            None => counts.push((best, 1)),
        }
    }
    let all = each().count();
    let none = all - counts.iter().map(|(_, n)| n).sum::<usize>();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let mut words: Vec<String> =
        counts.iter().map(|(policy, n)| format!("{} in {n}", esc(policy))).collect();
    if none > 0 {
        words.push(format!("none within the limits, or no verdict, in {none}"));
    }
    format!("Best of {all} cells: {}.", words.join(", "))
}

/// A group's charts; the first paragraph explains how to read them.
fn charts(group: &Group) -> String {
    let mut out = format!("<p>{}</p>", esc(&group.about));
    let mut grid = String::new();
    // Parts have many colours, the same in all charts: one legend serves them.
    let mut shared: Vec<Key> = Vec::new();
    for chart in &group.charts {
        let parts = |key: &Key| matches!(key.slot, Slot::Part(_));
        if !chart.legend.iter().any(parts) {
            grid.push_str(&figure(chart));
            continue;
        }
        let new: Vec<Key> =
            chart.legend.iter().filter(|key| !shared.contains(key)).cloned().collect();
        shared.extend(new);
        grid.push_str(&figure(&Chart { legend: Vec::new(), ..chart.clone() }));
    }
    if !shared.is_empty() {
        out.push_str(&legend(&shared));
    }
    let _ = write!(out, "<div class=\"grid\">{grid}</div>");
    if group.left_out > 0 {
        out += &note(&format!(
            "{} more charts of this kind are left out; the tables have their numbers.",
            group.left_out
        ));
    }
    out
}

/// A chart in both widths, with its caption and its table.
fn figure(chart: &Chart) -> String {
    let id = esc(&chart.id);
    let class = if chart.wide { "figure wide" } else { "figure" };
    let mut out =
        format!("<figure class=\"{class}\" id=\"{id}\"><figcaption><h3>{}</h3>", esc(&chart.title));
    let _ = write!(out, "<p>{}</p></figcaption>", esc(&chart.caption));
    if chart.wide {
        let _ = write!(out, "<div class=\"at-wide\">{}</div>", draw(chart, WIDE));
    }
    let _ = write!(out, "<div class=\"at-narrow\">{}</div>", draw(chart, NARROW));
    if chart.zoom {
        let _ = write!(
            out,
            "<script type=\"application/json\" class=\"zoom-data\">{}</script>",
            script(&zoom_data(chart).to_string())
        );
    }
    if !chart.table.rows.is_empty() {
        let label = format!("Numbers of {}", chart.title);
        out += &details("Numbers", &numbers(&chart.table, &label));
    }
    out.push_str("</figure>");
    out
}

/// The lines of a chart for uPlot.
fn zoom_data(chart: &Chart) -> Value {
    let mut series = Vec::new();
    for layer in &chart.layers {
        // The size of dots; 0: a line.
        let (slot, label, points, dots, step, faint) = match layer {
            Layer::Line { slot, label, points, step, faint } => {
                (slot, label, points, 0.0, *step, *faint)
            }
            Layer::Dots { slot, label, points, size } => (slot, label, points, *size, false, false),
            _ => continue,
        };
        // Marks of events, along the edges, are of no use there.
        let (Slot::Series(n) | Slot::Simulated(n)) = slot else { continue };
        let each = points.len().div_ceil(MOST_POINTS).max(1);
        let short = |v: &f64| if v.is_finite() { json!(significant(*v)) } else { Value::Null };
        let x: Vec<Value> = points.iter().step_by(each).map(|(x, _)| short(x)).collect();
        let y: Vec<Value> = points.iter().step_by(each).map(|(_, y)| short(y)).collect();
        let simulated = matches!(slot, Slot::Simulated(_));
        series.push(json!({
            "slot": n % 8, "simulated": simulated, "label": label, "x": x, "y": y, "dots": dots,
            "step": step, "faint": faint
        }));
    }
    let axis = |axis: &crate::chart::Axis| {
        json!({
            "label": axis.label, "log": axis.scale == Scale::Log,
            "unit": format!("{:?}", axis.unit), "min": axis.min, "max": axis.max
        })
    };
    json!({"x": axis(&chart.x), "y": axis(&chart.y), "series": series})
}

fn significant(v: f64) -> f64 {
    vcoop_experiment::rounding::significant(v, 5)
}

/// A table of numbers that scrolls if it is wider than the page.
fn numbers(table: &Table, label: &str) -> String {
    let one = |cells: &Vec<String>| {
        let mut cells = cells.iter().map(|cell| esc(cell));
        let name = cells.next().unwrap_or_default();
        row(&name, cells.map(|cell| format!("<td>{cell}</td>")))
    };
    let rows = table.rows.iter().take(MOST_ROWS).map(one);
    let mut out = scrolling(label, &heads(&table.header), rows);
    if table.rows.len() > MOST_ROWS {
        let rows = table.rows.len();
        out += &note(&format!("The first {MOST_ROWS} of {rows} rows; result.json has all."));
    }
    out
}

/// A table that scrolls if it is wider than the page.
fn scrolling(label: &str, heads: &str, rows: impl IntoIterator<Item = String>) -> String {
    let rows: String = rows.into_iter().collect();
    format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table>\
         <thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>",
        esc(label)
    )
}

/// The heads of columns.
fn heads(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let one = |name| format!("<th scope=\"col\">{}</th>", esc(AsRef::as_ref(&name)));
    names.into_iter().map(one).collect()
}

/// A row with a name; the cells have their tags.
fn row(name: &str, cells: impl IntoIterator<Item = String>) -> String {
    let cells: String = cells.into_iter().collect();
    format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>")
}

/// A list.
fn list(items: impl IntoIterator<Item = String>) -> String {
    let items = items.into_iter().map(|item| format!("<li>{item}</li>"));
    format!("<ul>{}</ul>", items.collect::<String>())
}

/// Names and what is behind them.
fn facts<'f>(facts: impl IntoIterator<Item = (&'f String, &'f String)>) -> String {
    let one =
        |(name, fact): (&String, &String)| format!("<dt>{}</dt><dd>{}</dd>", esc(name), esc(fact));
    format!("<dl>{}</dl>", facts.into_iter().map(one).collect::<String>())
}

/// What readers may want to see.
fn details(summary: &str, body: &str) -> String {
    format!("<details><summary>{summary}</summary>{body}</details>")
}

/// What the page is about, in a sentence.
fn statement(text: &str) -> String {
    format!("<p class=\"verdict\">{text}</p>")
}

/// A remark.
fn note(text: &str) -> String {
    format!("<p class=\"note\">{text}</p>")
}

/// The class of what has a tone.
fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Plain | Tone::Faint => "",
    }
}

/// The whole page.
fn page(title: &str, about: &str, sections: &[Section]) -> String {
    let mut nav = String::new();
    let mut main = String::new();
    for Section { id, title, body } in sections {
        let title = esc(title);
        let _ = write!(nav, "<li><a href=\"#{id}\">{title}</a></li>");
        let _ = write!(
            main,
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{title}</h2>{body}</section>"
        );
    }
    let (title, about) = (esc(title), esc(about));
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"generator\" content=\"vcoop {version}\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>:root{{{LIGHT}}}\
         @media screen and (prefers-color-scheme:dark){{:root{{{DARK}}}}}\n{UPLOT_STYLE}\n{STYLE}\n{PAGE_STYLE}</style>\n\
         </head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the results</a>\n\
         <header><h1>{title}</h1><p>{about}</p></header>\n\
         <nav aria-label=\"Contents\"><ul>{nav}</ul></nav>\n<main id=\"main\" tabindex=\"-1\">{main}</main>\n\
         <footer><p>vcoop {version}. Charts for a closer look are drawn by uPlot 1.6.32, \
         MIT licence, \u{a9} 2022 Leon Sorokin.</p></footer>\n\
         <script>/*\n{UPLOT_LICENCE}*/\n{UPLOT_SCRIPT}</script>\n<script>{PAGE_SCRIPT}</script>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::prose;

    #[test]
    fn a_number_stays_with_its_unit_and_an_arrow_with_what_is_before_it() {
        let said = prose("host.probe p99 1.2 ms -> 5.0 ms (4.17x), 10 of 20 <s>");
        let wanted =
            "host.probe p99 1.2\u{a0}ms\u{a0}\u{2192} 5.0\u{a0}ms (4.17x), 10 of 20 &lt;s&gt;";
        assert_eq!(said, wanted);
    }
}
