//! One vCPU's thread through a window: its states as shares, its waits as samples.

use std::collections::BTreeMap;

use vcoop_model::plan::Ns;
use vcoop_model::recording::{LatencyRecord, Part, Parts};
use vcoop_sources::trace::{IDLE, Label, Span, State, Tid, Timeline};
use vcoop_threads::tsc::Clock;

/// What began a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A wake-up.
    Woken,
    /// A preemption.
    Preempted,
}

impl Wait {
    /// Name of the series.
    pub(crate) fn metric(self) -> &'static str {
        match self {
            Self::Woken => LatencyRecord::WAIT,
            Self::Preempted => LatencyRecord::PREEMPTED,
        }
    }

    fn of(state: State) -> Option<Self> {
        match state {
            State::Waking => Some(Self::Woken),
            State::Preempted => Some(Self::Preempted),
            _ => None,
        }
    }
}

/// A wait that is not over.
#[derive(Clone, Debug)]
struct Open {
    wait: Wait,
    since: u64,
    /// Parts are booked up to here, in nanoseconds.
    done: Ns,
    parts: Parts,
    ran: BTreeMap<Label, Ns>,
}

/// Time in each state, in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) running: u64,
    /// The part of the running time in guest mode.
    pub(crate) guest: u64,
    pub(crate) halted: u64,
    /// The part of the halted time spent polling.
    pub(crate) polling: u64,
    /// In an uninterruptible sleep.
    pub(crate) blocked: u64,
    pub(crate) waiting: u64,
    pub(crate) unknown: u64,
}

/// A step of a thread's own behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It runs for so long, in nanoseconds.
    Run(Ns),
    /// The thread wakes up so long after the time at which it would have gone to sleep if it had not waited for a CPU
    /// since its last wake-up. A guest's timers are set to absolute times, so a thread that waits for long sleeps less.
    Sleep(Ns),
}

/// Steps of a thread that are kept.
const MOST_STEPS: usize = 1 << 20;

/// A wait that is over, for an observer.
#[derive(Clone, Debug)]
pub(crate) struct Sample<'a> {
    pub(crate) wait: Wait,
    /// Nanoseconds from the beginning of the window.
    pub(crate) due: Ns,
    pub(crate) latency: Ns,
    pub(crate) parts: &'a Parts,
    pub(crate) behind: Option<(&'a str, Ns)>,
    pub(crate) open: bool,
}

