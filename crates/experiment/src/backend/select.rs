//! Chooses backends by `--backend`, and which plans each runs.

use vcoop_lab::{SchedExt, host_facts};
use vcoop_model::distinct;
use vcoop_model::plan::virt::SpinLocks;
use vcoop_model::plan::{HostSched, Plan, PolicyPlan, VmPlan};
use vcoop_policy::config::Means;
use vcoop_policy::repay::LEARNING_NS;

use super::{Backend, Column, Kvm, Sim, SimOfThisHost, Unavailable};
use crate::fit::fit;
use crate::format;
use crate::params;
use crate::result::Missing;
use crate::this_host::ThisHost;
use crate::xen_on_linux::xen_on_linux;

/// A value of `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Real vCPUs with the simulation of this host beside them, if that works; else the simulator of the scenario's
    /// host.
    Auto,
    /// The simulator of the scenario's host.
    Sim,
    /// The micro-VM lab; it must work.
    Kvm,
}

/// Backends and options that the user asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Backends.
    pub choice: Choice,
    /// Scale plans down that need more CPUs than this host has, and replace Xen's host by this one.
    pub fit: bool,
}

/// Backends, and the plans that each runs.
#[derive(Debug, Default)]
pub struct Selection {
    /// The plans, scaled if asked for.
    pub plans: Vec<Plan>,
    /// Backends in the order of the report, and the plans of each.
    backends: Vec<(Box<dyn Backend>, Vec<usize>)>,
    /// What a backend cannot run though it runs other plans.
    pub missing: Vec<Missing>,
    /// How plans were scaled, and what replaces what.
    pub fitted: Option<String>,
    /// What `auto` left out and why: one line for stderr.
    pub note: Option<String>,
    /// What limits the effect of boosts on this host: lines for stderr.
    pub cautions: Vec<String>,
}

impl Selection {
    /// As input for the runner.
    pub fn columns(&self) -> Vec<Column<'_>> {
        let columns = self.backends.iter();
        columns.map(|(b, plans)| Column { backend: &**b, plans: plans.clone() }).collect()
    }

    /// What the live backend is about to do to this host, and the least time for that.
    pub fn announcement(&self) -> Option<String> {
        let (_, plans) = self.backends.iter().find(|(backend, _)| backend.is_live())?;
        let own = || plans.iter().filter_map(|&plan| self.plans.get(plan));
        let runs: u32 = own().map(|plan| plan.repeats).sum();
        let time = |plan: &Plan| (plan.warmup_ns + plan.duration_ns) * u64::from(plan.repeats);
        let time = format::time(own().map(time).sum::<u64>() as f64 / 1e3);
        let cpus = own().map(|plan| plan.host.sched.cpus()).max().unwrap_or(0);
        let threads = |plan: &Plan| plan.vms.iter().map(|vm| vm.vcpu_cpus.len()).sum::<usize>();
        let (vcpus, tasks) = (own().map(threads).max()?, own().map(|p| p.host_tasks.len()).max()?);
        let runs = format::count(runs.into(), "run");
        let cpus = format::count(cpus.into(), "CPU");
        let real_time = own().filter(|plan| is_real_time(plan));
        let names = distinct(real_time.map(|plan| plan.policy_name.as_str()));
        let real_time = match names.as_slice() {
            [] => String::new(),
            names => format!(", and so are those of vCPUs under {}", names.join(", ")),
        };
        Some(format!(
            "measuring on this host takes {time} or longer, for {runs}. The lab starts threads on {cpus} of \
             this host: {vcpus} for vCPUs, {tasks} for loads and probes. One thread of the lab is \
             real-time{real_time}. The threads slow down whatever else runs on these CPUs, and its CPU time \
             is measured. Ctrl-C ends the measurement and leaves this host as it was before"
        ))
    }

    /// Whether anything is measured live.
    pub fn is_live(&self) -> bool {
        self.backends.iter().any(|(backend, _)| backend.is_live())
    }
}

