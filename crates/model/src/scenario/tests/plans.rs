use vcoop_policy::config::{Budget, Means};
use vcoop_sched::config::{Bandwidth, Fair, GroupConfig, Quota, RtGuard};

use super::*;
use crate::plan::{Dist, Mode, Phase, PolicyPlan, Program, Target, TimelineAction};

#[test]
fn the_small_scenario_becomes_what_it_says() {
    let plans = small_plans(&[]);
    let names: Vec<&str> = plans.iter().map(|p| p.policy_name.as_str()).collect();
    assert_eq!(names, ["vanilla", "wake-boost", "dynamic", "static"]);
    let plan = &plans[0];
    assert_eq!((plan.duration_ns, plan.warmup_ns, plan.repeats), (2_000_000_000, 100_000_000, 3));
    assert_eq!(plan.host.sched.linux().unwrap().groups, [GroupConfig::new(2048)]);
    let vm = &plan.vms[0];
    assert_eq!(vm.group, Some(0));
    assert_eq!(vm.vcpu_cpus, [vec![0], vec![1, 2]]);
    let tasks: Vec<&str> = vm.tasks.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(tasks, ["cyclictest/0", "cyclictest/1", "background"]);
    assert_eq!(vm.devices[0].wakes, Some(2));
    let probes: Vec<&str> = plan.probes.iter().map(|p| p.probe.as_str()).collect();
    assert_eq!(probes, ["guest.cyclictest/0", "guest.cyclictest/1", "host.probe"]);
    assert_eq!(plan.probes[2].target, Target::Host(3));
    assert_eq!(plan.timeline[0].action, TimelineAction::Boost { vm: Some(0), on: false });
}

#[test]
fn loads_and_vms_are_in_groups() {
    let text = SMALL.replacen("weight = 2048\n", "group = \"vms\"\ncount = 2\n", 1);
    let text = text.replacen("file = \"a.txt\"", "file = \"a.txt\"\ngroup = \"user\"", 1);
    let groups = "[[group]]\nname = \"user\"\n\n[[group]]\nname = \"vms\"\nweight = 512\n";
    let plans = parse(&format!("{text}\n{groups}")).unwrap().plans(None).unwrap();
    assert_eq!(plans[0].host.sched.linux().unwrap().groups, [1024, 512].map(GroupConfig::new));
    assert!(plans[0].vms.iter().all(|vm| vm.group == Some(1)));
    let grouped = plans[0].host_tasks.iter().filter(|task| task.group == Some(0)).count();
    assert!((1..plans[0].host_tasks.len()).contains(&grouped), "{grouped}");
}

#[test]
fn each_vm_has_a_quota_of_its_own() {
    let own = "cpu_max = \"150ms\"\ncount = 2\n";
    let text = SMALL.replacen("weight = 2048\n", own, 1);
    let text = format!(
        "{text}\n[[group]]\nname = \"user\"\ncpu_max = \"5ms / 20ms\"\ncpu_max_burst = \"1ms\"\n"
    );
    let plans = parse(&text).unwrap().plans(None).unwrap();
    let quota = |runtime_ns, period_ns, burst_ns| {
        let quota = Quota { runtime_ns, period_ns, burst_ns, phase_ns: 0 };
        GroupConfig { quota: Some(quota), ..GroupConfig::new(1024) }
    };
    let vm = quota(150_000_000, 100_000_000, 0);
    let groups = [quota(5_000_000, 20_000_000, 1_000_000), vm, vm];
    assert_eq!(plans[0].host.sched.linux().unwrap().groups, groups);
    assert_eq!(plans[0].vms.iter().map(|vm| vm.group).collect::<Vec<_>>(), [Some(1), Some(2)]);
}

