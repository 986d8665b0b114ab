//! The state of a run, and the loop that takes it from event to event.
//!
//! Two levels of the same thing: host threads on pCPUs ([`host`](crate::host)) and guest tasks on
//! vCPUs ([`guest`](crate::guest)). A vCPU is a host thread whose work is whatever its guest does.
//! Every pCPU is in one *segment* at a time (an interrupt handler, a context switch, a VM exit, user
//! work, guest mode); the end of the segment is its one pending event. Work that is interrupted keeps
//! what is left of it: progress is computed when it stops, never in steps.

use std::collections::VecDeque;

use vcoop_model::plan::{Mode, Plan, Preemption};
use vcoop_model::profile::Costs;
use vcoop_model::recording::{InUse, PolicyEvents};
use vcoop_policy::{GuestHalf, HostPolicy, VmShared};
use vcoop_sched::config::Policy;
use vcoop_sched::{CpuId, EntId, Level, Scheduler};

use crate::boost::Page;
use crate::call::{Calls, Message};
use crate::cold::{Cold, VmVirt};
use crate::few::Few;
use crate::govern::Driver;
use crate::idle::IdleTimes;
use crate::lock::{Shared, Spin, SpinCpu};
use crate::mail::Mailbox;
use crate::mask::Mask;
use crate::probe::Probe;
use crate::program::Runner;
use crate::queue::{EventQueue, Ns};
use crate::span::Spans;
use crate::storm::Storms;
use crate::track::{NONE, State, Tracks};
use crate::tune::Tuner;
use crate::view::Views;

/// What a pCPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Nothing.
    Idle,
    /// Leaving an idle state.
    CState,
    /// Handling the first interrupt of its queue.
    Irq,
    /// Scheduler and policy work that the last handler left behind.
    Overhead,
    /// Switching to the current thread.
    Switch,
    /// VM entry.
    Entry,
    /// VM exit and its handling.
    Exit(Exit),
    /// User or kernel work of a host thread.
    User,
    /// Guest mode.
    Guest,
    /// Polling for a halted vCPU, with interrupts on.
    Poll,
}

/// Why a vCPU left guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// A host interrupt.
    Interrupt,
    /// HLT.
    Halt,
    /// A write of the TSC-deadline MSR.
    Timer,
    /// An ICR write to another vCPU of the VM (global index).
    Ipi(u32),
    /// The synchronous end of a boost.
    Notify,
    /// A write of the registration MSR: the guest area, none, or (`None`) refused.
    Register(Option<bool>),
    /// A doorbell or hypercall: a message to somebody outside of the VM.
    Send(Message),
    /// A hypercall of the toolstack: a VM of a storm may run.
    Start(u32),
    /// The VMX preemption timer.
    HvTimer,
    /// The end of an interrupt, where that is not virtualised.
    Eoi,
    /// The guest has become able to take an interrupt.
    Window,
    /// A PAUSE loop.
    Pause,
    /// One ICR write or hypercall for several vCPUs: the next so many of the sender's multicast.
    Multicast {
        /// How many.
        targets: u32,
        /// A hypercall.
        hypercall: bool,
    },
    /// A hypercall: a halted vCPU (global index) is next at a lock.
    Kick(u32),
    /// A hypercall: yield to a vCPU (global index).
    Yield(u32),
    /// A message to another machine, for this client.
    Remote(u32),
    /// A hypercall: an IPI to a preempted vCPU (global index), which is to be boosted for it.
    Ask(u32),
    /// A read of a counter of C-state residency.
    CstateRead,
}

impl Exit {
    /// Index into the counters, in the order of [`EXIT_NAMES`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Interrupt => 0,
            Self::Halt => 1,
            Self::Timer => 2,
            Self::Ipi(_) | Self::Multicast { hypercall: false, .. } => 3,
            Self::Notify => 4,
            Self::Register(Some(_)) => 5,
            Self::Register(None) => 6,
            Self::Send(_) | Self::Start(_) | Self::Remote(_) => 7,
            Self::HvTimer => 8,
            Self::Eoi => 9,
            Self::Window => 10,
            Self::Pause => 11,
            Self::Multicast { hypercall: true, .. }
            | Self::Kick(_)
            | Self::Yield(_)
            | Self::Ask(_) => 12,
            Self::CstateRead => 13,
        }
    }
}

