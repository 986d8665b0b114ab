//! Any scenario that is accepted can be simulated. The text is that of the target `scenario`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_model::capture::NoCaptures;
use vcoop_model::run::Run;
use vcoop_model::scenario::{Scenario, Set};

/// Larger machines take too long.
const MOST_CPUS: u32 = 64;

fuzz_target!(|text: &str| {
    let (text, option) = text.split_once('\0').unwrap_or((text, ""));
    let sets: Vec<Set> = Set::parse(option).into_iter().collect();
    let Ok(scenario) = Scenario::parse("fuzz.toml", text, &sets, &NoCaptures) else { return };
    let plans = scenario.plans(None).expect("the policies compared are there");
    for mut plan in plans.into_iter().take(2) {
        let vcpus: u32 = plan.vms.iter().map(|vm| vm.level.topology.cpus()).sum();
        if vcpus + plan.host.sched.cpus() > MOST_CPUS {
            return;
        }
        plan.warmup_ns = plan.warmup_ns.min(1_000_000);
        plan.duration_ns = plan.duration_ns.min(5_000_000);
        vcoop_sim::run(Run::new(&plan, 1).until(&|| true)).expect("the plan is in order");
    }
});
