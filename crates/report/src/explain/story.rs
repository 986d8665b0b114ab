//! The events of one sample, in words.

use serde::Serialize;
use vcoop_model::plan::{Ns, Target};
use vcoop_model::trace_event::{Event, GuestWork, Left, ThreadId, ThreadNames, Work};

/// Most lines: further ones are left out in the middle, and counted.
const MOST: usize = 24;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// When, in microseconds since the sample was due.
    pub at_us: f64,
    /// What happened.
    pub text: String,
}

/// The thread or task of the sample.
struct SampleThread<'a> {
    names: &'a ThreadNames,
    thread: ThreadId,
    /// Index of the guest task, if it is one.
    task: Option<u32>,
    /// pCPU whose queue the thread waits on.
    waits: Option<u32>,
    /// pCPU that it runs on.
    has: Option<u32>,
    /// Thread on each pCPU.
    current: Vec<Option<ThreadId>>,
    lines: Vec<Line>,
    due: Ns,
}

/// Events between the due time of a sample and its first instruction. `targets`: the tasks of the probe.
pub(super) fn story(
    names: &ThreadNames,
    targets: &[Target],
    events: &[(Ns, Event)],
    due: Ns,
    end: Ns,
) -> Vec<Line> {
    let Some((thread, task)) = hero(names, targets, events, end) else { return Vec::new() };
    let mut hero = SampleThread {
        names,
        thread,
        task,
        waits: None,
        has: None,
        current: vec![None; names.pcpus as usize],
        lines: Vec::new(),
        due,
    };
    let mut begun = false;
    for (at, event) in events.iter().filter(|(at, _)| *at <= end) {
        if *at >= due && !std::mem::replace(&mut begun, true) {
            hero.stands(due);
        }
        hero.tell(*at, event, begun);
    }
    shorten(hero.lines)
}

/// The thread of the probe's task, and the task. A guest's task is on the vCPU that it last came to before the end; of
/// copies of a VM, the one whose task did.
fn hero(
    names: &ThreadNames,
    targets: &[Target],
    events: &[(Ns, Event)],
    end: Ns,
) -> Option<(ThreadId, Option<u32>)> {
    if let Some(Target::Host(t)) = targets.first() {
        return Some((*t, None));
    }
    let ours = |thread: ThreadId, task: u32| {
        let vm = names.threads[thread as usize].vcpu.map(|(vm, _)| vm);
        vm.is_some_and(|vm| targets.contains(&Target::Guest { vm, task }))
    };
    let came = |(at, event): &(Ns, Event)| match *event {
        Event::TaskSwitch { thread, task: Some(task), .. }
        | Event::TaskWake { thread, task, .. }
            if *at <= end && ours(thread, task) =>
        {
            Some((thread, Some(task)))
        }
        _ => None,
    };
    events.iter().rev().find_map(came)
}

