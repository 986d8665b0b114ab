//! The documentation is true: commands run, outputs are what the program prints, tables are what
//! the types are, links lead somewhere.
//!
//! `UPDATE_DOCS=1 cargo test -p vcoop --test docs` writes the generated parts anew: `scenario.md`,
//! and every fenced block after a line `<!-- output: COMMAND -->`. Such a line may end in
//! `| from TEXT` and `| until TEXT`: the block then begins with the first line that starts with the
//! one and ends before the next line that starts with the other. Blocks after
//! `<!-- slow output: COMMAND -->` are written when updating, and not checked otherwise.
//! `UPDATE_DOCS=all` also writes the [tables of long runs](tables).

mod abi;
mod book;
mod tables;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use vcoop_testing::ProgramOutput;

/// The root of the source tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn updating() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1" || value == "all")
}

/// Every page: path and text, in a fixed order.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(root().join("docs/src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    paths.sort();
    let others = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "captures/README.md"];
    paths.extend(others.map(|name| root().join(name)));
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs/src").join(name)).unwrap()
}

/// A folder with the files that the commands of the docs speak of: somebody's own capture, the
/// profile of somebody's host, the scenario of the tutorial, a published table over it, and a sweep.
fn workshop(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let capture = root().join("captures/build-serve.txt.gz");
    fs::copy(capture, dir.join("mine.txt.gz")).unwrap();
    for shared in ["published", "sweeps"] {
        std::os::unix::fs::symlink(root().join(shared), dir.join(shared)).unwrap();
    }
    let profile = vcoop_model::profile::Profile::builtin_text("xeon-server").unwrap();
    fs::write(dir.join("this-host.toml"), profile).unwrap();
    for (name, file) in [
        ("tutorial.md", "control-loop.toml"),
        ("published.md", "my-table.toml"),
        ("sweep.md", "hogs.toml"),
    ] {
        let page = page(name);
        let mut blocks =
            page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let own = blocks.find(|block| block.starts_with("name = ")).unwrap();
        fs::write(dir.join(file), own).unwrap();
    }
    dir
}

fn vcoop(args: &[String], dir: &Path) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
    // Pages show what is the same on every machine.
    ProgramOutput::by(command.args(args).current_dir(dir).env("VCOOP_BACKEND", "sim"))
}

/// The words of a shell command up to a pipe, a redirection or a comment.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '&' | ';') => break,
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The arguments of every vcoop command a page quotes, in code blocks and code spans.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let code = fenced || line.starts_with("    ");
        let whole =
            code.then(|| line.trim().trim_start_matches("$ ").trim_start_matches("Again: "));
        let spans = (!code).then(|| line.split('`').skip(1).step_by(2));
        for command in whole.into_iter().chain(spans.into_iter().flatten()) {
            for program in ["vcoop ", "cargo run --release -- "] {
                found.extend(command.strip_prefix(program).map(words));
            }
        }
    }
    found
}

/// What says nothing about whether a command works is made short.
fn shortened(args: &[String]) -> Vec<String> {
    let mut short = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if ["--duration", "--warmup", "--repeats"].contains(&arg.as_str()) {
            rest.next();
        } else {
            short.push(arg.clone());
        }
    }
    let pattern = |arg: &String| arg == "SCENARIO" || arg.starts_with('[');
    if short.iter().any(pattern) {
        // A pattern of a command: only its name can be tried.
        short.truncate(1);
        short.push("--help".to_owned());
    } else if short.len() == 1
        && ["run", "explain", "capture", "completions"].contains(&short[0].as_str())
    {
        // The name of a command, rather than a command.
        short.push("--help".to_owned());
    } else if !can_be_cut_short(&short) {
        // Only whether it could be said.
        short.push("--help".to_owned());
    } else if short[0] == "run" {
        // Digests of tables are taken of these.
        let options = ["--duration", "200ms", "--warmup", "50ms", "--repeats", "2"];
        short.extend(options.map(str::to_owned));
    } else if short[0] == "reproduce" {
        // Large hosts, whose numbers have tests of their own.
        let options = ["--duration", "10ms", "--warmup", "1ms", "--repeats", "1"];
        short.extend(options.map(str::to_owned));
    }
    short
}

