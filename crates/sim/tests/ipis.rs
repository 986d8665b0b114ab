//! IPIs, TLB shootdowns and yields: known answers.

use crate::support::*;
use vcoop_model::plan::virt::{IpiPath, Virt};
use vcoop_model::plan::{Act, Dist, IpiTo, Mode, Ns, Phase, Plan, Program, QueueRoom};
use vcoop_model::profile::Costs;
use vcoop_model::recording::{Part, Recording};
use vcoop_policy::config::HostPollConfig;
use vcoop_sched::config::{Policy, Topology};

fn broadcast(gap_us: Ns) -> Program {
    let ipi = Act::Ipi { to: IpiTo::Others, wait: true };
    routine(vec![user(gap_us), Act::Begin, ipi, Act::Sample, Act::Done])
}

/// A broadcast from vCPU 0 of `n` to all others, all of which run.
fn broadcaster(n: u32, path: IpiPath) -> Plan {
    let pins: Vec<u32> = (0..n).collect();
    let mut tasks = vec![hog(); n as usize];
    tasks[0] = broadcast(1_000);
    let mut p = machine(n, &pins, tasks);
    p.vms[0].virt.ipi.path = path;
    p.host.costs = dear();
    p
}

#[test]
fn each_path_has_its_own_number_of_exits_for_a_broadcast() {
    let n = 140;
    for (path, shorthand, icr, hypercall) in [
        (IpiPath::Icr, false, 139.0, 0.0),
        // 139 targets, 1 to 139: clusters of 15, 16 x 7, 12.
        (IpiPath::Cluster, false, 9.0, 0.0),
        // 128 and 11.
        (IpiPath::Pv, false, 0.0, 2.0),
        (IpiPath::Posted, false, 0.0, 0.0),
        (IpiPath::Icr, true, 1.0, 0.0),
        (IpiPath::Pv, true, 1.0, 0.0),
    ] {
        let mut p = broadcaster(n, path);
        p.vms[0].virt.ipi.shorthand = shorthand;
        p.duration_ns = 100 * MS;
        let r = run(&p);
        let rounds = scalar(&r, "guest.t", "rate");
        assert!(rounds > 400.0, "{path:?}: {rounds}");
        let of = |reason| scalar_or_zero(&r, "guest", &format!("exits.{reason}")) / rounds;
        // A round may be cut off at the end; nothing else sends IPIs.
        assert!((of("msr_icr") - icr).abs() < 0.5 + icr / 50.0, "{path:?}: {}", of("msr_icr"));
        assert!((of("hypercall") - hypercall).abs() < 0.1, "{path:?}: {}", of("hypercall"));
    }
}

#[test]
fn each_target_costs_its_cache_lines_and_the_own_cpu_none() {
    // Two lines of each target for the sender's kernel, and two for KVM where one exit reaches several.
    let took = |path, targets: u32, cache_line_ns, llc_crossing_ns| {
        let pins: Vec<u32> = (0..=targets).collect();
        let mut tasks = vec![hog(); pins.len()];
        let ipi = Act::Ipi { to: IpiTo::Others, wait: false };
        tasks[0] = routine(vec![user(1_000), Act::Begin, ipi, user(1), Act::Sample, Act::Done]);
        let mut p = machine(targets + 1, &pins, tasks);
        p.vms[0].virt.ipi.path = path;
        // The sender and two others have the first LLC.
        if targets == 5 {
            let topology = Topology { threads_per_core: 1, cores_per_llc: 3, llcs: 2 };
            *p.host.sched.topology_mut() = topology;
        }
        p.host.costs = Costs { cache_line_ns, llc_crossing_ns, ..free() };
        latency(&run(&p), "guest.t0").min_ns
    };
    for (path, targets, lines) in [
        (IpiPath::Icr, 1, 2),
        (IpiPath::Icr, 5, 10),
        (IpiPath::Pv, 5, 20),
        (IpiPath::Posted, 5, 10),
    ] {
        let more = took(path, targets, 100, 0) - took(path, targets, 0, 0);
        assert_eq!(more, lines * 100, "{path:?}, {targets} targets");
        let far = took(path, targets, 100, 50) - took(path, targets, 100, 0);
        // KVM's lines are part of the handling of an exit for each, but not their way.
        let kvm = if path == IpiPath::Icr { lines } else { 0 };
        let crossing = if targets == 5 { (lines + kvm) * 50 * 3 / 5 } else { 0 };
        assert_eq!(far, crossing, "{path:?}, {targets} targets, of which three are far");
    }
    // A function for the own vCPU is called in place.
    let ipi = Act::Ipi { to: IpiTo::Own, wait: true };
    let r = run(&machine(1, &[0], vec![routine(vec![user(100), ipi, Act::Done])]));
    assert_eq!(scalar_or_zero(&r, "guest", "exits.msr_icr"), 0.0);
    assert!((scalar(&r, "guest.t", "rate") - 10_000.0).abs() < 10.0);
}

