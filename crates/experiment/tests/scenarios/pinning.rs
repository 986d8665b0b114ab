//! Where vCPUs and the host's loads may run.

use super::{latencies, run, scalars};

/// pCPUs for vCPUs alone pay where the guest uses them, and boosts where it does not.
#[test]
fn pcpus_of_ones_own_are_best_for_a_busy_guest_and_boosts_for_an_idle_one() {
    let d = run("pinning", &["duration=2s", "repeats=5"], &[]);
    // Over both, then the guest that computes and the one that does not. Of the former, about one wake-up in a hundred
    // waits for the host's job, so that its p99 decides nothing.
    assert_eq!(d.verdicts.iter().map(|v| v.cells).collect::<Vec<_>>(), [2, 0, 0]);
    assert_eq!(d.verdicts[2].best.as_deref(), Some("dynamic"), "{:?}", d.verdicts);
    let mean = |policy: &str| latencies(&d, "guest.cyclictest/1", policy)[0].mean.unwrap();
    let [vanilla, isolated, dynamic] = ["vanilla", "isolated", "dynamic"].map(mean);
    assert!(isolated < dynamic && dynamic < vanilla / 2.0, "{vanilla} {isolated} {dynamic}");
    let job = |policy: &str| scalars(&d, "host.job", "throughput", policy);
    let (vanilla, isolated, dynamic) = (job("vanilla"), job("isolated"), job("dynamic"));
    assert!(isolated[0] > 0.95 * vanilla[0] && isolated[1] < 0.6 * vanilla[1]);
    assert!(dynamic[1] > 0.95 * vanilla[1]);
    let p99 =
        |policy: &str, cell: usize| latencies(&d, "guest.cyclictest/1", policy)[cell].p99.unwrap();
    assert!(p99("isolated", 1) < 0.1 * p99("vanilla", 1));
    // Pinning alone takes the way to an idle pCPU from a vCPU.
    assert!(p99("pinned", 1) > p99("vanilla", 1));
    let lines = |policy: &str| {
        let found = d.deployments.iter().find(|one| one.policy == policy).unwrap();
        found.lines.join("\n")
    };
    assert!(lines("isolated").contains("virsh vcpupin VM 3 3\n"), "{}", lines("isolated"));
    assert!(lines("isolated").contains("taskset -acp 4-7 PID # each process of job, cyclictest"));
    assert!(!lines("pinned").contains("PID"));
}