/// Not what measures this host, and needs KVM and its time; nor storms, which end when they end, and
/// have tests of their own.
fn can_be_cut_short(args: &[String]) -> bool {
    // Nor what takes a file or a VM of the reader's, or as many runs as it needs.
    let own = ["calibrate", "validate", "sweep", "map", "tune", "capacity", "trace"];
    let vms = [
        "observe",
        "compare",
        "conformance",
        "attach",
        "detach",
        "restore",
        "daemon",
        "scx",
        "top",
        "guest",
    ];
    let live = own.iter().chain(&vms).any(|name| *name == args[0])
        || args.windows(2).any(|pair| pair[0] == "--backend" && pair[1] != "sim")
        // A file that `vcoop observe` of the reader's VM wrote.
        || args.iter().any(|arg| arg == "web.toml");
    // A report and a comparison take folders that runs wrote.
    let drawn =
        ["report", "diff"].contains(&args[0].as_str()) || args.iter().any(|arg| arg == "--out");
    let storms = args.iter().any(|arg| arg.starts_with("xen")) || args == ["reproduce"];
    !live && !storms && !drawn
}

#[test]
fn every_command_works() {
    let dir = workshop("docs-commands");
    let mut seen: BTreeMap<Vec<String>, PathBuf> = BTreeMap::new();
    for (path, text) in pages() {
        for command in commands(&text) {
            seen.entry(shortened(&command)).or_insert_with(|| path.clone());
        }
    }
    assert!(seen.len() > 20, "the docs quote more commands than {}", seen.len());
    for (args, path) in seen {
        let said = vcoop(&args, &dir);
        assert_eq!(said.code, Some(0), "{}: {said}", path.display());
    }
}

/// What follows `<!-- output: ` in a page.
struct Quoted {
    command: Vec<String>,
    from: Option<String>,
    until: Option<String>,
    slow: bool,
}

impl Quoted {
    fn parse(line: &str) -> Option<Self> {
        let (slow, rest) = match line.strip_prefix("<!-- slow output: ") {
            Some(rest) => (true, rest),
            None => (false, line.strip_prefix("<!-- output: ")?),
        };
        let mut parts = rest.strip_suffix(" -->")?.split(" | ");
        let command = words(parts.next()?.strip_prefix("vcoop ")?);
        let mut this = Self { command, from: None, until: None, slow };
        for part in parts {
            match part.split_once(' ')? {
                ("from", text) => this.from = Some(text.to_owned()),
                ("until", text) => this.until = Some(text.to_owned()),
                _ => return None,
            }
        }
        Some(this)
    }

    /// The part of the command's output that the page shows. `known`: outputs by command.
    fn output(&self, dir: &Path, known: &mut BTreeMap<Vec<String>, String>) -> String {
        let text = known
            .entry(self.command.clone())
            .or_insert_with(|| vcoop(&self.command, dir).well().out);
        let starts = |line: &&str, with: &Option<String>| {
            with.as_ref().is_some_and(|with| line.trim_start().starts_with(with))
        };
        let begun = text.lines().skip_while(|l| self.from.is_some() && !starts(l, &self.from));
        let lines: Vec<&str> = begun
            .enumerate()
            .take_while(|(i, l)| *i == 0 || !starts(l, &self.until))
            .map(|(_, l)| l)
            .collect();
        assert!(!lines.is_empty(), "nothing starts with {:?}", self.from);
        lines.join("\n").trim_end().to_owned() + "\n"
    }
}

