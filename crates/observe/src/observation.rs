//! An observation of a VM, in windows of time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use vcoop_model::plan::Ns;
use vcoop_model::recording::Recording;
use vcoop_model::trace_event::{Observer, SampleEvent};
use vcoop_model::{Missing, Note};
use vcoop_policy::thread::Policy;
use vcoop_sources::trace::{Event, EventKind, Reason, Recorder, Span, State, Thread, Tid};
use vcoop_threads::clock::{ClockId, kernel_clock};
use vcoop_threads::tsc::{Clock, measured_khz, tsc};
use vcoop_threads::{
    AffinityGuard, Attributes, RunTime, Stat, USER_TICK_NS, affinity, allowed_cpus, apart_from,
    cpu_list, gettid, idle_ns, run_time,
};
use vcoop_window::VcpuNumbers;

use crate::caveats::{self, Throttled};
use crate::cpu_use::{CpuTimeUse, CpuUse};
use crate::follow::{Follower, Sample, Shares};
use crate::group::Group;
use crate::history::History;
use crate::names::ObservedNames;
use crate::observed_vm::{ObservedVm, Vcpu};
use crate::scenario_writer::Scene;
use crate::scene_vcpu::SceneVcpu;
use crate::urgent::Urgent;

/// The note of an observation without exits.
pub const NO_EXITS: &str = "no kvm_exit was seen: exits, and the time in guest mode, are not shown";

/// Longest wait, at the end of a window, for events that the kernel has yet to write.
const LATE_NS: Ns = 1_000_000_000;

/// Time between two reads of the trace, within which its buffers do not overflow on most hosts.
const LOOK: Duration = Duration::from_millis(100);

/// Series over time: a window of some duration in some slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slicing {
    /// How many; 0: none.
    pub slices: u32,
    /// What the window is planned to last.
    pub duration_ns: Ns,
}

/// Result of a window.
#[derive(Clone, Debug)]
pub struct ObservationResult {
    /// The series that the [crate](crate) lists.
    pub recording: Recording,
    /// How long the window was.
    pub window_ns: Ns,
    /// What was not seen, and what observing cost.
    pub notes: Vec<Note>,
    /// What all threads did, if that was recorded.
    pub scene: Option<Scene>,
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}

/// A VM under observation.
#[derive(Debug)]
pub struct Observation {
    subject: ObservedVm,
    recorder: Recorder,
    clock: Clock,
    cpus: Vec<u32>,
    crowd: CpuUse,
    /// Events of all threads, if they are recorded.
    history: Option<History>,
    window: Option<Window>,
    /// Keeps this thread off the observed CPUs, if the host has others.
    _stay: AffinityGuard,
}

/// A window that is open.
#[derive(Debug)]
struct Window {
    from: u64,
    /// Counts from its beginning.
    clock: Clock,
    followers: Vec<Follower>,
    exits: BTreeMap<(Tid, Reason), u64>,
    /// Number of events before it.
    events: u64,
    lost: u64,
    used_ns: Ns,
    /// Counts of the guest's driver at its beginning.
    urgent: Option<Urgent>,
    /// The kernel's counts of each vCPU's thread at its beginning.
    counted: Vec<RunTime>,
    throttled: Throttled,
    /// Idle time of the CPUs since boot, at its beginning.
    idle_ns: Ns,
    /// Its beginning in clock ticks since boot.
    ticks: u64,
    /// Names for an observer, once there is one.
    names: Option<ObservedNames>,
    /// The observer has been told that the window is open.
    told: bool,
}

/// Now, in clock ticks of user space since boot: a hundred a second.
fn ticks() -> u64 {
    kernel_clock(ClockId::Boottime) / USER_TICK_NS
}

/// CPU time of the calling thread.
fn own_cpu_time() -> Ns {
    kernel_clock(ClockId::ThreadCPUTime)
}

impl Observation {
    /// Longest time between two calls of [`poll`](Self::poll) without loss on most hosts.
    pub const LOOK: Duration = LOOK;

