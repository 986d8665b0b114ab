//! Boot storms whose times are known without a simulator: a machine where everything is free.

use crate::support::*;
use vcoop_model::plan::{
    DensityPlan, Dist, Milestone, Ns, Plan, ProbePlan, Program, SampleEnd, Score, StormPlan,
    Target, TaskPlan, ViewPlan, ViewStart,
};
use vcoop_model::recording::{MarkKind, Part, Recording};
use vcoop_sched::config::Policy;

const N: u32 = 6;
/// Work of the toolstack, of the backend for each call, and of a boot's burst.
const BUILD: Ns = 3 * MS;
const IO: Ns = 40 * US;
const BURST: Ns = 10 * US;
const ROUNDS: u32 = 50;
const DEVICES: u32 = 2;

fn serve(work: Ns, wait: Ns) -> Program {
    Program::Serve { work: Dist::Const(work), wait: Dist::Const(wait), irq_vcpu: 0, section: None }
}

fn boot(server: Option<Target>, hog: bool) -> Program {
    Program::Boot {
        rounds: ROUNDS,
        burst: Dist::Const(BURST),
        every: 10,
        long: Dist::Const(100 * US),
        server,
        irq_vcpu: 0,
        hog,
    }
}

/// CPU time of a boot.
const BOOT: Ns = ROUNDS as Ns * BURST + ROUNDS as Ns / 10 * 100 * US;

/// A host of many CPUs; VM 0 is dom0 with a toolstack and backends, each on a vCPU and a pCPU of its
/// own; `N` VMs come, each on one, too.
fn storm(batch: u32, next: Milestone, backends: u32, toolstacks: u32) -> Plan {
    let mut p = plan(cfs(32), free());
    p.duration_ns = 2 * S;
    p.warmup_ns = 10 * MS;
    let server = |name: String, work, cpu: u32| {
        let program = serve(work, 0);
        TaskPlan { cpus: vec![cpu], ..task(&name, program, Policy::NORMAL, &[]) }
    };
    let servers = toolstacks + backends;
    let mut tasks: Vec<TaskPlan> =
        (0..toolstacks).map(|i| server(format!("toolstack/{i}"), BUILD, i)).collect();
    tasks.extend((0..backends).map(|i| server(format!("backend/{i}"), IO, toolstacks + i)));
    let mut dom0 = vm("dom0", cfs(servers), tasks);
    dom0.vcpu_cpus = (0..servers).map(|c| vec![c]).collect();
    p.vms.push(dom0);
    let guest = |i: u32| Target::Guest { vm: 0, task: toolstacks + i % backends };
    for i in 0..N {
        let boots = task("boot", boot(Some(guest(i)), false), Policy::NORMAL, &[]);
        let mut vm = vm(&format!("desktop/{i}"), cfs(1), vec![boots]);
        vm.label = "desktop".into();
        vm.vcpu_cpus = vec![vec![servers + i]];
        p.vms.push(vm);
    }
    p.storms.push(StormPlan {
        label: "desktop".into(),
        vms: (1..=N).collect(),
        batch,
        next,
        rolling: false,
        begin_ns: 20 * MS,
        gap_ns: 0,
        toolstack: (0..toolstacks).map(|task| Target::Guest { vm: 0, task }).collect(),
        devices: DEVICES,
        backend: (0..backends).map(guest).collect(),
        density: None,
    });
    p
}

/// VMs are there as soon as they are asked for.
fn at_once(p: &mut Plan) {
    p.storms[0].toolstack.clear();
    p.storms[0].devices = 0;
}

/// When each VM got there, from the begin of the storm, in that order.
fn times(r: &Recording, kind: MarkKind) -> Vec<Ns> {
    let marks = r.marks.iter().filter(|mark| mark.kind == kind);
    marks.map(|mark| mark.at_ns - 10 * MS).collect()
}

