//! This host, as the simulator needs it: for the simulated column beside a live one.

use vcoop_kvm::{HostFacts, host_facts};
use vcoop_model::plan::{GuestTimer, Plan, PolicyPlan, Preemption};
use vcoop_model::profile::{Costs, Profile};
use vcoop_policy::config::AdvanceConfig;
use vcoop_sched::config::{Fair, Topology};

/// This host: its CPUs and its kernel's scheduler as they are, its costs as measured or assumed.
#[derive(Clone, Debug)]
pub struct Here {
    facts: HostFacts,
    /// Name and costs of a profile of this host.
    costs: Option<(String, Costs)>,
}

impl Here {
    /// This host, with the costs of a profile of it; without one, plans keep their own costs.
    pub fn new(profile: Option<&Profile>) -> Self {
        let costs = profile.map(|profile| (profile.name.clone(), profile.costs.clone()));
        Self { facts: host_facts(), costs }
    }

    /// CPUs this process may use.
    pub fn cpus(&self) -> u32 {
        (self.facts.cpus.len() as u32).max(1)
    }

    /// One line: what is simulated.
    pub fn describe(&self) -> String {
        let facts = &self.facts;
        let fair = match facts.fair.value {
            Fair::Cfs(_) => "CFS",
            Fair::Eevdf(_) => "EEVDF",
        };
        let preemption = match facts.preemption.value {
            Preemption::None => "none",
            Preemption::Voluntary => "voluntary",
            Preemption::Lazy => "lazy",
            Preemption::Full => "full",
        };
        let costs = match &self.costs {
            Some((name, _)) => format!("costs of profile {name}"),
            None => "costs of the scenario's profile (`vcoop calibrate -o FILE` measures this \
                     host's, --calibration FILE uses them)"
                .to_owned(),
        };
        let (cpus, hz) = (self.cpus(), facts.hz());
        format!("{cpus} CPUs, {fair}, {hz} Hz, preemption {preemption}; {costs}")
    }

    /// The same experiment on this host: what the lab does with the plan here. The plan's pCPUs are
    /// the first of this host's; who may use all of the plan's may use those.
    pub fn plan(&self, plan: &Plan) -> Plan {
        let facts = &self.facts;
        let wanted = plan.host.sched.cpus();
        let mut here = plan.clone();
        let cpus = self.cpus();
        // The lab refuses every other scheduler.
        let Some(level) = here.host.sched.linux_mut() else { return here };
        level.topology = match facts.topology.value {
            topology if topology.cpus() == cpus => topology,
            _ => Topology::flat(cpus),
        };
        level.tick_ns = facts.tick_ns.value;
        level.fair = facts.fair.value;
        level.rr_slice_ns = facts.rr_slice_ns.value;
        level.rt_guard = facts.rt_guard.value;
        here.host.preemption = facts.preemption.value;
        if let Some((name, costs)) = &self.costs {
            here.host.profile.clone_from(name);
            here.host.costs = costs.clone();
        }
        // The lab holds cpu_dma_latency at 0.
        here.host.costs.cstates.retain(|state| state.exit_ns == 0);
        if wanted < cpus {
            let first: Vec<u32> = (0..wanted).collect();
            let tasks = here.host_tasks.iter_mut().map(|task| &mut task.cpus);
            let vcpus = here.vms.iter_mut().flat_map(|vm| vm.vcpu_cpus.iter_mut());
            tasks.chain(vcpus).filter(|list| list.is_empty()).for_each(|list| {
                list.clone_from(&first);
            });
        }
        let boosts = matches!(plan.policy, PolicyPlan::Dynamic(_) | PolicyPlan::WakeBoost(_));
        for timer in here.vms.iter_mut().map(|vm| &mut vm.virt.timer) {
            let own = if boosts { GuestTimer::Exitless } else { GuestTimer::Lapic };
            if *timer.source.get_or_insert(own) == GuestTimer::Exitless
                && (boosts && timer.advance == AdvanceConfig::None
                    || timer.advance == AdvanceConfig::Adaptive)
            {
                timer.advance = AdvanceConfig::INJECTOR;
            }
        }
        here
    }
}
