//! What holds of every run: what goes to stdout, exit codes, files, interruption.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const SHORT: [&str; 7] =
    ["busy-host-1", "--duration", "100ms", "--warmup", "10ms", "--repeats", "5"];

/// More CPUs than any host that runs tests has.
const TOO_BIG: [&str; 4] =
    ["--set", "host.pcpus=1000", "--set", "host.topology.cores_per_llc=1000"];

fn vcoop(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
    // Live runs take their time and load the host: tests ask for them by name.
    command.env("VCOOP_BACKEND", "sim");
    command.args(args).stdin(Stdio::null()).env_remove("NO_COLOR");
    command
}

fn run(args: &[&str]) -> Output {
    vcoop(args).output().unwrap()
}

fn short(extra: &[&str]) -> Output {
    run(&[&["run"], &SHORT[..], extra].concat())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A fresh folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    dir
}

#[test]
fn json_is_all_there_is_on_stdout_and_jobs_change_nothing() {
    let document = |jobs| {
        let output = short(&["--json", "--jobs", jobs]);
        assert!(output.status.success());
        let mut json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json["engine"]["cpu_s"].is_number());
        json["engine"]["cpu_s"] = Value::Null;
        json.to_string()
    };
    assert_eq!(document("1"), document("2"));
}

#[test]
fn a_condition_that_is_true_has_an_exit_code_of_its_own() {
    let code = |condition: &str| {
        let policies = ["--policy", "vanilla,dynamic", "--set", "policy.dynamic.repay=false"];
        let output = short(&[&policies[..], &["--fail-if", condition]].concat());
        let refused = output.status.code() == Some(2);
        // A name that cannot be is refused before anything runs.
        assert_eq!(text(&output.stdout).contains("Best here"), !refused);
        (output.status.code(), text(&output.stderr).to_owned())
    };
    assert_eq!(code("guest.cyclictest.mean > 1s").0, Some(0));
    let (slow, why) = code("guest.cyclictest.mean > 100us");
    assert_eq!(slow, Some(4));
    assert!(why.contains("guest.cyclictest.mean is") && why.contains("under vanilla"), "{why}");
    assert!(!why.contains("under dynamic"), "{why}");
    let (absent, why) = code("guest.cyclictest.p9999 > 1s");
    assert!(absent == Some(4) && why.contains("has no value under vanilla"), "{why}");
    let (wrong, why) = code("guest.cyclictst.p99 > 1s");
    assert!(wrong == Some(2) && why.contains("nearest: guest.cyclictest.p9"), "{why}");
}

/// Real-time threads on a living host are asked for.
#[test]
fn the_default_is_the_simulator_and_a_dry_run_says_what_would_run() {
    let plain = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        let output = command.env_remove("VCOOP_BACKEND").args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let run = ["run", "busy-host-1", "--duration", "20ms", "--warmup", "1ms", "--repeats", "2"];
    let (report, _) = plain(&run);
    assert!(report.contains("\nsim; 2 repeats") && report.contains("--backend sim"), "{report}");
    let host = "Simulated: 2 pCPUs with the costs of xeon-server (Generic Xeon server";
    assert!(report.contains(host), "{report}");
    let (said, _) = plain(&[&run[..], &["--dry-run"]].concat());
    assert!(said.contains("sim: 8 runs of 168 ms in all, some "), "{said}");
    assert!(!said.contains("measuring on this host"), "{said}");
    // A scenario that no host can run is simulated, and the dry run says why.
    let (said, _) = plain(&[&run[..], &["--dry-run", "--backend", "auto"], &TOO_BIG[..]].concat());
    assert!(said.contains("simulating the host that the scenario describes"), "{said}");
}

