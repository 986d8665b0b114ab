//! Locks of a guest, and how its vCPUs spin for them.
//!
//! A spinlock is queued: waiters get it in the order in which they came (MCS). A task that spins or
//! holds one cannot be preempted by its guest, but its vCPU can be by the host:
//!
//! ```text
//! Spins --granted--> Holds
//!   |  ^                ^
//!   |  +--- window used up (PLE exit): the host yields to a preempted vCPU of the VM
//!   |                   |
//!   +--- pv: threshold used up: Halted --kicked, at the head of the queue, lock free--+
//! ```
//!
//! At a paravirtual lock whose head of the queue is halted, who comes first takes it (Linux's hybrid pv
//! qspinlock); else it is handed over in order.

use std::collections::VecDeque;

use vcoop_model::plan::virt::{IpiVirt, SpinVirt};
use vcoop_model::plan::{Mode, VmPlan};
use vcoop_policy::GuestEvent;
use vcoop_sched::{DirectedYield, Leave};

use crate::attribution::track::{NONE, State};
use crate::machine::{Exit, GuestSegment, Segment, Wait};
use crate::queue::Ns;
use crate::world::World;

/// What is left of a wait that somebody else ends.
const UNBOUNDED: Ns = 1 << 50;
/// `kvm_vcpu_on_spin` gives up after so many candidates that have nothing to gain.
const TRIES: u32 = 3;

/// Marks who waits to read.
const READS: u32 = 1 << 31;

/// What a task keeps its vCPU busy for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spin {
    /// Nothing: its own work.
    #[default]
    No,
    /// A spinlock.
    Lock(u32),
    /// Other vCPUs that are to call a function.
    Calls,
    /// A timer's interrupt.
    Timer,
}

/// What ends a spell of spinning that nobody else ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Spell {
    #[default]
    Open,
    /// The hardware.
    Window,
    /// The threshold of a pv lock.
    Threshold,
}

/// A lock.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    /// The task that has it.
    holder: u32,
    /// How many have it to read.
    readers: u32,
    /// Those who want it, in their order; with [`READS`] to read.
    queue: VecDeque<u32>,
}

/// A function call on its way to a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The vCPU that waits for it; [`NONE`]: nobody does.
    pub(crate) waiter: u32,
}

/// What spinning and IPIs add to a vCPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpinCpu {
    /// Functions to call.
    pub(crate) calls: VecDeque<Call>,
    /// Targets of multicasts under way, in the order of its exits.
    pub(crate) multicast: VecDeque<u32>,
    /// Whom the last function call interrupted.
    pub(crate) mask: Vec<u32>,
    /// Calls that it waits for.
    pub(crate) acks: u32,
    /// It is to yield to one of `mask` when these have been sent.
    pub(crate) yields: bool,
    /// It halts, or will, at a pv lock.
    parks: bool,
    /// Kicked: it need not halt.
    pub(crate) unhalted: bool,
    /// It has a TLB to flush when it is loaded.
    pub(crate) flush: bool,
    /// It was preempted, not woken.
    preempted: bool,
    /// It yielded when it spun, and has not run since.
    in_loop: bool,
    /// Such a one is yielded to every other time.
    eligible: bool,
    spell: Spell,
    /// Time until the next PLE exit.
    window: Ns,
}

/// Counters of a VM, in the order of [`COUNT_NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    IpisIcr,
    IpisCluster,
    IpisPv,
    IpisPosted,
    IpisAsked,
    Multicasts,
    YieldsTried,
    YieldsWon,
    HolderPreempted,
    WaiterPreempted,
    PvHalts,
    PvKicks,
    Shootdowns,
    ShootdownsDeferred,
    LockSleeps,
}

/// As reported: events a second.
pub(crate) const COUNT_NAMES: [&str; 15] = [
    "ipis.icr",
    "ipis.cluster",
    "ipis.pv",
    "ipis.posted",
    "ipis.asked",
    "multicasts",
    "yields.tried",
    "yields.won",
    "lock_holder_preemptions",
    "lock_waiter_preemptions",
    "pv_halts",
    "pv_kicks",
    "shootdowns",
    "shootdowns.deferred",
    "lock_sleeps",
];

/// Counters of a VM.
pub(crate) type Counts = [u64; COUNT_NAMES.len()];

/// What a VM's vCPUs share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) locks: Vec<Lock>,
    pub(crate) ipi: IpiVirt,
    pub(crate) spin: SpinVirt,
    /// PAUSE loops exit.
    ple: bool,
    /// vCPU (of the VM) that was last yielded to.
    last_boosted: u32,
    pub(crate) counts: Counts,
}

