//! Scaling an experiment to a smaller host.

use std::collections::BTreeMap;
use std::sync::Arc;

use vcoop_model::plan::{Plan, ProbePlan, Program, Step, Target, TaskPlan, TimelineAction, VmPlan};
use vcoop_sched::config::Topology;

/// A plan scaled down in proportion to so many pCPUs, with a description; `None` if it fits as it is.
///
/// vCPUs of each VM, threads of each load and tasks of each guest are reduced in proportion, to at least one. If that
/// leaves more vCPUs a pCPU than before, VMs that measure nothing and that no task outside of them calls are left out,
/// the last first. Captured threads stay together, each with its share of the CPU demand. Pinned threads stay at the
/// same place in the row of CPUs.
pub fn fit(plan: &Plan, cpus: u32) -> Option<(Plan, String)> {
    let from = plan.host.sched.cpus();
    if from <= cpus || cpus == 0 {
        return None;
    }
    let mut fitted = plan.clone();
    *fitted.host.sched.topology_mut() = Topology::flat(cpus);
    fitted.host.nohz_full = places(&plan.host.nohz_full, cpus, from);
    if fitted.host.nohz_full.len() == cpus as usize {
        fitted.host.nohz_full.remove(0);
    }
    for device in &mut fitted.host.interrupts {
        device.cpus = places(&device.cpus, cpus, from);
    }
    let (tasks, kept) = scaled(&plan.host_tasks, cpus, from);
    fitted.host_tasks = tasks;
    let vms = kept_vms(plan, cpus, from);
    fitted.vms = vms.iter().map(|kept| kept.vm.clone()).collect();
    let to = |at: Target| moved(at, plan, &kept, &vms);
    let guests = fitted.vms.iter_mut().flat_map(|vm| vm.tasks.iter_mut());
    for task in fitted.host_tasks.iter_mut().chain(guests) {
        task.program.retarget(&to);
    }
    fitted.probes = probes(plan, &kept, &vms);
    move_timeline(&mut fitted, &vms);
    let (before, after) = (vcpus(&plan.vms), vcpus(&fitted.vms));
    let (threads, of) = (fitted.host_tasks.len(), plan.host_tasks.len());
    let change = |from: usize, to: usize, what: &str| match from == to {
        true => format!("{from} {what} as before"),
        false => format!("{from} to {to} {what}"),
    };
    let vcpus = change(before, after, "vCPUs");
    let threads = change(of, threads, "host threads");
    let mut how = format!("scaled from {from} to {cpus} pCPUs: {vcpus}, {threads}");
    let dropped = plan.vms.len() - vms.len();
    if dropped > 0 {
        how.push_str(&format!(", {dropped} of {} VMs left out", plan.vms.len()));
    }
    Some((fitted, how))
}

/// New indices of the kept tasks.
type KeptTasks = BTreeMap<usize, usize>;

/// A kept VM.
struct KeptVm {
    /// Its number in the whole plan.
    number: usize,
    vm: VmPlan,
    tasks: KeptTasks,
}

/// New index of a VM of the whole plan.
fn place_of(vms: &[KeptVm], vm: u32) -> Option<usize> {
    vms.iter().position(|kept| kept.number == vm as usize)
}

fn vcpus<'v>(vms: impl IntoIterator<Item = &'v VmPlan>) -> usize {
    vms.into_iter().map(|vm| vm.vcpu_cpus.len()).sum()
}

/// The smaller VMs, without those that can be spared while there are too many vCPUs.
fn kept_vms(plan: &Plan, cpus: u32, from: u32) -> Vec<KeptVm> {
    let smaller = |(number, vm)| {
        let (vm, tasks) = smaller(vm, cpus, from);
        KeptVm { number, vm, tasks }
    };
    let mut vms: Vec<KeptVm> = plan.vms.iter().enumerate().map(smaller).collect();
    let wanted = shrink(vcpus(&plan.vms), cpus, from);
    while vcpus(vms.iter().map(|kept| &kept.vm)) > wanted {
        let Some(last) = vms.iter().rposition(|kept| can_be_spared(plan, kept.number)) else {
            break;
        };
        vms.remove(last);
    }
    vms
}

/// Whether a VM measures nothing, has no changes in the timeline, and is not called from outside.
fn can_be_spared(plan: &Plan, number: usize) -> bool {
    let is_in = |at: Target| matches!(at, Target::Guest { vm, .. } if vm as usize == number);
    let measures = plan.probes.iter().any(|probe| is_in(probe.target));
    let timed = plan.timeline.iter().any(|event| match event.action {
        TimelineAction::Boost { vm, .. } => vm == Some(number as u32),
        TimelineAction::VcpuPolicy { vm, .. } | TimelineAction::Prefer { vm, .. } => {
            vm as usize == number
        }
    });
    let outside = plan.vms.iter().enumerate().filter(|(other, _)| *other != number);
    let guests = outside.flat_map(|(_, vm)| &vm.tasks);
    let mut tasks = plan.host_tasks.iter().chain(guests);
    let called = tasks.any(|task| task.program.servers().into_iter().any(is_in));
    !measures && !timed && !called
}