#[test]
fn a_unicast_goes_by_the_icr_also_where_there_is_a_hypercall() {
    let ipi = Act::Ipi { to: IpiTo::Next, wait: true };
    let program = routine(vec![user(100), Act::Begin, ipi, Act::Sample, Act::Done]);
    let mut p = machine(2, &[0, 1], vec![program, hog()]);
    p.vms[0].virt.ipi.path = IpiPath::Pv;
    let r = run(&p);
    let rounds = scalar(&r, "guest.t", "rate");
    assert!((scalar(&r, "guest", "exits.msr_icr") / rounds - 1.0).abs() < 0.01);
    assert!(!r.scalars.contains_key(&("guest".into(), "exits.hypercall".into())));
}

#[test]
fn the_fast_path_is_for_icr_writes_in_physical_mode() {
    let wakes = routine(vec![user(100), Act::Resume { peer: 1 }]);
    let sleeps = routine(vec![Act::Suspend, user(1)]);
    // Time of each exit of a reschedule IPI.
    let each = |path: IpiPath, fastpath: bool| {
        let mut p = machine(2, &[0, 1], vec![wakes.clone(), sleeps.clone()]);
        p.host.costs = dear();
        p.vms[0].virt.ipi.path = path;
        p.vms[0].virt.apic.fastpath = fastpath;
        let r = run(&p);
        let exits = scalar(&r, "guest", "exits.msr_icr");
        assert!(exits > 1_000.0, "{exits}");
        // A share of the time of two vCPUs.
        scalar(&r, "guest", "exit_time.msr_icr") / 100.0 * 2e9 / exits
    };
    let saved = |path| each(path, false) - each(path, true);
    // 800 ns instead of 700 + 500 + 600.
    assert!((saved(IpiPath::Icr) - 1_000.0).abs() < 10.0, "{}", saved(IpiPath::Icr));
    // But for what host ticks in the middle of an exit move.
    assert!(saved(IpiPath::Cluster).abs() < 20.0, "{}", saved(IpiPath::Cluster));
}

#[test]
fn a_posted_ipi_wakes_a_halted_vcpu_and_costs_the_sender_no_exit() {
    let ipi = Act::Ipi { to: IpiTo::Next, wait: true };
    let program = routine(vec![user(100), Act::Begin, ipi, Act::Sample, Act::Done]);
    let sleeper = routine(vec![user(1), nap(1_000_000)]);
    let mut p = machine(2, &[0, 1], vec![program, sleeper]);
    p.host.costs = dear();
    p.vms[0].virt.ipi.path = IpiPath::Posted;
    let r = run(&p);
    assert!(scalar(&r, "guest.t", "rate") > 1_000.0);
    assert!(scalar(&r, "guest", "exits.msr_icr") < 1.0);
    assert!(scalar(&r, "guest", "ipis.posted") > 1_000.0);
}

#[test]
fn a_multicast_delivers_to_each_of_its_targets() {
    // Nothing else costs anything: an ICR write takes 500 ns to handle, of which 200 are the delivery.
    let took = |path, targets: u32| {
        let mut tasks = vec![hog(); targets as usize + 1];
        let ipi = Act::Ipi { to: IpiTo::Others, wait: false };
        tasks[0] = routine(vec![user(1_000), Act::Begin, ipi, user(1), Act::Sample, Act::Done]);
        let mut p = machine(targets + 1, &(0..=targets).collect::<Vec<_>>(), tasks);
        p.vms[0].virt.ipi.path = path;
        p.host.costs = Costs { handle_icr_ns: 500, handle_eoi_ns: 300, ..free() };
        latency(&run(&p), "guest.t0").min_ns - US
    };
    assert_eq!([1, 5].map(|targets| took(IpiPath::Icr, targets)), [500, 5 * 500]);
    assert_eq!([1, 5].map(|targets| took(IpiPath::Cluster, targets)), [500, 500 + 4 * 200]);
    assert_eq!([1, 5].map(|targets| took(IpiPath::Pv, targets)), [500, 5 * 200]);
}

