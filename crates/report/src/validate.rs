//! The report of `vcoop validate`.

use vcoop_experiment::format;
use vcoop_experiment::validate::{Error, Validation};

use crate::sim_vs_kvm;
use crate::style::{Style, Tone, finish};

/// Every series, simulated beside measured, then the errors in sum and the largest of them.
pub fn render_validation(validation: &Validation, style: Style) -> String {
    let mut out = String::new();
    for scenario in &validation.scenarios {
        let title = format!(
            "{}: {} ({} of {} s)",
            scenario.scenario,
            scenario.title,
            format::count(scenario.repeats.into(), "repeat"),
            scenario.duration_s
        );
        out.push_str(&style.wrap(&style.heading(&title), 2));
        out.push_str(&sim_vs_kvm::table(&scenario.series, style));
        out.push('\n');
    }
    out.push_str(&style.heading("Prediction error (sim / kvm)"));
    out.push('\n');
    let mut table = style.table(["", "", "series", "bias", "median factor", "within 2x"]);
    for row in &validation.summary {
        table.add_row([
            style.cell(&row.of, Tone::Plain),
            style.cell(&row.statistic, Tone::Plain),
            style.cell(row.count, Tone::Plain),
            style.cell(format::ratio(row.bias), Tone::Plain),
            style.cell(format::ratio(row.median_factor), Tone::Plain),
            style.cell(format!("{:.0} %", 100.0 * row.within_2x), Tone::Plain),
        ]);
    }
    out.push_str(&finish(table, 2));
    if !validation.largest.is_empty() {
        out.push_str(&style.heading("Largest errors"));
        out.push('\n');
    }
    for error in &validation.largest {
        out.push_str(&style.wrap(&format!("  {}", largest(error)), 4));
    }
    if let Some(host) = validation.environment.get("simulated_host") {
        out.push_str(&style.wrap(&format!("Simulated host: {host}"), 2));
    }
    if validation.interrupted {
        out.push_str("Interrupted: some series have fewer repeats than planned, or none.\n");
    }
    out
}

/// A large error in words.
pub(crate) fn largest(error: &Error) -> String {
    let value = |v| format::maybe(v, |v| format::with_unit(v, &error.unit));
    format!(
        "{}: {} {}: {} simulated, {} measured, {}",
        error.scenario,
        error.series,
        error.statistic,
        value(error.pair.sim),
        value(error.pair.kvm),
        format::maybe(error.pair.ratio, format::ratio)
    )
}