/// Exit reasons as reported.
pub(crate) const EXIT_NAMES: [&str; 14] = [
    "interrupt",
    "hlt",
    "msr_timer",
    "msr_icr",
    "notify",
    "register",
    "refused",
    "send",
    "preemption_timer",
    "eoi",
    "interrupt_window",
    "pause",
    "hypercall",
    "msr_cstate",
];

/// An interrupt at a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Irq {
    /// The scheduler tick.
    Tick,
    /// An inter-processor interrupt: look at the resched flag, leave guest mode.
    Ipi,
    /// The scheduler's own timer (throttling, fair server).
    Sched,
    /// The timer behind a vCPU's LAPIC.
    Lapic(u32),
    /// A thread's sleep is over.
    Sleep(u32),
    /// A policy's timer for a vCPU.
    Boost(u32),
    /// A device of a VM (index over all VMs).
    Device(u32),
    /// The next batch of a storm is asked for.
    Storm(u32),
    /// `ratelimit-auto` looks at the domains.
    Tune,
    /// Policies that give boosted time back are told what their threads ran.
    Accounts,
    /// The host looks what it can give a VM.
    Govern(u32),
    /// A vCPU that had halted has an IPI posted.
    Posted(u32),
    /// A message from another machine, for this client.
    Remote(u32),
}

/// A physical CPU. What every event looks at is in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Pcpu {
    pub(crate) segment: Segment,
    /// Thread loaded.
    pub(crate) current: u32,
    /// Start of the segment.
    pub(crate) since: Ns,
    /// Work left behind by handlers, to be paid before anything else.
    pub(crate) extra: Ns,
    pub(crate) irqs: Few<Irq>,
    /// The vCPU that the thread is, if it is one.
    pub(crate) vcpu: u32,
    /// The scheduler wants to run.
    pub(crate) resched: bool,
    /// ... and at once, not at the next tick.
    pub(crate) eager: bool,
    /// The running kernel section has reached a voluntary preemption point.
    pub(crate) at_point: bool,
    pub(crate) ran_label: u16,
    /// Thread that ran here last.
    pub(crate) last: u32,
    /// Track of the thread that an idle exit is for.
    pub(crate) waking: u32,
    pub(crate) ran_since: Ns,
    /// Time each label ran here.
    pub(crate) ran: Box<[Ns]>,
    pub(crate) idle_ns: Ns,
    /// Recent idle times, for the idle governor.
    pub(crate) idle_times: IdleTimes,
}

/// What keeps a task from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// A timer.
    Timer,
    /// A peer's wake-up, or the timer that gives up.
    Peer,
    /// A device event due at this time.
    Device(Ns),
    /// A call, or the answer to its own.
    Message,
    /// A message of a peer.
    Mail,
    /// Room for a message of its own.
    Room,
    /// A sleeping lock.
    Lock,
    /// Gone.
    Dead,
}

/// A program in execution on either level. What decides how it goes on comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Work {
    /// What is left of the current run.
    pub(crate) left: Ns,
    /// Time that cold caches still take from its next run: no work of its own.
    pub(crate) refill: Ns,
    pub(crate) label: u16,
    pub(crate) mode: Mode,
    /// A peer woke it while it did not wait.
    pub(crate) woken: bool,
    /// Spinlocks that it holds or spins for.
    pub(crate) holds: u32,
    /// What it keeps its CPU busy for without work of its own; `left` says nothing then.
    pub(crate) spin: Spin,
    pub(crate) wait: Wait,
    pub(crate) sampler: u32,
    /// Its number among those who serve.
    pub(crate) server: u32,
    /// CPU time of its own that it has had.
    pub(crate) done: Ns,
    pub(crate) runner: Option<Runner>,
    pub(crate) slack: Ns,
    pub(crate) probe: u32,
    /// First task of its capture: `Op::Wake` counts from there.
    pub(crate) peers: u32,
    /// Its number among those who call.
    pub(crate) client: u32,
    /// Its box, if it takes messages.
    pub(crate) mail: u32,
    /// What the system call that it is in will send.
    pub(crate) outbox: Option<Message>,
    /// How long it has spun in this spell.
    pub(crate) spun: Ns,
    pub(crate) glitches: u64,
    /// Units of work done.
    pub(crate) units: u64,
}

