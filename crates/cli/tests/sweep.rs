//! `vcoop sweep`: what is printed, exit codes, and that a killed one goes on as if nothing happened.

use std::collections::BTreeMap;
use std::fs;
use std::io::pipe;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use vcoop_testing::{ProgramOutput, send, until};

const SWEEP: &str = "name = \"killed\"\nscenario = \"busy-host-1\"\npolicies = [\"vanilla\", \"dynamic\"]\n\
    [set]\nduration = \"100ms\"\nwarmup = \"1ms\"\n[repeats]\nmin = 3\n[axes]\n\
    \"load.hog.count\" = { from = 1, to = 10, points = 10 }\n\
    \"host.tick_hz\" = [100, 250, 300, 1000]\n\
    \"vm.guest.task.cyclictest.interval\" = { from = \"300us\", to = \"3ms\", points = 8, scale = \"log\" }\n";

fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-sweep-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// A sweep's file, and a place for its dataset.
fn written(name: &str, sweep: &str) -> (PathBuf, PathBuf) {
    let dir = folder(name);
    fs::write(dir.join("s.toml"), sweep).unwrap();
    (dir.join("s.toml"), dir.join("out"))
}

fn sweep(file: &Path, out: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
    command.arg("sweep").arg(file).arg("--out").arg(out).args(extra);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn vcoop(file: &Path, out: &Path, extra: &[&str]) -> ProgramOutput {
    ProgramOutput::by(&mut sweep(file, out, extra))
}

fn bytes(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

/// Points that journals and parts of a folder hold; parts have 16 points, and their journals may be there
/// still.
fn done(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let mut parts = BTreeMap::<_, usize>::new();
    for path in entries.flatten().map(|e| e.path()) {
        let points = match path.extension().and_then(|e| e.to_str()) {
            Some("parquet") => 16,
            Some("journal") => {
                let text = fs::read(&path).unwrap_or_default();
                // The first line says whose it is.
                text.iter().filter(|byte| **byte == b'\n').count().saturating_sub(1)
            }
            _ => continue,
        };
        let part = parts.entry(path.file_stem().map(ToOwned::to_owned)).or_default();
        *part = points.max(*part);
    }
    parts.into_values().sum()
}

#[test]
fn killed_ten_times_it_loses_what_was_in_flight_and_no_more() {
    let (file, whole) = written("killed", SWEEP);
    let pieces = whole.with_file_name("pieces");
    let began = Instant::now();
    vcoop(&file, &whole, &["--quiet"]).well();
    let time = began.elapsed();
    let jobs = thread::available_parallelism().unwrap().get();
    let mut before = 0;
    for round in 0..10u32 {
        let mut child = sweep(&file, &pieces, &["--quiet"]).spawn().unwrap();
        // Moments without a pattern, from before the first point to a fifth of the whole.
        thread::sleep(time / 1000 * (round * 7919 % 200));
        // SIGKILL: no handler runs.
        child.kill().unwrap();
        child.wait().unwrap();
        let now = done(&pieces);
        assert!(now >= before, "round {round}: {now} points after {before}");
        before = now;
    }
    let output = vcoop(&file, &pieces, &["--json"]).well();
    let kept = output.err.lines().find_map(|l| l.split("; ").nth(1)?.split(' ').next());
    let kept: usize = kept.and_then(|n| n.parse().ok()).unwrap();
    // Points that were written are there again. Only points that run when it is killed, or that ended and
    // are not written yet, can be lost.
    assert!(kept >= before.saturating_sub(jobs) && kept <= 320, "{kept} of {before}");
    assert!(bytes(&whole) == bytes(&pieces), "the same bytes");
    let json = output.json();
    assert_eq!((&json["done"], &json["failed"]), (&Value::from(320), &Value::from(0)));
}

#[test]
fn an_interrupt_keeps_what_is_done_and_says_130() {
    let (file, out) = written("interrupted", &SWEEP.replace("100ms", "2s"));
    let child = sweep(&file, &out, &["--quiet", "--jobs", "1"]).spawn().unwrap();
    until("a point is done", || done(&out) > 0);
    send(child.id(), Signal::INT);
    let output = ProgramOutput::from(child.wait_with_output().unwrap());
    output.fails(130, &[]);
    assert!(done(&out) >= 1);
    assert!(output.out.contains("of 320 points"), "{}", output.out);
}

#[test]
fn a_dry_run_says_what_would_run_and_runs_nothing() {
    let (file, out) = written("dry", SWEEP);
    let said = vcoop(&file, &out, &["--dry-run"]).well().out;
    assert!(said.contains("320 points") && said.contains("1920 runs"), "{said}");
    assert!(said.contains("interval_us") && said.contains("point 319"), "{said}");
    assert!(!out.exists());
}

#[test]
fn a_map_shows_the_best_policy_or_a_number() {
    let sweep = "name = \"mapped\"\nscenario = \"busy-host-1\"\npolicies = [\"vanilla\", \"dynamic:rr\"]\n\
        [set]\nduration = \"500ms\"\nwarmup = \"400ms\"\n[axes]\n\"load.hog.count\" = [2, 10]\n\
        \"host.tick_hz\" = [1000, 250]\n";
    let (file, out) = written("map", sweep);
    vcoop(&file, &out, &["--quiet"]).well();
    let map = |extra: &[&str]| map_by(&out, "hog_count", "tick_hz", extra);
    let said = map(&["--show", "ratio", "--policy", "dynamic:rr"]).well().out;
    assert!(said.contains("hog_count \\ tick  250 Hz"), "{said}");
    let ratios: Vec<f64> =
        said.split_whitespace().filter_map(|w| w.strip_suffix('x')?.parse().ok()).collect();
    assert!(ratios.len() == 4 && ratios.iter().all(|x| *x < 1.0), "{said}");
    let by_policy = |show: &str| {
        let show = ["--show", show, "--only", "hog_count=2"];
        let said = map_by(&out, "policy", "tick_hz", &show);
        (said.code, said.out + &said.err)
    };
    let rows = |said: &str| -> Vec<String> {
        let table = said.lines().skip(3).take_while(|line| !line.is_empty());
        table.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    let (done, said) = by_policy("p99");
    assert!(done == Some(0) && rows(&said) == ["vanilla", "dynamic:rr"], "{said}");
    let (done, said) = by_policy("ratio");
    assert!(done == Some(0) && rows(&said) == ["dynamic:rr"], "the baseline has no ratio: {said}");
    let (done, said) = by_policy("best");
    assert!(done == Some(2) && said.contains("axis `policy` goes with a column"), "{said}");
    let picture = out.with_file_name("map.svg");
    map(&["--out", picture.to_str().unwrap()]).well();
    let svg = fs::read_to_string(&picture).unwrap();
    assert_eq!(svg.matches("class=\"tile").count(), 4);
    let one = map(&["--only", "tick_hz=250"]);
    assert!(!one.out.contains("1000"), "{}", one.out);
    let same = map(&["--only", "tick_hz=250.0"]);
    assert!(same.out.lines().skip(1).eq(one.out.lines().skip(1)));
    for (words, says) in [
        (["--show", "p98", "--policy", "vanilla"], "did you mean `p90`"),
        (["--show", "p99", "--policy", "dynamic"], "did you mean `dynamic:rr`"),
        (["--only", "tick_hs=250", "--show", "best"], "did you mean `tick_hz`"),
        (["--only", "tick_hz=100", "--show", "best"], "no point has tick_hz = 100"),
        (["--show", "p99", "--only", "tick_hz=250"], "show all by --rows policy"),
    ] {
        map(&words).fails(2, &[says]);
    }
}

#[test]
fn a_limit_of_too_few_samples_is_neither_met_nor_broken() {
    for (slo, met) in [("p9999 < 1s", None), ("max < 1s", Some(true)), ("max < 1ns", Some(false))] {
        let args = "tune busy-host-1 --policy vanilla --trials 1 --duration 50ms --repeats 2 --confirm 2 --json --slo";
        let mut tune = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        let tune = tune.args(args.split(' ')).arg(format!("guest.cyclictest.{slo}"));
        let found = ProgramOutput::by(tune).json();
        assert_eq!(found["met"], serde_json::json!(met), "{slo}");
    }
}

/// All commands give the same answer to the same limits, and another one to other limits.
#[test]
fn run_tune_capacity_and_map_give_the_same_answer() {
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/two-cores.toml");
    let scenario = scenario.to_str().unwrap();
    let policies = ["vanilla", "wake-boost", "dynamic", "static"];
    let sweep = format!(
        "name = \"same\"\nscenario = {scenario:?}\npolicies = {policies:?}\n[axes]\n\
         \"host.tick_hz\" = [250]\n\"host.preemption\" = [\"voluntary\"]\n[repeats]\nmin = 6\n"
    );
    let (file, out) = written("same", &sweep);
    vcoop(&file, &out, &["--quiet"]).well();
    let ask = |words: &[&str], limits: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        ProgramOutput::by(command.env("VCOOP_BACKEND", "sim").args(words).args(limits)).well().out
    };
    let json = |words: &[&str], limits: &[&str]| -> serde_json::Value {
        serde_json::from_str(&ask(words, &[&["--json"], limits].concat())).unwrap()
    };
    let all = policies.join(",");
    let sets = ["--set", "host.tick_hz=250", "--set", "host.preemption=voluntary"];
    let slo = ["--slo", "guest.cyclictest.p90 < 100us", "--policy", &all];
    let lax = ["--may-cost", "mean=10x,p99=10x,work=0.3,missed=50%"];
    for (limits, best) in [(&[][..], "dynamic"), (&lax[..], "static")] {
        let run = [&["run", scenario, "--policy", &all], &sets[..]].concat();
        let run = json(&run, limits);
        assert_eq!(run["verdicts"][0]["best"], best, "{}", run["verdicts"][0]["text"]);
        let tune = [&["tune", scenario, "--trials", "4"], &slo[..], &sets[..]].concat();
        let tune = json(&tune, limits);
        assert_eq!(tune["confirmed"][0]["setting"]["base"], best, "{tune}");
        assert_eq!((&tune["met"], &tune["limits"]), (&true.into(), &run["limits"]));
        let price = tune["confirmed"][0]["score"]["price"].as_str().unwrap();
        assert!(price.contains("host.") && price.contains(" CPU -> "), "{price}");
        let map = ask(
            &["map", out.to_str().unwrap(), "--rows", "tick_hz", "--columns", "preemption"],
            limits,
        );
        let cell = map.lines().find(|line| line.contains("250 Hz")).unwrap();
        assert!(cell.contains(best), "{map}");
        // More hogs only help others against a policy that takes from them: the first says all.
        let vary = ["--vary", "load.hog.count=2..3"];
        let filled = [&["capacity", scenario], &slo[..], &sets[..], &vary[..]].concat();
        let filled = json(&filled, limits);
        for one in filled["policies"].as_array().unwrap() {
            let name = one["policy"].as_str().unwrap();
            let holds = name == "dynamic" || name == best;
            assert_eq!(!one["most"].is_null(), holds, "{name}: {one}");
        }
    }
}

#[test]
fn what_is_wrong_is_refused_with_2_and_what_is_missing_with_3() {
    let (file, out) = written("wrong", &SWEEP.replace("host.tick_hz", "host.tick_hs"));
    vcoop(&file, &out, &[]).fails(2, &["did you mean `tick_hz`"]);
    fs::write(&file, SWEEP).unwrap();
    fs::create_dir_all(&out).unwrap();
    fs::write(out.join("precious"), "x").unwrap();
    vcoop(&file, &out, &[]).fails(2, &["nothing was overwritten"]);
    let mut ray = sweep(&file, &out.with_file_name("ray"), &["--engine", "ray"]);
    ProgramOutput::by(ray.env("VCOOP_PYTHON", "/nonexistent/python")).fails(3, &["remedy"]);
}

/// A small sweep's file, and its folder when it has run.
fn small(name: &str, axes: &str, top: &str) -> (PathBuf, PathBuf, ProgramOutput) {
    let sweep = "name = \"small\"\nscenario = \"busy-host-1\"\npolicies = [\"vanilla\", \"dynamic\"]\n\
        [set]\nduration = \"20ms\"\nwarmup = \"1ms\"\nrepeats = 1\n[axes]\n";
    let (file, out) = written(name, &format!("{top}{sweep}{axes}\n"));
    let output = vcoop(&file, &out, &["--quiet"]);
    (file, out, output)
}

fn map_by(out: &Path, rows: &str, columns: &str, extra: &[&str]) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
    command.arg("map").arg(out).args(["--rows", rows, "--columns", columns]);
    ProgramOutput::by(command.args(extra))
}

fn map(out: &Path, extra: &[&str]) -> ProgramOutput {
    map_by(out, "hog_count", "interval_us", extra)
}

const TWO_PARTS: &str = "\"load.hog.count\" = [1, 2, 3, 4, 5]\n\
    \"vm.guest.task.cyclictest.interval\" = [\"1ms\", \"2ms\", \"3ms\", \"4ms\"]";

#[test]
fn a_part_that_is_not_what_it_should_be_is_named_refused_and_computed_anew() {
    let (file, out, output) = small("parts", TWO_PARTS, "");
    output.well();
    let part = |n: u32| out.join(format!("part-{n:06}.parquet"));
    let whole: Vec<Vec<u8>> = (0..2).map(|n| fs::read(part(n)).unwrap()).collect();
    let (_, other, output) = small("parts-of-another", &TWO_PARTS.replace('5', "6"), "");
    output.well();
    let foreign = fs::read(other.join("part-000000.parquet")).unwrap();
    let cut = whole[0][..whole[0].len() - 4].to_vec();
    // Of the first column: another number, and a file that every reader of Parquet reads.
    let mut flipped = whole[0].clone();
    flipped[40] ^= 1;
    for (bytes, says) in [
        (whole[1].clone(), "is part 1 of this sweep"),
        (foreign, "is part 0 of another sweep"),
        (cut, "is damaged"),
        (flipped, "its rows have changed"),
        (Vec::new(), "is damaged"),
    ] {
        fs::write(part(0), bytes).unwrap();
        for output in [map(&out, &[]), vcoop(&file, &out, &["--quiet"])] {
            output.fails(2, &["part-000000.parquet", says, "remedy: "]);
        }
        fs::remove_file(part(0)).unwrap();
        let shown = map(&out, &[]);
        assert!(shown.out.contains("16 of 20 points are missing"), "{}", shown.out);
        vcoop(&file, &out, &["--quiet"]).well();
        assert_eq!(fs::read(part(0)).unwrap(), whole[0]);
    }
    // The journal of another part.
    fs::remove_file(part(1)).unwrap();
    fs::write(out.join("part-000001.journal"), "\"0 of 0123456789abcdef\"\n{}\n").unwrap();
    vcoop(&file, &out, &["--quiet"]).well();
    assert_eq!(fs::read(part(1)).unwrap(), whole[1]);
    // A manifest that divides by zero.
    let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
    let zero = manifest.replace("\"part_points\": 16", "\"part_points\": 0");
    assert_ne!(zero, manifest);
    fs::write(out.join("manifest.json"), zero).unwrap();
    for output in [map(&out, &[]), vcoop(&file, &out, &["--quiet"])] {
        output.fails(2, &["manifest.json"]);
    }
}

#[test]
fn a_changed_file_of_any_point_is_named() {
    let dir = folder("inputs-of-points");
    let profile = include_str!("../../../profiles/zero.toml");
    let paths = ["a.toml", "b.toml"].map(|name| dir.join(name));
    paths.iter().for_each(|path| fs::write(path, profile).unwrap());
    let names = paths.each_ref().map(|path| path.display().to_string());
    let axes = format!("\"host.profile\" = {names:?}\n\"load.hog.count\" = [1, 2]");
    let (file, out, output) = small("inputs", &axes, "");
    output.well();
    fs::write(&paths[1], format!("{profile}\n# another\n")).unwrap();
    vcoop(&file, &out, &["--quiet"]).fails(2, &[&names[1]]);
}

#[test]
fn points_that_fail_end_with_a_code_of_their_own_and_a_dry_run_finds_them() {
    // Pinned to a CPU that small hosts do not have.
    let axes = "\"host.pcpus\" = [2, 1]\n\"load.hog.cpus\" = [\"0\", \"1\"]";
    let (file, out, output) = small("failing", axes, "");
    output.fails(5, &["1 of 4 points failed"]);
    vcoop(&file, &out, &["--dry-run"]).fails(5, &["1 of 4 points looked at would fail"]);
    // Also if nobody reads stdout.
    for (option, says) in [("--quiet", "points failed"), ("--dry-run", "would fail")] {
        let (_, closed) = pipe().unwrap();
        ProgramOutput::by(sweep(&file, &out, &[option]).stdout(closed)).fails(5, &[says]);
    }
}

#[test]
fn many_numbers_are_shown_in_bins_and_the_only_guest_latency_is_announced() {
    let axes = "\"load.hog.count\" = { from = 1, to = 4 }\n\
        \"vm.guest.task.cyclictest.interval\" = { from = \"500us\", to = \"50ms\", scale = \"log\" }";
    let (_, out, output) = small("bins", axes, "design = \"sobol\"\npoints = 64\n");
    output.well();
    let output = map(&out, &["--show", "mean", "--policy", "vanilla"]).well();
    let said = output.out;
    assert!(said.lines().all(|line| line.chars().count() <= 200), "{said}");
    assert!(said.contains(" to "), "{said}");
    assert!(output.err.contains("guest.cyclictest, the guests' only latency"));
}
