//! Finds reservations that the kernel would refuse, before anything runs.
//!
//! The scheduler itself is asked: the permanent reservations of a scenario are put into a level of the same
//! configuration. Boosts by `dynamic` and `wake-boost` are temporary; they are refused while running.

use vcoop_policy::config::Means;
use vcoop_sched::config::{LevelConfig, Policy};
use vcoop_sched::{Attr, CpuId, CpuSet, Level, Refusal};

use super::keys::ScenarioKeys;
use super::keys::workload::Workload;
use super::policies::{Named, Policies};
use crate::diagnostic::{Collector, Span};
use crate::plan::{Plan, PolicyPlan, TaskPlan, TimelineAction};

/// Checks loads, guest tasks, baselines of vCPUs, and the compared `static` policies.
pub(crate) fn check(
    keys: &ScenarioKeys,
    plan: &Plan,
    policies: &Policies,
    compared: &[String],
    errors: &Collector,
) {
    // Credit1 knows no policies, and what names one under it is refused elsewhere.
    let Some(level) = plan.host.sched.linux() else { return };
    let mut host = Domain { config: level, name: "host", level: None };
    tasks(&mut host, keys.load.iter().map(|l| &l.0), &plan.host_tasks, errors);
    let without_vms = host.clone();
    let of = |name: &str| keys.vm.iter().find(|vm| vm.name.value.0 == name);
    for vm in &plan.vms {
        let Some(keys) = of(&vm.name) else { continue };
        let mut guest = Domain { config: &vm.level, name: "vm", level: None };
        tasks(&mut guest, keys.task.iter().map(|t| &t.0), &vm.tasks, errors);
        for (policy, cpus) in vm.vcpu_policy.iter().zip(&vm.vcpu_cpus) {
            if !host.reserve(*policy, cpus, keys.vcpu_policy.span, errors) {
                break;
            }
        }
    }
    for name in compared {
        let Some(PolicyPlan::Static { means: general }) =
            policies.plans.get(name).map(|named| &named.plan)
        else {
            continue;
        };
        let mut host = without_vms.clone();
        'vms: for vm in &plan.vms {
            let own = of(&vm.name).and_then(|keys| keys.means.as_ref());
            for (n, cpus) in vm.vcpu_cpus.iter().enumerate() {
                let means = vm.vcpu_means.get(n).copied().flatten();
                let Some(policy) = reservation(means.unwrap_or(*general)) else { continue };
                let span = means.and(own.map(|m| m.span));
                let span = span.or(policies.deadlines.get(name).copied());
                let span = span.unwrap_or(keys.compare.value.policy.span);
                if !host.reserve(policy, cpus, span, errors) {
                    break 'vms;
                }
            }
        }
    }
    for (event, keys) in plan.timeline.iter().zip(by_time(keys)) {
        if let TimelineAction::VcpuPolicy { vm, vcpu, policy } = event.action
            && let Some(vm) = plan.vms.get(vm as usize)
            && let Some(cpus) = vm.vcpu_cpus.get(vcpu as usize)
        {
            // Checked without the other VMs: which threads have ended by then is not known.
            without_vms.clone().reserve(policy, cpus, keys, errors);
        }
    }
}

/// Checks loads, baselines of vCPUs and permanent means after a policy has pinned and moved them.
pub(crate) fn check_pinned(plan: &Plan, named: &Named, errors: &Collector) {
    let (Some(level), Some(span)) = (plan.host.sched.linux(), named.pinning.span()) else { return };
    let mut host = Domain { config: level, name: "host", level: None };
    let loads = plan.host_tasks.iter().map(|task| (task.policy, &task.cpus));
    let vcpus = plan.vms.iter().flat_map(|vm| {
        let means = vm.vcpu_means.iter().map(|own| match (&named.plan, own) {
            (PolicyPlan::Static { means }, own) => own.or(Some(*means)).and_then(reservation),
            _ => None,
        });
        let policies = vm.vcpu_policy.iter().zip(means).map(|(base, means)| means.unwrap_or(*base));
        policies.zip(&vm.vcpu_cpus)
    });
    for (policy, cpus) in loads.chain(vcpus) {
        if !host.reserve(policy, cpus, span, errors) {
            break;
        }
    }
}

/// A means as a reservation, if it is one.
fn reservation(means: Means) -> Option<Policy> {
    match means {
        Means::Deadline { runtime_ns, deadline_ns, period_ns } => {
            Some(Policy::Deadline { runtime_ns, deadline_ns, period_ns })
        }
        _ => None,
    }
}

/// Place of each switch of the timeline, in the plan's order.
fn by_time(keys: &ScenarioKeys) -> Vec<Span> {
    let mut all: Vec<_> = keys.at.iter().map(|at| (at.time.value.0, at.time.span)).collect();
    all.sort_by_key(|(time, _)| *time);
    all.into_iter().map(|(_, span)| span).collect()
}

/// The tasks of one level.
fn tasks<'w>(
    domain: &mut Domain<'_>,
    workloads: impl Iterator<Item = &'w Workload>,
    tasks: &[TaskPlan],
    errors: &Collector,
) {
    for workload in workloads {
        let Some(given) = &workload.common.policy else { continue };
        for task in tasks.iter().filter(|t| t.label == workload.common.name.value.0) {
            if !domain.reserve(task.policy, &task.cpus, given.span, errors) {
                break;
            }
        }
    }
}

/// A level, and what is reserved on it.
#[derive(Clone)]
struct Domain<'a> {
    config: &'a LevelConfig,
    name: &'static str,
    /// Built at the first reservation.
    level: Option<Level>,
}

impl Domain<'_> {
    /// Makes a policy's reservation, if it has one; false, with an error, if refused.
    fn reserve(&mut self, policy: Policy, cpus: &[u32], span: Span, errors: &Collector) -> bool {
        if !policy.is_deadline() {
            return true;
        }
        if self.level.is_none() {
            self.level = Level::new(self.config).ok();
        }
        // A level that cannot be built has an error of its own.
        let Some(level) = &mut self.level else { return true };
        let cpus: CpuSet = cpus.iter().map(|&c| CpuId(c)).collect();
        let Err(why) = level.try_add(Attr { policy, cpus, group: None }, CpuId(0)) else {
            return true;
        };
        let off = format!("set dl_admission = false in [{}.sched]", self.name);
        let help = match why {
            Refusal::Affinity => format!("take out the pinning, or {off}"),
            Refusal::Bandwidth => format!("reserve less, or {off}"),
            Refusal::Parameters => "\"deadline 1ms/4ms\" is one it takes".to_owned(),
        };
        errors.error_help(span, why.to_string(), help);
        false
    }
}