/// The page with the blocks after output marks as the program prints them now.
fn with_outputs(text: &str, dir: &Path, known: &mut BTreeMap<Vec<String>, String>) -> String {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        out += &format!("{line}\n");
        if !line.contains("output: vcoop") || !line.starts_with("<!--") {
            continue;
        }
        let quoted = Quoted::parse(line).unwrap_or_else(|| panic!("cannot read {line}"));
        if quoted.slow && !updating() {
            continue;
        }
        assert_eq!(lines.next(), Some("```text"), "after {line}");
        out += &format!("```text\n{}```\n", quoted.output(dir, known));
        assert!(lines.any(|line| line == "```"), "the block after {line} does not end");
    }
    out
}

/// A folder with the flagship's result, and what it printed. Pages quote it, and pictures are drawn from it.
static BUSY: LazyLock<(PathBuf, String)> = LazyLock::new(|| {
    let dir = workshop("docs-pictures");
    let printed = vcoop(&words("run busy-host --out busy"), &dir).well().out;
    (dir, printed)
});

#[test]
fn quoted_outputs_are_what_the_program_prints() {
    let dir = workshop("docs-outputs");
    let mut known = BTreeMap::from([(words("run busy-host"), BUSY.1.clone())]);
    for (path, text) in pages() {
        let now = with_outputs(&text, &dir, &mut known);
        if now == text {
            continue;
        }
        if updating() {
            fs::write(&path, now).unwrap();
            continue;
        }
        let old = text.lines().zip(now.lines()).find(|(a, b)| a != b);
        panic!("{}: set UPDATE_DOCS=1; first difference: {old:#?}", path.display());
    }
}

/// Pictures of these pages: charts of the flagship's report, and the study's map.
const PICTURES: [&str; 4] = [
    "slower-guest-cyclictest-0.svg",
    "cost-0.svg",
    "parts-guest-cyclictest-0.svg",
    "boost-policy.svg",
];

#[test]
fn pictures_are_what_the_program_draws() {
    let dir = &BUSY.0;
    let data = root().join("sweeps/boost-policy/data");
    let map = format!(
        "map {} --rows vms --columns vcpus_per_pcpu --out drawn/boost-policy.svg",
        data.display()
    );
    for command in ["report busy --svg drawn", &map] {
        vcoop(&words(command), dir).well();
    }
    let own = root().join("docs/src/pictures");
    for name in PICTURES {
        let now = fs::read_to_string(dir.join("drawn").join(name)).unwrap();
        if updating() {
            fs::create_dir_all(&own).unwrap();
            fs::write(own.join(name), now).unwrap();
            continue;
        }
        let committed = fs::read_to_string(own.join(name)).unwrap_or_default();
        assert!(committed == now, "{name} is another picture: set UPDATE_DOCS=1");
    }
    let shown = |name: &&str| pages().iter().any(|(_, text)| text.contains(*name));
    assert!(PICTURES.iter().all(shown));
}

#[test]
fn the_scenario_reference_is_that_of_the_types() {
    let path = root().join("docs/src/scenario.md");
    let old = fs::read_to_string(&path).unwrap();
    let mark = "<!-- generated from here on -->\n\n";
    let (head, _) = old.split_once(mark).unwrap();
    let reference = vcoop_model::scenario::reference();
    let now = format!("{head}{mark}{}\n", reference.trim_end());
    if updating() {
        fs::write(&path, now).unwrap();
    } else {
        assert!(old == now, "docs/src/scenario.md is not what the types say: set UPDATE_DOCS=1");
    }
}

/// Where a link to a heading goes, as GitHub names it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    let name: String = heading.trim().to_lowercase().chars().filter(kept).collect();
    name.replace(' ', "-")
}

/// The lines of a page that are not code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence && !line.starts_with("    ")
    })
}

/// The anchors of a page's headings; of headings that are alike, the later ones have a number.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let name = anchor(heading.trim_start_matches('#'));
        let before = seen.entry(name.clone()).or_default();
        found.push(if *before == 0 { name } else { format!("{name}-{before}") });
        *before += 1;
    }
    found
}