    /// Starts to record all CPUs, and what all threads do, for [`ObservationResult::scene`].
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn of_everybody(subject: ObservedVm) -> Result<Self, Missing> {
        let all = allowed_cpus().unwrap_or_default();
        let mut this = Self::on(subject, &all)?;
        this.recorder.hear_all_wakings();
        this.history = Some(History::default());
        Ok(this)
    }

    /// Starts to record.
    ///
    /// # Errors
    ///
    /// What this host lacks, or what the VM has lost since it was found.
    pub fn new(subject: ObservedVm) -> Result<Self, Missing> {
        Self::on(subject, &[])
    }

    /// Records these CPUs, and those that the VM may use.
    fn on(subject: ObservedVm, also: &[u32]) -> Result<Self, Missing> {
        if subject.vcpus.is_empty() {
            return Err(Missing {
                what: format!("the threads of {}'s vCPUs are not known", subject.name),
                remedy: "vcoop vms says how they become known".to_owned(),
            });
        }
        let gone = |vcpu: &Vcpu| Missing {
            what: format!("the thread of {}'s vCPU {} has ended", subject.name, vcpu.index),
            remedy: "vcoop vms shows the VMs that run".to_owned(),
        };
        let mut cpus = Vec::new();
        for vcpu in &subject.vcpus {
            if !vcpu.is_there() {
                return Err(gone(vcpu));
            }
            cpus.extend(affinity(vcpu.tid).map_err(|_| gone(vcpu))?);
        }
        cpus.sort_unstable();
        cpus.dedup();
        let khz = measured_khz();
        let clock = Clock::new(tsc(), khz);
        let mut recorded = [&cpus, also].concat();
        recorded.sort_unstable();
        recorded.dedup();
        let mut recorder = Recorder::start(&recorded, clock).map_err(|why| {
            let (what, remedy) = why.split_once("; ").unwrap_or((&why, "run it as root"));
            let what = format!("the host's scheduler cannot be recorded: {what}");
            Missing { what, remedy: remedy.to_owned() }
        })?;
        let vcpus = subject.vcpus.iter().map(|vcpu| {
            let label = format!("{}/vcpu{}", subject.name, vcpu.index);
            Thread { tid: vcpu.tid, label, measured: true, vcpu: true }
        });
        let others = subject.others.iter().map(|(tid, name)| {
            let label = format!("{}/{name}", subject.name);
            Thread { tid: *tid, label, measured: false, vcpu: false }
        });
        recorder.know(&vcpus.chain(others).collect::<Vec<_>>());
        recorder.were_there();
        let own: Vec<Tid> = subject.tids().collect();
        let own: Vec<Tid> = own.into_iter().chain(subject.others.iter().map(|o| o.0)).collect();
        let crowd = CpuUse::new(&cpus, &own, subject.pid, recorder.began());
        let taken = cpus.iter().copied();
        let stay = AffinityGuard::on(&apart_from(&affinity(0).unwrap_or_default(), taken));
        Ok(Self { subject, recorder, clock, cpus, crowd, history: None, window: None, _stay: stay })
    }

    /// CPUs that its vCPUs may use.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Whether any vCPU's thread still exists.
    pub fn is_there(&self) -> bool {
        self.subject.vcpus.iter().any(Vcpu::is_there)
    }

    /// Begins a window. Drops an open one.
    pub fn begin(&mut self, slicing: Slicing) {
        // Earlier events are read while no window is open, so that they do not count.
        self.window = None;
        self.poll(&mut NoObserver);
        let subject = &self.subject;
        let throttled = throttled(subject);
        let sliced = (slicing.slices, slicing.duration_ns);
        let (events, lost) = (self.recorder.counts().0, self.recorder.lost());
        // These belong to one moment.
        let from = tsc();
        let counted = subject.tids().map(run_time).collect();
        let urgent = subject.pid.and_then(Urgent::begin);
        let keeps = self.history.is_some();
        let clock = Clock::new(from, self.clock.to_cycles(1_000_000) as u32);
        let of = |v: &Vcpu| {
            let mut follower = Follower::new(v.tid, &subject.probe(v), (from, clock), sliced);
            follower.steps = keeps.then(Vec::new);
            follower
        };
        self.crowd.begin(from);
        self.history.iter_mut().for_each(History::begin);
        self.window = Some(Window {
            from,
            clock,
            followers: subject.vcpus.iter().map(of).collect(),
            exits: BTreeMap::new(),
            events,
            lost,
            used_ns: own_cpu_time(),
            urgent,
            counted,
            throttled,
            idle_ns: idle_ns(&self.cpus),
            ticks: ticks(),
            names: None,
            told: false,
        });
    }

