//! Measures activities that take an idle host's CPUs unasked, as noise of a profile.
#![allow(unsafe_code, reason = "getrusage has no safe wrapper")]

use std::collections::BTreeSet;
use std::thread;

use vcoop_model::plan::Ns;
use vcoop_model::profile::NoiseBy;
use vcoop_sched::config::Policy;
use vcoop_threads::clock::monotonic;
use vcoop_threads::tsc::tsc;
use vcoop_threads::{Attributes, pin};

use super::MeasuredNoise;
use super::bench::Bench;
use super::gaps::{Gap, least, spin, tick_block, ticks_among};
use super::settle::{Distribution, Interruptions};
use crate::error::{Error, RequestTarget};

/// Fewest samples that make a distribution.
const FEWEST: usize = 10;

/// Watches the CPUs of this calibration by turns, for `watch_ns` in all, and tells the bench the interruptions of a
/// measuring thread.
///
/// # Errors
///
/// [`Error::Kernel`].
pub(crate) fn watch(
    b: &mut Bench<'_>,
    tick_ns: Ns,
    watch_ns: Ns,
) -> Result<Vec<MeasuredNoise>, Error> {
    (b.progress)("noise");
    let cpus: Vec<u32> = std::iter::once(b.cpu).chain(b.other).collect();
    let mut all = SpinInterruptions::default();
    for &cpu in &cpus {
        let part = watch_ns / cpus.len() as Ns;
        // A thread of its own: fair, and of low weight, so that other threads get the CPU at once.
        let watched = thread::scope(|s| {
            let watcher = s.spawn(|| SpinInterruptions::on(b, cpu, tick_ns, part));
            watcher.join().unwrap_or(Err(Error::Panicked(RequestTarget::Host)))
        })?;
        all.add(watched);
    }
    let SpinInterruptions { ns, ticks, interrupts, threads } = all;
    let others = if b.fifo { Vec::new() } else { threads.clone() };
    b.interruptions = Interruptions::new([ticks, interrupts.clone(), others].concat(), ns);
    let mut seen = Vec::new();
    for (by, mut took) in [(NoiseBy::Interrupts, interrupts), (NoiseBy::Threads, threads)] {
        if took.len() >= FEWEST
            && let Some(took) = Distribution::of(&mut took)
        {
            let found = MeasuredNoise { by, took, watched_ns: ns, cpus: cpus.clone() };
            if found.leaves_time() {
                seen.push(found);
            } else {
                b.skip("noise", "others took all of the CPU: try again on an idle host");
            }
        }
    }
    Ok(seen)
}

/// Interruptions of a spinning thread.
#[derive(Debug, Default)]
struct SpinInterruptions {
    ns: Ns,
    ticks: Vec<Ns>,
    interrupts: Vec<Ns>,
    threads: Vec<Ns>,
}

impl SpinInterruptions {
    fn add(&mut self, other: Self) {
        self.ns += other.ns;
        self.ticks.extend(other.ticks);
        self.interrupts.extend(other.interrupts);
        self.threads.extend(other.threads);
    }

    fn on(b: &Bench<'_>, cpu: u32, tick_ns: Ns, watch_ns: Ns) -> Result<Self, Error> {
        let whom = RequestTarget::Thread("calibration".to_owned());
        pin(&[cpu]).map_err(Error::refused(&whom))?;
        let lowest = Policy::Normal { nice: 19, slice_ns: None };
        Attributes::from_policy(&lowest).set(0).map_err(Error::refused(&whom))?;
        let least = least(b);
        let block = b.clock.to_cycles(tick_block(tick_ns));
        let (mut watched, until) = (Self::default(), monotonic() + watch_ns);
        while monotonic() < until && !(b.stop)() {
            let (mut gaps, mut switches) = (Vec::new(), involuntary_switches());
            let begun = tsc();
            spin(begun + block, least, |gap| {
                let now = involuntary_switches();
                gaps.push((gap, now != switches));
                switches = now;
            });
            watched.ns += b.clock.to_ns(tsc() - begun);
            watched.sort(b, &gaps, tick_ns);
        }
        Ok(watched)
    }

    /// Sorts gaps into ticks, interrupts and threads.
    fn sort(&mut self, b: &Bench<'_>, gaps: &[(Gap, bool)], tick_ns: Ns) {
        let unswitched = gaps.iter().filter(|(_, switched)| !switched).map(|(gap, _)| *gap);
        let ticks = ticks_among(b.clock, unswitched, tick_ns);
        let ticks: BTreeSet<u64> = ticks.into_iter().map(|gap| gap.from).collect();
        for (gap, switched) in gaps {
            let took = b.clock.to_ns(gap.len());
            let kind = match switched {
                true => &mut self.threads,
                false if ticks.contains(&gap.from) => &mut self.ticks,
                false => &mut self.interrupts,
            };
            kind.push(took);
        }
    }
}

/// How often the calling thread lost its CPU to another.
fn involuntary_switches() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes `usage`, which all zeros is a value of too.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    }
}
