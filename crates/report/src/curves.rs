//! Times at which the VMs of a storm had started and logged in: a row for each policy and event, a column for a number
//! of VMs.

use vcoop_experiment::format;
use vcoop_experiment::result::{Curve, Document, Interval, Params};
use vcoop_model::distinct;

use crate::style::{POLICY, Style, Tone, cut, finish, name};

/// Numbers of VMs shown, as far as there are so many, besides the last.
const SHOWN: [u32; 4] = [10, 20, 40, 60];

/// The curves of a cell; empty without storms.
pub(crate) fn render(document: &Document, cell: &(String, Params), style: Style) -> String {
    let curves: Vec<&Curve> = document
        .curves
        .iter()
        .filter(|c| c.place.backend == cell.0 && c.place.params == cell.1)
        .collect();
    let mut out = String::new();
    for (vm, event) in distinct(curves.iter().map(|c| (&c.vm, &c.event))) {
        let of = curves.iter().filter(|c| (&c.vm, &c.event) == (vm, event));
        let of: Vec<&&Curve> = of.collect();
        out.push_str(&table(vm, event, &of, style));
    }
    out
}

fn table(vm: &str, event: &str, curves: &[&&Curve], style: Style) -> String {
    let planned = curves.iter().map(|c| c.planned).max().unwrap_or(0);
    let mut shown: Vec<u32> = SHOWN.into_iter().filter(|n| *n < planned).collect();
    if planned <= SHOWN[3] || shown.is_empty() {
        shown.push(planned);
    }
    let columns = shown.iter().map(|n| format!("VM {n}"));
    let header: Vec<String> = [format!("{} {event}", name(vm))]
        .into_iter()
        .chain(columns)
        .chain(["reached".to_owned()])
        .collect();
    let mut table = style.table(header.iter().map(String::as_str));
    for curve in curves {
        let mut cells = vec![style.cell(cut(&curve.place.policy, POLICY), Tone::Plain)];
        for n in &shown {
            let point = curve.points.iter().find(|p| p.vm == *n);
            let text = format::maybe(point, |p| {
                format!("{}{}", format::with_unit(p.mean_s, "s"), half(p.mean_s, p.mean_s_ci95))
            });
            cells.push(style.cell(text, Tone::Plain));
        }
        let least = curve.reached.iter().min().copied().unwrap_or(0);
        let most = curve.reached.iter().max().copied().unwrap_or(0);
        let range = if least == most { least.to_string() } else { format!("{least}-{most}") };
        let tone = if least < curve.planned { Tone::Bad } else { Tone::Plain };
        cells.push(style.cell(format!("{range} of {}", curve.planned), tone));
        table.add_row(cells);
    }
    finish(table, 1)
}

/// Half the width of an interval, as a share of the mean.
fn half(mean: f64, interval: Option<Interval>) -> String {
    match interval {
        Some([lo, hi]) if mean > 0.0 => format!(" \u{b1}{:.0} %", 50.0 * (hi - lo) / mean),
        _ => String::new(),
    }
}