/// Turns a request into backends, with the plans that each runs. A live backend runs what it can of a table and reports
/// the rest; if it can run nothing, it is not selected.
///
/// # Errors
///
/// The backend that was asked for by name cannot run here, or none of the plans on it.
pub fn select(request: Request, plans: Vec<Plan>) -> Result<Selection, Unavailable> {
    let (plans, fitted) = if request.fit { fitted(plans) } else { (plans, None) };
    let mut selection = Selection { plans, fitted, ..Selection::default() };
    selection.cautions.extend(learning(&selection.plans));
    selection.cautions.extend(bare_locks(&selection.plans));
    selection.cautions.extend(overloaded(&selection.plans));
    let simulate = |mut selection: Selection, note: Option<String>| {
        let all = (0..selection.plans.len()).collect();
        selection.backends.push((Box::new(Sim), all));
        selection.note = note;
        selection
    };
    if request.choice == Choice::Sim {
        return Ok(simulate(selection, None));
    }
    let live = match live(&selection.plans) {
        Ok(live) => live,
        Err(why) if request.choice == Choice::Kvm => return Err(why),
        Err(why) => {
            let note = format!("simulating the host that the scenario describes ({})", why.what);
            return Ok(simulate(selection, Some(note)));
        }
    };
    if request.choice == Choice::Auto {
        let here = SimOfThisHost(ThisHost::look());
        let how = here.0.describe();
        let costs = selection.plans.first().map_or("", |plan| &plan.host.profile);
        selection.note = Some(format!(
            "simulating this host beside it: {how}; costs of profile {costs} (`vcoop calibrate -o FILE` \
             measures this host's, --calibration FILE takes them)"
        ));
        selection.backends.push((Box::new(here), live.plans.clone()));
    }
    let run = live.plans.iter().map(|&plan| &selection.plans[plan]);
    let caution = host_facts().sched_ext.and_then(|loaded| caution(&loaded, run));
    selection.cautions.extend(caution);
    selection.backends.push((Box::new(Kvm), live.plans));
    selection.missing = live.missing;
    Ok(selection)
}

/// A caution if policies are measured before they begin to boost.
fn learning(plans: &[Plan]) -> Option<String> {
    let learns = |plan: &&Plan| plan.policy.repays() && plan.warmup_ns < LEARNING_NS;
    let plan = plans.iter().find(learns)?;
    Some(format!(
        "{} gives boosts back, and does not boost in its first {}; the warm-up is {}",
        plan.policy_name,
        format::time(LEARNING_NS as f64 / 1e3),
        format::time(plan.warmup_ns as f64 / 1e3),
    ))
}

/// A caution about a VM whose vCPUs share pCPUs and that has bare-metal spinlocks in all plans, which no guest has by
/// default.
fn bare_locks(plans: &[Plan]) -> Option<String> {
    let bare = |plan: &Plan, label: &str| {
        let mut own = plan.vms.iter().filter(|vm| vm.label == label);
        own.any(|vm| has_bare_locks(plan, vm))
    };
    let mut labels = plans.first()?.vms.iter().map(|vm| &vm.label);
    let label = labels.find(|label| plans.iter().all(|plan| bare(plan, label)))?;
    Some(format!(
        "{label} takes spinlocks as on bare metal and shares pCPUs; guests of KVM have paravirtual ones by \
         default: hints = \"shared\", or spinlocks = \"native\" under one policy to compare"
    ))
}

fn has_bare_locks(plan: &Plan, vm: &VmPlan) -> bool {
    matches!(plan.host.sched, HostSched::Linux(_))
        && vm.virt.spin.locks == SpinLocks::Queued
        && !vm.virt.dedicated
        && vm.tasks.iter().any(|task| task.program.takes_spinlocks())
        && vm.vcpu_cpus.iter().any(|cpus| are_shared(plan, cpus))
}

/// Whether these pCPUs may have more vCPUs than pCPUs; an empty list stands for all.
fn are_shared(plan: &Plan, cpus: &[u32]) -> bool {
    let n = if cpus.is_empty() { plan.host.sched.cpus() as usize } else { cpus.len() };
    let meets = |other: &&Vec<u32>| {
        cpus.is_empty() || other.is_empty() || other.iter().any(|c| cpus.contains(c))
    };
    plan.vms.iter().flat_map(|vm| &vm.vcpu_cpus).filter(meets).count() > n
}

/// A caution about a task that needs a whole CPU or more, and so is late under any policy.
fn overloaded(plans: &[Plan]) -> Option<String> {
    let tasks = plans.iter().flat_map(|plan| {
        let guests = plan.vms.iter().map(|vm| (vm.label.as_str(), &vm.tasks));
        guests.chain([("host", &plan.host_tasks)])
    });
    let tasks = tasks.flat_map(|(of, tasks)| tasks.iter().map(move |task| (of, task)));
    let mut needs = tasks.filter_map(|(of, task)| Some((of, task, task.program.demand()?)));
    let (of, task, (work, period)) = needs.find(|(.., (work, period))| work >= period)?;
    Some(format!(
        "{of}.{} needs {} of CPU time every {}: one CPU cannot do that, and it misses periods under every policy",
        task.label,
        format::time(work as f64 / 1e3),
        format::time(period as f64 / 1e3),
    ))
}

/// A caution about a loaded sched_ext scheduler, if plans need the fair class.
fn caution<'p>(loaded: &SchedExt, mut plans: impl Iterator<Item = &'p Plan>) -> Option<String> {
    let found = plans.find(|plan| loaded.takes_fair && sets_nice_or_slice(plan))?;
    Some(format!(
        "the sched_ext scheduler {} schedules this host's fair threads: nice values and slices, \
         which policy {} sets, do nothing unless it reads them",
        loaded.ops, found.policy_name
    ))
}

