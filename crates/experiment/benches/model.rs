//! The whole model: speed of the flagship scenario, cost of a mechanism that is off, cost of an event by size of the
//! host, cost of a broadcast IPI, and extra cost of a report.
//!
//! A mechanism that is off leaves a test where it would act. The cost of all these tests is the difference between the
//! flagship and the flagship with all mechanisms configured but unused: each test then has its answer in other memory,
//! and nothing else changes. Both runs have the same events.

use vcoop_model::plan::Plan;
use vcoop_model::plan::virt::SpinLocks;
use vcoop_model::quantiles::{LEVELS, Quantiles};
use vcoop_model::run::Run;
use vcoop_policy::config::HostPollConfig;
use vcoop_testing::rig::builtin;

fn plan(scenario: &str, policy: &str, sets: &[&str]) -> Plan {
    builtin(scenario, &[policy], sets).remove(0)
}

/// Runs once; returns events and CPU nanoseconds.
fn run(plan: &Plan) -> (u64, u64) {
    let recording = vcoop_sim::run(Run::new(plan, plan.seed)).expect("a valid plan");
    let engine = recording.engine.expect("the simulator counts its events");
    (engine.events, engine.cpu_ns)
}

/// A host of `pcpus` with one and a half hogs for each pCPU and a guest for every four pCPUs.
fn host_of(pcpus: u32) -> Plan {
    let mut plan = plan("busy-host-1", "dynamic", &["duration=2s", "warmup=100ms"]);
    let (vm, hog) = (plan.vms.remove(0), plan.host_tasks[0].clone());
    *plan.host.sched.topology_mut() = vcoop_sched::config::Topology {
        threads_per_core: 1,
        cores_per_llc: pcpus.min(24),
        llcs: pcpus.div_ceil(24),
    };
    plan.probes.clear();
    plan.host_tasks = (0..pcpus * 3 / 2)
        .map(|i| {
            let mut hog = hog.clone();
            hog.name = format!("hog/{i}");
            hog.cpus.clear();
            hog
        })
        .collect();
    plan.vms = (0..pcpus / 4)
        .map(|i| {
            let mut vm = vm.clone();
            vm.name = format!("vm{i}");
            vm.vcpu_cpus = vec![vec![]; vm.vcpu_cpus.len()];
            vm
        })
        .collect();
    plan
}

/// The flagship with mechanisms on that its guest does not use, and with other parameters than the defaults for those
/// that it has on.
fn flagship_with_unused() -> Plan {
    let mut plan = plan("busy-host", "dynamic", &[]);
    for vm in &mut plan.vms {
        let virt = &mut vm.virt;
        // No task of it takes a lock, sends a function call, unmaps or reads a counter.
        virt.spin.locks = SpinLocks::Pv;
        virt.spin.threshold_ns = Some(100_000);
        virt.spin.ple_window_ns = Some(10_000);
        virt.ipi.pv_tlb = true;
        virt.ipi.pv_yield = true;
        virt.exits_off.cstate = true;
        virt.exits_off.pause = true;
        virt.dedicated = true;
        // It halts, and the host does not poll.
        virt.idle.guest_poll.max_ns = 1_000_000;
        virt.idle.guest_poll.grow_start_ns = 100_000;
        virt.idle.host_poll = Some(HostPollConfig { grow: 4, ..HostPollConfig::OFF });
    }
    plan
}

/// The flagship with a distribution for each cost, of about the same mean.
fn flagship_with_varying_costs() -> Plan {
    const PERCENT: [u64; LEVELS] = [60, 80, 95, 130, 180, 400, 900, 4_000];
    let mut plan = plan("busy-host", "dynamic", &[]);
    let costs = &mut plan.host.costs;
    let exits = costs.cstates.iter().map(|s| (format!("cstate.{}", s.name), s.exit_ns));
    let all = costs.entries().into_iter().map(|(key, ns)| (key.to_owned(), ns)).chain(exits);
    let spread = |(key, ns)| (key, Quantiles::ascending(PERCENT.map(|p| ns * p / 100)));
    costs.spread = all.map(spread).collect();
    plan
}

/// Repeated broadcast IPIs to 79 vCPUs.
fn broadcast(policy: &str) -> Plan {
    plan("ipi-80", policy, &["duration=200ms"])
}

fn cases() -> Vec<(&'static str, Plan)> {
    vec![
        ("busy-host/vanilla", plan("busy-host", "vanilla", &[])),
        ("busy-host/dynamic", plan("busy-host", "dynamic", &[])),
        ("pcpus/24", host_of(24)),
        ("pcpus/384", host_of(384)),
        // What --out asks for besides.
        ("busy-host/sliced", Plan { slices: 60, ..plan("busy-host", "dynamic", &[]) }),
        ("busy-host/unused", flagship_with_unused()),
        ("busy-host/varying", flagship_with_varying_costs()),
        ("ipi-80/icr", broadcast("icr")),
        ("ipi-80/cluster", broadcast("cluster")),
        ("ipi-80/pv-ipi", broadcast("pv-ipi")),
        ("ipi-80/posted-ipi", broadcast("posted-ipi")),
    ]
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// CPU time for each event, and ratios within one round; rounds alternate because others use the machine.
fn interleaved(rounds: usize) {
    let cases = cases();
    let at = |name: &str| cases.iter().position(|c| c.0 == name).expect("a case");
    let flagship = at("busy-host/dynamic");
    let events = |case: usize| run(&cases[case].1).0;
    assert_eq!(events(flagship), events(at("busy-host/unused")), "the unused changes no event");
    let mut costs = vec![vec![]; cases.len()];
    for _ in 0..rounds {
        for ((_, plan), costs) in cases.iter().zip(&mut costs) {
            let (events, cpu_ns) = run(plan);
            costs.push(cpu_ns as f64 / events as f64);
        }
    }
    println!("{:28} {:>8} {:>8} {:>8}", "ns of CPU time an event", "median", "least", "most");
    for ((name, _), costs) in cases.iter().zip(&costs) {
        let (median, least, most) = spread(costs.clone());
        println!("{name:28} {median:8.1} {least:8.1} {most:8.1}");
    }
    println!("{:28} {:>8} {:>8} {:>8}", "ratios", "median", "least", "most");
    let ipi = ["icr", "cluster", "pv-ipi", "posted-ipi"].map(|path| format!("ipi-80/{path}"));
    let others = [
        ("384 / 24 pCPUs", at("pcpus/384"), at("pcpus/24")),
        ("sliced / flagship", at("busy-host/sliced"), flagship),
        ("costs vary / flagship", at("busy-host/varying"), flagship),
        ("unused on / flagship", at("busy-host/unused"), flagship),
    ];
    let ratios = others.into_iter().chain(ipi.iter().map(|name| (&name[..], at(name), flagship)));
    for (name, case, base) in ratios {
        let each = costs[case].iter().zip(&costs[base]).map(|(a, b)| a / b).collect();
        let (median, least, most) = spread(each);
        println!("{name:28} {median:7.2}x {least:7.2}x {most:7.2}x");
    }
}

fn main() {
    interleaved(if std::env::args().any(|a| a == "--bench") { 9 } else { 1 });
}
