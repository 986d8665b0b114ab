//! A capture: the threads of a recorded machine, and the losses of the recording.

use std::io::Read;
use std::path::Path;

use vcoop_model::file;
use vcoop_model::plan::Ns;
use vcoop_sched::config::Policy;

use crate::input::{Lines, Text, text};
use crate::line::{self, Line};
use crate::losses::Losses;
use crate::reconstruct::{Act, ReconstructedThread, Reconstruction, numbers};
use crate::{CaptureError, Limits};

/// A recorded machine's threads.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The threads, in order of first appearance, without idle threads.
    pub threads: Vec<Thread>,
    /// Time from the first event to the last: the length of every thread's loop.
    pub span_ns: Ns,
    /// CPUs of the recorded machine, as far as the trace shows.
    pub cpus: u32,
    /// What was lost.
    pub losses: Losses,
}

/// A recorded thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its last name (a thread is renamed when it execs).
    pub name: String,
    /// Its id on the recorded machine.
    pub tid: i32,
    /// Policy at its first event. Kernel priorities 0..=98 become SCHED_FIFO, because the events do not distinguish
    /// FIFO and RR; -1 (SCHED_DEADLINE) becomes FIFO 99. SCHED_BATCH, SCHED_IDLE and custom slices are not visible in
    /// events.
    pub policy: Policy,
    /// The CPU of a per-CPU kernel thread (`ksoftirqd/1`, `kworker/1:2`: the number in the name, if it ran nowhere
    /// else); empty for all others, because events do not contain the affinity.
    pub cpus: Vec<u32>,
    /// Its CPU time, over all its runs.
    pub demand_ns: Ns,
    /// Its activity; peers are indices into [`Capture::threads`].
    pub(crate) acts: Vec<Act>,
}

impl Capture {
    /// Reads a trace, compressed or not, to its end.
    ///
    /// Memory grows with threads and steps, not with lines: neighbouring pieces of a run are
    /// merged as they are read.
    ///
    /// # Errors
    ///
    /// The input as a whole is unusable: not text, without switches, larger than `limits`, or unreadable. Single lines
    /// that cannot be parsed are counted in [`Losses`] instead.
    pub fn read(input: impl Read, limits: &Limits) -> Result<Self, CaptureError> {
        let mut lines = Lines::new(text(input)?, *limits);
        let mut turner = Reconstruction::new(*limits);
        while let Some(next) = lines.next()? {
            turner.losses.lines += 1;
            match next {
                Text::TooLong => turner.losses.line_not_understood("line too long"),
                Text::Line(l) => take(&mut turner, line::parse(&l))?,
            }
        }
        if turner.switches == 0 {
            let first = turner.losses.first_not_understood.first();
            let first = first.map(|(line, why)| format!("line {line}: {why}"));
            return Err(CaptureError::NoSwitches { lines: lines.count, first });
        }
        let (turned, span_ns, cpus, losses) = turner.finish();
        Ok(Self::assemble(turned, span_ns, cpus, losses))
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// As for [`Capture::read`]; also if the file cannot be opened.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, CaptureError> {
        let file = file::open(path).map_err(CaptureError::Open)?;
        if file.metadata().map_err(CaptureError::Open)?.len() > limits.max_text_bytes {
            return Err(CaptureError::too_much_text(limits.max_text_bytes));
        }
        Self::read(file, limits)
    }

