//! Replaces Xen's host by this one.
//!
//! The lab has Linux under its guests, no hypervisor below a dom0, and all VMs from the start. An experiment for a Xen
//! host can still be run with the nearest equivalents. They are listed in words, because they matter to a comparison.

use vcoop_credit1::Patches;
use vcoop_model::plan::{HostSched, Ns, Plan, PolicyPlan, Program, StormPlan, Target, VmPlan};
use vcoop_sched::config::{Balance, DlConfig, EevdfTunables, Fair, LevelConfig, RtGuard, Topology};

/// A plan for a host with credit1, changed to Linux, and a list of replacements in words; `None` if its host has Linux
/// already, or if it is about something that only credit1 has (patches, ratelimits).
///
/// dom0's tasks become threads of the host on dom0's pCPUs. VMs of a storm come at the times that follow from its gaps:
/// they are not built, so toolstack and backends are left out. Caps and weights are dropped.
pub fn xen_on_linux(plan: &Plan) -> Option<(Plan, String)> {
    let credit1 = plan.host.sched.credit1()?;
    if credit1.patches != Patches::default() || plan.policy != PolicyPlan::Vanilla {
        return None;
    }
    let mut out = plan.clone();
    out.host.sched = HostSched::Linux(linux(credit1.topology));
    let mut words = vec!["Linux for credit1".to_owned()];
    let called: Vec<Target> = tasks(plan).flat_map(|program| program.servers()).collect();
    let uncalled = |at: Target, program: &Program| {
        matches!(program, Program::Serve { .. }) && !called.contains(&at)
    };

    let dom0 = credit1.domains.iter().position(|domain| domain.privileged);
    let first = out.host_tasks.len() as u32;
    let mut moved = Vec::new();
    if let Some(i) = dom0 {
        let vm = out.vms.remove(i);
        let mut cpus: Vec<u32> = vm.vcpu_cpus.concat();
        cpus.sort_unstable();
        cpus.dedup();
        for (t, mut task) in (0..).zip(vm.tasks) {
            let at = Target::Guest { vm: i as u32, task: t };
            if uncalled(at, &task.program) {
                continue;
            }
            moved.push((at, Target::Host(first + moved.len() as u32)));
            task.cpus.clone_from(&cpus);
            out.host_tasks.push(task);
        }
        words.push(format!("the host for {}", vm.name));
    }
    let to = |at: Target| match at {
        Target::Guest { vm, .. } if dom0 == Some(vm as usize) => {
            moved.iter().find(|(from, _)| *from == at).map_or(at, |(_, to)| *to)
        }
        Target::Guest { vm, task } if dom0.is_some_and(|dom0| vm as usize > dom0) => {
            Target::Guest { vm: vm - 1, task }
        }
        other => other,
    };

    for storm in &plan.storms {
        for (n, &vm) in storm.vms.iter().enumerate() {
            let at = comes(storm, n);
            if let Target::Guest { vm, .. } = to(Target::Guest { vm, task: 0 }) {
                out.vms[vm as usize].tasks.iter_mut().for_each(|task| task.start_ns += at);
            }
        }
        words.push(format!("fixed times for the storm of {}", storm.label));
    }
    out.storms.clear();
    if !out.views.is_empty() {
        words.push("no views".to_owned());
        out.views.clear();
    }
    for vm in &mut out.vms {
        // A domain becomes a process like any other, and each copy a VM of its own.
        vm.group = None;
        vm.vcpu_groups.clear();
        vm.label.clone_from(&vm.name);
    }
    let guests = out.vms.iter_mut().flat_map(|vm: &mut VmPlan| vm.tasks.iter_mut());
    for task in guests.chain(out.host_tasks.iter_mut()) {
        task.program.retarget(&to);
    }
    out.probes.retain(|probe| !uncalled(probe.target, program(plan, probe.target)));
    out.probes.iter_mut().for_each(|probe| probe.target = to(probe.target));
    Some((out, format!("in place of Xen: {}", words.join(", "))))
}

