//! What is read, and what is refused by name.

use super::*;

fn run(us: Ns) -> Act {
    Act::Do(Phase::Run { time: Dist::Const(us * 1_000), mode: Mode::User })
}

fn sleep(us: Ns) -> Act {
    Act::Do(Phase::Sleep { time: Dist::Const(us * 1_000) })
}

#[test]
fn threads_phases_and_loops() {
    let threads = parse(
        r#"{"global": {"duration": 2}, "resources": {"m": {"type": "mutex"}}, "tasks": {
            "video": {"instance": 2, "policy": "SCHED_FIFO", "priority": 20, "cpus": [1, 2], "delay": 7,
                "loop": 3, "phases": {
                "z": {"loop": 5, "run": 100, "sleep": 200, "run1": 300},
                "a": {"lock": "m", "runtime": 10, "unlock": "m", "resume": "rest", "priority": 5}}},
            "rest": {"suspend": "rest", "mem": 20000, "timer": {"ref": "unique", "period": 1000}}
        }}"#,
    )
    .unwrap();
    assert_eq!(threads.len(), 3);
    assert_eq!((threads[0].name.as_str(), threads[1].name.as_str()), ("video-0", "video-1"));
    let video = &threads[1];
    assert_eq!(video.policy, Some(Policy::Fifo(20)));
    assert_eq!((video.cpus.as_slice(), video.delay_ns), ([1, 2].as_slice(), 7_000));
    let want = [
        run(100),
        sleep(200),
        run(300),
        Act::Loop { to: 0, times: 5 },
        Act::SetPolicy(Policy::Normal { nice: 5, slice_ns: None }),
        Act::Acquire { lock: 0, kind: LockKind::Futex },
        run(10),
        Act::Release { lock: 0 },
        Act::Resume { peer: 2 },
        Act::Loop { to: 0, times: 3 },
        Act::Exit,
    ];
    assert_eq!(video.acts, want, "in the order of the file");
    let timer = Act::Timer { period_ns: 1_000_000, busy: false, interrupt: false };
    let rest = [Act::Suspend, run(2), timer];
    assert_eq!(threads[2].acts, rest);
    assert_eq!(threads[2].policy, None);
}

#[test]
fn threads_have_the_default_policy_unless_they_say_more() {
    let of = |default: &str| {
        let tasks = r#"{"a": {"run": 9}, "b": {"run": 9, "policy": "SCHED_RR", "priority": 3}}"#;
        let global = format!(r#"{{"default_policy": {default}, "duration": 5}}"#);
        parse(&format!(r#"{{"tasks": {tasks}, "global": {global}}}"#))
    };
    let policies = |default| of(default).unwrap().into_iter().map(|thread| thread.policy);
    let own = Some(Policy::Rr(3));
    assert!(policies("\"SCHED_FIFO\"").eq([Some(Policy::Fifo(10)), own]));
    assert!(policies("\"SCHED_OTHER\"").eq([None, own]));
    assert!(
        of("\"SCHED_FOO\"").unwrap_err().contains("`global.default_policy` cannot be SCHED_FOO")
    );
    assert!(of("5").unwrap_err().contains("`global.default_policy`"));
}

#[test]
fn what_cannot_be_expressed_is_refused_by_its_path() {
    let refused = |task: &str, what: &str| {
        let error = parse(&format!(r#"{{"tasks": {{"t": {task}}}}}"#)).unwrap_err();
        assert!(error.contains(what), "{error}");
    };
    refused(r#"{"iorun": 100}"#, "`tasks.t.iorun` is not known here");
    refused(r#"{"run": "x"}"#, "`tasks.t.run` is a text, not a number");
    refused(r#"{"run": -5}"#, "out of range");
    refused(r#"{"run": 0}"#, "would loop without using time");
    refused("{}", "does nothing");
    refused(r#"{"phases": {"p": {"run": 9, "cpus": [0]}}}"#, "`tasks.t.phases.p.cpus`");
    refused(r#"{"run": 9, "phases": {}}"#, "`tasks.t.run` stands beside `phases`");
    refused(r#"{"run": 9, "resume": "u"}"#, "there is no thread `u`");
    refused(r#"{"run": 9, "policy": "SCHED_BATCH"}"#, "SCHED_BATCH");
    refused(r#"{"run": 9, "policy": "SCHED_RR", "priority": 0}"#, "1 to 99");
    refused(r#"{"run": 9, "policy": "SCHED_DEADLINE", "dl-runtime": 9}"#, "cannot be made");
    refused(r#"{"run": 9, "loop": 0}"#, "neither -1 nor at least 1");
    let twice = r#"{"timer": {"ref": "a", "period": 9}, "timer1": {"ref": "a", "period": 8}}"#;
    refused(twice, "`tasks.t.timer1.ref`");
    refused(r#"{"timer": {"ref": "a", "period": 9, "mode": "relative"}}"#, "`tasks.t.timer.mode`");
    refused(r#"{"run": 9, "instance": 10001}"#, "more than 10000 threads");
    for text in ["", "[]", "{}", r#"{"tasks": {}}"#, r#"{"tasks": 5}"#, r#"{"task": {}}"#] {
        assert!(parse(text).is_err(), "{text}");
    }
}
