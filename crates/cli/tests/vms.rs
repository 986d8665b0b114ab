//! `vcoop vms`: on recorded trees of `/proc`, and of a real QEMU. `cargo test -p vcoop --test vms --
//! --ignored` runs the latter where QEMU is installed.

#[path = "../../vmm/tests/common/mod.rs"]
mod common;
#[path = "../../vmm/tests/common/qemu.rs"]
mod qemu;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use common::Tree;
use qemu::Qemu;
use serde_json::{Value, json};
use vcoop_daemon::{Refusal, Response};
use vcoop_policy::thread::Policy;
use vcoop_testing::{ProgramOutput, Skip};
use vcoop_threads::{Attributes, allowed_cpus, run_time, set_affinity};
use vcoop_vmm::Proc;

fn vcoop(args: &[&str]) -> ProgramOutput {
    ProgramOutput::by(Command::new(env!("CARGO_BIN_EXE_vcoop")).arg("vms").args(args))
}

/// The document of a tree, and what the terminal shows of it.
fn of_tree(tree: &Tree) -> (Value, String) {
    let path = tree.path("");
    let args = ["--tree", path.to_str().unwrap()];
    let (json, text) = (vcoop(&[&args[..], &["--json"]].concat()), vcoop(&args));
    for said in [&json, &text] {
        assert!(said.code == Some(0) && said.err.is_empty(), "{said}");
    }
    let (json, text) = (json.json(), text.out);
    // Notes are wrapped as wide as the doctor's.
    let note = |line: &&str| ["  note:", "  remedy:", "      "].iter().any(|s| line.starts_with(s));
    let mut tables = text.lines().filter(|line| !note(line));
    assert!(tables.all(|line| line.chars().count() <= 80), "{text}");
    (json, text)
}

#[test]
fn the_document_has_a_place_for_what_is_not_known() {
    let (json, text) = of_tree(&Tree::new("qemu-tcg"));
    let vcpu = |index: u32| {
        json!({
            "index": index, "tid": 16830 + index, "start_ticks": 184_431, "source": "thread name",
            "policy": null, "realtime_by": null, "affinity": null, "ran_ns": null,
            "steal_ns": null, "wait_ns": null, "boosted": null,
        })
    };
    let vm = json!({
        "name": "foo", "vmm": "QEMU", "accel": "TCG", "pid": 16825, "start_ticks": 184_410,
        "vcpus": [vcpu(0), vcpu(1)], "unplaced_vcpus": null, "policy": null,
        "heard_by": [],
        "rests": false,
        "sources": [
            { "fact": "name", "source": "command line" },
            { "fact": "vmm", "source": "executable" },
            { "fact": "accel", "source": "file descriptors" },
        ],
        "guest_driver": null,
    });
    let evidence = "the threads of a recorded tree cannot be asked for anything";
    assert_eq!(
        json,
        json!({
            "schema": "vcoop.vms/1", "version": env!("CARGO_PKG_VERSION"), "vms": [vm],
            "notes": [{ "pid": null, "evidence": evidence, "remedy": null }],
        })
    );
    assert_eq!(
        text,
        "\
foo: QEMU, TCG, process 16825
  vCPU  thread  CPUs  policy  ran  steal
  0     16830   n/a   n/a     n/a    n/a
  1     16831   n/a   n/a     n/a    n/a

  note: the threads of a recorded tree cannot be asked for anything
"
    );
}

#[test]
fn every_vmm_is_shown_with_its_vcpus() {
    for (fixture, name, vmm, accel, vcpus) in [
        ("qemu-kvm", "web", "QEMU", "KVM", 6),
        ("libvirt", "web", "QEMU", "TCG", 2),
        ("cloud-hypervisor", "cloud-hypervisor-700", "Cloud Hypervisor", "KVM", 2),
        ("firecracker", "551e7604-e35c", "Firecracker", "KVM", 2),
        ("crosvm", "arcvm", "crosvm", "KVM", 2),
        ("kvmtool", "tiny", "kvmtool", "KVM", 2),
    ] {
        let (json, text) = of_tree(&Tree::new(fixture));
        let vm = &json["vms"][0];
        let found = (&vm["name"], &vm["vmm"], &vm["accel"]);
        assert_eq!(found, (&json!(name), &json!(vmm), &json!(accel)), "{fixture}");
        assert_eq!(vm["vcpus"].as_array().unwrap().len(), vcpus, "{fixture}");
        assert!(text.contains(&format!("{name}: {vmm}, {accel}, process ")), "{text}");
    }
}

