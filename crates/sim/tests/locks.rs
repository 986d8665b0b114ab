//! Locks and spinning: known answers.

use crate::support::*;
use vcoop_model::plan::virt::{Candidates, PreemptedReport, SpinLocks, SpinVirt, Virt};
use vcoop_model::plan::{Act, Dist, IpiTo, LockKind, Mode, Ns, Phase, Program, Section};
use vcoop_model::profile::Costs;
use vcoop_model::recording::{Part, Recording};
use vcoop_policy::config::HostPollConfig;
use vcoop_sched::config::{Policy, Topology};

/// A section under the spinlock.
fn locked(section: Ns) -> [Act; 3] {
    [Act::Lock { lock: 0 }, run_for(section, Mode::PreemptOff), Act::Unlock { lock: 0 }]
}

fn locker(section: Ns) -> Program {
    routine([&[Act::Begin], &locked(section)[..], &[Act::Sample, Act::Done]].concat())
}

#[test]
fn a_spinlock_is_handed_over_in_order() {
    // All tasks want it all the time: a round takes the sections of all.
    let p = machine(4, &[0, 1, 2, 3], vec![locker(10 * US); 4]);
    let r = run(&p);
    for t in ["guest.t0", "guest.t1", "guest.t2", "guest.t3"] {
        let l = latency(&r, t);
        let waited = l.parts_sum[Part::LockWait as usize] as f64 / l.hist.len() as f64;
        assert!((mean(&r, t) - 40_000.0).abs() < 100.0, "{t}: {}", mean(&r, t));
        assert!((waited - 30_000.0).abs() < 100.0, "{t}: {waited}");
        assert_eq!(l.hist.max() / 1000, 40);
    }
    assert!((scalar(&r, "guest", "cpu") - 4.0).abs() < 0.01, "waiters spin");
    // Work of their own is what they do with the lock.
    assert!((scalar(&r, "guest.t", "throughput") - 1.0).abs() < 0.01);
    assert!((scalar(&r, "guest.t", "rate") - 100_000.0).abs() < 200.0);
}

/// Two tasks hold a lock for 1 ms by turns. A third calls a function on both vCPUs, as for a TLB flush, so many us
/// after the last call. Time of a call, halts of waiters, and kicks.
fn call_beside_a_lock(take: Act, after: u64, change: impl Fn(&mut Virt)) -> (f64, f64, f64) {
    let held = [take, run_for(MS, Mode::PreemptOff), Act::Unlock { lock: 0 }];
    let call = Act::Ipi { to: IpiTo::Others, wait: true };
    let caller = routine(vec![nap(after), Act::Begin, call, Act::Sample]);
    let both = routine(held.to_vec());
    let mut p = machine(3, &[0, 1, 2], vec![both.clone(), both, caller]);
    p.vms[0].virt.spin.threshold_ns = Some(5 * US);
    change(&mut p.vms[0].virt);
    let r = run(&p);
    let count = |name| scalar_or_zero(&r, "guest", name);
    (mean(&r, "guest.t2"), count("pv_halts"), count("pv_kicks"))
}

#[test]
fn a_call_waits_for_those_who_take_a_lock_with_interrupts_off() {
    for locks in SpinLocks::ALL {
        for posted in [false, true] {
            let of = |take| {
                call_beside_a_lock(take, 3_300, |virt| {
                    virt.spin.locks = locks;
                    virt.apic.posted = posted;
                })
            };
            let (on, ..) = of(Act::Lock { lock: 0 });
            assert!(on < 10_000.0, "{locks:?}, {posted}: {on} with interrupts on");
            // A call ends with a turn, and the next begins 3.3 ms later: the holder still has the lock for 0.7 ms, and
            // the waiter, halted or not, for 1 ms.
            let (off, halts, _) = of(Act::LockIrq { lock: 0 });
            assert!((off - 1.7e6).abs() < 2e4, "{locks:?}, {posted}: {off} with interrupts off");
            assert_eq!(halts > 100.0, locks.halts(), "{locks:?}");
        }
    }
}

