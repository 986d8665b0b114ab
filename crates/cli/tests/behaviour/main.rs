//! What holds of every run: what goes to stdout, exit codes, files, interruption.

mod files;
mod refusals;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use vcoop_testing::{ProgramOutput, send, until};

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

fn run(args: &[&str]) -> ProgramOutput {
    ProgramOutput::by(&mut vcoop(args))
}

fn short(extra: &[&str]) -> ProgramOutput {
    run(&[&["run"], &SHORT[..], extra].concat())
}

/// A fresh folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn times_of_vms_that_are_not_there_at_the_end_are_marked() {
    let storm = ["xen-bootstorm", "--policy", "vanilla", "--repeats", "1", "--duration", "2s"];
    let output = run(&[&["run"], &storm[..]].concat());
    let words = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("VMLogin mean >= "), "{words}");
}

#[test]
fn json_is_all_there_is_on_stdout_and_jobs_change_nothing() {
    let document = |jobs| {
        let output = short(&["--json", "--jobs", jobs]).well();
        let mut json = output.json();
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
        let refused = output.code == Some(2);
        // A name that cannot be is refused before anything runs.
        assert_eq!(output.out.contains("Best here"), !refused);
        (output.code, output.err)
    };
    assert_eq!(code("guest.cyclictest.mean > 1s").0, Some(0));
    let (slow, why) = code("guest.cyclictest.mean > 100us");
    assert_eq!(slow, Some(4));
    assert!(why.contains("guest.cyclictest.mean is") && why.contains("under vanilla"), "{why}");
    assert!(!why.contains("under dynamic"), "{why}");
    let (_, why) = code("guest.cyclictest.mean > 1ns");
    assert!(why.contains("under dynamic") && why.matches("cyclictest").count() == 1, "{why}");
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
        ProgramOutput::by(command.env_remove("VCOOP_BACKEND").args(args)).well().out
    };
    let run = ["run", "busy-host-1", "--duration", "20ms", "--warmup", "1ms", "--repeats", "2"];
    let report = plain(&run);
    assert!(report.contains("\nsim; 2 repeats") && report.contains("--backend sim"), "{report}");
    let host = "Simulated: 2 pCPUs with the costs of xeon-server (Generic Xeon server";
    assert!(report.contains(host), "{report}");
    let said = plain(&[&run[..], &["--dry-run"]].concat());
    assert!(
        said.contains("sim: 8 runs, 168 ms of simulated time in all, which take about "),
        "{said}"
    );
    assert!(!said.contains("measuring on this host"), "{said}");
    // No more runs at the same time than CPUs make it faster.
    let needs = |jobs| {
        let run = ["run", "busy-host-1", "--repeats", "10000", "--dry-run", "--jobs", jobs];
        let said = plain(&run);
        let (_, needs) = said.split_once("which take about ").unwrap();
        let mut words = needs.split_whitespace();
        let number: f64 = words.next().unwrap().parse().unwrap();
        number * if words.next() == Some("s") { 1e3 } else { 1.0 }
    };
    let cpus = thread::available_parallelism().unwrap().get() as f64;
    assert!(needs("10000") * cpus > needs("1") / 20.0);
    // A scenario that no host can run is simulated, and the dry run says why.
    let said = plain(&[&run[..], &["--dry-run", "--backend", "auto"], &TOO_BIG[..]].concat());
    assert!(said.contains("simulating the host that the scenario describes"), "{said}");
}

/// A calibration is the simulated host's costs in every command that simulates, and each names it.
#[test]
fn a_calibration_works_wherever_something_is_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let own = include_str!("../../../../profiles/xeon-server.toml")
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
        assert_eq!(output.code, Some(0), "{command:?}: {output}");
        let named = [&output.out, &output.err].iter().any(|said| said.contains("own-host"));
        assert!(named, "{command:?}: {output}");
    }
    run(&["sweep", sweep, "--out", out, "--calibration", profile, "--quiet"]).well();
    let changed = run(&["sweep", sweep, "--out", out, "--quiet"]);
    assert!(changed.err.contains("own.toml"), "{}", changed.err);
}

