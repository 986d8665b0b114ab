//! Xen's credit1 as the host's scheduler: the case of the study that took a 24-pCPU host and a
//! minute, and how the cost of an event grows with the host.
//!
//! `cargo bench -p vcoop-sim --bench credit1`. CPU time (user + system) of the thread, by turns,
//! medians of several rounds.

#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
#[path = "../tests/support/mod.rs"]
mod support;

use vcoop_model::plan::{Dist, HostSched, Mode, Ns, Phase, Plan, Program, TaskPlan, VmPlan};
use vcoop_model::profile::Profile;
use vcoop_model::run::Run;
use vcoop_sched::config::{LevelConfig, Policy, Topology};

use support::{MS, credit1, eevdf, hosted, task, unguarded};

/// A level of Linux that ticks as often as it usually does.
fn linux_of(cpus: u32) -> LevelConfig {
    LevelConfig { tick_ns: 4 * MS, ..unguarded(eevdf(cpus)) }
}

/// A VM of one vCPU; `sleep` 0 is a CPU loop.
fn vm(i: u32, run: Ns, sleep: Ns) -> VmPlan {
    let mut phases = vec![Phase::Run { time: Dist::Const(run), mode: Mode::User }];
    if sleep > 0 {
        phases.push(Phase::Sleep { time: Dist::Exp { mean_ns: sleep, max_ns: 10 * sleep } });
    }
    let own = task("loop", Program::Cycle { phases }, Policy::NORMAL, &[]);
    let own = TaskPlan { start_ns: u64::from(i) * 100_000, ..own };
    let vm = support::vm(&format!("vm{i}"), linux_of(1), vec![own]);
    VmPlan { cooperative: false, ..vm }
}

/// The same host under Linux: what of the cost is not credit1's.
fn linux(mut plan: Plan) -> Plan {
    let topology = *plan.host.sched.topology_mut();
    let level = LevelConfig { topology, ..linux_of(topology.cpus()) };
    plan.host.sched = HostSched::Linux(level);
    plan.vms.iter_mut().for_each(|vm| vm.group = None);
    plan
}

/// 2.5 VMs a pCPU; `mixed`: every other one sleeps now and then.
fn plan(pcpus: u32, duration_ns: Ns, mixed: bool) -> Plan {
    let n = pcpus * 5 / 2;
    let mut host = credit1(pcpus, n as usize);
    host.topology = Topology { threads_per_core: 2, cores_per_llc: 6, llcs: pcpus / 12 };
    let sleeps = |i: u32| mixed && i.is_multiple_of(2);
    let vms = (0..n).map(|i| if sleeps(i) { vm(i, 50_000, 2 * MS) } else { vm(i, 1000 * MS, 0) });
    let mut plan = hosted(HostSched::Credit1(host), vms.collect());
    plan.duration_ns = duration_ns;
    plan.host.costs = Profile::load("xeon-server").expect("a built-in profile").costs;
    plan.host.cpu = None;
    plan
}

/// Runs once: events, CPU nanoseconds.
fn run(plan: &Plan) -> (u64, u64) {
    let recording = vcoop_sim::run(Run::new(plan, plan.seed)).expect("a valid plan");
    let engine = recording.engine.expect("the simulator counts its events");
    (engine.events, engine.cpu_ns)
}

fn main() {
    let rounds = if std::env::args().any(|a| a == "--bench") { 5 } else { 1 };
    // The case whose name begins with an argument, alone: for a profiler.
    let only = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let cases: Vec<_> = [
        ("60 cpu-loop VMs, 24 pCPUs, 60 s", plan(24, 60_000 * MS, false)),
        ("960 cpu-loop VMs, 384 pCPUs, 15 s", plan(384, 15_000 * MS, false)),
        ("60 mixed VMs, 24 pCPUs, 20 s", plan(24, 20_000 * MS, true)),
        ("960 mixed VMs, 384 pCPUs, 4 s", plan(384, 4_000 * MS, true)),
        ("Linux, 60 mixed VMs, 24 pCPUs, 20 s", linux(plan(24, 20_000 * MS, true))),
        ("Linux, 960 mixed VMs, 384 pCPUs, 4 s", linux(plan(384, 4_000 * MS, true))),
    ]
    .into_iter()
    .filter(|(name, _)| only.as_ref().is_none_or(|o| name.starts_with(o)))
    .collect();
    let mut costs = vec![vec![]; cases.len()];
    for _ in 0..rounds {
        for ((_, plan), costs) in cases.iter().zip(&mut costs) {
            costs.push(run(plan));
        }
    }
    let mut each = vec![];
    for ((name, _), costs) in cases.iter().zip(&mut costs) {
        costs.sort_by_key(|c| c.1);
        let (events, cpu) = costs[costs.len() / 2];
        each.push(cpu as f64 / events as f64);
        println!(
            "{name:36} {events:>9} events, {:.3} CPU-s, {:6.1} ns an event",
            cpu as f64 / 1e9,
            cpu as f64 / events as f64
        );
    }
    if let [loops, large_loops, small, large, linux_small, linux_large] = each[..] {
        println!("384 / 24 pCPUs, cpu-loop: {:.2}x the cost of an event", large_loops / loops);
        println!("384 / 24 pCPUs, mixed: {:.2}x", large / small);
        println!("384 / 24 pCPUs, mixed, Linux: {:.2}x", linux_large / linux_small);
        println!("credit1 / Linux, mixed, 384 pCPUs: {:.2}x", large / linux_large);
    }
}
