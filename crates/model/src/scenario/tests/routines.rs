//! Kinds whose tasks talk to each other, and how their guests spin.

use super::*;
use crate::plan::virt::{GuestIdle, IpiPath, SpinLocks, Virt};
use crate::plan::{
    Act, Dist, IpiTo, LockKind, Mode, Phase, Program, QueueRoom, SampleEnd, Section, Target,
};

const HEAD: &str = "name = 'r'\ntitle = 't'\n[host]\nprofile = 'zero'\npcpus = 4\n";

fn plan_of(rest: &str) -> Plan {
    super::plan_of(&format!("{HEAD}{rest}"))
}

fn guest(task: &str) -> Plan {
    plan_of(&vm(task))
}

/// A guest with this task.
fn vm(task: &str) -> String {
    format!("[[vm]]\nname = 'g'\nvcpus = 4\n[[vm.task]]\nname = 'x'\n{task}\n")
}

#[track_caller]
fn refused(rest: &str, message: &str) {
    says(&format!("{HEAD}{rest}"), &[message]);
}

fn acts(program: &Program) -> &[Act] {
    match program {
        Program::Routine { acts } => acts,
        other => panic!("no routine: {other:?}"),
    }
}

fn run(ns: u64, mode: Mode) -> Act {
    Act::Do(Phase::Run { time: Dist::Const(ns), mode })
}

#[test]
fn lock_workers_flush_every_so_many_rounds() {
    let plan = guest(
        "kind = 'lock-workers'\ncount = 3\nwork = '20us'\nsection = '2us'\nlock = 5\nflush_every = 7",
    );
    let tasks = &plan.vms[0].tasks;
    assert_eq!(tasks.len(), 3);
    let want = [
        run(20_000, Mode::User),
        Act::Begin,
        Act::Lock { lock: 5 },
        run(2_000, Mode::PreemptOff),
        Act::Unlock { lock: 5 },
        Act::Every { n: 7, skip: 1 },
        Act::Flush,
        Act::Sample,
        Act::Done,
    ];
    assert_eq!(acts(&tasks[0].program), want);
    assert_eq!(tasks[0].program.locks(), Some(6));
    // One series for all of them.
    assert_eq!(plan.probes.len(), 3);
    assert!(plan.probes.iter().all(|p| p.probe == "g.x"));
}

#[test]
fn steps_follow_in_the_round() {
    let plan = guest(
        "kind = 'lock-workers'\nwork = '20us'\nsection = '2us'\nlock = 5\n\
         [[vm.task.step]]\ntimes = 16\nwork = '1us'\nkernel = '2us'\nlock = 6\nlock_kind = 'read'\nsection = '3us'\n\
         [[vm.task.step]]\nevery = 8\ntimes = 2\nlock = 5\nlock_kind = 'spin'\nsection = '4us'\n\
         [[vm.task.step]]\nevery = 9\nlock = 6\nlock_kind = 'write'\nsection = '5us'\nflush_every = 1\n\
         [[vm.task.step]]\nkernel = '6us'",
    );
    let program = &plan.vms[0].tasks[0].program;
    let want = [
        run(20_000, Mode::User),
        Act::Begin,
        Act::Lock { lock: 5 },
        run(2_000, Mode::PreemptOff),
        Act::Unlock { lock: 5 },
        run(1_000, Mode::User),
        run(2_000, Mode::Kernel),
        Act::Acquire { lock: 6, kind: LockKind::Read },
        run(3_000, Mode::Kernel),
        Act::Release { lock: 6 },
        Act::Loop { to: 5, times: 16 },
        Act::Every { n: 8, skip: 4 },
        Act::Lock { lock: 5 },
        run(4_000, Mode::PreemptOff),
        Act::Unlock { lock: 5 },
        Act::Loop { to: 12, times: 2 },
        Act::Every { n: 9, skip: 5 },
        Act::Acquire { lock: 6, kind: LockKind::Write },
        run(5_000, Mode::Kernel),
        Act::Every { n: 1, skip: 1 },
        Act::Flush,
        Act::Release { lock: 6 },
        run(6_000, Mode::Kernel),
        Act::Sample,
        Act::Done,
    ];
    assert_eq!(acts(program), want);
    assert_eq!(program.locks(), Some(7));
}