    /// Reads new events. Call it every [`LOOK`](Self::LOOK), or events may be lost. The observer gets the window's
    /// samples, and all its events if it wants any window, whatever times it asks for. [`NoObserver`] ignores all.
    pub fn poll(&mut self, observer: &mut dyn Observer) {
        self.take_in(u64::MAX, observer);
        self.crowd.look();
        self.history.iter_mut().for_each(History::look);
    }

    /// Reads new events; those after `to` do not count.
    fn take_in(&mut self, to: u64, observer: &mut dyn Observer) {
        let Self { subject, recorder, cpus, crowd, history, window, .. } = self;
        if let Some(window) = window
            && window.names.is_none()
            && !observer.windows().is_empty()
        {
            let names = ObservedNames::new(subject, cpus);
            observer.thread_names(&names.names);
            window.names = Some(names);
        }
        recorder.drain(&mut |event: &Event| {
            if let Some(window) = window {
                window.take(event, to, crowd, observer);
                if let Some(history) = history
                    && (window.from..to).contains(&event.time)
                {
                    history.take(event);
                }
            }
            crowd.take(event, to);
        });
        let Some(window) = window else { return };
        let (timeline, covered) = (recorder.timeline(), recorder.timeline().covered().min(to));
        for (follower, vcpu) in window.followers.iter_mut().zip(&subject.vcpus) {
            let probe = subject.probe(vcpu);
            follower.follow(timeline, covered, &mut |sample| {
                tell(&probe, &sample, observer);
            });
        }
    }

