//! Interrupts and wake-ups of a guest without a driver, as BPF and perf events tell them.

use serde_json::{Value, json};
use vcoop_testing::{Outcome, Skip, Trouble, long, test, twice};

use crate::host::{Host, NO_BPF, Threads};

/// Part of the timers that expire while a vCPU is preempted which have it boosted before it runs again; and of the
/// wake-ups that find it boosted.
const IN_TIME: f64 = 0.95;

/// Part of the wake-ups that may be lost: an emulated host stops for some milliseconds now and then.
const MOST_LOST: f64 = 0.02;

/// What a trace says of a vCPU that was preempted.
#[derive(Debug, Default)]
struct Preempted {
    /// Times that its timer expired meanwhile.
    expired: u32,
    /// ... and it was real-time when it ran again.
    boosted: u32,
}

/// What a trace says of the wake-ups of a vCPU.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wakeups {
    all: u32,
    /// ... after which it was real-time when it ran.
    boosted: u32,
    /// ... or before it slept again.
    late: u32,
    /// ... or not at all, after a sleep that was shorter than the engine takes to hear of one.
    brief: u32,
}

/// A field of a line of the trace.
fn field<'a>(line: &'a str, key: &str) -> &'a str {
    line.split_once(key).and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("")
}

fn is_realtime(line: &str, key: &str) -> bool {
    field(line, key).parse::<u32>().unwrap() < 100
}

/// Reads a trace of `sched_switch` and `hrtimer_expire_entry`, in text.
fn preempted(trace: &str, tid: &str) -> Preempted {
    let (mut out, mut expired, mut sum) = (false, false, Preempted::default());
    for line in trace.lines() {
        if field(line, "prev_pid=") == tid {
            // R or R+: it would have gone on.
            (out, expired) = (field(line, "prev_state=").starts_with('R'), false);
        } else if field(line, "next_pid=") == tid {
            if expired {
                sum.expired += 1;
                sum.boosted += u32::from(is_realtime(line, "next_prio="));
            }
            (out, expired) = (false, false);
        } else if line.contains("function=apic_timer_fn") {
            expired |= out;
        }
    }
    sum
}

/// Reads a trace of `sched_switch`, in text with times in seconds. `reaction`: how long the engine takes to act.
fn wakeups(trace: &str, tid: &str, reaction: f64) -> Wakeups {
    let (mut asleep, mut waits, mut sum) = (false, false, Wakeups::default());
    let (mut since, mut slept) = (0.0, 0.0);
    for line in trace.lines() {
        let at = || field(line, "t=").parse::<f64>().unwrap();
        if field(line, "prev_pid=") == tid {
            sum.late += u32::from(waits && is_realtime(line, "prev_prio="));
            waits &= !is_realtime(line, "prev_prio=");
            asleep = !field(line, "prev_state=").starts_with('R');
            if asleep {
                sum.brief += u32::from(waits && slept < reaction);
                since = at();
            }
        } else if field(line, "next_pid=") == tid && asleep {
            let boosted = is_realtime(line, "next_prio=");
            slept = at() - since;
            sum.all += 1;
            sum.boosted += u32::from(boosted);
            (asleep, waits) = (false, !boosted);
        }
    }
    sum
}

/// How `wake-boost` is attached: with bursts for a host whose exits take 30 us and interrupts 100 us.
const ATTACH: &str = "vcoop attach a --policy wake-boost --set policy.wake-boost.boost_on_injection=true \
                      --set policy.wake-boost.vm_refill=100% --set policy.wake-boost.vcpu_burst=20ms \
                      --set policy.wake-boost.vm_burst=40ms --set policy.wake-boost.vcpu_refill";

/// Traces some events for some seconds while the policy is in force, with so much of its budget coming back. What
/// `vcoop attach` says, and the trace.
fn traced(host: &Host, refill: &str, events: &str, seconds: u32, select: &str) -> (Value, String) {
    host.sh(&format!(
        "{ATTACH}={refill} --json >/tmp/attach.json & attach=$!; \
         until vcoop vms --json >/tmp/vms.json; grep -q fentry /tmp/vms.json; do kill -0 $attach || exit; done; \
         cd /sys/kernel/tracing; echo 0 >tracing_on; echo 16384 >buffer_size_kb; echo >trace; \
         for e in {events}; do echo 1 >events/$e/enable; done; echo 1 >tracing_on; \
         sleep {seconds}; echo 0 >tracing_on; echo 0 >events/enable; kill -INT $attach; wait; \
         {select} trace >/tmp/trace; true"
    ));
    let told: Value = serde_json::from_str(&host.sh("cat /tmp/attach.json")).unwrap();
    let vms: Value = serde_json::from_str(&host.sh("cat /tmp/vms.json")).unwrap();
    assert_eq!(told["hears"], json!(["BPF", "fentry of KVM"]), "{told}");
    assert_eq!(vms["vms"][0]["heard_by"], told["hears"], "{vms}");
    (told, host.sh("cat /tmp/trace"))
}

