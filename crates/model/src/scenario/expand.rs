//! Expands workload tables to tasks and programs.

mod routine;

use std::sync::Arc;

use vcoop_sched::config::Policy;

use super::calls::UNKNOWN;
use super::captures::{Captures, least_length};
use super::keys::workload::{
    Abuse, AfterBoot, Audio, AudioSource, AudioTime, Boot, Browser, Bursty, Capture, CommonKeys,
    CpuMap, CyclicMode, Cyclictest, Desktop, Duty, Hog, IpiMode, Kind, Ping, Rogue, SectionKeys,
    Server, Stress, Workload, named,
};
use crate::diagnostic::{Collector, Span};
use crate::limits::{MAX_ROGUE_STEPS, MAX_TASKS};
use crate::plan::{DevicePlan, Dist, LockKind, Mode, Ns, Phase, Program, Section, TaskPlan};
use crate::toml_read::Placed;
use crate::toml_read::value::Int;

/// Linux's default timer slack.
const SLACK_NS: Ns = 50_000;
/// A hog's run without kernel sections; its length does not matter.
const SECOND_NS: Ns = 1_000_000_000;
/// Least duration of one round of a looped program: shorter ones would fill the run with events.
const MIN_ROUND_NS: Ns = 1_000;

/// A level that runs workloads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) cpus: u32,
    /// A guest, or the host.
    pub(crate) guest: bool,
}

impl Place {
    fn cpu_word(self) -> &'static str {
        if self.guest { "vCPU" } else { "pCPU" }
    }
}

/// Tasks of a level, and their devices.
#[derive(Debug, Default)]
pub(crate) struct Expanded {
    pub(crate) tasks: Vec<TaskPlan>,
    /// Devices that wake them.
    pub(crate) devices: Vec<DevicePlan>,
    /// Number of sleeping locks that they share by name.
    locks: u32,
}

/// Expands one workload, behind those already there.
pub(crate) fn expand(
    workload: &Workload,
    place: Place,
    captures: &mut Captures<'_>,
    out: &mut Expanded,
    errors: &Collector,
) {
    let common = &workload.common;
    check_cpus(&common.cpus.value.0, common.cpus.span, place, errors);
    let threads = match &workload.kind {
        Kind::Cyclictest(keys) => cyclictest(keys, common),
        Kind::Hog(keys) => copies(common, hog(keys, errors)),
        Kind::Duty(keys) => copies(common, duty(keys, errors)),
        Kind::Bursty(keys) => copies(common, bursty(keys, place, errors)),
        Kind::Stress(keys) => copies(common, stress(keys, errors)),
        Kind::Browser(keys) => browser(keys, common),
        Kind::Server(keys) => copies(common, server(keys, place, errors)),
        Kind::Ping(keys) => copies(common, ping(keys, place, errors)),
        Kind::Boot(keys) => copies(common, boot(keys, place, errors)),
        Kind::Desktop(keys) => copies(common, desktop(keys, place, errors)),
        Kind::Client(keys) => routine::client(keys, common, place, errors),
        Kind::Pipe(keys) => routine::pipe(keys, common, errors),
        Kind::Groups(keys) => routine::groups(keys, common, place, out, errors),
        Kind::Schbench(keys) => routine::schbench(keys, common, place, errors),
        Kind::LockWorkers(keys) => copies(common, routine::lock_workers(keys, place, errors)),
        Kind::Barrier(keys) => copies(common, routine::barrier(keys, common, errors)),
        Kind::IpiBench(keys) => copies(common, routine::ipi_bench(keys, errors)),
        Kind::TimerBench(keys) => copies(common, routine::timer_bench(keys, errors)),
        Kind::CstateMonitor(keys) => copies(common, routine::cstate_monitor(keys, errors)),
        Kind::RtApp(keys) => return routine::rt_app(keys, common, place, captures, out, errors),
        Kind::Audio(keys) => return audio(keys, common, place, out, errors),
        Kind::Rogue(keys) => copies(common, rogue(keys, errors)),
        Kind::Capture(keys) => return capture(keys, common, place, captures, out, errors),
    };
    if !common.enabled.value {
        return;
    }
    let policy = common.policy.as_ref().map_or(Policy::NORMAL, |p| p.value);
    if let Some(slack) = common.slack.as_ref().filter(|slack| slack.value.0 > 0)
        && (policy.is_rt() || policy.is_deadline())
    {
        let message = "Linux gives real-time and deadline threads no timer slack";
        errors.error_help(slack.span, message, "take `slack` out");
    }
    let stress_ng = match &workload.kind {
        Kind::Hog(keys) => stress_ng(keys, place, errors),
        _ => None,
    };
    for (name, program) in threads {
        let task = TaskPlan { stress_ng: stress_ng.clone(), ..task(name, program, common) };
        push(out, task, common, errors);
    }
}