#[test]
fn groups_are_in_groups() {
    let own = "group = \"machine\"\nweight = 512\nvcpu_cpu_max = \"50ms\"\ncount = 2\n";
    let text = SMALL.replacen("weight = 2048\n", own, 1);
    let text = format!(
        "{text}\n[[group]]\nname = \"all\"\n\n[[group]]\nname = \"machine\"\ngroup = \"all\"\nweight = 300\n"
    );
    let plans = parse(&text).unwrap().plans(None).unwrap();
    let vcpus = plans[0].vms[0].level.topology.cpus();
    let group = |weight, parent| GroupConfig { parent, ..GroupConfig::new(weight) };
    let quota = Quota { runtime_ns: 50_000_000, period_ns: 100_000_000, burst_ns: 0, phase_ns: 0 };
    let vcpu = |of| GroupConfig { quota: Some(quota), ..group(1024, Some(of)) };
    let mut groups = vec![group(1024, None), group(300, Some(0))];
    for vm in &plans[0].vms {
        let own = groups.len() as u16;
        assert_eq!(vm.group, Some(own));
        assert!(vm.vcpu_groups.iter().copied().eq(own + 1..=own + vcpus as u16));
        groups.push(group(512, Some(1)));
        groups.extend((0..vcpus).map(|_| vcpu(own)));
    }
    assert_eq!(plans[0].host.sched.linux().unwrap().groups, groups);

    // Each vCPU in a group of its own, in none or in one that the VM shares.
    let text = SMALL.replacen("weight = 2048\n", "vcpu_groups = true\ncount = 2\n", 1);
    let plans = parse(&text).unwrap().plans(None).unwrap();
    let groups = vec![group(1024, None); 2 * vcpus as usize];
    assert_eq!(plans[0].host.sched.linux().unwrap().groups, groups);
    assert_eq!(plans[0].vms[1].vcpu_groups[0], vcpus as u16);
    let shared = "\n[[group]]\nname = \"a\"\n";
    let text = text.replacen("vcpu_groups", "group = \"a\"\nvcpu_groups", 1) + shared;
    let plans = parse(&text).unwrap().plans(None).unwrap();
    assert!(plans[0].vms.iter().all(|vm| vm.group == Some(0)));
    let groups = &plans[0].host.sched.linux().unwrap().groups[1..];
    assert_eq!(groups, vec![group(1024, Some(0)); 2 * vcpus as usize]);
}

#[test]
fn user_policies_inherit() {
    let scenario = parse(SMALL).unwrap();
    let plans = scenario.plans(Some(&["dynamic-nice".to_owned()])).unwrap();
    let PolicyPlan::Dynamic(config) = &plans[0].policy else { panic!("{:?}", plans[0].policy) };
    assert_eq!(config.means, Means::Nice(-20));
    assert_eq!(config.vcpu_budget, Budget { burst_ns: 3_000_000, refill_ppm: 250_000 });
    let error = scenario.plans(Some(&["dynamc".to_owned()])).unwrap_err().to_string();
    assert!(error.contains("did you mean `dynamic`?"), "{error}");
}

#[test]
fn built_in_policies_are_those_of_the_seed() {
    let plan = |name: &str| {
        parse(SMALL).unwrap().plans(Some(&[name.to_owned()])).unwrap()[0].policy.clone()
    };
    assert_eq!(plan("vanilla"), PolicyPlan::Vanilla);
    assert_eq!(plan("static"), PolicyPlan::Static { means: Means::Rr(8) });
    let PolicyPlan::Dynamic(dynamic) = plan("dynamic") else { panic!() };
    assert_eq!((dynamic.means, dynamic.max_preempt_off_ns), (Means::Rr(8), 3_000_000));
    assert!(matches!(plan("wake-boost"), PolicyPlan::WakeBoost(_)));
}

#[test]
fn captures_are_scaled_limited_and_mapped() {
    let plan = &small_plans(&[
        "load.build.scale=2.5",
        "load.build.threads=2",
        "load.build.cpu_map=wrap",
        "load.build.jitter=10ms",
    ])[0];
    let build: Vec<_> = plan.host_tasks.iter().filter(|t| t.label == "build").collect();
    assert_eq!(build.len(), 2);
    let Program::Script { steps, repeat: true } = &build[0].program else { panic!() };
    assert_eq!(**steps, [Step::Run(2_500_000), Step::Wake(1), Step::Sleep(500_000)]);
    assert_eq!(build[1].cpus, [1], "CPU 5 of the capture on a host of four");
    assert_eq!(build[1].start_ns, 5_000_000);
    assert_eq!(build[0].policy, Policy::Normal { nice: 5, slice_ns: None });
    assert_eq!(build[0].timer_slack_ns, 50_000);
}

fn tasks(kind: &str) -> Vec<crate::plan::TaskPlan> {
    let text = format!(
        "name = \"k\"\ntitle = \"t\"\n[[vm]]\nname = \"vm\"\nvcpus = 2\n[[vm.task]]\nname = \"x\"\n{kind}"
    );
    parse(&text).unwrap_or_else(|e| panic!("{e}")).plans(None).unwrap()[0].vms[0].tasks.clone()
}

