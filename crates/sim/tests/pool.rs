//! A shared processor pool as the host's scheduler.

use crate::support::*;
use proptest::prelude::*;
use vcoop_model::plan::virt::{PreemptedReport, SpinLocks};
use vcoop_model::plan::{Act, Dist, HostSched, Mode, Plan, QueueRoom, VmPlan};
use vcoop_model::recording::Recording;
use vcoop_powervm::{Partition, PoolConfig};
use vcoop_sched::config::{Policy, Topology};

/// A pool with a partition for each VM: (vCPUs, entitled, weight).
fn pool(topology: Topology, parts: &[(u32, u32, u32)], vms: Vec<VmPlan>) -> Plan {
    let of = |&(vcpus, entitled, weight): &(u32, u32, u32)| Partition { vcpus, entitled, weight };
    let parts = parts.iter().map(of).collect();
    hosted(HostSched::Pool(PoolConfig::new(topology, parts)), vms)
}

fn hogs(name: &str, vcpus: u32, threads: u32) -> VmPlan {
    let mut level = eevdf(vcpus);
    level.topology =
        Topology { threads_per_core: threads, cores_per_llc: vcpus / threads, llcs: 1 };
    let one = |i: u32| task(&format!("hog/{i}"), hog(), Policy::NORMAL, &[i]);
    vm(name, level, (0..vcpus).map(one).collect())
}

fn cpu(r: &Recording, vm: &str) -> f64 {
    scalar(r, vm, "cpu")
}

#[test]
fn entitlements_caps_and_weights_hold() {
    let vms = || vec![hogs("a", 4, 1), hogs("b", 4, 1), hogs("c", 4, 1)];
    let parts = [(4, 2, 0), (4, 1, 200), (4, 1, 100)];
    let mut p = pool(Topology::flat(8), &parts, vms());
    p.duration_ns = 5 * S;
    let r = run(&p);
    // Capped at 2; of the 4 that are left two thirds and one third, but the first of them can use 3 only.
    assert!((cpu(&r, "a") - 2.0).abs() < 0.01, "{}", cpu(&r, "a"));
    assert!((cpu(&r, "b") - 3.6).abs() < 0.4 && cpu(&r, "c") < cpu(&r, "b"), "{r:?}");
    assert!(scalar(&r, "host", "cpu") > 74.0);
    assert!(scalar(&r, "host", "parks") > 0.0);
    // Steal is what a vCPU waits while it could run: held by its cap, too.
    assert!((scalar(&r, "a", "steal") - 50.0).abs() < 1.0, "{}", scalar(&r, "a", "steal"));
    assert_eq!(run(&p).scalars, r.scalars, "the same bytes");
}

#[test]
fn cores_are_dispatched_whole() {
    let smt = Topology { threads_per_core: 4, cores_per_llc: 2, llcs: 1 };
    let mut p = pool(smt, &[(8, 4, 128), (8, 4, 128)], vec![hogs("a", 8, 4), hogs("b", 8, 4)]);
    // One task in all of b: it has half of a core's time, and the three threads beside it idle.
    p.vms[1].tasks.truncate(1);
    p.duration_ns = 4 * S;
    let r = run(&p);
    let (a, b) = (cpu(&r, "a"), cpu(&r, "b"));
    assert!(b > 0.5 && b < 1.01, "{b}");
    // While b's thread has a core, three threads of it are idle.
    assert!((a - (8.0 - 4.0 * b)).abs() < 0.05, "{a} beside {b}");
}

#[test]
fn a_wake_up_waits_for_entitled_work_only() {
    let ping = task("ping", cyclictest(7_300 * US, 20 * US), Policy::Fifo(1), &[]);
    let longest = |entitled: u32| {
        let part = [(1, 1, 128), (8, entitled, 128)];
        let vms = vec![vm("pinged", eevdf(1), vec![ping.clone()]), hogs("other", 8, 1)];
        let mut p = pool(Topology::flat(8), &part, vms);
        p.duration_ns = 10 * S;
        p.warmup_ns = S;
        latency(&run(&p), "pinged.ping").max_ns
    };
    // The hogs run on spare time from 1/8 or 7/8 of the window on; before, their share is theirs.
    let (few, many) = (longest(1), longest(7));
    assert!(few <= 1_300 * US, "{few}");
    assert!(many > 5 * MS && many <= 8_800 * US, "{many}");
}

