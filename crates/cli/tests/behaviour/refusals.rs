//! What is refused, and how.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use serde_json::Value;
use vcoop_testing::ProgramOutput;

use super::{TOO_BIG, end_of, folder, run, short, vcoop};

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
    (code, ProgramOutput::from(child.wait_with_output().unwrap()).err)
}

#[test]
fn endless_files_are_refused_by_every_reader() {
    let dir = folder("endless");
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
    output.fails(2, &[]);
    assert_eq!(output.out, "", "{args:?}");
    let words = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(why), "{output}");
}

#[test]
fn places_for_results_that_are_none_are_refused_before_anything_runs() {
    let dir = folder("places");
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
            refused(args, "is not a folder");
        }
    }
    refused(&["report", file], "it is not a folder");
    let nowhere = dir.join("nowhere/x");
    let map = ["map", here, "--rows", "a", "--columns", "b"];
    refused(&[&map[..], &["-o", "map.png"]].concat(), "ends in .svg");
    let gone = ["map", nowhere.to_str().unwrap(), "--rows", "a", "--columns", "b"];
    refused(&gone, "remedy: give a folder that `vcoop sweep --out` wrote");
    for args in [&["trace", "busy-host-1"][..], &map] {
        refused(&[args, &["-o", here]].concat(), "it is a folder");
        refused(&[args, &["-o", nowhere.to_str().unwrap()]].concat(), "there is no such folder");
    }
    for args in [
        &["trace", "busy-host-1", "-o", "-"][..],
        &["run", "busy-host-1", "--out", "-"],
        &["run", "busy-host-1", "--metrics", "-"],
        &["sweep", file, "--out", "-"],
        &["report", here, "--svg", "-"],
        &["man", "-"],
    ] {
        refused(args, "-: give the output a name; for a file called -, write ./-");
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
        let search = [command, "busy-host-1", "--slo", "guest.cyclictest.p99 < 1ms"];
        for (option, value, why) in [
            ("--policy", "vanilla,vanilla", "names `vanilla` twice"),
            ("--repeats", "-1", "--repeats:1:9: -1 is out of range"),
            ("--seed", "9223372036854775808", "from 0 to 9223372036854775807"),
        ] {
            refused(&[&search[..], &[option, value]].concat(), why);
        }
    }
    let many = ["--vary", "vm.guest.count=1..99999999999"];
    let slo = ["--slo", "guest.cyclictest.p99 < 1ms"];
    let filled = [&["capacity", "busy-host-1"], &slo[..], &many[..]].concat();
    refused(&filled, "99999999999 is out of range");
    let total = ["--slo", "guest.background.throughput > 0.2cpu"];
    refused(&[&["capacity", "busy-host-1"], &total[..]].concat(), "is a total over all copies");
    refused(&["vms", "--how", ""], "--how: give the name of a VM");
    refused(&["reproduce", "pvshced"], "hv-timer-histogram");
    refused(&["compare", "nobody", "--each", "0s"], "--each: it is no time at all");
    refused(&["compare", "nobody", "--each", "-1s"], "--each: `-1s` is not a duration");
    let judge = |time| ["conformance", "nobody", "--for", time];
    refused(&judge("1s"), "--for 1s: it has to be ten times --grace at least, which is 200ms");
    refused(&[&judge("0s")[..], &["--grace", "0s"]].concat(), "--for: it is no time at all");
    refused(&run("--set", "-1"), "--set:1:1: this is not PATH=VALUE");
    refused(
        &run("--jobs", "-1"),
        "value '-1' for '--jobs <N>': give a number from 1 to 4294967295",
    );
    refused(&run("--out", "--json"), "a value is required for '--out <DIR>'");
    refused(&["compare", "nobody", "--each", "500ms"], "no VM `nobody`");
    let map = ["map", ".", "--rows", "a", "--columns", "b", "--probe", "guest.cyclictest"];
    refused(&map, "--probe goes with a column");
}

#[test]
fn arguments_that_are_not_utf_8_are_named() {
    let foreign = OsStr::from_bytes(b"a\xff");
    ProgramOutput::by(vcoop(&["run"]).arg(foreign)).fails(2, &[r"it is 'a\xff'"]);
    let mut wrong = vcoop(&["trace", "busy-host-1", "--backend", "x", "-o"]);
    ProgramOutput::by(wrong.arg(foreign)).fails(2, &[]);
}

#[test]
fn a_wrong_value_from_the_environment_is_said_to_be_from_there() {
    let said = |args: &[&str]| {
        let output = ProgramOutput::by(vcoop(args).env("VCOOP_BACKEND", "qemu"));
        output.fails(2, &[]);
        output.err.contains("environment variable VCOOP_BACKEND")
    };
    assert!(said(&["run", "busy-host"]));
    assert!(!said(&["run", "busy-host", "--backend", "xen"]));
    assert!(!said(&["run", "busy-host", "--backend=xen"]));
}

