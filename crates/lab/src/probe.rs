//! From samples to a [`LatencyRecord`]: flat in memory whatever the number of samples.

use vcoop_model::plan::Ns;
use vcoop_model::recording::{LatencyRecord, Part, Parts};
use vcoop_model::trace_event::{Observer, SampleEvent};

/// The measured time, from the start of the warm-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: Ns,
    pub(crate) to: Ns,
}

/// Collects the samples of one probe.
#[derive(Debug)]
pub(crate) struct Probe {
    window: Window,
    interval: Ns,
    /// When the task starts.
    start: Ns,
    /// When the last sample was due, and how late it was.
    last: Option<(Ns, Ns)>,
    /// Sum and number of the lateness of all periods, including those without a sample.
    all: (u128, u64),
    record: LatencyRecord,
    /// Samples not yet reported, if there is an observer.
    taken: Option<Vec<MeasuredSample>>,
}

/// A sample of the measured time, for an observer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MeasuredSample {
    due: Ns,
    latency: Ns,
    parts: Parts,
    behind: Option<(String, Ns)>,
    /// The run ended before the sample did.
    open: bool,
}

impl Probe {
    /// An empty probe. `interval`: time between two due times. `start`: when its task starts.
    pub(crate) fn new(name: &str, window: Window, interval: Ns, start: Ns) -> Self {
        Self {
            window,
            interval: interval.max(1),
            start,
            last: None,
            all: (0, 0),
            record: LatencyRecord::new(name),
            taken: None,
        }
    }

    /// Keeps samples for [`tell`](Self::tell) from now on.
    pub(crate) fn listen(&mut self) {
        self.taken.get_or_insert_default();
    }

    /// Reports the samples since the last call.
    pub(crate) fn tell(&mut self, observer: &mut dyn Observer) {
        for t in self.taken.iter_mut().flat_map(|taken| taken.drain(..)) {
            let sample = SampleEvent {
                probe: &self.record.probe,
                due_ns: t.due,
                latency_ns: t.latency,
                parts: &t.parts,
                behind: t.behind.as_ref().map(|(who, ns)| (who.as_str(), *ns)),
                counts: true,
                open: t.open,
            };
            observer.sample(t.due + t.latency, &sample);
        }
    }

    /// Also keeps series over time, in so many slices of the measured time; none if 0.
    pub(crate) fn sliced(mut self, slices: u32) -> Self {
        let Window { from, to } = self.window;
        self.record = self.record.sliced(slices, to - from);
        self
    }

    /// Adds a sample: due at `due`, late by `latency`, which is the sum of its parts, after so many periods without a
    /// sample. `ran`: the threads on the CPU while it waited, largest first.
    ///
    /// False: the sample is not in the measured time, and does not count.
    pub(crate) fn record<'a>(
        &mut self,
        due: Ns,
        latency: Ns,
        parts: &Parts,
        missed: u64,
        ran: impl Iterator<Item = (&'a str, Ns)> + Clone,
    ) -> bool {
        debug_assert_eq!(parts.iter().sum::<Ns>(), latency);
        if due >= self.window.to {
            return false;
        }
        self.last = Some((due, latency));
        if due < self.window.from {
            return false;
        }
        // More than the periods since the window began were not missed in it.
        self.record.missed += missed.min((due - self.window.from) / self.interval + 1);
        self.take(due, latency, parts, ran, false);
        true
    }

    /// Adds a sample that counts.
    fn take<'a>(
        &mut self,
        due: Ns,
        latency: Ns,
        parts: &Parts,
        ran: impl Iterator<Item = (&'a str, Ns)> + Clone,
        open: bool,
    ) {
        // The periods that fell due meanwhile were served by the same wake-up, each an interval
        // less late.
        let more = u128::from(latency / self.interval);
        let (late, interval) = (u128::from(latency), u128::from(self.interval));
        self.all.0 += late * (more + 1) - interval * more * (more + 1) / 2;
        self.all.1 += more as u64 + 1;
        let since = due.saturating_sub(self.window.from);
        if let Some(taken) = &mut self.taken {
            let behind = ran.clone().next().map(|(who, ns)| (who.to_owned(), ns));
            taken.push(MeasuredSample { due, latency, parts: *parts, behind, open });
        }
        self.record.take(since, latency, parts, ran);
    }

    /// Mean lateness of all periods, including those without a sample, in nanoseconds. The mean of samples alone leaves
    /// out the periods that a very late task skips.
    pub(crate) fn mean_with_missed(&self) -> Option<f64> {
        (self.all.1 > 0).then(|| self.all.0 as f64 / self.all.1 as f64)
    }