#[test]
fn workloads_become_programs() {
    let duty = tasks("kind = \"duty\"\nperiod = \"10ms\"\nutil = \"30%\"");
    let Program::Cycle { phases } = &duty[0].program else { panic!() };
    let run = Phase::Run { time: Dist::Const(3_000_000), mode: Mode::User };
    assert_eq!(phases[..], [Phase::Align { period_ns: 10_000_000 }, run]);
    for always in ["util = \"100%\"", "on = \"10ms\""] {
        let duty = tasks(&format!("kind = \"duty\"\nperiod = \"10ms\"\n{always}"));
        let Program::Cycle { phases } = &duty[0].program else { panic!() };
        let run = Phase::Run { time: Dist::Const(10_000_000), mode: Mode::User };
        assert_eq!(phases[..], [run], "it would rest every other period");
    }

    let stress = tasks("kind = \"stress\"\nrounds = 3\nsleep = \"0us\"");
    let Program::Cycle { phases } = &stress[0].program else { panic!() };
    assert_eq!(phases.len(), 7, "three rounds, a long section, no sleep: {phases:?}");
    let kernel = |p: &&Phase| matches!(p, Phase::Run { mode: Mode::Kernel, .. });
    assert_eq!(phases.iter().filter(kernel).count(), 4);

    let browser = tasks("kind = \"browser\"\nworkers = 2\ncount = 2");
    assert_eq!(browser.len(), 10);
    assert_eq!(browser[8].name, "x/1/worker-0");
    assert!(browser.iter().all(|t| t.label == "x"));

    // A hog in the kernel a fifth of its time: sections of 50 us, 200 us of user time between.
    let hog = tasks("kind = \"hog\"\nkernel = \"20%\"");
    let Program::Cycle { phases } = &hog[0].program else { panic!() };
    let Phase::Run { time: Dist::Exp { mean_ns, .. }, mode: Mode::User } = phases[0] else {
        panic!("{phases:?}")
    };
    assert_eq!(mean_ns, 200_000);
}

#[test]
fn audio_counts_in_frames_and_brings_its_device() {
    let text = "name = \"k\"\ntitle = \"t\"\n[[vm]]\nname = \"vm\"\nvcpus = 2\n[[vm.task]]\n\
        name = \"bg\"\nkind = \"hog\"\n[[vm.task]]\nname = \"a\"\nkind = \"audio\"\n\
        buffer = \"256 frames\"\nirq_vcpu = 1\npolicy = \"fifo 2\"";
    let plan = parse(text).unwrap_or_else(|e| panic!("{e}")).plans(None).unwrap().remove(0);
    let vm = &plan.vms[0];
    let Program::Audio { period_ns, buffer_ns, device, .. } = vm.tasks[1].program else { panic!() };
    assert_eq!((period_ns, buffer_ns, device), (2_000_000, 5_333_333, true));
    let irq = &vm.devices[0];
    assert_eq!((irq.vcpu, irq.wakes, irq.period), (1, Some(1), Dist::Const(2_000_000)));
    assert_eq!(vm.tasks[1].timer_slack_ns, 0, "real-time tasks have no slack");
    assert_eq!(vm.tasks[0].timer_slack_ns, 50_000);
}

#[test]
fn tunables_scale_with_cpus_and_guards_follow_the_class() {
    let level = |sets: &[&str]| small_plans(sets)[0].host.sched.linux().unwrap().clone();
    let eevdf = level(&[]);
    let Fair::Eevdf(tunables) = eevdf.fair else { panic!() };
    assert_eq!(tunables.base_slice_ns, 2_100_000, "0.7 ms times 3 at four CPUs");
    let of = |runtime_ns| Bandwidth { runtime_ns, period_ns: 1_000_000_000 };
    let fair_server = RtGuard::FairServer(of(50_000_000));
    assert_eq!(eevdf.rt_guard, fair_server);
    let cfs = level(&["host.sched.fair=cfs", "host.sched.sched_latency=10ms"]);
    let Fair::Cfs(tunables) = cfs.fair else { panic!() };
    assert_eq!((tunables.sched_latency_ns, tunables.min_granularity_ns), (10_000_000, 2_250_000));
    let throttle = RtGuard::Throttle(of(950_000_000));
    assert_eq!(cfs.rt_guard, throttle);
}

