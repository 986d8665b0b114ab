//! Round trips whose lengths are known without a simulator.

use crate::analytic::machine_repairman_busy;
use crate::support::*;
use vcoop_model::plan::{Dist, Ns, Phase, Plan, Program, Target, TaskPlan};
use vcoop_model::profile::{CState, Costs};
use vcoop_model::recording::{LatencyRecord, Part};
use vcoop_sched::config::Policy;

const RT: Policy = Policy::Fifo(50);

fn guest(vm: u32, task: u32) -> Target {
    Target::Guest { vm, task }
}

/// A VM of so many vCPUs, each on a pCPU of its own from `first` on.
fn pinned(name: &str, vcpus: u32, first: u32, tasks: Vec<TaskPlan>) -> vcoop_model::plan::VmPlan {
    let mut vm = vm(name, cfs(vcpus), tasks);
    vm.vcpu_cpus = (first..first + vcpus).map(|c| vec![c]).collect();
    vm
}

fn only(p: &mut Plan, probe: &str) -> LatencyRecord {
    probe_all(p);
    latency(&run(p), probe).clone()
}

fn part(l: &LatencyRecord, part: Part) -> Ns {
    (l.parts_sum[part as usize] / u128::from(l.hist.len())) as Ns
}

/// Host to host, host to guest and back, within a guest and across VMs.
fn layouts(costs: Costs, work: Ns) -> Vec<(&'static str, Plan)> {
    let base = || plan(cfs(4), costs.clone());
    let call = |at| task("ping", ping(MS, at), RT, &[0]);
    let server = |cpu: u32| task("server", serve(work), RT, &[cpu]);
    let mut all = Vec::new();

    let mut p = base();
    p.host_tasks = vec![call(Target::Host(1)), server(0)];
    all.push(("host.ping", p.clone()));
    p.host_tasks[1].cpus = vec![1];
    all.push(("host.ping", p));

    let mut p = base();
    p.host_tasks = vec![call(guest(0, 0))];
    p.vms = vec![pinned("vm", 1, 1, vec![server(0)])];
    all.push(("host.ping", p));

    let mut p = base();
    p.host_tasks = vec![server(0)];
    p.vms = vec![pinned("vm", 1, 1, vec![call(Target::Host(0))])];
    all.push(("vm.ping", p));

    for cpu in [0, 1] {
        let mut p = base();
        p.vms = vec![pinned("vm", 2, 1, vec![call(guest(0, 1)), server(cpu)])];
        all.push(("vm.ping", p));
    }

    let mut p = base();
    p.vms =
        vec![pinned("vm", 1, 1, vec![call(guest(1, 0))]), pinned("other", 1, 2, vec![server(0)])];
    all.push(("vm.ping", p));
    all
}

#[test]
fn on_a_free_machine_the_round_trip_is_the_work() {
    for (i, (probe, mut p)) in layouts(free(), 7 * US).into_iter().enumerate() {
        let l = only(&mut p, probe);
        assert_eq!((l.min_ns, l.max_ns), (7 * US, 7 * US), "layout {i}");
        assert_eq!(l.parts_sum[Part::Service as usize], l.sum_ns, "layout {i}");
        assert_eq!((l.hist.len(), l.missed), (999, 0), "layout {i}");
    }
}

#[test]
fn from_host_to_guest_and_back_every_cost_on_the_way_is_paid_once() {
    // Both ends sleep; pCPU 0 has the caller, pCPU 1 the vCPU. There and back:
    let costs = Costs {
        device_irq_ns: 650, // less the timer's, the signal
        timer_irq_ns: 200,
        handle_hypercall_ns: 450, // half of it, until the answer is out
        ipi_send_ns: 0,
        ipi_flight_ns: 800,       // to the vCPU's pCPU; to the caller's
        ipi_receive_ns: 500,      // there; here
        wakeup_ns: 600,           // the vCPU's thread, by the caller; the caller's, by the vCPU
        context_switch_ns: 1_100, // to the vCPU; to the caller
        entry_ns: 600,
        inject_ns: 150,
        guest_irq_ns: 1_000,
        guest_wakeup_ns: 700,
        guest_switch_ns: 1_000,
        exit_ns: 400,
        handle_timer_msr_ns: 300,
        ..free()
    };
    let (_, mut p) = layouts(costs, 7 * US).swap_remove(2);
    let l = only(&mut p, "host.ping");
    // A guest that leaves idle starts its tick: a write of the deadline MSR, before the switch.
    let tick = 400 + 300 + 600;
    let there = 450 + 600 + 800 + 500 + 1_100 + 600 + 150 + 1_000 + 700 + tick + 1_000;
    let back = 400 + 225 + 600 + 800 + 500 + 1_100;
    assert_eq!((l.min_ns, l.max_ns), (there + 7_000 + back, there + 7_000 + back));
    assert_eq!(part(&l, Part::Service), 7_000);
    assert_eq!(part(&l, Part::EntryExit), 600 + 150 + tick + 400 + 225);
    assert_eq!(part(&l, Part::GuestIrq), 1_700);
    assert_eq!(part(&l, Part::GuestSwitch), 1_000);
}

#[test]
fn an_idle_cpu_that_watches_its_flags_is_woken_without_an_ipi() {
    // A host thread calls a guest on the other pCPU, and both sleep between: two wake-ups of an idle pCPU a round.
    let of = |monitor| {
        let cstates = vec![CState { name: "C1".into(), exit_ns: 2_000, residency_ns: 0, monitor }];
        let ipi = Costs { ipi_send_ns: 50, ipi_flight_ns: 800, ipi_receive_ns: 500, ..free() };
        let (_, mut p) =
            layouts(Costs { poll_notice_ns: 100, cstates, ..ipi }, 7 * US).swap_remove(2);
        only(&mut p, "host.ping").min_ns
    };
    assert_eq!((of(false), of(true)), (7_000 + 2 * 3_350, 7_000 + 2 * 2_100));
}