#[test]
fn one_after_the_other_takes_the_sum_of_the_work() {
    let start = BUILD + Ns::from(DEVICES) * IO;
    let login = start + BOOT + Ns::from(ROUNDS) * IO;
    let of =
        |each: Ns, last: Ns| (0..Ns::from(N)).map(move |i| i * each + last).collect::<Vec<_>>();

    let r = run(&storm(1, Milestone::Login, 1, 1));
    assert_eq!(times(&r, MarkKind::Requested), of(login, 0));
    assert_eq!(times(&r, MarkKind::Started), of(login, start));
    assert_eq!(times(&r, MarkKind::LoggedIn), of(login, login));
    assert_eq!(scalar(&r, "desktop", "started"), f64::from(N));
    assert_eq!(scalar(&r, "desktop", "logged_in"), f64::from(N));
    assert_eq!(scalar(&r, "desktop", "login_total"), (Ns::from(N) * login) as f64 / 1e9);
    assert_eq!(scalar(&r, "desktop", "start_mean"), start as f64 / 1e9);
    let boot = (BOOT * Ns::from(N)) as f64 / (2 * S) as f64;
    assert!((scalar(&r, "desktop.boot", "throughput") - boot).abs() < 1e-12);

    // With a CPU and a backend each, those that boot do not disturb the toolstack.
    let r = run(&storm(1, Milestone::Start, N, 1));
    assert_eq!(times(&r, MarkKind::Started), of(start, start));
    assert_eq!(times(&r, MarkKind::LoggedIn), of(start, login));
}

#[test]
fn a_batch_with_servers_of_its_own_takes_as_long_as_one() {
    let start = BUILD + Ns::from(DEVICES) * IO;
    let login = start + BOOT + Ns::from(ROUNDS) * IO;
    let r = run(&storm(N, Milestone::Login, N, N));
    assert_eq!(times(&r, MarkKind::Started), [start; N as usize]);
    assert_eq!(times(&r, MarkKind::LoggedIn), [login; N as usize]);
    // Two batches.
    let r = run(&storm(N / 2, Milestone::Login, N, N));
    let twice: Vec<Ns> = [login; 3].into_iter().chain([2 * login; 3]).collect();
    assert_eq!(times(&r, MarkKind::LoggedIn), twice);
}

#[test]
fn a_rolling_storm_keeps_so_many_on_their_way() {
    // Built side by side, two at a time.
    let start = BUILD + Ns::from(DEVICES) * IO;
    let login = start + BOOT + Ns::from(ROUNDS) * IO;
    let mut p = storm(2, Milestone::Login, N, N);
    p.storms[0].rolling = true;
    // As long as all take the same, it is the batches' time.
    let twos: Vec<Ns> = (1..=Ns::from(N / 2)).flat_map(|i| [i * login; 2]).collect();
    assert_eq!(times(&run(&p), MarkKind::LoggedIn), twos);
    // The first one boots for ever: the others come one after the other beside it.
    if let Program::Boot { rounds, .. } = &mut p.vms[1].tasks[0].program {
        *rounds = 1_000_000;
    }
    let r = run(&p);
    let ones: Vec<Ns> = (1..Ns::from(N)).map(|i| i * login).collect();
    assert_eq!(times(&r, MarkKind::LoggedIn), ones);
    let mut asked: Vec<Ns> = vec![0, 0];
    asked.extend(&ones[..N as usize - 2]);
    assert_eq!(times(&r, MarkKind::Requested), asked);
    // Batches would wait for it, too.
    p.storms[0].rolling = false;
    assert_eq!(times(&run(&p), MarkKind::LoggedIn), [login]);
    // A gap fills every place that became free in it.
    (p.storms[0].rolling, p.storms[0].next, p.storms[0].gap_ns) =
        (true, Milestone::Start, 3 * start);
    let fours: Vec<Ns> = (0..Ns::from(N / 2)).flat_map(|i| [4 * i * start; 2]).collect();
    assert_eq!(times(&run(&p), MarkKind::Requested), fours);
}

#[test]
fn a_serial_toolstack_and_a_serial_backend_queue_a_batch() {
    // All are asked for at once: the builds follow each other, and no other task wants the backend.
    let mut p = storm(N, Milestone::Start, 1, 1);
    p.vms[1..].iter_mut().for_each(|vm| vm.tasks.clear());
    let r = run(&p);
    let starts: Vec<Ns> = (1..=Ns::from(N)).map(|i| i * BUILD + Ns::from(DEVICES) * IO).collect();
    assert_eq!(times(&r, MarkKind::Started), starts);
    // Without a toolstack they meet at the backend: first calls in order, then second ones.
    p.storms[0].toolstack.clear();
    let r = run(&p);
    let n = Ns::from(N);
    let starts: Vec<Ns> = (1..=n).map(|i| (n + i) * IO).collect();
    assert_eq!(times(&r, MarkKind::Started), starts);
    // And without calls they are there at once, if no task of theirs has to be.
    p.storms[0].devices = 0;
    assert_eq!(times(&run(&p), MarkKind::Started), [0; N as usize]);
}