fn push(out: &mut Expanded, task: TaskPlan, common: &CommonKeys, errors: &Collector) {
    if out.tasks.len() < MAX_TASKS {
        out.tasks.push(task);
    } else {
        errors.error(common.count.span, format!("this makes more than {MAX_TASKS} tasks"));
    }
}

/// Refuses CPUs that the level does not have.
pub(crate) fn check_cpus(cpus: &[u32], span: Span, place: Place, errors: &Collector) {
    if let Some(cpu) = cpus.iter().find(|cpu| **cpu >= place.cpus) {
        let (word, last) = (place.cpu_word(), place.cpus.saturating_sub(1));
        let message = format!("there is no {word} {cpu}");
        errors.error_help(span, message, format!("{word}s go from 0 to {last}"));
    }
}

/// Timer slack of a thread that says nothing about it: none with real-time and deadline policies.
fn usual_slack(policy: Policy) -> Ns {
    if policy.is_rt() || policy.is_deadline() { 0 } else { SLACK_NS }
}

fn task(name: String, program: Program, common: &CommonKeys) -> TaskPlan {
    let policy = common.policy.as_ref().map_or(Policy::NORMAL, |p| p.value);
    // Cyclictest, ping and timer-bench set it to 0. No timer ends the sleep of a server or a desktop.
    let none = matches!(
        program,
        Program::Cyclictest { .. }
            | Program::Ping { .. }
            | Program::Serve { .. }
            | Program::Desktop { .. }
    ) || program.is_timed();
    let default_slack = if none { 0 } else { usual_slack(policy) };
    TaskPlan {
        name,
        label: common.name.value.0.clone(),
        program,
        policy,
        cpus: common.cpus.value.0.clone(),
        start_ns: common.start.value.ns,
        together: false,
        after_login: common.start.value.login,
        timer_slack_ns: common.slack.as_ref().map_or(default_slack, |s| s.value.0),
        group: None,
        process: common.process.as_ref().map(|name| name.value.0.clone()),
        stress_ng: None,
        of_vcpu: false,
    }
}

type Threads = Vec<(String, Program)>;

/// The name of copy `i`; without a number if there is only one.
fn copy_name(common: &CommonKeys, i: u64) -> String {
    let name = &common.name.value.0;
    if common.count.value.get() == 1 { name.clone() } else { format!("{name}/{i}") }
}

fn copies(common: &CommonKeys, program: Program) -> Threads {
    (0..common.count.value.get()).map(|i| (copy_name(common, i), program.clone())).collect()
}

fn user(time: Dist) -> Phase {
    Phase::Run { time, mode: Mode::User }
}

fn kernel(time: Dist) -> Phase {
    Phase::Run { time, mode: Mode::Kernel }
}

fn sleep(time: Dist) -> Phase {
    Phase::Sleep { time }
}

fn cycle(phases: Vec<Phase>) -> Program {
    // Sleeps of 0 are left out.
    let idle = |phase: &Phase| matches!(phase, Phase::Sleep { time: Dist::Const(0) });
    Program::Cycle { phases: phases.into_iter().filter(|p| !idle(p)).collect() }
}

/// Least mean work of a round.
const MIN_WORK_NS: Ns = 50;

/// Refuses a loop that uses no time: it would never let time pass.
fn needs_time(key: &Placed<Dist>, name: &str, errors: &Collector) {
    if key.value.mean() < MIN_WORK_NS {
        let help = "at least 50ns on average";
        errors.error_help(key.span, format!("`{name}` is too short for a loop"), help);
    }
}