#[test]
fn only_a_kick_ends_a_halt_with_interrupts_off() {
    // The interrupt comes while the waiter is halted or polled for, or 2 us after it began to spin.
    let long = HostPollConfig { max_ns: 2 * MS, fixed: true, ..HostPollConfig::KVM };
    for poll in [HostPollConfig::OFF, long] {
        for (after, want) in [(3_300, 1.7e6), (3_002, 1.998e6)] {
            let of = |take| {
                call_beside_a_lock(take, after, |virt| {
                    virt.spin.locks = SpinLocks::Pv;
                    virt.idle.host_poll = Some(poll);
                })
            };
            let (time, halts, kicks) = of(Act::LockIrq { lock: 0 });
            assert!((time - want).abs() < 2e4, "{after}: {time}");
            assert!(halts > 900.0 && (halts - kicks).abs() < 2.0, "{after}: {halts}, {kicks}");
            // With interrupts on it takes the interrupt, and halts again.
            let (_, halts, kicks) = of(Act::Lock { lock: 0 });
            assert!(after == 3_002 || halts > 1.2 * kicks, "{halts}, {kicks}");
        }
    }
}

#[test]
fn a_preempted_holder_makes_its_waiters_spin_and_ple_brings_it_back() {
    // A hog shares the holder's pCPU. Without PLE the waiter spins for as long as the hog runs.
    let tasks = vec![locker(500 * US), locker(500 * US)];
    let mut p = machine(2, &[0, 1], tasks);
    p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[0]));
    p.host_tasks.push(task(
        "other",
        cycle(Dist::Const(50 * US), Dist::Const(50 * US)),
        Policy::NORMAL,
        &[1],
    ));
    p.vms[0].virt.exits_off.pause = true;
    let off = run(&p);
    p.vms[0].virt.exits_off.pause = false;
    let on = run(&p);
    assert!(scalar(&off, "guest", "lock_holder_preemptions") > 10.0);
    assert!(!off.scalars.contains_key(&("guest".into(), "exits.pause".into())));
    assert!(scalar(&on, "guest", "exits.pause") > 10.0);
    assert!(scalar(&on, "guest", "yields.won") > 10.0);
    let (before, after) = (mean(&off, "guest.t1"), mean(&on, "guest.t1"));
    assert!(after < 0.9 * before, "{after} with PLE, {before} without");
}

#[test]
fn rules_say_to_whom_a_spinning_vcpu_yields() {
    // vCPU 0 waits for vCPU 1 to take an IPI. That one computes, and shares its pCPU with a hog: when it has lost it,
    // it was in user mode, with the IPI pending.
    let caller = routine(vec![user(20), Act::Ipi { to: IpiTo::Next, wait: true }, Act::Done]);
    let of = |in_kernel, interrupted, posted| {
        let mut p = machine(2, &[0, 1], vec![caller.clone(), hog()]);
        p.vms[0].virt.apic.posted = posted;
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[1]));
        p.vms[0].virt.spin.candidates =
            Candidates { in_kernel, woken: interrupted, interrupted, ..Candidates::default() };
        // A vCPU that is never switched keeps its window.
        p.vms[0].virt.spin.ple_grow = 1;
        let r = run(&p);
        assert!(scalar(&r, "guest", "exits.pause") > 10.0);
        scalar_or_zero(&r, "guest", "yields.tried")
    };
    assert!(of(false, false, false) > 10.0, "any that was preempted");
    assert_eq!(of(true, false, true), 0.0, "it was in user mode");
    assert!(of(true, true, false) < 2.0, "KVM looks at posted interrupts only");
    assert!(of(true, true, true) > 10.0, "an interrupt is pending");
}

#[test]
fn a_vcpu_that_was_woken_is_a_candidate_by_a_rule_of_its_own() {
    // The same, but vCPU 1 is idle: the IPI wakes it, and then it waits behind a hog with a longer slice.
    let caller = routine(vec![user(20), Act::Ipi { to: IpiTo::Next, wait: true }, Act::Done]);
    let of = |woken| {
        let mut p = machine(2, &[0, 1], vec![caller.clone(), routine(vec![nap(3_000)])]);
        for i in 0..2 {
            p.host_tasks.push(task(&format!("hog{i}"), hog(), Policy::NORMAL, &[1]));
        }
        (p.vms[0].virt.spin.ple_grow, p.vms[0].virt.spin.ple_window_ns) = (1, Some(US));
        let rules = &mut p.vms[0].virt.spin.candidates;
        (rules.in_kernel, rules.woken) = (false, woken);
        scalar_or_zero(&run(&p), "guest", "yields.tried")
    };
    assert_eq!(of(false), 0.0);
    assert!(of(true) > 10.0);
}

