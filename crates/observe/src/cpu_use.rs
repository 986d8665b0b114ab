//! Who used the CPUs that a VM's vCPUs may use: the VM, others, nobody.

use std::collections::BTreeMap;
use std::path::Path;

use vcoop_sources::trace::{Event, Tid, What};

/// Threads kept apart; those that come later count together, as others.
const MOST_THREADS: usize = 4096;

/// Whose CPU time it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// The VM's.
    pub(crate) vm: u64,
    /// Everybody else's.
    pub(crate) others: u64,
    /// Nobody's.
    pub(crate) idle: u64,
    /// Not known, as events were lost or none came.
    pub(crate) unknown: u64,
}

/// What a thread used.
#[derive(Clone, Copy, Debug)]
struct Thread {
    cycles: u64,
    /// It is the VM's, if somebody has looked.
    own: Option<bool>,
}

/// The threads on some CPUs, and their CPU time in a window.
#[derive(Debug)]
pub(crate) struct CpuUse {
    pid: Option<u32>,
    /// Who has each CPU, and since when.
    cpus: BTreeMap<u32, (u64, Option<Tid>)>,
    threads: BTreeMap<Tid, Thread>,
    /// Beginning of the window.
    from: u64,
    unknown: u64,
    rest: u64,
}

impl CpuUse {
    /// On these CPUs; `own`: threads of the VM, which is process `pid`; all events since `began`
    /// come.
    pub(crate) fn new(cpus: &[u32], own: &[Tid], pid: Option<u32>, began: u64) -> Self {
        let thread = |tid: &Tid| (*tid, Thread { cycles: 0, own: Some(true) });
        Self {
            pid,
            cpus: cpus.iter().map(|cpu| (*cpu, (began, None))).collect(),
            threads: own.iter().map(thread).collect(),
            from: u64::MAX,
            unknown: 0,
            rest: 0,
        }
    }

    /// A window begins.
    pub(crate) fn begin(&mut self, from: u64) {
        self.from = from;
        (self.unknown, self.rest) = (0, 0);
        self.threads.values_mut().for_each(|t| t.cycles = 0);
        // Room for the threads of this window.
        self.threads.retain(|_, t| t.own == Some(true));
    }

    /// Who has a CPU, as far as events were taken in.
    pub(crate) fn current(&self) -> impl Iterator<Item = (u32, Tid)> {
        self.cpus.iter().filter_map(|(cpu, (_, tid))| Some((*cpu, (*tid)?)))
    }

    /// Takes an event in; they come in order of time. What is after `to` does not count.
    pub(crate) fn take(&mut self, event: &Event, to: u64) {
        let (time, cpu) = (event.time, event.cpu);
        let Some((since, _)) = self.cpus.get(&cpu).copied() else { return };
        match event.what {
            // `prev` has had it since the event before, seen or not.
            What::Switch { prev, next, .. } => {
                self.book(prev, since.max(self.from), time.min(to));
                self.cpus.insert(cpu, (time, Some(next)));
            }
            What::Lost { since: lost } => {
                let (now, who) = self.cpus[&cpu];
                if let Some(who) = who.filter(|_| lost > now) {
                    self.book(who, now.max(self.from), lost.min(to));
                }
                let gap = time.min(to).saturating_sub(lost.max(now).max(self.from));
                self.unknown += gap;
                self.cpus.insert(cpu, (time, None));
            }
            _ => {}
        }
    }

    fn book(&mut self, tid: Tid, from: u64, to: u64) {
        let cycles = to.saturating_sub(from);
        if cycles == 0 {
            return;
        }
        if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&tid) {
            self.rest += cycles;
            return;
        }
        self.threads.entry(tid).or_insert(Thread { cycles: 0, own: None }).cycles += cycles;
    }

    /// Looks whose threads those are that nobody knew: a VMM starts threads as it goes on. They may
    /// be gone soon, so this is to be done often.
    pub(crate) fn look(&mut self) {
        let pid = self.pid;
        let strangers = self.threads.iter_mut().filter(|(_, t)| t.own.is_none());
        for (tid, thread) in strangers {
            let own = |pid: u32| Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
            thread.own = Some(*tid != 0 && pid.is_some_and(own));
        }
    }

    /// The window ended at `to`, before which all events have been taken in.
    pub(crate) fn used(&mut self, to: u64) -> Used {
        for (cpu, (since, who)) in self.cpus.clone() {
            let from = since.max(self.from);
            match who {
                Some(who) => self.book(who, from, to),
                None => self.unknown += to.saturating_sub(from),
            }
            if since < to {
                self.cpus.insert(cpu, (to, who));
            }
        }
        self.look();
        let mut used = Used { unknown: self.unknown, others: self.rest, ..Used::default() };
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
    use super::{CpuUse, Used};
    use vcoop_sources::trace::{Event, What};

    fn switch(time: u64, cpu: u32, prev: i32, next: i32) -> Event {
        let what = What::Switch { prev, runnable: true, next, comm: Default::default() };
        Event { time, cpu, what }
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
        let used = Used { vm: 50, others: 30 + 50, idle: 70, unknown: 100 };
        assert_eq!(crowd.used(200), used);
        // The next one goes on with what is known.
        crowd.begin(210);
        let used = Used { vm: 90, others: 0, idle: 90, unknown: 90 };
        assert_eq!(crowd.used(300), used);
    }

    #[test]
    fn what_was_lost_belongs_to_nobody() {
        let mut crowd = CpuUse::new(&[0], &[5], None, 0);
        crowd.begin(0);
        crowd.take(&switch(10, 0, 0, 5), u64::MAX);
        crowd.take(&Event { time: 60, cpu: 0, what: What::Lost { since: 30 } }, u64::MAX);
        crowd.take(&switch(80, 0, 9, 0), u64::MAX);
        let used = Used { vm: 20, others: 20, idle: 20 + 10, unknown: 30 };
        assert_eq!(crowd.used(100), used);
    }
}
