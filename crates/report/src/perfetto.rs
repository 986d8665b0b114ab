//! A run as a [Perfetto](https://perfetto.dev) trace.
//!
//! ```text
//! host CPUs     kernel scheduling events: Perfetto draws who ran where, and what was runnable
//! pcpuN         interrupts, scheduler work, idle exits; credit1's decisions; injected interrupts
//! VM/vcpuN      entries, exits, and in guest mode interrupts, switches and tasks; boosts, budget, steal
//! VM task T     runnable, on vcpuN, and in it: the vCPU waits for a pCPU
//! VM mask       the time in which the guest keeps off vCPUs, and each change
//! samples       one slice a sample, named by what made it late
//! ```
//!
//! An arrow leads from the injection of an interrupt over the guest's handler to the first instruction of the task that
//! it woke. Times are from the start of the measurement. The trace is written during the run, with memory that does not
//! grow.

mod packets;
mod samples;
mod schema;
#[cfg(test)]
mod tests;
mod tracks;

use std::fmt::Debug;
use std::io::{self, Write};

use vcoop_model::plan::Ns;
use vcoop_model::trace_event::{
    Event, GuestWork, Left, Observer, SampleEvent, ThreadId, ThreadNames, Work,
};

use packets::{Facts, Packets};
use samples::Lanes;
use schema::{KernelEvent as Kernel, SchedSwitch, SchedWaking, Type};
use tracks::{Track, Tracks, task_row};

/// A trace that is being written. See the [module](self).
#[derive(Debug)]
pub struct Trace<W> {
    packets: Packets<W>,
    tracks: Tracks,
    /// Begin of the measurement, from the start of the run.
    zero: Ns,
    window: (Ns, Ns),
    on: bool,
    closed: Option<Ns>,
    pcpus: Vec<Pcpu>,
    threads: Vec<Thread>,
    /// By VM and task.
    tasks: Vec<Vec<Task>>,
    /// By VM.
    masks: Vec<Mask>,
    lanes: Lanes,
    flows: u64,
}