#[test]
fn vms_of_one_name_are_told_apart_by_process() {
    let (json, text) = of_tree(&Tree::new("twins"));
    let pids: Vec<_> = json["vms"].as_array().unwrap().iter().map(|vm| &vm["pid"]).collect();
    assert_eq!(pids, [110, 120]);
    assert!(text.contains("process 110\n") && text.contains("\n\ntwin: "), "{text}");
}

#[test]
fn threads_that_are_not_known_have_a_remedy() {
    let tree = Tree::new("qemu-kvm-unnamed");
    assert_eq!(of_tree(&tree).0["vms"][0]["unplaced_vcpus"], 0);
    tree.remove("debugfs");
    let (json, text) = of_tree(&tree);
    assert_eq!(
        (&json["vms"][0]["vcpus"], &json["vms"][0]["unplaced_vcpus"]),
        (&json!([]), &json!(2))
    );
    let note = json["notes"].as_array().unwrap().iter().find(|note| note["pid"] == 16693);
    for remedy in ["mount -t debugfs", "--qmp ", "debug-threads=on"] {
        assert!(note.unwrap()["remedy"].as_str().unwrap().contains(remedy), "{remedy}");
        assert!(text.contains(remedy), "{remedy} in\n{text}");
    }
}

#[test]
fn nothing_of_a_hostile_vmm_reaches_the_terminal_as_it_is() {
    let (_, text) = of_tree(&Tree::new("hostile"));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

#[test]
fn a_host_without_vms_says_so() {
    let tree = Tree::new("qemu-tcg");
    tree.remove("proc/16825");
    let (json, text) = of_tree(&tree);
    assert_eq!(json["vms"], json!([]));
    assert!(text.starts_with("No virtual machine was found on this host.\n"), "{text}");
}

#[test]
fn a_host_without_proc_is_a_missing_facility() {
    let said = vcoop(&["--tree", "/nonexistent"]);
    said.fails(3, &["remedy: mount -t proc"]);
    assert_eq!(said.out, "");
}

#[test]
fn a_socket_that_cannot_be_asked_fails_after_the_result() {
    let tree = Tree::new("qemu-tcg");
    let path = tree.path("");
    let args = ["--tree", path.to_str().unwrap(), "--qmp", "/nonexistent"];
    let said = vcoop(&args);
    said.fails(1, &["/nonexistent: No such file", "remedy: "]);
    assert!(said.out.starts_with("foo: QEMU"), "{said}");
    tree.remove("proc/16825");
    let said = vcoop(&args);
    assert!(said.err.contains("/nonexistent: No such file"), "{said}");
}

/// What `vcoop vms --json` says of a VM on this host.
fn of_host(pid: u32, args: &[&str]) -> (Value, Vec<Value>) {
    let json = vcoop(&[&["--json"], args].concat()).well().json();
    let of = |value: &&Value| value["pid"] == pid;
    let vm = json["vms"].as_array().unwrap().iter().find(of);
    let notes = json["notes"].as_array().unwrap().iter().filter(of);
    (vm.expect("it is found").clone(), notes.cloned().collect())
}

#[test]
#[ignore = "needs QEMU"]
fn threads_of_a_real_qemu_have_what_the_host_gave_them() {
    let args = "-accel tcg,thread=multi -name guest=web,debug-threads=on";
    let qemu = Qemu::start("cli", args);
    let found = qemu.vm(|vm| vm.vcpus.len() == 2);
    let tids: Vec<i32> = found.vcpus.iter().map(|v| v.thread.tid as i32).collect();
    let cpus = allowed_cpus().unwrap();
    set_affinity(tids[0], &cpus[..1]).unwrap();
    Attributes::from_policy(&Policy::Normal { nice: 5, slice_ns: None }).set(tids[1]).unwrap();
    let before = run_time(tids[1]);

    let (vm, notes) = of_host(found.pid, &[]);
    assert_eq!((&vm["name"], &vm["accel"], notes.len()), (&json!("web"), &json!("TCG"), 0));
    let vcpus = &vm["vcpus"];
    assert_eq!((&vcpus[0]["tid"], &vcpus[1]["tid"]), (&json!(tids[0]), &json!(tids[1])));
    assert_eq!(vcpus[0]["affinity"], cpus[0].to_string());
    assert_eq!(vcpus[1]["policy"], "SCHED_OTHER nice 5");
    assert_eq!(vcpus[1]["realtime_by"], Value::Null);
    let after = run_time(tids[1]);
    let (ran, steal) = (vcpus[1]["ran_ns"].as_u64(), vcpus[1]["steal_ns"].as_u64());
    assert!((before.ran_ns..=after.ran_ns).contains(&ran.unwrap()));
    assert!((before.waited_ns..=after.waited_ns).contains(&steal.unwrap()));

    let fifo = Attributes::from_policy(&Policy::Fifo(1));
    if let Err(refused) = fifo.set(tids[1]) {
        Skip::because(refused).tell();
        return;
    }
    let (vm, notes) = of_host(found.pid, &[]);
    let vcpu = &vm["vcpus"][1];
    assert_eq!(
        (&vcpu["policy"], &vcpu["realtime_by"]),
        (&json!("SCHED_FIFO 1"), &json!("unknown"))
    );
    assert_eq!(notes[0]["evidence"], "who made vCPU 1 real-time is not known");
}

#[test]
#[ignore = "needs QEMU"]
fn a_real_qemu_is_asked_over_qmp() {
    let qemu = Qemu::start("cli-asked", "-accel tcg,thread=multi");
    let other = Qemu::start("cli-other", "-accel tcg,thread=multi");
    let ready = |qemu: &Qemu| qemu.vm(|vm| qemu.ask(vm)).pid;
    let (pid, _) = (ready(&qemu), ready(&other));
    let (vm, notes) = of_host(pid, &[]);
    assert_eq!(vm["vcpus"], json!([]));
    assert_eq!(notes[0]["evidence"], "its vCPUs are not known");

    let socket = qemu.socket.to_str().unwrap();
    let (vm, notes) = of_host(pid, &["--qmp", socket]);
    assert_eq!((vm["vcpus"].as_array().unwrap().len(), notes), (2, vec![]));
    assert!(vm["vcpus"].as_array().unwrap().iter().all(|v| v["source"] == "QMP"));
    // Now no command line names it.
    let moved = qemu.socket.with_extension("moved");
    fs::rename(&qemu.socket, &moved).unwrap();
    let (vm, _) = of_host(pid, &["--qmp", moved.to_str().unwrap()]);
    fs::remove_file(moved).unwrap();
    assert_eq!(vm["vcpus"].as_array().unwrap().len(), 2);
}

/// Whoever applies policies does not say which.
#[test]
fn policies_that_are_not_known_are_not_shown_as_none() {
    let dir = tempfile::tempdir().unwrap();
    let owner = UnixListener::bind(dir.path().join("control.sock")).unwrap();
    thread::spawn(move || {
        for client in owner.incoming() {
            let why = Refusal::from("too many clients\n  remedy: end some".to_owned());
            let mut text = serde_json::to_vec(&Response::Refused(why)).unwrap();
            text.push(b'\n');
            client.unwrap().write_all(&text).unwrap();
        }
    });
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        ProgramOutput::by(command.args(args).env("VCOOP_RUN_DIR", dir.path())).well()
    };
    let unknown = "which policies vcoop applies is not known: too many clients";
    let notes = run(&["vms", "--json"]).json()["notes"].clone();
    let note = json!({ "pid": null, "evidence": unknown, "remedy": "end some" });
    assert!(notes.as_array().unwrap().contains(&note), "{notes}");
    let top = run(&["top", "--once", "--every", "100ms"]);
    assert!(top.err.contains(unknown), "{top}");
}