#[test]
fn idle_states_obey_the_latency_limit() {
    let states = |limit: &str| {
        let plan = small_plans(&[&format!("host.cpu_dma_latency={limit}")]).remove(0);
        plan.host.costs.cstates.iter().map(|s| s.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(states("1ms"), ["C1", "C1E", "C6"]);
    assert_eq!(states("15us"), ["C1", "C1E"]);
    assert_eq!(states("0us"), ["POLL"]);
}

#[test]
fn costs_vary_as_the_profile_says_unless_the_scenario_wants_constants() {
    let spread = |more: &[&str]| {
        let sets: Vec<&str> = [&["host.profile=varying.toml"], more].concat();
        small_plans(&sets).remove(0).host.costs.spread.len()
    };
    let found = (spread(&[]), spread(&["host.costs=drawn"]), spread(&["host.costs=constant"]));
    assert_eq!(found, (1, 1, 0));
}

#[test]
fn a_matrix_is_a_cartesian_product() {
    let matrix = "\n[matrix]\n\"vm.guest.task.background.burst\" = [\"1ms\", \"2ms\", \"3ms\"]\n\
        host.sched.fair = [\"cfs\", \"eevdf\"]\n";
    let scenario = parse(&format!("{SMALL}{matrix}")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(scenario.axes, ["vm.guest.task.background.burst", "host.sched.fair"]);
    let plans = scenario.plans(Some(&["vanilla".to_owned()])).unwrap();
    let seen: Vec<(&str, &str)> = plans
        .iter()
        .map(|p| (p.params[&scenario.axes[0]].as_str(), p.params[&scenario.axes[1]].as_str()))
        .collect();
    assert_eq!(seen[..3], [("1ms", "cfs"), ("1ms", "eevdf"), ("2ms", "cfs")]);
    assert_eq!(seen.len(), 6);
    for plan in &plans {
        let cfs = matches!(plan.host.sched.linux().unwrap().fair, Fair::Cfs(_));
        assert_eq!(cfs, plan.params["host.sched.fair"] == "cfs");
    }
}

#[test]
fn fields_that_change_together_are_told_apart_by_all_of_them_where_one_is_not_enough() {
    let text = |values: &str| {
        format!(
            "name = 'x'\ntitle = 'x'\nduration = '1s'\n[host]\nprofile = 'zero'\npcpus = 4\n[[vm]]\nname = 'g'\n\
             count = 1\nvcpus = 1\n[[vm.task]]\nname = 'h'\nkind = 'hog'\n[matrix]\n\
             \"vm.g.count, vm.g.vcpus\" = {values}\n[compare]\npolicy = ['vanilla']\n"
        )
    };
    let cells = |values: &str| -> Vec<Vec<(String, String)>> {
        let scenario = parse(&text(values)).unwrap_or_else(|e| panic!("{e}"));
        let plans = scenario.plans(None).unwrap_or_else(|e| panic!("{e}"));
        plans.iter().map(|plan| plan.params.clone().into_iter().collect()).collect()
    };
    let told = |count: &str, vcpus: Option<&str>| -> Vec<(String, String)> {
        let count = ("vm.g.count".to_owned(), count.to_owned());
        let vcpus = vcpus.map(|n| ("vm.g.vcpus".to_owned(), n.to_owned()));
        [count].into_iter().chain(vcpus).collect()
    };
    assert_eq!(cells("[[4, 1], [2, 2]]"), [told("4", None), told("2", None)]);
    let pairs = cells("[[4, 1], [2, 1], [2, 2]]");
    assert_eq!(pairs, [told("4", Some("1")), told("2", Some("1")), told("2", Some("2"))]);
}

#[test]
fn fields_change_together_to_one_value_or_each_to_its_own() {
    let of = |line: &str| {
        let text = format!("{SMALL}\n[matrix]\n{line}\n");
        let scenario = parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let plans = scenario.plans(Some(&["vanilla".to_owned()])).unwrap();
        let seen = |p: &Plan| {
            let ticks = (p.host.sched.linux().unwrap().tick_ns, p.vms[0].level.tick_ns);
            (p.params[&scenario.axes[0]].clone(), ticks.0, ticks.1)
        };
        plans.iter().map(seen).collect::<Vec<_>>()
    };
    const MS: u64 = 1_000_000;
    let own = of("\"host.tick_hz, vm.guest.tick_hz\" = [[100, 250], [1000, 500]]");
    assert_eq!(own, [("100".to_owned(), 10 * MS, 4 * MS), ("1000".to_owned(), MS, 2 * MS)]);
    let one = of("\"host.tick_hz, vm.guest.tick_hz\" = [100, 250]");
    assert_eq!(one, [("100".to_owned(), 10 * MS, 10 * MS), ("250".to_owned(), 4 * MS, 4 * MS)]);
}

#[test]
fn what_is_off_is_left_out() {
    let plan =
        &small_plans(&["load.build.enabled=false", "vm.guest.task.background.enabled=false"])[0];
    assert!(plan.host_tasks.iter().all(|t| t.label != "build"));
    assert_eq!(plan.vms[0].tasks.len(), 2);
    assert_eq!(plan.vms[0].devices[0].wakes, None);
    let text = format!("{SMALL}[[probe]]\ntask = \"host.probe\"\n");
    let off = parse_set(&text, &["load.probe.enabled=false"]).unwrap();
    assert!(off.plans(None).unwrap()[0].probes.is_empty());
}

/// A host with two servers and a bursty caller, and a guest with as many pings.
const CALLS: &str = r#"name = "calls"
title = "For tests"
[[load]]
name = "backend"
kind = "server"
count = 2
[[load]]
name = "batch"
kind = "bursty"
server = "guest.pong"
[[vm]]
name = "guest"
vcpus = 2
[[vm.task]]
name = "ping"
kind = "ping"
count = 3
server = "host.backend"
irq_vcpu = 1
[[vm.task]]
name = "pong"
kind = "server"
work = "7us"
irq_vcpu = 1
[[vm.task]]
name = "one"
kind = "ping"
server = "host.backend/1"
"#;

#[test]
fn calls_go_to_the_servers_they_name() {
    let plan = &parse(CALLS).unwrap_or_else(|e| panic!("{e}")).plans(None).unwrap()[0];
    let guest = &plan.vms[0].tasks;
    let servers: Vec<Vec<Target>> = guest.iter().map(|t| t.program.servers().collect()).collect();
    let host = |i| vec![Target::Host(i)];
    assert_eq!(servers, [host(0), host(1), host(0), vec![], host(1)]);
    let Program::Ping { irq_vcpu: 1, interval_ns: 1_000_000, .. } = guest[0].program else {
        panic!("{:?}", guest[0])
    };
    let pong = Program::Serve {
        work: Dist::Const(7_000),
        wait: Dist::Const(0),
        irq_vcpu: 1,
        section: None,
    };
    assert_eq!(format!("{:?}", guest[3].program), format!("{pong:?}"));
    let Program::Cycle { phases } = &plan.host_tasks[2].program else { panic!() };
    let server = Target::Guest { vm: 0, task: 3 };
    assert_eq!(phases[1], Phase::Call { server, irq_vcpu: 0 });
    let probes: Vec<&str> = plan.probes.iter().map(|p| p.probe.as_str()).collect();
    assert_eq!(probes, ["guest.ping/0", "guest.ping/1", "guest.ping/2", "guest.one"]);
    assert_eq!((guest[0].timer_slack_ns, guest[3].timer_slack_ns), (0, 0));
}

#[test]
fn a_caller_that_is_left_out_needs_no_server() {
    let text = CALLS.replacen("name = \"batch\"", "name = \"batch\"\nenabled = false", 1);
    let text = text.replacen("name = \"pong\"", "name = \"pong\"\nenabled = false", 1);
    let plan = &parse(&text).unwrap_or_else(|e| panic!("{e}")).plans(None).unwrap()[0];
    assert_eq!((plan.host_tasks.len(), plan.vms[0].tasks.len()), (2, 4));
}

#[test]
fn reservations_are_read_with_and_without_a_deadline_of_their_own() {
    let read = |text: &str| {
        let text = SMALL.replacen("\"nice -20\"", &format!("\"{text}\""), 1);
        let plans = parse(&text).unwrap().plans(Some(&["dynamic-nice".to_owned()])).unwrap();
        let PolicyPlan::Dynamic(config) = &plans[0].policy else { panic!() };
        let Means::Deadline { runtime_ns, deadline_ns, period_ns } = config.means else { panic!() };
        (runtime_ns, deadline_ns, period_ns)
    };
    assert_eq!(read("deadline 1ms/4ms"), (1_000_000, 4_000_000, 4_000_000));
    assert_eq!(read(" deadline  500us / 2.5ms/ 4ms "), (500_000, 2_500_000, 4_000_000));
}
