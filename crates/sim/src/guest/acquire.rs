//! How a guest's tasks take sleeping locks: they spin while this is likely to succeed, and sleep otherwise.
//!
//! A task that spins gives up when the holder does not run on its vCPU any more, when its own vCPU is to run
//! another task, or when a lock is read for too long. The guest may also know that a vCPU has lost its pCPU
//! (`vcpu_is_preempted`). Whatever ends a wait, the task asks for the lock once more when it runs.

use vcoop_model::plan::{LockKind, Mode};
use vcoop_model::profile::CostKey;

use crate::guest::sleeping_lock::{Acquired, Owner, SpinsOn};
use crate::guest::spin_vcpu::Spin;
use crate::guest::vm_sync::Count;
use crate::machine::Wait;
use crate::program::Op;
use crate::world::World;

impl World<'_> {
    /// A task takes a sleeping lock, or waits for it; true if the vCPU is busy with the task's going to sleep.
    pub(crate) fn acquire(&mut self, v: u32, t: u32, l: u32, kind: LockKind) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let (vm, now) = (vcpu.vm as usize, self.clock.now());
        let may_spin = !vcpu.resched && self.is_worth_a_spin(vm, l);
        let turn = self.vms[vm].sync.sleeping.acquire(l, t, kind, now, may_spin);
        if turn == Acquired::Has {
            self.writes_word(v, t, l);
            return false;
        }
        let work = &mut self.vms[vm].tasks[t as usize];
        work.hold(Op::Acquire { lock: l, kind });
        if turn == Acquired::Spins {
            work.mode = Mode::Kernel;
            self.spin(vm, t, Spin::Sleeping(l));
            return false;
        }
        work.wait = Wait::Lock;
        self.tally(vm, Count::LockSleeps, 1);
        // Only a futex is asked for by a system call.
        let key = if kind == LockKind::Futex { CostKey::GuestSleep } else { CostKey::Block };
        self.guest_sleep(v, t, None, key)
    }

    /// If the lock is a semaphore, a task writes its word (`down_read` and `up_read` of `kernel/locking/rwsem.c` add to
    /// it), and goes on when its pCPU has had the cache line.
    fn writes_word(&mut self, v: u32, t: u32, l: u32) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, p, now) = (vcpu.vm as usize, vcpu.pcpu, self.clock.now());
        let Some(&mut line) = self.vms[vm].sync.sleeping.word(l) else { return };
        let transfer = line.last_writer().map_or(0, |from| self.line(from));
        let word = self.vms[vm].sync.sleeping.word(l);
        let ns = word.map_or(0, |line| line.write(p, now, transfer));
        if ns > 0 {
            let work = &mut self.vms[vm].tasks[t as usize];
            work.left = ns;
            if work.holds == 0 {
                work.mode = Mode::Kernel;
            }
        }
    }

    /// A task releases a sleeping lock.
    pub(crate) fn release(&mut self, v: u32, t: u32, l: u32) {
        self.writes_word(v, t, l);
        let (vm, now) = (self.vcpus[v as usize].vm as usize, self.clock.now());
        let mut locks = std::mem::take(&mut self.vms[vm].sync.sleeping);
        let told = locks.release(l, t, now, |other| self.spins_now(vm, other));
        self.vms[vm].sync.sleeping = locks;
        for other in told {
            let work = &self.vms[vm].tasks[other as usize];
            if work.spin != Spin::No {
                self.spin_ends(vm, other);
            } else if work.wait == Wait::Lock {
                self.guest_wake(v, other);
            }
        }
    }

    /// Whether the holder of a sleeping lock will probably release it soon.
    fn is_worth_a_spin(&self, vm: usize, l: u32) -> bool {
        match self.vms[vm].sync.sleeping.owner(l) {
            Owner::Nobody | Owner::Readers => true,
            Owner::SlowReaders => false,
            Owner::Task(owner) => {
                let home = self.home_of(vm, owner);
                self.vcpus[home as usize].current == owner && !self.is_known_to_be_away(vm, owner)
            }
        }
    }

    /// Whether the guest knows that the vCPU of a task has no pCPU.
    fn is_known_to_be_away(&self, vm: usize, t: u32) -> bool {
        self.vms[vm].sync.spin.sees_preempted() && self.is_told_away(self.home_of(vm, t))
    }

    /// The current task of a vCPU spins for a sleeping lock: whether to go on. If not, it asks for the lock once more.
    pub(crate) fn spins_on(&mut self, v: u32, t: u32, l: u32) -> bool {
        let vcpu = &self.vcpus[v as usize];
        let (vm, resched) = (vcpu.vm as usize, vcpu.resched);
        let goes_on = match self.vms[vm].sync.sleeping.sees(l, t) {
            Some(SpinsOn::Lock) => self.is_worth_a_spin(vm, l),
            Some(SpinsOn::Before(other)) => !self.is_known_to_be_away(vm, other),
            None => false,
        };
        if goes_on && !resched {
            return true;
        }
        self.stops_spinning(vm, t, false);
        false
    }

    /// A task stops spinning for a sleeping lock. `slow`: readers have held it for too long.
    pub(crate) fn stops_spinning(&mut self, vm: usize, t: u32, slow: bool) {
        let Spin::Sleeping(l) = self.vms[vm].tasks[t as usize].spin else { return };
        let now = self.clock.now();
        let locks = &mut self.vms[vm].sync.sleeping;
        let behind = locks.behind(l, t);
        locks.stops_spinning(l, t, now, slow);
        self.spin_ends(vm, t);
        if let Some(behind) = behind {
            self.looks_again(vm, behind, l);
        }
    }

    /// The state that a task spinning for a sleeping lock watches has changed.
    fn looks_again(&mut self, vm: usize, t: u32, l: u32) {
        if !self.spins_now(vm, t) {
            return;
        }
        let v = self.home_of(vm, t);
        if self.spins_on(v, t, l) {
            self.begin_spin_again(v, t);
        }
    }

    /// A task has left its vCPU, or the guest knows that the vCPU has no pCPU: tasks that spin for a lock of it stop.
    pub(crate) fn holder_stops(&mut self, vm: usize, t: u32) {
        for other in self.vms[vm].sync.sleeping.watchers(t) {
            if self.spins_now(vm, other) {
                self.stops_spinning(vm, other, false);
            }
        }
    }

    /// The guest knows that the vCPU of its current task has lost its pCPU.
    pub(crate) fn is_preempted(&mut self, vm: usize, t: u32) {
        self.holder_stops(vm, t);
        if let Spin::Sleeping(l) = self.vms[vm].tasks[t as usize].spin
            && let Some(behind) = self.vms[vm].sync.sleeping.behind(l, t)
        {
            self.looks_again(vm, behind, l);
        }
    }
}