/// Size of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSize {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Pcpu {
    current: Option<ThreadId>,
    /// Its slice is open.
    open: bool,
    throttled: bool,
    queue: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    /// Number of open slices: two in guest mode.
    open: u32,
    runs: bool,
    task: Option<u32>,
    boosted: bool,
    budget: Option<Ns>,
    /// Interrupts that are pending, and their arrows.
    pending: Vec<(&'static str, u64)>,
    /// Arrow of the interrupt that the guest handles.
    handles: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Task {
    runnable: bool,
    /// Arrow that ends at its next instruction.
    flow: Option<u64>,
}

/// vCPUs in use of a VM.
#[derive(Clone, Copy, Debug)]
struct Mask {
    all: u32,
    /// Not known before the first event.
    used: Option<u32>,
}

impl Mask {
    fn is_partial(self) -> bool {
        self.used.is_some_and(|used| used < self.all)
    }
}

impl<W: Write> Trace<W> {
    /// A trace of a window of the measurement, which begins `zero` after the run.
    pub fn new(out: W, zero: Ns, window: (Ns, Ns)) -> Self {
        Self {
            packets: Packets::new(out),
            tracks: Tracks::default(),
            zero,
            window: (window.0.saturating_add(zero), window.1.saturating_add(zero)),
            on: false,
            closed: None,
            pcpus: Vec::new(),
            threads: Vec::new(),
            tasks: Vec::new(),
            masks: Vec::new(),
            lanes: Lanes::default(),
            flows: 0,
        }
    }

    /// End of the window, from the start of the measurement; earlier than asked for if the run ended before. `None`: it
    /// has not begun.
    pub fn closed(&self) -> Option<Ns> {
        self.closed
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// The first error of the file.
    pub fn finish(self) -> io::Result<(TraceSize, W)> {
        let (packets, bytes, out) = self.packets.finish()?;
        Ok((TraceSize { packets, bytes }, out))
    }

    fn switch(
        &mut self,
        at: Ns,
        pcpu: u32,
        from: Option<ThreadId>,
        to: Option<ThreadId>,
        left: Left,
    ) {
        if let Some(from) = from {
            self.end_all(at, from);
            self.threads[from as usize].runs = false;
            self.task_waits(at, from);
        }
        let state = match left {
            Left::Preempted => 0,
            Left::Blocked => 1,
            Left::Exited => 32,
        };
        let (prev_pid, prev_comm) = self.tracks.comm(from);
        let (next_pid, next_comm) = self.tracks.comm(to);
        let event = Kernel::SchedSwitch(SchedSwitch {
            prev_comm: Some(prev_comm),
            prev_pid: Some(prev_pid),
            prev_prio: Some(120),
            prev_state: Some(if from.is_some() { state } else { 0 }),
            next_comm: Some(next_comm),
            next_pid: Some(next_pid),
            next_prio: Some(120),
        });
        self.packets.kernel(pcpu, at, prev_pid as u32, event);
        self.pcpus[pcpu as usize].current = to;
        if let Some(to) = to {
            self.task_goes_on(at, to);
            self.threads[to as usize].runs = true;
        }
    }

    fn wake(&mut self, at: Ns, thread: ThreadId, pcpu: u32, by: u32) {
        let (tid, comm) = self.tracks.comm(Some(thread));
        let waker = self.tracks.comm(self.pcpus[by as usize].current).0;
        let event = Kernel::SchedWaking(SchedWaking {
            comm: Some(comm),
            pid: Some(tid),
            prio: Some(120),
            success: Some(1),
            target_cpu: Some(pcpu as i32),
        });
        self.packets.kernel(by, at, waker as u32, event);
    }

    /// Ends every slice of a thread.
    fn end_all(&mut self, at: Ns, thread: ThreadId) {
        for _ in 0..std::mem::take(&mut self.threads[thread as usize].open) {
            self.packets.end(Track::Thread.of(thread), at);
        }
    }

    fn begin(&mut self, at: Ns, pcpu: u32, work: Work) {
        let own = Track::Pcpu.of(pcpu);
        if std::mem::take(&mut self.pcpus[pcpu as usize].open) {
            self.packets.end(own, at);
        }
        let current = self.pcpus[pcpu as usize].current;
        let guest = matches!(work, Work::Guest(_));
        if let Some(thread) = current {
            // In guest mode the outer slice stays.
            let keep = u32::from(guest && self.threads[thread as usize].open == 2);
            while self.threads[thread as usize].open > keep {
                self.threads[thread as usize].open -= 1;
                self.packets.end(Track::Thread.of(thread), at);
            }
        }
        let kernel = match work {
            Work::Idle | Work::User | Work::Entry | Work::Exit(_) | Work::Poll | Work::Guest(_) => {
                None
            }
            Work::CState => Some("leave idle"),
            Work::Irq(name) => Some(name),
            Work::Kernel => Some("kernel"),
            Work::Switch => Some("switch"),
        };
        if let Some(name) = kernel {
            let category = if matches!(work, Work::Irq(_)) { "irq" } else { "host" };
            self.slice(own, at, category, name);
            self.pcpus[pcpu as usize].open = true;
            return;
        }
        let Some(thread) = current else { return };
        match work {
            Work::Entry => self.thread_slice(thread, at, "entry", "entry"),
            Work::Exit(reason) => {
                let name = format!("exit {reason}");
                self.thread_slice(thread, at, "exit", &name);
            }
            Work::Poll => self.thread_slice(thread, at, "poll", "host polls"),
            Work::Guest(inner) => self.guest(at, thread, inner),
            _ => {}
        }
    }

    fn guest(&mut self, at: Ns, thread: ThreadId, work: GuestWork) {
        if self.threads[thread as usize].open == 0 {
            self.thread_slice(thread, at, "guest", "guest mode");
        }
        let state = &mut self.threads[thread as usize];
        let (mut flow, mut flow_ends) = (None, None);
        match work {
            GuestWork::Irq(what) => {
                if let Some(i) = state.pending.iter().position(|p| p.0 == what) {
                    state.handles = Some(state.pending.remove(i).1);
                    flow = state.handles;
                }
            }
            GuestWork::Softirq => flow = state.handles,
            GuestWork::Kernel | GuestWork::Switch | GuestWork::Poll | GuestWork::Rest => {}
            GuestWork::Task => state.handles = None,
        }
        let task = state.task;
        let vm = self.tracks.vm_of(thread);
        if let (GuestWork::Task, Some(task), Some(vm)) = (work, task, vm) {
            flow_ends = self.tasks[vm][task as usize].flow.take();
        }
        let name = match work {
            GuestWork::Irq(what) => format!("irq {what}"),
            GuestWork::Softirq => "softirq".to_owned(),
            GuestWork::Kernel => "guest kernel".to_owned(),
            GuestWork::Switch => "guest switch".to_owned(),
            GuestWork::Poll => "guest polls".to_owned(),
            GuestWork::Rest => "guest rests".to_owned(),
            GuestWork::Task => self.tracks.task_name(vm, task),
        };
        let track = Track::Thread.of(thread);
        let facts = Facts { category: "guest", name: &name, flow, flow_ends, ..Facts::default() };
        self.packets.event(track, at, Type::SliceBegin, facts);
        self.threads[thread as usize].open += 1;
    }

    fn task_switch(&mut self, at: Ns, thread: ThreadId, task: Option<u32>, left: Left) {
        let Some(vm) = self.tracks.vm_of(thread) else { return };
        let vcpu = self.tracks.thread_name(thread);
        let before = std::mem::replace(&mut self.threads[thread as usize].task, task);
        if let Some(before) = before {
            let track = task_row(vm, before);
            self.packets.end(track, at);
            if !self.threads[thread as usize].runs {
                self.packets.end(track, at);
            }
            if left == Left::Preempted {
                self.slice(track, at, "task", "runnable");
                self.tasks[vm][before as usize].runnable = true;
            }
        }
        if let Some(task) = task {
            let track = task_row(vm, task);
            if std::mem::take(&mut self.tasks[vm][task as usize].runnable) {
                self.packets.end(track, at);
            }
            self.slice(track, at, "task", &format!("on {vcpu}"));
            // Before it has run a moment its vCPU may have lost its pCPU.
            if !self.threads[thread as usize].runs {
                self.slice(track, at, "task", "vCPU waits");
            }
        }
    }

    /// The vCPU of a task lost its pCPU.
    fn task_waits(&mut self, at: Ns, thread: ThreadId) {
        if let (Some(vm), Some(task)) =
            (self.tracks.vm_of(thread), self.threads[thread as usize].task)
        {
            self.slice(task_row(vm, task), at, "task", "vCPU waits");
        }
    }

    /// The vCPU of a task has a pCPU again.
    fn task_goes_on(&mut self, at: Ns, thread: ThreadId) {
        let state = &self.threads[thread as usize];
        if let (Some(vm), Some(task), false) = (self.tracks.vm_of(thread), state.task, state.runs) {
            self.packets.end(task_row(vm, task), at);
        }
    }

    fn task_wake(&mut self, at: Ns, thread: ThreadId, task: u32, by: ThreadId) {
        let Some(vm) = self.tracks.vm_of(thread) else { return };
        let track = task_row(vm, task);
        let woken = &mut self.tasks[vm][task as usize];
        woken.flow = self.threads[by as usize].handles.or(woken.flow);
        let runs = self.threads[thread as usize].task == Some(task);
        if !runs && !std::mem::replace(&mut woken.runnable, true) {
            self.slice(track, at, "task", "runnable");
        }
    }

    fn inject(&mut self, at: Ns, thread: ThreadId, what: &'static str, by: u32) {
        self.flows += 1;
        let flow = self.flows;
        let pending = &mut self.threads[thread as usize].pending;
        // One that is pending already is one with this.
        pending.retain(|p| p.0 != what);
        pending.push((what, flow));
        let name = format!("inject {what} into {}", self.tracks.thread_name(thread));
        let track = Track::Pcpu.of(by);
        let facts = Facts { category: "irq", name: &name, flow: Some(flow), ..Facts::default() };
        self.packets.event(track, at, Type::Instant, facts);
    }

    fn boost(&mut self, at: Ns, thread: ThreadId, what: &'static str, budget: Ns) {
        let track = Track::Boost.of(thread);
        let boosted = &mut self.threads[thread as usize].boosted;
        match what {
            "boost" if !std::mem::replace(boosted, true) => {
                self.slice(track, at, "policy", "boosted");
            }
            "restore" if std::mem::take(boosted) => self.packets.end(track, at),
            "boost" | "restore" => {}
            other => self.instant(track, at, "policy", other),
        }
        let before = self.threads[thread as usize].budget.replace(budget);
        if before != Some(budget) {
            self.packets.counter(Track::Budget.of(thread), at, budget);
        }
    }

    fn mask(&mut self, at: Ns, vm: u32, vcpus: u32) {
        self.packets.counter(Track::Width.of(vm), at, u64::from(vcpus));
        let track = Track::Mask.of(vm);
        let was = self.masks[vm as usize];
        let now = Mask { used: Some(vcpus), ..was };
        self.masks[vm as usize] = now;
        if was.is_partial() {
            self.packets.end(track, at);
        }
        if now.is_partial() {
            let name = format!("uses {vcpus} of {} vCPUs", now.all);
            self.slice(track, at, "mask", &name);
        }
        // The first one says how things stand when the window opens.
        if let Some(before) = was.used {
            let name = match before == vcpus {
                true => format!("mask: another {vcpus} vCPUs"),
                false => format!("mask: {before} to {vcpus} vCPUs"),
            };
            self.instant(track, at, "mask", &name);
        }
    }

    fn slice(&mut self, track: u64, at: Ns, category: &'static str, name: &str) {
        let facts = Facts { category, name, ..Facts::default() };
        self.packets.event(track, at, Type::SliceBegin, facts);
    }

    fn thread_slice(&mut self, thread: ThreadId, at: Ns, category: &'static str, name: &str) {
        self.slice(Track::Thread.of(thread), at, category, name);
        self.threads[thread as usize].open += 1;
    }

    fn instant(&mut self, track: u64, at: Ns, category: &'static str, name: &str) {
        let facts = Facts { category, name, ..Facts::default() };
        self.packets.event(track, at, Type::Instant, facts);
    }

    fn told(&mut self, at: Ns, event: &Event) {
        match *event {
            Event::Switch { pcpu, from, to, left } => self.switch(at, pcpu, from, to, left),
            Event::Begin { pcpu, work } => self.begin(at, pcpu, work),
            Event::Wake { thread, pcpu, by } => self.wake(at, thread, pcpu, by),
            // A wait that began before the window.
            Event::Waits { thread, pcpu } => self.wake(at, thread, pcpu, pcpu),
            Event::Move { thread, from, to } => {
                let name =
                    format!("{} moves: pcpu{from} to pcpu{to}", self.tracks.thread_name(thread));
                self.instant(Track::Pcpu.of(to), at, "host", &name);
            }
            Event::Throttle { pcpu, on } => {
                let was = std::mem::replace(&mut self.pcpus[pcpu as usize].throttled, on);
                let track = Track::Throttle.of(pcpu);
                match (was, on) {
                    (false, true) => self.slice(track, at, "host", "RT throttled"),
                    (true, false) => self.packets.end(track, at),
                    _ => {}
                }
            }
            Event::Park { thread, on } => {
                let name = if on { "parked by its cap" } else { "unparked" };
                self.instant(Track::Thread.of(thread), at, "host", name);
            }
            Event::Credit { what, thread, pcpu } => {
                let name = format!("{what}: {}", self.tracks.thread_name(thread));
                self.instant(Track::Pcpu.of(pcpu), at, "credit1", &name);
            }
            Event::Inject { thread, what, by } => self.inject(at, thread, what, by),
            Event::Boost { thread, what, budget_ns } => self.boost(at, thread, what, budget_ns),
            Event::TaskSwitch { thread, task, left } => self.task_switch(at, thread, task, left),
            Event::TaskWake { thread, task, by } => self.task_wake(at, thread, task, by),
            Event::Queue { pcpu, length } => {
                if self.pcpus[pcpu as usize].queue.replace(length) != Some(length) {
                    self.packets.counter(Track::Queue.of(pcpu), at, u64::from(length));
                }
            }
            Event::Mask { vm, vcpus } => self.mask(at, vm, vcpus),
            Event::Steal { thread, ns } => {
                self.packets.counter(Track::Steal.of(thread), at, ns);
            }
        }
    }
}

impl<W: Write + Debug> Observer for Trace<W> {
    fn windows(&self) -> Vec<(Ns, Ns)> {
        vec![self.window]
    }

    fn ends_with_windows(&self) -> bool {
        true
    }

    fn thread_names(&mut self, names: &ThreadNames) {
        self.tracks = Tracks::new(names);
        self.packets.cpus(names.pcpus as usize);
        self.pcpus = vec![Pcpu::default(); names.pcpus as usize];
        self.threads = vec![Thread::default(); names.threads.len()];
        self.tasks = names.tasks.iter().map(|t| vec![Task::default(); t.len()]).collect();
        let vms = 0..names.vms.len() as u32;
        self.masks = vms.map(|vm| Mask { all: self.tracks.vcpus(vm), used: None }).collect();
        self.tracks.describe(&mut self.packets);
    }

    fn opens(&mut self, _: Ns) {
        self.on = true;
    }

    fn event(&mut self, at: Ns, event: &Event) {
        self.told(at - self.zero, event);
    }

    fn closes(&mut self, at: Ns) {
        let at = at - self.zero;
        self.on = false;
        self.closed = Some(at);
        for pcpu in 0..self.pcpus.len() as u32 {
            if std::mem::take(&mut self.pcpus[pcpu as usize].open) {
                self.packets.end(Track::Pcpu.of(pcpu), at);
            }
            if std::mem::take(&mut self.pcpus[pcpu as usize].throttled) {
                self.packets.end(Track::Throttle.of(pcpu), at);
            }
        }
        for thread in 0..self.threads.len() as u32 {
            self.end_all(at, thread);
            if std::mem::take(&mut self.threads[thread as usize].boosted) {
                self.packets.end(Track::Boost.of(thread), at);
            }
            if let (Some(vm), Some(task)) =
                (self.tracks.vm_of(thread), self.threads[thread as usize].task.take())
            {
                if !self.threads[thread as usize].runs {
                    self.packets.end(task_row(vm, task), at);
                }
                self.packets.end(task_row(vm, task), at);
            }
        }
        for vm in 0..self.masks.len() {
            if self.masks[vm].is_partial() {
                self.packets.end(Track::Mask.of(vm as u32), at);
            }
            self.masks[vm].used = None;
        }
        for vm in 0..self.tasks.len() {
            for task in 0..self.tasks[vm].len() {
                if std::mem::take(&mut self.tasks[vm][task].runnable) {
                    self.packets.end(task_row(vm, task as u32), at);
                }
            }
        }
    }

    fn sample(&mut self, _: Ns, sample: &SampleEvent<'_>) {
        self.lanes.sample(&mut self.packets, self.zero, self.on, sample);
    }
}
