//! What a machine is made of, and what its parts can be doing.
//!
//! Two levels of the same thing: host threads on pCPUs ([`host`](crate::host)) and guest tasks on
//! vCPUs ([`guest`](crate::guest)). A vCPU is a host thread whose work is whatever its guest does.
//! Every pCPU is in one *segment* at a time (an interrupt handler, a context switch, a VM exit, user
//! work, guest mode); the end of the segment is its one pending event. Work that is interrupted keeps
//! what is left of it: progress is computed when it stops, never in steps.

use std::collections::VecDeque;

use vcoop_model::plan::{Mode, Preemption, Room};
use vcoop_policy::driver::VcpuDriver;
use vcoop_policy::{GuestHalf, VmShared};
use vcoop_sched::{CpuId, Level};

use crate::guest::exit::Exit;
use crate::guest::halt_times::HaltTimes;
use crate::guest::spin_vcpu::{Spin, SpinVcpu};
use crate::guest::vcpu_virt::{VcpuVirt, VmVirt};
use crate::guest::vm_sync::VmSync;
use crate::host::idle_governor::IdleGovernor;
use crate::inline_queue::InlineQueue;
use crate::interrupts::guest_timers::GuestTimers;
use crate::interrupts::ipi_vcpu::IpiVcpu;
use crate::messages::call::Message;
use crate::policy_driver::page::Page;
use crate::program::{Op, Runner};
use crate::queue::Ns;
use crate::ticks::Ticks;

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
    Ratelimit,
    /// Policies that give boosted time back are told what their threads ran.
    Accounts,
    /// The host looks what it can give a VM.
    Govern(u32),
    /// A vCPU that had halted has an IPI posted.
    Posted(u32),
    /// A message from another machine, for this client.
    Remote(u32),
    /// A device of the host (a line of [`DeviceLines`](crate::host::devices::DeviceLines)).
    Host(u32),
}

impl Irq {
    /// Whether it is a timer of the pCPU itself, which knew when it would fire.
    pub(crate) fn is_timer(self) -> bool {
        match self {
            Self::Tick
            | Self::Sched
            | Self::Lapic(_)
            | Self::Sleep(_)
            | Self::Boost(_)
            | Self::Ratelimit
            | Self::Accounts
            | Self::Govern(_) => true,
            Self::Ipi
            | Self::Device(_)
            | Self::Storm(_)
            | Self::Posted(_)
            | Self::Remote(_)
            | Self::Host(_) => false,
        }
    }
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
    pub(crate) irqs: InlineQueue<Irq>,
    /// The vCPU that the thread is, if it is one.
    pub(crate) vcpu: u32,
    /// The scheduler wants to run.
    pub(crate) resched: bool,
    /// ... and at once, not at the next tick.
    pub(crate) eager: bool,
    /// The work of this segment is slowed by a sibling.
    pub(crate) slowed: bool,
    /// The running kernel section has reached a voluntary preemption point.
    pub(crate) at_point: bool,
    /// Thread that ran here last.
    pub(crate) last: u32,
    /// The IPI on its way is none: it sees a write.
    pub(crate) sees_write: bool,
    /// Track of the thread that an idle exit is for.
    pub(crate) waking: u32,
    /// Time in idle states and on the way out of them, as `/proc/stat` counts it; what the current
    /// segment adds is not in it yet.
    pub(crate) idle_ns: Ns,
    /// Which idle state it takes.
    pub(crate) idle_governor: IdleGovernor,
    /// Time of work that was slowed.
    pub(crate) slowed_ns: Ns,
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
    /// Others at a barrier.
    Barrier,
    /// Gone.
    Dead,
}

