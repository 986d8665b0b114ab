//! How a guest's tasks meet at barriers: they wait there until all tasks with their label have arrived.
//!
//! A waiting task spins in user mode for a while, as the runtimes of OpenMP do, where PAUSE loops do not exit. Then
//! it sleeps on a futex.

use vcoop_model::profile::CostKey;

use crate::guest::spin_vcpu::Spin;
use crate::machine::Wait;
use crate::program::Op;
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// A task comes to the barrier of its label: the last one lets all others go on.
    pub(crate) fn meet(&mut self, v: u32, t: u32, of: u32, spin_ns: Ns) {
        let vm = self.vcpus[v as usize].vm as usize;
        let barrier = self.vms[vm].tasks[t as usize].peers;
        if let Some(others) = self.vms[vm].sync.barriers.meet(barrier, t, of, spin_ns) {
            return others.into_iter().for_each(|other| self.barrier_opens(v, other));
        }
        self.vms[vm].tasks[t as usize].hold(Op::Pass);
        if spin_ns > 0 {
            self.spin(vm, t, Spin::Barrier);
        }
    }

    /// A task at a barrier goes on, or sleeps until all have come: true if the vCPU is busy with its going to sleep.
    pub(crate) fn pass(&mut self, v: u32, t: u32) -> bool {
        let vm = self.vcpus[v as usize].vm as usize;
        let barrier = self.vms[vm].tasks[t as usize].peers;
        if !self.vms[vm].sync.barriers.holds(barrier, t) {
            return false;
        }
        let work = &mut self.vms[vm].tasks[t as usize];
        work.hold(Op::Pass);
        work.wait = Wait::Barrier;
        self.guest_sleep(v, t, None, CostKey::GuestSleep)
    }

    /// All have come: a waiting task goes on. A task that is going to sleep checks before it does.
    fn barrier_opens(&mut self, v: u32, t: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        let work = &self.vms[vm].tasks[t as usize];
        if work.spin != Spin::No {
            self.spin_ends(vm, t);
        } else if work.wait == Wait::Barrier {
            self.guest_wake(v, t);
        }
    }
}