/// A calibration is the simulated host's costs in every command that simulates, and each names it.
#[test]
fn a_calibration_works_wherever_something_is_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let own = include_str!("../../../profiles/xeon-server.toml")
        .replace("name = \"xeon-server\"", "name = \"own-host\"");
    let (file, trace) = (dir.path().join("own"), dir.path().join("trace"));
    std::fs::write(&file, own).unwrap();
    let (file, trace) = (file.to_str().unwrap(), trace.to_str().unwrap());
    // A name without a suffix is a file, too.
    let profile = dir.path().join("own.toml");
    std::fs::rename(file, &profile).unwrap();
    let profile = profile.to_str().unwrap();
    let sweep = dir.path().join("s.toml");
    let text_of = "name = \"s\"\nscenario = \"busy-host-1\"\n[set]\nduration = \"20ms\"\n\
                   warmup = \"1ms\"\n[axes]\n\"host.tick_hz\" = [250]\n[repeats]\nmin = 2\n";
    std::fs::write(&sweep, text_of).unwrap();
    let (sweep, out) = (sweep.to_str().unwrap(), dir.path().join("out"));
    let out = out.to_str().unwrap();
    let short = ["--duration", "20ms", "--calibration", profile];
    let repeated = ["--repeats", "2"];
    let warm = ["--warmup", "1ms"];
    let slo = ["--slo", "guest.cyclictest.mean < 1s", "--policy", "vanilla"];
    let commands: [(&[&str], &[&str]); 6] = [
        (&["run", "busy-host-1"], &warm),
        (&["explain", "busy-host-1"], &warm),
        (&["trace", "busy-host-1", "--output", trace], &warm),
        (&["tune", "busy-host-1", "--trials", "1", "--set", "warmup=1ms"], &slo),
        (
            &["capacity", "busy-host-1", "--set", "warmup=1ms", "--vary", "load.hog.count=1..2"],
            &slo,
        ),
        (&["reproduce", "idle-no-difference"], &warm),
    ];
    for (command, more) in commands {
        let repeats = if command[0] == "trace" { &[][..] } else { &repeated[..] };
        let output = run(&[command, more, &short[..], repeats].concat());
        let said = text(&output.stdout).to_owned() + text(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
        assert!(said.contains("own-host"), "{command:?}: {said}");
    }
    let output = run(&["sweep", sweep, "--out", out, "--calibration", profile, "--quiet"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let changed = run(&["sweep", sweep, "--out", out, "--quiet"]);
    assert!(text(&changed.stderr).contains("own.toml"), "{}", text(&changed.stderr));
}

#[test]
fn two_results_are_compared_and_a_condition_has_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b.json"].map(|name| dir.path().join(name));
    let [a, b] = [a.to_str().unwrap(), b.to_str().unwrap()];
    let six = ["run", "busy-host-1", "--duration", "200ms", "--warmup", "1ms", "--repeats", "6"];
    let first = run(&[&six[..], &["--policy", "vanilla,dynamic", "--quiet", "--out", a]].concat());
    assert!(first.status.success(), "{}", text(&first.stderr));
    let more = ["--set", "load.hog.count=5", "--json", "--policy", "vanilla", "--seed", "9"];
    let second = run(&[&six[..], &more].concat());
    std::fs::write(b, &second.stdout).unwrap();
    let output = run(&["diff", a, b]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("seed: 1 -> 9"), "{said}");
    let slower = said.lines().find(|line| line.contains("guest.background.throughput")).unwrap();
    assert!(slower.contains("0.") && slower.ends_with('*'), "{said}");
    assert!(said.contains("only in the first: guest.cyclictest latency (dynamic, sim)"), "{said}");
    let marked = |line: &str| line.contains(" -> ") && line.ends_with('*');
    assert!(!text(&run(&["diff", a, a]).stdout).lines().any(marked));
    let json: Value = serde_json::from_slice(&run(&["diff", a, b, "--json"]).stdout).unwrap();
    assert_eq!(json["schema"], "vcoop.diff/1");
    let code = |condition: &str| run(&["diff", a, b, "--fail-if", condition]).status.code();
    assert_eq!(code("guest.background.throughput < 0.9x"), Some(4));
    assert_eq!(code("guest.background.throughput > 0.9x"), Some(0));
    assert_eq!(code("guest.background.throughput > 1 cpu"), Some(2));
    assert_eq!(run(&["diff", a, "absent"]).status.code(), Some(2));
}

#[test]
fn notes_go_to_stderr_and_quiet_silences_them() {
    let auto = [&["--backend", "auto"], &TOO_BIG[..]].concat();
    let loud = short(&auto);
    assert!(text(&loud.stderr).contains("simulating"), "{}", text(&loud.stderr));
    let quiet = short(&[&auto[..], &["--quiet"]].concat());
    assert_eq!(text(&quiet.stderr), "");
    assert_eq!(loud.stdout, quiet.stdout);
    let verbose = short(&["-v"]);
    assert!(text(&verbose.stderr).contains("events per CPU s"));
}

#[test]
fn the_flagship_report_fits_and_is_plain_in_a_pipe() {
    let args = ["run", "busy-host", "--duration", "200ms", "--warmup", "20ms", "--repeats", "5"];
    let output = run(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    assert!(!report.contains('\u{1b}'), "colour belongs to terminals");
    for line in report.lines().filter(|line| !line.starts_with("Again: ")) {
        assert!(line.chars().count() <= 100, "{line}");
    }
    for part in ["vanilla", "wake-boost", "dynamic", "static", "guest.cyclictest", "Best here"] {
        assert!(report.contains(part), "{part} in\n{report}");
    }
    let again = "Again: vcoop run busy-host --backend sim --duration 200ms";
    assert!(report.contains(again), "{report}");
}

#[test]
fn the_matrix_report_fits_too() {
    let output = run(&["run", "pvsched-audio", "--duration", "200ms", "--warmup", "0s"]);
    let report = text(&output.stdout);
    assert!(report.contains("browser_enabled true, buffer 96 frames"), "{report}");
    for line in report.lines().filter(|line| !line.starts_with("Again: ")) {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn the_command_to_repeat_gives_the_same_again() {
    let sets = ["--policy", "vanilla,static", "--set", "policy.static.means=fifo 50"];
    let first = short(&sets);
    let report = text(&first.stdout);
    let again = report.lines().find_map(|line| line.strip_prefix("Again: vcoop ")).unwrap();
    let shell = format!("\"$0\" {again}");
    let command = env!("CARGO_BIN_EXE_vcoop");
    let mut second = Command::new("sh");
    second.args(["-c", &shell, command]).env("VCOOP_BACKEND", "sim");
    let second = second.output().unwrap();
    assert_eq!(report, text(&second.stdout));
}

#[test]
fn check_determinism_says_identical() {
    let output = short(&["--check-determinism", "--quiet"]);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("deterministic: 1 job and"));
}

#[test]
fn a_closed_pipe_is_no_error() {
    for args in [&["schema"][..], &["list"], &["run", "busy-host-1", "--duration", "600ms"]] {
        let mut child = vcoop(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = vcoop(&["list"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write to stdout"));
}

#[test]
fn out_writes_everything_and_spares_other_results() {
    let dir = folder("out");
    let path = dir.to_str().unwrap();
    assert!(short(&["--out", path]).status.success());
    let result: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("result.json")).unwrap()).unwrap();
    assert_eq!(result["schema"], "vcoop.result/1");
    let plan: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("plan.json")).unwrap()).unwrap();
    assert_eq!(plan["cells"].as_array().unwrap().len(), 1);
    assert!(plan["policies"]["dynamic"].is_object());
    assert!(fs::read_to_string(dir.join("scenario.toml")).unwrap().contains("busy-host-1"));
    assert!(fs::read_to_string(dir.join("report.txt")).unwrap().contains("Best here"));
    // The same scenario again may take its place, another may not.
    assert!(short(&["--out", path]).status.success());
    let other = run(&["run", "rogue-guest", "--out", path]);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("holds a result of scenario busy-host-1"));
    let result_after: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("result.json")).unwrap()).unwrap();
    assert_eq!(result_after["scenario"], "busy-host-1");
}