#[test]
fn a_posted_ipi_is_taken_after_it_was_sent_and_flew() {
    // The sender's kernel waits for the target's lines first. A vCPU that comes to an end of something every 100 ns
    // takes the interrupt no earlier than one that computes: its CPU looks at what is posted when the notification is
    // there.
    let took = |other: Program, polled: bool| {
        let ipi = Act::Ipi { to: IpiTo::Next, wait: true };
        let program = routine(vec![user(100), Act::Begin, ipi, Act::Sample, Act::Done]);
        let mut p = machine(2, &[0, 1], vec![program, other]);
        p.vms[0].virt.ipi.path = IpiPath::Posted;
        p.host.costs = Costs {
            cache_line_ns: 5_000,
            ipi_send_ns: 300,
            ipi_flight_ns: 800,
            poll_notice_ns: 100,
            ..free()
        };
        if polled {
            p.vms[0].virt.idle.host_poll =
                Some(HostPollConfig { fixed: true, ..HostPollConfig::KVM });
        }
        let r = run(&p);
        (latency(&r, "guest.t0").min_ns, mean(&r, "guest.t0"))
    };
    let short = routine(vec![run_for(100, Mode::User), Act::Done]);
    let sleeper = routine(vec![user(1), nap(1_000_000)]);
    let sent = 2 * 5_000 + 300;
    for other in [hog(), short] {
        // Sent, flown, and the line of the answer. Where the target enters guest mode meanwhile it need not fly.
        let (least, mean) = took(other, false);
        assert!(least >= sent + 5_000, "{least}");
        assert!((mean / (sent + 800 + 5_000) as f64 - 1.0).abs() < 0.01, "{mean}");
    }
    let (polled, _) = took(sleeper, true);
    assert!(polled >= sent + 100, "who polls sees it when it was sent: {polled}");
}

/// vCPU 0 unmaps again and again; vCPU 1 runs, 2 shares a pCPU with a hog.
fn unmapper(pv: bool) -> Recording {
    let acts = vec![user(200), Act::Begin, Act::Flush, Act::Sample, Act::Done];
    let mut p = machine(3, &[0, 1, 2], vec![routine(acts), hog(), hog()]);
    p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[2]));
    p.vms[0].virt.ipi.pv_tlb = pv;
    p.vms[0].virt.exits_off.pause = true;
    run(&p)
}

#[test]
fn a_pv_shootdown_does_not_wait_for_who_is_preempted() {
    let (native, pv) = (unmapper(false), unmapper(true));
    // Half of the time vCPU 2 is away, for some milliseconds.
    let (before, after) = (latency(&native, "guest.t0"), latency(&pv, "guest.t0"));
    assert!(before.hist.max() > MS, "{}", before.hist.max());
    assert!(before.parts_sum[Part::CallWait as usize] > before.sum_ns * 9 / 10);
    assert!(after.hist.max() < 10 * US, "{}", after.hist.max());
    let deferred = scalar(&pv, "guest", "shootdowns.deferred");
    let all = scalar(&pv, "guest", "shootdowns");
    assert!((deferred / all - 0.5).abs() < 0.1, "{deferred} of {all}");
}

#[test]
fn a_shootdown_reaches_an_idle_vcpu_once_for_each_time_that_it_idles() {
    // vCPU 0 unmaps 5000 times a second, beside a task of the same process that sleeps and wakes 100 times.
    let unmaps = routine(vec![user(200), Act::Flush]);
    let sleeper = routine(vec![user(10), nap(10_000)]);
    let calls = |lazy: bool, same: bool| {
        let mut p = machine(2, &[0, 1], vec![unmaps.clone(), sleeper.clone()]);
        p.vms[0].virt.ipi.lazy_tlb = lazy;
        p.vms[0].tasks[1].process = (!same).then(|| "other".to_owned());
        let r = run(&p);
        let per_second = |name: &str| scalar(&r, "guest", name);
        assert!(per_second("shootdowns") > 4_500.0);
        per_second("exits.msr_icr")
    };
    let (none, other, lazy) = (calls(false, true), calls(true, false), calls(true, true));
    assert!(none < 20.0 && other < 20.0, "only while it runs: {none} {other}");
    assert!((90.0..110.0).contains(&(lazy - none)), "{lazy} with {none} as it runs");
}