impl Shared {
    pub(crate) fn new(vm: &VmPlan) -> Self {
        let locks = vm.tasks.iter().filter_map(|task| task.program.locks()).max().unwrap_or(0);
        let free = Lock { holder: NONE, readers: 0, queue: VecDeque::new() };
        Self {
            locks: vec![free; locks as usize],
            ipi: vm.virt.ipi,
            // KVM takes PV_UNHALT from a guest whose HLT does not exit.
            spin: SpinVirt {
                pv_locks: vm.virt.spin.pv_locks && !vm.virt.exits_off.hlt,
                ..vm.virt.spin
            },
            ple: !vm.virt.exits_off.pause,
            last_boosted: 0,
            counts: Counts::default(),
        }
    }
}

impl World<'_> {
    pub(crate) fn tally(&mut self, vm: usize, what: Count, n: u64) {
        self.vms[vm].sync.counts[what as usize] += n;
    }

    /// A task takes a spinlock, or begins to spin for it.
    pub(crate) fn lock(&mut self, v: u32, t: u32, l: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let work = &mut self.vms[vm].tasks[t as usize];
        let was = std::mem::replace(&mut work.mode, Mode::PreemptOff);
        work.holds += 1;
        if was != Mode::PreemptOff {
            self.guest_event(v, GuestEvent::PreemptOff);
        }
        let free = {
            let lock = &self.vms[vm].sync.locks[l as usize];
            let steals = |&head: &u32| self.vcpus[self.home_of(vm, head) as usize].spin.parks;
            lock.holder == NONE && lock.queue.front().is_none_or(steals)
        };
        let lock = &mut self.vms[vm].sync.locks[l as usize];
        if free {
            lock.holder = t;
            return;
        }
        lock.queue.push_back(t);
        self.spin(vm, t, Spin::Lock(l));
    }

    /// A task begins to spin.
    pub(crate) fn spin(&mut self, vm: usize, t: u32, spin: Spin) {
        debug_assert!(self.vms[vm].spins, "`Vm::spins` leaves out a program that does");
        let work = &mut self.vms[vm].tasks[t as usize];
        work.spin = spin;
        work.spun = 0;
        work.left = UNBOUNDED;
    }

    /// A task releases a spinlock: the next in line has it, or is kicked out of its halt.
    pub(crate) fn unlock(&mut self, v: u32, t: u32, l: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let work = &mut self.vms[vm].tasks[t as usize];
        work.holds = work.holds.saturating_sub(1);
        let lock = &mut self.vms[vm].sync.locks[l as usize];
        if lock.holder != t {
            return;
        }
        lock.holder = NONE;
        let Some(&head) = lock.queue.front() else { return };
        let home = self.home_of(vm, head);
        if self.vcpus[home as usize].spin.parks {
            self.tally(vm, Count::PvKicks, 1);
            self.vcpus[v as usize].exits.push_back(Exit::Kick(home));
            return;
        }
        self.hand_over(vm, l, head);
    }

    fn hand_over(&mut self, vm: usize, l: u32, head: u32) {
        let lock = &mut self.vms[vm].sync.locks[l as usize];
        lock.queue.pop_front();
        lock.holder = head;
        self.spin_ends(vm, head);
    }

    /// The vCPU on whose queue a task is.
    pub(crate) fn home_of(&self, vm: usize, t: u32) -> u32 {
        self.vms[vm].first + self.vms[vm].level.cpu_of(vcoop_sched::EntId(t)).0
    }

    /// What a task spins for is there: it goes on, when its vCPU runs.
    pub(crate) fn spin_ends(&mut self, vm: usize, t: u32) {
        let v = self.home_of(vm, t);
        let vcpu = &self.vcpus[v as usize];
        let p = vcpu.pcpu;
        let spins = vcpu.current == t
            && vcpu.segment == GuestSegment::User
            && p != NONE
            && self.pcpus[p as usize].segment == Segment::Guest;
        if spins {
            self.stop_guest(p);
        }
        let handoff = self.vms[vm].sync.spin.handoff_ns;
        let work = &mut self.vms[vm].tasks[t as usize];
        work.spin = Spin::No;
        // It sees the change when the cache line has come to it.
        work.left = handoff;
        let ns = work.needs();
        if spins {
            self.guest_begin(v, GuestSegment::User, ns);
        }
    }

    /// The current task of a vCPU spins: for how long it may, or `None` if it need not any more.
    pub(crate) fn spell(&mut self, v: u32, t: u32) -> Option<Ns> {
        let vm = self.vcpus[v as usize].vm as usize;
        let spin = self.vms[vm].tasks[t as usize].spin;
        if std::mem::take(&mut self.vcpus[v as usize].spin.parks) {
            // A halt is over, whatever ended it: the threshold counts anew.
            self.vms[vm].tasks[t as usize].spun = 0;
            self.vcpus[v as usize].spin.unhalted = false;
        }
        if let Spin::Lock(l) = spin {
            let lock = &self.vms[vm].sync.locks[l as usize];
            if lock.holder == NONE && lock.queue.front() == Some(&t) {
                self.hand_over(vm, l, t);
                return None;
            }
        }
        if std::mem::take(&mut self.vcpus[v as usize].spin.yields) && self.wants_yield(v) {
            return None;
        }
        let work = &self.vms[vm].tasks[t as usize];
        let sync = &self.vms[vm].sync;
        let cpu = &mut self.vcpus[v as usize].spin;
        let mut ends = (UNBOUNDED, Spell::Open);
        if sync.spin.pv_locks && matches!(spin, Spin::Lock(_)) {
            let left = sync.spin.threshold_ns.saturating_sub(work.spun).max(1);
            ends = (left, Spell::Threshold);
        }
        // PAUSE loops exit in the kernel only.
        if sync.ple && spin != Spin::Timer && cpu.window < ends.0 {
            ends = (cpu.window, Spell::Window);
        }
        cpu.spell = ends.1;
        Some(ends.0)
    }

    /// Books what a task that spins keeps its vCPU busy for.
    pub(crate) fn spin_state(&mut self, v: u32, spin: Spin) {
        let state = match spin {
            Spin::No | Spin::Timer => State::Run,
            Spin::Lock(_) => State::Spin,
            Spin::Calls => State::CallWait,
        };
        self.state(self.vcpus[v as usize].track, state);
    }

    /// A spell of spinning is over.
    pub(crate) fn spell_ends(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        match vcpu.spin.spell {
            Spell::Open => {}
            Spell::Window => vcpu.exits.push_back(Exit::Pause),
            Spell::Threshold => {
                vcpu.spin.parks = true;
                vcpu.exits.push_back(Exit::Halt);
                let vm = vcpu.vm as usize;
                self.tally(vm, Count::PvHalts, 1);
            }
        }
    }

    /// Whether a vCPU that is about to halt at a lock has been kicked meanwhile.
    pub(crate) fn was_kicked(&mut self, v: u32) -> bool {
        std::mem::take(&mut self.vcpus[v as usize].spin.unhalted)
    }

    /// Whether a vCPU halts at a lock.
    pub(crate) fn parks(&self, v: u32) -> bool {
        self.vcpus[v as usize].spin.parks
    }

    fn kick(&mut self, v: u32) {
        self.vcpus[v as usize].spin.unhalted = true;
        if self.vcpus[v as usize].halted {
            self.unhalt(v, self.waker());
        }
    }

    /// The vCPU is loaded: what its being away meant is over.
    pub(crate) fn spin_loaded(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if !self.vms[vcpu.vm as usize].spins {
            return;
        }
        let cpu = &mut vcpu.spin;
        cpu.window = self.vms[vcpu.vm as usize].sync.spin.ple_window_ns;
        (cpu.preempted, cpu.in_loop, cpu.eligible, cpu.flush) = (false, false, false, false);
    }

    /// The vCPU has lost its pCPU while it could have gone on.
    pub(crate) fn spin_preempted(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if !self.vms[vcpu.vm as usize].spins {
            return;
        }
        vcpu.spin.preempted = true;
        let (vm, t) = (vcpu.vm as usize, vcpu.current);
        if t == NONE || self.vms[vm].sync.locks.is_empty() {
            return;
        }
        let work = &self.vms[vm].tasks[t as usize];
        match work.spin {
            Spin::Lock(_) => self.tally(vm, Count::WaiterPreempted, 1),
            _ if work.holds > 0 => self.tally(vm, Count::HolderPreempted, 1),
            _ => {}
        }
    }

    /// A PLE exit: yields to a vCPU of the VM that was preempted, by the rules of
    /// `kvm_vcpu_on_spin`. True when it did.
    pub(crate) fn on_spin(&mut self, p: u32, v: u32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let (first, n) = (self.vms[vm].first, self.plan.vms[vm].level.topology.cpus());
        let sync = &mut self.vms[vm].sync;
        let (grow, last) = (Ns::from(sync.spin.ple_grow), sync.last_boosted);
        let rules = sync.spin.candidates;
        let window = &mut self.vcpus[v as usize].spin.window;
        *window = (*window * grow).min(SpinVirt::PLE_MAX_NS);
        let mut tries = TRIES;
        for c in (1..=n).map(|i| first + (last + i) % n) {
            if c == v || !self.is_ready(c) {
                continue;
            }
            let other = &self.vcpus[c as usize];
            let as_in_kernel = !rules.in_kernel || rules.interrupted && other.irr != 0;
            let may = match other.spin.preempted {
                true => as_in_kernel || self.in_kernel(c),
                false => rules.interrupted,
            };
            if !may {
                continue;
            }
            let other = &mut self.vcpus[c as usize].spin;
            let eligible = !other.in_loop || other.eligible;
            other.eligible ^= other.in_loop;
            if !eligible {
                continue;
            }
            match self.yield_to(p, vm, c) {
                DirectedYield::Done => {
                    self.vms[vm].sync.last_boosted = c - first;
                    self.vcpus[v as usize].spin.in_loop = true;
                    return true;
                }
                DirectedYield::Alone => {
                    tries -= 1;
                    if tries == 0 {
                        return false;
                    }
                }
                DirectedYield::Refused => {}
            }
        }
        false
    }

    /// The hypercall that kicks a vCPU, at the head of a lock's queue: true when the kicker yielded to it
    /// (`kvm_sched_yield`; not where nobody else wants its pCPU).
    pub(crate) fn on_kick(&mut self, p: u32, to: u32) -> bool {
        self.kick(to);
        let vm = &self.vms[self.vcpus[to as usize].vm as usize];
        let yields = vm.sync.spin.candidates.queue_heads;
        yields && self.host.nr_running(vcoop_sched::CpuId(p)) > 1 && self.on_yield(p, to)
    }

    /// A hypercall asks to yield to a vCPU. True when it did.
    pub(crate) fn on_yield(&mut self, p: u32, to: u32) -> bool {
        let vm = self.vcpus[to as usize].vm as usize;
        self.is_ready(to) && self.yield_to(p, vm, to) == DirectedYield::Done
    }

    fn yield_to(&mut self, p: u32, vm: usize, to: u32) -> DirectedYield {
        self.tally(vm, Count::YieldsTried, 1);
        let target = self.thread_of(to);
        let done = self.host.yield_to(self.clock.now(), vcoop_sched::CpuId(p), target);
        self.host_notes();
        if done == DirectedYield::Done {
            self.tally(vm, Count::YieldsWon, 1);
            self.reschedule(p, Leave::Yield);
        }
        done
    }

    /// Whether a vCPU could run if it had a pCPU.
    fn is_ready(&self, v: u32) -> bool {
        let thread = self.thread_of(v);
        self.host.is_queued(thread) && !self.host.is_running(thread)
    }

    /// Whether a vCPU left guest mode in its kernel.
    fn in_kernel(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.segment != GuestSegment::User || vcpu.current == NONE {
            return true;
        }
        self.vms[vcpu.vm as usize].tasks[vcpu.current as usize].mode != Mode::User
    }

    /// A task takes a sleeping lock, alone or to read; true when it went to sleep for it.
    pub(crate) fn acquire(&mut self, v: u32, t: u32, l: u32, reads: bool) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let lock = &mut self.vms[vm].sync.locks[l as usize];
        if lock.holder == NONE && lock.queue.is_empty() && (reads || lock.readers == 0) {
            if reads {
                lock.readers += 1;
            } else {
                lock.holder = t;
            }
            return false;
        }
        lock.queue.push_back(if reads { t | READS } else { t });
        self.vms[vm].tasks[t as usize].wait = Wait::Lock;
        self.tally(vm, Count::LockSleeps, 1);
        self.guest_sleep(v, t, None)
    }

    /// A task releases a sleeping lock. If nobody has it any more, the next in line has it and is woken; if that one
    /// reads, all who wait to read, as with Linux's rwsem.
    pub(crate) fn release(&mut self, v: u32, t: u32, l: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let lock = &mut self.vms[vm].sync.locks[l as usize];
        if lock.holder == t {
            lock.holder = NONE;
        } else if lock.readers > 0 {
            lock.readers -= 1;
        } else {
            return;
        }
        if lock.readers > 0 {
            return;
        }
        let Some(&next) = lock.queue.front() else { return };
        if next & READS == 0 {
            lock.queue.pop_front();
            lock.holder = next;
            return self.guest_wake(v, next);
        }
        let mut readers = Vec::new();
        lock.queue.retain(|waiter| {
            let reads = waiter & READS != 0;
            readers.extend(reads.then_some(waiter & !READS));
            !reads
        });
        lock.readers = readers.len() as u32;
        readers.into_iter().for_each(|reader| self.guest_wake(v, reader));
    }
}
