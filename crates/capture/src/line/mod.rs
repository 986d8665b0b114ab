//! One line of a trace, from any of the supported programs.
//!
//! Three programs print scheduler events, and all of them print
//! `thread [cpu] time: event: fields` with small differences, so one reader covers them:
//!
//! | printed by | thread | between `[cpu]` and the time | event |
//! | --- | --- | --- | --- |
//! | `perf script` | `comm tid` or `comm pid/tid` | | an optional period, then `sched:sched_switch:` |
//! | `trace-cmd report` | `comm-tid` | flags in newer versions | `sched_switch:` |
//! | ftrace `trace`, `trace_pipe` | `comm-tid`, `comm-tid (tgid)` | flags | `sched_switch:` |
//!
//! With latency columns (`trace-cmd report -l`, `options/latency-format`) there are no brackets, and the flags directly
//! follow the CPU number: `comm-tid 0d..2. time:`.
//!
//! The third column of the *flags* says whether a wake-up came from interrupt context. `perf script` does not print
//! them.

mod fields;
mod prefix;

use vcoop_model::plan::Ns;

use prefix::Prefix;

/// A line, classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A trace event.
    Record(Record<'a>),
    /// Events were lost before the next event of this CPU.
    Lost {
        /// The CPU.
        cpu: u32,
        /// How many, if the tracer knew.
        count: Option<u64>,
    },
    /// A CPU's ring buffer begins with the next event of this CPU, later than other buffers.
    BufferStarts {
        /// The CPU.
        cpu: u32,
    },
    /// Header of an ftrace file: events written to the ring buffers but overwritten since.
    Overwritten {
        /// How many.
        events: u64,
        /// CPUs of the machine.
        cpus: u32,
    },
    /// Header of `trace-cmd report`: CPUs of the machine.
    Cpus(u32),
    /// Comments, headers and empty lines.
    Nothing,
    /// Anything else, with the reason.
    NotUnderstood(&'static str),
}

/// A trace event with its place and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Thread that was current on the CPU (0: idle, negative: unknown).
    pub tid: i32,
    /// CPU it happened on.
    pub cpu: u32,
    /// Whether it happened in an interrupt.
    pub context: Context,
    /// Time on the tracer's clock.
    pub time_ns: Ns,
    /// What happened.
    pub event: Event<'a>,
}

/// Context of the CPU when an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The current thread itself.
    Task,
    /// A soft interrupt on top of the current thread: often its own work (loopback networking), sometimes not (timers,
    /// RCU).
    Softirq,
    /// A hard interrupt or NMI.
    Interrupt,
    /// The trace does not contain it.
    Unknown,
}

/// A thread, as in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// Its name; may contain spaces, colons and brackets.
    pub comm: &'a str,
    /// Its id; 0 is any idle thread.
    pub tid: i32,
    /// Its kernel priority (-1 deadline, 0..=98 real time, 100..=139 fair).
    pub prio: i32,
}

/// How a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchOut {
    /// Still runnable: preempted or yielding.
    Runnable,
    /// Sleeping until a wake-up.
    Asleep,
    /// Exited.
    Dead,
}

