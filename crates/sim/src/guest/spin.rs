//! How a guest's vCPUs spin for its locks, and what the host does about it.
//!
//! A task that spins or holds a spinlock cannot be preempted by its guest, but its vCPU can be by the host:
//!
//! ```text
//! Spins --granted--> Holds
//!   |  ^                ^
//!   |  +--- window used up (PLE exit): the host yields to a preempted vCPU of the VM
//!   |                   |
//!   +--- pv: threshold used up: Halted --kicked, at the head of the queue, lock free--+
//! ```

use vcoop_model::plan::virt::{Candidates, IpiVirt, SpinVirt};
use vcoop_model::plan::{Mode, VmPlan};
use vcoop_policy::GuestEvent;
use vcoop_sched::{CpuId, DirectedYield, EntId, Leave};

use crate::attribution::track::{NONE, State};
use crate::guest::lock::Locks;
use crate::machine::{Exit, GuestSegment, Segment, Vm, Wait};
use crate::queue::Ns;
use crate::world::World;

/// What is left of a wait that somebody else ends.
const UNBOUNDED: Ns = 1 << 50;
/// `kvm_vcpu_on_spin` gives up after so many candidates that have nothing to gain.
const TRIES: u32 = 3;

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

/// How a vCPU spins, and what the host knows of that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpinVcpu {
    /// It halts, or will, at a pv lock.
    parks: bool,
    /// Kicked: it need not halt.
    kicked: bool,
    /// Who let its lock go has seen that it halts, and kicks it.
    kick_sent: bool,
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

impl SpinVcpu {
    /// Whether it halts, or will, at a pv lock.
    pub(crate) fn parks(&self) -> bool {
        self.parks
    }

    /// Whether it has been kicked meanwhile: it need not halt.
    pub(crate) fn take_kick(&mut self) -> bool {
        std::mem::take(&mut self.kicked)
    }

    /// A halt at a pv lock is over, whatever ended it. True if there was one.
    fn unparks(&mut self) -> bool {
        let parks = std::mem::take(&mut self.parks);
        if parks {
            (self.kicked, self.kick_sent) = (false, false);
        }
        parks
    }

    /// Whether who lets its lock go has to kick it. One kick is enough for a halt: the word of the lock says that its
    /// head halts, and who releases the lock clears it.
    fn needs_kick(&mut self) -> bool {
        !std::mem::replace(&mut self.kick_sent, true)
    }

    /// It has a pCPU: what its being away meant is over.
    fn loaded(&mut self, window: Ns) {
        self.window = window;
        (self.preempted, self.in_loop, self.eligible) = (false, false, false);
    }

    /// A PAUSE loop has used up its window: the next one is longer.
    fn widen(&mut self, by: Ns) {
        self.window = (self.window * by).min(SpinVirt::PLE_MAX_NS);
    }

    /// Whether one who spins may yield to it by these rules, if it could run: `in_kernel` as KVM saw it last,
    /// `interrupted` if an interrupt waits for it.
    fn may_be_yielded_to(&self, rules: Candidates, in_kernel: bool, interrupted: bool) -> bool {
        match self.preempted {
            true => !rules.in_kernel || rules.interrupted && interrupted || in_kernel,
            false => rules.interrupted,
        }
    }

    /// Whether it is its turn, if it could be yielded to: one that spun itself is every other time.
    fn takes_turn(&mut self) -> bool {
        let eligible = !self.in_loop || self.eligible;
        self.eligible ^= self.in_loop;
        eligible
    }

    /// Spins for what ends first: the hardware's window, or the threshold of a pv lock, if that is what it
    /// spins for; for how long.
    fn spell(&mut self, threshold: Option<Ns>, exits: bool) -> Ns {
        let mut ends = (UNBOUNDED, Spell::Open);
        if let Some(left) = threshold {
            ends = (left.max(1), Spell::Threshold);
        }
        if exits && self.window < ends.0 {
            ends = (self.window, Spell::Window);
        }
        self.spell = ends.1;
        ends.0
    }
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
    locks: Locks,
    pub(crate) ipi: IpiVirt,
    spin: SpinVirt,
    /// PAUSE loops exit.
    ple: bool,
    /// vCPU (of the VM) that was last yielded to.
    last_boosted: u32,
    counts: Counts,
}

