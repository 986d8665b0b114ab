//! `cargo xtask demo`: experiments on real VMs, including their setup.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vcoop_stock::{Hogs, Kernel, Options, StockVm, dies_with_caller, guest_program};
use vcoop_text::quoted;
use vcoop_threads::{allowed_cpus, cpu_list};

use crate::emulated::{self, build};

/// Processes that share the vCPU's CPU.
const HOGS: usize = 2;

/// Time between two wake-ups of each urgent task in a guest with a driver, in microseconds.
const PERIOD_US: u32 = 2_000;

/// Time between two callbacks of the audio task, and its work, in microseconds: 256 frames at 48 kHz.
const AUDIO: &str = "5333 500";

/// Budgets of an emulated guest under `dynamic`.
const BUDGETS: [&str; 4] = ["vcpu_refill=50%", "vcpu_burst=6ms", "vm_refill=80%", "vm_burst=12ms"];

/// Time limit of commands in a guest that do not measure.
const SHORT: Duration = Duration::from_secs(30);

/// An experiment on a real VM that it sets up
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    demo: Demo,
    /// Rounds, in each of which every policy has its turn
    #[arg(long, default_value = "10")]
    rounds: String,
    /// Time of a turn, with a unit
    #[arg(long, default_value = "5s")]
    each: String,
    /// vCPUs of the guest, all on the CPU of the hogs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    vcpus: u32,
    /// A key of a policy, as for `vcoop compare`: policy.dynamic.vcpu_refill=25%
    #[arg(long = "set")]
    sets: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Also write report.html and the data files into this folder
    #[arg(long)]
    out: Option<PathBuf>,
    /// This program instead of building one
    #[arg(long)]
    vcoop: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Demo {
    /// A stock guest that is mostly idle shares a CPU with two hogs: how late its timers are under vanilla, static and
    /// wake-boost, and what the hogs lose
    WakeBoost,
    /// The same with a guest that never sleeps and has vcoop's driver: vanilla, static, wake-boost and dynamic
    LinuxGuest,
    /// The same with an audio callback as the guest's urgent task: how many glitches it has
    Audio,
    /// The same on a real KVM host, emulated (see `cargo xtask box`): order and function, not times; wake-boost boosts
    /// for interrupts there where vcoop can be built with BPF
    Box,
    /// A guest that is mostly idle, on a KVM host with sched_ext: vanilla, wake-boost, and wake-boost decided in the
    /// kernel; vcoop is built with BPF
    Scx,
}

impl Args {
    fn is_audio(&self) -> bool {
        self.demo == Demo::Audio
    }

    /// Whether the guest has the driver.
    fn has_driver(&self) -> bool {
        self.demo != Demo::WakeBoost
    }

    /// Arguments passed on to `vcoop compare`, without `--out`.
    fn compared(&self) -> Vec<String> {
        let mut words = vec![format!("--rounds={}", self.rounds), format!("--each={}", self.each)];
        words.extend(self.sets.iter().map(|set| format!("--set={set}")));
        words.extend(self.json.then(|| "--json".to_owned()));
        words
    }
}