    /// Ends the window, and returns its result.
    ///
    /// # Errors
    ///
    /// Why the recording broke off.
    pub fn end(&mut self, observer: &mut dyn Observer) -> Result<ObservationResult, String> {
        let to = tsc();
        let counted: Vec<RunTime> = self.subject.tids().map(run_time).collect();
        let Some(from) = self.window.as_ref().map(|window| window.from) else {
            return Err("no window was begun".to_owned());
        };
        let late = tsc() + self.clock.to_cycles(LATE_NS);
        while self.recorder.timeline().covered() < to && tsc() < late {
            std::thread::sleep(Duration::from_millis(5));
            self.take_in(to, observer);
        }
        if let Some(why) = self.recorder.broken() {
            return Err(format!("the recording of the host's scheduler broke off: {why}"));
        }
        let Some(mut window) = self.window.take() else {
            return Err("no window was begun".to_owned());
        };
        let ns = self.clock.to_ns(to - from).max(1);
        let mut silent = 0;
        let timeline = self.recorder.timeline();
        let mut delays = Vec::new();
        for (((follower, vcpu), before), after) in
            window.followers.iter_mut().zip(&self.subject.vcpus).zip(&window.counted).zip(&counted)
        {
            // The kernel counts a wait when it is over, and then all of it.
            let wait_at = |at: u64| {
                let span = timeline.span_at(vcpu.tid, at);
                span.filter(|s| matches!(s.state, State::Waking | State::Preempted))
            };
            let (first, last) = (wait_at(from), wait_at(to));
            let time = |cycles: u64| self.clock.to_ns(cycles);
            let ran = after.ran_ns.saturating_sub(before.ran_ns);
            let silence = timeline.is_unseen(vcpu.tid).then(|| without_event(vcpu, ran, ns));
            let not_yet = time(not_counted(silence, last, from, to));
            let too_much = match (first, last) {
                // One wait all along: nothing of it is counted yet.
                (Some(first), Some(last)) if first.from == last.from => 0,
                (Some(first), _) => time(from - first.from),
                (None, _) => 0,
            };
            let counted = after.waited_ns.saturating_sub(before.waited_ns) + not_yet;
            delays.push(delay(counted, too_much, ns.saturating_sub(ran)));
            if let Some(state) = silence {
                silent += if state == State::Running { to - from } else { 0 };
                follower.stayed(state, to, timeline);
            }
            let probe = self.subject.probe(vcpu);
            follower.close(to, timeline, true, &mut |sample| {
                tell(&probe, &sample, observer);
            });
        }
        if window.told {
            observer.closes(ns);
        }
        let mut used = self.crowd.used(to);
        // On a CPU without any event such a vCPU ran, or another thread, or none. How much of it was idle, only the
        // kernel's counts say, in coarse steps.
        used.vm += silent;
        let idle = idle_ns(&self.cpus).saturating_sub(window.idle_ns);
        let step = self.clock.to_cycles(USER_TICK_NS * self.cpus.len() as Ns);
        used.divide(used.unseen.saturating_sub(silent), self.clock.to_cycles(idle), step);
        let cost_ns = own_cpu_time().saturating_sub(window.used_ns);
        let number = |v: &Vcpu| VcpuNumbers { index: v.index, kvm_id: v.kvm_id };
        let numbers: Vec<VcpuNumbers> = self.subject.vcpus.iter().map(number).collect();
        let urgent = window.urgent.take().map(|u| u.end(&self.subject.name, &numbers, ns));
        let counts = urgent.as_ref().and_then(|urgent| urgent.as_ref().ok()).map(|u| &*u.by_vcpu);
        let scene = self.scene(&mut window, to, counts);
        let mut observed = self.observed(window, used, ns, cost_ns);
        match urgent {
            None => {}
            Some(Ok(urgent)) => observed.recording.latencies.push(urgent.latency),
            Some(Err(why)) => observed.notes.push(Note::new(why.to_owned(), None)),
        }
        for (vcpu, delay) in self.subject.vcpus.iter().zip(delays) {
            let value = 100.0 * delay as f64 / ns as f64;
            observed.recording.put(&self.subject.probe(vcpu), "run_delay", "%", value);
        }
        observed.scene = scene;
        if let Some(full) = self.history.as_ref().and_then(|history| history.full) {
            let seconds = self.clock.to_ns(full.saturating_sub(from)) as f64 / 1e9;
            let evidence = format!(
                "there was room for the first {seconds:.1} s of what others did: the scenario has \
                 them for that time"
            );
            observed.notes.push(Note::new(evidence, Some("observe for less time")));
        }
        Ok(observed)
    }

    /// What all threads did in a window up to `to`, if that was recorded. `urgent`: how often urgent tasks were woken
    /// on each vCPU, if the guest's driver reports that.
    fn scene(&mut self, window: &mut Window, to: u64, urgent: Option<&[u64]>) -> Option<Scene> {
        let history = self.history.as_mut()?;
        history.look();
        let vcpus = self.subject.vcpus.iter().zip(&mut window.followers);
        let vcpus = vcpus.enumerate().map(|(i, (vcpu, follower))| SceneVcpu {
            urgent: urgent.and_then(|counts| counts.get(i).copied()).unwrap_or(0),
            tid: vcpu.tid,
            cpus: affinity(vcpu.tid).unwrap_or_default(),
            policy: Attributes::get(vcpu.tid).map_or(Policy::NORMAL, |own| own.to_policy()),
            steps: follower.steps.take().unwrap_or_default(),
            group: Group::of(Path::new("/"), vcpu.tid),
        });
        Some(Scene {
            vm: self.subject.name.clone(),
            vcpus: vcpus.collect(),
            cooperates: urgent.is_some(),
            events: std::mem::take(&mut history.events),
            threads: history.threads.clone(),
            observer: gettid(),
            window: (window.from, to),
            clock: window.clock,
            began: window.ticks,
        })
    }

