//! The report of `vcoop reproduce`.

use vcoop_experiment::format;
use vcoop_experiment::params;
use vcoop_experiment::reproduce::{Cell, CheckResult, ClaimResult, HistogramResult, Reproduction};
use vcoop_model::distinct;

use crate::style::{Style, Tone, finish};

/// Published against simulated, cell by cell; claims with their evidence; a summary.
pub fn render_reproduction(reproduction: &Reproduction, style: Style) -> String {
    let mut out = String::new();
    for id in distinct(reproduction.cells.iter().map(|cell| &cell.table)) {
        let cells = reproduction.cells.iter().filter(|cell| cell.table == *id);
        let row = reproduction.tables.get(id).map_or("row", |caption| caption.row_name.as_str());
        out.push_str(&table(id, row, &cells.collect::<Vec<_>>(), style));
        out.push('\n');
    }
    for one in &reproduction.histograms {
        out.push_str(&histogram(one, style));
        out.push('\n');
    }
    if !reproduction.claims.is_empty() {
        out.push_str(&style.heading("Claims"));
        out.push('\n');
    }
    for one in &reproduction.claims {
        out.push_str(&claim(one, style));
    }
    if !reproduction.claims.is_empty() {
        out.push('\n');
    }
    for note in &reproduction.notes {
        out.push_str(&style.wrap(note, 2));
    }
    let mut hosts: Vec<(&String, Vec<&str>)> = Vec::new();
    for (scenario, host) in
        reproduction.hosts.iter().flat_map(|(s, all)| all.iter().map(move |h| (s, h)))
    {
        match hosts.iter_mut().find(|(known, _)| *known == host) {
            Some((_, scenarios)) => scenarios.push(scenario),
            None => hosts.push((host, vec![scenario])),
        }
    }
    for (host, scenarios) in hosts {
        out.push_str(&style.wrap(&format!("Simulated: {host}: {}", scenarios.join(", ")), 2));
    }
    if !reproduction.assumptions.is_empty() {
        out.push_str("What the scenarios assume is in the output of --json, and in their files.\n");
    }
    out.push('\n');
    if reproduction.interrupted {
        out.push_str("Interrupted: what was not measured counts as not reproduced.\n");
    }
    out.push_str(&style.heading(&style.wrap(&sum(reproduction), 2)));
    out
}

/// Units of a table: a column of ratios has another unit than its neighbours.
pub(crate) fn units(cells: &[&Cell]) -> String {
    let both = |Cell { unit, simulated_unit, .. }: &&Cell| match unit == simulated_unit {
        true => unit.clone(),
        false => format!("{unit} published, {simulated_unit} simulated"),
    };
    distinct(cells.iter().map(both)).join(", ")
}

fn table(id: &str, row: &str, cells: &[&Cell], style: Style) -> String {
    let mut table = style.table([row, "column", "published", "simulated", "ratio", "verdict"]);
    for cell in cells {
        let (verdict, tone) = verdict(cell);
        let simulated = format::maybe(cell.simulated, format::digits);
        table.add_row([
            style.cell(&cell.row, Tone::Plain),
            style.cell(&cell.column, Tone::Plain),
            style.cell(cell.published, Tone::Plain),
            style.cell(simulated, Tone::Plain),
            style.cell(cell.ratio.map_or_else(|| "-".to_owned(), format::ratio), Tone::Plain),
            style.cell(verdict, tone),
        ]);
    }
    format!("{}\n{}", style.heading(&format!("{id} ({})", units(cells))), finish(table, 2))
}

/// A histogram: every bucket, then means and distance.
fn histogram(h: &HistogramResult, style: Style) -> String {
    let mut table = style.table([h.unit.as_str(), "published", "share", "simulated", "share"]);
    for bucket in &h.buckets {
        let share = |share: f64| format!("{:.3}%", 100.0 * share);
        table.add_row([
            style.cell(bucket.us, Tone::Plain),
            style.cell(bucket.published, Tone::Plain),
            style.cell(share(bucket.published_share), Tone::Plain),
            style.cell(bucket.simulated, Tone::Plain),
            style.cell(share(bucket.simulated_share), Tone::Plain),
        ]);
    }
    let number = |x: Option<f64>| format::maybe(x, format::digits);
    let sum = format!(
        "  mean of whole {unit}: {} published ({} of {} samples are listed), {} simulated; \
         Wasserstein distance {} {unit}",
        number(h.published_mean),
        h.published_listed,
        h.published_samples,
        number(h.simulated_mean),
        number(h.wasserstein_us),
        unit = h.unit,
    );
    let title = format!("{}: {}", h.histogram, h.column);
    format!("{}\n{}{}", style.heading(&title), finish(table, 0), style.wrap(&sum, 4))
}

