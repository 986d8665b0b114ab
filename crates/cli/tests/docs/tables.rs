//! Tables of simulated numbers in the pages are what the program measures.
//!
//! A comment that begins with the line `<!-- table of runs` stands before such a table. It holds the table's
//! [`Spec`] as TOML. `UPDATE_DOCS=all` runs its commands, which takes some ten minutes, and writes the table and the
//! digest of a short run of each command. Without it only the short runs are done: if their digest differs, the
//! simulator gives other numbers than those in the table.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use vcoop_experiment::format;

use super::{can_be_cut_short, pages, shortened, vcoop, words, workshop};

const BEGIN: &str = "<!-- table of runs";
const END: &str = "-->";

/// What is in a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    /// `vcoop run` is called with these arguments, unless the row or the column has others.
    #[serde(default)]
    run: String,
    #[serde(rename = "row")]
    rows: Vec<Line>,
    #[serde(rename = "column")]
    columns: Vec<Line>,
    /// Of the short runs' series.
    #[serde(default)]
    digest: String,
}

/// A row or a column. A cell takes what it needs from its row, or else from its column.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// As printed; default: the policy, as code.
    name: Option<String>,
    run: Option<String>,
    policy: Option<String>,
    /// Coordinates of a cell of the scenario's matrix.
    #[serde(default)]
    at: BTreeMap<String, Value>,
    /// `PROBE METRIC FIELD [UNIT]`: a field of a series in the document of `--json`. A field of two numbers is
    /// printed as an interval.
    of: Option<Vec<String>>,
    /// Numbers that were not simulated, as printed, instead of the line's cells.
    text: Option<Vec<String>>,
}

impl Line {
    fn name(&self) -> String {
        let policy = || format!("`{}`", self.policy.as_deref().unwrap_or_default());
        self.name.clone().unwrap_or_else(policy)
    }
}

/// Documents of runs, by their arguments.
type Documents = BTreeMap<Vec<String>, Value>;

impl Spec {
    /// The arguments of a cell's command.
    fn run(&self, row: &Line, column: &Line) -> Vec<String> {
        words(&format!("run {}", row.run.as_ref().or(column.run.as_ref()).unwrap_or(&self.run)))
    }

    /// The commands of all cells.
    fn runs(&self) -> Vec<Vec<String>> {
        let mut runs = Vec::new();
        for row in self.rows.iter().filter(|row| row.text.is_none()) {
            for column in &self.columns {
                let run = self.run(row, column);
                if !runs.contains(&run) {
                    runs.push(run);
                }
            }
        }
        runs
    }

    /// Digest of short runs; of none that cannot be cut short.
    fn digest(&self, dir: &Path, known: &mut Documents) -> String {
        let mut hasher = DefaultHasher::new();
        for run in self.runs().iter().filter(|run| can_be_cut_short(run)) {
            document(shortened(run), dir, known)["series"].to_string().hash(&mut hasher);
        }
        format!("{:016x}", hasher.finish())
    }

    /// The table as Markdown.
    fn table(&self, dir: &Path, known: &mut Documents) -> String {
        let mut out = String::from("|");
        for column in &self.columns {
            out += &format!(" | {}", column.name());
        }
        out += &format!(" |\n|{}\n", " --- |".repeat(self.columns.len() + 1));
        for row in &self.rows {
            out += &format!("| {}", row.name());
            for (i, column) in self.columns.iter().enumerate() {
                out += " | ";
                out += &match &row.text {
                    Some(text) => text[i].clone(),
                    None => self.cell(row, column, dir, known),
                };
            }
            out += " |\n";
        }
        out
    }

    fn cell(&self, row: &Line, column: &Line, dir: &Path, known: &mut Documents) -> String {
        let document = document(self.run(row, column), dir, known);
        let policy = row.policy.as_ref().or(column.policy.as_ref()).expect("a policy");
        assert!(
            document["policies"].as_array().unwrap().iter().any(|p| p == policy),
            "no {policy}"
        );
        let at: Vec<_> = row.at.iter().chain(&column.at).collect();
        let mut out = String::new();
        for of in row.of.as_ref().or(column.of.as_ref()).expect("what to show") {
            let asked: Vec<&str> = of.split(' ').collect();
            let [probe, metric, field, unit @ ..] = &asked[..] else { panic!("cannot read {of}") };
            let all = document["series"].as_array().unwrap().iter();
            let at = |s: &&Value| at.iter().all(|(name, value)| s["params"][name] == **value);
            let mut all = all
                .filter(|s| s["probe"] == **probe && s["metric"] == **metric)
                .filter(at)
                .peekable();
            assert!(all.peek().is_some(), "no {of} in {}", document["command"]);
            // Not every policy has every number.
            let Some(series) = all.find(|s| s["policy"] == **policy) else { continue };
            let from = series["unit"].as_str().unwrap();
            let factor = unit.first().map_or(1.0, |to| us(from) / us(to));
            let number = |value: &Value| match value.as_f64() {
                Some(value) => format::digits(value * factor),
                None => "n/a".to_owned(),
            };
            let (between, text) = match &series[field] {
                Value::Array(ends) => {
                    (" ", format!("[{}, {}]", number(&ends[0]), number(&ends[1])))
                }
                value => (", ", number(value)),
            };
            out += if out.is_empty() { "" } else { between };
            out += &text;
        }
        out
    }
}

/// Microseconds in a unit of time.
fn us(unit: &str) -> f64 {
    match unit {
        "ns" => 1e-3,
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => panic!("`{unit}` is no unit of time"),
    }
}

fn document<'k>(mut args: Vec<String>, dir: &Path, known: &'k mut Documents) -> &'k Value {
    args.extend(["--json", "--quiet"].map(str::to_owned));
    known.entry(args).or_insert_with_key(|args| vcoop(args, dir).well().json())
}

#[test]
fn tables_of_runs_are_what_the_simulator_measures() {
    let update = std::env::var_os("UPDATE_DOCS").is_some_and(|value| value == "all");
    let dir = workshop("docs-tables");
    let mut known = Documents::new();
    for (path, text) in pages() {
        let mut now = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once(BEGIN) {
            let (spec, after) = after.split_once(END).unwrap();
            let old = after.strip_prefix('\n').unwrap();
            let table: usize = old
                .split_inclusive('\n')
                .take_while(|line| line.starts_with('|'))
                .map(str::len)
                .sum();
            rest = &old[table..];
            let spec_text = spec.trim();
            let spec: Spec =
                toml::from_str(spec_text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let digest = spec.digest(&dir, &mut known);
            if update {
                let lines = spec_text.lines().filter(|line| !line.starts_with("digest = "));
                let lines: String = lines.map(|line| format!("{line}\n")).collect();
                now += before;
                now += &format!(
                    "{BEGIN}\ndigest = \"{digest}\"\n{lines}{END}\n{}",
                    spec.table(&dir, &mut known)
                );
            } else {
                let name = path.display();
                assert_eq!(
                    spec.digest, digest,
                    "{name}: the simulator has other numbers: set UPDATE_DOCS=all, and read the text beside\n{spec_text}"
                );
            }
        }
        if update && !now.is_empty() {
            fs::write(&path, now + rest).unwrap();
        }
    }
    assert!(!known.is_empty());
}
