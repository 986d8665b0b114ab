//! This host as a plan's host, for the simulated column beside a live one.

use vcoop_lab::{HostFacts, host_facts};
use vcoop_model::plan::{GuestTimer, Plan, PolicyPlan};
use vcoop_model::profile::CostKey;
use vcoop_model::scenario::fair_name;
use vcoop_policy::config::AdvanceConfig;
use vcoop_sched::config::{Bandwidth, Fair, RtGuard, Topology};

/// This host: its CPUs and its kernel's scheduler as they are. Costs of mechanisms are the plans' (`--calibration`
/// measures them).
#[derive(Clone, Debug)]
pub struct ThisHost {
    facts: HostFacts,
}

impl ThisHost {
    /// This host, as it is now.
    pub fn look() -> Self {
        Self { facts: host_facts() }
    }

    /// CPUs this process may use.
    pub fn cpus(&self) -> u32 {
        (self.facts.cpus.len() as u32).max(1)
    }

    /// What is simulated, in one line.
    pub fn describe(&self) -> String {
        let facts = &self.facts;
        // The rules of the kernel's release, by the scenario's name for them.
        let (fair, release) = (fair_name(&facts.fair.value), &facts.release);
        let preemption = facts.preemption.value.name();
        let (cpus, hz, poll) = (self.cpus(), facts.hz(), facts.halt_poll.value.max_ns / 1_000);
        format!(
            "{cpus} CPUs, fair = \"{fair}\" (Linux {release}), {hz} Hz, preemption {preemption}, \
             KVM polls for at most {poll} us"
        )
    }

    /// Number of this host's CPU in [`plan`](Self::plan) and [`table`](Self::table).
    pub fn number_of(&self, cpu: u32) -> Option<u32> {
        self.facts.cpus.iter().position(|own| *own == cpu).and_then(|n| u32::try_from(n).ok())
    }

    /// This host as tables of a scenario: `[host]` and `[host.sched]`, without the profile.
    pub fn table(&self) -> String {
        let facts = &self.facts;
        let Topology { threads_per_core, cores_per_llc, llcs } = match facts.topology.value {
            topology if topology.cpus() == self.cpus() => topology,
            _ => Topology::flat(self.cpus()),
        };
        let preemption = facts.preemption.value.name();
        let name = fair_name(&facts.fair.value);
        let fair = match facts.fair.value {
            Fair::Cfs(fair) => format!(
                "fair = \"{name}\"\nsched_latency = \"{}ns\"\nmin_granularity = \"{}ns\"\n\
                 wakeup_granularity = \"{}ns\"\ngentle_sleepers = {}\n",
                fair.sched_latency_ns,
                fair.min_granularity_ns,
                fair.wakeup_granularity_ns,
                fair.gentle_sleepers
            ),
            Fair::Eevdf(fair) => format!(
                "fair = \"{name}\"\nbase_slice = \"{}ns\"\nrun_to_parity = {}\n\
                 preempt_short = {}\nplace_lag = {}\ndelay_dequeue = {}\nyield_forfeits = {}\n\
                 hrtick = {}\ndl_hrtick = {}\n",
                fair.base_slice_ns,
                fair.run_to_parity,
                fair.preempt_short,
                fair.place_lag,
                fair.delay_dequeue,
                fair.yield_forfeits,
                fair.hrtick,
                fair.hrtick
            ),
        };
        let guard = |kind: &str, of: Bandwidth| {
            let (runtime, period) = (of.runtime_ns, of.period_ns);
            format!(
                "rt_guard = \"{kind}\"\nrt_runtime = \"{runtime}ns\"\nrt_period = \"{period}ns\"\n"
            )
        };
        let guard = match facts.rt_guard.value {
            RtGuard::Off => "rt_guard = \"off\"\n".to_owned(),
            RtGuard::Throttle(of) => guard("throttle", of),
            RtGuard::FairServer(of) => guard("fair-server", of),
            RtGuard::Both(of) => guard("both", of),
        };
        let (cpus, hz, rr) = (self.cpus(), facts.hz(), facts.rr_slice_ns.value);
        format!(
            "[host]\npcpus = {cpus}\ntopology = {{ threads_per_core = {threads_per_core}, \
             cores_per_llc = {cores_per_llc}, llcs = {llcs} }}\ntick_hz = {hz}\n\
             preemption = \"{preemption}\"\n\n[host.sched]\n{fair}rr_slice = \"{rr}ns\"\n{guard}"
        )
    }

    /// The same experiment on this host, as the lab runs the plan here. The plan's pCPUs become the first ones of this
    /// host; threads that may use all of the plan's may use those.
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
        // The lab holds cpu_dma_latency at 0.
        let costs = &mut here.host.costs;
        costs.limit_idle(0);
        // Its guest is not Linux.
        costs.guest_sleep_ns = costs.lab_sleep_ns;
        let spread = costs.spread.remove(CostKey::LabSleep.key());
        costs.spread.remove(CostKey::GuestSleep.key());
        costs.spread.extend(spread.map(|spread| (CostKey::GuestSleep.key().to_owned(), spread)));
        if wanted < cpus {
            let first: Vec<u32> = (0..wanted).collect();
            let tasks = here.host_tasks.iter_mut().map(|task| &mut task.cpus);
            let vcpus = here.vms.iter_mut().flat_map(|vm| vm.vcpu_cpus.iter_mut());
            tasks.chain(vcpus).filter(|list| list.is_empty()).for_each(|list| {
                list.clone_from(&first);
            });
        }
        for vm in &mut here.vms {
            vm.virt.idle.host_poll.get_or_insert(facts.halt_poll.value);
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

#[cfg(test)]
mod tests {
    use super::ThisHost;

    #[test]
    fn the_table_says_what_the_plan_says() {
        let here = ThisHost::look();
        let table = here.table();
        let text = format!(
            "name = \"h\"\ntitle = \"h\"\n{table}\n[[load]]\nname = \"l\"\nkind = \"hog\"\n"
        );
        let plan = vcoop_testing::rig::plans(&text, &[], &[]).swap_remove(0);
        let own = here.plan(&plan);
        let (said, own) = (plan.host.sched.linux().unwrap(), own.host.sched.linux().unwrap());
        assert_eq!(said, own, "{table}");
        assert_eq!(here.number_of(u32::MAX), None);
    }
}
