//! What must hold in any scenario: random machines, loads, guests and policies.

use std::sync::Arc;

use crate::support::virt::any_virt;
use crate::support::*;
use proptest::prelude::*;
use vcoop_model::plan::virt::{
    Candidates, GuestIdle, IpiPath, IpiVirt, PreemptedReport, SpinLocks, SpinVirt, TimerMode,
};
use vcoop_model::plan::{
    Act, Claim, CoreScheduling, DevicePlan, Dist, InterruptPlan, IpiTo, LockKind, Milestone, Mode,
    Phase, Plan, PolicyPlan, Preemption, Program, QueueRoom, Registers, RogueStep, Section,
    StormPlan, Target, TaskPlan, TimelineAction, TimelineEvent, Virt,
};
use vcoop_model::profile::{Noise, NoiseBy};
use vcoop_model::quantiles::Quantiles;
use vcoop_model::recording::{MarkKind, Part};
use vcoop_policy::config::{Budget, DynamicConfig, Means, WakeBoostConfig};
use vcoop_sched::config::{Bandwidth, GroupConfig, Policy, RtGuard, Topology};

fn dist() -> impl Strategy<Value = Dist> {
    prop_oneof![
        (1u64..2_000).prop_map(|us| Dist::Const(us * US)),
        (1u64..500, 0u64..500).prop_map(|(lo, d)| Dist::Uniform(lo * US, (lo + d) * US)),
        (1u64..1_000).prop_map(|us| Dist::Exp { mean_ns: us * US, max_ns: 20 * us * US }),
    ]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        4 => Just(Mode::User),
        1 => Just(Mode::Kernel),
        1 => Just(Mode::PreemptOff),
        1 => Just(Mode::IrqOff),
    ]
}

fn sched_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        4 => (-20i8..20).prop_map(|nice| Policy::Normal { nice, slice_ns: None }),
        1 => Just(Policy::Normal { nice: 0, slice_ns: Some(MS) }),
        1 => Just(Policy::Idle),
        1 => (1u8..99).prop_map(Policy::Fifo),
        1 => (1u8..99).prop_map(Policy::Rr),
        1 => (1u64..40, 0u64..40).prop_map(|(run, more)| Policy::Deadline {
            runtime_ns: run * 100 * US,
            deadline_ns: (run + more) * 100 * US,
            period_ns: (run + 2 * more) * 100 * US,
        }),
    ]
}

/// Stands for the server of a caller, which is chosen later, when there are servers.
const SOMEBODY: Target = Target::Host(u32::MAX);

/// A part of a routine that leaves nothing behind: locks are released, messages taken.
fn block() -> impl Strategy<Value = Vec<Act>> {
    let run = |us: u64, mode| Act::Do(Phase::Run { time: Dist::Const(us * US), mode });
    let to = prop_oneof![Just(IpiTo::Own), Just(IpiTo::Next), Just(IpiTo::Others)];
    prop_oneof![
        2 => (0u32..3, 0u64..2_000, mode()).prop_map(move |(lock, us, mode)| vec![
            Act::Lock { lock }, run(us, mode), Act::Unlock { lock },
        ]),
        1 => (0u64..2_000, mode()).prop_map(move |(us, mode)| vec![
            Act::LockIrq { lock: 6 }, run(us, mode), Act::Unlock { lock: 6 },
        ]),
        1 => (3u32..5, 0u64..2_000).prop_map(move |(lock, us)| {
            let kind = [LockKind::Mutex, LockKind::Futex][lock as usize - 3];
            vec![Act::Acquire { lock, kind }, run(us, Mode::User), Act::Release { lock }]
        }),
        1 => (any::<bool>(), 0u64..2_000, 0u32..3).prop_map(|(reads, us, flush_every)| Section {
            lock: 5,
            kind: if reads { LockKind::Read } else { LockKind::Write },
            time: Dist::Const(us * US),
            flush_every,
        }.acts()),
        2 => (to, any::<bool>()).prop_map(|(to, wait)| vec![Act::Ipi { to, wait }]),
        1 => (0u32..3).prop_map(|lock| vec![
            Act::Lock { lock }, Act::Ipi { to: IpiTo::Others, wait: true }, Act::Unlock { lock },
        ]),
        2 => Just(vec![Act::Flush]),
        1 => (1u32..4, 0u64..50)
            .prop_map(|(of, us)| vec![Act::Barrier { of, spin_ns: us * US }, Act::Sample]),
        1 => (1u64..40, any::<bool>())
            .prop_map(|(p, busy)| vec![Act::Timer { period_ns: p * 50 * US, busy, interrupt: true }]),
        1 => (1u64..400).prop_map(|us| vec![
            Act::Remote { delay: Dist::Const(us * US), irq_vcpu: 0 }, Act::Sample,
        ]),
        1 => (any::<bool>(), prop::sample::select(&[QueueRoom::List, QueueRoom::Socket(2), QueueRoom::Pipe(33)]))
            .prop_map(|(sample, room)| vec![Act::Post { peer: 0, room }, Act::Receive { sample }]),
        1 => (1u64..2_000).prop_map(|us| vec![
            Act::Every { n: 3, skip: 1 }, Act::Do(Phase::Sleep { time: Dist::Const(us * US) }),
        ]),
    ]
}