#[test]
fn what_runs_out_is_no_missing_proc() {
    // A folder of the tree and a file in it are open at once.
    let (program, tree) = (env!("CARGO_BIN_EXE_vcoop"), Tree::new("qemu-tcg"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 4; exec \"$0\" vms --tree \"$1\"", program]).arg(tree.path(""));
    ProgramOutput::by(&mut command)
        .fails(3, &["Too many open files", "remedy: allow more open files"]);
}

#[test]
fn what_cannot_be_applied_is_refused_with_a_remedy() {
    let dir = std::env::temp_dir().join(format!("vcoop-attach-refused-{}", std::process::id()));
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        ProgramOutput::by(command.args(args).env("VCOOP_RUN_DIR", &dir))
    };
    run(&["attach", "no-such-vm", "--policy", "wake-boost"]).fails(2, &["no VM `no-such-vm`"]);
    // Other errors are reported whether there is a VM or not.
    let set = "policy.wake-boost.rum=1ms";
    for (args, said) in [
        (&["attach", "x", "--policy", "static", "--for", "5"][..], "--for"),
        (&["attach", "x", "--policy", "statc"], "there is no policy `statc`"),
        (&["attach", "x", "--policy", "wake-boost", "--set", set], "unknown key `rum`"),
        (&["compare", "x", "--policy", "vanilla,statc"], "there is no policy `statc`"),
        (&["compare", "x", "--each", "5"], "--each"),
        (&["observe", "x", "--scenario", "/no/such/x.toml"], "--scenario"),
    ] {
        run(args).fails(2, &[said]);
    }
    run(&["detach", "x"]).fails(1, &["no policy is applied to any VM"]);
    run(&["detach"]).fails(2, &[]);
    run(&["restore"]).well();
    assert!(!dir.exists());
}
