//! Parts of a machine, and their states.
//!
//! Two similar levels: host threads on pCPUs ([`host`](crate::host)) and guest tasks on vCPUs
//! ([`guest`](crate::guest)). A vCPU is a host thread whose work is the guest. Every pCPU is in one *segment* at a time
//! (an interrupt handler, a context switch, a VM exit, user work, guest mode); the end of the segment is its one
//! pending event. Interrupted work keeps its remaining time: progress is computed when the work stops, never in steps.

use std::collections::VecDeque;

use vcoop_model::plan::{Mode, Preemption, QueueRoom};
use vcoop_policy::driver::VcpuDriver;
use vcoop_policy::{GuestHalf, VmShared};
use vcoop_sched::{CpuId, Level};

use crate::guest::exit::Exit;
use crate::guest::halt_times::HaltTimes;
use crate::guest::spin_vcpu::{Spin, SpinVcpu};
use crate::guest::vcpu_virt::{VcpuVirt, VmVirt};
use crate::guest::vm_sync::VmSync;
use crate::host::idle_governor::IdleGovernor;
use crate::host::smt::Speed;
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
    /// The next batch of a storm is due.
    Storm(u32),
    /// `ratelimit-auto` looks at the domains.
    Ratelimit,
    /// Policies that repay boosted time get accounts of what their threads ran.
    Accounts,
    /// The governor of a VM is due.
    Govern(u32),
    /// An IPI is posted to a vCPU that had halted.
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

/// A physical CPU. The fields that every event uses are in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Pcpu {
    pub(crate) segment: Segment,
    /// Thread loaded.
    pub(crate) current: u32,
    /// Begin of the segment.
    pub(crate) since: Ns,
    /// Work left by handlers, to be done before anything else.
    pub(crate) extra: Ns,
    pub(crate) irqs: InlineQueue<Irq>,
    /// The vCPU of its thread, if it is one.
    pub(crate) vcpu: u32,
    /// The scheduler wants to run.
    pub(crate) resched: bool,
    /// At once, not at the next tick.
    pub(crate) eager: bool,
    /// Speed of the work of this segment, beside its siblings.
    pub(crate) speed: Speed,
    /// The running kernel section has reached a voluntary preemption point.
    pub(crate) at_point: bool,
    /// Thread that ran here last.
    pub(crate) last: u32,
    /// The IPI on its way stands for a write that it sees.
    pub(crate) sees_write: bool,
    /// Track of the thread that an idle exit is for.
    pub(crate) waking: u32,
    /// Time in idle states and in leaving them, as in `/proc/stat`, without the current segment.
    pub(crate) idle_ns: Ns,
    /// Chooses its idle state.
    pub(crate) idle_governor: IdleGovernor,
    /// Time of work that was slowed.
    pub(crate) slowed_ns: Ns,
}

/// What a task waits for.
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
    /// It has exited.
    Dead,
}

/// A program in execution on either level. The fields that decide how it goes on come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Work {
    /// Remaining time of the current run.
    pub(crate) left: Ns,
    /// Time that cold caches will take from its next run; it is not its own work. A task of a guest takes over what its
    /// vCPU's thread owes. At most one full refill.
    pub(crate) refill: Ns,
    pub(crate) label: u16,
    pub(crate) mode: Mode,
    /// A peer's wake-up came while it did not wait.
    pub(crate) woken: bool,
    /// It is going to sleep: it pays for that before it leaves its (v)CPU.
    pub(crate) leaving: bool,
    /// Number of spinlocks that it holds or spins for.
    pub(crate) holds: u8,
    /// One of them is taken with interrupts off.
    pub(crate) irqs_off: bool,
    /// The clock ends its current run, at `until`.
    pub(crate) by_clock: bool,
    /// What it spins for; `left` has no meaning then.
    pub(crate) spin: Spin,
    pub(crate) wait: Wait,
    pub(crate) sampler: u32,
    /// Its number among servers.
    pub(crate) server: u32,
    /// Its own CPU time so far.
    pub(crate) done: Ns,
    pub(crate) runner: Option<Runner>,
    pub(crate) slack: Ns,
    /// If its program is the activity of its vCPU's thread: CPU time of that thread up to the end of its last run.
    pub(crate) thread_time: Option<Ns>,
    pub(crate) probe: u32,
    /// Sampler and probe of its timer's interrupts.
    pub(crate) irq_sampler: u32,
    pub(crate) irq_probe: u32,
    /// First task of its capture: `Op::Wake` counts from there.
    pub(crate) peers: u32,
    /// First task of its process, whose tasks share an address space.
    pub(crate) space: u32,
    /// Its number among clients.
    pub(crate) client: u32,
    /// Its mailbox, if it receives messages.
    pub(crate) mail: u32,
    /// Message that its present system call will send.
    pub(crate) outbox: Option<Message>,
    /// How long it has spun in this period.
    pub(crate) spun: Ns,
    pub(crate) glitches: u64,
    /// Units of work done.
    pub(crate) units: u64,
    /// by_clock: when its current run ends.
    pub(crate) until: Ns,
    /// When it exited.
    pub(crate) ended: Option<Ns>,
}

impl Work {
    /// Repeats this operation later, before the next one of its program.
    pub(crate) fn hold(&mut self, op: Op) {
        self.runner.iter_mut().for_each(|runner| runner.hold(op));
    }

    /// There was no room for a message to task `to`: it sends it again when woken.
    pub(crate) fn posts_again(&mut self, to: u32, room: QueueRoom) {
        self.hold(Op::Post { peer: to - self.peers, room });
    }

    /// CPU time until the current run is done.
    pub(crate) fn needs(&self) -> Ns {
        if self.by_clock { self.left } else { self.left + self.refill }
    }

