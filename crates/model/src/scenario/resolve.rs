//! Resolves the tables of one matrix cell to a plan without its policy.

use std::collections::BTreeMap;

use vcoop_credit1::Patches;

use super::calls;
use super::captures::Captures;
use super::credit1;
use super::deadline;
use super::effect::Effects;
use super::expand::{Expanded, Place};
use super::group::{self, Shares};
use super::host::{self, HostFacts, refuse_ext, refuse_slice};
use super::keys::sched::ClassKind;
use super::keys::workload::Workload;
use super::keys::{PolicyKeys, ScenarioKeys};
use super::misfit::PolicyMisfit;
use super::policies::{Named, Policies};
use super::storm;
use super::timeline::{check_before_end, timeline};
use super::virt;
use crate::builtin::is_path;
use crate::diagnostic::{Collector, nearest};
use crate::limits::{MAX_TASKS, MAX_TOTAL_VCPUS, MAX_VMS};
use crate::plan::{
    HostSched, Ns, Plan, PolicyPlan, ProbePlan, Program, SampleEnd, Target, TaskPlan, VmPlan,
};
use crate::profile::Profile;
use crate::toml_read::Placed;
use crate::toml_read::table::NamedTables;

/// A cell, ready but for the policy.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// The plan, under `vanilla`.
    pub(crate) plan: Plan,
    /// Every policy of the scenario that the host can run.
    pub(crate) policies: BTreeMap<String, Named>,
    /// Patches of credit1 that replace the host's, by policy.
    pub(crate) patches: BTreeMap<String, Patches>,
    /// The policies that the host cannot run, and why.
    pub(crate) unfit: BTreeMap<String, PolicyMisfit>,
    /// Names of the policies compared.
    pub(crate) compared: Vec<String>,
    /// The one that ratios are taken to.
    pub(crate) baseline: String,
    /// Which of its keys have an effect.
    pub(crate) effects: Effects,
}

/// What resolving needs from outside the file.
#[derive(Debug)]
pub(crate) struct ResolveContext<'o, 'l> {
    /// Captures loaded so far.
    pub(crate) captures: &'o mut Captures<'l>,
    /// Profiles loaded so far.
    pub(crate) profiles: &'o mut BTreeMap<String, Profile>,
    /// The built-in policies.
    pub(crate) builtin_policies: &'o NamedTables<PolicyKeys>,
}

/// Resolves the tables; `None` if an error prevents any plan.
pub(crate) fn resolve(
    keys: &ScenarioKeys,
    params: BTreeMap<String, String>,
    outside: &mut ResolveContext<'_, '_>,
    errors: &Collector,
) -> Option<Resolved> {
    let profile = profile(keys, outside, errors)?;
    let mut host_plan = host::host(&keys.host, &profile, errors)?;
    let cpus = host_plan.sched.cpus();
    let place = Place { cpus, guest: false };
    let sched = &keys.host.value.sched.value;
    let facts = HostFacts {
        place,
        slices: sched.fair.value.has_slices(),
        class: sched.class.value,
        threads: host_plan.sched.topology().threads_per_core,
        cpu: profile.cpu,
    };

    let mut shares = group::declared(&keys.group, facts.class, errors);
    let loads: Vec<&Workload> = keys.load.iter().map(|load| &load.0).collect();
    let Expanded { tasks: mut host_tasks, .. } =
        host::workloads_of(&loads, place, sched, &shares.named, outside.captures, errors);
    check_loads(keys, &loads, facts.class, errors);
    let mut vms = vms(keys, &loads, &facts, &mut shares, outside, errors);
    share_out(shares, &mut host_plan.sched, keys, &mut vms, errors);

    let (duration_ns, warmup_ns) = (keys.duration.value.0, keys.warmup.value.0);
    if host_tasks.is_empty() && vms.as_ref().is_none_or(Vec::is_empty) {
        let help = "add [[vm]] with [[vm.task]], or [[load]]";
        errors.error_help(keys.name.span, "there is nothing to run", help);
    }
    let mut policies = Policies::resolve(&keys.policy, outside.builtin_policies, cpus, errors);
    // Only the scenario of a VM that runs on this host has no tasks.
    let runs_here = !host_tasks.is_empty() || keys.vm.iter().any(|vm| !vm.task.is_empty());
    check_means(&policies, &facts, runs_here, errors);
    let (compared, baseline) = compared(keys, &policies, facts.class, errors)?;
    let unfit: BTreeMap<String, PolicyMisfit> = policies
        .plans
        .keys()
        .filter_map(|name| Some((name.clone(), policies.unfit(name, facts.class)?)))
        .collect();
    policies.plans.retain(|name, _| !unfit.contains_key(name));
    // Only now: what refers to VMs would call all of them unknown if one is wrong.
    let mut vms = vms?;
    let effects = effects(keys, &policies, &vms, &facts, errors);
    let named = calls::all(&loads, &keys.vm);
    calls::link(&named, &mut host_tasks, &mut vms, errors);
    let storms = storm::storms(keys, &named, &host_tasks, &vms, errors);
    let probes = probes(keys, &host_tasks, &vms, errors);
    let end_ns = warmup_ns + duration_ns;
    check_starts(keys, &loads, end_ns, errors);
    check_changes(keys, facts.class, errors);
    let timeline = timeline(&keys.at, keys, &vms, end_ns, facts.slices, errors);
    let mut plan = Plan {
        scenario: keys.name.value.0.clone(),
        policy_name: "vanilla".to_owned(),
        params,
        duration_ns,
        warmup_ns,
        repeats: keys.repeats.value.get32(),
        seed: keys.seed.value.get(),
        host: host_plan,
        host_tasks,
        vms,
        policy: PolicyPlan::Vanilla,
        probes,
        timeline,
        storms,
        views: Vec::new(),
        slices: 0,
    };
    check_housekeeping(keys, &plan, &policies, errors);
    deadline::check(keys, &plan, &policies, &compared, errors);
    check_pins(keys, &plan, &policies, errors);
    plan.views = storm::views(keys, &plan, errors);
    let Policies { plans: policies, patches, .. } = policies;
    Some(Resolved { plan, policies, patches, unfit, compared, baseline, effects })
}

