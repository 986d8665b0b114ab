//! Interrupts and wake-ups of a guest without a driver, as BPF and perf events tell them.

use serde_json::{Value, json};
use vcoop_testing::{CheckFailure, Outcome, Skip, long, test, twice};

use crate::host::{Host, NO_BPF, Threads};

/// Part of the timers that expire while a vCPU is preempted which have it boosted before it runs again; and of the
/// wake-ups that find it boosted.
const IN_TIME: f64 = 0.95;

/// What a trace says of a vCPU that was preempted.
#[derive(Debug, Default)]
struct Preempted {
    /// Times that its timer expired meanwhile.
    expired: u32,
    /// ... and it was real-time when it ran again.
    boosted: u32,
    /// Times that it had an interrupt when it was preempted, with which it had not entered the guest.
    untaken: u32,
}

/// What a trace says of the wake-ups of a vCPU.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wakeups {
    all: u32,
    /// ... after which it was real-time when it ran.
    boosted: u32,
    /// ... or before it slept again.
    late: u32,
    /// ... or not at all, as the engine was awake when the vCPU ran or slept again, and had not come to it: the sleep
    /// was shorter than an event takes, or the engine's CPU stood still.
    outrun: u32,
    /// ... or not at all, while the engine slept: it was not told of the sleep, or has done nothing about it.
    lost: u32,
    /// The line of the trace at which the last of these slept again.
    lost_at: usize,
}

/// A field of a line of the trace.
fn field<'a>(line: &'a str, key: &str) -> &'a str {
    line.split_once(key).and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("")
}

fn is_realtime(line: &str, key: &str) -> bool {
    field(line, key).parse::<u32>().unwrap() < 100
}

/// Whether the engine is awake, as the lines of a trace tell: `sched_switch`, and `sched_waking` of it.
struct Engine<'a> {
    tid: &'a str,
    is_awake: bool,
}

impl<'a> Engine<'a> {
    /// Nothing is known of it yet: it may be.
    fn new(tid: &'a str) -> Self {
        Self { tid, is_awake: true }
    }

    fn hear(&mut self, line: &str) {
        let woken = line.contains("comm=engine pid=") && field(line, " pid=") == self.tid;
        if woken || field(line, "next_pid=") == self.tid {
            self.is_awake = true;
        } else if field(line, "prev_pid=") == self.tid {
            self.is_awake = !sleeps(line);
        }
    }
}

/// Whether a thread leaves its CPU to sleep. R or R+: it would have gone on.
fn sleeps(line: &str) -> bool {
    !field(line, "prev_state=").starts_with('R')
}

/// Reads a trace of `sched_switch`, `hrtimer_expire_entry`, `kvm_apic_accept_irq` and `kvm_entry`, in text.
fn preempted(trace: &str, tid: &str) -> Preempted {
    let (mut out, mut expired, mut given) = (false, false, false);
    let mut sum = Preempted::default();
    for line in trace.lines() {
        if field(line, "prev_pid=") == tid {
            (out, expired) = (!sleeps(line), false);
            sum.untaken += u32::from(out && given);
        } else if field(line, "next_pid=") == tid {
            if expired {
                sum.expired += 1;
                sum.boosted += u32::from(is_realtime(line, "next_prio="));
            }
            (out, expired) = (false, false);
        } else if line.contains("kvm_entry: ") {
            given = false;
        } else if line.contains("kvm_apic_accept_irq: ") {
            given = true;
        } else if line.contains("function=apic_timer_fn") {
            expired |= out;
        }
    }
    sum
}

/// Reads a trace of `sched_switch`, and of `sched_waking` of the engine, in text.
fn wakeups(trace: &str, tid: &str, engine: &str) -> Wakeups {
    let (mut asleep, mut waits, mut sum) = (false, false, Wakeups::default());
    let (mut engine, mut was_awake) = (Engine::new(engine), true);
    for (at, line) in trace.lines().enumerate() {
        engine.hear(line);
        if field(line, "prev_pid=") == tid {
            sum.late += u32::from(waits && is_realtime(line, "prev_prio="));
            waits &= !is_realtime(line, "prev_prio=");
            asleep = sleeps(line);
            if asleep {
                let is_awake = was_awake || engine.is_awake;
                sum.outrun += u32::from(waits && is_awake);
                if waits && !is_awake {
                    sum.lost += 1;
                    sum.lost_at = at;
                }
                waits = false;
            }
        } else if field(line, "next_pid=") == tid && asleep {
            let boosted = is_realtime(line, "next_prio=");
            sum.all += 1;
            sum.boosted += u32::from(boosted);
            (asleep, waits, was_awake) = (false, !boosted, engine.is_awake);
        }
    }
    sum
}