#[test]
fn a_kick_yields_to_the_head_of_the_queue_if_that_is_asked_for() {
    // Waiters halt at once; with hogs, another thread wants the pCPU of each.
    let yields = |queue_heads, hogs: bool| {
        let mut p = machine(2, &[0, 1], vec![locker(300 * US); 2]);
        for cpu in (0..2).filter(|_| hogs) {
            p.host_tasks.push(task(&format!("hog{cpu}"), hog(), Policy::NORMAL, &[cpu]));
        }
        p.vms[0].virt.exits_off.pause = true;
        p.vms[0].virt.spin.locks = SpinLocks::Pv;
        p.vms[0].virt.spin.threshold_ns = Some(5 * US);
        p.vms[0].virt.spin.candidates.queue_heads = queue_heads;
        let r = run(&p);
        assert!(scalar(&r, "guest", "pv_kicks") > 100.0);
        scalar_or_zero(&r, "guest", "yields.won")
    };
    assert_eq!(yields(false, true), 0.0);
    assert!(yields(true, true) > 10.0);
    assert_eq!(yields(true, false), 0.0, "nobody else wants the kicker's pCPU");
}

#[test]
fn a_halt_at_a_lock_is_polled_for_and_a_kick_ends_the_poll() {
    let of = |host_poll| {
        let mut p = machine(2, &[0, 1], vec![locker(30 * US); 2]);
        p.vms[0].virt.spin.locks = SpinLocks::Pv;
        p.vms[0].virt.spin.threshold_ns = Some(5 * US);
        p.vms[0].virt.idle.host_poll = Some(host_poll);
        run(&p)
    };
    let (asleep, polled) = (of(HostPollConfig::OFF), of(HostPollConfig::KVM));
    let switches = |r| scalar(r, "host", "switches");
    assert!(scalar(&polled, "guest", "halt_polls.won") > 1_000.0);
    let (slept, spun) = (switches(&asleep), switches(&polled));
    assert!(spun < 0.1 * slept, "{spun} and {slept} switches");
}

fn sections(kind: LockKind, us: Ns, think: Ns, flush_every: u32) -> Program {
    let section = Section { lock: 0, kind, time: Dist::Const(us * US), flush_every };
    let mut acts = vec![user(think), Act::Begin];
    acts.extend(section.acts());
    acts.extend([Act::Sample, Act::Done]);
    routine(acts)
}

#[test]
fn readers_share_a_lock_and_writers_do_not() {
    // Four who want it all the time, each on a CPU of its own: 100 us under it, 1 us between.
    let rate = |kinds: [LockKind; 4]| {
        let programs = kinds.map(|kind| sections(kind, 100, 1, 0)).to_vec();
        scalar(&run(&machine(4, &[0, 1, 2, 3], programs)), "guest.t", "rate")
    };
    let (read, write) = (LockKind::Read, LockKind::Write);
    let readers = rate([read; 4]);
    assert!((readers - 4e6 / 101.0).abs() < 20.0, "nobody waits for anybody: {readers}");
    for kind in [write, LockKind::Mutex, LockKind::Spin] {
        let one = rate([kind; 4]);
        assert!((one - 1e4).abs() < 20.0, "one at a time: {one}");
    }
    // One who writes and three who read: by turns, all readers at once.
    let mixed = rate([write, read, read, read]);
    assert!((mixed - 4.0 * 1e6 / 200.0).abs() < 200.0, "{mixed}");
}

#[test]
fn readers_wait_for_the_cache_line_of_their_lock() {
    // 1 us under it. It is written twice a round, which takes 100 ns if the last to write it was another pCPU.
    let rate = |readers: usize, far: Ns| {
        let pins: Vec<u32> = (0..readers as u32).collect();
        let mut p =
            machine(readers as u32, &pins, vec![sections(LockKind::Read, 1, 0, 0); readers]);
        p.host.costs.cache_line_ns = 100;
        p.host.costs.llc_crossing_ns = far;
        let topology = Topology { threads_per_core: 1, cores_per_llc: 1, llcs: readers as u32 };
        *p.host.sched.topology_mut() = topology;
        p.duration_ns = 20 * MS;
        scalar(&run(&p), "guest.t", "rate")
    };
    assert!((rate(1, 0) / 1e6 - 1.0).abs() < 0.001, "the line stays where it is: {}", rate(1, 0));
    // 16 could do 16 million rounds a second.
    for (far, most) in [(0, 5e6), (150, 2e6)] {
        let many = rate(16, far);
        assert!((many / most - 1.0).abs() < 0.01, "the line goes from one to the other: {many}");
    }
}

