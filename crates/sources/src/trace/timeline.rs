//! States of the known threads, and the thread on each CPU, from the events in order of time.
//!
//! | event | state of the thread |
//! | --- | --- |
//! | switched to | [`Running`](State::Running) |
//! | switched from, runnable | [`Preempted`](State::Preempted) |
//! | switched from, in an uninterruptible sleep | [`Blocked`](State::Blocked) |
//! | switched from, else | [`Asleep`](State::Asleep) |
//! | waking or on a queue, while asleep | [`Waking`](State::Waking) |
//! | enters, leaves guest mode, while running | [`Guest`](State::Guest), `Running` |
//! | end of a halt | its running part was [`Polling`](State::Polling) |
//! | events lost | [`Unknown`](State::Unknown), until it is switched to or from |
//!
//! A waking that comes while a thread still runs is ignored: either it has no effect, or the thread is about to sleep
//! and will be seen on a queue afterwards.

use std::collections::{BTreeMap, VecDeque};

use vcoop_threads::tsc::Clock;

use super::event::{Comm, Event, EventKind, SwitchOut, Tid};

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not known.
    Unknown,
    /// The thread sleeps; a vCPU's thread: the vCPU is halted.
    Asleep,
    /// It sleeps uninterruptibly: in a page fault, for I/O, or for a lock of the host's kernel.
    Blocked,
    /// The thread has been woken and has not run yet.
    Waking,
    /// The thread lost its CPU while runnable.
    Preempted,
    /// The thread has a CPU.
    Running,
    /// The thread has a CPU and is in guest mode; only if the kernel reports that.
    Guest,
    /// The vCPU is halted, and the host's kernel polls for its wake-up.
    Polling,
}

/// A stretch of time in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// State of the thread.
    pub state: State,
    /// TSC of the beginning.
    pub from: u64,
    /// TSC of the end.
    pub to: u64,
    /// The CPU that it runs on, or that it waits for.
    pub cpu: u32,
}

/// CPU time and waits of a thread since the beginning, in cycles, as the kernel counts them in `schedstat`: a wait
/// counts when it is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// CPU time.
    pub exec: u64,
    /// Time on run queues.
    pub wait: u64,
}

/// What had a CPU: the idle thread, an unknown thread, or a name.
pub type Label = u32;
/// The idle thread.
pub const IDLE: Label = 0;
/// Not known.
const UNKNOWN: Label = 1;
/// All names beyond [`MOST_LABELS`].
const OTHERS: Label = 2;

/// Most names, and most threads remembered: foreign threads choose their own names.
const MOST_LABELS: usize = 256;
const MOST_THREADS: usize = 4096;

/// Most segments kept of a thread and of a CPU: some seconds of a busy one.
const MOST_SEGMENTS: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Segment {
    from: u64,
    state: State,
    cpu: u32,
}

#[derive(Clone, Debug)]
struct Track {
    /// The last segment has no end yet.
    segments: VecDeque<Segment>,
    /// TSC since which the thread is on a queue.
    queued: Option<u64>,
    /// TSC since which the thread is on a CPU.
    running: Option<u64>,
    meter: Meter,
    /// The thread has been seen to enter guest mode.
    enters: bool,
    /// The thread existed at this TSC, and all its events since then are recorded.
    there: Option<u64>,
}

/// The history of threads and CPUs, in order of time.
#[derive(Debug)]
pub struct Timeline {
    clock: Clock,
    tracks: BTreeMap<Tid, Track>,
    /// Label on each CPU, with the TSC from which on it is there.
    cpus: BTreeMap<u32, VecDeque<(u64, Label)>>,
    names: Vec<String>,
    ids: BTreeMap<String, Label>,
    ours: BTreeMap<Tid, Label>,
    foreign: BTreeMap<Tid, (Comm, Label)>,
    /// All events before this TSC have been applied.
    covered: u64,
    marks: VecDeque<u64>,
    snapshots: Vec<BTreeMap<Tid, Meter>>,
}