/// Of a line of a trace, what its readers need: the serial line that it comes over is slow.
const SWITCH: &str = r"s/.* sched_switch: .*\(prev_pid.*\) ==> .*\(next_pid.*\)/\1 \2/p";

/// How `wake-boost` is attached: with bursts for a host whose exits take 30 us and interrupts 100 us.
const ATTACH: &str = "vcoop attach a --policy wake-boost --set policy.wake-boost.boost_on_injection=true \
                      --set policy.wake-boost.vm_refill=100% --set policy.wake-boost.vcpu_burst=20ms \
                      --set policy.wake-boost.vm_burst=40ms --set policy.wake-boost.vcpu_refill";

/// Traces some events, each with its filter, for some seconds while the policy is in force, with so much of its budget
/// coming back. What `vcoop attach` says, the thread of its engine, and the trace.
fn traced(
    host: &Host,
    refill: &str,
    events: &[(&str, &str)],
    seconds: u32,
    select: &str,
) -> (Value, String, String) {
    let of = |(event, filter): &(&str, &str)| {
        format!("echo '{filter}' >events/{event}/filter; echo 1 >events/{event}/enable; ")
    };
    let events: String = events.iter().map(of).collect();
    host.sh(&format!(
        "rm -rf /tmp/told; mkdir /tmp/told; \
         {ATTACH}={refill} --json >/tmp/told/attach & attach=$!; \
         until vcoop vms --json >/tmp/told/vms; grep -q fentry /tmp/told/vms; do kill -0 $attach || exit; done; \
         grep -l '^engine$' /proc/[0-9]*/task/*/comm | cut -d/ -f5 >/tmp/told/engine; \
         cd /sys/kernel/tracing; echo 0 >tracing_on; echo 16384 >buffer_size_kb; echo >trace; \
         {events} echo 1 >tracing_on; \
         sleep {seconds}; echo 0 >tracing_on; echo 0 >events/enable; kill -INT $attach; wait; \
         {select} trace >/tmp/told/trace; true"
    ));
    let folder = host.fetch("/tmp/told");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let told: Value = serde_json::from_str(&read("attach")).unwrap();
    let vms: Value = serde_json::from_str(&read("vms")).unwrap();
    assert_eq!(told["hears"], json!(["BPF", "fentry of KVM"]), "{told}");
    assert_eq!(vms["vms"][0]["heard_by"], told["hears"], "{vms}");
    (told, read("engine").trim().to_owned(), read("trace"))
}

/// Wake-ups find the vCPU boosted, except where it outruns the engine. None is lost.
fn wakeups_are_boosted(host: &Host, threads: &Threads) -> Result<(), CheckFailure> {
    let (seconds, least) = long((4, 200), (30, 10_000));
    let tid = &threads.vcpu;
    let waking = r"s/.* sched_waking: \(comm=engine pid=[0-9]* \).*/\1/p";
    let select =
        format!("sed -n -e '/_pid={tid} /{SWITCH}' -e '/_comm=engine /{SWITCH}' -e '{waking}'");
    let switches = format!(
        "prev_pid == {tid} || next_pid == {tid} || prev_comm == engine || next_comm == engine"
    );
    let events = [("sched/sched_switch", &*switches), ("sched/sched_waking", "comm == engine")];
    let (mut was, mut denied) = (Wakeups::default(), 0);
    while was.all < least {
        // The budget refuses none.
        let (told, engine, trace) = traced(host, "100%", &events, seconds, &select);
        let now = wakeups(&trace, tid, &engine);
        assert!(now.all > 0, "{told}");
        if now.lost > 0 {
            let lines = trace.lines().skip(now.lost_at.saturating_sub(20)).take(24);
            eprintln!("a lost one, of {tid}: {:#?}", lines.collect::<Vec<_>>());
        }
        was.all += now.all;
        was.boosted += now.boosted;
        was.late += now.late;
        was.outrun += now.outrun;
        was.lost += now.lost;
        denied += told["vcpus"][0]["denied"].as_u64().unwrap();
    }
    let told = format!("{was:?}, {denied} denied");
    eprintln!("{told}");
    assert_eq!((was.lost, denied), (0, 0), "{told}");
    in_time(was.boosted, was.all, &told)
}