/// Gives the host's scheduler its groups, domains or partitions.
fn share_out(
    shares: Shares,
    sched: &mut HostSched,
    keys: &ScenarioKeys,
    vms: &mut Option<Vec<VmPlan>>,
    errors: &Collector,
) {
    let cpus = sched.cpus();
    match sched {
        HostSched::Linux(level) => level.groups = shares.groups,
        HostSched::Pool(pool) => pool.partitions = shares.partitions,
        HostSched::Credit1(credit1) => {
            credit1.domains = shares.domains;
            if let Some(vms) = vms {
                let pin = keys.host.value.dom0_pin.as_ref();
                credit1::pin_dom0(pin, &keys.vm, vms, cpus, errors);
            }
        }
    }
}

/// Refuses means of boosting that the host does not have.
fn check_means(policies: &Policies, facts: &HostFacts, runs_here: bool, errors: &Collector) {
    if !facts.slices {
        policies.slices.iter().for_each(|span| refuse_slice(*span, "host", errors));
    }
    if runs_here {
        policies.exts.iter().for_each(|span| refuse_ext(*span, errors));
    }
}

/// Checks the virtualisation keys of policies and VMs, and returns which of them have an effect.
fn effects(
    keys: &ScenarioKeys,
    policies: &Policies,
    vms: &[VmPlan],
    facts: &HostFacts,
    errors: &Collector,
) -> Effects {
    let named = || policies.plans.values().map(|named| &named.virt);
    virt::check_policies(&keys.vm, vms, named(), facts.cpu, errors);
    virt::check_capacity(&keys.vm, vms, facts.place.cpus, errors);
    named().for_each(|virt| virt::refuse_foreign(virt, facts.class, errors));
    match facts.class {
        ClassKind::Linux => Effects::of(&keys.vm, vms, named()),
        // They have none of these mechanisms.
        ClassKind::Credit1 | ClassKind::PowerVm => Effects::default(),
    }
}

/// Checks that the host has threads if there are loads, and that no load has the name of a device.
fn check_loads(keys: &ScenarioKeys, loads: &[&Workload], class: ClassKind, errors: &Collector) {
    let refused = match class {
        ClassKind::Linux => None,
        ClassKind::Credit1 => {
            Some(("Xen has no threads of its own that could be loads", "make it a task of dom0"))
        }
        ClassKind::PowerVm => {
            let message = "PowerVM's hypervisor has no threads that could be loads";
            Some((message, "make it a task of a VM"))
        }
    };
    if let (Some(load), Some((message, help))) = (loads.first(), refused) {
        errors.error_help(load.common.name.span, message, help);
    }
    let devices = keys.host.value.interrupt.iter().map(|device| &device.name);
    for device in devices {
        if loads.iter().any(|load| load.common.name.value == device.value) {
            let help = "results call both host.NAME: give each a name of its own";
            errors.error_help(device.span, "a load has this name", help);
        }
    }
}

