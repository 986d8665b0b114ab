//! Watches a run that goes on, for the dashboard.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use vcoop_experiment::runner::RunId;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::trace_event::{Observer, SampleEvent};

use super::board::{Board, quantile};

/// Time between two looks at the board, which others use as well.
const PAUSE: Duration = Duration::from_millis(50);

/// Bits of a latency that are kept: three digits, as the histograms of results have.
const DIGITS: u32 = 11;

/// Parts of the measured time that have a bar each.
pub(super) const PARTS: u64 = 60;

/// What one probe has measured since the board was told last.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) probe: String,
    pub(super) bins: BTreeMap<Ns, u64>,
    pub(super) max: Ns,
    /// 99 % quantiles of parts of the measured time that are over.
    pub(super) bars: Vec<Ns>,
    /// The part that is not: its number, and its samples.
    part: (u64, BTreeMap<Ns, u64>),
}

impl Seen {
    pub(super) fn new(probe: &str) -> Self {
        let part = (0, BTreeMap::new());
        Self { probe: probe.to_owned(), bins: BTreeMap::new(), max: 0, bars: Vec::new(), part }
    }

    /// Takes a sample in, which was due in this part of the measured time.
    pub(super) fn book(&mut self, part: u64, latency: Ns) {
        if part > self.part.0 {
            let bins = std::mem::take(&mut self.part.1);
            let count = bins.values().sum();
            if count > 0 {
                self.bars.push(quantile(bins.into_iter(), count, 990));
            }
            self.part.0 = part;
        }
        let low = (Ns::BITS - latency.leading_zeros()).saturating_sub(DIGITS);
        let top = latency | ((1 << low) - 1);
        *self.bins.entry(top).or_default() += 1;
        *self.part.1.entry(top).or_default() += 1;
        self.max = self.max.max(latency);
    }
}

/// Tells a board of one run's samples.
#[derive(Debug)]
pub(super) struct Watcher<'a> {
    board: &'a Mutex<Board>,
    run: RunId,
    /// Length of the warm-up and of the measurement.
    times: (Ns, Ns),
    seen: Vec<Seen>,
    told: Instant,
}

impl<'a> Watcher<'a> {
    pub(super) fn new(board: &'a Mutex<Board>, run: RunId, plan: &Plan) -> Self {
        // As results have them: several tasks can share a name.
        let mut seen: Vec<Seen> = Vec::new();
        for probe in &plan.probes {
            if seen.iter().all(|s| s.probe != probe.probe) {
                seen.push(Seen::new(&probe.probe));
            }
        }
        let times = (plan.warmup_ns, plan.duration_ns);
        Self { board, run, times, seen, told: Instant::now() }
    }
}

impl Observer for Watcher<'_> {
    fn sample(&mut self, at: Ns, sample: &SampleEvent<'_>) {
        let Some(seen) = self.seen.iter_mut().find(|seen| seen.probe == sample.probe) else {
            return;
        };
        let (zero, length) = self.times;
        if sample.counts {
            let due = sample.due_ns.saturating_sub(zero);
            seen.book(due / (length / PARTS).max(1), sample.latency_ns);
        }
        if self.told.elapsed() >= PAUSE {
            self.told = Instant::now();
            let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
            board.see(self.run, (at.saturating_sub(zero), length), &mut self.seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn three_digits_are_kept_and_parts_that_are_over_have_a_bar() {
        let mut seen = Seen::new("p");
        for (part, ns) in [(0, 7), (0, 1_000_000), (2, 5), (2, 6), (3, 9)] {
            seen.book(part, ns);
        }
        assert_eq!(seen.max, 1_000_000);
        let large = *seen.bins.keys().last().unwrap();
        assert!((1_000_000..1_001_000).contains(&large), "{large}");
        assert_eq!(seen.bars, [large, 6]);
    }
}
