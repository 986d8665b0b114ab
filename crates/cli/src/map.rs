//! `vcoop map`.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value;
use vcoop_experiment::judge::LEAST_REPEATS;
use vcoop_experiment::{format, params};
use vcoop_report::heat::{Heat, Tile};
use vcoop_sweep::map::{AS_GOOD, BETWEEN, Cell, MISSED, Map, MapContent, MapRequest, map};

use crate::failure::Failure;
use crate::folder::{check_writable, write};
use crate::options::MayCost;
use crate::output::{note, print, style};

#[derive(Debug, clap::Args)]
pub(crate) struct MapArgs {
    /// A folder that `vcoop sweep --out` wrote
    pub(crate) dir: PathBuf,
    /// Axis down, by its column in the dataset; `policy` shows a number of each policy
    #[arg(long, value_name = "COLUMN")]
    pub(crate) rows: String,
    /// Axis across
    #[arg(long, value_name = "COLUMN")]
    pub(crate) columns: String,
    /// What is in a cell: `best`; a column of numbers, like ratio_p99; or `missed`, the percentage
    /// of a latency's periods that were missed
    #[arg(long, value_name = "WHAT", default_value = "best")]
    pub(crate) show: String,
    /// Whose numbers, if no axis is `policy`
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Of which probe, and of which metric where it is no latency: host.cpu. Default: the guests'
    /// latency, where there is one only
    #[arg(long, value_name = "NAME")]
    pub(crate) probe: Option<String>,
    /// Only points with this value of an axis; several: all of them
    #[arg(long, value_name = "COLUMN=VALUE")]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) may_cost: MayCost,
    /// Title of the map
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Write it as an SVG picture into this file, instead of text on stdout
    #[arg(long, short, value_name = "FILE.svg")]
    pub(crate) out: Option<PathBuf>,
}

/// The column that is shown by default.
const BEST: &str = "best";

/// A ratio of this many times, or its inverse, has the full colour.
const FULL: f64 = 20.0;

pub(crate) fn run(args: &MapArgs) -> Result<(), Failure> {
    if let Some(path) = &args.out {
        check_writable("-o ", path)?;
        if path.extension().is_none_or(|end| end != "svg") {
            let path = path.display();
            return Err(Failure::usage(format!("-o {path}: a picture's name ends in .svg")));
        }
    }
    let only = args.only.iter().map(|text| pair(text)).collect::<Result<Vec<_>, _>>()?;
    let show = match (args.show.as_str(), &args.policy, &args.probe) {
        (BEST, None, None) => MapContent::Best,
        (BEST, policy, _) => {
            let option = if policy.is_some() { "--policy" } else { "--probe" };
            let message = format!("{option} goes with a column: --show ratio_p99");
            return Err(Failure::usage(message));
        }
        (column, policy, probe) => MapContent::Number {
            column: column.to_owned(),
            policy: policy.clone(),
            probe: probe.clone(),
        },
    };
    let ask = MapRequest {
        rows: args.rows.clone(),
        columns: args.columns.clone(),
        show,
        only,
        limits: args.may_cost.limits(),
    };
    let found = map(&args.dir, &ask).map_err(|e| Failure::usage(e.to_string()))?;
    if let (None, Some(probe)) = (&args.probe, &found.probe) {
        note(&format!("of {probe}, the guests' only latency; --probe names others"));
    }
    let heat = heat(&ask, &found, args.title.as_deref());
    match &args.out {
        None => print(&heat.words(style())),
        Some(path) => {
            write(path, |mut file| file.write_all(heat.svg().as_bytes()))?;
            note(&format!("wrote {}", path.display()));
            Ok(())
        }
    }
}