fn tasks(plan: &Plan) -> impl Iterator<Item = &Program> {
    let guests = plan.vms.iter().flat_map(|vm| &vm.tasks);
    plan.host_tasks.iter().chain(guests).map(|task| &task.program)
}

fn program(plan: &Plan, at: Target) -> &Program {
    match at {
        Target::Host(i) => &plan.host_tasks[i as usize].program,
        Target::Guest { vm, task } => &plan.vms[vm as usize].tasks[task as usize].program,
    }
}

/// When the `n`th VM of a storm would come if building took no time.
fn comes(storm: &StormPlan, n: usize) -> Ns {
    storm.begin_ns + n as Ns / Ns::from(storm.batch.max(1)) * storm.gap_ns
}

/// Linux with its defaults.
fn linux(topology: Topology) -> LevelConfig {
    LevelConfig {
        topology,
        tick_ns: 4_000_000,
        fair: Fair::Eevdf(EevdfTunables::for_cpus(topology.cpus())),
        rr_slice_ns: 100_000_000,
        rt_guard: RtGuard::FAIR_SERVER,
        dl: DlConfig::default(),
        balance: Balance::default(),
        groups: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_model::run::Run;
    use vcoop_testing::rig::builtin;

    #[test]
    fn the_host_pings_in_place_of_dom0() {
        let plans = builtin("xen-vmping", &[], &[]);
        let (nopin, how) = xen_on_linux(&plans[0]).unwrap();
        assert!(nopin.host.sched.linux().is_some());
        // dom0 is gone, its toolstack with it, and what pings is a thread of the host.
        assert_eq!(nopin.vms.len(), 61);
        let names: Vec<&str> = nopin.host_tasks.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names, ["vmping"]);
        let servers: Vec<Target> = nopin.host_tasks[0].program.servers().collect();
        let [Target::Guest { vm, task }] = servers[..] else { panic!("{servers:?}") };
        assert_eq!(nopin.vms[vm as usize].tasks[task as usize].name, "pong");
        let probes: Vec<_> = nopin.probes.iter().map(|p| (p.probe.as_str(), p.target)).collect();
        assert_eq!(probes, [("dom0.vmping", Target::Host(0))]);
        assert_eq!(
            how,
            "in place of Xen: Linux for credit1, the host for dom0, fixed times for the storm of \
             burner, no views"
        );
        // VMs come one after the other, each by the gap later.
        let starts: Vec<Ns> = nopin.vms[1..].iter().map(|vm| vm.tasks[0].start_ns).collect();
        assert_eq!(starts[..3], [10_000_000_000, 10_250_000_000, 10_500_000_000]);
        // Exclusive pinning also holds for the host, which stands for dom0.
        let (xpin, _) = xen_on_linux(&plans[1]).unwrap();
        assert_eq!(xpin.host_tasks[0].cpus, [0, 1, 2, 3]);
        assert!(xpin.vms.iter().flat_map(|vm| &vm.vcpu_cpus).flatten().all(|&cpu| cpu >= 4));
    }

    #[test]
    fn what_stands_in_can_be_simulated() {
        let plans =
            builtin("xen-vmping", &[], &["duration=\"700ms\"", "storm.starts.start=\"600ms\""]);
        let (plan, _) = xen_on_linux(&plans[0]).unwrap();
        let recording = vcoop_sim::run(Run::new(&plan, 1)).unwrap();
        assert!(recording.latencies[0].hist.len() > 50);
    }

    #[test]
    fn nothing_stands_in_for_patches_or_for_linux() {
        assert!(xen_on_linux(&builtin("busy-host-1", &[], &[])[0]).is_none());
        let patched = builtin("xen-patches", &[], &[]);
        let named = |name: &str| patched.iter().find(|plan| plan.policy_name == name).unwrap();
        assert!(xen_on_linux(named("ratelimit-auto")).is_none());
        assert!(patched.iter().filter(|plan| xen_on_linux(plan).is_some()).count() < patched.len());
    }
}
