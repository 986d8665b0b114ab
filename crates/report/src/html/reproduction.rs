//! The report of `vcoop reproduce`: every published table beside the simulated one.

use std::fmt::Write;

use vcoop_experiment::format;
use vcoop_experiment::reproduce::{Cell, CheckResult, ClaimResult, Reproduction};
use vcoop_model::distinct;

use super::{END_OF_TABLE, Section, class, figure, heads, open_table, page};
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
        out.push_str("<p class=\"note\">Interrupted: some cells have no simulated value.</p>");
    }
    let _ = write!(out, "<p class=\"verdict\">{}</p>", esc(&sum(reproduction)));
    let failed: Vec<&ClaimResult> = reproduction.claims.iter().filter(|c| !c.holds).collect();
    if !failed.is_empty() {
        // Without its runs a claim cannot hold.
        out.push_str(match reproduction.interrupted {
            true => "<p>Claims that do not hold here, or whose runs are missing:</p><ul>",
            false => "<p>Claims that do not hold here:</p><ul>",
        });
        for claim in failed {
            let (link, name) = (id(&claim.id), esc(&claim.id));
            let statement = esc(&claim.statement);
            let _ = write!(out, "<li><a href=\"#claim-{link}\">{name}</a>: {statement}</li>");
        }
        out.push_str("</ul>");
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
        false => "<p class=\"note\">The units differ: compare within a colour, not across.</p>"
            .to_owned(),
    }
}

fn cells_table(title: &str, row_name: &str, cells: &[&Cell]) -> String {
    let column = "<th scope=\"col\" class=\"words\">column</th>";
    let values = heads(["published", "simulated", "ratio", ""]);
    let mut out = open_table(title, &(heads([row_name]) + column + &values));
    for cell in cells {
        let (word, tone) = verdict(cell);
        let class = class(tone);
        let with_unit = |v| format!("{} {}", format::digits(v), cell.simulated_unit);
        let simulated = format::maybe(cell.simulated, with_unit);
        let ratio = format::maybe(cell.ratio, format::ratio);
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"words\">{}</td><td>{} {}</td><td>{}</td><td>{ratio}</td>\
             <td class=\"{class}\">{}</td></tr>",
            esc(&cell.row),
            esc(&cell.column),
            format::digits(cell.published),
            esc(&cell.unit),
            esc(&simulated),
            esc(&word)
        );
    }
    out.push_str(END_OF_TABLE);
    out
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
    let mut out = String::from("<ul>");
    for note in &reproduction.notes {
        let _ = write!(out, "<li>{}</li>", esc(note));
    }
    out.push_str("</ul>");
    for (scenario, assumptions) in &reproduction.assumptions {
        let _ = write!(out, "<details><summary>What {} assumes</summary><ul>", esc(scenario));
        for assumption in assumptions {
            let _ = write!(out, "<li>{}</li>", esc(assumption));
        }
        out.push_str("</ul></details>");
    }
    out
}