/// How many boosts come in time depends on how fast the daemon's CPU is emulated: a slow machine is said to be one.
fn in_time(boosted: u32, all: u32, told: &str) -> Result<(), CheckFailure> {
    let part = f64::from(boosted) / f64::from(all);
    if part >= IN_TIME {
        Ok(())
    } else if part < IN_TIME / 2.0 {
        Err(told.to_owned().into())
    } else {
        let percent = 100.0 * part;
        let reason = format!("this machine is too slow: {percent:.0} % in time, {told}");
        Err(Skip::because(reason).into())
    }
}

test!("box", interrupts_of_a_guest_without_a_driver_are_heard, || {
    if !cfg!(feature = "bpf") {
        return Err(Skip::because(NO_BPF));
    }
    Host::usual(heard)
});

fn heard(host: &Host) -> Outcome {
    let threads = host.crowd("");
    let doctor = host.sh("vcoop doctor");
    assert!(doctor.contains("interrupts of VMs: heard by fentry of KVM"), "{doctor}");
    // A period that is not in step with the ticks of host and guest.
    host.sh("guest a 'cyclictest -q -m -p 80 -i 2300 >/dev/null 2>&1 &'");
    let woken = twice(|| wakeups_are_boosted(host, &threads));
    let polls = || under_daemon(host, "10ms", || twice(|| wakeups_are_boosted(host, &threads)));
    let polled = if long(false, true) { polls() } else { Ok(()) };
    host.sh("guest a 'while :; do :; done >/dev/null 2>&1 &'");
    let interrupted = twice(|| -> Result<(), CheckFailure> {
        let tid = &threads.vcpu;
        let switches = format!("prev_pid == {tid} || next_pid == {tid}");
        let own = format!("common_pid == {tid}");
        let events = [
            ("sched/sched_switch", &*switches),
            ("timer/hrtimer_expire_entry", "function.function == apic_timer_fn"),
            ("kvm/kvm_apic_accept_irq", &own),
            ("kvm/kvm_entry", &own),
        ];
        let own = |event: &str| format!("-e '/CPU.0.KVM-.* {event}: /s/.*/{event}: /p'");
        let select = format!(
            "sed -n -e '/_pid={} /{SWITCH}' -e '/apic_timer_fn/s/.*/function=apic_timer_fn/p' {} {}",
            threads.vcpu,
            own("kvm_entry"),
            own("kvm_apic_accept_irq")
        );
        let (mut all, mut heard) = (Preempted::default(), 0);
        while all.expired <= 50 || heard <= 100 {
            let (told, _, trace) = traced(host, "60%", &events, 4, &select);
            let interrupts = &told["interrupts"];
            let count = |key: &str| interrupts[key].as_u64().unwrap();
            let was = preempted(&trace, &threads.vcpu);
            let told = format!("{was:?}, {interrupts}");
            eprintln!("{told}");
            assert!(was.expired > 0 && count("lost") == 0, "{told}");
            // The engine was told of each, or of one shortly before; the last of these may not be counted yet.
            let counted = count("heard") + count("coalesced") + 1;
            assert!(counted >= u64::from(was.expired + was.untaken), "{told}");
            heard += count("heard");
            all.expired += was.expired;
            all.boosted += was.boosted;
            all.untaken += was.untaken;
        }
        // Without interrupts a vCPU that never sleeps is never boosted.
        in_time(all.boosted, all.expired, &format!("{all:?}"))
    });
    let turn = |busy_poll: &str| under_daemon(host, busy_poll, || reaction(host));
    let turns: Vec<[u64; 2]> = (0..2).map(|_| ["0us", "10ms"].map(turn)).collect();
    let [asleep, polling] = [0, 1].map(|i| turns.iter().map(|turn| turn[i]).collect::<Vec<_>>());
    woken.and(interrupted).and(polled).and(sooner(&asleep, &polling))
}

/// Runs `what` while a daemon is the owner whose engine polls for so long.
fn under_daemon<R>(host: &Host, busy_poll: &str, what: impl FnOnce() -> R) -> R {
    host.sh(&format!(
        "echo 'engine.busy_poll = \"{busy_poll}\"' >/tmp/polls.toml; \
         (vcoop daemon --config /tmp/polls.toml >/dev/null 2>&1 &); \
         until [ -S /run/vcoop/control.sock ]; do sleep 0.1; done"
    ));
    let result = what();
    host.sh("killall vcoop; while pidof vcoop >/dev/null; do sleep 0.1; done");
    result
}

