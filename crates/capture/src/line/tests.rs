use super::{Context, Event, Line, SwitchOut, Task, parse};

/// The record of a line, which must be one.
fn record(line: &str) -> super::Record<'_> {
    match parse(line) {
        Line::Record(record) => record,
        other => panic!("{line:?} is {other:?}"),
    }
}

fn task(comm: &str, tid: i32, prio: i32) -> Task<'_> {
    Task { comm, tid, prio }
}

#[test]
fn every_form_of_the_prefix_says_the_same() {
    use Context::{Interrupt, Softirq, Unknown};
    let forms = [
        ("web 7 [001] 12.000345: sched:sched_waking: ", Unknown),
        ("  web srv     7 [001]    12.000345678: sched:sched_waking: ", Unknown),
        ("web 6/7 [001] 12.000345:     sched:sched_waking: ", Unknown),
        ("web     7 [001] 12.000345:          1 sched:sched_waking:     ", Unknown),
        ("   web-7     [001]  12.000345: sched_waking:      ", Unknown),
        ("   web-7     [001] d.s2.  12.000345: sched_waking: ", Softirq),
        ("   web-1 a-7     [001] dNH2  12.000345: sched_waking: ", Interrupt),
        ("   web [3]-7   (     7) [001] d.s5. 12.000345: sched_waking: ", Softirq),
        ("   <...>-7   (-------) [001] d.Z5.1 12.000345: sched_waking: ", Interrupt),
        ("   web-7    1d.h3.  12.000345: sched_waking: ", Interrupt),
        ("   web-7    1-0x19  12.000345: sched_waking: ", Interrupt),
        ("   web-7    1-0x11  12.000345: sched_waking: ", Softirq),
        ("   web-7      1d.s5. 12000345us : sched_waking: ", Softirq),
        ("   web-7      1d.s5. 12000345us+: sched_waking: ", Softirq),
    ];
    for (prefix, context) in forms {
        let line = format!("{prefix}comm=a pid=9 prio=120 target_cpu=001");
        let r = record(&line);
        assert_eq!((r.tid, r.cpu, r.context), (7, 1, context), "{line}");
        assert_eq!(r.time_ns / 1000, 12_000_345, "{line}");
        assert_eq!(r.event, Event::Waking(task("a", 9, 120)), "{line}");
    }
    let ns = record("a 1 [0] 1.000000007: sched_waking: comm=a pid=9 prio=1 target_cpu=0").time_ns;
    assert_eq!(ns, 1_000_000_007);
}

#[test]
fn every_form_of_a_switch_says_the_same() {
    let forms = [
        "prev_comm=a b prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=c:d next_pid=2 \
         next_prio=98",
        "prev_comm=a b prev_pid=1 prev_prio=120 prev_state=D|K ==> next_comm=c:d next_pid=2 \
         next_prio=98 extra=1",
        "prev_comm=a b prev_pid=1 prev_prio=120 prev_state=1 next_comm=c:d next_pid=2 next_prio=98",
        "prev_comm=a b prev_pid=1 prev_prio=120 prev_state=0x2 next_comm=c:d next_pid=2 \
         next_prio=98",
        "a b:1 [120] S ==> c:d:2 [98]",
        "a b:1 [120] D ==> c:d:2 [98]",
    ];
    for fields in forms {
        let line = format!("x-1 [000] 1.0: sched_switch: {fields}");
        let expected = Event::Switch {
            prev: task("a b", 1, 120),
            left: SwitchOut::Asleep,
            next: task("c:d", 2, 98),
        };
        assert_eq!(record(&line).event, expected, "{line}");
    }
}

#[test]
fn states_say_whether_a_thread_sleeps() {
    for (state, expected) in [
        ("R", SwitchOut::Runnable),
        ("R+", SwitchOut::Runnable),
        ("0", SwitchOut::Runnable),
        ("256", SwitchOut::Runnable),
        ("S", SwitchOut::Asleep),
        ("I", SwitchOut::Asleep),
        ("t", SwitchOut::Asleep),
        ("P", SwitchOut::Asleep),
        ("X", SwitchOut::Dead),
        ("Z", SwitchOut::Dead),
        ("32", SwitchOut::Dead),
        ("0x10", SwitchOut::Dead),
    ] {
        let line = format!(
            "x-1 [000] 1.0: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 \
             prev_state={state} ==> next_comm=b next_pid=2 next_prio=120"
        );
        let Event::Switch { left, .. } = record(&line).event else { panic!("{line}") };
        assert_eq!(left, expected, "{state}");
    }
}