fn cyclictest(keys: &Cyclictest, common: &CommonKeys) -> Threads {
    (0..common.count.value.get())
        .map(|i| {
            let interval_ns = keys.interval.value.0 + i * keys.distance.value.0;
            let program = Program::Cyclictest {
                interval_ns,
                absolute: keys.mode.value == CyclicMode::Absolute,
                work: keys.work.value,
                // On a real machine the phase of its periods to the ticks is not chosen.
                phase: Dist::Uniform(0, interval_ns - 1),
            };
            (copy_name(common, i), program)
        })
        .collect()
}

/// User time between kernel sections follows from their share: `section * (1 - k) / k`.
fn hog(keys: &Hog, errors: &Collector) -> Program {
    let kernel_ppm = u64::from(keys.kernel.value.ppm);
    if kernel_ppm == 0 {
        return cycle(vec![Phase::Run { time: Dist::Const(SECOND_NS), mode: Mode::User }]);
    }
    needs_time(&keys.section, "section", errors);
    let section = keys.section.value;
    let user_ppm = 1_000_000 - kernel_ppm;
    let mean = u128::from(section.mean()) * u128::from(user_ppm) / u128::from(kernel_ppm);
    let mean_ns = Ns::try_from(mean).unwrap_or(Ns::MAX).min(SECOND_NS);
    let mut phases = vec![kernel(section)];
    if mean_ns > 0 {
        let time = Dist::Exp { mean_ns, max_ns: mean_ns.saturating_mul(10) };
        phases.insert(0, Phase::Run { time, mode: Mode::User });
    }
    cycle(phases)
}

/// Method of `stress-ng` for a hog's work, if it does that.
fn stress_ng(keys: &Hog, place: Place, errors: &Collector) -> Option<String> {
    let method = keys.stress_ng.as_ref()?;
    if place.guest {
        let help = "leave it out: the lab's guest runs no programs of others";
        errors.error_help(method.span, "`stress_ng` is for loads of the host", help);
    }
    if keys.kernel.value.ppm > 0 {
        let help = "one of `stress_ng` and `kernel`: its CPU methods run in user mode";
        errors.error_help(method.span, "a stressor has no kernel sections of a given share", help);
    }
    Some(method.value.0.clone())
}

fn duty(keys: &Duty, errors: &Collector) -> Program {
    let period_ns = keys.period.value.0;
    let share = |ppm: u32| {
        Ns::try_from(u128::from(period_ns) * u128::from(ppm) / 1_000_000).unwrap_or(period_ns)
    };
    let (on_ns, span) = match (&keys.on, &keys.util) {
        (Some(on), Some(util)) => {
            errors.error_help(util.span, "`on` and `util` say the same thing", "give one of them");
            (on.value.0, on.span)
        }
        (Some(on), None) => (on.value.0, on.span),
        (None, Some(util)) => (share(util.value.ppm), util.span),
        (None, None) => (period_ns / 2, keys.period.span),
    };
    if on_ns == 0 {
        errors.error(span, "with no CPU time this load is none: take it out");
    } else if on_ns > period_ns {
        errors.error_help(span, "more CPU time than the period has", "up to the period");
    }
    let run = if keys.by_clock.value {
        if !keys.phase_locked.value {
            let message = "the clock says when it is on: its periods cannot follow its work";
            errors.error_help(keys.by_clock.span, message, "take out phase_locked = false");
        }
        Phase::Busy { period_ns, on_ns }
    } else {
        Phase::Run { time: Dist::Const(on_ns), mode: Mode::User }
    };
    if keys.phase_locked.value {
        let align = Phase::Align { period_ns };
        cycle(if keys.by_clock.value {
            // It is on from the start of the run.
            vec![run, align]
        } else if on_ns == period_ns {
            // The work of a period would end as the next one begins, and leave it out.
            vec![run]
        } else {
            vec![align, run]
        })
    } else {
        let time = Dist::Const(period_ns.saturating_sub(on_ns));
        cycle(vec![run, Phase::Sleep { time }])
    }
}

fn bursty(keys: &Bursty, place: Place, errors: &Collector) -> Program {
    needs_time(&keys.burst, "burst", errors);
    let mut phases = vec![user(keys.burst.value)];
    if keys.server.is_some() {
        let irq_vcpu = irq_vcpu(&keys.irq_vcpu, place, errors);
        phases.push(Phase::Call { server: UNKNOWN, irq_vcpu });
    }
    phases.push(sleep(keys.idle.value));
    cycle(phases)
}