/// Checks that everything starts before the run ends.
fn check_starts(keys: &ScenarioKeys, loads: &[&Workload], end_ns: Ns, errors: &Collector) {
    let tasks = keys.vm.iter().flat_map(|vm| &vm.task).map(|task| &task.0);
    for workload in loads.iter().copied().chain(tasks) {
        let start = &workload.common.start;
        if !start.value.login {
            check_before_end(start.value.ns, start.span, end_ns, errors);
        }
    }
}

/// Refuses changes during the run that the host's hypervisor does not have.
fn check_changes(keys: &ScenarioKeys, class: ClassKind, errors: &Collector) {
    for at in &keys.at {
        ClassKind::Linux.only(class, "boost", Placed::span_of(&at.boost), errors);
        ClassKind::Linux.only(class, "policy", Placed::span_of(&at.policy), errors);
        if class != ClassKind::PowerVm {
            ClassKind::Linux.only(class, "prefer", Placed::span_of(&at.prefer), errors);
        }
    }
}

/// Checks that a housekeeping pCPU exists if interrupts are posted.
fn check_housekeeping(keys: &ScenarioKeys, plan: &Plan, policies: &Policies, errors: &Collector) {
    if plan.housekeeping().is_some() {
        return;
    }
    let of_vms = keys.vm.iter().map(|vm| &vm.virt.0);
    // A policy that pins vCPUs may leave a pCPU for housekeeping.
    let keeps = |(name, named): &(&String, &Named)| {
        let mut own = plan.clone();
        named.pinning.apply(name, &mut own).is_err() || own.housekeeping().is_some()
    };
    let of_policies = policies.plans.iter().filter(|(_, named)| named.virt.is_posted());
    let of_policies = of_policies.filter(|named| !keeps(named));
    let of_policies = of_policies.map(|(_, named)| &named.virt);
    virt::refuse_posted(of_vms.chain(of_policies), errors);
}

/// Checks that policies that pin vCPUs have pCPUs for them.
fn check_pins(keys: &ScenarioKeys, plan: &Plan, policies: &Policies, errors: &Collector) {
    for name in &keys.compare.value.policy.value {
        let Some(named) = policies.plans.get(&name.value) else { continue };
        if named.pinning.span().is_some() {
            let mut own = plan.clone();
            match named.pinning.apply(&name.value, &mut own) {
                Ok(()) => deadline::check_pinned(&own, named, errors),
                Err(PolicyMisfit { message, help }) => errors.error_help(name.span, message, help),
            }
        }
    }
}

fn profile(
    keys: &ScenarioKeys,
    outside: &mut ResolveContext<'_, '_>,
    errors: &Collector,
) -> Option<Profile> {
    let Placed { value, span } = &keys.host.value.profile;
    let mut name = value.clone();
    let path = is_path(&name);
    if path {
        name = outside.captures.locate(&name, span.source != 0);
    }
    if let Some(profile) = outside.profiles.get(&name) {
        return Some(profile.clone());
    }
    let found = if path { outside.captures.profile(&name) } else { Profile::load(&name) };
    match found {
        Ok(profile) => {
            outside.profiles.insert(name, profile.clone());
            Some(profile)
        }
        Err(found) => {
            for problem in found.0 {
                if problem.snippet.is_empty() {
                    let help = problem.help.unwrap_or_default();
                    errors.error_help(*span, problem.message, help);
                } else {
                    errors.foreign(problem);
                }
            }
            None
        }
    }
}

