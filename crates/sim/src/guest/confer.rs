//! How waiters for a spinlock of a guest on POWER wait for vCPUs that are preempted (`arch/powerpc/lib/qspinlock.c`).
//!
//! If the vCPU of the lock's holder, or of the waiter before it in line, has no pCPU, a waiter confers its time to that
//! vCPU by a hypercall. Otherwise it spins. The lock is not handed to the head of the line: a task that arrives while
//! the head has no pCPU, and finds the lock free, takes it.
//!
//! Left out: newcomers try to take the lock some 30 times before they get in line, and a head that has looked 256 times
//! in vain stops them.

use crate::attribution::track::NONE;
use crate::guest::exit::Exit;
use crate::guest::spin_vcpu::Spin;
use crate::world::World;

impl World<'_> {
    /// The current task of a vCPU spins: true if it will see that a vCPU that it waits for has no pCPU.
    pub(crate) fn sees_away(&mut self, v: u32, t: u32) -> bool {
        let to = self.waits_for(v, t);
        if to.is_none() {
            self.stops_conferring(v);
        }
        to != self.vcpus[v as usize].spin.confers_to
    }

    /// A vCPU has seen that one that it waits for has no pCPU.
    pub(crate) fn asks_to_confer(&mut self, v: u32, t: u32) {
        if let Some(to) = self.waits_for(v, t) {
            self.vcpus[v as usize].exits.push_back(Exit::Confer(to));
        }
    }

    /// The vCPU without a pCPU that a task waits for at a spinlock.
    fn waits_for(&self, v: u32, t: u32) -> Option<u32> {
        let vm = self.vcpus[v as usize].vm as usize;
        let sync = &self.vms[vm].sync;
        let Spin::Lock(l) = self.vms[vm].tasks[t as usize].spin else { return None };
        let waited_for = [sync.locks.holder(l), sync.locks.before(l, t)];
        let mut homes = waited_for.into_iter().flatten().map(|other| self.home_of(vm, other));
        homes.find(|&v| self.vcpus[v as usize].pcpu == NONE)
    }

    /// The hypercall: a vCPU confers its time to another one until it stops waiting for it.
    pub(crate) fn on_confer(&mut self, v: u32, to: u32) {
        self.vcpus[v as usize].spin.confers_to = Some(to);
        self.host.confer(self.clock.now(), self.thread_of(v), Some(self.thread_of(to)));
        self.host_notes();
    }

    /// A vCPU has other things to do than to wait for one to which it confers its time.
    pub(crate) fn stops_conferring(&mut self, v: u32) {
        if self.vcpus[v as usize].spin.confers_to.take().is_some() {
            self.host.confer(self.clock.now(), self.thread_of(v), None);
        }
    }

    /// A vCPU has lost or got a pCPU: waiters for its task's spinlocks see it, if they spin now.
    pub(crate) fn waiters_see(&mut self, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        let (vm, t) = (vcpu.vm as usize, vcpu.current);
        if t == NONE {
            return;
        }
        let work = &self.vms[vm].tasks[t as usize];
        let mut watch = Vec::new();
        if let Spin::Lock(l) = work.spin {
            let locks = &mut self.vms[vm].sync.locks;
            if vcpu.pcpu == NONE {
                locks.halts(l, t);
            }
            watch.extend(locks.after(l, t));
        }
        if self.vms[vm].tasks[t as usize].holds > 0 {
            watch.extend(self.vms[vm].sync.locks.waiters_of(t));
        }
        for other in watch {
            if self.spins_now(vm, other) {
                self.begin_spin_again(self.home_of(vm, other), other);
            }
        }
    }
}
