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
            let cpu = self.vcpus[v as usize].cpu;
            let ticks = self.vcpus[v as usize].timers.has(TimerFor::Tick);
            if !ticks && self.vms[m].level.tick_needed(cpu) {
                let next = self.vms[m].ticks.after(cpu.0, self.clock.now());
                self.vcpus[v as usize].timers.set(TimerFor::Tick, next);
                // Its kernel programs it.
                self.cpu = self.vcpus[v as usize].home;
                self.inject(v, vector::IPI, Injection::Ipi);
            }
        }
        self.cpu = own;
    }

    /// As [`queue_grew`](Self::queue_grew) for vCPU `to`, by code on vCPU `v` of its guest.
    #[cold]
    pub(crate) fn guest_queue_grew(&mut self, v: u32, to: u32) {
        let vcpu = &self.vcpus[to as usize];
        let (vm, cpu) = (vcpu.vm as usize, vcpu.cpu);
        let ticks = vcpu.timers.has(TimerFor::Tick);
        if ticks || !self.vms[vm].level.tick_needed(cpu) {
            return;
        }
        let next = self.vms[vm].ticks.after(cpu.0, self.clock.now());
        self.vcpus[to as usize].timers.set(TimerFor::Tick, next);
        if to == v {
            self.guest_program(v);
        } else {
            self.resched_ipi(v, to);
        }
    }
}
