//! Use of the CPUs that a VM's vCPUs may use: by the VM, by others, idle.

use std::collections::BTreeMap;
use std::path::Path;

use vcoop_sources::trace::{Event, EventKind, Tid};

/// Most threads that are counted separately; later ones count together, as others.
const MOST_THREADS: usize = 4096;

/// CPU time by user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTimeUse {
    pub(crate) vm: u64,
    /// Time of all other threads.
    pub(crate) others: u64,
    /// Idle time.
    pub(crate) idle: u64,
    /// Time of CPUs without an event: idle, or used by one thread that neither slept nor was preempted. See
    /// [`divide`](Self::divide).
    pub(crate) unseen: u64,
    /// Time that is not known, because events were lost.
    pub(crate) unknown: u64,
}

impl CpuTimeUse {
    /// Divides time of CPUs without an event between idle time and other threads. `idle`: idle time of all CPUs, by the
    /// kernel's counts. They are too coarse to tell of threads that ran for less than a `step`.
    pub(crate) fn divide(&mut self, time: u64, idle: u64, step: u64) {
        let busy = time.saturating_sub(idle.saturating_sub(self.idle));
        let busy = if busy < step { 0 } else { busy };
        self.idle += time - busy;
        self.others += busy;
    }
}

/// What a CPU runs.
#[derive(Clone, Copy, Debug)]
enum CpuOccupant {
    /// No event has come yet.
    Unseen,
    /// Events were lost.
    Unknown,
    Thread(Tid),
}

/// CPU time of a thread.
#[derive(Clone, Copy, Debug)]
struct Thread {
    cycles: u64,
    /// Whether it belongs to the VM, once that has been looked up.
    own: Option<bool>,
}

/// The threads on some CPUs, and their CPU time in a window.
#[derive(Debug)]
pub(crate) struct CpuUse {
    pid: Option<u32>,
    /// What each CPU runs, and since when.
    cpus: BTreeMap<u32, (u64, CpuOccupant)>,
    threads: BTreeMap<Tid, Thread>,
    /// Beginning of the window.
    from: u64,
    unseen: u64,
    unknown: u64,
    rest: u64,
}

impl CpuUse {
    /// For these CPUs. `own`: threads of the VM, which is process `pid`. All events since `began` are taken.
    pub(crate) fn new(cpus: &[u32], own: &[Tid], pid: Option<u32>, began: u64) -> Self {
        let thread = |tid: &Tid| (*tid, Thread { cycles: 0, own: Some(true) });
        Self {
            pid,
            cpus: cpus.iter().map(|cpu| (*cpu, (began, CpuOccupant::Unseen))).collect(),
            threads: own.iter().map(thread).collect(),
            from: u64::MAX,
            unseen: 0,
            unknown: 0,
            rest: 0,
        }
    }

    /// A window begins.
    pub(crate) fn begin(&mut self, from: u64) {
        self.from = from;
        (self.unseen, self.unknown, self.rest) = (0, 0, 0);
        self.threads.values_mut().for_each(|t| t.cycles = 0);
        // Room for the threads of this window.
        self.threads.retain(|_, t| t.own == Some(true));
    }

    /// Threads on CPUs, as of the events taken so far.
    pub(crate) fn current(&self) -> impl Iterator<Item = (u32, Tid)> {
        self.cpus.iter().filter_map(|(cpu, (_, who))| match who {
            CpuOccupant::Thread(tid) => Some((*cpu, *tid)),
            CpuOccupant::Unseen | CpuOccupant::Unknown => None,
        })
    }

    /// Takes an event; events come in order of time. Time after `to` does not count.
    pub(crate) fn take(&mut self, event: &Event, to: u64) {
        let (time, cpu) = (event.time, event.cpu);
        let Some((since, who)) = self.cpus.get(&cpu).copied() else { return };
        match event.kind {
            // `prev` has had it since the event before, seen or not.
            EventKind::Switch { prev, next, .. } => {
                self.book(CpuOccupant::Thread(prev), since, time.min(to));
                self.cpus.insert(cpu, (time, CpuOccupant::Thread(next)));
            }
            EventKind::Lost { since: lost } => {
                let lost = lost.max(since);
                self.book(who, since, lost.min(to));
                self.book(CpuOccupant::Unknown, lost, time.min(to));
                self.cpus.insert(cpu, (time, CpuOccupant::Unknown));
            }
            _ => {}
        }
    }

