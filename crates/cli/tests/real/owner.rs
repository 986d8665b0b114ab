//! What must hold of policies on real VMs, whatever becomes of who applied them.

use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use vcoop_daemon::{Client, Request, Response};
use vcoop_policy::thread::Policy;
use vcoop_stock::{Options, StockVm, dies_with_caller};
use vcoop_testing::{
    Outcome, ProgramOutput, Reused, Skip, Terminal, found, full_pipe, long, send, test, until,
};
use vcoop_threads::{Attributes, run_time};

use crate::vcoop::{Qemu, VCOOP, guest, need_qemu, needs_tracefs};

/// What the guest's threads have before anything is done to them: not the default, so that a restore to
/// the default is told from one to what was there.
const BEFORE: Policy = Policy::Normal { nice: 3, slice_ns: None };

/// The guest of the tests here while none of them has it.
static OWNED: Reused<StockVm> = Reused::new();

/// Its name, which no VM of another run on this host has.
fn name_of_vm() -> String {
    format!("applied{}", std::process::id())
}

/// A guest whose vCPU sleeps a hundred times a second and runs for long enough in between to outlast a
/// boost, and a folder for its owner.
struct Rig {
    /// None only once it is dropped.
    vm: Option<StockVm>,
    tid: i32,
    dir: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Result<Self, Skip> {
        let options = Options { name: name_of_vm(), ..Options::default() };
        needs_tracefs()?;
        let vm = OWNED.take_or(|| guest(&options))?;
        let tid = vm.vcpu_tids().unwrap()[0];
        Attributes::from_policy(&BEFORE).set(tid).unwrap();
        let dir = std::env::temp_dir().join(format!("vcoop-attach-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Ok(Self { vm: Some(vm), tid, dir })
    }

    fn name(&self) -> &str {
        self.vm().name()
    }

    fn vm(&self) -> &StockVm {
        self.vm.as_ref().unwrap()
    }

    fn vcoop(&self, args: &[&str]) -> Command {
        let mut command = dies_with_caller("KILL", VCOOP);
        command.args(args).env("VCOOP_RUN_DIR", &self.dir);
        command
    }

    fn run(&self, args: &[&str]) -> ProgramOutput {
        ProgramOutput::by(&mut self.vcoop(args))
    }

    /// It ends with the thread of its test, whatever becomes of that.
    fn attach(&self, more: &[&str]) -> Child {
        let mut command = self.vcoop(&["attach", self.name(), "--json"]);
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// What `vcoop vms` says of it.
    fn shown(&self) -> Value {
        let vms = self.run(&["vms", "--json"]).json();
        let mine = vms["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == self.name());
        mine.unwrap().clone()
    }

    /// In the guest, in the background: wakes up, works for some milliseconds, sleeps.
    fn keep_busy(&self, seconds: u32) {
        let work = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; usleep 5000";
        let line =
            format!("(timeout {seconds} sh -c 'while :; do {work}; done' >/dev/null 2>&1 &)");
        self.vm().run(&line, PATIENCE).unwrap();
    }

    fn has(&self) -> Policy {
        Attributes::get(self.tid).unwrap().to_policy()
    }

    fn is_boosted(&self) -> bool {
        self.has().is_rt()
    }

    /// Whether the owner has found that another process sets the vCPU's attributes.
    fn is_left_alone(&self) -> bool {
        let mut client = Client::connect(&self.dir).unwrap().expect("there is an owner");
        match client.ask(&Request::Status { vm: None }).unwrap() {
            Response::Status(status) => status.vms.iter().any(|vm| vm.driven().count() == 0),
            other => panic!("{other:?}"),
        }
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
        // Its load ends. A VM that has ended does not answer.
        if let Some(vm) = self.vm.take()
            && vm.end_loops().is_ok()
        {
            OWNED.keep(vm);
        }
    }
}

fn end(child: Child) -> (Value, String) {
    let said = ProgramOutput::from(child.wait_with_output().unwrap()).well();
    (said.json(), said.err)
}

/// The keeper that an owner has started.
fn keeper_of(owner: u32) -> u32 {
    let tasks = format!("/proc/{owner}/task");
    found("a keeper", || {
        // Of any of its threads: the second keeper is the engine's.
        let tasks = fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("children"));
        let list: String = tasks.map(|f| fs::read_to_string(f).unwrap_or_default()).collect();
        let is_keeper = |pid: &&str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(6).any(|w| w == b"keeper")
        };
        list.split_whitespace().find(is_keeper).map(|pid| pid.parse().unwrap())
    })
}

const SECOND: Duration = Duration::from_secs(1);

/// Limit for events without a promised time.
const PATIENCE: Duration = Duration::from_secs(30);

test!("qemu", a_policy_is_applied_and_taken_back, || -> Outcome {
    let rig = Rig::new("applied")?;
    rig.keep_busy(120);
    is_applied_for_a_time(&rig);
    is_refused_with_a_reason(&rig);
    is_kept_by_who_applied_it(&rig);
    is_detached(&rig);
    is_taken_back_though_nobody_reads(&rig);
    is_applied_by_keys(&rig);
    // No journal, socket or process is left.
    rig.wait("only the lock is left", PATIENCE, || {
        let left = fs::read_dir(&rig.dir).unwrap().map(|entry| entry.unwrap().file_name());
        left.eq(["lock"])
    });
    Ok(())
});

fn is_applied_for_a_time(rig: &Rig) {
    let child = rig.attach(&["--policy", "wake-boost", "--for", "2s"]);
    rig.wait("boosted", PATIENCE, || rig.is_boosted());
    rig.wait("run over", PATIENCE, || !rig.is_boosted());
    let (document, stderr) = end(child);
    assert_eq!((&document["schema"], &document["end"]), (&"vcoop.attach/1".into(), &"time".into()));
    let vcpu = &document["vcpus"][0];
    assert!(vcpu["boosts"].as_u64().unwrap() > 10, "{document}");
    let (boosted, all) =
        (vcpu["boosted_ns"].as_u64().unwrap(), document["for_ns"].as_u64().unwrap());
    // A quarter of the time is its budget, and 3 ms are its burst.
    assert!(boosted > 0 && boosted < all / 4 + 3_500_000, "{boosted} of {all}");
    let said = format!("wake-boost on 1 vCPU of {} for 2.00 s", rig.name());
    assert!(stderr.contains(&said), "{stderr}");
    assert_eq!(rig.has(), BEFORE);
}

fn is_refused_with_a_reason(rig: &Rig) {
    // A policy that changes nothing is refused.
    let refused = rig.run(&["attach", rig.name(), "--policy", "vanilla"]);
    refused.fails(2, &[&format!("vcoop detach {}", rig.name())]);

    // A facility that this host lacks has an exit code of its own, and so has an action that this user may not do.
    let blind =
        "umount -a -t tracefs,debugfs && exec \"$0\" attach \"$1\" --policy wake-boost --for 1s";
    let mut blind_vcoop = Command::new("unshare");
    blind_vcoop.args(["-m", "sh", "-c", blind, VCOOP, rig.name()]).env("VCOOP_RUN_DIR", &rig.dir);
    let said = ProgramOutput::by(&mut blind_vcoop);
    said.fails(3, &["remedy: mount -t tracefs"]);
    // That is the fault of no thread, also not of the one that delivers the timers of an emulated VM.
    assert!(!said.err.contains("thread") && !said.err.contains("vCPU"), "{said}");
    // Also where no vCPU sleeps, and the first boost is far.
    let busy = "(timeout 3 sh -c 'while :; do :; done' >/dev/null 2>&1 &)";
    rig.vm().run(busy, PATIENCE).unwrap();
    // A slice can be set without the capability, and not be given back.
    let slice = &["--set", "policy.static.means=slice 200us"][..];
    for (policy, set) in [("static", &[][..]), ("wake-boost", &[]), ("static", slice)] {
        let mut meek = Command::new("setpriv");
        meek.args(["--bounding-set=-sys_nice", "--inh-caps=-sys_nice", VCOOP]);
        meek.args(["attach", rig.name(), "--policy", policy, "--for", "1s"]).args(set);
        let lacking = ProgramOutput::by(meek.env("VCOOP_RUN_DIR", &rig.dir));
        lacking.fails(3, &["vCPU 0: sched_setattr", "remedy: run with CAP_SYS_NICE"]);
        assert_eq!(rig.has(), BEFORE);
    }
}

/// Until Ctrl-C; a second command sees it, and goes through the first.
fn is_kept_by_who_applied_it(rig: &Rig) {
    let first = rig.attach(&["--policy", "static"]);
    rig.wait("static", PATIENCE, || rig.is_boosted());
    let mine = rig.shown();
    assert_eq!((&mine["policy"], &mine["vcpus"][0]["boosted"]), (&"static".into(), &true.into()));
    assert_eq!(mine["vcpus"][0]["realtime_by"], "vcoop");
    // An owner is at work.
    rig.run(&["restore"]).fails(1, &[]);
    // The first keeps it.
    let nicer = ["--policy", "static", "--set", "policy.static.means=\"nice -7\""];
    let refused = ProgramOutput::from(rig.attach(&nicer).wait_with_output().unwrap());
    let holder = format!("process {} applies static to it", first.id());
    refused.fails(1, &[&holder, &format!("vcoop detach {}", rig.name())]);
    assert!(rig.is_boosted());
    send(first.id(), Signal::INT);
    assert_eq!(end(first).0["end"], "interrupted");
    assert_eq!(rig.has(), BEFORE);
}

fn is_detached(rig: &Rig) {
    let child = rig.attach(&["--policy", "static"]);
    rig.wait("static", PATIENCE, || rig.is_boosted());
    rig.run(&["detach", rig.name()]).well();
    assert_eq!(rig.has(), BEFORE);
    assert_eq!(end(child).0["end"], "detached");
}

fn is_taken_back_though_nobody_reads(rig: &Rig) {
    let (_nobody_reads, log) = full_pipe();
    let mut command = rig.vcoop(&["attach", rig.name(), "--policy", "static", "--for", "500ms"]);
    let mut child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    rig.wait("static", PATIENCE, || rig.is_boosted());
    rig.wait("taken back", PATIENCE, || rig.has() == BEFORE);
    assert!(child.wait().unwrap().success());
}

fn is_applied_by_keys(rig: &Rig) {
    let Ok(terminal) = Terminal::new("top").inspect_err(Skip::tell) else { return };
    let dir = rig.dir.display();
    let told = |what: &str| format!("{}: {what}", rig.name());
    terminal.types(&format!("VCOOP_RUN_DIR={dir} {VCOOP} top --every 200ms; echo ENDED $?"));
    terminal.waits_for("d: detach");
    terminal.chooses(rig.name());
    terminal.presses("s");
    terminal.waits_for(&told("static"));
    assert!(rig.is_boosted());
    terminal.presses("d");
    terminal.waits_for(&told("detached"));
    assert_eq!(rig.has(), BEFORE);
    terminal.presses("w");
    terminal.waits_for(&told("wake-boost"));
    rig.wait("boosted", PATIENCE, || rig.is_boosted());
    terminal.presses("q");
    terminal.waits_for("ENDED 0");
    assert_eq!((rig.has(), terminal.modes().as_str()), (BEFORE, "0 1"));

    // By the end of the terminal.
    terminal.types(&format!("VCOOP_RUN_DIR={dir} {VCOOP} top --every 200ms"));
    terminal.waits_for("d: detach");
    terminal.chooses(rig.name());
    terminal.presses("s");
    terminal.waits_for(&told("static"));
    drop(terminal);
    rig.wait("taken back", PATIENCE, || rig.has() == BEFORE);
}

/// What this host spends on waiting for CPUs, as its kernel says.
fn pressure() -> String {
    fs::read_to_string("/proc/pressure/cpu").unwrap_or_default()
}

/// CPU time of a process, in seconds.
fn cpu_time(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    tids.map(|tid| run_time(tid.parse().unwrap()).ran_ns as f64 / 1e9).sum()
}

test!("qemu", policies_rest_while_nobody_waits_for_a_cpu, || -> Outcome {
    if pressure().is_empty() {
        return Err(Skip::because("the kernel has no pressure information"));
    }
    let rig = Rig::new("rests")?;
    let more = 1..long(SECOND, 20 * SECOND).as_secs();
    let more = more
        .map(|i| guest(&Options { name: format!("{}-{i}", name_of_vm()), ..Options::default() }));
    let _more = more.collect::<Result<Vec<_>, _>>()?;
    let rule = format!("[[rule]]\nname = \"{}*\"\npolicy = \"wake-boost\"\n", rig.name());
    let daemon = Daemon::start(&rig.dir, &rule);
    daemon.says(&format!("{}: wake-boost on 1 vCPU, by rule 1", rig.name()));
    rig.wait("boosted", PATIENCE, || rig.is_boosted());
    let both = [daemon.child.id(), keeper_of(daemon.child.id())];
    let cost = |of: Duration| {
        let used = || both.map(cpu_time).iter().sum::<f64>();
        let (before, began) = (used(), Instant::now());
        thread::sleep(of);
        (used() - before) * 100.0 / began.elapsed().as_secs_f64()
    };
    let time = long(2 * SECOND, 8 * SECOND);
    let heard = cost(time);
    let rests = || rig.shown()["rests"] == true;
    let began = Instant::now();
    // Each look makes a thread wait, so looks are rare.
    while !rests() {
        thread::sleep(5 * SECOND);
        if began.elapsed() > 40 * SECOND {
            return Err(Skip::because(format!("others use this host: {}", pressure())));
        }
    }
    let at_rest = cost(time);
    eprintln!("the daemon takes {heard:.2} % of a CPU, and {at_rest:.2} % at rest");
    for _ in 0..200 {
        assert_eq!(rig.has(), BEFORE);
        thread::sleep(SECOND / 200);
    }
    // More than there are CPUs.
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let hog =
        || dies_with_caller("KILL", "sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let hogs: Vec<Child> = (0..=cpus).map(|_| hog()).collect();
    rig.wait("boosted again", PATIENCE, || rig.is_boosted());
    assert!(!rests());
    for mut hog in hogs {
        hog.kill().unwrap();
        hog.wait().unwrap();
    }
    daemon.end();
    assert_eq!(rig.has(), BEFORE);
    Ok(())
});

test!("qemu", what_others_have_given_a_vcpu_stays, || -> Outcome {
    let rig = Rig::new("others")?;
    rig.keep_busy(120);
    // Another program has made it real-time before.
    let theirs = Policy::Fifo(5);
    Attributes::from_policy(&theirs).set(rig.tid).unwrap();
    let child = rig.attach(&["--policy", "wake-boost", "--for", "1s"]);
    let (document, stderr) = end(child);
    let why = "somebody else made it SCHED_FIFO 5";
    assert_eq!(document["vcpus"][0]["left_alone"], why);
    assert!(stderr.contains(why), "{stderr}");
    assert_eq!(rig.has(), theirs);

    // Another program does so meanwhile.
    Attributes::from_policy(&BEFORE).set(rig.tid).unwrap();
    let child = rig.attach(&["--policy", "static", "--set", "policy.static.means=\"nice -7\""]);
    rig.wait("static", PATIENCE, || rig.has() == Policy::Normal { nice: -7, slice_ns: None });
    Attributes::from_policy(&theirs).set(rig.tid).unwrap();
    rig.wait("left alone", PATIENCE, || rig.is_left_alone());
    send(child.id(), Signal::TERM);
    let (document, _) = end(child);
    assert_eq!(document["vcpus"][0]["left_alone"], why);
    assert_eq!(rig.has(), theirs);

    // Another nice value becomes what the thread gets back.
    Attributes::from_policy(&BEFORE).set(rig.tid).unwrap();
    let child = rig.attach(&["--policy", "wake-boost"]);
    rig.wait("boosted", PATIENCE, || rig.is_boosted());
    let other = Policy::Normal { nice: 9, slice_ns: None };
    Attributes::from_policy(&other).set(rig.tid).unwrap();
    thread::sleep(Duration::from_millis(1500));
    rig.wait("boosted again", PATIENCE, || rig.is_boosted());
    send(child.id(), Signal::INT);
    end(child);
    assert_eq!(rig.has(), other);
    Ok(())
});

test!("qemu", nothing_is_left_boosted_when_owners_are_killed, || -> Outcome {
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
        // It is over when the lock is free: then no process is left that could boost.
        rig.wait("rests for good", 2 * SECOND, || !rig.is_boosted() && is_free(&rig.dir));
        longest = longest.max(killed.elapsed());
        assert_eq!(rig.has(), BEFORE, "round {round}");
    }
    println!("killed 50 owners; the longest way back took {longest:?}");

    // Owner and keeper at once: the next start, or `restore`, gives everything back.
    for by_restore in [true, false] {
        let mut child = rig.attach(&["--policy", "static"]);
        rig.wait("static", PATIENCE, || rig.is_boosted());
        let keeper = keeper_of(child.id());
        send(keeper, Signal::STOP);
        child.kill().unwrap();
        child.wait().unwrap();
        send(keeper, Signal::KILL);
        rig.wait("nobody owns it", PATIENCE, || is_free(&rig.dir));
        assert!(rig.is_boosted(), "nobody was left to take it back");
        let shown = rig.run(&["vms"]).well().out;
        assert!(shown.contains("remedy: vcoop restore"), "{shown}");
        if by_restore {
            let said = rig.run(&["restore"]).well();
            assert!(said.out.contains(&rig.tid.to_string()), "{said}");
            assert_eq!(rig.run(&["restore"]).out, "nothing was left changed\n");
        } else {
            let (_, stderr) = end(rig.attach(&["--policy", "wake-boost", "--for", "200ms"]));
            assert!(stderr.contains("an earlier vcoop had left changed"), "{stderr}");
        }
        assert_eq!(rig.has(), BEFORE);
    }

    // Only the keeper is killed: another one is started, which gives everything back.
    let mut child = rig.attach(&["--policy", "static"]);
    rig.wait("static", PATIENCE, || rig.is_boosted());
    let first = keeper_of(child.id());
    send(first, Signal::KILL);
    until("another keeper", || keeper_of(child.id()) != first);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    rig.wait("taken back by the second", 2 * SECOND, || rig.has() == BEFORE && is_free(&rig.dir));
    Ok(())
});

/// Whether no process owns the threads.
fn is_free(dir: &Path) -> bool {
    let Ok(lock) = fs::File::open(dir.join("lock")) else { return true };
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok()
}

test!("qemu", a_stalled_owner_boosts_nobody_for_long, || -> Outcome {
    let rig = Rig::new("stalled")?;
    rig.keep_busy(120);
    let mut longest = Duration::ZERO;
    for round in 0..10_u64 {
        let child = rig.attach(&["--policy", "wake-boost"]);
        rig.wait("boosted", PATIENCE, || rig.is_boosted());
        thread::sleep(Duration::from_micros(round * 3_137 % 20_000));
        send(child.id(), Signal::STOP);
        longest = longest.max(rig.wait("taken back", 2 * SECOND, || !rig.is_boosted()));
        thread::sleep(Duration::from_millis(100));
        assert_eq!(rig.has(), BEFORE, "round {round}");
        send(child.id(), Signal::CONT);
        rig.wait("goes on", PATIENCE, || rig.is_boosted());
        send(child.id(), Signal::INT);
        end(child);
        assert_eq!(rig.has(), BEFORE);
    }
    println!("stalled 10 owners; the longest boost after it took {longest:?}");
    Ok(())
});

test!("qemu", a_vm_that_ends_ends_its_policy, || -> Outcome {
    let rig = Rig::new("ends")?;
    let child = rig.attach(&["--policy", "wake-boost"]);
    rig.wait("boosted", PATIENCE, || rig.is_boosted());
    send(rig.vm().pid(), Signal::KILL);
    let (document, stderr) = end(child);
    assert_eq!(document["end"], "ended", "{stderr}");
    Ok(())
});

/// A daemon, and what it logs.
struct Daemon {
    child: Child,
    config: PathBuf,
    log: PathBuf,
}

impl Daemon {
    fn start(dir: &Path, config: &str) -> Self {
        let (file, log) = (dir.with_extension("toml"), dir.with_extension("log"));
        fs::write(&file, config).unwrap();
        let mut command = Command::new(VCOOP);
        command.arg("daemon").arg("--config").arg(&file).env("VCOOP_RUN_DIR", dir);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        Self { child, config: file, log }
    }

    fn says(&self, what: &str) {
        let log = || fs::read_to_string(&self.log).unwrap();
        until(fmt::from_fn(|f| write!(f, "{what:?}, in {}", log())), || log().contains(what));
    }

    fn reload(&self, config: &str) {
        fs::write(&self.config, config).unwrap();
        send(self.child.id(), Signal::HUP);
    }

    fn end(mut self) {
        send(self.child.id(), Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.config);
        let _ = fs::remove_file(&self.log);
    }
}

test!("qemu", a_daemon_follows_vms_by_rules, || -> Outcome {
    let rig = Rig::new("followed")?;
    rig.keep_busy(120);
    let metrics = rig.dir.with_extension("metrics");
    let config = |run: &str| {
        let metrics = metrics.display();
        format!(
            "[metrics]\nlisten = \"unix:{metrics}\"\n[[rule]]\nname = \"{}*\"\n\
             policy = \"wake-boost\"\nsettings = {{ run = \"{run}\" }}\n",
            rig.name()
        )
    };
    let daemon = Daemon::start(&rig.dir, &config("300us"));
    daemon.says(&format!("{}: wake-boost on 1 vCPU, by rule 1", rig.name()));
    rig.wait("boosted", PATIENCE, || rig.is_boosted());
    let page = {
        use std::io::{Read, Write};
        let mut stream = std::os::unix::net::UnixStream::connect(&metrics).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    };
    let counted = format!("vcoop_vcpu_boosts_total{{vm=\"{}\"", rig.name());
    assert!(page.contains(&counted), "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");

    // Another daemon is refused, and names the first.
    rig.run(&["daemon"]).fails(1, &[&daemon.child.id().to_string()]);

    // A client's policy goes before the rule's, and the rule's comes back after it.
    let child = rig.attach(&["--policy", "static", "--set", "policy.static.means=\"nice -7\""]);
    let nice = Policy::Normal { nice: -7, slice_ns: None };
    rig.wait("somebody's", PATIENCE, || rig.has() == nice);
    send(child.id(), Signal::INT);
    end(child);
    rig.wait("the rule's again", PATIENCE, || rig.is_boosted());

    // A VM that a client has detached is left alone until the rules are read again.
    rig.run(&["detach", "--all"]).well();
    thread::sleep(2 * SECOND);
    assert_eq!(rig.has(), BEFORE);
    daemon.reload("[[rule]]\npolicy = \"wakeboost\"\n");
    daemon.says("the rules stay as they were");
    assert_eq!(rig.has(), BEFORE);
    daemon.reload(&config("400us"));
    rig.wait("the new rule's", PATIENCE, || rig.is_boosted());
    daemon.reload("");
    daemon.says("no rule applies to it any more");
    assert_eq!(rig.has(), BEFORE);
    daemon.reload(&config("400us"));
    rig.wait("and again", PATIENCE, || rig.is_boosted());
    daemon.end();
    assert_eq!(rig.has(), BEFORE);
    let _ = fs::remove_file(metrics);
    Ok(())
});

test!("qemu", vms_that_come_and_go_under_a_daemon_leave_nothing_behind, || -> Outcome {
    need_qemu()?;
    let dir = std::env::temp_dir().join(format!("vcoop-attach-crowd-{}", std::process::id()));
    let daemon = Daemon::start(&dir, "[[rule]]\nname = \"crowd*\"\npolicy = \"static\"\n");
    daemon.says("with 1 rule");
    // Firmware without a disk: it sleeps, and wakes up now and then.
    let qemu = |i: usize| Qemu::start(&format!("crowd{i}"), &["-accel", "tcg"]);
    let mut vms: Vec<Qemu> = (0..20).map(qemu).collect();
    daemon.says("crowd19: static on 1 vCPU");
    let began = Instant::now();
    let mut i = 0;
    while began.elapsed() < 10 * SECOND {
        vms[i % 20].kill();
        vms[i % 20] = qemu(i % 20);
        i += 7;
        thread::sleep(SECOND / 10);
    }
    daemon.says("crowd7: it has ended");
    let threads = |pid: u32| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let tids = tasks.map(|t| t.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap());
        tids.collect::<Vec<_>>()
    };
    let rt = |vm: &Qemu| {
        let has = |tid: &i32| Attributes::get(*tid).is_ok_and(|a| a.to_policy().is_rt());
        threads(vm.pid()).iter().filter(|tid| has(tid)).count()
    };
    until("each has a boosted vCPU", || vms.iter().all(|vm| rt(vm) == 1));
    daemon.end();
    assert_eq!(vms.iter().map(rt).sum::<usize>(), 0);
    assert!(!dir.join("threads.journal").exists());
    let _ = fs::remove_dir_all(&dir);
    Ok(())
});
