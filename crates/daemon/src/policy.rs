//! Policies by name, as far as they can be applied to a running VM.

use vcoop_bpf::Rules;
use vcoop_model::capture::NoCaptures;
use vcoop_model::diagnostic::Diagnostics;
use vcoop_model::limits::{MAX_PCPUS, MAX_VCPUS};
use vcoop_model::plan::{Plan, PolicyPlan};
use vcoop_model::running_vm::RunningVm;
use vcoop_model::scenario::{POLICIES, Scenario, Set, is_of_virtualisation};
use vcoop_policy::config::{Means, Ns};
use vcoop_text::quoted;
use vcoop_threads::{allowed_cpus, cpu_list};
use vcoop_vmm::{Accel, Role, Source, VcpuThread, Vm, Vmm};

use crate::protocol::Refusal;

/// Highest real-time priority of a boosted thread. The engine's thread has to be above it, or a boosted vCPU could
/// prevent the end of its own boost.
pub(crate) const MOST_PRIORITY: u8 = ENGINE_PRIORITY - 1;
/// Real-time priority of the engine's thread.
pub(crate) const ENGINE_PRIORITY: u8 = 90;

/// How long a thread that delivers timers is boosted after a wake-up. It wakes up for each timer, and its work then
/// takes some 10 us: an event every few hundred wake-ups is enough.
const TIMERS_RUN_NS: Ns = 4_000_000;

/// A found VM, for its scenario.
pub fn living(vm: &Vm) -> RunningVm {
    RunningVm {
        name: vm.name.clone(),
        vcpus: vm.vcpus.len().max(1),
        pcpus: allowed_cpus().map_or(1, |cpus| cpus.len()),
    }
}

/// The plan of a VM under a policy. `sets`: `PATH=VALUE`, as `--set` has them.
///
/// # Errors
///
/// The policy or a set is not known, or the policy needs something that only the guest can provide.
pub(crate) fn policy(vm: &RunningVm, name: &str, sets: &[String]) -> Result<Plan, Refusal> {
    planned(vm, name, sets).map_err(Refusal::usage)
}

/// What is wrong with a policy or its sets.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum PolicyError {
    Said(#[from] Refusal),
    /// Each with its place in a set.
    Diagnosed(#[from] Diagnostics),
}

/// As [`policy`], with the places of what is wrong.
pub(crate) fn planned(vm: &RunningVm, name: &str, sets: &[String]) -> Result<Plan, PolicyError> {
    let plan = scenario(vm, &[name], sets)?.plans(None)?.into_iter().next();
    let plan = plan.ok_or_else(|| Refusal::usage(format!("{name}: nothing to apply")))?;
    fits(&plan)?;
    Ok(plan)
}

/// Whether such policies with such sets exist, for any VM.
///
/// # Errors
///
/// A policy or a set is not known, or a set has a wrong value.
pub fn could_be(policies: &[&str], sets: &[String]) -> Result<(), Refusal> {
    let (vcpus, pcpus) = (MAX_VCPUS as usize, MAX_PCPUS as usize);
    let any = RunningVm { name: "VM".to_owned(), vcpus, pcpus };
    scenario(&any, policies, sets).map(drop).map_err(Refusal::usage)
}

/// The scenario of a VM under policies.
fn scenario(vm: &RunningVm, policies: &[&str], sets: &[String]) -> Result<Scenario, PolicyError> {
    if let Some(name) = policies.iter().find(|name| !POLICIES.contains(name)) {
        let some = |known: &&str| policy(vm, known, &[]).is_ok();
        let some: Vec<&str> = POLICIES.into_iter().filter(some).collect();
        let why = format!("there is no policy `{name}`");
        return Err(Refusal::usage(format!("{why}\n  remedy: one of {}", some.join(", "))).into());
    }
    are_settings_of(policies, sets)?;
    let parsed: Vec<Set> = sets.iter().map(|set| Set::parse(set)).collect::<Result<_, _>>()?;
    let policies: Vec<String> = policies.iter().map(|&name| name.to_owned()).collect();
    Ok(Scenario::parse(&vm.name, &vm.scenario(&policies), &parsed, &NoCaptures)?)
}

/// Whether sets are settings of these policies: other keys of a scenario describe a simulation, and have no effect
/// here.
///
/// # Errors
///
/// A set is no such setting.
fn are_settings_of(policies: &[&str], sets: &[String]) -> Result<(), Refusal> {
    for set in sets {
        let Some(key) = policies.iter().find_map(|name| setting_of(name, set)) else {
            let path = set.split('=').next().unwrap_or(set).trim();
            let name = policies.iter().find(|name| **name != "vanilla").unwrap_or(&"NAME");
            let why = format!("`{path}` is no setting of a policy that is applied");
            return Err(Refusal::usage(format!("{why}\n  remedy: policy.{name}.KEY=VALUE")));
        };
        if is_of_machine(key) {
            return Err(Refusal::usage(format!(
                "`{key}` is how a VM is run, and vcoop changes that of no VM that runs\n  remedy: leave it out; \
                 `vcoop run` simulates it"
            )));
        }
    }
    Ok(())
}

/// The key of a policy that `policy.NAME.KEY=VALUE` sets; `None`: the set is about something else.
pub fn setting_of<'s>(policy: &str, set: &'s str) -> Option<&'s str> {
    let path = set.split('=').next()?.trim();
    path.strip_prefix("policy.")?.strip_prefix(policy)?.strip_prefix('.')
}

