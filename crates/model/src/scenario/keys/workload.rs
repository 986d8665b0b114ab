//! The workload tables: `[[load]]` on the host, `[[vm.task]]` in a guest.
//!
//! Both levels share the kinds. A table has the keys common to all kinds and those of its `kind`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

mod rogue;
mod routine;

use crate::diagnostic::nearest;
use crate::plan::Dist;
use crate::toml_read::table::{SharedKeys, table};
use crate::toml_read::units::{CpuList, Percent, Period, Span1, Time, time_pattern};
use crate::toml_read::value::{Factor, Int, Name, choice};
use crate::toml_read::{Placed, Reader, Table, TableSchema, Text};
use vcoop_sched::config::Policy;

pub(crate) use rogue::{Abuse, Rogue, named};
pub(crate) use routine::{
    Barrier, Client, CstateMonitor, Groups, IpiBench, IpiMode, LockWorkers, MessageChannel, Pipe,
    RtApp, Schbench, SectionKeys, StepKeys, TimerBench, TimerWait,
};

/// When a task starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartTime {
    /// Nanoseconds from there.
    pub(crate) ns: u64,
    /// From the login of its VM, not from the start.
    pub(crate) login: bool,
}

impl Text for StartTime {
    const WHAT: &'static str = "a time (\"5s\"), \"login\" or \"login + 5s\"";
    const PATTERN: &'static str =
        concat!(r"^\s*(login(\s*\+\s*", time_pattern!(), r")?|", time_pattern!(), r")\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.trim().strip_prefix("login") else {
            return Time::parse(text).map(|time| Self { ns: time.0, login: false });
        };
        let ns = match rest.trim_start().strip_prefix('+') {
            Some(time) => Time::parse(time)?.0,
            None if rest.is_empty() => 0,
            None => return Err(format!("`{}` is no time", text.trim())),
        };
        Ok(Self { ns, login: true })
    }
}

table! {
    /// Keys of every workload.
    pub(crate) struct CommonKeys {
        /// Name; probes, `--set` and reports refer to it.
        name: Placed<Name>,
        /// False: it is left out of the scenario. A matrix can vary it.
        enabled: Placed<bool> = "true",
        /// Copies, named NAME/0, NAME/1, ... when there are several.
        count: Placed<Int<1, 1024>> = "1",
        /// Scheduling policy. Default: that of the file for threads of a capture or of rt-app, else other.
        policy: Option<Placed<Policy>>,
        /// CPUs it may use: pCPUs for a load, vCPUs for a guest task. If it is "all", threads of rt-app keep the
        /// CPUs of their file, and those of a capture with cpu_map = "wrap".
        cpus: Placed<CpuList> = "all",
        /// When it starts, from the start of the warm-up; in a VM of a storm from its VMStart; "login" or
        /// "login + 5s": from the end of its VM's boot program. With 0s the simulator draws a time of the warm-up's
        /// first 100 ms for each task; threads of a capture or of rt-app start together.
        start: Placed<StartTime> = "0s",
        /// The `[[group]]` that its threads are in (loads only). Default: none.
        group: Option<Placed<Name>>,
        /// Process that it is a thread of (guests only): tasks of one process share an address space, which is what
        /// TLB flushes are about. Default: each name is a process.
        process: Option<Placed<Name>>,
        /// Timer slack of its sleeps. Default: 0 under fifo, rr and deadline, for cyclictest, ping and timer-bench,
        /// which set it so, and for servers and desktops, whose sleeps no timer ends; else 50 us, as in Linux.
        slack: Option<Placed<Time>>,
    }
}

choice! {
    /// How cyclictest counts.
    pub(crate) enum CyclicMode {
        /// Absolute due times.
        Absolute = "absolute",
        /// Each sleep starts when the last one's work ended (`-r`).
        Relative = "relative",
    }
}

table! {
    /// Wakes up at a period. Measures how late each wake-up is.
    pub(crate) struct Cyclictest {
        /// Period.
        interval: Placed<Period> = "1ms",
        /// Each copy's period is longer than the previous copy's by this (`-d`).
        distance: Placed<Time> = "0us",
        /// Due times: absolute, or counted from the end of the last work.
        mode: Placed<CyclicMode> = "absolute",
        /// CPU time after each wake-up.
        work: Placed<Dist> = "5us",
    }
}

table! {
    /// Uses the CPU all the time.
    pub(crate) struct Hog {
        /// Share of its time that it spends in kernel sections.
        kernel: Placed<Percent<100>> = "0%",
        /// Length of a kernel section.
        section: Placed<Dist> = "exp 50us",
        /// Of the host: on a live one `stress-ng` does the work, by this `--cpu-method`. It must be installed there. In
        /// the simulator it is like any other hog.
        stress_ng: Option<Placed<Name>>,
    }
}