/// Runs an experiment. Returns the exit code of `vcoop compare`.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    with_tracefs();
    if matches!(args.demo, Demo::Box | Demo::Scx) {
        return demonstrate_in_a_box(args);
    }
    anyhow::ensure!(!args.is_audio() || args.vcpus == 1, "there is one audio task, on one vCPU");
    let stop = stop_flag()?;
    let cpus = allowed_cpus()?;
    let (shared, others) = cpus.split_last().expect("this program runs on a CPU");
    anyhow::ensure!(!others.is_empty(), "this takes two CPUs: one for the vCPUs, one for the rest");
    let vcoop = args.vcoop.clone().map_or_else(|| build(false), Ok)?;

    // QEMU's other threads are kept off the vCPUs' CPU, as with `emulatorpin` and `vcpupin` of libvirt. Its main thread
    // delivers the timers of an emulated guest.
    let mut options = Options {
        name: "guest".to_owned(),
        vcpus: args.vcpus,
        emulator_cpus: others.to_vec(),
        vcpu_cpus: vec![*shared],
        ..Options::default()
    };
    // The daemon starts before the guest, which gets its window from it.
    let daemon = args.has_driver().then(|| Daemon::start(&vcoop)).transpose()?;
    if let Some(daemon) = &daemon {
        options.modules = vec![Kernel::get()?.driver()?];
        if args.is_audio() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/linux/tools/audio.c");
            options.programs = vec![guest_program(Path::new(source))?];
        }
        options.qemu_args = [
            "-chardev".to_owned(),
            format!("socket,id=vcoop,path={}", daemon.windows().display()),
            "-device".to_owned(),
            "ivshmem-doorbell,chardev=vcoop,vectors=1".to_owned(),
        ]
        .into();
    }
    let vm = StockVm::start(&options)?;
    if args.has_driver() {
        keep_awake(&vm, args)?;
    }
    let load = if args.has_driver() { "never asleep" } else { "mostly idle" };
    let kernel = vm.run("uname -r", Duration::from_secs(10))?.stdout;
    let _hogs = Hogs::start(HOGS, *shared)?;
    eprintln!(
        "xtask: a guest with Linux {}, {load}: its {} vCPUs and {HOGS} hogs on CPU {shared}, QEMU's \
         other threads on CPU {}",
        kernel.trim(),
        args.vcpus,
        cpu_list(others)
    );
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(130));
    }
    let status = wait(&mut compare(args, &vcoop, &vm, daemon.as_ref())?, stop)?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Restarts this program in a new mount namespace with tracefs, by which `vcoop compare` sees the host's scheduler. If
/// that is not possible, vcoop reports what is missing.
fn with_tracefs() {
    const TRIED: &str = "VCOOP_DEMO_TRACEFS";
    if Path::new("/sys/kernel/tracing/trace").exists() || std::env::var_os(TRIED).is_some() {
        return;
    }
    let Ok(own) = std::env::current_exe() else { return };
    let mount = r#"mount -t tracefs nodev /sys/kernel/tracing 2>/dev/null; exec "$0" "$@""#;
    let alone = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if alone.is_ok_and(|status| status.success()) {
        let mut again = Command::new("unshare");
        again.args(["-m", "sh", "-c", mount]).arg(own).args(std::env::args_os().skip(1));
        // It only returns if it fails.
        let _ = again.env(TRIED, "1").exec();
    }
}

fn demonstrate_in_a_box(args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.vcpus == 1, "the guest in the box has one vCPU");
    let scx = args.demo == Demo::Scx;
    let bpf = args.vcoop.is_some() || crate::layers::bpf_tools().is_ok();
    let vcoop = args.vcoop.clone().map_or_else(|| build(bpf), Ok)?;
    if scx && !bpf {
        eprintln!(
            "xtask: boosts in the kernel need a vcoop with BPF\n  remedy: apt-get install clang libelf-dev zlib1g-dev pkg-config"
        );
        return Ok(ExitCode::from(3));
    }
    emulated::compare(vcoop, bpf, scx, &args.compared(), args.out.as_deref())
}

/// Loads the driver and keeps every vCPU of the guest busy, with urgent tasks besides.
fn keep_awake(vm: &StockVm, args: &Args) -> anyhow::Result<()> {
    in_guest(vm, "insmod /lib/modules/vcoop.ko")?;
    for _ in 0..args.vcpus {
        in_guest(vm, "while :; do :; done >/dev/null 2>&1 &")?;
    }
    if !args.is_audio() {
        // All the time, not per turn: a guest that waits for its CPU takes seconds to start it. The periods of two
        // tasks differ by 0.5 ms, so that each run has all phases between them.
        let tasks = format!("-i {PERIOD_US} -t {} -a", args.vcpus);
        in_guest(vm, &format!("cyclictest -q -m -p 80 {tasks} >/dev/null 2>&1 &"))?;
    }
    Ok(())
}

