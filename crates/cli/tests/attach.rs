//! `vcoop attach` and what must hold whatever becomes of it, on a stock guest under QEMU.
//! `cargo test -p vcoop --test attach -- --ignored` runs it.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vcoop_policy::thread::Policy;
use vcoop_stock::{Options, StockVm};
use vcoop_testing::Skip;
use vcoop_threads::Attributes;

/// What the guest's threads have before anything is done to them: not the default, so that a restore to
/// the default is told from one to what was there.
const BEFORE: Policy = Policy::Normal { nice: 3, slice_ns: None };

/// A guest whose vCPU sleeps a hundred times a second and runs for long enough in between to outlast a
/// boost, and a folder for its owner.
struct Rig {
    vm: StockVm,
    tid: i32,
    dir: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Result<Self, Skip> {
        let options = Options { name: name.to_owned(), ..Options::default() };
        let vm = match StockVm::start(&options) {
            Err(why) if why.is_missing() => return Err(Skip::because(why)),
            vm => vm.unwrap(),
        };
        let tid = vm.vcpu_tids().unwrap()[0];
        Attributes::from_policy(&BEFORE).set(tid).unwrap();
        let dir = std::env::temp_dir().join(format!("vcoop-attach-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Ok(Self { vm, tid, dir })
    }

    fn vcoop(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        command.args(args).env("VCOOP_RUN_DIR", &self.dir).stdin(Stdio::null());
        command
    }

    fn attach(&self, more: &[&str]) -> Child {
        let mut command = self.vcoop(&["attach", self.vm.name(), "--json"]);
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// In the guest, in the background: wakes up, works for some milliseconds, sleeps.
    fn keep_busy(&self, seconds: u32) {
        let work = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; usleep 5000";
        let line =
            format!("(timeout {seconds} sh -c 'while :; do {work}; done' >/dev/null 2>&1 &)");
        self.vm.run(&line, Duration::from_secs(5)).unwrap();
    }

    fn has(&self) -> Policy {
        Attributes::get(self.tid).unwrap().to_policy()
    }

    fn is_boosted(&self) -> bool {
        self.has().is_rt()
    }

    fn wait(&self, what: &str, limit: Duration, is: impl Fn() -> bool) -> Duration {
        let began = Instant::now();
        while !is() {
            assert!(began.elapsed() < limit, "{what}: not within {limit:?}; {:?}", self.has());
            thread::sleep(Duration::from_micros(500));
        }
        began.elapsed()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn end(child: Child) -> (Value, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{status} {stderr}");
    (serde_json::from_slice(&stdout).unwrap(), stderr)
}

/// The keeper that an owner has started.
fn keeper_of(owner: u32) -> u32 {
    let tasks = format!("/proc/{owner}/task");
    let began = Instant::now();
    loop {
        // Of any of its threads: the second keeper is the engine's.
        let tasks = fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("children"));
        let list: Vec<String> = tasks.map(|f| fs::read_to_string(f).unwrap_or_default()).collect();
        let list = list.concat();
        let is_keeper = |pid: &&str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(6).any(|w| w == b"keeper")
        };
        if let Some(pid) = list.split_whitespace().find(is_keeper) {
            return pid.parse().unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(5), "no keeper: {list:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn told(outcome: Result<(), Skip>) {
    if let Err(skip) = outcome {
        skip.tell();
    }
}

#[test]
#[ignore = "needs QEMU"]
fn a_policy_is_applied_and_taken_back() {
    told(applied_and_taken_back());
}

fn applied_and_taken_back() -> Result<(), Skip> {
    let rig = Rig::new("applied")?;
    rig.keep_busy(120);
    // For a time.
    let child = rig.attach(&["--policy", "wake-boost", "--for", "2s"]);
    rig.wait("boosted", 5 * SECOND, || rig.is_boosted());
    rig.wait("run over", 5 * SECOND, || !rig.is_boosted());
    let (document, stderr) = end(child);
    assert_eq!((&document["schema"], &document["end"]), (&"vcoop.attach/1".into(), &"time".into()));
    let vcpu = &document["vcpus"][0];
    assert!(vcpu["boosts"].as_u64().unwrap() > 10, "{document}");
    let (boosted, all) =
        (vcpu["boosted_ns"].as_u64().unwrap(), document["for_ns"].as_u64().unwrap());
    // A quarter of the time is its budget, and 3 ms are its burst.
    assert!(boosted > 0 && boosted < all / 4 + 3_500_000, "{boosted} of {all}");
    assert!(stderr.contains("wake-boost on 1 vCPU of applied for 2.00 s"), "{stderr}");
    assert_eq!(rig.has(), BEFORE);

    // Until Ctrl-C; a second command sees it, and goes through the first.
    let first = rig.attach(&["--policy", "static"]);
    rig.wait("static", 5 * SECOND, || rig.is_boosted());
    let vms = rig.vcoop(&["vms", "--json"]).output().unwrap();
    let vms: Value = serde_json::from_slice(&vms.stdout).unwrap();
    let mine = vms["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == "applied").unwrap();
    assert_eq!((&mine["policy"], &mine["vcpus"][0]["boosted"]), (&"static".into(), &true.into()));
    assert_eq!(mine["vcpus"][0]["realtime_by"], "vcoop");
    let refused = rig.vcoop(&["restore"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "an owner is at work");
    let second = rig.attach(&["--policy", "static", "--set", "policy.static.means=\"nice -7\""]);
    let nice = Policy::Normal { nice: -7, slice_ns: None };
    rig.wait("the second's policy", 5 * SECOND, || rig.has() == nice);
    signal(second.id(), Signal::INT);
    assert_eq!(end(second).0["end"], "interrupted");
    rig.wait("taken back", SECOND, || rig.has() == BEFORE);
    // Its own policy was replaced, and then nothing was in force: it has nothing left to do.
    assert_eq!(end(first).0["end"], "detached");

    // Until somebody detaches it.
    let child = rig.attach(&["--policy", "static"]);
    rig.wait("static", 5 * SECOND, || rig.is_boosted());
    let detached = rig.vcoop(&["detach", "applied"]).output().unwrap();
    assert!(detached.status.success(), "{detached:?}");
    assert_eq!(rig.has(), BEFORE);
    assert_eq!(end(child).0["end"], "detached");

    // Nobody's journal, socket or process is left.
    let left: Vec<_> = fs::read_dir(&rig.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
    Ok(())
}

#[test]
#[ignore = "needs QEMU"]
fn what_others_have_given_a_vcpu_stays() {
    told(others_stay());
}

fn others_stay() -> Result<(), Skip> {
    let rig = Rig::new("others")?;
    rig.keep_busy(120);
    // Somebody has made it real-time before.
    let theirs = Policy::Fifo(5);
    Attributes::from_policy(&theirs).set(rig.tid).unwrap();
    let child = rig.attach(&["--policy", "wake-boost", "--for", "1s"]);
    let (document, stderr) = end(child);
    let why = "somebody else made it SCHED_FIFO 5";
    assert_eq!(document["vcpus"][0]["left_alone"], why);
    assert!(stderr.contains(why), "{stderr}");
    assert_eq!(rig.has(), theirs);

    // Somebody does so meanwhile.
    Attributes::from_policy(&BEFORE).set(rig.tid).unwrap();
    let child = rig.attach(&["--policy", "static", "--set", "policy.static.means=\"nice -7\""]);
    rig.wait("static", 5 * SECOND, || rig.has() == Policy::Normal { nice: -7, slice_ns: None });
    Attributes::from_policy(&theirs).set(rig.tid).unwrap();
    thread::sleep(Duration::from_millis(1500));
    signal(child.id(), Signal::TERM);
    let (document, _) = end(child);
    assert_eq!(document["vcpus"][0]["left_alone"], why);
    assert_eq!(rig.has(), theirs);

    // Another nice value becomes what the thread gets back.
    Attributes::from_policy(&BEFORE).set(rig.tid).unwrap();
    let child = rig.attach(&["--policy", "wake-boost", "--for", "3s"]);
    rig.wait("boosted", 5 * SECOND, || rig.is_boosted());
    let other = Policy::Normal { nice: 9, slice_ns: None };
    Attributes::from_policy(&other).set(rig.tid).unwrap();
    thread::sleep(Duration::from_millis(1500));
    rig.wait("boosted again", 2 * SECOND, || rig.is_boosted());
    end(child);
    assert_eq!(rig.has(), other);
    Ok(())
}

#[test]
#[ignore = "needs QEMU"]
fn nothing_is_left_boosted_when_owners_are_killed() {
    told(owners_killed());
}

fn owners_killed() -> Result<(), Skip> {
    let rig = Rig::new("killed")?;
    rig.keep_busy(300);
    let mut longest = Duration::ZERO;
    for round in 0..50_u64 {
        let mut child =
            rig.attach(&["--policy", if round % 5 == 0 { "static" } else { "wake-boost" }]);
        // At any moment: also before anything was done.
        thread::sleep(Duration::from_micros(1_000 + round * 7_919 % 150_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = Instant::now();
        // It is over when nobody holds the lock: then nobody is left who could boost.
        rig.wait("rests for good", 2 * SECOND, || !rig.is_boosted() && is_free(&rig.dir));
        longest = longest.max(killed.elapsed());
        assert_eq!(rig.has(), BEFORE, "round {round}");
    }
    println!("killed 50 owners; the longest way back took {longest:?}");

    // Owner and keeper at once: the next start, or `restore`, gives everything back.
    for by_restore in [true, false] {
        let mut child = rig.attach(&["--policy", "static"]);
        rig.wait("static", 5 * SECOND, || rig.is_boosted());
        let keeper = keeper_of(child.id());
        signal(keeper, Signal::STOP);
        child.kill().unwrap();
        child.wait().unwrap();
        signal(keeper, Signal::KILL);
        rig.wait("nobody owns it", 2 * SECOND, || is_free(&rig.dir));
        assert!(rig.is_boosted(), "nobody was left to take it back");
        if by_restore {
            let restored = rig.vcoop(&["restore"]).output().unwrap();
            let said = String::from_utf8(restored.stdout).unwrap();
            assert!(restored.status.success() && said.contains(&rig.tid.to_string()), "{said}");
            let again = rig.vcoop(&["restore"]).output().unwrap();
            assert_eq!(again.stdout, b"nothing was left changed\n");
        } else {
            let (_, stderr) = end(rig.attach(&["--policy", "wake-boost", "--for", "200ms"]));
            assert!(stderr.contains("an earlier vcoop had left changed"), "{stderr}");
        }
        assert_eq!(rig.has(), BEFORE);
    }

    // Somebody kills the keeper only: there is another one, which does its duty.
    let mut child = rig.attach(&["--policy", "static"]);
    rig.wait("static", 5 * SECOND, || rig.is_boosted());
    let first = keeper_of(child.id());
    signal(first, Signal::KILL);
    let began = Instant::now();
    while keeper_of(child.id()) == first {
        assert!(began.elapsed() < 2 * SECOND);
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    rig.wait("taken back by the second", 2 * SECOND, || rig.has() == BEFORE && is_free(&rig.dir));
    Ok(())
}

/// Whether nobody owns the threads.
fn is_free(dir: &Path) -> bool {
    let Ok(lock) = fs::File::open(dir.join("lock")) else { return true };
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok()
}

#[test]
#[ignore = "needs QEMU"]
fn a_stalled_owner_boosts_nobody_for_long() {
    told(stalled());
}

fn stalled() -> Result<(), Skip> {
    let rig = Rig::new("stalled")?;
    rig.keep_busy(120);
    let mut longest = Duration::ZERO;
    for round in 0..10_u64 {
        let child = rig.attach(&["--policy", "wake-boost"]);
        rig.wait("boosted", 5 * SECOND, || rig.is_boosted());
        thread::sleep(Duration::from_micros(round * 3_137 % 20_000));
        signal(child.id(), Signal::STOP);
        longest = longest.max(rig.wait("taken back", 2 * SECOND, || !rig.is_boosted()));
        thread::sleep(Duration::from_millis(100));
        assert_eq!(rig.has(), BEFORE, "round {round}");
        signal(child.id(), Signal::CONT);
        rig.wait("goes on", 5 * SECOND, || rig.is_boosted());
        signal(child.id(), Signal::INT);
        end(child);
        assert_eq!(rig.has(), BEFORE);
    }
    println!("stalled 10 owners; the longest boost after it took {longest:?}");
    Ok(())
}

#[test]
#[ignore = "needs QEMU"]
fn a_vm_that_ends_ends_its_policy() {
    told(vm_ends());
}

fn vm_ends() -> Result<(), Skip> {
    let rig = Rig::new("ends")?;
    let child = rig.attach(&["--policy", "wake-boost"]);
    rig.wait("boosted", 5 * SECOND, || rig.is_boosted());
    signal(rig.vm.pid(), Signal::KILL);
    let (document, stderr) = end(child);
    assert_eq!(document["end"], "ended", "{stderr}");
    Ok(())
}

#[test]
fn what_cannot_be_applied_is_refused_with_a_remedy() {
    let dir = std::env::temp_dir().join(format!("vcoop-attach-refused-{}", std::process::id()));
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
        let output = command.args(args).env("VCOOP_RUN_DIR", &dir).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, why) = run(&["attach", "no-such-vm", "--policy", "wake-boost"]);
    assert!(code == Some(2) && why.contains("no VM `no-such-vm`"), "{why}");
    let (code, why) = run(&["attach", "x", "--policy", "static", "--for", "5"]);
    assert!(code == Some(2) && why.contains("--for"), "{why}");
    let (code, why) = run(&["detach", "x"]);
    assert!(code == Some(1) && why.contains("no policy is applied to any VM"), "{why}");
    assert_eq!(run(&["detach"]).0, Some(2));
    assert_eq!(run(&["restore"]).0, Some(0));
    assert!(!dir.exists());
}