/// `COLUMN=VALUE`.
fn pair(text: &str) -> Result<(String, String), Failure> {
    let wrong = || Failure::usage(format!("--only {text}: write COLUMN=VALUE, like tick_hz=1000"));
    let (column, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((column.trim().to_owned(), value.trim().to_owned()))
}

fn heat(ask: &MapRequest, found: &Map, title: Option<&str>) -> Heat {
    let mut title = title.map_or_else(
        || match &ask.show {
            MapContent::Best => format!("{}: best policy", found.name),
            MapContent::Number { column, policy, .. } => {
                let probe = found.probe.as_deref().unwrap_or_default();
                let under =
                    policy.as_ref().map_or_else(String::new, |name| format!(" under {name}"));
                format!("{}: {column} of {probe}{under}", found.name)
            }
        },
        str::to_owned,
    );
    for (column, value) in &ask.only {
        let (name, value) = label(column, value);
        title += &format!(", {name} {value}");
    }
    let (across, columns) = axis(&ask.columns, &found.columns);
    let (down, rows) = axis(&ask.rows, &found.rows);
    let tiles = found
        .cells
        .iter()
        .map(|row| row.iter().map(|cell| tile(ask, found, cell)).collect())
        .collect();
    Heat { title, across, columns, down, rows, tiles, notes: notes(ask, found) }
}

/// An axis for display: its name and its values.
fn axis(column: &str, values: &[String]) -> (String, Vec<String>) {
    let (names, values): (Vec<_>, Vec<_>) = values.iter().map(|text| label(column, text)).unzip();
    (names.into_iter().next().unwrap_or_else(|| column.to_owned()), values)
}

fn label(column: &str, text: &str) -> (String, String) {
    if let Some((least, largest)) = text.split_once(BETWEEN) {
        let ((name, least), (_, largest)) = (label(column, least), label(column, largest));
        return (name, format!("{least}{BETWEEN}{largest}"));
    }
    let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    params::label(column, &value)
}

fn notes(ask: &MapRequest, found: &Map) -> Vec<String> {
    let baseline = &found.baseline;
    let mut notes = match &ask.show {
        MapContent::Best => vec![
            format!(
                "The first number is what guests wait, as a ratio to {baseline}. `host` is the mean latency of \
                 the host's own probes, and `own` is what the guests' other work still gets, both as ratios, \
                 too. Each is a geometric mean over the points of a cell. A cell has no `host` if the dataset \
                 has no probe of the host: what the host pays is not known then."
            ),
            format!(
                "The best policy is the one with the lowest first number, by the rule of every verdict. {} \
                 `+n` says that n more policies are as good, within {:.0} %. `none` says that no policy is \
                 better at that price. `few` says that there are fewer than {LEAST_REPEATS} repeats.",
                ask.limits.words(),
                (AS_GOOD - 1.0) * 100.0
            ),
        ],
        MapContent::Number { .. } if found.ratio => {
            vec![format!(
                "Each number is a ratio to {baseline}, as a geometric mean over the points of a cell."
            )]
        }
        MapContent::Number { column, .. } if column == MISSED => {
            vec!["Each number is a share of all periods of a cell's points, in percent.".to_owned()]
        }
        MapContent::Number { .. } => {
            let unit = found.unit.as_ref().map_or_else(String::new, |unit| format!(", in {unit}"));
            vec![format!("Each number is a median over the points of a cell{unit}.")]
        }
    };
    let absent = |cell: &Cell| cell.points > 0 && cell.value.is_none();
    if ask.show != MapContent::Best && found.cells.iter().flatten().any(absent) {
        notes.push(
            "`n/a` says that no point of the cell has this number. A quantile takes ten samples beyond it, and \
             a ratio takes both values."
                .to_owned(),
        );
    }
    let (points, missing) = (found.points, found.missing);
    if missing > 0 {
        notes.push(format!(
            "The sweep is not complete: {missing} of {points} points are missing. The same `vcoop sweep` \
             command computes them."
        ));
    }
    if found.failed > 0 {
        notes.push(format!("{} of {points} points failed and are not shown.", found.failed));
    }
    notes
}

fn tile(ask: &MapRequest, found: &Map, cell: &Cell) -> Tile {
    let points = format!("{} points", cell.points);
    let none = |words: &str| Tile {
        lines: vec![words.to_owned()],
        hint: points.clone(),
        ..Tile::default()
    };
    if cell.points == 0 {
        return none("no point");
    }
    if cell.few {
        return none("few");
    }
    let Some(value) = cell.value else {
        return none(if ask.show == MapContent::Best { "none" } else { "n/a" });
    };
    match (&ask.show, &cell.best) {
        (MapContent::Best, Some(best)) => {
            let more =
                if cell.ties.is_empty() { String::new() } else { format!(" +{}", cell.ties.len()) };
            let said = |what: &str, ratio: Option<f64>| {
                ratio.map_or_else(String::new, |ratio| format!("{what} {}", format::ratio(ratio)))
            };
            let paid = format!("{} {}", said("host", cell.cost), said("own", cell.own));
            let others = found.policies.iter().filter(|policy| **policy != found.baseline);
            let mut hint = points;
            if !cell.ties.is_empty() {
                hint += &format!("; as good: {}", cell.ties.join(", "));
            }
            Tile {
                lines: vec![format!("{best}{more}"), format::ratio(value), paid.trim().to_owned()],
                colour: others.into_iter().position(|policy| policy == best),
                strength: 0.2 + 0.5 * (-value.ln() / FULL.ln()).clamp(0.0, 1.0),
                hint,
            }
        }
        _ if found.ratio => Tile {
            lines: vec![format::ratio(value)],
            // Better and worse have different colours.
            colour: Some(usize::from(value > 1.0)),
            strength: 0.05 + 0.65 * (value.ln().abs() / FULL.ln()).clamp(0.0, 1.0),
            hint: points,
        },
        _ => {
            let all = found.cells.iter().flatten().filter_map(|cell| cell.value);
            let (lo, hi) =
                all.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), x| (lo.min(x), hi.max(x)));
            let share = if hi > lo { (value - lo) / (hi - lo) } else { 0.0 };
            Tile {
                lines: vec![format::digits(value)],
                colour: Some(0),
                strength: 0.1 + 0.6 * share,
                hint: points,
            }
        }
    }
}