#[test]
fn two_results_are_compared_and_a_condition_has_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b.json"].map(|name| dir.path().join(name));
    let [a, b] = [a.to_str().unwrap(), b.to_str().unwrap()];
    let six = ["run", "busy-host-1", "--duration", "200ms", "--warmup", "1ms", "--repeats", "6"];
    run(&[&six[..], &["--policy", "vanilla,dynamic", "--quiet", "--out", a]].concat()).well();
    let more = ["--set", "load.hog.count=5", "--json", "--policy", "vanilla", "--seed", "9"];
    let second = run(&[&six[..], &more].concat());
    std::fs::write(b, &second.out).unwrap();
    let said = run(&["diff", a, b]).well().out;
    assert!(said.contains("seed: 1 -> 9"), "{said}");
    let slower = said.lines().find(|line| line.contains("guest.background.throughput")).unwrap();
    assert!(slower.contains("0.") && slower.ends_with('*'), "{said}");
    let only: Vec<&str> = said.lines().filter(|line| line.starts_with("only in")).collect();
    assert_eq!(only, ["only in the first: all of dynamic, sim"]);
    let marked = |line: &str| line.contains(" -> ") && line.ends_with('*');
    assert!(!run(&["diff", a, a]).out.lines().any(marked));
    let json = run(&["diff", a, b, "--json"]).json();
    assert_eq!(json["schema"], "vcoop.diff/1");
    let code = |condition: &str| run(&["diff", a, b, "--fail-if", condition]).code;
    assert_eq!(code("guest.background.throughput < 0.9x"), Some(4));
    assert_eq!(code("guest.background.throughput > 0.9x"), Some(0));
    assert_eq!(code("guest.background.throughput > 1 cpu"), Some(2));
    run(&["diff", a, "absent"]).fails(2, &[]);
}

#[test]
fn notes_go_to_stderr_and_quiet_silences_them() {
    let auto = [&["--backend", "auto"], &TOO_BIG[..]].concat();
    let loud = short(&auto);
    assert!(loud.err.contains("simulating"), "{}", loud.err);
    let quiet = short(&[&auto[..], &["--quiet"]].concat());
    assert_eq!(quiet.err, "");
    assert_eq!(loud.out, quiet.out);
    let verbose = short(&["-v"]);
    assert!(verbose.err.contains("events per CPU s"));
}