#[test]
fn a_round_takes_one_lock_to_read_and_to_write() {
    // 10 times 20 us to read, then 50 us to write, and every fourth round 150 us to write.
    let part = |kind, us| Section { lock: 0, kind, time: Dist::Const(us * US), flush_every: 0 };
    let mut acts = part(LockKind::Read, 20).acts();
    acts.push(Act::Loop { to: 0, times: 10 });
    acts.extend(part(LockKind::Write, 50).acts());
    let often = part(LockKind::Write, 150).acts();
    acts.push(Act::Every { n: 4, skip: often.len() as u32 });
    acts.extend(often);
    acts.push(Act::Done);
    let rate = |tasks: usize| {
        let p = machine(4, &[0, 1, 2, 3], vec![routine(acts.clone()); tasks]);
        scalar(&run(&p), "guest.t", "rate")
    };
    // Alone: 200 us to read, 50 us and a fourth of 150 us to write.
    let alone = rate(1);
    assert!((alone - 1e6 / 287.5).abs() < 5.0, "{alone}");
    // Four can only read together: a round writes for 87.5 us.
    let four = rate(4);
    assert!(four > 1.5 * alone && four < 1e6 / 87.5, "{four} with four, {alone} alone");
}

#[test]
fn a_mutex_is_spun_for_while_its_holder_runs() {
    // Four who want it all the time: on a CPU each none sleeps; with two tasks to a CPU, or a holder that sleeps,
    // they do.
    let of = |kind, vcpus: &[u32], holder_naps: bool| {
        let mut program = sections(kind, 10, 0, 0);
        if let (Program::Routine { acts }, true) = (&mut program, holder_naps) {
            let at = acts.iter().position(|act| matches!(act, Act::Release { .. })).unwrap();
            acts.insert(at, nap(50));
        }
        let mut p = machine(4, &[0, 1, 2, 3], vec![program; 4]);
        for (task, &vcpu) in p.vms[0].tasks.iter_mut().zip(vcpus) {
            task.cpus = vec![vcpu];
        }
        let r = run(&p);
        (scalar(&r, "guest.t", "rate"), scalar_or_zero(&r, "guest", "lock_sleeps"))
    };
    for kind in [LockKind::Mutex, LockKind::Write] {
        let (rate, sleeps) = of(kind, &[0, 1, 2, 3], false);
        assert!((rate - 1e5).abs() < 100.0 && sleeps == 0.0, "{rate}, {sleeps} sleeps");
        let (rate, sleeps) = of(kind, &[0, 0, 1, 1], false);
        assert!((rate - 1e5).abs() < 1_000.0 && sleeps > 0.0, "{rate}, {sleeps} sleeps");
        let (rate, sleeps) = of(kind, &[0, 1, 2, 3], true);
        assert!(rate < 1.7e4 && sleeps > 10_000.0, "{rate}, {sleeps} sleeps");
    }
    // No task spins for a futex; the one that releases it takes it again before another has come.
    let (rate, sleeps) = of(LockKind::Futex, &[0, 1, 2, 3], false);
    assert!((rate - 1e5).abs() < 100.0 && sleeps > 1e4, "{rate}, {sleeps} sleeps");
}

#[test]
fn nobody_spins_for_a_mutex_whose_holder_is_known_to_be_preempted() {
    // A hog shares the pCPU of one of them.
    let of = |locks, preempted_unseen| {
        let mut p = machine(2, &[0, 1], vec![sections(LockKind::Mutex, 500, 100, 0); 2]);
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[0]));
        p.vms[0].virt.exits_off.pause = true;
        p.vms[0].virt.spin = SpinVirt { locks, preempted_unseen, ..p.vms[0].virt.spin };
        let r = run(&p);
        let l = latency(&r, "guest.t1");
        l.parts_sum[Part::LockWait as usize] as f64 / l.hist.len() as f64
    };
    let blind = of(SpinLocks::Queued, true);
    assert!(blind > 500_000.0, "{blind}");
    let blind_pv = of(SpinLocks::Pv, true);
    assert!(blind_pv > 500_000.0, "{blind_pv}");
    for locks in [SpinLocks::Queued, SpinLocks::Pv] {
        let told = of(locks, false);
        assert!(told < 0.6 * blind, "{told} spun, {blind} where nobody knows");
    }
}

