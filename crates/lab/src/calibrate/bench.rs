//! Runs the measurements one after the other, each until it settles or its time is up.

use std::thread;
use std::time::Duration;

use vcoop_model::plan::Ns;
use vcoop_threads::clock::monotonic;
use vcoop_threads::tsc::Clock;

use super::settle::{Blocks, Distribution, Interruptions};
use super::{Measure, Skipped};
use crate::error::Error;

/// Break between two blocks. A measuring thread is real-time: without breaks it would run into the kernel's limit, and
/// starve other users of its CPU.
const BREAK: Duration = Duration::from_millis(6);

/// Length of a block.
pub(crate) const BLOCK_NS: Ns = 40_000_000;

/// The state of a calibration: clock, limits and results so far.
pub(crate) struct Bench<'a> {
    pub(crate) clock: Clock,
    /// CPU under measurement.
    pub(crate) cpu: u32,
    /// A second CPU, on another core if possible.
    pub(crate) other: Option<u32>,
    /// A CPU of another core with the same last-level cache.
    pub(crate) near: Option<u32>,
    /// A CPU with another last-level cache.
    pub(crate) far: Option<u32>,
    /// Most time for one measurement.
    pub(crate) budget: Ns,
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
    pub(crate) progress: &'a (dyn Fn(&str) + Sync),
    pub(crate) measures: Vec<Measure>,
    pub(crate) skipped: Vec<Skipped>,
    /// Whether the measuring threads may be real-time.
    pub(crate) fifo: bool,
    /// Whether halt polling could be switched off in all guests so far that should not have it.
    pub(crate) halt_polling_off: bool,
    /// Cost of reading the clock twice, in cycles; subtracted from every sample.
    pub(crate) floor: u64,
    /// What interrupts a measuring thread, ticks included.
    pub(crate) interruptions: Interruptions,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("measures", &self.measures).finish_non_exhaustive()
    }
}

impl Bench<'_> {
    /// Measures `name`: `block` fills in the samples of one block, in cycles, the clock's floor
    /// included, and takes about [`BLOCK_NS`].
    ///
    /// # Errors
    ///
    /// Those of `block`.
    pub(crate) fn measure(
        &mut self,
        name: &'static str,
        about: &'static str,
        mut block: impl FnMut(&mut Vec<u64>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        (self.progress)(name);
        let until = monotonic() + self.budget;
        let (mut blocks, mut cycles) = (Blocks::default(), Vec::new());
        while !blocks.is_stable() && !(self.stop)() && monotonic() < until {
            cycles.clear();
            block(&mut cycles)?;
            let mut ns: Vec<Ns> =
                cycles.iter().map(|c| self.clock.to_ns(c.saturating_sub(self.floor))).collect();
            blocks.push(&mut ns);
            thread::sleep(BREAK);
        }
        let (stable, n) = (blocks.is_stable(), blocks.len());
        match blocks.distribution(&self.interruptions) {
            Some(distribution) => {
                self.measures.push(Measure { name, about, distribution, blocks: n, stable });
            }
            None if (self.stop)() => {}
            None => self.skip(name, "no sample came in the time it had"),
        }
        Ok(())
    }

    /// As [`Bench::measure`], of a block that cannot fail.
    ///
    /// # Errors
    ///
    /// None of its own.
    pub(crate) fn sample(
        &mut self,
        name: &'static str,
        about: &'static str,
        mut block: impl FnMut(&mut Vec<u64>),
    ) -> Result<(), Error> {
        self.measure(name, about, |out| {
            block(out);
            Ok(())
        })
    }

    /// Records that something is not measured.
    pub(crate) fn skip(&mut self, name: &'static str, why: &str) {
        self.skipped.push(Skipped { name, why: why.to_owned() });
    }

    /// The other CPU. Without one these measures are skipped.
    pub(crate) fn other_cpu(&mut self, names: &[&'static str]) -> Option<u32> {
        for name in names.iter().filter(|_| self.other.is_none()) {
            self.skipped.push(Skipped { name, why: "there is only one CPU".to_owned() });
        }
        self.other
    }

    /// Whether threads can be real-time. Where they cannot, this measure is skipped.
    pub(crate) fn needs_fifo(&mut self, name: &'static str) -> bool {
        if !self.fifo {
            self.skip(name, "real-time scheduling is not permitted");
        }
        self.fifo
    }

    /// What was found for `name`.
    pub(crate) fn found(&self, name: &str) -> Option<Distribution> {
        self.measures.iter().find(|m| m.name == name).map(|m| m.distribution)
    }
}

/// Calls a function when dropped, also during a panic: a scope waits for its threads, and they wait for a signal to
/// end.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
