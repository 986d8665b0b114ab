//! A trace as text: one line for each event, as ftrace prints one.
//!
//! ```text
//!     0.000012345 [003] switch   guest/vcpu0 -> build/2 (preempted)
//! ```
//!
//! Seconds from the start of the measurement, the pCPU, what happened. Samples stand where they were complete; a live
//! run tells them later than that, so its lines are held until its end.

use std::collections::BTreeMap;
use std::io::{self, Write};

use vcoop_model::plan::Ns;
use vcoop_model::recording::Part;
use vcoop_model::trace_event::{
    Event, GuestWork, Left, Observer, SampleEvent, ThreadId, ThreadNames, Work,
};

/// Writes what it is told.
#[derive(Debug)]
pub struct TextTrace<W> {
    out: W,
    /// The measurement's start, and the window, from the start of the run.
    start: Ns,
    window: (Ns, Ns),
    names: ThreadNames,
    lines: u64,
    /// Lines by time, until the end; `None`: they come in order, and are written at once.
    held: Option<BTreeMap<Ns, String>>,
    closed: Option<Ns>,
    failed: Option<io::Error>,
}

impl<W: Write> TextTrace<W> {
    /// A trace of a run whose measurement begins at `start`; `window` counts from there. `live`: samples come late.
    pub fn new(out: W, start: Ns, window: (Ns, Ns), live: bool) -> Self {
        let window = (start + window.0, start + window.1);
        let names = ThreadNames::default();
        let held = live.then(BTreeMap::new);
        Self { out, start, window, names, lines: 0, held, closed: None, failed: None }
    }

    /// When the window ended, from the start of the measurement; earlier than asked where the run did. `None`: it
    /// has not begun.
    pub fn closed(&self) -> Option<Ns> {
        self.closed
    }

    /// How many lines there are.
    ///
    /// # Errors
    ///
    /// What could not be written.
    pub fn finish(mut self) -> io::Result<u64> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        for text in self.held.iter().flat_map(BTreeMap::values) {
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush().map(|()| self.lines)
    }

    fn line(&mut self, at: Ns, place: &str, what: &str, text: &str) {
        if self.failed.is_some() {
            return;
        }
        let at = at.saturating_sub(self.start);
        let (s, ns) = (at / 1_000_000_000, at % 1_000_000_000);
        let line = format!("{s:>5}.{ns:09} {place:<5} {what:<8} {text}");
        let line = line.trim_end();
        match &mut self.held {
            Some(held) => *held.entry(at).or_default() += &format!("{line}\n"),
            None => self.failed = writeln!(self.out, "{line}").err(),
        }
        self.lines += 1;
    }

    fn thread(&self, id: ThreadId) -> &str {
        self.names.threads.get(id as usize).map_or("?", |thread| thread.name.as_str())
    }

    fn task(&self, thread: ThreadId, task: u32) -> String {
        let vm = self.names.threads.get(thread as usize).and_then(|thread| thread.vcpu);
        let tasks = vm.and_then(|(vm, _)| self.names.tasks.get(vm as usize));
        let name = tasks.and_then(|tasks| tasks.get(task as usize));
        name.map_or_else(|| format!("task {task}"), Clone::clone)
    }
}

fn left(left: Left) -> &'static str {
    match left {
        Left::Preempted => "preempted",
        Left::Blocked => "asleep",
        Left::Exited => "gone",
    }
}

fn work(work: Work) -> String {
    match work {
        Work::Idle => "idle".to_owned(),
        Work::CState => "leaves an idle state".to_owned(),
        Work::Irq(what) => format!("interrupt: {what}"),
        Work::Kernel => "kernel".to_owned(),
        Work::Switch => "context switch".to_owned(),
        Work::Entry => "VM entry".to_owned(),
        Work::Exit(why) => format!("VM exit: {why}"),
        Work::User => "own work".to_owned(),
        Work::Poll => "polls for a halted vCPU".to_owned(),
        Work::Guest(work) => match work {
            GuestWork::Irq(what) => format!("guest interrupt: {what}"),
            GuestWork::Softirq => "guest softirq".to_owned(),
            GuestWork::Kernel => "guest kernel".to_owned(),
            GuestWork::Switch => "guest context switch".to_owned(),
            GuestWork::Poll => "guest polls".to_owned(),
            GuestWork::Rest => "guest rests".to_owned(),
            GuestWork::Task => "guest task".to_owned(),
        },
    }
}

fn us(ns: Ns) -> String {
    format!("{}.{:03} us", ns / 1000, ns % 1000)
}

impl<W: Write + std::fmt::Debug> Observer for TextTrace<W> {
    fn windows(&self) -> Vec<(Ns, Ns)> {
        vec![self.window]
    }

    fn ends_with_windows(&self) -> bool {
        true
    }

    fn thread_names(&mut self, names: &ThreadNames) {
        self.names = names.clone();
    }

    fn closes(&mut self, at: Ns) {
        self.closed = Some(at.saturating_sub(self.start));
    }