/// A program in execution on either level. What decides how it goes on comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Work {
    /// What is left of the current run.
    pub(crate) left: Ns,
    /// Time that cold caches still take from its next run: no work of its own. A task of a guest takes
    /// over what its vCPU's thread owes. It is what the caches lack, so at most one full refill.
    pub(crate) refill: Ns,
    pub(crate) label: u16,
    pub(crate) mode: Mode,
    /// A peer woke it while it did not wait.
    pub(crate) woken: bool,
    /// It is on its way to sleep: it pays for that before it leaves its (v)CPU.
    pub(crate) leaving: bool,
    /// Spinlocks that it holds or spins for.
    pub(crate) holds: u16,
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
    /// If its program is what the thread of its vCPU does in all: CPU time of that thread up to the end of its last run.
    pub(crate) thread_time: Option<Ns>,
    pub(crate) probe: u32,
    /// Sampler and probe of its timer's interrupts.
    pub(crate) irq_sampler: u32,
    pub(crate) irq_probe: u32,
    /// First task of its capture: `Op::Wake` counts from there.
    pub(crate) peers: u32,
    /// First task of its process: they share an address space.
    pub(crate) space: u32,
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
    /// This operation is the next one of its program, again or before what follows.
    pub(crate) fn hold(&mut self, op: Op) {
        self.runner.iter_mut().for_each(|runner| runner.hold(op));
    }

    /// There was no room for a message to task `to`: it posts it when it is woken.
    pub(crate) fn posts_again(&mut self, to: u32, room: Room) {
        self.hold(Op::Post { peer: to - self.peers, room });
    }

    /// CPU time until the current run is done.
    pub(crate) fn needs(&self) -> Ns {
        self.left + self.refill
    }

    /// Caches lost so much of what it works with, measured by the time of loading that again. It adds
    /// nothing to what they lacked before: lines that are not there cannot be evicted once more.
    pub(crate) fn evicted(&mut self, refill_ns: Ns) {
        self.refill = self.refill.max(refill_ns);
    }

    /// It had the CPU for so long.
    pub(crate) fn ran(&mut self, ran: Ns) {
        if self.spin != Spin::No {
            // A loop of PAUSE loads nothing: the refill is still to come.
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
    /// Since when it has no pCPU, and how long that had been idle by then.
    pub(crate) off_since: Ns,
    pub(crate) off_idle: Ns,
    pub(crate) work: Work,
}

impl Thread {
    /// One that has not run yet.
    pub(crate) fn new(work: Work, vcpu: u32, track: u32, last_cpu: u32) -> Self {
        Self { vcpu, track, last_cpu, off_since: 0, off_idle: 0, work }
    }
}

/// What a vCPU does in guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestSegment {
    /// Nothing begun.
    None,
    /// Handler of one interrupt.
    Irq(u8),
    /// Its exits and wake-ups, before it returns. The softirq half of a device follows (index over all VMs), or of
    /// none (`NONE`).
    IrqEnd(u8, u32),
    /// Softirq half of a device interrupt.
    Softirq(u32),
    /// Its exits and wake-ups.
    SoftirqEnd,
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
        !matches!(self, Self::None | Self::User | Self::Poll | Self::Rest)
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

/// An interrupt that is posted to a vCPU: its bit in the descriptor, and the notification of that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    /// When the bit is set: KVM finds it from then on.
    pub(crate) sent: Ns,
    /// When the notification is there: a CPU in guest mode finds it from then on.
    pub(crate) lands: Ns,
    pub(crate) which: u8,
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
    /// What to see to when it goes on; see [`wants`](crate::guest::vcpu_virt::wants).
    pub(crate) wants: u8,
    /// Guest kernel code has run since it last returned to user mode.
    pub(crate) in_kernel: bool,
    pub(crate) resched: bool,
    pub(crate) eager: bool,
    /// The pCPU that fired its timer early waits until it is due.
    pub(crate) waits_out: bool,

    pub(crate) exits: InlineQueue<Exit>,
    pub(crate) timers: GuestTimers,
    /// Deadline the hardware holds.
    pub(crate) programmed: Ns,
    /// pCPU whose timer hardware holds its deadline.
    pub(crate) home: u32,
    /// Its policy acts on events.
    pub(crate) has_policy: bool,
    /// Its policy reads what the guest's kernel writes to the page.
    pub(crate) has_guest_half: bool,
    /// The interrupt that waits came while the guest could not take it: there will be an exit.
    pub(crate) window: bool,
    /// Why it left guest mode: an index into [`EXIT_NAMES`](crate::guest::exit::EXIT_NAMES).
    pub(crate) exit_why: u8,

    /// When it left guest mode; `Ns::MAX`: it has entered it again.
    pub(crate) exit_at: Ns,
    /// What of an exit on KVM's fast path is the way back.
    pub(crate) fast_entry: Ns,
    /// While idle: the address space that it still has loaded, or [`NONE`].
    pub(crate) lazy_space: u32,
    /// When the preemption timer is to fire; `Ns::MAX`: it is not in use.
    pub(crate) hv_at: Ns,
    /// Since when it waits for a pCPU: it was preempted, or woken.
    pub(crate) off_since: Ns,
    pub(crate) virt: Box<VcpuVirt>,
    /// Interrupts that are posted and not pending yet.
    pub(crate) posts: Vec<Post>,
    pub(crate) devices: VecDeque<u32>,

    pub(crate) spin: SpinVcpu,
    pub(crate) ipis: IpiVcpu,
    pub(crate) messages: VecDeque<Message>,
    pub(crate) page: Page,
    pub(crate) half: GuestHalf,
    pub(crate) driver: VcpuDriver,
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
    /// A task of it has a probe of its timer's interrupts.
    pub(crate) times_interrupts: bool,
    /// It has full-nohz vCPUs.
    pub(crate) nohz: bool,
    pub(crate) level: Level,
    /// Locks, IPIs, and how its vCPUs spin.
    pub(crate) sync: VmSync,
    pub(crate) shared: VmShared,
    /// Its halts, if the host polls for it.
    pub(crate) halts: Option<HaltTimes>,
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
