//! What the Xen study does to the world: requests of storms, calls for their VMs, their start and login; views of
//! intervals; ratelimits.

use vcoop_model::plan::Target;
use vcoop_model::profile::CostKey;
use vcoop_policy::Injection;
use vcoop_sched::{CpuId, EntId, Waker};

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::guest::exit::Exit;
use crate::interrupts::guest_timers::TimerFor;
use crate::interrupts::lapic;
use crate::machine::{Irq, vector};
use crate::policy_driver::MASTER;
use crate::queue::Ns;
use crate::world::World;
use crate::xen::storm::{MilestoneReached, irq_vcpu};

impl World<'_> {
    /// The next batch of a storm is due: its request reaches the pCPU where it is looked at.
    pub(crate) fn storm_asks(&mut self, s: u32) {
        let Some((at, vm)) = self.storms.next_request(s) else { return };
        let thread = match at {
            Some(Target::Host(t)) => t,
            Some(at @ Target::Guest { vm, .. }) => {
                let v = self.vms[vm as usize].first + irq_vcpu(self.plan, at);
                self.vcpus[v as usize].thread
            }
            None => self.vcpus[self.vms[vm as usize].first as usize].thread,
        };
        let p = self.host.cpu_of(EntId(thread)).0;
        self.interrupt(p, Irq::Storm(s));
    }

    /// A batch of a storm begins, in an interrupt's handler.
    pub(crate) fn batch_begins(&mut self, s: u32) {
        for birth in self.storms.request(s, self.clock.now()) {
            self.build_goes_on(birth, None);
        }
    }

    /// The next call for a VM, or its start: in a handler of the host, or in guest mode of a vCPU.
    pub(crate) fn build_goes_on(&mut self, birth: u32, guest: Option<u32>) {
        let Some((client, server)) = self.storms.next_call(birth) else {
            return match guest {
                None => self.vm_starts(birth),
                Some(v) => self.vcpus[v as usize].exits.push_back(Exit::Start(birth)),
            };
        };
        // Answers from outside come where the calls to its neighbour come.
        let (server, nobody) = (self.server_at(server), self.tracks.on(NONE, self.clock.now()));
        let message = self.calls.call(client, server, None, nobody);
        match (guest, self.calls.receiver(message)) {
            (None, _) => self.send(message),
            (Some(v), Target::Guest { vm, .. }) if vm == self.vcpus[v as usize].vm => {
                self.deliver_to_guest(v, message);
            }
            (Some(v), _) => self.vcpus[v as usize].exits.push_back(Exit::Send(message)),
        }
    }

    /// VMStart, in host context: the vCPUs begin to run.
    pub(crate) fn vm_starts(&mut self, birth: u32) {
        let reached = self.storms.started(birth, self.clock.now());
        self.views_reached(reached);
        let vm = reached.vm;
        self.vms[vm as usize].started = true;
        let first = self.vms[vm as usize].first;
        for v in first..first + self.plan.vms[vm as usize].level.topology.cpus() {
            let vcpu = &mut self.vcpus[v as usize];
            // Its tasks' times count from now on.
            vcpu.timers.postpone(self.clock.now());
            let vm = &self.vms[vm as usize];
            match lapic::boots(vcpu, &vm.virt, &vm.ticks, self.clock.now()) {
                None => {}
                Some(at) if at <= self.clock.now() => {
                    self.inject(v, vector::TIMER, Injection::Timer)
                }
                Some(at) => self.clock.set(Event::Lapic(v), at),
            }
            if self.vcpus[v as usize].halted && self.vcpus[v as usize].irr != 0 {
                // A message came before.
                self.unhalt(v, Waker::default());
            }
        }
        self.devices.start(vm, &mut self.clock);
        self.storms.goes_on(reached, &mut self.clock);
    }

    /// The boot program of the VM around a vCPU is done; what waits for that starts.
    pub(crate) fn logged_in(&mut self, v: u32) {
        let vm = self.vcpus[v as usize].vm;
        let plan = &self.plan.vms[vm as usize];
        for (t, task) in (0..).zip(&plan.tasks).filter(|(_, task)| task.after_login) {
            if task.start_ns == 0 {
                self.guest_wake(v, t);
            } else {
                self.vcpus[v as usize]
                    .timers
                    .set(TimerFor::Task(t), self.clock.now() + task.start_ns);
                self.guest_program(v);
            }
        }
        let birth = self.vms[vm as usize].birth;
        if birth == NONE {
            return;
        }
        let reached = self.storms.logged_in(birth, self.clock.now());
        self.views_reached(reached);
        self.storms.goes_on(reached, &mut self.clock);
    }

    /// A VM of a storm has reached a milestone: interval views may begin.
    fn views_reached(&mut self, reached: MilestoneReached) {
        let first = self.vms[reached.vm as usize].first;
        let vcpus = first..first + self.plan.vms[reached.vm as usize].level.topology.cpus();
        let p = vcpus.map(|v| self.vcpus[v as usize].pcpu).find(|p| *p != NONE);
        let pcpus = &self.pcpus;
        self.views.reached(reached, p, |p| pcpus[p as usize].current, &mut self.clock);
    }

    /// A view's time has come: it begins, or it ends.
    pub(crate) fn view_turns(&mut self, i: u32) {
        let pcpus = &self.pcpus;
        self.views.turn(i, |p| pcpus[p as usize].current, &mut self.clock);
    }

    /// Another thread gets a pCPU.
    #[cold]
    pub(crate) fn views_switch(&mut self, p: u32, next: u32) {
        let vcpu = self.threads.get(next as usize).map_or(NONE, |thread| thread.vcpu);
        let vm = self.vcpus.get(vcpu as usize).map_or(NONE, |vcpu| vcpu.vm);
        self.views.switch(p, next, vm, self.clock.now());
    }

    /// What interval views call a thread.
    pub(crate) fn name_of(&self, thread: u32) -> String {
        let vcpu = self.threads[thread as usize].vcpu;
        match self.vcpus.get(vcpu as usize) {
            Some(v) => format!("{}/vcpu{}", self.plan.vms[v.vm as usize].name, v.cpu.0),
            None => format!("host.{}", self.plan.host_tasks[thread as usize].name),
        }
    }

    /// `ratelimit-auto` is due.
    pub(crate) fn ratelimit_due(&mut self) {
        if let Some(driver) = &self.ratelimits {
            self.clock.set(Event::Ratelimit, self.clock.now() + driver.interval());
            self.interrupt(MASTER, Irq::Ratelimit);
        }
    }

    /// It looks at every domain, and sets ratelimits.
    pub(crate) fn set_ratelimits(&mut self) {
        let (Some(driver), Some(credit1)) = (&mut self.ratelimits, self.host.credit1_mut()) else {
            return;
        };
        let now = self.clock.now();
        for p in 0..self.pcpus.len() as u32 {
            // Running entities have run until now.
            credit1.charge(now, CpuId(p));
        }
        let mut threads = self.vcpus.iter().map(|vcpu| EntId(vcpu.thread));
        for (m, vm) in self.plan.vms.iter().enumerate() {
            let threads = threads.by_ref().take(vm.level.topology.cpus() as usize);
            if let (Some(limit), Some(domain)) = (driver.look(m, now, credit1, threads), vm.group) {
                credit1.set_ratelimit(domain, Some(limit));
                self.pcpus[MASTER as usize].extra += self.costs.of(CostKey::Setattr);
            }
        }
    }

    /// Takes the actions in that the end of the run cut off when they were over the limit already.
    pub(crate) fn respond_open(&mut self, end: Ns) {
        for vm in &self.vms {
            let Some(limit_ns) = self.storms.limit_ns(vm.birth) else { continue };
            for runner in vm.tasks.iter().filter_map(|task| task.runner.as_ref()) {
                if let Some(due) = runner.acting_since(end).filter(|due| end - due > limit_ns) {
                    self.storms.responded(vm.birth, due, end - due);
                }
            }
        }
    }
}