#[test]
fn out_spares_files_of_others() {
    let dir = folder("foreign");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("plan.json"), "mine").unwrap();
    let output = short(&["--out", dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read_to_string(dir.join("plan.json")).unwrap(), "mine");
}

#[test]
fn out_spares_any_file_of_others_unless_it_is_forced() {
    let dir = folder("thesis");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("thesis.tex"), "mine").unwrap();
    let path = dir.to_str().unwrap();
    let output = short(&["--out", path]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("thesis.tex") && said.contains("remedy: "), "{said}");
    assert!(short(&["--out", path, "--force"]).status.success());
    assert_eq!(fs::read_to_string(dir.join("thesis.tex")).unwrap(), "mine");
    // From now on it is ours, too; another scenario takes its place by force alone.
    assert!(short(&["--out", path]).status.success());
    let other = ["run", "rogue-guest", "--quiet", "--backend", "sim", "--out", path, "--force"];
    let other = [&other[..], &["--duration", "50ms", "--warmup", "0s", "--repeats", "1"]].concat();
    let output = run(&other);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn two_runs_do_not_share_a_folder_and_what_a_killed_one_left_is_removed() {
    let dir = folder("twice");
    let path = dir.to_str().unwrap();
    let long = ["run", "busy-host-1", "--backend", "sim", "--quiet", "--duration", "3600s"];
    let mut first = vcoop(&long).args(["--out", path]).spawn().unwrap();
    let begun = || begun(&dir) > 0;
    await_runs(&dir, 1);
    let second = short(&["--out", path]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let said = text(&second.stderr);
    assert!(said.contains("written by another process") && said.contains("remedy: "), "{said}");
    assert!(begun(), "the first one was at work");
    let output = short(&["--out", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!begun());
}

/// How many runs that write into a folder have begun.
fn begun(dir: &Path) -> usize {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    names.filter(|e| e.file_name().to_string_lossy().starts_with(".samples-")).count()
}

/// Waits until so many have, but not for ever.
fn await_runs(dir: &Path, runs: usize) {
    let limit = Instant::now() + Duration::from_secs(60);
    while begun(dir) < runs && Instant::now() < limit {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs with so much memory that what reads without a bound fails, and for so long at most.
fn bounded(args: &[&str]) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_vcoop");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 1000000; exec \"$0\" \"$@\"", program]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let code = end_of(&mut child);
    if code.is_none() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    (code, text(&output.stderr).to_owned())
}

#[test]
fn endless_files_are_refused_by_every_reader() {
    let dir = folder("endless");
    fs::create_dir_all(&dir).unwrap();
    let pipe = dir.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    let beside = dir.to_str().unwrap();
    let limit = "guest.cyclictest.p99 < 1ms";
    for file in ["/dev/zero", pipe, beside] {
        let capture = format!("load.hog.file={file}");
        let profile = format!("host.profile={file}");
        let cases: [&[&str]; 9] = [
            &["run", file],
            &["trace", file, "-o", "/dev/null"],
            &["tune", file, "--slo", limit],
            &["capacity", file, "--slo", limit],
            &["capture", file],
            &["sweep", file, "--dry-run"],
            &["run", "busy-host-1", "--set", &profile],
            &[
                "run",
                "busy-host-1",
                "--set",
                "load.hog.kind=capture",
                "--set",
                &capture,
                "--set",
                "load.hog.count=1",
            ],
            &["run", "busy-host-1", "--calibration", file],
        ];
        for args in cases {
            let (code, said) = bounded(args);
            assert_eq!(code, Some(2), "{args:?}: {said}");
            // Diagnostics are laid out in lines.
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains(file), "{args:?}: {said}");
            assert!(said.contains("not a regular file"), "{args:?}: {said}");
        }
    }
    // A result, and a folder of a sweep.
    for (name, command) in [
        ("result.json", &["report", beside][..]),
        ("manifest.json", &["map", beside, "--rows", "a", "--columns", "b"]),
    ] {
        std::os::unix::fs::symlink("/dev/zero", dir.join(name)).unwrap();
        let (code, said) = bounded(command);
        assert_eq!(code, Some(2), "{command:?}: {said}");
        assert!(said.contains(name) && said.contains("remedy: "), "{command:?}: {said}");
        fs::remove_file(dir.join(name)).unwrap();
    }
}

/// Refused as bad usage, with this in the message and with nothing on stdout.
fn refused(args: &[&str], why: &str) {
    let output = run(args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(why), "{args:?}: {said}");
}

#[test]
fn places_for_results_that_are_none_are_refused_before_anything_runs() {
    let dir = folder("places");
    fs::create_dir_all(&dir).unwrap();
    let sweep = dir.join("sweep.toml");
    let axes = "name = \"s\"\nscenario = \"busy-host-1\"\n[axes]\n\"host.tick_hz\" = [250, 1000]\n";
    fs::write(&sweep, axes).unwrap();
    let (file, here) = (sweep.to_str().unwrap(), dir.to_str().unwrap());
    let inside = format!("{file}/inside");
    for out in [file, &inside] {
        for args in [
            &["run", "busy-host-1", "--out", out][..],
            &["reproduce", "idle-avg", "--out", out],
            &["sweep", file, "--out", out],
            &["man", out],
        ] {
            refused(args, "is no folder");
        }
    }
    refused(&["report", file], "it is no folder");
    let nowhere = dir.join("nowhere/x");
    let map = ["map", here, "--rows", "a", "--columns", "b"];
    for args in [&["trace", "busy-host-1"][..], &map] {
        refused(&[args, &["-o", here]].concat(), "it is a folder");
        refused(&[args, &["-o", nowhere.to_str().unwrap()]].concat(), "there is no such folder");
    }
    for (out, why) in [
        (format!("{file}/"), "it is a folder"),
        (format!("{file}/x.toml"), "there is no such folder"),
        (format!("{file}.json"), "ends in .toml"),
    ] {
        refused(&["calibrate", "--quick", "--host-only", "-o", &out], why);
    }
}

#[test]
fn limits_that_cannot_hold_and_options_without_effect_are_refused() {
    let run = |option, value| ["run", "busy-host-1", option, value];
    refused(&run("--may-cost", "mean=0x"), "write mean=1.1x");
    refused(&run("--may-cost", "p99=0x"), "write mean=1.1x");
    refused(&run("--policy", ","), "empty name");
    for command in ["tune", "capacity"] {
        let slo = "guest.cyclictest.p99 < 0us";
        refused(&[command, "busy-host-1", "--slo", slo], "give a limit above zero");
    }
    let map = ["map", ".", "--rows", "a", "--columns", "b", "--probe", "guest.cyclictest"];
    refused(&map, "--probe goes with a column");
}

#[test]
fn a_series_with_a_damaged_number_is_refused() {
    let dir = folder("damaged");
    let path = dir.to_str().unwrap();
    assert!(short(&["--out", path]).status.success());
    let file = dir.join("result.json");
    let whole: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let latency = |s: &Value| s["metric"] == "latency";
    let first = whole["series"].as_array().unwrap().iter().position(latency).unwrap();
    for (field, value) in
        [("p99", Value::from("x")), ("count", Value::from(-1)), ("mean", Value::from(vec![1]))]
    {
        let mut damaged = whole.clone();
        damaged["series"][first][field] = value;
        fs::write(&file, damaged.to_string()).unwrap();
        refused(&["report", path], "invalid");
        refused(&["diff", path, path], "invalid");
    }
    let mut damaged = whole.clone();
    damaged["series"][first]["p90"] = Value::from(-1.5);
    fs::write(&file, damaged.to_string()).unwrap();
    refused(&["report", path], "a latency below zero");
    let mut damaged = whole.clone();
    damaged["series"][first].as_object_mut().unwrap().remove("count");
    fs::write(&file, damaged.to_string()).unwrap();
    refused(&["report", path], "missing field `value`");
}

#[test]
fn escapes_in_a_scenario_are_shown_and_not_sent() {
    let dir = folder("escapes");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("s.toml");
    let whole = run(&["list", "scenarios"]);
    assert!(whole.status.success());
    let title = "title = \"a\\u001b]0;owned\\u0007b\"";
    let body = "\n[host]\npcpus = 1\n[[vm]]\nname = \"guest\"\nvcpus = 1\n[[vm.task]]\n\
                name = \"cyclictest\"\nkind = \"cyclictest\"\ninterval = \"1ms\"\n";
    fs::write(&file, format!("name = \"s\"\n{title}\n{body}")).unwrap();
    let path = file.to_str().unwrap();
    let args = ["--backend", "sim", "--duration", "50ms", "--warmup", "0s", "--repeats", "1"];
    let output = run(&[&["run", path][..], &args[..]].concat());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("a\\u{1b}]0;owned\\u{7}b") && !out.contains('\u{1b}'), "{out}");
    // A quoted line of a file.
    fs::write(&file, "name = \u{1b}]0;owned\u{7}\n").unwrap();
    let output = run(&["run", path]);
    assert_eq!(output.status.code(), Some(2));
    let err = text(&output.stderr);
    assert!(err.contains("\\u{1b}]0;owned") && !err.contains('\u{1b}'), "{err}");
}