impl Shared {
    pub(crate) fn new(vm: &VmPlan) -> Self {
        let locks = vm.tasks.iter().filter_map(|task| task.program.locks()).max().unwrap_or(0);
        Self {
            locks: Locks::new(locks),
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

    /// What has been counted so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Counts events.
    pub(crate) fn count(&mut self, what: Count, n: u64) {
        self.counts[what as usize] += n;
    }

    /// Those to try as the target of a yield, by number in a VM of `n` vCPUs: the one after the last that was
    /// yielded to first.
    fn candidates(&self, n: u32) -> impl Iterator<Item = u32> + use<> {
        let last = self.last_boosted;
        (1..=n).map(move |i| (last + i) % n)
    }
}

impl World<'_> {
    pub(crate) fn tally(&mut self, vm: usize, what: Count, n: u64) {
        self.vms[vm].sync.count(what, n);
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
        let Vm { level, first, sync, .. } = &mut self.vms[vm];
        let vcpus = &self.vcpus;
        let parks = |head| vcpus[(*first + level.cpu_of(EntId(head)).0) as usize].spin.parks();
        if sync.locks.take(l, t, parks) {
            return;
        }
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
        let Some(head) = self.vms[vm].sync.locks.release(l, t) else { return };
        let home = self.home_of(vm, head);
        if self.vcpus[home as usize].spin.parks() {
            if self.vcpus[home as usize].spin.needs_kick() {
                self.tally(vm, Count::PvKicks, 1);
                self.vcpus[v as usize].exits.push_back(Exit::Kick(home));
            }
            return;
        }
        self.vms[vm].sync.locks.hand_over(l);
        self.spin_ends(vm, head);
    }

    /// The vCPU on whose queue a task is.
    pub(crate) fn home_of(&self, vm: usize, t: u32) -> u32 {
        self.vms[vm].first + self.vms[vm].level.cpu_of(EntId(t)).0
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
        if self.vcpus[v as usize].spin.unparks() {
            // The threshold counts anew.
            self.vms[vm].tasks[t as usize].spun = 0;
        }
        if let Spin::Lock(l) = spin
            && self.vms[vm].sync.locks.is_next(l, t)
        {
            self.vms[vm].sync.locks.hand_over(l);
            self.spin_ends(vm, t);
            return None;
        }
        if self.vcpus[v as usize].ipis.takes_yield() && self.wants_yield(v) {
            return None;
        }
        let work = &self.vms[vm].tasks[t as usize];
        let sync = &self.vms[vm].sync;
        let parks = sync.spin.pv_locks && matches!(spin, Spin::Lock(_));
        let threshold = parks.then(|| sync.spin.threshold_ns.saturating_sub(work.spun));
        // PAUSE loops exit in the kernel only.
        let exits = sync.ple && spin != Spin::Timer;
        Some(self.vcpus[v as usize].spin.spell(threshold, exits))
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

    fn kick(&mut self, v: u32) {
        self.vcpus[v as usize].spin.kicked = true;
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
        vcpu.spin.loaded(self.vms[vcpu.vm as usize].sync.spin.ple_window_ns);
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
        let sync = &self.vms[vm].sync;
        let (grow, rules) = (Ns::from(sync.spin.ple_grow), sync.spin.candidates);
        let candidates = sync.candidates(n);
        self.vcpus[v as usize].spin.widen(grow);
        let mut tries = TRIES;
        for c in candidates.map(|i| first + i) {
            if c == v || !self.is_ready(c) {
                continue;
            }
            let (in_kernel, interrupted) = (self.in_kernel(c), self.vcpus[c as usize].irr != 0);
            let other = &mut self.vcpus[c as usize].spin;
            if !other.may_be_yielded_to(rules, in_kernel, interrupted) || !other.takes_turn() {
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
        yields && self.host.nr_running(CpuId(p)) > 1 && self.on_yield(p, to)
    }

    /// A hypercall asks to yield to a vCPU. True when it did.
    pub(crate) fn on_yield(&mut self, p: u32, to: u32) -> bool {
        let vm = self.vcpus[to as usize].vm as usize;
        self.is_ready(to) && self.yield_to(p, vm, to) == DirectedYield::Done
    }

    fn yield_to(&mut self, p: u32, vm: usize, to: u32) -> DirectedYield {
        self.tally(vm, Count::YieldsTried, 1);
        let target = self.thread_of(to);
        let done = self.host.yield_to(self.clock.now(), CpuId(p), target);
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
        if self.vms[vm].sync.locks.acquire(l, t, reads) {
            return false;
        }
        self.vms[vm].tasks[t as usize].wait = Wait::Lock;
        self.tally(vm, Count::LockSleeps, 1);
        self.guest_sleep(v, t, None)
    }

    /// A task releases a sleeping lock: those are woken who have it now.
    pub(crate) fn release(&mut self, v: u32, t: u32, l: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let woken = self.vms[vm].sync.locks.let_go(l, t);
        woken.into_iter().for_each(|t| self.guest_wake(v, t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_ends_at_what_comes_first() {
        let mut spin = SpinVcpu::default();
        spin.loaded(50);
        assert_eq!((spin.spell(None, false), spin.spell), (UNBOUNDED, Spell::Open));
        assert_eq!((spin.spell(Some(0), false), spin.spell), (1, Spell::Threshold));
        assert_eq!((spin.spell(Some(40), true), spin.spell), (40, Spell::Threshold));
        assert_eq!((spin.spell(Some(60), true), spin.spell), (50, Spell::Window));
        spin.widen(2);
        assert_eq!(spin.spell(None, true), 100);
        spin.widen(Ns::from(u32::MAX));
        assert_eq!(spin.spell(None, true), SpinVirt::PLE_MAX_NS);
    }

    #[test]
    fn one_kick_is_enough_for_a_halt() {
        let mut spin = SpinVcpu { parks: true, ..SpinVcpu::default() };
        assert_eq!([spin.needs_kick(), spin.needs_kick()], [true, false]);
        assert!(spin.unparks());
        spin.parks = true;
        assert!(spin.needs_kick(), "it halts again");
    }

    #[test]
    fn one_that_spun_itself_is_yielded_to_every_other_time() {
        let mut spin = SpinVcpu { in_loop: true, ..SpinVcpu::default() };
        let turns: Vec<bool> = (0..4).map(|_| spin.takes_turn()).collect();
        assert_eq!(turns, [false, true, false, true]);
        spin.loaded(1);
        assert!(spin.takes_turn() && spin.takes_turn());
    }

    #[test]
    fn rules_say_to_whom_a_spinner_yields() {
        let rules =
            |in_kernel, interrupted| Candidates { in_kernel, interrupted, queue_heads: false };
        let woken = SpinVcpu::default();
        let preempted = SpinVcpu { preempted: true, ..woken };
        let may = |spin: SpinVcpu, rules, state: (bool, bool)| {
            spin.may_be_yielded_to(rules, state.0, state.1)
        };
        assert!(may(preempted, rules(false, false), (false, false)));
        assert!(!may(preempted, rules(true, false), (false, true)));
        assert!(may(preempted, rules(true, false), (true, false)));
        assert!(may(preempted, rules(true, true), (false, true)), "as good as in its kernel");
        assert!(!may(woken, rules(false, false), (true, true)));
        assert!(may(woken, rules(false, true), (false, false)));
    }
}
