//! Policies that pin vCPUs and move the host's loads: who runs where.

use crate::support::{MS, scalar};
use proptest::prelude::*;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::run::Run;
use vcoop_model::trace_event::{Event, Observer};
use vcoop_testing::rig::plans;

/// pCPUs on which each thread has run.
#[derive(Debug)]
struct Places(Vec<Vec<bool>>);

impl Observer for Places {
    fn windows(&self) -> Vec<(Ns, Ns)> {
        vec![(0, Ns::MAX)]
    }

    fn event(&mut self, _: Ns, event: &Event) {
        if let Event::Switch { pcpu, to: Some(to), .. } = event {
            self.0[*to as usize][*pcpu as usize] = true;
        }
    }
}

/// pCPUs that each thread may use: loads, then vCPUs.
fn allowed(plan: &Plan) -> Vec<Vec<u32>> {
    let loads = plan.host_tasks.iter().map(|task| task.cpus.clone());
    loads.chain(plan.vms.iter().flat_map(|vm| vm.vcpu_cpus.clone())).collect()
}

/// Two VMs beside loads that compute, sleep and measure, on a host where all vCPUs can be pinned.
fn text(pcpus: u32, vcpus: u32, hogs: u32, bound: u32, policy: &str) -> String {
    format!(
        r#"
name = "pinning"
title = "Pins"
duration = "200ms"
warmup = "0ms"
[host]
pcpus = {pcpus}
[[load]]
name = "hog"
kind = "hog"
count = {hogs}
[[load]]
name = "bursty"
kind = "bursty"
count = 2
[[load]]
name = "bound"
kind = "duty"
cpus = "{bound}"
[[load]]
name = "probe"
kind = "cyclictest"
[[vm]]
name = "a"
vcpus = {vcpus}
[[vm.task]]
name = "rt"
kind = "cyclictest"
policy = "fifo 80"
[[vm.task]]
name = "work"
kind = "bursty"
count = 2
[[vm]]
name = "b"
vcpus = 1
[[vm.task]]
name = "hog"
kind = "hog"
[compare]
policy = ["x"]
[policy.x]
{policy}
"#
    )
}

fn policy() -> impl Strategy<Value = String> {
    let base = prop_oneof![Just("vanilla"), Just("static"), Just("dynamic"), Just("wake-boost")];
    let pin = prop_oneof![Just("pin = \"own\""), Just("pin = \"1-2\""), Just("")];
    let loads = prop_oneof![Just("load_cpus = \"others\""), Just("load_cpus = \"0\""), Just("")];
    (base, pin, loads).prop_map(|(base, pin, loads)| format!("base = \"{base}\"\n{pin}\n{loads}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nobody_runs_where_its_policy_does_not_have_it(
        (pcpus, vcpus) in (3u32..7).prop_flat_map(|n| (Just(n), 1..n - 1)),
        hogs in 1u32..6, bound in 0u32..3, policy in policy(), seed in 0u64..1000,
    ) {
        let text = text(pcpus, vcpus, hogs, bound, &policy);
        let plan = plans(&text, &[], &[]).remove(0);
        let allowed = allowed(&plan);
        let mut places = Places(vec![vec![false; pcpus as usize]; allowed.len()]);
        let r = vcoop_sim::run(Run::new(&plan, seed).watched(&mut places)).unwrap();
        for (thread, (may, ran)) in allowed.iter().zip(&places.0).enumerate() {
            for cpu in (0..pcpus).filter(|cpu| ran[*cpu as usize]) {
                prop_assert!(may.is_empty() || may.contains(&cpu), "{thread} on {cpu} of {may:?}");
            }
        }
        prop_assert!(places.0.iter().flatten().any(|ran| *ran));
        // Running threads do not count as idle, and there is no more time than that of the pCPUs.
        let busy = scalar(&r, "host", "cpu") / 100.0 * f64::from(pcpus);
        let loads: f64 = r.scalars.iter()
            .filter(|((probe, metric), _)| metric == "throughput" && probe.starts_with("host."))
            .map(|(_, s)| s.value)
            .sum();
        let had = loads + scalar(&r, "a", "cpu") + scalar(&r, "b", "cpu");
        prop_assert!(had <= busy + 1e-6 && busy <= f64::from(pcpus) + 1e-9, "{had} of {busy}");
        // A hog in a VM, alone on a pCPU that no other thread may use, has all of it.
        let last = allowed.last().unwrap();
        let alone = |(i, other): (usize, &Vec<u32>)| {
            i + 1 == allowed.len() || !other.is_empty() && !other.iter().any(|cpu| last.contains(cpu))
        };
        if last.len() == 1 && allowed.iter().enumerate().all(alone) {
            let cpu = scalar(&r, "b", "cpu");
            prop_assert!(cpu > 0.95, "{cpu}");
        }
    }
}

#[test]
fn a_vcpu_of_its_own_pcpu_waits_for_nobody() {
    let wait = |policy: &str| {
        let text = text(6, 2, 8, 5, policy);
        let plan = plans(&text, &[], &[]).remove(0);
        let r = vcoop_sim::run(Run::new(&plan, 1)).unwrap();
        r.latencies.iter().find(|l| l.probe == "a.rt").unwrap().max_ns
    };
    let [vanilla, pinned, isolated] =
        ["vanilla", "pinned", "isolated"].map(|base| wait(&format!("base = \"{base}\"")));
    assert!(isolated < MS && pinned > MS && vanilla > MS, "{vanilla} {pinned} {isolated}");
}