#[test]
fn a_simulated_triple_fault_fails_the_run_with_what_was_measured() {
    let sets = ["--set", "vm.rogue.task.rogue.mode=triple-fault"];
    let sets = [&sets[..], &["--set", "vm.rogue.task.rogue.period=200ms"]].concat();
    let args = ["run", "rogue-guest", "--backend", "sim", "--quiet", "--duration", "1s"];
    let output =
        run(&[&args[..], &["--warmup", "0s", "--repeats", "1", "--policy", "vanilla"], &sets[..]]
            .concat());
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("VM rogue, vCPU ") && said.contains(": triple fault"), "{said}");
    assert!(text(&output.stdout).contains("host.cyclictest"), "what was measured is printed");
}

#[test]
fn searches_of_nothing_are_refused() {
    let base = ["tune", "busy-host-1", "--slo", "guest.cyclictest.p99 < 1ms"];
    for (option, value) in [("--trials", "0"), ("--confirm", "0"), ("--confirm", "1")] {
        let output = run(&[&base[..], &[option, value]].concat());
        assert_eq!(output.status.code(), Some(2), "{option} {value}");
        assert!(text(&output.stderr).contains("or more"), "{}", text(&output.stderr));
    }
}

/// Waits for the end, but not for ever.
fn end_of(child: &mut std::process::Child) -> Option<i32> {
    let limit = Instant::now() + Duration::from_secs(30);
    while Instant::now() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("it did not end");
}