    fn event(&mut self, at: Ns, event: &Event) {
        let cpu = |pcpu: u32| format!("[{pcpu:03}]");
        let on_off = |on: bool| if on { "begins" } else { "ends" };
        let (place, what, text) = match *event {
            Event::Switch { pcpu, from, to, left: why } => {
                let name = |id: Option<ThreadId>| id.map_or("(idle)", |id| self.thread(id));
                let why = if from.is_some() { format!(" ({})", left(why)) } else { String::new() };
                (cpu(pcpu), "switch", format!("{}{why} -> {}", name(from), name(to)))
            }
            Event::Begin { pcpu, work: what } => (cpu(pcpu), "begin", work(what)),
            Event::Wake { thread, pcpu, by } => {
                (cpu(pcpu), "wake", format!("{} by pCPU {by}", self.thread(thread)))
            }
            Event::Waits { thread, pcpu } => (cpu(pcpu), "waits", self.thread(thread).to_owned()),
            Event::Move { thread, from, to } => {
                (cpu(to), "move", format!("{} from pCPU {from}", self.thread(thread)))
            }
            Event::Throttle { pcpu, on } => {
                (cpu(pcpu), "throttle", format!("of real-time threads {}", on_off(on)))
            }
            Event::Park { thread, on } => {
                (String::new(), "park", format!("{} {}", self.thread(thread), on_off(on)))
            }
            Event::Credit { what, thread, pcpu } => {
                (cpu(pcpu), "credit", format!("{what} of {}", self.thread(thread)))
            }
            Event::Inject { thread, what, by } => {
                (cpu(by), "inject", format!("{what} into {}", self.thread(thread)))
            }
            Event::Boost { thread, what, budget_ns } => {
                let text = format!("{what} of {}, {} left", self.thread(thread), us(budget_ns));
                (String::new(), "boost", text)
            }
            Event::Mask { vm, vcpus } => {
                let name = self.names.vms.get(vm as usize).map_or("?", String::as_str);
                let s = if vcpus == 1 { "" } else { "s" };
                (String::new(), "mask", format!("{name} uses {vcpus} vCPU{s}"))
            }
            Event::TaskSwitch { thread, task, left: why } => {
                let to = task.map_or_else(|| "(idle)".to_owned(), |task| self.task(thread, task));
                let text = format!("{} -> {to} ({} before)", self.thread(thread), left(why));
                (String::new(), "task", text)
            }
            Event::TaskWake { thread, task, by } => {
                let task = self.task(thread, task);
                let text = format!("{task} on {} by {}", self.thread(thread), self.thread(by));
                (String::new(), "taskwake", text)
            }
            Event::Queue { pcpu, length } => (cpu(pcpu), "queue", length.to_string()),
            Event::Steal { thread, ns } => {
                (String::new(), "steal", format!("{} {}", self.thread(thread), us(ns)))
            }
        };
        self.line(at, &place, what, &text);
    }

    fn sample(&mut self, at: Ns, sample: &SampleEvent<'_>) {
        if !(self.window.0..=self.window.1).contains(&at) {
            return;
        }
        let mut text = format!("{} {}", sample.probe, us(sample.latency_ns));
        for part in Part::ALL {
            let ns = sample.parts[part as usize];
            if ns > 0 {
                text += &format!(", {} {}", part.name(), us(ns));
            }
        }
        if let Some((who, ns)) = sample.behind {
            text += &format!("; behind {who} for {}", us(ns));
        }
        self.line(at, "", "sample", &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_model::recording::Parts;

    #[test]
    fn a_line_has_time_place_and_names() {
        let mut trace = TextTrace::new(Vec::new(), 1_000, (0, 5_000), false);
        assert_eq!(trace.windows(), [(1_000, 6_000)]);
        let thread =
            |name: &str, vcpu| vcoop_model::trace_event::ThreadName { name: name.to_owned(), vcpu };
        trace.thread_names(&ThreadNames {
            pcpus: 1,
            threads: vec![thread("hog", None), thread("g/vcpu0", Some((0, 0)))],
            vms: vec!["g".to_owned()],
            tasks: vec![vec!["t".to_owned()]],
            labels: Vec::new(),
        });
        let left = Left::Preempted;
        trace.event(3_500, &Event::Switch { pcpu: 0, from: Some(0), to: Some(1), left });
        trace.event(4_000, &Event::TaskWake { thread: 1, task: 0, by: 1 });
        let text = String::from_utf8(trace.out.clone()).unwrap();
        assert_eq!(
            text,
            "    0.000002500 [000] switch   hog (preempted) -> g/vcpu0\n\
             \x20   0.000003000       taskwake t on g/vcpu0 by g/vcpu0\n"
        );
        assert_eq!(trace.finish().unwrap(), 2);
    }

    #[test]
    fn a_sample_that_comes_late_stands_where_it_was_complete() {
        let mut out = Vec::new();
        let mut trace = TextTrace::new(&mut out, 0, (0, 5_000), true);
        trace.event(3_000, &Event::Queue { pcpu: 0, length: 1 });
        let parts = Parts::default();
        let sample = SampleEvent {
            probe: "guest.t",
            due_ns: 1_500,
            latency_ns: 500,
            parts: &parts,
            behind: None,
            counts: true,
            open: false,
        };
        trace.sample(2_000, &sample);
        assert_eq!(trace.finish().unwrap(), 2);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "    0.000002000       sample   guest.t 0.500 us\n\
             \x20   0.000003000 [000] queue    1\n"
        );
    }
}