/// Whether a key of a policy's table describes the VM, which only a simulated policy can change.
fn is_of_machine(key: &str) -> bool {
    key == "load_cpus" || is_of_virtualisation(key) && !key.starts_with("governor")
}

/// The policies that work without a driver in the guest, in words.
const WITHOUT: &str = "without the guest's help there are vanilla, static and wake-boost";

/// Whether a plan's policy can be applied to a VM. If [`needs_driver`] holds, its guest needs a driver.
///
/// # Errors
///
/// Why not.
pub fn fits(plan: &Plan) -> Result<(), Refusal> {
    let name = &plan.policy_name;
    let pins: Vec<String> = plan
        .vms
        .iter()
        .flat_map(|vm| vm.vcpu_cpus.iter().enumerate())
        .filter(|(_, cpus)| !cpus.is_empty())
        .map(|(vcpu, cpus)| format!("virsh vcpupin VM {vcpu} {}", cpu_list(cpus)))
        .collect();
    if !pins.is_empty() {
        return Err(Refusal::usage(format!(
            "{name} pins vCPUs, and vcoop changes the affinity of no thread\n  remedy: {}, or `taskset -cp CPUS \
             TID` for the thread of each (`vcoop vms` shows them)",
            pins.join("; ")
        )));
    }
    if let Some(kind) = plan.governor(0).map(|governor| governor.kind)
        && !kind.is_the_hosts()
    {
        let governor = kind.name();
        return Err(Refusal::usage(format!(
            "{name} goes by the steal that a guest sees: it is the guest's own\n  remedy: `vcoop guest \
             --governor {governor}` in the guest, or host-hint here"
        )));
    }
    if kernel_rules(&plan.policy).is_some()
        && let Some(key) = account_of(&plan.policy)
    {
        return Err(Refusal::usage(format!(
            "{name} has `{key}`, which does nothing with the means `ext`: boosted time counts there like any other\n  \
             remedy: leave {key} out, or another means"
        )));
    }
    match plan.policy.means() {
        Some(Means::Ext) if matches!(plan.policy, PolicyPlan::Static { .. }) => {
            Err(Refusal::usage(format!(
                "{name} is not decided in the kernel: the means `ext` is for wake-boost and dynamic\n  remedy: \
             another means, or one of these"
            )))
        }
        Some(Means::Fifo(priority) | Means::Rr(priority)) if priority > MOST_PRIORITY => {
            Err(Refusal::usage(format!(
                "{name} boosts to real-time priority {priority}; vcoop's own thread has \
                 {ENGINE_PRIORITY} and has to be above\n  remedy: a priority up to {MOST_PRIORITY}"
            )))
        }
        _ => Ok(()),
    }
}

