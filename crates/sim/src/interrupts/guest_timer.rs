//! Timers of a guest: its tick, its sleeps, and the one deadline that the hardware has.

use vcoop_model::plan::virt::TimerMode;
use vcoop_model::profile::CostKey;

use crate::attribution::track::NONE;
use crate::guest::exit::Exit;
use crate::guest::spin_vcpu::Spin;
use crate::interrupts::guest_timers::TimerFor;
use crate::machine::Wait;
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// Fires every guest timer that is due on this vCPU.
    pub(crate) fn guest_timer(&mut self, v: u32) {
        self.vcpus[v as usize].programmed = Ns::MAX;
        while let Some(what) = self.vcpus[v as usize].timers.pop_due(self.clock.now()) {
            let vcpu = &mut self.vcpus[v as usize];
            let (vm, cpu) = (vcpu.vm, vcpu.cpu);
            match what {
                TimerFor::Tick => {
                    vcpu.extra += self.costs.of(CostKey::GuestTick);
                    vcpu.eager |= vcpu.resched;
                    let next = self.vms[vm as usize].ticks.after(cpu.0, self.clock.now());
                    self.vms[vm as usize].level.tick(self.clock.now(), cpu);
                    self.guest_notes(v);
                    if !self.vms[vm as usize].nohz || self.vms[vm as usize].level.tick_needed(cpu) {
                        self.vcpus[v as usize].timers.set(TimerFor::Tick, next);
                    }
                }
                TimerFor::Level => {
                    self.vms[vm as usize].level.on_deadline(self.clock.now(), cpu);
                    self.guest_notes(v);
                }
                TimerFor::Task(t) => {
                    // It became due while the handler ran: its own interrupt would be taken now.
                    self.timer_interrupt_came(v, t);
                    let work = &self.vms[vm as usize].tasks[t as usize];
                    let (wait, sampler) = (work.wait, work.sampler);
                    if work.spin == Spin::Timer {
                        self.busy_until_now(v, t, sampler);
                        continue;
                    }
                    if matches!(wait, Wait::Timer | Wait::Peer) {
                        self.guest_wake(v, t);
                    }
                }
            }
        }
        self.guest_program(v);
    }

    /// The handler of a vCPU's timer interrupt begins, which ends the samples of interrupts.
    pub(crate) fn timer_handler_entered(&mut self, v: u32) {
        let mut due = 0;
        while let Some(what) = self.vcpus[v as usize].timers.due(due, self.clock.now()) {
            if let TimerFor::Task(t) = what {
                self.timer_interrupt_came(v, t);
            }
            due += 1;
        }
    }

    /// The interrupt of a task's timer arrives, on vCPU `v`.
    fn timer_interrupt_came(&mut self, v: u32, t: u32) {
        let vcpu = &self.vcpus[v as usize];
        let work = &self.vms[vcpu.vm as usize].tasks[t as usize];
        let (sampler, probe) = (work.irq_sampler, work.irq_probe);
        if sampler != NONE {
            self.tracks.event(sampler, vcpu.track, self.clock.now());
            self.sample(sampler, probe);
        }
    }

    /// The interrupt for which a task kept its vCPU busy arrives, on vCPU `v`; the task may have been moved.
    fn busy_until_now(&mut self, v: u32, t: u32, sampler: u32) {
        let vm = self.vcpus[v as usize].vm as usize;
        if sampler != NONE {
            let home = self.home_of(vm, t);
            let track = self.vcpus[home as usize].track;
            self.tracks.event(sampler, track, self.clock.now());
        }
        self.spin_ends(vm, t);
    }

    /// Writes the deadline if the next timer differs from the programmed one: an MSR, which exits, or, if a
    /// housekeeping CPU watches it, a word of the shared page. (Not modelled: the doorbell that the lab's guest rings
    /// for a deadline before the next look.)
    pub(crate) fn guest_program(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let next = vcpu.timers.next();
        if next == vcpu.programmed {
            return;
        }
        let virt = &self.vms[vcpu.vm as usize].virt;
        if virt.mode == TimerMode::Periodic {
            return;
        }
        if virt.exitless() {
            self.arm_lapic(v);
        } else if !vcpu.exits.contains(&Exit::Timer) {
            vcpu.exits.push_back(Exit::Timer);
        }
    }
}
