//! Tasks that meet at a barrier.

use crate::support::*;
use vcoop_model::plan::{Act, Ns, Plan, Program};
use vcoop_sched::config::Policy;

/// Computes for this long, and meets three others.
fn worker(work_us: Ns, spin_us: Ns) -> Program {
    let meet = Act::Barrier { of: 4, spin_ns: spin_us * US };
    routine(vec![Act::Begin, user(work_us), meet, Act::Sample, Act::Done])
}

/// Four that meet each round, on a pCPU each; the last one computes twice as long as the others.
fn four(spin_us: Ns) -> Plan {
    let mut p = plan(eevdf(4), dear());
    let works = [100, 100, 100, 200];
    let tasks = works.map(|us| task("t", worker(us, spin_us), Policy::NORMAL, &[]));
    let mut vm = vm("g", eevdf(4), tasks.to_vec());
    for (t, task) in vm.tasks.iter_mut().enumerate() {
        (task.name, task.label) = (format!("t{t}"), "t".into());
    }
    vm.vcpu_cpus = (0..4).map(|cpu| vec![cpu]).collect();
    p.vms.push(vm);
    probe_all(&mut p);
    p
}

#[test]
fn all_go_on_when_the_last_one_has_come() {
    let r = run(&four(1_000));
    let rounds = scalar(&r, "g.t", "rate") / 4.0;
    assert!((4_900.0..5_000.0).contains(&rounds), "200 us and the way to the others: {rounds}");
    assert!(scalar(&r, "g", "cpu") > 3.9, "they spin");
    assert_eq!(scalar_or_zero(&r, "g", "exits.hlt"), 0.0);
    let sleeping = run(&four(20));
    let slower = scalar(&sleeping, "g.t", "rate") / 4.0;
    assert!(slower < rounds && slower > 0.9 * rounds, "{slower}: three wake-ups a round");
    assert!(scalar(&sleeping, "g", "exits.hlt") > 2.9 * slower, "three sleep in each round");
    let cpu = scalar(&sleeping, "g", "cpu");
    assert!((2.5..3.2).contains(&cpu), "120 us of 200 for three of them: {cpu}");
}

#[test]
fn one_vcpu_without_a_pcpu_holds_all_up() {
    let mut p = four(1_000);
    p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[0]));
    let r = run(&p);
    let rounds = scalar(&r, "g.t", "rate") / 4.0;
    // The first needs 100 us of each round, and has half of its pCPU, in slices of several rounds.
    assert!((2_300.0..3_000.0).contains(&rounds), "{rounds}");
    assert!(scalar(&r, "g", "steal") > 10.0);
}