impl Work {
    /// CPU time until the current run is done.
    pub(crate) fn needs(&self) -> Ns {
        self.left + self.refill
    }

    /// It had the CPU for so long.
    pub(crate) fn ran(&mut self, ran: Ns) {
        if self.spin != Spin::No {
            self.spun += ran;
            return;
        }
        let cold = ran.min(self.refill);
        self.refill -= cold;
        self.left -= ran - cold;
        self.done += ran - cold;
    }
}

/// A host thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// The vCPU it is, if any.
    pub(crate) vcpu: u32,
    pub(crate) track: u32,
    pub(crate) last_cpu: u32,
    pub(crate) work: Work,
}

/// What a vCPU does in guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestSegment {
    /// Nothing begun.
    None,
    /// Handler of one interrupt.
    Irq(u8),
    /// Softirq half of a device interrupt (index over all VMs).
    Softirq(u32),
    /// Kernel work left behind by a handler.
    Overhead,
    /// Context switch.
    Switch,
    /// A task's work.
    User,
    /// Nothing to run: polls for work.
    Poll,
    /// Nothing to run: HLT or MWAIT that does not exit.
    Rest,
}

impl GuestSegment {
    /// The guest's kernel at work, with interrupts off.
    #[inline]
    pub(crate) fn is_kernel(self) -> bool {
        matches!(self, Self::Irq(_) | Self::Softirq(_) | Self::Overhead | Self::Switch)
    }
}

/// Pending-interrupt bits of a vCPU, most urgent first.
pub(crate) mod vector {
    pub(crate) const NMI: u8 = 1;
    pub(crate) const IPI: u8 = 2;
    pub(crate) const TIMER: u8 = 4;
    pub(crate) const DEVICE: u8 = 8;
    /// One for all messages, as an event channel's upcall.
    pub(crate) const MESSAGE: u8 = 16;
}

/// Guest timers by what they are for; tasks are numbered from `TASKS`.
pub(crate) mod gtimer {
    pub(crate) const TICK: u32 = 0;
    pub(crate) const LEVEL: u32 = 1;
    pub(crate) const TASKS: u32 = 2;
}

/// A virtual CPU: a thread to the host, a CPU to its guest. In this order what every event looks at is in
/// three cache lines: on a large host each of them is a miss.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Vcpu {
    pub(crate) segment: GuestSegment,
    /// What is left of the segment, but for `User`, where the task knows.
    pub(crate) left: Ns,
    pub(crate) since: Ns,
    pub(crate) extra: Ns,
    pub(crate) vm: u32,
    /// Number within the VM.
    pub(crate) cpu: CpuId,
    pub(crate) thread: u32,
    /// pCPU it is loaded on.
    pub(crate) pcpu: u32,
    /// Guest task loaded.
    pub(crate) current: u32,
    pub(crate) track: u32,
    /// Pending interrupts.
    pub(crate) irr: u8,
    pub(crate) halted: bool,
    /// It has halted, and the host polls for it.
    pub(crate) polling: bool,
    /// What to see to when it goes on; see [`wants`](crate::cold::wants).
    pub(crate) wants: u8,
    /// Guest kernel code has run since it last returned to user mode.
    pub(crate) in_kernel: bool,
    pub(crate) resched: bool,
    pub(crate) eager: bool,
    /// The pCPU that fired its timer early waits until it is due.
    pub(crate) waits_out: bool,

    pub(crate) exits: Few<Exit>,
    /// invariant: sorted by time, latest first.
    pub(crate) timers: Vec<(Ns, u32)>,
    /// Deadline the hardware holds.
    pub(crate) programmed: Ns,
    /// pCPU whose timer hardware holds its deadline.
    pub(crate) home: u32,
    /// Its policy is one that does something when it hears of events.
    pub(crate) hears: bool,
    /// ... and reads what the guest's kernel says on the page.
    pub(crate) speaks: bool,
    /// The interrupt that waits came while the guest could not take it: there will be an exit.
    pub(crate) window: bool,
    /// Why it left guest mode: an index into [`EXIT_NAMES`].
    pub(crate) exit_why: u8,

    /// When it left guest mode; `Ns::MAX`: it has entered it again.
    pub(crate) exit_at: Ns,
    /// When the preemption timer is to fire; `Ns::MAX`: it is not in use.
    pub(crate) hv_at: Ns,
    /// When it was preempted off its pCPU.
    pub(crate) off_since: Ns,
    pub(crate) cold: Box<Cold>,
    pub(crate) devices: VecDeque<u32>,

    pub(crate) spin: SpinCpu,
    pub(crate) messages: VecDeque<Message>,
    pub(crate) baseline: Policy,
    pub(crate) page: Page,
    pub(crate) half: GuestHalf,
    pub(crate) policy: HostPolicy,
}

