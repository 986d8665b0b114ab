//! Thread, CPU, context and time: everything before the name of the event.

use vcoop_model::plan::Ns;

use super::{Context, split_word};

/// The part of a line that all events have.
pub(super) struct Prefix<'a> {
    pub(super) tid: i32,
    pub(super) cpu: u32,
    pub(super) context: Context,
    pub(super) time_ns: Ns,
    /// The text from the event's name on.
    pub(super) rest: &'a str,
}

const NO_TIME: &str = "not a trace line: no `[cpu]` and time stamp (perf script needs \
                       -F comm,tid,cpu,time,event,trace)";
const NO_TID: &str =
    "no thread id before the CPU (perf script needs -F comm,tid,cpu,time,event,trace)";
const NO_POINT: &str =
    "time stamp without a decimal point: record with the clock `mono`, not a counter";

/// Finds the CPU by the time stamp after it, then the thread before it.
pub(super) fn parse(line: &str) -> Result<Prefix<'_>, &'static str> {
    let mut why = NO_TIME;
    let found = bracketed(line, &mut why).or_else(|| latency(line));
    let (head, cpu, context, time_ns, rest) = found.ok_or(why)?;
    let tid = tid(head).ok_or(NO_TID)?;
    Ok(Prefix { tid, cpu, context, time_ns, rest: rest.trim() })
}

type PrefixFields<'a> = (&'a str, u32, Context, Ns, &'a str);

/// `HEAD [cpu] TIME:` and `HEAD [cpu] FLAGS TIME:`.
fn bracketed<'a>(line: &'a str, why: &mut &'static str) -> Option<PrefixFields<'a>> {
    for (open, _) in line.match_indices('[') {
        let Some((cpu, tail)) = line[open + 1..].split_once(']') else { break };
        let Some(cpu) = cpu_number(cpu) else { continue };
        let (first, rest) = split_word(tail);
        if let Some(time_ns) = seconds(first) {
            return Some((&line[..open], cpu, Context::Unknown, time_ns, rest));
        }
        let (second, rest) = split_word(rest);
        if let Some(context) = flags(first)
            && let Some(time_ns) = seconds(second)
        {
            return Some((&line[..open], cpu, context, time_ns, rest));
        }
        if [first, second].iter().any(|w| w.strip_suffix(':').is_some_and(is_number)) {
            *why = NO_POINT;
        }
    }
    None
}

/// `HEAD cpuFLAGS TIME:`, where the time is in seconds (trace-cmd) or whole microseconds (ftrace).
fn latency(line: &str) -> Option<PrefixFields<'_>> {
    let mut rest = line;
    loop {
        let (word, tail) = split_word(rest);
        if word.is_empty() {
            return None;
        }
        let head = &line[..line.len() - tail.len() - word.len()];
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0
            && let Some(cpu) = cpu_number(&word[..digits])
            && let Some(context) = flags(&word[digits..])
        {
            let (time, after) = split_word(tail);
            if let Some(time_ns) = seconds(time) {
                return Some((head, cpu, context, time_ns, after));
            }
            if let Some((time_ns, after)) = microseconds(tail.trim_start()) {
                return Some((head, cpu, context, time_ns, after));
            }
        }
        rest = tail;
    }
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

fn cpu_number(word: &str) -> Option<u32> {
    if word.len() > 6 || !is_number(word) {
        return None;
    }
    word.parse().ok()
}

/// `1404.834945:` with up to nine decimals.
fn seconds(word: &str) -> Option<Ns> {
    let (whole, fraction) = word.strip_suffix(':')?.split_once('.')?;
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(9 - fraction.len() as u32);
    let ns = fraction.parse::<u64>().ok()? * scale;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// `1404537287us+: ` or `1404537287us : `; the mark classifies the delay until the next event.
fn microseconds(text: &str) -> Option<(Ns, &str)> {
    let (whole, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let rest = rest.strip_prefix("us")?.trim_start_matches([' ', '+', '!', '#', '*', '@', '$']);
    let time = whole.parse::<u64>().ok()?.checked_mul(1000)?;
    Some((time, rest.strip_prefix(':')?))
}

/// The irq-info column: irqs-off, need-resched, hardirq/softirq, preempt-depth, migrate-disable
/// (older kernels print fewer, newer may print more). Raw reports show the flag bits as `-0x1`.
fn flags(word: &str) -> Option<Context> {
    if let Some(bits) = word.strip_prefix("-0x") {
        return u32::from_str_radix(bits, 16).ok().map(flag_bits);
    }
    let columns = word.as_bytes();
    let known = |b: &u8| b".dDbBXnNlLpPhHsSzZ-#".contains(b) || b.is_ascii_hexdigit();
    if !(4..=8).contains(&columns.len())
        || !b".dDbBX".contains(&columns[0])
        || !columns.iter().all(known)
    {
        return None;
    }
    match columns[2] {
        b'h' | b'H' | b'z' | b'Z' => Some(Context::Interrupt),
        b's' => Some(Context::Softirq),
        b'.' => Some(Context::Task),
        _ => None,
    }
}

/// `TRACE_FLAG_*` of the kernel: hard interrupt 0x08, soft interrupt 0x10, NMI 0x40.
fn flag_bits(bits: u32) -> Context {
    if bits & 0x48 != 0 {
        Context::Interrupt
    } else if bits & 0x10 != 0 {
        Context::Softirq
    } else {
        Context::Task
    }
}

/// Thread id at the end of `comm tid`, `comm pid/tid`, `comm-tid` or `comm-tid (tgid)`.
///
/// The name is not parsed here: the event's own fields have it without ambiguity.
fn tid(head: &str) -> Option<i32> {
    let mut head = head.trim_end();
    if let Some(open) = head.strip_suffix(')').and_then(|h| h.rfind('(')) {
        head = head[..open].trim_end();
    }
    let last = head.rsplit(char::is_whitespace).next().unwrap_or(head);
    let after_slash = last.rsplit('/').next().unwrap_or(last);
    if last.len() < head.len()
        && last.split('/').all(|part| is_number(part.strip_prefix('-').unwrap_or(part)))
    {
        return after_slash.parse().ok();
    }
    let (_, tid) = head.rsplit_once('-')?;
    if is_number(tid) { tid.parse().ok() } else { None }
}
