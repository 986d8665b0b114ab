//! How a guest's vCPUs spin for its locks, and how the host reacts.
//!
//! A task that spins or holds a spinlock cannot be preempted by its guest, but its vCPU can be by the host:
//!
//! ```text
//! Spins --granted--> Holds
//!   |  ^                ^
//!   |  +--- window used up (PLE exit): the host yields to a preempted vCPU of the VM
//!   |                   |
//!   +--- pv: threshold used up, or who is before it halts: Halted --kicked, at the head of the queue, lock free--+
//!        (not for those who came while the head of the queue was halted: they spin on, and take the lock first)
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use vcoop_model::plan::Mode;
use vcoop_model::plan::virt::{PreemptedReport, SpinLocks, SpinVirt};
use vcoop_model::profile::CostKey;
use vcoop_policy::GuestEvent;
use vcoop_sched::{CpuId, DirectedYield, EntId, LeaveReason};

use crate::attribution::track::{NONE, State};
use crate::guest::exit::Exit;
use crate::guest::spin_vcpu::{Spin, SpinEnd, UNBOUNDED, YieldTarget};
use crate::guest::vm_sync::Count;
use crate::machine::{GuestSegment, Vm};
use crate::queue::Ns;
use crate::world::World;

/// `kvm_vcpu_on_spin` stops after this many candidates that do not profit from a yield.
const TRIES: i32 = 3;

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
        let sync = &mut self.vms[vm].sync;
        if sync.locks.take(l, t, sync.spin.locks) {
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

    /// A task releases a spinlock: the next waiter gets it, or is kicked out of its halt.
    pub(crate) fn unlock(&mut self, v: u32, t: u32, l: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let work = &mut self.vms[vm].tasks[t as usize];
        work.holds = work.holds.saturating_sub(1);
        work.irqs_off &= work.holds > 0;
        let head = self.vms[vm].sync.locks.release(l, t);
        let locks = &self.vms[vm].sync.locks;
        if !locks.is_free(l) {
            return;
        }
        // A waiter without a pCPU finds it free later, unless another one took it first.
        let faster = locks.outside(l).find(|&other| self.spins_now(vm, other));
        if let Some(faster) = faster {
            self.takes_free(vm, l, faster);
        }
        let Some(head) = head else { return };
        let home = self.home_of(vm, head);
        if self.vcpus[home as usize].spin.parks() {
            if self.vcpus[home as usize].spin.needs_kick() {
                self.tally(vm, Count::PvKicks, 1);
                self.vcpus[v as usize].exits.push_back(Exit::Kick(home));
            }
            return;
        }
        let sync = &self.vms[vm].sync;
        // A head that has not run since it became the head finds the lock free when it runs, unless another task took
        // it.
        if sync.spin.locks.in_order() || sync.locks.is_claimed(l) {
            self.hand_over(vm, l, head);
        }
    }

    /// The head of a spinlock's queue gets the lock. The next waiter claims it, if it spins now.
    fn hand_over(&mut self, vm: usize, l: u32, head: u32) {
        let (next, joined) = self.vms[vm].sync.locks.hand_over(l);
        self.join(vm, joined);
        if let Some(next) = next
            && self.spins_now(vm, next)
        {
            self.claims(vm, l, next);
        }
        self.spin_ends(vm, head);
    }

    /// A task spins for a spinlock, and claims it if it is the head of the queue.
    fn claims(&mut self, vm: usize, l: u32, t: u32) {
        let joined = self.vms[vm].sync.locks.spins(l, t);
        self.join(vm, joined);
    }

    /// Tasks that have spun outside of a lock's queue have joined it: their threshold counts from now.
    fn join(&mut self, vm: usize, joined: VecDeque<u32>) {
        for t in joined {
            self.vms[vm].tasks[t as usize].spun = 0;
            if self.spins_now(vm, t) {
                self.begin_spin_again(self.home_of(vm, t), t);
            }
        }
    }

    /// A task that spins for a free lock gets it, wherever it waited.
    fn takes_free(&mut self, vm: usize, l: u32, t: u32) {
        self.vms[vm].sync.locks.hand_to(l, t);
        self.spin_ends(vm, t);
    }

    /// The vCPU on whose queue a task is.
    pub(crate) fn home_of(&self, vm: usize, t: u32) -> u32 {
        self.vms[vm].first + self.vms[vm].level.cpu_of(EntId(t)).0
    }

    /// Whether the vCPU of a task that spins does so at this moment: in guest mode, and in no handler.
    pub(crate) fn spins_now(&self, vm: usize, t: u32) -> bool {
        let vcpu = &self.vcpus[self.home_of(vm, t) as usize];
        vcpu.current == t && vcpu.segment == GuestSegment::User && self.is_in_guest(vcpu)
    }

    /// What a task spins for has come: it goes on, when its vCPU runs.
    pub(crate) fn spin_ends(&mut self, vm: usize, t: u32) {
        let v = self.home_of(vm, t);
        let spins = self.spins_now(vm, t);
        if spins {
            self.stops_conferring(v);
            self.stop_guest(self.vcpus[v as usize].pcpu);
        }
        // It sees the change only when it has the cache line. A timer's handler ran on its own CPU.
        let own = matches!(self.vms[vm].tasks[t as usize].spin, Spin::Timer);
        let line = if own { 0 } else { self.costs.of(CostKey::CacheLine) };
        let work = &mut self.vms[vm].tasks[t as usize];
        work.spin = Spin::No;
        work.left = line;
        let ns = work.needs();
        if spins {
            self.guest_begin(v, GuestSegment::User, ns);
        }
    }

    /// The current task of a vCPU spins. Returns for how long it may, or `None` if it need not any more.
    pub(crate) fn begin_spin(&mut self, v: u32, t: u32) -> Option<Ns> {
        let vm = self.vcpus[v as usize].vm as usize;
        let spin = self.vms[vm].tasks[t as usize].spin;
        if self.vcpus[v as usize].spin.unparks() {
            // The threshold counts anew.
            self.vms[vm].tasks[t as usize].spun = 0;
        }
        if let Spin::Lock(l) = spin {
            let sync = &self.vms[vm].sync;
            if sync.locks.is_free(l) && sync.locks.is_outside(l, t) {
                self.takes_free(vm, l, t);
                return None;
            }
            if sync.locks.is_next(l, t) {
                self.hand_over(vm, l, t);
                return None;
            }
            self.claims(vm, l, t);
        }
        if let Spin::Sleeping(l) = spin
            && !self.spins_on(v, t, l)
        {
            return None;
        }
        if self.vcpus[v as usize].ipis.takes_yield() && self.wants_yield(v) {
            return None;
        }
        Some(self.spell_begins(v, t))
    }

    /// For how long the current task of a vCPU spins, unless something ends that.
    fn spell_begins(&mut self, v: u32, t: u32) -> Ns {
        let vm = self.vcpus[v as usize].vm as usize;
        let away = self.vms[vm].sync.spin.locks.confers() && self.sees_away(v, t);
        let sync = &self.vms[vm].sync;
        let work = &self.vms[vm].tasks[t as usize];
        let limit = match work.spin {
            Spin::Lock(_) if away => Some((self.plan.host.costs.cache_line_ns, SpinEnd::Away)),
            Spin::Lock(l) if sync.spin.locks.halts() && !sync.locks.is_outside(l, t) => {
                Some((self.pv_threshold(vm, t, l, work.spun), SpinEnd::Threshold))
            }
            Spin::Sleeping(l) => {
                sync.sleeping.patience(l, t, work.spun).map(|ns| (ns, SpinEnd::Patience))
            }
            Spin::Barrier => {
                let left = sync.barriers.spin_ns(work.peers).saturating_sub(work.spun);
                Some((left, SpinEnd::Patience))
            }
            _ => None,
        };
        // PAUSE loops exit in the kernel only.
        let exits = sync.ple && !matches!(work.spin, Spin::Timer | Spin::Barrier);
        self.vcpus[v as usize].spin.spell(limit, exits)
    }

    /// How much longer a task that has spun this long for a pv lock spins before its vCPU halts: at most until it
    /// checks whether the vCPU before it in line has halted (`pv_wait_early`), if that has.
    fn pv_threshold(&self, vm: usize, t: u32, l: u32, spun: Ns) -> Ns {
        let sync = &self.vms[vm].sync;
        let look = match self.has_reason_to_halt_early(vm, t, l) {
            true => spun.next_multiple_of(sync.pv_look_ns),
            false => Ns::MAX,
        };
        sync.pv_threshold_ns.min(look).saturating_sub(spun)
    }

    /// Whether the vCPU before a task's in line for a pv lock has halted, or, in guests that check it, is preempted. A
    /// waiter with a ticket does not know the one before it.
    fn has_reason_to_halt_early(&self, vm: usize, t: u32, l: u32) -> bool {
        let sync = &self.vms[vm].sync;
        let before = (sync.spin.locks == SpinLocks::Pv).then(|| sync.locks.before(l, t)).flatten();
        before.is_some_and(|before| {
            let before = self.home_of(vm, before);
            self.vcpus[before as usize].spin.parks()
                || sync.spin.early_if_preempted && self.is_told_away(before)
        })
    }

    /// Whether the guest is told that a vCPU is preempted.
    pub(crate) fn is_told_away(&self, v: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        match self.vms[vcpu.vm as usize].sync.spin.told {
            PreemptedReport::Interrupted => vcpu.spin.is_told(),
            PreemptedReport::Away => vcpu.pcpu == NONE,
            PreemptedReport::Core => {
                let mut core = self.core_of(v);
                vcpu.pcpu == NONE && core.any(|v| self.vcpus[v as usize].spin.is_preempted())
            }
        }
    }

    /// The vCPUs that are threads of the same core in the guest, this one as well.
    fn core_of(&self, v: u32) -> Range<u32> {
        let vcpu = &self.vcpus[v as usize];
        let threads = self.plan.vms[vcpu.vm as usize].level.topology.threads_per_core;
        let first = v - vcpu.cpu.0 % threads;
        first..first + threads
    }

    /// Books the reason for which a spinning task keeps its vCPU busy.
    pub(crate) fn spin_state(&mut self, v: u32, spin: Spin) {
        let state = match spin {
            Spin::No | Spin::Timer => State::Run,
            Spin::Lock(_) | Spin::Sleeping(_) | Spin::Barrier => State::Spin,
            Spin::Calls => State::CallWait,
        };
        self.state(self.vcpus[v as usize].track, state);
    }

    /// A period of spinning is over.
    pub(crate) fn spin_period_ends(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let (vm, t) = (vcpu.vm as usize, vcpu.current);
        match vcpu.spin.spell_ends() {
            SpinEnd::Open => {}
            SpinEnd::Window => vcpu.exits.push_back(Exit::Pause),
            SpinEnd::Threshold => {
                vcpu.exits.push_back(Exit::Halt);
                self.tally(vm, Count::PvHalts, 1);
                self.halts_in_line(vm, t);
            }
            SpinEnd::Away => self.asks_to_confer(v, t),
            SpinEnd::Patience if self.vms[vm].tasks[t as usize].spin == Spin::Barrier => {
                self.spin_ends(vm, t);
            }
            SpinEnd::Patience => self.stops_spinning(vm, t, true),
        }
    }

    /// The vCPU of a task halts for a lock: that of the next waiter sees it, if it spins now.
    fn halts_in_line(&mut self, vm: usize, t: u32) {
        let Vm { tasks, sync, .. } = &mut self.vms[vm];
        let spin = tasks[t as usize].spin;
        let Spin::Lock(l) = spin else { return };
        sync.locks.halts(l, t);
        self.next_looks(vm, l, t);
    }

    /// The state that the next waiter for a pv lock watches has changed: it sees that, if it spins now.
    fn next_looks(&mut self, vm: usize, l: u32, t: u32) {
        let next = self.vms[vm].sync.locks.after(l, t);
        if let Some(next) = next.filter(|&next| self.spins_now(vm, next)) {
            self.begin_spin_again(self.home_of(vm, next), next);
        }
    }

    /// The condition that ends a task's present spinning has changed.
    pub(crate) fn begin_spin_again(&mut self, v: u32, t: u32) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, p) = (vcpu.vm as usize, vcpu.pcpu);
        self.stop_guest(p);
        let ns = self.spell_begins(v, t);
        self.guest_begin(v, GuestSegment::User, ns);
        self.spin_state(v, self.vms[vm].tasks[t as usize].spin);
    }

    fn kick(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.spin.kick();
        if vcpu.halted {
            self.unhalt(v, self.waker());
        } else if vcpu.polling {
            // KVM polls at any HLT, and a kick is an event to it (`kvm_vcpu_has_events`).
            let p = vcpu.pcpu;
            self.poll_sees(p);
        }
    }

    /// The vCPU is loaded: resets the state of its absence.
    pub(crate) fn spin_loaded(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let vm = &self.vms[vcpu.vm as usize];
        vcpu.spin.loaded(self.clock.now(), vm.sync.ple_window_ns);
        if !vm.spins {
            return;
        }
        self.yield_returns(v);
        self.looks_at_vcpu(v);
    }

    /// A vCPU that yielded while spinning goes on. Only now it records to whom it yielded (`yield_to` calls the
    /// scheduler before it returns to `kvm_vcpu_on_spin`), so vCPUs that spin meanwhile start their search where it
    /// did.
    fn yield_returns(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        if let Some(to) = vcpu.spin.leaves_loop() {
            self.vms[vcpu.vm as usize].sync.yielded_to(to);
        }
    }

    /// In guests that check it, the next waiter for a pv lock behind the task of a vCPU sees whether that vCPU is
    /// preempted.
    fn looks_at_vcpu(&mut self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, t) = (vcpu.vm as usize, vcpu.current);
        if t != NONE
            && self.vms[vm].sync.spin.early_if_preempted
            && let Spin::Lock(l) = self.vms[vm].tasks[t as usize].spin
        {
            self.next_looks(vm, l, t);
        }
    }

    /// A vCPU is switched in or out: wake-ups of its guest see whether the guest is told that it is preempted.
    pub(crate) fn guest_sees_away(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let SpinVirt { told, locks, .. } = self.vms[vm].sync.spin;
        if self.vms[vm].sync.spin.sees_preempted() {
            let changed = if told == PreemptedReport::Core { self.core_of(v) } else { v..v + 1 };
            for v in changed {
                let away = self.is_told_away(v);
                self.vms[vm].level.set_away(self.vcpus[v as usize].cpu, away);
            }
        }
        if locks.confers() {
            self.waiters_see(v);
        }
    }

    /// The vCPU has lost its pCPU while runnable.
    pub(crate) fn spin_preempted(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        // KVM tells the guest only if the last exit was an interrupt of the host (`kvm_steal_time_set_preempted`).
        let told = usize::from(vcpu.exit_why) == Exit::Interrupt.index();
        vcpu.spin.preempted(self.clock.now(), told);
        if !self.vms[vcpu.vm as usize].spins {
            return;
        }
        let (vm, t) = (vcpu.vm as usize, vcpu.current);
        if t == NONE || self.vms[vm].sync.locks.is_empty() {
            return;
        }
        if self.vms[vm].sync.spin.sees_preempted() && self.is_told_away(v) {
            self.is_preempted(vm, t);
            self.looks_at_vcpu(v);
        }
        let work = &self.vms[vm].tasks[t as usize];
        match work.spin {
            Spin::Lock(_) => self.tally(vm, Count::WaiterPreempted, 1),
            _ if work.holds > 0 => self.tally(vm, Count::HolderPreempted, 1),
            _ => {}
        }
    }

    /// A PLE exit: yields to a vCPU of the VM that was preempted, by the rules of `kvm_vcpu_on_spin`. True if it did.
    /// The search reads a cache line of each vCPU that it visits (`ready` and `preempted`), and waits for those written
    /// since the last search.
    pub(crate) fn on_spin(&mut self, p: u32, v: u32) -> bool {
        if self.host.credit1().is_some() {
            // Xen's window does not grow, and its vCPU yields to the next one (`EXIT_REASON_PAUSE_INSTRUCTION` of
            // `xen/arch/x86/hvm/vmx/vmx.c`).
            self.reschedule(p, LeaveReason::Yield);
            return true;
        }
        let vm = self.vcpus[v as usize].vm as usize;
        let sync = &self.vms[vm].sync;
        let (grow, longest) = (Ns::from(sync.spin.ple_grow), sync.ple_max_ns);
        let ipi = sync.spin.candidates.ipi;
        self.vcpus[v as usize].spin.widen(grow, longest);
        let since = self.vcpus[v as usize].spin.searches(self.clock.now());
        let mut tries = TRIES;
        self.search_and_yield(p, v, Some(since), &mut tries)
            || ipi && self.search_and_yield(p, v, None, &mut tries)
    }

    /// One search for a vCPU to yield to. It ends when `tries` gets to 0. `since`: when the vCPU last searched; `None`: the
    /// second search, which takes any preempted vCPU and waits for no cache line. True if it yielded.
    fn search_and_yield(&mut self, p: u32, v: u32, since: Option<Ns>, tries: &mut i32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let (first, n) = (self.vms[vm].first, self.plan.vms[vm].level.topology.cpus());
        let posted = self.vms[vm].virt.posted;
        let sync = &self.vms[vm].sync;
        let rules = sync.spin.candidates;
        for c in sync.candidates(n).map(|i| first + i) {
            if c == v {
                continue;
            }
            if since.is_some_and(|at| self.vcpus[c as usize].spin.was_switched_since(at)) {
                let line = self.line(self.vcpus[c as usize].home);
                self.pay(line);
            }
            if !self.is_ready(c) {
                continue;
            }
            // KVM looks at posted interrupts only (`kvm_arch_dy_has_pending_interrupt`).
            let other = &self.vcpus[c as usize];
            let interrupted = posted && (other.irr != 0 || !other.posts.is_empty());
            let in_kernel = self.in_kernel(c);
            let awaited = self.vcpus[v as usize].spin.awaits(c - first, self.clock.now());
            let seen = YieldTarget { in_kernel, interrupted, awaited, relaxed: since.is_none() };
            let other = &mut self.vcpus[c as usize].spin;
            if !other.may_be_yielded_to(rules, seen) || !other.takes_turn() {
                continue;
            }
            match self.yield_to(p, vm, c) {
                DirectedYield::Done => {
                    self.vcpus[v as usize].spin.yielded(c - first);
                    if self.vcpus[v as usize].pcpu == p {
                        // The scheduler chose it again.
                        self.yield_returns(v);
                    }
                    return true;
                }
                DirectedYield::Alone => {
                    // As in the patches, a second search that begins without tries has no end to them.
                    *tries -= 1;
                    if *tries == 0 {
                        return false;
                    }
                }
                DirectedYield::Refused => {}
            }
        }
        false
    }

    /// KVM delivers an IPI to the only vCPU that it is for.
    pub(crate) fn ipi_delivered(&mut self, v: u32, to: u32) {
        let first = self.vms[self.vcpus[v as usize].vm as usize].first;
        if v != to {
            self.vcpus[v as usize].spin.sends_ipi(to - first, self.clock.now());
            self.vcpus[to as usize].spin.is_sent_ipi(v - first);
        }
    }

    /// KVM sees that a vCPU ends an interrupt.
    pub(crate) fn irq_ended(&mut self, v: u32) {
        let first = self.vms[self.vcpus[v as usize].vm as usize].first;
        if let Some(sender) = self.vcpus[v as usize].spin.ends_irq() {
            let (sender, now) = (&mut self.vcpus[(first + sender) as usize].spin, self.clock.now());
            if sender.awaits(v - first, now) {
                sender.is_answered();
            }
        }
    }

    /// The hypercall that kicks the vCPU at the head of a lock's queue: true if the kicker yielded to it.
    pub(crate) fn on_kick(&mut self, p: u32, to: u32) -> bool {
        self.kick(to);
        let vm = &self.vms[self.vcpus[to as usize].vm as usize];
        let yields = vm.sync.spin.candidates.queue_heads;
        yields && self.on_yield(p, to)
    }

    /// A hypercall that asks to yield to a vCPU. True if it did (`kvm_sched_yield`: since 5.13 not if no other thread
    /// wants the pCPU).
    pub(crate) fn on_yield(&mut self, p: u32, to: u32) -> bool {
        let vm = self.vcpus[to as usize].vm as usize;
        let alone = self.host.has_single(CpuId(p));
        !(alone && self.vms[vm].sync.spin.candidates.not_alone)
            && self.is_ready(to)
            && self.yield_to(p, vm, to) == DirectedYield::Done
    }

    fn yield_to(&mut self, p: u32, vm: usize, to: u32) -> DirectedYield {
        self.tally(vm, Count::YieldsTried, 1);
        let target = self.thread_of(to);
        // The lock of the other run queue.
        let there = self.host.cpu_of(target).0;
        if there != p {
            let line = self.line(there);
            self.pay(line);
        }
        let done = self.host.yield_to(self.clock.now(), CpuId(p), target);
        self.host_notes();
        if done == DirectedYield::Done {
            self.tally(vm, Count::YieldsWon, 1);
            self.reschedule(p, LeaveReason::Yield);
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
}
