//! The driver of `ratelimit-auto`: looks at every domain once an interval, and sets ratelimits.
//!
//! Like the scheduler's own accounting it runs on one pCPU, which pays: a timer interrupt for each
//! look, and for each ratelimit set what a change of a thread's policy costs, which is more work.

use vcoop_model::plan::{HostSched, Plan, PolicyPlan};
use vcoop_model::profile::CostKey;
use vcoop_policy::ratelimit::{Ratelimit, Seen};
use vcoop_sched::{CpuId, EntId};

use crate::clock::Event;
use crate::machine::Irq;
use crate::policy_driver::MASTER;
use crate::queue::Ns;
use crate::world::World;

/// One machine a VM.
#[derive(Debug)]
pub(crate) struct RatelimitDriver {
    interval: Ns,
    domains: Vec<Ratelimit>,
}

impl RatelimitDriver {
    /// The driver of a plan that has one.
    pub(crate) fn of(plan: &Plan) -> Option<Self> {
        let (PolicyPlan::RatelimitAuto(config), HostSched::Credit1(credit1)) =
            (&plan.policy, &plan.host.sched)
        else {
            return None;
        };
        let domains = plan.vms.iter().map(|_| Ratelimit::new(*config, credit1.ratelimit_ns, 0));
        Some(Self { interval: config.interval_ns, domains: domains.collect() })
    }

    /// When it looks for the first time.
    pub(crate) fn first(&self) -> Ns {
        self.interval
    }

    /// Ratelimits set so far.
    pub(crate) fn changes(&self) -> u64 {
        self.domains.iter().map(Ratelimit::changes).sum()
    }

    /// The ratelimit of a VM, by its own account.
    pub(crate) fn limit(&self, vm: usize) -> Ns {
        self.domains[vm].limit_ns()
    }
}

impl World<'_> {
    /// The interval is over.
    pub(crate) fn ratelimit_due(&mut self) {
        if let Some(driver) = &self.ratelimits {
            self.clock.set(Event::Ratelimit, self.clock.now() + driver.interval);
            self.interrupt(MASTER, Irq::Ratelimit);
        }
    }

    /// Looks at every domain.
    pub(crate) fn set_ratelimits(&mut self) {
        let (Some(driver), Some(credit1)) = (&mut self.ratelimits, self.host.credit1_mut()) else {
            return;
        };
        for p in 0..self.pcpus.len() as u32 {
            // What runs has run until now.
            credit1.charge(self.clock.now(), CpuId(p));
        }
        for (m, (machine, vm)) in driver.domains.iter_mut().zip(&self.vms).enumerate() {
            let mut seen = Seen::default();
            let end = self.vms.get(m + 1).map_or(self.vcpus.len(), |next| next.first as usize);
            for vcpu in &self.vcpus[vm.first as usize..end] {
                let one = credit1.observed(EntId(vcpu.thread));
                seen.blocks += one.blocks;
                seen.run_ns += one.run_ns;
                seen.short_challenges += one.short_challenges;
            }
            if let (Some(limit), Some(domain)) =
                (machine.on(self.clock.now(), seen), self.plan.vms[m].group)
            {
                credit1.set_ratelimit(domain, Some(limit));
                self.pcpus[MASTER as usize].extra += self.costs.of(CostKey::Setattr);
            }
        }
    }
}