#[test]
fn closed_boots_at_one_backend_are_as_slow_as_the_backend() {
    // All boot at once with next to no work of their own: the backend is never idle.
    let mut p = storm(N, Milestone::Login, 1, 1);
    at_once(&mut p);
    for vm in &mut p.vms[1..] {
        if let Program::Boot { burst, every, .. } = &mut vm.tasks[0].program {
            (*burst, *every) = (Dist::Const(IO), 0);
        }
    }
    let r = run(&p);
    let calls = Ns::from(N * ROUNDS);
    assert_eq!(times(&r, MarkKind::LoggedIn).last(), Some(&(IO + calls * IO)));
}

#[test]
fn a_gap_and_a_late_begin_are_kept() {
    let mut p = storm(2, Milestone::Start, 1, 1);
    at_once(&mut p);
    p.storms[0].gap_ns = 30 * MS;
    p.storms[0].begin_ns = 500 * MS;
    let starts: Vec<Ns> = times(&run(&p), MarkKind::Started).iter().map(|t| t - 480 * MS).collect();
    assert_eq!(starts, [0, 0, 30 * MS, 30 * MS, 60 * MS, 60 * MS]);
}

#[test]
fn a_vm_that_is_not_there_takes_nothing() {
    let mut p = storm(1, Milestone::Start, 1, 1);
    for vm in &mut p.vms[1..] {
        vm.tasks.push(task("loop", hog(), Policy::NORMAL, &[]));
    }
    p.storms[0].begin_ns = p.warmup_ns + p.duration_ns - 1;
    let r = run(&p);
    assert_eq!(scalar(&r, "desktop", "cpu"), 0.0);
    assert_eq!(scalar(&r, "desktop", "exits"), 0.0);
    assert_eq!(scalar(&r, "desktop", "started"), 0.0);
    assert!(scalar(&r, "host", "cpu") < 1e-6); // the toolstack had a nanosecond
    // From its start on it has what it wants.
    p.storms[0].begin_ns = p.warmup_ns + p.duration_ns / 2;
    p.storms[0].batch = N;
    at_once(&mut p);
    let r = run(&p);
    assert!((scalar(&r, "desktop", "cpu") - f64::from(N) / 2.0).abs() < 1e-9);
}

#[test]
fn messages_wait_for_a_vm_that_is_not_there() {
    let mut p = storm(1, Milestone::Start, 1, 1);
    p.vms[1].tasks.push(task("pong", serve(7 * US, 0), Policy::Fifo(5), &[]));
    let ping = ping(MS, Target::Guest { vm: 1, task: 1 });
    p.host_tasks = vec![task("ping", ping, Policy::Fifo(50), &[31])];
    p.warmup_ns = 0;
    at_once(&mut p);
    probe_all(&mut p);
    let r = run(&p);
    let l = latency(&r, "host.ping");
    // The first one, sent after a millisecond, is answered when the VM has come.
    assert_eq!(l.max_ns, 19 * MS + 7 * US);
    assert_eq!(l.min_ns, 7 * US);
    assert_eq!(l.parts_sum[Part::Delivery as usize], u128::from(19 * MS));
}

#[test]
fn what_follows_the_login_follows_it() {
    let mut p = storm(1, Milestone::Login, 1, 1);
    p.vms.truncate(2);
    p.storms[0].vms = vec![1];
    let loops = TaskPlan {
        after_login: true,
        start_ns: 100 * MS,
        ..task("loop", hog(), Policy::NORMAL, &[])
    };
    p.vms[1].tasks.push(loops);
    let r = run(&p);
    let login = times(&r, MarkKind::LoggedIn)[0] + 10 * MS;
    let want = (2 * S - login - 100 * MS) as f64 / (2 * S) as f64;
    // Running time is booked at the next interruption: a tick.
    assert!((scalar(&r, "desktop.loop", "throughput") - want).abs() < 1e-3);
    p.vms[1].tasks[1].start_ns = 0;
    if let Program::Boot { hog, .. } = &mut p.vms[1].tasks[0].program {
        *hog = true;
    }
    let r = run(&p);
    let both = ["desktop.loop", "desktop.boot"].map(|probe| scalar(&r, probe, "throughput"));
    let want = (2 * S - login + BOOT) as f64 / (2 * S) as f64;
    assert!((both[0] + both[1] - want).abs() < 1e-3, "{both:?} of {want}");
}

/// A desktop of three bursts with two calls, alone; everything free but its own and the server's work.
fn desktop(p: &mut Plan, server: Target, burst: Ns) -> TaskPlan {
    p.duration_ns = 10 * S;
    let program = Program::Desktop {
        think: Dist::Const(97 * MS),
        bursts: 3,
        burst: Dist::Const(burst),
        server: Some(server),
        irq_vcpu: 0,
    };
    task("office", program, Policy::NORMAL, &[0])
}