/// The median reaction to interrupts, in nanoseconds.
fn reaction(host: &Host) -> u64 {
    let told = host.json(&format!("{ATTACH}=60% --for 2s --quiet"));
    let of = |key: &str| told["interrupts"][key].as_u64().unwrap();
    assert!(of("boosted") > 50 && of("lost") == 0, "{told}");
    of("reaction_p50_ns")
}

/// An engine that polls reacts sooner than one that sleeps. Where this machine has too few CPUs for the host's two, its
/// CPU is not its own.
fn sooner(asleep: &[u64], polling: &[u64]) -> Outcome {
    let told = format!("reactions in ns: asleep {asleep:?}, polling {polling:?}");
    eprintln!("{told}");
    let sooner = asleep.iter().min() > polling.iter().max();
    let why =
        || Skip::because(format!("this machine is too slow for an engine that polls: {told}"));
    sooner.then_some(()).ok_or_else(why)
}

#[cfg(test)]
const TRACE: &str = "\
    CPU 0/KVM-7 [001] d..2. 1.0: sched_switch: prev_comm=CPU 0/KVM prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=sh next_pid=9 next_prio=120\n\
    sh-9 [001] d.h1. 1.1: hrtimer_expire_entry: hrtimer=0 function=apic_timer_fn [kvm] now=1\n\
    sh-9 [001] d..2. 1.2: sched_switch: prev_comm=sh prev_pid=9 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=7 next_prio=91\n\
    CPU 0/KVM-7 [001] d.h1. 1.3: hrtimer_expire_entry: hrtimer=0 function=apic_timer_fn [kvm] now=1\n\
    CPU 0/KVM-7 [001] d..2. 1.4: sched_switch: prev_comm=CPU 0/KVM prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=sh next_pid=9 next_prio=120\n\
    sh-9 [001] d.h1. 1.5: hrtimer_expire_entry: hrtimer=0 function=apic_timer_fn [kvm] now=1\n\
    sh-9 [001] d..2. 1.6: sched_switch: prev_comm=sh prev_pid=9 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=7 next_prio=120\n";

test!("unit", a_trace_tells_who_was_boosted_in_time, || {
    let (given, entered) = ("kvm_apic_accept_irq: apicid 0 vec 236\n", "kvm_entry: vcpu 0\n");
    for (before, untaken) in [("", 0), (given, 1), (&[given, entered].concat(), 0)] {
        let sum = preempted(&[before, TRACE].concat(), "7");
        assert_eq!((sum.expired, sum.boosted, sum.untaken), (1, 1, untaken), "{before}");
    }
});

test!("unit", a_trace_tells_which_wake_ups_were_boosted, || {
    let switch = |prev: &str, next: &str| format!("prev_pid={prev} next_pid={next}\n");
    let out = |prio: u32, state: &str| {
        switch(&format!("7 prev_prio={prio} prev_state={state}"), "9 next_prio=120")
    };
    let on = |prio: u32| switch("9 prev_prio=120 prev_state=R", &format!("7 next_prio={prio}"));
    let lines = [
        // The first state is not known; then one in time, one while it runs, one after a preemption, and a lost one.
        on(120),
        out(120, "S"),
        on(91),
        out(120, "R"),
        on(120),
        out(120, "S"),
        on(120),
        out(91, "S"),
        on(120),
        out(120, "R+"),
        on(91),
        out(91, "R"),
        on(91),
        out(91, "D"),
        on(120),
        out(120, "S"),
        on(91),
    ];
    let told =
        |outrun, lost, lost_at| Wakeups { all: 5, boosted: 2, late: 2, outrun, lost, lost_at };
    assert_eq!(wakeups(&lines.concat(), "7", "5"), told(1, 0, 0), "nobody knows of the engine");
    // The engine sleeps, is woken before these lines, and sleeps before those. The vCPU wakes up, and is not boosted,
    // at 14.
    let engine = |wakes: usize, sleeps: usize| {
        let (woken, slept) =
            ("comm=engine pid=5 \n", switch("5 prev_prio=9 prev_state=S", "9 next_prio=120"));
        let (before, between) = (lines[..wakes].concat(), lines[wakes..sleeps].concat());
        [&slept, &before, woken, &between, &slept, &lines[sleeps..].concat()].concat()
    };
    for (wakes, sleeps) in [(14, 14), (15, 15)] {
        assert_eq!(wakeups(&engine(wakes, sleeps), "7", "5"), told(0, 1, 18));
    }
    for (wakes, sleeps) in [(14, 15), (15, 16)] {
        assert_eq!(wakeups(&engine(wakes, sleeps), "7", "5"), told(1, 0, 0));
    }
});