/// What a follower does with each wait that is over.
type Each<'e> = &'e mut dyn FnMut(Sample<'_>);

/// One vCPU's thread in a window.
#[derive(Debug)]
pub(crate) struct Follower {
    tid: Tid,
    clock: Clock,
    /// Beginning of the window.
    from: u64,
    /// Followed up to here.
    at: u64,
    open: Option<Open>,
    cpu: Option<u32>,
    pub(crate) shares: Shares,
    pub(crate) migrations: u64,
    pub(crate) wakeups: u64,
    pub(crate) woken: LatencyRecord,
    pub(crate) preempted: LatencyRecord,
    /// Its own steps, if they are recorded.
    pub(crate) steps: Option<Vec<Step>>,
    /// How long it has waited since it last woke up.
    held_up: Ns,
}

impl Follower {
    /// From a time on, from which `clock` counts; the series are `probe`'s, with so many slices of a duration.
    pub(crate) fn new(
        tid: Tid,
        probe: &str,
        (from, clock): (u64, Clock),
        (slices, duration): (u32, Ns),
    ) -> Self {
        let series = |wait: Wait| {
            let record = LatencyRecord::new(probe).sliced(slices, duration);
            LatencyRecord { metric: wait.metric(), ..record }
        };
        Self {
            tid,
            clock,
            from,
            at: from,
            open: None,
            cpu: None,
            shares: Shares::default(),
            migrations: 0,
            wakeups: 0,
            woken: series(Wait::Woken),
            preempted: series(Wait::Preempted),
            steps: None,
            held_up: 0,
        }
    }

    /// Follows the thread up to this time, which must be covered.
    pub(crate) fn follow(&mut self, timeline: &Timeline, to: u64, each: Each<'_>) {
        // The first event tells what it did until then.
        if to <= self.at || timeline.is_unseen(self.tid) {
            return;
        }
        let unknown = Span { state: State::Unknown, from: self.at, to, cpu: 0 };
        let spans = timeline.all_spans(self.tid, self.at, to);
        // `None`: the spans are older than the history that is kept.
        for span in spans.unwrap_or_else(|| vec![unknown]) {
            self.take(&span, timeline, each);
        }
        self.at = to;
    }

    /// The whole window was spent in one state, without an event.
    pub(crate) fn stayed(&mut self, state: State, to: u64, timeline: &Timeline) {
        let span = Span { state, from: self.at, to, cpu: self.cpu.unwrap_or(0) };
        self.take(&span, timeline, &mut |_| {});
        self.at = to;
    }

    fn take(&mut self, span: &Span, timeline: &Timeline, each: Each<'_>) {
        let (wait, clock) = (Wait::of(span.state), self.clock);
        if self.open.as_ref().is_some_and(|open| Some(open.wait) != wait) {
            self.close(span.from, timeline, false, each);
        }
        let cycles = span.to - span.from;
        let s = &mut self.shares;
        match span.state {
            State::Unknown => s.unknown += cycles,
            State::Asleep => s.halted += cycles,
            State::Blocked => s.blocked += cycles,
            State::Polling => {
                s.halted += cycles;
                s.polling += cycles;
            }
            State::Running => s.running += cycles,
            State::Guest => {
                s.running += cycles;
                s.guest += cycles;
            }
            State::Waking | State::Preempted => s.waiting += cycles,
        }
        self.step(span.state, clock.to_ns(cycles));
        if matches!(span.state, State::Running | State::Guest | State::Polling) {
            self.migrations += u64::from(self.cpu.is_some_and(|cpu| cpu != span.cpu));
            self.cpu = Some(span.cpu);
        }
        let Some(wait) = wait else { return };
        let from = self.from;
        let open = self.open.get_or_insert_with(|| {
            self.wakeups += u64::from(wait == Wait::Woken && span.from > from);
            let (parts, ran) = (Parts::default(), BTreeMap::new());
            Open { wait, since: span.from, done: 0, parts, ran }
        });
        timeline.ran(span.cpu, span.from, span.to, |who, _, to| open.until(to, who, &clock));
    }

    fn step(&mut self, state: State, ns: Ns) {
        let Some(steps) = &mut self.steps else { return };
        let room = steps.len() < MOST_STEPS;
        match (state, steps.last_mut()) {
            (State::Asleep | State::Blocked, Some(Step::Sleep(last))) => *last += ns,
            (State::Running | State::Guest | State::Polling, Some(Step::Run(last))) => *last += ns,
            (State::Asleep | State::Blocked, _) if room => {
                steps.push(Step::Sleep(ns + std::mem::take(&mut self.held_up)));
            }
            (State::Waking | State::Preempted, _) => self.held_up += ns,
            (State::Running | State::Guest | State::Polling, _) if room => {
                steps.push(Step::Run(ns));
            }
            _ => {}
        }
    }

    /// The wait is over at this time; `unfinished`: only because the window ends, up to which all was followed.
    pub(crate) fn close(&mut self, at: u64, timeline: &Timeline, unfinished: bool, each: Each<'_>) {
        let Some(mut open) = self.open.take() else { return };
        open.until(at, None, &self.clock);
        let latency = open.done;
        let mut ran: Vec<(&str, Ns)> = Vec::new();
        for (label, ns) in open.ran.into_iter().filter(|(_, ns)| *ns > 0) {
            ran.push((timeline.name(label), ns));
        }
        ran.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let due = self.clock.to_ns(open.since - self.from);
        let record = match open.wait {
            Wait::Woken => &mut self.woken,
            Wait::Preempted => &mut self.preempted,
        };
        record.take(due, latency, &open.parts, ran.iter().copied());
        let behind = ran.first().copied();
        let (wait, parts) = (open.wait, &open.parts);
        each(Sample { wait, due, latency, parts, behind, open: unfinished });
    }
}

impl Open {
    /// The thread waited up to this time, and `who` had the CPU. A thread that is woken on an idle CPU waits for that
    /// CPU to leave its idle state.
    fn until(&mut self, to: u64, who: Option<Label>, clock: &Clock) {
        let at = clock.to_ns(to - self.since).max(self.done);
        let ns = at - self.done;
        let part = match (self.wait, who) {
            (Wait::Woken, Some(IDLE)) => Part::CState,
            (Wait::Woken, _) => Part::WakeToRun,
            (Wait::Preempted, _) => Part::PreemptedToRun,
        };
        self.parts[part as usize] += ns;
        self.done = at;
        if let Some(label) = who.filter(|label| *label != IDLE) {
            *self.ran.entry(label).or_default() += ns;
        }
    }
}
