//! Interrupts on their way into a guest: from timers, devices and other vCPUs.

use vcoop_model::profile::CostKey;

use vcoop_policy::Injection;
use vcoop_sched::Waker;

use crate::attribution::track::NONE;
use crate::clock::Event;
use crate::machine::{GuestSegment, Irq, Post, Segment, vector};
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// A device fires: an interrupt on the host pCPU where its vCPU ran last; if that pCPU is in `nohz_full`, on the
    /// housekeeping pCPU, because the host keeps interrupts away from full-nohz pCPUs.
    pub(crate) fn device_fires(&mut self, d: u32) {
        let v = self.devices.fires(d, &mut self.clock);
        let home = self.ticks.timer_cpu(self.vcpus[v as usize].home);
        let track = self.vcpus[v as usize].track;
        if self.vcpus[v as usize].halted || self.is_idle_awake(v) {
            self.event_on_its_way(track, home);
        }
        self.interrupt(home, Irq::Device(d));
    }

    /// The host's half of a device interrupt ends.
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

    /// A halted vCPU has a pending interrupt.
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

    /// Makes an interrupt pending for a vCPU, with the boost of its policy, and makes the vCPU take it.
    pub(crate) fn inject(&mut self, v: u32, which: u8, kind: Injection) {
        if self.spans.is_on() {
            self.span_inject(v, which);
        }
        let pending = self.vcpus[v as usize].irr & which != 0;
        let timers = self.boost_injects(v, which, kind);
        self.injected(v, which, kind, pending);
        self.pay_timers(timers);
    }

    /// Makes a vCPU take an interrupt that is pending now; `pending`: it already was.
    fn injected(&mut self, v: u32, which: u8, kind: Injection, pending: bool) {
        let vcpu = &self.vcpus[v as usize];
        if vcpu.halted {
            // One that halts with interrupts off sleeps on (`kvm_arch_vcpu_runnable`).
            if self.vms[vcpu.vm as usize].started && self.guest_takes_irqs(v) {
                let by = match kind {
                    Injection::Ipi => self.waker(),
                    // An event channel: a task asked for it.
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
            _ => return, // it checks for pending interrupts before it enters
        }
        if !self.vms[vcpu.vm as usize].virt.posted {
            return self.send_ipi(p);
        }
        self.vcpus[v as usize].virt.counters.posted += 1;
        // It reaches the running guest without an exit.
        self.pay_for(CostKey::IpiSend);
        if !pending {
            self.vcpus[v as usize].irr &= !which;
            self.post_interrupt(v, which, 0, self.pcpus[self.cpu as usize].extra);
        }
    }

    /// Posts an interrupt to a vCPU: its bit is set in `sent` from now on, and the notification leaves in `leaves`.
    pub(crate) fn post_interrupt(&mut self, v: u32, which: u8, sent: Ns, leaves: Ns) {
        let now = self.clock.now();
        let far = self.crossing(self.vcpus[v as usize].home);
        let lands = now + leaves + self.costs.of(CostKey::IpiFlight) + far;
        self.vcpus[v as usize].posts.push(Post { sent: now + sent, lands, which });
        self.clock.set_earlier(Event::Posted(v), lands);
    }

    /// KVM looks at the interrupts posted to a vCPU: at its entry or halt, or after it has lost its pCPU.
    #[inline]
    pub(crate) fn sync_posts(&mut self, v: u32) {
        if !self.vcpus[v as usize].posts.is_empty() {
            let now = self.clock.now();
            let found = self.take_posts(v, |post| post.sent <= now);
            self.vcpus[v as usize].irr |= found;
        }
    }

    /// Removes the posted interrupts for which `due` holds; returns their bits.
    #[cold]
    fn take_posts(&mut self, v: u32, due: impl Fn(&Post) -> bool) -> u8 {
        let posts = &mut self.vcpus[v as usize].posts;
        posts.extract_if(.., |post| due(post)).fold(0, |taken, post| taken | post.which)
    }

    /// The notification of a posted interrupt arrives. A vCPU in guest mode takes the interrupt. One that has left
    /// guest mode looks at posted interrupts before it enters again, or halts.
    pub(crate) fn posted_arrives(&mut self, v: u32) {
        let now = self.clock.now();
        let there = self.take_posts(v, |post| post.lands <= now);
        let vcpu = &mut self.vcpus[v as usize];
        if let Some(next) = vcpu.posts.iter().map(|post| post.lands).min() {
            self.clock.set_earlier(Event::Posted(v), next);
        }
        let (p, home) = (vcpu.pcpu, vcpu.home);
        if there == 0 {
            return;
        }
        if vcpu.halted {
            // The handler on that pCPU makes it pending.
            return self.interrupt(home, Irq::Posted(v));
        }
        vcpu.irr |= there;
        if p == NONE {
            return;
        }
        match self.pcpus[p as usize].segment {
            Segment::Guest if self.guest_takes_irqs(v) => {}
            Segment::Poll => return self.poll_sees_in(p, 0),
            _ => return,
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
