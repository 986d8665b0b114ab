//! Interrupts of the host, seen as gaps in the time of a thread that does nothing but read the clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::thread::{MembarrierCommand, membarrier};
use vcoop_model::plan::Ns;
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::tsc::{Clock, tsc};

use super::bench::{BLOCK_NS, Bench, OnDrop};
use super::host::prepare;
use super::timer::TimerFd;
use crate::error::{Error, RequestTarget};

/// A time in which the thread did not run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    pub(crate) from: u64,
    to: u64,
}

impl Gap {
    pub(crate) fn len(self) -> u64 {
        self.to - self.from
    }
}

/// All of them.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn measure(b: &mut Bench<'_>, tick_ns: Ns) -> Result<(), Error> {
    let least = least(b);
    tick(b, tick_ns, least)?;
    timer(b, least)?;
    ipi(b, least)
}

/// Eight readings of the clock: no interrupt is that short.
pub(crate) fn least(b: &Bench<'_>) -> u64 {
    b.clock.to_cycles(b.found("clock").map_or(20, |d| d.median_ns).max(10) * 8)
}

/// Gaps from now until `until`.
pub(crate) fn spin(until: u64, least: u64, mut each: impl FnMut(Gap)) {
    let mut last = tsc();
    while last < until {
        let now = tsc();
        if now - last > least {
            each(Gap { from: last, to: now });
            // The time to report a gap is no gap.
            last = tsc();
        } else {
            last = now;
        }
    }
}

/// The tick is what comes back after a tick's period; other interrupts do not.
fn tick(b: &mut Bench<'_>, tick_ns: Ns, least: u64) -> Result<(), Error> {
    let block = b.clock.to_cycles(tick_block(tick_ns));
    let clock = b.clock;
    b.sample("tick", "a spinning thread's gaps that repeat with the tick's period", |out| {
        let mut gaps = Vec::new();
        spin(tsc() + block, least, |gap| gaps.push(gap));
        out.extend(ticks_among(clock, gaps.into_iter(), tick_ns).into_iter().map(Gap::len));
    })
}

/// Long enough for some ticks, short enough to leave real-time throttling alone.
pub(crate) fn tick_block(tick_ns: Ns) -> Ns {
    (tick_ns * 24).clamp(40_000_000, 240_000_000)
}

/// Those of some gaps, ascending, that are ticks.
pub(crate) fn ticks_among(clock: Clock, gaps: impl Iterator<Item = Gap>, tick_ns: Ns) -> Vec<Gap> {
    /// How far the tick's interrupt may be from its time.
    const JITTER_NS: Ns = 30_000;
    // Longer ones are other real-time threads, which may well be woken at a tick's time.
    let longest = clock.to_cycles(100_000);
    let gaps: Vec<Gap> = gaps.filter(|gap| gap.len() <= longest).collect();
    ticks(&gaps, clock.to_cycles(tick_ns), clock.to_cycles(JITTER_NS))
}

/// The gaps that lie where, counted modulo the period, the most periods have one; of each period
/// the longest. None if it is not the case for half of the periods, three at least.
fn ticks(gaps: &[Gap], period: u64, jitter: u64) -> Vec<Gap> {
    let near = |gap: &Gap, phase: u64| {
        let apart = (gap.from % period).abs_diff(phase);
        apart.min(period - apart) <= jitter
    };
    let at = |phase: u64| {
        let mut longest: BTreeMap<u64, Gap> = BTreeMap::new();
        for gap in gaps.iter().filter(|gap| near(gap, phase)) {
            // Counted from half a period away, so that no tick lies on the border of two.
            let which = (gap.from + period + period / 2 - phase) / period;
            let seen = longest.entry(which).or_insert(*gap);
            if gap.len() > seen.len() {
                *seen = *gap;
            }
        }
        longest
    };
    // Among equals the one with longer gaps: the tick is not the shortest of interrupts.
    let weight = |found: &BTreeMap<u64, Gap>| (found.len(), found.values().map(|g| g.len()).sum());
    let best: BTreeMap<u64, Gap> = gaps
        .iter()
        .take(MAX_PHASES)
        .map(|gap| at(gap.from % period))
        .max_by_key(|found| -> (usize, u64) { weight(found) })
        .unwrap_or_default();
    let (first, last) = (gaps.first().map_or(0, |g| g.from), gaps.last().map_or(0, |g| g.from));
    let periods = usize::try_from((last - first) / period.max(1)).unwrap_or(usize::MAX);
    if best.len() < 3.max(periods / 2) { Vec::new() } else { best.into_values().collect() }
}

/// Phases tried: a bound on the work where a host is interrupted all the time.
const MAX_PHASES: usize = 400;

