//! Events of a run, for observers: traces, timelines, files of samples.
//!
//! A backend reports events to an [`Observer`] and does not keep them. Entities have numbers, and a [`ThreadNames`] has
//! their names. A vCPU is the host thread that it runs as.

use std::fmt::Debug;

use crate::plan::{Ns, Plan};
use crate::recording::Parts;

/// Number of a host thread in a [`ThreadNames`].
pub type ThreadId = u32;

/// Names of all entities, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadNames {
    /// How many pCPUs there are.
    pub pcpus: u32,
    /// Host threads: first the host's own tasks, then the vCPUs of each VM in turn.
    pub threads: Vec<ThreadName>,
    /// VMs by name, in the order of the plan.
    pub vms: Vec<String>,
    /// Guest tasks by name, a list for each VM.
    pub tasks: Vec<Vec<String>>,
    /// Labels of threads that ran instead, and last the label of an idle pCPU.
    pub labels: Vec<String>,
}

/// A host thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadName {
    /// `load/2`, or `guest/vcpu0`.
    pub name: String,
    /// The VM, and the number of the vCPU in it, if it is one.
    pub vcpu: Option<(u32, u32)>,
}

impl ThreadNames {
    /// The entities of a plan. `labels` as the backend numbers them, without the idle pCPU.
    pub fn new(plan: &Plan, labels: &[String]) -> Self {
        let own = |name: &String| ThreadName { name: name.clone(), vcpu: None };
        let mut threads: Vec<ThreadName> = plan.host_tasks.iter().map(|t| own(&t.name)).collect();
        for (m, vm) in plan.vms.iter().enumerate() {
            for c in 0..vm.level.topology.cpus() {
                let name = format!("{}/vcpu{c}", vm.name);
                threads.push(ThreadName { name, vcpu: Some((m as u32, c)) });
            }
        }
        let tasks = |vm: &crate::plan::VmPlan| vm.tasks.iter().map(|t| t.name.clone()).collect();
        Self {
            pcpus: plan.host.sched.cpus(),
            threads,
            vms: plan.vms.iter().map(|vm| vm.name.clone()).collect(),
            tasks: plan.vms.iter().map(tasks).collect(),
            labels: labels.iter().cloned().chain(["(idle)".to_owned()]).collect(),
        }
    }
}

/// Why a thread left its pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It can still run.
    Preempted,
    /// It sleeps.
    Blocked,
    /// It is gone.
    Exited,
}