fn vms(
    keys: &ScenarioKeys,
    loads: &[&Workload],
    facts: &HostFacts,
    shares: &mut Shares,
    outside: &mut ResolveContext<'_, '_>,
    errors: &Collector,
) -> Option<Vec<VmPlan>> {
    // Reports name loads and VMs side by side ("who ran instead"), so all names differ.
    let names = loads.iter().map(|l| &l.common.name).chain(keys.vm.iter().map(|v| &v.name));
    errors.distinct(names.map(|n| (n.value.0.as_str(), n.span)));
    let mut all = Vec::new();
    let mut complete = true;
    let (mut vcpus, mut tasks) = (0, 0);
    let count: usize = keys.vm.iter().map(|vm| vm.count.value.get() as usize).sum();
    if let Some(last) = keys.vm.last().filter(|_| count > MAX_VMS) {
        let help = "simulate a part of the host: fewer VMs on fewer pCPUs";
        errors.error_help(last.name.span, format!("{count} VMs; at most {MAX_VMS}"), help);
        return None;
    }
    for vm in &keys.vm {
        if vm.name.value.0 == "host" {
            let help = "probes call the host so: choose another name";
            errors.error_help(vm.name.span, "a VM cannot be named `host`", help);
        }
        // A VM that is left out is checked all the same, against groups that are not kept.
        let mut unused = Shares { named: shares.named.clone(), ..Shares::default() };
        let shares = if vm.enabled.value { &mut *shares } else { &mut unused };
        let plan = host::vm(vm, facts, shares, outside.captures, errors);
        complete &= plan.is_some();
        let copies = vm.count.value.get() as usize;
        vcpus += vm.vcpus.value.get() as usize * copies;
        if vcpus > MAX_TOTAL_VCPUS {
            let message = format!("more than {MAX_TOTAL_VCPUS} vCPUs in all");
            errors.error(vm.vcpus.span, message);
            return None;
        }
        tasks += plan.as_ref().map_or(0, |plan| plan.tasks.len()) * copies;
        if tasks > MAX_TASKS {
            errors.error(vm.name.span, format!("more than {MAX_TASKS} guest tasks in all"));
            return None;
        }
        all.extend(
            plan.filter(|_| vm.enabled.value).into_iter().flat_map(|p| copy(p, copies, shares)),
        );
    }
    complete.then_some(all)
}

/// The copies of a VM, each with its own cgroup, domain or partition, if it has one.
fn copy(plan: VmPlan, copies: usize, shares: &mut Shares) -> Vec<VmPlan> {
    if copies == 1 {
        return vec![plan];
    }
    let one = |i: usize| {
        let mut copy = VmPlan { name: format!("{}/{i}", plan.label), ..plan.clone() };
        if i == 0 {
            return copy;
        }
        let number = plan.group.map_or(usize::MAX, usize::from);
        if let Some(domain) = shares.domains.get(number).copied() {
            shares.domains.push(domain);
            copy.group = u16::try_from(shares.domains.len() - 1).ok();
        } else if let Some(partition) = shares.partitions.get(number).copied() {
            shares.partitions.push(partition);
            copy.group = u16::try_from(shares.partitions.len() - 1).ok();
        } else {
            group::copy(&plan, &mut copy, shares);
        }
        copy
    };
    (0..copies).map(one).collect()
}

fn compared(
    keys: &ScenarioKeys,
    policies: &Policies,
    class: ClassKind,
    errors: &Collector,
) -> Option<(Vec<String>, String)> {
    let known: Vec<&str> = policies.plans.keys().map(String::as_str).collect();
    let compare = &keys.compare.value;
    let mut names: Vec<String> = Vec::new();
    // A comparison that is a default is not refused.
    let written = keys.compare.given.iter().any(|(key, _)| key == "policy");
    for name in &compare.policy.value {
        if let Some(PolicyMisfit { message, help }) = policies.unfit(&name.value, class) {
            if written {
                errors.error_help(name.span, message, help);
            }
            continue;
        }
        // Errors in a policy of this file were reported at the policy.
        let own = keys.policy.0.iter().any(|(own, _)| own.value == name.value);
        if !own && !known.contains(&name.value.as_str()) {
            let message = format!("there is no policy `{}`", name.value);
            errors.error_help(name.span, message, nearest(&name.value, "policies", &known));
        } else if names.contains(&name.value) {
            errors.error(name.span, format!("`{}` is compared twice", name.value));
        } else {
            names.push(name.value.clone());
        }
    }
    if compare.policy.value.is_empty() {
        let help = nearest("", "policies", &known);
        errors.error_help(compare.policy.span, "there is no policy to run", help);
    }
    let default = if names.iter().any(|n| n == "vanilla") { "vanilla" } else { names.first()? };
    let baseline = match &compare.baseline {
        None => default.to_owned(),
        Some(baseline) => {
            if !names.contains(&baseline.value) {
                let message = format!("the baseline `{}` is not compared", baseline.value);
                let help = nearest(&baseline.value, "compared", &names);
                errors.error_help(baseline.span, message, help);
            }
            baseline.value.clone()
        }
    };
    Some((names, baseline))
}

