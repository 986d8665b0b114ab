//! Samples of one probe, between measurement and record: samples that a trace may explain are held until the trace
//! covers them.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use vcoop_guest::ring::Sample;
use vcoop_model::plan::Ns;
use vcoop_model::recording::{Part, Parts};
use vcoop_sources::trace::{Tid, Timeline};
use vcoop_threads::tsc::Clock;

use crate::probe::Probe;
use crate::round_trip::RoundTrip;
use crate::trace::attribute::{self, AttributedSample};

/// Samples held for one probe; a probe every 10 us takes two thirds of a second to fill it.
const MOST_HELD: usize = 1 << 16;

/// Samples of a host thread that wait in its channel.
const MOST_SENT: usize = 1 << 13;

/// A sample of a host thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSample {
    /// When it was due, from the start of the warm-up.
    pub(crate) due: Ns,
    /// How late it was, by the clock used for sleeping.
    pub(crate) latency: Ns,
    /// TSC when it was taken.
    pub(crate) taken: u64,
    /// Periods without a sample since the one before.
    pub(crate) missed: u64,
    /// The times of a call, if it is about one; `latency` is then the call's duration.
    pub(crate) trip: Option<RoundTrip>,
}

/// The channel for a host thread's samples.
pub(crate) fn channel() -> (SyncSender<HostSample>, Receiver<HostSample>) {
    sync_channel(MOST_SENT)
}

/// Kind of sample, with its times.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// Of a guest. Its times are in order; `fired`: when the injector fired for it, if it did.
    Guest { sample: Sample, fired: Option<u64> },
    /// Of a host thread: due and taken by the TSC.
    Host { due: u64, taken: u64 },
    /// Of a call by any caller. The trace does not explain it: two threads or more take part.
    RoundTrip(RoundTrip),
    /// A wait until `back` for other vCPUs to call a function. The trace does not explain it either.
    Calls { back: u64 },
}

/// A sample before it is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingSample {
    /// When it was due, from the start of the warm-up.
    pub(crate) due: Ns,
    pub(crate) latency: Ns,
    pub(crate) missed: u64,
    pub(crate) source: Source,
}

impl PendingSample {
    fn taken(&self) -> u64 {
        match self.source {
            Source::Guest { sample, .. } => sample.taken,
            Source::Host { taken, .. } => taken,
            Source::RoundTrip(trip) => trip.back,
            Source::Calls { back } => back,
        }
    }

    /// Decomposition by the trace.
    fn attribute(&self, timeline: &Timeline, clock: &Clock, tid: Tid) -> Option<AttributedSample> {
        match self.source {
            Source::Guest { sample, fired } => {
                attribute::guest(timeline, clock, tid, &sample, fired)
            }
            Source::Host { due, taken } => {
                attribute::host(timeline, clock, tid, (due, taken), self.latency)
            }
            Source::RoundTrip(_) | Source::Calls { .. } => None,
        }
    }

    /// Decomposition without a trace, as far as possible (see the crate's documentation).
    fn coarse(&self, clock: &Clock) -> Parts {
        let mut parts = [0; Part::COUNT];
        let latency = self.latency;
        match self.source {
            Source::Guest { sample: s, fired } => {
                let injector = fired.map_or(0, |f| clock.to_ns(f - s.due)).min(latency);
                let guest = clock.to_ns(s.taken - s.woken).min(latency - injector);
                let waited = if s.from_idle { Part::WakeToRun } else { Part::PreemptedToRun };
                parts[Part::TimerSlack as usize] = injector;
                parts[Part::GuestSwitch as usize] = guest;
                parts[waited as usize] = latency - injector - guest;
            }
            // One part: without a trace the timer's share of it is not known.
            Source::Host { .. } => parts[Part::WakeToRun as usize] = latency,
            Source::RoundTrip(trip) => parts = trip.parts(clock, latency),
            Source::Calls { .. } => parts[Part::CallWait as usize] = latency,
        }
        parts
    }
}

/// A probe and its held samples.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) probe: Probe,
    /// The thread of the samples; 0 until it is known.
    pub(crate) tid: Tid,
    held: VecDeque<PendingSample>,
    /// Samples of the measured time that no trace explains.
    coarse: u64,
}

impl Series {
    pub(crate) fn new(probe: Probe) -> Self {
        Self { probe, tid: 0, held: VecDeque::new(), coarse: 0 }
    }

    /// Samples of the measured time with a coarse decomposition.
    pub(crate) fn coarse(&self) -> u64 {
        self.coarse
    }