/// Standard output of a command that is interrupted in the last of so many runs, one after the other.
fn interrupted(args: &[&str], dir: &Path, runs: usize) -> String {
    let out = ["--json", "--jobs", "1", "--out", dir.to_str().unwrap()];
    let args = [args, &out].concat();
    let mut child = vcoop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    await_runs(dir, runs);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(end_of(&mut child), Some(130));
    reader.join().unwrap().unwrap()
}

#[test]
fn an_interrupt_shows_what_was_measured() {
    let long = ["run", "busy-host-1", "--repeats", "10000", "--duration", "1s"];
    let json = interrupted(&long, &folder("interrupted"), 2);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["interrupted"], true);
    assert!(json["series"].as_array().is_some_and(|series| !series.is_empty()));
}

#[test]
fn an_interrupted_warm_up_is_no_measurement_of_zero() {
    let long = ["run", "busy-host-1", "--warmup", "10000s", "--duration", "20000s"];
    let dir = folder("warm-up");
    let json = interrupted(&long, &dir, 1);
    let json: Value = serde_json::from_str(&json).unwrap();
    let series = json["series"].as_array().unwrap();
    let cpu = series.iter().find(|s| s["probe"] == "host" && s["metric"] == "cpu").unwrap();
    assert_eq!((&cpu["value"], &cpu["repeats"]), (&Value::Null, &Value::from(0)));
    assert!(series.iter().all(|s| s["value"].is_null()), "{series:?}");
    // Drawn again from the document, whose nulls must be readable.
    assert!(run(&["report", dir.to_str().unwrap()]).status.success());
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    let report = fs::read_to_string(dir.join("report.txt")).unwrap();
    let row = report.lines().find(|line| line.contains("host CPU")).unwrap();
    assert!(row.contains("n/a") && !row.contains('%'), "{row}");
    // Not the CPU time that the engine took, which may end in a zero.
    assert!(page.contains("n/a") && !page.contains(">0 CPU"));
}