#[test]
fn steps_that_cannot_be_are_refused() {
    let task = |step: &str| vm(&format!("kind = 'lock-workers'\n[[vm.task.step]]\n{step}"));
    refused(&task("times = 3"), "this step does nothing");
    refused(&task("work = '1us'\nsection = '1us'"), "it takes no lock: `section`");
    refused(&task("work = '1us'\ntimes = 0"), "times");
    let many = "work = '1us'\n[[vm.task.step]]\n".repeat(64) + "work = '1us'";
    refused(&task(&many), "more than 64 steps");
    // The first lock of the round is a spinlock.
    refused(&task("lock = 0\nlock_kind = 'read'"), "lock 0 is of another kind");
    let two = "lock = 1\nlock_kind = 'read'\n[[vm.task.step]]\nlock = 1\nlock_kind = 'futex'";
    refused(&task(two), "lock 1 is of another kind");
    refused("[[load]]\nname = 'x'\nkind = 'lock-workers'\n", "there is no kind `lock-workers`");
}

#[test]
fn work_under_a_lock_is_a_section_of_each_kind() {
    let lock = "lock = 3\nlock_kind = 'read'\nsection = '4us'\nflush_every = 2\n";
    let section =
        Section { lock: 3, kind: LockKind::Read, time: Dist::Const(4_000), flush_every: 2 };
    let want = section.acts();
    assert_eq!(want[0], Act::Acquire { lock: 3, kind: LockKind::Read });
    assert_eq!(want[1], run(4_000, Mode::Kernel));
    assert_eq!(want[4], Act::Release { lock: 3 });
    let has = |program: &Program| acts(program).windows(want.len()).any(|acts| acts == want);
    let plan = guest(&format!("kind = 'client'\nnetwork = '50us'\n{lock}"));
    assert!(has(&plan.vms[0].tasks[0].program));
    let plan = guest(&format!("kind = 'groups'\ngroups = 1\nsenders = 1\nreceivers = 1\n{lock}"));
    assert!(!has(&plan.vms[0].tasks[0].program) && has(&plan.vms[0].tasks[1].program));
    let plan = guest(&format!("kind = 'schbench'\nworkers = 1\n{lock}"));
    assert!(has(&plan.vms[0].tasks[1].program));
    assert_eq!(plan.vms[0].tasks[1].program.locks(), Some(4));
    let plan = guest(&format!("kind = 'server'\n{lock}"));
    let program = &plan.vms[0].tasks[0].program;
    assert!(matches!(program, Program::Serve { section: Some(own), .. } if *own == section));
    assert_eq!(program.locks(), Some(4));
    let plan =
        guest("kind = 'lock-workers'\nlock_kind = 'write'\nflush_every = 3\nflush_locked = true");
    let tail = &acts(&plan.vms[0].tasks[0].program)[4..];
    assert_eq!(tail[..2], [Act::Every { n: 3, skip: 1 }, Act::Flush]);
    assert_eq!(tail[2], Act::Release { lock: 0 }, "after the flush");
}

#[test]
fn locks_that_cannot_be_are_refused() {
    refused(&vm("kind = 'server'\nsection = '1us'"), "it takes no lock: `section`");
    refused(&vm("kind = 'server'\nlock_kind = 'read'"), "it takes no lock: `lock_kind`");
    refused(&vm("kind = 'lock-workers'\nflush_locked = true"), "nothing is flushed");
    let masked = "lock = 0\nlock_kind = 'spin-irq'\nflush_every = 1";
    refused(&vm(&format!("kind = 'server'\n{masked}")), "with interrupts off");
    let masked = format!("kind = 'lock-workers'\nflush_locked = true\n{masked}");
    refused(&vm(&masked), "with interrupts off");
    let host = "[[load]]\nname = 'x'\nkind = 'server'\nlock = 0\n";
    refused(host, "locks are those of guests");
    let two = vm("kind = 'server'\nlock = 1\nlock_kind = 'write'")
        + "[[vm.task]]\nname = 'y'\nkind = 'lock-workers'\nlock = 1\n";
    refused(&two, "lock 1 is of another kind");
    let two = |kinds: [&str; 2]| {
        let of = |kind| format!("kind = 'lock-workers'\nlock_kind = '{kind}'\n");
        vm(&format!("{}[[vm.task]]\nname = 'y'\n{}", of(kinds[0]), of(kinds[1])))
    };
    refused(&two(["spin", "spin-irq"]), "lock 0 is of another kind");
    plan_of(&two(["spin-irq", "spin-irq"]));
    // To read and to write are one kind.
    plan_of(&two(["write", "read"]));
}

