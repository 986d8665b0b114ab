//! `vcoop guest` on trees of a guest's files.

use std::fs;
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use vcoop_testing::{ProgramOutput, Skip, Tree as Files, found, full_pipe, send, until};

/// A guest with four CPUs. One of its slices has a cpuset already.
struct Tree(Files);

impl Deref for Tree {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.0
    }
}

impl Tree {
    fn new() -> Self {
        let tree = Self(Files::default());
        tree.put("proc/sys/kernel/osrelease", "6.12.1");
        tree.put("sys/devices/system/cpu/online", "0-3");
        tree.put("sys/bus/cpu/uevent", "");
        tree.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu");
        tree.put("sys/fs/cgroup/cgroup.subtree_control", "cpuset");
        for cpu in 1..4 {
            tree.put(&format!("sys/devices/system/cpu/cpu{cpu}/online"), "1");
        }
        for (name, cpus, partition) in [
            ("rt.slice", "3", "root"),
            ("system.slice", "", "member"),
            ("user.slice", "0-2", "member"),
        ] {
            tree.put(&format!("sys/fs/cgroup/{name}/cpuset.cpus"), cpus);
            tree.put(&format!("sys/fs/cgroup/{name}/cpuset.cpus.partition"), partition);
        }
        tree.stat(0);
        tree
    }

    /// After so many looks: each CPU ran for two ticks of each, and waited for three. The file is
    /// replaced, as a kernel's is whole.
    fn stat(&self, looks: u64) {
        let (busy, steal) = (1000 + 2 * looks, 100 + 3 * looks);
        let lines = (0..4).map(|cpu| format!("cpu{cpu} {busy} 0 0 0 0 0 0 {steal} 0 0\n"));
        self.put("proc/stat.new", lines.collect::<String>().trim_end());
        fs::rename(self.path("proc/stat.new"), self.path("proc/stat")).unwrap();
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        command.args(["guest", "--tree"]).arg(self.root()).args(args.split_ascii_whitespace());
        command.env("VCOOP_RUN_DIR", self.path("run")).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &str) -> ProgramOutput {
        ProgramOutput::by(&mut self.command(args))
    }

    /// A guest that has folded.
    fn folded(&self, args: &str) -> Running {
        self.folded_into(Stdio::piped(), args)
    }

    /// A guest that has folded, and prints into this.
    fn folded_into(&self, out: impl Into<Stdio>, args: &str) -> Running {
        self.folded_by(self.command(args).stdout(out))
    }

    fn folded_by(&self, command: &mut Command) -> Running {
        let running = Running(Some(command.stderr(Stdio::piped()).spawn().unwrap()));
        let give_up = Instant::now() + Duration::from_secs(20);
        for looks in 1.. {
            if self.cpus_of("system.slice") != "\n" {
                return running;
            }
            assert!(Instant::now() < give_up);
            self.stat(looks);
            thread::sleep(Duration::from_millis(50));
        }
        unreachable!()
    }

    fn cpus_of(&self, name: &str) -> String {
        self.get(&format!("sys/fs/cgroup/{name}/cpuset.cpus"))
    }

    /// The slices that were changed have what they had before.
    fn assert_given_back(&self) {
        let now = ["system.slice", "user.slice"].map(|name| self.cpus_of(name));
        assert_eq!(now, ["\n", "0-2\n"]);
    }
}

struct Running(Option<Child>);