impl Timeline {
    /// A timeline without events. `clock`: converts times that events report in nanoseconds.
    pub fn new(clock: Clock) -> Self {
        let names = ["idle", "unknown", "others"].map(str::to_owned).to_vec();
        Self {
            clock,
            tracks: BTreeMap::new(),
            cpus: BTreeMap::new(),
            ids: (0..).zip(&names).map(|(i, n)| (n.clone(), i)).collect(),
            names,
            ours: BTreeMap::new(),
            foreign: BTreeMap::new(),
            covered: 0,
            marks: VecDeque::new(),
            snapshots: Vec::new(),
        }
    }

    /// Gives a thread a label; `track`: keeps its states.
    pub fn know(&mut self, tid: Tid, label: &str, track: bool) {
        let label = self.label(label.to_owned());
        self.ours.insert(tid, label);
        if track {
            let unknown = Segment { from: 0, state: State::Unknown, cpu: 0 };
            let segments = VecDeque::from([unknown]);
            let (queued, running) = (None, None);
            let (meter, enters, there) = (Meter::default(), false, None);
            let track = Track { segments, queued, running, meter, enters, there };
            self.tracks.insert(tid, track);
        }
    }

    /// The tracked threads existed at this time, since when all events are recorded. So their state before their first
    /// event follows from it.
    pub fn were_there(&mut self, at: u64) {
        self.tracks.values_mut().for_each(|t| t.there = Some(at));
    }

    fn label(&mut self, name: String) -> Label {
        if let Some(id) = self.ids.get(&name) {
            return *id;
        }
        if self.names.len() >= MOST_LABELS {
            return OTHERS;
        }
        let id = self.names.len() as Label;
        self.names.push(name.clone());
        self.ids.insert(name, id);
        id
    }

    /// A label's name.
    pub fn name(&self, label: Label) -> &str {
        self.names.get(label as usize).map_or("", String::as_str)
    }

    /// Label of a thread that is switched to.
    fn whose(&mut self, tid: Tid, comm: Comm) -> Label {
        if tid == 0 {
            return IDLE;
        }
        if let Some(label) = self.ours.get(&tid) {
            return *label;
        }
        match self.foreign.get(&tid) {
            Some((known, label)) if *known == comm => *label,
            _ => {
                let label = self.label(readable(&comm));
                if self.foreign.len() >= MOST_THREADS {
                    self.foreign.clear();
                }
                self.foreign.insert(tid, (comm, label));
                label
            }
        }
    }

    /// Applies an event. Events come in order of time.
    pub fn apply(&mut self, event: &Event) {
        self.pass(event.time);
        let (time, cpu) = (event.time, event.cpu);
        match event.kind {
            EventKind::Switch { prev, leaves, next, comm } => {
                let label = self.whose(next, comm);
                push(self.cpus.entry(cpu).or_default(), (time, label));
                if let Some(t) = self.tracks.get_mut(&prev) {
                    let to = match leaves {
                        SwitchOut::Runnable => State::Preempted,
                        SwitchOut::Asleep => State::Asleep,
                        SwitchOut::Blocked => State::Blocked,
                    };
                    t.leave(time, cpu, to);
                }
                if let Some(t) = self.tracks.get_mut(&next) {
                    t.arrive(time, cpu);
                }
            }
            EventKind::Waking { tid, cpu, .. } | EventKind::Wakeup { tid, cpu } => {
                let queued = matches!(event.kind, EventKind::Wakeup { .. });
                if let Some(t) = self.tracks.get_mut(&tid) {
                    t.wake(time, cpu, queued);
                }
            }
            EventKind::Entry { tid } => {
                if let Some(t) = self.tracks.get_mut(&tid) {
                    t.enters = true;
                    t.change(State::Running, State::Guest, time);
                }
            }
            EventKind::Exit { tid, .. } => {
                if let Some(t) = self.tracks.get_mut(&tid) {
                    t.change(State::Guest, State::Running, time);
                }
            }
            EventKind::HaltOver { tid, ns } => {
                let since = time.saturating_sub(self.clock.to_cycles(ns));
                if let Some(t) = self.tracks.get_mut(&tid) {
                    t.polled(since, time);
                }
            }
            EventKind::Lost { since } => {
                for t in self.tracks.values_mut() {
                    t.forget(since);
                }
                let line = self.cpus.entry(cpu).or_default();
                while line.back().is_some_and(|(from, _)| *from >= since) {
                    line.pop_back();
                }
                push(line, (since, UNKNOWN));
            }
        }
    }

