//! Measures how late a watcher learns of events, and what watching costs: a thread's sleeps, by perf events of the
//! thread, by BPF for a watcher that sleeps and one that polls, and by a tracefs instance with a filter; and interrupts of the VMs that run under KVM, by BPF.
//! `cargo run --release -p vcoop-daemon --features bpf --example reaction`, as root; uses the last two CPUs for some
//! seconds.

use std::error::Error;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use vcoop_bpf::{Events, Unsupported, WatchedVcpu};
use vcoop_sources::{Source, ThreadEventKind};
use vcoop_threads::clock::{ClockId, kernel_clock, monotonic};
use vcoop_threads::{Attributes, allowed_cpus, gettid, pin};
use vcoop_vmm::{Accel, Proc};

/// Sleeps of the watched thread.
const ROUNDS: u32 = 3_000;
/// Time for which interrupts are recorded.
const LISTEN: Duration = Duration::from_secs(5);
/// Longest time between two checks whether the measurement is over.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The CPU time of the calling thread.
const OWN_TIME: ClockId = ClockId::ThreadCPUTime;

/// A thread that works and sleeps, and says when it is about to.
struct Sleeper {
    tid: i32,
    asleep_at: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sleeper {
    fn start(cpu: u32) -> Self {
        let (asleep_at, over, tid) =
            (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)), AtomicI32::new(0));
        let tid = Arc::new(tid);
        let (at, done, own) = (asleep_at.clone(), over.clone(), tid.clone());
        let thread = thread::spawn(move || {
            pin(&[cpu]).expect("the CPU is there");
            own.store(gettid(), Ordering::Release);
            thread::sleep(Duration::from_millis(100));
            for _ in 0..ROUNDS {
                let began = monotonic();
                while monotonic() < began + 100_000 {}
                at.store(monotonic(), Ordering::Release);
                thread::sleep(Duration::from_micros(900));
            }
            done.store(true, Ordering::Release);
        });
        while tid.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        Self { tid: tid.load(Ordering::Acquire), asleep_at, over, thread }
    }
}

/// What a watcher recorded: the delay of each event in nanoseconds, and the CPU time used.
struct Heard {
    late: Vec<u64>,
    cpu: u64,
}

/// Without an epoll, the watcher polls.
fn watch(
    sleeper: &Sleeper,
    epoll: Option<&OwnedFd>,
    mut sleeps: impl FnMut() -> bool,
) -> Result<Heard, Box<dyn Error>> {
    let (mut late, mut last) = (Vec::new(), 0);
    let cpu = kernel_clock(OWN_TIME);
    while !sleeper.over.load(Ordering::Acquire) {
        if let Some(epoll) = epoll {
            let mut events = Vec::with_capacity(8);
            epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&LOOK))?;
            if events.is_empty() {
                continue;
            }
        }
        let now = monotonic();
        if !sleeps() {
            continue;
        }
        let at = sleeper.asleep_at.load(Ordering::Acquire);
        if at > last {
            late.push(now.saturating_sub(at));
            last = at;
        }
    }
    Ok(Heard { late, cpu: kernel_clock(OWN_TIME) - cpu })
}

fn source(mut source: Source, cpu: u32, polls: bool) -> Result<Heard, Box<dyn Error>> {
    let sleeper = Sleeper::start(cpu);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    source.watch(sleeper.tid, 0, epoll.as_fd())?;
    source.await_run(sleeper.tid);
    let heard = watch(&sleeper, (!polls).then_some(&epoll), || {
        let mut slept = false;
        let mut ran = false;
        for token in [sleeper.tid, 0] {
            source.take(token, &mut |_, happened| match happened.kind {
                ThreadEventKind::Sleeps => slept = true,
                _ => ran = true,
            });
        }
        slept |= ran && source.await_sleep(sleeper.tid);
        if slept {
            source.await_run(sleeper.tid);
        }
        slept
    });
    sleeper.thread.join().expect("it does not panic");
    heard
}