/// New place of a server. One of several servers may be gone: then the first of them takes its calls.
fn moved(at: Target, plan: &Plan, kept: &KeptTasks, vms: &[KeptVm]) -> Target {
    let kept_or_first = |kept: &KeptTasks, tasks: &[TaskPlan], task: u32| {
        let label = &tasks[task as usize].label;
        let first = kept.iter().find(|(from, _)| tasks[**from].label == *label);
        kept.get(&(task as usize)).or(first.map(|(_, to)| to)).map_or(task, |&to| to as u32)
    };
    match at {
        Target::Host(i) => Target::Host(kept_or_first(kept, &plan.host_tasks, i)),
        Target::Guest { vm, task } => place_of(vms, vm).map_or(at, |place| {
            let task = kept_or_first(&vms[place].tasks, &plan.vms[vm as usize].tasks, task);
            Target::Guest { vm: place as u32, task }
        }),
    }
}

/// The probes of kept tasks: the host's first.
fn probes(plan: &Plan, kept: &KeptTasks, vms: &[KeptVm]) -> Vec<ProbePlan> {
    let moved = |probe: &ProbePlan| {
        let target = match probe.target {
            Target::Host(i) => Target::Host(*kept.get(&(i as usize))? as u32),
            Target::Guest { vm, task } => {
                let place = place_of(vms, vm)?;
                let task = *vms[place].tasks.get(&(task as usize))? as u32;
                Target::Guest { vm: place as u32, task }
            }
        };
        Some(ProbePlan { target, ..probe.clone() })
    };
    let mut probes: Vec<ProbePlan> = plan.probes.iter().filter_map(moved).collect();
    probes.sort_by_key(|probe| matches!(probe.target, Target::Guest { .. }));
    probes
}

/// The timeline, for the new indices of VMs and the vCPUs that they have.
fn move_timeline(fitted: &mut Plan, vms: &[KeptVm]) {
    let place = |vm: u32| place_of(vms, vm).unwrap_or(0) as u32;
    let left = |vm: u32| vms[vm as usize].vm.vcpu_cpus.len() as u32;
    for event in &mut fitted.timeline {
        match &mut event.action {
            TimelineAction::Boost { vm, .. } => *vm = vm.map(place),
            TimelineAction::VcpuPolicy { vm, vcpu, .. } => {
                *vm = place(*vm);
                *vcpu = (*vcpu).min(left(*vm) - 1);
            }
            TimelineAction::Prefer { vm, vcpus } => {
                *vm = place(*vm);
                let left = left(*vm);
                vcpus.retain(|vcpu| *vcpu < left);
            }
        }
    }
}

/// `n` in proportion, rounded to the nearest, at least one.
fn shrink(n: usize, to: u32, from: u32) -> usize {
    let (to, from) = (to as usize, from as usize);
    ((n * to + from / 2) / from).clamp(1, n.max(1))
}

/// CPUs of a list at their place in the shorter row.
fn places(list: &[u32], to: u32, from: u32) -> Vec<u32> {
    let mut list: Vec<u32> = list.iter().map(|cpu| cpu * to / from).collect();
    list.dedup();
    list
}

/// The first tasks of each label, in proportion, and their new indices.
fn scaled(tasks: &[TaskPlan], to: u32, from: u32) -> (Vec<TaskPlan>, KeptTasks) {
    let of = |label: &str| tasks.iter().filter(|task| task.label == label).count();
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kept = BTreeMap::new();
    let mut out = Vec::new();
    for (i, task) in tasks.iter().enumerate() {
        let taken = taken.entry(&task.label).or_default();
        let captured = matches!(task.program, Program::Script { .. });
        if !captured && *taken >= shrink(of(&task.label), to, from) {
            continue;
        }
        *taken += 1;
        kept.insert(i, out.len());
        let mut task = task.clone();
        task.cpus = places(&task.cpus, to, from);
        if let Program::Script { steps, .. } = &mut task.program {
            *steps = Arc::new(steps.iter().map(|step| demand(step, to, from)).collect());
        }
        out.push(task);
    }
    (out, kept)
}

/// A captured step with its share of the CPU demand.
fn demand(step: &Step, to: u32, from: u32) -> Step {
    match *step {
        Step::Run(ns) => Step::Run(ns * u64::from(to) / u64::from(from)),
        other => other,
    }
}

