//! Rough cost of a level's calls for a few and many entities and CPUs: nanoseconds for one block
//! and one wake-up with the switches they cause, and for a tick.
//!
//! `cargo run --release -p vcoop-sched --example cost`.

use std::time::Instant;

use vcoop_sched::config::{
    Balance, CfsTunables, DlConfig, EevdfTunables, Fair, LevelConfig, Policy, RtGuard, Topology,
};
use vcoop_sched::{Attr, CpuId, EntId, Leave, Level, Note};

const ROUNDS: u64 = 2_000_000;

fn config(cpus: u32, fair: Fair, groups: usize) -> LevelConfig {
    LevelConfig {
        topology: Topology { threads_per_core: 2, cores_per_llc: 12, llcs: cpus / 24 },
        tick_ns: 1_000_000,
        fair,
        rr_slice_ns: 100_000_000,
        rt_guard: RtGuard::FAIR_SERVER,
        dl: DlConfig::default(),
        balance: Balance::default(),
        groups: vec![1024; groups],
    }
}

/// Serves all kicks, and timers that are due.
fn serve(level: &mut Level, now: u64) -> u64 {
    let mut calls = 0;
    while let Some(note) = level.pop_note() {
        if let Note::Kick { cpu, .. } = note {
            level.schedule(now, cpu, Leave::Preempted);
            calls += 1;
        }
    }
    calls
}

fn main() {
    println!("{:<28} {:>14} {:>14} {:>10}", "", "ns a pair", "calls a pair", "ns a tick");
    for cpus in [24u32, 384] {
        for per_24 in [5u32, 60] {
            for (name, policy, groups) in [
                ("cfs", Policy::NORMAL, 0),
                ("eevdf", Policy::NORMAL, 0),
                ("eevdf, groups", Policy::NORMAL, 10),
                ("rt", Policy::Fifo(10), 0),
            ] {
                let fair = if name == "cfs" {
                    Fair::Cfs(CfsTunables::for_cpus(cpus))
                } else {
                    Fair::Eevdf(EevdfTunables::for_cpus(cpus))
                };
                let n = per_24 * cpus / 24;
                let (pair, calls, tick) = run(&config(cpus, fair, groups), policy, n);
                let name = format!("{name}, {n} on {cpus}");
                println!("{name:<28} {pair:>14.0} {calls:>14.2} {tick:>10.0}");
            }
        }
    }
}

/// Every round the running entity of one CPU blocks (the CPUs take turns) and the entity that has
/// slept longest wakes. Returns nanoseconds a round, calls to the level a round, and nanoseconds a
/// tick.
fn run(cfg: &LevelConfig, policy: Policy, n: u32) -> (f64, f64, f64) {
    let cpus = cfg.topology.cpus();
    let mut level = Level::new(cfg).expect("valid");
    let groups = cfg.groups.len() as u32;
    let mut asleep = std::collections::VecDeque::new();
    let mut now = 0;
    for i in 0..n {
        let group = (groups > 0).then(|| (i % groups) as u16);
        let e = level.add(Attr { group, ..Attr::anywhere(policy) }, CpuId(i % cpus));
        level.wake(now, e, None);
        serve(&mut level, now);
    }
    let (mut at, mut rounds, mut calls) = (0, 0u64, 0);
    let start = Instant::now();
    while rounds < ROUNDS {
        at = (at + 7) % cpus;
        let cpu = CpuId(at);
        let Some(e) = level.current(cpu) else { continue };
        now += 5_000;
        rounds += 1;
        asleep.push_back(e);
        level.schedule(now, cpu, Leave::Blocked);
        calls += 1 + serve(&mut level, now);
        if asleep.len() as u32 > (n / 4).max(1) {
            let w: EntId = asleep.pop_front().expect("not empty");
            level.wake(now, w, Some(cpu));
            calls += 1 + serve(&mut level, now);
        }
    }
    let pair = start.elapsed().as_nanos() as f64 / rounds as f64;
    let mut ticks = 0u64;
    let start = Instant::now();
    for _ in 0..ROUNDS / 4 / u64::from(cpus) {
        now += cfg.tick_ns;
        for cpu in (0..cpus).map(CpuId) {
            if level.tick_needed(cpu) {
                level.tick(now, cpu);
                ticks += 1;
                serve(&mut level, now);
            }
        }
    }
    let tick = start.elapsed().as_nanos() as f64 / ticks.max(1) as f64;
    (pair, calls as f64 / rounds as f64, tick)
}