table! {
    /// Runs for a fixed part of each period.
    pub(crate) struct Duty {
        /// Period.
        period: Placed<Period> = "10ms",
        /// CPU time in each period. Instead of `util`.
        on: Option<Placed<Span1>>,
        /// CPU time as a share of the period. Default, without `on`: 50%.
        util: Option<Placed<Percent<100>>>,
        /// Periods start at multiples of the period. A period that begins before the previous period's work has ended
        /// is left out. False: a sleep follows the work. With util = "100%" there is no sleep.
        phase_locked: Placed<bool> = "true",
        /// `on` is time by the clock, as `stress-ng --timeout`, and not CPU time. It comes first in each period. Needs
        /// `phase_locked`.
        by_clock: Placed<bool> = "false",
    }
}

table! {
    /// Runs and sleeps for random times.
    pub(crate) struct Bursty {
        /// CPU time of a burst.
        burst: Placed<Dist> = "exp 4ms",
        /// Sleep between bursts.
        idle: Placed<Dist> = "exp 6ms",
        /// Server that it calls after each burst, and whose answer it waits for: `host.LOAD` or
        /// `VM.TASK`. Of several copies on both sides, copy n calls copy n modulo the servers.
        server: Option<Placed<String>>,
        /// vCPU that takes the interrupts of answers from outside of the VM.
        irq_vcpu: Placed<Int<0, 255>> = "0",
    }
}

table! {
    /// A mix like stress-ng's: compute in user mode, system calls in between, sometimes a long kernel section,
    /// sometimes a short sleep.
    pub(crate) struct Stress {
        /// User compute between system calls.
        user: Placed<Dist> = "exp 400us",
        /// A system call.
        kernel: Placed<Dist> = "exp 20us",
        /// Rounds of the two before a long section.
        rounds: Placed<Int<1, 64>> = "16",
        /// A long kernel section (page reclaim, truncation, ...).
        long: Placed<Dist> = "exp 300us max 2ms",
        /// Sleep after the long section (waiting for a lock, a pipe, a disk).
        sleep: Placed<Dist> = "exp 200us",
    }
}

table! {
    /// A browser that runs a benchmark: a main thread that computes in bursts, a compositor and a raster
    /// thread at the frame rate, workers (script compilation, garbage collection).
    pub(crate) struct Browser {
        /// System call after a burst of any thread.
        syscall: Placed<Dist> = "exp 30us",
        /// Frame period.
        frame: Placed<Period> = "16667us",
        /// Workers.
        workers: Placed<Int<0, 64>> = "3",
    }
}

/// A duration, or a number of audio frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AudioTime {
    /// Nanoseconds.
    Ns(u64),
    /// Frames at the stream's rate.
    Frames(u64),
}

impl Text for AudioTime {
    const WHAT: &'static str = "a number of frames (\"96 frames\") or a duration (\"2ms\")";
    const PATTERN: &'static str = concat!(r"^\s*([0-9]+\s*frames|", time_pattern!(), r")\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let Some(number) = text.trim().strip_suffix("frames") else {
            return Period::parse(text).map(|time| Self::Ns(time.0));
        };
        match number.trim().parse() {
            Ok(frames @ 1..=10_000_000) => Ok(Self::Frames(frames)),
            _ => Err(format!("`{}` is no possible number of frames", number.trim())),
        }
    }
}

choice! {
    /// What wakes an audio callback.
    pub(crate) enum AudioSource {
        /// A device interrupt (guests only).
        Device = "device",
        /// A timer of its own.
        Timer = "timer",
    }
}

table! {
    /// An audio callback: each period a burst of work is due. If it ends later than the buffer lasts, that is a glitch.
    /// Measures how late each callback begins.
    pub(crate) struct Audio {
        /// Frames a second.
        rate: Placed<Int<1_000, 1_000_000>> = "48000",
        /// A burst: what the device takes at once, and so the time between callbacks.
        period: Placed<AudioTime> = "96 frames",
        /// Audio queued ahead of the device.
        buffer: Placed<AudioTime> = "192 frames",
        /// CPU time of a callback.
        work: Placed<Dist> = "200us",
        /// What wakes it. Default: a device in a guest, a timer on the host.
        source: Option<Placed<AudioSource>>,
        /// vCPU that takes the device's interrupt.
        irq_vcpu: Placed<Int<0, 255>> = "0",
    }
}

