//! A live run changes priorities, holds devices open and starts threads. However it ends, none of that is
//! left. Real runs of the real program as a child; without KVM, every test is skipped.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use vcoop_testing::{Outcome, Skip, found, need_kvm, scenario, test};

const SCENARIO: &str = scenario!(
    "duration = '30s'\nwarmup = '100ms'\nrepeats = 2",
    r#"
[[load]]
name = "hog"
kind = "hog"
cpus = "0"
[[vm]]
name = "left"
vcpus = 1
pin = "0"
[[vm.task]]
name = "cyclictest"
kind = "cyclictest"
interval = "1ms"
policy = "fifo 80"
[[vm.task]]
name = "rogue"
kind = "rogue"
mode = "forever"
[compare]
policy = ["dynamic"]
"#
);

const SECOND: Duration = Duration::from_secs(1);

/// Longer than the warm-up.
const SHORT: Duration = Duration::from_millis(200);

/// A run in a folder and a process group of its own.
struct Run {
    child: Child,
    out: JoinHandle<String>,
    err: JoinHandle<String>,
    dir: PathBuf,
}

struct Ended {
    status: ExitStatus,
    out: String,
    err: String,
}

fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).map(|_| text).unwrap_or_default()
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Name and real-time priority of each thread of a process (field 40 of `stat`: proc(5)).
fn threads(pid: u32) -> Vec<(String, u32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stat = tasks.map(|t| read(&t.path().join("stat").to_string_lossy()));
    let thread = stat.filter_map(|line| {
        let (name, rest) = line.split_once('(')?.1.rsplit_once(')')?;
        let priority = rest.split_whitespace().nth(37)?.parse().ok()?;
        Some((name.to_owned(), priority))
    });
    thread.collect()
}

/// Processes of a group.
fn group(pgid: u32) -> Vec<String> {
    let of = |entry: fs::DirEntry| {
        let line = read(&entry.path().join("stat").to_string_lossy());
        let (_, rest) = line.rsplit_once(')')?;
        // State, parent, group.
        (rest.split_whitespace().nth(2)? == pgid.to_string()).then_some(line)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
}

fn holds(pid: u32, device: &str) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|to| to.as_os_str() == device)
}

/// Starts a run and waits until its guest runs.
fn start(name: &str, args: &[&str]) -> Result<Run, Skip> {
    need_kvm(vcoop_lab::available())?;
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("left-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let scenario = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("left-{name}.toml"));
    fs::write(&scenario, SCENARIO).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vcoop"))
        .args(["run", scenario.to_str().unwrap(), "--backend", "kvm", "--json"])
        .args(args)
        .current_dir(&dir)
        .env("TMPDIR", &dir)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (out, err) = (drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap()));
    let pid = child.id();
    let runs = found("a vCPU thread", || {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(Err(status));
        }
        threads(pid).iter().any(|(name, _)| name.starts_with("vcpu0:left")).then_some(Ok(()))
    });
    if let Err(status) = runs {
        let said = err.join().unwrap();
        assert_eq!(status.code(), Some(3), "{said}");
        return Err(Skip::because(said));
    }
    Ok(Run { child, out, err, dir })
}

impl Run {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sees that there is something to leave behind: otherwise the checks after its end would say nothing.
    fn is_at_work(&self) {
        let pid = self.pid();
        found("a boosted or real-time thread", || {
            threads(pid).iter().any(|(_, priority)| *priority > 0).then_some(())
        });
        if fs::metadata("/dev/cpu_dma_latency").is_ok() {
            assert!(holds(pid, "/dev/cpu_dma_latency"), "it keeps CPUs from deep sleep");
        }
    }

    /// The same, and lets it measure.
    fn measures(&self, time: Duration) {
        self.is_at_work();
        thread::sleep(time);
    }

    fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for its end and looks for what it left.
    fn ends(self) -> Ended {
        let pid = self.pid();
        let ended = self.ends_at_once();
        for instances in ["/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"] {
            let ours = |name: &str| name.starts_with("vcoop-") && name.contains(&pid.to_string());
            let names = fs::read_dir(instances).into_iter().flatten().flatten();
            let left = names.map(|e| e.file_name().to_string_lossy().into_owned());
            let left: Vec<_> = left.filter(|name| ours(name)).collect();
            assert!(left.is_empty(), "{left:?} is left");
        }
        ended
    }

    /// The same for an end that leaves no time to remove what the kernel keeps by name: the next run does.
    fn ends_at_once(mut self) -> Ended {
        let pid = self.pid();
        let child = &mut self.child;
        let status = found("the end", || child.try_wait().unwrap());
        let (out, err) = (self.out.join().unwrap(), self.err.join().unwrap());
        // With the process go its threads and what they held; a process that it left would not.
        assert_eq!(group(pid), Vec::<String>::new(), "processes are left");
        assert_eq!(threads(pid), [], "threads are left");
        assert!(!holds(pid, "/dev/cpu_dma_latency"));
        let files: Vec<_> = fs::read_dir(&self.dir).unwrap().flatten().collect();
        assert!(files.is_empty(), "files are left: {files:?}");
        Ended { status, out, err }
    }
}

/// What was measured until the end.
fn document(out: &str) -> Value {
    let json: Value = serde_json::from_str(out).unwrap_or_else(|e| panic!("{e}: {out}"));
    assert_eq!(json["interrupted"], true);
    let series = json["series"].as_array().unwrap();
    let guest = series.iter().find(|s| s["probe"] == "left.cyclictest").unwrap();
    assert!(guest["count"].as_u64().unwrap() > 20, "{guest}");
    json
}

test!("kvm", killed, || -> Outcome {
    let run = start("kill", &[])?;
    run.measures(SHORT);
    run.signal("-KILL");
    assert_eq!(run.ends_at_once().status.signal(), Some(9));
    Ok(())
});

test!("kvm", interrupted_or_asked_to_end, || -> Outcome {
    for signal in ["-INT", "-TERM"] {
        let run = start(&signal[1..], &[])?;
        run.measures(SECOND);
        run.signal(signal);
        let ended = run.ends();
        assert_eq!(ended.status.code(), Some(130), "{signal}: {}", ended.err);
        document(&ended.out);
    }
    Ok(())
});

test!("kvm", interrupted_twice, || -> Outcome {
    let run = start("twice", &["--policy", "static"])?;
    run.measures(SHORT);
    run.signal("-INT");
    run.signal("-INT");
    assert_eq!(run.ends_at_once().status.code(), Some(130));
    Ok(())
});

test!("kvm", the_guest_faults, || -> Outcome {
    let sets = ["vm.left.task.rogue.mode=triple-fault", "vm.left.task.rogue.period=2s"];
    let run = start("fault", &["--set", sets[0], "--set", sets[1]])?;
    run.is_at_work();
    let ended = run.ends();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(ended.err.contains("VM left, vCPU 0: triple fault"), "{}", ended.err);
    document(&ended.out);
    Ok(())
});

test!("kvm", it_comes_to_its_end, || -> Outcome {
    let run = start("end", &["--duration", "1500ms", "--repeats", "1"])?;
    run.is_at_work();
    let ended = run.ends();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    Ok(())
});
