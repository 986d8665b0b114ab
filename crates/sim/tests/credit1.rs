//! Xen's credit1 as the host's scheduler.

use crate::support::*;
use vcoop_credit1::{Credit1Config, Domain, XenVersion};
use vcoop_model::plan::{Act, HostSched, Mode, Plan, Target, VmPlan};
use vcoop_sched::config::Policy;

/// A host of `pcpus` with one domain for each VM.
fn xen(pcpus: u32, vms: Vec<VmPlan>) -> Plan {
    hosted(HostSched::Credit1(credit1(pcpus, vms.len())), vms)
}

fn config(p: &mut Plan) -> &mut Credit1Config {
    match &mut p.host.sched {
        HostSched::Credit1(credit1) => credit1,
        HostSched::Linux(_) | HostSched::Pool(_) => panic!("a Xen host"),
    }
}

fn cpu_loops(n: usize) -> Vec<VmPlan> {
    (0..n).map(|i| cpu_loop(&format!("vm{i}"))).collect()
}

#[test]
fn equal_vms_share_the_host_and_nothing_is_idle() {
    let mut p = xen(4, cpu_loops(10));
    p.duration_ns = 20 * S;
    let r = run(&p);
    assert!(scalar(&r, "host", "cpu") > 99.0);
    for i in 0..10 {
        let share = scalar(&r, &format!("vm{i}"), "cpu");
        assert!((share - 0.4).abs() < 0.03, "vm{i}: {share}");
    }
    let again = run(&p);
    assert_eq!(r.scalars, again.scalars);
}

#[test]
fn weights_and_caps_hold() {
    let mut p = xen(1, cpu_loops(2));
    p.duration_ns = 20 * S;
    config(&mut p).domains[1].weight = 768;
    let r = run(&p);
    let [a, b] = ["vm0", "vm1"].map(|vm| scalar(&r, vm, "cpu"));
    assert!((b / a / 3.0 - 1.0).abs() < 0.15, "{a} and {b}");

    let mut p = xen(1, cpu_loops(1));
    p.duration_ns = 20 * S;
    config(&mut p).domains[0].cap_pct = 40;
    let r = run(&p);
    let share = scalar(&r, "vm0", "cpu");
    assert!((share - 0.4).abs() < 0.02, "{share}");
    assert!(scalar(&r, "host", "parks") > 5.0);
}

/// A VM that wakes every 7.3 ms beside two that never sleep, on one pCPU: its longest wait.
fn longest_wait(version: XenVersion, ratelimit_ns: u64) -> u64 {
    let probe = task("cyclictest", cyclictest(7_300 * US, 20 * US), Policy::Fifo(1), &[]);
    let mut p = xen(1, vec![vm("pinged", eevdf(1), vec![probe]), cpu_loop("vm1"), cpu_loop("vm2")]);
    p.duration_ns = 10 * S;
    // VMs that start together are all boosted, and wait for each other's first slices.
    p.warmup_ns = S;
    config(&mut p).version = version;
    config(&mut p).ratelimit_ns = ratelimit_ns;
    let r = run(&p);
    assert_eq!(scalar(&r, "host", "ratelimit_holds") > 0.0, ratelimit_ns > 0);
    latency(&r, "pinged.cyclictest").max_ns
}

#[test]
fn a_boosted_vcpu_waits_for_the_ratelimit_only() {
    // Guest and host cost nothing here: what is left is the scheduler's wait.
    let today = longest_wait(XenVersion::Current, MS);
    let old = longest_wait(XenVersion::V4_2, MS);
    let off = longest_wait(XenVersion::Current, 0);
    assert!((100 * US..=1_100 * US).contains(&today), "{today}");
    assert!((100 * US..=2_100 * US).contains(&old), "{old}");
    assert!(off < 50 * US, "{off}");
}

