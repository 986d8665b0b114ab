//! Observes a run in progress, for the dashboard.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use vcoop_experiment::runner::RunId;
use vcoop_model::plan::{Ns, Plan};
use vcoop_model::trace_event::{Observer, SampleEvent};

use super::board::{Board, PARTS, ProbeUpdate};

/// Time between two updates of the board, which other threads use as well.
const PAUSE: Duration = Duration::from_millis(50);

/// Reports the samples of one run to a board.
#[derive(Debug)]
pub(super) struct Watcher<'a> {
    board: &'a Mutex<Board>,
    run: RunId,
    /// Length of the warm-up and of the measurement.
    times: (Ns, Ns),
    seen: Vec<ProbeUpdate>,
    told: Instant,
}

impl<'a> Watcher<'a> {
    pub(super) fn new(board: &'a Mutex<Board>, run: RunId, plan: &Plan) -> Self {
        // As in results: several tasks can share a name.
        let mut seen: Vec<ProbeUpdate> = Vec::new();
        for probe in &plan.probes {
            if seen.iter().all(|s| s.probe != probe.probe) {
                seen.push(ProbeUpdate::new(&probe.probe));
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
    use super::ProbeUpdate;

    #[test]
    fn three_digits_are_kept_and_parts_that_are_over_have_a_bar() {
        let mut seen = ProbeUpdate::new("p");
        for (part, ns) in [(0, 7), (0, 1_000_000), (2, 5), (2, 6), (3, 9)] {
            seen.book(part, ns);
        }
        assert_eq!(seen.max, 1_000_000);
        let large = seen.bins.iter().last().unwrap().0;
        assert!((1_000_000..1_001_000).contains(&large), "{large}");
        assert_eq!(seen.bars, [large, 6]);
    }
}
