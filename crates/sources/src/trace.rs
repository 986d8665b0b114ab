//! A recorder of the host's scheduler, through tracefs.
//!
//! ```text
//! tracefs instance -> pages -> events -> timeline
//! ```
//!
//! Its clock is the TSC, as is that of the program that measures with it (a guest's TSC with an offset of 0 is the
//! same), so no time needs converting. It records:
//!
//! * `sched_switch` on the CPUs that the threads may use, of all threads: the thread that ran instead is often a
//!   foreign one;
//! * `sched_waking` and `sched_wakeup` of the measured threads, on all CPUs: a waking is traced on the CPU of the
//!   waker;
//! * of the vCPUs' threads, if this KVM has them: `kvm_entry`, `kvm_exit` and `kvm_vcpu_wakeup`. No other events of
//!   KVM: `kvm_emulate_insn` alone comes a million times a second on a KVM that emulates.
//!
//! Events come in pages, CPU by CPU. A time is *covered* when all events before it have been read. Events that the
//! kernel had to drop leave a gap, which ends for each thread when it is next switched to or from.

pub mod format;
pub mod page;

mod event;
mod instance;
mod timeline;
#[cfg(test)]
mod vmx_tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use vcoop_threads::tsc::{Clock, tsc};

use crate::trace::event::Decoder;
use crate::trace::format::Symbols;
use crate::trace::instance::Instance;
use crate::trace::page::Page;

pub use event::{Comm, Event, EventKind, Reason, SwitchOut, Tid};
pub use timeline::{IDLE, Label, Meter, Span, State, Timeline};

/// Events without which there is no recording.
const NEEDED: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup"];

/// Events that are recorded if they exist.
const VCPUS: [&str; 3] = ["kvm_entry", "kvm_exit", "kvm_vcpu_wakeup"];

/// An event that began to be written before a drain may come with the next one, if its CPU was taken from this host in
/// between. This is how long the drain waits for it.
const MARGIN_NS: u64 = 10_000_000;

/// History kept beyond the last drain: a sample may take this long.
const HISTORY_NS: u64 = 10_000_000_000;

/// Pages that one drain reads of a CPU; its buffer holds at most half as many.
const PAGES: usize = 1024;

/// A thread that is known by name.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its number.
    pub tid: Tid,
    /// Its name in reports of the thread that ran instead.
    pub label: String,
    /// Whether its states are recorded.
    pub measured: bool,
    /// Whether it is a vCPU's thread.
    pub vcpu: bool,
}

/// A recording in progress.
#[derive(Debug)]
pub struct Recorder {
    instance: Instance,
    /// The part of the filter of `sched_switch` that names CPUs.
    on_cpus: String,
    decoder: Decoder,
    clock: Clock,
    timeline: Timeline,
    /// Events that were read but are not covered yet.
    pending: Vec<Event>,
    /// Time of the last event of each CPU.
    last: BTreeMap<u32, u64>,
    /// Whether the threads are known.
    ready: bool,
    /// Why the recording has ended early.
    broken: Option<String>,
    events: u64,
    lost: u64,
    /// TSC at which recording began.
    began: u64,
    /// Names of the exit reasons.
    reasons: Vec<Symbols>,
}

fn path(event: &str) -> String {
    let system = if event.starts_with("kvm_") { "kvm" } else { "sched" };
    format!("{system}/{event}")
}

/// A decoder for the events of this kernel that are needed, and their names.
fn decoder(instance: &Instance) -> Result<(Decoder, Vec<&'static str>), String> {
    let mut decoder = Decoder::default();
    let mut known = Vec::new();
    for event in NEEDED.into_iter().chain(VCPUS) {
        let format = instance.format(&path(event));
        if format.is_some_and(|f| decoder.learn(event, &f)) {
            known.push(event);
        } else if NEEDED.contains(&event) {
            return Err(format!("the event {event} is missing, or its fields are unknown"));
        }
    }
    Ok((decoder, known))
}

