//! Reports the host's scheduler to an observer: the VM's threads by name, others by the names that they had when the
//! window began.

use std::collections::BTreeMap;
use std::fs;

use vcoop_model::plan::Ns;
use vcoop_model::trace_event::{
    Event as Told, GuestWork, Left, Observer, ThreadId, ThreadName, ThreadNames, Work,
};
use vcoop_sources::trace::{Event, EventKind, SwitchOut, Tid};
use vcoop_threads::tsc::Clock;

use crate::observed_vm::ObservedVm;

/// Threads of others that are told by name.
const MOST_NAMED: usize = 4096;

/// The names of an observation.
#[derive(Debug)]
pub(crate) struct ObservedNames {
    pub(crate) names: ThreadNames,
    ids: BTreeMap<Tid, ThreadId>,
    /// One name for all threads that came later.
    others: ThreadId,
    /// The thread on each CPU, as last reported.
    shown: BTreeMap<u32, Option<ThreadId>>,
}

/// All readable threads of this host and their names.
fn everybody() -> BTreeMap<Tid, String> {
    let numbers = |dir: String| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Tid>().ok())
    };
    let tasks = numbers("/proc".to_owned()).flat_map(|pid| {
        numbers(format!("/proc/{pid}/task")).filter_map(move |tid| {
            let comm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
            let printable = |c: char| if c.is_control() { '?' } else { c };
            Some((tid, comm.trim_end_matches('\n').chars().map(printable).collect()))
        })
    });
    tasks.take(MOST_NAMED).collect()
}

impl ObservedNames {
    pub(crate) fn new(subject: &ObservedVm, cpus: &[u32]) -> Self {
        let mut names = ThreadNames {
            pcpus: cpus.iter().max().map_or(1, |last| last + 1),
            vms: vec![subject.name.clone()],
            tasks: vec![Vec::new()],
            labels: vec!["(idle)".to_owned()],
            ..ThreadNames::default()
        };
        let mut ids = BTreeMap::new();
        let mut add = |tid: Option<Tid>, name: String, vcpu: Option<(u32, u32)>| {
            let id = names.threads.len() as ThreadId;
            if let Some(tid) = tid {
                ids.entry(tid).or_insert(id);
            }
            names.threads.push(ThreadName { name, vcpu });
            id
        };
        for (n, vcpu) in (0..).zip(&subject.vcpus) {
            add(Some(vcpu.tid), format!("{}/vcpu{}", subject.name, vcpu.index), Some((0, n)));
        }
        for (tid, name) in &subject.others {
            add(Some(*tid), format!("{}/{name}", subject.name), None);
        }
        for (tid, name) in everybody() {
            let own = subject.vcpus.iter().any(|v| v.tid == tid)
                || subject.others.iter().any(|(other, _)| *other == tid);
            if !own {
                add(Some(tid), name, None);
            }
        }
        let others = add(None, "others".to_owned(), None);
        Self { names, ids, others, shown: BTreeMap::new() }
    }

    fn who(&self, tid: Tid) -> Option<ThreadId> {
        (tid != 0).then(|| self.ids.get(&tid).copied().unwrap_or(self.others))
    }

    /// A window opens with these threads on their CPUs.
    pub(crate) fn open(
        &mut self,
        current: impl Iterator<Item = (u32, Tid)>,
        observer: &mut dyn Observer,
    ) {
        observer.opens(0);
        self.shown.clear();
        for (pcpu, tid) in current {
            self.switch(0, pcpu, tid, Left::Blocked, observer);
        }
    }

    fn switch(&mut self, at: Ns, pcpu: u32, to: Tid, left: Left, observer: &mut dyn Observer) {
        let to = self.who(to);
        let from = self.shown.insert(pcpu, to).flatten();
        if from != to {
            observer.event(at, &Told::Switch { pcpu, from, to, left });
        }
    }

    /// Tells an event; `clock` counts from the beginning of the window.
    pub(crate) fn tell(&mut self, event: &Event, clock: &Clock, observer: &mut dyn Observer) {
        let (at, pcpu) = (clock.ns_at(event.time), event.cpu);
        let begins = |names: &Self, tid: Tid, work: Work| {
            let id = names.ids.get(&tid).copied();
            let has = names.shown.get(&pcpu).copied().flatten();
            (id.is_some() && id == has).then_some(Told::Begin { pcpu, work })
        };
        let told = match event.kind {
            EventKind::Switch { prev, leaves, next, .. } => {
                // A switch that was missed.
                self.switch(at, pcpu, prev, Left::Blocked, observer);
                let runnable = leaves == SwitchOut::Runnable;
                let left = if runnable { Left::Preempted } else { Left::Blocked };
                self.switch(at, pcpu, next, left, observer);
                None
            }
            EventKind::Waking { tid, cpu, .. } => {
                self.who(tid).map(|thread| Told::Wake { thread, pcpu: cpu, by: pcpu })
            }
            EventKind::Entry { tid } => begins(self, tid, Work::Guest(GuestWork::Task)),
            EventKind::Exit { tid, .. } => begins(self, tid, Work::Exit("handled")),
            EventKind::Wakeup { .. } | EventKind::HaltOver { .. } | EventKind::Lost { .. } => None,
        };
        if let Some(told) = told {
            observer.event(at, &told);
        }
    }
}