#[test]
fn names_may_imitate_the_line() {
    let Event::Switch { prev, next, .. } = record(
        "CPU 0/KVM   7 [001] 1.0: sched:sched_switch: prev_comm=a prev_pid=3 b prev_pid=7 \
                prev_prio=120 prev_state=R ==> next_comm=x ==> y [1] next_pid=8 next_prio=120",
    )
    .event
    else {
        panic!()
    };
    assert_eq!((prev.comm, prev.tid), ("a prev_pid=3 b", 7));
    assert_eq!((next.comm, next.tid), ("x ==> y [1]", 8));
    let Event::Switch { prev, next, .. } =
        record("a-7 [001] 1.0: sched_switch: a [1] x:7 [120] R ==> b ==> c:8 [120]").event
    else {
        panic!()
    };
    assert_eq!((prev.comm, prev.tid), ("a [1] x", 7));
    assert_eq!((next.comm, next.tid), ("b ==> c", 8));
}

#[test]
fn the_other_events() {
    let event = |text: &'static str| match parse(text) {
        Line::Record(r) => r.event,
        other => panic!("{text:?} is {other:?}"),
    };
    assert_eq!(
        event("a-1 [0] 1.0: sched_wakeup: a b:9 [120] success=1 CPU:001"),
        Event::Wakeup(task("a b", 9, 120))
    );
    assert_eq!(
        event("a-1 [0] 1.0: sched_wakeup_new: comm=a pid=9 prio=-1 target_cpu=000"),
        Event::WakeupNew(task("a", 9, -1))
    );
    assert_eq!(
        event("a-1 [0] 1.0: sched_process_fork: comm=a pid=1 child_comm=a b child_pid=5"),
        Event::Fork { child: 5, comm: "a b" }
    );
    assert_eq!(
        event("a-1 [0] 1.0: sched_process_exec: filename=/usr/a pid=3 b pid=5 old_pid=6"),
        Event::Exec { tid: 5, old_tid: 6 }
    );
    assert_eq!(
        event("a-1 [0] 1.0: sched_process_exit: comm=a pid=5 prio=120 group_dead=true"),
        Event::Exit { tid: 5 }
    );
    assert_eq!(
        event("a-1 [0] 1.0: sched_pi_setprio: comm=a pid=5 oldprio=120 newprio=89"),
        Event::PiSetPrio { tid: 5, old: 120, new: 89 }
    );
    assert_eq!(
        event("a-1 [0] 1.0: sched_migrate_task: comm=a pid=5 prio=120 orig_cpu=0 dest_cpu=1"),
        Event::Unused
    );
    assert_eq!(event("a-1 [0] 1.0: irq:softirq_entry: vec=1"), Event::Other("softirq_entry"));
}

#[test]
fn headers_and_notices() {
    assert_eq!(parse(""), Line::Nothing);
    assert_eq!(parse("# tracer: nop"), Line::Nothing);
    assert_eq!(parse("cpus=24"), Line::Cpus(24));
    assert_eq!(parse("CPU 3 is empty"), Line::Nothing);
    assert_eq!(parse("CPU:2 [LOST 83 EVENTS]"), Line::Lost { cpu: 2, count: Some(83) });
    assert_eq!(parse("CPU:2 [LOST EVENTS]"), Line::Lost { cpu: 2, count: None });
    assert_eq!(parse("CPU:2 [9 EVENTS DROPPED]"), Line::Lost { cpu: 2, count: Some(9) });
    assert_eq!(
        parse("a  4 [002]  9.5: PERF_RECORD_LOST lost 12"),
        Line::Lost { cpu: 2, count: Some(12) }
    );
    assert_eq!(parse("##### CPU 1 buffer started ####"), Line::BufferStarts { cpu: 1 });
    assert_eq!(
        parse("# entries-in-buffer/entries-written: 170/1416   #P:2"),
        Line::Overwritten { events: 1246, cpus: 2 }
    );
}

#[test]
fn what_is_wrong_with_a_line_is_said() {
    for (line, expected) in [
        ("hello", "no `[cpu]`"),
        ("web 7 12.5: sched:sched_waking: comm=a pid=1 prio=1", "no `[cpu]`"),
        ("web [001] 12.5: sched:sched_waking: comm=a pid=1 prio=1", "no thread id"),
        ("web-7 [001] d..2. 8812345: sched_waking: comm=a pid=1 prio=1", "clock `mono`"),
        ("web-7 [001] 1.5: sched_switch: nonsense", "sched_switch"),
        ("web-7 [001] 1.5: sched_switch: a:1 [120] S ==> b:99999999999 [1]", "sched_switch"),
        ("web-7 [001] 1.5: sched_waking: comm=a", "wake-up"),
        ("web-7 [001] 1.5: sys_close <-do_syscall", "event name"),
        ("web-7 [001] 99999999999999999999.5: sched_waking: comm=a pid=1 prio=1", "no `[cpu]`"),
    ] {
        let Line::NotUnderstood(why) = parse(line) else { panic!("{line}") };
        assert!(why.contains(expected), "{line}: {why}");
    }
}