impl SampleThread<'_> {
    fn say(&mut self, at: Ns, text: String) {
        let line = Line { at_us: (at - self.due) as f64 / 1e3, text };
        self.lines.push(line);
    }

    fn name(&self, thread: Option<ThreadId>) -> &str {
        thread.map_or("nobody", |t| &self.names.threads[t as usize].name)
    }

    /// The state when the sample is due.
    fn stands(&mut self, due: Ns) {
        let me = self.name(Some(self.thread)).to_owned();
        let text = match (self.has, self.waits) {
            (Some(p), _) => format!("{me} has pcpu{p}"),
            (None, Some(p)) => {
                let other = self.name(self.current[p as usize]);
                format!("{me} waits for pcpu{p}, which {other} has")
            }
            (None, None) => format!("{me} sleeps"),
        };
        self.say(due, text);
    }

    fn tell(&mut self, at: Ns, event: &Event, say: bool) {
        let me = self.thread;
        let text = match *event {
            Event::Switch { pcpu, from, to, left } => {
                self.current[pcpu as usize] = to;
                if to == Some(me) {
                    (self.has, self.waits) = (Some(pcpu), None);
                    Some(format!("{} gets pcpu{pcpu}", self.name(to)))
                } else if from == Some(me) {
                    self.has = None;
                    if left == Left::Preempted {
                        self.waits = Some(pcpu);
                    }
                    let name = self.name(from);
                    let text = match left {
                        Left::Preempted => {
                            format!("{name} is preempted on pcpu{pcpu} by {}", self.name(to))
                        }
                        Left::Blocked => format!("{name} sleeps"),
                        Left::Exited => format!("{name} ends"),
                    };
                    Some(text)
                } else if self.waits == Some(pcpu) {
                    let (from, to) = (self.name(from), self.name(to));
                    Some(format!("pcpu{pcpu} goes from {from} to {to}"))
                } else {
                    None
                }
            }
            Event::Waits { thread, pcpu } if thread == me => {
                self.waits = Some(pcpu);
                None
            }
            Event::Wake { thread, pcpu, .. } if thread == me => {
                self.waits = Some(pcpu);
                let other = self.name(self.current[pcpu as usize]);
                Some(format!(
                    "{} is woken and waits for pcpu{pcpu}, which {other} has",
                    self.name(Some(me))
                ))
            }
            Event::Move { thread, from, to } if thread == me => {
                self.waits = self.waits.map(|_| to);
                Some(format!("{} moves from pcpu{from} to pcpu{to}", self.name(Some(me))))
            }
            Event::Throttle { pcpu, on } if self.waits == Some(pcpu) || self.has == Some(pcpu) => {
                let what = if on { "is throttled" } else { "is throttled no longer" };
                Some(format!("real-time work on pcpu{pcpu} {what}"))
            }
            Event::Park { thread, on } if thread == me => {
                Some(if on { "its cap parks it" } else { "its cap lets it run again" }.to_owned())
            }
            Event::Credit { what, thread, pcpu } if thread == me => {
                Some(format!("{what} (pcpu{pcpu})"))
            }
            Event::Inject { thread, what, by } if thread == me => {
                Some(format!("pcpu{by} injects {} {what} interrupt", article(what)))
            }
            Event::Boost { thread, what, .. } if thread == me => Some(format!("policy: {what}")),
            Event::TaskWake { thread, task, .. } if thread == me && Some(task) == self.task => {
                Some(format!("task {} becomes runnable", self.task_name(task)))
            }
            Event::TaskSwitch { thread, task: Some(task), .. } if thread == me => {
                Some(format!("the guest switches to {}", self.task_name(task)))
            }
            Event::Begin { pcpu, work } if self.has == Some(pcpu) => self.work(pcpu, work),
            Event::Begin { pcpu, work: Work::CState } if self.waits == Some(pcpu) => {
                Some(format!("pcpu{pcpu} leaves an idle state"))
            }
            _ => None,
        };
        if let Some(text) = text.filter(|_| say) {
            self.say(at, text);
        }
    }

    fn task_name(&self, task: u32) -> &str {
        let vm = self.names.threads[self.thread as usize].vcpu.map_or(0, |(vm, _)| vm);
        &self.names.tasks[vm as usize][task as usize]
    }

    fn work(&self, pcpu: u32, work: Work) -> Option<String> {
        match work {
            Work::Irq(name) => {
                Some(format!("pcpu{pcpu} handles {} {name} interrupt", article(name)))
            }
            Work::Poll => Some("the host polls".to_owned()),
            Work::Exit(reason) => Some(format!("exit: {reason}")),
            Work::Guest(GuestWork::Irq(what)) => {
                Some(format!("the guest takes the {what} interrupt"))
            }
            Work::Guest(GuestWork::Softirq) => Some("the guest runs its softirq".to_owned()),
            _ => None,
        }
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// Keeps the first and the last lines.
fn shorten(mut lines: Vec<Line>) -> Vec<Line> {
    if lines.len() <= MOST {
        return lines;
    }
    let left_out = lines.len() - (MOST - 1);
    let half = MOST / 2;
    let at_us = lines[half].at_us;
    let text = format!("... {left_out} more events ...");
    lines.splice(half..half + left_out, [Line { at_us, text }]);
    lines
}

#[cfg(test)]
mod tests {
    use super::{Line, MOST, shorten, story};
    use vcoop_model::plan::Target;
    use vcoop_model::trace_event::{Event, Left, ThreadName, ThreadNames};

    #[test]
    fn a_story_tells_what_concerns_the_sample() {
        let host = |name: &str| ThreadName { name: name.into(), vcpu: None };
        let names = ThreadNames {
            pcpus: 2,
            threads: vec![host("load/0"), host("probe"), host("other")],
            ..ThreadNames::default()
        };
        let (load, probe, other) = (Some(0), Some(1), Some(2));
        let (left, pcpu) = (Left::Preempted, 0);
        let events = [
            (90, Event::Switch { pcpu, from: None, to: load, left }),
            (90, Event::Switch { pcpu: 1, from: None, to: other, left }),
            (110, Event::Wake { thread: 1, pcpu, by: 1 }),
            (120, Event::Switch { pcpu: 1, from: other, to: None, left }),
            (150, Event::Switch { pcpu, from: load, to: probe, left }),
            (200, Event::Switch { pcpu, from: probe, to: load, left }),
        ];
        let told = story(&names, &[Target::Host(1)], &events, 100, 160);
        let lines: Vec<(f64, &str)> = told.iter().map(|l| (l.at_us, l.text.as_str())).collect();
        assert_eq!(
            lines,
            [
                (0.0, "probe sleeps"),
                (0.01, "probe is woken and waits for pcpu0, which load/0 has"),
                (0.05, "probe gets pcpu0"),
            ]
        );
    }

    #[test]
    fn a_long_story_keeps_both_ends() {
        let lines: Vec<Line> =
            (0..100).map(|i| Line { at_us: f64::from(i), text: i.to_string() }).collect();
        let short = shorten(lines);
        assert_eq!(short.len(), MOST);
        assert_eq!((short[0].at_us, short[MOST - 1].at_us), (0.0, 99.0));
        assert_eq!(short[MOST / 2].text, format!("... {} more events ...", 100 - (MOST - 1)));
    }
}
