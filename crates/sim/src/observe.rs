//! Reports the engine's actions to an observer. Without an observer, a run only tests one flag at each change.

pub(crate) mod spans;

use vcoop_model::trace_event::{Event, GuestWork, Left, ThreadNames, Work};
use vcoop_policy::Action;
use vcoop_sched::{CpuId, EntId, LeaveReason, Note};

use crate::attribution::track::NONE;
use crate::guest::exit::EXIT_NAMES;
use crate::machine::{GuestSegment, Irq, Segment, vector};
use crate::observe::spans::WindowChange;
use crate::queue::Ns;
use crate::world::World;

fn who(number: u32) -> Option<u32> {
    (number != NONE).then_some(number)
}

impl World<'_> {
    /// Names all entities, if there is an observer.
    pub(crate) fn span_cast(&mut self) {
        let names = || ThreadNames::new(self.plan, self.probes.labels());
        if self.spans.thread_names(names)
            && let Some(credit1) = self.host.credit1_mut()
        {
            credit1.set_trace(true);
        }
    }

    /// Opens or ends a window whose time is at or before that of the next event; true if the run ends with it.
    #[cold]
    pub(crate) fn span_turns(&mut self, next: Ns) -> bool {
        while self.spans.is_due(next) {
            let (at, turn) = self.spans.turn();
            self.clock.pass(at);
            match turn {
                WindowChange::Opened => self.span_opens(at),
                WindowChange::Closed => {}
                WindowChange::Over => return true,
            }
        }
        false
    }

    /// Reports the state when a window opens.
    fn span_opens(&mut self, at: Ns) {
        for p in 0..self.pcpus.len() as u32 {
            let to = who(self.pcpus[p as usize].current);
            if to.is_some() {
                let left = Left::Blocked;
                self.spans.tell(at, Event::Switch { pcpu: p, from: None, to, left });
            }
            self.span_queue(p);
        }
        for t in 0..self.threads.len() as u32 {
            let e = EntId(t);
            if self.host.is_queued(e) && !self.host.is_running(e) {
                let pcpu = self.host.cpu_of(e).0;
                self.spans.tell(at, Event::Waits { thread: t, pcpu });
            }
        }
        for v in 0..self.vcpus.len() {
            let vcpu = &self.vcpus[v];
            let (thread, task) = (vcpu.thread, who(vcpu.current));
            let boosted = vcpu.driver.policy().is_boosted();
            let budget_ns = vcpu.driver.policy().budget_left(at);
            if task.is_some() {
                let left = Left::Blocked;
                self.spans.tell(at, Event::TaskSwitch { thread, task, left });
            }
            if boosted {
                self.spans.tell(at, Event::Boost { thread, what: "boost", budget_ns });
            }
        }
        for p in 0..self.pcpus.len() as u32 {
            self.span_begin(p);
        }
        for vm in 0..self.vms.len() as u32 {
            self.span_mask(vm);
        }
    }

    /// A pCPU has begun another segment.
    #[cold]
    pub(crate) fn span_begin(&mut self, p: u32) {
        let pc = &self.pcpus[p as usize];
        let work = match pc.segment {
            Segment::Idle => Work::Idle,
            Segment::CState => Work::CState,
            Segment::Irq => Work::Irq(pc.irqs.first().map_or("irq", irq_name)),
            Segment::Overhead => Work::Kernel,
            Segment::Switch => Work::Switch,
            Segment::Entry => Work::Entry,
            Segment::Exit(reason) => Work::Exit(EXIT_NAMES[reason.index()]),
            Segment::User => Work::User,
            Segment::Poll => Work::Poll,
            Segment::Guest => Work::Guest(match self.vcpus[pc.vcpu as usize].segment {
                GuestSegment::Irq(which) | GuestSegment::IrqEnd(which, _) => {
                    GuestWork::Irq(vector_name(which))
                }
                GuestSegment::Softirq(_) | GuestSegment::SoftirqEnd => GuestWork::Softirq,
                GuestSegment::Overhead => GuestWork::Kernel,
                GuestSegment::Switch => GuestWork::Switch,
                GuestSegment::Poll => GuestWork::Poll,
                GuestSegment::Rest => GuestWork::Rest,
                GuestSegment::User | GuestSegment::None => GuestWork::Task,
            }),
        };
        self.spans.tell(self.clock.now(), Event::Begin { pcpu: p, work });
    }

    fn span_queue(&mut self, p: u32) {
        let length = self.host.nr_running(CpuId(p));
        self.spans.tell(self.clock.now(), Event::Queue { pcpu: p, length });
    }

    /// A pCPU changes threads.
    #[cold]
    pub(crate) fn span_switch(&mut self, p: u32, prev: u32, next: u32, leave: LeaveReason) {
        let left = left(leave);
        let (from, to) = (who(prev), who(next));
        self.spans.tell(self.clock.now(), Event::Switch { pcpu: p, from, to, left });
        if next != NONE && self.threads[next as usize].vcpu != NONE {
            let ns = self.host.stats(EntId(next)).wait_ns;
            self.spans.tell(self.clock.now(), Event::Steal { thread: next, ns });
        }
        self.span_queue(p);
    }

    /// A thread became runnable.
    #[cold]
    pub(crate) fn span_wake(&mut self, t: u32) {
        let pcpu = self.host.cpu_of(EntId(t)).0;
        self.spans.tell(self.clock.now(), Event::Wake { thread: t, pcpu, by: self.cpu });
        self.span_queue(pcpu);
    }

    /// The host's scheduler has left a note.
    #[cold]
    pub(crate) fn span_note(&mut self, note: Note) {
        let event = match note {
            Note::Moved { ent, from, to } => Event::Move { thread: ent.0, from: from.0, to: to.0 },
            Note::Throttled { cpu } => Event::Throttle { pcpu: cpu.0, on: true },
            Note::Unthrottled { cpu } => Event::Throttle { pcpu: cpu.0, on: false },
            Note::Parked { ent } => Event::Park { thread: ent.0, on: true },
            Note::Unparked { ent } => Event::Park { thread: ent.0, on: false },
            Note::Decision { what, ent, cpu } => Event::Credit { what, thread: ent.0, pcpu: cpu.0 },
            Note::Kick { .. } | Note::Woken { .. } | Note::DeadlineChanged { .. } => return,
        };
        self.spans.tell(self.clock.now(), event);
    }

    /// An interrupt became pending for a vCPU.
    #[cold]
    pub(crate) fn span_inject(&mut self, v: u32, which: u8) {
        let thread = self.vcpus[v as usize].thread;
        self.spans.tell(
            self.clock.now(),
            Event::Inject { thread, what: vector_name(which), by: self.cpu },
        );
    }

    /// A vCPU's policy acts.
    #[cold]
    pub(crate) fn span_action(&mut self, v: u32, action: Action) {
        let what = match action {
            Action::Boost(_) => "boost",
            Action::Restore => "restore",
            Action::Status(vcoop_abi::Status::Throttled) => "throttled",
            Action::Denied(_) => "denied",
            _ => return,
        };
        let vcpu = &self.vcpus[v as usize];
        let (thread, budget_ns) = (vcpu.thread, vcpu.driver.policy().budget_left(self.clock.now()));
        self.spans.tell(self.clock.now(), Event::Boost { thread, what, budget_ns });
    }

    /// A vCPU changes tasks.
    #[cold]
    pub(crate) fn span_task(&mut self, v: u32, leave: LeaveReason) {
        let vcpu = &self.vcpus[v as usize];
        let (thread, task) = (vcpu.thread, who(vcpu.current));
        self.spans.tell(self.clock.now(), Event::TaskSwitch { thread, task, left: left(leave) });
    }

    /// A VM uses another number of its vCPUs.
    #[cold]
    pub(crate) fn span_mask(&mut self, vm: u32) {
        let vcpus = self.preferred.width(vm);
        self.spans.tell(self.clock.now(), Event::Mask { vm, vcpus });
    }

    /// A guest task was woken on vCPU `to` by code on vCPU `by`.
    #[cold]
    pub(crate) fn span_task_wake(&mut self, to: u32, t: u32, by: u32) {
        let (thread, by) = (self.vcpus[to as usize].thread, self.vcpus[by as usize].thread);
        self.spans.tell(self.clock.now(), Event::TaskWake { thread, task: t, by });
    }
}

fn left(leave: LeaveReason) -> Left {
    match leave {
        LeaveReason::Preempted | LeaveReason::Yield => Left::Preempted,
        LeaveReason::Blocked => Left::Blocked,
        LeaveReason::Exit => Left::Exited,
    }
}

fn irq_name(irq: Irq) -> &'static str {
    match irq {
        Irq::Tick => "tick",
        Irq::Ipi => "ipi",
        Irq::Sched => "scheduler timer",
        Irq::Lapic(_) => "guest timer",
        Irq::Sleep(_) => "sleep timer",
        Irq::Boost(_) => "policy timer",
        Irq::Device(_) => "device",
        Irq::Posted(_) => "posted ipi",
        Irq::Remote(_) => "network",
        Irq::Storm(_) => "storm",
        Irq::Host(_) => "host device",
        Irq::Ratelimit => "ratelimit tuner",
        Irq::Accounts => "accounts of boosted vCPUs",
        Irq::Govern(_) => "governor",
    }
}

fn vector_name(which: u8) -> &'static str {
    match which {
        vector::NMI => "nmi",
        vector::IPI => "ipi",
        vector::TIMER => "timer",
        vector::DEVICE => "device",
        vector::MESSAGE => "message",
        _ => "interrupt",
    }
}
