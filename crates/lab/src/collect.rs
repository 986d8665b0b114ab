//! Makes a [`Recording`] from a run's rings and counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use vcoop_guest::layout::{RING_STRIDE, RINGS};
use vcoop_guest::ring::{Reader, Ring, Sample};
use vcoop_model::plan::{Act, Ns, Plan, Program, SampleEnd, Target};
use vcoop_model::recording::{PolicyEvents, Recording};
use vcoop_model::trace_event::Observer;
use vcoop_sources::trace::{Event, Recorder, Thread, Tid};
use vcoop_threads::gettid;
use vcoop_threads::tsc::{Clock, tsc};

use crate::counters::{Counters, Totals, compare, scalars_between};
use crate::facts::host_facts;
use crate::lab_vm::{LabVcpu, LabVm};
use crate::preferred_mask::balances;
use crate::probe::{Probe, Window};
use crate::round_trip::{RoundTrip, ServerPlace};
use crate::samples::{self, HostSample, PendingSample, Series, Source};
use crate::trace::live::{Live, RunThreads};
use crate::translate::places;
use crate::widths::Widths;

/// Source of a probe in a guest.
#[derive(Debug)]
struct GuestOrigin {
    vm: usize,
    /// vCPU that the samples are about.
    vcpu: usize,
    ring: u64,
    /// The injector's device interrupt wakes the task, from whatever source timers fire.
    device: bool,
    /// Place of the server, if samples are round trips.
    server: Option<ServerPlace>,
    /// A sample is a wait for other vCPUs.
    calls: bool,
    /// A sample ends with the timer's interrupt. Another line has the same ring's samples up to their end.
    interrupt: bool,
    reader: Reader,
    /// Samples with impossible times.
    invalid: u64,
}

/// Where a probe's samples come from.
#[derive(Debug)]
enum Origin {
    /// A ring of a guest.
    Guest(GuestOrigin),
    /// A thread of the host.
    Host { task: usize, samples: Receiver<HostSample> },
}

/// One probe.
#[derive(Debug)]
struct Line {
    origin: Origin,
    series: Series,
}

/// How timers are fired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Firing {
    /// By the injector.
    pub(crate) exitless: bool,
    /// Largest advance, in nanoseconds.
    pub(crate) advance: Ns,
}

/// The injector can be slightly earlier than its advance, because it rounds and looks ahead.
const EARLY_NS: Ns = 100_000;

/// Collects a run.
#[derive(Debug)]
pub(crate) struct Collector<'a> {
    plan: &'a Plan,
    clock: Clock,
    origin: u64,
    firing: Firing,
    /// In the order of the plan's probes.
    lines: Vec<Line>,
    trace: Option<Recorder>,
    /// Threads of the VMs' vCPUs, once the trace knows them.
    vcpus: Vec<Vec<Tid>>,
    /// Read position in each vCPU's policy log, by VM.
    read: Vec<Vec<u64>>,
    policy_events: Vec<PolicyEvents>,
    widths: Widths,
    unread: u64,
    first: Option<Totals>,
    last: Option<Totals>,
    observer: Option<&'a mut dyn Observer>,
    /// Events on their way to the observer.
    live: Option<Live>,
}