table! {
    /// A server: waits for calls, uses the CPU for each in the order of their arrival, and answers it.
    pub(crate) struct Server {
        /// CPU time of a call.
        work: Placed<Dist> = "2us",
        /// Sleep after the work and before the answer, as for a disk. Later calls wait meanwhile; several copies serve
        /// in parallel.
        wait: Placed<Dist> = "0us",
        /// What it does under a lock for each call, before the work.
        guarded: SharedKeys<SectionKeys>,
        /// vCPU that takes the interrupts of calls from outside of the VM.
        irq_vcpu: Placed<Int<0, 255>> = "0",
    }
}

table! {
    /// Calls a server at a period, and measures the round trip by its own clock (vmping, TCP_RR). It is a closed loop:
    /// periods that pass before a call is made or answered are missed.
    pub(crate) struct Ping {
        /// Server that it calls: `host.LOAD` or `VM.TASK`; of several copies `VM.TASK/0`, or without
        /// the number copy n modulo the servers.
        server: Placed<String>,
        /// Period.
        interval: Placed<Period> = "1ms",
        /// CPU time after each answer.
        work: Placed<Dist> = "0us",
        /// vCPU that takes the interrupts of answers from outside of the VM.
        irq_vcpu: Placed<Int<0, 255>> = "0",
    }
}

choice! {
    /// What a VM does when it has booted.
    pub(crate) enum AfterBoot {
        /// Its tasks with start = "login".
        Tasks = "tasks",
        /// A CPU loop, and none of these tasks.
        Hog = "hog",
        /// Nothing: none of these tasks.
        None = "none",
    }
}

table! {
    /// Boots, until VMLogin: rounds of a burst of compute and an I/O call, sometimes with a longer burst (guests only).
    pub(crate) struct Boot {
        /// Rounds.
        rounds: Placed<Int<1, 10_000_000>> = "1000",
        /// CPU time before each call.
        burst: Placed<Dist> = "exp 10us",
        /// Rounds from one longer burst to the next; 0: there are none.
        every: Placed<Int<0, 10_000_000>> = "0",
        /// CPU time of a longer burst, besides the round's own.
        long: Placed<Dist> = "exp 1ms",
        /// Server that does the I/O: `host.LOAD` or `VM.TASK`; of several copies, caller n calls copy n modulo the
        /// servers. Default: no I/O.
        server: Option<Placed<String>>,
        /// vCPU that takes the interrupts of answers from outside of the VM.
        irq_vcpu: Placed<Int<0, 255>> = "0",
        /// Work after VMLogin.
        then: Placed<AfterBoot> = "tasks",
    }
}

table! {
    /// A user at an office desktop (LoginVSI-like), who thinks and then starts an action: several bursts of
    /// CPU with an I/O call between each two (guests only). Measures the response time: from the end of
    /// the thinking to the end of the last burst.
    pub(crate) struct Desktop {
        /// Time between two actions.
        think: Placed<Dist> = "exp 2s",
        /// Bursts of an action.
        bursts: Placed<Int<1, 100_000>> = "20",
        /// CPU time of a burst.
        burst: Placed<Dist> = "exp 1ms",
        /// Server that does the I/O: `host.LOAD` or `VM.TASK`; of several copies, caller n calls copy n modulo the
        /// servers. Default: no I/O.
        server: Option<Placed<String>>,
        /// vCPU that takes the interrupts of answers from outside of the VM.
        irq_vcpu: Placed<Int<0, 255>> = "0",
    }
}

choice! {
    /// Which CPUs take the place of those that a captured thread was bound to.
    pub(crate) enum CpuMap {
        /// CPU n of the captured machine becomes n modulo the CPUs here.
        Wrap = "wrap",
        /// Bindings are dropped.
        Free = "free",
    }
}

table! {
    /// Threads of a recorded machine, played back: their CPU demand, sleeps and wake-ups.
    pub(crate) struct Capture {
        /// A capture file, relative to the scenario's, or `builtin:NAME`.
        file: Placed<String>,
        /// CPU demand times this; sleeps stay.
        scale: Placed<Factor> = "1.0",
        /// Start again at the end.
        r#loop: Placed<bool> = "true",
        /// Only this many threads, those with the most CPU demand.
        threads: Option<Placed<Int<1, 100_000>>>,
        /// Spread the threads' starts evenly over this time.
        jitter: Placed<Time> = "0s",
        /// What becomes of captured CPU bindings.
        cpu_map: Placed<CpuMap> = "free",
        /// The capture is of the thread of a vCPU (guests only). The time for exits, the guest's kernel and switches is
        /// part of the captured runs, and is not added to them. The simulated thread wakes up at the captured times,
        /// even if it was delayed.
        of_vcpu: Placed<bool> = "false",
    }
}