/// Whether the policy of a plan gives vCPUs a class above the fair one, boosted or not.
fn is_real_time(plan: &Plan) -> bool {
    let own = plan.vms.iter().flat_map(|vm| &vm.vcpu_means).copied();
    let above = |means: Means| !matches!(means, Means::Nice(_) | Means::Slice(_) | Means::Ext);
    plan.policy.means().is_some_and(|means| {
        let mut own = own.peekable();
        if own.peek().is_none() { above(means) } else { own.any(|own| above(own.unwrap_or(means))) }
    })
}

/// Whether the policy of a plan gives vCPUs a nice value or a slice, boosted or not.
fn sets_nice_or_slice(plan: &Plan) -> bool {
    let Some(means) = plan.policy.means() else { return false };
    let at_rest = match &plan.policy {
        PolicyPlan::Dynamic(config) => config.repay || config.rest_slice_ns.is_some(),
        PolicyPlan::WakeBoost(config) => config.repay || config.rest_slice_ns.is_some(),
        _ => false,
    };
    let own = plan.vms.iter().flat_map(|vm| &vm.vcpu_means);
    let fair =
        |own: &Option<Means>| matches!(own.unwrap_or(means), Means::Nice(_) | Means::Slice(_));
    at_rest || own.into_iter().any(fair)
}

/// Plans that the lab runs, and those that it does not.
struct Live {
    plans: Vec<usize>,
    missing: Vec<Missing>,
}

fn live(plans: &[Plan]) -> Result<Live, Unavailable> {
    Kvm.available()?;
    let mut live = Live { plans: Vec::new(), missing: Vec::new() };
    let mut first = None;
    for (i, plan) in plans.iter().enumerate() {
        match Kvm.check(plan) {
            Ok(()) => live.plans.push(i),
            Err(why) => {
                live.missing.push(Missing {
                    backend: Kvm.name().to_owned(),
                    policy: plan.policy_name.clone(),
                    params: params::short(&plan.params),
                    why: why.what.clone(),
                    remedy: why.remedy.clone(),
                });
                first.get_or_insert(why);
            }
        }
    }
    match first {
        Some(why) if live.plans.is_empty() => Err(why),
        _ => Ok(live),
    }
}