fn routine() -> impl Strategy<Value = Program> {
    (1u64..300, prop::collection::vec(block(), 1..5), any::<bool>()).prop_map(
        |(us, blocks, whole)| {
            let mut acts =
                vec![Act::Do(Phase::Run { time: Dist::Const(us * US), mode: Mode::User })];
            let samples = blocks.iter().flatten().any(Act::measures);
            if whole && !samples {
                acts.push(Act::Begin);
            }
            acts.extend(blocks.into_iter().flatten());
            if whole && !samples {
                acts.push(Act::Sample);
            }
            acts.push(Act::Done);
            Program::Routine { acts }
        },
    )
}

/// Every switch of IPIs and spinning.
fn spinning() -> impl Strategy<Value = (IpiVirt, SpinVirt, bool)> {
    let path = prop_oneof![
        Just(IpiPath::Icr),
        Just(IpiPath::Cluster),
        Just(IpiPath::Pv),
        Just(IpiPath::Posted),
    ];
    (path, any::<[bool; 3]>(), 0u64..300, 1u64..50, 1u32..4).prop_map(
        |(path, [pv_tlb, pv_yield, pause], threshold, window, ple_grow)| {
            let spin = SpinVirt {
                locks: SpinLocks::ALL[threshold as usize % SpinLocks::ALL.len()],
                threshold_ns: Some(threshold * US),
                ple_window_ns: Some(window * US),
                ple_grow,
                candidates: Candidates {
                    in_kernel: threshold % 2 == 0,
                    woken: threshold % 7 == 0,
                    interrupted: threshold % 3 == 0,
                    queue_heads: threshold % 5 == 0,
                    not_alone: window % 3 == 0,
                    ipi: window % 4 == 0,
                },
                preempted_unseen: window % 2 == 0,
                told: if window % 5 == 0 {
                    PreemptedReport::Interrupted
                } else {
                    PreemptedReport::Away
                },
                early_if_preempted: window % 7 < 3,
            };
            (
                IpiVirt {
                    path,
                    shorthand: pv_tlb != pv_yield,
                    lazy_tlb: pv_tlb == pv_yield,
                    pv_tlb,
                    pv_yield,
                },
                spin,
                pause,
            )
        },
    )
}