/// How far a cell is off, in words.
pub(crate) fn verdict(cell: &Cell) -> (String, Tone) {
    let text = match (cell.simulated, cell.ratio) {
        (None, _) => "not measured".to_owned(),
        (Some(_), None) if cell.within_2x => "both zero".to_owned(),
        (Some(_), None) => "published zero".to_owned(),
        (Some(_), Some(_)) if !cell.comparable => "units differ".to_owned(),
        (Some(_), Some(_)) if cell.within_2x => "within 2x".to_owned(),
        (Some(_), Some(0.0)) => "zero here".to_owned(),
        (Some(_), Some(ratio)) if ratio > 1.0 => format!("{} too large", format::ratio(ratio)),
        (Some(_), Some(ratio)) => format!("{} too small", format::ratio(1.0 / ratio)),
    };
    let tone = match (cell.within_2x, cell.comparable) {
        (true, true) => Tone::Good,
        (false, true) => Tone::Bad,
        (_, false) => Tone::Faint,
    };
    (text, tone)
}

fn claim(claim: &ClaimResult, style: Style) -> String {
    let word = if claim.holds { "holds" } else { "FAILS" };
    let mut out = style.wrap(&format!("  {word}  {}: {}", claim.id, claim.statement), 9);
    let mut line = |text: &str| out.push_str(&style.wrap(&format!("           {text}"), 13));
    let e = &claim.evidence;
    if let Some(assumption) = e.assumption.as_ref().filter(|_| !claim.holds) {
        line(&format!("assumed: {assumption}"));
    }
    e.checks.iter().for_each(|check| line(&evidence(check)));
    if let Some(reason) = e.reason.as_ref().filter(|_| !claim.holds) {
        line(&format!("not reproduced: {reason}"));
    }
    // Whatever the verdict is, it hangs on these.
    e.depends.iter().for_each(|what| line(&format!("depends: {what}")));
    if !claim.holds || !e.depends.is_empty() {
        e.shown_by.iter().for_each(|command| line(&format!("shown by: {command}")));
    }
    out
}

/// The result of a check, in a line.
pub(crate) fn evidence(check: &CheckResult) -> String {
    let unit = match check.unit.as_str() {
        "" => String::new(),
        unit => format!(" {}", format::unit_word(unit)),
    };
    // Not in the unit that suits its size: it is compared with the bounds. All digits, if fewer are on another side of a
    // bound.
    let holds =
        |x: f64| check.at_least.is_none_or(|b| x >= b) && check.at_most.is_none_or(|b| x <= b);
    let shown = |x: f64| {
        let short = format::digits(x);
        if short.parse().map(holds) == Ok(holds(x)) { short } else { x.to_string() }
    };
    let value = check.value.map(|value| shown(value) + &unit);
    let value = value.unwrap_or_else(|| "not measured".to_owned());
    let bounds = match (check.at_least, check.at_most) {
        (Some(lo), Some(hi)) => format!("{lo} to {hi}{unit}"),
        (Some(lo), None) => format!("at least {lo}{unit}"),
        (None, Some(hi)) => format!("at most {hi}{unit}"),
        (None, None) => "anything".to_owned(),
    };
    let interval =
        check.ci95.map(|[lo, hi]| format!(" [{}, {}]", shown(lo), shown(hi))).unwrap_or_default();
    let cell = params::words(&params::short(&check.cell));
    let place = if cell.is_empty() { String::new() } else { format!(" ({cell})") };
    let sign = if check.holds { "" } else { " <- not so" };
    format!("{}{place}: {} = {value}{interval}, asked: {bounds}{sign}", check.scenario, check.what)
}

/// The summary in a sentence.
pub(crate) fn sum(reproduction: &Reproduction) -> String {
    let s = &reproduction.summary;
    let claims = format!("{} of {} claims hold.", s.claims_held, s.claims);
    if s.cells == 0 {
        return claims;
    }
    let median = format::maybe(s.median_abs_log2, |log2| {
        format!("{log2} (a factor of {})", format::digits(libm::exp2(log2)))
    });
    let cells = format!(
        "{} of {} comparable cells within 2x ({} of all {}), median |log2 ratio| {median}",
        s.within_2x_comparable, s.cells_comparable, s.within_2x, s.cells
    );
    if s.claims == 0 { cells + "." } else { format!("{cells}; {claims}") }
}

#[cfg(test)]
mod tests {
    use vcoop_experiment::reproduce::CheckResult;

    use super::evidence;

    #[test]
    fn rounding_does_not_hide_on_which_side_of_a_bound_a_value_is() {
        let said = |value: f64, at_least: Option<f64>, at_most: Option<f64>| {
            let check = CheckResult {
                scenario: "s".to_owned(),
                cell: Default::default(),
                what: "x".to_owned(),
                unit: String::new(),
                value: Some(value),
                ci95: Some([value, value]),
                at_least,
                at_most,
                holds: true,
            };
            evidence(&check)
        };
        let bound = Some(1.001);
        assert_eq!(
            said(1.0049, bound, None),
            "s: x = 1.0049 [1.0049, 1.0049], asked: at least 1.001"
        );
        assert_eq!(said(1.0049, None, Some(1.01)), "s: x = 1.00 [1.00, 1.00], asked: at most 1.01");
        assert_eq!(said(2.345_67, bound, None), "s: x = 2.35 [2.35, 2.35], asked: at least 1.001");
    }
}