impl<'a> Collector<'a> {
    /// A collector before the run. Also gives each host task, by number, a channel for its samples.
    pub(crate) fn new(
        plan: &'a Plan,
        vms: &[LabVm],
        clock: Clock,
        window: Window,
        firing: Firing,
        trace: Option<Recorder>,
    ) -> (Self, BTreeMap<usize, SyncSender<HostSample>>) {
        let mut senders = BTreeMap::new();
        let lines = plan.probes.iter().map(|p| {
            let (origin, task) = match p.target {
                Target::Guest { vm, task } => {
                    let (vm, task) = (vm as usize, task as usize);
                    let planned = &plan.vms[vm].tasks[task];
                    let program = &planned.program;
                    // Read before a guest can write there.
                    let spec = vms[vm].machine.ram.read_control().task[task];
                    let device = matches!(program, Program::Audio { device: true, .. });
                    let origin = GuestOrigin {
                        vm,
                        vcpu: spec.vcpu as usize,
                        ring: spec.ring,
                        device,
                        server: server(plan, p.target),
                        calls: calls(program),
                        interrupt: p.moment == SampleEnd::Interrupt,
                        reader: Reader::new(),
                        invalid: 0,
                    };
                    (Origin::Guest(origin), planned)
                }
                Target::Host(task) => {
                    let task = task as usize;
                    let (sender, samples) = samples::channel();
                    senders.insert(task, sender);
                    (Origin::Host { task, samples }, &plan.host_tasks[task])
                }
            };
            let probe = Probe::new(&p.probe, window, interval(&task.program), task.start_ns)
                .sliced(plan.slices);
            Line { origin, series: Series::new(probe) }
        });
        let lines = lines.collect();
        let origin = clock.tsc_at(0);
        let vcpus = Vec::new();
        let sliced = plan.vms.iter().filter(|_| plan.slices > 0);
        let this = Self {
            plan,
            clock,
            origin,
            firing,
            lines,
            trace,
            vcpus,
            read: vms.iter().map(|vm| vec![0; vm.vcpus.len()]).collect(),
            policy_events: sliced
                .map(|vm| PolicyEvents::new(&vm.label, plan.slices, plan.duration_ns))
                .collect(),
            widths: Widths::new(plan, vms),
            unread: 0,
            first: None,
            last: None,
            observer: None,
            live: None,
        };
        (this, senders)
    }

    /// Reports every sample to an observer from now on.
    pub(crate) fn observed(&mut self, observer: &'a mut dyn Observer) {
        self.lines.iter_mut().for_each(|line| line.series.probe.listen());
        self.observer = Some(observer);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// The warm-up is over.
    pub(crate) fn begin(&mut self, now: Ns, counters: &Counters<'_>) {
        self.mark();
        self.first = Some(counters.totals(now));
    }

    /// The measurement is over.
    pub(crate) fn end(&mut self, now: Ns, counters: &Counters<'_>) {
        self.mark();
        self.last = Some(counters.totals(now));
    }

    /// Marks the trace's meters for comparison with counters that are read now.
    fn mark(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.mark(tsc());
        }
    }

    /// Tells the trace the run's threads, once all of them run.
    pub(crate) fn introduce(&mut self, counters: &Counters<'_>) {
        let Some(trace) = self.trace.as_mut().filter(|t| !t.is_ready()) else { return };
        let load = |tid: &AtomicI32| tid.load(Ordering::Acquire);
        let vcpus = counters.vms.iter().map(|vm| vm.vcpus.iter().map(LabVcpu::tid).collect());
        let vcpus: Vec<Vec<Tid>> = vcpus.collect();
        let tasks: Vec<Tid> = counters.progress.iter().map(|p| load(&p.tid)).collect();
        let injector = load(counters.injector);
        if injector == 0 || vcpus.iter().flatten().chain(&tasks).any(|tid| *tid == 0) {
            return;
        }
        for Line { origin, series } in &mut self.lines {
            series.tid = match origin {
                // The task may have moved since, so no single thread's trace explains the sample.
                Origin::Guest(g) if balances(self.plan, g.vm) => 0,
                Origin::Guest(g) => vcpus[g.vm].get(g.vcpu).copied().unwrap_or_default(),
                Origin::Host { task, .. } => tasks[*task],
            };
        }
        let mut threads = Vec::new();
        let mut add = |tid, label: &str, measured, vcpu| {
            threads.push(Thread { tid, label: label.to_owned(), measured, vcpu });
        };
        for (vm, tids) in self.plan.vms.iter().zip(&vcpus) {
            tids.iter().for_each(|tid| add(*tid, &vm.name, true, true));
        }
        for (i, (task, tid)) in self.plan.host_tasks.iter().zip(&tasks).enumerate() {
            let measures = |l: &Line| matches!(l.origin, Origin::Host { task, .. } if task == i);
            add(*tid, &task.label, self.lines.iter().any(measures), false);
        }
        add(injector, "injector", false, false);
        add(gettid(), "collector", false, false);
        trace.know(&threads);
        let window = self.observer.as_ref().and_then(|o| o.windows().first().copied());
        if let (Some(observer), Some(window)) = (&mut self.observer, window) {
            let cpus = host_facts().cpus.iter().max().map_or(1, |last| last + 1);
            let collector = gettid();
            let tids = RunThreads { tasks: &tasks, vcpus: &vcpus, injector, collector };
            let live = Live::new(self.plan, self.clock, tids, cpus, window);
            observer.thread_names(&live.names);
            self.live = Some(live);
        }
        self.vcpus = vcpus;
    }