/// What could be recorded on this host, or `no: ` and the reason why nothing could.
pub fn describe() -> String {
    match Instance::new("-look").and_then(|instance| decoder(&instance)) {
        Ok((_, events)) => events.join(", "),
        Err(why) => format!("no: {why}"),
    }
}

/// File of the filter of `sched_switch`.
const SWITCHES: &str = "events/sched/sched_switch/filter";

/// Longest filter that the kernel takes: a page.
const MOST_FILTER: usize = 4000;

/// A filter that accepts any of some numbers in a field.
fn any_of(field: &str, numbers: impl IntoIterator<Item = i64>) -> String {
    let terms: Vec<String> = numbers.into_iter().map(|n| format!("{field} == {n}")).collect();
    terms.join(" || ")
}

impl Recorder {
    /// Starts a recording, best before the threads start, so that none of their states is missed. `cpus`: CPUs that the
    /// threads may use.
    ///
    /// # Errors
    ///
    /// What is missing, in words.
    pub fn start(cpus: &[u32], clock: Clock) -> Result<Self, String> {
        // A process may have several, one after the other and side by side.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let instance = Instance::new(&format!("-{number}"))?;
        let (decoder, _) = decoder(&instance)?;
        let exits = instance.format(&path("kvm_exit"));
        let reasons = exits.map(|format| format.symbols().to_vec()).unwrap_or_default();
        // If the filter is refused, more is recorded than needed.
        let on_cpus = any_of("CPU", cpus.iter().map(|c| i64::from(*c)));
        let _ = instance.write(SWITCHES, &on_cpus);
        for event in NEEDED {
            instance.write(&format!("events/{}/enable", path(event)), "1")?;
        }
        instance.write("tracing_on", "1")?;
        Ok(Self {
            instance,
            on_cpus,
            decoder,
            clock,
            timeline: Timeline::new(clock),
            pending: Vec::new(),
            last: BTreeMap::new(),
            ready: false,
            broken: None,
            events: 0,
            lost: 0,
            began: tsc(),
            reasons,
        })
    }

    /// Tells the recorder its threads, all of which have begun. Events recorded so far are evaluated with these
    /// threads.
    pub fn know(&mut self, threads: &[Thread]) {
        let tids = |of: fn(&Thread) -> bool| {
            threads.iter().filter(move |t| of(t)).map(|t| i64::from(t.tid))
        };
        // On other CPUs, too: their affinity may be changed. If that is too long for a filter, the one of the CPUs
        // stays.
        let own = ["prev_pid", "next_pid"].map(|field| any_of(field, tids(|t| t.vcpu)));
        let switches = format!("{} || {}", self.on_cpus, own.join(" || "));
        if !own[0].is_empty() && switches.len() < MOST_FILTER {
            let _ = self.instance.write(SWITCHES, &switches);
        }
        let woken = any_of("pid", tids(|t| t.measured));
        for event in ["sched_waking", "sched_wakeup"] {
            // If it is refused (there are too many of them), more is recorded than needed.
            let _ = self.instance.write(&format!("events/{}/filter", path(event)), &woken);
        }
        let vcpus = any_of("common_pid", tids(|t| t.vcpu));
        for event in VCPUS {
            let at = format!("events/{}", path(event));
            // Without a filter this would record the vCPUs of others too: then rather nothing.
            let _ = self
                .instance
                .write(&format!("{at}/filter"), &vcpus)
                .and_then(|()| self.instance.write(&format!("{at}/enable"), "1"));
        }
        for t in threads {
            self.timeline.know(t.tid, &t.label, t.measured);
        }
        self.ready = true;
    }

    /// The threads are known, and all of them existed when the recording began. So their state before their first event
    /// follows from it.
    pub fn were_there(&mut self) {
        self.timeline.were_there(self.began);
    }

    /// Records wakings of all threads from now on, not only of measured ones.
    pub fn hear_all_wakings(&self) {
        let _ = self.instance.write(&format!("events/{}/filter", path("sched_waking")), "0");
    }