fn program(guest: bool) -> impl Strategy<Value = Program> {
    prop_oneof![
        4 => routine(),
        3 => (0u64..300).prop_map(|us| Program::Serve {
            work: Dist::Uniform(0, us * US),
            wait: Dist::Const(if us.is_multiple_of(3) { us * US } else { 0 }),
            irq_vcpu: 0,
            section: us.is_multiple_of(2).then_some(Section {
                lock: [0, 3, 5, 5][us as usize % 4],
                kind: [LockKind::Spin, LockKind::Mutex, LockKind::Read, LockKind::Write]
                    [us as usize % 4],
                time: Dist::Uniform(0, us * US),
                flush_every: us as u32 % 5,
            }),
        }),
        3 => (1u64..40, 0u64..50).prop_map(|(i, work)| Program::Ping {
            interval_ns: i * 50 * US,
            phase: Dist::Uniform(0, 99 * US),
            server: SOMEBODY,
            irq_vcpu: 0,
            work: Dist::Const(work * US),
        }),
        1 => (dist(), mode(), 0u64..2_000).prop_map(|(run, mode, us)| Program::Cycle {
            phases: vec![
                Phase::Run { time: run, mode },
                Phase::Call { server: SOMEBODY, irq_vcpu: 0 },
                Phase::Sleep { time: Dist::Const(us * US) },
            ],
        }),
        2 => Just(hog()),
        3 => (dist(), mode(), dist()).prop_map(|(run, mode, sleep)| Program::Cycle {
            phases: vec![Phase::Run { time: run, mode }, Phase::Sleep { time: sleep }],
        }),
        3 => (2u64..40, any::<bool>(), 0u64..100).prop_map(|(i, absolute, work)| {
            Program::Cyclictest { interval_ns: i * 100 * US, absolute, work: Dist::Const(work * US), phase: Dist::Uniform(0, 99 * US) }
        }),
        2 => (1u64..5, 0u64..10, 1u64..1_500).prop_map(|(p, b, work)| Program::Audio {
            period_ns: p * MS,
            buffer_ns: b * MS,
            work: Dist::Const(work * US),
            device: false,
        }),
        1 => (1u64..60, 0u64..200, 1u64..6, any::<bool>()).prop_map(move |(think, us, n, io)| if guest {
            Program::Desktop {
                think: Dist::Exp { mean_ns: think * MS, max_ns: S },
                bursts: n as u32,
                burst: Dist::Uniform(0, us * US),
                server: io.then_some(SOMEBODY),
                irq_vcpu: 0,
            }
        } else {
            hog()
        }),
        1 => rogue().prop_map(move |rogue| if guest { rogue } else { hog() }),
    ]
}

fn rogue() -> impl Strategy<Value = Program> {
    let claim = prop::sample::select(vec![Claim::Nothing, Claim::Section, Claim::Nmi, Claim::Idle]);
    let page = prop::sample::select(vec![Registers::Own, Registers::Nothing, Registers::Refused]);
    let step = prop_oneof![
        Just(RogueStep::Ask),
        Just(RogueStep::End),
        claim.prop_map(RogueStep::Claim),
        Just(RogueStep::Acknowledge),
        Just(RogueStep::Notify),
        page.prop_map(RogueStep::Register),
        (50..500u64).prop_map(|us| RogueStep::Scribble(us * US)),
        (10..1_000u64).prop_map(|us| RogueStep::Deadline(us * US)),
        (10..3_000u64).prop_map(|us| RogueStep::Halt(us * US)),
        (10..3_000u64).prop_map(|us| RogueStep::Work(us * US)),
    ];
    prop::collection::vec(step, 1..8).prop_map(|mut steps| {
        steps.push(RogueStep::Work(100 * US));
        Program::Rogue { steps: Arc::new(steps) }
    })
}

fn tasks(cpus: u32, guest: bool) -> impl Strategy<Value = Vec<TaskPlan>> {
    let one = (program(guest), sched_policy(), prop::option::of(0..cpus), 0u64..20_000);
    prop::collection::vec(one, 0..6).prop_map(move |list| {
        list.into_iter()
            .enumerate()
            .map(|(i, (program, policy, pin, start))| TaskPlan {
                start_ns: start * US,
                together: false,
                timer_slack_ns: if policy.is_rt() || policy.is_deadline() { 0 } else { 50 * US },
                ..task(&format!("t{i}"), program, policy, pin.as_slice())
            })
            .collect()
    })
}

