//! The VMX preemption timer behind a guest's deadline.
//!
//! ```text
//!              deadline written, in range          HLT (or preempted, with arm_sw_on_preempt)
//!   hrtimer ----------------------------> hv timer ------------------------------> hrtimer
//!      |                                     | counts in guest mode only:             |
//!      | fires on the host                   | exit at the deadline, or               | fires, or
//!      v                                     v at the next entry                      v back at sched-in
//!   interrupt                             interrupt
//! ```
//!
//! As in KVM's `start_hv_timer`, `kvm_lapic_switch_to_sw_timer` and `..._to_hv_timer` (`arch/x86/kvm/lapic.c`) and
//! `vmx_set_hv_timer` (`vmx.c`). For a preempted vCPU no timer of the host fires: its deadline is noticed when it is
//! loaded again, and until then it waits like any other thread.

use vcoop_model::profile::CostKey;

use crate::clock::Event;
use crate::guest::exit::Exit;
use crate::guest::vcpu_virt::wants;
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    /// Puts the deadline with expiry `fires` on the preemption timer; false if it is out of range.
    pub(crate) fn start_hv_timer(&mut self, v: u32, fires: Ns) -> bool {
        let vcpu = &mut self.vcpus[v as usize];
        if vcpu.virt.deadline.counts(fires.saturating_sub(self.clock.now())).is_none() {
            vcpu.virt.counters.hv_refused += 1;
            return false;
        }
        vcpu.hv_at = fires;
        self.clock.cancel(Event::Lapic(v));
        if fires <= self.clock.now() {
            self.hv_timer_expired(v);
        }
        true
    }

    /// Enters guest mode with the preemption timer loaded.
    pub(crate) fn enter_with_hv_timer(&mut self, p: u32, v: u32) {
        let vcpu = &self.vcpus[v as usize];
        // It was in range when it was set, and is nearer now.
        let left = vcpu.hv_at.saturating_sub(self.clock.now());
        match vcpu.virt.deadline.counts(left).filter(|ns| *ns > 0) {
            Some(ns) => {
                self.clock.set(Event::Lapic(v), self.clock.now() + ns);
                self.guest_goes_on(v);
            }
            // Loaded with 0: it exits before the guest's first instruction.
            None => self.exit(p, Exit::HvTimer),
        }
    }

    /// The preemption timer has counted down, in guest mode.
    pub(crate) fn hv_timer_fires(&mut self, v: u32) {
        let p = self.vcpus[v as usize].pcpu;
        self.cpu = p;
        self.stop_guest(p);
        self.exit(p, Exit::HvTimer);
    }

    /// KVM notices that the preemption timer's deadline has passed.
    pub(crate) fn hv_timer_expired(&mut self, v: u32) {
        self.vcpus[v as usize].hv_at = Ns::MAX;
        self.timer_fired(v);
        self.timer_interrupt(v);
    }

    /// An hrtimer on the executing pCPU takes over.
    pub(crate) fn hv_to_sw(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let at = std::mem::replace(&mut vcpu.hv_at, Ns::MAX);
        vcpu.virt.deadline.park(at);
        vcpu.virt.counters.hv_to_sw += 1;
        vcpu.wants |= wants::HV_TIMER;
        self.clock.set(Event::Lapic(v), at.max(self.clock.now()));
        self.pay_for(CostKey::TimerProgram);
    }

    /// The preemption timer takes its deadline back, unless the hrtimer has fired.
    pub(crate) fn sw_to_hv(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.wants &= !wants::HV_TIMER;
        let at = vcpu.virt.deadline.unpark();
        if !self.clock.is_pending(Event::Lapic(v)) {
            return;
        }
        vcpu.virt.counters.sw_to_hv += 1;
        self.pay_for(CostKey::TimerProgram);
        self.start_hv_timer(v, at);
    }

    /// Loads a vCPU that was preempted while on its preemption timer: KVM sets the timer again, and so notices a
    /// deadline that has passed.
    pub(crate) fn restart_hv_timer(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let late = self.clock.now().saturating_sub(vcpu.hv_at);
        if self.clock.now() >= vcpu.hv_at {
            vcpu.virt.counters.hv_blind += 1;
            vcpu.virt.counters.hv_blind_ns += late;
            self.hv_timer_expired(v);
        }
    }
}
