//! From samples to a [`LatencyRecord`]: flat in memory whatever the number of samples.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use vcoop_model::recording::{LatencyRecord, Part, WorstSample};

use crate::queue::Ns;
use crate::track::Sample;

/// How many of the worst samples are kept.
const WORST: usize = 16;

/// One minute: beyond it a histogram saturates (sum, min and max stay exact).
const HIGHEST_NS: u64 = 60_000_000_000;

/// Collects the samples of one probe.
#[derive(Debug)]
pub struct Probe {
    /// Index into the plan's probes.
    pub(crate) index: usize,
    /// When the measurement starts; samples due earlier are warm-up.
    start: Ns,
    record: LatencyRecord,
    ran_instead: Box<[u128]>,
    worst: Vec<(Ns, Ns, [Ns; Part::COUNT], Box<[Ns]>)>,
}

impl Probe {
    /// An empty probe.
    pub fn new(index: usize, name: &str, start: Ns, labels: usize) -> Self {
        let hist = Histogram::new_with_max(HIGHEST_NS, 3)
            .expect("one minute with three digits is a valid histogram");
        Self {
            index,
            start,
            record: LatencyRecord {
                probe: name.to_owned(),
                metric: "latency",
                hist,
                missed: 0,
                sum_ns: 0,
                min_ns: Ns::MAX,
                max_ns: 0,
                parts_sum: [0; Part::COUNT],
                parts_by_log2: Box::new([[0; Part::COUNT]; 64]),
                count_by_log2: [0; 64],
                ran_instead: BTreeMap::new(),
                worst: Vec::new(),
            },
            ran_instead: vec![0; labels].into_boxed_slice(),
            worst: Vec::with_capacity(WORST + 1),
        }
    }

    /// Takes a sample in.
    pub fn record(&mut self, sample: &Sample<'_>) {
        if sample.due < self.start {
            return;
        }
        let r = &mut self.record;
        r.hist.saturating_record(sample.latency);
        r.sum_ns += u128::from(sample.latency);
        r.min_ns = r.min_ns.min(sample.latency);
        r.max_ns = r.max_ns.max(sample.latency);
        let bucket = sample.latency.max(1).ilog2() as usize;
        r.count_by_log2[bucket] += 1;
        for (i, &ns) in sample.parts.iter().enumerate() {
            r.parts_sum[i] += u128::from(ns);
            r.parts_by_log2[bucket][i] += u128::from(ns);
        }
        for (sum, &ns) in self.ran_instead.iter_mut().zip(sample.ran_instead) {
            *sum += u128::from(ns);
        }
        let floor = self.worst.last().map_or(0, |w| w.0);
        if self.worst.len() < WORST || sample.latency > floor {
            let at = self.worst.partition_point(|w| w.0 >= sample.latency);
            self.worst.truncate(WORST - 1);
            let due = sample.due - self.start;
            self.worst.insert(
                at.min(self.worst.len()),
                (sample.latency, due, *sample.parts, sample.ran_instead.into()),
            );
        }
    }

    /// Counts periods without a sample.
    pub fn missed(&mut self, n: u64, now: Ns) {
        if now >= self.start {
            self.record.missed += n;
        }
    }

    /// The record, with labels by name.
    pub fn finish(self, labels: &[String]) -> LatencyRecord {
        let mut r = self.record;
        r.ran_instead = labels
            .iter()
            .zip(self.ran_instead.iter())
            .filter(|(_, ns)| **ns > 0)
            .map(|(l, ns)| (l.clone(), *ns))
            .collect();
        r.worst = self
            .worst
            .into_iter()
            .map(|(latency_ns, due_ns, parts, ran)| {
                let mut ran_instead: Vec<(String, Ns)> = labels
                    .iter()
                    .zip(ran.iter())
                    .filter(|(_, ns)| **ns > 0)
                    .map(|(l, ns)| (l.clone(), *ns))
                    .collect();
                ran_instead.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
                WorstSample { due_ns, latency_ns, parts, ran_instead }
            })
            .collect();
        r
    }
}