#[test]
fn a_pv_yield_goes_to_who_is_preempted_and_not_to_who_halts() {
    // vCPU 0 calls, beside one other thread if it is not alone; vCPU 1 shares its pCPU with three others; vCPU 2 halts.
    let sleeper = routine(vec![user(1), nap(1_000_000)]);
    let run_with = |on: bool, other: Program, alone: bool| {
        let mut p = machine(3, &[0, 1, 2], vec![broadcast(500), other, sleeper.clone()]);
        for (name, cpu) in
            [("a", 1), ("b", 1), ("c", 1), ("d", 0)].into_iter().take(if alone { 3 } else { 4 })
        {
            p.host_tasks.push(task(name, hog(), Policy::NORMAL, &[cpu]));
        }
        p.vms[0].virt.ipi.pv_yield = on;
        p.vms[0].virt.exits_off.pause = true;
        run(&p)
    };
    let tried = ("guest".to_owned(), "yields.tried".to_owned());
    let on = run_with(true, hog(), false);
    let rounds = scalar(&on, "guest.t", "rate");
    let won = scalar(&on, "guest", "yields.won");
    assert!(won > 0.1 * rounds && won <= rounds, "{won} yields in {rounds} rounds");
    assert_eq!(scalar(&on, "guest", "yields.tried"), won);
    assert!(!run_with(false, hog(), false).scalars.contains_key(&tried));
    assert!(!run_with(true, hog(), true).scalars.contains_key(&tried), "nobody waits for its pCPU");
    // To be woken is another thing than to be preempted.
    let woken = run_with(true, sleeper.clone(), false);
    assert!(!woken.scalars.contains_key(&tried), "an idle vCPU is no target");
}

#[test]
fn a_wake_up_on_a_busy_vcpu_of_another_llc_is_an_ipi() {
    // vCPU 0 sends 50 messages a second to a task of vCPU 1 that often preempts no task there.
    let wait = Act::Timer { period_ns: 20 * MS, busy: false, interrupt: false };
    let post = Act::Post { peer: 1, room: QueueRoom::Pipe(640) };
    let post = routine(vec![wait, user(10), post, Act::Done]);
    let take = routine(vec![Act::Receive { sample: false }, user(10), Act::Done]);
    let rates = |llcs| {
        let mut p = machine(2, &[0, 1], vec![post.clone(), take.clone()]);
        let vm = &mut p.vms[0];
        vm.level.topology = Topology { threads_per_core: 1, cores_per_llc: 2 / llcs, llcs };
        vm.tasks.push(task("batch", hog(), Policy::NORMAL, &[1]));
        vm.tasks[1].policy = Policy::Normal { nice: 19, slice_ns: None };
        let r = run(&p);
        (scalar(&r, "guest.t", "rate"), scalar_or_zero(&r, "guest", "exits.msr_icr"))
    };
    let ((near, without), (far, with)) = (rates(1), rates(2));
    assert!(near > 90.0 && far > 90.0, "{near} and {far} messages sent and taken");
    // Within an LLC only those that preempt; else all, because the wake list is empty again each time.
    assert!(without < 35.0 && (45.0..55.0).contains(&with), "{without} and {with} IPIs");
}

#[test]
fn a_spinner_yields_to_the_vcpu_that_its_ipi_is_for() {
    // The caller has a pCPU of its own. The called vCPU computes in user mode, as others on the same pCPU do, so that
    // nothing but the IPI tells it from them.
    let of = |pins: &[u32], change: &dyn Fn(&mut Virt)| {
        let rest = Act::Do(Phase::Sleep { time: Dist::Exp { mean_ns: 40 * MS, max_ns: 400 * MS } });
        let call = Act::Ipi { to: IpiTo::Next, wait: true };
        let caller = routine(vec![rest, Act::Begin, call, Act::Sample]);
        let busy = vec![hog(); pins.len() - 1];
        let mut p = machine(2, pins, [vec![caller], busy].concat());
        p.duration_ns = 8_000 * MS;
        change(&mut p.vms[0].virt);
        mean(&run(&p), "guest.t0")
    };
    let pins = [0, 1, 1, 1, 1, 1];
    let ipi = |eoi_exits| {
        move |virt: &mut Virt| (virt.spin.candidates.ipi, virt.apic.eoi_exits) = (true, eoi_exits)
    };
    let usual = of(&pins, &|_| {});
    let any = of(&pins, &|virt| virt.spin.candidates.in_kernel = false);
    let (tracked, forgotten) = (of(&pins, &ipi(false)), of(&pins, &ipi(true)));
    assert!(tracked < 0.6 * usual && tracked < 0.7 * any, "{tracked}; {usual} before, {any} any");
    // Where interrupts end with an exit, the caller's own tick makes KVM forget what it has sent.
    assert!(1.5 * tracked < forgotten && forgotten < usual, "{forgotten} with exits");
}
