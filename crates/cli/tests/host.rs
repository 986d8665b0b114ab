//! `vcoop doctor` and `vcoop calibrate` on whatever host this is.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use vcoop_testing::{ProgramOutput, Skip, full_pipe, send, until};

fn vcoop(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> ProgramOutput {
    ProgramOutput::by(&mut vcoop(args))
}

/// Whether this host lacks what it takes; the test is skipped then.
fn skipped(said: &ProgramOutput) -> bool {
    let lacks = said.code == Some(3);
    if lacks {
        said.fails(3, &["remedy: "]);
        Skip::because(&said.err).tell();
    }
    lacks
}

#[test]
fn the_doctor_tells_programs_the_same() {
    let json = run(&["doctor", "--json"]).well().json();
    assert_eq!(json["schema"], "vcoop.doctor/1");
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings[0]["facility"], "simulator");
    for finding in findings {
        let state = finding["state"].as_str().unwrap();
        assert!(["ok", "limited", "missing"].contains(&state), "{finding}");
        assert_eq!(finding["remedy"].is_null(), state == "ok", "{finding}");
    }
    assert!(json["host"]["tick_ns"]["value"].as_u64().unwrap() > 0);
    let text = run(&["doctor"]).out;
    for finding in findings {
        let name = finding["facility"].as_str().unwrap();
        assert!(text.contains(&format!("{name}: ")), "{name} in\n{text}");
    }
}