#[test]
fn an_ipi_between_vcpus_is_an_exit_an_injection_and_a_wake_up() {
    let costs = Costs {
        guest_wakeup_ns: 700, // by the sender, on its way to the ICR; there and back
        exit_ns: 400,
        handle_icr_ns: 500,
        handle_timer_msr_ns: 300,
        ipi_flight_ns: 800,
        ipi_receive_ns: 300,
        context_switch_ns: 1_100,
        entry_ns: 600,
        inject_ns: 150,
        guest_irq_ns: 1_000,
        guest_switch_ns: 900,
        ..free()
    };
    let (probe, mut p) = layouts(costs, 2 * US).swap_remove(5);
    let l = only(&mut p, probe);
    let tick = 400 + 300 + 600;
    let hop = 400 + 500 + 800 + 300 + 1_100 + 600 + 150 + 1_000 + tick + 900;
    // The ICR write comes before the sender's other work is done.
    assert_eq!((l.min_ns, l.max_ns), (2 * hop + 2_000, 2 * hop + 2_000));
    assert_eq!(scalar(&run(&p), "vm", "exits.send"), 0.0);
}

#[test]
fn across_vms_the_round_trip_is_two_equal_hops() {
    let mut same = layouts(dear(), 0);
    let (_, mut across) = same.swap_remove(6);
    let l = only(&mut across, "vm.ping");
    let r = run(&across);
    // One exit a message, from the caller and from the server.
    let per_s = 999.0;
    for vm in ["vm", "other"] {
        assert!((scalar(&r, vm, "exits.send") - per_s).abs() < 1.5, "{vm}");
        assert!((scalar(&r, vm, "injections") - 2.0 * per_s).abs() < per_s + 3.0, "{vm}");
    }
    assert_eq!(scalar(&r, "vm.ping", "calls"), per_s);
    assert_eq!(scalar(&r, "other.server", "served"), per_s);
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns);
    assert_eq!(l.parts_sum[Part::Service as usize], 0);
}

#[test]
fn a_server_takes_calls_in_turn() {
    // Two callers at the same moment: one is served at once, the other after it.
    let mut p = plan(cfs(3), free());
    let server = Target::Host(2);
    p.host_tasks = vec![
        task("first", ping(MS, server), RT, &[0]),
        task("second", ping(MS, server), RT, &[1]),
        task("server", serve(30 * US), RT, &[2]),
    ];
    probe_all(&mut p);
    let r = run(&p);
    let (first, second) = (latency(&r, "host.first"), latency(&r, "host.second"));
    assert_eq!((first.min_ns, first.max_ns), (30 * US, 30 * US));
    assert_eq!((second.min_ns, second.max_ns), (60 * US, 60 * US));
    assert_eq!((part(second, Part::ServiceQueue), part(second, Part::Service)), (30 * US, 30 * US));
    assert_eq!(scalar(&r, "host.server", "served"), 2.0 * 999.0);
}

/// Mean number of jobs at the server of the closed queue M/D/1//N is not in closed form, that of
/// M/M/1//N is: with exponential thought and service, throughput X = (1 - p0)/s, and by Little's law
/// the response time is N/X - z.
#[test]
fn many_callers_see_the_textbook_response_time() {
    let (n, s, z) = (6_u32, 100_000.0, 400_000.0);
    let mut p = plan(unguarded(cfs(n + 1)), free());
    p.duration_ns = 60 * S;
    let exp = |mean| Dist::Exp { mean_ns: mean, max_ns: 100 * mean };
    let server = Target::Host(n);
    for i in 0..n {
        // Each on a CPU of its own thinks on it.
        let phases = vec![
            Phase::Run { time: exp(z as Ns), mode: vcoop_model::plan::Mode::User },
            Phase::Call { server, irq_vcpu: 0 },
        ];
        p.host_tasks.push(task(&format!("c{i}"), Program::Cycle { phases }, RT, &[i]));
    }
    let program =
        Program::Serve { work: exp(s as Ns), wait: Dist::Const(0), irq_vcpu: 0, section: None };
    p.host_tasks.push(task("server", program, RT, &[n]));
    let r = run(&p);
    let per_s = machine_repairman_busy(n, s, z) / s * 1e9;
    let served = scalar(&r, "host.server", "served");
    assert!((served / per_s - 1.0).abs() < 0.01, "{served} calls a second, want {per_s}");
}

#[test]
fn a_call_that_is_out_at_the_end_is_not_forgotten() {
    // A server that never gets the CPU.
    let mut p = plan(unguarded(cfs(2)), free());
    p.host_tasks = vec![
        task("ping", ping(10 * MS, Target::Host(1)), RT, &[0]),
        task("server", serve(US), Policy::Idle, &[1]),
        task("hog", hog(), Policy::Fifo(60), &[1]),
    ];
    let l = only(&mut p, "host.ping");
    assert_eq!((l.hist.len(), l.missed), (1, 99));
    assert_eq!(l.max_ns, 990 * MS);
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns);
}

#[test]
fn a_server_that_starts_late_finds_the_calls_waiting() {
    let mut p = plan(cfs(2), free());
    p.host_tasks = vec![task("ping", ping(10 * MS, Target::Host(1)), RT, &[0])];
    p.host_tasks.push(TaskPlan { start_ns: 55 * MS, ..task("server", serve(US), RT, &[1]) });
    let l = only(&mut p, "host.ping");
    assert_eq!(l.max_ns, 45 * MS + US);
    assert_eq!((l.hist.len(), l.missed), (95, 4)); // 20, 30, 40, 50 ms
}
