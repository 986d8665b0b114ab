//! Full-nohz CPUs: no periodic tick while no tick could change who runs.
//!
//! As in Linux (`kernel/time/tick-sched.c`), the tick stops when it finds that it cannot change what runs. It
//! starts again when an entity joins the queue, and an IPI tells the CPU so (`tick_nohz_full_kick_cpu`). Timers
//! that are set on such a CPU fire on a housekeeping CPU (`get_nohz_timer_target`). Not modelled are what
//! housekeeping does once per second for each of these CPUs (`sched_tick_remote`), and what context tracking adds
//! to system calls and exits.

use vcoop_policy::Injection;

use crate::interrupts::guest_timers::TimerFor;
use crate::machine::vector;
use crate::world::World;

impl World<'_> {
    /// The queue of a pCPU grew, or the class of a thread changed.
    #[inline]
    pub(crate) fn queue_grew(&mut self, p: u32) {
        if self.ticks.grew(p, &self.host, &mut self.clock) {
            self.send_ipi(p);
        }
    }

    /// A guest avoids other vCPUs than before: their ticks start again, to push tasks off.
    pub(crate) fn mask_ticks(&mut self, vm: u32) {
        let m = vm as usize;
        let (first, own) = (self.vms[m].first, self.cpu);
        for v in first..first + self.plan.vms[m].level.topology.cpus() {
            if self.guest_tick_starts(v) {
                // Its kernel programs it.
                self.cpu = self.vcpus[v as usize].home;
                self.inject(v, vector::IPI, Injection::Ipi);
            }
        }
        self.cpu = own;
    }

    /// As [`queue_grew`](Self::queue_grew) for vCPU `to`, by code on vCPU `v` of its guest.
    #[inline]
    pub(crate) fn guest_queue_grew(&mut self, v: u32, to: u32) {
        if self.vms[self.vcpus[to as usize].vm as usize].nohz {
            self.full_queue_grew(v, to);
        }
    }

    #[cold]
    fn full_queue_grew(&mut self, v: u32, to: u32) {
        if !self.guest_tick_starts(to) {
            return;
        }
        if to == v {
            self.guest_program(v);
        } else {
            self.resched_ipi(v, to);
        }
    }

    /// Starts the tick of a vCPU if it is needed and off. Returns whether it did: the guest's kernel then programs it.
    #[inline(always)]
    pub(crate) fn guest_tick_starts(&mut self, v: u32) -> bool {
        let vcpu = &mut self.vcpus[v as usize];
        let (vm, cpu) = (&self.vms[vcpu.vm as usize], vcpu.cpu);
        let starts = !vcpu.timers.has(TimerFor::Tick) && vm.level.tick_needed(cpu);
        if starts {
            vcpu.timers.set(TimerFor::Tick, vm.ticks.after(cpu.0, self.clock.now()));
        }
        starts
    }
}
