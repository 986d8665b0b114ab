//! What is written, and what is spared.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use vcoop_testing::ProgramOutput;

use super::{await_runs, begun, folder, run, short, vcoop};

fn json(file: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn a_full_disk_is_an_error() {
    for args in [&["list"][..], &["--help"], &["run", "--help"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        ProgramOutput::by(vcoop(args).stdout(full)).fails(1, &["cannot write to stdout"]);
    }
}

/// As [`run`], but no file gets more than a KiB, as on a full disk.
fn without_room(args: &[&str]) -> ProgramOutput {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 2; exec \"$0\" \"$@\""]);
    ProgramOutput::by(shell.arg(env!("CARGO_BIN_EXE_vcoop")).args(args).stdin(Stdio::null()))
}

#[test]
fn a_full_disk_leaves_no_half_file_and_spares_the_old_one() {
    let dir = folder("full-disk");
    fs::create_dir_all(&dir).unwrap();
    let (file, new, text) = (dir.join("old.pftrace"), dir.join("new"), dir.join("text"));
    fs::write(&file, "old").unwrap();
    let [file, new, text] = [file, new, text].map(|path| path.to_str().unwrap().to_owned());
    let one = ["busy-host-1", "--duration", "100ms", "--warmup", "10ms", "--quiet"];
    for output in [&["-o", &file][..], &["-o", &new], &["-o", &text, "--text"]] {
        without_room(&[&["trace"], &one[..], output].concat()).fails(1, &["cannot write "]);
    }
    let run = ["run", "--repeats", "1", "--backend", "sim"];
    let samples = ["--out", dir.to_str().unwrap(), "--force"];
    for output in [&["--metrics", &file][..], &samples] {
        without_room(&[&run, &one[..], output].concat()).fails(1, &["cannot write "]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [dir.join("old.pftrace")]);
}

#[test]
fn out_writes_everything_and_spares_other_results() {
    let dir = folder("out").join("new");
    let path = dir.to_str().unwrap();
    short(&["--out", path]).well();
    let result = json(dir.join("result.json"));
    assert_eq!(result["schema"], "vcoop.result/1");
    let plan = json(dir.join("plan.json"));
    assert_eq!(plan["cells"].as_array().unwrap().len(), 1);
    assert!(plan["policies"]["dynamic"].is_object());
    assert!(fs::read_to_string(dir.join("scenario.toml")).unwrap().contains("busy-host-1"));
    assert!(fs::read_to_string(dir.join("report.txt")).unwrap().contains("Best here"));
    // The same scenario again may take its place, with everything that it left; another may not.
    let stale = ["histograms/sim.gone.txt", "hgrm/sim.gone.hgrm"].map(|name| dir.join(name));
    stale.iter().for_each(|file| fs::write(file, "of an earlier result").unwrap());
    short(&["--out", path]).well();
    assert!(stale.iter().all(|file| !file.exists()), "{stale:?}");
    run(&["run", "rogue-guest", "--out", path])
        .fails(2, &["holds a result of scenario busy-host-1"]);
    let result_after = json(dir.join("result.json"));
    assert_eq!(result_after["scenario"], "busy-host-1");
}

#[test]
fn a_result_that_cannot_be_kept_is_printed() {
    let dir = folder("no-room");
    fs::create_dir_all(dir.join("report.html")).unwrap();
    let output = short(&["--out", dir.to_str().unwrap(), "--force"]);
    output.fails(1, &["report.html: "]);
    assert!(output.out.contains("Best here"), "{}", output.out);
}

#[test]
fn out_spares_files_of_others() {
    let dir = folder("foreign");
    fs::write(dir.join("plan.json"), "mine").unwrap();
    short(&["--out", dir.to_str().unwrap()]).fails(2, &[]);
    assert_eq!(fs::read_to_string(dir.join("plan.json")).unwrap(), "mine");
}

#[test]
fn out_spares_any_file_of_others_unless_it_is_forced() {
    let dir = folder("thesis");
    fs::write(dir.join("thesis.tex"), "mine").unwrap();
    let path = dir.to_str().unwrap();
    short(&["--out", path]).fails(2, &["`thesis.tex` and no result.json", "remedy: "]);
    short(&["--out", path, "--force"]).well();
    assert_eq!(fs::read_to_string(dir.join("thesis.tex")).unwrap(), "mine");
    // From now on it is ours, too; another scenario takes its place by force alone.
    short(&["--out", path]).well();
    let other = ["run", "rogue-guest", "--quiet", "--backend", "sim", "--out", path, "--force"];
    let other = [&other[..], &["--duration", "50ms", "--warmup", "0s", "--repeats", "1"]].concat();
    run(&other).well();
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
    second.fails(2, &["written by another process", "remedy: "]);
    assert!(begun(), "the first one was at work");
    short(&["--out", path]).well();
    assert!(!begun());
}

#[test]
fn a_report_is_drawn_again_from_its_result() {
    let dir = folder("report");
    let path = dir.to_str().unwrap();
    short(&["--out", path]).well();
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Best here"));
    fs::remove_file(dir.join("report.html")).unwrap();
    let svg = dir.join("svg");
    let output = run(&["report", path, "--svg", svg.to_str().unwrap()]).well();
    assert_eq!(output.out, "");
    assert_eq!(fs::read_to_string(dir.join("report.html")).unwrap(), page);
    let pictures = fs::read_dir(&svg).unwrap().count();
    assert_eq!(pictures, page.matches("<figure").count());
    assert!(output.err.contains(&format!(", and {pictures} pictures into ")), "{output}");
}

#[test]
fn results_of_another_version_are_refused() {
    let dir = folder("report-version");
    let path = dir.to_str().unwrap();
    let refused = |text_of: &str| {
        fs::write(dir.join("result.json"), text_of).unwrap();
        let output = run(&["report", path]);
        output.fails(2, &[]);
        assert!(!dir.join("report.html").exists());
        output.err
    };
    let newer = refused(r#"{"schema":"vcoop.result/9"}"#);
    assert!(newer.contains("vcoop.result/9") && newer.contains("vcoop.result/1"), "{newer}");
    assert!(refused("[1]").contains("schema none"));
    assert!(refused("{").contains("is not JSON"));
    assert!(refused(r#"{"schema":"vcoop.result/1"}"#).contains("missing field"));
}

#[test]
fn printed_results_give_charts_where_they_were_asked_to() {
    let dir = folder("printed");
    let path = dir.to_str().unwrap();
    let drawn = |extra: &[&str]| {
        let output = short(&[&["--json"], extra].concat()).well();
        fs::write(dir.join("result.json"), &output.out).unwrap();
        (run(&["report", path]).well().err, fs::read_to_string(dir.join("report.html")).unwrap())
    };
    let (said, page) = drawn(&[]);
    assert!(said.contains("most charts are left out") && said.contains("--detail"), "{said}");
    assert!(page.contains("most charts are missing") && !page.contains("id=\"time\""));
    let (said, page) = drawn(&["--detail"]);
    assert!(!said.contains("left out"), "{said}");
    assert!(!page.contains("most charts are missing") && page.contains("id=\"time\""));
    let output = short(&["--detail"]);
    assert_eq!(output.code, Some(2), "it says nothing without --json");
}

#[test]
fn a_reproduction_leaves_a_report_too() {
    let dir = folder("reproduction");
    let path = dir.to_str().unwrap();
    let args = ["reproduce", "idle-avg", "--duration", "50ms", "--warmup", "0s", "--repeats", "1"];
    run(&[&args[..], &["--out", path]].concat()).well();
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    let json = json(dir.join("reproduce.json"));
    for cell in json["cells"].as_array().unwrap() {
        assert!(page.contains(cell["column"].as_str().unwrap()));
    }
    assert_eq!(page.matches("<figure").count(), 2, "a chart a row");
    assert!(page.contains(json["tables"]["idle-avg"]["title"].as_str().unwrap()));
    run(&["report", path]).well();
    assert_eq!(fs::read_to_string(dir.join("report.html")).unwrap(), page);
}

#[test]
fn metrics_replace_a_file_whole_and_go_through_what_is_none() {
    let dir = folder("metrics");
    let (file, neighbour) = (dir.join("m.prom"), dir.join("m.part"));
    fs::write(&file, "old").unwrap();
    fs::write(&neighbour, "somebody else's").unwrap();
    short(&["--quiet", "--metrics", file.to_str().unwrap()]).well();
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.ends_with("# EOF\n") && !written.starts_with("old"));
    assert_eq!(fs::read_to_string(&neighbour).unwrap(), "somebody else's");
    let new = dir.join("new.prom");
    assert_ne!(short(&["--metrics", new.to_str().unwrap(), "--policy", "none"]).code, Some(0));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "nothing half-written is left");
    // Too long with what is added until it is whole. That it had run it would say first.
    let long = dir.join("m".repeat(252));
    let output = short(&["--verbose", "--metrics", long.to_str().unwrap()]);
    output.fails(1, &["cannot write"]);
    assert!(!output.err.contains(" events per CPU s"), "{output}");
    // Standard output, a pipe here.
    let output = short(&["--quiet", "--metrics", "/proc/self/fd/1"]).well();
    assert!(output.out.contains("# EOF\n"));
}