/// The key by which a policy is told to repay boosts, if it has one.
fn account_of(policy: &PolicyPlan) -> Option<&'static str> {
    let (repay, rest_slice) = match policy {
        PolicyPlan::WakeBoost(config) => (config.repay, config.rest_slice_ns),
        PolicyPlan::Dynamic(config) => (config.repay, config.rest_slice_ns),
        _ => return None,
    };
    if repay { Some("repay") } else { rest_slice.map(|_| "rest_slice") }
}

/// The thread of an emulated VM that delivers its timers, and its policy, if the VM's vCPUs are boosted: otherwise they
/// would wait, boosted, for a thread that is not. QEMU delivers timers in its main thread; under KVM the kernel does.
///
/// # Errors
///
/// Does not happen for a VM's plan.
pub(crate) fn timers(vm: &Vm, of: &Plan) -> Result<Option<(VcpuThread, Box<Plan>)>, Refusal> {
    let Some(means) = of.policy.means().filter(|_| of.policy.boosts()) else { return Ok(None) };
    let main = vm.others.iter().find(|other| other.role == Role::Main);
    let Some(main) = main.filter(|_| vm.accel == Accel::Tcg && vm.vmm == Vmm::Qemu) else {
        return Ok(None);
    };
    let alone = RunningVm { vcpus: 1, ..living(vm) };
    let mut plan = policy(&alone, "wake-boost", &[])?;
    if let PolicyPlan::WakeBoost(config) = &mut plan.policy {
        config.means = below(means);
        config.run_ns = TIMERS_RUN_NS;
    }
    let thread = VcpuThread {
        index: 0,
        kvm_id: None,
        thread: main.thread.clone(),
        source: Source::ThreadName,
    };
    Ok(Some((thread, Box::new(plan))))
}

/// Means that are less urgent, if there are any.
///
/// A real-time thread that is woken on the CPU of an equal one goes to another CPU (`select_task_rq_rt` of the kernel):
/// a vCPU would change its CPU at each timer that wakes it. One that is more urgent preempts the waker and stays.
fn below(means: Means) -> Means {
    match means {
        Means::Fifo(priority) => Means::Fifo(priority.saturating_sub(1).max(1)),
        Means::Rr(priority) => Means::Rr(priority.saturating_sub(1).max(1)),
        other => other,
    }
}

/// Whether a plan's policy exchanges anything with the guest's driver.
pub fn needs_driver(plan: &Plan) -> bool {
    listens(plan) || plan.governor(0).is_some()
}

/// The rules that `scx_vcoop` gets of a policy that it decides.
pub(crate) fn kernel_rules(policy: &PolicyPlan) -> Option<Rules> {
    match policy {
        PolicyPlan::WakeBoost(config) if config.means == Means::Ext => {
            Some(Rules::WakeBoost(*config))
        }
        PolicyPlan::Dynamic(config) if config.means == Means::Ext => Some(Rules::Dynamic(*config)),
        _ => None,
    }
}

/// Whether a plan's policy uses the guest's words.
pub(crate) fn listens(plan: &Plan) -> bool {
    matches!(plan.policy, PolicyPlan::Dynamic(_))
}

/// Refusal of a policy that needs a driver, for a VM whose guest has none.
pub fn no_driver(vm: &str, policy: &str) -> Refusal {
    Refusal::missing(format!(
        "{policy} talks with the guest's driver, and no driver says anything in {vm}\n  remedy: \
         `vcoop vms --how {}` says how to load one; {WITHOUT}",
        quoted(vm)
    ))
}

#[cfg(test)]
mod tests {
    use vcoop_policy::config::Means;