#[test]
fn who_may_not_load_bpf_is_told_so_once() {
    let mut meek = Command::new("setpriv");
    meek.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_vcoop")]);
    let said = ProgramOutput::by(meek.args(["doctor", "--json"]));
    if said.code != Some(0) {
        Skip::because("setpriv cannot drop capabilities").tell();
        return;
    }
    let json = said.json();
    let findings = json["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["facility"] == "interrupts of VMs");
    let (found, refusals) = (found.unwrap(), usize::from(cfg!(feature = "bpf")));
    assert_eq!(found["state"], "limited");
    let evidence = found["evidence"].as_str().unwrap();
    assert_eq!(evidence.matches("os error").count(), refusals, "{evidence}");
}

/// Without rules it changes nothing on this host, and tells nothing of its VMs, such as those of other tests.
#[test]
fn what_a_reload_of_the_daemon_does_not_change_is_said() {
    let tree = vcoop_testing::Tree::default();
    let run_dir = tree.path("run");
    let listen =
        |name: &str| format!("[metrics]\nlisten = \"unix:{}\"\n", run_dir.join(name).display());
    tree.put("vcoop.toml", &listen("a.sock"));
    let mut command = vcoop(&["daemon", "--config", tree.path("vcoop.toml").to_str().unwrap()]);
    let mut daemon = command.env("VCOOP_RUN_DIR", &run_dir).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(daemon.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || lines.next().unwrap();
    assert!(next().ends_with("with 0 rules"));
    for (file, says) in [
        (listen("a.sock") + "[engine]\nbusy_poll = \"10us\"\n", None),
        (listen("b.sock"), Some("[metrics] and [windows] stay as they were")),
        ("nonsense".to_owned(), None),
    ] {
        tree.put("vcoop.toml", &file);
        send(daemon.id(), Signal::HUP);
        let read = next();
        let refused = read.contains("the rules stay as they were");
        assert!(
            refused == (file == "nonsense") && (refused || read.contains("read again")),
            "{read}"
        );
        says.into_iter().for_each(|says| assert!(next().contains(says), "{file}"));
    }
    send(daemon.id(), Signal::TERM);
    assert!(daemon.wait().unwrap().success());
    let left = fs::read_dir(&run_dir).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["lock"], "no socket is left");
}

/// Also if nobody reads the log.
#[test]
fn the_log_says_that_a_keeper_was_replaced() {
    for is_read in [true, false] {
        let tree = vcoop_testing::Tree::default();
        tree.put("vcoop.toml", "");
        let mut command = vcoop(&["daemon", "--config", tree.path("vcoop.toml").to_str().unwrap()]);
        command.env("VCOOP_RUN_DIR", tree.path("run")).stderr(Stdio::piped());
        let mut daemon = command.spawn().unwrap();
        let log = BufReader::new(daemon.stderr.take().unwrap());
        let mut lines = log.lines().map(Result::unwrap);
        assert!(lines.next().unwrap().ends_with("with 0 rules"));
        let first = keepers(&daemon);
        let mut lines = is_read.then_some(lines);
        send(first.trim().parse().unwrap(), Signal::KILL);
        if let Some(lines) = &mut lines {
            let said = lines.next().unwrap();
            assert!(said.contains("the keeper had ended"), "{said}");
        }
        until("another keeper", || ![&first, ""].contains(&keepers(&daemon).as_str()));
        send(daemon.id(), Signal::TERM);
        assert!(daemon.wait().unwrap().success());
    }
}

/// Children of a process.
fn keepers(daemon: &Child) -> String {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
    let children = |thread: PathBuf| fs::read_to_string(thread.join("children"));
    threads.filter_map(|thread| children(thread.unwrap().path()).ok()).collect()
}

#[test]
fn a_daemon_ends_beside_a_log_that_is_full_and_a_keeper_that_was_stopped() {
    let tree = vcoop_testing::Tree::default();
    tree.put("vcoop.toml", "");
    let (_nobody_reads, log) = full_pipe();
    let mut command = vcoop(&["daemon", "--config", tree.path("vcoop.toml").to_str().unwrap()]);
    let mut daemon = command.env("VCOOP_RUN_DIR", tree.path("run")).stderr(log).spawn().unwrap();
    let socket = tree.path("run/control.sock");
    until("it serves", || socket.exists());
    let keeper = keepers(&daemon).trim().parse().unwrap();
    send(keeper, Signal::STOP);
    send(daemon.id(), Signal::TERM);
    until("it ends", || daemon.try_wait().unwrap().is_some());
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_keeper_that_was_stopped_is_named_after_its_daemon_has_died() {
    let tree = vcoop_testing::Tree::default();
    tree.put("vcoop.toml", "");
    let run_dir = tree.path("run");
    let mut command = vcoop(&["daemon", "--config", tree.path("vcoop.toml").to_str().unwrap()]);
    let mut daemon = command.env("VCOOP_RUN_DIR", &run_dir).stderr(Stdio::null()).spawn().unwrap();
    until("it serves", || run_dir.join("control.sock").exists());
    let restore = || ProgramOutput::by(vcoop(&["restore"]).env("VCOOP_RUN_DIR", &run_dir));
    restore().fails(1, &[&format!("already runs, in process {}\n", daemon.id())]);
    let keeper: u32 = keepers(&daemon).trim().parse().unwrap();
    send(keeper, Signal::STOP);
    send(daemon.id(), Signal::KILL);
    daemon.wait().unwrap();
    let said = restore();
    send(keeper, Signal::CONT);
    said.fails(1, &[&format!("and process {keeper}, which restores"), "remedy: let that go on"]);
    until("the keeper has ended", || restore().code == Some(0));
}

#[test]
fn a_requirement_that_is_not_met_is_exit_code_3() {
    let lab =
        run(&["run", "busy-host-1", "--backend", "kvm", "--duration", "20ms", "--warmup", "1ms"]);
    let required = run(&["doctor", "--require", "kvm"]);
    assert_eq!(required.code == Some(3), lab.code == Some(3));
    assert!(!required.out.is_empty(), "it says what there is either way");
}

#[test]
fn a_calibrated_profile_is_one_the_simulator_takes() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("calibrated");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("host.toml");
    let path = path.to_str().unwrap();
    let args = ["calibrate", "--quick", "--host-only", "--noise", "300ms", "--json", "-o", path];
    let said = run(&args);
    if skipped(&said) {
        return;
    }
    let said = said.well();
    assert!(said.err.contains("assumed, as in profile xeon-server: "), "{said}");
    let json = said.json();
    assert_eq!(json["schema"], "vcoop.calibration/1");
    assert_eq!(json["profile_toml"].as_str().unwrap(), fs::read_to_string(path).unwrap());
    let set = format!("host.profile={path}");
    let args = ["run", "busy-host-1", "--backend", "sim", "--set", &set, "--json", "--quiet"];
    let short = ["--duration", "50ms", "--warmup", "10ms", "--repeats", "1"];
    run(&[&args[..], &short].concat()).well();
}

#[test]
fn a_profile_is_written_also_if_nobody_can_be_told() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("untold.toml");
    let _ = fs::remove_file(&path);
    let args = ["calibrate", "--quick", "--host-only", "--noise", "100ms", "-o"];
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let said = ProgramOutput::by(vcoop(&args).arg(&path).stdout(full));
    if skipped(&said) {
        return;
    }
    said.fails(1, &["cannot write to stdout"]);
    assert!(fs::read_to_string(path).unwrap().contains("measured by vcoop calibrate"));
}

#[test]
fn an_interrupted_calibration_writes_no_profile() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("interrupted.toml");
    let _ = fs::remove_file(&path);
    let args = ["calibrate", "--host-only", "--json", "-o", path.to_str().unwrap()];
    let child = vcoop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    vcoop_testing::awaits_interrupt_handler(child.id());
    // It may have ended, but is still there to be waited for.
    send(child.id(), Signal::INT);
    let said = ProgramOutput::from(child.wait_with_output().unwrap());
    if skipped(&said) {
        return;
    }
    said.fails(130, &[]);
    assert_eq!(said.json()["complete"], false);
    assert!(!path.exists());
}
