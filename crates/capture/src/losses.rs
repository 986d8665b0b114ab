//! Losses between the recorded machine and the replayed threads.

use std::collections::BTreeMap;
use std::fmt;

use vcoop_model::plan::Ns;

/// Counts of everything that was lost, or replaced by an assumption.
///
/// [`fmt::Display`] prints the counts that are not zero, one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Lines read.
    pub lines: u64,
    /// Events of every kind.
    pub events: u64,
    /// Notices of lost events.
    pub lost_notices: u64,
    /// Events lost, as far as the notices say.
    pub lost_events: u64,
    /// Events overwritten in the ring buffers before the file was written.
    pub overwritten: u64,
    /// Lines not understood.
    pub not_understood: u64,
    /// The first three of these: line number and reason.
    pub first_not_understood: Vec<(u64, &'static str)>,
    /// Events that are not scheduler events, by name.
    pub other_events: BTreeMap<String, u64>,
    /// Events beyond [`Limits::max_event_names`](crate::Limits) different names.
    pub other_events_unnamed: u64,
    /// Events earlier than a previous one, taken to happen at the same time as that one.
    pub out_of_order: u64,
    /// Threads that were on a CPU when the capture began, or that were switched in without a
    /// wake-up before: their first demand may be cut.
    pub cut_at_start: u64,
    /// Threads on a CPU or runnable when the capture ended: their last demand is cut.
    pub cut_at_end: u64,
    /// Number of runs that lost events cut.
    pub cut_by_loss: u64,
    /// Switches away from a thread that was not the one last switched to.
    pub unmatched_switches: u64,
    /// Switches away from the idle thread that are missing, but follow from later events.
    pub inferred_switches: u64,
    /// Sleeps that ended without a wake-up in the trace; they last until the thread ran.
    pub sleeps_without_wake: u64,
    /// Wake-ups by an unknown waker; the sleep became a timed one.
    pub unknown_wakers: u64,
    /// Wake-ups by another thread; the sleeper waits for that thread in the replay.
    pub wakes_by_thread: u64,
    /// Of these, wake-ups by a soft interrupt on top of the thread that is assumed to be the waker.
    pub wakes_by_softirq: u64,
    /// Of these, wake-ups where the trace does not say whether an interrupt woke.
    pub wakes_unknown_context: u64,
    /// Wake-ups from hard interrupts or the idle thread: timers and devices, timed in the replay.
    pub wakes_by_interrupt: u64,
    /// Threads under SCHED_DEADLINE, replayed as SCHED_FIFO 99.
    pub deadline_threads: u64,
    /// Threads that neither ran nor woke another one, left out.
    pub silent_threads: u64,
    /// The span of the capture.
    pub span_ns: Ns,
    /// Use of each CPU's time.
    pub cpus: BTreeMap<u32, CpuTime>,
    /// CPUs that the header announces and no event mentions: assumed to be idle.
    pub silent_cpus: u32,
}

/// Time of one CPU; the sum of the three is the span of the capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Threads ran.
    pub busy_ns: Ns,
    /// The idle thread ran.
    pub idle_ns: Ns,
    /// Unknown: events were lost, or its buffer began later.
    pub unattributed_ns: Ns,
}

/// Number of lines kept that could not be parsed.
const KEPT: usize = 3;

impl Losses {
    pub(crate) fn line_not_understood(&mut self, why: &'static str) {
        self.not_understood += 1;
        if self.first_not_understood.len() < KEPT {
            self.first_not_understood.push((self.lines, why));
        }
    }

    pub(crate) fn other_event(&mut self, name: &str, max_names: usize) {
        if let Some(count) = self.other_events.get_mut(name) {
            *count += 1;
        } else if self.other_events.len() < max_names && name.len() <= 128 {
            self.other_events.insert(name.to_owned(), 1);
        } else {
            self.other_events_unnamed += 1;
        }
    }