/// Targets of a page's links and pictures.
fn links(text: &str) -> Vec<&str> {
    let marks = [("](", [')', ' ']), ("src=\"", ['"', '"']), ("href=\"", ['"', '"'])];
    let of = |line| {
        marks.into_iter().flat_map(move |(mark, end)| {
            let rests = str::split(line, mark).skip(1);
            rests.map(move |rest| rest.split(end).next().unwrap_or_default())
        })
    };
    prose(text).flat_map(of).filter(|link| !link.is_empty()).collect()
}

/// For those who read the pages where the sources are: each link leads to a file of the tree and to a heading of it.
#[test]
fn links_lead_somewhere() {
    let others = ["python/README.md", "guest/linux/README.md"].map(|name| root().join(name));
    let others = others.map(|path| (path.clone(), fs::read_to_string(path).unwrap()));
    let mut inside = 0;
    for (path, text) in pages().into_iter().chain(others) {
        for link in links(&text) {
            let (target, section) = link.split_once('#').unwrap_or((link, ""));
            if target.contains("://") {
                continue;
            }
            let found = match target {
                "" => path.clone(),
                _ => path.parent().unwrap().join(target),
            };
            assert!(found.exists(), "{}: no {target}", path.display());
            if section.is_empty() {
                continue;
            }
            let there = anchors(&fs::read_to_string(&found).unwrap());
            assert!(
                there.iter().any(|name| name == section),
                "{}: no section {section} in {target}",
                path.display()
            );
            inside += 1;
        }
    }
    assert!(inside > 50, "only {inside} links to headings were found");
}

/// No part of a page is there twice, as happens when changes of two people are brought together.
#[test]
fn no_part_of_a_page_is_there_twice() {
    for (path, text) in pages() {
        let mut parts = BTreeMap::new();
        let mut part = "";
        for heading in prose(&text).filter(|line| line.starts_with('#')) {
            if heading.starts_with("# ") {
                part = heading;
            }
            let twice = parts.insert((part, heading), ()).is_some();
            assert!(!twice, "{}: {heading} is there twice", path.display());
        }
    }
}

/// Numbers of a text, as they are written: `5.12`, `0.019`, `99`.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .map(|word| word.trim_matches('.'))
        .filter(|word| word.contains(|c: char| c.is_ascii_digit()))
}

/// README sums up results of other pages: each number of a row is on the page that the row links to.
#[test]
fn numbers_in_readme_are_on_the_pages_it_links_to() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let mut rows = 0;
    for row in text.lines().filter(|line| line.starts_with("| [")) {
        let link = row.split("](").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
        let page = fs::read_to_string(root().join(link)).unwrap();
        let there: Vec<&str> = numbers(&page).collect();
        // The first cell says where; the others, what came of it.
        for number in row.split(" | ").skip(1).flat_map(numbers) {
            assert!(there.contains(&number), "README.md: {number} is not in {link}");
        }
        rows += 1;
    }
    assert!(rows >= 3, "README.md has the results of {rows} pages");
}

/// The code spans of a line.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn contributing_names_files_and_functions_that_there_are() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let prose = text.lines().filter(|line| !line.starts_with("    "));
    let is_path = |span: &&str| span.contains('/') && !span.contains(' ') && !span.starts_with('/');
    let mut files = 0;
    for line in prose {
        for path in spans(line).filter(is_path) {
            assert!(root().join(path).exists(), "CONTRIBUTING.md names {path}");
            files += 1;
        }
        // A row of a walk: what happens in a file, with the names of its functions.
        let Some((path, what)) = line.strip_prefix("| `").and_then(|row| row.split_once("` | "))
        else {
            continue;
        };
        if path.ends_with(".rs") {
            let code = fs::read_to_string(root().join(path)).unwrap();
            for name in spans(what) {
                assert!(code.contains(name), "CONTRIBUTING.md: {path} has no {name}");
            }
        }
    }
    assert!(files > 50, "only {files} files were found in CONTRIBUTING.md");
}

