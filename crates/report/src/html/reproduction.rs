//! The report of `vcoop reproduce`: every published table beside the simulated one.

use std::fmt::Write;

use vcoop_experiment::format;
use vcoop_experiment::reproduce::{Cell, CheckResult, ClaimResult, Reproduction};
use vcoop_model::distinct;

use super::{Section, class, details, figure, heads, list, note, page, row, scrolling, statement};
use crate::chart::build::published;
use crate::chart::escape::{id, text as esc};
use crate::reproduce::{evidence, sum, verdict};

/// A reproduction as one HTML page.
pub fn render_reproduction_html(reproduction: &Reproduction) -> String {
    let mut sections = vec![Section::new("sum", "In short", in_short(reproduction))];
    for table in distinct(reproduction.cells.iter().map(|cell| cell.table.as_str())) {
        let cells: Vec<&Cell> = reproduction.cells.iter().filter(|c| c.table == table).collect();
        let caption = reproduction.tables.get(table);
        let title = caption.map_or(table, |caption| caption.title.as_str());
        let row_name = caption.map_or("row", |caption| caption.row_name.as_str());
        let mut body = comparability(&cells);
        body.push_str("<div class=\"grid\">");
        let mut charts = published::charts(title, table, row_name, &cells);
        let few = charts.len() <= 2;
        for chart in &mut charts {
            chart.wide = few;
            body.push_str(&figure(chart));
        }
        body.push_str("</div>");
        body.push_str(&cells_table(title, row_name, &cells));
        let name = if title == table { table.to_owned() } else { format!("{table}: {title}") };
        sections.push(Section::new(format!("table-{}", id(table)), name, body));
    }
    sections.extend(histograms(reproduction));
    if !reproduction.claims.is_empty() {
        sections.push(Section::new("claims", "Claims", claims(&reproduction.claims)));
    }
    sections.push(Section::new("notes", "What to know", notes(reproduction)));
    let about = format!("vcoop {}, simulated", reproduction.version);
    page("Published beside simulated", &about, &sections)
}

fn in_short(reproduction: &Reproduction) -> String {
    let mut out = String::new();
    if reproduction.interrupted {
        out += &note("Interrupted: some cells have no simulated value.");
    }
    out += &statement(&esc(&sum(reproduction)));
    let failed: Vec<&ClaimResult> = reproduction.claims.iter().filter(|c| !c.holds).collect();
    if !failed.is_empty() {
        // Without its runs a claim cannot hold.
        out += match reproduction.interrupted {
            true => "<p>Claims that do not hold here, or whose runs are missing:</p>",
            false => "<p>Claims that do not hold here:</p>",
        };
        out += &list(failed.iter().map(|claim| {
            let (link, name, statement) = (id(&claim.id), esc(&claim.id), esc(&claim.statement));
            format!("<a href=\"#claim-{link}\">{name}</a>: {statement}")
        }));
    }
    out
}

/// A section for each published histogram, a chart a column.
fn histograms(reproduction: &Reproduction) -> Vec<Section> {
    let section = |name: &str| {
        let own = reproduction.histograms.iter().filter(|h| h.histogram == name);
        let charts: String = own.map(|h| figure(&published::histogram(h))).collect();
        let body = format!("<div class=\"grid\">{charts}</div>");
        Section::new(format!("histogram-{}", id(name)), format!("{name}: histogram"), body)
    };
    let names = reproduction.histograms.iter().map(|h| h.histogram.as_str());
    distinct(names).into_iter().map(section).collect()
}

fn comparability(cells: &[&Cell]) -> String {
    match cells.iter().any(|c| c.comparable) {
        true => String::new(),
        false => note("The units differ: compare within a colour, not across."),
    }
}

fn cells_table(title: &str, row_name: &str, cells: &[&Cell]) -> String {
    let column = "<th scope=\"col\" class=\"words\">column</th>";
    let values = heads(["published", "simulated", "ratio", ""]);
    let rows = cells.iter().map(|cell| {
        let (word, tone) = verdict(cell);
        let with_unit = |v| format!("{} {}", format::digits(v), cell.simulated_unit);
        let cells = [
            format!("<td class=\"words\">{}</td>", esc(&cell.column)),
            format!("<td>{} {}</td>", format::digits(cell.published), esc(&cell.unit)),
            format!("<td>{}</td>", esc(&format::maybe(cell.simulated, with_unit))),
            format!("<td>{}</td>", format::maybe(cell.ratio, format::ratio)),
            format!("<td class=\"{}\">{}</td>", class(tone), esc(&word)),
        ];
        row(&esc(&cell.row), cells)
    });
    scrolling(title, &(heads([row_name]) + column + &values), rows)
}

fn claims(claims: &[ClaimResult]) -> String {
    let mut out = String::new();
    for claim in claims {
        let (class, word) = if claim.holds { ("good", "holds") } else { ("bad", "does not hold") };
        let open = if claim.holds { "" } else { " open" };
        let _ = write!(
            out,
            "<details id=\"claim-{}\"{open}><summary><b class=\"{class}\">{word}</b> {}: {}</summary>",
            id(&claim.id),
            esc(&claim.id),
            esc(&claim.statement)
        );
        if let Some(assumption) = &claim.evidence.assumption {
            let _ = write!(out, "<p>Assumed: {}</p>", esc(assumption));
        }
        out.push_str("<ul>");
        claim.evidence.checks.iter().for_each(|check| out.push_str(&item(check)));
        out.push_str("</ul>");
        if let Some(reason) = claim.evidence.reason.as_ref().filter(|_| !claim.holds) {
            let _ = write!(out, "<p>Not reproduced: {}</p>", esc(reason));
        }
        for what in &claim.evidence.depends {
            let _ = write!(out, "<p>Depends: {}</p>", esc(what));
        }
        for command in &claim.evidence.shown_by {
            let _ = write!(out, "<p>Shown by <code>{}</code></p>", esc(command));
        }
        out.push_str("</details>");
    }
    out
}

fn item(check: &CheckResult) -> String {
    let class = if check.holds { "" } else { " class=\"bad\"" };
    format!("<li{class}>{}</li>", esc(&evidence(check)))
}

fn notes(reproduction: &Reproduction) -> String {
    let escaped = |lines: &[String]| list(lines.iter().map(|line| esc(line)));
    let mut out = escaped(&reproduction.notes);
    for (scenario, assumptions) in &reproduction.assumptions {
        out += &details(&format!("What {} assumes", esc(scenario)), &escaped(assumptions));
    }
    out
}