    /// The run ended at `end`, and no sample follows. The periods that are over are missed. A sample that has been due
    /// for a period or more is recorded as far as it has come, as in the simulator: a task that is starved to the end
    /// must not look better than a late one. All of it counts as a wait for the CPU, because it is not known what the
    /// task was doing.
    ///
    /// True: there was such a sample.
    pub(crate) fn close(&mut self, end: Ns) -> bool {
        let (end, interval) = (end.min(self.window.to), self.interval);
        // Periods that fell due before the last sample was taken were skipped; the next sample would have reported
        // them.
        let (last, skipped) = match self.last {
            Some((due, latency)) => (due, latency.min(end.saturating_sub(due)) / interval),
            None => (self.start, 0),
        };
        let due = last.saturating_add(interval.saturating_mul(skipped + 1));
        let latency = end.saturating_sub(due);
        let since = end.saturating_sub(due.max(self.window.from));
        self.record.missed += skipped + since / interval;
        if latency < interval {
            return false;
        }
        let mut parts = Parts::default();
        parts[Part::WakeToRun as usize] = latency;
        self.take(due, latency, &parts, [].into_iter(), true);
        true
    }

    /// The record.
    pub(crate) fn finish(self) -> LatencyRecord {
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::{Probe, Window};
    use vcoop_model::recording::{Part, Parts};

    const WINDOW: Window = Window { from: 1_000_000, to: 11_000_000 };

    fn parts(latency: u64) -> Parts {
        let mut parts = [0; Part::COUNT];
        parts[Part::WakeToRun as usize] = latency;
        parts
    }

    #[test]
    fn warm_up_and_what_comes_after_the_end_are_dropped() {
        let mut p = Probe::new("p", WINDOW, 1_000_000, 0);
        for due in [0, 999_999, 1_000_000, 10_999_999, 11_000_000] {
            p.record(due, 5, &parts(5), 0, [].into_iter());
        }
        assert!(!p.close(20_000_000));
        let r = p.finish();
        assert_eq!((r.hist.len(), r.missed, r.sum_ns), (2, 0, 10));
    }

    #[test]
    fn periods_without_a_sample_are_counted_also_at_the_end() {
        let mut p = Probe::new("p", WINDOW, 1_000_000, 0);
        p.record(1_000_000, 2_500_000, &parts(2_500_000), 0, [].into_iter());
        p.record(4_000_000, 7, &parts(7), 2, [].into_iter());
        // 2.5, 1.5 and 0.5 ms late, and the sample of 7 ns.
        assert_eq!(p.mean_with_missed(), Some((4_500_000.0 + 7.0) / 4.0));
        // The one of 5 ms is open; those of 6 to 11 ms were missed.
        assert!(p.close(30_000_000));
        let r = p.finish();
        assert_eq!((r.missed, r.hist.len()), (2 + 6, 3));
        let worst = r.worst.iter().map(|w| (w.due_ns, w.latency_ns)).collect::<Vec<_>>();
        assert_eq!(worst, [(4_000_000, 6_000_000), (0, 2_500_000), (3_000_000, 7)]);
    }

    #[test]
    fn an_open_sample_counts_once_a_period_has_passed() {
        let end = |end: u64, last: Option<(u64, u64)>| {
            let mut p = Probe::new("p", WINDOW, 1_000_000, 0);
            if let Some((due, latency)) = last {
                p.record(due, latency, &parts(latency), 0, [].into_iter());
            }
            let open = p.close(end);
            let r = p.finish();
            (open, r.missed, r.max_ns)
        };
        assert_eq!(end(5_999_999, Some((4_000_000, 7))), (false, 0, 7));
        assert_eq!(end(6_000_000, Some((4_000_000, 7))), (true, 1, 1_000_000));
        // Periods that the last sample skipped are missed; the next is due after them.
        assert_eq!(end(7_999_999, Some((4_000_000, 2_100_000))), (false, 2, 2_100_000));
        assert_eq!(end(9_000_000, Some((4_000_000, 2_100_000))), (true, 2 + 2, 2_100_000));
        // Late beyond the end.
        assert_eq!(end(6_000_000, Some((4_000_000, 9_000_000))), (false, 2, 9_000_000));
        // Starved since the warm-up, or from its start on.
        assert_eq!(end(20_000_000, Some((0, 7))), (true, 10, 10_000_000));
        assert_eq!(end(20_000_000, None), (true, 10, 10_000_000));
    }

    #[test]
    fn who_ran_instead_adds_up_and_stays_with_the_worst() {
        let mut p = Probe::new("p", WINDOW, 1_000_000, 0);
        let hogs = [("hog", 3), ("make", 1)];
        assert!(!p.record(0, 5, &parts(5), 0, hogs.into_iter()), "warm-up");
        assert!(p.record(2_000_000, 5, &parts(5), 0, hogs.into_iter()));
        assert!(p.record(3_000_000, 9, &parts(9), 0, [("hog", 8)].into_iter()));
        let r = p.finish();
        let sums: Vec<_> = r.ran_instead.iter().map(|(who, ns)| (who.as_str(), *ns)).collect();
        assert_eq!(sums, [("hog", 11), ("make", 1)]);
        assert_eq!(r.worst[0].ran_instead, [("hog".to_owned(), 8)]);
        assert_eq!(r.worst[1].ran_instead.len(), 2);
    }

    #[test]
    fn a_hostile_missed_count_is_bounded_by_the_time_there_was() {
        let mut p = Probe::new("p", WINDOW, 1_000_000, 0);
        p.record(5_000_000, 7, &parts(7), u64::MAX, [].into_iter());
        p.close(5_000_000);
        assert!(p.finish().missed <= 5);
    }
}
