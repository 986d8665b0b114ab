//! A recorder of the host's scheduler, through tracefs.
//!
//! ```text
//! tracefs instance -> pages -> events -> timeline
//! ```
//!
//! Its clock is the TSC, as that of whoever measures with it (a guest's TSC with an offset of 0 is
//! the same), so no time needs converting. What is recorded:
//!
//! * `sched_switch` on the CPUs that the threads may use, all of it: who ran instead is as
//!   often a stranger;
//! * `sched_waking` and `sched_wakeup` of the measured threads, on all CPUs: a waking is traced by
//!   the thread that wakes;
//! * of the vCPUs' threads, where this KVM has them: `kvm_entry`, `kvm_exit` and `kvm_vcpu_wakeup`.
//!   Never others: `kvm_emulate_insn` alone comes a million times a second on a KVM that emulates.
//!
//! Events come in pages, CPU by CPU. A time is *covered* when everything before it has been taken
//! in. Events that the kernel had to drop leave a gap, which ends for each thread when it is next
//! switched to or from.

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

pub use event::{Comm, Event, Leaves, Reason, Tid, What};
pub use timeline::{IDLE, Label, Meter, Span, State, Timeline};

/// Events that must be there.
const NEEDED: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup"];

/// Events that tell more where there are any.
const VCPUS: [&str; 3] = ["kvm_entry", "kvm_exit", "kvm_vcpu_wakeup"];

/// An event that began to be written before a drain may come with the next one, if its CPU was taken
/// from this host in between. So long is waited for it.
const MARGIN_NS: u64 = 10_000_000;

/// History kept, beyond what the next drain brings: a sample may take this long.
const HISTORY_NS: u64 = 10_000_000_000;

/// Pages a CPU in one drain; its buffer holds at most half as many.
const PAGES: usize = 1024;

/// A thread that is known by name.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its number.
    pub tid: Tid,
    /// What it is called as the one who ran instead.
    pub label: String,
    /// What it does is followed.
    pub measured: bool,
    /// It is a vCPU's.
    pub vcpu: bool,
}

/// A recording in progress.
#[derive(Debug)]
pub struct Recorder {
    instance: Instance,
    /// The part of the filter of switches that names CPUs.
    on_cpus: String,
    decoder: Decoder,
    clock: Clock,
    timeline: Timeline,
    /// Read, but later than what is covered.
    pending: Vec<Event>,
    /// Time of the last event of each CPU.
    last: BTreeMap<u32, u64>,
    /// The threads are known.
    ready: bool,
    /// Nothing more comes: why.
    broken: Option<String>,
    events: u64,
    lost: u64,
    /// When recording was on.
    began: u64,
    /// Names of the reasons for leaving guest mode.
    reasons: Vec<Symbols>,
}

fn path(event: &str) -> String {
    let system = if event.starts_with("kvm_") { "kvm" } else { "sched" };
    format!("{system}/{event}")
}

/// The events that this kernel has for us, and a decoder for them.
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

/// What could be recorded on this host, or why nothing could: `no: ` and the reason.
pub fn describe() -> String {
    match Instance::new("-look").and_then(|instance| decoder(&instance)) {
        Ok((_, events)) => events.join(", "),
        Err(why) => format!("no: {why}"),
    }
}

/// The filter of switches.
const SWITCHES: &str = "events/sched/sched_switch/filter";

/// Longest filter that the kernel takes: a page.
const MOST_FILTER: usize = 4000;

/// A filter for any of some numbers of a field.
fn any_of(field: &str, numbers: impl IntoIterator<Item = i64>) -> String {
    let terms: Vec<String> = numbers.into_iter().map(|n| format!("{field} == {n}")).collect();
    terms.join(" || ")
}

impl Recorder {
    /// Starts one, best before its threads start: so no state of theirs is missed. `cpus`: those
    /// that the threads may use.
    ///
    /// # Errors
    ///
    /// What is missing, for people.
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

    /// The threads are these, and all of them have begun. What was recorded so far is looked at with
    /// this in mind.
    pub fn know(&mut self, threads: &[Thread]) {
        let tids = |of: fn(&Thread) -> bool| {
            threads.iter().filter(move |t| of(t)).map(|t| i64::from(t.tid))
        };
        // On other CPUs, too: somebody may let them go there. If that is too long for a filter, the one of the CPUs stays.
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

    /// The threads are known, and all of them were there when the recording began: what they did
    /// until their first event follows from it.
    pub fn were_there(&mut self) {
        self.timeline.were_there(self.began);
    }

    /// Wakings of all threads are recorded from now on, not only of those that are measured.
    pub fn hear_all_wakings(&self) {
        let _ = self.instance.write(&format!("events/{}/filter", path("sched_waking")), "0");
    }

    /// When the recording began.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Name of a reason for leaving guest mode, or its number.
    pub fn reason(&self, reason: Reason) -> String {
        reason.name(&self.reasons)
    }

    /// Why nothing more comes, if the recording is broken.
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

    /// Has the meters read at this time.
    pub fn mark(&mut self, at: u64) {
        self.timeline.mark(at);
    }

    /// Takes in what the kernel has written, and hands it out in order of time. Not before the
    /// threads are known.
    pub fn drain(&mut self, tap: &mut dyn FnMut(&Event)) {
        let covered = tsc().saturating_sub(self.clock.to_cycles(MARGIN_NS));
        if self.ready && self.read() {
            self.take_in(covered, tap);
            self.timeline.prune(covered.saturating_sub(self.clock.to_cycles(HISTORY_NS)));
        }
    }

    /// The recording is over: nothing more comes. The rest is handed out as by
    /// [`drain`](Self::drain).
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

    /// Events taken in, and events lost; the second only after the end.
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
                pending.push(Event { time: since, cpu, what: What::Lost { since } });
                return;
            };
            let mut at = since;
            if page.missed().is_some() {
                pending.push(Event { time: page.time(), cpu, what: What::Lost { since } });
            }
            let mut records = page.records();
            for record in records.by_ref() {
                at = record.time;
                if let Some(what) = decoder.decode(record.data) {
                    pending.push(Event { time: at, cpu, what });
                }
            }
            if records.is_broken() {
                pending.push(Event { time: at, cpu, what: What::Lost { since: at } });
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

    /// Takes in the events before this time, in order.
    fn take_in(&mut self, covered: u64, tap: &mut dyn FnMut(&Event)) {
        // Stable: those of one CPU stay in their order.
        self.pending.sort_by_key(|e| e.time);
        let now = self.pending.partition_point(|e| e.time < covered);
        for event in self.pending.drain(..now) {
            self.events += 1;
            tap(&event);
            if event.time < self.timeline.covered() {
                // It came too late for its time: what follows from it is not known.
                let what = What::Lost { since: event.time };
                self.timeline.apply(&Event { what, ..event });
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