    use super::{RunningVm, below, no_driver, policy};

    fn vm() -> RunningVm {
        RunningVm { name: "web".to_owned(), vcpus: 2, pcpus: 2 }
    }

    #[test]
    fn what_works_from_outside_is_taken_and_the_rest_refused_with_a_remedy() {
        for name in
            ["vanilla", "static", "wake-boost", "dynamic", "host-hint", "entitlement", "hotplug"]
        {
            assert_eq!(policy(&vm(), name, &[]).unwrap().policy_name, name);
        }
        for name in ["step", "proportional"] {
            let why = policy(&vm(), name, &[]).unwrap_err().to_string();
            assert!(why.contains(&format!("vcoop guest --governor {name}")), "{name}: {why}");
        }
        for name in ["pinned", "isolated"] {
            let why = policy(&vm(), name, &[]).unwrap_err().to_string();
            assert!(why.contains("virsh vcpupin VM 1 1"), "{name}: {why}");
        }
        let without = no_driver("my web", "dynamic");
        assert!(without.missing, "a guest without it lacks something");
        assert!(without.to_string().contains("`vcoop vms --how 'my web'`"), "{without}");
        let why = policy(&vm(), "ratelimit-auto", &[]).unwrap_err().to_string();
        assert!(why.contains("Linux's scheduler has none"), "{why}");
        let why = policy(&vm(), "wakeboost", &[]).unwrap_err().to_string();
        assert!(
            why.ends_with(
                "one of vanilla, wake-boost, dynamic, static, entitlement, host-hint, hotplug"
            ),
            "{why}"
        );
    }

    #[test]
    fn who_delivers_timers_is_less_urgent_than_the_vcpus() {
        assert_eq!(below(Means::Rr(8)), Means::Rr(7));
        assert_eq!(below(Means::Fifo(2)), Means::Fifo(1));
        for least in [Means::Fifo(1), Means::Rr(1), Means::Nice(-5), Means::Slice(1_000_000)] {
            assert_eq!(below(least), least);
        }
    }

    #[test]
    fn a_key_that_does_nothing_in_the_kernel_is_refused() {
        let with = |name: &str, keys: &[&str]| {
            let sets: Vec<String> = keys.iter().map(|key| format!("policy.{name}.{key}")).collect();
            policy(&vm(), name, &sets).map_err(|why| why.to_string())
        };
        for name in ["wake-boost", "dynamic"] {
            assert!(with(name, &["means=ext"]).is_ok(), "{name}");
            for key in ["repay=true", "rest_slice=700us"] {
                assert!(with(name, &[key]).is_ok(), "{name} {key}");
                let why = with(name, &["means=ext", key]).unwrap_err();
                let key = key.split('=').next().unwrap();
                assert!(why.contains(&format!("leave {key} out")), "{why}");
            }
        }
        assert!(with("dynamic", &["means=ext", "boost_receiver=true"]).is_ok());
    }

    #[test]
    fn sets_apply_and_no_boost_outranks_the_engine() {
        let set = |text: &str| policy(&vm(), "wake-boost", &[text.to_owned()]);
        assert!(set("policy.wake-boost.means=\"fifo 89\"").is_ok());
        let why = set("policy.wake-boost.means=\"fifo 90\"").unwrap_err().to_string();
        assert!(why.contains("up to 89"), "{why}");
        assert!(set("policy.wake-boost.runn=1ms").is_err());
        let refused = [
            "policy.wake-boost.timer=hv-timer",
            "policy.wake-boost.halt_poll=1ms",
            "policy.wake-boost.load_cpus=others",
            "policy.dynamic.longest_boost=1ms",
            "host.pcpus=3",
            "vm.web.vcpu_policy=\"fifo 3\"",
        ];
        for text in refused {
            let why = set(text).unwrap_err().to_string();
            assert!(why.starts_with('`') && why.contains("remedy"), "{text}: {why}");
        }
    }
}