#[test]
fn a_series_with_a_damaged_number_is_refused() {
    let dir = folder("damaged");
    let path = dir.to_str().unwrap();
    short(&["--out", path]).well();
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
    let file = dir.join("s.toml");
    run(&["list", "scenarios"]).well();
    let title = "title = \"a\\u001b]0;owned\\u0007b\"";
    let body = "\n[host]\npcpus = 1\n[[vm]]\nname = \"guest\"\nvcpus = 1\n[[vm.task]]\n\
                name = \"cyclictest\"\nkind = \"cyclictest\"\ninterval = \"1ms\"\n";
    fs::write(&file, format!("name = \"s\"\n{title}\n{body}")).unwrap();
    let path = file.to_str().unwrap();
    let args = ["--backend", "sim", "--duration", "50ms", "--warmup", "0s", "--repeats", "1"];
    let out = run(&[&["run", path][..], &args[..]].concat()).well().out;
    assert!(out.contains("a\\u{1b}]0;owned\\u{7}b") && !out.contains('\u{1b}'), "{out}");
    // A quoted line of a file.
    fs::write(&file, "name = \u{1b}]0;owned\u{7}\n").unwrap();
    let output = run(&["run", path]);
    output.fails(2, &["\\u{1b}]0;owned"]);
    assert!(!output.err.contains('\u{1b}'), "{output}");
}

#[test]
fn searches_of_nothing_are_refused() {
    let base = ["tune", "busy-host-1", "--slo", "guest.cyclictest.p99 < 1ms"];
    for (option, value) in [("--trials", "0"), ("--confirm", "0"), ("--confirm", "1")] {
        run(&[&base[..], &[option, value]].concat()).fails(2, &["or more"]);
    }
}

#[test]
fn what_the_lab_cannot_run_is_refused_with_exit_code_3() {
    // Where there is no KVM, everything.
    let out = run(&[&["run", "busy-host-1", "--backend", "kvm"], &TOO_BIG[..]].concat());
    out.fails(3, &["backend kvm", "remedy: "]);
    assert_eq!(out.out, "");
}

#[test]
fn a_remedy_names_options_that_the_command_has() {
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/busy-host-1.toml");
    let big = folder("big").join("big.toml");
    let text = fs::read_to_string(scenario).unwrap();
    fs::write(&big, text.replace("\npcpus = 2\n", "\npcpus = 1000\n")).unwrap();
    let big = big.to_str().unwrap();
    // Where there is no KVM, a smaller host is no remedy; and it is none for what no host can do.
    let fits = File::open("/dev/kvm").is_ok();
    let set = ["--set", "vm.guest.paravirt_time_accounting=false"];
    let other = &[&["run", scenario, "--backend", "kvm"], &set[..]].concat();
    for (args, simulates, fits) in [
        (&["run", big, "--backend", "kvm"][..], true, fits),
        (&["explain", big, "--backend", "kvm"], true, false),
        (&["validate", big], false, fits),
        (other, true, false),
        // This host stands in for Xen's, but does not boot VMs.
        (&["validate", "xen-vmping"], false, fits),
        (&["validate", "xen-pinning"], false, false),
    ] {
        let said = run(args);
        let named =
            ["--backend sim", "--fit", "--set"].map(|option| said.err.matches(option).count());
        let expected = [simulates.into(), fits.into(), 0];
        assert_eq!((said.code, named), (Some(3), expected), "{args:?}: {said}");
    }
}

#[test]
fn determinism_of_live_runs_is_refused_before_anything_is_said_of_them() {
    // Where there is no KVM, that is said instead.
    let (code, why) = match File::open("/dev/kvm") {
        Ok(_) => (2, "--check-determinism is for the simulator"),
        Err(_) => (3, "remedy: "),
    };
    let live = ["run", "busy-host-1", "--backend", "kvm", "--fit", "--check-determinism"];
    for args in [&live[..], &[&live[..], &["--dry-run"]].concat()] {
        let out = run(args);
        out.fails(code, &[why]);
        assert!(!out.err.contains("measuring on"), "{out}");
    }
}

/// The script that records captures.
#[test]
fn recording_nothing_is_refused() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures/record.sh");
    for (args, says) in [
        (["-s", "abc"], "-s takes seconds, like 5 or 0.5, not 'abc'"),
        (["-s", "1.2.3"], "-s takes seconds"),
        (["-b", "64M"], "-b takes a number of KiB"),
        (["-o", "/dev/null/x"], "cannot write /dev/null/x"),
    ] {
        let output = ProgramOutput::by(Command::new("sh").arg(script).args(args));
        output.fails(1, &[says]);
    }
    let dir = folder("recorded");
    fs::create_dir_all(&dir).unwrap();
    let mut command = Command::new("sh");
    command.arg(script).args(["-m", "nothing", "-o"]).arg(dir.join("capture.txt.gz"));
    ProgramOutput::by(&mut command).fails(1, &["-m takes tracefs or perf"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "no file that is empty");
}

#[test]
fn what_is_no_result_is_told_with_the_way_out() {
    let dir = folder("no-result");
    let dir = dir.to_str().unwrap();
    refused(&["report", "nowhere"], "there is no such folder; name a folder");
    refused(&["report", dir], "has neither result.json nor reproduce.json");
    fs::write(format!("{dir}/manifest.json"), "{}").unwrap();
    refused(&["report", dir], "remedy: vcoop map ");
    refused(&["diff", dir, dir], "remedy: name a result.json");
    refused(&["detach"], "vcoop detach --all");
    refused(&["conformance"], "--window <FILE>");
}