/// A timer without a waiter: its interrupt alone.
fn timer(b: &mut Bench<'_>, least: u64) -> Result<(), Error> {
    const AHEAD_NS: Ns = 60_000;
    let timer = TimerFd::new()?;
    let (block, ahead) = (b.clock.to_cycles(BLOCK_NS), b.clock.to_cycles(AHEAD_NS));
    let about = "a spinning thread's gap when a timer nobody waits for expires";
    b.sample("timer-interrupt", about, |out| {
        let until = tsc() + block;
        while tsc() < until {
            timer.set(AHEAD_NS);
            // From just before it is due, since it was set a little before this.
            let due = tsc() + ahead - ahead / 8;
            let mut found = None;
            spin(due + ahead, least, |gap| {
                if gap.to >= due && found.is_none() {
                    found = Some(gap);
                }
            });
            out.extend(found.map(Gap::len));
        }
    })
}

/// An interrupt to another CPU, by membarrier: the CPU takes it, and the caller waits for that.
fn ipi(b: &mut Bench<'_>, least: u64) -> Result<(), Error> {
    let names = ["ipi-round-trip", "ipi-travel", "ipi-receive"];
    let Some(other) = b.other_cpu(&names) else { return Ok(()) };
    if !can_interrupt_others() {
        let why = "this kernel has no expedited membarrier";
        names.into_iter().for_each(|name| b.skip(name, why));
        return Ok(());
    }
    let (from, to, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (block, fifo) = (b.clock.to_cycles(BLOCK_NS), b.fifo);
    let pause: Ns = 60_000;
    let running = AtomicBool::new(false);
    thread::scope(|s| {
        let spinner = s.spawn(|| {
            prepare(other, fifo, 0)?;
            while !over.load(Ordering::Acquire) {
                // Spins only while it is measured: it is real-time.
                if !running.load(Ordering::Acquire) {
                    sleep_until(monotonic() + 500_000);
                    continue;
                }
                spin(tsc() + block / 64, least, |gap| {
                    from.store(gap.from, Ordering::Relaxed);
                    to.store(gap.to, Ordering::Release);
                });
            }
            Ok(())
        });
        let end = OnDrop(|| over.store(true, Ordering::Release));
        let sample = |out: &mut Vec<u64>, which: usize| {
            running.store(true, Ordering::Release);
            let until = tsc() + block;
            while tsc() < until {
                sleep_until(monotonic() + pause);
                let before = tsc();
                interrupt_others();
                let after = tsc();
                // The call returns when the other CPU has answered; that CPU notes its gap afterwards.
                spin(after + block / 2000, u64::MAX, |_| {});
                let gap =
                    Gap { to: to.load(Ordering::Acquire), from: from.load(Ordering::Relaxed) };
                let ours = gap.to > before && gap.from < after && gap.from < gap.to;
                // The CPU that sends reads its clock before the other one leaves its loop.
                match which {
                    0 => out.push(after - before),
                    1 if ours => out.push(gap.from.saturating_sub(before)),
                    2 if ours => out.push(gap.len()),
                    _ => {}
                }
            }
            running.store(false, Ordering::Release);
        };
        let abouts = [
            "membarrier: an interrupt to another CPU, and its answer",
            "from before the membarrier to the other CPU's interruption",
            "the gap it makes there",
        ];
        let mut done = Ok(());
        for (i, (name, about)) in names.into_iter().zip(abouts).enumerate() {
            done = done.and(b.sample(name, about, |out| sample(out, i)));
        }
        drop(end);
        done.and(spinner.join().unwrap_or(Err(Error::Panicked(RequestTarget::Host))))
    })
}

/// Interrupts every CPU that runs a thread of this process, and waits until they have answered.
pub(crate) fn interrupt_others() {
    let _ = membarrier(MembarrierCommand::PrivateExpedited);
}

/// Whether [`interrupt_others`] works.
pub(crate) fn can_interrupt_others() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{Gap, ticks};

    #[test]
    fn only_what_repeats_is_a_tick() {
        let gap = |from: u64, len: u64| Gap { from, to: from + len };
        let noise = [gap(100, 1), gap(1400, 99), gap(2700, 99), gap(3990, 2)];
        let mut gaps = [gap(1000, 7), gap(2003, 8), gap(2998, 9), gap(4001, 7)].to_vec();
        gaps.extend(noise);
        gaps.sort_unstable_by_key(|g| g.from);
        let found: Vec<u64> = ticks(&gaps, 1000, 20).into_iter().map(Gap::len).collect();
        assert_eq!(found, [7, 8, 9, 7], "of two in a period the longer");
        assert_eq!(ticks(&noise, 1000, 20).len(), 0);
        assert_eq!(ticks(&[], 1000, 20).len(), 0);
    }
}
