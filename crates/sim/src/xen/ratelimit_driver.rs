//! The driver of `ratelimit-auto`: once an interval it evaluates every domain, and sets ratelimits.
//!
//! Like the scheduler's own accounting it runs on one pCPU, which pays a timer interrupt for each evaluation, and for
//! each ratelimit the cost of changing a thread's policy, which is more work.

use vcoop_credit1::Credit1;
use vcoop_model::plan::{HostSched, Plan, PolicyPlan};
use vcoop_policy::ratelimit::{DomainCounters, Ratelimit};
use vcoop_sched::EntId;

use crate::queue::Ns;

/// A state machine for each VM.
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

    /// Time between two looks, and before the first.
    pub(crate) fn interval(&self) -> Ns {
        self.interval
    }

    /// Ratelimits set so far.
    pub(crate) fn changes(&self) -> u64 {
        self.domains.iter().map(Ratelimit::changes).sum()
    }

    /// The ratelimit of a VM, as the driver knows it.
    pub(crate) fn limit(&self, vm: usize) -> Ns {
        self.domains[vm].limit_ns()
    }

    /// Evaluates a VM, which has these threads. Returns the ratelimit to set, if it changes.
    pub(crate) fn look(
        &mut self,
        vm: usize,
        now: Ns,
        credit1: &Credit1,
        threads: impl Iterator<Item = EntId>,
    ) -> Option<Ns> {
        let mut seen = DomainCounters::default();
        for one in threads.map(|thread| credit1.observed(thread)) {
            seen.blocks += one.blocks;
            seen.run_ns += one.run_ns;
            seen.short_challenges += one.short_challenges;
        }
        self.domains[vm].on(now, seen)
    }
}