fn server(keys: &Server, place: Place, errors: &Collector) -> Program {
    let irq_vcpu = irq_vcpu(&keys.irq_vcpu, place, errors);
    let section = section(&keys.guarded.0, place, errors);
    Program::Serve { work: keys.work.value, wait: keys.wait.value, irq_vcpu, section }
}

/// The part of a workload under a lock.
fn section(keys: &SectionKeys, place: Place, errors: &Collector) -> Option<Section> {
    let Some(lock) = &keys.lock else {
        let rest = [
            ("lock_kind", keys.lock_kind.as_ref().map(|key| key.span)),
            ("section", keys.section.as_ref().map(|key| key.span)),
            ("flush_every", keys.flush_every.as_ref().map(|key| key.span)),
        ];
        for (key, span) in rest.into_iter().filter_map(|(key, span)| Some((key, span?))) {
            let message = format!("it takes no lock: `{key}` has no effect");
            errors.error_help(span, message, "add `lock = 0`");
        }
        return None;
    };
    if !place.guest {
        errors.error_help(lock.span, "locks are those of guests; this is the host", "take it out");
    }
    let time = keys.section.as_ref().map(|section| section.value);
    let section = Section {
        lock: lock.value.get32(),
        kind: keys.lock_kind.as_ref().map_or(LockKind::Mutex, |kind| kind.value),
        time: time.unwrap_or(Dist::Exp { mean_ns: 2_000, max_ns: 20_000 }),
        flush_every: keys.flush_every.as_ref().map_or(0, |every| every.value.get32()),
    };
    if let Some(every) = &keys.flush_every {
        can_flush(&section, every.span, errors);
    }
    Some(section)
}

/// Refuses to wait for other vCPUs with interrupts off: two that do would wait for each other.
fn can_flush(section: &Section, span: Span, errors: &Collector) {
    if section.kind == LockKind::SpinIrq && section.flush_every > 0 {
        let help = "take it out, or give another `lock_kind`";
        errors.error_help(span, "no TLBs can be flushed with interrupts off", help);
    }
}

/// The locks that a workload takes: number, kind, and place of the key.
pub(crate) fn locks_of(workload: &Workload) -> Vec<(u64, LockKind, Span)> {
    let of = |keys: &SectionKeys| {
        let lock = keys.lock.as_ref()?;
        let kind = keys.lock_kind.as_ref().map_or(LockKind::Mutex, |kind| kind.value);
        Some((lock.value.get(), kind, lock.span))
    };
    let one = match &workload.kind {
        Kind::Server(keys) => of(&keys.guarded.0),
        Kind::Client(keys) => of(&keys.guarded.0),
        Kind::Groups(keys) => of(&keys.guarded.0),
        Kind::Schbench(keys) => of(&keys.guarded.0),
        Kind::LockWorkers(keys) => {
            let first = (keys.lock.value.get(), keys.lock_kind.value, keys.lock.span);
            let steps = keys.step.iter().filter_map(|step| of(&step.guarded.0));
            return [first].into_iter().chain(steps).collect();
        }
        Kind::IpiBench(keys) if keys.mode.value == IpiMode::BroadcastLock => {
            Some((keys.lock.value.get(), LockKind::Spin, keys.lock.span))
        }
        _ => None,
    };
    one.into_iter().collect()
}

fn boot(keys: &Boot, place: Place, errors: &Collector) -> Program {
    Program::Boot {
        rounds: keys.rounds.value.get32(),
        burst: keys.burst.value,
        every: keys.every.value.get32(),
        long: keys.long.value,
        server: keys.server.as_ref().map(|_| UNKNOWN),
        irq_vcpu: irq_vcpu(&keys.irq_vcpu, place, errors),
        hog: keys.then.value == AfterBoot::Hog,
    }
}

fn desktop(keys: &Desktop, place: Place, errors: &Collector) -> Program {
    needs_time(&keys.think, "think", errors);
    Program::Desktop {
        think: keys.think.value,
        bursts: keys.bursts.value.get32(),
        burst: keys.burst.value,
        server: keys.server.as_ref().map(|_| UNKNOWN),
        irq_vcpu: irq_vcpu(&keys.irq_vcpu, place, errors),
    }
}

