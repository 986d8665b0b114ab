//! Events of all threads of a host in a window, for writing captures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use vcoop_policy::thread::Policy;
use vcoop_sources::trace::{Comm, Event, EventKind, SwitchOut, Tid};
use vcoop_threads::{Attributes, Stat, affinity};

use crate::group::Group;

/// Events kept: some ten seconds of a busy host with a few CPUs.
const MOST_EVENTS: usize = 1 << 20;
/// Threads kept apart.
const MOST_THREADS: usize = 1 << 14;

/// Something that a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadEvent {
    /// A CPU goes from one thread to another.
    Switch { prev: Tid, runnable: bool, next: Tid },
    /// A thread is woken, by another one or by an interrupt.
    Waking { tid: Tid, by: Option<Tid> },
    /// Events of the CPU were lost until now.
    Lost,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedEvent {
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    pub(crate) event: ThreadEvent,
}

/// A thread, as it was when it was first seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadFacts {
    pub(crate) name: String,
    /// CPUs that it may use; `None`, as for the fields below: it ended before it could be asked.
    pub(crate) cpus: Option<Vec<u32>>,
    pub(crate) policy: Option<Policy>,
    /// When it started, in clock ticks since boot.
    pub(crate) start: Option<u64>,
    pub(crate) group: Option<Group>,
}

/// The events of a window.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<TimedEvent>,
    pub(crate) threads: BTreeMap<Tid, ThreadFacts>,
    /// Threads that were seen but not looked up yet.
    strangers: BTreeMap<Tid, Comm>,
    /// Time from which on there was no room for events.
    pub(crate) full: Option<u64>,
}

impl History {
    /// A window begins.
    pub(crate) fn begin(&mut self) {
        self.events.clear();
        self.full = None;
    }

    /// Takes an event in; they come in order of time.
    pub(crate) fn take(&mut self, event: &Event) {
        if self.full.is_some() {
            return;
        }
        let did = match event.kind {
            EventKind::Switch { prev, leaves, next, comm } => {
                self.sees(next, comm);
                self.sees(prev, Comm::default());
                ThreadEvent::Switch { prev, runnable: leaves == SwitchOut::Runnable, next }
            }
            EventKind::Waking { tid, by, .. } => ThreadEvent::Waking { tid, by },
            EventKind::Lost { .. } => ThreadEvent::Lost,
            _ => return,
        };
        if self.events.len() >= MOST_EVENTS {
            self.full = Some(event.time);
            return;
        }
        self.events.push(TimedEvent { time: event.time, cpu: event.cpu, event: did });
    }

    fn sees(&mut self, tid: Tid, comm: Comm) {
        let known = tid == 0 || self.threads.contains_key(&tid);
        if !known && self.threads.len() + self.strangers.len() < MOST_THREADS {
            let name = self.strangers.entry(tid).or_default();
            if name[0] == 0 {
                *name = comm;
            }
        }
    }

    /// Looks up the threads that were seen for the first time. Call it often, because they may end soon.
    pub(crate) fn look(&mut self) {
        for (tid, comm) in std::mem::take(&mut self.strangers) {
            let own = fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
            let name = if own.is_empty() { comm.as_slice() } else { own.as_slice() };
            let person = ThreadFacts {
                name: readable(name),
                cpus: affinity(tid).ok(),
                policy: Attributes::get(tid).ok().map(|attributes| attributes.to_policy()),
                start: Stat::open(tid).ok().and_then(|stat| stat.start()),
                group: Group::of(Path::new("/"), tid),
            };
            self.threads.insert(tid, person);
        }
    }
}

/// A thread's name without characters that have a meaning in a trace line or a file's name.
fn readable(name: &[u8]) -> String {
    let end = name.iter().position(|b| matches!(b, 0 | b'\n')).unwrap_or(name.len());
    let plain = |b: &u8| {
        let c = char::from(*b);
        if c.is_ascii_alphanumeric() || "-_./:".contains(c) { c } else { '_' }
    };
    let name: String = name[..end].iter().map(plain).collect();
    if name.is_empty() { "nameless".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::{History, readable};
    use vcoop_sources::trace::{Comm, Event, EventKind, SwitchOut};
    use vcoop_threads::{affinity, gettid};

    #[test]
    fn names_are_plain() {
        assert_eq!(readable(b"CPU 0/KVM\n"), "CPU_0/KVM");
        assert_eq!(readable(b"a ==> b\0xx"), "a_____b");
        assert_eq!(readable(&[0, 7]), "nameless");
    }

    #[test]
    fn a_thread_is_looked_at_once_and_one_that_is_gone_keeps_its_name() {
        let mut history = History::default();
        let own = gettid();
        let mut comm = Comm::default();
        comm[..4].copy_from_slice(b"gone");
        // Above the largest number of a thread.
        let what =
            EventKind::Switch { prev: own, leaves: SwitchOut::Asleep, next: 4_194_305, comm };
        history.take(&Event { time: 5, cpu: 0, kind: what });
        history.look();
        let (gone, own) = (&history.threads[&4_194_305], &history.threads[&own]);
        assert_eq!((gone.name.as_str(), &gone.cpus, gone.start), ("gone", &None, None));
        assert_eq!(own.cpus, affinity(0).ok());
        assert!(own.policy.is_some() && own.start.is_some());
        assert_eq!(history.events.len(), 1);
        history.begin();
        assert!(history.events.is_empty() && history.threads.len() == 2);
    }
}