#[test]
fn a_writer_is_not_passed_by_readers_who_come_later() {
    // Two readers whose turns overlap would keep a writer out for ever.
    let programs = vec![
        sections(LockKind::Read, 100, 10, 0),
        sections(LockKind::Read, 100, 37, 0),
        sections(LockKind::Write, 10, 1_000, 0),
    ];
    let r = run(&machine(3, &[0, 1, 2], programs));
    let writer = latency(&r, "guest.t2");
    assert!(writer.hist.len() > 800 && writer.max_ns <= 110 * US, "{}", writer.max_ns);
    assert!(scalar(&r, "guest", "lock_sleeps") > 800.0);
}

#[test]
fn a_flush_under_a_lock_makes_all_wait_for_a_vcpu_that_is_away() {
    // vCPU 2 computes, has the same address space and shares its pCPU: the one who flushes waits until it is there.
    let of = |flush_every| {
        let mut p = machine(
            3,
            &[0, 1, 2],
            vec![
                sections(LockKind::Write, 5, 200, flush_every),
                sections(LockKind::Read, 5, 200, 0),
                hog(),
            ],
        );
        p.host_tasks.push(task("other", hog(), Policy::NORMAL, &[2]));
        p.vms[0].virt.exits_off.pause = true;
        mean(&run(&p), "guest.t1")
    };
    let (calm, flushed) = (of(0), of(1));
    assert!(calm < 8_000.0, "{calm}");
    assert!(flushed > 100_000.0, "the reader waits for the flush: {flushed}");
}

#[test]
fn a_server_serves_one_call_at_a_time_under_its_lock() {
    use vcoop_model::plan::Target;
    let served = |kind: Option<LockKind>| {
        let section =
            kind.map(|kind| Section { lock: 0, kind, time: Dist::Const(50 * US), flush_every: 0 });
        let serve = Program::Serve {
            work: Dist::Const(10 * US),
            wait: Dist::Const(0),
            irq_vcpu: 0,
            section,
        };
        let client = |server| {
            routine(vec![
                run_for(1_000, Mode::User),
                Act::Do(Phase::Call { server: Target::Guest { vm: 0, task: server }, irq_vcpu: 0 }),
                Act::Sample,
                Act::Done,
            ])
        };
        let programs = vec![serve.clone(), serve, client(0), client(1)];
        let mut p = machine(4, &[0, 1, 2, 3], programs);
        p.vms[0].tasks[2].label = "client".into();
        p.vms[0].tasks[3].label = "client".into();
        scalar(&run(&p), "guest.client", "rate")
    };
    let read = served(Some(LockKind::Read));
    assert!((read - 2e6 / 61.0).abs() < 20.0, "both at a time: {read}");
    for kind in [LockKind::Mutex, LockKind::Spin] {
        let one = served(Some(kind));
        assert!((one - 1e6 / 50.0).abs() < 20.0, "the lock is held all the time: {one}");
    }
    assert!((served(None) - 2e6 / 11.0).abs() < 200.0);
}

#[test]
fn equal_vms_lose_pcpus_with_locks_held() {
    // Two VMs of 16 vCPUs, one of each on each of 16 pCPUs, and no task ever sleeps. Did all pCPUs switch at once, each
    // VM would have all of them or none: none would wait for a holder that is away, and be preempted while it waits.
    let worker = routine([&[user(50)], &locked(3 * US)[..], &[Act::Done]].concat());
    let pins: Vec<u32> = (0..16).collect();
    let mut p = machine(16, &pins, vec![worker; 16]);
    p.vms[0].virt.exits_off.pause = true;
    let mut other = p.vms[0].clone();
    (other.name, other.label) = ("other".into(), "other".into());
    p.vms.push(other);
    let r = run(&p);
    for vm in ["guest", "other"] {
        for lost in ["lock_holder_preemptions", "lock_waiter_preemptions"] {
            assert!(scalar(&r, vm, lost) > 10.0, "{vm}: {} {lost} a second", scalar(&r, vm, lost));
        }
    }
}

