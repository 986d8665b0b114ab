//! `vcoop diff`.

use std::path::{Path, PathBuf};

use vcoop_experiment::diff::{Diff, Row, diff};
use vcoop_experiment::format;
use vcoop_experiment::judge::LimitResult;
use vcoop_experiment::result::{self, Document};
use vcoop_sweep::slo::{Reading, quantities};

use crate::fail_if::conditions;
use crate::failure::Failure;
use crate::folder::RESULT;
use crate::output::{json, print_at_end, style};
use crate::report::{known, read};

#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// A result.json, or a folder that --out of `vcoop run` or `vcoop compare` wrote
    #[arg(value_name = "A")]
    pub(crate) first: PathBuf,
    /// The other result, likewise
    #[arg(value_name = "B")]
    pub(crate) second: PathBuf,
    /// Also show what does not differ beyond noise, or has no interval to tell by
    #[arg(long)]
    pub(crate) all: bool,
    /// End with exit code 4 if this holds for B over A under any policy: 'guest.cyclictest.p99 > 1.1x'
    #[arg(long, value_name = "NAME > RATIO")]
    pub(crate) fail_if: Vec<String>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &DiffArgs) -> Result<(), Failure> {
    let (first, second) = (document(&args.first)?, document(&args.second)?);
    let found = diff(&first, &second);
    // A ratio has no unit other than "times".
    let mut known = quantities(&second);
    known.iter_mut().for_each(|quantity| "ratio".clone_into(&mut quantity.unit));
    let conditions = conditions(&args.fail_if, &known)?;
    let mut broken = Vec::new();
    for condition in &conditions {
        for row in found.rows.iter().filter(|row| row.name == condition.quantity.name) {
            let reading = row.ratio.map(|value| Reading { value, interval: row.ratio_ci95 });
            if reading.is_none_or(|reading| condition.held(reading) >= LimitResult::Likely) {
                let ratio = row.ratio.map_or("n/a".to_owned(), format::ratio);
                broken.push(format!("{} is {ratio} under {}", row.name, row.place()));
            }
        }
    }
    let end = match broken.is_empty() {
        true => Ok(()),
        false => Err(Failure::Condition(format!("--fail-if: {}", broken.join(", ")))),
    };
    print_at_end(&if args.json { json(&found)? } else { describe(&found, args.all) }, end)
}

/// A result file, or the result in a folder that --out wrote.
fn document(path: &Path) -> Result<Document, Failure> {
    let file = if path.is_dir() { path.join(RESULT) } else { path.to_owned() };
    let (dir, name) = (file.parent().unwrap_or(Path::new("")), file.file_name());
    let name = name.and_then(|name| name.to_str()).unwrap_or_default();
    let value = read(dir, name)?.ok_or_else(|| {
        let file = file.display();
        let remedy = "name a result.json, or a folder that --out wrote";
        Failure::usage(format!("{file}: there is no such file\n  remedy: {remedy}"))
    })?;
    known(value, result::SCHEMA, &file)
}

fn describe(found: &Diff, all: bool) -> String {
    let mut text = String::new();
    for [what, a, b] in &found.settings {
        text += &style().wrap(&format!("{what}: {a} -> {b}"), 2);
    }
    if !found.settings.is_empty() {
        text += "\n";
    }
    let (mut hidden, mut silent) = (0, 0);
    let mut place = String::new();
    for row in &found.rows {
        match row.differs() {
            Some(false) if !all => hidden += 1,
            None if !all && row.values[0] == row.values[1] => hidden += 1,
            None if !all => silent += 1,
            _ => {
                if row.place() != place {
                    place = row.place();
                    text += &format!("{place}\n");
                }
                text += &line(row);
            }
        }
    }
    for (only, which) in found.only.iter().zip(["first", "second"]) {
        for name in only {
            text += &style().wrap(&format!("only in the {which}: {name}"), 2);
        }
    }
    let n = found.rows.len();
    text += &style().wrap(
        &format!(
            "{n} numbers in both. Ratios are second over first, with 95 % intervals as of independent \
             results: * differs beyond noise."
        ),
        2,
    );
    if hidden + silent > 0 {
        text += &style().wrap(
            &format!(
                "Not shown (--all): {hidden} that do not differ beyond noise, {silent} that differ and \
                 have no interval to tell by"
            ),
            2,
        );
    }
    text
}

fn line(row: &Row) -> String {
    let show = |value: Option<f64>| match (value, row.unit.as_str()) {
        (None, _) => "n/a".to_owned(),
        (Some(value), "count") => format::digits(value),
        (Some(value), unit) => format::with_unit(value, unit),
    };
    let ratio = row.ratio.map_or("n/a".to_owned(), format::ratio);
    let interval = row.ratio_ci95.map_or_else(String::new, |[lo, hi]| {
        format!(" [{}, {}]", format::bound(lo), format::bound(hi))
    });
    let sign = match row.differs() {
        Some(true) => " *",
        _ => "",
    };
    let [a, b] = row.values.map(show);
    format!("  {:32} {a:>10} -> {b:>10}  {ratio:>7}{interval}{sign}\n", row.name)
}