/// A virtual machine. What every event looks at is in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Vm {
    pub(crate) tasks: Vec<Work>,
    pub(crate) ticks: Ticks,
    /// Its first vCPU.
    pub(crate) first: u32,
    /// Its place among the VMs of storms.
    pub(crate) birth: u32,
    pub(crate) virt: VmVirt,
    pub(crate) preemption: Preemption,
    /// A VM of a storm is not there before its VMStart: nothing runs, nothing wakes it.
    pub(crate) started: bool,
    /// A task of it may spin.
    pub(crate) spins: bool,
    pub(crate) level: Level,
    /// Locks, IPIs, and how its vCPUs spin.
    pub(crate) sync: Shared,
    pub(crate) shared: VmShared,
}

/// Where an entry begins a cache line of its own, and how many it has.
#[cfg(test)]
mod layout {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn what_every_event_looks_at_is_in_few_cache_lines() {
        const LINE: usize = 64;
        assert!(offset_of!(Pcpu, at_point) < LINE, "{}", offset_of!(Pcpu, at_point));
        assert!(offset_of!(Vcpu, waits_out) < LINE);
        assert!(offset_of!(Vcpu, exit_why) < 2 * LINE);
        assert_eq!(offset_of!(Vcpu, exit_at), 2 * LINE);
        assert!(offset_of!(Vm, spins) < LINE, "{}", offset_of!(Vm, spins));
        assert!(offset_of!(Thread, work) + offset_of!(Work, spin) < LINE);
        assert!(offset_of!(Work, runner) <= LINE + 8, "{}", offset_of!(Work, runner));
        assert!(size_of::<Exit>() <= 12 && size_of::<Irq>() <= 8);
    }
}

/// More events than this at one moment are a defect of the model, not a scenario.
const STANDSTILL: u64 = 1 << 20;

/// When a level's ticks come: all its CPUs at once, at a phase of the machine's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    pub(crate) period: Ns,
    /// invariant: `< period`.
    pub(crate) phase: Ns,
}

impl Ticks {
    /// The first tick after `now`.
    pub(crate) fn after(&self, now: Ns) -> Ns {
        if now < self.phase {
            return self.phase;
        }
        self.phase + ((now - self.phase) / self.period + 1) * self.period
    }
}

/// What a slot of the event queue stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Segment(u32),
    Irq(u32, Irq),
    Lapic(u32),
    Sleep(u32),
    Boost(u32),
    Device(u32),
    Remote(u32),
    Storm(u32),
    Tune,
    Accounts,
    Govern(u32),
    Plug(u32),
    Timeline,
    View(u32),
    End,
}