#[test]
fn who_spins_yields_to_whoever_is_next() {
    // The holder of the lock has a pCPU of its own; who waits for it shares one with another VM, and gives its turns
    // away.
    let locker = |section: u64| {
        let acts = vec![
            Act::Lock { lock: 0 },
            run_for(section, Mode::PreemptOff),
            Act::Unlock { lock: 0 },
            run_for(10 * US, Mode::User),
            Act::Done,
        ];
        task("locker", routine(acts), Policy::NORMAL, &[])
    };
    let mut spins = vm("spins", eevdf(2), vec![locker(5 * MS), locker(5 * MS)]);
    spins.tasks[0].cpus = vec![0];
    spins.tasks[1].cpus = vec![1];
    spins.vcpu_cpus = vec![vec![0], vec![1]];
    let mut other = cpu_loop("vm1");
    other.vcpu_cpus = vec![vec![1]];
    let mut p = xen(2, vec![spins, other]);
    p.duration_ns = 2 * S;
    let r = run(&p);
    assert!(scalar(&r, "spins", "exits.pause") > 100.0);
    assert!(scalar(&r, "host", "yields") > 50.0);
    let share = scalar(&r, "vm1", "cpu");
    assert!(share > 0.6, "{share}");
}

#[test]
fn a_parked_vm_waits_and_its_samples_say_so() {
    let probe = task("cyclictest", cyclictest(5_300 * US, 4_240 * US), Policy::Fifo(1), &[]);
    let mut p = xen(1, vec![vm("capped", eevdf(1), vec![probe])]);
    p.duration_ns = 5 * S;
    config(&mut p).domains[0].cap_pct = 50;
    let r = run(&p);
    // (With a period of 5 ms it would never be there when the tick comes, and escape its cap.)
    // It asks for 80 % and gets 50: it falls behind by more than an accounting period.
    let share = scalar(&r, "capped", "cpu");
    assert!((share - 0.5).abs() < 0.03, "{share}");
    assert!(latency(&r, "capped.cyclictest").max_ns > 30 * MS);
}

#[test]
fn costs_are_paid_and_books_balance() {
    let probe = task("cyclictest", cyclictest(3 * MS, 100 * US), Policy::Fifo(1), &[]);
    let mut vms = cpu_loops(7);
    vms.push(vm("pinged", eevdf(2), vec![probe]));
    let mut p = xen(4, vms);
    p.host.costs = dear();
    p.duration_ns = 5 * S;
    let r = run(&p);
    let used: f64 = p.vms.iter().map(|vm| scalar(&r, &vm.name, "cpu")).sum();
    let host = scalar(&r, "host", "cpu") / 100.0 * 4.0;
    assert!(used <= host + 1e-9 && used > 0.98 * host, "{used} of {host}");
    assert!(latency(&r, "pinged.cyclictest").hist.len() > 1000);
}

#[test]
fn an_event_channel_of_dom0_is_dom0s_wakeup() {
    let migrations = |local| {
        let server = Target::Guest { vm: 1, task: 0 };
        let ping = task("ping", ping(MS, server), Policy::Fifo(1), &[]);
        let busy = task("loop", hog(), Policy::NORMAL, &[]);
        let pong = task("pong", serve(0), Policy::Fifo(1), &[]);
        let dom0 = vm("dom0", eevdf(1), vec![ping, busy]);
        let mut p = xen(2, vec![dom0, vm("server", eevdf(1), vec![pong])]);
        p.vms[0].vcpu_cpus = vec![vec![0]];
        p.duration_ns = 2 * S;
        config(&mut p).domains[0] = Domain::DOM0;
        config(&mut p).patches.waker_local = local;
        scalar(&run(&p), "host", "migrations")
    };
    // Left alone, the server stays where it is; sent to dom0's pCPU, it is stolen from there by its
    // own, which is idle, at each call.
    let (apart, local) = (migrations(false), migrations(true));
    assert!(apart < 1.0 && local > 1_900.0, "{apart} and {local}");
}