#[test]
fn contributing_maps_every_crate_above_those_it_uses() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `crates/")?.split_once("` | "));
    let map: Vec<&str> = rows.map(|(name, _)| name).filter(|name| !name.contains('/')).collect();
    let place = |name: &str| {
        let rows: Vec<usize> = (0..map.len()).filter(|&row| map[row] == name).collect();
        assert_eq!(rows.len(), 1, "rows of crates/{name} in CONTRIBUTING.md");
        rows[0]
    };
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let own = place(&name);
        let manifest = root().join("crates").join(&name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        // Tests may use anything.
        let used = manifest.split("dev-dependencies]").next().unwrap().lines();
        for line in used.filter_map(|line| line.strip_prefix("vcoop-")) {
            let used = line.split(['.', ' ']).next().unwrap();
            assert!(own < place(used), "CONTRIBUTING.md: {name} uses {used} and stands below it");
        }
    }
}

#[test]
fn the_summary_has_every_page() {
    let summary = page("SUMMARY.md");
    for (path, _) in pages().iter().filter(|(path, _)| path.parent().unwrap().ends_with("src")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name}");
    }
    for name in summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(root().join("docs/src").join(name).exists(), "{name}");
    }
}

/// Every number in the page of limits is the code's.
#[test]
fn limits_are_what_the_code_has() {
    use vcoop_model::{file, limits};
    let text = page("limits.md");
    let has = |what: &str, most: String| {
        let row = format!("| {what} | {most} |");
        assert!(text.contains(&row), "limits.md should have {row}");
    };
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let capture = vcoop_capture::Limits::default();
    has("a scenario, a sweep or a publication", mib(file::MOST_TEXT));
    has("a profile, an rt-app workload, the daemon's configuration", mib(file::MOST_NAMED));
    has("a capture, uncompressed", mib(capture.max_text_bytes));
    has("`result.json`, `manifest.json`", mib(file::MOST_DOCUMENT));
    let grouped = |n: u64| {
        let digits = n.to_string();
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap()).collect();
        groups.join(" ")
    };
    for (what, most) in [
        ("pCPUs of the host", limits::MAX_PCPUS as u64),
        ("VMs, with their copies", limits::MAX_VMS as u64),
        ("vCPUs of a VM", limits::MAX_VCPUS as u64),
        ("vCPUs of all VMs", limits::MAX_TOTAL_VCPUS as u64),
        ("tasks of the host, and of all guests", limits::MAX_TASKS as u64),
        ("cells of a matrix", limits::MAX_CELLS as u64),
        ("tasks in all cells of a matrix", limits::MAX_MATRIX_TASKS as u64),
        ("steps of a rogue's program", limits::MAX_ROGUE_STEPS as u64),
        ("steps of a round of lock-workers", limits::MAX_ROUND_STEPS as u64),
        ("threads of an rt-app workload", limits::MAX_RT_APP_THREADS as u64),
        ("events of an rt-app workload", limits::MAX_RT_APP_ACTS as u64),
        ("bytes of a line", capture.max_line_bytes as u64),
        ("threads", capture.max_threads as u64),
        ("steps of all threads", capture.max_steps as u64),
        ("CPUs", capture.max_cpus.into()),
        ("seconds", capture.max_span_ns / 1_000_000_000),
        ("points", limits::MAX_POINTS),
        ("points of a Sobol design", vcoop_sweep::design::MAX_SOBOL.into()),
        ("vCPUs", vcoop_guest::layout::MAX_VCPUS as u64),
        ("tasks", vcoop_guest::layout::MAX_TASKS as u64),
        ("measuring tasks", vcoop_guest::layout::MAX_RINGS as u64),
        ("devices", vcoop_guest::layout::MAX_DEVICES as u64),
        ("steps of all tasks", vcoop_guest::layout::MAX_STEPS as u64),
    ] {
        has(what, grouped(most));
    }
}