/// A VM with fewer vCPUs and tasks, and the new indices of its tasks.
fn smaller(vm: &VmPlan, cpus: u32, from: u32) -> (VmPlan, KeptTasks) {
    let vcpus = vm.vcpu_cpus.len();
    let n = shrink(vcpus, cpus, from);
    let (to, of) = (n as u32, vcpus as u32);
    let mut out = vm.clone();
    out.level.topology = Topology::flat(to);
    let (tasks, kept) = scaled(&vm.tasks, to, of);
    out.tasks = tasks;
    // vCPU `i` of the smaller VM is the first of those that fall on its place.
    let first = |i: usize| (i * vcpus).div_ceil(n);
    out.vcpu_cpus = (0..n).map(|i| places(&vm.vcpu_cpus[first(i)], cpus, from)).collect();
    out.vcpu_policy = (0..n).map(|i| vm.vcpu_policy[first(i)]).collect();
    out.vcpu_means = (0..n).map(|i| vm.vcpu_means[first(i)]).collect();
    out.devices.retain_mut(|device| {
        device.vcpu = device.vcpu * to / of;
        match device.wakes {
            None => true,
            Some(task) => match kept.get(&(task as usize)) {
                Some(&now) => {
                    device.wakes = Some(now as u32);
                    true
                }
                None => false,
            },
        }
    });
    (out, kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vcoop_model::run::Run;
    use vcoop_testing::rig::{builtin, plans};

    const TEXT: &str = r#"
name = "big"
title = "Something big"
[host]
pcpus = 24
[[load]]
name = "hog"
kind = "hog"
count = 36
[[load]]
name = "probe"
kind = "cyclictest"
cpus = "12-23"
[[vm]]
name = "measured"
vcpus = 12
pin = "0-11"
[[vm.task]]
name = "rt"
kind = "cyclictest"
count = 12
policy = "fifo 80"
[[vm.task]]
name = "sound"
kind = "audio"
irq_vcpu = 11
[[vm]]
name = "a"
vcpus = 1
[[vm.task]]
name = "work"
kind = "hog"
[[vm]]
name = "b"
vcpus = 1
[[vm.task]]
name = "work"
kind = "hog"
"#;

    fn plan() -> Plan {
        plans(TEXT, &[], &[]).remove(0)
    }

    #[test]
    fn what_fits_is_left_alone() {
        assert!(fit(&plan(), 24).is_none());
        assert!(fit(&plan(), 100).is_none());
    }

    #[test]
    fn a_twelfth_of_the_host_gets_a_twelfth_of_the_work() {
        let (small, how) = fit(&plan(), 2).unwrap();
        assert_eq!(small.host.sched.cpus(), 2);
        let hogs = small.host_tasks.iter().filter(|t| t.label == "hog").count();
        assert_eq!(hogs, 3);
        // 14 vCPUs become one; both VMs without a probe are too many then.
        assert_eq!(small.vms.len(), 1);
        assert_eq!(small.vms[0].vcpu_cpus, [vec![0]]);
        assert_eq!(
            how,
            "scaled from 24 to 2 pCPUs: 14 to 1 vCPUs, 37 to 4 host threads, 2 of 3 VMs left out"
        );
    }

    #[test]
    fn probes_devices_and_pins_follow_their_tasks() {
        let (small, _) = fit(&plan(), 4).unwrap();
        assert_eq!(small.vms[0].vcpu_cpus, [vec![0, 1], vec![0, 1]]);
        for probe in &small.probes {
            let name = match probe.target {
                Target::Host(i) => format!("host.{}", small.host_tasks[i as usize].name),
                Target::Guest { vm, task } => {
                    let vm = &small.vms[vm as usize];
                    format!("{}.{}", vm.name, vm.tasks[task as usize].name)
                }
            };
            assert_eq!(name, probe.probe);
        }
        let device = &small.vms[0].devices[0];
        assert_eq!(device.vcpu, 1);
        assert_eq!(small.vms[0].tasks[device.wakes.unwrap() as usize].name, "sound");
        assert_eq!(small.host_tasks.last().unwrap().cpus, [2, 3]);
    }

    #[test]
    fn calls_find_their_servers_in_the_smaller_plan() {
        let text = r#"
name = "calls"
title = "A VM that is called behind one that is not"
[host]
pcpus = 8
[[load]]
name = "hog"
kind = "hog"
count = 8
[[load]]
name = "ping"
kind = "ping"
server = "called.pong"
interval = "1ms"
[[vm]]
name = "idle"
vcpus = 4
[[vm.task]]
name = "work"
kind = "hog"
[[vm]]
name = "called"
vcpus = 4
[[vm.task]]
name = "work"
kind = "hog"
count = 4
[[vm.task]]
name = "pong"
kind = "server"
work = "1us"
"#;
        let plans = plans(text, &[], &[]);
        let (small, _) = fit(&plans[0], 1).unwrap();
        let ping = small.host_tasks.iter().find(|task| task.name == "ping").unwrap();
        let servers: Vec<Target> = ping.program.servers().collect();
        let [Target::Guest { vm, task }] = servers[..] else { panic!("{servers:?}") };
        assert_eq!(small.vms.len(), 1, "the VM that nobody calls is left out");
        assert_eq!(small.vms[vm as usize].tasks[task as usize].name, "pong");
    }

    #[test]
    fn every_builtin_scenario_fits_somehow_and_can_be_simulated() {
        for name in ["busy-host-1", "pvsched-audio", "rogue-guest"] {
            let plans = builtin(name, &[], &["duration=\"20ms\"", "warmup=\"1ms\""]);
            let (small, _) = fit(&plans[0], 1).unwrap();
            assert_eq!(small.probes.is_empty(), plans[0].probes.is_empty());
            vcoop_sim::run(Run::new(&small, 1)).unwrap();
        }
    }
}