#[test]
fn an_ipi_bench_sends_what_its_mode_says() {
    let sends = |mode: &str| {
        let plan = guest(&format!("kind = 'ipi-bench'\nmode = '{mode}'"));
        let acts = acts(&plan.vms[0].tasks[0].program).to_vec();
        acts[2..acts.len() - 2].to_vec()
    };
    let ipi = |to| Act::Ipi { to, wait: true };
    assert_eq!(sends("dry-run"), []);
    assert_eq!(sends("self"), [ipi(IpiTo::Own)]);
    assert_eq!(sends("unicast"), [ipi(IpiTo::Next)]);
    assert_eq!(sends("broadcast"), [ipi(IpiTo::Others)]);
    let locked = [Act::Lock { lock: 0 }, ipi(IpiTo::Others), Act::Unlock { lock: 0 }];
    assert_eq!(sends("broadcast-lock"), locked);
}

#[test]
fn a_client_calls_a_server_here_or_somewhere_else() {
    let server = "[[vm.task]]\nname = 's'\nkind = 'server'\n";
    let plan = guest(&format!("kind = 'client'\nserver = 'g.s'\nthink = '1ms'\n{server}"));
    let client = acts(&plan.vms[0].tasks[0].program);
    assert_eq!(client[0], Act::Do(Phase::Sleep { time: Dist::Const(1_000_000) }));
    let server_is = Target::Guest { vm: 0, task: 1 };
    assert_eq!(client[2], Act::Do(Phase::Call { server: server_is, irq_vcpu: 0 }));
    assert_eq!(plan.vms[0].tasks[0].program.servers().collect::<Vec<_>>(), [server_is]);
    let plan = guest("kind = 'client'\nnetwork = '50us'\nirq_vcpu = 1");
    let remote = Act::Remote { delay: Dist::Const(50_000), irq_vcpu: 1 };
    assert_eq!(acts(&plan.vms[0].tasks[0].program)[1], remote);
    let task = "[[load]]\nname = 'x'\nkind = 'client'\n";
    refused(task, "whom it calls is not said");
    refused(&format!("{task}server = 'host.x'\nnetwork = '1us'\n"), "exclude each other");
}

#[test]
fn copies_meet_at_a_barrier() {
    let plan = guest("kind = 'barrier'\nwork = '1ms'\nspin = '0us'\ncount = 3");
    for task in &plan.vms[0].tasks {
        assert!(acts(&task.program).contains(&Act::Barrier { of: 3, spin_ns: 0 }));
        assert!(task.program.measures() && task.program.counts());
    }
    refused(&vm("kind = 'barrier'"), "waits for nobody");
}

#[test]
fn a_pipe_has_more_room_than_a_socket() {
    let plan = guest("kind = 'groups'\ngroups = 1\nthrough = 'pipe'");
    let posts = |act: &Act| matches!(act, Act::Post { room: QueueRoom::Pipe(640), .. });
    assert!(acts(&plan.vms[0].tasks[0].program).iter().any(posts));
}

#[test]
fn everybody_in_a_group_knows_the_others() {
    let plan = guest("kind = 'groups'\ngroups = 2\nsenders = 2\nreceivers = 3\ncount = 2");
    let tasks = &plan.vms[0].tasks;
    assert_eq!(tasks.len(), 2 * 2 * 5);
    for (i, task) in tasks.iter().enumerate() {
        let first = i / 5 * 5 + 2;
        let peers: Vec<usize> = acts(&task.program)
            .iter()
            .filter_map(|act| match act {
                Act::Post { peer, room: QueueRoom::Socket(278) } => Some(*peer as usize),
                _ => None,
            })
            .collect();
        let sends = i % 5 < 2;
        assert_eq!(peers, if sends { vec![first, first + 1, first + 2] } else { vec![] }, "{i}");
        assert_eq!(task.program.takes_messages(), !sends);
        assert_eq!(task.program.counts(), !sends);
    }
    assert!(plan.probes.is_empty(), "they measure nothing but their rate");
    let many = "kind = 'groups'\ngroups = 1000\nsenders = 100\nreceivers = 100";
    refused(&vm(many), "more than 200000");
    let many = "kind = 'schbench'\nmessengers = 256\nworkers = 1024";
    refused(&vm(many), "more than 100000");
}