/// A task as a probe can name it.
struct Candidate {
    /// `guest.cyclictest/0`, in a copy of a VM `guest/3.cyclictest/0`.
    name: String,
    /// `guest.cyclictest`, `guest/3.cyclictest`.
    group: String,
    /// The series of all copies of its VM: `guest.cyclictest/0`.
    pooled: String,
    /// `guest.cyclictest`.
    pooled_group: String,
    target: Target,
    measures: bool,
    /// It also measures interrupts.
    times_interrupts: bool,
    /// All tasks of its label are one series: they are many, and alike.
    alike: bool,
}

impl Candidate {
    /// The series of a task that `probe` names, or of one that is reported because it measures (`None`).
    fn series(&self, probe: Option<&str>) -> &String {
        let is = |name: &String| probe == Some(name.as_str());
        if is(&self.name) || is(&self.group) && !self.alike {
            &self.name
        } else if is(&self.group) {
            &self.group
        } else if self.alike && !is(&self.pooled) {
            &self.pooled_group
        } else {
            &self.pooled
        }
    }

    /// The probes of it under the name of this series.
    fn probes(&self, series: &str) -> impl Iterator<Item = ProbePlan> + use<> {
        let of = |probe, moment| ProbePlan { probe, target: self.target, moment };
        let interrupt =
            self.times_interrupts.then(|| of(format!("{series}.interrupt"), SampleEnd::Interrupt));
        std::iter::once(of(series.to_owned(), SampleEnd::Task)).chain(interrupt)
    }
}

fn candidates(host_tasks: &[TaskPlan], vms: &[VmPlan]) -> Vec<Candidate> {
    let of = |level: &str, label: &str, task: &TaskPlan, target| Candidate {
        name: format!("{level}.{}", task.name),
        group: format!("{level}.{}", task.label),
        pooled: format!("{label}.{}", task.name),
        pooled_group: format!("{label}.{}", task.label),
        target,
        measures: task.program.measures(),
        times_interrupts: task.program.times_interrupts(),
        alike: matches!(task.program, Program::Routine { .. }),
    };
    let mut all = Vec::new();
    for (vm, plan) in (0..).zip(vms) {
        for (task, t) in (0..).zip(&plan.tasks) {
            all.push(of(&plan.name, &plan.label, t, Target::Guest { vm, task }));
        }
    }
    for (i, task) in (0..).zip(host_tasks) {
        all.push(of("host", "host", task, Target::Host(i)));
    }
    all
}

/// What to report: what `[[probe]]` names, or every task that measures, guests first.
fn probes(
    keys: &ScenarioKeys,
    host_tasks: &[TaskPlan],
    vms: &[VmPlan],
    errors: &Collector,
) -> Vec<ProbePlan> {
    let all = candidates(host_tasks, vms);
    if keys.probe.is_empty() {
        return all.iter().filter(|c| c.measures).flat_map(|c| c.probes(c.series(None))).collect();
    }
    let mut chosen: Vec<ProbePlan> = Vec::new();
    for probe in &keys.probe {
        let Placed { value, span } = &probe.task;
        let one = |c: &Candidate| c.name == *value || c.group == *value;
        let copies = |c: &Candidate| c.pooled == *value || c.pooled_group == *value;
        let named: Vec<&Candidate> = all.iter().filter(|c| one(c) || copies(c)).collect();
        if named.is_empty() {
            if keys.switches_off(value) {
                continue;
            }
            let mut names: Vec<&str> =
                all.iter().filter(|c| c.measures).map(|c| c.pooled_group.as_str()).collect();
            names.dedup();
            let message = format!("the probe names no task: `{}`", value);
            errors.error_help(*span, message, nearest(value, "tasks that measure", &names));
        } else if !named.iter().any(|c| c.measures) {
            let message = format!("`{}` measures nothing", value);
            let help = "kinds that measure: cyclictest, audio, ping, desktop, client, pipe, \
                        schbench, lock-workers, barrier, ipi-bench, timer-bench, \
                        cstate-monitor, rt-app";
            errors.error_help(*span, message, help);
        }
        for candidate in named.into_iter().filter(|c| c.measures) {
            if chosen.iter().any(|p| p.target == candidate.target) {
                errors.error(*span, format!("`{}` is probed twice", candidate.name));
            } else {
                chosen.extend(candidate.probes(candidate.series(Some(value))));
            }
        }
    }
    chosen
}
