//! Reports the host's scheduler to an observer as it is recorded.
//!
//! Threads of the run have their names; all others are one thread called `others`. Before a CPU's first event, and
//! after events were lost, its thread is not known: nothing is reported until the next event of that CPU.

use std::collections::BTreeMap;

use vcoop_model::plan::{Ns, Plan};
use vcoop_model::trace_event::{
    Event as Told, GuestWork, Left, Observer, ThreadId, ThreadName, ThreadNames, Work,
};
use vcoop_sources::trace::{Event, EventKind, SwitchOut, Tid};
use vcoop_threads::tsc::Clock;

use crate::policy_log::Note;

/// Threads of a run, by kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunThreads<'a> {
    pub(crate) tasks: &'a [Tid],
    pub(crate) vcpus: &'a [Vec<Tid>],
    pub(crate) injector: Tid,
    pub(crate) collector: Tid,
}

/// Events on their way to an observer.
#[derive(Debug)]
pub(crate) struct Live {
    clock: Clock,
    ids: BTreeMap<Tid, ThreadId>,
    others: ThreadId,
    pub(crate) names: ThreadNames,
    window: (Ns, Ns),
    events: Vec<(Ns, Told)>,
    /// Events of policies and governors, held until the scheduler's events of that time are there.
    notes: Vec<(Ns, Told)>,
    /// vCPUs that are boosted, as last reported, and their budgets.
    boosted: BTreeMap<ThreadId, Ns>,
    /// vCPUs in use of each VM with a mask, as last reported.
    in_use: BTreeMap<u32, u32>,
    /// Time of the last event that was reported.
    last: Ns,
    /// Thread on each CPU, as of the last event taken,
    has: Vec<Option<ThreadId>>,
    /// and as last reported.
    shown: Vec<Option<ThreadId>>,
    open: bool,
    over: bool,
}

impl Live {
    /// `clock`: that of the run, from the start of its warm-up; `cpus`: upper bound of CPU numbers.
    pub(crate) fn new(
        plan: &Plan,
        clock: Clock,
        tids: RunThreads<'_>,
        cpus: u32,
        window: (Ns, Ns),
    ) -> Self {
        let mut names = ThreadNames::new(plan, &[]);
        names.pcpus = cpus;
        let known = tids.tasks.iter().chain(tids.vcpus.iter().flatten());
        let known = known.copied().chain([tids.injector, tids.collector]);
        let ids = known.zip(0..).collect();
        let own = |name: &str| ThreadName { name: name.to_owned(), vcpu: None };
        names.threads.extend([own("injector"), own("collector"), own("others")]);
        let others = names.threads.len() as ThreadId - 1;
        Self::of(clock, ids, others, names, cpus, window)
    }

    fn of(
        clock: Clock,
        ids: BTreeMap<Tid, ThreadId>,
        others: ThreadId,
        names: ThreadNames,
        cpus: u32,
        window: (Ns, Ns),
    ) -> Self {
        let has = vec![None; cpus as usize];
        Self {
            clock,
            ids,
            others,
            names,
            window,
            events: Vec::new(),
            notes: Vec::new(),
            boosted: BTreeMap::new(),
            in_use: BTreeMap::new(),
            last: 0,
            shown: has.clone(),
            has,
            open: false,
            over: false,
        }
    }

    fn who(&self, tid: Tid) -> Option<ThreadId> {
        (tid != 0).then(|| self.ids.get(&tid).copied().unwrap_or(self.others))
    }

