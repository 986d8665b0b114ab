//! The fields of each event, in the forms of different programs.
//!
//! | form | `sched_switch` | printed by |
//! | --- | --- | --- |
//! | kernel | `prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=b ...` | ftrace, perf |
//! | plugin | `a:1 [120] S ==> b:2 [120]` | trace-cmd, older perf |
//! | raw | `prev_comm=a prev_pid=1 prev_prio=120 prev_state=256 next_comm=b ...` | `trace-cmd report -R` |

use super::{Event, SwitchOut, Task};

/// Parses the fields of the event called `name`.
pub(super) fn parse<'a>(name: &'a str, text: &'a str) -> Result<Event<'a>, &'static str> {
    let event = match name {
        "sched_switch" => switch(text),
        "sched_waking" => task(text).map(Event::Waking),
        "sched_wakeup" => task(text).map(Event::Wakeup),
        "sched_wakeup_new" => task(text).map(Event::WakeupNew),
        "sched_process_fork" => fork(text),
        "sched_process_exec" => exec(text),
        "sched_process_exit" => task(text).map(|t| Event::Exit { tid: t.tid }),
        "sched_pi_setprio" => pi_setprio(text),
        "sched_migrate_task" | "sched_process_free" => Some(Event::Unused),
        other => Some(Event::Other(other)),
    };
    event.ok_or(match name {
        "sched_switch" => "fields of sched_switch not understood",
        "sched_process_fork" => "fields of sched_process_fork not understood",
        "sched_process_exec" => "fields of sched_process_exec not understood",
        "sched_process_exit" => "fields of sched_process_exit not understood",
        "sched_pi_setprio" => "fields of sched_pi_setprio not understood",
        _ => "fields of a wake-up not understood",
    })
}

fn switch(text: &str) -> Option<Event<'_>> {
    if let Some(prev) = text.strip_prefix("prev_comm=") {
        // The raw form has no arrow; both have this key.
        let (prev, next) = prev.split_once(" next_comm=")?;
        let prev = prev.trim_end_matches(" ==>");
        let (head, state) = prev.rsplit_once(" prev_state=")?;
        let (head, prio) = head.rsplit_once(" prev_prio=")?;
        let (comm, tid) = head.rsplit_once(" prev_pid=")?;
        let prev = Task { comm, tid: number(tid)?, prio: number(prio)? };
        let (comm, rest) = next.rsplit_once(" next_pid=")?;
        let (tid, prio) = rest.split_once(" next_prio=")?;
        let next = Task { comm, tid: number(tid)?, prio: number(first_word(prio))? };
        return switched(prev, state, next);
    }
    // A comm may contain the arrow: take the first position where both sides parse.
    text.match_indices(" ==> ").find_map(|(at, arrow)| {
        let (prev, state) = text[..at].rsplit_once(' ')?;
        let prev = plugin_task(prev)?;
        let next = plugin_task(&text[at + arrow.len()..])?;
        switched(prev, state, next)
    })
}

fn switched<'a>(prev: Task<'a>, state: &str, next: Task<'a>) -> Option<Event<'a>> {
    let known = prev.tid >= 0 && next.tid >= 0;
    if known { Some(Event::Switch { prev, left: left(state)?, next }) } else { None }
}

/// `comm=a pid=1 prio=120 ...`, or the plugin form `a:1 [120] ...`.
fn task(text: &str) -> Option<Task<'_>> {
    let Some(rest) = text.strip_prefix("comm=") else { return plugin_task(text) };
    let (comm, rest) = rest.rsplit_once(" pid=")?;
    let (tid, prio) = rest.split_once(" prio=")?;
    Some(Task { comm, tid: number(tid)?, prio: number(first_word(prio))? })
}

/// `comm:tid [prio]`, then anything.
fn plugin_task(text: &str) -> Option<Task<'_>> {
    text.match_indices(" [").find_map(|(at, _)| {
        let (comm, tid) = text[..at].rsplit_once(':')?;
        let (prio, _) = text[at + 2..].split_once(']')?;
        Some(Task { comm, tid: number(tid)?, prio: number(prio)? })
    })
}

fn fork(text: &str) -> Option<Event<'_>> {
    let (_, child) = text.strip_prefix("comm=")?.split_once(" child_comm=")?;
    let (comm, tid) = child.rsplit_once(" child_pid=")?;
    Some(Event::Fork { child: number(first_word(tid))?, comm })
}

fn exec(text: &str) -> Option<Event<'_>> {
    let (_, rest) = text.strip_prefix("filename=")?.rsplit_once(" pid=")?;
    let (tid, old) = rest.split_once(" old_pid=")?;
    Some(Event::Exec { tid: number(tid)?, old_tid: number(first_word(old))? })
}

fn pi_setprio(text: &str) -> Option<Event<'_>> {
    let (_, rest) = text.strip_prefix("comm=")?.rsplit_once(" pid=")?;
    let (tid, rest) = rest.split_once(" oldprio=")?;
    let (old, new) = rest.split_once(" newprio=")?;
    Some(Event::PiSetPrio { tid: number(tid)?, old: number(old)?, new: number(first_word(new))? })
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

fn number(text: &str) -> Option<i32> {
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |h| i32::from_str_radix(h, 16).ok())
}

/// `R`, `R+`, `S`, `D|K`, ..., or the raw bits.
///
/// Of the raw bits the low byte contains the states of sleep and death; preemption is a higher bit, whose position
/// changed between kernels.
fn left(state: &str) -> Option<SwitchOut> {
    let state = state.trim();
    let first = state.bytes().next()?;
    if first.is_ascii_digit() {
        return Some(match number(state)? & 0xff {
            0 => SwitchOut::Runnable,
            bits if bits & 0x30 != 0 => SwitchOut::Dead,
            _ => SwitchOut::Asleep,
        });
    }
    if state.contains(['X', 'x', 'Z']) {
        return Some(SwitchOut::Dead);
    }
    match first {
        b'R' => Some(SwitchOut::Runnable),
        b'A'..=b'Z' | b'a'..=b'z' => Some(SwitchOut::Asleep),
        _ => None,
    }
}