    /// Books the part of this time that is in the window.
    fn book(&mut self, who: CpuOccupant, from: u64, to: u64) {
        let cycles = to.saturating_sub(from.max(self.from));
        let tid = match who {
            CpuOccupant::Unseen => return self.unseen += cycles,
            CpuOccupant::Unknown => return self.unknown += cycles,
            CpuOccupant::Thread(tid) => tid,
        };
        if cycles == 0 {
            return;
        }
        if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&tid) {
            self.rest += cycles;
            return;
        }
        self.threads.entry(tid).or_insert(Thread { cycles: 0, own: None }).cycles += cycles;
    }

    /// Looks up which new threads belong to the VM: a VMM starts threads as it goes on. Call it often, because threads
    /// may end soon.
    pub(crate) fn look(&mut self) {
        let pid = self.pid;
        let strangers = self.threads.iter_mut().filter(|(_, t)| t.own.is_none());
        for (tid, thread) in strangers {
            let own = |pid: u32| Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
            thread.own = Some(*tid != 0 && pid.is_some_and(own));
        }
    }

    /// The window ended at `to`, before which all events have been taken in.
    pub(crate) fn used(&mut self, to: u64) -> CpuTimeUse {
        for (cpu, (since, who)) in self.cpus.clone() {
            self.book(who, since, to);
            if since < to {
                self.cpus.insert(cpu, (to, who));
            }
        }
        self.look();
        let Self { unseen, unknown, rest: others, .. } = *self;
        let mut used = CpuTimeUse { unseen, unknown, others, ..CpuTimeUse::default() };
        for (tid, thread) in &self.threads {
            let to = match (tid, thread.own) {
                (0, _) => &mut used.idle,
                (_, Some(true)) => &mut used.vm,
                _ => &mut used.others,
            };
            *to += thread.cycles;
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuTimeUse, CpuUse};
    use vcoop_sources::trace::{Event, EventKind, SwitchOut};

    fn switch(time: u64, cpu: u32, prev: i32, next: i32) -> Event {
        let what =
            EventKind::Switch { prev, leaves: SwitchOut::Runnable, next, comm: Default::default() };
        Event { time, cpu, kind: what }
    }

    #[test]
    fn a_window_is_shared_out_and_nothing_counts_twice() {
        let mut crowd = CpuUse::new(&[0, 1, 2], &[5], None, 0);
        let take = |crowd: &mut CpuUse, events: &[Event], to| {
            events.iter().for_each(|event| crowd.take(event, to));
        };
        take(&mut crowd, &[switch(50, 0, 0, 5)], u64::MAX);
        crowd.begin(100);
        take(&mut crowd, &[switch(130, 1, 9, 0), switch(150, 0, 5, 9)], u64::MAX);
        assert_eq!(crowd.current().collect::<Vec<_>>(), [(0, 9), (1, 0)]);
        // Of a CPU without an event nothing is known.
        take(&mut crowd, &[switch(210, 0, 9, 5), switch(220, 7, 1, 2)], 200);
        let used = CpuTimeUse { vm: 50, others: 30 + 50, idle: 70, unseen: 100, unknown: 0 };
        assert_eq!(crowd.used(200), used);
        // The next one goes on with what is known.
        crowd.begin(210);
        let used = CpuTimeUse { vm: 90, others: 0, idle: 90, unseen: 90, unknown: 0 };
        assert_eq!(crowd.used(300), used);
    }

    #[test]
    fn a_thread_that_is_never_switched_is_no_idle_cpu() {
        let divided = |idle| {
            let mut used = CpuTimeUse { idle: 100, ..CpuTimeUse::default() };
            used.divide(80, idle, 20);
            (used.idle, used.others)
        };
        assert_eq!([divided(100), divided(130)], [(100, 80), (130, 50)]);
        assert_eq!([divided(165), divided(200)], [(180, 0), (180, 0)], "idle, within a step");
    }

    #[test]
    fn what_was_lost_belongs_to_nobody() {
        let mut crowd = CpuUse::new(&[0, 1, 2], &[5], None, 0);
        let lost = |cpu| Event { time: 60, cpu, kind: EventKind::Lost { since: 30 } };
        crowd.begin(0);
        crowd.take(&switch(10, 0, 0, 5), u64::MAX);
        crowd.take(&lost(0), u64::MAX);
        crowd.take(&lost(1), u64::MAX);
        crowd.take(&switch(80, 0, 9, 0), u64::MAX);
        // Of one CPU nothing is known since then, and of one no event came at all.
        let used =
            CpuTimeUse { vm: 20, others: 20, idle: 20 + 10, unseen: 30 + 100, unknown: 30 + 70 };
        assert_eq!(crowd.used(100), used);
        crowd.begin(100);
        assert_eq!(
            crowd.used(110),
            CpuTimeUse { idle: 10, unseen: 10, unknown: 10, ..CpuTimeUse::default() }
        );
    }
}