    /// Takes an event in; they come in order of time.
    pub(crate) fn take(&mut self, event: &Event) {
        let (at, pcpu) = (self.clock.ns_at(event.time), event.cpu);
        let Some(has) = self.has.get(pcpu as usize).copied() else { return };
        let begins = |tid: Tid, work: Work| {
            let ours = self.ids.get(&tid).copied();
            (ours.is_some() && ours == has).then_some(Told::Begin { pcpu, work })
        };
        let told = match event.kind {
            EventKind::Switch { prev, leaves, next, .. } => {
                let (from, to) = (self.who(prev), self.who(next));
                if has != from {
                    // A switch that was missed.
                    let left = Left::Blocked;
                    self.events.push((at, Told::Switch { pcpu, from: has, to: from, left }));
                }
                self.has[pcpu as usize] = to;
                let runnable = leaves == SwitchOut::Runnable;
                let left = if runnable { Left::Preempted } else { Left::Blocked };
                (from != to).then_some(Told::Switch { pcpu, from, to, left })
            }
            EventKind::Waking { tid, cpu, .. } => match self.ids.get(&tid) {
                Some(&thread) if (cpu as usize) < self.has.len() => {
                    Some(Told::Wake { thread, pcpu: cpu, by: pcpu })
                }
                _ => None,
            },
            EventKind::Entry { tid } => begins(tid, Work::Guest(GuestWork::Task)),
            EventKind::Exit { tid, .. } => begins(tid, Work::Exit("handled")),
            EventKind::Wakeup { .. } | EventKind::HaltOver { .. } | EventKind::Lost { .. } => None,
        };
        self.events.extend(told.map(|told| (at, told)));
    }

    /// Takes a note of a vCPU's policy; the notes of one vCPU come in order.
    pub(crate) fn note(&mut self, tid: Tid, note: Note) {
        let Some(&thread) = self.ids.get(&tid) else { return };
        let told = |what| (note.at, Told::Boost { thread, what, budget_ns: note.budget });
        self.notes.extend(note.shown().map(told));
    }

    /// A VM uses so many vCPUs from this time on; calls for one VM come in order.
    pub(crate) fn mask(&mut self, at: Ns, vm: u32, vcpus: u32) {
        self.notes.push((at, Told::Mask { vm, vcpus }));
    }

    /// Reports what was taken since the last call; the scheduler's events are there up to `covered`.
    pub(crate) fn tell(&mut self, observer: &mut dyn Observer, covered: Ns) {
        let mut events = std::mem::take(&mut self.events);
        let (now, later) = self.notes.drain(..).partition(|(at, _)| *at <= covered);
        self.notes = later;
        let now: Vec<(Ns, Told)> = now;
        events.extend(now);
        // Stable: what has the same time stays in its order.
        events.sort_by_key(|(at, _)| *at);
        for (at, event) in events {
            // One that came too late for its time stands behind the others.
            let at = at.max(self.last);
            self.last = at;
            if at > self.window.1 {
                self.close(observer, self.window.1);
            }
            if at >= self.window.0 && !self.open && !self.over {
                self.open = true;
                observer.opens(self.window.0);
                for (pcpu, to) in (0..).zip(&self.shown).filter(|(_, to)| to.is_some()) {
                    let event = Told::Switch { pcpu, from: None, to: *to, left: Left::Blocked };
                    observer.event(self.window.0, &event);
                }
                for (&thread, &budget_ns) in &self.boosted {
                    let event = Told::Boost { thread, what: "boost", budget_ns };
                    observer.event(self.window.0, &event);
                }
                for (&vm, &vcpus) in &self.in_use {
                    observer.event(self.window.0, &Told::Mask { vm, vcpus });
                }
            }
            match event {
                Told::Boost { thread, what: "boost", budget_ns } => {
                    self.boosted.insert(thread, budget_ns);
                }
                Told::Boost { thread, what: "restore", .. } => {
                    self.boosted.remove(&thread);
                }
                Told::Mask { vm, vcpus } => {
                    self.in_use.insert(vm, vcpus);
                }
                _ => {}
            }
            if let Told::Switch { pcpu, to, .. } = event {
                self.shown[pcpu as usize] = to;
            }
            if self.open {
                observer.event(at, &event);
            }
        }
    }

