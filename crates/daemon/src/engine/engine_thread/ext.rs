//! VMs whose boosts are decided in the kernel, by `scx_vcoop`.
//!
//! The attributes of their threads do not change, and the engine watches no events of them. The scheduler is loaded for
//! the first such VM, and unloaded with the last.

use vcoop_bpf::{Admission, Rules, VcpuState};
use vcoop_vmm::Accel;

use super::{AttachedVm, EngineThread};
use crate::engine::link::Link;
use crate::policy::kernel_rules;
use crate::port::Vcpu;
use crate::protocol::{InterruptStatus, Refusal};

impl EngineThread {
    /// Registers the vCPUs of a VM with `scx_vcoop`.
    pub(super) fn admit(&mut self, number: u64) -> Result<(), Refusal> {
        let Some(vm) = self.vms.get_mut(&number) else { return Ok(()) };
        let Some(policy) = kernel_rules(&vm.plan.policy) else { return Ok(()) };
        let Some(scheduler) = &mut self.scheduler else {
            return Err("scx_vcoop has been unloaded meanwhile; try again".to_owned().into());
        };
        if policy.needs_kvm() && scheduler.hears().is_none() {
            let why = "this kernel does not report KVM's events: KVM is not loaded, or there is no fentry\n  \
                       remedy: wake-boost with boost_on_injection false";
            return Err(Refusal::missing(why));
        }
        if matches!(policy, Rules::Dynamic(_)) {
            if vm.accel != Accel::Kvm {
                let why = "an emulated VM's guest is listened to where its vCPUs enter it under KVM only\n  remedy: \
                           another means than `ext`";
                return Err(Refusal::from(why.to_owned()));
            }
            if vm.link.as_ref().is_none_or(|link| !link.has_address()) {
                let why = "the VMM has the memory that it shares with its guest nowhere in one piece\n  remedy: \
                           another means than `ext`";
                return Err(Refusal::from(why.to_owned()));
            }
        }
        let of = scheduler.begin_vm(policy.vm_budget()).map_err(|e| e.to_string())?;
        vm.ext = Some(of);
        let lead_ns = vm.link.as_ref().map_or(0, Link::lead);
        for vcpu in vm.vcpus.iter_mut().flatten() {
            let asleep = vcpu.captured.is_asleep();
            let admission = Admission { vm: of, tid: vcpu.tid(), asleep, lead_ns };
            let place = scheduler.admit(admission, &policy).map_err(|e| e.to_string())?;
            vcpu.ext = Some(place);
        }
        vm.hears = vec!["scx_vcoop"];
        vm.hears.extend(scheduler.hears().filter(|_| policy.hears_interrupts()));
        let places = vm.vcpus.len();
        (0..places).for_each(|place| self.listen_there(number, place));
        Ok(())
    }

    /// Updates whether a vCPU's guest reports on it.
    pub(super) fn listen_there(&mut self, number: u64, place: usize) {
        let Some(vm) = self.vms.get(&number) else { return };
        let Some(Rules::Dynamic(_)) = kernel_rules(&vm.plan.policy) else { return };
        let Some(Ok(vcpu)) = vm.vcpus.get(place) else { return };
        let page = vm.link.as_ref().and_then(|link| link.address(place));
        if let (Some(scheduler), Some(place)) = (&mut self.scheduler, vcpu.ext) {
            scheduler.listen(place, page);
        }
    }

    /// `scx_vcoop` treats a vCPU like any other thread again.
    pub(super) fn dismiss(&mut self, vcpu: &Vcpu) {
        if let (Some(scheduler), Some(place)) = (&mut self.scheduler, vcpu.ext) {
            scheduler.leave(place);
        }
    }

    /// A VM has been detached.
    pub(super) fn dismiss_vm(&mut self, vm: &AttachedVm) {
        if let (Some(scheduler), Some(of)) = (&mut self.scheduler, vm.ext) {
            scheduler.end_vm(of);
            // The guest's vCPUs tell it nothing any more.
            vm.link.iter().for_each(Link::end);
        }
        if !self.vms.values().any(|vm| vm.ext.is_some()) {
            self.unload();
        }
    }

    fn unload(&mut self) {
        self.scheduler.take().into_iter().for_each(|scheduler| self.unloading.begin(scheduler));
    }

    /// Checks whether the kernel has ended the scheduler. Then no vCPU is boosted, and the status must say so.
    pub(super) fn check_scheduler(&mut self) {
        let Some(why) = self.scheduler.as_ref().and_then(|scheduler| scheduler.ended()) else {
            return;
        };
        tracing::error!("the kernel has ended scx_vcoop: {why}");
        let of = self.those(|vm| vm.ext.is_some());
        of.into_iter().for_each(|number| _ = self.detach(number));
        self.unload();
    }

    /// State of a vCPU that `scx_vcoop` schedules.
    pub(super) fn state_in_kernel(&self, vcpu: &Vcpu) -> Option<VcpuState> {
        Some(self.scheduler.as_ref()?.state(vcpu.ext?))
    }

    /// Counts of the interrupts of all VMs that `scx_vcoop` schedules.
    pub(super) fn interrupts_in_kernel(&self, vm: &AttachedVm) -> Option<InterruptStatus> {
        let (Some(scheduler), Some(_)) = (&self.scheduler, vm.ext) else { return None };
        let totals = scheduler.totals();
        (totals.interrupts > 0).then(|| InterruptStatus {
            heard: totals.interrupts,
            boosted: totals.boosted,
            ..InterruptStatus::default()
        })
    }
}