    fn observed(&self, window: Window, used: CpuTimeUse, ns: Ns, cost_ns: Ns) -> ObservationResult {
        let mut notes = self.notes(&window);
        let mut recording = Recording::default();
        let time = |cycles: u64| self.clock.to_ns(cycles) as f64 / ns as f64;
        let seconds = ns as f64 / 1e9;
        let mut all = Shares::default();
        for (follower, vcpu) in window.followers.into_iter().zip(&self.subject.vcpus) {
            let probe = self.subject.probe(vcpu);
            let s = follower.shares;
            recording.put(&probe, "running", "%", 100.0 * time(s.running));
            recording.put(&probe, "halted", "%", 100.0 * time(s.halted));
            recording.put(&probe, "steal", "%", 100.0 * time(s.waiting));
            let some = [
                ("blocked", s.blocked),
                ("guest", s.guest),
                ("polling", s.polling),
                ("unknown", s.unknown),
            ];
            for (metric, cycles) in some.into_iter().filter(|(_, cycles)| *cycles > 0) {
                recording.put(&probe, metric, "%", 100.0 * time(cycles));
            }
            notes.extend(caveats::of_blocked(vcpu.index, time(s.blocked)));
            recording.put(&probe, "migrations", "1/s", follower.migrations as f64 / seconds);
            recording.put(&probe, "wakeups", "1/s", follower.wakeups as f64 / seconds);
            all.running += s.running;
            all.waiting += s.waiting;
            all.unknown += s.unknown;
            recording.latencies.extend([follower.woken, follower.preempted]);
        }
        let (name, vcpus) = (&self.subject.name, self.subject.vcpus.len() as f64);
        recording.put(name, "cpu", "cpu", time(all.running));
        recording.put(name, "steal", "%", 100.0 * time(all.waiting) / vcpus);
        let mut exits: BTreeMap<Reason, u64> = BTreeMap::new();
        for ((_, reason), n) in &window.exits {
            *exits.entry(*reason).or_default() += n;
        }
        for (reason, n) in exits {
            let metric = format!("exit.{}", self.recorder.reason(reason));
            recording.put(name, &metric, "1/s", n as f64 / seconds);
        }
        recording.put("host.others", "throughput", "cpu", time(used.others));
        recording.put("host", "idle", "%", 100.0 * time(used.idle) / self.cpus.len().max(1) as f64);
        recording.put("observe", "cpu", "%", 100.0 * cost_ns as f64 / ns as f64);
        let events = self.recorder.counts().0 - window.events;
        recording.put("observe", "events", "count", events as f64);
        let lost = self.recorder.lost().saturating_sub(window.lost);
        recording.put("observe", "lost", "count", lost as f64);
        if lost > 0 || all.unknown > 0 || used.unknown > 0 {
            let percent = 100.0 * time(all.unknown) / vcpus;
            let of_cpus = 100.0 * time(used.unknown) / self.cpus.len().max(1) as f64;
            let evidence = format!(
                "{lost} events were lost; of {percent:.2} % of the vCPUs' time it is not known \
                 what they did, and of {of_cpus:.2} % of the CPUs' who had them"
            );
            notes.push(Note::new(evidence, Some("let it be less busy, or observe for less time")));
        }
        ObservationResult { recording, window_ns: ns, notes, scene: None }
    }

    fn notes(&self, window: &Window) -> Vec<Note> {
        let subject = &self.subject;
        let mut notes = caveats::of_host(Path::new("/"));
        if subject.unplaced > 0 {
            let evidence = format!(
                "the threads of {} of its vCPUs are not known: they are not in this",
                subject.unplaced
            );
            notes.push(Note::new(evidence, Some("vcoop vms says how they become known")));
        }
        notes.extend(subject.vcpus.iter().filter_map(caveats::of_thread));
        let now = subject.vcpus.iter().filter_map(|vcpu| affinity(vcpu.tid).ok()).flatten();
        let new: BTreeSet<u32> = now.filter(|cpu| !self.cpus.contains(cpu)).collect();
        if !new.is_empty() {
            let new: Vec<u32> = new.into_iter().collect();
            let evidence = format!(
                "vCPUs may use other CPUs now than when the observation began: CPU {}. Who ran there \
                 instead of them is not in this",
                cpu_list(&new)
            );
            notes.push(Note::new(evidence, Some("observe anew")));
        }
        if subject.kvm && window.exits.is_empty() {
            let remedy = "a KVM whose tracepoints fire, with a busy guest";
            notes.push(Note::new(NO_EXITS, Some(remedy)));
        }
        notes.extend(throttled(subject).note(&window.throttled));
        notes
    }
}