    /// A capture that ships with the program: `build-serve`, five seconds of a parallel compile
    /// and of request serving on a 2-CPU machine.
    ///
    /// # Errors
    ///
    /// No capture has that name.
    pub fn builtin(name: &str) -> Result<Self, CaptureError> {
        let Some((_, bytes)) = BUILTIN.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = Self::builtin_names().collect();
            return Err(CaptureError::UnknownBuiltin {
                name: name.to_owned(),
                known: known.join(", "),
            });
        };
        Self::read(*bytes, &Limits::default())
    }

    /// Names of built-in captures, for [`Capture::builtin`].
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// CPU time of all threads, in nanoseconds.
    pub fn demand_ns(&self) -> Ns {
        self.threads.iter().map(|t| t.demand_ns).fold(0, u64::saturating_add)
    }

    /// Keeps the threads that did something, and renumbers their peers.
    fn assemble(
        turned: Vec<ReconstructedThread>,
        span_ns: Ns,
        cpus: u32,
        mut losses: Losses,
    ) -> Self {
        let active = |t: &ReconstructedThread| {
            t.acts.iter().any(|a| matches!(a, Act::Run(_) | Act::Wake(_) | Act::Wait { .. }))
        };
        let renumbered = numbers(turned.iter().map(active));
        let mut threads = Vec::new();
        for t in turned.into_iter().filter(active) {
            let acts = t.acts.into_iter().filter_map(|act| act.renumbered(&renumbered)).collect();
            losses.deadline_threads += u64::from(t.first_prio < 0);
            let cpus = bound_to(&t.name, t.only_cpu).into_iter().collect();
            threads.push(Thread {
                name: t.name,
                tid: t.tid,
                policy: policy(t.first_prio),
                cpus,
                demand_ns: t.demand_ns,
                acts,
            });
        }
        losses.silent_threads = renumbered.iter().filter(|index| index.is_none()).count() as u64;
        Self { threads, span_ns, cpus, losses }
    }
}

const BUILTIN: &[(&str, &[u8])] =
    &[("build-serve", include_bytes!("../../../captures/build-serve.txt.gz"))];

fn take(turner: &mut Reconstruction, line: Line<'_>) -> Result<(), CaptureError> {
    match line {
        Line::Record(record) => turner.record(&record)?,
        Line::Lost { cpu, count } => turner.lost(cpu, count),
        Line::BufferStarts { cpu } => turner.buffer_starts(cpu),
        Line::Overwritten { events, cpus } => {
            turner.losses.overwritten = turner.losses.overwritten.saturating_add(events);
            turner.announce_cpus(cpus);
        }
        Line::Cpus(cpus) => turner.announce_cpus(cpus),
        Line::Nothing => {}
        Line::NotUnderstood(why) => turner.losses.line_not_understood(why),
    }
    Ok(())
}

/// The policy behind a kernel priority.
pub(crate) fn policy(prio: i32) -> Policy {
    match prio {
        ..0 => Policy::Fifo(99),
        0..100 => Policy::Fifo((99 - prio).max(1) as u8),
        _ => Policy::Normal { nice: (prio - 120).clamp(-20, 19) as i8, slice_ns: None },
    }
}

/// The CPU in a per-CPU kernel thread's name, if it ran only there.
fn bound_to(name: &str, only_cpu: Option<u32>) -> Option<u32> {
    let (_, number) = name.split_once('/')?;
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = number.split_at(digits);
    let named: u32 = digits.parse().ok()?;
    let per_cpu = rest.is_empty() || rest.starts_with(':');
    (per_cpu && only_cpu == Some(named)).then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_priorities_become_policies() {
        assert_eq!(policy(-1), Policy::Fifo(99));
        assert_eq!(policy(0), Policy::Fifo(99));
        assert_eq!(policy(98), Policy::Fifo(1));
        assert_eq!(policy(100), Policy::Normal { nice: -20, slice_ns: None });
        assert_eq!(policy(120), Policy::NORMAL);
        assert_eq!(policy(139), Policy::Normal { nice: 19, slice_ns: None });
    }

    #[test]
    fn only_per_cpu_kernel_threads_are_bound() {
        assert_eq!(bound_to("ksoftirqd/1", Some(1)), Some(1));
        assert_eq!(bound_to("kworker/3:1H", Some(3)), Some(3));
        assert_eq!(bound_to("ksoftirqd/1", None), None);
        assert_eq!(bound_to("kworker/u8:1", Some(1)), None);
        assert_eq!(bound_to("CPU 1/KVM", Some(1)), None);
        assert_eq!(bound_to("ksoftirqd/1", Some(0)), None);
    }
}