    /// Whether events are missing.
    pub fn is_lossy(&self) -> bool {
        // A sum could overflow: `overwritten` can be any number, from the header of the file.
        [self.lost_notices, self.overwritten, self.not_understood, self.unmatched_switches]
            .iter()
            .any(|count| *count > 0)
    }

    /// Time of all CPUs that could not be attributed, in nanoseconds.
    pub fn unattributed_ns(&self) -> Ns {
        self.cpus.values().map(|c| c.unattributed_ns).fold(0, u64::saturating_add)
    }
}

fn ms(ns: Ns) -> String {
    format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000)
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events in {} lines over {}", self.events, self.lines, ms(self.span_ns))?;
        write!(f, "; {} CPUs", self.cpus.len())?;
        if self.silent_cpus > 0 {
            write!(f, " ({} more without an event, taken to be idle)", self.silent_cpus)?;
        }
        if self.lost_notices > 0 {
            write!(f, "\nlost: at least {} events", self.lost_events)?;
            write!(f, " in {} gaps, which cut {} runs", self.lost_notices, self.cut_by_loss)?;
        }
        if self.overwritten > 0 {
            write!(f, "\noverrun: {} events overwritten before they were read", self.overwritten)?;
        }
        if self.unmatched_switches > 0 {
            write!(
                f,
                "\nunmatched: {} switches from another thread than",
                self.unmatched_switches
            )?;
            write!(f, " the one switched to before")?;
        }
        if self.inferred_switches > 0 {
            write!(f, "\ninferred: {} untraced switches from idle", self.inferred_switches)?;
            write!(f, ", taken to follow the wake-up at once")?;
        }
        for (cpu, time) in self.cpus.iter().filter(|(_, t)| t.unattributed_ns > 0).take(4) {
            write!(f, "\nCPU {cpu}: {} belong to nobody", ms(time.unattributed_ns))?;
        }
        if self.not_understood > 0 {
            write!(f, "\nnot understood: {} lines", self.not_understood)?;
            for (line, why) in &self.first_not_understood {
                write!(f, "\n  line {line}: {why}")?;
            }
        }
        write!(f, "\ncut threads: {} at the start,", self.cut_at_start)?;
        write!(f, " {} at the end; silent threads left out: ", self.cut_at_end)?;
        write!(f, "{}", self.silent_threads)?;
        write!(f, "\nwake-ups: {} by threads", self.wakes_by_thread)?;
        if self.wakes_by_softirq > 0 {
            write!(
                f,
                " ({} of them in soft interrupts that ran on top of them)",
                self.wakes_by_softirq
            )?;
        }
        if self.wakes_unknown_context > 0 {
            write!(f, " ({} of them perhaps by interrupts:", self.wakes_unknown_context)?;
            write!(f, " the trace does not show the context)")?;
        }
        write!(f, ", {} by timers and devices", self.wakes_by_interrupt)?;
        write!(f, ", {} by unknown threads", self.unknown_wakers)?;
        if self.sleeps_without_wake > 0 {
            let sleeps = if self.sleeps_without_wake == 1 { "sleep" } else { "sleeps" };
            write!(f, "; {} {sleeps} ended without one", self.sleeps_without_wake)?;
        }
        if self.out_of_order > 0 {
            write!(f, "\nout of order: {} events", self.out_of_order)?;
        }
        if self.deadline_threads > 0 {
            write!(f, "\n{} SCHED_DEADLINE threads became FIFO 99", self.deadline_threads)?;
        }
        if !self.other_events.is_empty() {
            write!(f, "\nother events, not used:")?;
            for (i, (name, count)) in self.other_events.iter().take(6).enumerate() {
                write!(f, "{} {count} {name}", if i == 0 { "" } else { "," })?;
            }
            let more: u64 = self.other_events.values().skip(6).sum();
            if more + self.other_events_unnamed > 0 {
                write!(f, ", {} of other names", more + self.other_events_unnamed)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_count_that_a_header_can_give_is_lossy() {
        let most = Losses { overwritten: u64::MAX, lost_notices: 1, ..Losses::default() };
        assert!(most.is_lossy());
        assert!(!Losses::default().is_lossy());
    }
}