    /// TSC at which the recording began.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Name of an exit reason, or its number.
    pub fn reason(&self, reason: Reason) -> String {
        reason.name(&self.reasons)
    }

    /// Why no more events come, if the recording is broken.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Events lost so far.
    pub fn lost(&self) -> u64 {
        self.instance.lost()
    }

    /// Whether the threads are known.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// What was recorded so far.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Asks for the meters as of this time.
    pub fn mark(&mut self, at: u64) {
        self.timeline.mark(at);
    }

    /// Reads what the kernel has written, and hands events to `tap` in order of time. Does nothing before the threads
    /// are known.
    pub fn drain(&mut self, tap: &mut dyn FnMut(&Event)) {
        let covered = tsc().saturating_sub(self.clock.to_cycles(MARGIN_NS));
        if self.ready && self.read() {
            self.take_in(covered, tap);
            self.timeline.prune(covered.saturating_sub(self.clock.to_cycles(HISTORY_NS)));
        }
    }

    /// Ends the recording. The rest of the events goes to `tap` as in [`drain`](Self::drain).
    pub fn end(&mut self, tap: &mut dyn FnMut(&Event)) {
        let ended = tsc();
        let _ = self.instance.write("tracing_on", "0");
        if self.ready {
            while !self.read() && self.broken.is_none() {}
            if self.broken.is_none() {
                self.take_in(ended, tap);
            }
        }
        self.lost = self.instance.lost();
    }

    /// Number of events read, and of events lost; the second is final only after the end.
    pub fn counts(&self) -> (u64, u64) {
        (self.events, self.lost)
    }

    /// Reads all there is; false: there may be more.
    fn read(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let Self { instance, decoder, pending, last, .. } = self;
        let layout = instance.layout();
        let result = instance.read(PAGES, |cpu, bytes| {
            let since = last.get(&cpu).copied().unwrap_or(0);
            let Some(page) = Page::new(bytes, &layout) else {
                // One event long: what it held is missing.
                pending.push(Event { time: since, cpu, kind: EventKind::Lost { since } });
                return;
            };
            let mut at = since;
            if page.missed().is_some() {
                pending.push(Event { time: page.time(), cpu, kind: EventKind::Lost { since } });
            }
            let mut records = page.records();
            for record in records.by_ref() {
                at = record.time;
                if let Some(what) = decoder.decode(record.data) {
                    pending.push(Event { time: at, cpu, kind: what });
                }
            }
            if records.is_broken() {
                pending.push(Event { time: at, cpu, kind: EventKind::Lost { since: at } });
            }
            last.insert(cpu, at);
        });
        let now = tsc();
        let result = result.and_then(|all| {
            // Then nothing of it can be held against a sample.
            let ahead = self.last.values().any(|time| *time > now);
            if ahead { Err("the trace's clock is not the TSC".to_owned()) } else { Ok(all) }
        });
        result.unwrap_or_else(|why| {
            self.broken = Some(why);
            false
        })
    }

    /// Evaluates the events before this time, in order.
    fn take_in(&mut self, covered: u64, tap: &mut dyn FnMut(&Event)) {
        // Stable: those of one CPU stay in their order.
        self.pending.sort_by_key(|e| e.time);
        let now = self.pending.partition_point(|e| e.time < covered);
        for event in self.pending.drain(..now) {
            self.events += 1;
            tap(&event);
            if event.time < self.timeline.covered() {
                // It came too late for its time: what follows from it is not known.
                let what = EventKind::Lost { since: event.time };
                self.timeline.apply(&Event { kind: what, ..event });
            } else {
                self.timeline.apply(&event);
            }
        }
        self.timeline.settle(covered);
    }
}

#[cfg(test)]
mod tests {
    use super::any_of;

    #[test]
    fn filters_name_each_number() {
        assert_eq!(any_of("pid", [7, 12]), "pid == 7 || pid == 12");
    }

    #[test]
    fn what_can_be_recorded_is_said_or_why_not() {
        let said = super::describe();
        assert!(said.starts_with("no: ") || said.starts_with("sched_switch, "), "{said}");
    }
}
