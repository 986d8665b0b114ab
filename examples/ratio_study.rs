//! A study with the simulator as a library: how late a guest's real-time task is, by the number of
//! threads that compete for its pCPU and by policy.
//!
//! `cargo run --release -p vcoop-examples --bin ratio-study`

use std::error::Error;

use vcoop_model::capture::NoCaptures;
use vcoop_model::run::Run;
use vcoop_model::scenario::{Scenario, Set};

const SCENARIO: &str = r#"
name = "ratio"
title = "One vCPU against CPU hogs"
duration = "1s"
warmup = "200ms"

[host]
profile = "xeon-server"
pcpus = 2

[[load]]
name = "hog"
kind = "hog"
cpus = "0"

[[vm]]
name = "guest"
vcpus = 1
pin = "0"

[[vm.task]]
name = "loop"
kind = "cyclictest"
interval = "1ms"
policy = "fifo 80"

[[vm.task]]
name = "background"
kind = "bursty"
burst = "exp 3ms"
idle = "exp 3ms"

[compare]
policy = ["vanilla", "wake-boost", "dynamic"]
"#;

/// Hogs, policy, and the 99th percentile of the task's latency over three seeds, in nanoseconds.
type Row = (u32, String, u64);

fn study(hogs: &[u32]) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for &count in hogs {
        let set = Set::of("load.hog.count", &count.to_string());
        let scenario = Scenario::parse("ratio.toml", SCENARIO, &[set], &NoCaptures)?;
        for plan in scenario.plans(None)? {
            let mut all = vcoop_sim::run(Run::new(&plan, 1))?.latencies.remove(0).hist;
            for seed in 2..=3 {
                all.add(&vcoop_sim::run(Run::new(&plan, seed))?.latencies[0].hist)?;
            }
            rows.push((count, plan.policy_name, all.value_at_quantile(0.99)));
        }
    }
    Ok(rows)
}

fn main() -> Result<(), Box<dyn Error>> {
    for (hogs, policy, p99_ns) in study(&[1, 2, 4, 8])? {
        println!("hogs: {hogs}  {policy:<10} p99 {:>9.1} us", p99_ns as f64 / 1e3);
    }
    Ok(())
}

#[test]
fn dynamic_keeps_its_latency_beside_four_hogs() {
    let rows = study(&[4]).unwrap();
    let p99 = |name| rows.iter().find(|row| row.1 == name).unwrap().2;
    assert!(p99("dynamic") * 10 < p99("vanilla"), "{rows:?}");
}
