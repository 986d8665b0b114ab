//! Interrupts for vCPUs, by KVM's events.

use hdrhistogram::Histogram;
use vcoop_bpf::WatchedVcpu;
use vcoop_model::plan::PolicyPlan;
use vcoop_policy::config::Ns;
use vcoop_policy::driver;
use vcoop_policy::event::Injection;
use vcoop_threads::clock::monotonic;
use vcoop_vmm::Accel;

use super::{AttachedVm, EngineThread};
use crate::policy::kernel_rules;
use crate::protocol::{InterruptStatus, Refusal};

/// Counts of the interrupts of a VM.
#[derive(Debug)]
pub(super) struct InterruptCounts {
    heard: u64,
    coalesced: u64,
    boosted: u64,
    /// Nanoseconds from an interrupt until its policy had acted on it.
    reactions: Histogram<u64>,
}

impl InterruptCounts {
    fn new() -> Self {
        let reactions = Histogram::new(2).expect("two digits are possible");
        Self { heard: 0, coalesced: 0, boosted: 0, reactions }
    }
}

impl EngineThread {
    /// Watches interrupts for a VM whose policy boosts for them. If they cannot be watched, a guest with a driver still
    /// announces its deadlines; `wake-boost` would do less than was asked for, and is refused.
    pub(super) fn hear_interrupts(&mut self, number: u64) -> Result<(), Refusal> {
        let Some(vm) = self.vms.get_mut(&number) else { return Ok(()) };
        if !vm.plan.policy.boosts_on_injection() || kernel_rules(&vm.plan.policy).is_some() {
            return Ok(());
        }
        let needs = matches!(vm.plan.policy, PolicyPlan::WakeBoost(_));
        if vm.accel != Accel::Kvm {
            let why = "an emulated VM's interrupts come from its VMM, and no event reports them\n  remedy: leave \
                       boost_on_injection false for it";
            return if needs { Err(Refusal::from(why.to_owned())) } else { Ok(()) };
        }
        let Some(source) = &mut self.source else { return Ok(()) };
        let mut by = None;
        for (vcpu, thread) in vm.vcpus.iter().zip(&vm.threads) {
            let Ok(vcpu) = vcpu else { continue };
            let apic = thread.kvm_id.unwrap_or(thread.index);
            match source.hear_interrupts(WatchedVcpu { process: vm.id.pid, tid: vcpu.tid(), apic })
            {
                Ok(name) => by = Some(name),
                Err(why) if needs => return Err(Refusal::missing(why)),
                Err(_) => break,
            }
        }
        let Some(by) = by else { return Ok(()) };
        vm.hears.push(by);
        vm.interrupted = Some(InterruptCounts::new());
        Ok(())
    }

    /// Counts of the interrupts of a VM so far.
    pub(super) fn interrupts_of(&self, vm: &AttachedVm) -> Option<InterruptStatus> {
        let (of, source) = (vm.interrupted.as_ref()?, self.source.as_ref()?);
        Some(InterruptStatus {
            heard: of.heard,
            coalesced: of.coalesced,
            lost: source.lost(),
            boosted: of.boosted,
            reaction_p50_ns: of.reactions.value_at_quantile(0.5),
            reaction_p99_ns: of.reactions.value_at_quantile(0.99),
            reaction_max_ns: of.reactions.max(),
        })
    }

    /// A vCPU has an interrupt, and `coalesced` ones since the one before that were not reported singly.
    pub(super) fn interrupted(
        &mut self,
        number: u64,
        place: usize,
        at: Ns,
        kind: Injection,
        coalesced: u64,
    ) {
        self.run(number, place, |port| driver::inject(port, kind, false));
        let boosted = self.vcpu(number, place).is_some_and(|v| v.driver.policy().is_boosted());
        let vm = self.vms.get_mut(&number);
        let Some(of) = vm.and_then(|vm| vm.interrupted.as_mut()) else { return };
        of.heard += 1;
        of.coalesced += coalesced;
        if boosted {
            of.boosted += 1;
            let _ = of.reactions.record(monotonic().saturating_sub(at));
        }
    }
}