    /// The window, or the run before it, is over.
    pub(crate) fn close(&mut self, observer: &mut dyn Observer, at: Ns) {
        if std::mem::take(&mut self.open) {
            observer.closes(at.clamp(self.window.0, self.window.1));
            self.over = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Live;
    use crate::policy_log::Note;
    use vcoop_model::plan::Ns;
    use vcoop_model::trace_event::{Event as Told, Observer, ThreadNames};
    use vcoop_sources::trace::{Event, EventKind, SwitchOut};
    use vcoop_threads::tsc::Clock;

    #[derive(Debug, Default)]
    struct Heard(Vec<(Ns, Option<u32>, Option<u32>)>, Vec<Ns>);

    impl Observer for Heard {
        fn opens(&mut self, at: Ns) {
            self.1.push(at);
        }

        fn event(&mut self, at: Ns, event: &Told) {
            if let Told::Switch { from, to, .. } = *event {
                self.0.push((at, from, to));
            }
        }

        fn closes(&mut self, at: Ns) {
            self.1.push(at);
        }
    }

    fn live(window: (Ns, Ns)) -> Live {
        let ids = [(7, 0), (8, 1)].into();
        let clock = Clock::new(0, 1_000_000);
        let mut live = Live::of(clock, ids, 2, ThreadNames::default(), 1, window);
        for (time, prev, next) in [(10, 0, 7), (20, 7, 99), (25, 99, 98), (30, 8, 0), (40, 0, 7)] {
            let what = EventKind::Switch {
                prev,
                leaves: SwitchOut::Asleep,
                next,
                comm: Default::default(),
            };
            live.take(&Event { time, cpu: 0, kind: what });
        }
        live
    }

    #[test]
    fn spans_tile_a_cpu_though_events_are_missing() {
        let mut heard = Heard::default();
        let mut live = live((0, 100));
        live.tell(&mut heard, 50);
        live.close(&mut heard, 50);
        let (mine, his, others) = (Some(0), Some(1), Some(2));
        assert_eq!(
            heard.0,
            [
                (10, None, mine),
                (20, mine, others),
                (30, others, his),
                (30, his, None),
                (40, None, mine)
            ]
        );
        assert_eq!(heard.1, [0, 50]);
    }

    #[test]
    fn a_window_begins_with_who_is_there() {
        let mut heard = Heard::default();
        let mut live = live((15, 35));
        live.tell(&mut heard, 50);
        live.close(&mut heard, 50);
        assert_eq!(heard.0[..2], [(15, None, Some(0)), (20, Some(0), Some(2))]);
        assert_eq!((heard.0.len(), heard.1), (4, vec![15, 35]));
    }

    /// What was noted of boosts.
    #[derive(Debug, Default)]
    struct Boosts(Vec<(Ns, &'static str)>);

    impl Observer for Boosts {
        fn event(&mut self, at: Ns, event: &Told) {
            match *event {
                Told::Boost { thread: 1, what, .. } => self.0.push((at, what)),
                Told::Switch { .. } => self.0.push((at, "switch")),
                _ => {}
            }
        }
    }

    #[test]
    fn boosts_stand_among_switches_and_a_window_opens_with_those_in_force() {
        use vcoop_policy::config::Means;
        use vcoop_policy::{Action, PolicyStats};
        let mut live = live((15, 35));
        let none = (PolicyStats::default(), PolicyStats::default());
        let mut note = |at, action| {
            let note = Note::of(at, 5, [action], none);
            note.into_iter().for_each(|note| live.note(8, note));
        };
        note(11, Action::Boost(Means::Fifo(1)));
        note(22, Action::Restore);
        note(33, Action::Boost(Means::Fifo(1)));
        let mut heard = Boosts::default();
        live.tell(&mut heard, 32);
        assert_eq!(live.notes.len(), 1, "the scheduler's events of that time may be on their way");
        let told = [
            (15, "switch"),
            (15, "boost"),
            (20, "switch"),
            (22, "restore"),
            (30, "switch"),
            (30, "switch"),
        ];
        assert_eq!(heard.0, told);
    }
}