    /// Reads what was measured since the last call, and records the samples that the trace can explain.
    pub(crate) fn collect(&mut self, vms: &[LabVm]) {
        self.gather(vms);
        self.read(vms);
        if let Some(trace) = &mut self.trace {
            trace.drain(&mut tap(&mut self.live));
        }
        self.release(false);
    }

    fn gather(&mut self, vms: &[LabVm]) {
        let (clock, origin) = (self.clock, self.origin);
        let early = clock.to_cycles(self.firing.advance + EARLY_NS);
        let exitless = self.firing.exitless;
        for Line { origin: from, series } in &mut self.lines {
            match from {
                Origin::Guest(g) => {
                    let ring: &Ring = vms[g.vm].machine.ram.at(RINGS + g.ring * RING_STRIDE);
                    let ours = exitless || g.device;
                    g.reader.read(ring, |mut s| {
                        // Guest-written: a time that cannot be is no sample.
                        if s.due < origin || s.taken < s.due || s.taken > tsc() {
                            g.invalid += 1;
                            return;
                        }
                        if g.interrupt {
                            s.taken = s.woken.clamp(s.due, s.taken);
                        }
                        let source = match g.server {
                            Some(server) => Source::RoundTrip(RoundTrip::of(&s, server)),
                            None if g.calls => Source::Calls { back: s.taken },
                            None => of_period(s, ours, early),
                        };
                        series.hold(PendingSample {
                            due: clock.ns_at(s.due),
                            latency: clock.to_ns(s.taken - s.due),
                            missed: s.missed,
                            source,
                        });
                    });
                }
                Origin::Host { samples, .. } => {
                    for HostSample { due, latency, taken, missed, trip } in samples.try_iter() {
                        let asleep = || Source::Host {
                            due: taken.saturating_sub(clock.to_cycles(latency)),
                            taken,
                        };
                        let source = trip.map_or_else(asleep, Source::RoundTrip);
                        series.hold(PendingSample { due, latency, missed, source });
                    }
                }
            }
        }
    }

    /// Reads the logs of policies and governors.
    fn read(&mut self, vms: &[LabVm]) {
        let mut live = self.live.as_mut();
        self.unread += self.widths.read(vms, |at, vm, width| {
            if let Some(live) = &mut live {
                live.mask(at, vm, width);
            }
        });
        for (m, (vm, read)) in vms.iter().zip(&mut self.read).enumerate() {
            for (n, (v, from)) in vm.vcpus.iter().zip(read).enumerate() {
                let tid = self.vcpus.get(m).and_then(|tids| tids.get(n)).copied();
                self.unread += v.diary.read(from, |note| {
                    if let (Some(live), Some(tid)) = (&mut live, tid) {
                        live.note(tid, note);
                    }
                    let at = note.at.checked_sub(self.plan.warmup_ns);
                    let at = at.filter(|at| *at < self.plan.duration_ns);
                    if let (Some(events), Some(at)) = (self.policy_events.get_mut(m), at) {
                        note.counted().for_each(|event| events.book(at, event));
                    }
                });
            }
        }
    }

    fn release(&mut self, all: bool) {
        let timeline = self.trace.as_ref().map(Recorder::timeline);
        let covered = timeline.map_or(0, |timeline| self.clock.ns_at(timeline.covered()));
        if let (Some(live), Some(observer)) = (&mut self.live, &mut self.observer) {
            live.tell(*observer, covered);
        }
        for line in &mut self.lines {
            line.series.release(&self.clock, timeline, all);
            if let Some(observer) = &mut self.observer {
                line.series.probe.tell(*observer);
            }
        }
    }