#[test]
fn a_fixed_rate_wakes_workers_in_batches() {
    let keys = "kind = 'schbench'\nworkers = 3\nmessengers = 2\nwork = '10ms'\n";
    let plan = guest(&format!("{keys}interval = '40ms'\nbatch = 2"));
    let tasks = &plan.vms[0].tasks;
    let pause = || Act::Do(Phase::Sleep { time: Dist::Const(40_000_000) });
    let post = |peer| [run(1_000, Mode::User), Act::Post { peer, room: QueueRoom::List }];
    let batch = |peers: [u32; 2]| [vec![pause()], peers.map(post).concat()].concat();
    // Peers 0 and 1 are the messengers; each has three workers, and after three batches all have had two requests.
    let first = [batch([2, 3]), batch([4, 2]), batch([3, 4])].concat();
    assert_eq!(acts(&tasks[0].program), first);
    assert_eq!(acts(&tasks[1].program)[..5], batch([5, 6]));
    let worker = [Act::Serve { time: Dist::Const(10_000_000) }, Act::Done];
    assert_eq!(acts(&tasks[2].program), worker);
    let task = |rest: &str| vm(&format!("{keys}{rest}"));
    refused(&task("batch = 2"), "there are no such batches");
    let many = "kind = 'schbench'\nworkers = 1024\ninterval = '40ms'\nbatch = 1023";
    refused(&vm(many), "requests of batches");
    refused(&task("interval = '40ms'\nbatch = 4"), "there are no such batches");
    refused(&task("interval = '40ms'\nthink = '1ms'"), "there is no such sleep");
}