#[test]
fn the_flagship_report_fits_and_is_plain_in_a_pipe() {
    let args = ["run", "busy-host", "--duration", "200ms", "--warmup", "20ms", "--repeats", "5"];
    let report = run(&args).well().out;
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
    let report = run(&["run", "pvsched-audio", "--duration", "200ms", "--warmup", "0s"]).out;
    assert!(report.contains("browser_enabled true, buffer 96 frames"), "{report}");
    for line in report.lines().filter(|line| !line.starts_with("Again: ")) {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn the_command_to_repeat_gives_the_same_again() {
    let sets = ["--policy", "vanilla,static", "--set", "policy.static.means=fifo 50"];
    let report = short(&sets).out;
    let again = report.lines().find_map(|line| line.strip_prefix("Again: vcoop ")).unwrap();
    let shell = format!("\"$0\" {again}");
    let command = env!("CARGO_BIN_EXE_vcoop");
    let mut second = Command::new("sh");
    second.args(["-c", &shell, command]).env("VCOOP_BACKEND", "sim");
    let second = ProgramOutput::by(&mut second);
    assert_eq!(report, second.out);
}

#[test]
fn check_determinism_says_identical() {
    let output = short(&["--check-determinism", "--quiet"]).well();
    assert!(output.err.contains("deterministic: 1 job and"));
}

/// What a command says whose stdout nobody reads.
fn unread(args: &[&str]) -> ProgramOutput {
    let mut child = vcoop(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_closed_pipe_is_no_error() {
    for args in [&["schema"][..], &["list"], &["run", "busy-host-1", "--duration", "600ms"]] {
        let output = unread(args).well();
        assert!(!output.err.contains("panicked"), "{args:?}: {output}");
    }
}

#[test]
fn an_exit_code_does_not_depend_on_whether_somebody_reads_stdout() {
    let args = ["run", "busy-host-1", "--duration", "600ms", "--repeats", "1"];
    let args = [&args[..], &["--fail-if", "guest.cyclictest.mean > 0.001us"]].concat();
    unread(&args).fails(4, &[]);
}

/// How many runs that write into a folder have begun.
fn begun(dir: &Path) -> usize {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    names.filter(|e| e.file_name().to_string_lossy().starts_with(".samples-")).count()
}

fn await_runs(dir: &Path, runs: usize) {
    until("the runs have begun", || begun(dir) >= runs);
}

#[test]
fn a_simulated_triple_fault_fails_the_run_with_what_was_measured() {
    let sets = ["--set", "vm.rogue.task.rogue.mode=triple-fault"];
    let sets = [&sets[..], &["--set", "vm.rogue.task.rogue.period=200ms"]].concat();
    let args = ["run", "rogue-guest", "--backend", "sim", "--quiet", "--duration", "1s"];
    let output =
        run(&[&args[..], &["--warmup", "0s", "--repeats", "1", "--policy", "vanilla"], &sets[..]]
            .concat());
    output.fails(1, &["VM rogue, vCPU ", ": triple fault"]);
    assert!(output.out.contains("host.cyclictest"), "what was measured is printed");
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
    send(child.id(), Signal::INT);
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
fn an_interrupted_trace_says_how_long_it_is() {
    let dir = folder("interrupted-trace");
    let file = dir.join("trace.txt");
    let long = ["--text", "--duration", "20000s", "-o", file.to_str().unwrap()];
    let mut child = vcoop(&[&["trace", "busy-host-1"], &long[..]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let part = dir.join(".trace.txt.part");
    until("it writes", || fs::metadata(&part).is_ok_and(|file| file.len() > 0));
    send(child.id(), Signal::INT);
    assert_eq!(end_of(&mut child), Some(130));
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("where the run ended, instead of 20000 s"), "{said}");
    assert!(file.exists() && !part.exists());
    fs::remove_dir_all(&dir).unwrap();
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
    run(&["report", dir.to_str().unwrap()]).well();
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
    let output = run(&args).well();
    let json = output.json();
    assert_eq!(json["schema"], "vcoop.reproduce/1");
    assert_eq!(json["cells"].as_array().unwrap().len(), 12);
    let report = run(&args[..5]);
    for line in report.out.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn schema_completions_man_and_doctor_print_something_sound() {
    let schema = run(&["schema"]).json();
    assert!(schema["$schema"].is_string(), "it names its own dialect");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).out;
        assert!(script.contains("vcoop") && script.contains("capacity"), "{shell}");
        assert!(!script.contains("keeper"), "{shell} offers a hidden command");
    }
    let dir = folder("man");
    run(&["man", dir.to_str().unwrap()]).well();
    assert!(fs::read_to_string(dir.join("vcoop-run.1")).unwrap().contains("SCENARIO"));
    let first = fs::read_to_string(dir.join("vcoop.1")).unwrap();
    assert!(first.contains("vcoop\\-guest(1)") && !first.contains("vcoop\\-help(1)"));
    let doctor = run(&["doctor"]).well();
    for line in doctor.out.lines() {
        let known = ["  ok       ", "  limited  ", "  missing  ", "           "];
        assert!(line.chars().count() <= 100, "{line}");
        assert!(known.iter().any(|start| line.starts_with(start)), "{line}");
    }
}

#[test]
fn captures_are_described() {
    let report = run(&["capture", "builtin:build-serve"]).out;
    assert!(report.starts_with("builtin:build-serve: "), "{report}");
    assert!(report.contains("busiest threads"));
}

/// What a command shows on a terminal of so many columns.
fn on_terminal(args: &str, columns: usize) -> String {
    let vcoop = env!("CARGO_BIN_EXE_vcoop");
    let command = format!("stty cols {columns}; NO_COLOR=1 {vcoop} {args}; true");
    // script(1) of util-linux gives a terminal.
    ProgramOutput::by(Command::new("script").args(["-qec", &command, "/dev/null"])).out
}

#[test]
fn notes_and_refusals_fit_a_terminal() {
    for (args, says) in [
        ("capture builtin:build-serve", "wake-ups:"),
        ("explain busy-host-1 --duration 1s --repeats 2", "simulating"),
        ("trace busy-host-1 --duration 1s -o /dev/null", "simulating"),
        ("run busy-host-1 --may-cost x=1", "write mean"),
        ("run busy-host-1 --set host.pcpu=1", "did you mean"),
        ("tune busy-host-1 --slo guest.nothing.p99<1ms", "nearest"),
        ("vms --how web", "modprobe"),
        ("list policies", "simulation only"),
    ] {
        for columns in [60, 80] {
            let shown = on_terminal(&args.replace('<', "'<'"), columns);
            assert!(shown.contains(says), "{args}: {shown}");
            // Text to copy stays whole.
            let copied = ["-", "<", "virsh ", "systemctl "];
            let is_prose = |line: &&str| {
                !line.contains(" # ")
                    && copied.iter().all(|text| !line.trim_start().starts_with(text))
            };
            let prose = shown.lines().filter(is_prose);
            let is_long = |line: &&str| line.trim_end().chars().count() > columns;
            let long: Vec<&str> = prose.filter(is_long).collect();
            assert!(long.is_empty(), "{args}: {long:#?}");
        }
    }
}

#[test]
fn how_to_give_a_vm_the_driver_says_what_it_is_called() {
    let renamed = "have we_b__x_ in them";
    for (name, says, silent) in
        [("web", "vcoop attach web ", "in them"), ("we b$(x)", renamed, "vcoop attach we_b")]
    {
        let said = run(&["vms", "--how", name]).out;
        assert!(said.contains(says) && !said.contains(silent), "{said}");
    }
    let unanswered = run(&["vms", "--qmp", "/nonexistent"]);
    for text in ["No such file", "remedy: "] {
        assert!(unanswered.err.contains(text), "{unanswered}");
    }
}

#[test]
fn prose_is_broken_for_the_terminal_and_not_for_a_file() {
    let prose = |text: &str| -> Vec<usize> {
        let lines = text.lines().map(|line| line.trim_end());
        lines
            .skip_while(|line| !line.starts_with("Ratios are"))
            // Commands stay whole, so that they can be copied.
            .take_while(|line| !["To apply", "Again:"].iter().any(|word| line.starts_with(word)))
            .map(|line| line.chars().count())
            .collect()
    };
    for columns in [60, 80] {
        let shown = &on_terminal(&format!("run --quiet {}", SHORT.join(" ")), columns);
        let widths = prose(shown);
        assert!(widths.len() > 5 && widths.iter().all(|&width| width <= columns), "{shown}");
        // So is the table, which has fewer columns then.
        let table = shown.lines().skip_while(|line| !line.starts_with("Latency")).skip(1);
        let table: Vec<&str> = table.take_while(|line| !line.starts_with("Costs")).collect();
        assert!(table[0].contains("p99") && !table[0].contains("p50"), "{shown}");
        assert!(table.iter().all(|line| line.trim_end().chars().count() <= columns), "{shown}");
    }
    let in_file = prose(&short(&["--quiet"]).out);
    assert!(in_file.iter().any(|&width| width > 80), "{in_file:?}");
}