/// First slot of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) segment: u32,
    pub(crate) tick: u32,
    pub(crate) ipi: u32,
    pub(crate) sched: u32,
    pub(crate) lapic: u32,
    pub(crate) boost: u32,
    pub(crate) sleep: u32,
    pub(crate) device: u32,
    pub(crate) remote: u32,
    pub(crate) storm: u32,
    pub(crate) tune: u32,
    pub(crate) accounts: u32,
    pub(crate) govern: u32,
    pub(crate) plug: u32,
    pub(crate) timeline: u32,
    pub(crate) view: u32,
    pub(crate) end: u32,
}

/// Everything. See the [module](self).
#[derive(Debug)]
pub(crate) struct World<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) costs: &'p Costs,
    pub(crate) now: Ns,
    pub(crate) queue: EventQueue,
    pub(crate) slots: Slots,
    pub(crate) kinds: Box<[Slot]>,
    pub(crate) events: u64,
    pub(crate) host: Scheduler,
    pub(crate) pcpus: Vec<Pcpu>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) vms: Vec<Vm>,
    /// (VM, index in its plan) of each device.
    pub(crate) devices: Vec<(u32, u32)>,
    pub(crate) device_streams: Vec<crate::rng::Stream>,
    pub(crate) calls: Calls,
    pub(crate) mail: Vec<Mailbox>,
    pub(crate) storms: Storms,
    pub(crate) views: Views,
    pub(crate) tracks: Tracks,
    pub(crate) probes: Vec<Probe>,
    pub(crate) labels: Vec<String>,
    pub(crate) ticks: Ticks,
    /// pCPU that fires exitless timers; [`NONE`]: the one where the vCPU ran last.
    pub(crate) housekeeping: u32,
    /// The pCPU that executes what happens now, and pays for it.
    pub(crate) cpu: u32,
    pub(crate) next_timeline: usize,
    /// Sets ratelimits, if the policy is that.
    pub(crate) tuner: Option<Tuner>,
    /// Counts by time, where the plan asks for them.
    pub(crate) policy_events: Vec<PolicyEvents>,
    pub(crate) in_use: Vec<InUse>,
    /// Of each VM: what decides how many vCPUs it uses, and how many it does.
    pub(crate) governors: Vec<Option<Driver>>,
    pub(crate) masks: Vec<Mask>,
    /// Who watches.
    pub(crate) spans: Spans<'p>,
}

impl World<'_> {
    /// Runs to the end of the plan; the snapshot taken when the warm-up ends and the one at the
    /// end. `stop` is asked now and then: true ends the run early.
    pub(crate) fn run(
        &mut self,
        stop: &dyn Fn() -> bool,
    ) -> (crate::result::Totals, crate::result::Totals) {
        let warmup = self.plan.warmup_ns;
        let mut start = None;
        let mut moved = 0;
        self.queue.set(self.slots.end, warmup);
        if let Some(first) = self.plan.timeline.first() {
            self.queue.set(self.slots.timeline, first.at_ns);
        }
        while let Some((time, slot)) = self.queue.pop() {
            debug_assert!(time >= self.now, "time went back");
            if time >= self.spans.turns && self.span_turns(time) {
                break;
            }
            if time > self.now {
                self.now = time;
                moved = self.events;
            }
            self.events += 1;
            assert!(
                self.events - moved < STANDSTILL,
                "the model stands still at {} ns: {STANDSTILL} events at one moment",
                self.now
            );
            if self.events & 0xffff == 0 && stop() {
                break;
            }
            match self.kinds[slot as usize] {
                Slot::Segment(p) => self.segment_ends(p),
                Slot::Irq(p, irq) => self.interrupt(p, irq),
                Slot::Lapic(v) => self.lapic_expires(v),
                Slot::Sleep(t) => self.sleep_expires(t),
                Slot::Boost(v) => self.interrupt(self.vcpus[v as usize].home, Irq::Boost(v)),
                Slot::Device(d) => self.device_fires(d),
                Slot::Remote(r) => self.remote_answers(r),
                Slot::Storm(s) => self.storm_asks(s),
                Slot::Tune => self.tune_due(),
                Slot::Accounts => self.accounts_due(),
                Slot::Govern(vm) => self.govern_due(vm),
                Slot::Plug(vm) => self.plug(vm),
                Slot::Timeline => self.timeline(),
                Slot::View(i) => self.view_turns(i),
                Slot::End if start.is_none() => {
                    start = Some(self.totals());
                    self.queue.set(self.slots.end, warmup + self.plan.duration_ns);
                }
                Slot::End => break,
            }
        }
        self.span_ends();
        let end = self.totals();
        (start.unwrap_or_else(|| end.clone()), end)
    }

    fn timeline(&mut self) {
        let plan = self.plan;
        while let Some(event) = plan.timeline.get(self.next_timeline) {
            if event.at_ns > self.now {
                self.queue.set(self.slots.timeline, event.at_ns);
                return;
            }
            self.next_timeline += 1;
            self.throw(&event.action);
            if self.pcpus[self.cpu as usize].resched {
                self.interrupt(self.cpu, Irq::Ipi);
            }
        }
    }

    /// Time each label had on a pCPU, up to now.
    pub(crate) fn charge_ran(&mut self, p: u32) {
        if self.tracks.is_empty() {
            // Nobody will ask. The table is as large as pCPUs times labels: it is left alone.
            return;
        }
        let pc = &mut self.pcpus[p as usize];
        pc.ran[pc.ran_label as usize] += self.now - pc.ran_since;
        pc.ran_since = self.now;
    }

    /// Changes a thread's attribution state, if it is tracked.
    #[inline(always)]
    pub(crate) fn state(&mut self, track: u32, state: State) {
        if track != NONE {
            self.tracks.set(track, state, self.now);
        }
    }

    /// What runs has run until now: brings every thread's time up to date.
    pub(crate) fn charge_all(&mut self) {
        for p in 0..self.pcpus.len() as u32 {
            self.host.charge(self.now, CpuId(p));
        }
        self.host_notes();
    }

    pub(crate) fn thread_of(&self, v: u32) -> EntId {
        EntId(self.vcpus[v as usize].thread)
    }
}

