//! Expands tables to routines.

use std::ops::Range;

use super::{
    Captures, Expanded, Place, Threads, can_flush, check_cpus, copies, copy_name, irq_vcpu,
    needs_time, push, section, task, usual_slack,
};
use crate::diagnostic::Collector;
use crate::limits::{MAX_ROUND_STEPS, MAX_TASKS};
use crate::plan::{Act, Dist, IpiTo, LockKind, Mode, Ns, Phase, Program, QueueRoom, Section};
use crate::scenario::calls::UNKNOWN;
use crate::scenario::keys::workload::{
    Barrier, Client, CommonKeys, CstateMonitor, Groups, IpiBench, IpiMode, LockWorkers,
    MessageChannel, Pipe, RtApp, Schbench, SectionKeys, StepKeys, TimerBench, TimerWait,
};
use crate::toml_read::Placed;
use crate::toml_read::units::Period;

fn run(time: Dist, mode: Mode) -> Act {
    Act::Do(Phase::Run { time, mode })
}

/// Acts under a lock, if there are any.
fn guarded(keys: &SectionKeys, place: Place, errors: &Collector) -> Vec<Act> {
    section(keys, place, errors).map_or_else(Vec::new, |section| section.acts())
}

/// A sleep; none if the time is 0.
fn sleep(time: Dist) -> Option<Act> {
    (time != Dist::Const(0)).then_some(Act::Do(Phase::Sleep { time }))
}