#[test]
fn a_wake_up_takes_no_idle_thread_of_a_core_that_is_away() {
    // Two virtual processors of two threads share a core. A thread of each computes, and often wakes a task that may run
    // on the other thread of either.
    let mean_us = |told: PreemptedReport| {
        let mut guest = hogs("a", 4, 2);
        let receive = vec![Act::Receive { sample: true }, run_for(20 * US, Mode::User)];
        let post = Act::Post { peer: 1, room: QueueRoom::List };
        let send = vec![run_for(500 * US, Mode::User), post];
        let t = |acts, cpus: &[u32]| task("t", routine(acts), Policy::NORMAL, cpus);
        guest.tasks = vec![t(send.clone(), &[0]), t(receive, &[1, 3]), t(send, &[2])];
        guest.tasks[1].name = "u".to_owned();
        guest.virt.spin.told = told;
        let smt = Topology { threads_per_core: 2, cores_per_llc: 1, llcs: 1 };
        let mut p = pool(smt, &[(4, 2, 128)], vec![guest]);
        probe_all(&mut p);
        p.duration_ns = 4 * S;
        let r = run(&p);
        mean(&r, "a.u") / 1e3
    };
    // Each turn has ten wake-ups. If only its own thread counts, the first one of each second turn finds the thread
    // idle on which it ran last, and waits for half a window.
    let (core, own) = (mean_us(PreemptedReport::Core), mean_us(PreemptedReport::Interrupted));
    assert!(core < 50.0 && own > 300.0, "{core} us, and {own} us if only the thread counts");
}

#[test]
fn who_waits_for_a_lock_confers_its_core_to_the_holder() {
    // Two vCPUs of one core hold a lock for 1 ms by turns.
    let locked =
        [Act::Lock { lock: 0 }, run_for(MS, Mode::PreemptOff), Act::Unlock { lock: 0 }, Act::Done];
    let of = |locks| {
        let tasks =
            (0..2).map(|i| task(&format!("t/{i}"), routine(locked.to_vec()), Policy::NORMAL, &[i]));
        let mut guest = vm("guest", eevdf(2), tasks.collect());
        guest.virt.spin.locks = locks;
        let mut p = pool(Topology::flat(1), &[(2, 1, 128)], vec![guest]);
        p.duration_ns = S;
        let r = run(&p);
        let exits = scalar_or_zero(&r, "guest", "exits.pause");
        assert!(exits == 0.0, "POWER has no PAUSE exits: {exits}");
        (
            scalar(&r, "guest.t/0", "rate") + scalar(&r, "guest.t/1", "rate"),
            scalar_or_zero(&r, "host", "confers"),
        )
    };
    // A waiter that spins does so until its half of the window is over.
    let (spins, none) = of(SpinLocks::Queued);
    let (confers, times) = of(SpinLocks::Confer);
    assert!(spins < 350.0 && none == 0.0, "{spins} {none}");
    assert!(confers > 980.0 && times > 90.0, "{confers} {times}: once a window");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// With costs: a VM that always wants CPU has its entitlement, no capped one has more, time is
    /// conserved, and every sample is the sum of its parts.
    #[test]
    fn promises_hold_at_a_price(
        threads in prop_oneof![Just(1u32), Just(2)],
        parts in prop::collection::vec((1u32..4, 1u32..100, prop_oneof![Just(0u32), 1u32..255]), 1..4),
        sleepy in any::<bool>(),
    ) {
        let topology = Topology { threads_per_core: threads, cores_per_llc: 4, llcs: 1 };
        let mut left = topology.cpus();
        let mut list = Vec::new();
        for (vps, pct, weight) in parts {
            let entitled = (left * pct / 100).clamp(1, vps * threads);
            if entitled <= left {
                list.push((vps * threads, entitled, weight));
                left -= entitled;
            }
        }
        let names = ["a", "b", "c"];
        let mut vms: Vec<VmPlan> =
            list.iter().zip(names).map(|(part, name)| hogs(name, part.0, threads)).collect();
        if sleepy && vms.len() > 1 {
            let last = vms.len() - 1;
            let run = Dist::Exp { mean_ns: MS, max_ns: 10 * MS };
            vms[last].tasks[0].program = cycle(run, run);
            vms[last].tasks.push(task("ping", cyclictest(3 * MS, 50 * US), Policy::Fifo(1), &[]));
        }
        let mut p = pool(topology, &list, vms);
        p.host.costs = dear();
        p.duration_ns = 2 * S;
        p.warmup_ns = 100 * MS;
        let r = run(&p);
        let mut all = 0.0;
        for (i, ((vcpus, entitled, weight), name)) in list.iter().zip(names).enumerate() {
            let own = cpu(&r, name);
            all += own;
            let sleeps = sleepy && i + 1 == list.len() && list.len() > 1;
            // Leaving an idle state and switching are at the expense of who is dispatched: once a window for each
            // vCPU, of 10 ms.
            let least = 0.99 * f64::from(*entitled) - 0.0065 * f64::from(*vcpus);
            prop_assert!(sleeps || own >= least, "{} of {}", own, entitled);
            let most = if *weight == 0 { *entitled } else { *vcpus };
            prop_assert!(own <= 1.005 * f64::from(most), "{} of {}", own, most);
        }
        prop_assert!(all <= f64::from(topology.cpus()) * 1.000_001);
        for l in &r.latencies {
            prop_assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns);
        }
        prop_assert_eq!(run(&p).scalars, r.scalars);
    }
}