fn means() -> impl Strategy<Value = Means> {
    prop_oneof![
        Just(Means::Rr(8)),
        Just(Means::Fifo(60)),
        Just(Means::Nice(-20)),
        Just(Means::Slice(200 * US)),
        Just(Means::Deadline { runtime_ns: MS, deadline_ns: 2 * MS, period_ns: 4 * MS }),
    ]
}

fn policy() -> impl Strategy<Value = PolicyPlan> {
    let budget = |ms| Budget { burst_ns: ms * MS, refill_ppm: 200_000 };
    prop_oneof![
        Just(PolicyPlan::Vanilla),
        means().prop_map(|means| PolicyPlan::Static { means }),
        (means(), any::<bool>(), any::<bool>()).prop_map(move |(means, receiver, repay)| {
            PolicyPlan::Dynamic(DynamicConfig {
                boost_receiver: receiver,
                repay,
                ..DynamicConfig::new(means, budget(3), budget(6))
            })
        }),
        (means(), any::<bool>(), any::<bool>()).prop_map(
            move |(means, boost_on_injection, repay)| PolicyPlan::WakeBoost(WakeBoostConfig {
                means,
                run_ns: 200 * US,
                vcpu_budget: budget(3),
                vm_budget: budget(6),
                boost_on_injection,
                repay,
                rest_slice_ns: None,
            })
        ),
    ]
}

/// The servers of the host, and of the first VMs.
fn servers(p: &Plan, vms: usize) -> Vec<Target> {
    let serves = |t: &TaskPlan| matches!(t.program, Program::Serve { .. });
    let hosts = (0..).zip(&p.host_tasks).filter(|(_, t)| serves(t));
    let mut servers: Vec<Target> = hosts.map(|(i, _)| Target::Host(i)).collect();
    for (vm, plan) in (0..).zip(&p.vms[..vms]) {
        let tasks = (0..).zip(&plan.tasks).filter(|(_, t)| serves(t));
        servers.extend(tasks.map(|(task, _)| Target::Guest { vm, task }));
    }
    servers
}

/// Each caller calls one of the servers, if there are any; interrupts go to any vCPU.
fn connect(p: &mut Plan, mut seed: u64) {
    let servers = servers(p, p.vms.len());
    let mut pick = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % n
    };
    let host = p.host_tasks.iter_mut().map(|t| (t, 1));
    let guests = p.vms.iter_mut().flat_map(|vm| {
        let n = vm.level.topology.cpus() as usize;
        vm.tasks.iter_mut().map(move |t| (t, n))
    });
    for (task, vcpus) in host.chain(guests) {
        match &mut task.program {
            Program::Serve { irq_vcpu, .. } => *irq_vcpu = pick(vcpus) as u32,
            program if program.servers().next().is_none() => {}
            Program::Boot { server, .. } | Program::Desktop { server, .. }
                if servers.is_empty() =>
            {
                *server = None;
            }
            Program::Boot { server, irq_vcpu, .. } | Program::Desktop { server, irq_vcpu, .. } => {
                *server = server.map(|_| servers[pick(servers.len())]);
                *irq_vcpu = pick(vcpus) as u32;
            }
            program if servers.is_empty() => *program = hog(),
            Program::Ping { server, irq_vcpu, .. } => {
                *server = servers[pick(servers.len())];
                *irq_vcpu = pick(vcpus) as u32;
            }
            Program::Cycle { phases } => {
                for phase in phases {
                    if let Phase::Call { server, irq_vcpu } = phase {
                        *server = servers[pick(servers.len())];
                        *irq_vcpu = pick(vcpus) as u32;
                    }
                }
            }
            _ => {}
        }
    }
}

