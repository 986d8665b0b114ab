//! A result for a monitoring system.

use crate::support::measured;
use vcoop_report::open_metrics;

/// Values of a family under a policy, with their labels.
fn values<'t>(text: &'t str, family: &str, policy: &str) -> Vec<(&'t str, f64)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
    let own = lines.filter(|line| line.contains(&format!("policy=\"{policy}\"")));
    own.map(|line| line.rsplit_once("} ").unwrap()).map(|(l, v)| (l, v.parse().unwrap())).collect()
}

#[test]
fn a_sum_over_probes_counts_nothing_twice() {
    let text = open_metrics(&measured(""));
    for (one, all) in [
        ("vcoop_cpu_cpus", "vcoop_all_vms_cpu_cpus"),
        ("vcoop_exits_per_second", "vcoop_all_vms_exits_per_second"),
    ] {
        let (one, all) = (values(&text, one, "dynamic"), values(&text, all, "dynamic"));
        assert!(one.len() > 1 && all.len() == 1, "{one:?} {all:?}");
        let sum: f64 = one.iter().map(|(_, value)| value).sum();
        assert!((sum / all[0].1 - 1.0).abs() < 1e-3, "{one:?} {all:?}");
        assert!(!all[0].0.contains("probe="), "{all:?}");
    }
    assert!(!text.contains("probe=\"*"), "{text}");
    assert!(
        text.contains("# HELP vcoop_all_vms_cpu_cpus cpu of all VMs (cpu), mean over repeats.\n")
    );
}