    /// All events before this time have been applied.
    pub fn settle(&mut self, covered: u64) {
        self.pass(covered);
        self.covered = self.covered.max(covered);
    }

    /// Reads the meters of the marks up to now.
    fn pass(&mut self, now: u64) {
        while let Some(at) = self.marks.front().copied()
            && at <= now
        {
            self.marks.pop_front();
            let meters = self.tracks.iter().map(|(tid, t)| (*tid, t.meter_at(at)));
            self.snapshots.push(meters.collect());
        }
    }

    /// Asks for the meters as of this time, which must not be settled yet.
    pub fn mark(&mut self, at: u64) {
        self.marks.push_back(at);
    }

    /// The meters of the marks so far, in their order.
    pub fn meters(&self) -> &[BTreeMap<Tid, Meter>] {
        &self.snapshots
    }

    /// The time before which all events have been applied.
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// Whether the kernel reports that this thread enters guest mode.
    pub fn sees_entries(&self, tid: Tid) -> bool {
        self.tracks.get(&tid).is_some_and(|t| t.enters)
    }

    /// States of a thread from one time to another, without a gap; `None` if any of it is not known.
    pub fn spans(&self, tid: Tid, from: u64, to: u64) -> Option<Vec<Span>> {
        let spans = self.all_spans(tid, from, to)?;
        spans.iter().all(|span| span.state != State::Unknown).then_some(spans)
    }

    /// As [`spans`](Self::spans), with unknown parts as [`State::Unknown`]; `None` if the thread is not tracked, or if
    /// a part is not covered or no longer kept.
    pub fn all_spans(&self, tid: Tid, from: u64, to: u64) -> Option<Vec<Span>> {
        if from >= to {
            return Some(Vec::new());
        }
        let segments = &self.tracks.get(&tid)?.segments;
        let after = segments.partition_point(|s| s.from <= from);
        if after == 0 || to > self.covered {
            return None;
        }
        let mut spans = Vec::new();
        for i in after - 1..segments.len() {
            let s = segments[i];
            let end = segments.get(i + 1).map_or(to, |next| next.from).min(to);
            let start = s.from.max(from);
            if end > start {
                spans.push(Span { state: s.state, from: start, to: end, cpu: s.cpu });
            }
            if end >= to {
                break;
            }
        }
        Some(spans)
    }

    /// State of a thread at a time, from the state's beginning up to that time; `None` as for
    /// [`all_spans`](Self::all_spans).
    pub fn span_at(&self, tid: Tid, at: u64) -> Option<Span> {
        let segments = &self.tracks.get(&tid)?.segments;
        let after = segments.partition_point(|s| s.from <= at);
        let s = segments.get(after.checked_sub(1)?)?;
        (at <= self.covered).then_some(Span { state: s.state, from: s.from, to: at, cpu: s.cpu })
    }

    /// Whether no event of a thread has been seen yet.
    pub fn is_unseen(&self, tid: Tid) -> bool {
        self.tracks.get(&tid).is_none_or(Track::is_unseen)
    }

    /// Labels on a CPU from one time to another, in order, without a gap; `None`: not known.
    pub fn ran(&self, cpu: u32, from: u64, to: u64, mut each: impl FnMut(Option<Label>, u64, u64)) {
        let mut at = from;
        if let Some(line) = self.cpus.get(&cpu) {
            let after = line.partition_point(|(start, _)| *start <= from);
            let mut label = after.checked_sub(1).map_or(UNKNOWN, |i| line[i].1);
            for (start, next) in line.range(after..) {
                let end = (*start).min(to);
                if end > at {
                    each((label != UNKNOWN).then_some(label), at, end);
                    at = end;
                }
                if *start >= to {
                    break;
                }
                label = *next;
            }
            if to > at {
                each((label != UNKNOWN).then_some(label), at, to);
            }
        } else if to > from {
            each(None, from, to);
        }
    }

    /// Drops history that ended before this time.
    pub fn prune(&mut self, before: u64) {
        for t in self.tracks.values_mut() {
            while t.segments.get(1).is_some_and(|s| s.from <= before) {
                t.segments.pop_front();
            }
        }
        for line in self.cpus.values_mut() {
            while line.get(1).is_some_and(|(from, _)| *from <= before) {
                line.pop_front();
            }
        }
    }
}