impl Running {
    fn end(mut self, signal: Signal) -> ProgramOutput {
        let child = self.0.as_mut().unwrap();
        send(child.id(), signal);
        until("it ends", || child.try_wait().unwrap().is_some());
        self.0.take().unwrap().wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_dry_run_says_what_it_would_change_and_changes_nothing() {
    let tree = Tree::new();
    let said = tree.run("--dry-run --for 300ms --governor step").well();
    let expected = "\
step on 4 CPUs (0-3) in 4 cores, a look every 1.00 s; since boot 9.1 % of the time they wanted was stolen
at its narrowest, 1 of the CPUs (0), it would change
  system.slice/cpuset.cpus: empty -> 0
  user.slice/cpuset.cpus: 0-2 -> 0
  rt.slice/cpuset.cpus is left alone: it is a partition with CPUs of its own
";
    assert_eq!(said.out, expected);
    assert!(said.err.contains("tasks of the root cgroup"), "{said}");
    assert_eq!((tree.cpus_of("system.slice"), tree.path("run").exists()), ("\n".into(), false));

    let said = tree.run("--dry-run --for 300ms --by hotplug --set governor_floor=2 -q");
    let expected = "\
proportional on 4 CPUs (0-3) in 4 cores, a look every 200 ms; since boot 9.1 % of the time they wanted was stolen
at its narrowest, 2 of the CPUs (0-1), it would change
  cpu2/online: 1 -> 0
  cpu3/online: 1 -> 0
";
    assert_eq!((&*said.out, &*said.err), (expected, ""));
}

#[test]
fn a_signal_gives_everything_back() {
    for signal in [Signal::TERM, Signal::INT] {
        let tree = Tree::new();
        let running = tree.folded("--governor proportional --set governor_interval=100ms");
        assert!(tree.path("run/guest.journal").exists());
        tree.run("--for 1s").fails(1, &["already runs"]);
        let said = running.end(signal).well();
        assert!(said.out.starts_with("steal ") && said.out.contains(": 4 -> "), "{said}");
        assert!(said.err.contains("every file has what it had before"), "{said}");
        tree.assert_given_back();
        assert!(!tree.path("run/guest.journal").exists());
    }
}

#[test]
fn a_terminal_that_goes_does_not_end_what_is_to_outlive_it() {
    let tree = Tree::new();
    let guest = tree.command("--set governor_interval=100ms");
    // As nohup(1) starts it.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(guest.get_program());
    command.args(guest.get_args()).env("VCOOP_RUN_DIR", tree.path("run")).stdin(Stdio::null());
    let running = tree.folded_by(command.stdout(Stdio::piped()));
    let pid = running.0.as_ref().unwrap().id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & 1, 1, "{status}");
    assert!(running.end(Signal::TERM).well().err.contains("every file has what it had before"));
    tree.assert_given_back();
}

#[test]
fn signals_that_its_parent_had_blocked_end_it() {
    let blocks = Command::new("env").args(["--block-signal=TERM", "true"]).output();
    if !blocks.is_ok_and(|of| of.status.success()) {
        return Skip::because("env(1) blocks no signals").tell();
    }
    let tree = Tree::new();
    let guest = tree.command("--set governor_interval=100ms");
    let mut command = Command::new("env");
    command.args(["--block-signal=TERM", "--"]).arg(guest.get_program()).args(guest.get_args());
    command.env("VCOOP_RUN_DIR", tree.path("run")).stdin(Stdio::null()).stdout(Stdio::piped());
    let running = tree.folded_by(&mut command);
    assert!(running.end(Signal::TERM).well().err.contains("every file has what it had before"));
    tree.assert_given_back();
}

#[test]
fn a_reader_that_does_not_read_stops_nothing() {
    let tree = Tree::new();
    let (_nobody_reads, out) = full_pipe();
    let running = tree.folded_into(out, "--json --set governor_interval=100ms");
    let said = running.end(Signal::TERM).well();
    assert!(said.err.contains("every file has what it had before"), "{said}");
    tree.assert_given_back();
}

#[test]
fn what_a_killed_one_left_is_restored_once() {
    let tree = Tree::new();
    tree.folded("--set governor_interval=100ms").end(Signal::KILL);
    assert_ne!(tree.cpus_of("system.slice"), "\n");
    let said = tree.run("--restore").well();
    assert!(said.out.starts_with("gave back what an earlier vcoop had left changed: "));
    tree.assert_given_back();
    assert_eq!(tree.run("--restore").out, "nothing was left changed\n");
    assert_eq!(tree.run("--restore -q").out, "");
}

#[test]
fn the_next_start_restores_even_where_it_is_refused() {
    let tree = Tree::new();
    tree.folded("--set governor_interval=100ms").end(Signal::KILL);
    tree.run("--for 100ms --set steal_hihg=1%").fails(2, &["gave back what an earlier"]);
    tree.assert_given_back();
}

fn page(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn decisions_are_objects_and_numbers_a_page() {
    let tree = Tree::new();
    let socket = tree.path("metrics");
    let args = format!("--json --set governor_interval=100ms --metrics {}", socket.display());
    let running = tree.folded(&args);
    // It counts what it has done, and not what it is about to do.
    let page = found("a decision", || {
        Some(page(&socket)).filter(|page| !page.contains("\nvcoop_guest_decisions_total 0\n"))
    });
    let has = |line: &str| page.lines().any(|l| l == line);
    assert!(has("vcoop_guest_cpus 4.0") && has("vcoop_guest_refusals_total 0"), "{page}");
    assert!(!has("vcoop_guest_decisions_total 0") && page.ends_with("# EOF\n"), "{page}");
    let said = running.end(Signal::TERM);
    assert!(!socket.exists(), "nobody listens");
    let lines: Vec<Value> =
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = &lines[0];
    assert_eq!((&first["schema"], &first["width_before"]), (&"vcoop.guest/1".into(), &4.into()));
    assert_eq!(first["why"], "steal is above 5 %");
    assert!(
        first["steal_pct"].as_f64().unwrap() > 40.0 && first["width"].as_u64() < Some(4),
        "{first}"
    );
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    let tree = Tree::new();
    for (args, code, says) in [
        ("--dry-run --set steal_hihg=1%", 2, "one of governor_interval, steal_high"),
        ("--dry-run --set governor_interval=1ms", 2, "cannot look every 1ms"),
        ("--dry-run --for 5", 2, "--for"),
        ("--governor entitlement", 2, "possible values: step, proportional, host-hint"),
        ("--governor host-hint", 3, "vcoop's driver, which hears the host, is not loaded"),
    ] {
        tree.run(args).fails(code, &[says]);
    }
    fs::remove_file(tree.path("sys/fs/cgroup/cgroup.controllers")).unwrap();
    tree.run("--dry-run").fails(3, &["remedy: boot with cgroup v2"]);
}

/// Where CPUs are isolated, all threads lack them: on a kernel that forgets affinities that is not what to say.
#[test]
fn isolated_cpus_are_refused_before_affinities() {
    let tree = Tree::new();
    tree.put("proc/sys/kernel/osrelease", "6.1.0-56-cloud-amd64");
    tree.put("sys/devices/system/cpu/isolated", "2-3");
    let status = "Name:\tsshd\nPPid:\t1\nCpus_allowed_list:\t0-1";
    tree.put("proc/10/task/10/status", status);
    tree.put("proc/10/task/10/cgroup", "0::/system.slice/ssh.service");
    let said = tree.run("--for 100ms");
    said.fails(3, &["CPUs 2-3 are isolated"]);
    assert!(!said.err.contains("affinities"), "{said}");
}