#[test]
fn reproduce_gives_a_document() {
    let args = ["reproduce", "audio", "audio-small-buffers", "--duration", "2s", "--json", "-q"];
    let output = run(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "vcoop.reproduce/1");
    assert_eq!(json["cells"].as_array().unwrap().len(), 12);
    let report = run(&args[..5]);
    for line in text(&report.stdout).lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn schema_completions_man_and_doctor_print_something_sound() {
    let schema: Value = serde_json::from_slice(&run(&["schema"]).stdout).unwrap();
    assert!(schema["$schema"].is_string(), "it names its own dialect");
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(text(&output.stdout).contains("vcoop"), "{shell}");
    }
    let dir = folder("man");
    assert!(run(&["man", dir.to_str().unwrap()]).status.success());
    assert!(fs::read_to_string(dir.join("vcoop-run.1")).unwrap().contains("SCENARIO"));
    let doctor = run(&["doctor"]);
    assert!(doctor.status.success());
    for line in text(&doctor.stdout).lines() {
        let known = ["  ok       ", "  limited  ", "  missing  ", "           "];
        assert!(line.chars().count() <= 100, "{line}");
        assert!(known.iter().any(|start| line.starts_with(start)), "{line}");
    }
}

#[test]
fn captures_are_described() {
    let output = run(&["capture", "builtin:build-serve"]);
    let report = text(&output.stdout);
    assert!(report.starts_with("builtin:build-serve: "), "{report}");
    assert!(report.contains("busiest threads"));
}