impl Track {
    fn state(&self) -> State {
        self.segments.back().map_or(State::Unknown, |s| s.state)
    }

    fn set(&mut self, state: State, from: u64, cpu: u32) {
        push(&mut self.segments, Segment { from, state, cpu });
    }

    fn change(&mut self, from: State, to: State, time: u64) {
        if let Some(last) = self.segments.back().copied()
            && last.state == from
        {
            self.set(to, time, last.cpu);
        }
    }

    fn is_unseen(&self) -> bool {
        self.segments.len() == 1 && self.state() == State::Unknown
    }

    /// Sets the thread's state before its first event.
    fn before(&mut self, state: State, cpu: u32) {
        if let Some(at) = self.there.filter(|_| self.is_unseen()) {
            self.set(state, at, cpu);
        }
    }

    fn leave(&mut self, time: u64, cpu: u32, to: State) {
        self.before(State::Running, cpu);
        if let Some(since) = self.running.take() {
            self.meter.exec += time.saturating_sub(since);
        }
        self.queued = (to == State::Preempted).then_some(time);
        self.set(to, time, cpu);
    }

    fn arrive(&mut self, time: u64, cpu: u32) {
        // It waited, and had been woken or preempted earlier.
        self.before(State::Preempted, cpu);
        if let Some(since) = self.queued.take() {
            self.meter.wait += time.saturating_sub(since);
        }
        // It may have been moved while it waited; it waited for the CPU that it got, mostly.
        if let Some(last) = self.segments.back_mut()
            && matches!(last.state, State::Waking | State::Preempted)
        {
            last.cpu = cpu;
        }
        self.running = Some(time);
        self.set(State::Running, time, cpu);
    }

    fn wake(&mut self, time: u64, cpu: u32, queued: bool) {
        // The kernel wakes who has said to sleep, but for a moment on the way there.
        self.before(State::Asleep, cpu);
        if matches!(self.state(), State::Asleep | State::Blocked) {
            self.set(State::Waking, time, cpu);
        }
        if queued && self.state() == State::Waking {
            self.queued.get_or_insert(time);
        }
    }

    /// The vCPU was halted from `since` to `now`: in that time the thread polled while it did not sleep.
    fn polled(&mut self, since: u64, now: u64) {
        if self.state() == State::Unknown {
            return;
        }
        let first = self.segments.partition_point(|s| s.from <= since).saturating_sub(1);
        let mut split = None;
        let mut slept = false;
        for (i, s) in self.segments.iter_mut().enumerate().skip(first) {
            match s.state {
                State::Running if s.from >= since => s.state = State::Polling,
                State::Running => split = Some((i + 1, s.cpu)),
                State::Asleep | State::Blocked => {
                    slept = true;
                    break;
                }
                _ => {}
            }
        }
        if let Some((at, cpu)) = split {
            self.segments.insert(at, Segment { from: since, state: State::Polling, cpu });
        }
        if !slept {
            self.change(State::Polling, State::Running, now);
        }
    }

    fn forget(&mut self, since: u64) {
        while self.segments.back().is_some_and(|s| s.from >= since) {
            self.segments.pop_back();
        }
        self.set(State::Unknown, since, 0);
        (self.queued, self.running) = (None, None);
    }

    fn meter_at(&self, at: u64) -> Meter {
        let running = self.running.map_or(0, |since| at.saturating_sub(since));
        Meter { exec: self.meter.exec + running, wait: self.meter.wait }
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= MOST_SEGMENTS {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// A foreign thread's name as a label, in printable characters: its first word up to a slash, which `kworker/0:1` and
/// `kworker/1:2`, or `lto cgu.3` and `lto cgu.4`, have in common. Names of QEMU's vCPUs (`CPU 0/KVM`, `CPU 0/TCG`) are
/// kept whole.
fn readable(comm: &Comm) -> String {
    let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    let text = String::from_utf8_lossy(&comm[..end]);
    if let Some((vcpu, kind @ ("KVM" | "TCG"))) = text.split_once('/')
        && vcpu.starts_with("CPU ")
    {
        return format!("CPU/{kind}");
    }
    let text = text.split(['/', ' ']).next().unwrap_or_default();
    let name: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if name.is_empty() { "nameless".to_owned() } else { name }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