#[test]
fn a_response_is_the_work_of_both_sides() {
    for wait in [0, 5 * MS] {
        let mut p = plan(cfs(3), free());
        let own = desktop(&mut p, Target::Guest { vm: 1, task: 0 }, 2 * MS);
        let mut client = vm("client", cfs(1), vec![own]);
        let server = task("server", serve(MS, wait), Policy::NORMAL, &[]);
        let mut dom0 = vm("dom0", cfs(1), vec![server.clone()]);
        (client.vcpu_cpus, dom0.vcpu_cpus) = (vec![vec![0]], vec![vec![1]]);
        p.vms = vec![client, dom0];
        for on_host in [false, true] {
            if on_host {
                p.host_tasks = vec![TaskPlan { cpus: vec![2], ..server.clone() }];
                if let Program::Desktop { server, .. } = &mut p.vms[0].tasks[0].program {
                    *server = Some(Target::Host(0));
                }
            }
            probe_all(&mut p);
            let r = run(&p);
            let l = latency(&r, "client.office");
            let want = 3 * 2 * MS + 2 * (MS + wait);
            assert_eq!((l.min_ns, l.max_ns), (want, want), "wait {wait}, on host {on_host}");
            assert_eq!(l.parts_sum[Part::Service as usize], l.sum_ns, "{:?}", l.parts_sum);
            assert_eq!(l.hist.len(), 10 * S / (97 * MS + want));
        }
    }
}

#[test]
fn a_response_shares_its_vcpu_and_its_pcpu_openly() {
    // Another task on the vCPU, a hog on the pCPU: waits are waits, work is work.
    let mut p = plan(cfs(2), free());
    let own = desktop(&mut p, Target::Host(0), 20 * MS);
    let mut guest = vm("client", cfs(1), vec![own, task("loop", hog(), Policy::NORMAL, &[])]);
    guest.vcpu_cpus = vec![vec![0]];
    p.vms = vec![guest];
    p.host_tasks = vec![
        task("server", serve(MS, 0), Policy::Fifo(9), &[1]),
        task("hog", hog(), Policy::NORMAL, &[0]),
    ];
    probe_all(&mut p);
    let r = run(&p);
    let l = latency(&r, "client.office");
    let n = u128::from(l.hist.len());
    let part = |part: Part| l.parts_sum[part as usize] as f64 / (n * u128::from(MS)) as f64;
    assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns);
    // The one that was open at the end may be cut off.
    assert!((part(Part::Service) - 62.0).abs() < 2.0, "{}", part(Part::Service));
    assert!(part(Part::GuestWait) > 20.0, "{}", part(Part::GuestWait));
    assert!(part(Part::PreemptedToRun) > 40.0, "{}", part(Part::PreemptedToRun));
}

#[test]
fn density_counts_the_desktops_that_one_cpu_carries() {
    // Each wants 10 ms of every 100 on the one pCPU that all share. Responses are twice the work when
    // two are active at once, and so on: with few they are short, with many they are not.
    let mut p = storm(1, Milestone::Login, 1, 1);
    p.duration_ns = 60 * S;
    at_once(&mut p);
    p.storms[0].gap_ns = 9 * S;
    let limit_ns = 40 * MS;
    p.storms[0].density = Some(DensityPlan { limit_ns, score: Score::P95, window_ns: None });
    for vm in &mut p.vms[1..] {
        vm.vcpu_cpus = vec![vec![31]];
        vm.tasks[0].program = boot(None, false);
        let program = Program::Desktop {
            think: Dist::Exp { mean_ns: 40 * MS, max_ns: S },
            bursts: 1,
            burst: Dist::Const(20 * MS),
            server: None,
            irq_vcpu: 0,
        };
        let office = TaskPlan { after_login: true, ..task("office", program, Policy::NORMAL, &[]) };
        vm.tasks.push(office);
    }
    let r = run(&p);
    assert_eq!(scalar(&r, "desktop", "limit_passed"), 1.0);
    let density = scalar(&r, "desktop", "density");
    assert!((1.0..=3.0).contains(&density), "{density}");
    p.storms[0].density = Some(DensityPlan { limit_ns: S, score: Score::P95, window_ns: None });
    let r = run(&p);
    assert_eq!(scalar(&r, "desktop", "limit_passed"), 0.0);
    assert_eq!(scalar(&r, "desktop", "density"), f64::from(N));
}