    /// The recording. `ended`: when the run ended. Its threads have ended.
    pub(crate) fn finish(mut self, ended: Ns, counters: &Counters<'_>) -> Recording {
        self.gather(counters.vms);
        self.read(counters.vms);
        self.widths.end(ended);
        if let Some(trace) = &mut self.trace {
            trace.end(&mut tap(&mut self.live));
        }
        self.release(true);
        for line in &mut self.lines {
            line.series.close(ended);
            if let Some(observer) = &mut self.observer {
                line.series.probe.tell(*observer);
            }
        }
        if let (Some(live), Some(observer)) = (&mut self.live, &mut self.observer) {
            live.close(*observer, ended);
        }
        let mut recording = Recording::default();
        let mut lost: u64 = counters.progress.iter().map(|p| p.lost.load(Ordering::Relaxed)).sum();
        let (mut bad, mut coarse) = (0, 0);
        for Line { origin, series } in &self.lines {
            if let Origin::Guest(g) = origin
                && !g.interrupt
            {
                lost += g.reader.lost();
                bad += g.invalid;
            }
            coarse += series.coarse();
        }
        recording.put("lab", "samples_lost", "count", lost as f64);
        recording.put("lab", "samples_invalid", "count", bad as f64);
        recording.put("lab", "samples_coarse", "count", coarse as f64);
        if self.unread > 0 {
            recording.put("lab", "policy_events_lost", "count", self.unread as f64);
        }
        if let (Some(a), Some(b)) = (&self.first, &self.last) {
            scalars_between(self.plan, a, b, &mut recording);
            if let Some(trace) = &self.trace {
                compare(self.plan, (a, b), trace, (&self.vcpus, &self.clock), &mut recording);
            }
        }
        if let Some(trace) = &self.trace {
            let (events, lost) = trace.counts();
            recording.put("lab", "trace_events", "count", events as f64);
            recording.put("lab", "trace_lost", "count", lost as f64);
        }
        for (p, line) in self.plan.probes.iter().zip(&self.lines) {
            if let Some(mean) = line.series.probe.mean_with_missed() {
                recording.put(&p.probe, "mean_with_missed", "us", mean / 1e3);
            }
        }
        let latencies = self.lines.into_iter().map(|l| l.series.probe.finish()).collect();
        let (policy_events, in_use) = (self.policy_events, self.widths.in_use);
        Recording { latencies, policy_events, in_use, ..recording }
    }
}

/// Passes the trace's events to the observer.
fn tap(live: &mut Option<Live>) -> impl FnMut(&Event) {
    move |event| live.iter_mut().for_each(|live| live.take(event))
}

/// A guest's sample of one period. `ours`: the injector fires for it, at most `early` cycles before it is due.
fn of_period(mut s: Sample, ours: bool, early: u64) -> Source {
    // Times out of order count as the earlier one.
    s.woken = s.woken.clamp(s.due, s.taken);
    // A firing that is not of this period says nothing about it.
    let this = s.due.saturating_sub(early)..=s.woken;
    let fired = (ours && this.contains(&s.fired)).then_some(s.fired.max(s.due));
    Source::Guest { sample: s, fired }
}

/// Whether a task's samples are waits for other vCPUs, which call a function for it.
fn calls(program: &Program) -> bool {
    matches!(program, Program::Routine { acts } if acts.iter().any(|a| matches!(a, Act::Ipi { .. })))
}

/// Place of the server of a guest task's round trips.
fn server(plan: &Plan, ping: Target) -> Option<ServerPlace> {
    let Target::Guest { vm, task } = ping else { return None };
    let guest = &plan.vms[vm as usize];
    let program = &guest.tasks[task as usize].program;
    if !matches!(program, Program::Ping { .. } | Program::Routine { .. }) {
        return None;
    }
    Some(match program.servers().next()? {
        Target::Host(_) => ServerPlace::Host,
        Target::Guest { task: server, .. } => {
            let places = places(guest);
            // Of tasks that move, it is not known where the other was.
            let here =
                !balances(plan, vm as usize) && places[task as usize] == places[server as usize];
            if here { ServerPlace::Here } else { ServerPlace::Vcpu }
        }
    })
}

/// Time between two samples of a program.
fn interval(program: &Program) -> Ns {
    match program {
        Program::Cyclictest { interval_ns, .. } | Program::Ping { interval_ns, .. } => *interval_ns,
        Program::Audio { period_ns, .. } => *period_ns,
        Program::Routine { acts } => {
            let timer = acts.iter().find_map(|act| match act {
                Act::Timer { period_ns, .. } => Some(*period_ns),
                _ => None,
            });
            timer.unwrap_or(Ns::MAX)
        }
        _ => Ns::MAX,
    }
}