fn fitted(plans: Vec<Plan>) -> (Vec<Plan>, Option<String>) {
    let cpus = ThisHost::look().cpus();
    let mut words = None;
    let plans = plans.into_iter().map(|plan| {
        let (plan, stands_in) = match xen_on_linux(&plan) {
            Some((plan, how)) => (plan, Some(how)),
            None => (plan, None),
        };
        let (plan, scaled) = match fit(&plan, cpus) {
            Some((plan, how)) => (plan, Some(how)),
            None => (plan, None),
        };
        let how: Vec<String> = stands_in.into_iter().chain(scaled).collect();
        if !how.is_empty() {
            words.get_or_insert(how.join("; "));
        }
        plan
    });
    (plans.collect(), words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_testing::rig::builtin;
    use vcoop_testing::{Skip, need_kvm};

    fn plans(cpus: u32) -> Vec<Plan> {
        let shape = format!("host.topology.cores_per_llc={cpus}");
        builtin("busy-host-1", &[], &[&format!("host.pcpus={cpus}"), &shape])
    }

    fn request(choice: Choice) -> Request {
        Request { choice, fit: false }
    }

    fn names(selection: &Selection) -> Vec<&'static str> {
        selection.columns().iter().map(|column| column.backend.name()).collect()
    }

    #[test]
    fn sim_by_name_simulates_what_the_scenario_describes() {
        let selection = select(request(Choice::Sim), plans(2)).unwrap();
        assert_eq!(names(&selection), ["sim"]);
        assert!(!selection.is_live() && selection.note.is_none());
        assert_eq!(selection.announcement(), None);
        assert_eq!(selection.columns()[0].plans.len(), selection.plans.len());
    }

    #[test]
    fn locks_that_no_guest_has_by_default_are_said() {
        let said = |scenario: &str, sets: &[&str]| bare_locks(&builtin(scenario, &[], sets));
        let bare = said("governor-loads", &["vm.work.spinlocks=\"native\""]).unwrap();
        assert!(bare.starts_with("work takes spinlocks as on bare metal"), "{bare}");
        assert_eq!(said("governor-loads", &[]), None, "it says how they are");
        assert_eq!(said("spinlock-overcommit", &[]), None, "a policy has paravirtual ones");
        assert_eq!(said("busy-host-1", &[]), None, "there are none");
        let alone = ["vm.work.spinlocks=\"native\"", "vm.neighbour.enabled=false"];
        assert_eq!(said("governor-loads", &alone), None, "it has its pCPUs to itself");
    }

    #[test]
    fn a_task_that_needs_more_than_a_cpu_is_said() {
        let said = |sets: &[&str]| overloaded(&builtin("busy-host-1", &[], sets));
        let task = |work: &str| format!("vm.guest.task.cyclictest.work=\"{work}\"");
        let late = said(&[&task("1500us"), "vm.guest.task.cyclictest.interval=1ms"]).unwrap();
        assert!(
            late.starts_with("guest.cyclictest needs 1.50 ms of CPU time every 1.00 ms"),
            "{late}"
        );
        assert_eq!(said(&[&task("900us"), "vm.guest.task.cyclictest.interval=1ms"]), None);
    }

    #[test]
    fn auto_on_a_host_that_is_too_small_simulates_and_says_why() {
        let selection = select(request(Choice::Auto), plans(1000));
        let selection = selection.unwrap();
        assert_eq!(names(&selection), ["sim"]);
        assert!(selection.note.unwrap().starts_with("simulating the host that the scenario"));
    }

    #[test]
    fn kvm_by_name_works_or_is_refused_with_a_remedy() {
        match select(request(Choice::Kvm), plans(1000)) {
            Ok(_) => panic!("no test machine has so many CPUs"),
            Err(why) => assert!(why.what.contains("kvm") && !why.remedy.is_empty()),
        }
    }

    #[test]
    fn a_policy_that_has_not_learned_yet_is_named() {
        let said = |warmup| {
            let mut plans = plans(2);
            plans.iter_mut().for_each(|plan| plan.warmup_ns = warmup);
            select(request(Choice::Sim), plans).unwrap().cautions
        };
        let early = said(20_000_000).concat();
        assert!(early.contains("dynamic") && early.ends_with("the warm-up is 20.0 ms"), "{early}");
        assert!(said(300_000_000).is_empty());
    }

    #[test]
    fn a_policy_that_a_sched_ext_scheduler_may_not_heed_is_named() {
        let said = |takes_fair, sets: &[&str]| {
            let loaded = SchedExt { ops: "scx_rusty".to_owned(), takes_fair };
            caution(&loaded, builtin("busy-host-1", &[], sets).iter())
        };
        let fifo = ["policy.dynamic.repay=false", "policy.dynamic.rest_slice=0us"];
        assert_eq!(said(true, &fifo), None, "FIFO is above it");
        let sets = [fifo[0], fifo[1], "policy.dynamic.means=nice -20", "vm.guest.means=nice -10"];
        for sets in [&fifo[..1], &fifo[1..], &sets[..3]] {
            let text = said(true, sets).unwrap();
            assert!(text.contains("scx_rusty") && text.contains("policy dynamic"), "{text}");
            assert_eq!(said(false, sets), None, "fair threads are the kernel's own");
        }
        let own = said(true, &[sets[0], sets[1], sets[3]]).unwrap();
        assert!(own.contains("policy wake-boost"), "a VM's own means count: {own}");
    }

    #[test]
    fn auto_where_it_fits_stands_side_by_side() {
        if let Err(skip) = need_kvm(vcoop_lab::available()) {
            return skip.tell();
        }
        // The scenario needs two CPUs, and one is as good here.
        let selection = select(request(Choice::Auto), plans(1));
        let selection = selection.unwrap();
        assert_eq!(names(&selection), ["sim", "kvm"]);
        assert!(selection.is_live() && selection.missing.is_empty());
        let said = selection.announcement().unwrap();
        assert!(
            said.contains("on 1 CPU of this host") && said.contains(", dynamic, static"),
            "{said}"
        );
    }

    #[test]
    fn what_is_too_big_fits_when_scaled() {
        if let Err(skip) = need_kvm(vcoop_lab::available()) {
            return skip.tell();
        }
        let mut request = request(Choice::Kvm);
        request.fit = true;
        match select(request, plans(1000)) {
            Ok(selection) => assert!(selection.fitted.unwrap().contains("1000")),
            Err(why) => Skip::because(why).tell(),
        }
    }

    #[test]
    fn an_experiment_of_xen_runs_live_when_the_host_may_stand_in() {
        if let Err(skip) = need_kvm(vcoop_lab::available()) {
            return skip.tell();
        }
        let plans = || builtin("xen-vmping", &[], &[]);
        select(request(Choice::Kvm), plans()).unwrap_err();
        let request = Request { fit: true, ..request(Choice::Kvm) };
        let selection = select(request, plans()).unwrap();
        assert_eq!(names(&selection), ["kvm"]);
        assert!(selection.missing.is_empty());
        assert!(selection.fitted.unwrap().contains("the host for dom0"));
    }
}