/// As in a plan: numbers of peers are small.
fn index(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Most pairs of sender and receiver in `groups`: each sender knows all receivers of its group.
const MAX_PAIRS: u64 = 200_000;

/// Refuses more than `most` of something, before it is made.
fn are_few(n: u64, most: u64, what: &str, common: &CommonKeys, errors: &Collector) -> bool {
    let all = n.saturating_mul(common.count.value.get());
    if all > most {
        let message = format!("this makes {all} {what}, more than {most}");
        errors.error(common.name.span, message);
    }
    all <= most
}

pub(super) fn client(
    keys: &Client,
    common: &CommonKeys,
    place: Place,
    errors: &Collector,
) -> Threads {
    needs_time(&keys.work, "work", errors);
    let irq_vcpu = irq_vcpu(&keys.irq_vcpu, place, errors);
    let call = match (&keys.server, &keys.network) {
        (Some(_), None) => Act::Do(Phase::Call { server: UNKNOWN, irq_vcpu }),
        (None, Some(network)) => Act::Remote { delay: network.value, irq_vcpu },
        (server, network) => {
            let (message, span) = match (server, network) {
                (Some(_), Some(network)) => {
                    ("`server` and `network` exclude each other", network.span)
                }
                _ => ("whom it calls is not said", common.name.span),
            };
            let help = "give `server`, or `network` for one on another machine";
            errors.error_help(span, message, help);
            return Vec::new();
        }
    };
    let mut acts: Vec<Act> = sleep(keys.think.value).into_iter().collect();
    acts.push(run(keys.work.value, Mode::User));
    acts.extend(guarded(&keys.guarded.0, place, errors));
    acts.extend([call, Act::Sample, Act::Done]);
    copies(common, Program::Routine { acts })
}

/// A pipe with room for messages of 100 bytes; those between two tasks never fill it.
const PIPE: QueueRoom = QueueRoom::Pipe(QueueRoom::PIPE);

pub(super) fn pipe(keys: &Pipe, common: &CommonKeys, errors: &Collector) -> Threads {
    needs_time(&keys.work, "work", errors);
    let work = || run(keys.work.value, Mode::User);
    let mut threads = Vec::new();
    for i in 0..common.count.value.get() {
        let (ping, pong) = (index(2 * i), index(2 * i + 1));
        let receive = || Act::Receive { sample: false };
        let there = Act::Post { peer: pong, room: PIPE };
        let acts = vec![Act::Begin, work(), there, receive(), Act::Sample, Act::Done];
        let name = copy_name(common, i);
        threads.push((format!("{name}/ping"), Program::Routine { acts }));
        let acts = vec![receive(), work(), Act::Post { peer: ping, room: PIPE }];
        threads.push((format!("{name}/pong"), Program::Routine { acts }));
    }
    threads
}

pub(super) fn groups(
    keys: &Groups,
    common: &CommonKeys,
    place: Place,
    out: &mut Expanded,
    errors: &Collector,
) -> Threads {
    needs_time(&keys.send, "send", errors);
    if let Some(key) = keys.queue_section.as_ref().filter(|_| !place.guest) {
        errors.error_help(key.span, "locks are those of guests; this is the host", "take it out");
    }
    let locked = guarded(&keys.guarded.0, place, errors);
    let (senders, receivers) = (keys.senders.value.get(), keys.receivers.value.get());
    let (pairs, tasks) = (senders * receivers, senders + receivers);
    let groups = keys.groups.value.get();
    let loops = keys.loops.as_ref().map(|loops| loops.value.get());
    let messages = keys.room.as_ref().map(|room| room.value.get32());
    let room = match keys.through.value {
        MessageChannel::Socket => QueueRoom::Socket(messages.unwrap_or(QueueRoom::SOCKET)),
        MessageChannel::Pipe => QueueRoom::Pipe(messages.unwrap_or(QueueRoom::PIPE)),
    };
    if !are_few(groups * pairs, MAX_PAIRS, "pairs of sender and receiver", common, errors)
        || !are_few(groups * tasks, MAX_TASKS as u64, "tasks", common, errors)
    {
        return Vec::new();
    }
    // The lock under which messages of a receiver's queue are put in and taken.
    let queue = |lock: u32| {
        let kind = match keys.through.value {
            MessageChannel::Socket => LockKind::Spin,
            MessageChannel::Pipe => LockKind::Mutex,
        };
        let section = keys.queue_section.as_ref();
        let of = |time: &Placed<Dist>| Section { lock, kind, time: time.value, flush_every: 0 };
        section.map_or_else(Vec::new, |time| of(time).acts())
    };
    let mut threads = Vec::new();
    for i in 0..common.count.value.get() {
        let name = copy_name(common, i);
        for group in 0..groups {
            let first = threads.len() as u64 + senders;
            let own_locks = FIRST_OWN_LOCK + out.locks;
            if keys.queue_section.is_some() {
                out.locks += index(receivers);
            }
            let mut acts = Vec::new();
            for receiver in 0..receivers {
                acts.push(run(keys.send.value, Mode::Kernel));
                acts.extend(queue(own_locks + index(receiver)));
                acts.push(Act::Post { peer: index(first + receiver), room });
            }
            acts.extend(sleep(keys.pause.value));
            acts.extend(rounds(loops));
            for sender in 0..senders {
                let program = Program::Routine { acts: acts.clone() };
                threads.push((format!("{name}/{group}-sender-{sender}"), program));
            }
            for receiver in 0..receivers {
                let take = Act::Receive { sample: false };
                let mut acts = vec![take];
                acts.extend(queue(own_locks + index(receiver)));
                acts.push(run(keys.receive.value, Mode::Kernel));
                acts.extend(locked.iter().cloned());
                acts.push(Act::Done);
                acts.extend(rounds(loops.map(|loops| loops * senders)));
                let program = Program::Routine { acts };
                threads.push((format!("{name}/{group}-receiver-{receiver}"), program));
            }
        }
    }
    threads
}

/// Ends a program after so many rounds, if a number is given.
fn rounds(times: Option<u64>) -> impl Iterator<Item = Act> {
    let end = |times| [Act::Loop { to: 0, times: index(times) }, Act::Exit];
    times.map(end).into_iter().flatten()
}

/// Batches of requests at a fixed rate, to workers in turn, until the first worker is the first of a batch again.
fn batches(interval_ns: Ns, batch: u64, workers: Range<u64>, message: Act) -> Vec<Act> {
    let n = workers.end - workers.start;
    let mut acts = Vec::new();
    let mut sent = 0_u64;
    while sent == 0 || !sent.is_multiple_of(n) {
        acts.push(Act::Do(Phase::Sleep { time: Dist::Const(interval_ns) }));
        for _ in 0..batch {
            let peer = index(workers.start + sent % n);
            acts.extend([message.clone(), Act::Post { peer, room: QueueRoom::List }]);
            sent += 1;
        }
    }
    acts
}

pub(super) fn schbench(
    keys: &Schbench,
    common: &CommonKeys,
    place: Place,
    errors: &Collector,
) -> Threads {
    needs_time(&keys.work, "work", errors);
    let locked = guarded(&keys.guarded.0, place, errors);
    let (messengers, workers) = (keys.messengers.value.get(), keys.workers.value.get());
    if !are_few(messengers * (1 + workers), MAX_TASKS as u64, "tasks", common, errors) {
        return Vec::new();
    }
    let think = keys.think.as_ref().map_or(Dist::Const(100_000), |think| think.value);
    if let Some(given) = &keys.think
        && keys.interval.is_some()
    {
        let help = "leave `think` out: workers at a fixed rate do not sleep before they work";
        errors.error_help(given.span, "there is no such sleep", help);
        return Vec::new();
    }
    let batch = keys.batch.as_ref().map_or(1, |batch| batch.value.get());
    if let Some(given) = &keys.batch
        && (keys.interval.is_none() || batch > workers)
    {
        let help = "give an `interval`, and at most as many as there are `workers`";
        errors.error_help(given.span, "there are no such batches", help);
        return Vec::new();
    }
    if !are_few(messengers * workers * batch, MAX_PAIRS, "requests of batches", common, errors) {
        return Vec::new();
    }
    let mut threads = Vec::new();
    for i in 0..common.count.value.get() {
        let name = copy_name(common, i);
        let first = threads.len() as u64;
        for m in 0..messengers {
            let acts = match &keys.interval {
                None => {
                    let receive = Act::Receive { sample: false };
                    vec![receive, run(keys.message.value, Mode::User), Act::Reply]
                }
                Some(interval) => {
                    let own = first + messengers + m * workers;
                    batches(
                        interval.value.0,
                        batch,
                        own..own + workers,
                        run(keys.message.value, Mode::User),
                    )
                }
            };
            threads.push((format!("{name}/messenger-{m}"), Program::Routine { acts }));
        }
        for w in 0..messengers * workers {
            let peer = index(first + w / workers);
            let ask = Act::Post { peer, room: QueueRoom::List };
            let mut acts: Vec<Act> = keys.interval.is_none().then_some(ask).into_iter().collect();
            match keys.interval {
                None => {
                    acts.push(Act::Receive { sample: true });
                    acts.extend(sleep(think));
                    acts.push(run(keys.work.value, Mode::User));
                }
                Some(_) => acts.push(Act::Serve { time: keys.work.value }),
            }
            acts.extend(locked.iter().cloned());
            acts.push(Act::Done);
            threads.push((format!("{name}/worker-{w}"), Program::Routine { acts }));
        }
    }
    threads
}

/// CPU time outside of locks: in user mode, then in the kernel.
fn outside(work: Dist, kernel: Dist) -> impl Iterator<Item = Act> {
    let parts = [(work, Mode::User), (kernel, Mode::Kernel)];
    parts
        .into_iter()
        .filter(|(time, _)| *time != Dist::Const(0))
        .map(|(time, mode)| run(time, mode))
}

/// Appends a step to the acts of a round.
fn step(acts: &mut Vec<Act>, keys: &StepKeys, place: Place, errors: &Collector) {
    let mut own: Vec<Act> = outside(keys.work.value, keys.kernel.value).collect();
    own.extend(guarded(&keys.guarded.0, place, errors));
    if own.is_empty() {
        let help = "give `work`, `kernel` or `lock`, or take the step out";
        errors.error_help(keys.times.span, "this step does nothing", help);
    }
    let times = keys.times.value.get32();
    if keys.every.value.get() > 1 {
        let skip = index(own.len() as u64 + u64::from(times > 1));
        acts.push(Act::Every { n: keys.every.value.get32(), skip });
    }
    let to = index(acts.len() as u64);
    acts.extend(own);
    if times > 1 {
        acts.push(Act::Loop { to, times });
    }
}

pub(super) fn lock_workers(keys: &LockWorkers, place: Place, errors: &Collector) -> Program {
    needs_time(&keys.work, "work", errors);
    let flush_every = keys.flush_every.value.get32();
    let locked = keys.flush_locked.value;
    if locked && flush_every == 0 {
        let help = "add `flush_every`, or take it out";
        errors.error_help(keys.flush_locked.span, "nothing is flushed", help);
    }
    let section = Section {
        lock: keys.lock.value.get32(),
        kind: keys.lock_kind.value,
        time: keys.section.value,
        flush_every: if locked { flush_every } else { 0 },
    };
    can_flush(&section, keys.flush_every.span, errors);
    let mut acts: Vec<Act> = outside(keys.work.value, keys.kernel.value).collect();
    acts.push(Act::Begin);
    acts.extend(section.acts());
    if flush_every > 0 && !locked {
        acts.extend([Act::Every { n: flush_every, skip: 1 }, Act::Flush]);
    }
    if let Some(surplus) = keys.step.get(MAX_ROUND_STEPS) {
        let message = format!("more than {MAX_ROUND_STEPS} steps");
        errors.error_help(surplus.times.span, message, "use `times` for steps that are alike");
        return Program::Routine { acts };
    }
    for keys in &keys.step {
        step(&mut acts, keys, place, errors);
    }
    acts.extend([Act::Sample, Act::Done]);
    Program::Routine { acts }
}

pub(super) fn barrier(keys: &Barrier, common: &CommonKeys, errors: &Collector) -> Program {
    needs_time(&keys.work, "work", errors);
    let of = common.count.value.get() as u32;
    if of < 2 {
        let help = "give `count`: how many meet at the barrier";
        errors.error_help(common.name.span, "one task alone waits for nobody", help);
    }
    let meet = Act::Barrier { of, spin_ns: keys.spin.value.0 };
    let acts = vec![Act::Begin, run(keys.work.value, Mode::User), meet, Act::Sample, Act::Done];
    Program::Routine { acts }
}

pub(super) fn ipi_bench(keys: &IpiBench, errors: &Collector) -> Program {
    needs_time(&keys.gap, "gap", errors);
    let lock = keys.lock.value.get32();
    let ipi = |to| vec![Act::Ipi { to, wait: true }];
    let round = match keys.mode.value {
        IpiMode::DryRun => vec![],
        IpiMode::Own => ipi(IpiTo::Own),
        IpiMode::Unicast => ipi(IpiTo::Next),
        IpiMode::Broadcast => ipi(IpiTo::Others),
        IpiMode::BroadcastLock => {
            let call = Act::Ipi { to: IpiTo::Others, wait: true };
            vec![Act::Lock { lock }, call, Act::Unlock { lock }]
        }
    };
    let mut acts = vec![run(keys.gap.value, Mode::User), Act::Begin];
    acts.extend(round);
    acts.extend([Act::Sample, Act::Done]);
    Program::Routine { acts }
}

pub(super) fn timer_bench(keys: &TimerBench, errors: &Collector) -> Program {
    let busy = keys.wait.value == TimerWait::Busy;
    let interval = &keys.interval;
    if interval.value.0 == 0 && busy {
        needs_time(&keys.work, "work", errors);
    } else if interval.value.0 < Period::LEAST {
        errors.error_help(
            interval.span,
            "`interval` is too short",
            "at least 1us; 0us with wait = \"busy\"",
        );
    }
    let timer = Act::Timer { period_ns: keys.interval.value.0, busy, interrupt: true };
    Program::Routine { acts: vec![timer, Act::Done, run(keys.work.value, Mode::User)] }
}

pub(super) fn cstate_monitor(keys: &CstateMonitor, errors: &Collector) -> Program {
    needs_time(&keys.interval, "interval", errors);
    let look = Act::ReadCstates { counters: keys.counters.value.get32() };
    let pause = Act::Do(Phase::Sleep { time: keys.interval.value });
    Program::Routine { acts: vec![pause, Act::Begin, look, Act::Sample, Act::Done] }
}

/// First number of locks that one workload has for itself. Lower numbers are those that workloads share.
const FIRST_OWN_LOCK: u32 = 64;

pub(super) fn rt_app(
    keys: &RtApp,
    common: &CommonKeys,
    place: Place,
    captures: &Captures<'_>,
    out: &mut Expanded,
    errors: &Collector,
) {
    if common.count.value.get() != 1 {
        // Threads find each other by their place among those of one name.
        let help = "add a second table with a name of its own, or use `instance` in the file";
        errors.error_help(common.count.span, "an rt-app file cannot have copies", help);
    }
    let Placed { value, span } = &keys.file;
    let threads = match captures.rt_app(value, span.source != 0) {
        Ok(threads) => threads,
        Err(why) => return errors.error(*span, format!("cannot use `{}`: {why}", value)),
    };
    for thread in &threads {
        check_cpus(&thread.cpus, *span, place, errors);
    }
    if !common.enabled.value {
        return;
    }
    let first = FIRST_OWN_LOCK + out.locks;
    for mut thread in threads {
        for act in &mut thread.acts {
            if let Act::Acquire { lock, .. } | Act::Release { lock } = act {
                out.locks = out.locks.max(*lock + 1 + first - FIRST_OWN_LOCK);
                *lock += first;
            }
        }
        let name = format!("{}/{}", common.name.value.0, thread.name);
        let mut plan = task(name, Program::Routine { acts: thread.acts }, common);
        if let (None, Some(policy)) = (&common.policy, thread.policy) {
            plan.policy = policy;
            if common.slack.is_none() {
                plan.timer_slack_ns = usual_slack(policy);
            }
        }
        if plan.cpus.is_empty() {
            plan.cpus = thread.cpus;
        }
        plan.start_ns += thread.delay_ns;
        plan.together = true;
        push(out, plan, common, errors);
    }
}