/// Wake-ups find the vCPU boosted, except after sleeps that end before the engine has heard of them.
fn wakeups_are_boosted(host: &Host, threads: &Threads) -> Result<(), Trouble> {
    let (seconds, least) = long((4, 200), (30, 10_000));
    let tid = &threads.vcpu;
    let select = format!(
        "sed -n '/_pid={tid} /s/.* \\([0-9.]*\\): sched_switch: .*\\(prev_pid.*\\) ==> .*\\(next_pid.*\\)/t=\\1 \\2 \\3/p'"
    );
    let (mut was, mut denied) = (Wakeups::default(), 0);
    while was.all < least {
        // The budget refuses none.
        let (told, trace) = traced(host, "100%", "sched/sched_switch", seconds, &select);
        let reaction = told["interrupts"]["reaction_p99_ns"].as_f64().unwrap() / 1e9;
        let now = wakeups(&trace, tid, reaction);
        assert!(now.all > 0, "{told}");
        was.all += now.all;
        was.boosted += now.boosted;
        was.late += now.late;
        was.brief += now.brief;
        denied += told["vcpus"][0]["denied"].as_u64().unwrap();
    }
    let lost = was.all - was.boosted - was.late - was.brief;
    let told = format!("{was:?}, {lost} lost, {denied} denied");
    eprintln!("{told}");
    assert_eq!(denied, 0, "{told}");
    if f64::from(lost) > MOST_LOST * f64::from(was.all) {
        return Err(told.into());
    }
    in_time(was.boosted, was.all, &told)
}

/// How many boosts come in time depends on how fast the daemon's CPU is emulated: a slow machine is said to be one.
fn in_time(boosted: u32, all: u32, told: &str) -> Result<(), Trouble> {
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
    host.sh("guest a 'while :; do :; done >/dev/null 2>&1 &'");
    let interrupted = twice(|| -> Result<(), Trouble> {
        let events = "sched/sched_switch timer/hrtimer_expire_entry";
        let select = "grep -E 'CPU.0/KVM|apic_timer_fn'";
        let (told, trace) = traced(host, "60%", events, 4, select);
        let interrupts = &told["interrupts"];
        let count = |key: &str| interrupts[key].as_u64().unwrap();
        let was = preempted(&trace, &threads.vcpu);
        let told = format!("{was:?}, {interrupts}");
        eprintln!("{told}");
        assert!(count("heard") > 100 && count("lost") == 0 && was.expired > 50, "{told}");
        // Without interrupts a vCPU that never sleeps is never boosted.
        in_time(was.boosted, was.expired, &told)
    });
    woken.and(interrupted)
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
    let sum = preempted(TRACE, "7");
    assert_eq!((sum.expired, sum.boosted), (1, 1));
});

test!("unit", a_trace_tells_which_wake_ups_were_boosted, || {
    let switch = |prev: &str, next: &str| format!("prev_pid={prev} next_pid={next}\n");
    let out = |prio: u32, state: &str| {
        switch(&format!("7 prev_prio={prio} prev_state={state}"), "9 next_prio=120")
    };
    let on = |prio: u32| switch("9 prev_prio=120 prev_state=R", &format!("7 next_prio={prio}"));
    let lines = [
        // Nobody knows how it was before; then one in time, one while it runs, one after a preemption, and a lost one.
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
    let timed = |(us, line): (u32, &String)| format!("t=7.{us:06} {line}");
    let trace: String = (0..).zip(&lines).map(timed).collect();
    let told = |brief| Wakeups { all: 5, boosted: 2, late: 2, brief };
    assert_eq!(wakeups(&trace, "7", 0.0), told(0));
    assert_eq!(wakeups(&trace, "7", 2e-6), told(1), "it slept for a microsecond");
});
