//! State of one thread while its capture is read.

use vcoop_model::plan::Ns;

/// An act of a thread, before the replayed threads are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Used the CPU.
    Run(Ns),
    /// Slept until a timer, a device or an unknown waker woke it.
    Sleep(Ns),
    /// Slept until the thread at this index woke it.
    Wait { by: u32, slept: Ns },
    /// Woke the thread at this index.
    Wake(u32),
    /// Got this kernel priority.
    Prio(i32),
}

impl Act {
    /// The same act with renumbered peers; `None` for waking a dropped peer.
    pub(crate) fn renumbered(self, index: &[Option<u32>]) -> Option<Self> {
        let new = |old: u32| index.get(old as usize).copied().flatten();
        match self {
            Self::Wake(peer) => new(peer).map(Self::Wake),
            Self::Wait { by, slept } => Some(match new(by) {
                Some(by) => Self::Wait { by, slept },
                None => Self::Sleep(slept),
            }),
            other => Some(other),
        }
    }
}

/// The numbers of those that are kept, without the others.
pub(crate) fn numbers(kept: impl Iterator<Item = bool>) -> Vec<Option<u32>> {
    let mut next = 0..;
    kept.map(|keep| if keep { next.next() } else { None }).collect()
}

/// State of a thread, as far as the events show it.
///
/// ```text
///            switch in              switch out, R
/// Runnable ------------> Running ------------------> Runnable
///    ^                      | switch out, S or D
///    |  waking, fork        v                 lost events
///    +------------------- Asleep    Running --------------> Gap (until its next event)
/// ```
///
/// `Fresh` is before a thread's first event, `Dead` after its last switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Fresh,
    Runnable {
        since: Ns,
    },
    /// invariant: the CPU's `current` is this thread, with the start time.
    Running {
        cpu: u32,
    },
    Asleep {
        since: Ns,
    },
    Gap {
        since: Ns,
    },
    Dead,
}

/// CPUs on which a thread was seen to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CpusSeen {
    #[default]
    Nowhere,
    Only(u32),
    Several,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Building {
    pub(super) tid: i32,
    pub(super) name: String,
    pub(super) state: State,
    /// CPU time since the last act other than a run.
    burst_ns: Ns,
    /// All CPU time.
    pub(super) demand_ns: Ns,
    pub(super) acts: Vec<Act>,
    /// Kernel priority when first seen.
    pub(super) first_prio: Option<i32>,
    prio: Option<i32>,
    /// Priority to return to after priority inheritance.
    inherits_over: Option<i32>,
    pub(super) ran_on: CpusSeen,
    pub(super) exiting: bool,
}

impl Building {
    pub(super) fn new(tid: i32, state: State) -> Self {
        Self { tid, state, ..Self::default() }
    }

    /// Adds CPU time, in any number of pieces between preemptions.
    pub(super) fn ran(&mut self, ns: Ns) {
        self.burst_ns = self.burst_ns.saturating_add(ns);
        self.demand_ns = self.demand_ns.saturating_add(ns);
    }

    pub(super) fn runs_on(&mut self, cpu: u32) {
        self.ran_on = match self.ran_on {
            CpusSeen::Nowhere => CpusSeen::Only(cpu),
            CpusSeen::Only(c) if c == cpu => CpusSeen::Only(cpu),
            _ => CpusSeen::Several,
        };
    }

    /// Ends a burst: later acts come after it.
    pub(super) fn flush(&mut self) {
        let ns = std::mem::take(&mut self.burst_ns);
        if ns == 0 {
            return;
        }
        match self.acts.last_mut() {
            Some(Act::Run(last)) => *last = last.saturating_add(ns),
            _ => self.acts.push(Act::Run(ns)),
        }
    }

    pub(super) fn push(&mut self, act: Act) {
        self.flush();
        match (act, self.acts.last_mut()) {
            (Act::Sleep(0), _) => {}
            (Act::Sleep(ns), Some(Act::Sleep(last))) => *last = last.saturating_add(ns),
            _ => self.acts.push(act),
        }
    }

    /// Updates name and priority from an event.
    ///
    /// A change becomes part of the script, except priority inheritance: that comes from locks of the recorded run,
    /// which the replay does not take.
    pub(super) fn seen_as(&mut self, comm: &str, prio: i32) {
        // Names that perf and ftrace make up if they do not know the real one.
        if comm != "<...>" && !comm.starts_with(':') && !comm.is_empty() && self.name != comm {
            self.name.clear();
            let visible = |c: char| if c.is_control() { '?' } else { c };
            self.name.extend(comm.chars().take(64).map(visible));
        }
        if self.first_prio.is_none() {
            self.first_prio = Some(prio);
        } else if self.prio != Some(prio) {
            if self.inherits_over.is_some() {
                return;
            }
            self.push(Act::Prio(prio));
        }
        self.prio = Some(prio);
    }

    /// A `sched_pi_setprio`: a smaller number is more urgent.
    pub(super) fn inherits(&mut self, old: i32, new: i32) {
        match self.inherits_over {
            None if new < old => self.inherits_over = Some(old),
            Some(base) if new >= base => self.inherits_over = None,
            _ => {}
        }
    }
}