#[test]
fn copies_are_one_series_and_the_scatter_has_every_sample() {
    let mut p = storm(N, Milestone::Start, 1, 1);
    let probe = || "desktop.tick".to_owned();
    for (i, vm) in p.vms[1..].iter_mut().enumerate() {
        let program = cyclictest(MS * (i as Ns + 1), 0);
        vm.tasks = vec![task("tick", program, Policy::Fifo(3), &[])];
    }
    let target = |vm| Target::Guest { vm, task: 0 };
    p.probes = (1..=N)
        .map(|vm| ProbePlan { probe: probe(), target: target(vm), moment: SampleEnd::Task })
        .collect();
    p.views = vec![ViewPlan::Scatter { probe: probe(), most: 100 }];
    let r = run(&p);
    assert_eq!(r.latencies.len(), 1);
    let l = &r.latencies[0];
    assert!(l.hist.len() > 4_000, "{}", l.hist.len());
    let scatter = &r.scatters[0];
    assert_eq!((scatter.points.len(), scatter.dropped), (100, l.hist.len() - 100));
    assert!(scatter.points.windows(2).all(|w| w[0].0 <= w[1].0));
    p.views = vec![ViewPlan::Scatter { probe: probe(), most: u32::MAX }];
    let r = run(&p);
    let sum: u128 = r.scatters[0].points.iter().map(|(_, ns)| u128::from(*ns)).sum();
    assert_eq!((r.scatters[0].points.len() as u64, sum), (l.hist.len(), l.sum_ns));
}

#[test]
fn intervals_show_who_had_the_pcpu() {
    // Two loops on one pCPU from the third VM's start on, which is one of them.
    let mut p = storm(1, Milestone::Start, 1, 1);
    for (i, vm) in p.vms[1..].iter_mut().enumerate() {
        vm.tasks = vec![task("loop", hog(), Policy::NORMAL, &[])];
        if i == 1 || i == 2 {
            vm.vcpu_cpus = vec![vec![9]];
        }
    }
    let at = ViewStart::Reached { storm: 0, milestone: Milestone::Start, number: 3 };
    let view = |pcpu| ViewPlan::Intervals { pcpu, at, length_ns: 100 * MS };
    p.views = vec![view(Some(9)), view(None), view(Some(31))];
    let r = run(&p);
    let third = r.marks.iter().find(|m| m.kind == MarkKind::Started && m.number == 3).unwrap();
    let one = &r.intervals[0];
    assert_eq!((one.from_ns, one.until_ns), (third.at_ns, third.at_ns + 100 * MS));
    let mut had = std::collections::BTreeMap::new();
    for span in &one.spans {
        assert!(span.from_ns < span.until_ns && span.until_ns <= 100 * MS);
        *had.entry(span.who.as_str()).or_insert(0) += span.until_ns - span.from_ns;
    }
    assert_eq!(had.keys().copied().collect::<Vec<_>>(), ["desktop/1/vcpu0", "desktop/2/vcpu0"]);
    assert_eq!(had.values().sum::<Ns>(), 100 * MS);
    assert!(had.values().all(|ns| *ns >= 40 * MS), "{had:?}");
    assert!(one.spans.windows(2).all(|w| w[0].until_ns == w[1].from_ns && w[0].who != w[1].who));
    // A view without a pCPU follows the VM there.
    assert_eq!(r.intervals[1].pcpu, Some(9));
    assert_eq!(r.intervals[2].spans, []);
    // A view of what never happens never begins.
    p.storms[0].begin_ns = p.warmup_ns + p.duration_ns - 1;
    assert_eq!(run(&p).intervals[0].pcpu, None);
}

#[test]
fn a_storm_that_is_not_over_says_how_far_it_got() {
    let mut p = storm(1, Milestone::Login, 1, 1);
    let login = BUILD + Ns::from(DEVICES + ROUNDS) * IO + BOOT;
    // Two and three quarters of them.
    p.duration_ns = 10 * MS + login * 11 / 4;
    let r = run(&p);
    assert_eq!(scalar(&r, "desktop", "logged_in"), 2.0);
    assert_eq!(scalar(&r, "desktop", "started"), 3.0);
    assert_eq!(scalar(&r, "desktop", "asked"), 3.0);
    assert_eq!(scalar(&r, "desktop", "login_total"), (login * 11 / 4) as f64 / 1e9);
    // The third counts as far as it has come.
    let mean = (login * 11 / 4) as f64 / 3.0 / 1e9;
    assert!((scalar(&r, "desktop", "login_mean") - mean).abs() < 1e-9);
}