    /// It uses the CPU until `until`. A loop that reads the clock loads nothing: a refill is still to come.
    pub(crate) fn spin_until(&mut self, until: Ns, now: Ns) {
        (self.by_clock, self.until) = (true, until);
        self.mode = Mode::User;
        self.reads_clock(now);
    }

    /// If the clock ends its run: what is left of it now.
    pub(crate) fn reads_clock(&mut self, now: Ns) {
        if self.by_clock {
            self.left = self.until.saturating_sub(now);
            self.by_clock = self.left > 0;
        }
    }

    /// Evicts a part of its data from caches, measured by the time to load that again. Adds nothing to what was already
    /// missing.
    pub(crate) fn evicted(&mut self, refill_ns: Ns) {
        self.refill = self.refill.max(refill_ns);
    }

    /// It had the CPU for `ran`.
    pub(crate) fn ran(&mut self, ran: Ns) {
        if self.spin != Spin::No {
            // A loop of PAUSE loads nothing: the refill is still to come.
            self.spun += ran;
            return;
        }
        let done = self.done_by(ran);
        self.refill -= if self.by_clock { 0 } else { ran - done };
        self.left -= done;
        self.done += done;
    }

    /// The part of this time on the CPU that is work, and no refill of caches.
    fn done_by(&self, ran: Ns) -> Ns {
        if self.by_clock { ran } else { ran.saturating_sub(self.refill) }
    }

    /// What it has done in a segment of work that goes on, of which this much has passed.
    pub(crate) fn under_way(&self, passed: Ns) -> Ns {
        if self.spin == Spin::No { self.done_by(passed.min(self.needs())) } else { 0 }
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
    /// Time since which it has no pCPU, and how long that pCPU had been idle by then.
    pub(crate) off_since: Ns,
    pub(crate) off_idle: Ns,
    pub(crate) work: Work,
}

impl Thread {
    /// A thread that has not run yet.
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
    /// Exits and wake-ups of a handler, before it returns. The softirq half of a device follows (index over all VMs),
    /// or none (`NONE`).
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
    /// Whether the guest's kernel works with interrupts off.
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
    /// One for all messages, like an event channel's upcall.
    pub(crate) const MESSAGE: u8 = 16;
}

/// An interrupt posted to a vCPU: its bit in the descriptor, and the notification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    /// When the bit is set: KVM can find it from then on.
    pub(crate) sent: Ns,
    /// When the notification arrives: a CPU in guest mode can find it from then on.
    pub(crate) lands: Ns,
    pub(crate) which: u8,
}

/// A virtual CPU: a thread to the host, a CPU to its guest. Ordered so that the fields that every event uses are in
/// three cache lines: on a large host each of them is a miss.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Vcpu {
    pub(crate) segment: GuestSegment,
    /// Remaining time of the segment, except for `User`, where the task has it.
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
    /// What to do when it goes on; see [`wants`](crate::guest::vcpu_virt::wants).
    pub(crate) wants: u8,
    /// Guest kernel code has run since it last returned to user mode.
    pub(crate) in_kernel: bool,
    pub(crate) resched: bool,
    pub(crate) eager: bool,
    /// The pCPU that fired its timer early waits until the deadline.
    pub(crate) waits_out: bool,

    pub(crate) exits: InlineQueue<Exit>,
    pub(crate) timers: GuestTimers,
    /// Deadline in the timer hardware.
    pub(crate) programmed: Ns,
    /// pCPU whose timer hardware holds its deadline.
    pub(crate) home: u32,
    /// Whether its policy reacts to events.
    pub(crate) has_policy: bool,
    /// Whether its policy reads the words of the guest's kernel.
    pub(crate) has_guest_half: bool,
    /// An interrupt came while the guest could not take it: there will be an exit.
    pub(crate) window: bool,
    /// Why it left guest mode: an index into [`EXIT_NAMES`](crate::guest::exit::EXIT_NAMES).
    pub(crate) exit_why: u8,

    /// When it left guest mode; `Ns::MAX`: it is in guest mode.
    pub(crate) exit_at: Ns,
    /// The part of an exit on KVM's fast path that is the way back.
    pub(crate) fast_entry: Ns,
    /// While idle: the address space that it still has loaded, or [`NONE`].
    pub(crate) lazy_space: u32,
    /// When the preemption timer fires; `Ns::MAX`: it is not in use.
    pub(crate) hv_at: Ns,
    /// Time since which it waits for a pCPU, after a preemption or a wake-up.
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

/// A virtual machine. The fields that every event uses are in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Vm {
    pub(crate) tasks: Vec<Work>,
    pub(crate) ticks: Ticks,
    /// Its first vCPU.
    pub(crate) first: u32,
    /// Its number among the VMs of storms.
    pub(crate) birth: u32,
    pub(crate) virt: VmVirt,
    pub(crate) preemption: Preemption,
    /// Whether it exists: a VM of a storm has no running task and no wake-ups before its VMStart.
    pub(crate) started: bool,
    /// A task of it may spin.
    pub(crate) spins: bool,
    /// A task of it has a probe of its timer's interrupts.
    pub(crate) times_interrupts: bool,
    /// It has full-nohz vCPUs.
    pub(crate) nohz: bool,
    /// Its scheduler charges tasks for stolen time.
    pub(crate) charges_steal: bool,
    pub(crate) level: Level,
    /// Locks, IPIs, and how its vCPUs spin.
    pub(crate) sync: VmSync,
    pub(crate) shared: VmShared,
    /// Its halts, if the host polls for it.
    pub(crate) halts: Option<HaltTimes>,
}

/// Cache line at which a structure begins, and how many lines it has.
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