#[test]
fn vcpus_of_a_vm_do_not_lose_their_pcpus_together_for_ever() {
    // Beside a loop on each pCPU, all of which begin with the run: vCPUs that had woken up at once would be a gang.
    let worker = routine([&[user(50)], &locked(3 * US)[..], &[Act::Done]].concat());
    let pins: Vec<u32> = (0..8).collect();
    let rate = |begin_apart: bool| {
        let mut p = machine(8, &pins, vec![worker.clone(); 8]);
        p.vms[0].virt.exits_off.pause = true;
        (p.warmup_ns, p.duration_ns) = (200 * MS, 2 * S);
        p.host_tasks = pins.iter().map(|&c| task("hog", hog(), Policy::NORMAL, &[c])).collect();
        if begin_apart {
            let tasks = p.host_tasks.iter_mut().chain(&mut p.vms[0].tasks);
            (1..).zip(tasks).for_each(|(i, task)| task.start_ns = i * 7 * MS / 3);
        }
        scalar(&run(&p), "guest.t", "rate")
    };
    let ratio = rate(false) / rate(true);
    assert!((0.5..2.0).contains(&ratio), "{ratio}");
}

/// Two VMs, in each of which eight vCPUs share a spinlock, on six pCPUs: waiters yield all the time.
fn contended(switch_refill_ns: Ns, migration_refill_ns: Ns) -> Recording {
    let worker = [&[user(50), Act::Begin], &locked(5 * US)[..], &[Act::Sample, Act::Done]].concat();
    let worker = routine(worker);
    let costs = Costs { switch_refill_ns, migration_refill_ns, ..dear() };
    let mut p = plan(eevdf(6), costs);
    for name in ["a", "b"] {
        let tasks = (0..8).map(|i| task(&format!("t{i}"), worker.clone(), Policy::NORMAL, &[i]));
        let mut vm = vm(name, eevdf(8), tasks.collect());
        for task in &mut vm.tasks {
            task.label = "t".into();
        }
        p.vms.push(vm);
    }
    p.duration_ns = 200 * MS;
    run(&p)
}

#[test]
fn who_spins_owes_one_refill_however_often_it_is_switched() {
    let (warm, cold) = (contended(0, 0), contended(1_500, 5_000));
    let of = |r: &Recording| scalar(r, "a.t", "rate") + scalar(r, "b.t", "rate");
    assert!(scalar(&cold, "a", "yields.won") > 10_000.0, "switches while they spin");
    // A refill is as long as the section at most, so what is done under the lock doubles at most.
    assert!(of(&cold) > of(&warm) / 2.5, "{} with cold caches, {}", of(&cold), of(&warm));
}

#[test]
fn ple_does_not_yield_to_idle_vcpus() {
    // Both of the others sleep, so the waiter has no vCPU to yield to.
    let sleeper = routine(vec![user(1), nap(10_000)]);
    let spins = routine([&[Act::Begin], &locked(MS)[..], &[Act::Sample]].concat());
    let p = machine(4, &[0, 1, 2, 3], vec![spins.clone(), spins, sleeper.clone(), sleeper]);
    let r = run(&p);
    assert!(scalar(&r, "guest", "exits.pause") > 10.0);
    assert!(!r.scalars.contains_key(&("guest".into(), "yields.tried".into())));
}

#[test]
fn a_search_for_one_to_yield_to_waits_for_what_others_wrote() {
    // Two share a lock; the others sleep and wake up, so that what KVM reads of them has changed at each search.
    let takes = |others: usize, interval: Ns| {
        let locker = routine([&[Act::Begin], &locked(MS)[..], &[Act::Sample]].concat());
        let sleeper = routine(vec![user(1), nap(interval)]);
        let n = others + 2;
        let mut p = machine(
            n as u32,
            &(0..n as u32).collect::<Vec<_>>(),
            [vec![locker; 2], vec![sleeper; others]].concat(),
        );
        let spin = &mut p.vms[0].virt.spin;
        (spin.ple_grow, spin.ple_window_ns) = (1, Some(100 * US));
        p.host.costs.cache_line_ns = 100;
        let r = run(&p);
        let busy = scalar(&r, "guest", "exit_time.pause") / 100.0 * n as f64 * 1e9;
        busy / scalar(&r, "guest", "exits.pause")
    };
    let (alone, still, moving) = (takes(0, 20), takes(6, 1_000_000), takes(6, 20));
    assert!((still - alone).abs() < 10.0, "{still} with six that sleep, {alone} without");
    assert!((moving - alone - 600.0).abs() < 10.0, "{moving} with six that move, {alone} without");
}