/// Kinds that the host does not have.
const GUEST_ONLY: [&str; 9] = [
    "rogue",
    "boot",
    "desktop",
    "lock-workers",
    "barrier",
    "ipi-bench",
    "timer-bench",
    "cstate-monitor",
    "rt-app",
];

/// Declares the kinds: word and table.
macro_rules! kinds {
    ($( $word:literal => $table:ident ),+ $(,)?) => {
        /// What a workload does.
        #[derive(Clone, Debug)]
        pub(crate) enum Kind {
            $( #[doc = concat!("`kind = \"", $word, "\"`.")] $table($table), )+
        }

        impl Kind {
            /// Every kind, in order.
            pub(crate) const WORDS: &'static [&'static str] = &[$($word),+];

            fn read(word: &str, reader: &mut Reader<'_>) -> Option<Self> {
                match word {
                    $( $word => $table::read_fields(reader).map(Self::$table), )+
                    _ => None,
                }
            }

            fn schemas(generator: &mut SchemaGenerator, guest: bool) -> Vec<Schema> {
                let mut all = Vec::new();
                $( if guest || !GUEST_ONLY.contains(&$word) {
                    let mut schema = TableSchema::new(generator);
                    schema.constant("kind", $word, $table::ABOUT.trim());
                    CommonKeys::describe(&mut schema);
                    $table::describe(&mut schema);
                    all.push(schema.finish($table::ABOUT));
                } )+
                all
            }
        }
    };
}

kinds! {
    "cyclictest" => Cyclictest,
    "hog" => Hog,
    "duty" => Duty,
    "bursty" => Bursty,
    "stress" => Stress,
    "browser" => Browser,
    "audio" => Audio,
    "server" => Server,
    "ping" => Ping,
    "boot" => Boot,
    "desktop" => Desktop,
    "capture" => Capture,
    "rogue" => Rogue,
    "client" => Client,
    "pipe" => Pipe,
    "groups" => Groups,
    "schbench" => Schbench,
    "lock-workers" => LockWorkers,
    "barrier" => Barrier,
    "ipi-bench" => IpiBench,
    "timer-bench" => TimerBench,
    "cstate-monitor" => CstateMonitor,
    "rt-app" => RtApp,
}

/// A workload table of either level.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// Keys of every kind.
    pub(crate) common: CommonKeys,
    /// Keys of its kind.
    pub(crate) kind: Kind,
}

fn read_workload(reader: &mut Reader<'_>, guest: bool) -> Option<Workload> {
    let words: Vec<&str> =
        Kind::WORDS.iter().copied().filter(|word| guest || !GUEST_ONLY.contains(word)).collect();
    let word: Option<Placed<String>> = reader.field("kind", "").flatten();
    let common = CommonKeys::read_fields(reader);
    let Some(Placed { value: word, span }) = word else {
        if reader.table.get("kind").is_none() {
            let help = format!("add `kind = ...`, one of {}", words.join(", "));
            reader.errors.error_help(reader.span, "missing key `kind`", help);
        }
        // Which keys are valid depends on the kind, so none is reported as unknown.
        reader.accept_all();
        return None;
    };
    if !words.contains(&word.as_str()) {
        let help = nearest(&word, "kinds", &words);
        let place = if guest { "" } else { " on the host" };
        reader.errors.error_help(span, format!("there is no kind `{word}`{place}"), help);
        reader.accept_all();
        return None;
    }
    let kind = Kind::read(&word, reader);
    Some(Workload { common: common?, kind: kind? })
}

/// A table of workloads of a level.
#[derive(Clone, Debug)]
pub(crate) struct Load<const GUEST: bool>(pub(crate) Workload);

/// A load or probe of the host.
pub(crate) type HostLoad = Load<false>;
/// A task of a guest.
pub(crate) type GuestTask = Load<true>;

impl<const GUEST: bool> Table for Load<GUEST> {
    const ABOUT: &'static str =
        if GUEST { "A task of a guest." } else { "A load or probe of the host." };

    fn read_fields(reader: &mut Reader<'_>) -> Option<Self> {
        read_workload(reader, GUEST).map(Self)
    }

    fn describe(_: &mut TableSchema<'_>) {}
}

impl<const GUEST: bool> JsonSchema for Load<GUEST> {
    fn schema_name() -> Cow<'static, str> {
        if GUEST { "GuestTask" } else { "HostLoad" }.into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let kinds = Kind::schemas(generator, GUEST);
        json_schema!({ "description": Self::ABOUT, "oneOf": kinds })
    }
}