#[test]
fn what_the_lab_cannot_run_is_refused_with_exit_code_3() {
    // Where there is no KVM, everything.
    let out = run(&[&["run", "busy-host-1", "--backend", "kvm"], &TOO_BIG[..]].concat());
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert!(out.stdout.is_empty());
    let said = text(&out.stderr);
    assert!(said.contains("backend kvm") && said.contains("remedy: "), "{said}");
}

#[test]
fn a_report_is_drawn_again_from_its_result() {
    let dir = folder("report");
    let path = dir.to_str().unwrap();
    assert!(short(&["--out", path]).status.success());
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Best here"));
    fs::remove_file(dir.join("report.html")).unwrap();
    let svg = dir.join("svg");
    let output = run(&["report", path, "--svg", svg.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(fs::read_to_string(dir.join("report.html")).unwrap(), page);
    let pictures = fs::read_dir(&svg).unwrap().count();
    assert_eq!(pictures, page.matches("<figure").count());
}

#[test]
fn results_of_another_version_are_refused() {
    let dir = folder("report-version");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.to_str().unwrap();
    let refused = |text_of: &str| {
        fs::write(dir.join("result.json"), text_of).unwrap();
        let output = run(&["report", path]);
        assert_eq!(output.status.code(), Some(2));
        assert!(!dir.join("report.html").exists());
        text(&output.stderr).to_owned()
    };
    let newer = refused(r#"{"schema":"vcoop.result/9"}"#);
    assert!(newer.contains("vcoop.result/9") && newer.contains("vcoop.result/1"), "{newer}");
    assert!(refused("[1]").contains("schema none"));
    assert!(refused("{").contains("is no JSON"));
    assert!(refused(r#"{"schema":"vcoop.result/1"}"#).contains("missing field"));
    let empty = folder("report-empty");
    fs::create_dir_all(&empty).unwrap();
    let output = run(&["report", empty.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("neither result.json nor reproduce.json"));
}

#[test]
fn printed_results_give_charts_where_they_were_asked_to() {
    let dir = folder("printed");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.to_str().unwrap();
    let drawn = |extra: &[&str]| {
        let output = short(&[&["--json"], extra].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        fs::write(dir.join("result.json"), &output.stdout).unwrap();
        let output = run(&["report", path]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stderr).to_owned();
        (said, fs::read_to_string(dir.join("report.html")).unwrap())
    };
    let (said, page) = drawn(&[]);
    assert!(said.contains("most charts are left out") && said.contains("--detail"), "{said}");
    assert!(page.contains("most charts are missing") && !page.contains("id=\"time\""));
    let (said, page) = drawn(&["--detail"]);
    assert!(!said.contains("left out"), "{said}");
    assert!(!page.contains("most charts are missing") && page.contains("id=\"time\""));
    let output = short(&["--detail"]);
    assert_eq!(output.status.code(), Some(2), "it says nothing without --json");
}

#[test]
fn a_reproduction_leaves_a_report_too() {
    let dir = folder("reproduction");
    let path = dir.to_str().unwrap();
    let args = ["reproduce", "idle-avg", "--duration", "50ms", "--warmup", "0s", "--repeats", "1"];
    let output = run(&[&args[..], &["--out", path]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    let json: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("reproduce.json")).unwrap()).unwrap();
    for cell in json["cells"].as_array().unwrap() {
        assert!(page.contains(cell["column"].as_str().unwrap()));
    }
    assert_eq!(page.matches("<figure").count(), 2, "a chart a row");
    assert!(page.contains(json["tables"]["idle-avg"]["title"].as_str().unwrap()));
    assert!(run(&["report", path]).status.success());
    assert_eq!(fs::read_to_string(dir.join("report.html")).unwrap(), page);
}

#[test]
fn metrics_replace_a_file_whole_and_go_through_what_is_none() {
    let dir = folder("metrics");
    fs::create_dir_all(&dir).unwrap();
    let (file, neighbour) = (dir.join("m.prom"), dir.join("m.part"));
    fs::write(&file, "old").unwrap();
    fs::write(&neighbour, "somebody else's").unwrap();
    assert!(short(&["--quiet", "--metrics", file.to_str().unwrap()]).status.success());
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.ends_with("# EOF\n") && !written.starts_with("old"));
    assert_eq!(fs::read_to_string(&neighbour).unwrap(), "somebody else's");
    let new = dir.join("new.prom");
    assert!(!short(&["--metrics", new.to_str().unwrap(), "--policy", "none"]).status.success());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "nothing half-written is left");
    // Standard output, a pipe here.
    let output = short(&["--quiet", "--metrics", "/proc/self/fd/1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("# EOF\n"));
}

#[test]
fn prose_is_broken_for_the_terminal_and_not_for_a_file() {
    let command = format!(
        "stty cols 80; NO_COLOR=1 {} run --quiet {}",
        env!("CARGO_BIN_EXE_vcoop"),
        SHORT.join(" ")
    );
    let on_terminal = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("script(1) of util-linux gives a terminal");
    let on_terminal = text(&on_terminal.stdout);
    let prose = |text: &str| -> Vec<usize> {
        let lines = text.lines().map(|line| line.trim_end());
        lines
            .skip_while(|line| !line.starts_with("Ratios are"))
            // Commands stay whole, so that they can be copied.
            .take_while(|line| !["To apply", "Again:"].iter().any(|word| line.starts_with(word)))
            .map(|line| line.chars().count())
            .collect()
    };
    let widths = prose(on_terminal);
    assert!(widths.len() > 5 && widths.iter().all(|&width| width <= 80), "{on_terminal}");
    // So is the table, which has fewer columns then.
    let table = on_terminal.lines().skip_while(|line| !line.starts_with("Latency")).skip(1);
    let table: Vec<&str> = table.take_while(|line| !line.starts_with("Costs")).collect();
    assert!(table[0].contains("p99") && !table[0].contains("p50"), "{on_terminal}");
    assert!(table.iter().all(|line| line.trim_end().chars().count() <= 80), "{on_terminal}");
    let in_file = prose(text(&short(&["--quiet"]).stdout));
    assert!(in_file.iter().any(|&width| width > 80), "{in_file:?}");
}