#[test]
fn a_pv_waiter_halts_after_its_threshold_and_is_kicked() {
    let mut p = machine(2, &[0, 1], vec![locker(MS), locker(MS)]);
    p.vms[0].virt.spin.locks = SpinLocks::Pv;
    p.vms[0].virt.spin.threshold_ns = Some(100 * US);
    p.vms[0].virt.exits_off.pause = true;
    let r = run(&p);
    // The holder, having released it, is first again while the kicked one wakes.
    assert!(scalar(&r, "guest", "pv_halts") > 400.0);
    assert!(scalar(&r, "guest", "pv_kicks") > 400.0);
    let cpu = scalar(&r, "guest", "cpu");
    assert!(cpu < 1.25, "a waiter spins for a tenth of its wait: {cpu}");
    // The same where the machine's PAUSE is that short.
    p.vms[0].virt.spin.threshold_ns = None;
    p.host.costs.pv_spin_ns = 100 * US;
    let cpu = scalar(&run(&p), "guest", "cpu");
    assert!(cpu < 1.25, "{cpu}");
    p.vms[0].virt.spin.threshold_ns = Some(10 * MS);
    let r = run(&p);
    assert!((scalar(&r, "guest", "cpu") - 2.0).abs() < 0.01, "never that long");
    assert!(!r.scalars.contains_key(&("guest".into(), "pv_kicks".into())));
}

#[test]
fn a_lock_with_tickets_waits_for_its_next_one_even_if_that_is_halted() {
    // Four want a lock, for a millisecond each: a waiter spins for its threshold and halts, and is kicked at its turn.
    let mut p = machine(4, &[0, 1, 2, 3], vec![locker(MS); 4]);
    p.vms[0].virt.spin.locks = SpinLocks::PvTicket;
    p.vms[0].virt.spin.threshold_ns = Some(100 * US);
    p.vms[0].virt.exits_off.pause = true;
    let r = run(&p);
    for t in ["guest.t0", "guest.t1", "guest.t2", "guest.t3"] {
        assert!((mean(&r, t) - 4e6).abs() < 1e5, "in order, {t}: {}", mean(&r, t));
    }
    assert!(scalar(&r, "guest", "pv_kicks") > 400.0, "a turn ends a halt");
    let cpu = scalar(&r, "guest", "cpu");
    assert!(cpu < 2.0, "waiters sleep: {cpu}");
}

#[test]
fn a_pv_waiter_behind_a_halted_one_halts_at_once() {
    let mut p = machine(6, &[0, 1, 2, 3, 4, 5], vec![locker(MS); 6]);
    p.vms[0].virt.spin.locks = SpinLocks::Pv;
    p.vms[0].virt.spin.threshold_ns = Some(300 * US);
    p.vms[0].virt.exits_off.pause = true;
    let r = run(&p);
    // Ticks wake each of five waiters every millisecond. If each of them spun for its threshold then, this was 2.5.
    let cpu = scalar(&r, "guest", "cpu");
    assert!(cpu < 2.0, "{cpu}");
}

#[test]
fn a_pv_lock_does_not_wait_for_one_who_was_preempted_before_being_next() {
    let rounds = |pv_locks| {
        let mut p = machine(4, &[0, 1, 2, 3], vec![locker(20 * US); 4]);
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[3]));
        p.vms[0].virt.spin.locks = if pv_locks { SpinLocks::Pv } else { SpinLocks::Queued };
        p.vms[0].virt.spin.threshold_ns = Some(S);
        p.vms[0].virt.exits_off.pause = true;
        let r = run(&p);
        scalar(&r, "guest.t", "rate")
    };
    let (native, pv) = (rounds(false), rounds(true));
    assert!(pv > 1.3 * native, "{pv} of {native}");
}