fn ping(keys: &Ping, place: Place, errors: &Collector) -> Program {
    let interval_ns = keys.interval.value.0;
    Program::Ping {
        interval_ns,
        phase: Dist::Uniform(0, interval_ns - 1),
        server: UNKNOWN,
        irq_vcpu: irq_vcpu(&keys.irq_vcpu, place, errors),
        work: keys.work.value,
    }
}

/// vCPU of a key; ignored on the host, where it has no meaning.
fn irq_vcpu(key: &Placed<Int<0, 255>>, place: Place, errors: &Collector) -> u32 {
    let vcpu = key.value.get32();
    if place.guest {
        check_cpus(&[vcpu], key.span, place, errors);
    }
    vcpu
}

fn stress(keys: &Stress, errors: &Collector) -> Program {
    needs_time(&keys.user, "user", errors);
    let mut phases = Vec::new();
    for _ in 0..keys.rounds.value.get() {
        phases.extend([user(keys.user.value), kernel(keys.kernel.value)]);
    }
    phases.extend([kernel(keys.long.value), sleep(keys.sleep.value)]);
    cycle(phases)
}

/// An exponential time, cut at 10 times its mean as in scenario files.
const fn exp(mean_ns: Ns) -> Dist {
    Dist::Exp { mean_ns, max_ns: 10 * mean_ns }
}

/// Bursts of a browser's threads at a benchmark, and the waits after them. Assumed: the main thread hardly waits, and a
/// worker computes for more than half of its time.
const MAIN: (Dist, Dist) = (exp(6_000_000), exp(300_000));
const WORKER: (Dist, Dist) = (exp(3_000_000), exp(2_000_000));
/// Work for a frame, assumed: both threads together use a third of a frame at 60 Hz.
const COMPOSE: Dist = exp(2_000_000);
const RASTER: Dist = exp(4_000_000);

/// Threads of a browser: main, compositor, raster, workers.
fn browser(keys: &Browser, common: &CommonKeys) -> Threads {
    let syscall = keys.syscall.value;
    let frame = Phase::Align { period_ns: keys.frame.value.0 };
    let bursts = |(burst, idle)| cycle(vec![user(burst), kernel(syscall), sleep(idle)]);
    let frames = |work| cycle(vec![frame.clone(), user(work), kernel(syscall)]);
    let mut threads = Vec::new();
    for i in 0..common.count.value.get() {
        let name = copy_name(common, i);
        threads.push((format!("{name}/main"), bursts(MAIN)));
        threads.push((format!("{name}/compositor"), frames(COMPOSE)));
        threads.push((format!("{name}/raster"), frames(RASTER)));
        for worker in 0..keys.workers.value.get() {
            threads.push((format!("{name}/worker-{worker}"), bursts(WORKER)));
        }
    }
    threads
}

fn rogue(keys: &Rogue, errors: &Collector) -> Program {
    let own = matches!(keys.mode.value, Abuse::Program);
    let mut steps = named(keys.mode.value, keys.period.value.0);
    match &keys.steps {
        Some(told) if own => {
            steps = told.value.iter().map(|step| step.value).collect();
            if !steps.iter().any(|step| step.takes_time()) {
                let help = "add a step like \"work 300us\" or \"halt 1ms\"";
                errors.error_help(told.span, "these steps take no time", help.to_owned());
            }
            if steps.len() > MAX_ROGUE_STEPS {
                let message = format!("these are {} steps", steps.len());
                errors.error_help(told.span, message, format!("at most {MAX_ROGUE_STEPS}"));
            }
        }
        Some(told) => {
            let help = "write mode = \"program\" as well, or leave it out".to_owned();
            errors.error_help(told.span, "this mode has steps of its own", help);
        }
        None if own => {
            let help = "add `steps = [...]`, like [\"ask\", \"work 300us\", \"end\", \"halt 1ms\"]";
            errors.error_help(keys.mode.span, "a program has steps", help.to_owned());
        }
        None => {}
    }
    Program::Rogue { steps: Arc::new(steps) }
}