#[test]
fn workers_ask_their_messenger() {
    let plan = guest("kind = 'schbench'\nmessengers = 2\nworkers = 3\ncount = 2");
    let tasks = &plan.vms[0].tasks;
    assert_eq!(tasks.len(), 2 * (2 + 6));
    let asks = |i: usize| match acts(&tasks[i].program)[0] {
        Act::Post { peer, .. } => peer,
        _ => panic!("{i} asks nobody"),
    };
    assert_eq!((2..8).map(asks).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
    assert_eq!((10..16).map(asks).collect::<Vec<_>>(), [8, 8, 8, 9, 9, 9]);
    assert_eq!(plan.probes.len(), 12);
    let names: Vec<&str> = tasks.iter().map(|t| t.name.as_str()).collect();
    assert_eq!((names[1], names[10]), ("x/0/messenger-1", "x/1/worker-0"));
}

#[test]
fn a_timer_bench_has_no_slack() {
    let plan = guest("kind = 'timer-bench'\nwait = 'busy'");
    let timer = Act::Timer { period_ns: 100_000, busy: true, interrupt: true };
    assert_eq!(acts(&plan.vms[0].tasks[0].program)[0], timer);
    assert_eq!(plan.vms[0].tasks[0].timer_slack_ns, 0);
    let probes: Vec<_> = plan.probes.iter().map(|p| (&*p.probe, p.moment)).collect();
    assert_eq!(probes, [("g.x", SampleEnd::Task), ("g.x.interrupt", SampleEnd::Interrupt)]);
    refused("[[load]]\nname = 'x'\nkind = 'timer-bench'\n", "no kind `timer-bench` on the host");
}

#[test]
fn each_queue_of_a_group_has_a_lock_of_its_own() {
    let section = |kind| Section { lock: 64, kind, time: Dist::Const(200), flush_every: 0 };
    let keys = "groups = 2\nsenders = 1\nreceivers = 3\nqueue_section = '200ns'";
    let plan = guest(&format!("kind = 'groups'\n{keys}\ncount = 2"));
    let tasks = &plan.vms[0].tasks;
    let locks = |i: usize| -> Vec<u32> {
        let of = |act: &Act| if let Act::Lock { lock } = act { Some(*lock) } else { None };
        acts(&tasks[i].program).iter().filter_map(of).collect()
    };
    let all: Vec<_> = (0..16).map(locks).collect();
    let senders: Vec<_> = all.iter().step_by(4).flatten().copied().collect();
    let receivers: Vec<_> =
        all.iter().enumerate().filter(|(i, _)| i % 4 != 0).flat_map(|(_, l)| l).copied().collect();
    assert_eq!(senders, (64..76).collect::<Vec<_>>());
    assert_eq!(receivers, senders);
    assert_eq!(acts(&tasks[1].program)[1..4], section(LockKind::Spin).acts());
    let pipe = guest(&format!("kind = 'groups'\nthrough = 'pipe'\n{keys}"));
    assert_eq!(acts(&pipe.vms[0].tasks[1].program)[1..4], section(LockKind::Mutex).acts());
    let host = format!("[[load]]\nname = 'x'\nkind = 'groups'\n{keys}\n");
    refused(&host, "locks are those of guests; this is the host");
}

#[test]
fn groups_with_loops_end_after_them() {
    let plan = guest("kind = 'groups'\ngroups = 1\nsenders = 2\nreceivers = 3\nloops = 7");
    let ends = |task: usize| {
        let acts = acts(&plan.vms[0].tasks[task].program);
        acts[acts.len() - 2..].to_vec()
    };
    assert_eq!(ends(0), [Act::Loop { to: 0, times: 7 }, Act::Exit]);
    assert_eq!(ends(2), [Act::Loop { to: 0, times: 14 }, Act::Exit], "from each of two senders");
}

#[test]
fn only_a_busy_wait_can_be_due_at_once() {
    let bench = |keys: &str| vm(&format!("kind = 'timer-bench'\n{keys}"));
    let plan = plan_of(&bench("wait = 'busy'\ninterval = '0ns'"));
    let timer = Act::Timer { period_ns: 0, busy: true, interrupt: true };
    assert_eq!(acts(&plan.vms[0].tasks[0].program)[0], timer);
    refused(&bench("interval = '0ns'"), "`interval` is too short");
    refused(&bench("wait = 'busy'\ninterval = '999ns'"), "`interval` is too short");
    let endless = "wait = 'busy'\ninterval = '0ns'\nwork = '0ns'";
    refused(&bench(endless), "`work` is too short for a loop");
}

#[test]
fn a_hint_is_several_switches_and_each_can_be_set_alone() {
    let virt = |keys: &str| -> Virt {
        let vm = format!("[[vm]]\nname = 'g'\nvcpus = 4\n{keys}\n");
        let task = "[[vm.task]]\nname = 'x'\nkind = 'hog'\n";
        plan_of(&format!("{vm}{task}")).vms[0].virt.clone()
    };
    let effects = |virt: Virt| {
        let haltpoll = virt.idle.guest == GuestIdle::Haltpoll;
        (virt.spin.locks == SpinLocks::Pv, virt.ipi.pv_tlb, virt.ipi.pv_yield, haltpoll)
    };
    assert_eq!(effects(virt("")), (false, false, false, false));
    assert_eq!(effects(virt("hints = 'shared'")), (true, true, true, false));
    assert_eq!(effects(virt("hints = 'dedicated'")), (false, false, false, true));
    let own = "hints = 'dedicated'\nspinlocks = 'pv'\nguest_idle = 'hlt'";
    assert_eq!(effects(virt(own)), (true, false, false, false));
    let own = "hints = 'shared'\ntlb_shootdown = 'native'\npv_sched_yield = false";
    assert_eq!(effects(virt(own)), (true, false, false, false));
    for (word, path) in [
        ("icr", IpiPath::Icr),
        ("cluster", IpiPath::Cluster),
        ("pv", IpiPath::Pv),
        ("posted", IpiPath::Posted),
    ] {
        assert_eq!(virt(&format!("ipi = '{word}'")).ipi.path, path);
    }
    let spin = virt("ple_window = '2us'\nple_grow = 1\nspinlocks = 'pv'\nspin_threshold = '3us'");
    assert_eq!((spin.spin.ple_window_ns, spin.spin.ple_grow), (Some(2_000), 1));
    assert_eq!(spin.spin.threshold_ns, Some(3_000));
}

#[test]
fn an_rt_app_file_is_the_tasks_of_a_guest() {
    let plan = guest("kind = 'rt-app'\nfile = 'app.json'");
    let tasks = &plan.vms[0].tasks;
    let names: Vec<&str> = tasks.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["x/a", "x/b"]);
    assert_eq!(acts(&tasks[0].program)[0], Act::Acquire { lock: 64, kind: LockKind::Futex });
    assert_eq!((tasks[0].policy, tasks[0].timer_slack_ns), (Policy::Fifo(9), 0));
    assert_eq!((tasks[1].cpus.as_slice(), tasks[1].start_ns), ([3].as_slice(), 5_000));
    assert!(
        tasks.iter().all(|task| task.together),
        "a thread without a delay starts 5 us before the other"
    );
    let vm = "[[vm]]\nname = 'g'\nvcpus = 3\n[[vm.task]]\nname = 'x'\nkind = 'rt-app'\n";
    refused(&format!("{vm}file = 'app.json'\n"), "there is no vCPU 3");
    refused(&format!("{vm}file = 'bad.json'\n"), "`tasks.a.iorun` is not known here");
    refused(&format!("{vm}file = 'missing.json'\n"), "no such file");
    refused(&format!("{vm}file = 'app.json'\ncount = 2\n"), "cannot have copies");
}