/// Events, as far as they are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// `sched_switch`.
    Switch {
        /// Thread that is switched out.
        prev: Task<'a>,
        /// How it leaves the CPU.
        left: SwitchOut,
        /// Thread that is switched in.
        next: Task<'a>,
    },
    /// `sched_waking`: on the waker's CPU, in the waker's context.
    Waking(Task<'a>),
    /// `sched_wakeup`: on the CPU that enqueues, which need not be the waker's.
    Wakeup(Task<'a>),
    /// `sched_wakeup_new`: first wake-up of a new thread, by its parent.
    WakeupNew(Task<'a>),
    /// `sched_process_fork`.
    Fork {
        /// The new thread.
        child: i32,
        /// Its name, inherited until it execs.
        comm: &'a str,
    },
    /// `sched_process_exec`: a thread may take over its group leader's id.
    Exec {
        /// Id from now on.
        tid: i32,
        /// Id before.
        old_tid: i32,
    },
    /// `sched_process_exit`: its next switch is its last.
    Exit {
        /// The thread.
        tid: i32,
    },
    /// `sched_pi_setprio`: priority inheritance begins, changes or ends.
    PiSetPrio {
        /// The thread that inherits.
        tid: i32,
        /// Kernel priority until now.
        old: i32,
        /// Kernel priority from now on.
        new: i32,
    },
    /// `sched_migrate_task`, `sched_process_free`: understood, and not used here.
    Unused,
    /// An event with another name.
    Other(&'a str),
}

/// Parses one line.
///
/// Never fails: a line that cannot be parsed is [`Line::NotUnderstood`]. If a comm imitates a part of the line, the
/// earliest parse that works is taken; a wrong one costs only that line.
pub fn parse(line: &str) -> Line<'_> {
    if let Some(line) = heading(line.trim()) {
        return line;
    }
    let record = || {
        let Prefix { tid, cpu, context, time_ns, rest } = prefix::parse(line)?;
        if let Some(lost) = rest.strip_prefix("PERF_RECORD_LOST") {
            let count = lost.rsplit(' ').next().and_then(|n| n.parse().ok());
            return Ok(Line::Lost { cpu, count });
        }
        let event = event(rest)?;
        Ok(Line::Record(Record { tid, cpu, context, time_ns, event }))
    };
    record().unwrap_or_else(Line::NotUnderstood)
}

/// Lines that are not events.
fn heading(line: &str) -> Option<Line<'_>> {
    if line.is_empty() {
        return Some(Line::Nothing);
    }
    if let Some(comment) = line.strip_prefix('#') {
        return Some(comment_line(comment.trim_matches([' ', '#'])));
    }
    if let Some(cpus) = line.strip_prefix("cpus=").and_then(|n| n.parse().ok()) {
        return Some(Line::Cpus(cpus));
    }
    if line.starts_with("version = ") || (line.starts_with("CPU ") && line.ends_with(" is empty")) {
        return Some(Line::Nothing);
    }
    // `CPU:2 [LOST 7 EVENTS]`, `CPU:2 [LOST EVENTS]`, `CPU:2 [7 EVENTS DROPPED]`
    let (cpu, what) = line.strip_prefix("CPU:")?.split_once(" [")?;
    let what = what.strip_suffix(']')?;
    if !what.contains("EVENTS") {
        return None;
    }
    let cpu = cpu.parse().ok()?;
    Some(Line::Lost { cpu, count: what.split(' ').find_map(|w| w.parse().ok()) })
}

fn comment_line(comment: &str) -> Line<'_> {
    // `##### CPU 1 buffer started ####`
    if let Some(cpu) = comment.strip_prefix("CPU ").and_then(|c| c.strip_suffix(" buffer started"))
        && let Ok(cpu) = cpu.parse()
    {
        return Line::BufferStarts { cpu };
    }
    // `# entries-in-buffer/entries-written: 170/1416   #P:2`
    if let Some(rest) = comment.strip_prefix("entries-in-buffer/entries-written: ") {
        let mut words = rest.split_whitespace();
        let counts = words.next().and_then(|w| w.split_once('/'));
        let cpus = words.next().and_then(|w| w.strip_prefix("#P:")).and_then(|n| n.parse().ok());
        if let Some((kept, written)) = counts
            && let (Ok(kept), Ok(written)) = (kept.parse::<u64>(), written.parse::<u64>())
        {
            let events = written.saturating_sub(kept);
            return Line::Overwritten { events, cpus: cpus.unwrap_or(0) };
        }
    }
    Line::Nothing
}

/// Name and fields of an event, from the text after the time stamp.
fn event(rest: &str) -> Result<Event<'_>, &'static str> {
    let (mut word, mut fields) = split_word(rest);
    if !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()) {
        // perf's sample period.
        (word, fields) = split_word(fields);
    }
    let name = word.strip_suffix(':').ok_or("no event name after the time stamp")?;
    let name = name.rsplit(':').next().unwrap_or(name);
    if name.is_empty() {
        return Err("no event name after the time stamp");
    }
    fields::parse(name, fields.trim())
}

/// The first word, and the text after it.
fn split_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests;
