//! Stock guests with the driver, under a daemon that serves their windows.

use std::cell::RefCell;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use vcoop_abi::Status;
use vcoop_abi::window::Doorbell;
use vcoop_daemon::{Client, Request, Response, VmStatus};
use vcoop_stock::{
    CLOUD, Headers, Hogs, Kernel, KernelTree, Options, StockVm, dies_with_caller, guest_program,
};
use vcoop_testing::{Outcome, ProgramOutput, Skip, long, send, test, twice, until};
use vcoop_threads::{Attributes, allowed_cpus, set_affinity};

use crate::vcoop::{VCOOP, guest, have, needs_tracefs};

const SECOND: Duration = Duration::from_secs(1);

/// Wakes up an urgent task every 2 ms on each vCPU.
const URGENT: &str = "(timeout 300 cyclictest -q -m -p 80 -i 2000 -d 0 -t 2 -a >/dev/null 2>&1 &)";

/// A daemon of its own folder.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    process: Child,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// With this in its file.
    fn start_with(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("vcoop.toml"), config).unwrap();
        let process = Self::process(dir.path());
        let daemon = Self { dir, process };
        until("the daemon listens", || daemon.windows().exists());
        daemon
    }

    fn process(dir: &Path) -> Child {
        let config = dir.join("vcoop.toml");
        let mut command = dies_with_caller("KILL", VCOOP);
        command.args(["daemon", "--config"]).arg(config).env("VCOOP_RUN_DIR", dir);
        command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn windows(&self) -> PathBuf {
        self.dir.path().join("window.sock")
    }

    pub(crate) fn vcoop(&self, args: &[&str]) -> Command {
        let mut command = dies_with_caller("KILL", VCOOP);
        command.args(args).env("VCOOP_RUN_DIR", self.dir.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> ProgramOutput {
        ProgramOutput::by(&mut self.vcoop(args))
    }

    /// What `vcoop vms` says of a VM.
    fn shown(&self, vm: &StockVm) -> Value {
        let mut shown = self.run(&["vms", "--json"]).well().json();
        let mut vms = shown["vms"].as_array_mut().unwrap().iter_mut();
        vms.find(|of| of["pid"] == vm.pid()).map(Value::take).unwrap_or_default()
    }

    /// The policy in force on a VM.
    fn status(&self, vm: &StockVm) -> Option<VmStatus> {
        match Client::connect(self.dir.path()).unwrap()?.ask(&Request::Status { vm: None }).unwrap()
        {
            Response::Status(status) => status.vms.into_iter().find(|of| of.vm.pid == vm.pid()),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until it has come to this.
    fn until(&self, vm: &StockVm, what: &str, is: impl Fn(&VmStatus) -> bool) {
        let last = RefCell::new(None);
        let what = fmt::from_fn(|f| write!(f, "{what}, in {:?}", last.borrow()));
        until(what, || {
            let status = self.status(vm);
            let met = status.as_ref().is_some_and(&is);
            last.replace(status);
            met
        });
    }

    /// Waits until the engine hears every vCPU, and so many more deadlines have been met.
    fn until_met(&self, vm: &StockVm, more: u64) {
        let before = self.status(vm).as_ref().map_or(0, deadlines);
        let what = format!("{more} deadlines more than {before}");
        self.until(vm, &what, |of| {
            of.vcpus.iter().all(|v| v.heard == Some(true)) && deadlines(of) > before + more
        });
    }

    /// What `vcoop attach --policy dynamic` says in the end, of a policy in force while something happens.
    fn dynamic(&self, vm: &StockVm, sets: &[&str], during: impl FnOnce()) -> Value {
        let pid = vm.pid().to_string();
        let mut attach = self.vcoop(&["attach", &pid, "--policy", "dynamic", "--json"]);
        for set in sets {
            attach.args(["--set", &format!("policy.dynamic.{set}")]);
        }
        let mut attach = attach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("it is in force", || {
            // Or refused, as it says in the end.
            attach.try_wait().unwrap().is_some()
                || self.status(vm).is_some_and(|of| of.policy == "dynamic")
        });
        during();
        send(attach.id(), Signal::INT);
        ProgramOutput::from(attach.wait_with_output().unwrap()).well().json()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have been killed, and waited for.
        if let Ok(None) = self.process.try_wait() {
            send(self.process.id(), Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/linux")
}

/// The driver for the kernel that stock guests boot.
pub(crate) fn driver() -> Result<PathBuf, Skip> {
    have(Kernel::get().and_then(|kernel| kernel.driver()))
}

/// A guest with the driver, which is not loaded yet, whose vCPUs are on one CPU.
fn with_driver(name: &str, vcpus: u32, device: &[String]) -> Result<StockVm, Skip> {
    start(Options {
        name: name.to_owned(),
        vcpus,
        modules: vec![driver()?],
        qemu_args: device.to_vec(),
        ..Options::default()
    })
}

/// A guest whose vCPUs are on one CPU, with the driver's tools.
fn start(options: Options) -> Result<StockVm, Skip> {
    needs_tracefs()?;
    let cpus = allowed_cpus().unwrap();
    let tool = |file| have(guest_program(&source().join("tools").join(file)));
    guest(&Options {
        programs: vec![
            tool("scribble.c")?,
            tool("audio.c")?,
            tool("../../../crates/stock/guest/kexec.c")?,
        ],
        vcpu_cpus: cpus[cpus.len() - 1..].to_vec(),
        emulator_cpus: cpus[..1].to_vec(),
        ..options
    })
}

pub(crate) fn doorbell(daemon: &Daemon) -> Vec<String> {
    let chardev = format!("socket,id=vcoop,path={}", daemon.windows().display());
    let device = "ivshmem-doorbell,chardev=vcoop,vectors=1";
    ["-chardev", &chardev, "-device", device].map(str::to_owned).into()
}

fn run(vm: &StockVm, command: &str) -> String {
    let output = vm.run(command, 60 * SECOND).unwrap();
    assert_eq!(output.status, 0, "{command}: {}", output.stderr);
    output.stdout
}

/// Makes an initrd of what a guest has.
const PACK: &str = "mkdir /mnt && mount --bind / /mnt && cd /mnt && find . ! -path ./boot/vmlinuz | \
                    cpio -o -H newc >/tmp/initrd";
/// Boots the guest's kernel anew, with that.
const KEXEC: &str = "kexec /boot/vmlinuz /tmp/initrd \"$(cat /proc/cmdline)\"";

/// Has a guest do what ends the registration of its driver; then no boost is left.
fn leaves(vm: &StockVm, how: &str) {
    run(vm, &format!("(sleep 0.5; {how}) >/dev/null 2>&1 &"));
    until("the registration ends", || vcoop_window::find(vm.pid()).unwrap().is_none());
    rests(vm);
}

fn rests(vm: &StockVm) {
    let tids = vm.vcpu_tids().unwrap();
    let rests = |tid: &i32| !Attributes::get(*tid).unwrap().to_policy().is_rt();
    until("no boost is left", || tids.iter().all(rests));
}

/// Asks QEMU for something; what it says of this word.
fn ask(vm: &StockVm, commands: &[&str], word: &str) -> String {
    let mut qmp = UnixStream::connect(vm.qmp()).unwrap();
    for command in [&[r#"{"execute":"qmp_capabilities"}"#], commands].concat() {
        qmp.write_all(command.as_bytes()).unwrap();
    }
    let mut answers = BufReader::new(qmp).lines().map(Result::unwrap);
    answers.find(|line| line.contains(&format!("\"{word}\""))).unwrap()
}

/// Resets a guest from outside: nothing in it is told.
fn reset(vm: &StockVm) {
    // It is started so that it would end instead.
    let stay = r#"{"execute":"set-action","arguments":{"reboot":"reset"}}"#;
    ask(vm, &[stay, r#"{"execute":"system_reset"}"#], "RESET");
}

/// An emulated guest on a slow machine takes longer for a deadline than a boost may last, and would be throttled at
/// each.
const LONG: [&str; 1] = ["longest_boost=2ms"];

const LOAD: &str = "insmod /lib/modules/vcoop.ko";

fn sum(attached: &Value, key: &str) -> u64 {
    let vcpus = attached["vcpus"].as_array().unwrap();
    vcpus.iter().map(|vcpu| vcpu[key].as_u64().unwrap()).sum()
}

fn all_are_heard(attached: &Value) -> bool {
    attached["vcpus"].as_array().unwrap().iter().all(|vcpu| vcpu["heard"] == true)
}

/// Those that all vCPUs have met.
fn deadlines(of: &VmStatus) -> u64 {
    of.vcpus.iter().map(|vcpu| vcpu.deadlines).sum()
}

/// Every vCPU's thread has what it had.
fn threads_are_at_rest(vm: &StockVm) {
    for tid in vm.vcpu_tids().unwrap() {
        let policy = Attributes::get(tid).unwrap().to_policy();
        assert!(!policy.is_rt(), "{policy:?}");
    }
}

/// Its vCPUs are heard again and have met deadlines, as a policy says that has ended.
fn assert_came_back(attached: &Value, vm: &StockVm) {
    assert!(all_are_heard(attached) && sum(attached, "deadlines") > 50, "{attached}");
    at_rest(vm);
}

/// So it is, and every status in the window says so.
fn at_rest(vm: &StockVm) {
    threads_are_at_rest(vm);
    if let Some(window) = vcoop_window::find(vm.pid()).unwrap() {
        for slot in 0..vm.vcpu_tids().unwrap().len() as u64 {
            assert_eq!(window.host(slot).unwrap().status(), Status::Disabled);
        }
    }
}

test!(
    "qemu",
    a_guest_with_the_driver_is_boosted_for_its_deadlines_and_says_its_latency,
    || -> Outcome {
        let daemon = Daemon::start();
        let vm = start(Options {
            name: "cooperates".to_owned(),
            vcpus: 2,
            modules: vec![driver()?],
            files: vec![(have(Kernel::get())?.image, "/boot/vmlinuz".to_owned())],
            qemu_args: doorbell(&daemon),
            ..Options::default()
        })?;
        let pid = vm.pid().to_string();

        // Without the driver, what needs it is refused with the way out.
        let refused = daemon.run(&["attach", &pid, "--policy", "dynamic"]);
        assert!(refused.code != Some(0) && refused.err.contains("vms --how"), "{refused}");
        let compare = ["compare", &pid, "--policy", "vanilla,dynamic", "--rounds", "1"];
        daemon.run(&compare).fails(3, &[]);

        run(&vm, LOAD);
        let shown = daemon.shown(&vm);
        assert_eq!(shown["guest_driver"]["vcpus"], 2, "{shown}");

        run(&vm, URGENT);
        let _hog = Hogs::start(1, *allowed_cpus().unwrap().last().unwrap()).unwrap();
        let mut urgent = Value::Null;
        let attached = daemon.dynamic(&vm, &LONG, || {
            let observe = daemon.run(&["observe", &pid, "--for", "2s", "--json"]).well().json();
            let of = |s: &&Value| s["probe"] == "cooperates.urgent";
            let mut series = observe["series"].as_array().unwrap().iter();
            urgent = series.find(of).expect("the guest's latency").clone();
            daemon.until_met(&vm, 100);
            daemon.until(&vm, "boosts that the guest has ended", |of| {
                of.vcpus.iter().map(|vcpu| vcpu.notified).sum::<u64>() > 100
            });
        });
        let (deadlines, notified) = (sum(&attached, "deadlines"), sum(&attached, "notified"));
        // Two tasks want 500 wake-ups a second each, which an emulated guest on a part of a busy CPU
        // misses.
        assert!(all_are_heard(&attached) && deadlines > 100 && notified > 100, "{attached}");
        assert!(urgent["count"].as_u64().unwrap() > 50, "{urgent}");
        assert!(attached["timers"]["boosts"].as_u64().unwrap() > 0, "{attached}");
        at_rest(&vm);

        // The driver goes, and comes again, while the policy is in force.
        let attached = daemon.dynamic(&vm, &[], || {
            run(&vm, "rmmod vcoop");
            daemon.until(&vm, "nobody is heard", |of| {
                of.vcpus.iter().all(|vcpu| vcpu.heard == Some(false))
            });
            run(&vm, LOAD);
            daemon.until_met(&vm, 100);
        });
        assert!(all_are_heard(&attached) && sum(&attached, "deadlines") > 100, "{attached}");
        at_rest(&vm);

        // One vCPU goes, and comes again.
        let attached = daemon.dynamic(&vm, &[], || {
            run(&vm, "echo 0 >/sys/devices/system/cpu/cpu1/online");
            daemon.until(&vm, "one is heard", |of| {
                of.vcpus.iter().map(|vcpu| vcpu.heard).eq([Some(true), Some(false)])
            });
            run(&vm, "echo 1 >/sys/devices/system/cpu/cpu1/online");
            // The kernel has unpinned the task of the vCPU that was offline.
            run(&vm, "killall cyclictest");
            run(&vm, URGENT);
            daemon.until_met(&vm, 0);
        });
        assert!(all_are_heard(&attached), "{attached}");
        at_rest(&vm);

        // Each on a CPU of its own, with a busy thread there: both are boosted.
        let cpus = allowed_cpus().unwrap();
        for (tid, cpu) in vm.vcpu_tids().unwrap().into_iter().zip(&cpus) {
            set_affinity(tid, &[*cpu]).unwrap();
        }
        let other = Hogs::start(1, cpus[0]).unwrap();
        let attached = daemon.dynamic(&vm, &LONG, || {
            daemon.until(&vm, "both are boosted", |of| {
                of.vcpus.iter().all(|vcpu| vcpu.deadlines > 50 && vcpu.notified > 50)
            });
        });
        for vcpu in attached["vcpus"].as_array().unwrap() {
            let count = |key: &str| vcpu[key].as_u64().unwrap();
            assert!(count("deadlines") > 50 && count("notified") > 50, "{attached}");
        }
        drop(other);
        at_rest(&vm);

        // Suspended to idle, it takes no part and keeps no boost. It comes back when it wakes up.
        let attached = daemon.dynamic(&vm, &[], || {
            let wakes = "echo enabled >/sys/class/tty/ttyS1/power/wakeup";
            leaves(&vm, &format!("{wakes}; echo freeze >/sys/power/state"));
            // Lines on its second serial port wake it up once it sleeps.
            let mut line = UnixStream::connect(vm.control().socket()).unwrap();
            until("it wakes up", || {
                thread::sleep(SECOND / 2);
                line.write_all(b"\n").unwrap();
                vcoop_window::find(vm.pid()).unwrap().is_some()
            });
            daemon.until_met(&vm, 50);
        });
        assert_came_back(&attached, &vm);

        // Suspended to memory, it has no power meanwhile.
        let attached = daemon.dynamic(&vm, &[], || {
            // A port that may wake it up is not set up again.
            let stays = "echo disabled >/sys/class/tty/ttyS1/power/wakeup";
            let deep = "echo deep >/sys/power/mem_sleep; echo mem >/sys/power/state";
            leaves(&vm, &format!("{stays}; {deep}"));
            until("it sleeps", || {
                ask(&vm, &[r#"{"execute":"query-status"}"#], "status").contains("suspended")
            });
            ask(&vm, &[r#"{"execute":"system_wakeup"}"#], "WAKEUP");
            until("it is up", || vcoop_window::find(vm.pid()).unwrap().is_some());
            daemon.until_met(&vm, 50);
        });
        assert_came_back(&attached, &vm);
        assert_eq!(run(&vm, "dmesg").matches("suspend exit").count(), 2);

        // The next kernel's driver is another one.
        run(&vm, PACK);
        let attached = daemon.dynamic(&vm, &[], || {
            leaves(&vm, KEXEC);
            until("the next kernel is up", || vm.boots() == 2);
            run(&vm, LOAD);
            run(&vm, URGENT);
            daemon.until_met(&vm, 50);
        });
        assert_came_back(&attached, &vm);
        assert!(!run(&vm, "dmesg").contains("Oops"));

        // Reset without a word, it keeps no boost either.
        daemon.dynamic(&vm, &[], || {
            reset(&vm);
            rests(&vm);
        });
        at_rest(&vm);
        Ok(())
    }
);

test!("qemu", an_audio_callback_that_is_boosted_misses_few_deadlines, || -> Outcome {
    let daemon = Daemon::start();
    let vm = with_driver("plays", 1, &doorbell(&daemon))?;
    run(&vm, LOAD);
    run(&vm, "(while :; do :; done) >/dev/null 2>&1 &");
    let _hogs = Hogs::start(2, *allowed_cpus().unwrap().last().unwrap()).unwrap();
    let play = || {
        let said = run(&vm, "audio 5333 500 3");
        let value = |name: &str| -> f64 {
            let mut lines = said.lines().filter_map(|line| line.split_once('='));
            lines.find(|(key, _)| *key == name).unwrap().1.parse().unwrap()
        };
        value("glitches") / value("callbacks")
    };
    // The longest boost leaves a callback its time where the machine is at half of its speed: it has to be done within
    // a period of 5.3 ms. The budget is what that takes.
    let budgets = [
        "vcpu_refill=80%",
        "vcpu_burst=12ms",
        "vm_refill=90%",
        "vm_burst=12ms",
        "longest_boost=4ms",
    ];
    twice(|| {
        let alone = play();
        let mut boosted = 1.0;
        let attached = daemon.dynamic(&vm, &budgets, || boosted = play());
        eprintln!("glitches: {alone:.3} of the callbacks, boosted {boosted:.3}");
        let fewer = alone > 0.1 && boosted < alone / 4.0;
        if fewer { Ok(()) } else { Err(format!("{alone} and {boosted}: {attached}")) }
    })?;
    at_rest(&vm);
    Ok(())
});

test!("qemu", a_guest_that_writes_anything_anywhere_has_no_more_than_its_budget, || -> Outcome {
    let daemon = Daemon::start();
    let vm = with_driver("scribbles", 2, &doorbell(&daemon))?;
    // It maps the window before the driver does, and begins to write when a policy is in force.
    let device = "$(dirname $(grep -l 0x1110 /sys/bus/pci/devices/*/device))";
    let time = long(10 * SECOND, 60 * SECOND);
    let seconds = time.as_secs() + 8;
    run(&vm, &format!("(scribble {device}/resource2 4 {seconds} >/dev/null 2>&1 &)"));
    run(&vm, LOAD);
    run(&vm, URGENT);
    let attached = daemon.dynamic(&vm, &[], || thread::sleep(time));
    let ns = attached["for_ns"].as_u64().unwrap();
    for vcpu in attached["vcpus"].as_array().unwrap() {
        let boosted = vcpu["boosted_ns"].as_u64().unwrap();
        // A quarter of the time, and the burst; twice that for what a late engine charges late.
        assert!(boosted <= ns / 4 + 6_000_000, "{boosted} of {ns}: {vcpu}");
    }
    // The window has the words that the guest wrote last.
    threads_are_at_rest(&vm);
    // The daemon still serves others.
    daemon.run(&["top", "--once"]).well();
    Ok(())
});

test!("qemu", a_window_outlives_the_daemon_that_served_it, || -> Outcome {
    let mut daemon = Daemon::start();
    let vm = with_driver("orphaned", 2, &doorbell(&daemon))?;
    run(&vm, LOAD);
    run(&vm, URGENT);
    let before = daemon.dynamic(&vm, &[], || daemon.until_met(&vm, 100));
    assert!(sum(&before, "deadlines") > 100, "{before}");
    daemon.kill();
    daemon.process = Daemon::process(daemon.dir.path());
    until("it listens again", || daemon.run(&["top", "--once"]).code == Some(0));
    // The doorbell is gone with the one before; the words are looked at now and then.
    let after = daemon.dynamic(&vm, &[], || daemon.until_met(&vm, 100));
    assert!(sum(&after, "deadlines") > 100, "{after}");
    at_rest(&vm);
    Ok(())
});

test!("qemu", a_window_in_the_memory_of_its_guest_is_found_again, || -> Outcome {
    let careful = Daemon::start();
    let memory = "memory-backend-memfd,id=ram,size=256M,share=on";
    let args = ["-object", memory, "-machine", "memory-backend=ram"];
    let vm = start(Options {
        name: "lends".to_owned(),
        modules: vec![driver()?],
        qemu_args: args.map(str::to_owned).into(),
        files: vec![(have(Kernel::get())?.image, "/boot/vmlinuz".to_owned())],
        ..Options::default()
    })?;
    run(&vm, URGENT);
    let load = format!("{LOAD} ram=1");
    run(&vm, &load);
    // Any user of the guest could have made it: it is not written to unless that was asked for.
    let pid = vm.pid().to_string();
    let refused = careful.run(&["attach", &pid, "--policy", "dynamic"]);
    refused.fails(3, &["guest_memory = true"]);
    let untouched = vcoop_window::find(vm.pid()).unwrap().unwrap();
    assert_eq!(untouched.host(0).unwrap().header.load(Ordering::Acquire), 0);
    drop(careful);
    let daemon = Daemon::start_with("[windows]\nguest_memory = true\n");
    let attached = daemon.dynamic(&vm, &[], || {
        daemon.until_met(&vm, 50);
        run(&vm, "rmmod vcoop");
        rests(&vm);
        run(&vm, &load);
        daemon.until_met(&vm, 50);
    });
    assert!(attached["vcpus"][0]["heard"] == true, "{attached}");
    at_rest(&vm);

    // The next kernel has another use for the memory: the one that goes waits until its host has let go of it.
    let window = vcoop_window::find(vm.pid()).unwrap().unwrap();
    window.offer(Doorbell::default());
    run(&vm, "dmesg -n 8");
    run(&vm, PACK);
    run(&vm, &format!("(sleep 0.5; {KEXEC}) >/dev/null 2>&1 &"));
    until("the registration ends", || window.is_returned());
    let has_gone = || vm.console().contains("Starting new kernel");
    thread::sleep(SECOND / 2);
    assert!(!has_gone());
    window.give_back();
    until("it goes", has_gone);
    assert!(!vm.console().contains("has not let go"));
    Ok(())
});

test!("qemu", a_guest_without_a_doorbell_is_looked_at, || -> Outcome {
    let daemon = Daemon::start();
    let Some(release) = have(Headers::newest(CLOUD, &[]))?.pop() else {
        return Err(Skip::because("this host's apt knows no kernel; run `apt-get update`"));
    };
    let tree = have(KernelTree::of(&release))?;
    // A file on a disk is no window.
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let memory = |id: &str| {
        let path = shared.path().join(id);
        format!("memory-backend-file,id={id},mem-path={},size=2M,share=on", path.display())
    };
    // Two windows: an ivshmem device, and a virtio-pmem device for VMMs without one.
    let device = format!(
        "-m maxmem=1G -object {} -device ivshmem-plain,memdev=window -object {} -device \
         virtio-pmem-pci,memdev=pmem",
        memory("window"),
        memory("pmem")
    );
    let vm = start(Options {
        name: "plain".to_owned(),
        vcpus: 2,
        modules: vec![have(tree.kernel.driver())?],
        loaded: have(tree.modules(&["virtio_pci", "virtio_pmem"], daemon.dir.path()))?,
        kernel: Some(tree.kernel),
        qemu_args: device.split(' ').map(str::to_owned).collect(),
        ..Options::default()
    })?;
    run(&vm, URGENT);

    let region = "/sys/bus/nd/devices/region0";
    run(&vm, &format!("{LOAD} phys=$(cat {region}/resource),$(cat {region}/size)"));
    let attached = daemon.dynamic(&vm, &[], || daemon.until_met(&vm, 100));
    assert!(sum(&attached, "deadlines") > 100, "{attached}");
    assert!(run(&vm, "cat /sys/kernel/debug/vcoop/state").starts_with("window: phys at "));
    run(&vm, "rmmod vcoop");

    run(&vm, LOAD);
    // A busy task, so that the guest has something to be boosted for no reason.
    run(&vm, "(timeout 4 sh -c 'while :; do :; done' >/dev/null 2>&1 &)");
    let pid = vm.pid().to_string();
    let held = daemon.run(&["conformance", &pid, "--for", "3s", "--json"]).well().json();
    let vcpus = held["vcpus"].as_array().unwrap();
    assert!(vcpus.iter().all(|vcpu| vcpu["changes"].as_u64() > Some(100)), "{held}");
    assert!(vcpus.iter().map(|vcpu| vcpu["answers"].as_u64().unwrap()).sum::<u64>() > 5, "{held}");

    let attached = daemon.dynamic(&vm, &[], || {
        daemon.run(&["conformance", &pid]).fails(1, &[]);
        daemon.until_met(&vm, 100);
    });
    assert!(sum(&attached, "deadlines") > 100, "{attached}");
    let file = shared.path().join("window");
    // The window is torn away while the policy is in force.
    let tids = vm.vcpu_tids().unwrap();
    let torn = daemon.dynamic(&vm, &[], || {
        fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
        until("nobody speaks", || {
            let speaks = |of: VmStatus| of.driven().any(|vcpu| vcpu.heard == Some(true));
            !daemon.status(&vm).is_some_and(speaks)
        });
    });
    // Its own VMM may not survive that; the daemon does, and what is left of the VM is at rest.
    let speaks = |vcpu: &Value| vcpu["heard"] == true && vcpu["left_alone"].is_null();
    let ended = torn["end"] == "ended";
    assert!(ended || !torn["vcpus"].as_array().unwrap().iter().any(speaks), "{torn}");
    for attributes in tids.into_iter().filter_map(|tid| Attributes::get(tid).ok()) {
        assert!(!attributes.to_policy().is_rt(), "{attributes}");
    }
    daemon.run(&["top", "--once"]).well();
    Ok(())
});