/// How many there are of each entity that has slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entities {
    pub(crate) pcpus: u32,
    pub(crate) vcpus: u32,
    pub(crate) threads: u32,
    pub(crate) vms: u32,
    pub(crate) devices: u32,
    pub(crate) remotes: u32,
    pub(crate) storms: u32,
    pub(crate) views: u32,
}

/// Names every slot, in the order of [`Slots`].
pub(crate) fn number(n: Entities) -> (Slots, Box<[Slot]>) {
    let mut kinds = Vec::new();
    let slots = Slots {
        segment: extend(&mut kinds, n.pcpus, Slot::Segment),
        tick: extend(&mut kinds, n.pcpus, |p| Slot::Irq(p, Irq::Tick)),
        ipi: extend(&mut kinds, n.pcpus, |p| Slot::Irq(p, Irq::Ipi)),
        sched: extend(&mut kinds, n.pcpus, |p| Slot::Irq(p, Irq::Sched)),
        lapic: extend(&mut kinds, n.vcpus, Slot::Lapic),
        boost: extend(&mut kinds, n.vcpus, Slot::Boost),
        sleep: extend(&mut kinds, n.threads, Slot::Sleep),
        device: extend(&mut kinds, n.devices, Slot::Device),
        remote: extend(&mut kinds, n.remotes, Slot::Remote),
        storm: extend(&mut kinds, n.storms, Slot::Storm),
        tune: extend(&mut kinds, 1, |_| Slot::Tune),
        accounts: extend(&mut kinds, 1, |_| Slot::Accounts),
        govern: extend(&mut kinds, n.vms, Slot::Govern),
        plug: extend(&mut kinds, n.vms, Slot::Plug),
        timeline: extend(&mut kinds, 1, |_| Slot::Timeline),
        view: extend(&mut kinds, n.views, Slot::View),
        end: extend(&mut kinds, 1, |_| Slot::End),
    };
    (slots, kinds.into())
}

fn extend(kinds: &mut Vec<Slot>, n: u32, f: impl Fn(u32) -> Slot) -> u32 {
    let first = kinds.len() as u32;
    kinds.extend((0..n).map(f));
    first
}
