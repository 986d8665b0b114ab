//! Interrupts on their way into a guest: from timers, devices and other vCPUs.

use vcoop_model::profile::CostKey;

use vcoop_policy::Injection;
use vcoop_sched::Waker;

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::machine::{GuestSegment, Irq, Segment, vector};
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// A device fires: an interrupt on the host pCPU where its vCPU ran last.
    pub(crate) fn device_fires(&mut self, d: u32) {
        let v = self.devices.fires(d, &mut self.clock);
        let (home, track) = (self.vcpus[v as usize].home, self.vcpus[v as usize].track);
        if self.vcpus[v as usize].halted || self.is_idle_awake(v) {
            self.event_on_its_way(track, home);
        }
        self.interrupt(home, Irq::Device(d));
    }

    /// The host's half of a device interrupt is done.
    pub(crate) fn device_interrupt(&mut self, d: u32) {
        let (v, nmi) = self.devices.target(d);
        if nmi {
            return self.inject(v, vector::NMI, Injection::Nmi);
        }
        let queue = &mut self.vcpus[v as usize].devices;
        if !queue.contains(&d) {
            queue.push_back(d);
        }
        self.inject(v, vector::DEVICE, Injection::Device);
    }

    /// A halted vCPU has something to take.
    pub(crate) fn unhalt(&mut self, v: u32, by: Waker) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.halted = false;
        // From here on it waits for a pCPU.
        vcpu.off_since = self.clock.now();
        let thread = vcpu.thread;
        let timers = self.boost_woken(v);
        self.wake_thread(thread, by);
        self.pay_timers(timers);
    }

    /// Makes an interrupt pending for a vCPU, with the boost that its policy gives, and sees to it that the vCPU takes it.
    pub(crate) fn inject(&mut self, v: u32, which: u8, kind: Injection) {
        if self.spans.is_on() {
            self.span_inject(v, which);
        }
        let timers = self.boost_injects(v, which, kind);
        self.injected(v, which, kind);
        self.pay_timers(timers);
    }

    /// Sees to it that a vCPU takes an interrupt that is pending now.
    fn injected(&mut self, v: u32, which: u8, kind: Injection) {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.halted {
            if self.vms[vcpu.vm as usize].started {
                let by = match kind {
                    Injection::Ipi => self.waker(),
                    // An event channel: somebody asked for it.
                    Injection::Device if which == vector::MESSAGE => {
                        Waker { io: true, ..self.waker() }
                    }
                    Injection::Device => Waker { io: true, ..Waker::default() },
                    _ => Waker::default(),
                };
                self.unhalt(v, by);
            }
            return;
        }
        let p = vcpu.pcpu;
        if p == NONE || p == self.cpu {
            return;
        }
        match self.pcpus[p as usize].segment {
            Segment::Guest => {}
            Segment::Poll => return self.poll_sees(p),
            _ => return, // it looks at what is pending before it enters
        }
        if !self.vms[vcpu.vm as usize].virt.posted {
            return self.send_ipi(p);
        }
        self.vcpus[v as usize].virt.counters.posted += 1;
        // It reaches the running guest without an exit.
        self.pay_for(CostKey::IpiSend);
        self.post_flies(v, self.pcpus[self.cpu as usize].extra);
    }

    /// The notification of a posted interrupt leaves in `after`. Several in flight are one (the ON bit of the descriptor).
    pub(crate) fn post_flies(&mut self, v: u32, after: Ns) {
        if !self.clock.is_pending(Event::Posted(v)) {
            let far = self.crossing(self.cpu, self.vcpus[v as usize].home);
            let at = self.clock.now() + after + self.costs.of(CostKey::IpiFlight) + far;
            self.clock.set(Event::Posted(v), at);
        }
    }

    /// The notification of a posted interrupt is there. A vCPU that is in guest mode takes the interrupt. One that left it meanwhile
    /// looks at what is pending before it enters again.
    pub(crate) fn posted_arrives(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let (p, home) = (vcpu.pcpu, vcpu.home);
        if vcpu.ipis.takes_wakeup() {
            return self.interrupt(home, Irq::Posted(v));
        }
        let runs = vcpu.irr != 0 && p != NONE;
        if !runs || self.pcpus[p as usize].segment != Segment::Guest || !self.guest_takes_irqs(v) {
            return;
        }
        match self.vcpus[v as usize].segment {
            GuestSegment::User | GuestSegment::Poll => {
                self.stop_guest(p);
                self.guest_goes_on(v);
            }
            GuestSegment::Rest => self.guest_sees(v, 0),
            _ => {}
        }
    }
}