/// What a pCPU does from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    Idle,
    /// It leaves an idle state.
    CState,
    /// An interrupt handler.
    Irq(&'static str),
    /// Scheduler and policy work that a handler left behind.
    Kernel,
    /// It switches to the thread it has.
    Switch,
    /// VM entry.
    Entry,
    /// VM exit and its handling, by reason.
    Exit(&'static str),
    /// The thread's own work.
    User,
    /// The host polls for a halted vCPU.
    Poll,
    /// Guest mode.
    Guest(GuestWork),
}

/// What a vCPU does in guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestWork {
    /// An interrupt handler.
    Irq(&'static str),
    /// The second half of a device interrupt.
    Softirq,
    /// Guest kernel work that a handler left behind.
    Kernel,
    /// The guest's context switch.
    Switch,
    /// It has nothing to run, and polls.
    Poll,
    /// It has nothing to run, and rests without an exit.
    Rest,
    /// The task that it has.
    Task,
}

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A pCPU changes threads; `None` is its idle loop.
    Switch {
        /// pCPU.
        pcpu: u32,
        /// Who had it.
        from: Option<ThreadId>,
        /// Who gets it.
        to: Option<ThreadId>,
        /// Why.
        left: Left,
    },
    /// A pCPU works on something else.
    Begin {
        /// pCPU.
        pcpu: u32,
        /// On what.
        work: Work,
    },
    /// A thread became runnable.
    Wake {
        /// Who.
        thread: ThreadId,
        /// Whose run queue it is on.
        pcpu: u32,
        /// pCPU that woke it.
        by: u32,
    },
    /// A thread waits for a pCPU when a window opens.
    Waits {
        /// Who.
        thread: ThreadId,
        /// Whose run queue it is on.
        pcpu: u32,
    },
    /// A thread went to another run queue.
    Move {
        /// Who.
        thread: ThreadId,
        /// From this pCPU.
        from: u32,
        /// To this one.
        to: u32,
    },
    /// Real-time threads of a pCPU are throttled, or no longer.
    Throttle {
        /// pCPU.
        pcpu: u32,
        /// Held back.
        on: bool,
    },
    /// A thread is stopped by its domain's cap, or no longer.
    Park {
        /// Who.
        thread: ThreadId,
        /// Held back.
        on: bool,
    },
    /// A credit scheduler decided something.
    Credit {
        /// What.
        what: &'static str,
        /// About whom.
        thread: ThreadId,
        /// About which pCPU.
        pcpu: u32,
    },
    /// An interrupt became pending for a vCPU.
    Inject {
        /// The vCPU.
        thread: ThreadId,
        /// What kind.
        what: &'static str,
        /// pCPU that did it.
        by: u32,
    },
    /// A vCPU's policy changed the status that the guest sees, or the thread's priority.
    Boost {
        /// The vCPU.
        thread: ThreadId,
        /// `boost`, `restore`, `throttled`, ...
        what: &'static str,
        /// Boosted time left, in nanoseconds.
        budget_ns: Ns,
    },
    /// A VM uses so many of its vCPUs from now on: its mask changed, or a vCPU went offline or came online.
    Mask {
        /// Index of the VM.
        vm: u32,
        /// vCPUs in use.
        vcpus: u32,
    },
    /// A vCPU changes tasks; `None`: it has nothing to do.
    TaskSwitch {
        /// The vCPU.
        thread: ThreadId,
        /// Index of the task in its VM.
        task: Option<u32>,
        /// Why the one before gave the vCPU back.
        left: Left,
    },
    /// A guest task became runnable.
    TaskWake {
        /// vCPU whose queue it is on.
        thread: ThreadId,
        /// Index of the task in its VM.
        task: u32,
        /// vCPU whose code woke it.
        by: ThreadId,
    },
    /// Number of threads that run on a pCPU or wait for it.
    Queue {
        /// pCPU.
        pcpu: u32,
        /// How many.
        length: u32,
    },
    /// Time that a vCPU was runnable and did not run, since the run began.
    Steal {
        /// The vCPU.
        thread: ThreadId,
        /// How long.
        ns: Ns,
    },
}

/// A sample, complete.
#[derive(Clone, Copy, Debug)]
pub struct SampleEvent<'a> {
    /// Its probe.
    pub probe: &'a str,
    /// When it was due, from the start of the run (of its warm-up).
    pub due_ns: Ns,
    /// How late it was.
    pub latency_ns: Ns,
    /// Parts; they add up to it.
    pub parts: &'a Parts,
    /// Who had the pCPU most of the time while it waited, and for how long.
    pub behind: Option<(&'a str, Ns)>,
    /// False for one that belongs to the warm-up: no result knows it.
    pub counts: bool,
    /// The end of the run cut it off.
    pub open: bool,
}

/// Watches a run.
pub trait Observer: Debug {
    /// Times (from the start of the run) between which [`event`](Self::event) is called: ascending,
    /// none touching the next. None: only samples are told.
    fn windows(&self) -> Vec<(Ns, Ns)> {
        Vec::new()
    }

    /// Whether the run may end with the last window, rather than with its plan.
    fn ends_with_windows(&self) -> bool {
        false
    }

    /// The threads that can appear. Called once, before everything else, if there are windows.
    fn thread_names(&mut self, _names: &ThreadNames) {}

    /// A window opens. The events that follow at the same time say how things stand.
    fn opens(&mut self, _at: Ns) {}

    /// Something happened. Time never goes back.
    fn event(&mut self, _at: Ns, _event: &Event) {}

    /// A window ends.
    fn closes(&mut self, _at: Ns) {}

    /// A sample is complete, whether a window is open or not. A live run tells it later: `at`, when it was complete, may
    /// be before the last event.
    fn sample(&mut self, _at: Ns, _sample: &SampleEvent<'_>) {}

    /// The run is over, however it ended.
    fn ends(&mut self) {}
}
