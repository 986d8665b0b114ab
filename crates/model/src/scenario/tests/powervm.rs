//! Hosts with a shared processor pool.

use vcoop_powervm::{Partition, PoolConfig};
use vcoop_sched::config::Topology;

use super::*;
use crate::plan::TimelineAction;
use crate::plan::virt::{PreemptedReport, SpinLocks};

const POOL: &str = r#"
name = "pool"
title = "Two partitions"
[host]
pcpus = 8
topology = { threads_per_core = 2, cores_per_llc = 4 }
[host.sched]
class = "powervm"
[[vm]]
name = "a"
vcpus = 8
entitled = 4
weight = 200
[[vm.task]]
name = "hog"
kind = "hog"
[[vm]]
name = "b"
count = 2
vcpus = 4
entitled = 2
[[vm.task]]
name = "hog"
kind = "hog"
[compare]
policy = ["vanilla", "entitlement", "step", "proportional", "host-hint"]
"#;

fn pool(text: &str) -> PoolConfig {
    plan_of(text).host.sched.pool().expect("a pool").clone()
}

#[track_caller]
fn refused(from: &str, to: &str, line: &str, message: &str) {
    assert!(POOL.contains(from), "{from}");
    says(&POOL.replacen(from, to, 1), &[message, line]);
}

#[test]
fn partitions_are_vms_and_copies_have_their_own() {
    let all = plans_of(parse(POOL));
    let pool = all[0].host.sched.pool().expect("a pool");
    let small = Partition { vcpus: 4, entitled: 2, weight: 128 };
    assert_eq!(pool.partitions, [Partition { vcpus: 8, entitled: 4, weight: 200 }, small, small]);
    assert_eq!((pool.window_ns, pool.topology.threads_per_core), (10_000_000, 2));
    let groups: Vec<_> = all[0].vms.iter().map(|vm| vm.group).collect();
    assert_eq!(groups, [Some(0), Some(1), Some(2)]);
    let guest = Topology { threads_per_core: 2, cores_per_llc: 4, llcs: 1 };
    assert_eq!(all[0].vms[0].level.topology, guest, "cores like the host's");
    assert!(all[2].governor(0).is_some(), "governors go by its steal");
}

#[test]
fn the_window_and_caps_arrive() {
    let window = "class = \"powervm\"\n[host.powervm]\nwindow = \"20ms\"";
    assert_eq!(pool(&POOL.replace("class = \"powervm\"", window)).window_ns, 20_000_000);
    let capped = POOL.replace("weight = 200", "capped = true");
    assert_eq!(pool(&capped).partitions[0].weight, 0);
    assert_eq!(pool(&POOL.replace("weight = 200", "weight = 0")).partitions[0].weight, 0);
    let mask = format!("{POOL}[[at]]\ntime = \"1s\"\nvm = \"a\"\nprefer = \"0-3\"\n");
    let prefers =
        |event: &crate::plan::TimelineEvent| matches!(&event.action, TimelineAction::Prefer { .. });
    assert!(plan_of(&mask).timeline.iter().any(prefers));
}

#[test]
fn what_a_pool_cannot_have_is_refused() {
    refused("entitled = 4", "entitled = 5", "entitled = 2", "entitled to 9 pCPUs of 8");
    refused("entitled = 4\n", "", "name = \"a\"", "is entitled to something");
    refused(
        "vcpus = 8\nentitled = 4",
        "vcpus = 100\nentitled = 4",
        "entitled = 4",
        "4 pCPUs for 100",
    );
    refused("vcpus = 8", "vcpus = 7", "vcpus = 7", "7 vCPUs do not fill cores of 2 threads");
    let flat = "vcpus = 8\ntopology = { cores_per_llc = 8 }";
    refused("vcpus = 8", flat, "cores_per_llc = 8", "the guest sees 1 threads a core");
    refused("weight = 200", "weight = 256", "weight = 256", "256 is out of range in a pool");
    refused("weight = 200", "weight = 2\ncapped = true", "capped", "whatever its weight");
    let window = "class = \"powervm\"\n[host.powervm]\nwindow = \"2s\"";
    refused("class = \"powervm\"", window, "window = \"2s\"", "`window` cannot be 2s");
}

#[test]
fn keys_of_others_are_refused() {
    let fair = "class = \"powervm\"\nfair = \"cfs\"";
    refused("class = \"powervm\"", fair, "fair", "a tunable of Linux, but class = \"powervm\"");
    let xen = "class = \"powervm\"\n[host.credit1]\ntimeslice = \"5ms\"";
    refused("class = \"powervm\"", xen, "timeslice", "a tunable of credit1");
    refused("weight = 200", "pin = \"0-3\"", "pin", "a shared pool pins nobody");
    refused("weight = 200", "cap = 50", "cap = 50", "`cap` needs Xen's scheduler");
    let fifo = "vcpu_policy = \"fifo 1\"";
    refused("weight = 200", fifo, "fifo", "needs Linux's scheduler, and this host has PowerVM's");
    refused("weight = 200", "apicv = false", "apicv", "needs Linux's scheduler");
    let pv = "spinlocks = \"pv\"";
    refused("weight = 200", pv, "pv", "`spinlocks = \"pv\"` needs Linux's scheduler");
    let locks = |text: &str| plan_of(text).vms.iter().map(|vm| vm.virt.spin.locks).next();
    assert_eq!(locks(POOL), Some(SpinLocks::Confer), "Linux on POWER");
    let native = POOL.replacen("weight = 200", "spinlocks = \"native\"", 1);
    assert_eq!(locks(&native), Some(SpinLocks::Queued));
    let elsewhere = POOL.replace("class = \"powervm\"", "fair = \"cfs\"");
    let confer = elsewhere.replacen("weight = 200", "spinlocks = \"confer\"", 1);
    says(&confer, &["`spinlocks = \"confer\"` needs a shared processor pool"]);
    let told = |text: &str| plan_of(text).vms.iter().map(|vm| vm.virt.spin.told).next();
    assert_eq!(
        (told(POOL), told(&elsewhere)),
        (Some(PreemptedReport::Core), Some(PreemptedReport::Interrupted))
    );
    let core = elsewhere.replacen("weight = 200", "preempted_flag = \"core\"", 1);
    says(&core, &["`preempted_flag = \"core\"` needs a shared processor pool"]);
    refused("pcpus = 8", "pcpus = 8\ntick_hz = 100", "tick_hz", "needs Linux's scheduler");
    refused("\"step\"", "\"dynamic\"", "dynamic", "`dynamic` boosts Linux threads");
    refused("\"step\"", "\"ratelimit-auto\"", "ratelimit-auto", "PowerVM's scheduler has none");
    let load = "[[load]]\nname = \"x\"\nkind = \"hog\"\n[compare]";
    refused("[compare]", load, "name = \"x\"", "no threads that could be loads");
    let at = "[[at]]\ntime = \"1s\"\nvm = \"a\"\nboost = \"on\"\n[compare]";
    refused("[compare]", at, "boost", "needs Linux's scheduler");
    let error = parse(
        &POOL
            .replace("class = \"powervm\"", "fair = \"cfs\"")
            .replace("weight = 200", "capped = true"),
    );
    let error = error.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("`capped` needs a shared processor pool"), "{error}");
}