/// Throttled time of the control groups of its vCPUs so far.
fn throttled(subject: &ObservedVm) -> Throttled {
    Throttled::of(Path::new("/"), subject.tids())
}

impl Window {
    fn take(&mut self, event: &Event, to: u64, crowd: &CpuUse, observer: &mut dyn Observer) {
        if event.time < self.from || event.time >= to {
            return;
        }
        if let EventKind::Exit { tid, reason: Some(reason) } = event.kind {
            *self.exits.entry((tid, reason)).or_default() += 1;
        }
        if let Some(names) = &mut self.names {
            if !self.told {
                self.told = true;
                names.open(crowd.current(), observer);
            }
            names.tell(event, &self.clock, observer);
        }
    }
}

/// Tells an observer of a sample.
fn tell(probe: &str, sample: &Sample<'_>, observer: &mut dyn Observer) {
    let probe = format!("{probe} {}", sample.wait.metric());
    let event = SampleEvent {
        probe: &probe,
        due_ns: sample.due,
        latency_ns: sample.latency,
        parts: sample.parts,
        behind: sample.behind,
        counts: true,
        open: sample.open,
    };
    observer.sample(sample.due + sample.latency, &event);
}

/// How long it waited in a window, of what the kernel counted there. `too_much`: what is known to have been before the
/// window. A wait whose begin was not recorded is counted whole: `most` is the time in which it did not run.
fn delay(counted: Ns, too_much: Ns, most: Ns) -> Ns {
    counted.saturating_sub(too_much).min(most)
}

/// The part of a wait at the end of a window that the kernel has not counted yet. `silence`: what the vCPU did if there
/// was no event of it.
fn not_counted(silence: Option<State>, last: Option<Span>, from: u64, to: u64) -> u64 {
    match (silence, last) {
        (Some(State::Preempted), _) => to - from,
        (_, last) => last.map_or(0, |wait| to - wait.from.max(from)),
    }
}

/// State of a vCPU's thread in a window without an event of it: it ran, slept or waited all the time.
fn without_event(vcpu: &Vcpu, ran: Ns, window: Ns) -> State {
    let stat = Stat::open(vcpu.tid);
    let is = |what: fn(&Stat) -> bool| stat.as_ref().is_ok_and(what);
    if ran >= window / 2 {
        State::Running
    } else if is(Stat::is_blocked) {
        State::Blocked
    } else if is(Stat::is_asleep) || !vcpu.is_there() {
        State::Asleep
    } else {
        State::Preempted
    }
}

#[cfg(test)]
mod tests {
    use super::{delay, not_counted};
    use vcoop_sources::trace::{Span, State};

    #[test]
    fn a_wait_without_an_event_is_all_of_the_window() {
        let wait = |from| Some(Span { state: State::Waking, from, to: 200, cpu: 0 });
        assert_eq!(not_counted(None, wait(50), 100, 200), 100);
        assert_eq!(not_counted(None, wait(150), 100, 200), 50);
        assert_eq!(not_counted(None, None, 100, 200), 0);
        assert_eq!(not_counted(Some(State::Preempted), None, 100, 200), 100);
        assert_eq!(not_counted(Some(State::Running), None, 100, 200), 0);
    }

    #[test]
    fn a_wait_from_before_the_window_is_no_more_than_the_time_without_running() {
        assert_eq!(delay(400, 0, 225), 225);
        assert_eq!(delay(400, 250, 225), 150);
        assert_eq!(delay(100, 250, 225), 0);
    }
}