/// The last VM comes later, in copies, in half of the cases.
fn weather(p: &mut Plan, seed: u64) {
    let Some(last) = p.vms.pop() else { return };
    if seed.is_multiple_of(2) {
        p.vms.push(last);
        return;
    }
    let first = p.vms.len() as u32;
    let copies = 1 + (seed >> 8) as u32 % 5;
    for i in 0..copies {
        let mut copy = last.clone();
        copy.name = format!("{}/{i}", last.name);
        let boot = Program::Boot {
            rounds: 1 + (seed >> 16) as u32 % 400,
            burst: Dist::Exp { mean_ns: 10 * US, max_ns: 100 * US },
            every: 7,
            long: Dist::Const(50 * US),
            server: Some(SOMEBODY),
            irq_vcpu: 0,
            hog: seed & 2 == 0,
        };
        copy.tasks.push(task("boot", boot, Policy::NORMAL, &[]));
        if let Some(task) = copy.tasks.first_mut() {
            task.after_login =
                copies.is_multiple_of(2) && !matches!(task.program, Program::Boot { .. });
        }
        p.vms.push(copy);
    }
    let servers = servers(p, first as usize);
    p.storms.push(StormPlan {
        label: last.label,
        vms: (first..first + copies).collect(),
        batch: 1 + (seed >> 24) as u32 % 3,
        next: if seed & 4 == 0 { Milestone::Start } else { Milestone::Login },
        rolling: seed & 8 != 0,
        begin_ns: (seed >> 32) % (50 * MS),
        gap_ns: (seed >> 40) % MS,
        toolstack: servers.iter().rev().take(1).copied().collect(),
        devices: if servers.is_empty() { 0 } else { (seed >> 48) as u32 % 4 },
        backend: servers,
        density: None,
    });
}

/// Costs that vary, noise, full-nohz CPUs, a network card, and siblings that slow each other down and may share their
/// core with some only, each in half of the cases.
fn disturb(p: &mut Plan, seed: u64) {
    let cpus = p.host.sched.cpus();
    if seed & 0x100 == 0 {
        p.host.costs = varying(p.host.costs.clone());
    }
    if seed & 0x10 == 0 {
        p.host.nohz_full = (1..cpus).collect();
    }
    if seed & 0x80 == 0 && cpus.is_multiple_of(2) {
        let threads_per_core = if cpus.is_multiple_of(4) { 4 } else { 2 };
        let cores_per_llc = cpus / threads_per_core;
        *p.host.sched.topology_mut() = Topology { threads_per_core, cores_per_llc, llcs: 1 };
        p.host.smt_ppm = vec![600_000, 450_000];
        p.host.core_scheduling = [CoreScheduling::Vm, CoreScheduling::Vcpu, CoreScheduling::Off]
            [(seed >> 10) as usize % 3];
    }
    if seed & 0x20 == 0 {
        p.host.interrupts.push(InterruptPlan {
            name: "nic".into(),
            period: Dist::Exp { mean_ns: 150 * US, max_ns: 5 * MS },
            work: Dist::Uniform(0, 9 * US),
            cpus: (0..cpus).collect(),
        });
    }
    if seed & 0x200 == 0 {
        for by in [NoiseBy::Interrupts, NoiseBy::Threads] {
            let takes = Quantiles::ascending([1, 2, 5, 10, 30, 100, 300, 900].map(|us| us * US));
            let mean_ns = 20 * US;
            p.host.noise.push(Noise {
                name: format!("{by:?}"),
                by,
                period_ns: 2 * MS,
                takes,
                mean_ns,
            });
        }
    }
    for vm in &mut p.vms {
        let n = vm.level.topology.cpus();
        vm.virt.charges_steal = seed & 0x400 == 0;
        if seed & 0x40 == 0 && vm.virt.timer.mode != TimerMode::Periodic {
            vm.virt.nohz_full = (1..n).collect();
        }
    }
}

/// Plain half of the time.
fn virt() -> impl Strategy<Value = Virt> {
    prop_oneof![Just(Virt::default()), any_virt()]
}