    /// The run ended at `end`, and all held samples were released.
    pub(crate) fn close(&mut self, end: Ns) {
        self.coarse += u64::from(self.probe.close(end));
    }

    /// Takes a sample in.
    pub(crate) fn hold(&mut self, sample: PendingSample) {
        self.held.push_back(sample);
    }

    /// Records samples in order: those that the timeline covers, or all if it will cover no more.
    pub(crate) fn release(&mut self, clock: &Clock, timeline: Option<&Timeline>, all: bool) {
        while let Some(sample) = self.held.front().copied() {
            let covered = timeline.is_none_or(|t| sample.taken() <= t.covered());
            if !covered && !all && self.held.len() <= MOST_HELD {
                return;
            }
            self.held.pop_front();
            let PendingSample { due, latency, missed, .. } = sample;
            match timeline.and_then(|t| Some((t, sample.attribute(t, clock, self.tid)?))) {
                Some((t, AttributedSample { parts, ran })) => {
                    let ran = ran.iter().map(|(label, ns)| (t.name(*label), *ns));
                    self.probe.record(due, latency, &parts, missed, ran);
                }
                None => {
                    let parts = sample.coarse(clock);
                    let counts = self.probe.record(due, latency, &parts, missed, [].into_iter());
                    self.coarse += u64::from(counts);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PendingSample, Series, Source};
    use crate::probe::{Probe, Window};
    use crate::round_trip::{RoundTrip, ServerPlace};
    use vcoop_guest::line::ServedCall;
    use vcoop_guest::ring::Sample;
    use vcoop_model::recording::Part;
    use vcoop_sources::trace::Timeline;
    use vcoop_threads::tsc::Clock;

    const WINDOW: Window = Window { from: 0, to: 1_000_000 };

    fn sample(due: u64, taken: u64) -> PendingSample {
        let sample = Sample { due, taken, woken: taken - 3, ..Sample::default() };
        let source = Source::Guest { sample, fired: Some(due + 2) };
        PendingSample { due, latency: taken - due, missed: 0, source }
    }

    #[test]
    fn without_a_trace_the_coarse_parts_are_recorded_at_once() {
        let clock = Clock::new(0, 1_000_000);
        let mut series = Series::new(Probe::new("p", WINDOW, 1_000, 0));
        series.hold(sample(100, 150));
        series.release(&clock, None, false);
        assert_eq!(series.coarse(), 1);
        let r = series.probe.finish();
        let part = |p: Part| r.parts_sum[p as usize];
        let parts = (part(Part::TimerSlack), part(Part::PreemptedToRun), part(Part::GuestSwitch));
        assert_eq!((parts, r.sum_ns), ((2, 45, 3), 50));
    }

    #[test]
    fn a_round_trip_keeps_its_own_parts_beside_a_trace() {
        let clock = Clock::new(0, 1_000_000);
        let mut timeline = Timeline::new(clock);
        timeline.settle(1_000);
        let served = ServedCall { taken: 140, done: 150, woken: 130, idle: true };
        let trip =
            RoundTrip { called: 100, served, woken: None, back: 190, server: ServerPlace::Vcpu };
        let mut series = Series::new(Probe::new("p", WINDOW, 1_000, 0));
        let source = Source::RoundTrip(trip);
        series.hold(PendingSample { due: 100, latency: 90, missed: 0, source });
        series.release(&clock, Some(&timeline), false);
        assert_eq!(series.coarse(), 1, "and counts as not explained");
        let r = series.probe.finish();
        let want = trip.parts(&clock, 90).map(u128::from);
        assert_eq!((r.parts_sum, r.sum_ns), (want, 90));
        assert_eq!(want.iter().sum::<u128>(), 90);
    }

    #[test]
    fn samples_wait_for_the_trace_but_not_for_ever() {
        let clock = Clock::new(0, 1_000_000);
        let mut timeline = Timeline::new(clock);
        let mut series = Series::new(Probe::new("p", WINDOW, 1_000, 0));
        series.hold(sample(100, 150));
        series.hold(sample(200, 250));
        timeline.settle(160);
        series.release(&clock, Some(&timeline), false);
        assert_eq!(series.held.len(), 1);
        series.release(&clock, Some(&timeline), true);
        assert_eq!((series.held.len(), series.coarse()), (0, 2));
        for i in 0..super::MOST_HELD as u64 + 10 {
            series.hold(sample(300 + i, 310 + i));
        }
        series.release(&clock, Some(&timeline), false);
        assert_eq!(series.held.len(), super::MOST_HELD);
    }
}
