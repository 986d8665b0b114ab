//! From samples to a [`LatencyRecord`]: flat in memory whatever the number of samples.

use vcoop_model::recording::{LatencyRecord, Parts, Scatter, WorstSample};

use crate::attribution::track::Sample;
use crate::queue::Ns;

const WORST: usize = LatencyRecord::WORST;

/// Collects the samples of one probe.
#[derive(Debug)]
pub(crate) struct Probe {
    /// Index into the plan's probes.
    pub(crate) index: usize,
    /// When the measurement starts; samples due earlier are warm-up.
    start: Ns,
    record: LatencyRecord,
    ran_instead: Box<[u128]>,
    /// invariant: sorted by latency, largest first; at most [`WORST`].
    worst: Vec<Kept>,
    /// Every sample (due, latency), where a view asks for it, and how many at most.
    every: Option<(Vec<(Ns, Ns)>, usize)>,
    dropped: u64,
}

/// A sample among the worst.
#[derive(Debug)]
struct Kept {
    latency: Ns,
    due: Ns,
    parts: Parts,
    ran_instead: Box<[Ns]>,
}

impl Probe {
    /// An empty probe; it keeps that many samples one by one.
    pub(crate) fn new(
        index: usize,
        name: &str,
        start: Ns,
        labels: usize,
        keep: Option<u32>,
    ) -> Self {
        Self {
            index,
            start,
            record: LatencyRecord::new(name),
            ran_instead: vec![0; labels].into_boxed_slice(),
            worst: Vec::with_capacity(WORST + 1),
            every: keep.map(|most| (Vec::new(), most as usize)),
            dropped: 0,
        }
    }

    /// The same, of waits for a pCPU rather than of a task's latency.
    pub(crate) fn of_waits(mut self) -> Self {
        self.record.metric = LatencyRecord::WAIT;
        self
    }

    /// Whether it is of waits.
    pub(crate) fn is_of_waits(&self) -> bool {
        self.record.metric == LatencyRecord::WAIT
    }

    /// The same by time, in so many slices of the measured time; none where that is 0.
    pub(crate) fn sliced(mut self, slices: u32, duration: Ns) -> Self {
        self.record = self.record.sliced(slices, duration);
        self
    }

    /// Its name in the plan.
    pub(crate) fn name(&self) -> &str {
        &self.record.probe
    }

    /// Whether a sample that was due then belongs to the measurement.
    pub(crate) fn counts(&self, due: Ns) -> bool {
        due >= self.start
    }

    /// Takes a sample in, unless it belongs to the warm-up.
    pub(crate) fn record(&mut self, sample: &Sample<'_>) {
        if sample.due >= self.start {
            self.record_open(sample);
        }
    }

    /// Takes in a sample that the end of the run cut off, whenever it was due.
    pub(crate) fn record_open(&mut self, sample: &Sample<'_>) {
        self.record.book(sample.latency, sample.parts);
        if let Some(slices) = &mut self.record.slices {
            slices.book(sample.due.saturating_sub(self.start), sample.latency);
        }
        for (sum, &ns) in self.ran_instead.iter_mut().zip(sample.ran_instead) {
            *sum += u128::from(ns);
        }
        if let Some((every, most)) = &mut self.every {
            if every.len() < *most {
                every.push((sample.due.saturating_sub(self.start), sample.latency));
            } else {
                self.dropped += 1;
            }
        }
        let at = self.worst.partition_point(|w| w.latency >= sample.latency);
        if at < WORST {
            self.worst.truncate(WORST - 1);
            let kept = Kept {
                latency: sample.latency,
                due: sample.due.saturating_sub(self.start),
                parts: *sample.parts,
                ran_instead: sample.ran_instead.into(),
            };
            self.worst.insert(at, kept);
        }
    }

    /// Counts periods without a sample.
    pub(crate) fn missed(&mut self, n: u64, now: Ns) {
        if now >= self.start {
            self.record.missed += n;
        }
    }

    /// The samples one by one, if a view asked for them.
    pub(crate) fn scatter(&mut self) -> Option<Scatter> {
        let (points, _) = self.every.take()?;
        Some(Scatter { probe: self.record.probe.clone(), points, dropped: self.dropped })
    }

    /// The record, with labels by name.
    pub(crate) fn finish(self, labels: &[String]) -> LatencyRecord {
        let mut r = self.record;
        r.ran_instead = named(labels, &self.ran_instead).collect();
        r.worst = self
            .worst
            .iter()
            .map(|kept| {
                let mut ran_instead: Vec<(String, Ns)> = named(labels, &kept.ran_instead).collect();
                ran_instead.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
                WorstSample {
                    due_ns: kept.due,
                    latency_ns: kept.latency,
                    parts: kept.parts,
                    ran_instead,
                }
            })
            .collect();
        r
    }
}

/// The times that are not zero, by label. The last entry is an idle pCPU.
fn named<'a, T: Copy + PartialEq + From<u8>>(
    labels: &'a [String],
    times: &'a [T],
) -> impl Iterator<Item = (String, T)> + 'a {
    let ran = move |(_, ns): &(_, &T)| **ns != T::from(0);
    let names = labels.iter().map(String::as_str).chain(std::iter::once("(idle)"));
    names.zip(times).filter(ran).map(|(l, ns)| (l.to_owned(), *ns))
}