fn scenario() -> impl Strategy<Value = Plan> {
    (1u32..5, any::<bool>(), 0usize..4, 0usize..4, any::<bool>()).prop_flat_map(
        |(cpus, modern, preemption, guard, costly)| {
            let guests = prop::collection::vec(
                (1u32..4).prop_flat_map(|n| (Just(n), tasks(n, true), virt())),
                0..3,
            );
            let switch_off = prop::option::of(10u64..150);
            (tasks(cpus, false), guests, policy(), 0u64..u64::MAX, switch_off, spinning()).prop_map(
                move |(host_tasks, guests, policy, seed, switch_off, spinning)| {
                    let mut host = if modern { eevdf(cpus) } else { cfs(cpus) };
                    host.rt_guard = [
                        RtGuard::Off,
                        RtGuard::Throttle(Bandwidth { runtime_ns: 95 * MS, period_ns: 100 * MS }),
                        RtGuard::FairServer(Bandwidth { runtime_ns: 5 * MS, period_ns: 100 * MS }),
                        RtGuard::Both(Bandwidth { runtime_ns: 95 * MS, period_ns: 100 * MS }),
                    ][guard];
                    let inner = GroupConfig { parent: Some(0), ..GroupConfig::new(512) };
                    host.groups = vec![GroupConfig::new(1024), inner];
                    // Those of the vCPUs of the second VM.
                    host.groups.extend([GroupConfig { parent: Some(1), ..inner }; 2]);
                    let mut p = plan(host, if costly { dear() } else { free() });
                    p.host.preemption = [
                        Preemption::None,
                        Preemption::Voluntary,
                        Preemption::Lazy,
                        Preemption::Full,
                    ][preemption];
                    p.duration_ns = 200 * MS;
                    p.seed = seed;
                    p.host_tasks = host_tasks;
                    p.policy = policy;
                    for (i, (n, tasks, virt)) in guests.into_iter().enumerate() {
                        let level = if modern { cfs(n) } else { eevdf(n) };
                        let mut vm = vm(&format!("vm{i}"), level, tasks);
                        vm.group = (i < 2).then_some(i as u16);
                        if i == 1 {
                            vm.vcpu_groups = (0..n.min(2) as u16).map(|vcpu| 2 + vcpu).collect();
                        }
                        vm.virt = virt;
                        (vm.virt.ipi, vm.virt.spin, vm.virt.exits_off.pause) = spinning;
                        vm.devices.push(DevicePlan {
                            name: "net".into(),
                            period: Dist::Exp { mean_ns: 3 * MS, max_ns: 50 * MS },
                            vcpu: n - 1,
                            nmi: i == 0,
                            softirq: Dist::Const(20 * US),
                            wakes: None,
                        });
                        p.vms.push(vm);
                    }
                    if let Some(ms) = switch_off {
                        p.timeline.push(TimelineEvent {
                            at_ns: ms * MS,
                            action: TimelineAction::Boost { vm: None, on: false },
                        });
                    }
                    disturb(&mut p, seed);
                    weather(&mut p, seed);
                    connect(&mut p, seed);
                    probe_all(&mut p);
                    p
                },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// Debug assertions along the way: time never goes back, parts add up sample by sample.
    #[test]
    fn any_scenario_keeps_its_books(mut p in scenario()) {
        p.slices = 7;
        let r = run(&p);
        for l in &r.latencies {
            prop_assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns, "{}", &l.probe);
            prop_assert_eq!(l.count_by_log2.iter().sum::<u64>(), l.hist.len());
            let slices: Vec<_> = l.slices.iter().flat_map(|slices| slices.iter()).collect();
            let counts = slices.iter().flat_map(|slice| &slice.bins).map(|(_, n)| u64::from(*n));
            prop_assert_eq!((slices.len(), counts.sum::<u64>()), (7, l.hist.len()));
            prop_assert_eq!(slices.iter().map(|s| s.max_ns).max(), Some(l.max_ns));
            for w in &l.worst {
                prop_assert_eq!(w.parts.iter().sum::<u64>(), w.latency_ns);
            }
        }
        for events in &r.policy_events {
            let seconds = p.duration_ns as f64 / 1e9;
            for (kind, metric) in ["boosts", "throttles", "denied"].iter().enumerate() {
                let by_time: u32 = events.counts.iter().map(|counts| counts[kind]).sum();
                let all = scalar(&r, &events.vm, metric) * seconds;
                prop_assert!((f64::from(by_time) - all).abs() < 0.5, "{metric}: {by_time}, {all}");
            }
        }
        for in_use in &r.in_use {
            let mean = in_use.used_ns.iter().sum::<u64>() as f64 / p.duration_ns as f64;
            let all = r.scalar(&in_use.vm, "vcpus_used").unwrap_or(in_use.vcpus.into());
            prop_assert!((mean - all).abs() < 1e-6, "{}: {mean}, {all}", &in_use.vm);
        }
        // No CPU does more than a CPU can, and what ran was not idle.
        let cpus = f64::from(p.host.sched.cpus());
        let busy = scalar(&r, "host", "cpu") / 100.0 * cpus;
        let mut had: f64 = r.scalars.iter()
            .filter(|((probe, metric), _)| metric == "throughput" && probe.starts_with("host."))
            .map(|(_, s)| s.value)
            .sum();
        let labels: std::collections::BTreeSet<_> = p.vms.iter().map(|vm| &vm.label).collect();
        for label in labels {
            had += scalar(&r, label, "cpu");
        }
        prop_assert!(had <= busy + 1e-6, "had {had} of {busy} busy CPUs");
        prop_assert!(busy <= cpus + 1e-9);
        // Each VM of a storm is asked for, starts and logs in, in this order, once, and by batches or
        // as places become free.
        for (s, storm) in p.storms.iter().enumerate() {
            let at = |kind, vm| {
                let mut all = r.marks.iter()
                    .filter(|m| (m.storm as usize, m.kind, m.vm) == (s, kind, vm));
                (all.next().map(|m| m.at_ns), all.next())
            };
            let there = |vm| at(match storm.next {
                Milestone::Start => MarkKind::Started,
                Milestone::Login => MarkKind::LoggedIn,
            }, vm).0;
            let mut free = true;
            for vm in 1..=storm.vms.len() as u32 {
                let [asked, started, login] =
                    [MarkKind::Requested, MarkKind::Started, MarkKind::LoggedIn].map(|k| at(k, vm));
                prop_assert!(asked.1.is_none() && started.1.is_none() && login.1.is_none());
                prop_assert!(started.0.is_none() || asked.0 <= started.0);
                prop_assert!(login.0.is_none() || started.0.is_some() && started.0 <= login.0);
                if storm.rolling {
                    let underway =
                        |asked| (1..vm).filter(move |vm| there(*vm).is_none_or(|t| t > asked));
                    let places = asked.0.is_none_or(|t| underway(t).count() < storm.batch as usize);
                    prop_assert!(places, "more on their way than there are places for");
                    continue;
                }
                prop_assert!(asked.0.is_none() || free, "a batch begins before the last is there");
                if vm % storm.batch == 0 {
                    free = (vm + 1 - storm.batch..=vm).all(|vm| there(vm).is_some());
                }
            }
        }
    }

    #[test]
    fn same_seed_same_result(p in scenario()) {
        let text = |p: &Plan| {
            let mut r = run(p);
            if let Some(e) = r.engine.as_mut() { e.cpu_ns = 0; }
            format!("{r:?}")
        };
        prop_assert_eq!(text(&p), text(&p));
    }

    /// A free machine that conserves work: as long as a thread wants a CPU, none is lost.
    #[test]
    fn hogs_fill_a_free_machine(cpus in 1u32..5, hogs in 1usize..9, modern: bool) {
        let mut p = plan(if modern { eevdf(cpus) } else { cfs(cpus) }, free());
        p.duration_ns = 500 * MS;
        p.warmup_ns = 100 * MS;
        for i in 0..hogs {
            p.host_tasks.push(task(&format!("hog/{i}"), hog(), Policy::NORMAL, &[]));
        }
        let r = run(&p);
        let want = 100.0 * (hogs as f64 / f64::from(cpus)).min(1.0);
        let busy = scalar(&r, "host", "cpu");
        prop_assert!((busy - want).abs() < 1e-6, "{busy} % busy, want {want} %");
    }

    /// No lost call: a server above everything answers all calls but those under way, and each
    /// caller samples or misses every period.
    #[test]
    fn every_call_is_answered(p in scenario(), interval in 2u64..20, work in 0u64..90, vm in 0usize..3) {
        let mut p = p;
        p.host.sched.linux_mut().unwrap().rt_guard = RtGuard::Off;
        p.storms.clear(); // all VMs are there
        if let PolicyPlan::Static { means: Means::Deadline { .. } } = p.policy {
            // Enough vCPUs with a deadline leave nothing to a FIFO thread.
            p.policy = PolicyPlan::Vanilla;
        }
        for task in &mut p.host_tasks {
            // So does a task whose runtime is its period.
            if task.policy.is_deadline() {
                task.policy = Policy::Idle;
            }
        }
        for m in &mut p.vms {
            // A vCPU that never sleeps never lets another one have its pCPU.
            m.virt.idle.guest = GuestIdle::Hlt;
            m.virt.exits_off.hlt = false;
        }
        let serve = serve(work * US);
        let server = match p.vms.get_mut(vm) {
            Some(m) => {
                // With its vCPUs above everything as well, or it may wait for ever.
                m.vcpu_policy.fill(Policy::Fifo(98));
                m.tasks.push(task("answers", serve, Policy::Fifo(99), &[]));
                Target::Guest { vm: vm as u32, task: m.tasks.len() as u32 - 1 }
            }
            None => {
                p.host_tasks.push(task("answers", serve, Policy::Fifo(99), &[]));
                Target::Host(p.host_tasks.len() as u32 - 1)
            }
        };
        let interval_ns = interval * 100 * US;
        p.host_tasks.push(task("asks", ping(interval_ns, server), Policy::Fifo(99), &[]));
        probe_all(&mut p);
        let r = run(&p);
        let l = latency(&r, "host.asks");
        let level = p.vms.get(vm).map_or("host", |m| &m.label);
        let per_s = 5.0; // the run is 200 ms
        let served = scalar(&r, &format!("{level}.answers"), "served") / per_s;
        let calls = scalar(&r, "host.asks", "calls") / per_s;
        prop_assert!(calls - served <= 1.0 + 1e-6, "{calls} calls, {served} answers");
        let seen = l.hist.len() + l.missed;
        let periods = p.duration_ns / interval_ns;
        prop_assert!(seen + 100 >= periods && seen <= periods, "{seen} of {periods}");
        prop_assert!(!l.hist.is_empty(), "nothing came back");
        if p.host.costs.entry_ns == 0 && p.host.smt_ppm.is_empty() {
            // No cold caches and no siblings: the server's part is its work, whatever preempts it. The last call may
            // be cut off.
            let service = l.parts_sum[Part::Service as usize] / u128::from(US);
            let all = u128::from(l.hist.len() * work);
            prop_assert!(service <= all && service + u128::from(work) >= all, "{service} of {all}");
        }
    }

    /// No lost wake-up: a measured task above everything is seen at every period.
    #[test]
    fn every_period_is_sampled_or_missed(p in scenario(), interval in 5u64..20) {
        let mut p = p;
        // Reservations go before FIFO 99, and can be for all of the CPU: admission is off.
        let reserved = match &p.policy {
            PolicyPlan::Static { means: Means::Deadline { .. } } => {
                p.vms.iter().map(|vm| vm.vcpu_cpus.len()).sum()
            }
            _ => 0,
        };
        prop_assume!(reserved < 3 * p.host.sched.cpus() as usize);
        let program = cyclictest(interval * 100 * US, 0);
        p.host_tasks.push(task("watch", program, Policy::Fifo(99), &[]));
        probe_all(&mut p);
        let r = run(&p);
        let l = latency(&r, "host.watch");
        let periods = p.duration_ns / (interval * 100 * US);
        let seen = l.hist.len() + l.missed;
        // Another FIFO 99 or an interrupt-off section may hold the last ones back at the end.
        prop_assert!(seen + 60 >= periods && seen <= periods, "{seen} of {periods}");
    }
}