/// Runs `vcoop compare` on the guest.
fn compare(
    args: &Args,
    vcoop: &Path,
    vm: &StockVm,
    daemon: Option<&Daemon>,
) -> anyhow::Result<Command> {
    let mut compare = dies_with_caller("TERM", vcoop);
    let mut policies = vec!["vanilla", "static", "wake-boost"];
    if let Some(daemon) = daemon {
        policies.push("dynamic");
        compare.env("VCOOP_RUN_DIR", daemon.folder.path());
    }
    compare.args(["compare", &vm.pid().to_string(), "--policy", &policies.join(",")]);
    // As in the scenario busy-host-1: the vCPU pays its boosts back, and threads that wake up on its CPU wait only for
    // a short slice.
    for policy in &policies[2..] {
        compare.args(["--set", &format!("policy.{policy}.repay=true")]);
        compare.args(["--set", &format!("policy.{policy}.rest_slice=700us")]);
    }
    if args.has_driver() {
        // Interrupts and task switches of an emulated vCPU take ten times as long as those of one under KVM.
        for budget in BUDGETS {
            compare.args(["--set", &format!("policy.dynamic.{budget}")]);
        }
        // The callback takes half a millisecond on an idle CPU.
        let longest = if args.is_audio() { "2ms" } else { "1ms" };
        compare.args(["--set", &format!("policy.dynamic.longest_boost={longest}")]);
    }
    compare.args(args.compared());
    if let Some(folder) = &args.out {
        compare.arg("--out").arg(folder);
    }
    let exec = if args.is_audio() {
        Some(format!("audio {AUDIO} \"$VCOOP_EACH_S\""))
    } else {
        // A guest with a driver reports its latency itself.
        (!args.has_driver()).then(|| format!("latency \"$VCOOP_EACH_S\" 1000 {}", args.vcpus))
    };
    if let Some(command) = exec {
        // Not through cargo, which would take CPU time from the measurement.
        let (own, vm) = (std::env::current_exe()?, vm.control().socket().display().to_string());
        let (own, vm) = (quoted(&own.display().to_string()), quoted(&vm));
        compare.args(["--exec", &format!("{own} guest {vm} {command}")]);
    }
    Ok(compare)
}

/// Runs a command in the guest, which has to succeed.
fn in_guest(vm: &StockVm, command: &str) -> anyhow::Result<()> {
    let output = vm.run(command, SHORT)?;
    anyhow::ensure!(output.status == 0, "in the guest, {command}: {}", output.stderr.trim());
    Ok(())
}

/// A daemon for this experiment. Dropping it ends it.
#[derive(Debug)]
struct Daemon {
    folder: tempfile::TempDir,
    process: Child,
}

impl Daemon {
    fn start(vcoop: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("vcoop-demo-").tempdir()?;
        let config = folder.path().join("vcoop.toml");
        std::fs::write(&config, "")?;
        let process = dies_with_caller("TERM", vcoop)
            .args(["daemon", "--config"])
            .arg(config)
            .env("VCOOP_RUN_DIR", folder.path())
            .stdin(Stdio::null())
            .spawn()
            .context("starting vcoop daemon")?;
        let daemon = Self { folder, process };
        let give_up = Instant::now() + SHORT;
        while !daemon.windows().exists() {
            anyhow::ensure!(Instant::now() < give_up, "the daemon does not serve windows");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// The socket to which VMMs connect.
    fn windows(&self) -> PathBuf {
        self.folder.path().join("window.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
    }
}

/// Runs a command that handles SIGINT itself.
fn wait(command: &mut Command, stop: &AtomicBool) -> anyhow::Result<ExitStatus> {
    let mut child = command.spawn().context("starting vcoop")?;
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) && !told {
            Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
            told = true;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The flag that Ctrl-C and SIGTERM set. A second one ends this process at once, and with it the guest and the hogs.
fn stop_flag() -> anyhow::Result<&'static AtomicBool> {
    static STOP: AtomicBool = AtomicBool::new(false);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if STOP.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            eprintln!("xtask: stopping (Ctrl-C again to end at once)");
        }
    });
    Ok(&STOP)
}