/// A tracefs instance that is removed when dropped.
struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn tracefs(cpu: u32) -> Result<Heard, Box<dyn Error>> {
    let sleeper = Sleeper::start(cpu);
    let root = Path::new("/sys/kernel/tracing/instances");
    let instance = Instance(root.join(format!("vcoop-reaction-{}", std::process::id())));
    fs::create_dir(&instance.0)?;
    let write = |file: &str, text: &str| fs::write(instance.0.join(file), text);
    let own = format!("prev_pid == {} && prev_state == 1", sleeper.tid);
    write("events/sched/sched_switch/filter", &own)?;
    write("events/sched/sched_switch/enable", "1")?;
    write("buffer_percent", "0")?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let pipe = instance.0.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
    let mut pipe: File = fs::OpenOptions::new().read(true).custom_flags(0o4000).open(pipe)?;
    epoll::add(&epoll, &pipe, EventData::new_u64(0), EventFlags::IN)?;
    let mut page = vec![0; 4096];
    let heard = watch(&sleeper, Some(&epoll), || pipe.read(&mut page).is_ok_and(|n| n > 0));
    sleeper.thread.join().expect("it does not panic");
    heard
}

/// Interrupts of the VMs that run. Their delay counts from KVM's event; the delay of sleeps counts from before the call
/// that sleeps.
fn interrupts() -> Result<(&'static str, Heard), Box<dyn Error>> {
    let mut source = Events::open()?;
    for vm in Proc::default().scan()?.vms.iter().filter(|vm| vm.accel == Accel::Kvm) {
        for vcpu in &vm.vcpus {
            let (tid, apic) = (vcpu.thread.tid.cast_signed(), vcpu.kvm_id.unwrap_or(vcpu.index));
            source.watch(tid, || false)?;
            source.hear_interrupts(WatchedVcpu { process: vm.pid, tid, apic })?;
        }
    }
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, source.ready(), EventData::new_u64(0), EventFlags::IN)?;
    let (mut late, began) = (Vec::new(), Instant::now());
    let cpu = kernel_clock(OWN_TIME);
    while began.elapsed() < LISTEN {
        let mut events = Vec::with_capacity(8);
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&LOOK))?;
        let now = monotonic();
        late.extend(source.take().0.iter().map(|heard| now.saturating_sub(heard.at)));
    }
    if late.is_empty() {
        return Err("no VM under KVM had one".into());
    }
    let heard = Heard { late, cpu: kernel_clock(OWN_TIME) - cpu };
    if let (runs @ 1.., ns) = programs()? {
        println!("its programs ran {runs} times, for {} ns each", ns / runs);
    }
    Ok((source.interrupts().map_err(Unsupported::clone)?, heard))
}

/// Runs and nanoseconds of the BPF programs that this process holds. The kernel counts them with
/// `sysctl kernel.bpf_stats_enabled=1`.
fn programs() -> Result<(u64, u64), Box<dyn Error>> {
    let mut sum = (0, 0);
    for info in fs::read_dir("/proc/self/fdinfo")? {
        // One that has been closed meanwhile is none of them.
        let info = fs::read_to_string(info?.path()).unwrap_or_default();
        let number = |key: &str| -> u64 {
            let line = info.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        sum.0 += number("run_cnt:");
        sum.1 += number("run_time_ns:");
    }
    Ok(sum)
}

fn say(name: &str, heard: Heard) {
    let Heard { mut late, cpu } = heard;
    late.sort_unstable();
    let at = |part: f64| late[((late.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    println!(
        "{name:10} {:5} heard, late by p50 {:.1} us, p99 {:.1} us, max {:.1} us; {:.1} us of CPU time each",
        late.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        cpu as f64 / 1e3 / late.len() as f64,
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let cpus = allowed_cpus()?;
    let [.., watcher, watched] = cpus[..] else { return Err("this takes two CPUs".into()) };
    pin(&[watcher])?;
    Attributes::from_policy(&vcoop_policy::thread::Policy::Fifo(90)).set(0)?;
    for _ in 0..3 {
        let unwanted = Unsupported { what: "not wanted here".to_owned(), remedy: "" };
        say("perf", source(Source::without_bpf(unwanted)?, watched, false)?);
        let best = Source::open()?;
        if best.name() == "perf" {
            println!("BPF: this build has none, or this kernel");
        } else {
            say("BPF", source(best, watched, false)?);
            say("BPF, polls", source(Source::open()?, watched, true)?);
        }
        say("tracefs", tracefs(watched)?);
        match interrupts() {
            Ok((name, heard)) => say(name, heard),
            Err(why) => println!("interrupts: {why}"),
        }
    }
    Ok(())
}