#[test]
fn a_test_and_set_lock_goes_to_whoever_has_a_pcpu() {
    // Four share a lock all the time, and a hog takes the pCPU of one now and then: in order, all wait for that one.
    let of = |locks| {
        let mut p = machine(4, &[0, 1, 2, 3], vec![locker(20 * US); 4]);
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[3]));
        p.vms[0].virt.spin.locks = locks;
        p.vms[0].virt.exits_off.pause = true;
        let r = run(&p);
        (scalar(&r, "guest.t", "rate"), scalar(&r, "guest", "lock_waiter_preemptions"))
    };
    let (queued, free) = (of(SpinLocks::Queued), of(SpinLocks::TestAndSet));
    assert!(free.0 > 1.3 * queued.0, "{free:?}, {queued:?}");
    assert!(free.1 > 10.0, "waiters are preempted, and nobody waits for them");
    // No other thread wants a pCPU: here the first waiter has the lock first.
    let mut p = machine(3, &[0, 1, 2], vec![locker(10 * US); 3]);
    p.vms[0].virt.spin.locks = SpinLocks::TestAndSet;
    let r = run(&p);
    for t in ["guest.t0", "guest.t1", "guest.t2"] {
        assert!((mean(&r, t) - 30_000.0).abs() < 100.0, "{t}: {}", mean(&r, t));
    }
}

#[test]
fn a_waiter_halts_early_behind_a_preempted_one_in_guests_that_look() {
    // Three wait in line, the second on a pCPU with a hog: the one behind it halts while it is preempted, long
    // before the threshold.
    let halts = |told, early| {
        let mut p = machine(4, &[0, 1, 2, 3], vec![locker(20 * US); 4]);
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[3]));
        let virt = &mut p.vms[0].virt;
        virt.exits_off.pause = true;
        let spin = &mut virt.spin;
        (spin.locks, spin.told, spin.early_if_preempted) = (SpinLocks::Pv, told, early);
        spin.threshold_ns = Some(100_000 * US);
        scalar_or_zero(&run(&p), "guest", "pv_halts")
    };
    assert_eq!(halts(PreemptedReport::Interrupted, false), 0.0, "nobody waits for so long");
    assert!(halts(PreemptedReport::Interrupted, true) > 10.0);
    assert!(halts(PreemptedReport::Away, true) > 10.0);
}

#[test]
fn a_guest_is_told_of_vcpus_that_an_interrupt_took_from_it() {
    // vCPU 1 shares its pCPU with a hog. The host's tick takes that from it in guest mode, or in one of its exits. vCPU
    // 0 unmaps memory.
    let flusher = routine(vec![user(200), Act::Flush, Act::Done]);
    let exits = routine(vec![user(1), Act::ReadCstates { counters: 64 }]);
    let deferred = |told, other: &Program| {
        let mut p = machine(2, &[0, 1], vec![flusher.clone(), other.clone()]);
        p.host.costs = dear();
        for t in &mut p.vms[0].tasks {
            t.process = Some("p".into());
        }
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[1]));
        p.vms[0].virt.ipi.pv_tlb = true;
        p.vms[0].virt.spin.told = told;
        let r = run(&p);
        scalar_or_zero(&r, "guest", "shootdowns.deferred")
    };
    let (told, all) =
        (deferred(PreemptedReport::Interrupted, &hog()), deferred(PreemptedReport::Away, &hog()));
    assert!(told > 10.0 && all >= told, "{told} of {all}: the tick takes its pCPU");
    let (told, all) =
        (deferred(PreemptedReport::Interrupted, &exits), deferred(PreemptedReport::Away, &exits));
    assert!(all > 10.0 && told < 0.5 * all, "{told} of {all}: mostly in an exit");
}

#[test]
fn a_lone_caller_yields_by_a_hypercall_before_linux_5_13_only() {
    // vCPU 0 calls the others, of which 1 shares its pCPU with a hog; no thread shares that of 0.
    let caller = routine(vec![user(20), Act::Ipi { to: IpiTo::Others, wait: true }, Act::Done]);
    let tried = |not_alone| {
        let mut p = machine(3, &[0, 1, 2], vec![caller.clone(), hog(), hog()]);
        p.host_tasks.push(task("hog", hog(), Policy::NORMAL, &[1]));
        let virt = &mut p.vms[0].virt;
        (virt.ipi.pv_yield, virt.exits_off.pause) = (true, true);
        virt.spin.candidates.not_alone = not_alone;
        scalar_or_zero(&run(&p), "guest", "yields.tried")
    };
    assert_eq!(tried(true), 0.0);
    assert!(tried(false) > 10.0);
}