fn audio(keys: &Audio, common: &CommonKeys, place: Place, out: &mut Expanded, errors: &Collector) {
    let rate = keys.rate.value.get();
    // At most 10^7 frames and 10^9 ns: the product fits.
    let ns = |time| match time {
        AudioTime::Ns(ns) => ns,
        AudioTime::Frames(frames) => frames * 1_000_000_000 / rate,
    };
    let (period_ns, buffer_ns) = (ns(keys.period.value), ns(keys.buffer.value));
    if period_ns < MIN_ROUND_NS {
        errors.error_help(keys.period.span, "the burst is too short", "at least 1us");
    }
    if buffer_ns < period_ns {
        let message = "the buffer holds less than one burst";
        errors.error_help(keys.buffer.span, message, "at least `period`");
    }
    let device = match (keys.source.as_ref(), place.guest) {
        (Some(Placed { value: AudioSource::Device, span }), false) => {
            let help = "write source = \"timer\"";
            errors.error_help(*span, "devices interrupt guests; this is the host", help);
            false
        }
        (Some(source), _) => source.value == AudioSource::Device,
        (None, guest) => guest,
    };
    let vcpu = keys.irq_vcpu.value.get32();
    if device {
        check_cpus(&[vcpu], keys.irq_vcpu.span, place, errors);
    }
    if !common.enabled.value {
        return;
    }
    let program = Program::Audio { period_ns, buffer_ns, work: keys.work.value, device };
    for (name, program) in copies(common, program) {
        if device {
            out.devices.push(DevicePlan {
                name: name.clone(),
                period: Dist::Const(period_ns),
                vcpu,
                nmi: false,
                softirq: Dist::Const(0),
                wakes: u32::try_from(out.tasks.len()).ok(),
            });
        }
        push(out, task(name, program, common), common, errors);
    }
}

fn capture(
    keys: &Capture,
    common: &CommonKeys,
    place: Place,
    captures: &mut Captures<'_>,
    out: &mut Expanded,
    errors: &Collector,
) {
    if common.count.value.get() != 1 {
        // Wake-ups find their thread by its place among those of one name.
        let help = "add a second table with a name of its own";
        errors.error_help(common.count.span, "a capture cannot have copies", help);
    }
    let limit = keys.threads.as_ref().map_or(usize::MAX, |t| t.value.get() as usize);
    let from_set = keys.file.span.source != 0;
    let file = &keys.file.value;
    let threads = match captures.get(file, from_set, keys.scale.value.ppm, limit) {
        Ok(threads) => threads,
        Err(why) => {
            let help = "a text capture, or \"builtin:build-serve\"";
            errors.error_help(keys.file.span, format!("cannot use `{file}`: {why}"), help);
            return;
        }
    };
    if !common.enabled.value {
        return;
    }
    if keys.of_vcpu.value && !place.guest {
        let message = "a thread of the host has no time of a vCPU";
        errors.error_help(keys.of_vcpu.span, message, "take `of_vcpu` out");
    }
    let total = threads.len() as u64;
    for (i, thread) in (0u64..).zip(threads.iter()) {
        let repeat = keys.r#loop.value && thread.repeat;
        if repeat && least_length(&thread.steps) < MIN_ROUND_NS {
            let message = format!("thread {i} ({}) would loop without using time", thread.name);
            errors.error(keys.file.span, message);
            return;
        }
        let name = format!("{}/{i}", common.name.value.0);
        let program = Program::Script { steps: thread.steps.clone(), repeat };
        let mut task = task(name, program, common);
        if common.policy.is_none() {
            task.policy = thread.policy;
            if common.slack.is_none() {
                task.timer_slack_ns = usual_slack(task.policy);
            }
        }
        if task.cpus.is_empty() && keys.cpu_map.value == CpuMap::Wrap {
            task.cpus = thread.cpus.iter().map(|cpu| cpu % place.cpus.max(1)).collect();
            task.cpus.sort_unstable();
            task.cpus.dedup();
        }
        let spread = u128::from(keys.jitter.value.0) * u128::from(i) / u128::from(total.max(1));
        task.start_ns += Ns::try_from(spread).unwrap_or(0);
        task.together = true;
        task.of_vcpu = keys.of_vcpu.value;
        push(out, task, common, errors);
    }
}
