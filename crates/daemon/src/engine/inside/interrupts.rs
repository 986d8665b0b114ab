//! Interrupts for vCPUs, as KVM's events tell them.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rustix::event::epoll::{self, EventData, EventFlags};
use vcoop_bpf::{Injected, Injections, Kind, OfVcpu};
use vcoop_model::plan::PolicyPlan;
use vcoop_policy::driver;
use vcoop_policy::event::Injection;
use vcoop_threads::clock::monotonic;
use vcoop_vmm::Accel;

use super::ext::decided_there;
use super::{AttachedVm, Inside};
use crate::engine::INTERRUPTS;
use crate::protocol::{InterruptStatus, Refusal};

/// What tells of interrupts.
#[derive(Debug)]
pub(super) struct Interrupts {
    source: Injections,
    /// Whom it tells of.
    watched: BTreeMap<i32, OfVcpu>,
}

impl Interrupts {
    /// Hears no more of a thread, if it was heard of.
    pub(super) fn forget(&mut self, tid: i32) {
        if let Some(vcpu) = self.watched.remove(&tid) {
            self.source.forget(vcpu);
        }
    }
}

/// What came of the interrupts of a VM.
#[derive(Debug)]
pub(super) struct Interrupted {
    heard: u64,
    boosted: u64,
    /// Nanoseconds from an interrupt to when its vCPU had what its policy gives it.
    reactions: Histogram<u64>,
}

impl Interrupted {
    fn new() -> Self {
        let reactions = Histogram::new(2).expect("two digits are possible");
        Self { heard: 0, boosted: 0, reactions }
    }
}

impl Inside {
    /// Hears of interrupts for a VM whose policy boosts for them. Where they cannot be heard, a guest with a driver
    /// tells its own deadlines; `wake-boost` has been asked for more than it would do, and is refused.
    pub(super) fn hear_interrupts(&mut self, number: u64) -> Result<(), Refusal> {
        let Some(vm) = self.vms.get_mut(&number) else { return Ok(()) };
        if !vm.plan.policy.boosts_on_injection() || decided_there(&vm.plan.policy).is_some() {
            return Ok(());
        }
        let needs = matches!(vm.plan.policy, PolicyPlan::WakeBoost(_));
        if vm.accel != Accel::Kvm {
            let why = "an emulated VM's interrupts are its VMM's own, and cannot be heard of\n  remedy: leave \
                       boost_on_injection false for it";
            return if needs { Err(Refusal::from(why.to_owned())) } else { Ok(()) };
        }
        if self.interrupts.is_none() {
            match Injections::open() {
                Ok(source) => {
                    let token = EventData::new_u64(INTERRUPTS);
                    epoll::add(&self.poll, source.ready(), token, EventFlags::IN)
                        .map_err(|e| e.to_string())?;
                    self.interrupts = Some(Interrupts { source, watched: BTreeMap::new() });
                }
                Err(why) if needs => return Err(Refusal::missing(why)),
                Err(_) => return Ok(()),
            }
        }
        let Some(interrupts) = &mut self.interrupts else { return Ok(()) };
        for (vcpu, thread) in vm.vcpus.iter().zip(&vm.threads) {
            let Ok(vcpu) = vcpu else { continue };
            let apic = thread.kvm_id.unwrap_or(thread.index);
            let of = OfVcpu { process: vm.id.pid, tid: vcpu.tid(), apic };
            interrupts.source.watch(of).map_err(|e| e.to_string())?;
            interrupts.watched.insert(of.tid, of);
        }
        vm.hears.push(interrupts.source.name());
        vm.interrupted = Some(Interrupted::new());
        Ok(())
    }

    /// What came of the interrupts of a VM so far.
    pub(super) fn interrupts_of(&self, vm: &AttachedVm) -> Option<InterruptStatus> {
        let (of, interrupts) = (vm.interrupted.as_ref()?, self.interrupts.as_ref()?);
        Some(InterruptStatus {
            heard: of.heard,
            lost: interrupts.source.lost(),
            boosted: of.boosted,
            reaction_p50_ns: of.reactions.value_at_quantile(0.5),
            reaction_p99_ns: of.reactions.value_at_quantile(0.99),
            reaction_max_ns: of.reactions.max(),
        })
    }

    /// Interrupts have come.
    pub(super) fn interrupted(&mut self) {
        let Some(interrupts) = &mut self.interrupts else { return };
        for Injected { at, tid, kind } in interrupts.source.take() {
            let Some(&(number, place)) = self.threads.get(&tid) else { continue };
            let kind = match kind {
                Kind::Timer => Injection::Timer,
                Kind::Device => Injection::Device,
                Kind::Ipi => Injection::Ipi,
                Kind::Nmi => Injection::Nmi,
            };
            self.run(number, place, |port| driver::inject(port, kind, false));
            let boosted = self.vcpu(number, place).is_some_and(|v| v.driver.policy().is_boosted());
            let vm = self.vms.get_mut(&number);
            let Some(of) = vm.and_then(|vm| vm.interrupted.as_mut()) else { continue };
            of.heard += 1;
            if boosted {
                of.boosted += 1;
                let _ = of.reactions.record(monotonic().saturating_sub(at));
            }
        }
    }
}
