//! One repeat of one plan, in the form in which it is kept until all repeats are done.
//!
//! A [`Recording`] holds dense histograms, about half a megabyte a probe. The summary keeps their [`Bins`]: some ten
//! kilobytes, whatever the simulated time.

use std::borrow::Cow;
use std::collections::BTreeMap;

use vcoop_model::plan::Ns;
use vcoop_model::recording::{LatencyRecord, Part, Recording, Slice, WorstSample};
use vcoop_statistics::bins::Bins;

/// One repeat.
#[derive(Clone, Debug)]
pub struct RepeatSummary {
    /// Latency series, in the order of the plan's probes.
    pub latencies: Vec<Latency>,
    /// All else that was recorded; it has no latency series.
    pub recording: Recording,
    /// Whether the run was complete, not interrupted.
    pub complete: bool,
}

/// A latency series of one repeat.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    /// Probe.
    pub probe: String,
    /// Metric.
    pub metric: &'static str,
    /// Its samples.
    pub bins: Bins,
    /// Samples.
    pub count: u64,
    /// Periods without a sample.
    pub missed: u64,
    /// Sum of all samples, exactly.
    pub sum_ns: u128,
    /// Smallest sample.
    pub min_ns: Ns,
    /// Largest sample.
    pub max_ns: Ns,
    /// Sum of each part over all samples.
    pub parts_sum: [u128; Part::COUNT],
    /// Samples and sums of their parts by octave, `floor(log2(ns))`; without empty octaves.
    pub by_log2: BTreeMap<u8, (u64, [u128; Part::COUNT])>,
    /// Latencies over time, if the plan asks for slices: length of a slice, and the slices.
    pub slices: Option<(Ns, Vec<Slice>)>,
    /// Threads on the pCPU: total time by label.
    pub ran_instead: BTreeMap<String, u128>,
    /// The worst samples, largest first.
    pub worst: Vec<WorstSample>,
}

impl RepeatSummary {
    /// Summarises a recording.
    pub fn new(mut recording: Recording, complete: bool) -> Self {
        let latencies = std::mem::take(&mut recording.latencies);
        Self { latencies: latencies.into_iter().map(Latency::new).collect(), recording, complete }
    }

    /// The same without views of a single run, which can be large.
    pub fn without_views(mut self) -> Self {
        self.recording.scatters = Vec::new();
        self.recording.intervals = Vec::new();
        self
    }
}

impl Latency {
    /// Its name, as in a document.
    pub fn name(&self) -> Cow<'_, str> {
        LatencyRecord::name(&self.probe, self.metric)
    }

    fn new(record: LatencyRecord) -> Self {
        Self {
            probe: record.probe,
            metric: record.metric,
            count: record.hist.len(),
            bins: Bins::of(&record.hist, record.max_ns),
            missed: record.missed,
            sum_ns: record.sum_ns,
            min_ns: record.min_ns,
            max_ns: record.max_ns,
            parts_sum: record.parts_sum,
            by_log2: (0..64u8)
                .map(|b| (b, record.count_by_log2[usize::from(b)]))
                .filter(|(_, count)| *count > 0)
                .map(|(b, count)| (b, (count, record.parts_by_log2[usize::from(b)])))
                .collect(),
            slices: record.slices.map(|slices| (slices.width_ns(), slices.iter().collect())),
            ran_instead: record.ran_instead,
            worst: record.worst,
        }
    }
}
