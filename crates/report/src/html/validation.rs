//! The report of `vcoop validate`: simulated beside measured values of this host.

use vcoop_experiment::format;
use vcoop_experiment::validate::Validation;

use super::{Section, facts, figure, heads, list, note, page, row, scrolling, statement};
use crate::chart::build::validation;
use crate::chart::escape::{id, text as esc};
use crate::validate::largest;

/// A validation as one HTML page.
pub fn render_validation_html(validation: &Validation) -> String {
    let mut sections = vec![Section::new("sum", "In short", in_short(validation))];
    for scenario in &validation.scenarios {
        let mut body = format!(
            "<p>{}; {} of {} s.</p><div class=\"grid\">",
            esc(&scenario.title),
            format::count(scenario.repeats.into(), "repeat"),
            scenario.duration_s
        );
        for chart in validation::charts(scenario).iter().filter(|chart| !chart.is_empty()) {
            body.push_str(&figure(chart));
        }
        body.push_str("</div>");
        let title = scenario.scenario.clone();
        sections.push(Section::new(format!("scenario-{}", id(&title)), title, body));
    }
    sections.push(Section::new(
        "environment",
        "Where this comes from",
        facts(&validation.environment),
    ));
    let about = format!("vcoop {}, on this host and simulated", validation.version);
    page("Simulated beside measured", &about, &sections)
}

fn in_short(validation: &Validation) -> String {
    let mut out = String::new();
    if validation.interrupted {
        out += &note("Interrupted: not all of it was measured.");
    }
    let mean = |of: &str| validation.summary.iter().find(|s| s.of == of && s.statistic == "mean");
    let lines: Vec<String> = ["guest latency", "host latency", "throughput"]
        .into_iter()
        .filter_map(mean)
        .map(|s| {
            format!(
                "{}: means are off by a factor of {} in the middle of {} series, {:.0} % of them \
                 within a factor of two",
                s.of,
                format::digits(s.median_factor),
                s.count,
                100.0 * s.within_2x
            )
        })
        .collect();
    let words = if lines.is_empty() { "Nothing was compared".to_owned() } else { lines.join("; ") };
    let mut chars = words.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    out += &statement(&(esc(&(first + chars.as_str())) + "."));
    if !validation.largest.is_empty() {
        out += "<p>The largest errors, one a series at most:</p>";
        out += &list(validation.largest.iter().map(|error| esc(&largest(error))));
    }
    let columns =
        ["simulated / measured", "statistic", "series", "bias", "median factor", "within 2x"];
    let rows = validation.summary.iter().map(|s| {
        let cells = [
            esc(&s.statistic),
            s.count.to_string(),
            format::ratio(s.bias),
            format::ratio(s.median_factor),
            format!("{:.0} %", 100.0 * s.within_2x),
        ];
        row(&esc(&s.of), cells.map(|cell| format!("<td>{cell}</td>")))
    });
    out + &scrolling("Prediction error by statistic", &heads(columns), rows)
}
